"""lgamma and digamma as branch-free polynomials that LLVM's loop vectoriser can widen.

Both dtypes compute in f64.  Polynomials are minimax, fitted by Remez exchange in 45 digits, but for
digamma's on [1, 2], which is Boost.Math's (J. Maddock, digamma.hpp).
"""

from __future__ import annotations

import math
from collections.abc import Callable

from llvmlite import ir

from weft.codegen.elements import F32, F64
from weft.codegen.scalar.float_builder import FloatBuilder
from weft.codegen.vector.log import log

# lgamma(2 + f) / f on |f| <= 1/2, 2**-59.
LGAMMA = (
    *(0.42278433509846713, 0.32246703342411326, -0.06735230105319831, 0.02058080842778057),
    *(-0.007385551028649712, 0.002890510331023567, -0.0011927539127581969),
    *(0.000509669515680181, -0.0002231547351712936, 9.945766998072185e-05),
    *(-4.492653105160591e-05, 2.0505617786172063e-05, -9.437237338929991e-06),
    *(4.384588073546445e-06, -2.0497517025832743e-06, 9.203184720747703e-07),
    *(-4.20049020593531e-07, 2.784909326295533e-07, -1.43289500367756e-07),
)
LGAMMA_BIG = 7.5
LGAMMA_CONSTANT = (math.log(2 * math.pi) - 1) / 2
# x (lgamma(x) - (x - 1/2) log(x) + x - log(2 pi) / 2) in 1 / x**2 for x >= LGAMMA_BIG, 2**-59.
LGAMMA_TAIL = (
    *(0.08333333333333333, -0.0027777777777701265, 0.0007936507866641164),
    *(-0.0005952356956620452, 0.0008413558520079816, -0.0018836802177886428),
    0.004919524584207212,
)
# sin(pi f) / (pi f) in f**2 on |f| <= 1/2, 2**-61.
SINC = (
    *(1.0, -1.6449340668482262, 0.8117424252833373, -0.19075182412143052, 0.0261478478045301),
    *(-0.0023460808868284565, 0.0001484278008976165, -6.9720005476143215e-06),
    2.449308676051309e-07,
)
# pi f cot(pi f) / (1 - 4 f**2) in f**2 on |f| <= 1/2, 2**-56.
DIGAMMA_COT = (
    *(1.0, 0.7101318663035299, 0.6758809977970318, 0.6688378666006403, 0.6671967929054782),
    *(0.6667965373180094, 0.6667312224099071, 0.6661558960963087, 0.6725982554102217),
    *(0.6184224755966475, 0.9462702720734034, -0.47053257169605545, 3.7935661957779825),
    *(-4.695739964635667, 5.351729285447418),
)
# digamma(x) = (x - root) (Y + N(x - 1) / D(x - 1)) on [1, 2]; the root as a sum.
DIGAMMA_ROOT = (
    1569415565.0 / 1073741824.0,
    381566830.0 / 1073741824.0 / 1073741824.0,
    0.9016312093258695918615325266959189453125e-19,
)
DIGAMMA_Y = 0.99558162689208984
DIGAMMA_NUMERATOR = (
    *(0.25479851061131551, -0.32555031186804491, -0.65031853770896507, -0.28919126444774784),
    *(-0.045251321448739056, -0.0020713321167745952),
)
DIGAMMA_DENOMINATOR = (
    *(1.0, 2.0767117023730469, 1.4606242909763515, 0.43593529692665969),
    *(0.054151797245674225, 0.0021284987017821144, -0.55789841213675513e-6),
)
DIGAMMA_BIG = 8.0
# x**2 (log(x) - 1 / (2 x) - digamma(x)) in 1 / x**2 for x >= DIGAMMA_BIG, 2**-56.
DIGAMMA_TAIL = (
    *(0.08333333333333333, -0.008333333333280426, 0.003968253913284352, -0.004166645185461214),
    *(0.007571734264176772, -0.02070052312380927, 0.06367553207597923),
)


_Function = Callable[[FloatBuilder, ir.Value], ir.Value]


def lgamma(m: FloatBuilder, x: ir.Value) -> ir.Value:
    """log |gamma(x)|; inf at the poles, -inf at -inf."""
    return _in_f64(m, x, _lgamma)


def digamma(m: FloatBuilder, x: ir.Value) -> ir.Value:
    """Logarithmic derivative of gamma; NaN at negative integers and at -inf, infinite at 0."""
    return _in_f64(m, x, _digamma)


def _in_f64(m: FloatBuilder, x: ir.Value, function: _Function) -> ir.Value:
    if m.dtype == "f64":
        return function(m, x)
    wide = FloatBuilder(m.builder, "f64")
    return m.builder.fptrunc(function(wide, m.builder.fpext(x, F64)), F32)


def _reflected(m: FloatBuilder, x: ir.Value) -> tuple[ir.Value, ir.Value, ir.Value]:
    """(x < 0, 1 - x there and x elsewhere, x less the nearest integer)."""
    negative = m.compare("<", x, 0.0)
    return negative, m.select(negative, m.sub(1.0, x), x), m.sub(x, m.call("roundeven", x))


def _lgamma(m: FloatBuilder, x: ir.Value) -> ir.Value:
    """log(pi / |sin(pi x)|) - lgamma(1 - x) for x < 0 (Abramowitz & Stegun 6.1.17)."""
    negative, y, f = _reflected(m, x)
    result = _lgamma_positive(m, y)
    sine = m.mul(m.abs(f), m.horner(m.mul(f, f), SINC))  # by pi
    reflected = m.sub(m.neg(log(m, sine)), result)
    reflected = m.select(m.compare("==", f, 0.0), math.inf, reflected)
    result = m.select(negative, reflected, result)
    return m.select(m.compare("==", x, -math.inf), x, result)  # as SciPy; C has +inf


def _lgamma_positive(m: FloatBuilder, y: ir.Value) -> ir.Value:
    """Stirling's series, or lgamma(2 + f) and the logarithm of what gamma's recurrence gives.

    y = n + f with |f| <= 1/2: gamma(y) is gamma(2 + f) times (2 + f) ... (n - 1 + f), or divided by
    y (n = 1) or y (y + 1) (n = 0); so lgamma's zeros at 1 and 2 keep their relative accuracy.
    """
    big = m.compare(">=", y, LGAMMA_BIG)
    moderate = m.at_most(y, LGAMMA_BIG)
    n = m.call("floor", m.add(moderate, 0.5))
    f = m.sub(moderate, n)
    product: ir.Value = m.const(1.0)
    for j in range(2, 7):
        product = m.select(m.compare(">", n, float(j)), m.mul(product, m.add(f, float(j))), product)
    low = m.compare("<", n, 2.0)
    divisor = m.select(m.compare("<", n, 1.0), m.mul(y, m.add(y, 1.0)), y)
    logarithm = log(m, m.select(big, y, m.select(low, divisor, product)))
    near = m.fma(f, m.horner(f, LGAMMA), m.select(low, m.neg(logarithm), logarithm))
    inverse = m.div(1.0, y)
    tail = m.mul(inverse, m.horner(m.mul(inverse, inverse), LGAMMA_TAIL))
    far = m.fma(m.sub(y, 0.5), m.sub(logarithm, 1.0), m.add(tail, LGAMMA_CONSTANT))
    return m.select(big, far, near)


def _digamma(m: FloatBuilder, x: ir.Value) -> ir.Value:
    """digamma(1 - x) - pi / tan(pi x) for x < 0 (Abramowitz & Stegun 6.3.7)."""
    negative, y, f = _reflected(m, x)
    result = _digamma_positive(m, y)
    twice = m.abs(m.add(f, f))
    even = m.mul(m.mul(m.sub(1.0, twice), m.add(twice, 1.0)), m.horner(m.mul(f, f), DIGAMMA_COT))
    reflected = m.sub(result, m.div(even, f))
    reflected = m.select(m.compare("==", f, 0.0), math.nan, reflected)
    return m.select(negative, reflected, result)


def _digamma_positive(m: FloatBuilder, y: ir.Value) -> ir.Value:
    """The asymptotic series, or digamma on [1, 2] and the recurrence's sum of 1 / (t + i)."""
    big = m.compare(">=", y, DIGAMMA_BIG)
    moderate = m.at_most(y, DIGAMMA_BIG)
    n = m.sub(m.call("floor", moderate), 1.0)
    t = m.sub(moderate, n)
    below = m.compare("<", y, 1.0)  # one step down: - 1 / y
    top, bottom = m.select(below, -1.0, 0.0), m.select(below, y, 1.0)
    for i in range(6):
        step, more = m.add(t, float(i)), m.compare(">", n, float(i))
        top = m.select(more, m.fma(top, step, bottom), top)
        bottom = m.select(more, m.mul(bottom, step), bottom)
    g = t
    for part in DIGAMMA_ROOT:
        g = m.sub(g, part)
    u = m.sub(t, 1.0)
    ratio = m.div(m.horner(u, DIGAMMA_NUMERATOR), m.horner(u, DIGAMMA_DENOMINATOR))
    near = m.add(m.div(top, bottom), m.fma(g, DIGAMMA_Y, m.mul(g, ratio)))
    inverse = m.div(1.0, y)
    z = m.mul(inverse, inverse)
    far = m.sub(m.sub(log(m, y), m.mul(inverse, 0.5)), m.mul(z, m.horner(z, DIGAMMA_TAIL)))
    return m.select(big, far, near)
