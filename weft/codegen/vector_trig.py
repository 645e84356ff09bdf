"""sin and cos: f32 as branch-free code that LLVM can vectorise, f64 by the C library.

f32 computes in f64, where the reduction by pi/2 keeps enough bits: |x| < 2**20 by Cody-Waite with
pi/2 as 25 + 53 bits; a larger x = m 2**e by m times a table of 2**e 2/pi mod 4 (M. Payne, R. Hanek,
"Radian reduction for trigonometric functions", 1983).  So every f32 argument is reduced correctly.
"""

from __future__ import annotations

from functools import cache

from llvmlite import ir

from weft.codegen.elements import F32, F64, I32, I64
from weft.codegen.float_builder import FloatBuilder

# floor(2/pi * 2**288)
_TWO_OVER_PI = 0xA2F9836E4E441529FC2757D1F534DDC0DB6295993C439041FE5163ABDEBBC561B7246E3A
_TWO_OVER_PI_BITS = 288
_PI_HALF_HIGH = float.fromhex("0x1.921fb50000000p+0")
_PI_HALF_LOW = float.fromhex("0x1.110b4611a6263p-26")
_PI_HALF = 1.5707963267948966
_MEDIUM = 2.0**20

# (sin(r)/r - 1) / r**2 and (cos(r) - 1) / r**2 in powers of r**2 on |r| <= pi/4: minimax by Remez
# exchange in 50 digits, relative errors 2**-37 and 2**-34.
_SIN = (
    *(-0.16666666639575628, 0.008333329145063881, -0.00019839256809752525),
    2.7175650199927098e-06,
)
_COS = (
    *(-0.4999999970259818, 0.04166662068107295, -0.0013886678152257232),
    2.438225723229775e-05,
)


def sin_f32(m: FloatBuilder, x: ir.Value) -> ir.Value:
    """Sine of an f32."""
    return _sin_or_cos(m, x, quarter_turns=0)


def cos_f32(m: FloatBuilder, x: ir.Value) -> ir.Value:
    """Cosine of an f32: the sine a quarter turn on."""
    return _sin_or_cos(m, x, quarter_turns=1)


def _sin_or_cos(m: FloatBuilder, x: ir.Value, quarter_turns: int) -> ir.Value:
    wide = FloatBuilder(m.builder, "f64")
    r, quadrant = _reduce(m, wide, x)
    quadrant = m.builder.add(quadrant, ir.Constant(I32, quarter_turns))
    z = wide.mul(r, r)
    sine = wide.mul(r, wide.fma(z, wide.horner(z, _SIN), 1.0))
    cosine = wide.fma(z, wide.horner(z, _COS), 1.0)
    is_odd = m.builder.icmp_signed("!=", _and(m, quadrant, 1), ir.Constant(I32, 0))
    value = m.builder.fptrunc(wide.select(is_odd, cosine, sine), F32)
    sign = m.builder.shl(_and(m, quadrant, 2), ir.Constant(I32, 30))
    return m.from_bits(m.builder.xor(m.bits(value), sign))


def _reduce(m: FloatBuilder, wide: FloatBuilder, x: ir.Value) -> tuple[ir.Value, ir.Value]:
    """(r, quadrant as i32) with x = r + quadrant pi/2 mod 2 pi, |r| <= pi/4."""
    wide_x = m.builder.fpext(x, F64)
    n, integer = wide.nearest_integer(wide_x, 2.0 / 3.141592653589793)
    medium = wide.fma(n, -_PI_HALF_LOW, wide.fma(n, -_PI_HALF_HIGH, wide_x))
    large, large_integer = _reduce_large(m, wide, x)
    is_medium = m.compare("<", m.abs(x), _MEDIUM)
    quadrant = m.builder.select(is_medium, integer, large_integer)
    return wide.select(is_medium, medium, large), m.builder.trunc(quadrant, I32)


def _reduce_large(m: FloatBuilder, wide: FloatBuilder, x: ir.Value) -> tuple[ir.Value, ir.Value]:
    bits = m.bits(x)
    exponent = _and(m, m.builder.lshr(bits, ir.Constant(I32, 23)), 0xFF)
    mantissa = m.builder.or_(_and(m, bits, 0x7FFFFF), ir.Constant(I32, 0x800000))
    number = wide.copysign(m.builder.sitofp(mantissa, F64), m.builder.fpext(x, F64))
    high_turns, low_turns = (
        m.builder.load(
            m.builder.gep(
                _table(m.builder.module, part),
                [ir.Constant(I64, 0), m.builder.zext(exponent, I64)],
                inbounds=True,
            )
        )
        for part in (0, 1)
    )
    product = wide.mul(number, high_turns)  # exact: 24 + 28 bits
    n, integer = wide.nearest_integer(wide.fma(number, low_turns, product), 1.0)
    fraction = wide.fma(number, low_turns, wide.sub(product, n))
    return wide.mul(fraction, _PI_HALF), integer


def _and(m: FloatBuilder, value: ir.Value, mask: int) -> ir.Value:
    return m.builder.and_(value, ir.Constant(I32, mask))


def _table(module: ir.Module, part: int) -> ir.Value:
    """Global array, by biased f32 exponent, of the high or low part of 2**e 2/pi mod 4."""
    name = f"weft.quarter_turns.{part}"
    table = module.globals.get(name)
    if table is None:
        kind = ir.ArrayType(F64, 256)
        table = ir.GlobalVariable(module, kind, name)
        table.linkage = "internal"
        table.global_constant = True
        table.initializer = ir.Constant(kind, [ir.Constant(F64, p[part]) for p in _quarter_turns()])
    return table


@cache
def _quarter_turns() -> tuple[tuple[float, float], ...]:
    """(28-bit high part, low part) of 2**(biased - 150) 2/pi, mod 4, in [-2, 2); NaN for inf."""
    entries = []
    unit = 1 << _TWO_OVER_PI_BITS
    for biased in range(255):
        exponent = biased - 150
        scaled = _TWO_OVER_PI << exponent if exponent >= 0 else _TWO_OVER_PI >> -exponent
        turns = (scaled + 2 * unit) % (4 * unit) - 2 * unit
        shift = max(0, abs(turns).bit_length() - 28)
        high = (turns >> shift) << shift
        entries.append((high / unit, (turns - high) / unit))
    entries.append((float("nan"), float("nan")))
    return tuple(entries)
