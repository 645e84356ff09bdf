"""power, hypot and cbrt as branch-free code that LLVM's loop vectoriser can widen."""

from __future__ import annotations

import math

from llvmlite import ir

from weft.codegen.llvm.elements import F32, F64
from weft.codegen.vector.exp import exp2_wide, expm1_reduced
from weft.codegen.vector.float_builder import FloatBuilder
from weft.codegen.vector.log import decompose, split_exponent

# f32: log2((1 + s) / (1 - s)) / s in powers of s**2, minimax, relative error 2**-45.
_LOG2_S = (
    *(2.885390081777845, 0.9617966941230254, 0.5770779393116531, 0.41220958251428086),
    *(0.31989135288017007, 0.2831156118876911),
)
# f64: (atanh(s)/s - 1 - s**2/3) / s**4 in powers of s**2 for |s| <= 3 - 2 sqrt(2), minimax by Remez
# exchange in 60 digits, 2**-66 of atanh.
_ATANH = (
    *(0.20000000000001136, 0.1428571428504595, 0.11111111260676619, 0.09090892118553516),
    *(0.07693381764282656, 0.06628334455510254, 0.06598874730727734),
)
_THIRD = (0.3333333333333333, 1.850371707708594e-17)
_TWO_LOG2_E = (2.8853900817779268, 4.0710547481862066e-17)
_LN_2 = (0.6931471805599453, 2.3190468138462996e-17)


def power(m: FloatBuilder, x: ir.Value, y: ir.Value) -> ir.Value:
    """x**y; special cases of C99 F.9.4.4, as NumPy."""
    return _special(m, x, y, _power_f32(m, x, y) if m.dtype == "f32" else _power_f64(m, x, y))


def _power_f32(m: FloatBuilder, x: ir.Value, y: ir.Value) -> ir.Value:
    """2**(y log2|x|) in f64, rounded."""
    wide = FloatBuilder(m.builder, "f64")
    magnitude = m.abs(x)
    wide_x = m.builder.fpext(magnitude, F64)
    log_of_x = _log2_wide(wide, wide_x)
    log_of_x = wide.select(m.compare("<", magnitude, math.inf), log_of_x, wide_x)  # inf, NaN
    log_of_x = wide.select(m.compare("==", x, 0.0), -math.inf, log_of_x)
    exponent = wide.mul(log_of_x, m.builder.fpext(y, F64))
    exponent = wide.at_least(wide.at_most(exponent, 200.0), -200.0)
    return m.builder.fptrunc(exp2_wide(wide, exponent), F32)


def _log2_wide(wide: FloatBuilder, x: ir.Value) -> ir.Value:
    """log2 in f64 of a positive f32 number (so never denormal), relative error 2**-44."""
    k, mantissa = split_exponent(wide, x)
    s = wide.div(wide.sub(mantissa, 1.0), wide.add(mantissa, 1.0))
    fraction = wide.mul(s, wide.horner(wide.mul(s, s), _LOG2_S))
    # k fits 32 bits, and only from there is the conversion cheap without AVX-512.
    narrow = wide.builder.trunc(k, ir.IntType(32))
    return wide.add(wide.builder.sitofp(narrow, F64), fraction)


def _power_f64(m: FloatBuilder, x: ir.Value, y: ir.Value) -> ir.Value:
    """2**(y log2|x|) with the logarithm and the product as sums of two numbers."""
    magnitude = m.abs(x)
    log, log_low = _log2_sum(m, magnitude)
    log = m.select(m.compare("<", magnitude, math.inf), log, magnitude)  # inf, NaN
    log = m.select(m.compare("==", x, 0.0), -math.inf, log)
    exponent = m.mul(y, log)
    low = m.fma(y, log_low, m.exact_fma(y, log, m.neg(exponent)))
    low = m.select(m.compare("<", m.abs(exponent), 1090.0), low, 0.0)
    exponent = m.at_least(m.at_most(exponent, 1100.0), -1100.0)
    n, integer = m.nearest_integer(exponent, 1.0)
    r = m.sub(exponent, n)
    t, lost = m.two_product(r, _LN_2[0])
    lost = m.add(lost, m.fma(r, _LN_2[1], m.mul(low, _LN_2[0])))
    return m.scale_by_power_of_two(m.add(expm1_reduced(m, t, lost), 1.0), integer)


def _log2_sum(m: FloatBuilder, x: ir.Value) -> tuple[ir.Value, ir.Value]:
    """log2 of a positive finite x as a sum, relative error 2**-64: k + 2 atanh(s) / ln 2.

    s = f / (2 + f), atanh(s) = s (1 + s**2/3 + s**4 Q(s**2)): all but Q as sums of two numbers.
    """
    k, f = decompose(m, x)
    bottom, bottom_low = m.fast_two_sum(2.0, f)
    inverse = m.div(1.0, bottom)
    s = m.mul(f, inverse)
    rest = m.exact_fma(m.neg(s), bottom, f)
    s_low = m.mul(m.fma(m.neg(s), bottom_low, rest), inverse)
    z, z_low = m.two_product(s, s)
    z_low = m.fma(m.add(s, s), s_low, z_low)
    third, third_low = m.two_product(z, _THIRD[0])
    third_low = m.add(third_low, m.fma(z, _THIRD[1], m.mul(z_low, _THIRD[0])))
    rest = m.mul(m.mul(z, z), m.horner(z, _ATANH))
    w, w_low = m.fast_two_sum(third, rest)
    factor, factor_low = m.fast_two_sum(1.0, w)
    factor_low = m.add(factor_low, m.add(w_low, third_low))
    p, p_low = m.two_product(s, factor)
    p_low = m.add(p_low, m.fma(s, factor_low, m.mul(s_low, factor)))
    q, q_low = m.two_product(p, _TWO_LOG2_E[0])
    q_low = m.add(q_low, m.fma(p, _TWO_LOG2_E[1], m.mul(p_low, _TWO_LOG2_E[0])))
    high, low = m.fast_two_sum(k, q)
    return m.fast_two_sum(high, m.add(low, q_low))


def _special(m: FloatBuilder, x: ir.Value, y: ir.Value, result: ir.Value) -> ir.Value:
    """``result`` is |x|**y."""
    whole = m.compare("==", m.call("floor", y), y)
    half_y = m.mul(y, 0.5)
    half_whole = m.compare("==", m.call("floor", half_y), half_y)
    odd = m.builder.and_(whole, m.builder.not_(half_whole))
    result = m.select(odd, m.copysign(result, x), result)
    finite_negative = m.builder.and_(m.compare("<", x, 0.0), m.compare(">", x, -math.inf))
    undefined = m.builder.and_(finite_negative, m.builder.not_(whole))
    result = m.select(undefined, math.nan, result)
    unit = m.builder.and_(m.compare("==", x, -1.0), m.compare("==", m.abs(y), math.inf))
    one = m.either(m.compare("==", x, 1.0), m.compare("==", y, 0.0), unit)
    return m.select(one, 1.0, result)


def hypot(m: FloatBuilder, x: ir.Value, y: ir.Value) -> ir.Value:
    """sqrt(x**2 + y**2) without overflow; inf if either is, even if the other is NaN."""
    wide = FloatBuilder(m.builder, "f64")
    if m.dtype == "f32":
        a, b = (m.builder.fpext(v, F64) for v in (x, y))
        root = wide.call("sqrt", wide.fma(a, a, wide.mul(b, b)))
        result = m.builder.fptrunc(root, F32)
    else:
        a, b = m.abs(x), m.abs(y)
        larger = m.select(m.compare(">", a, b), a, b)
        huge, tiny = m.compare(">", larger, 2.0**510), m.compare("<", larger, 2.0**-450)
        scale = m.select(huge, 2.0**-520, m.select(tiny, 2.0**540, 1.0))
        back = m.select(huge, 2.0**520, m.select(tiny, 2.0**-540, 1.0))
        a, b = m.mul(a, scale), m.mul(b, scale)
        result = m.mul(m.call("sqrt", m.fma(a, a, m.mul(b, b))), back)
    infinite = m.either(*(m.compare("==", m.abs(v), math.inf) for v in (x, y)))
    return m.select(infinite, math.inf, result)


# cbrt on [1/2, 1], minimax, 2**-19.6.
_CBRT = (
    *(0.37568381911279614, 1.3304889310480028, -1.4896882188778486, 1.2875274862037638),
    *(-0.6398504269765735, 0.13583964015230426),
)


def cbrt(m: FloatBuilder, x: ir.Value) -> ir.Value:
    """Cube root: a polynomial, then one step of Halley's iteration, in f64."""
    if m.dtype == "f32":
        wide = FloatBuilder(m.builder, "f64")
        return m.builder.fptrunc(cbrt(wide, m.builder.fpext(x, F64)), F32)
    k, f = decompose(m, m.abs(x), 0.5)
    mantissa = m.add(f, 1.0)
    third, integer = m.nearest_integer(m.sub(k, 0.9), 1.0 / 3.0)  # floor(k / 3)
    rest = m.fma(third, -3.0, k)
    one, two = m.compare("==", rest, 1.0), m.compare("==", rest, 2.0)
    power = m.select(two, 4.0, m.select(one, 2.0, 1.0))
    root = m.select(two, 4.0 ** (1 / 3), m.select(one, 2.0 ** (1 / 3), 1.0))
    value = m.mul(mantissa, power)
    t = m.mul(m.horner(mantissa, _CBRT), root)
    square = m.mul(t, t)
    residual = m.fma(square, t, m.neg(value))
    step = m.div(residual, m.fma(m.mul(square, 2.0), t, value))
    result = m.mul(m.fma(m.neg(t), step, t), m.power_of_two(integer))
    finite = m.builder.and_(m.compare("<", m.abs(x), math.inf), m.compare("!=", x, 0.0))
    return m.select(finite, m.copysign(result, x), x)
