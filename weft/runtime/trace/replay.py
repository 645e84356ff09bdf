"""Replay: a step carried out op by op, each timed by itself on the values that it really has.

The kernel calls of one op (a loop nest and the call that adds up its partial results, say) are one
`Piece`. The step runs up to a piece, the piece runs again and again, then the step goes on: so each
piece sees its own operands, although the arena's memory is used for several values in turn. Inside
loops and branches it is the first time that the piece is reached, in a loop that runs in parts
(`codegen/loops/batch_parallel.py`) for the first part.

Nothing of the caller's changes: variables are copies, and inputs whose memory the step takes too.
`Repeat` makes kernel calls over and over in native code: the walker with a loop around its rows."""

from __future__ import annotations

import copy
import ctypes
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from weft.codegen.call import Address, Stacks
from weft.codegen.faults import STOPPED, FaultWords
from weft.codegen.llvm.jit import compile_kernels
from weft.codegen.steps.walker import (
    CALL_WORDS,
    FIRST_ADDRESS,
    HEADER,
    JUMP,
    NEXT,
    SET,
    WALK_PARTS,
    WALKER,
)
from weft.ir.dataclass import dataclass
from weft.ir.types import TensorType
from weft.runtime.native.activation import Activation, raise_stopped
from weft.runtime.native.executable import Executable
from weft.runtime.native.kernel_times import Piece, pieces_of
from weft.runtime.native.pool import POOL
from weft.runtime.resources.variables import VariableState

Row = tuple[int, int, int, int]


class Walk:
    """Rows of a walker's table on `words`, run by `run`.

    rows: as in `walker.py`. pool, threads: as in the header of an activation. `failed` is the
    row at which a kernel set the status word, or -1.
    """

    def __init__(
        self,
        words: np.ndarray[Any, Any],
        rows: Sequence[Row],
        moves: np.ndarray[Any, Any] | None = None,
        pool: int = 0,
        threads: int = 1,
        status: FaultWords | None = None,
    ) -> None:
        self.words = words
        self.rows = np.array(rows, np.int64).reshape(-1, CALL_WORDS)
        self._moves = np.zeros(1, np.int64) if moves is None else moves
        self.status = FaultWords() if status is None else status
        self._failed = ctypes.c_int64(-1)
        self._slots = (ctypes.c_int64 * 1)()
        given = {
            "words": self.words.ctypes.data, "calls": self.rows.ctypes.data,
            "call_count": len(self.rows), "patches": 0, "patch_count": 0,
            "slots": ctypes.addressof(self._slots), "status": ctypes.addressof(self.status),
            "failed": ctypes.addressof(self._failed), "pool": pool, "threads": threads,
            "moves": self._moves.ctypes.data,
        }  # fmt: skip
        self._header = (ctypes.c_int64 * len(HEADER))(*(given[name] for name in HEADER))
        self._address = ctypes.addressof(self._header)
        address = compile_kernels([WALKER])[WALKER.key]
        self._walker = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(address)

    def run(self) -> int:
        """Run the rows once; the row that failed, or -1."""
        self.status.value, self._failed.value = 0, -1
        self._walker(self._address)
        return self._failed.value


class Repeat(Walk):
    """Kernel rows that run `count` times for each call of `seconds(count)`.

    The loop costs about 3 ns an iteration (two rows of the walker), which is part of the time.
    """

    def __init__(
        self,
        words: np.ndarray[Any, Any],
        rows: Sequence[Row],
        pool: int = 0,
        threads: int = 1,
        status: FaultWords | None = None,
    ) -> None:
        counter = len(words)
        looped = [(SET, counter, 0, 0), *rows, (NEXT, counter, 1, 1)]
        more = np.append(words, 0)
        super().__init__(more, looped, None, pool, threads, status)

    def seconds(self, count: int) -> float:
        """Seconds for one run of the rows, of `count` runs in a row."""
        self.rows[-1, 3] = count
        run, address = self._walker, self._address
        self.status.value = 0
        started = time.perf_counter()
        run(address)
        passed = time.perf_counter() - started
        if self.status.value == STOPPED:
            raise_stopped(self.status.index)
        return passed / count


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds per run: minimum and median over the rounds, and each round's in their order (of
    figures that are not kept: none)."""

    minimum: float
    median: float
    samples: tuple[float, ...] = ()

    @staticmethod
    def of(seconds: Sequence[float]) -> Timing:
        """Of the figures of several rounds."""
        return Timing(min(seconds), float(np.median(seconds)), tuple(seconds))


Array = np.ndarray[Any, Any]
_KERNEL = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)


@dataclass(frozen=True, slots=True)
class PieceTime:
    """The times of a piece. one: with one thread; all: with all threads, None if no call of the
    piece is ever cut.

    restored: the piece changes its own operands, so that they were put back before each batch of
    `batch` runs. None for both timings: this step does not reach the piece, or it takes memory for
    stacks, more with every run.
    """

    piece: Piece
    one: Timing | None
    all: Timing | None
    restored: bool = False
    batch: int = 0


class Replay:
    """Times the pieces of `executable` for `inputs` (as for a call of it); `variables`: the state
    that it was compiled with, which is copied.

    FailedPreconditionError for a variable that the step reads and that has no value.
    """

    def __init__(
        self,
        executable: Executable,
        inputs: Sequence[Array],
        variables: Mapping[str, VariableState],
    ) -> None:
        held = {name: copy.copy(state) for name, state in variables.items()}
        self.step = executable.with_variables(held)
        taken = set(executable.plan.donated.values())
        self.inputs = [a.copy() if i in taken else a for i, a in enumerate(inputs)]
        arrays: dict[int, Array] = dict(enumerate(self.inputs))
        for result, slot in zip(self.step._results, self.step._result_slots, strict=True):
            if result is not None:
                arrays[slot] = np.empty(*result)
        for variable, slot, read in self.step._variables:
            if read:
                variable.buffer()  # raises if it is not initialised
            if variable.array is None:
                variable.array = np.zeros(variable.shape, variable.dtype.numpy)
            arrays[slot] = variable.array
        self._arrays = arrays
        changing = [v.array for v, _, _ in self.step._variables if v.array is not None]
        changing += [self.inputs[i] for i in taken]
        self._changing = [(a, a.copy()) for a in changing]
        self._activation = Activation(self.step._linked, self.step.pool, self.step.threads)
        words = self._activation.words
        for word, slot, offset in self.step._linked.patches.reshape(-1, 3).tolist():
            words[word] = arrays[slot].ctypes.data + offset
        self._first_words = words.copy()
        self._rows: list[Row] = [
            (row[0], row[1], row[2], row[3])
            for row in self.step._linked.calls.reshape(-1, CALL_WORDS).tolist()
        ]
        self._straight = all(row[0] >= FIRST_ADDRESS for row in self._rows)
        calls, owner = executable.report.calls, executable.plan.table.owner
        self._in_parts = [  # the row WALK_PARTS, which a JUMP follows, and the rows of the loop
            (row, row + 2, self._rows[row + 1][1])
            for row, number in enumerate(owner)
            if number >= 0 and calls[number].call.kernel is WALK_PARTS
        ]
        self._done = 0

    def restore(self) -> None:
        """Give variables and donated inputs the values that they had at first."""
        for array, first in self._changing:
            array[...] = first

    def times(
        self, rounds: int, seconds: float, wanted: Callable[[Piece], bool]
    ) -> Iterator[PieceTime]:
        """Time the pieces that are `wanted`: `rounds` rounds of about `seconds` each. Errors as
        those of a call."""
        self._reset()
        for piece in pieces_of(self.step):
            if not wanted(piece):
                continue
            if any(isinstance(a, Stacks) for c in piece.calls for a in c.call.args):
                yield PieceTime(piece, None, None)
                continue
            if not self._go_to(piece.first):
                yield PieceTime(piece, None, None)
                continue
            yield self._time(piece, rounds, seconds)

    def step_time(self, rounds: int, seconds: float) -> Timing:
        """Whole calls, as the compiled function makes them but for the Python around it."""
        found: list[float] = []
        self.restore()
        once = _clock(self.step, self.inputs, 1)
        count = max(1, int(seconds / max(once, 1e-9)))
        for _ in range(rounds):
            self.restore()
            found.append(_clock(self.step, self.inputs, count))
        self.restore()
        return Timing.of(found)

    # ------------------------------------------------------------------------------------- moving

    def _reset(self) -> None:
        self._activation.words[:] = self._first_words
        self.restore()
        self._done = 0

    def _go_to(self, row: int) -> bool:
        """Run the step up to `row`; False if it never comes there."""
        if self._straight:
            self._run(self._rows[self._done : row], self._done)
            self._done = row
            return True
        self._reset()
        status = self._activation.status

        def stop(*_: int) -> None:
            status.value = 1

        sentinel = _KERNEL(stop)
        address = ctypes.cast(sentinel, ctypes.c_void_p).value or 0
        rows = list(self._rows)
        for walk, start, end in self._in_parts:
            if start <= row < end:  # the walker itself goes there, with the words of part 0
                rows[walk] = (JUMP, start, 0, 0)
        rows[row] = (address, 0, 1, 0)
        failed = self._walk(rows).run()
        if failed not in (row, -1):
            self.step.raise_failed(failed, status.value, status.index)
        return failed == row

    def _run(self, rows: Sequence[Row], first: int) -> None:
        if rows:
            failed = self._walk(rows).run()
            if failed >= 0:
                status = self._activation.status
                self.step.raise_failed(first + failed, status.value, status.index)

    def _walk(self, rows: Sequence[Row]) -> Walk:
        step = self.step
        return Walk(
            self._activation.words,
            rows,
            step._linked.moves,
            step.pool,
            step.threads,
            self._activation.status,
        )

    # ------------------------------------------------------------------------------------- timing

    def _time(self, piece: Piece, rounds: int, seconds: float) -> PieceTime:
        rows = self._rows[piece.first : piece.stop]
        written = list(self._written(piece))
        before = [a.copy() for a in written]
        self._run(rows, piece.first)
        after = [a.copy() for a in written]
        self._run(rows, piece.first)
        changes = any(a.tobytes() != b.tobytes() for a, b in zip(written, after, strict=True))
        words, status = self._activation.words, self._activation.status
        runs = [Repeat(words, rows, 0, 1, status)]
        if any(c.call.chunk for c in piece.calls) and min(self.step.threads, POOL.limit) > 1:
            runs.append(Repeat(words, rows, self.step.pool, self.step.threads, status))

        def put_back() -> None:
            for array, old in zip(written, before, strict=True):
                array[...] = old

        put_back()
        once = min(runs[0].seconds(1) for _ in range(2))
        count = max(1, int(seconds / max(once, 1e-9)))
        if changes:
            count = _sane_batch(runs[0], count, written, after, put_back)
        found: list[list[float]] = [[] for _ in runs]
        for _ in range(rounds):
            for repeat, times in zip(runs, found, strict=True):
                if changes:
                    put_back()
                times.append(repeat.seconds(count))
        put_back()
        self._run(rows, piece.first)
        if self._straight:
            self._done = piece.stop
        both = [Timing.of(times) for times in found]
        return PieceTime(piece, both[0], both[1] if len(both) > 1 else None, changes, count)

    def _written(self, piece: Piece) -> Iterator[Array]:
        """The memory of the op's results."""
        seen: set[int] = set()
        for row, planned in zip(range(piece.first, piece.stop), piece.calls, strict=True):
            results = planned.op.results if planned.op is not None else ()
            for k, arg in enumerate(planned.call.args):
                if not isinstance(arg, Address) or arg.value not in results:
                    continue
                place = int(self._activation.words[self._rows[row][1] + k]) - arg.offset
                held = arg.value.type
                assert isinstance(held, TensorType)
                if place not in seen and held.nbytes:
                    seen.add(place)
                    memory = (ctypes.c_uint8 * held.nbytes).from_address(place)
                    yield np.ctypeslib.as_array(memory).view(held.dtype.numpy)


def _clock(step: Executable, inputs: list[Array], count: int) -> float:
    started = time.perf_counter()
    for _ in range(count):
        step.run(inputs)
    return (time.perf_counter() - started) / count


def _sane_batch(
    repeat: Repeat,
    count: int,
    written: Sequence[Array],
    after: Sequence[Array],
    put_back: Callable[[], None],
) -> int:
    """How many runs in a row leave no more infinities, NaNs and denormal numbers than one does:
    those would take other time than the real values."""
    allowed = sum(map(_odd_values, after))
    while count > 1:
        put_back()
        repeat.seconds(count)
        if sum(map(_odd_values, written)) <= allowed:
            break
        count //= 4
    return max(1, count)


def _odd_values(array: Array) -> int:
    if array.dtype.kind not in "fc" or array.dtype.itemsize not in (4, 8, 16):
        return 0
    flat = array.view(array.real.dtype)
    tiny = np.finfo(flat.dtype).tiny
    with np.errstate(all="ignore"):
        denormal = (flat != 0) & (np.abs(flat) < tiny)
        return int(np.count_nonzero(~np.isfinite(flat) | denormal))
