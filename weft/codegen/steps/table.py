"""A program as the table of int64 words that the walker (`steps/walker.py`) carries out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from weft.codegen.call import (
    Address,
    Arg,
    Code,
    Pool,
    Scratch,
    Status,
    WorkerScratch,
    worker_stride,
)
from weft.codegen.jit import compile_kernels
from weft.codegen.steps.program import Branch, Loop, Node, PlannedCall, all_calls
from weft.codegen.steps.walker import CALL_WORDS, FALSE, JUMP, MOVE_WORDS, NEXT, SET, STEP
from weft.ir.attributes import ConstArray
from weft.ir.errors import InternalError
from weft.ir.graph import Operation, Value

SlotKey = tuple[str, int | str]
SlotOf = Callable[[Value], SlotKey]
#: No loop runs this often.
_FOREVER = 1 << 62


@dataclass(frozen=True, slots=True)
class MovingPlace:
    """A place in iteration i of `loop`: `offset + i * stride` after `even` or, for odd i, `odd`."""

    loop: Operation
    even: SlotKey
    odd: SlotKey
    offset: int
    stride: int


@dataclass(slots=True)
class Table:
    """The plan as int64 words, before addresses are known.

    words: the arguments of all calls, one after another, and the loops' counters. calls: the rows
    (`CALL_WORDS` words each) for the walker; owner: per row the number of its kernel call, -1 for
    control. moves: what loops do to addresses (`MOVE_WORDS` words each).
    patches: (word, slot number, byte offset) to fill per call; arena: (word, byte offset) to fill
    per frame; workers: words that hold the address of the workers' scratch (`worker_bytes` for each
    thread that may run the step); status: words that hold the address of the status word.
    """

    words: list[int] = field(default_factory=list)
    calls: list[int] = field(default_factory=list)
    owner: list[int] = field(default_factory=list)
    moves: list[int] = field(default_factory=list)
    patches: list[int] = field(default_factory=list)
    arena: list[tuple[int, int]] = field(default_factory=list)
    workers: list[int] = field(default_factory=list)
    status: list[int] = field(default_factory=list)
    keep: list[Any] = field(default_factory=list)
    scratch_bytes: int = 0
    worker_bytes: int = 0


def build_table(
    program: Sequence[Node],
    slot_of: SlotOf,
    slot_number: Mapping[SlotKey, int],
    constants: Sequence[np.ndarray[Any, Any]],
    moving: Sequence[MovingPlace] = (),
) -> Table:
    """Compile what is missing, all in one go, and lay the program out as words.

    slot_of: the kind and number of a value's buffer; for kind "moving" the number in `moving`.
    """
    calls = [c.call for c in all_calls(program)]
    called = [a.kernel for c in calls for a in c.args if isinstance(a, Code)]
    addresses = compile_kernels([*(c.kernel for c in calls), *called])
    return _Layout(addresses, slot_of, slot_number, constants, moving).run(program)


class _Layout:
    def __init__(
        self,
        addresses: Mapping[str, int],
        slot_of: SlotOf,
        slot_number: Mapping[SlotKey, int],
        constants: Sequence[np.ndarray[Any, Any]],
        moving: Sequence[MovingPlace],
    ) -> None:
        self.addresses = addresses
        self.slot_of = slot_of
        self.slot_number = slot_number
        self.constants = constants
        self.moving = moving
        self.table = Table()
        self.call_count = 0
        self.pool: dict[ConstArray, np.ndarray[Any, Any]] = {}
        self.moves: dict[Operation, list[tuple[int, int, int, int]]] = {}
        self.bases: dict[tuple[SlotKey, int], int] = {}  # words that moving addresses start from
        self.steps: list[tuple[int, Operation]] = []  # STEP rows, to be told their moves

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
        table.keep += [self.constants, self.pool]
        return table

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
        address = self.addresses[call.kernel.key]
        self._row(address, first, call.units, call.chunk, owner=self.call_count)
        self.call_count += 1
        self.table.words += [0] * len(call.args)
        for k, arg in enumerate(call.args):
            self.table.words[first + k] = self._word(first + k, arg)

    def _loop(self, loop: Loop) -> None:
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
            return int(self.constants[which].ctypes.data) + offset
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
                    self.pool[held] = held.array
                return int(self.pool[held].ctypes.data)
            case Scratch(nbytes):
                table.scratch_bytes = max(table.scratch_bytes, nbytes)
                table.arena.append((word, -1))
                return 0
            case WorkerScratch(nbytes):
                table.worker_bytes = max(table.worker_bytes, worker_stride(nbytes))
                table.workers.append(word)
                return 0
            case Status():
                table.status.append(word)
                return 0
            case Code(kernel):
                return self.addresses[kernel.key]
            case Address(value, offset):
                return self._fill(word, self.slot_of(value), offset)
        raise InternalError(f"unknown kernel argument {arg!r}")
