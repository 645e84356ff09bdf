"""A merged timeline as text: what the step's time went to, who waited for whom, bytes per edge."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from weft.runtime.distributed.critical import Segment, critical_path, on_path, straggler
from weft.runtime.distributed.timeline import CLIENT, Timeline

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
