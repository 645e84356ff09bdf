"""Stacks in loops that are one kernel: handles and elements are in registers."""

from __future__ import annotations

from llvmlite import ir

from weft.codegen.element_access import constant, load_element, store_element
from weft.codegen.elements import memory_type, register_type
from weft.codegen.emitter import I64, Emitter
from weft.codegen.kernels.arena_words import BASE, BELOW, HEADER, ArenaWords
from weft.ir.types import TensorType


def emit_push(
    e: Emitter, words: ir.Value, stack: ir.Value, values: list[ir.Value], held: TensorType
) -> tuple[ir.Value, ir.Value]:
    """The handle of the stack with an element on top, 0 if there is no memory; and how many bytes
    there are in the arena since the stack began."""
    b, i64p, zero = e.builder, I64.as_pointer(), e.index(0)
    arena = ArenaWords(e, b.inttoptr(words, i64p))
    base = e.alloca(I64)
    b.store(arena.used(), base)
    with b.if_then(b.icmp_signed("!=", stack, zero), likely=True):
        b.store(b.load(e.at(b.inttoptr(stack, i64p), e.index(BASE))), base)
    place = arena.take(e.index(held.nbytes + HEADER))
    with b.if_then(b.icmp_signed("!=", place, zero), likely=True):
        node = b.inttoptr(place, i64p)
        b.store(stack, e.at(node, e.index(BELOW)))
        b.store(b.load(base), e.at(node, e.index(BASE)))
        data = _data(e, place, held)
        for k, value in enumerate(values):
            store_element(e, value, e.at(data, e.index(k)), held.dtype.short)
    return place, b.sub(arena.used(), b.load(base))


def emit_pop(e: Emitter, stack: ir.Value, held: TensorType, count: int) -> list[ir.Value]:
    """The handle of what is below the top, and the elements of the top."""
    b, dtype = e.builder, held.dtype.short
    slots = [e.alloca(I64), *(e.alloca(register_type(dtype)) for _ in range(count))]
    with b.if_else(b.icmp_signed("!=", stack, e.index(0)), likely=True) as (then, otherwise):
        with then:
            node, data = b.inttoptr(stack, I64.as_pointer()), _data(e, stack, held)
            b.store(b.load(e.at(node, e.index(BELOW))), slots[0])
            for k, slot in enumerate(slots[1:]):
                b.store(load_element(e, e.at(data, e.index(k)), dtype), slot)
        with otherwise:
            b.store(e.index(0), slots[0])
            for slot in slots[1:]:
                b.store(constant(dtype, 0), slot)
    return [b.load(slot) for slot in slots]


def _data(e: Emitter, place: ir.Value, held: TensorType) -> ir.Value:
    address = e.builder.add(place, e.index(HEADER))
    return e.builder.inttoptr(address, memory_type(held.dtype.short).as_pointer())
