"""Perfetto: events and timelines in Chrome's format (Trace Event Format, Google 2016).

A timeline of one step or several has a process for the session and for each task; in it a track for
each thread, and tracks "waits for tensors" on which each Recv is an event of its own, from when it
was asked for to when it came. An arrow (a flow) leads from the event of each Send to that of its
Recv, and the critical path is a process of its own."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from weft.runtime.recorder import TraceEvent
from weft.runtime.trace.analysis import critical_path
from weft.runtime.trace.task_trace import MessageEvent
from weft.runtime.trace.timeline import CLIENT, PartSpan, Timeline, Transfer, joined

Json = dict[str, Any]


def name_row(what: str, pid: int, tid: int, name: str) -> Json:
    """The name of a process (what="process_name") or of a thread ("thread_name")."""
    return {"name": what, "ph": "M", "pid": pid, "tid": tid, "ts": 0, "args": {"name": name}}


def event_rows(event: TraceEvent, number: int, start_ns: int, pid: int, tid: int) -> Iterator[Json]:
    """One event; times in us from `start_ns` on. What waits is an asynchronous event with the
    identity `number`, since others overlap it."""
    args: Json = {"ops": list(event.ops), "kind": event.kind}
    if event.locations:
        args["source"] = [str(where) for where in event.locations]
    if event.nbytes:
        args["bytes"] = event.nbytes
    if event.frame:
        args["frame"], args["iteration"] = event.frame, list(event.iteration)
    if event.dead:
        args["dead"] = True
    cat = "dead" if event.dead else event.kind
    both = {"name": event.name, "cat": cat, "pid": pid, "tid": tid}
    begin = (event.begin_ns - start_ns) / 1e3
    end = (max(event.end_ns, event.begin_ns) - start_ns) / 1e3
    if event.waits:
        yield {**both, "ph": "b", "id": number, "ts": begin, "args": args}
        yield {**both, "ph": "e", "id": number, "ts": end}
    else:
        yield {**both, "ph": "X", "ts": begin, "dur": end - begin, "args": args}


_PATH, _CLIENT, _FIRST = 1, 2, 3  # processes, in the order in which they are shown
_WAITS = 1_000_000  # the first of the tracks for what is waited for
_LANE = 10_000  # so many tracks for each of the steps that overlap


def perfetto(steps: Sequence[Timeline], about: Mapping[str, Any] | None = None) -> str:
    """The JSON text, for https://ui.perfetto.dev; times in us from the begin of the first step on.
    Steps that overlap have tracks of their own. InvalidArgumentError for no step."""
    timeline = joined(steps)
    own = [*_step_rows(steps, timeline.begin_ns), *_rows(timeline)]
    names = [row for row in (*_names(timeline), *own) if row["ph"] == "M"]
    once = {(row["name"], row["pid"], row["tid"]): row for row in names}
    events = [row for row in own if row["ph"] != "M"]
    rows = [*once.values(), *sorted(events, key=lambda row: float(row["ts"]))]
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


def _step_rows(steps: Sequence[Timeline], start: int) -> Iterator[Json]:
    """The session's own tracks and the critical paths of all steps."""
    ends: list[int] = []
    for number, step in sorted(enumerate(steps, 1), key=lambda s: s[1].begin_ns):
        lane = _lane(ends, step.begin_ns, step.end_ns)
        if len(steps) > 1:
            first = lane * _LANE
            yield name_row("thread_name", _CLIENT, first, "steps")
            yield _slice(_CLIENT, first, f"step {number}", step.begin_ns, step.end_ns, start)
        yield from _path_rows(step, lane, start)
        yield from _part_rows(step, lane, start)


def _lane(ends: list[int], begin: int, end: int) -> int:
    """The first track on which nothing overlaps; `ends` is when each of them is free."""
    lane = next((k for k, free in enumerate(ends) if free <= begin), len(ends))
    ends[lane : lane + 1] = [end]
    return lane


def _rows(timeline: Timeline) -> Iterator[Json]:
    start = timeline.begin_ns
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
        known = len(ends)
        lane = _lane(ends, event.begin_ns, _end(event))
        if lane == known:
            yield name_row("thread_name", pid, _WAITS + lane, "waits for tensors")
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
    begin, end = (event.begin_ns - start) / 1e3, (_end(event) - start) / 1e3
    label = f"{'send' if event.sent else 'recv'} {transfer.event.tensor or event.key}"
    both = {"pid": pid, "tid": tid, "cat": "send" if event.sent else "recv"}
    yield {**both, "name": label, "ph": "X", "ts": begin, "dur": end - begin, "args": args}
    if transfer.sent is not None and transfer.received is not None:
        arrow = {**both, "name": "tensor", "cat": "tensor", "id": number}
        yield {**arrow, "ph": "s", "ts": begin} if event.sent else {
            **arrow, "ph": "f", "bp": "e", "ts": end - 0.001  # the slice's last moment is not in it
        }  # fmt: skip


def _end(event: MessageEvent) -> int:
    """When its slice ends: what takes no time takes 1 ns there, so that an arrow finds it."""
    return max(event.end_ns, event.begin_ns + 1)


def _part_rows(timeline: Timeline, lane: int, start: int) -> Iterator[Json]:
    """On the session's tracks: how long each part was under way, and what of it in its task."""
    parts = sorted(timeline.parts, key=lambda p: (p.task, p.handle))
    for tid, part in enumerate(parts, lane * _LANE + 1):
        yield name_row("thread_name", _CLIENT, tid, part.task)
        yield _slice(_CLIENT, tid, f"part of {part.task}", part.run_ns, part.answered_ns, start)
        yield _slice(_CLIENT, tid, "runs", part.fed_ns, _done(part), start)


def _done(part: PartSpan) -> int:
    return max(part.fed_ns, part.done_ns)


def _slice(pid: int, tid: int, name: str, begin: int, end: int, start: int) -> Json:
    return {"name": name, "cat": "step", "ph": "X", "pid": pid, "tid": tid,
            "ts": (begin - start) / 1e3, "dur": (end - begin) / 1e3, "args": {}}  # fmt: skip


def _path_rows(timeline: Timeline, lane: int, start: int) -> Iterator[Json]:
    """One track for each task that the path goes through, in the order in which it does."""
    path: Sequence[Any] = critical_path(timeline)
    first = lane * _LANE + 1
    tracks = {task: k for k, task in enumerate(dict.fromkeys(s.task for s in path), first)}
    for task, tid in tracks.items():
        yield name_row("thread_name", _PATH, tid, "session" if task == CLIENT else task)
    for segment in path:
        begin, end = segment.begin_ns, segment.end_ns
        row = _slice(_PATH, tracks[segment.task], segment.name, begin, end, start)
        row["cat"] = segment.kind
        if segment.peer:
            row["args"]["to"] = segment.peer
        if segment.locations:
            row["args"]["source"] = [str(where) for where in segment.locations]
        yield row
