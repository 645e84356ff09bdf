"""Logarithms as branch-free polynomials that LLVM's loop vectoriser can widen.

x = 2**k (1 + f) with sqrt(1/2) <= 1 + f < sqrt(2); with s = f / (2 + f),
log(1 + f) = f - f**2/2 + s (f**2/2 + R(s**2)) (FreeBSD msun, e_log.c and k_log.h).  R is the
minimax polynomial, fitted by Remez exchange in 50 digits and rounded to the dtype.  log and log1p
at f32 start mantissas at 2/3 and have a polynomial in f.
"""

from __future__ import annotations

import math

from llvmlite import ir

from weft.codegen.llvm.elements import F64
from weft.codegen.llvm.target import multiplies_and_adds
from weft.codegen.vector import avx512, tables
from weft.codegen.vector.float_builder import FloatBuilder
from weft.ir.dataclass import dataclass


@dataclass(frozen=True)
class _Table:
    """Constants of one dtype; high parts have so few bits that their products here are exact."""

    r: tuple[float, ...]
    ln2: tuple[float, float]
    log2_e: tuple[float, float]
    log10_e: tuple[float, float]
    log10_2: tuple[float, float]
    split_bits: int  # low bits cleared to split the logarithm
    smallest_normal: float


_TABLES = {
    "f32": _Table(
        r=(0.666666627, 0.400003552, 0.285358906, 0.236105174),
        ln2=(0.693145751953125, 1.428606765330187e-06),
        log2_e=(1.4423828125, 0.00031222839606925845),
        log10_e=(0.4342041015625, 9.038033749675378e-05),
        log10_2=(0.301025390625, 4.605039066518657e-06),
        split_bits=12,
        smallest_normal=2.0**-126,
    ),
    "f64": _Table(
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
    denormal = m.compare("<", x, _TABLES[m.dtype].smallest_normal)
    lift = m.mantissa_bits + 2
    k, mantissa = split_exponent(m, m.select(denormal, m.mul(x, 2.0**lift), x), lowest)
    k_float = m.builder.sitofp(k, m.kind)
    return m.select(denormal, m.sub(k_float, float(lift)), k_float), m.sub(mantissa, 1.0)


def _series(m: FloatBuilder, f: ir.Value) -> tuple[ir.Value, ir.Value]:
    """(f**2 / 2, s (f**2 / 2 + R)): log(1 + f) = f - first + second."""
    half_square = m.mul(m.mul(f, 0.5), f)
    s = m.div(f, m.add(f, 2.0))
    z = m.mul(s, s)
    r = m.mul(z, m.horner(z, _TABLES[m.dtype].r))
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
        return tables.log(m, x)
    k, f = decompose(m, x, _lowest(m))
    return _special(m, x, 0.0, _log_of_parts(m, k, f))


def _lowest(m: FloatBuilder) -> float:
    """Where mantissas start: the least for the polynomial at f32, for the division at f64."""
    return 2.0 / 3.0 if m.dtype == "f32" else math.sqrt(0.5)


def _log_of_parts(
    m: FloatBuilder, k: ir.Value, f: ir.Value, correction: ir.Value | None = None
) -> ir.Value:
    """k ln2 + log(1 + f) + correction"""
    high, low = _TABLES[m.dtype].ln2
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
    high, low = _TABLES[m.dtype].ln2
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
    high = m.clear_low_bits(m.sub(f, half_square), _TABLES[m.dtype].split_bits)
    return high, m.add(m.sub(m.sub(f, high), half_square), rest)


def log2(m: FloatBuilder, x: ir.Value) -> ir.Value:
    """Logarithm to base 2, exact for powers of 2 (FreeBSD msun, e_log2.c)."""
    factor_high, factor_low = _TABLES[m.dtype].log2_e
    k, f = decompose(m, x)
    high, low = _split_log(m, f)
    value = m.mul(high, factor_high)
    rest = m.fma(m.add(low, high), factor_low, m.mul(low, factor_high))
    total = m.add(k, value)
    rest = m.add(rest, m.add(m.sub(k, total), value))
    return _special(m, x, 0.0, m.add(rest, total))


def log10(m: FloatBuilder, x: ir.Value) -> ir.Value:
    """Logarithm to base 10 (FreeBSD msun, e_log10.c)."""
    factor_high, factor_low = _TABLES[m.dtype].log10_e
    two_high, two_low = _TABLES[m.dtype].log10_2
    k, f = decompose(m, x)
    high, low = _split_log(m, f)
    value = m.mul(high, factor_high)
    rest = m.fma(m.add(low, high), factor_low, m.mul(low, factor_high))
    rest = m.fma(k, two_low, rest)
    exponent_part = m.mul(k, two_high)
    total = m.add(exponent_part, value)
    rest = m.add(rest, m.add(m.sub(exponent_part, total), value))
    return _special(m, x, 0.0, m.add(rest, total))
