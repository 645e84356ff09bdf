"""What a page says of a plan and of a run: kernels, memory, events."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, field
from typing import Any

from weft.ir.cost.work import work
from weft.ir.dataclass import dataclass
from weft.ir.graph import Operation
from weft.passes.memory.block import ArenaRange, MemoryPlan
from weft.runtime.recorder import TraceEvent
from weft.runtime.trace.timeline import Timeline


@dataclass(frozen=True)
class KernelFacts:
    """A kernel of a plan. op: of the last graph, what it carries out. key: of its code.

    microseconds, many: of one run with one thread and with all; runs: how often a call runs it;
    bytes, flops; percent: of the roofline, which is `bound` by "memory" or "compute". All are None
    where nothing was measured. notes: for people. code: by language ("source", "LLVM", "assembly",
    "PTX", ...), its text. blocks, threads, shared: of a launch on a GPU, the blocks of its grid,
    the threads of each block and the bytes of its shared memory.
    """

    number: int
    name: str
    op: Operation | None
    key: str
    runs: int | None = None
    microseconds: float | None = None
    many: float | None = None
    bytes: int | None = None
    flops: int | None = None
    percent: float | None = None
    bound: str = ""
    notes: tuple[str, ...] = ()
    code: dict[str, str] = field(default_factory=dict)
    blocks: int | None = None
    threads: int | None = None
    shared: int | None = None
    device: str = ""
    region: str = ""

    def row(self) -> dict[str, Any]:
        """All but the op."""
        names = (
            "number", "name", "key", "runs", "microseconds", "many", "bytes", "flops",
            "percent", "bound", "code", "blocks", "threads", "shared", "device", "region",
        )  # fmt: skip
        return {**{name: getattr(self, name) for name in names}, "notes": list(self.notes)}


class WorkOnce:
    """The bytes and flops of ops, each with the first of its kernels. what: one of them, for
    people."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._first: dict[Operation, int] = {}

    def of(
        self, op: Operation | None, number: int, in_place: bool
    ) -> tuple[int | None, int | None, list[str]]:
        """Bytes, flops and notes of the kernel `number`, which carries out `op`."""
        if op is None:
            return None, None, []
        first = self._first.setdefault(op, number)
        if first != number:
            note = f"its bytes and flops count with {self._what} {first}, of the same op"
            return None, None, [note]
        done = work(op, in_place)
        return done.bytes_read + done.bytes_written, done.flops, []


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
