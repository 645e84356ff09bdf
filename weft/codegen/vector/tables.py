"""Tables of 16 numbers, each of which is one AVX-512 register: exp, log and erf at f32 by lookup.

A permutation of a register looks 16 numbers up at once (`avx512.lookup`), which leaves half as many
multiply-adds as the polynomials of `exp.py`, `log.py` and `special.py` need (P.-T. P. Tang,
"Table-driven implementation of the exponential function in IEEE floating-point arithmetic", 1989).
Entries lie where what they stand for is next to an f32 number (S. Gal, "Computing elementary
functions: a new approach for achieving high accuracy and good performance", 1986), or have a second
table of what is left. Coefficients are near-minimax, by Lawson's iteration, and rounded."""

from __future__ import annotations

from llvmlite import ir

from weft.codegen.vector import avx512
from weft.codegen.vector.float_builder import FloatBuilder

LOG2_E, LN_2 = 1.4426950408889634, 0.6931471805599453
_LN_2_HIGH, _LN_2_LOW = 0.693145751953125, 1.428606765330187e-06

# 2**(j / 16)
_POWERS = (
    *(1.0, 1.0442737, 1.0905077, 1.1387886, 1.1892071, 1.2418578, 1.2968396, 1.3542556),
    *(1.4142135, 1.4768262, 1.5422108, 1.6104903, 1.6817929, 1.7562522, 1.8340081, 1.9152066),
)
_POWERS_LOW = (
    *(0.0, 4.83347e-08, -1.307754e-08, 5.3862223e-08, 3.7976353e-08, 4.496838e-08),
    *(-4.0189995e-08, -1.0123349e-08, 2.4203235e-08, -4.500899e-08, 8.070905e-09, 9.836217e-09),
    *(-2.4755327e-08, -9.23577e-09, -1.1239278e-08, 9.845328e-09),
)
# (e**r - 1) / r on |r| <= ln2 / 32, relative error 2**-27.7 of e**r
_EXP = (1.0, 0.50000978, 0.16666862)
_LOWEST, _HIGHEST = -104.0, 89.7  # exp of less is 0, of more inf

# By the first four bits of a mantissa in [1, 1.5) or [0.75, 1): its reciprocal c, and -log(c).
_RECIPROCALS = (
    *(1.0, 0.9221392, 0.86498255, 0.82066107, 0.78044915, 0.7440316, 0.7110863, 0.6810205),
    *(1.3061446, 1.2551628, 1.2075895, 1.1636262, 1.1230763, 1.0843915, 1.0482237, 1.0),
)
_LOGARITHMS = (
    *(0.0, 0.08105906, 0.14504595, 0.19764508, 0.24788569, 0.29567176, 0.34096152, 0.38416287),
    *(-0.26707974, -0.22726531, -0.18862623, -0.15154116, -0.116071634, -0.08101898),
    *(-0.04709705, 0.0),
)
# (log(1 + r) - r) / r**2 on [-1/32, 1/16], relative error 2**-27 of log(1 + r)
_LOG = (-0.49999997, 0.33334196, -0.2501676, 0.19085176)

# erf(c + u) on [j / 4, (j + 1) / 4]: c, and the coefficients of u**0, u**1, ... In the first
# quarter u itself is apart, so that what the polynomial adds to it is small.
_CENTRES = (
    *(0.0, 0.37500358, 0.6250325, 0.8749647, 1.1250116, 1.375063, 1.6249483, 1.8750187),
    *(2.124972, 1.989612, 2.5886314, 3.146695, 3.4570715, 3.4087539, 3.2190027, 4.700338),
)
_ERF = (
    (
        *(0.0, 0.40412042, 0.6232657, 0.78405654, 0.8883919, 0.9481808, 0.97843957, 0.9919907),
        *(0.9973456, 0.99510306, 0.99974865, 0.9999914, 0.999999, 0.99999857, 0.9999947, 1.0),
    ),
    (
        *(0.12837914, 0.98035026, 0.76346856, 0.5247775, 0.31826568, 0.17033029, 0.08048578),
        *(0.03354347, 0.012342283, 0.021519082, 0.0013875172, 5.766799e-05, 8.439802e-06),
        *(1.014287e-05, 3.4880155e-05, 1.0426413e-06),
    ),
    (
        *(6.9983585e-06, -0.3676296, -0.47718832, -0.45916066, -0.3580542, -0.23421718),
        *(-0.13078676, -0.062895074, -0.02622682, -0.04256204, -0.0035918292, -0.00015527659),
        *(-7.2941716e-06, -3.457336e-05, -0.00010397851, 5.7323114e-06),
    ),
    (
        *(-0.37633228, -0.23489186, -0.05566067, 0.09290181, 0.162452, 0.15793113, 0.11485264),
        *(0.06743924, 0.033040836, 0.04814471, 0.0057414696, 0.00052392023, 0.0001612817),
        *(7.4840194e-05, 0.00017367298, 1.2007767e-05),
    ),
    (
        *(0.0020243584, 0.16549982, 0.1755587, 0.11218242, 0.028305586, -0.030029643),
        *(-0.049404852, -0.042168994, -0.026401633, -0.03145898, -0.0062384163, 0.00010336926),
        *(0.00020716853, -0.0001172006, -0.00015916718, 1.1416409e-05),
    ),
    (
        *(0.105946936, 0.046349883, -0.026567698, -0.06659801, -0.061080977, -0.030681299),
        *(-0.0023304436, 0.011313123, 0.012439225, 0.009466475, 0.004244525, 0.0014841027),
        *(0.00046803505, 0.0001666338, 6.251777e-05, 4.264606e-06),
    ),
)
_ERF_ONE = 3.95  # beyond, erf rounds to 1
_FOUR_BITS = 4


def exp(m: FloatBuilder, x: ir.Value, negative: bool = False) -> ir.Value:
    """e**x = 2**k 2**(j / 16) e**r, |r| <= ln2 / 32. negative: x is not above 0."""
    x = m.at_least(x if negative else m.at_most(x, _HIGHEST), _LOWEST)
    magic = m.magic / avx512.TABLE_SIZE  # added, it rounds to a multiple of 1/16
    shifted = m.fma(x, LOG2_E, magic)
    n = m.sub(shifted, magic)
    r = m.fma(n, -_LN_2_LOW, m.fma(n, -_LN_2_HIGH, x))
    index = m.bits(shifted)
    power = avx512.lookup(m, _POWERS, index)
    rest = m.fma(r, power, avx512.lookup(m, _POWERS_LOW, index))
    return avx512.scale(m, m.fma(m.horner(r, _EXP), rest, power), n)


def log(m: FloatBuilder, x: ir.Value) -> ir.Value:
    """log(x) = k ln2 - log(c) + log(1 + r), 1 + r = c times the mantissa."""
    mantissa, k = avx512.mantissa(m, x), avx512.exponent(m, x)
    k = m.select(m.compare("<", mantissa, 1.0), m.add(k, 1.0), k)
    places = m.mantissa_bits - _FOUR_BITS
    index = m.builder.lshr(m.bits(mantissa), m.int_const(places))
    r = m.fma(mantissa, avx512.lookup(m, _RECIPROCALS, index), -1.0)
    rest = m.fma(m.mul(r, r), m.horner(r, _LOG), r)
    # k is -inf at 0 and inf at inf, the mantissa NaN below 0: no case is left to select
    return m.fma(k, LN_2, m.add(rest, avx512.lookup(m, _LOGARITHMS, index)))


def erf(m: FloatBuilder, x: ir.Value) -> ir.Value:
    """erf(c + u) by a polynomial in u, of degree 5."""
    t = m.at_most(m.abs(x), _ERF_ONE)
    # rounded, t + 4 has the number of the quarter in its first bits
    quarters = m.add(t, 4.0)
    index = m.builder.lshr(m.bits(quarters), m.int_const(m.mantissa_bits - _FOUR_BITS))
    u = m.sub(t, avx512.lookup(m, _CENTRES, index))
    first, *others = (avx512.lookup(m, row, index) for row in _ERF)
    result = others.pop()
    for coefficient in reversed(others):
        result = m.fma(result, u, coefficient)
    first = m.select(m.compare("<", quarters, 4.25), u, first)
    return m.copysign(m.fma(result, u, first), x)
