"""Times of each kernel in one run of a native plan: the same table on the same values, in segments.

A segment is the rows of one op, or a whole loop or branch: the walker is given the whole table each
time, with a jump to the segment in row 0 and its end as the number of rows."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from weft.codegen.steps.walker import CALL_WORDS, FALSE, FIRST_ADDRESS, HEADER, JUMP, NEXT
from weft.ir.graph import Operation
from weft.ir.types import TensorType
from weft.runtime.native.activation import Activation
from weft.runtime.native.executable import Executable
from weft.runtime.recorder import TraceEvent, TraceRecorder, clock

Array = np.ndarray[Any, Any]
_CALLS, _COUNT, _PATCHES = (HEADER.index(n) for n in ("calls", "call_count", "patch_count"))
_TARGET = {JUMP: 1, FALSE: 2, NEXT: 2}  # which word of the row is the row to go on at


def run_traced(
    executable: Executable, activation: Activation, inputs: list[Array], recorder: TraceRecorder
) -> list[Array | None]:
    """Run the step once on an activation, and note what took how long.

    Results, effects and errors are those of any run.
    """
    walk = _TracedWalk(executable, activation, recorder.next_step())
    try:
        return executable.run_on(activation, inputs, walk)
    finally:
        recorder.add(walk)


def traced_names(op: Operation) -> tuple[str, ...]:
    """The names of the ops that a kernel of `op` carries out."""
    if op.name != "fused":
        return (op.name,)
    return tuple(o.name for o in op.regions[0].ops if o.name != "constant")


def moved_bytes(op: Operation) -> int:
    """The bytes of its operands and results."""
    types = [v.type for v in (*op.operands, *op.results)]
    return sum(t.nbytes for t in types if isinstance(t, TensorType) and t.is_static)


class _TracedWalk:
    def __init__(self, executable: Executable, activation: Activation, step: int) -> None:
        self.executable, self.activation, self._step = executable, activation, step
        self.rows: list[TraceEvent] = []
        self._table = activation.linked.calls.copy()
        self._walker = executable._walker

    def events(self) -> list[TraceEvent]:
        """What was noted."""
        return self.rows

    def __call__(self, header: int) -> None:
        block, rows = self.activation.block, self._table
        block[_CALLS] = rows.ctypes.data
        first_row = rows[:CALL_WORDS].copy()
        for start, stop in self._pieces():
            if start:
                rows[:CALL_WORDS] = (JUMP, start, 0, 0)
            block[_COUNT] = stop
            begin = clock()
            self._walker(header)
            end = clock()
            rows[:CALL_WORDS] = first_row
            self._note(start, stop, begin, end)
            block[_PATCHES] = 0  # the addresses of this call's arrays are in the words now
            if self.activation.failed.value >= 0:
                return

    def _pieces(self) -> Iterator[tuple[int, int]]:
        """Rows (start, stop) in order; no row of one goes on in the middle of another."""
        table = self._table.reshape(-1, CALL_WORDS).tolist()
        owner, calls = self.executable.plan.table.owner, self.executable.report.calls
        inside = np.zeros(len(table) + 2, np.int64)  # how many jumps lead across each cut
        for row, words in enumerate(table):
            if words[0] in _TARGET and words[0] < FIRST_ADDRESS:
                target = words[_TARGET[words[0]]]
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

    def _note(self, start: int, stop: int, begin: int, end: int) -> None:
        owner, report = self.executable.plan.table.owner, self.executable.report
        calls = [report.calls[n] for n in owner[start:stop] if n >= 0]
        if not calls:
            return
        ops = list(dict.fromkeys(c.op for c in calls if c.op is not None))
        kernels = list(dict.fromkeys(c.call.kernel.name for c in calls))
        codes = self._table[start * CALL_WORDS : stop * CALL_WORDS : CALL_WORDS]
        control = bool((codes < FIRST_ADDRESS).any())
        self.rows.append(
            TraceEvent(
                name=_label(kernels),
                kind="control" if control else "kernel",
                ops=tuple(n for op in ops for n in traced_names(op)),
                locations=tuple(dict.fromkeys(at for op in ops for at in op.locations)),
                frame="",
                iteration=(),
                begin_ns=begin,
                end_ns=end,
                thread=threading.get_ident(),
                dead=False,
                waits=False,
                step=self._step,
                nbytes=sum(map(moved_bytes, ops)),
            )
        )


def _label(kernels: Sequence[str]) -> str:
    return " ".join(kernels[:3]) + (" ..." if len(kernels) > 3 else "")
