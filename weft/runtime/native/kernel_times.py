"""Times of each kernel in one run of a native plan: the same table on the same values, in segments.

A segment is the rows of one op, or a whole loop or branch: the walker is given the whole table each
time, with a jump to the segment in row 0 and its end as the number of rows."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from weft.codegen.faults import STOPPED
from weft.codegen.loops.program import PlannedCall
from weft.codegen.steps.walker import (
    CALL_WORDS,
    FALSE,
    FIRST_ADDRESS,
    HEADER,
    JUMP,
    NEXT,
    WALK_PARTS,
)
from weft.ir.dataclass import dataclass
from weft.ir.graph import Operation, Value
from weft.ir.locations import Locations
from weft.ir.process import cpython
from weft.ir.types import TensorType
from weft.passes.memory.block import MemoryPlan
from weft.runtime.native.activation import Activation
from weft.runtime.native.executable import Executable
from weft.runtime.recorder import AnyRecorder, Output, TraceEvent, clock

Array = np.ndarray[Any, Any]
_CALLS, _COUNT, _PATCHES = (HEADER.index(n) for n in ("calls", "call_count", "patch_count"))
_TARGET = {JUMP: 1, FALSE: 2, NEXT: 2}  # which word of the row is the row to go on at
#: So many events of one walk are kept before its recorder gets them.
MOST_ROWS = 4096


def run_traced(
    executable: Executable, activation: Activation, inputs: list[Array], recorder: AnyRecorder
) -> list[Array | None]:
    """Run the step once on an activation, and note what took how long.

    Results, effects and errors are those of any run.
    """
    with _walking(executable, activation, recorder) as walk:
        return executable.run_on(activation, inputs, walk)


def run_traced_into(
    executable: Executable, activation: Activation, inputs: list[Array], results: list[Any],
    recorder: AnyRecorder,
) -> list[Any]:  # fmt: skip
    """As `run_traced`, into arrays that are there."""
    with _walking(executable, activation, recorder) as walk:
        return executable.run_with(activation, inputs, results, walk)


@contextmanager
def _walking(
    executable: Executable, activation: Activation, recorder: AnyRecorder
) -> Iterator[TracedWalk]:
    walk = TracedWalk(executable, activation, recorder, recorder.next_step())
    try:
        yield walk
    finally:
        walk.flush()


def traced_names(op: Operation) -> tuple[str, ...]:
    """The names of the ops that a kernel of `op` carries out."""
    if op.name != "fused":
        return (op.name,)
    return tuple(o.name for o in op.regions[0].ops if o.name != "constant")


def moved_bytes(op: Operation) -> int:
    """The bytes of its operands and results."""
    types = [v.type for v in (*op.operands, *op.results)]
    return sum(t.nbytes for t in types if isinstance(t, TensorType) and t.is_static)


def taken_bytes(memory: MemoryPlan) -> dict[Value, int]:
    """The bytes that a plan takes for each of its values that does not lie where another one was:
    the first of a range of the arena, or of a result's array."""
    taken = {r.values[0]: r.size for r in memory.ranges if r.values}
    results: set[int | str] = set()
    for value, slot in memory.slots.items():
        if slot.kind == "result" and slot.which not in results:
            results.add(slot.which)
            assert isinstance(value.type, TensorType)
            taken[value] = value.type.nbytes
    return taken


def outputs_of(op: Operation, taken: Mapping[Value, int]) -> Iterator[Output]:
    """What a kernel of `op` gives, each with the op in it that makes it. taken: the bytes of the
    memory that is taken for each."""
    inner = op.regions[0].results if op.name == "fused" else op.results
    for value, held in zip(op.results, inner, strict=True):
        made, kind = held.op or op, value.type
        if isinstance(kind, TensorType) and kind.is_static:
            where, nbytes = made.locations or op.locations, taken.get(value, 0)
            yield Output(made.name, where, kind.dtype.name, kind.static_shape, nbytes)


@dataclass(frozen=True, slots=True)
class Piece:
    """The kernel calls of one op, in rows `first` to `stop` (exclusive) of the step's table."""

    first: int
    stop: int
    calls: tuple[PlannedCall, ...]


def pieces_of(executable: Executable) -> list[Piece]:
    """The pieces of a step in the order of its table."""
    calls, out = executable.report.calls, list[Piece]()
    for row, owner in enumerate(executable.plan.table.owner):
        if owner < 0:
            continue
        planned, last = calls[owner], out[-1] if out else None
        if planned.call.kernel is WALK_PARTS:  # it calls the kernels of the rows that come next
            continue
        together = last is not None and last.stop == row and planned.op is not None
        if together and last is not None and last.calls[-1].op is planned.op:
            out[-1] = Piece(last.first, row + 1, (*last.calls, planned))
        else:
            out.append(Piece(row, row + 1, (planned,)))
    return out


@dataclass(frozen=True, slots=True)
class Segment:
    """Rows `start` to `stop` of a table, which are timed as one, and what their event says. empty:
    they have no kernel, and so no event."""

    start: int
    stop: int
    name: str
    kind: str
    ops: tuple[str, ...]
    locations: Locations
    nbytes: int
    outputs: tuple[Output, ...]
    kernels: tuple[int, ...]
    empty: bool


def segments_of(executable: Executable, table: Array) -> list[Segment]:
    """The segments of a step's table, in order; no row of one goes on in the middle of another."""
    taken = taken_bytes(executable.report.memory)
    numbered = list(enumerate(pieces_of(executable), 1))
    calls, owner = executable.report.calls, executable.plan.table.owner
    codes = table[::CALL_WORDS]
    made = []
    for start, stop in _cuts(executable, table):
        own = [calls[n] for n in owner[start:stop] if n >= 0]
        ops = list(dict.fromkeys(c.op for c in own if c.op is not None))
        kernels = list(dict.fromkeys(c.call.kernel.name for c in own))
        control = bool((codes[start:stop] < FIRST_ADDRESS).any())
        made.append(
            Segment(
                start, stop, _label(kernels), "control" if control else "kernel",
                tuple(n for op in ops for n in traced_names(op)),
                tuple(dict.fromkeys(at for op in ops for at in op.locations)),
                sum(map(moved_bytes, ops)), tuple(o for op in ops for o in outputs_of(op, taken)),
                tuple(n for n, piece in numbered if start <= piece.first < stop), not own,
            )
        )  # fmt: skip
    return made


def _cuts(executable: Executable, words: Array) -> Iterator[tuple[int, int]]:
    """Rows (start, stop) in order."""
    table = words.reshape(-1, CALL_WORDS).tolist()
    owner, calls = executable.plan.table.owner, executable.report.calls
    inside = np.zeros(len(table) + 2, np.int64)  # how many jumps lead across each cut
    for row, fields in enumerate(table):
        if fields[0] in _TARGET and fields[0] < FIRST_ADDRESS:
            target = fields[_TARGET[fields[0]]]
            low, high = (row + 1, target) if target > row else (target + 1, row + 1)
            inside[low] += 1
            inside[high] -= 1
    crossed = np.cumsum(inside)
    start = 0
    for cut in range(1, len(table) + 1):
        same = (
            cut < len(table)
            and owner[cut] >= 0
            and owner[cut - 1] >= 0
            and calls[owner[cut]].op is calls[owner[cut - 1]].op is not None
        )
        if cut == len(table) or not (crossed[cut] or same):
            yield start, cut
            start = cut


def _label(kernels: Sequence[str]) -> str:
    return " ".join(kernels[:3]) + (" ..." if len(kernels) > 3 else "")


@dataclass(frozen=True, slots=True)
class KernelRuns:
    """Runs of segments. rows: each with its begin, its end and its thread."""

    rows: list[tuple[Segment, int, int, int]]
    step: int
    device: str
    region: int

    def events(self) -> list[TraceEvent]:
        """An event for each."""
        step, device, region = self.step, self.device, self.region
        return [
            TraceEvent(
                s.name, s.kind, s.ops, s.locations, "", (), begin, end, thread, False, False, step,
                s.nbytes, s.outputs, device, region, s.kernels,
            )
            for s, begin, end, thread in self.rows
        ]  # fmt: skip


class TracedWalk:
    """Walks the table of a step on its activation segment by segment; any number of times, one
    after another. recorder: gets the events with `flush`, and before, where they are many. step:
    the number of the step that they are of."""

    def __init__(
        self, executable: Executable, activation: Activation, recorder: AnyRecorder, step: int
    ) -> None:
        self.activation, self._recorder, self._step = activation, recorder, step
        self._rows: list[tuple[Segment, int, int, int]] = []
        self._table = activation.linked.calls.copy()
        self._segments = segments_of(executable, self._table)
        self._walker = executable._walker
        self._at = 0  # the row that it has come to

    def __call__(self, header: int) -> None:
        """Carry the table out."""
        block = self.activation.block
        before = block[_CALLS], block[_COUNT], block[_PATCHES]
        block[_CALLS] = self._table.ctypes.data
        try:
            self._walk(header)
        finally:
            block[_CALLS], block[_COUNT], block[_PATCHES] = before

    def _walk(self, header: int) -> None:
        block, rows, noted = self.activation.block, self._table, self._rows
        first_row, failed = rows[:CALL_WORDS].copy(), self.activation.failed
        thread = threading.get_ident()
        for segment in self._segments:
            self._at = segment.start
            if segment.start:
                rows[:CALL_WORDS] = (JUMP, segment.start, 0, 0)
            block[_COUNT] = segment.stop
            begin = clock()
            self._walker(header)
            end = clock()
            rows[:CALL_WORDS] = first_row
            if not segment.empty:
                noted.append((segment, begin, end, thread))
            block[_PATCHES] = 0  # the addresses of this call's arrays are in the words now
            if failed.value >= 0:
                return
        if len(noted) >= MOST_ROWS:
            self.flush()

    def stop(self, error: BaseException) -> None:
        """Have the step fail with an error that the walk has met, Ctrl-C for one, where native code
        has called it."""
        activation = self.activation
        cpython.Py_IncRef(ctypes.py_object(error))  # `raise_stopped` gives it back
        activation.status.index, activation.status.value = id(error), STOPPED
        activation.failed.value = self._at

    def flush(self) -> None:
        """Give the recorder what was noted so far."""
        rows, self._rows = self._rows, []
        if rows:
            recorder = self._recorder
            recorder.add(KernelRuns(rows, self._step, recorder.device, recorder.region))
