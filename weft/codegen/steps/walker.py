"""The walker: native code that carries a step's table out, kernel calls and control flow.

`Table` is the plan as int64 words; `steps/layout.py` makes it, and a step whose plan is on disk
loads nothing of that. The walker is one C function `void walker(int64_t *header, 0, 0, 0)`;
`HEADER` names the words of its header.

A row of the table is four words. If the first is at least `FIRST_ADDRESS` it is a kernel's address,
and the others are its first argument word, its units and its chunk. Otherwise it is one of:

| code  | operands a, b, c      | meaning                                                    |
|-------|-----------------------|------------------------------------------------------------|
| SET   | word, value           | words[a] = b                                               |
| JUMP  | row                   | go on at row a                                             |
| FALSE | word, row             | go on at row b if the bool at address words[a] is false    |
| STEP  | counter, first, count | the `count` moves from `first` on, with i = words[a]       |
| NEXT  | counter, row, limit   | words[a] += 1; go on at row b if words[a] < c              |
| TABLE | word                  | words[a], words[a + 1] = addresses of the rows and moves   |

A move (word, even, odd, stride) lets an address follow a loop's counter i:
words[word] = words[odd if i is odd else even] + i * stride.

A loop in parts (`loops/batch_parallel.py`) is a call of the kernel `WALK_PARTS`, whose units are
the parts: it walks the loop's rows, of which there is one set, on the words of a part: each has its
own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import field
from typing import Any

import numpy as np
from llvmlite import ir

from weft.codegen.call import PythonCall
from weft.codegen.llvm.emitter import I8, I64, KERNEL_TYPE, Emitter
from weft.codegen.llvm.jit import Kernel
from weft.codegen.llvm.link import routine_address
from weft.codegen.loops.interrupt import emit_begin, emit_count, emit_looks, emit_pace
from weft.codegen.pool import emit_parallel_call
from weft.ir.dataclass import dataclass
from weft.ir.graph import Operation, Value

SlotKey = tuple[str, int | str]
SlotOf = Callable[[Value], SlotKey]


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
    """The plan as int64 words, before addresses are known: it means the same in every process.

    words: the arguments of all calls, one after another, and the loops' counters. calls: the rows
    (`CALL_WORDS` words each) for the walker; owner: per row the number of its kernel call, -1 for
    control. moves: what loops do to addresses (`MOVE_WORDS` words each).
    kernels: the content keys of the step's kernels, each once; rows: (word of `calls`, number of
    the kernel) to fill with its address, as are codes, in `words`. routines: (word, name) of BLAS.
    callees: (word, number of the call in python) of ops that Python carries out.
    arrays: constants, at whose addresses point constants: (word, number of the array, byte offset).
    patches: (word, slot number, byte offset) to fill per call; arena: (word, byte offset) to fill
    per activation; workers: words that hold the address of the workers' scratch (`worker_bytes` for
    each thread that may run the step); status: words that hold the address of the status word;
    stacks: of the words of the arena of stacks; own: (word, the word at whose address it points).
    """

    words: list[int] = field(default_factory=list)
    calls: list[int] = field(default_factory=list)
    owner: list[int] = field(default_factory=list)
    moves: list[int] = field(default_factory=list)
    patches: list[int] = field(default_factory=list)
    arena: list[tuple[int, int]] = field(default_factory=list)
    workers: list[int] = field(default_factory=list)
    status: list[int] = field(default_factory=list)
    stacks: list[int] = field(default_factory=list)
    own: list[tuple[int, int]] = field(default_factory=list)
    kernels: list[str] = field(default_factory=list)
    rows: list[tuple[int, int]] = field(default_factory=list)
    codes: list[tuple[int, int]] = field(default_factory=list)
    routines: list[tuple[int, str]] = field(default_factory=list)
    callees: list[tuple[int, int]] = field(default_factory=list)
    python: list[PythonCall] = field(default_factory=list)
    constants: list[tuple[int, int, int]] = field(default_factory=list)
    arrays: list[np.ndarray[Any, Any]] = field(default_factory=list)
    scratch_bytes: int = 0
    worker_bytes: int = 0

    def linked_calls(self, addresses: Mapping[str, int]) -> np.ndarray[Any, Any]:
        """The rows with the kernels' addresses, by content key."""
        calls = np.array(self.calls, np.int64)
        for word, kernel in self.rows:
            calls[word] = addresses[self.kernels[kernel]]
        return calls

    def linked_words(self, addresses: Mapping[str, int]) -> np.ndarray[Any, Any]:
        """The words with the addresses of kernels and constants; at least one word."""
        words = np.array(self.words or [0], np.int64)
        for word, kernel in self.codes:
            words[word] = addresses[self.kernels[kernel]]
        for word, name in self.routines:
            words[word] = routine_address(name)
        for word, number, offset in self.constants:
            words[word] = self.arrays[number].ctypes.data + offset
        return words


#: Where a NumPy array object keeps its data's address: PyArrayObject_fields, after the header.
ARRAY_DATA_OFFSET = 16
#: Words of one row of `Table.calls`.
CALL_WORDS = 4
#: Words of one move.
MOVE_WORDS = 4
#: The codes of control rows; no function lies below `FIRST_ADDRESS`.
SET, JUMP, FALSE, STEP, NEXT, TABLE = range(6)
FIRST_ADDRESS = 4096
#: The words of the walker's header: addresses, and counts of rows.
HEADER = (
    "words", "calls", "call_count", "patches", "patch_count", "slots", "status", "failed", "pool",
    "threads", "moves",
)  # fmt: skip


class _Rows:
    """The loop over the table's rows; control rows are carried out here."""

    def __init__(
        self,
        e: Emitter,
        words: ir.Value,
        calls: ir.Value,
        moves: ir.Value,
        look: Callable[[ir.Value], None],
    ) -> None:
        """look: emits what is done after each iteration of a loop, given the row's position."""
        self.e = e
        self.look = look
        self.words = words
        self.calls = calls
        self.moves = moves

    @contextmanager
    def each(
        self, first: ir.Value, stop: ir.Value
    ) -> Iterator[tuple[ir.Value, ir.Value, list[ir.Value]]]:
        """For each kernel row that is met: (its position, the kernel's address, its fields)."""
        e, b = self.e, self.e.builder
        before = b.block
        head, body, call, control, after = (
            b.append_basic_block(f"row.{name}")
            for name in ("head", "body", "call", "control", "after")
        )
        b.branch(head)
        b.position_at_end(head)
        position = b.phi(I64, "row")
        position.add_incoming(first, before)
        b.cbranch(b.icmp_signed("<", position, stop), body, after)
        b.position_at_end(body)
        row = b.mul(position, e.index(CALL_WORDS))
        code, *fields = (
            b.load(e.at(self.calls, b.add(row, e.index(k)))) for k in range(CALL_WORDS)
        )
        following = b.add(position, e.index(1))
        b.cbranch(b.icmp_unsigned("<", code, e.index(FIRST_ADDRESS)), control, call)
        b.position_at_end(control)
        for target in self._control(code, fields, following):
            position.add_incoming(target, b.block)
            b.branch(head)
        b.position_at_end(call)
        yield position, code, fields
        position.add_incoming(following, b.block)
        b.branch(head)
        b.position_at_end(after)

    def _control(
        self, code: ir.Value, fields: list[ir.Value], following: ir.Value
    ) -> Iterator[ir.Value]:
        """Per code, at the end of its block: the row to go on at."""
        b = self.e.builder
        carry_out = (self._set, self._jump, self._false, self._step, self._next, self._table)
        blocks = [b.append_basic_block(f"control.{k}") for k in range(len(carry_out))]
        switch = b.switch(code, blocks[0])
        for k, (block, emit) in enumerate(zip(blocks, carry_out, strict=True)):
            if k:
                switch.add_case(self.e.index(k), block)
            b.position_at_end(block)
            first, second, third = fields
            yield emit(first, second, third, following)

    def _word(self, number: ir.Value) -> ir.Value:
        return self.e.at(self.words, number)

    def _set(self, a: ir.Value, b: ir.Value, c: ir.Value, following: ir.Value) -> ir.Value:
        self.e.builder.store(b, self._word(a))
        return following

    def _jump(self, a: ir.Value, b: ir.Value, c: ir.Value, following: ir.Value) -> ir.Value:
        return a

    def _false(self, a: ir.Value, b: ir.Value, c: ir.Value, following: ir.Value) -> ir.Value:
        build = self.e.builder
        held = build.load(build.inttoptr(build.load(self._word(a)), I8.as_pointer()))
        return build.select(build.icmp_unsigned("==", held, ir.Constant(I8, 0)), b, following)

    def _step(self, a: ir.Value, b: ir.Value, c: ir.Value, following: ir.Value) -> ir.Value:
        e, build = self.e, self.e.builder
        counter = build.load(self._word(a))
        odd = build.trunc(counter, ir.IntType(1))
        with e.for_range(b, build.add(b, c)) as k:
            first = build.mul(k, e.index(MOVE_WORDS))
            move = (build.load(e.at(self.moves, build.add(first, e.index(j)))) for j in range(4))
            word, even_word, odd_word, stride = move
            base = build.load(self._word(build.select(odd, odd_word, even_word)))
            build.store(build.add(base, build.mul(counter, stride)), self._word(word))
        return following

    def _next(self, a: ir.Value, b: ir.Value, c: ir.Value, following: ir.Value) -> ir.Value:
        build = self.e.builder
        counter = build.add(build.load(self._word(a)), self.e.index(1))
        build.store(counter, self._word(a))
        again = build.icmp_signed("<", counter, c)
        with build.if_then(again):
            self.look(build.sub(following, self.e.index(1)))
        return build.select(again, b, following)

    def _table(self, a: ir.Value, b: ir.Value, c: ir.Value, following: ir.Value) -> ir.Value:
        build = self.e.builder
        for k, address in enumerate((self.calls, self.moves)):
            place = self._word(build.add(a, self.e.index(k)))
            build.store(build.ptrtoint(address, I64), place)
        return following


def _emit_walker(e: Emitter) -> None:
    b = e.builder
    i64p = I64.as_pointer()
    given = {name: e.argument(k) for k, name in enumerate(HEADER)}
    words, calls, patches, slots, status, failed, moves = (
        b.inttoptr(given[name], i64p)
        for name in ("words", "calls", "patches", "slots", "status", "failed", "moves")
    )
    with e.for_range(e.index(0), given["patch_count"]) as p:
        row = b.mul(p, e.index(3))
        word, slot, offset = (b.load(e.at(patches, b.add(row, e.index(k)))) for k in range(3))
        array = b.load(e.at(slots, slot))
        data = b.load(b.inttoptr(b.add(array, e.index(ARRAY_DATA_OFFSET)), i64p))
        b.store(b.add(data, offset), e.at(words, word))
    looks = emit_looks(e)
    emit_begin(e, status, looks)

    def look(position: ir.Value) -> None:
        def stop() -> None:
            b.store(position, failed)
            b.ret_void()

        emit_pace(e, status, looks, stop)

    rows = _Rows(e, words, calls, moves, look)
    with rows.each(e.index(0), given["call_count"]) as (position, code, fields):
        kernel = b.inttoptr(code, KERNEL_TYPE.as_pointer())
        first, units, chunk = fields
        arguments = e.at(words, first)
        emit_parallel_call(e, given["pool"], given["threads"], kernel, arguments, units, chunk)
        with b.if_then(b.icmp_signed("!=", b.load(status), e.index(0)), likely=False):
            b.store(position, failed)
            b.ret_void()


#: The words of a call of `WALK_PARTS`: the number of its first word, what the row TABLE stores, the
#: loop's rows, how many words each part has, and the address of the fault words.
PART_WORDS = ("number", "calls", "moves", "first", "stop", "span", "status")


def _emit_parts(e: Emitter) -> None:
    b, i64p = e.builder, I64.as_pointer()
    given = {name: e.argument(k) for k, name in enumerate(PART_WORDS)}
    calls, moves, status = (b.inttoptr(given[n], i64p) for n in ("calls", "moves", "status"))
    left, asks = e.alloca(I64), b.icmp_signed("==", e.worker, e.index(0))  # the calling thread
    b.store(e.index(1), left)
    start = b.sub(e.index(0), given["number"])
    with e.for_range(e.lo, e.hi) as part:
        words = e.at(e.arguments, b.add(start, b.mul(part, given["span"])))
        rows = _Rows(
            e, words, calls, moves, lambda _: emit_count(e, left, status, b.ret_void, asks, most=16)
        )
        with rows.each(given["first"], given["stop"]) as (_, code, (first, units, _chunk)):
            kernel = b.inttoptr(code, KERNEL_TYPE.as_pointer())
            b.call(kernel, [e.at(words, first), e.index(0), units, e.worker])


WALK_PARTS = Kernel("walk-parts-2", "walk_parts", _emit_parts, loops=False)
WALKER = Kernel("walker-10", "walker", _emit_walker, loops=False)
