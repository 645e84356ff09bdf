"""Logarithms and f32 power as branch-free polynomials that LLVM's loop vectoriser can widen.

x = 2**k (1 + f) with sqrt(1/2) <= 1 + f < sqrt(2); with s = f / (2 + f),
log(1 + f) = f - f**2/2 + s (f**2/2 + R(s**2)) (FreeBSD msun, e_log.c and k_log.h).  R is the
minimax polynomial, fitted by Remez exchange in 50 digits and rounded to the dtype.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from llvmlite import ir

from weft.codegen.elements import F32, F64
from weft.codegen.float_builder import FloatBuilder


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


def _split_exponent(m: FloatBuilder, x: ir.Value) -> tuple[ir.Value, ir.Value]:
    """(integer k, 1 + f) of a positive normal x."""
    sqrt_half = m.bits(m.const(math.sqrt(0.5)))
    offset = m.builder.sub(m.bits(x), sqrt_half)
    k = m.builder.ashr(offset, m.int_const(m.mantissa_bits))
    shifted = m.builder.shl(k, m.int_const(m.mantissa_bits))
    return k, m.from_bits(m.builder.sub(m.bits(x), shifted))


def _decompose(m: FloatBuilder, x: ir.Value) -> tuple[ir.Value, ir.Value]:
    """(float k, f) of a positive finite x, denormals included."""
    denormal = m.compare("<", x, _TABLES[m.dtype].smallest_normal)
    lift = m.mantissa_bits + 2
    k, mantissa = _split_exponent(m, m.select(denormal, m.mul(x, 2.0**lift), x))
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


def log(m: FloatBuilder, x: ir.Value) -> ir.Value:
    """Natural logarithm."""
    high, low = _TABLES[m.dtype].ln2
    k, f = _decompose(m, x)
    half_square, rest = _series(m, f)
    tail = m.fma(k, low, rest)
    return _special(m, x, 0.0, m.fma(k, high, m.add(m.sub(tail, half_square), f)))


def log1p(m: FloatBuilder, x: ir.Value) -> ir.Value:
    """log(1 + x), accurate for small x (FreeBSD msun, s_log1p.c)."""
    high, low = _TABLES[m.dtype].ln2
    u = m.add(x, 1.0)
    k_integer, mantissa = _split_exponent(m, u)
    k = m.builder.sitofp(k_integer, m.kind)
    # What rounding 1 + x lost, relative to u.
    lost = m.select(m.compare(">", x, 1.0), m.sub(1.0, m.sub(u, x)), m.sub(x, m.sub(u, 1.0)))
    correction = m.div(lost, u)
    is_small = m.builder.icmp_signed("==", k_integer, m.int_const(0))
    f = m.select(is_small, x, m.sub(mantissa, 1.0))
    correction = m.select(is_small, 0.0, correction)
    half_square, rest = _series(m, f)
    tail = m.add(rest, m.fma(k, low, correction))
    result = m.fma(k, high, m.add(m.sub(tail, half_square), f))
    result = _special(m, x, -1.0, result)
    return m.select(m.compare("==", x, 0.0), x, result)


def _split_log(m: FloatBuilder, f: ir.Value) -> tuple[ir.Value, ir.Value]:
    """log(1 + f) as a sum (high, low) where high has ``split_bits`` zero bits."""
    half_square, rest = _series(m, f)
    high = m.clear_low_bits(m.sub(f, half_square), _TABLES[m.dtype].split_bits)
    return high, m.add(m.sub(m.sub(f, high), half_square), rest)


def log2(m: FloatBuilder, x: ir.Value) -> ir.Value:
    """Logarithm to base 2, exact for powers of 2 (FreeBSD msun, e_log2.c)."""
    factor_high, factor_low = _TABLES[m.dtype].log2_e
    k, f = _decompose(m, x)
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
    k, f = _decompose(m, x)
    high, low = _split_log(m, f)
    value = m.mul(high, factor_high)
    rest = m.fma(m.add(low, high), factor_low, m.mul(low, factor_high))
    rest = m.fma(k, two_low, rest)
    exponent_part = m.mul(k, two_high)
    total = m.add(exponent_part, value)
    rest = m.add(rest, m.add(m.sub(exponent_part, total), value))
    return _special(m, x, 0.0, m.add(rest, total))


# log2((1 + s) / (1 - s)) / s in powers of s**2, and 2**r on |r| <= 1/2: minimax, good to 2**-45,
# 2**-29.
_LOG2_S = (
    *(2.885390081777845, 0.9617966941230254, 0.5770779393116531, 0.41220958251428086),
    *(0.31989135288017007, 0.2831156118876911),
)
_EXP2 = (
    *(1.000000000554172, 0.6931472057361125, 0.24022646890577753, 0.055503287772197346),
    *(0.009618488966838246, 0.0013399931366474356, 0.00015345809408112463),
)


def pow_f32(m: FloatBuilder, x: ir.Value, y: ir.Value) -> ir.Value:
    """x**y for f32, by 2**(y log2|x|) in f64; special cases of C99 F.9.4.4, as NumPy."""
    wide = FloatBuilder(m.builder, "f64")
    magnitude = m.abs(x)
    wide_x = m.builder.fpext(magnitude, F64)
    log_of_x = _log2_wide(wide, wide_x)
    log_of_x = wide.select(m.compare("<", magnitude, math.inf), log_of_x, wide_x)  # inf, NaN
    log_of_x = wide.select(m.compare("==", x, 0.0), -math.inf, log_of_x)
    exponent = wide.mul(log_of_x, m.builder.fpext(y, F64))
    exponent = wide.at_least(wide.at_most(exponent, 200.0), -200.0)
    n, integer = wide.nearest_integer(exponent, 1.0)
    power = wide.mul(wide.horner(wide.sub(exponent, n), _EXP2), wide.power_of_two(integer))
    result = m.builder.fptrunc(power, F32)

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


def _log2_wide(wide: FloatBuilder, x: ir.Value) -> ir.Value:
    """log2 in f64 of a positive f32 number (so never denormal), relative error 2**-44."""
    k, mantissa = _split_exponent(wide, x)
    s = wide.div(wide.sub(mantissa, 1.0), wide.add(mantissa, 1.0))
    fraction = wide.mul(s, wide.horner(wide.mul(s, s), _LOG2_S))
    # k fits 32 bits, and only from there is the conversion cheap without AVX-512.
    narrow = wide.builder.trunc(k, ir.IntType(32))
    return wide.add(wide.builder.sitofp(narrow, F64), fraction)
