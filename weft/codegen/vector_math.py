"""Vectorising mathematical functions, and the error bounds of all functions on floats.

``VECTORISED`` are emitted inline, from polynomials, without branches or calls, so that LLVM's loop
vectoriser widens the loop around them.  NaN, inf, signed zero and denormals behave as in NumPy.
"""

from __future__ import annotations

from collections.abc import Callable

from llvmlite import ir

from weft.codegen import vector_erf, vector_exp, vector_log, vector_trig
from weft.codegen.float_builder import FloatBuilder

UnaryFunction = Callable[[FloatBuilder, ir.Value], ir.Value]


def rsqrt(m: FloatBuilder, x: ir.Value) -> ir.Value:
    """1 / sqrt(x)"""
    return m.div(1.0, m.call("sqrt", x))


def sqrt(m: FloatBuilder, x: ir.Value) -> ir.Value:
    """Square root, correctly rounded."""
    return m.call("sqrt", x)


# At f32 and f64.
VECTORISED: dict[str, UnaryFunction] = {
    "exp": vector_exp.exp,
    "exp2": vector_exp.exp2,
    "expm1": vector_exp.expm1,
    "sigmoid": vector_exp.sigmoid,
    "tanh": vector_exp.tanh,
    "sinh": vector_exp.sinh,
    "cosh": vector_exp.cosh,
    "log": vector_log.log,
    "log1p": vector_log.log1p,
    "log2": vector_log.log2,
    "log10": vector_log.log10,
    "erf": vector_erf.erf,
    "erfc": vector_erf.erfc,
    "sqrt": sqrt,
    "rsqrt": rsqrt,
}

# At f32 only; f64 calls the C library.
VECTORISED_F32: dict[str, UnaryFunction] = {
    "sin": vector_trig.sin_f32,
    "cos": vector_trig.cos_f32,
}
pow_f32 = vector_log.pow_f32

# Largest error in units in the last place (of the exact result) against exact arithmetic, for f32
# and f64: measured maxima over millions of arguments, rounded up.  Where the C library computes,
# glibc's. Near the negative zeros of digamma no relative bound holds; its bounds are for x > 0.
_BOUNDS: dict[str, tuple[float, float]] = {
    "exp": (1.25, 1.25),
    "exp2": (1.25, 1.25),
    "expm1": (1.75, 2.25),
    "sigmoid": (2.5, 2.5),
    "tanh": (2.75, 2.75),
    "sinh": (2.5, 2.75),
    "cosh": (1.75, 1.75),
    "log": (1.0, 1.0),
    "log1p": (1.0, 1.0),
    "log2": (1.0, 1.0),
    "log10": (1.0, 1.0),
    "erf": (1.5, 1.5),
    "erfc": (6.0, 5.0),
    "sin": (0.75, 0.75),
    "cos": (0.75, 0.75),
    "power": (0.75, 1.0),
    "sqrt": (0.5, 0.5),
    "rsqrt": (1.5, 1.5),
    "reciprocal": (0.5, 0.5),
    "divide": (0.5, 0.5),
    "tan": (1.25, 1.0),
    "asin": (1.25, 1.0),
    "acos": (1.25, 1.0),
    "atan": (1.25, 1.0),
    "asinh": (2.0, 2.0),
    "acosh": (2.25, 2.25),
    "atanh": (2.0, 2.0),
    "atan2": (1.75, 1.0),
    "hypot": (1.0, 1.0),
    "erfinv": (0.75, 8.0),
    "lgamma": (0.75, 4.0),
    "digamma": (0.75, 4.0),
}
ULP_BOUND: dict[tuple[str, str], float] = {
    (op, dtype): bound
    for op, bounds in _BOUNDS.items()
    for dtype, bound in zip(("f32", "f64"), bounds, strict=True)
}
