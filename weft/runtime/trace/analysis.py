"""Analysis of a timeline: critical path, straggler, waits, bytes per edge; and the report as text.

The graph of what depends on what is not part of a trace; the times say enough. Back from the answer
that came last: what a task did at some time could begin when what ended last before it on that task
had ended, be it a computation (whose result it takes, or whose thread) or a tensor that came. From
a tensor that somebody already waited for the path goes on at its sender."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from weft.ir.dataclass import dataclass
from weft.ir.locations import Locations
from weft.runtime.trace.timeline import CLIENT, PartSpan, Span, Timeline, Transfer

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
    """How much each task and each kind of time has, then the longest pieces."""
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
    yield "  longest pieces"
    for s in sorted(path, key=lambda s: -s.ns)[:_MOST_LINES]:
        where = f" at {s.locations[0]}" if s.locations else ""
        task = "session" if s.task == CLIENT else s.task
        to = f" -> {'session' if s.peer == CLIENT else s.peer}" if s.peer else ""
        yield f"    {_ms(s.ns)}  {task}{to}: {s.name}{where}"


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
