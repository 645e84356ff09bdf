"""Gradients of the elementwise ops, one row each.

DERIVATIVES: f'(x) of a holomorphic y = f(x). UNARY: the cotangent of x itself. BINARY: those of a
and b. Names: g the cotangent of the result y. At points without a derivative the choices are JAX's:
abs and sign give 0 at 0, maximum and minimum give half to each of two equal operands, and a power
is 0 for the exponent at base 0 and for the base at exponent 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from weft.ir.dtypes import float32
from weft.passes.autodiff.rule import Rule, Site
from weft.passes.rewriting.expression import Expr, cos, exp, log, sin, sqrt, square

DERIVATIVES: Mapping[str, Callable[[Expr, Expr], Expr]] = {
    "square": lambda x, y: 2 * x,
    "sqrt": lambda x, y: 0.5 / y,
    "cbrt": lambda x, y: 1 / (3 * (y * y)),
    "rsqrt": lambda x, y: -0.5 * (y * y * y),
    "reciprocal": lambda x, y: -(y * y),
    "exp": lambda x, y: y,
    "exp2": lambda x, y: math.log(2) * y,
    "expm1": lambda x, y: y + 1,
    "log": lambda x, y: 1 / x,
    "log1p": lambda x, y: 1 / (x + 1),
    "log2": lambda x, y: 1 / math.log(2) / x,
    "log10": lambda x, y: 1 / math.log(10) / x,
    "sin": lambda x, y: cos(x),
    "cos": lambda x, y: -sin(x),
    "tan": lambda x, y: 1 + y * y,
    "asin": lambda x, y: 1 / sqrt(1 - x * x),
    "acos": lambda x, y: -1 / sqrt(1 - x * x),
    "atan": lambda x, y: 1 / (1 + x * x),
    "sinh": lambda x, y: x.op("cosh"),
    "cosh": lambda x, y: x.op("sinh"),
    "tanh": lambda x, y: 1 - y * y,
    "asinh": lambda x, y: 1 / sqrt(x * x + 1),
    # two roots: their arguments add up to more than half a turn in the complex plane
    "acosh": lambda x, y: 1 / (sqrt(x - 1) * sqrt(x + 1)),
    "atanh": lambda x, y: 1 / (1 - x * x),
    "erf": lambda x, y: 2 / math.sqrt(math.pi) * exp(-(x * x)),
    "erfc": lambda x, y: -2 / math.sqrt(math.pi) * exp(-(x * x)),
    "erfinv": lambda x, y: math.sqrt(math.pi) / 2 * exp(y * y),
    "lgamma": lambda x, y: x.op("digamma"),
    "digamma": lambda x, y: trigamma(x),
    "sigmoid": lambda x, y: y * (1 - y),
}

UNARY: Mapping[str, Callable[[Expr, Expr, Expr], Expr | None]] = {
    "negative": lambda g, x, y: -g,
    "abs": lambda g, x, y: g.astype(x.dtype) * x.op("sign"),
    "sign": lambda g, x, y: _sign(g, x, y) if x.dtype.is_complex else None,
    "conj": lambda g, x, y: g.conj(),
    "real": lambda g, x, y: g.astype(x.dtype),
    "imag": lambda g, x, y: g.astype(x.dtype) * 1j if x.dtype.is_complex else None,
    "astype": lambda g, x, y: _astype(g, x),
}

Partial = Callable[[Expr, Expr, Expr, Expr], Expr]

BINARY: Mapping[str, tuple[Partial, Partial | None]] = {
    "add": (lambda g, a, b, y: g, lambda g, a, b, y: g),
    "subtract": (lambda g, a, b, y: g, lambda g, a, b, y: -g),
    "multiply": (lambda g, a, b, y: g * b.conj(), lambda g, a, b, y: g * a.conj()),
    "divide": (lambda g, a, b, y: g / b.conj(), lambda g, a, b, y: -(g * (y / b).conj())),
    # a % b = a - b * floor(a / b)
    "remainder": (lambda g, a, b, y: g, lambda g, a, b, y: -(g * a.op("floor_divide", b))),
    "power": (
        lambda g, a, b, y: g * _power_base(a, b).conj(),
        lambda g, a, b, y: g * (log(a.equals(0).where(a.lift(1), a)) * y).conj(),
    ),
    "maximum": (lambda g, a, b, y: _larger(g, a, b), lambda g, a, b, y: _larger(g, b, a)),
    "minimum": (lambda g, a, b, y: _larger(g, b, a), lambda g, a, b, y: _larger(g, a, b)),
    "atan2": (
        lambda g, a, b, y: g * (b / (a * a + b * b)),
        lambda g, a, b, y: -(g * (a / (a * a + b * b))),
    ),
    "hypot": (
        lambda g, a, b, y: g * (a / y.equals(0).where(y.lift(1), y)),
        lambda g, a, b, y: g * (b / y.equals(0).where(y.lift(1), y)),
    ),
    "logaddexp": (
        lambda g, a, b, y: g * _difference(a, b).op("sigmoid"),
        lambda g, a, b, y: g * _difference(b, a).op("sigmoid"),
    ),
    "copysign": (lambda g, a, b, y: g * (a.op("sign") * a.lift(1).op("copysign", b)), None),
}


def _sign(g: Expr, x: Expr, y: Expr) -> Expr:
    """y = x / |x|: only the part of g across x counts."""
    along = (g.conj() * y).op("real").astype(x.dtype)
    size = x.op("abs")
    across = (g - y * along) / size.equals(0).where(size.lift(1), size).astype(x.dtype)
    return x.equals(0).where(x.lift(0), across)


def _astype(g: Expr, x: Expr) -> Expr | None:
    if not (x.dtype.is_inexact and g.dtype.is_inexact):
        return None
    drop = g.dtype.is_complex and not x.dtype.is_complex
    return (g.op("real") if drop else g).astype(x.dtype)


def _power_base(a: Expr, b: Expr) -> Expr:
    """b * a**(b-1), which is 0 at a = b = 0; for other a its own derivative for b stays right."""
    corner = b.equals(0).op("logical_and", a.equals(0))
    return b * a.op("power", corner.where(b.lift(1), b - 1))


def _larger(g: Expr, a: Expr, b: Expr) -> Expr:
    """g where a > b, half of it where they are equal."""
    return (a > b).where(g, a.equals(b).where(g * 0.5, 0))


def _difference(a: Expr, b: Expr) -> Expr:
    """a - b, and 0 for two equal infinities."""
    infinite = a.equals(b).op("logical_and", a.op("isinf"))
    return infinite.where(a.lift(0), a - b)


def trigamma(x: Expr) -> Expr:
    """The second derivative of log Gamma, to about 1e-14 relative.

    Abramowitz and Stegun 6.4.7 (reflection, below 1/2), 6.4.6 (recurrence, ten steps), 6.4.12
    (asymptotic series).
    """
    if x.dtype.bits == 16:
        return trigamma(x.astype(float32)).astype(x.dtype)
    reflect = x < 0.5
    z = reflect.where(1 - x, x)
    total = 1 / square(z)
    for k in range(1, 10):
        total = total + 1 / square(z + k)
    w = 1 / (z + 10)
    v = w * w
    series = v * 0 + 7 / 6
    for bernoulli in (-691 / 2730, 5 / 66, -1 / 30, 1 / 42, -1 / 30, 1 / 6):
        series = bernoulli + v * series
    value = total + w + v / 2 + w * v * series
    # where it is not used, a point at which its own derivatives are finite
    angle = reflect.where(x - x.op("round"), 0.5)
    return reflect.where(math.pi**2 / square(sin(math.pi * angle)) - value, value)


def _where(s: Site) -> Sequence[Expr | None]:
    condition, zero = s.x, s.g.lift(0)
    return [None, condition.where(s.g, zero), condition.where(zero, s.g)]


def _fma(s: Site) -> Sequence[Expr | None]:
    a, b, _ = s.operands
    return [s.g * b, s.g * a, s.g]


def _holomorphic(derivative: Callable[[Expr, Expr], Expr]) -> Rule:
    return lambda s: [s.g * derivative(s.x, s.y).conj()]


def _unary(function: Callable[[Expr, Expr, Expr], Expr | None]) -> Rule:
    return lambda s: [function(s.g, s.x, s.y)]


def _binary(partials: tuple[Partial, Partial | None]) -> Rule:
    def rule(s: Site) -> Sequence[Expr | None]:
        return [
            p(s.g, s.x, s.operands[1], s.y) if p is not None and needed else None
            for p, needed in zip(partials, s.needed, strict=True)
        ]

    return rule


GRADIENTS: Mapping[str, Rule] = {
    **{name: _holomorphic(f) for name, f in DERIVATIVES.items()},
    **{name: _unary(f) for name, f in UNARY.items()},
    **{name: _binary(f) for name, f in BINARY.items()},
    "where": _where,
    "fma": _fma,
}

#: Piecewise constant, or not numbers.
NO_GRADIENT = frozenset(
    (
        *("ceil", "floor", "round", "trunc", "floor_divide", "nextafter", "bitcast"),
        *("isnan", "isinf", "isfinite", "signbit"),
        *("equal", "not_equal", "less", "less_equal", "greater", "greater_equal"),
        *("logical_not", "logical_and", "logical_or", "logical_xor"),
        *("bitwise_invert", "bitwise_and", "bitwise_or", "bitwise_xor"),
        *("bitwise_left_shift", "bitwise_right_shift"),
    )
)
