"""Stacks of loops in native code: the words of the arena that they lie in, and which ops make them.

`ArenaWords` are the arena's words in code under construction, and how it grows; the kernels that
work on them are in `codegen/kernels/stack.py`. After `lower_stacks` a stack is an i64[] like
others. A stack that an iteration, or a whole plan, has pushed to must outlive it if it is handed
on: these values are found by following the results of pushes. A stack that is only popped was made
before."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from llvmlite import ir

from weft.codegen.llvm.emitter import I64, Emitter
from weft.ir.graph import Block, Operation, Value
from weft.ir.type_rules import int_attr
from weft.ir.types import TensorType

#: top, end: of the current chunk; before: bytes in the chunks before it; total: of all chunks; most
#: that they may have together; first: of the chunks; kept: that `end` keeps.
WORDS = {"top": 0, "end": 1, "chunk": 2, "before": 3, "total": 4, "most": 5, "first": 6, "kept": 7}
FIRST_MARK, MARK = 8, 4
MOST_MARKS = 30
WORD_COUNT = FIRST_MARK + MARK * MOST_MARKS
#: Words at the start of a chunk, and of an element.
NEXT, BYTES, _CHUNK_HEADER = 0, 1, 16
BELOW, BASE, HEADER = 0, 1, 16
LEAST_CHUNK, LARGEST_CHUNK = 64 << 10, 16 << 20


def element_bytes(nbytes: int) -> int:
    """What an element of so many bytes of data takes."""
    return (nbytes + HEADER + 15) // 16 * 16


class ArenaWords:
    """The arena's words in code under construction."""

    def __init__(self, e: Emitter, words: ir.Value) -> None:
        self.e, self.words = e, words

    def at(self, name: str) -> ir.Value:
        """The address of the word."""
        return self.e.at(self.words, self.e.index(WORDS[name]))

    def load(self, name: str) -> ir.Value:
        return self.e.builder.load(self.at(name))

    def store(self, value: ir.Value, name: str) -> None:
        self.e.builder.store(value, self.at(name))

    def enter(self, chunk: ir.Value) -> None:
        """Go on in `chunk` (an address)."""
        b, e = self.e.builder, self.e
        size = b.load(e.at(b.inttoptr(chunk, I64.as_pointer()), e.index(BYTES)))
        self.store(chunk, "chunk")
        self.store(b.add(chunk, e.index(_CHUNK_HEADER)), "top")
        self.store(b.add(chunk, size), "end")

    def used(self) -> ir.Value:
        """Bytes in use; of chunks before the current one all."""
        b = self.e.builder
        return b.add(self.load("before"), b.sub(self.load("top"), self.load("chunk")))

    def take(self, nbytes: ir.Value) -> ir.Value:
        """The address of so many bytes more; 0 if there is no memory."""
        e, b = self.e, self.e.builder
        size = b.and_(b.add(nbytes, e.index(15)), e.index(-16))
        taken = e.alloca(I64)
        top = self.load("top")
        after = b.add(top, size)
        b.store(top, taken)
        fits = b.icmp_unsigned("<=", after, self.load("end"))
        with b.if_else(fits, likely=True) as (then, otherwise):
            with then:
                self.store(after, "top")
            with otherwise:
                grow = internal_function(e, "arena_grow", _GROW, _emit_grow)
                b.store(b.call(grow, [self.words, size]), taken)
        return b.load(taken)


_GROW = ir.FunctionType(I64, [I64.as_pointer(), I64])


def _emit_grow(e: Emitter, args: list[ir.Value]) -> ir.Value:
    """So many bytes in the next chunk: one that is there and has room, or a new one."""
    words, size = args
    b, arena = e.builder, ArenaWords(e, words)
    i64p, zero = I64.as_pointer(), e.index(0)
    need = b.add(size, e.index(_CHUNK_HEADER))
    chunk = arena.load("chunk")
    is_first = b.icmp_signed("==", chunk, zero)
    link = b.select(is_first, arena.at("first"), b.inttoptr(chunk, i64p))  # NEXT is word 0
    follows = b.load(link)
    found = e.alloca(I64)
    b.store(zero, found)
    with b.if_then(b.icmp_signed("!=", follows, zero)):
        held = b.load(e.at(b.inttoptr(follows, i64p), e.index(BYTES)))
        b.store(b.select(b.icmp_signed(">=", held, need), follows, zero), found)
    with b.if_then(b.icmp_signed("==", b.load(found), zero)):
        total = arena.load("total")
        wanted = _clamp(b, b.ashr(total, e.index(1)), e.index(LEAST_CHUNK), e.index(LARGEST_CHUNK))
        wanted = b.select(b.icmp_signed(">", need, wanted), need, wanted)
        total = b.add(total, wanted)
        with b.if_then(b.icmp_signed("<=", total, arena.load("most"))):
            malloc = c_function(e, "malloc", I64, [I64])
            made = b.call(malloc, [wanted])
            b.store(made, found)
            with b.if_then(b.icmp_signed("!=", made, zero)):
                place = b.inttoptr(made, i64p)
                b.store(follows, e.at(place, e.index(NEXT)))
                b.store(wanted, e.at(place, e.index(BYTES)))
                b.store(made, link)
                arena.store(total, "total")
    taken = e.alloca(I64)
    b.store(zero, taken)
    with b.if_then(b.icmp_signed("!=", b.load(found), zero)):
        with b.if_then(b.icmp_signed("!=", chunk, zero)):
            arena.store(arena.used(), "before")
        arena.enter(b.load(found))
        top = arena.load("top")
        arena.store(b.add(top, size), "top")
        b.store(top, taken)
    return b.load(taken)


def _clamp(b: ir.IRBuilder, value: ir.Value, low: ir.Value, high: ir.Value) -> ir.Value:
    value = b.select(b.icmp_signed("<", value, low), low, value)
    return b.select(b.icmp_signed(">", value, high), high, value)


def internal_function(
    e: Emitter,
    name: str,
    kind: ir.FunctionType,
    body: Callable[[Emitter, list[ir.Value]], ir.Value],
) -> ir.Function:
    """The internal function of that name in this kernel; it returns what `body` gives."""
    symbol = f"{e.symbol}.{name}"
    if symbol in e.module.globals:
        return e.module.globals[symbol]
    function, inner = e.define_function(symbol, kind)
    inner.builder.ret(body(inner, list(function.args)))
    return function


def c_function(e: Emitter, name: str, result: ir.Type, kinds: list[ir.Type]) -> ir.Function:
    known = e.module.globals.get(name)
    return known or ir.Function(e.module, ir.FunctionType(result, kinds), name)


_MAKERS = frozenset({"arena_push", "arena_add"})


def makes_stacks(block: Block) -> bool:
    """Whether an op of the block, or of a region in it, takes memory for stacks."""
    return any(op.name in _MAKERS for op in block.walk())


def leaves_stacks(block: Block) -> bool:
    """Whether stacks that the block makes are among its results: another plan goes on with them."""
    return makes_stacks(block) and any(_results(block, [False] * len(block.args)))


def keeps_no_stacks(op: Operation) -> bool:
    """Whether a loop makes stacks in its iterations, none of which leads out of one."""
    if not any(map(makes_stacks, op.regions)):
        return False
    return not any(_loop_results(op, [False] * len(op.operands)))


def _loop_results(op: Operation, given: Sequence[bool]) -> list[bool]:
    """Which results of a loop may be new stacks, of operands that may be."""
    body, carries = op.regions[-1], int_attr(op.attrs, "carries")
    held = list(given)
    while True:
        found = _results(body, held)
        grown = [a or b for a, b in zip(held, found[:carries], strict=False)]
        if grown == held[:carries]:
            return [*grown, *found[carries:]]
        held[:carries] = grown


def _results(block: Block, given: Sequence[bool]) -> list[bool]:
    """Which results of a block may be new stacks, of arguments that may be."""
    stacks = {a for a, g in zip(block.args, given, strict=True) if g}
    for op in block.ops:
        stacks.update(_made(op, stacks))
    return [v in stacks for v in block.results]


def _made(op: Operation, stacks: set[Value]) -> Iterable[Value]:
    if op.name in _MAKERS:
        return op.results
    held = [v in stacks for v in op.operands]
    if op.name == "arena_pop":
        return op.results[: 2 if op.attrs["nested"] else 1] if any(held) else ()
    if op.name in ("while", "scan"):
        found = _loop_results(op, held)
    elif op.name == "cond":
        pairs = zip(*(_results(region, held[1:]) for region in op.regions), strict=True)
        found = [any(pair) for pair in pairs]
    else:
        found = [any(held)] * len(op.results)
    return [r for r, f in zip(op.results, found, strict=True) if f]


def describe_kept(op: Operation) -> str:
    """What a loop keeps of its iterations on stacks, for people; "" if nothing."""
    pushes = [o for o in op.regions[-1].ops if o.name == "arena_push"] if op.regions else []
    if not pushes:
        return ""
    nbytes = 0
    for push in pushes:
        held = push.operands[1].type
        assert isinstance(held, TensorType)
        nbytes += element_bytes(held.nbytes)
    limit = int_attr(pushes[0].attrs, "limit")
    bound = f", at most {limit:,} in all" if limit >= 0 else ""
    again = ", its start alone: the rest is computed again" if op.attrs.get("recompute") else ""
    return f"keeps {nbytes:,} bytes of each iteration for gradients{bound}{again}"
