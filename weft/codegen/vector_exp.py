"""exp and its relatives as branch-free polynomials that LLVM's loop vectoriser can widen.

All start from x = n ln2 + r with |r| <= ln2 / 2 (W. Cody, W. Waite, "Software Manual for the
Elementary Functions", 1980) and e**r = 1 + r + r**2 Q(r).  Q is the minimax polynomial of
(e**r - 1 - r) / r**2, fitted by Remez exchange in 50 digits and rounded to the dtype.
"""

from __future__ import annotations

from dataclasses import dataclass

from llvmlite import ir

from weft.codegen.float_builder import FloatBuilder

LOG2_E = 1.4426950408889634
LN_2 = 0.6931471805599453


@dataclass(frozen=True)
class _Table:
    """Constants of one dtype; ``q`` constant term first."""

    ln2_high: float  # so few bits that n * ln2_high is exact
    ln2_low: float
    q: tuple[float, ...]
    lowest: float  # exp of less is 0
    highest: float  # exp of more is inf, and exp(highest) / 4 is finite
    minus_one: float  # expm1 of less is -1
    tanh_one: float  # tanh of more is 1


_TABLES = {
    "f32": _Table(
        ln2_high=0.693145751953125,
        ln2_low=1.428606765330187e-06,
        q=(0.5, 0.166666672, 0.0416663438, 0.00833327044, 0.00139420514, 0.000199157264),
        lowest=-104.0,
        highest=89.7,
        minus_one=-20.0,
        tanh_one=10.0,
    ),
    "f64": _Table(
        ln2_high=0.6931471803691238,
        ln2_low=1.9082149292705877e-10,
        q=(
            *(0.5, 0.16666666666666677, 0.041666666666666706, 0.008333333333320654),
            *(0.001388888888886503, 0.00019841269888893194, 2.480158736413894e-05),
            *(2.7557241163756337e-06, 2.7557239695328035e-07, 2.5110178998496992e-08),
            2.0925389230345055e-09,
        ),
        lowest=-746.0,
        highest=710.8,
        minus_one=-40.0,
        tanh_one=22.0,
    ),
}


def _reduce(
    m: FloatBuilder, x: ir.Value, correction: ir.Value | None = None
) -> tuple[ir.Value, ir.Value]:
    """(e**r - 1, integer n) with x + correction = n ln2 + r, for x clamped to the table's range."""
    table = _TABLES[m.dtype]
    n, integer = m.nearest_integer(x, LOG2_E)
    r = m.fma(n, -table.ln2_low, m.fma(n, -table.ln2_high, x))
    if correction is not None:
        r = m.add(r, correction)
    return _expm1_reduced(m, r), integer


def _expm1_reduced(m: FloatBuilder, r: ir.Value) -> ir.Value:
    return m.fma(m.mul(r, r), m.horner(r, _TABLES[m.dtype].q), r)


def _clamp(m: FloatBuilder, x: ir.Value, lowest: float) -> ir.Value:
    return m.at_least(m.at_most(x, _TABLES[m.dtype].highest), lowest)


def exp(m: FloatBuilder, x: ir.Value, correction: ir.Value | None = None) -> ir.Value:
    """e**x, or e**(x + correction) for a small correction."""
    p, n = _reduce(m, _clamp(m, x, _TABLES[m.dtype].lowest), correction)
    return m.scale_by_power_of_two(m.add(p, 1.0), n)


def exp2(m: FloatBuilder, x: ir.Value) -> ir.Value:
    """2**x; exact for integers x."""
    limit = float(m.bias + m.mantissa_bits + 2)
    x = m.at_least(m.at_most(x, limit), -limit)
    n, integer = m.nearest_integer(x, 1.0)
    p = _expm1_reduced(m, m.mul(m.sub(x, n), LN_2))
    return m.scale_by_power_of_two(m.add(p, 1.0), integer)


def _scaled_expm1(m: FloatBuilder, p: ir.Value, n: ir.Value, shift: int) -> ir.Value:
    """(2**n (1 + p) - 1) / 2**shift: with shift 2, finite up to where sinh overflows."""
    scale = m.power_of_two(m.builder.sub(n, m.int_const(shift)))
    return m.fma(scale, p, m.sub(scale, 2.0**-shift))


def expm1(m: FloatBuilder, x: ir.Value) -> ir.Value:
    """e**x - 1; its sign is that of x, -0 included."""
    p, n = _reduce(m, _clamp(m, x, _TABLES[m.dtype].minus_one))
    result = m.mul(_scaled_expm1(m, p, n, shift=2), 4.0)
    # Near 0 the result is p itself, which scaling would cost its last bits if it is denormal.
    unscaled = m.builder.icmp_signed("==", n, m.int_const(0))
    return m.copysign(m.select(unscaled, p, result), x)


def sigmoid(m: FloatBuilder, x: ir.Value) -> ir.Value:
    """1 / (1 + e**-x), from e**-|x| so that nothing overflows and denormal results are kept."""
    decay = exp(m, m.neg(m.abs(x)))
    numerator = m.select(m.compare("<", x, 0.0), decay, 1.0)
    return m.div(numerator, m.add(decay, 1.0))


def tanh(m: FloatBuilder, x: ir.Value) -> ir.Value:
    """t / (t + 2) with t = e**(2|x|) - 1."""
    magnitude = m.at_most(m.abs(x), _TABLES[m.dtype].tanh_one)
    t = _scaled_expm1(m, *_reduce(m, m.add(magnitude, magnitude)), shift=0)
    return m.copysign(m.div(t, m.add(t, 2.0)), x)


def sinh(m: FloatBuilder, x: ir.Value) -> ir.Value:
    """(t + t / (t + 1)) / 2 with t = e**|x| - 1 (FreeBSD msun, e_sinh.c)."""
    magnitude = m.abs(x)
    reduced = _reduce(m, _clamp(m, magnitude, 0.0))
    half = m.mul(_scaled_expm1(m, *reduced, shift=2), 2.0)
    bounded = m.at_most(half, 2.0**m.mantissa_bits)  # lest inf / inf
    result = m.add(half, m.div(bounded, m.fma(bounded, 2.0, 1.0)))
    # sinh(x) = x + x**3/6, and scaling would cost a denormal its last bits.
    tiny = m.compare("<", magnitude, 2.0 ** -(m.mantissa_bits // 2 + 1))
    return m.copysign(m.select(tiny, magnitude, result), x)


def cosh(m: FloatBuilder, x: ir.Value) -> ir.Value:
    """h + 1 / (4 h) with h = e**|x| / 2."""
    p, n = _reduce(m, _clamp(m, m.abs(x), 0.0))
    half = m.scale_by_power_of_two(m.add(p, 1.0), m.builder.sub(n, m.int_const(1)))
    return m.add(half, m.div(0.25, half))
