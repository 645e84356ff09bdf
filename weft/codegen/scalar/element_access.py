"""Loads, stores and constants of single elements, in the register form of each dtype.

16-bit floats lie in memory as bits (i16) and are f32 in registers; the conversions, round to
nearest even, are free of branches and calls, so loops around them vectorise.  NaN stays NaN
(quieted, payload truncated); f32 values beyond the 16-bit range become inf; denormals are kept."""

from __future__ import annotations

import platform

from llvmlite import ir

from weft.codegen.llvm.emitter import (
    COMPLEXES,
    F32,
    F64,
    HALVES,
    I1,
    I8,
    I16,
    I32,
    PART,
    Emitter,
    register_type,
    width_bits,
)
from weft.codegen.llvm.target import has_feature

_HALF = ir.HalfType()


def has_f16_instructions() -> bool:
    """Whether the target converts f16 <-> f32 in hardware (x86 F16C, every 64-bit Arm)."""
    if platform.machine() in ("aarch64", "arm64"):
        return True
    return has_feature("f16c")


def half_to_f32(builder: ir.IRBuilder, bits: ir.Value, dtype: str, hardware: bool) -> ir.Value:
    """The f32 equal to the ``dtype`` ("f16" or "bf16") number with these 16 bits."""
    if dtype == "f16":
        return (
            f16_to_f32_hardware(builder, bits) if hardware else f16_to_f32_portable(builder, bits)
        )
    wide = builder.zext(bits, I32)
    return builder.bitcast(builder.shl(wide, _i32(16)), F32)


def f32_to_half(builder: ir.IRBuilder, value: ir.Value, dtype: str, hardware: bool) -> ir.Value:
    """The 16 bits of the ``dtype`` number nearest to an f32."""
    if dtype == "bf16":
        return f32_to_bf16(builder, value)
    if hardware:
        return f32_to_f16_hardware(builder, value)
    return f32_to_f16_portable(builder, value)


def f16_to_f32_hardware(builder: ir.IRBuilder, bits: ir.Value) -> ir.Value:
    """By LLVM's half type: one instruction where the target has it, otherwise a library call."""
    return builder.fpext(builder.bitcast(bits, _HALF), F32)


def f32_to_f16_hardware(builder: ir.IRBuilder, value: ir.Value) -> ir.Value:
    """See f16_to_f32_hardware."""
    return builder.bitcast(builder.fptrunc(value, _HALF), I16)


def f16_to_f32_portable(builder: ir.IRBuilder, bits: ir.Value) -> ir.Value:
    """By integer arithmetic: shift the fields into place, scale by 2**112 to fix the exponent bias.

    The scaling also normalises denormals (F. Giesen, "half_to_float_fast5").
    """
    wide = builder.zext(bits, I32)
    magnitude = builder.shl(builder.and_(wide, _i32(0x7FFF)), _i32(13))
    scaled = builder.fmul(builder.bitcast(magnitude, F32), ir.Constant(F32, 2.0**112))
    finite = builder.bitcast(scaled, I32)
    special = builder.or_(magnitude, _i32(0x7F800000))
    is_special = builder.icmp_unsigned(">=", magnitude, _i32(0x7C00 << 13))
    sign = builder.shl(builder.and_(wide, _i32(0x8000)), _i32(16))
    quiet = builder.icmp_unsigned(">", magnitude, _i32(0x7C00 << 13))
    special = builder.select(quiet, builder.or_(special, _i32(0x400000)), special)
    return builder.bitcast(builder.or_(sign, builder.select(is_special, special, finite)), F32)


def f32_to_f16_portable(builder: ir.IRBuilder, value: ir.Value) -> ir.Value:
    """By integer arithmetic (F. Giesen, "float_to_half_fast3_rtne")."""
    bits = builder.bitcast(value, I32)
    sign = builder.and_(bits, _i32(0x80000000))
    magnitude = builder.xor(bits, sign)
    odd = builder.and_(builder.lshr(magnitude, _i32(13)), _i32(1))
    rebias = builder.add(builder.add(magnitude, _i32(0xFFF - (112 << 23))), odd)
    normal = builder.lshr(rebias, _i32(13))
    # Adding 0.5 lines the last bit of an f16 denormal up with the last bit of the sum.
    half = ir.Constant(F32, 0.5)
    summed = builder.fadd(builder.bitcast(magnitude, F32), half)
    denormal = builder.sub(builder.bitcast(summed, I32), builder.bitcast(half, I32))
    is_denormal = builder.icmp_unsigned("<", magnitude, _i32(113 << 23))
    finite = builder.select(is_denormal, denormal, normal)
    payload = builder.and_(builder.lshr(magnitude, _i32(13)), _i32(0x3FF))
    nan = builder.or_(payload, _i32(0x7E00))
    is_nan = builder.icmp_unsigned(">", magnitude, _i32(0x7F800000))
    too_large = builder.icmp_unsigned(">=", magnitude, _i32(143 << 23))
    special = builder.select(is_nan, nan, _i32(0x7C00))
    result = builder.select(too_large, special, finite)
    return builder.trunc(builder.or_(result, builder.lshr(sign, _i32(16))), I16)


def f32_to_bf16(builder: ir.IRBuilder, value: ir.Value) -> ir.Value:
    """Upper half of the bits after adding just under half a last place, ties to even."""
    bits = builder.bitcast(value, I32)
    upper = builder.lshr(bits, _i32(16))
    odd = builder.and_(upper, _i32(1))
    rounded = builder.lshr(builder.add(builder.add(bits, _i32(0x7FFF)), odd), _i32(16))
    is_nan = builder.fcmp_unordered("uno", value, value)
    result = builder.select(is_nan, builder.or_(upper, _i32(0x40)), rounded)
    return builder.trunc(result, I16)


def f64_to_f32_odd(builder: ir.IRBuilder, value: ir.Value) -> ir.Value:
    """f64 -> f32 rounded to odd: rounding the result again, to 16 bits, is then exact.

    S. Boldo, G. Melquiond, "Emulation of FMA and correctly rounded sums: proved algorithms using
    rounding to odd", 2008.
    """
    nearest = builder.fptrunc(value, F32)
    back = builder.fpext(nearest, F64)
    bits = builder.bitcast(nearest, I32)
    away = builder.fcmp_ordered(
        ">", _magnitude(builder, back, F64), _magnitude(builder, value, F64)
    )
    toward_zero = builder.select(away, builder.sub(bits, _i32(1)), bits)
    inexact = builder.fcmp_ordered("!=", back, value)
    odd = builder.or_(toward_zero, _i32(1))
    return builder.bitcast(builder.select(inexact, odd, bits), F32)


def _magnitude(builder: ir.IRBuilder, value: ir.Value, kind: ir.Type) -> ir.Value:
    function = builder.module.declare_intrinsic("llvm.fabs", [kind])
    return builder.call(function, [value])


def _i32(value: int) -> ir.Constant:
    return ir.Constant(I32, value)


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
