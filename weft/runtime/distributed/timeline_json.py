"""A merged timeline in Chrome's format (Trace Event Format, Google 2016), which Perfetto reads.

A process for the session and for each task; in it a track for each thread, and tracks "waits for
tensors" on which each Recv is an event of its own, from when it was asked for to when it came. An
arrow (a flow) leads from the event of each Send to that of its Recv, and the critical path is a
process of its own.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from weft.runtime.dataflow.trace_json import Json, event_rows, name_row
from weft.runtime.distributed.critical import critical_path
from weft.runtime.distributed.recorded import MessageEvent
from weft.runtime.distributed.timeline import CLIENT, PartSpan, Timeline, Transfer

_PATH, _CLIENT, _FIRST = 1, 2, 3  # processes, in the order in which they are shown
_WAITS = 1_000_000  # the first of the tracks for what is waited for


def perfetto(timeline: Timeline, about: Mapping[str, Any] | None = None) -> str:
    """The JSON text, for https://ui.perfetto.dev; times in us from the begin of the step on."""
    rows = [*_names(timeline), *sorted(_rows(timeline), key=lambda row: float(row["ts"]))]
    clocks = {task: timeline.clocks[task].describe() for task in timeline.tasks}
    other = {"clocks": clocks, "dropped": timeline.dropped, **(about or {})}
    return json.dumps({"traceEvents": rows, "displayTimeUnit": "ns", "otherData": other})


def _names(timeline: Timeline) -> Iterator[Json]:
    for pid, name in [
        (_PATH, "critical path"),
        (_CLIENT, "session"),
        *enumerate(timeline.tasks, _FIRST),
    ]:
        yield name_row("process_name", pid, 0, name)
        order = {"name": "process_sort_index", "ph": "M", "pid": pid, "tid": 0, "ts": 0}
        yield {**order, "args": {"sort_index": pid}}


def _rows(timeline: Timeline) -> Iterator[Json]:
    start = timeline.begin_ns
    yield from _path_rows(timeline)
    yield from _part_rows(timeline)
    numbers = iter(range(1 << 62))
    for pid, task in enumerate(timeline.tasks, _FIRST):
        spans = [s.event for s in timeline.spans if s.task == task]
        sent = [t for t in timeline.transfers if t.source == task and t.sent is not None]
        idents = [e.thread for e in spans] + [t.sent.thread for t in sent if t.sent is not None]
        threads = {ident: k for k, ident in enumerate(dict.fromkeys(idents), 1)}
        for ident, k in threads.items():
            yield name_row("thread_name", pid, k, f"thread {ident}")
        for event in spans:
            yield from event_rows(event, next(numbers), start, pid, threads[event.thread])
        for number, transfer in _numbered(timeline):
            if transfer.source == task and transfer.sent is not None:
                tid = threads[transfer.sent.thread]
                yield from _end_rows(transfer, transfer.sent, number, start, pid, tid)
        yield from _wait_rows(timeline, task, start, pid)


def _numbered(timeline: Timeline) -> Iterator[tuple[int, Transfer]]:
    return enumerate(timeline.transfers, 1)


def _wait_rows(timeline: Timeline, task: str, start: int, pid: int) -> Iterator[Json]:
    """What the task waited for, on as many tracks as there are waits at once."""
    ends: list[int] = []
    came = [(n, t) for n, t in _numbered(timeline) if t.target == task]
    waits = [(n, t, t.received) for n, t in came if t.received is not None]
    for number, transfer, event in sorted(waits, key=lambda w: w[2].begin_ns):
        free = (k for k, end in enumerate(ends) if end <= event.begin_ns)
        lane = next(free, len(ends))
        if lane == len(ends):
            ends.append(0)
            yield name_row("thread_name", pid, _WAITS + lane, "waits for tensors")
        ends[lane] = event.end_ns
        yield from _end_rows(transfer, event, number, start, pid, _WAITS + lane)


def _end_rows(
    transfer: Transfer, event: MessageEvent, number: int, start: int, pid: int, tid: int
) -> Iterator[Json]:
    """The event of one end of a transfer, and its end of the arrow."""
    args: Json = {
        "tensor": transfer.event.tensor, "key": event.key, "from": transfer.source,
        "to": transfer.target, "bytes": event.nbytes,
    }  # fmt: skip
    if event.iteration:
        args["iteration"] = list(event.iteration)
    if event.dead:
        args["dead"] = True
    if event.locations:
        args["source"] = [str(where) for where in event.locations]
    if not event.sent and transfer.sent is not None:
        args["waited before it was sent, us"] = transfer.late_ns / 1e3
    begin, end = (event.begin_ns - start) / 1e3, (event.end_ns - start) / 1e3
    label = f"{'send' if event.sent else 'recv'} {transfer.event.tensor or event.key}"
    both = {"pid": pid, "tid": tid, "cat": "send" if event.sent else "recv"}
    yield {**both, "name": label, "ph": "X", "ts": begin, "dur": end - begin, "args": args}
    if transfer.sent is not None and transfer.received is not None:
        arrow = {**both, "name": "tensor", "cat": "tensor", "id": number}
        yield {**arrow, "ph": "s", "ts": begin} if event.sent else {
            **arrow, "ph": "f", "bp": "e", "ts": end
        }  # fmt: skip


def _part_rows(timeline: Timeline) -> Iterator[Json]:
    """On the session's tracks: how long each part was under way, and what of it in its task."""
    start = timeline.begin_ns
    for tid, part in enumerate(sorted(timeline.parts, key=lambda p: (p.task, p.handle)), 1):
        yield name_row("thread_name", _CLIENT, tid, part.task)
        yield _slice(_CLIENT, tid, f"part of {part.task}", part.run_ns, part.answered_ns, start)
        yield _slice(_CLIENT, tid, "runs", part.fed_ns, _done(part), start)


def _done(part: PartSpan) -> int:
    return max(part.fed_ns, part.done_ns)


def _slice(pid: int, tid: int, name: str, begin: int, end: int, start: int) -> Json:
    return {"name": name, "cat": "step", "ph": "X", "pid": pid, "tid": tid,
            "ts": (begin - start) / 1e3, "dur": (end - begin) / 1e3, "args": {}}  # fmt: skip


def _path_rows(timeline: Timeline) -> Iterator[Json]:
    """One track for each task that the path goes through, in the order in which it does."""
    path: Sequence[Any] = critical_path(timeline)
    tracks = {task: k for k, task in enumerate(dict.fromkeys(s.task for s in path), 1)}
    for task, tid in tracks.items():
        yield name_row("thread_name", _PATH, tid, "session" if task == CLIENT else task)
    for segment in path:
        begin, end = segment.begin_ns, segment.end_ns
        row = _slice(_PATH, tracks[segment.task], segment.name, begin, end, timeline.begin_ns)
        row["cat"] = segment.kind
        if segment.peer:
            row["args"]["to"] = segment.peer
        if segment.locations:
            row["args"]["source"] = [str(where) for where in segment.locations]
        yield row
