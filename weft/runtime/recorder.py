"""`TraceRecorder`: the recorder of traced steps, one event for each kernel or node that ran."""

from __future__ import annotations

import itertools
import threading
import time
from collections import deque
from collections.abc import Sequence, Sized
from typing import Any, Protocol, TypeAlias

from weft.ir.dataclass import dataclass
from weft.ir.errors import InvalidArgumentError
from weft.ir.locations import Locations


def clock() -> int:
    """Nanoseconds, as native code sees them."""
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC)


@dataclass(frozen=True, slots=True)
class Output:
    """A tensor that an event gave. op: the name of the op that makes it; locations: its lines.
    dtype, shape: its type. nbytes: of the memory that was taken for it; 0: it lies where another
    value was, or a variable is."""

    op: str
    locations: Locations
    dtype: str
    shape: tuple[int, ...]
    nbytes: int


@dataclass(frozen=True, slots=True)
class TraceEvent:
    """One run of one node, or of one kernel of a native plan.

    name: for people. kind: "kernel" or "control" (a loop or branch of a native plan), "plan" (a
    compiled region), "state" (one that uses variables), "host", "switch", "merge", "enter", "exit",
    "next_iteration", "identity", "constant", "feed", "fetch". ops: names of the ops it carries out;
    locations: their lines. frame: names of the loops around it, as "outer/inner" ("" outside of
    loops); iteration: the number of each of these loops' iterations, outermost first (of the
    innermost 4). begin_ns, end_ns: time.CLOCK_MONOTONIC. thread: the identity of the Python thread
    that ran or began it. dead: it did not run. waits: a host op that was begun, and done later:
    other events overlap it. step: the number of the step in its recorder. nbytes: of what it reads
    and writes; 0: not known. outputs: what it gave, as far as its sizes are known. device: of the
    part that it is in; "": the step is not in parts. region: the number of the compiled region that
    it is a kernel of, from 1; 0: of none. kernels: the numbers that the plan's kernels which it ran
    have, from 1; several for a loop or branch.
    """

    name: str
    kind: str
    ops: tuple[str, ...]
    locations: Locations
    frame: str
    iteration: tuple[int, ...]
    begin_ns: int
    end_ns: int
    thread: int
    dead: bool
    waits: bool
    step: int
    nbytes: int = 0
    outputs: tuple[Output, ...] = ()
    device: str = ""
    region: int = 0
    kernels: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Recorded:
    """The events of a traced run. dropped: how many were not kept. timeline: of a run on a cluster,
    the `runtime.trace.timeline.Timeline` of all tasks; None of all others. kernels: those that ran
    in compiled regions, each of which is one of `events`."""

    events: Sequence[TraceEvent]
    dropped: int
    timeline: Any = None
    kernels: Sequence[TraceEvent] = ()


class EventRows(Protocol):
    """Some events, which are made when asked for."""

    @property
    def rows(self) -> Sized: ...

    def events(self) -> list[TraceEvent]: ...


class TraceRecorder:
    """Collects the events of the steps that it is given to, which may run at once.

    limit: how many events are kept, about: the oldest go, and `dropped` counts them. kernels:
    whether the dataflow executor is to record each kernel of its regions, too, which makes them
    slower; it records the regions as a whole.
    """

    #: Of the part and region that use it (`PartRecorder`): of the whole.
    device, region = "", 0

    def __init__(self, limit: int = 1_000_000, *, kernels: bool = False) -> None:
        if limit < 1:
            raise InvalidArgumentError(f"a trace cannot keep {limit} events")
        self.limit, self.dropped, self.kernels = limit, 0, kernels
        self._chunks: deque[EventRows] = deque()
        self._count = 0
        self._steps = itertools.count()
        self._lock = threading.Lock()

    def events(self) -> list[TraceEvent]:
        """All events so far, by their begin."""
        with self._lock:
            chunks = list(self._chunks)
        return sorted((e for c in chunks for e in c.events()), key=lambda e: e.begin_ns)

    def recorded(self) -> Recorded:
        """All that was recorded."""
        events = self.events()
        whole = [e for e in events if not e.region]
        return Recorded(whole, self.dropped, kernels=[e for e in events if e.region])

    def within(self, device: str, region: int = 0) -> PartRecorder:
        """The same for a part of the step, or a compiled region of it."""
        return PartRecorder(self, device, region)

    def next_step(self) -> int:
        """The number of a step that begins."""
        return next(self._steps)

    def add(self, chunk: EventRows) -> None:
        """Keep some events."""
        with self._lock:
            self._chunks.append(chunk)
            self._count += len(chunk.rows)
            while self._count > self.limit and len(self._chunks) > 1:
                gone = len(self._chunks.popleft().rows)
                self._count -= gone
                self.dropped += gone


@dataclass(frozen=True, slots=True)
class PartRecorder:
    """A recorder as a part of a step uses it, on `device`, or a compiled `region` of the part."""

    whole: TraceRecorder
    device: str
    region: int

    @property
    def kernels(self) -> bool:
        """As of `TraceRecorder`."""
        return self.whole.kernels

    def within(self, device: str, region: int = 0) -> PartRecorder:
        """As of `TraceRecorder`."""
        return self.whole.within(device, region)

    def next_step(self) -> int:
        """As of `TraceRecorder`."""
        return self.whole.next_step()

    def add(self, chunk: EventRows) -> None:
        """As of `TraceRecorder`."""
        self.whole.add(chunk)


#: What records a step, a part or a region.
AnyRecorder: TypeAlias = TraceRecorder | PartRecorder
