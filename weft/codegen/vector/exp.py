"""exp and its relatives as branch-free polynomials that LLVM's loop vectoriser can widen.

All start from x = n ln2 + r with |r| <= ln2 / 2 (W. Cody, W. Waite, "Software Manual for the
Elementary Functions", 1980) and e**r = 1 + r + r**2 Q(r).  Q is the minimax polynomial of
(e**r - 1 - r) / r**2, fitted by Remez exchange in 50 digits and rounded to the dtype.
"""

from __future__ import annotations

from llvmlite import ir

from weft.codegen.llvm.target import multiplies_and_adds
from weft.codegen.vector import avx512, tables
from weft.codegen.vector.float_builder import FloatBuilder
from weft.ir.dataclass import dataclass

LOG2_E = 1.4426950408889634
LN_2 = 0.6931471805599453


@dataclass(frozen=True)
class _Table:
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
_TABLES = {
    "f32": _Table(
        ln2_high=0.693145751953125,
        ln2_low=1.428606765330187e-06,
        q=(0.5, 0.166666672, 0.0416663438, 0.00833327044, 0.00139420514, 0.000199157264),
        exp_q=(0.49999993, 0.1666652, 0.041668389, 0.0083687166, 0.0013814605),
        lowest=-104.0,
        highest=89.7,
        minus_one=-20.0,
    ),
    "f64": _Table(
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
    table = _TABLES[m.dtype]
    n, integer = m.nearest_integer(x, LOG2_E)
    r = m.fma(n, -table.ln2_low, m.fma(n, -table.ln2_high, x))
    if correction is not None:
        r = m.add(r, correction)
    return n, integer, r


def _rest_of_expm1(m: FloatBuilder, r: ir.Value) -> ir.Value:
    return m.mul(m.mul(r, r), m.horner(r, _TABLES[m.dtype].q))


def expm1_reduced(m: FloatBuilder, r: ir.Value, low: ir.Value | None = None) -> ir.Value:
    """e**(r + low) - 1 for |r| <= ln2 / 2 and a far smaller low."""
    q = m.horner(r, _TABLES[m.dtype].q)
    square = m.mul(r, r)
    result = m.fma(square, q, r)
    if low is None:
        return result
    return m.add(m.fma(square, q, m.fma(low, result, low)), r)


def _exp_reduced(m: FloatBuilder, r: ir.Value, low: ir.Value | None = None) -> ir.Value:
    """e**(r + low) for |r| <= ln2 / 2 and a far smaller low"""
    q = _TABLES[m.dtype].exp_q
    if low is None:
        return m.horner(r, (1.0, 1.0, *q))
    return m.add(1.0, m.add(r, m.fma(m.mul(r, r), m.horner(r, q), low)))


def _exp_in_two_roundings(m: FloatBuilder, x: ir.Value) -> ir.Value:
    """e**x where products round before they are added: what r loses is kept, and the large terms
    are added last."""
    table = _TABLES[m.dtype]
    n, integer = m.nearest_integer(x, LOG2_E)
    high, less = m.sub(x, m.mul(n, table.ln2_high)), m.mul(n, table.ln2_low)
    r = m.sub(high, less)
    return m.scale_by_power_of_two(_exp_reduced(m, r, m.sub(m.sub(high, r), less)), integer)


def decay_parts(
    m: FloatBuilder, x: ir.Value, rest: ir.Value | None = None
) -> tuple[ir.Value, ir.Value]:
    """(s, p): e**-(x + rest) = s (1 + p), s a power of 2 and 1 where x is near 0; x >= 0 moderate,
    rest far smaller than x."""
    table = _TABLES[m.dtype]
    n, integer = m.nearest_integer(x, -LOG2_E)
    if m.dtype == "f32":  # what ln2 lacks, times n, is lost beside 1
        r = m.fma(n, -LN_2, m.neg(x))
    else:
        r = m.fma(n, -table.ln2_low, m.fma(n, -table.ln2_high, m.neg(x)))
    square, q = m.mul(r, r), m.horner(r, table.exp_q)
    p = m.fma(square, q, r) if rest is None else m.add(m.fma(square, q, m.neg(rest)), r)
    return m.power_of_two(integer), p


def _clamp(m: FloatBuilder, x: ir.Value, lowest: float) -> ir.Value:
    return m.at_least(m.at_most(x, _TABLES[m.dtype].highest), lowest)


def exp(m: FloatBuilder, x: ir.Value, correction: ir.Value | None = None) -> ir.Value:
    """e**x, or e**(x + correction) for a small correction."""
    if m.dtype == "f32" and correction is None and avx512.available():
        return tables.exp(m, x)
    x = _clamp(m, x, _TABLES[m.dtype].lowest)
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
    n, integer, r = _reduce(m, _clamp(m, x, _TABLES[m.dtype].minus_one))
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
        return tables.exp(m, x, negative=True)
    x = m.at_least(x, _TABLES[m.dtype].lowest)
    if not multiplies_and_adds():
        return _exp_in_two_roundings(m, x)
    _, n, r = _reduce(m, x)
    return m.scale_by_power_of_two(_exp_reduced(m, r), n)


def half_exp(m: FloatBuilder, x: ir.Value) -> ir.Value:
    """e**x / 2 for x >= 0, finite where sinh(x) is."""
    _, n, r = _reduce(m, _clamp(m, x, 0.0))
    return m.scale_by_power_of_two(_exp_reduced(m, r), m.builder.sub(n, m.int_const(1)))
