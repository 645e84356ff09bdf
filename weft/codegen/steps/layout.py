"""Layout of a step's program as the walker's table (`steps/walker.py`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.codegen.call import (
    Address,
    Arg,
    Callee,
    Code,
    Numbers,
    Pool,
    Routine,
    Scratch,
    Stacks,
    Status,
    WorkerScratch,
    worker_stride,
)
from weft.codegen.llvm.jit import Kernel
from weft.codegen.loops.program import Branch, Loop, Node, PlannedCall
from weft.codegen.pool import LONG
from weft.codegen.steps.walker import (
    CALL_WORDS,
    FALSE,
    JUMP,
    MOVE_WORDS,
    NEXT,
    PART_WORDS,
    SET,
    STEP,
    TABLE,
    MovingPlace,
    SlotKey,
    SlotOf,
    Table,
)
from weft.ir.errors import InternalError
from weft.ir.graph import Operation
from weft.ir.sizes import largest
from weft.ir.spec import ConstArray

if TYPE_CHECKING:
    from weft.codegen.loops.batch_parallel import Parts

#: No loop runs this often.
_FOREVER = 1 << 62


def build_table(
    program: Sequence[Node],
    slot_of: SlotOf,
    slot_number: Mapping[SlotKey, int],
    constants: Sequence[np.ndarray[Any, Any]],
    moving: Sequence[MovingPlace] = (),
) -> Table:
    """Lay the program out as words.

    slot_of: the kind and number of a value's buffer; for kind "moving" the number in `moving`.
    """
    return _Layout(slot_of, slot_number, constants, moving).run(program)


def kernels_of(calls: Sequence[PlannedCall]) -> list[Kernel]:
    """The kernels of the calls, and those that they call by address."""
    called = [a.kernel for c in calls for a in c.call.args if isinstance(a, Code)]
    return [*(c.call.kernel for c in calls), *called]


class _Layout:
    def __init__(
        self,
        slot_of: SlotOf,
        slot_number: Mapping[SlotKey, int],
        constants: Sequence[np.ndarray[Any, Any]],
        moving: Sequence[MovingPlace],
    ) -> None:
        self.slot_of = slot_of
        self.slot_number = slot_number
        self.moving = moving
        self.table = Table(arrays=list(constants))
        self.call_count = 0
        self.kernels: dict[str, int] = {}  # number by content key
        self.pool: dict[ConstArray, int] = {}  # number among the arrays
        self.moves: dict[Operation, list[tuple[int, int, int, int]]] = {}
        self.bases: dict[tuple[SlotKey, int], int] = {}  # words that moving addresses start from
        self.steps: list[tuple[int, Operation]] = []  # STEP rows, to be told their moves
        self.parts: tuple[Parts, int] | None = None  # of the loop that is laid out, and which part

    def run(self, program: Sequence[Node]) -> Table:
        self._rows(program)
        table = self.table
        first: dict[Operation, int] = {}
        for loop, moves in self.moves.items():
            first[loop] = len(table.moves) // MOVE_WORDS
            for move in moves:
                table.moves += move
        for row, loop in self.steps:
            start = row * CALL_WORDS + 2
            table.calls[start : start + 2] = [first.get(loop, 0), len(self.moves.get(loop, ()))]
        table.kernels = list(self.kernels)
        self._drop_constants()
        return table

    def _drop_constants(self) -> None:
        """Keep no constant that no kernel reads: of what is packed, the original."""
        table = self.table
        used = sorted({number for _, number, _ in table.constants})
        place = {number: k for k, number in enumerate(used)}
        table.arrays = [table.arrays[number] for number in used]
        table.constants = [(word, place[number], at) for word, number, at in table.constants]

    # -- rows -------------------------------------------------------------------------------------

    @property
    def _here(self) -> int:
        return len(self.table.owner)

    def _row(self, code: int, a: int = 0, b: int = 0, c: int = 0, owner: int = -1) -> int:
        self.table.calls += [code, a, b, c]
        self.table.owner.append(owner)
        return self._here - 1

    def _aim(self, row: int, field_number: int) -> None:
        """The row's jump goes to the row that comes next."""
        self.table.calls[row * CALL_WORDS + 1 + field_number] = self._here

    def _rows(self, nodes: Sequence[Node]) -> None:
        for node in nodes:
            match node:
                case PlannedCall():
                    self._call(node)
                case Loop():
                    self._loop(node)
                case Branch():
                    self._branch(node)

    def _call(self, planned: PlannedCall) -> None:
        call, first = planned.call, len(self.table.words)
        self.table.rows.append((len(self.table.calls), self._kernel(call.kernel)))
        chunk = call.chunk + (LONG if call.long else 0)
        self._row(0, first, call.units, chunk, owner=self.call_count)
        self.call_count += 1
        self.table.words += [0] * len(call.args)
        for k, arg in enumerate(call.args):
            self.table.words[first + k] = self._word(first + k, arg)

    def _loop(self, loop: Loop) -> None:
        if loop.parts is None or loop.walk is None:
            self._iterate(loop)
            return
        number, outside = len(self.table.words), self.bases
        self._row(TABLE, number + PART_WORDS.index("calls"))
        self._call(loop.walk)
        self.table.calls[-1] += LONG if loop.parts.long else 0
        over, first, start = self._row(JUMP), self._here, len(self.table.words)
        for part in range(loop.parts.count):
            self.parts, self.bases = (loop.parts, part), {}
            kept = self._rows_so_far(loop.op)
            self._iterate(loop)
            if part:  # it has words of its own, but the rows are those of part 0
                self._drop_rows(loop.op, kept)
        self.parts, self.bases = None, outside
        span = (len(self.table.words) - start) // loop.parts.count
        words = {"number": number, "first": first, "stop": self._here, "span": span}
        for name, value in words.items():
            self.table.words[number + PART_WORDS.index(name)] = value
        self._aim(over, 0)

    def _rows_so_far(self, loop: Operation) -> tuple[int, ...]:
        table = self.table
        held = (table.calls, table.owner, table.rows, self.steps, self.moves.get(loop, ()))
        return (self.call_count, *map(len, held))

    def _drop_rows(self, loop: Operation, kept: tuple[int, ...]) -> None:
        table = self.table
        self.call_count, *sizes = kept
        rows: list[list[Any]] = [table.calls, table.owner, table.rows, self.steps]
        for held, size in zip([*rows, self.moves.get(loop, [])], sizes, strict=True):
            del held[size:]

    def _iterate(self, loop: Loop) -> None:
        counter = self._new_word(0)
        self._row(SET, counter, 0)
        head = self._here
        self._step(counter, loop.op)
        leave = -1
        if loop.decision is not None:
            self._rows(loop.test)
            leave = self._row(FALSE, self._address(self.slot_of(loop.decision), 0))
        self._rows(loop.body)
        self._row(NEXT, counter, head, loop.limit if loop.limit >= 0 else _FOREVER)
        if loop.decision is not None:
            self._step(counter, loop.op)  # left by NEXT: the addresses of the last carries
            self._aim(leave, 1)

    def _step(self, counter: int, op: Operation) -> None:
        self.steps.append((self._row(STEP, counter), op))

    def _branch(self, branch: Branch) -> None:
        leave = self._row(FALSE, self._address(self.slot_of(branch.decision), 0))
        self._rows(branch.then)
        over = self._row(JUMP)
        self._aim(leave, 1)
        self._rows(branch.orelse)
        self._aim(over, 0)

    # -- words ------------------------------------------------------------------------------------

    def _kernel(self, kernel: Kernel) -> int:
        return self.kernels.setdefault(kernel.key, len(self.kernels))

    def _new_word(self, value: int) -> int:
        self.table.words.append(value)
        return len(self.table.words) - 1

    def _address(self, slot: SlotKey, offset: int) -> int:
        """A word that holds an address; equal addresses share one."""
        key = (slot, offset)
        if key not in self.bases:
            word = self.bases[key] = self._new_word(0)
            self.table.words[word] = self._fill(word, slot, offset)
        return self.bases[key]

    def _fill(self, word: int, slot: SlotKey, offset: int) -> int:
        """Make `word` hold the address `offset` bytes into `slot`; what it holds at first."""
        kind, which = slot
        table = self.table
        if kind == "arena":
            assert isinstance(which, int)
            table.arena.append((word, which + offset))
        elif kind == "constant":
            assert isinstance(which, int)
            table.constants.append((word, which, offset))
        elif kind == "moving":
            assert isinstance(which, int)
            place = self.moving[which]
            even = self._address(place.even, place.offset + offset)
            odd = self._address(place.odd, place.offset + offset)
            self.moves.setdefault(place.loop, []).append((word, even, odd, place.stride))
        else:
            table.patches += [word, self.slot_number[slot], offset]
        return 0

    def _word(self, word: int, arg: Arg) -> int:
        table = self.table
        match arg:
            case int():
                return arg
            case Pool(held):
                if held not in self.pool:
                    self.pool[held] = len(table.arrays)
                    table.arrays.append(held.array)
                table.constants.append((word, self.pool[held], 0))
                return 0
            case Numbers(values):
                table.own.append((word, len(table.words)))
                table.words += values
                return 0
            case Scratch(nbytes):
                table.scratch_bytes = largest(table.scratch_bytes, nbytes)
                table.arena.append((word, -1))
                return 0
            case WorkerScratch(nbytes):
                table.worker_bytes = largest(table.worker_bytes, worker_stride(nbytes))
                table.workers.append(word)
                return 0
            case Status():
                table.status.append(word)
                return 0
            case Stacks():
                table.stacks.append(word)
                return 0
            case Code(kernel):
                table.codes.append((word, self._kernel(kernel)))
                return 0
            case Routine(name):
                table.routines.append((word, name))
                return 0
            case Callee():
                table.callees.append((word, len(table.python)))
                table.python.append(arg.record())
                return 0
            case Address(value, offset):
                if self.parts is not None:
                    parts, part = self.parts
                    offset += part * parts.bytes_between(value)
                    value = parts.origin.get(value, value)
                return self._fill(word, self.slot_of(value), offset)
        raise InternalError(f"unknown kernel argument {arg!r}")
