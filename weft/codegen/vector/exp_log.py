"""exp, logarithms and their relatives as branch-free polynomials that LLVM's loop vectoriser can
widen.

exp and its relatives start from x = n ln2 + r with |r| <= ln2 / 2 (W. Cody, W. Waite, "Software
Manual for the Elementary Functions", 1980) and e**r = 1 + r + r**2 Q(r), where Q is fitted to
(e**r - 1 - r) / r**2.

Logarithms start from x = 2**k (1 + f) with sqrt(1/2) <= 1 + f < sqrt(2); with s = f / (2 + f),
log(1 + f) = f - f**2/2 + s (f**2/2 + R(s**2)) (FreeBSD msun, e_log.c and k_log.h). log and log1p at
f32 start mantissas at 2/3 and have a polynomial in f.

Q and R are minimax polynomials, fitted by Remez exchange in 50 digits and rounded to the dtype."""

from __future__ import annotations

import math

from llvmlite import ir

from weft.codegen.llvm.emitter import F64
from weft.codegen.llvm.target import multiplies_and_adds
from weft.codegen.vector import avx512
from weft.codegen.vector.float_builder import FloatBuilder
from weft.ir.dataclass import dataclass

LOG2_E = 1.4426950408889634
LN_2 = 0.6931471805599453


@dataclass(frozen=True)
class _ExpTable:
    """Constants of one dtype; ``q`` constant term first."""

    ln2_high: float  # so few bits that n * ln2_high is exact
    ln2_low: float
    q: tuple[float, ...]
    exp_q: tuple[float, ...]  # as q, shorter where a relative error of 2**-28 will do
    lowest: float  # exp of less is 0
    highest: float  # exp of more is inf, and exp(highest) / 4 is finite
    minus_one: float  # expm1 of less is -1


_Q_F64 = (
    *(0.5, 0.16666666666666677, 0.041666666666666706, 0.008333333333320654),
    *(0.001388888888886503, 0.00019841269888893194, 2.480158736413894e-05),
    *(2.7557241163756337e-06, 2.7557239695328035e-07, 2.5110178998496992e-08),
    2.0925389230345055e-09,
)
_EXP_TABLES = {
    "f32": _ExpTable(
        ln2_high=0.693145751953125,
        ln2_low=1.428606765330187e-06,
        q=(0.5, 0.166666672, 0.0416663438, 0.00833327044, 0.00139420514, 0.000199157264),
        exp_q=(0.49999993, 0.1666652, 0.041668389, 0.0083687166, 0.0013814605),
        lowest=-104.0,
        highest=89.7,
        minus_one=-20.0,
    ),
    "f64": _ExpTable(
        ln2_high=0.6931471803691238,
        ln2_low=1.9082149292705877e-10,
        q=_Q_F64,
        exp_q=_Q_F64,
        lowest=-746.0,
        highest=710.8,
        minus_one=-40.0,
    ),
}


def _reduce(
    m: FloatBuilder, x: ir.Value, correction: ir.Value | None = None
) -> tuple[ir.Value, ir.Value, ir.Value]:
    """(n, n as integer, r), x + correction = n ln2 + r, for x clamped to the table's range."""
    table = _EXP_TABLES[m.dtype]
    n, integer = m.nearest_integer(x, LOG2_E)
    r = m.fma(n, -table.ln2_low, m.fma(n, -table.ln2_high, x))
    if correction is not None:
        r = m.add(r, correction)
    return n, integer, r


def _rest_of_expm1(m: FloatBuilder, r: ir.Value) -> ir.Value:
    return m.mul(m.mul(r, r), m.horner(r, _EXP_TABLES[m.dtype].q))


def expm1_reduced(m: FloatBuilder, r: ir.Value, low: ir.Value | None = None) -> ir.Value:
    """e**(r + low) - 1 for |r| <= ln2 / 2 and a far smaller low."""
    q = m.horner(r, _EXP_TABLES[m.dtype].q)
    square = m.mul(r, r)
    result = m.fma(square, q, r)
    if low is None:
        return result
    return m.add(m.fma(square, q, m.fma(low, result, low)), r)


def _exp_reduced(m: FloatBuilder, r: ir.Value, low: ir.Value | None = None) -> ir.Value:
    """e**(r + low) for |r| <= ln2 / 2 and a far smaller low"""
    q = _EXP_TABLES[m.dtype].exp_q
    if low is None:
        return m.horner(r, (1.0, 1.0, *q))
    return m.add(1.0, m.add(r, m.fma(m.mul(r, r), m.horner(r, q), low)))


def _exp_in_two_roundings(m: FloatBuilder, x: ir.Value) -> ir.Value:
    """e**x where products round before they are added: what r loses is kept, and the large terms
    are added last."""
    table = _EXP_TABLES[m.dtype]
    n, integer = m.nearest_integer(x, LOG2_E)
    high, less = m.sub(x, m.mul(n, table.ln2_high)), m.mul(n, table.ln2_low)
    r = m.sub(high, less)
    return m.scale_by_power_of_two(_exp_reduced(m, r, m.sub(m.sub(high, r), less)), integer)


def decay_parts(
    m: FloatBuilder, x: ir.Value, rest: ir.Value | None = None
) -> tuple[ir.Value, ir.Value]:
    """(s, p): e**-(x + rest) = s (1 + p), s a power of 2 and 1 where x is near 0; x >= 0 moderate,
    rest far smaller than x."""
    table = _EXP_TABLES[m.dtype]
    n, integer = m.nearest_integer(x, -LOG2_E)
    if m.dtype == "f32":  # what ln2 lacks, times n, is lost beside 1
        r = m.fma(n, -LN_2, m.neg(x))
    else:
        r = m.fma(n, -table.ln2_low, m.fma(n, -table.ln2_high, m.neg(x)))
    square, q = m.mul(r, r), m.horner(r, table.exp_q)
    p = m.fma(square, q, r) if rest is None else m.add(m.fma(square, q, m.neg(rest)), r)
    return m.power_of_two(integer), p


def _clamp(m: FloatBuilder, x: ir.Value, lowest: float) -> ir.Value:
    return m.at_least(m.at_most(x, _EXP_TABLES[m.dtype].highest), lowest)


def exp(m: FloatBuilder, x: ir.Value, correction: ir.Value | None = None) -> ir.Value:
    """e**x, or e**(x + correction) for a small correction."""
    if m.dtype == "f32" and correction is None and avx512.available():
        return avx512.exp(m, x)
    x = _clamp(m, x, _EXP_TABLES[m.dtype].lowest)
    if correction is None and not multiplies_and_adds():
        return _exp_in_two_roundings(m, x)
    _, n, r = _reduce(m, x, correction)
    return m.scale_by_power_of_two(_exp_reduced(m, r), n)


# 2**r on |r| <= 1/2, minimax, relative error 2**-29.
_EXP2 = (
    *(1.000000000554172, 0.6931472057361125, 0.24022646890577753, 0.055503287772197346),
    *(0.009618488966838246, 0.0013399931366474356, 0.00015345809408112463),
)


def exp2_wide(wide: FloatBuilder, x: ir.Value) -> ir.Value:
    """2**x in f64 for |x| < 1000, relative error 2**-29: for f32 results."""
    n, integer = wide.nearest_integer(x, 1.0)
    return wide.mul(wide.horner(wide.sub(x, n), _EXP2), wide.power_of_two(integer))


def exp2(m: FloatBuilder, x: ir.Value) -> ir.Value:
    """2**x; exact for integers x."""
    limit = float(m.bias + m.mantissa_bits + 2)
    x = m.at_least(m.at_most(x, limit), -limit)
    n, integer = m.nearest_integer(x, 1.0)
    p = expm1_reduced(m, m.mul(m.sub(x, n), LN_2))
    return m.scale_by_power_of_two(m.add(p, 1.0), integer)


def expm1(m: FloatBuilder, x: ir.Value) -> ir.Value:
    """e**x - 1; its sign is that of x, -0 included."""
    n, integer, r = _reduce(m, _clamp(m, x, _EXP_TABLES[m.dtype].minus_one))
    # e**r - 1 as a sum, (2**n (1 + p) - 1) / 4 from it: finite up to where expm1 overflows.
    p, low = m.fast_two_sum(r, _rest_of_expm1(m, r))
    scale = m.power_of_two(m.builder.sub(integer, m.int_const(2)))
    total = m.fma(scale, p, m.sub(scale, 0.25))
    result = m.mul(m.fma(scale, low, total), 4.0)
    # Near 0 the result is p itself, which scaling would cost its last bits if it is denormal.
    unscaled = m.compare("==", n, 0.0)
    return m.copysign(m.select(unscaled, p, result), x)


def sigmoid(m: FloatBuilder, x: ir.Value) -> ir.Value:
    """1 / (1 + d) or d / (1 + d) with d = e**-|x|: nothing overflows, denormals are kept.

    d and 1 + d are kept as sums, 1 / (1 + d) is improved by its remainder.
    """
    negative = m.compare("<", x, 0.0)
    d = _exp_of_negative(m, m.neg(m.abs(x)))
    total = m.add(1.0, d)
    lost = m.add(m.sub(1.0, total), d)
    top = m.select(negative, d, 1.0)
    q = m.div(top, total)
    y = m.select(negative, m.sub(1.0, q), q)
    rest = m.exact_fma(m.neg(q), total, top)
    return m.fma(m.fma(m.neg(q), lost, rest), y, q)


def _exp_of_negative(m: FloatBuilder, x: ir.Value) -> ir.Value:
    """e**x for x <= 0."""
    if m.dtype == "f32" and avx512.available():
        return avx512.exp(m, x, negative=True)
    x = m.at_least(x, _EXP_TABLES[m.dtype].lowest)
    if not multiplies_and_adds():
        return _exp_in_two_roundings(m, x)
    _, n, r = _reduce(m, x)
    return m.scale_by_power_of_two(_exp_reduced(m, r), n)


def half_exp(m: FloatBuilder, x: ir.Value) -> ir.Value:
    """e**x / 2 for x >= 0, finite where sinh(x) is."""
    _, n, r = _reduce(m, _clamp(m, x, 0.0))
    return m.scale_by_power_of_two(_exp_reduced(m, r), m.builder.sub(n, m.int_const(1)))


@dataclass(frozen=True)
class _LogTable:
    """Constants of one dtype; high parts have so few bits that their products here are exact."""

    r: tuple[float, ...]
    ln2: tuple[float, float]
    log2_e: tuple[float, float]
    log10_e: tuple[float, float]
    log10_2: tuple[float, float]
    split_bits: int  # low bits cleared to split the logarithm
    smallest_normal: float


_LOG_TABLES = {
    "f32": _LogTable(
        r=(0.666666627, 0.400003552, 0.285358906, 0.236105174),
        ln2=(0.693145751953125, 1.428606765330187e-06),
        log2_e=(1.4423828125, 0.00031222839606925845),
        log10_e=(0.4342041015625, 9.038033749675378e-05),
        log10_2=(0.301025390625, 4.605039066518657e-06),
        split_bits=12,
        smallest_normal=2.0**-126,
    ),
    "f64": _LogTable(
        r=(
            *(0.6666666666666666, 0.4000000000000717, 0.28571428568790425, 0.22222222691210394),
            *(0.18181772119405978, 0.15387245425576757, 0.13246640229361295),
            0.13282858595861335,
        ),
        ln2=(0.6931471803691238, 1.9082149292705877e-10),
        log2_e=(1.4426946640014648, 3.768874985636099e-07),
        log10_e=(0.4342944622039795, 1.9699272335463627e-08),
        log10_2=(0.3010299955494702, 1.1451100898021838e-10),
        split_bits=32,
        smallest_normal=2.0**-1022,
    ),
}


def split_exponent(
    m: FloatBuilder, x: ir.Value, lowest: float = math.sqrt(0.5)
) -> tuple[ir.Value, ir.Value]:
    """(integer k, 1 + f) of a positive normal x = 2**k (1 + f), lowest <= 1 + f < 2 lowest."""
    offset = m.builder.sub(m.bits(x), m.bits(m.const(lowest)))
    k = m.builder.ashr(offset, m.int_const(m.mantissa_bits))
    shifted = m.builder.shl(k, m.int_const(m.mantissa_bits))
    return k, m.from_bits(m.builder.sub(m.bits(x), shifted))


def decompose(
    m: FloatBuilder, x: ir.Value, lowest: float = math.sqrt(0.5)
) -> tuple[ir.Value, ir.Value]:
    """(float k, f) of a positive finite x, denormals included."""
    denormal = m.compare("<", x, _LOG_TABLES[m.dtype].smallest_normal)
    lift = m.mantissa_bits + 2
    k, mantissa = split_exponent(m, m.select(denormal, m.mul(x, 2.0**lift), x), lowest)
    k_float = m.builder.sitofp(k, m.kind)
    return m.select(denormal, m.sub(k_float, float(lift)), k_float), m.sub(mantissa, 1.0)


def _series(m: FloatBuilder, f: ir.Value) -> tuple[ir.Value, ir.Value]:
    """(f**2 / 2, s (f**2 / 2 + R)): log(1 + f) = f - first + second."""
    half_square = m.mul(m.mul(f, 0.5), f)
    s = m.div(f, m.add(f, 2.0))
    z = m.mul(s, s)
    r = m.mul(z, m.horner(z, _LOG_TABLES[m.dtype].r))
    return half_square, m.mul(s, m.add(half_square, r))


def _special(m: FloatBuilder, x: ir.Value, zero: float, result: ir.Value) -> ir.Value:
    """Answers outside (zero, inf): -inf at ``zero``, NaN below and for NaN, inf at inf."""
    result = m.select(m.compare("<", x, math.inf), result, x)
    result = m.select(m.compare("==", x, zero), -math.inf, result)
    return m.select(m.compare("<", x, zero), math.nan, result)


# f32: (log(1 + f) - f + f**2 / 2) / f**3 on |f| <= 1/3, minimax by Remez exchange in 45 digits,
# 2**-27 of the logarithm: a division costs more than the longer polynomial.
_LOG_F32 = (
    *(0.33333218, -0.24999799, 0.2001033, -0.16680421, 0.14006905, -0.121851064),
    *(0.13979973, -0.12888221),
)


def log(m: FloatBuilder, x: ir.Value) -> ir.Value:
    """Natural logarithm."""
    if m.dtype == "f32" and avx512.available():
        return avx512.log(m, x)
    k, f = decompose(m, x, _lowest(m))
    return _special(m, x, 0.0, _log_of_parts(m, k, f))


def _lowest(m: FloatBuilder) -> float:
    """Where mantissas start: the least for the polynomial at f32, for the division at f64."""
    return 2.0 / 3.0 if m.dtype == "f32" else math.sqrt(0.5)


def _log_of_parts(
    m: FloatBuilder, k: ir.Value, f: ir.Value, correction: ir.Value | None = None
) -> ir.Value:
    """k ln2 + log(1 + f) + correction"""
    high, low = _LOG_TABLES[m.dtype].ln2
    if m.dtype == "f32" and not multiplies_and_adds():
        return _log_in_two_roundings(m, k, f, correction)
    if m.dtype == "f32":
        half_square = None
        rest = m.mul(m.mul(f, f), m.fma(f, m.horner(f, _LOG_F32), -0.5))
    else:
        half_square, rest = _series(m, f)
    # At f32 a single ln2 is off by 2**-28 of the result.
    tail = rest if m.dtype == "f32" else m.fma(k, low, rest)
    tail = tail if correction is None else m.add(tail, correction)
    tail = tail if half_square is None else m.sub(tail, half_square)
    return m.fma(k, math.log(2.0) if m.dtype == "f32" else high, m.add(tail, f))


def _log_in_two_roundings(
    m: FloatBuilder, k: ir.Value, f: ir.Value, correction: ir.Value | None
) -> ir.Value:
    """As `_log_of_parts` where products round before they are added: k times the high part of ln2
    is exact, and what its sum with f loses is kept."""
    high, low = _LOG_TABLES[m.dtype].ln2
    square = m.mul(f, f)
    rest = m.add(m.mul(m.mul(square, f), m.horner(f, _LOG_F32)), m.mul(k, low))
    rest = rest if correction is None else m.add(rest, correction)
    half = m.mul(square, 0.5)
    total, lost = m.two_sum(m.mul(k, high), f)
    return m.add(total, m.add(m.sub(rest, half), lost))


def log1p(m: FloatBuilder, x: ir.Value, rest_of_x: ir.Value | None = None) -> ir.Value:
    """log(1 + x), accurate for small x; or, in f64, log(1 + x + rest_of_x)."""
    if m.dtype == "f32":
        result = _log_of_parts(m, *_parts_f32(m, x))
    else:
        result = _log_of_parts(m, *_parts_f64(m, x, rest_of_x))
    result = _special(m, x, -1.0, result)
    return m.select(m.compare("==", x, 0.0), x, result)


def _parts_f32(m: FloatBuilder, x: ir.Value) -> tuple[ir.Value, ir.Value, ir.Value]:
    """(k, f, correction) of 1 + x: f = x 2**-k + (2**-k - 1) rounds once, and that is corrected."""
    k, _ = split_exponent(m, m.add(x, 1.0), _lowest(m))
    # 2**-k may be denormal: by a quarter of 2**(2 - k).
    power = m.mul(m.power_of_two(m.builder.sub(m.int_const(2), k)), 0.25)
    less = m.sub(power, 1.0)
    f = m.fma(x, power, less)
    lost = m.fma(x, power, m.sub(less, f))
    return m.builder.sitofp(k, m.kind), f, lost


def _parts_f64(
    m: FloatBuilder, x: ir.Value, rest_of_x: ir.Value | None
) -> tuple[ir.Value, ir.Value, ir.Value]:
    """(k, f, correction) of 1 + x, corrected for what rounding it lost (FreeBSD, s_log1p.c)."""
    u = m.add(x, 1.0)
    k, mantissa = split_exponent(m, u, _lowest(m))
    lost = m.select(m.compare(">", x, 1.0), m.sub(1.0, m.sub(u, x)), m.sub(x, m.sub(u, 1.0)))
    is_small = m.builder.icmp_signed("==", k, m.int_const(0))
    f = m.select(is_small, x, m.sub(mantissa, 1.0))
    lost = m.select(is_small, 0.0, lost)
    lost = lost if rest_of_x is None else m.add(lost, rest_of_x)
    return m.builder.sitofp(k, m.kind), f, m.div(lost, u)


# (atanh(s)/s - 1) / s**2 in powers of s**2, minimax for |s| < 0.215, error 2**-41 of atanh.
_ATANH = (
    *(0.3333333337913941, 0.1999998605596424, 0.14287090036942932, 0.11052149505189864),
    0.10223940787268836,
)


def log1p_wide(wide: FloatBuilder, x: ir.Value) -> ir.Value:
    """log(1 + x) in f64 for 0 <= x, relative error 2**-40."""
    k, mantissa = split_exponent(wide, wide.add(x, 1.0))
    is_small = wide.builder.icmp_signed("==", k, wide.int_const(0))
    f = wide.select(is_small, x, wide.sub(mantissa, 1.0))
    return wide.select(wide.compare("<", x, math.inf), _log_wide(wide, k, f), x)


def log_wide(wide: FloatBuilder, x: ir.Value) -> ir.Value:
    """log(x) in f64 for a positive, normal, finite x, absolute error 2**-40."""
    k, mantissa = split_exponent(wide, x)
    return _log_wide(wide, k, wide.sub(mantissa, 1.0))


def _log_wide(wide: FloatBuilder, k_integer: ir.Value, f: ir.Value) -> ir.Value:
    """k ln2 + 2 atanh(f / (2 + f))"""
    s = wide.div(f, wide.add(f, 2.0))
    z = wide.mul(s, s)
    twice = wide.add(s, s)
    # k fits 32 bits, and only from there is the conversion cheap without AVX-512.
    k = wide.builder.sitofp(wide.builder.trunc(k_integer, ir.IntType(32)), F64)
    series = wide.fma(wide.mul(twice, z), wide.horner(z, _ATANH), twice)
    return wide.fma(k, math.log(2.0), series)


def _split_log(m: FloatBuilder, f: ir.Value) -> tuple[ir.Value, ir.Value]:
    """log(1 + f) as a sum (high, low) where high has ``split_bits`` zero bits."""
    half_square, rest = _series(m, f)
    high = m.clear_low_bits(m.sub(f, half_square), _LOG_TABLES[m.dtype].split_bits)
    return high, m.add(m.sub(m.sub(f, high), half_square), rest)


def log2(m: FloatBuilder, x: ir.Value) -> ir.Value:
    """Logarithm to base 2, exact for powers of 2 (FreeBSD msun, e_log2.c)."""
    factor_high, factor_low = _LOG_TABLES[m.dtype].log2_e
    k, f = decompose(m, x)
    high, low = _split_log(m, f)
    value = m.mul(high, factor_high)
    rest = m.fma(m.add(low, high), factor_low, m.mul(low, factor_high))
    total = m.add(k, value)
    rest = m.add(rest, m.add(m.sub(k, total), value))
    return _special(m, x, 0.0, m.add(rest, total))


def log10(m: FloatBuilder, x: ir.Value) -> ir.Value:
    """Logarithm to base 10 (FreeBSD msun, e_log10.c)."""
    factor_high, factor_low = _LOG_TABLES[m.dtype].log10_e
    two_high, two_low = _LOG_TABLES[m.dtype].log10_2
    k, f = decompose(m, x)
    high, low = _split_log(m, f)
    value = m.mul(high, factor_high)
    rest = m.fma(m.add(low, high), factor_low, m.mul(low, factor_high))
    rest = m.fma(k, two_low, rest)
    exponent_part = m.mul(k, two_high)
    total = m.add(exponent_part, value)
    rest = m.add(rest, m.add(m.sub(exponent_part, total), value))
    return _special(m, x, 0.0, m.add(rest, total))
