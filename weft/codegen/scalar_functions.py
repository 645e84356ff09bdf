"""Rare functions as plain scalar Python, compiled by Numba into the kernel that uses them.

They never raise, call no SciPy and need no GIL; loops around them do not vectorise.  f32 computes
them in f64 and rounds.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

_ONE = np.uint64(1)


def integer_power(base: Any, exponent: Any) -> Any:
    """base ** exponent for int64 base, uint64 exponent, by squaring, wrapping."""
    result = base * 0 + 1
    while exponent != 0:
        if exponent & _ONE:
            result *= base
        base *= base
        exponent >>= _ONE
    return result


# Boost.Math, digamma.hpp (J. Maddock): digamma(x) = (x - root) (Y + R(x - 1)) on [1, 2].
_ROOT_HIGH = 1569415565.0 / 1073741824.0
_ROOT_MIDDLE = 381566830.0 / 1073741824.0 / 1073741824.0
_ROOT_LOW = 0.9016312093258695918615325266959189453125e-19
_Y = 0.99558162689208984
# The root nearest to 0 on the negative axis, as a sum; slope and curvature there.
_DIGAMMA_SERIES = (
    *(1.0 / 12, -1.0 / 120, 1.0 / 252, -1.0 / 240, 1.0 / 132, -691.0 / 32760, 1.0 / 12),
    -3617.0 / 8160,
)


def digamma(x: float) -> float:
    """Logarithmic derivative of gamma.

    A rational approximation on [1, 2], the recurrence digamma(x + 1) = digamma(x) + 1/x around it,
    the asymptotic series from 10 on (Abramowitz & Stegun 6.3.5, 6.3.18), reflection for x < 0
    (6.3.7).
    """
    if x == 0.0:
        return -math.copysign(math.inf, x)
    total = 0.0
    if x < 0.0:
        if math.isinf(x) or x == math.floor(x):
            return math.nan
        fraction = x - math.floor(x + 0.5)
        # tan(pi / 2) must be inf, or digamma(-n - 1/2) loses its last bits.
        if abs(fraction) != 0.5:
            total = -math.pi / math.tan(math.pi * fraction)
        x = 1.0 - x
    if x >= 10.0:
        if math.isinf(x):
            return x
        inverse = 1.0 / x
        z = inverse * inverse
        series = 0.0
        for k in range(7, -1, -1):
            series = series * z + _DIGAMMA_SERIES[k]
        return total + (math.log(x) - 0.5 * inverse - z * series)
    while x > 2.0:
        x -= 1.0
        total += 1.0 / x
    while x < 1.0:
        total -= 1.0 / x
        x += 1.0
    if math.isnan(x):
        return x
    g = x - _ROOT_HIGH - _ROOT_MIDDLE - _ROOT_LOW
    t = x - 1.0
    p = -0.0020713321167745952
    p = p * t - 0.045251321448739056
    p = p * t - 0.28919126444774784
    p = p * t - 0.65031853770896507
    p = p * t - 0.32555031186804491
    p = p * t + 0.25479851061131551
    q = -0.55789841321675513e-6
    q = q * t + 0.0021284987017821144
    q = q * t + 0.054151797245674225
    q = q * t + 0.43593529692665969
    q = q * t + 1.4606242909763515
    q = q * t + 2.0767117023730469
    q = q * t + 1.0
    return total + (g * _Y + g * (p / q))


# Numerators and denominators of AS 241, PPND16; constant term first.
_CENTRAL = (
    (3.3871328727963666080e0, 1.0),
    (1.3314166789178437745e2, 4.2313330701600911252e1),
    (1.9715909503065514427e3, 6.8718700749205790830e2),
    (1.3731693765509461125e4, 5.3941960214247511077e3),
    (4.5921953931549871457e4, 2.1213794301586595867e4),
    (6.7265770927008700853e4, 3.9307895800092710610e4),
    (3.3430575583588128105e4, 2.8729085735721942674e4),
    (2.5090809287301226727e3, 5.2264952788528545610e3),
)
_MIDDLE = (
    (1.42343711074968357734e0, 1.0),
    (4.63033784615654529590e0, 2.05319162663775882187e0),
    (5.76949722146069140550e0, 1.67638483018380384940e0),
    (3.64784832476320460504e0, 6.89767334985100004550e-1),
    (1.27045825245236838258e0, 1.48103976427480074590e-1),
    (2.41780725177450611770e-1, 1.51986665636164571966e-2),
    (2.27238449892691845833e-2, 5.47593808499534494600e-4),
    (7.74545014278341407640e-4, 1.05075007164441684324e-9),
)
_FAR = (
    (6.65790464350110377720e0, 1.0),
    (5.46378491116411436990e0, 5.99832206555887937690e-1),
    (1.78482653991729133580e0, 1.36929880922735805310e-1),
    (2.96560571828504891230e-1, 1.48753612908506148525e-2),
    (2.65321895265761230930e-2, 7.86869131145613259100e-4),
    (1.24266094738807843860e-3, 1.84631831751005468180e-5),
    (2.71155556874348757815e-5, 1.42151175831644588870e-7),
    (2.01033439929228813265e-7, 2.04426310338993978564e-15),
)
_SQRT_HALF = 0.70710678118654752440


def erfinv(x: float) -> float:
    """Inverse error function, from the normal quantile at (1 + x) / 2.

    M. Wichura, "Algorithm AS 241: The Percentage Points of the Normal Distribution", 1988: relative
    error 1e-16 of the rational functions.
    """
    magnitude = abs(x)
    if not magnitude < 1.0:
        return math.copysign(math.inf, x) if magnitude == 1.0 else math.nan
    numerator = 0.0
    denominator = 0.0
    if magnitude <= 0.85:
        r = 0.180625 - 0.25 * x * x
        for k in range(7, -1, -1):
            numerator = numerator * r + _CENTRAL[k][0]
            denominator = denominator * r + _CENTRAL[k][1]
        return 0.5 * x * numerator / denominator * _SQRT_HALF
    r = math.sqrt(-math.log(0.5 * (1.0 - magnitude)))
    if r <= 5.0:
        r -= 1.6
        for k in range(7, -1, -1):
            numerator = numerator * r + _MIDDLE[k][0]
            denominator = denominator * r + _MIDDLE[k][1]
    else:
        r -= 5.0
        for k in range(7, -1, -1):
            numerator = numerator * r + _FAR[k][0]
            denominator = denominator * r + _FAR[k][1]
    return math.copysign(numerator / denominator * _SQRT_HALF, x)
