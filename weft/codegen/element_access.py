"""Reading and writing single elements, and constants, in the register form of each dtype."""

from __future__ import annotations

from llvmlite import ir

from weft.codegen.elements import COMPLEXES, HALVES, I1, I8, PART, register_type, width_bits
from weft.codegen.emitter import Emitter
from weft.codegen.scalar.half import f32_to_half, half_to_f32, has_f16_instructions


def load_element(e: Emitter, pointer: ir.Value, dtype: str) -> ir.Value:
    """The element at ``pointer`` (to ``memory_type(dtype)``) as a register value."""
    if dtype in COMPLEXES:
        alignment = width_bits(PART[dtype]) // 8
        parts = [e.builder.load(_part(e, pointer, k), align=alignment) for k in (0, 1)]
        return make_complex(e, parts[0], parts[1])
    return from_memory(e, e.builder.load(pointer, align=width_bits(dtype) // 8), dtype)


def store_element(e: Emitter, value: ir.Value, pointer: ir.Value, dtype: str) -> None:
    """Write a register value to ``pointer``; 16-bit floats are rounded here."""
    if dtype in COMPLEXES:
        for k in (0, 1):
            part = e.builder.extract_value(value, k)
            e.builder.store(part, _part(e, pointer, k), align=width_bits(PART[dtype]) // 8)
        return
    e.builder.store(to_memory(e, value, dtype), pointer, align=width_bits(dtype) // 8)


def from_memory(e: Emitter, value: ir.Value, dtype: str) -> ir.Value:
    """Memory form -> register form; complex numbers have only one form."""
    if dtype == "bool":
        return e.builder.icmp_unsigned("!=", value, ir.Constant(I8, 0))
    if dtype in HALVES:
        return half_to_f32(e.builder, value, dtype, has_f16_instructions())
    return value


def to_memory(e: Emitter, value: ir.Value, dtype: str) -> ir.Value:
    """Register form -> memory form."""
    if dtype == "bool":
        return e.builder.zext(value, I8)
    if dtype in HALVES:
        return f32_to_half(e.builder, value, dtype, has_f16_instructions())
    return value


def constant(dtype: str, value: bool | int | float | complex) -> ir.Value:
    """A register constant: ``value`` (bool, int, float or complex) must be representable."""
    kind = register_type(dtype)
    if dtype in COMPLEXES:
        number = complex(value)
        pair = zip(kind.elements, (number.real, number.imag), strict=True)
        return ir.Constant(kind, [ir.Constant(part_kind, part) for part_kind, part in pair])
    if dtype == "bool":
        return ir.Constant(I1, bool(value))
    if isinstance(kind, ir.IntType):
        return ir.Constant(kind, int(value.real))
    return ir.Constant(kind, float(value.real))


def make_complex(e: Emitter, real: ir.Value, imaginary: ir.Value) -> ir.Value:
    """The pair (real, imaginary) as one register value."""
    pair = ir.Constant(ir.LiteralStructType([real.type, imaginary.type]), ir.Undefined)
    return e.builder.insert_value(e.builder.insert_value(pair, real, 0), imaginary, 1)


def _part(e: Emitter, pointer: ir.Value, k: int) -> ir.Value:
    i32 = ir.IntType(32)
    return e.builder.gep(pointer, [ir.Constant(i32, 0), ir.Constant(i32, k)], inbounds=True)
