"""Powers and hyperbolic functions, made of exp and log: power, hypot, cbrt; tanh, sinh, cosh and
their inverses, as branch-free code that LLVM's loop vectoriser can widen.

Near 0 the hyperbolic functions and their inverses have odd polynomials (minimax, by Remez exchange
in 60 digits), which keep the relative accuracy that formulas with e**x lose. The inverses compute
f32 in f64."""

from __future__ import annotations

import math

from llvmlite import ir

from weft.codegen.llvm.emitter import F32, F64
from weft.codegen.vector.exp_log import (
    decay_parts,
    decompose,
    exp2_wide,
    expm1_reduced,
    half_exp,
    log1p,
    log1p_wide,
    split_exponent,
)
from weft.codegen.vector.float_builder import FloatBuilder
from weft.ir.dataclass import dataclass

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


@dataclass(frozen=True)
class _Table:
    """(f(x)/x - 1) / x**2 in powers of x**2: sinh to 1, atanh to 0.215."""

    tanh_one: float  # tanh of more is 1
    sinh: tuple[float, ...]
    atanh: tuple[float, ...]  # by f64 arithmetic at both dtypes


_TABLES = {
    "f32": _Table(
        tanh_one=10.0,
        sinh=(0.16666667, 0.0083333505, 0.00019836065, 2.8174456e-06),
        atanh=(
            *(0.3333333337913941, 0.1999998605596424, 0.14287090036942932),
            *(0.11052149505189864, 0.10223940787268836),
        ),
    ),
    "f64": _Table(
        tanh_one=22.0,
        sinh=(
            *(0.16666666666666669, 0.008333333333333139, 0.00019841269841437762),
            *(2.7557319155309825e-06, 2.505212340300448e-08, 1.6057239983788088e-10),
            7.759323363877279e-13,
        ),
        atanh=(
            *(0.33333333333333337, 0.19999999999998713, 0.1428571428609713),
            *(0.11111111055338121, 0.09090913680958655, 0.07692080062256872),
            *(0.06673592983408665, 0.05756385904548747, 0.06503635663424308),
        ),
    ),
}
_LN2 = (0.6931471803691238, 1.9082149292705877e-10)  # the first so short that products are exact


def tanh(m: FloatBuilder, x: ir.Value) -> ir.Value:
    """(1 - d) / (1 + d) with d = e**(-2|x|) = s (1 + p): the sums round once each."""
    magnitude = m.at_most(m.abs(x), _TABLES[m.dtype].tanh_one)
    s, p = decay_parts(m, m.add(magnitude, magnitude))
    top, bottom = m.fma(m.neg(s), p, m.sub(1.0, s)), m.fma(s, p, m.add(s, 1.0))
    return m.copysign(m.div(top, bottom), x)


def _odd(m: FloatBuilder, x: ir.Value, coefficients: tuple[float, ...]) -> ir.Value:
    z = m.mul(x, x)
    return m.fma(m.mul(z, x), m.horner(z, coefficients), x)


def sinh(m: FloatBuilder, x: ir.Value) -> ir.Value:
    """h - 1 / (4 h) with h = e**|x| / 2; below 1 a polynomial."""
    magnitude = m.abs(x)
    half = half_exp(m, magnitude)
    large = m.sub(half, m.div(0.25, half))
    small = _odd(m, magnitude, _TABLES[m.dtype].sinh)
    return m.copysign(m.select(m.compare("<", magnitude, 1.0), small, large), x)


def cosh(m: FloatBuilder, x: ir.Value) -> ir.Value:
    """h + 1 / (4 h) with h = e**|x| / 2."""
    half = half_exp(m, m.abs(x))
    return m.add(half, m.div(0.25, half))


_BIG = 2.0**60  # asinh and acosh of more are log(2 x)


def asinh(m: FloatBuilder, x: ir.Value) -> ir.Value:
    """log1p(|x| + x**2 / (1 + sqrt(1 + x**2))), or log(|x|) + log(2) (FreeBSD msun, s_asinh.c)."""
    wide = FloatBuilder(m.builder, "f64")
    magnitude = _widen(m, m.abs(x))
    square = wide.mul(magnitude, magnitude)
    root = wide.call("sqrt", wide.add(square, 1.0))
    excess = wide.div(square, wide.add(root, 1.0))
    return m.copysign(_log_of_sum(m, wide, magnitude, magnitude, excess), x)


def acosh(m: FloatBuilder, x: ir.Value) -> ir.Value:
    """log1p(t + sqrt(t**2 + 2 t)) with t = x - 1, or log(x) + log(2) (FreeBSD msun, e_acosh.c)."""
    wide = FloatBuilder(m.builder, "f64")
    wide_x = _widen(m, x)
    t = wide.sub(wide_x, 1.0)
    root = wide.call("sqrt", wide.fma(t, t, wide.add(t, t)))
    result = _log_of_sum(m, wide, wide_x, root, t)
    return m.select(m.compare("<", x, 1.0), math.nan, result)


def _log_of_sum(
    m: FloatBuilder, wide: FloatBuilder, x: ir.Value, larger: ir.Value, smaller: ir.Value
) -> ir.Value:
    """log1p(larger + smaller), or log(x) + log(2) for a big x; rounded to m's dtype."""
    big = wide.compare(">", x, _BIG)
    if m.dtype == "f32":
        total = wide.select(wide.compare("<", x, math.inf), wide.add(larger, smaller), x)
        return m.builder.fptrunc(log1p_wide(wide, total), F32)
    total, low = wide.two_sum(larger, smaller)
    total, low = wide.select(big, x, total), wide.select(big, 0.0, low)
    shift = wide.select(big, 1.0, 0.0)
    return wide.fma(shift, math.log(2.0), log1p(wide, total, low))


def atanh(m: FloatBuilder, x: ir.Value) -> ir.Value:
    """k ln2 / 2 + atanh(s): with 2**k near (1 + |x|) / (1 - |x|), the rest of that quotient.

    s = (a + b |x|) / (b + a |x|), a = 2**-k - 1, b = 2**-k + 1; so s = |x| where k is 0.
    """
    wide = FloatBuilder(m.builder, "f64")
    magnitude = _widen(m, m.abs(x))
    difference = wide.builder.sub(
        wide.bits(wide.add(magnitude, 1.0)), wide.bits(wide.sub(1.0, magnitude))
    )
    rounded = wide.builder.add(difference, wide.int_const(1 << 51))
    k = wide.builder.ashr(rounded, wide.int_const(52))
    inside = wide.compare("<", magnitude, 1.0)
    k = wide.builder.select(inside, k, wide.int_const(0))
    power = wide.power_of_two(wide.builder.neg(k))
    a, b = wide.sub(power, 1.0), wide.add(power, 1.0)
    top, bottom = wide.fma(b, magnitude, a), wide.fma(a, magnitude, b)
    if m.dtype == "f64":  # b is not exact for large k, but 1 - |x| is
        scaled, rest = wide.mul(wide.add(magnitude, 1.0), power), wide.sub(1.0, magnitude)
        large = wide.builder.icmp_signed(">", k, wide.int_const(4))
        top = wide.select(large, wide.sub(scaled, rest), top)
        bottom = wide.select(large, wide.add(scaled, rest), bottom)
    s = wide.div(top, bottom)
    k_float = wide.builder.sitofp(wide.builder.trunc(k, ir.IntType(32)), F64)
    z = wide.mul(s, s)
    cubic = wide.mul(wide.mul(s, z), wide.horner(z, _TABLES[m.dtype].atanh))
    high, low = (part / 2 for part in _LN2)
    total, error = wide.two_sum(wide.mul(k_float, high), s)
    result = wide.add(total, wide.add(wide.add(error, cubic), wide.mul(k_float, low)))
    result = wide.select(wide.compare("==", magnitude, 1.0), math.inf, result)
    result = wide.select(wide.compare(">", magnitude, 1.0), math.nan, result)
    result = result if m.dtype == "f64" else m.builder.fptrunc(result, F32)
    return m.copysign(result, x)


def _widen(m: FloatBuilder, x: ir.Value) -> ir.Value:
    return x if m.dtype == "f64" else m.builder.fpext(x, F64)
