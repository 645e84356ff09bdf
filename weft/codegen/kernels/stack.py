"""Kernels of stacks: their elements are in the arena of the running step.

The arena is a list of chunks of memory from the C library, which grow with it; the activation of
the step has its words (`stacks.WORDS`). An element is {the handle of what is below it, bytes in the
arena when the stack began, data}; its address is the handle of the stack. Elements never change, so
a stack may be used twice. Nothing is freed one by one: `begin` forgets all that an earlier step
left; a loop out of whose iterations no stack leads notes where the arena ends (`mark`) and goes
back to there after each (`release`); `end` gives most of the memory back."""

from __future__ import annotations

import math

from llvmlite import ir

from weft.codegen.call import Address, KernelCall, Stacks, Status
from weft.codegen.faults import emit_fault
from weft.codegen.kernels.shape import tensor
from weft.codegen.llvm.elements import memory_type
from weft.codegen.llvm.emitter import I64, Emitter
from weft.codegen.llvm.jit import Kernel
from weft.codegen.scalar.element_access import load_element, store_element
from weft.codegen.scalar.elementwise import emit_scalar
from weft.codegen.stacks import (
    BASE,
    BELOW,
    BYTES,
    FIRST_MARK,
    HEADER,
    MARK,
    NEXT,
    ArenaWords,
    c_function,
    internal_function,
)
from weft.ir.graph import Operation
from weft.ir.ops.control_flow import element_type
from weft.ir.type_rules import int_attr

_VERSION = 1
#: Sizes of elements that are one load and one store.
_SMALL = (1, 2, 4, 8)


def lower_push(op: Operation) -> list[KernelCall]:
    """args: result, stack, value, arena, status, bytes of the value, limit."""
    value = op.operands[1]
    nbytes = tensor(value).nbytes
    limit = int_attr(op.attrs, "limit")
    form = f"{_form(nbytes)}-{'limited' if limit >= 0 else 'free'}"
    kernel = Kernel(f"arena-push-{_VERSION}-{form}", "push", lambda e: _emit_push(e, form))
    args = (Address(op.result), Address(op.operands[0]), Address(value), Stacks(), Status(),
            nbytes, limit)  # fmt: skip
    return [KernelCall(kernel, args)]


def lower_pop(op: Operation) -> list[KernelCall]:
    """args: what is below, the top, the stack, bytes of an element."""
    below, top = op.results
    nbytes = tensor(top).nbytes
    form = _form(nbytes)
    kernel = Kernel(f"arena-pop-{_VERSION}-{form}", "pop", lambda e: _emit_pop(e, form))
    return [KernelCall(kernel, (Address(below), Address(top), Address(op.operands[0]), nbytes))]


def lower_add(op: Operation) -> list[KernelCall]:
    """args: result, both stacks, arena, status, numbers in an element of the innermost stacks."""
    held, depth = element_type(op.attrs), int_attr(op.attrs, "depth")
    dtype, count = held.dtype.short, math.prod(held.static_shape)
    kernel = Kernel(
        f"arena-add-{_VERSION}-{dtype}-{depth}", f"add_{dtype}",
        lambda e: _emit_add(e, dtype, held.dtype.itemsize, depth),
    )  # fmt: skip
    a, b = op.operands
    args = (Address(op.result), Address(a), Address(b), Stacks(), Status(), count)
    return [KernelCall(kernel, args)]


def mark_call(name: str, mark: int) -> KernelCall:
    """begin, end, mark or release; the last two on the mark of this number."""
    kernel = Kernel(f"arena-{name}-{_VERSION}", name, _EMITTERS[name], loops=False)
    return KernelCall(kernel, (Stacks(), FIRST_MARK + MARK * mark))


def _form(nbytes: int) -> str:
    return str(nbytes) if nbytes in _SMALL else "bytes"


# ------------------------------------------------------------------------------------- the kernels


def _copy(e: Emitter, form: str, target: ir.Value, source: ir.Value, nbytes: ir.Value) -> None:
    """`nbytes` bytes from one address (i64) to another."""
    b = e.builder
    if form != "bytes":
        kind = ir.IntType(8 * int(form)).as_pointer()
        b.store(b.load(b.inttoptr(source, kind)), b.inttoptr(target, kind))
        return
    byte = ir.IntType(8).as_pointer()
    memcpy = e.module.declare_intrinsic("llvm.memcpy", [byte, byte, I64])
    ends = [b.inttoptr(target, byte), b.inttoptr(source, byte)]
    b.call(memcpy, [*ends, nbytes, ir.Constant(ir.IntType(1), 0)])


def _emit_push(e: Emitter, form: str) -> None:
    size, limited = form.split("-")
    b, i64p, zero = e.builder, I64.as_pointer(), e.index(0)
    result, stack, arena_words, status = (e.pointer_argument(k, "i64") for k in (0, 1, 3, 4))
    value, nbytes = e.argument(2), e.argument(5)
    arena = ArenaWords(e, arena_words)
    below = b.load(stack)
    base = e.alloca(I64)
    b.store(arena.used(), base)
    with b.if_then(b.icmp_signed("!=", below, zero), likely=True):
        b.store(b.load(e.at(b.inttoptr(below, i64p), e.index(BASE))), base)
    place = arena.take(b.add(nbytes, e.index(HEADER)))
    fits = b.icmp_signed("!=", place, zero)
    b.store(place, result)
    with b.if_else(fits, likely=True) as (then, otherwise):
        with then:
            node = b.inttoptr(place, i64p)
            b.store(below, e.at(node, e.index(BELOW)))
            b.store(b.load(base), e.at(node, e.index(BASE)))
            _copy(e, size, b.add(place, e.index(HEADER)), value, nbytes)
        with otherwise:
            emit_fault(e, status, zero, e.index(-1))
    if limited == "limited":
        taken = b.sub(arena.used(), b.load(base))
        over = b.and_(fits, b.icmp_signed(">", taken, e.argument(6)))
        with b.if_then(over, likely=False):
            emit_fault(e, status, zero, taken)


def _emit_pop(e: Emitter, form: str) -> None:
    b, i64p, zero = e.builder, I64.as_pointer(), e.index(0)
    rest, stack = e.pointer_argument(0, "i64"), e.pointer_argument(2, "i64")
    top, nbytes = e.argument(1), e.argument(3)
    place = b.load(stack)
    with b.if_else(b.icmp_signed("!=", place, zero), likely=True) as (then, otherwise):
        with then:
            b.store(b.load(e.at(b.inttoptr(place, i64p), e.index(BELOW))), rest)
            _copy(e, form, top, b.add(place, e.index(HEADER)), nbytes)
        with otherwise:
            b.store(zero, rest)
            byte = ir.IntType(8).as_pointer()
            memset = e.module.declare_intrinsic("llvm.memset", [byte, I64])
            zeros = [ir.Constant(ir.IntType(8), 0), nbytes, ir.Constant(ir.IntType(1), 0)]
            b.call(memset, [b.inttoptr(top, byte), *zeros])


_ADD = ir.FunctionType(I64, [I64.as_pointer(), I64.as_pointer(), I64, I64, I64])


def _emit_add(e: Emitter, dtype: str, itemsize: int, depth: int) -> None:
    result, first, second, words, status = (e.pointer_argument(k, "i64") for k in range(5))
    b = e.builder
    add = _add_function(e, dtype, itemsize, depth)
    given = [b.load(first), b.load(second), e.argument(5)]
    b.store(b.call(add, [words, status, *given]), result)


def _add_function(e: Emitter, dtype: str, itemsize: int, depth: int) -> ir.Function:
    inner = _add_function(e, dtype, itemsize, depth - 1) if depth > 1 else None

    def emit(f: Emitter, args: list[ir.Value]) -> ir.Value:
        return _emit_sums(f, args, dtype, itemsize, inner)

    return internal_function(e, f"add_{depth}", _ADD, emit)


def _emit_sums(
    e: Emitter, args: list[ir.Value], dtype: str, itemsize: int, inner: ir.Function | None
) -> ir.Value:
    """The stack of the sums of the elements of two stacks, from the tops on."""
    words, status, a, c, count = args
    b, i64p, zero = e.builder, I64.as_pointer(), e.index(0)
    arena = ArenaWords(e, words)
    made, left, right, link = (e.alloca(I64) for _ in range(4))
    for slot, value in ((made, zero), (left, a), (right, c), (link, b.ptrtoint(made, I64))):
        b.store(value, slot)
    nbytes = e.index(8) if inner is not None else b.mul(count, e.index(itemsize))
    head, body, after = (b.append_basic_block(f"sums.{n}") for n in ("head", "body", "after"))
    b.branch(head)
    b.position_at_end(head)
    x, y = b.load(left), b.load(right)
    both = b.and_(b.icmp_signed("!=", x, zero), b.icmp_signed("!=", y, zero))
    b.cbranch(both, body, after)
    b.position_at_end(body)
    place = arena.take(b.add(nbytes, e.index(HEADER)))
    with b.if_then(b.icmp_signed("==", place, zero), likely=False):
        emit_fault(e, status, zero, e.index(-1))
        b.ret(zero)
    data = [b.add(p, e.index(HEADER)) for p in (x, y, place)]
    if inner is None:
        _sum_elements(e, data, count, dtype)
    else:
        given = [b.load(b.inttoptr(p, i64p)) for p in data[:2]]
        b.store(b.call(inner, [words, status, *given, count]), b.inttoptr(data[2], i64p))
    nodes = [b.inttoptr(p, i64p) for p in (x, y, place)]
    b.store(b.load(e.at(nodes[0], e.index(BASE))), e.at(nodes[2], e.index(BASE)))
    b.store(place, b.inttoptr(b.load(link), i64p))
    b.store(place, link)  # the word `BELOW` is an element's first
    for node, slot in zip(nodes, (left, right), strict=False):
        b.store(b.load(e.at(node, e.index(BELOW))), slot)
    b.branch(head)
    b.position_at_end(after)
    x, y = b.load(left), b.load(right)
    rest = b.select(b.icmp_signed("==", x, zero), y, x)
    b.store(rest, b.inttoptr(b.load(link), i64p))
    return b.load(made)


def _sum_elements(e: Emitter, data: list[ir.Value], count: ir.Value, dtype: str) -> None:
    """count numbers at data[2] are the sums of those at data[0] and data[1]."""
    kind = memory_type(dtype).as_pointer()
    pointers = [e.builder.inttoptr(p, kind) for p in data]
    with (
        e.loop_function("sum", pointers, [count]) as (f, (a, b, out), (n,)),
        f.for_range(f.index(0), n) as i,
    ):
        pair = [load_element(f, f.at(p, i), dtype) for p in (a, b)]
        store_element(f, emit_scalar(f, "add", dtype, pair, {}), f.at(out, i), dtype)


# --------------------------------------------------------------------------------------- the marks


def _emit_begin(e: Emitter) -> None:
    b, arena = e.builder, ArenaWords(e, e.pointer_argument(0, "i64"))
    for name in ("top", "end", "chunk", "before"):
        arena.store(e.index(0), name)
    first = arena.load("first")
    with b.if_then(b.icmp_signed("!=", first, e.index(0))):
        arena.enter(first)


def _emit_end(e: Emitter) -> None:
    """Give all chunks back but the first ones, of `kept` bytes in all."""
    b, arena, zero = e.builder, ArenaWords(e, e.pointer_argument(0, "i64")), e.index(0)
    with b.if_then(b.icmp_signed(">", arena.load("total"), arena.load("kept"))):
        free_chunks = internal_function(e, "arena_free", _FREE, _emit_free)
        b.call(free_chunks, [arena.words, zero])


_FREE = ir.FunctionType(I64, [I64.as_pointer(), I64])


def _emit_free(e: Emitter, args: list[ir.Value]) -> ir.Value:
    words, total = args
    b, arena, i64p, zero = e.builder, ArenaWords(e, words), I64.as_pointer(), e.index(0)
    free = c_function(e, "free", ir.VoidType(), [I64])
    chunk, kept, link = (e.alloca(I64) for _ in range(3))
    b.store(arena.load("first"), chunk)
    b.store(total, kept)
    b.store(b.ptrtoint(arena.at("first"), I64), link)
    head, body, after = (b.append_basic_block(f"free.{n}") for n in ("head", "body", "after"))
    b.branch(head)
    b.position_at_end(head)
    place = b.load(chunk)
    b.cbranch(b.icmp_signed("!=", place, zero), body, after)
    b.position_at_end(body)
    node = b.inttoptr(place, i64p)
    follows = b.load(e.at(node, e.index(NEXT)))
    sum_ = b.add(b.load(kept), b.load(e.at(node, e.index(BYTES))))
    with b.if_else(b.icmp_signed("<=", sum_, arena.load("kept"))) as (then, otherwise):
        with then:
            b.store(sum_, kept)
            b.store(place, b.inttoptr(b.load(link), i64p))
            b.store(place, link)  # NEXT is a chunk's first word
        with otherwise:
            b.call(free, [place])
    b.store(follows, chunk)
    b.branch(head)
    b.position_at_end(after)
    b.store(zero, b.inttoptr(b.load(link), i64p))
    arena.store(b.load(kept), "total")
    return b.load(kept)


def _emit_mark(e: Emitter) -> None:
    b, arena = e.builder, ArenaWords(e, e.pointer_argument(0, "i64"))
    place = e.argument(1)
    for k, name in enumerate(("top", "end", "chunk", "before")):
        b.store(arena.load(name), e.at(arena.words, b.add(place, e.index(k))))


def _emit_release(e: Emitter) -> None:
    """Go back to a mark. One that was made when there was no chunk is the start of the first."""
    b, arena = e.builder, ArenaWords(e, e.pointer_argument(0, "i64"))
    place = e.argument(1)
    for k, name in enumerate(("top", "end", "chunk", "before")):
        arena.store(b.load(e.at(arena.words, b.add(place, e.index(k)))), name)


_EMITTERS = {
    "begin": _emit_begin,
    "end": _emit_end,
    "mark": _emit_mark,
    "release": _emit_release,
}
