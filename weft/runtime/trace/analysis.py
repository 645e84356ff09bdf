"""Analysis of a timeline: critical path, straggler, waits, bytes per edge; the report as text, and
events and timelines for Perfetto.

The graph of what depends on what is not part of a trace; the times say enough. Back from the answer
that came last: what a task did at some time could begin when what ended last before it on that task
had ended, be it a computation (whose result it takes, or whose thread) or a tensor that came. From
a tensor that somebody already waited for the path goes on at its sender.

Perfetto: events and timelines in Chrome's format (Trace Event Format, Google 2016). A timeline of
one step or several has a process for the session and for each task; in it a track for each thread,
and tracks "waits for tensors" on which each Recv is an event of its own, from when it was asked for
to when it came. An arrow (a flow) leads from the event of each Send to that of its Recv, and the
critical path is a process of its own."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from weft.ir.dataclass import dataclass
from weft.ir.locations import Locations
from weft.runtime.recorder import TraceEvent
from weft.runtime.trace.task_trace import MessageEvent
from weft.runtime.trace.timeline import (
    CLIENT,
    IN_ITERATION,
    PartSpan,
    Span,
    Timeline,
    Transfer,
    joined,
)

#: A task is called a straggler if it is so many times as long at work as its peers' median.
STRAGGLER = 1.5


@dataclass(frozen=True, slots=True)
class Segment:
    """A piece of the critical path. kind: "run" (`task` computes), "transfer" (a tensor or message
    is on its way from `task` to `peer`), "idle" (nothing that was recorded: dispatch, an event that
    was dropped), "client" (the session itself)."""

    task: str
    kind: str
    begin_ns: int
    end_ns: int
    name: str
    peer: str = ""
    locations: Locations = ()

    @property
    def ns(self) -> int:
        """Its length."""
        return self.end_ns - self.begin_ns


@dataclass(frozen=True, slots=True)
class Straggler:
    """A task that took longer than its peers. times: how often as long at work as the median of its
    peers. on_path_ns: its computing on the critical path."""

    task: str
    busy_ns: int
    peers_ns: int
    on_path_ns: int

    @property
    def times(self) -> float:
        """How often as long at work as the others."""
        return self.busy_ns / max(self.peers_ns, 1)


class _Ends:
    """The events that ended on one task, by the time of their end."""

    def __init__(self, items: Sequence[Span | Transfer]) -> None:
        timed = sorted(((_end(item), i, item) for i, item in enumerate(items)), key=lambda t: t[:2])
        self._times = [t for t, _, _ in timed]
        self._items = [item for _, _, item in timed]
        self._left = len(timed)  # those behind were looked at: the path only goes back

    def last_before(self, ns: int) -> Span | Transfer | None:
        """What ended last, at `ns` at the latest; each is given once."""
        self._left = min(self._left, bisect_right(self._times, ns)) - 1
        return self._items[self._left] if self._left >= 0 else None


def _end(item: Span | Transfer) -> int:
    if isinstance(item, Span):
        return item.event.end_ns
    assert item.received is not None
    return item.received.end_ns


def critical_path(timeline: Timeline) -> list[Segment]:
    """From the begin of the step to its end, without gaps."""
    ends = {
        task: _Ends(
            [
                *(s for s in timeline.spans if s.task == task and not s.event.dead),
                *(t for t in timeline.transfers if t.target == task and t.received is not None),
            ]
        )
        for task in timeline.tasks
    }
    last = max(timeline.parts, key=lambda part: part.answered_ns)
    path = _Path(timeline)
    path.back(CLIENT, "client", last.answered_ns, "the results are put together")
    path.back(last.task, "transfer", last.done_ns, "the answer", CLIENT)
    task = last.task
    while True:
        begun = _begun(timeline, task, path.at)
        found = ends[task].last_before(path.at)
        if found is None or _end(found) <= begun.fed_ns:
            path.back(task, "idle", begun.fed_ns, "between ops")
            path.back(CLIENT, "transfer", begun.run_ns, "the message that has it run, feeds", task)
            path.back(CLIENT, "client", timeline.begin_ns, "the parts are told to run")
            return path.segments[::-1]
        path.back(task, "idle", _end(found), "between ops")
        if isinstance(found, Span):
            event = found.event
            path.back(task, "run", event.begin_ns, event.name, "", event.locations)
            continue
        task = path.across(found)


class _Path:
    """The critical path, built from its end."""

    def __init__(self, timeline: Timeline) -> None:
        self.at, self._begin = timeline.end_ns, timeline.begin_ns
        self.segments: list[Segment] = []

    def back(
        self, task: str, kind: str, begin: int, name: str, peer: str = "", where: Locations = ()
    ) -> None:
        """What was from `begin` until where the path is."""
        begin = min(max(begin, self._begin), self.at)
        if begin < self.at:
            self.segments.append(Segment(task, kind, begin, self.at, name, peer, where))
            self.at = begin

    def across(self, transfer: Transfer) -> str:
        """Over a tensor that came: the task where the path goes on, the sender if the receiver
        waited before it was sent."""
        sent, received = transfer.sent, transfer.received
        assert received is not None
        where = received.locations
        if sent is not None and sent.begin_ns >= received.begin_ns:
            name = str(transfer)
            self.back(transfer.source, "transfer", sent.begin_ns, name, transfer.target, where)
            return transfer.source
        source = "" if sent is None else transfer.source
        self.back(
            source or transfer.target, "transfer", received.begin_ns, str(transfer),
            transfer.target, where,
        )  # fmt: skip
        return transfer.target


def _begun(timeline: Timeline, task: str, at: int) -> PartSpan:
    """The part of the task that began last before a time, or the first one."""
    parts = sorted((p for p in timeline.parts if p.task == task), key=lambda p: p.fed_ns)
    return next((p for p in reversed(parts) if p.fed_ns <= at), parts[0])


# ------------------------------------------------------------------------------------ who is slow
def busy_ns(timeline: Timeline, task: str) -> int:
    """How long at least one thread of the task was at work (its host ops that only wait aside)."""
    spans = [s.event for s in timeline.spans if s.task == task and not s.event.waits]
    total, until = 0, timeline.begin_ns
    for event in sorted(spans, key=lambda e: e.begin_ns):
        begin = max(event.begin_ns, until)
        if event.end_ns > begin:
            total += event.end_ns - begin
            until = event.end_ns
    return total


def on_path(path: Sequence[Segment]) -> Counter[str]:
    """How long each task computes on the critical path, in ns."""
    found: Counter[str] = Counter()
    for segment in path:
        if segment.kind == "run":
            found[segment.task] += segment.ns
    return found


def straggler(timeline: Timeline, path: Sequence[Segment]) -> Straggler | None:
    """The task on the critical path that is at work much longer than the other tasks of its job:
    None if there is no such task, or it has no peers."""
    share = on_path(path)
    found: list[Straggler] = []
    for task in timeline.tasks:
        job = task.rsplit("/task:", 1)[0]
        peers = [t for t in timeline.tasks if t != task and t.rsplit("/task:", 1)[0] == job]
        if not peers or not share[task]:
            continue
        others = int(np.median([busy_ns(timeline, t) for t in peers]))
        made = Straggler(task, busy_ns(timeline, task), others, share[task])
        if made.times >= STRAGGLER:
            found.append(made)
    return max(found, key=lambda s: s.on_path_ns, default=None)


def on_links(path: Sequence[Segment]) -> Counter[tuple[str, str]]:
    """How long the critical path is on its way from one task (or the session) to another, in ns."""
    found: Counter[tuple[str, str]] = Counter()
    for segment in path:
        if segment.kind == "transfer":
            found[segment.task, segment.peer] += segment.ns
    return found


def pieces(path: Sequence[Segment]) -> list[tuple[Segment, int, int]]:
    """The pieces of the critical path, those of the same op or tensor in all iterations as one: the
    first of them, how many there are, and how long all are together in ns; the longest first."""
    first: dict[tuple[Any, ...], Segment] = {}
    count, length = Counter[tuple[Any, ...]](), Counter[tuple[Any, ...]]()
    for s in path:
        name = s.name.partition(IN_ITERATION)[0]
        key = s.task, s.peer, s.kind, name, s.locations
        first.setdefault(key, s)
        count[key] += 1
        length[key] += s.ns
    return [(first[key], count[key], ns) for key, ns in length.most_common()]


_MOST_LINES = 12


def report(timeline: Timeline) -> str:
    """The lines: critical path, straggler, waits, edges, clocks."""
    path = critical_path(timeline)
    took = timeline.end_ns - timeline.begin_ns
    lines = [
        f"step on {len(timeline.tasks)} tasks, {len(timeline.parts)} parts: {_ms(took)}, "
        f"{len(timeline.transfers)} tensors between devices",
        "critical path",
        *_path_lines(path, max(took, 1)),
        *_straggler_lines(timeline, path),
        "waits for tensors",
        *_wait_lines(timeline),
        "bytes per edge",
        *_edge_lines(timeline),
        "clocks, against the session's",
        *(f"  {task}  {timeline.clocks[task].describe()}" for task in timeline.tasks),
    ]
    if timeline.dropped:
        lines.append(f"{timeline.dropped:,} events were not kept: some of the path may be missing")
    return "\n".join(lines)


def _path_lines(path: Sequence[Segment], took: int) -> Iterator[str]:
    """How much each kind of time, each task and each link has, then the longest pieces."""
    kinds = Counter[str]()
    for s in path:
        kinds[s.kind] += s.ns
    names = {
        "run": "computing", "transfer": "tensors and messages on their way",
        "idle": "between ops", "client": "the session",
    }  # fmt: skip
    for kind, ns in kinds.most_common():
        yield f"  {100 * ns / took:5.1f} %  {_ms(ns)}  {names[kind]}"
        if kind == "run":
            for task, share in on_path(path).most_common(_MOST_LINES):
                yield f"    {100 * share / took:5.1f} %  {_ms(share)}  {task}"
        if kind == "transfer":
            for (task, peer), share in on_links(path).most_common(_MOST_LINES):
                link = f"{_named(task)} -> {_named(peer)}"
                yield f"    {100 * share / took:5.1f} %  {_ms(share)}  {link}"
    yield "  its longest pieces"
    for s, times, ns in pieces(path)[:_MOST_LINES]:
        where = f" at {s.locations[0]}" if s.locations else ""
        to = f" -> {_named(s.peer)}" if s.peer else ""
        name = s.name if times == 1 else f"{s.name.partition(IN_ITERATION)[0]}, {times} times"
        yield f"    {100 * ns / took:5.1f} %  {_ms(ns)}  {_named(s.task)}{to}: {name}{where}"


def _named(task: str) -> str:
    return "session" if task == CLIENT else task


def _straggler_lines(timeline: Timeline, path: Sequence[Segment]) -> Iterator[str]:
    found = straggler(timeline, path)
    if found is not None:
        yield (
            f"straggler: {found.task} is at work for {_ms(found.busy_ns)}, {found.times:.1f} times "
            f"as long as its peers ({_ms(found.peers_ns)}); {_ms(found.on_path_ns)} of the "
            "critical path are its computing"
        )


def waits_of(timeline: Timeline) -> dict[tuple[str, str], tuple[int, int, int]]:
    """(who waits, for whom): in ns how long at least one Recv waited, and how much of that for
    tensors that were not sent yet; then how many tensors."""
    rows: dict[tuple[str, str], list[tuple[int, int, int]]] = {}
    for t in timeline.transfers:
        if t.received is not None:
            begin = t.received.begin_ns
            row = (begin, t.received.end_ns, begin + t.late_ns)
            rows.setdefault((t.target, t.source), []).append(row)
    return {
        who: (
            _union([(begin, end) for begin, end, _ in held]),
            _union([(begin, late) for begin, _, late in held]),
            len(held),
        )
        for who, held in rows.items()
    }


def _union(spans: Sequence[tuple[int, int]]) -> int:
    total, until = 0, 0
    for begin, end in sorted(spans):
        begin = max(begin, until) if total else begin
        if end > begin:
            total, until = total + end - begin, end
    return total


def _wait_lines(timeline: Timeline) -> Iterator[str]:
    found = sorted(waits_of(timeline).items(), key=lambda row: -row[1][0])
    if not found:
        yield "  none"
    for (task, source), (ns, late, count) in found[:_MOST_LINES]:
        yield (
            f"  {_ms(ns)}  {task} for {source}: {count} tensors, {_ms(late)} before they were sent"
        )
    if len(found) > _MOST_LINES:
        yield f"  and {len(found) - _MOST_LINES} more pairs of tasks"


def _edge_lines(timeline: Timeline) -> Iterator[str]:
    """The tensors that moved most bytes between tasks, in all iterations together."""
    count, size = Counter[tuple[str, ...]](), Counter[tuple[str, ...]]()
    for t in timeline.transfers:
        if t.source != t.target and not t.event.dead:
            who = (t.source, t.target, t.event.tensor or f"key {t.event.key}")
            count[who] += 1
            size[who] += t.event.nbytes
    if not count:
        yield "  none between tasks"
    for (source, target, tensor), nbytes in size.most_common(_MOST_LINES):
        times = count[source, target, tensor]
        yield f"  {nbytes:14,}  {source} -> {target}: {tensor!r}, {times} times"
    if len(size) > _MOST_LINES:
        left = sum(n for _, n in size.most_common()[_MOST_LINES:])
        yield f"  {left:14,}  on {len(size) - _MOST_LINES} more edges"


def _ms(ns: int) -> str:
    return f"{ns / 1e6:9.3f} ms"


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
        lane = _lane(ends, event.begin_ns, _slice_end(event))
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
    begin, end = (event.begin_ns - start) / 1e3, (_slice_end(event) - start) / 1e3
    label = f"{'send' if event.sent else 'recv'} {transfer.event.tensor or event.key}"
    both = {"pid": pid, "tid": tid, "cat": "send" if event.sent else "recv"}
    yield {**both, "name": label, "ph": "X", "ts": begin, "dur": end - begin, "args": args}
    if transfer.sent is not None and transfer.received is not None:
        arrow = {**both, "name": "tensor", "cat": "tensor", "id": number}
        yield {**arrow, "ph": "s", "ts": begin} if event.sent else {
            **arrow, "ph": "f", "bp": "e", "ts": end - 0.001  # the slice's last moment is not in it
        }  # fmt: skip


def _slice_end(event: MessageEvent) -> int:
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
