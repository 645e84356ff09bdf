"""Vectorising mathematical functions, and the error bounds of all functions on floats.

``VECTORISED`` are emitted inline, from polynomials, without branches or calls, so that LLVM's loop
vectoriser widens the loop around them.  NaN, inf, signed zero and denormals behave as in NumPy.
"""

from __future__ import annotations

from collections.abc import Callable

from llvmlite import ir

from weft.codegen.vector import exp_log, powers, special, trig
from weft.codegen.vector.float_builder import FloatBuilder

UnaryFunction = Callable[[FloatBuilder, ir.Value], ir.Value]
BinaryFunction = Callable[[FloatBuilder, ir.Value, ir.Value], ir.Value]


def rsqrt(m: FloatBuilder, x: ir.Value) -> ir.Value:
    """1 / sqrt(x)"""
    return m.div(1.0, m.call("sqrt", x))


def sqrt(m: FloatBuilder, x: ir.Value) -> ir.Value:
    """Square root, correctly rounded."""
    return m.call("sqrt", x)


# At f32 and f64.
VECTORISED: dict[str, UnaryFunction] = {
    "exp": exp_log.exp,
    "exp2": exp_log.exp2,
    "expm1": exp_log.expm1,
    "sigmoid": exp_log.sigmoid,
    "tanh": powers.tanh,
    "sinh": powers.sinh,
    "cosh": powers.cosh,
    "asinh": powers.asinh,
    "acosh": powers.acosh,
    "atanh": powers.atanh,
    "log": exp_log.log,
    "log1p": exp_log.log1p,
    "log2": exp_log.log2,
    "log10": exp_log.log10,
    "erf": special.erf,
    "erfc": special.erfc,
    "erfinv": special.erfinv,
    "lgamma": special.lgamma,
    "digamma": special.digamma,
    "sin": trig.sin,
    "cos": trig.cos,
    "tan": trig.tan,
    "asin": trig.asin,
    "acos": trig.acos,
    "atan": trig.atan,
    "sqrt": sqrt,
    "cbrt": powers.cbrt,
    "rsqrt": rsqrt,
}

VECTORISED_BINARY: dict[str, BinaryFunction] = {
    "atan2": trig.atan2,
    "hypot": powers.hypot,
    "power": powers.power,
}

# Largest error in units in the last place of the exact result, denormals included, for f32 and
# f64.  f32: the maximum over all arguments (unary functions), rounded up; f64: measured maxima over
# millions of arguments, rounded up.  Near the negative zeros of digamma and
# lgamma no relative bound holds; their f64 bounds are for x > 0.
_BOUNDS: dict[str, tuple[float, float]] = {
    "exp": (1.0, 1.0),
    "exp2": (1.0, 1.25),
    "expm1": (1.5, 1.5),
    "sigmoid": (1.5, 1.5),
    "tanh": (2.0, 2.25),
    "sinh": (1.75, 1.75),
    "cosh": (1.5, 1.5),
    "log": (1.0, 1.0),
    "log1p": (1.25, 1.0),
    "log2": (1.0, 1.0),
    "log10": (0.75, 0.75),
    "erf": (1.3, 1.5),
    "erfc": (0.55, 5.0),
    "sin": (0.51, 0.9),
    "cos": (0.51, 0.9),
    "tan": (0.51, 1.25),
    "asin": (0.51, 0.75),
    "acos": (0.51, 0.75),
    "atan": (0.51, 0.75),
    "asinh": (0.51, 1.5),
    "acosh": (0.51, 1.75),
    "atanh": (0.51, 2.0),
    "atan2": (0.51, 0.75),
    "power": (0.55, 1.0),
    "hypot": (0.51, 1.25),
    "sqrt": (0.5, 0.5),
    "cbrt": (0.51, 1.0),
    "rsqrt": (1.5, 1.5),
    "reciprocal": (0.5, 0.5),
    "divide": (0.5, 0.5),
    "erfinv": (0.65, 3.0),
    "lgamma": (0.75, 4.0),
    "digamma": (0.75, 4.0),
}
ULP_BOUND: dict[tuple[str, str], float] = {
    (op, dtype): bound
    for op, bounds in _BOUNDS.items()
    for dtype, bound in zip(("f32", "f64"), bounds, strict=True)
}
