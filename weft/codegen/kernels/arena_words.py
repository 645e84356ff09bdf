"""The words of an arena of stacks in code under construction, and how it grows (`arena.py`)."""

from __future__ import annotations

from collections.abc import Callable

from llvmlite import ir

from weft.codegen.emitter import I64, Emitter

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
