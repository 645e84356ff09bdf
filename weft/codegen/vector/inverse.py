"""asin, acos, atan and atan2 as branch-free code that LLVM's loop vectoriser can widen.

f32 computes in f64 and rounds once; f64 carries what divisions and square roots lose.  Polynomials
in the square of the argument are minimax, by Remez exchange in 60 digits.
"""

from __future__ import annotations

import math

from llvmlite import ir

from weft.codegen.elements import F32, F64
from weft.codegen.scalar.float_builder import FloatBuilder
from weft.ir.dataclass import dataclass


@dataclass(frozen=True)
class _Table:
    """(f(s)/s - 1) / s**2 in powers of s**2: atan on [0, tan(pi/8)], asin on [0, 1/2]."""

    atan: tuple[float, ...]
    asin: tuple[float, ...]


# By the dtype of the result; relative errors of f: 2**-40, 2**-35 and 2**-64, 2**-59.
_TABLES = {
    "f32": _Table(
        atan=(
            *(-0.33333333296223, 0.1999999437914602, -0.14285425484847006, 0.1110403395386481),
            *(-0.08997084405881194, 0.0699218693992231, -0.03793924624327417),
        ),
        asin=(
            *(0.16666667191549328, 0.07499948008437973, 0.04466020552873266),
            *(0.030109708238079364, 0.024621909381212725, 0.007457826207451831),
            0.034706976901176946,
        ),
    ),
    "f64": _Table(
        atan=(
            *(-0.33333333333333326, 0.1999999999999767, -0.14285714285388132),
            *(0.11111111088184902, -0.09090908144765956, 0.07692282763662318),
            *(-0.0666622682637525, 0.058770224296709854, -0.05218408183788276),
            *(0.04503563785683221, -0.03347476665969535, 0.015195443209799878),
        ),
        asin=(
            *(0.16666666666666763, 0.07499999999970093, 0.04464285717529044),
            *(0.03038194267509334, 0.02237221591058589, 0.017351595424879677),
            *(0.013981019343701896, 0.0113972870997626, 0.01078935131849088),
            *(0.0036720813066963595, 0.021790878583645767, -0.021117021228900978),
            0.032702336949748716,
        ),
    ),
}
_TAN_PI_8 = math.sqrt(2) - 1
_PI_QUARTER = (0.7853981633974483, 3.061616997868383e-17)


def atan(m: FloatBuilder, x: ir.Value) -> ir.Value:
    """Inverse tangent: k pi/4 + atan(u), u = x, (x - 1) / (x + 1) or -1 / x for |x|."""
    wide = FloatBuilder(m.builder, "f64")
    magnitude = m.abs(x)
    # More is pi/2 too, and infinity would spoil the quotient's remainder.
    magnitude = wide.at_most(_widen(m, magnitude), 2.0**64)
    middle = wide.compare(">", magnitude, _TAN_PI_8)
    far = wide.compare(">", magnitude, 1 / _TAN_PI_8)
    numerator = wide.select(far, -1.0, wide.select(middle, wide.sub(magnitude, 1.0), magnitude))
    denominator = wide.select(far, magnitude, wide.select(middle, wide.add(magnitude, 1.0), 1.0))
    base = wide.select(far, 2.0, wide.select(middle, 1.0, 0.0))
    # What magnitude +- 1 lost, as magnitude and 1 are in any order.
    lost = wide.select(far, 0.0, wide.select(middle, 1.0, 0.0))
    turn = _Turn(wide, m.dtype, base)
    angle = turn.angle(numerator, denominator, (magnitude, lost))
    return m.copysign(_narrow(m, angle), x)


def atan2(m: FloatBuilder, y: ir.Value, x: ir.Value) -> ir.Value:
    """Angle of the point (x, y): from the smaller over the larger coordinate, by octants."""
    wide = FloatBuilder(m.builder, "f64")
    a, b = _widen(m, m.abs(y)), _widen(m, m.abs(x))
    steep = wide.compare(">", a, b)
    large, small = wide.select(steep, a, b), wide.select(steep, b, a)
    if m.dtype == "f64":
        for beyond, factor in ((">", 2.0**-120), ("<", 2.0**120)):
            limit = 2.0**1000 if beyond == ">" else 2.0**-900
            scale = wide.select(wide.compare(beyond, large, limit), factor, 1.0)
            # Both compare with the old ``large``: 2**1000 and 2**-900 do not meet.
            large, small = wide.mul(large, scale), wide.mul(small, scale)
    infinite = wide.compare("==", large, math.inf)
    both = wide.compare("==", small, math.inf)
    small = wide.select(infinite, wide.select(both, 1.0, 0.0), small)
    large = wide.select(wide.either(infinite, wide.compare("==", large, 0.0)), 1.0, large)

    middle = wide.compare(">", small, wide.mul(large, _TAN_PI_8))
    numerator = wide.select(middle, wide.sub(small, large), small)
    denominator = wide.select(middle, wide.add(small, large), large)
    octant = wide.select(middle, 1.0, 0.0)
    left = m.builder.icmp_signed("<", m.bits(x), m.int_const(0))
    base = wide.select(steep, 2.0, wide.select(left, 4.0, 0.0))
    backward = m.builder.xor(steep, left)
    octant = wide.add(base, wide.select(backward, wide.neg(octant), octant))
    numerator = wide.select(backward, wide.neg(numerator), numerator)
    turned = wide.select(backward, wide.neg(small), small)
    other = wide.select(middle, wide.select(backward, wide.neg(large), large), 0.0)
    angle = _Turn(wide, m.dtype, octant).angle(numerator, denominator, (turned, other))
    result = m.copysign(_narrow(m, angle), y)
    return m.select(m.either(m.is_nan(x), m.is_nan(y)), math.nan, result)


@dataclass(frozen=True)
class _Turn:
    """octants * pi/4 + atan(quotient), in f64, as exact as the result's dtype needs."""

    wide: FloatBuilder
    dtype: str
    octants: ir.Value

    def angle(
        self, numerator: ir.Value, denominator: ir.Value, parts: tuple[ir.Value, ir.Value]
    ) -> ir.Value:
        """``numerator`` is the rounded parts[0] - parts[1], or parts[0] where that is 0."""
        m = self.wide
        u = m.div(numerator, denominator)
        z = m.mul(u, u)
        cubic = m.mul(m.mul(z, u), m.horner(z, _TABLES[self.dtype].atan))
        high, low = _PI_QUARTER
        if self.dtype == "f32":
            return m.fma(self.octants, high, m.add(cubic, u))
        remainder = m.exact_fma(m.neg(u), denominator, numerator)
        remainder = m.add(remainder, self._lost(numerator, denominator, u, parts))
        correction = m.div(remainder, denominator)
        correction = m.fma(m.neg(z), correction, correction)
        tiny = m.compare("<", m.abs(u), 2.0**-30)
        rest = m.add(cubic, m.select(tiny, 0.0, correction))
        base = m.mul(self.octants, high)
        base_low = m.fma(self.octants, low, m.exact_fma(self.octants, high, m.neg(base)))
        total, error = m.two_sum(base, u)
        inside = m.add(u, rest)
        outside = m.add(total, m.add(m.add(error, base_low), rest))
        return m.select(m.compare("==", self.octants, 0.0), inside, outside)

    def _lost(
        self,
        numerator: ir.Value,
        denominator: ir.Value,
        u: ir.Value,
        parts: tuple[ir.Value, ir.Value],
    ) -> ir.Value:
        """What rounding numerator = a - b and denominator = |a| + |b| lost, b not 0."""
        m = self.wide
        a, b = parts
        _, top = m.two_sum(a, m.neg(b))
        _, bottom = m.two_sum(m.abs(a), m.abs(b))
        lost = m.fma(m.neg(u), bottom, top)
        return m.select(m.compare("==", b, 0.0), 0.0, lost)


def asin(m: FloatBuilder, x: ir.Value) -> ir.Value:
    """Inverse sine; beyond 1/2, pi/2 - 2 asin(sqrt((1 - |x|) / 2))."""
    wide, arc = _arc(m, x)
    value = wide.select(arc.outer, -2.0, 1.0)
    base = wide.select(arc.outer, 2.0, 0.0)
    return m.copysign(_narrow(m, arc.combine(base, value)), x)


def acos(m: FloatBuilder, x: ir.Value) -> ir.Value:
    """Inverse cosine: pi/2 - asin(x) inside, 2 asin(...) or pi - 2 asin(...) outside."""
    wide, arc = _arc(m, x)
    negative = m.compare("<", x, 0.0)
    factor = wide.select(arc.outer, 2.0, -1.0)
    factor = wide.select(negative, wide.neg(factor), factor)
    outer = wide.select(negative, 4.0, 0.0)
    return _narrow(m, arc.combine(wide.select(arc.outer, outer, 2.0), factor))


@dataclass(frozen=True)
class _Arc:
    """asin(s) = s + rest, s = |x| or, ``outer``, sqrt((1 - |x|) / 2)."""

    wide: FloatBuilder
    dtype: str
    outer: ir.Value
    s: ir.Value
    rest: ir.Value

    def combine(self, octants: ir.Value, factor: ir.Value) -> ir.Value:
        """octants * pi/4 + factor * asin(s), factor a power of 2, octants 0, 2 or 4."""
        m = self.wide
        high, low = _PI_QUARTER
        if self.dtype == "f32":
            return m.fma(octants, high, m.mul(factor, m.add(self.s, self.rest)))
        total, error = m.two_sum(m.mul(octants, high), m.mul(factor, self.s))
        rest = m.fma(factor, self.rest, m.mul(octants, low))
        return m.add(total, m.add(error, rest))


def _arc(m: FloatBuilder, x: ir.Value) -> tuple[FloatBuilder, _Arc]:
    wide = FloatBuilder(m.builder, "f64")
    magnitude = _widen(m, m.abs(x))
    outer = wide.compare(">", magnitude, 0.5)
    half = wide.fma(magnitude, -0.5, 0.5)  # exact where it is used
    z = wide.select(outer, half, wide.mul(magnitude, magnitude))
    root = wide.call("sqrt", half)
    s = wide.select(outer, root, magnitude)
    rest = wide.mul(wide.mul(s, z), wide.horner(z, _TABLES[m.dtype].asin))
    if m.dtype == "f64":
        lost = wide.div(wide.exact_fma(wide.neg(root), root, half), wide.add(root, root))
        used = m.builder.and_(outer, wide.compare(">", root, 0.0))
        rest = wide.add(rest, wide.select(used, lost, 0.0))
    return wide, _Arc(wide, m.dtype, outer, s, rest)


def _widen(m: FloatBuilder, x: ir.Value) -> ir.Value:
    return x if m.dtype == "f64" else m.builder.fpext(x, F64)


def _narrow(m: FloatBuilder, x: ir.Value) -> ir.Value:
    return x if m.dtype == "f64" else m.builder.fptrunc(x, F32)
