"""tanh, sinh, cosh and their inverses as branch-free code that LLVM's loop vectoriser can widen.

Near 0 odd polynomials (minimax, by Remez exchange in 60 digits) keep the relative accuracy that
formulas with e**x lose.  The inverses compute f32 in f64.
"""

from __future__ import annotations

import math

from llvmlite import ir

from weft.codegen.llvm.elements import F32, F64
from weft.codegen.vector.exp import decay_parts, half_exp
from weft.codegen.vector.float_builder import FloatBuilder
from weft.codegen.vector.log import log1p, log1p_wide
from weft.ir.dataclass import dataclass


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
