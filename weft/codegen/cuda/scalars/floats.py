"""Elementwise operations on floats, as the text of kernel source at f32 or f64.

16-bit floats compute in f32. Comparisons, NaN, infinities and signed zeros behave as in NumPy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from weft.codegen.cuda.scalars.memory import literal
from weft.codegen.scalar.integers import COMPARISONS

FloatOp = Callable[[str, Sequence[str]], str]

#: Ops that are one of the vocabulary's functions, under these names.
_MATHS = {
    **{op: op for op in ("exp", "exp2", "expm1", "log", "log1p", "log2", "log10", "sqrt", "rsqrt")},
    **{op: op for op in ("cbrt", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh")},
    **{op: op for op in ("tanh", "asinh", "acosh", "atanh", "erf", "erfc")},
    **{op: op for op in ("floor", "ceil", "trunc", "hypot", "atan2", "copysign", "nextafter")},
    "abs": "fabs",
    "round": "rint",
    "power": "pow",
    "fma": "fma",
}
#: Ops that are device functions (`functions.py`).
_FUNCTIONS = ("lgamma", "digamma", "sigmoid", "logaddexp", "floor_divide", "remainder")


def _called(name: str) -> FloatOp:
    return lambda dtype, args: f"{name}_{dtype}({', '.join(args)})"


def _between(operator: str) -> FloatOp:
    return lambda dtype, args: f"{args[0]} {operator} {args[1]}"


def _arithmetic(operator: str) -> FloatOp:
    return lambda dtype, args: f"{dtype}({args[0]} {operator} {args[1]})"


def _sign(dtype: str, args: Sequence[str]) -> str:
    (a,) = args
    nonzero = f"copysign_{dtype}({dtype}(1), {a}) if {a} != {dtype}(0) else {dtype}(0)"
    return f"{a} if {a} != {a} else ({nonzero})"


def _erfinv(dtype: str, args: Sequence[str]) -> str:
    """A zero keeps its sign, as on the CPU, whatever the function underneath does."""
    (a,) = args
    return f"{a} if {a} == {dtype}(0) else erfinv_{dtype}({a})"


def _extremum(operator: str) -> FloatOp:
    """The first operand if it wins or is NaN; else the second, NaN included (so 0, -0 give -0)."""

    def text(dtype: str, args: Sequence[str]) -> str:
        a, b = args
        return f"{a} if {a} {operator} {b} or {a} != {a} else {b}"

    return text


def _isinf(dtype: str, args: Sequence[str]) -> str:
    return f"fabs_{dtype}({args[0]}) == {literal(dtype, float('inf'))}"


def _isfinite(dtype: str, args: Sequence[str]) -> str:
    return f"fabs_{dtype}({args[0]}) < {literal(dtype, float('inf'))}"


FLOAT_OPS: dict[str, FloatOp] = {
    **{op: _between(operator) for op, operator in COMPARISONS.items()},
    "add": _arithmetic("+"),
    "subtract": _arithmetic("-"),
    "multiply": _arithmetic("*"),
    "divide": _arithmetic("/"),
    "negative": lambda dtype, args: f"-{args[0]}",
    "square": lambda dtype, args: f"{dtype}({args[0]} * {args[0]})",
    "reciprocal": lambda dtype, args: f"{dtype}({dtype}(1) / {args[0]})",
    "sign": _sign,
    "erfinv": _erfinv,
    **{op: _called(name) for op, name in _MATHS.items()},
    **{op: _called(f"wf_{op}") for op in _FUNCTIONS},
    "maximum": _extremum(">"),
    "minimum": _extremum("<"),
    "isnan": lambda dtype, args: f"{args[0]} != {args[0]}",
    "isinf": _isinf,
    "isfinite": _isfinite,
    "signbit": lambda dtype, args: f"copysign_{dtype}({dtype}(1), {args[0]}) < {dtype}(0)",
    **dict.fromkeys(("conj", "real"), lambda dtype, args: args[0]),
    "imag": lambda dtype, args: f"{dtype}(0)",
}
