"""sin, cos and tan as branch-free code that LLVM's loop vectoriser can widen.

The angle is reduced by n pi/2 in parts (W. Cody, W. Waite, "Software Manual for the Elementary
Functions", 1980); huge angles, NaN and inf go to the C library, lane by lane.  f32 computes in f64
and rounds once.  f64 keeps the reduced angle, and for tan sine and cosine too, as a sum of two
numbers (FreeBSD msun, k_sin.c and k_cos.c).  Polynomials are minimax, by Remez exchange in 60
digits.
"""

from __future__ import annotations

import math

from llvmlite import ir

from weft.codegen.elements import F32, F64, I32
from weft.codegen.scalar.float_builder import FloatBuilder
from weft.codegen.vector.rare import ScalarCode, unless_beyond

_TWO_OVER_PI = 2.0 / math.pi
# pi/2 as 25 + 53 bits (n times the first is exact, n < 2**25), and as a sum of three f64.
_PI_HALF_F32 = (float.fromhex("0x1.921fb50000000p+0"), float.fromhex("0x1.110b4611a6263p-26"))
_PI_HALF_F64 = (1.5707963267948966, 6.123233995736766e-17, -1.4973849048591698e-33)
# Angles below are reduced inline, with an error below 2**-55 and 2**-130.
_HUGE = {"f32": 2.0**25, "f64": 2.0**30}

# (sin(r)/r - 1) / r**2 and (cos(r) - 1) / r**2 in powers of r**2 on |r| <= pi/4: relative errors
# 2**-37 and 2**-34.
_SIN_F32 = (
    *(-0.16666666639575628, 0.008333329145063881, -0.00019839256809752525),
    2.7175650199927098e-06,
)
_COS_F32 = (
    *(-0.4999999970259818, 0.04166662068107295, -0.0013886678152257232),
    2.438225723229775e-05,
)
# (sin(r)/r - 1) / r**2 and (cos(r) - 1 + r**2/2) / r**4: 2**-58 and 2**-56 of the whole.
_SIN_F64 = (
    *(-0.16666666666666632, 0.008333333333322413, -0.00019841269829807813),
    *(2.7557313691920163e-06, -2.5050758115644303e-08, 1.5896795677126807e-10),
)
_COS_F64 = (
    *(0.041666666666650205, -0.0013888888886172614, 2.4801585679270488e-05),
    *(-2.755686905082017e-07, 2.081762138663494e-09, -8.464870830528108e-12),
)
_TINY = 2.0**-28  # sin(x) and tan(x) of less are x


def sin(m: FloatBuilder, x: ir.Value) -> ir.Value:
    """Sine."""
    usual = _sin_f32(m, x, 0) if m.dtype == "f32" else _sin_f64(m, x, 0)
    return unless_beyond(m, _HUGE[m.dtype], x, usual, "sin", _libm("sin"))


def cos(m: FloatBuilder, x: ir.Value) -> ir.Value:
    """Cosine: the sine a quarter turn on."""
    usual = _sin_f32(m, x, 1) if m.dtype == "f32" else _sin_f64(m, x, 1)
    return unless_beyond(m, _HUGE[m.dtype], x, usual, "cos", _libm("cos"))


def tan(m: FloatBuilder, x: ir.Value) -> ir.Value:
    """Tangent: sine over cosine, or minus cosine over sine in odd quadrants."""
    usual = _tan_f32(m, x) if m.dtype == "f32" else _tan_f64(m, x)
    return unless_beyond(m, _HUGE[m.dtype], x, usual, "tan", _libm("tan"))


def _libm(name: str) -> ScalarCode:
    """The C library's f64 function, rounded for f32."""

    def code(m: FloatBuilder, x: ir.Value) -> ir.Value:
        function = m.builder.module.globals.get(name)
        if function is None:
            function = ir.Function(m.builder.module, ir.FunctionType(F64, [F64]), name)
            function.attributes.add("nounwind")
            function.attributes.add("readnone")
        if m.dtype == "f64":
            return m.builder.call(function, [x])
        return m.builder.fptrunc(m.builder.call(function, [m.builder.fpext(x, F64)]), F32)

    return code


def _reduce_f32(m: FloatBuilder, x: ir.Value) -> tuple[ir.Value, ir.Value]:
    """(r in f64, quadrant as i32) of an f32 x = r + quadrant pi/2 mod 2 pi, |r| <= pi/4."""
    wide = FloatBuilder(m.builder, "f64")
    wide_x = m.builder.fpext(x, F64)
    n, integer = wide.nearest_integer(wide_x, _TWO_OVER_PI)
    high, low = _PI_HALF_F32
    r = wide.fma(n, -low, wide.fma(n, -high, wide_x))
    return r, m.builder.trunc(integer, I32)


def _reduce_f64(m: FloatBuilder, x: ir.Value) -> tuple[ir.Value, ir.Value, ir.Value]:
    """(high, low, quadrant as i64) of x = high + low + quadrant pi/2 mod 2 pi, |high| <= pi/4."""
    n, integer = m.nearest_integer(x, _TWO_OVER_PI)
    first = m.exact_fma(n, -_PI_HALF_F64[0], x)  # exact
    product, error = m.two_product(n, _PI_HALF_F64[1])
    high, low = m.two_sum(first, m.neg(product))
    return high, m.sub(low, m.fma(n, _PI_HALF_F64[2], error)), integer


def _sin_cos_wide(wide: FloatBuilder, r: ir.Value) -> tuple[ir.Value, ir.Value]:
    z = wide.mul(r, r)
    sine = wide.mul(r, wide.fma(z, wide.horner(z, _SIN_F32), 1.0))
    return sine, wide.fma(z, wide.horner(z, _COS_F32), 1.0)


def _sin_f32(m: FloatBuilder, x: ir.Value, quarter_turns: int) -> ir.Value:
    r, quadrant = _reduce_f32(m, x)
    quadrant = m.builder.add(quadrant, m.int_const(quarter_turns))
    sine, cosine = _sin_cos_wide(FloatBuilder(m.builder, "f64"), r)
    value = m.builder.fptrunc(m.builder.select(_is_odd(m, quadrant), cosine, sine), F32)
    return _negate_from_2(m, value, quadrant)


def _tan_f32(m: FloatBuilder, x: ir.Value) -> ir.Value:
    wide = FloatBuilder(m.builder, "f64")
    r, quadrant = _reduce_f32(m, x)
    sine, cosine = _sin_cos_wide(wide, r)
    odd = _is_odd(m, quadrant)
    numerator = wide.select(odd, wide.neg(cosine), sine)
    return m.builder.fptrunc(wide.div(numerator, wide.select(odd, sine, cosine)), F32)


def _is_odd(m: FloatBuilder, quadrant: ir.Value) -> ir.Value:
    return m.builder.icmp_signed("!=", m.builder.and_(quadrant, m.int_const(1)), m.int_const(0))


def _negate_from_2(m: FloatBuilder, value: ir.Value, quadrant: ir.Value) -> ir.Value:
    """Minus ``value`` in quadrants 2 and 3."""
    bit = m.builder.and_(quadrant, m.int_const(2))
    shift = m.int_const(30 if m.bits_kind == I32 else 62)
    return m.from_bits(m.builder.xor(m.bits(value), m.builder.shl(bit, shift)))


def _sine_terms(m: FloatBuilder, r: ir.Value, low: ir.Value) -> ir.Value:
    """sin(r + low) - r"""
    z = m.mul(r, r)
    cubic = m.mul(m.mul(z, r), m.horner(z, _SIN_F64))
    return m.add(cubic, m.fma(m.mul(z, -0.5), low, low))


def _cosine_terms(m: FloatBuilder, r: ir.Value, low: ir.Value) -> tuple[ir.Value, ir.Value]:
    """cos(r + low) as a sum"""
    z = m.mul(r, r)
    half = m.mul(z, 0.5)
    high, rest = m.fast_two_sum(1.0, m.neg(half))
    # z is rounded: what it lost counts where half is large.
    lost = m.mul(m.exact_fma(r, r, m.neg(z)), -0.5)
    fourth = m.fma(m.mul(z, z), m.horner(z, _COS_F64), rest)
    return high, m.add(m.fma(m.neg(r), low, lost), fourth)


def _sin_f64(m: FloatBuilder, x: ir.Value, quarter_turns: int) -> ir.Value:
    r, low, quadrant = _reduce_f64(m, x)
    quadrant = m.builder.add(quadrant, m.int_const(quarter_turns))
    sine = m.add(r, _sine_terms(m, r, low))
    cosine = m.add(*_cosine_terms(m, r, low))
    value = _negate_from_2(m, m.select(_is_odd(m, quadrant), cosine, sine), quadrant)
    if quarter_turns:
        return value
    return m.select(m.compare("<", m.abs(x), _TINY), x, value)


def _tan_f64(m: FloatBuilder, x: ir.Value) -> ir.Value:
    r, low, quadrant = _reduce_f64(m, x)
    sine, sine_low = m.fast_two_sum(r, _sine_terms(m, r, low))
    cosine, cosine_low = m.fast_two_sum(*_cosine_terms(m, r, low))
    odd = _is_odd(m, quadrant)
    top = m.select(odd, m.neg(cosine), sine)
    top_low = m.select(odd, m.neg(cosine_low), sine_low)
    bottom = m.select(odd, sine, cosine)
    bottom_low = m.select(odd, sine_low, cosine_low)
    inverse = m.div(1.0, bottom)
    quotient = m.mul(top, inverse)
    rest = m.exact_fma(m.neg(quotient), bottom, top)
    rest = m.add(rest, m.fma(m.neg(quotient), bottom_low, top_low))
    value = m.fma(rest, inverse, quotient)
    return m.select(m.compare("<", m.abs(x), _TINY), x, value)
