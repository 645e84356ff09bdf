"""What a page says of a plan and of a run: memory, events, and kernels, whose facts are the
runtime's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from weft.ir.dataclass import dataclass
from weft.passes.memory.block import ArenaRange, MemoryPlan
from weft.runtime.recorder import TraceEvent
from weft.runtime.trace.kernel_facts import KernelFacts
from weft.runtime.trace.timeline import Timeline


@dataclass(frozen=True)
class Memory:
    """The arena of a plan: `bytes` in all, `ranges` of it over the plan's `events`."""

    bytes: int
    events: int
    ranges: Sequence[ArenaRange]

    @staticmethod
    def of(plan: MemoryPlan) -> Memory:
        """That of a memory plan."""
        return Memory(plan.arena_bytes, plan.events, plan.ranges)


@dataclass(frozen=True)
class Event:
    """One bar of the timeline. lane: a thread, a stream, a task. begin, end: in microseconds from
    the first event. lines: "file:line" of what ran."""

    lane: str
    name: str
    kind: str
    begin: float
    end: float
    lines: tuple[str, ...] = ()
    note: str = ""

    def row(self) -> dict[str, Any]:
        """All of it."""
        return asdict(self)


@dataclass(frozen=True)
class PlanFacts:
    """What a page says of a plan and of a run. recorded: how the run was recorded. missing: lines
    on what the page does not have of the kernels, and why."""

    kernels: Sequence[KernelFacts] = ()
    memory: Memory | None = None
    events: Sequence[Event] = ()
    recorded: str = ""
    missing: Sequence[str] = ()


def events_of(events: Sequence[TraceEvent]) -> list[Event]:
    """The bars of a recorded run: a lane for each thread; what did not run is left out."""
    return _bars([("", e) for e in events])


def events_of_tasks(timeline: Timeline) -> list[Event]:
    """The bars of a run on several tasks by one clock: a lane for each thread of each, and one for
    what it waits for."""
    found = _bars([(span.task + " ", span.event) for span in timeline.spans], timeline.begin_ns)
    for way in timeline.transfers:
        if way.received is not None and not way.received.dead:
            begin, end = (
                (t - timeline.begin_ns) / 1e3 for t in (way.received.begin_ns, way.received.end_ns)
            )
            lane, note = f"{way.target} waits", f"{way.event.nbytes:,} bytes from {way.source}"
            found.append(Event(lane, way.event.tensor, "message", begin, end, note=note))
    return found


def _bars(events: Sequence[tuple[str, TraceEvent]], start: int | None = None) -> list[Event]:
    alive = [(task, e) for task, e in events if not e.dead]
    if start is None:
        start = min((e.begin_ns for _, e in alive), default=0)
    threads: dict[str, dict[int, int]] = {}
    found = []
    for task, e in alive:
        known = threads.setdefault(task, {})
        lines = tuple(dict.fromkeys(f"{at.file}:{at.line}" for at in e.locations))
        note = f"{e.nbytes:,} bytes" if e.nbytes else ""
        if e.iteration:
            note += f" iteration {'.'.join(map(str, e.iteration))} of {e.frame}"
        begin, end = ((t - start) / 1e3 for t in (e.begin_ns, e.end_ns))
        lane = f"{task}thread {known.setdefault(e.thread, len(known))}"
        found.append(Event(lane, e.name, e.kind, begin, end, lines, note.strip()))
    return found
