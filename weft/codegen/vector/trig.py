"""Trigonometric functions and their inverses as branch-free code that LLVM's loop vectoriser can
widen: sin, cos, tan, asin, acos, atan and atan2.

The angle is reduced by n pi/2 in parts (W. Cody, W. Waite, "Software Manual for the Elementary
Functions", 1980); huge angles, NaN and inf go to the C library, lane by lane.  f32 computes in f64
and rounds once.  f64 keeps the reduced angle, and for tan sine and cosine too, as a sum of two
numbers (FreeBSD msun, k_sin.c and k_cos.c), and carries what divisions and square roots of the
inverses lose.  Polynomials, those of the inverses in the square of the argument, are minimax, by
Remez exchange in 60 digits."""

from __future__ import annotations

import math

from llvmlite import ir

from weft.codegen.llvm.emitter import F32, F64, I32
from weft.codegen.vector.float_builder import FloatBuilder, ScalarCode, unless_beyond
from weft.ir.dataclass import dataclass

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
