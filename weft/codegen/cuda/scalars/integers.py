"""Elementwise operations on integers and bool, as the text of kernel source.

Arithmetic wraps. As in NumPy, `x // 0 == x % 0 == 0`, shifts by at least the width (or by a
negative amount) shift everything out, and `MIN // -1 == MIN`. An integer to a negative integer
power, which NumPy refuses, is the exact result truncated to an integer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from weft.codegen.cuda.scalars.memory import SIGNED, bits
from weft.codegen.scalar.integers import COMPARISONS

IntegerOp = Callable[[str, Sequence[str]], str]


def _bitwise(operator: str) -> IntegerOp:
    return lambda dtype, args: f"{dtype}({args[0]} {operator} {args[1]})"


def _arithmetic(operator: str) -> IntegerOp:
    """Narrow integers are computed in 64 bits; those of 64 bits as unsigned ones, which wrap."""

    def text(dtype: str, args: Sequence[str]) -> str:
        a, b = (f"u64({x})" for x in args) if dtype == "i64" else args
        return f"{dtype}({a} {operator} {b})"

    return text


def _compared(operator: str) -> IntegerOp:
    return lambda dtype, args: f"{args[0]} {operator} {args[1]}"


def _negative(dtype: str, args: Sequence[str]) -> str:
    return _arithmetic("-")(dtype, [f"{dtype}(0)", args[0]])


def _abs(dtype: str, args: Sequence[str]) -> str:
    if dtype not in SIGNED:
        return args[0]
    return f"{_negative(dtype, args)} if {args[0]} < {dtype}(0) else {args[0]}"


def _sign(dtype: str, args: Sequence[str]) -> str:
    (a,) = args
    nonzero = f"{dtype}(1) if {a} != {dtype}(0) else {dtype}(0)"
    return f"{dtype}(-1) if {a} < {dtype}(0) else ({nonzero})" if dtype in SIGNED else nonzero


def _function(name: str) -> IntegerOp:
    """A device function of its own for each dtype."""
    return lambda dtype, args: f"wf_{name}_{dtype}({', '.join(args)})"


def _in_range(dtype: str, b: str) -> str:
    low = f"{b} >= {dtype}(0) and " if dtype in SIGNED else ""
    return f"{low}{b} < {dtype}({bits(dtype)})"


def _shift_left(dtype: str, args: Sequence[str]) -> str:
    a, b = args
    return f"{dtype}({a} << {b}) if {_in_range(dtype, b)} else {dtype}(0)"


def _shift_right(dtype: str, args: Sequence[str]) -> str:
    a, b = args
    last = f"{dtype}({a} >> {dtype}({bits(dtype) - 1}))" if dtype in SIGNED else f"{dtype}(0)"
    return f"{dtype}({a} >> {b}) if {_in_range(dtype, b)} else {last}"


def _extremum(operator: str) -> IntegerOp:
    return lambda dtype, args: f"{args[0]} if {args[0]} {operator} {args[1]} else {args[1]}"


def _identity(dtype: str, args: Sequence[str]) -> str:
    return args[0]


def _always(truth: bool) -> IntegerOp:
    return lambda dtype, args: f"boolean({truth})"


INTEGER_OPS: dict[str, IntegerOp] = {
    **{op: _compared(operator) for op, operator in COMPARISONS.items()},
    "abs": _abs,
    "sign": _sign,
    "negative": _negative,
    "square": lambda dtype, args: _arithmetic("*")(dtype, [args[0], args[0]]),
    "add": _arithmetic("+"),
    "subtract": _arithmetic("-"),
    "multiply": _arithmetic("*"),
    "floor_divide": _function("floor_divide"),
    "remainder": _function("remainder"),
    "power": _function("power"),
    "maximum": _extremum(">="),
    "minimum": _extremum("<="),
    "bitwise_and": _bitwise("&"),
    "bitwise_or": _bitwise("|"),
    "bitwise_xor": _bitwise("^"),
    "bitwise_invert": lambda dtype, args: f"{dtype}(~{args[0]})",
    "bitwise_left_shift": _shift_left,
    "bitwise_right_shift": _shift_right,
    **dict.fromkeys(("ceil", "floor", "round", "trunc", "conj", "real"), _identity),
    "imag": lambda dtype, args: f"{dtype}(0)",
    "isnan": _always(False),
    "isinf": _always(False),
    "isfinite": _always(True),
}

_OR = _compared("or")
_AND = _compared("and")


def _both(text: str) -> IntegerOp:
    return lambda dtype, args: text.format(a=args[0], b=args[-1])


# As NumPy: on bool, + is or, * is and; there is no subtract and no negative.
BOOL_OPS: dict[str, IntegerOp] = {
    "equal": _both("{a} == {b}"),
    "less": _both("(not {a}) and {b}"),
    "less_equal": _both("(not {a}) or {b}"),
    "greater": _both("{a} and (not {b})"),
    "greater_equal": _both("{a} or (not {b})"),
    **dict.fromkeys(("add", "maximum", "logical_or", "bitwise_or"), _OR),
    **dict.fromkeys(("multiply", "minimum", "logical_and", "bitwise_and"), _AND),
    **dict.fromkeys(("logical_xor", "bitwise_xor", "not_equal"), _both("{a} != {b}")),
    **dict.fromkeys(("logical_not", "bitwise_invert"), _both("not {a}")),
    "abs": _identity,
}
