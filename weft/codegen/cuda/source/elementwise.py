"""Elementwise operations on one element as kernel source, for every dtype, and steps of folds.

`expression` is the entry. The meaning is NumPy 2's, as on the CPU (`codegen/scalar`). Operands are
names or constants: a text may hold them twice.

* Floats: at f32 or f64; 16-bit floats compute in f32. Comparisons, NaN, infinities and signed zeros
  behave as in NumPy.
* Integers and bool: arithmetic wraps. As in NumPy, `x // 0 == x % 0 == 0`, shifts by at least the
  width (or by a negative amount) shift everything out, and `MIN // -1 == MIN`. An integer to a
  negative integer power, which NumPy refuses, is the exact result truncated to an integer.
* Device functions that expressions call, `wf_NAME_DTYPE`: each is emitted once a kernel. They have
  no early returns and no synchronisation, so that a warp stays together.
* digamma and lgamma are device functions with the CPU's tables (`codegen/vector/special.py`):
  libdevice has no digamma, and its lgamma of f64 spills registers. digamma of f32 computes in f32:
  within 5 units in the last place for positive numbers; for negative ones, between which its zeros
  are, the same of the larger of the two terms that cancel."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence

import numpy as np

from weft.codegen.cuda.source import dtypes
from weft.codegen.cuda.source.dtypes import (
    DTYPES,
    FLOATS,
    HALVES,
    SIGNED,
    bits,
    highest,
    literal,
    lowest,
    register_dtype,
)
from weft.codegen.cuda.source.kernel import UserFunction
from weft.codegen.llvm.scalar_texts import is_user_function, split_name
from weft.codegen.scalar.integers import COMPARISONS
from weft.codegen.vector import special as gamma
from weft.ir.errors import UnsupportedError
from weft.ir.ops.reduction import FOLDS

Lines = list[str]


def digamma(dtype: str) -> str:
    """The definition of `wf_digamma_f32` or `wf_digamma_f64`."""
    w = _Writer(dtype)
    body = [*w.reduced(), *w.digamma_positive(), *w.digamma_reflected()]
    return "\n".join([f"def wf_digamma_{dtype}(a):", *body, ""])


def lgamma(dtype: str) -> str:
    """The definition of `wf_lgamma_f32` (libdevice's, but at -inf) or `wf_lgamma_f64`."""
    w = _Writer(dtype)
    low = w.number(float("-inf"))
    body = [f"    return a if a == {low} else lgamma_{dtype}(a)"]
    if dtype == "f64":
        body = [*w.reduced(), *w.lgamma_positive(), *w.lgamma_reflected()]
    return "\n".join([f"def wf_lgamma_{dtype}(a):", *body, ""])


class _Writer:
    """Lines at one dtype; `{T}` in a text stands for it."""

    def __init__(self, dtype: str) -> None:
        self.dtype = dtype

    def number(self, value: float) -> str:
        return literal(self.dtype, value)

    def lines(self, *texts: str) -> Lines:
        return ["    " + text.replace("{T}", self.dtype) for text in texts]

    def horner(self, name: str, x: str, coefficients: Sequence[float]) -> Lines:
        """Lines that leave the polynomial in `x`, constant first, in `name`."""
        *rest, last = (self.number(c) for c in coefficients)
        texts = [f"{name} = fma_{{T}}({name}, {x}, {c})" for c in reversed(rest)]
        return self.lines(f"{name} = {last}", *texts)

    def reduced(self) -> Lines:
        """y > 0: a, or 1 - a where a < 0; f: a less the nearest integer."""
        return self.lines(
            "y = {T}({T}(1) - a) if a < {T}(0) else a",
            "f = {T}(a - rint_{T}(a))",
            "square = {T}(f * f)",
        )

    # -- digamma ----------------------------------------------------------------------------------

    def root(self) -> list[float]:
        """digamma's positive zero as a sum of numbers of the dtype."""
        if self.dtype == "f64":
            return list(gamma.DIGAMMA_ROOT)
        high = float(np.float32(gamma.DIGAMMA_ROOT[0]))
        return [high, gamma.DIGAMMA_ROOT[0] - high + gamma.DIGAMMA_ROOT[1]]

    def digamma_positive(self) -> Lines:
        """The asymptotic series, or digamma on [1, 2] and the recurrence's sum of 1 / (t + i)."""
        big = self.number(gamma.DIGAMMA_BIG)
        steps = [
            text
            for i in range(6)
            for text in (
                f"step = {{T}}(t + {{T}}({i}))",
                f"top = fma_{{T}}(top, step, bottom) if n > {{T}}({i}) else top",
                f"bottom = {{T}}(bottom * step) if n > {{T}}({i}) else bottom",
            )
        ]
        return [
            *self.lines(
                f"moderate = {big} if y >= {big} else y",
                "n = {T}(floor_{T}(moderate) - {T}(1))",
                "t = {T}(moderate - n)",
                "top = {T}(-1) if y < {T}(1) else {T}(0)",
                "bottom = y if y < {T}(1) else {T}(1)",
                *steps,
                "g = t",
                *(f"g = {{T}}(g - {self.number(part)})" for part in self.root()),
                "u = {T}(t - {T}(1))",
            ),
            *self.horner("above", "u", gamma.DIGAMMA_NUMERATOR),
            *self.horner("below", "u", gamma.DIGAMMA_DENOMINATOR),
            *self.lines(
                "ratio = {T}(above / below)",
                f"near = fma_{{T}}(g, {self.number(gamma.DIGAMMA_Y)}, {{T}}(g * ratio))",
                "near = {T}({T}(top / bottom) + near)",
                "inverse = {T}({T}(1) / y)",
                "z = {T}(inverse * inverse)",
            ),
            *self.horner("tail", "z", gamma.DIGAMMA_TAIL),
            *self.lines(
                "far = {T}({T}(log_{T}(y) - {T}(inverse * {T}(0.5))) - {T}(z * tail))",
                f"result = far if y >= {big} else near",
            ),
        ]

    def digamma_reflected(self) -> Lines:
        """digamma(1 - a) - pi / tan(pi a) for a < 0 (Abramowitz & Stegun 6.3.7)."""
        return [
            *self.lines("twice = fabs_{T}({T}(f + f))"),
            *self.horner("even", "square", gamma.DIGAMMA_COT),
            *self.lines(
                "even = {T}({T}({T}({T}(1) - twice) * {T}(twice + {T}(1))) * even)",
                "mirrored = {T}(result - {T}(even / f))",
                f"mirrored = {self.number(float('nan'))} if f == {{T}}(0) else mirrored",
                "return mirrored if a < {T}(0) else result",
            ),
        ]

    # -- lgamma -----------------------------------------------------------------------------------

    def lgamma_positive(self) -> Lines:
        """Stirling's series, or lgamma(2 + g) and the logarithm of what gamma's recurrence gives
        (`codegen/vector/special.py` has why)."""
        big, constant = self.number(gamma.LGAMMA_BIG), self.number(gamma.LGAMMA_CONSTANT)
        steps = [
            f"product = {{T}}(product * {{T}}(g + {{T}}({j}))) if n > {{T}}({j}) else product"
            for j in range(2, 7)
        ]
        return [
            *self.lines(
                f"moderate = {big} if y >= {big} else y",
                "n = floor_{T}({T}(moderate + {T}(0.5)))",
                "g = {T}(moderate - n)",
                "product = {T}(1)",
                *steps,
                "divisor = {T}(y * {T}(y + {T}(1))) if n < {T}(1) else y",
                "taken = divisor if n < {T}(2) else product",
                f"logarithm = log_{{T}}(y if y >= {big} else taken)",
                "signed = -logarithm if n < {T}(2) else logarithm",
            ),
            *self.horner("near", "g", gamma.LGAMMA),
            *self.lines(
                "near = fma_{T}(g, near, signed)",
                "inverse = {T}({T}(1) / y)",
                "z = {T}(inverse * inverse)",
            ),
            *self.horner("tail", "z", gamma.LGAMMA_TAIL),
            *self.lines(
                f"tail = {{T}}({{T}}(inverse * tail) + {constant})",
                "far = fma_{T}({T}(y - {T}(0.5)), {T}(logarithm - {T}(1)), tail)",
                f"result = far if y >= {big} else near",
            ),
        ]

    def lgamma_reflected(self) -> Lines:
        """log(pi / |sin(pi a)|) - lgamma(1 - a) for a < 0 (Abramowitz & Stegun 6.1.17)."""
        low, high = (self.number(float(text)) for text in ("-inf", "inf"))
        return [
            *self.horner("sine", "square", gamma.SINC),
            *self.lines(
                "sine = {T}(fabs_{T}(f) * sine)",
                "mirrored = {T}(-log_{T}(sine) - result)",
                f"mirrored = {high} if f == {{T}}(0) else mirrored",
                "result = mirrored if a < {T}(0) else result",
                f"return a if a == {low} else result",
            ),
        ]


_CALL = re.compile(r"\bwf_([a-z_]+)_([iufb]+\d+)\b")


def device_functions(text: str) -> str:
    """The definitions of all device functions that `text` calls, those that they call first."""
    made: dict[str, str] = {}

    def define(called: str) -> None:
        for name, dtype in _CALL.findall(called):
            symbol = f"wf_{name}_{dtype}"
            if symbol not in made and name in _DEFINITIONS:
                definition = _DEFINITIONS[name](dtype)
                define(definition.replace(f"def {symbol}(", "def ("))
                made.setdefault(symbol, definition)

    define(text)
    return "".join(definition + "\n\n" for definition in made.values())


def _definition(name: str, dtype: str, parameters: str, body: str, **texts: str) -> str:
    """A definition; `T` in the body stands for the dtype, `W` for that of unsigned arithmetic."""
    wide = "u64" if bits(dtype) == 64 else "u32"
    words = {"T": dtype, "W": wide, **texts}
    body = re.sub(r"\$(\w)", lambda match: words[match.group(1)], body)
    lines = [line for line in body.strip("\n").splitlines() if line.strip()]
    return "\n".join([f"def wf_{name}_{dtype}({parameters}):", *lines, ""])


_MAGNITUDES = """
    x = $W($W(0) - $W(a)) if a < $T(0) else $W(a)
    y = $W($W(0) - $W(b)) if b < $T(0) else $W(b)
    y = $W(1) if b == $T(0) else y
    quotient = div_$W(x, y)
    rest = $W(x - $W(quotient * y))
"""
_FLOOR_DIVIDE_SIGNED = f"""{_MAGNITUDES}
    apart = (a < $T(0)) != (b < $T(0))
    quotient = $W(quotient + $W(1)) if apart and rest != $W(0) else quotient
    signed = $T($W(0) - quotient) if apart else $T(quotient)
    return $T(0) if b == $T(0) else signed
"""
_REMAINDER_SIGNED = f"""{_MAGNITUDES}
    apart = (a < $T(0)) != (b < $T(0))
    rest = $W(y - rest) if apart and rest != $W(0) else rest
    return $T($W(0) - rest) if b < $T(0) else $T(rest)
"""
_FLOOR_DIVIDE_UNSIGNED = """
    y = $W(1) if b == $T(0) else $W(b)
    return $T(0) if b == $T(0) else $T(div_$W($W(a), y))
"""
_REMAINDER_UNSIGNED = """
    y = $W(1) if b == $T(0) else $W(b)
    return $T(rem_$W($W(a), y))
"""
_POWER = """
    base = $W(a)
    left = $N
    result = $W(1)
    while left != $W(0):
        if $W(left & $W(1)) != $W(0):
            result = $W(result * base)
        base = $W(base * base)
        left = $W(left >> $W(1))
"""
_POWER_SIGNED = f"""{_POWER}
    unit = a if $T(b & $T(1)) != $T(0) else $T(1)
    inverse = unit if a == $T(1) or a == $T(-1) else $T(0)
    return inverse if b < $T(0) else $T(result)
"""
_POWER_UNSIGNED = f"""{_POWER}
    return $T(result)
"""
# f64 -> f32 rounded to odd: rounding the result again, to 16 bits, is then exact (S. Boldo,
# G. Melquiond, "Emulation of FMA and correctly rounded sums", 2008)
_ODD = """
    nearest = f32(a)
    back = f64(nearest)
    word = bits_f32(nearest)
    lower = u32(word - u32(1)) if fabs_f64(back) > fabs_f64(a) else word
    return f32_bits(u32(lower | u32(1)) if back != a else word)
"""
_SIGMOID = """
    decay = exp_$T(-fabs_$T(a))
    top = $T(1) if a >= $T(0) else decay
    return $T(top / $T($T(1) + decay))
"""
# max + log(1 + e**-|a - b|); equal operands, infinities among them, apart (as NumPy)
_LOGADDEXP = """
    difference = $T(a - b)
    larger = a if difference > $T(0) else b
    total = $T(larger + log1p_$T(exp_$T(-fabs_$T(difference))))
    return $T(a + $L) if a == b else total
"""
# NumPy's npy_divmod
_FLOOR_DIVIDE_FLOAT = """
    rest = fmod_$T(a, b)
    quotient = $T($T(a - rest) / b)
    adjust = rest != $T(0) and (b < $T(0)) != (rest < $T(0))
    quotient = $T(quotient - $T(1)) if adjust else quotient
    whole = floor_$T(quotient)
    whole = $T(whole + $T(1)) if $T(quotient - whole) > $T(0.5) else whole
    ratio = $T(a / b)
    whole = copysign_$T($T(0), ratio) if quotient == $T(0) else whole
    return ratio if b == $T(0) else whole
"""
_REMAINDER_FLOAT = """
    rest = fmod_$T(a, b)
    adjust = rest != $T(0) and (b < $T(0)) != (rest < $T(0))
    moved = $T(rest + b) if adjust else rest
    return copysign_$T($T(0), b) if rest == $T(0) else moved
"""
# C99 F.9.8.3 on 16 bits: those of one sign order as integers
_NEXTAFTER = """
    x_bits = f32_to_$T(a)
    y_bits = f32_to_$T(b)
    x = $T_to_f32(x_bits)
    y = $T_to_f32(y_bits)
    smallest = u16(u16(y_bits & u16(32768)) | u16(1))
    step = u16(1) if (x < y) != (x < f32(0)) else u16(65535)
    moved = smallest if x == f32(0) else u16(x_bits + step)
    result = moved if x < y or x > y else y_bits
    return $T_to_f32(x_bits if x != x else result)
"""


#: Float -> integer: what is out of range becomes the end of it and NaN 0, as on the CPU
#: (`codegen/scalar/elementwise.py`); LLVM's own conversion would leave it undefined. H is the
#: greatest float in the range, M the greatest integer.
_WHOLE = """
    low = a if a > $L else $L
    whole = $I(low if low < $H else $H)
    whole = $M if a > $H else whole
    return whole if a == a else $I(0)
"""
_ENDS = {
    ("i32", "f32"): (-(2.0**31), 2.0**31 - 2.0**7),
    ("i32", "f64"): (-(2.0**31), 2.0**31 - 1.0),
    ("i64", "f32"): (-(2.0**63), 2.0**63 - 2.0**39),
    ("i64", "f64"): (-(2.0**63), 2.0**63 - 2.0**10),
    ("u64", "f32"): (0.0, 2.0**64 - 2.0**40),
    ("u64", "f64"): (0.0, 2.0**64 - 2.0**11),
}


def _whole(name: str, target: str) -> Callable[[str], str]:
    def define(dtype: str) -> str:
        low, high = (literal(dtype, end) for end in _ENDS[target, dtype])
        most = literal(target, highest(target))
        return _definition(name, dtype, "a", _WHOLE, I=target, L=low, H=high, M=most)

    return define


def _floor_divide(dtype: str) -> str:
    body = _FLOOR_DIVIDE_SIGNED if dtype in SIGNED else _FLOOR_DIVIDE_UNSIGNED
    body = _FLOOR_DIVIDE_FLOAT if dtype.startswith("f") else body
    return _definition("floor_divide", dtype, "a, b", body)


def _remainder(dtype: str) -> str:
    body = _REMAINDER_SIGNED if dtype in SIGNED else _REMAINDER_UNSIGNED
    body = _REMAINDER_FLOAT if dtype.startswith("f") else body
    return _definition("remainder", dtype, "a, b", body)


def _power(dtype: str) -> str:
    if dtype not in SIGNED:
        wide = "u64" if bits(dtype) == 64 else "u32"
        return _definition("power", dtype, "a, b", _POWER_UNSIGNED, N=f"{wide}(b)")
    wide = "u64" if bits(dtype) == 64 else "u32"
    exponent = f"{wide}(0) if b < {dtype}(0) else {wide}(b)"
    return _definition("power", dtype, "a, b", _POWER_SIGNED, N=exponent)


_DEFINITIONS: dict[str, Callable[[str], str]] = {
    "floor_divide": _floor_divide,
    "remainder": _remainder,
    "power": _power,
    "int": _whole("int", "i32"),
    "long": _whole("long", "i64"),
    "ulong": _whole("ulong", "u64"),
    "odd": lambda dtype: _definition("odd", dtype, "a", _ODD),
    "sigmoid": lambda dtype: _definition("sigmoid", dtype, "a", _SIGMOID),
    "logaddexp": lambda dtype: _definition(
        "logaddexp", dtype, "a, b", _LOGADDEXP, L=literal(dtype, math.log(2.0))
    ),
    "lgamma": lgamma,
    "nextafter": lambda dtype: _definition("nextafter", dtype, "a, b", _NEXTAFTER),
    "digamma": digamma,
}


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
_FLOAT_FUNCTIONS = ("lgamma", "digamma", "sigmoid", "logaddexp", "floor_divide", "remainder")


def _called(name: str) -> FloatOp:
    return lambda dtype, args: f"{name}_{dtype}({', '.join(args)})"


def _between(operator: str) -> FloatOp:
    return lambda dtype, args: f"{args[0]} {operator} {args[1]}"


def _float_arithmetic(operator: str) -> FloatOp:
    return lambda dtype, args: f"{dtype}({args[0]} {operator} {args[1]})"


def _float_sign(dtype: str, args: Sequence[str]) -> str:
    (a,) = args
    nonzero = f"copysign_{dtype}({dtype}(1), {a}) if {a} != {dtype}(0) else {dtype}(0)"
    return f"{a} if {a} != {a} else ({nonzero})"


def _erfinv(dtype: str, args: Sequence[str]) -> str:
    """A zero keeps its sign, as on the CPU, whatever the function underneath does."""
    (a,) = args
    return f"{a} if {a} == {dtype}(0) else erfinv_{dtype}({a})"


def _float_extremum(operator: str) -> FloatOp:
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
    "add": _float_arithmetic("+"),
    "subtract": _float_arithmetic("-"),
    "multiply": _float_arithmetic("*"),
    "divide": _float_arithmetic("/"),
    "negative": lambda dtype, args: f"-{args[0]}",
    "square": lambda dtype, args: f"{dtype}({args[0]} * {args[0]})",
    "reciprocal": lambda dtype, args: f"{dtype}({dtype}(1) / {args[0]})",
    "sign": _float_sign,
    "erfinv": _erfinv,
    **{op: _called(name) for op, name in _MATHS.items()},
    **{op: _called(f"wf_{op}") for op in _FLOAT_FUNCTIONS},
    "maximum": _float_extremum(">"),
    "minimum": _float_extremum("<"),
    "isnan": lambda dtype, args: f"{args[0]} != {args[0]}",
    "isinf": _isinf,
    "isfinite": _isfinite,
    "signbit": lambda dtype, args: f"copysign_{dtype}({dtype}(1), {args[0]}) < {dtype}(0)",
    **dict.fromkeys(("conj", "real"), lambda dtype, args: args[0]),
    "imag": lambda dtype, args: f"{dtype}(0)",
}


IntegerOp = Callable[[str, Sequence[str]], str]


def _bitwise(operator: str) -> IntegerOp:
    return lambda dtype, args: f"{dtype}({args[0]} {operator} {args[1]})"


def _integer_arithmetic(operator: str) -> IntegerOp:
    """Narrow integers are computed in 64 bits; those of 64 bits as unsigned ones, which wrap."""

    def text(dtype: str, args: Sequence[str]) -> str:
        a, b = (f"u64({x})" for x in args) if dtype == "i64" else args
        return f"{dtype}({a} {operator} {b})"

    return text


def _compared(operator: str) -> IntegerOp:
    return lambda dtype, args: f"{args[0]} {operator} {args[1]}"


def _negative(dtype: str, args: Sequence[str]) -> str:
    return _integer_arithmetic("-")(dtype, [f"{dtype}(0)", args[0]])


def _abs(dtype: str, args: Sequence[str]) -> str:
    if dtype not in SIGNED:
        return args[0]
    return f"{_negative(dtype, args)} if {args[0]} < {dtype}(0) else {args[0]}"


def _integer_sign(dtype: str, args: Sequence[str]) -> str:
    (a,) = args
    nonzero = f"{dtype}(1) if {a} != {dtype}(0) else {dtype}(0)"
    return f"{dtype}(-1) if {a} < {dtype}(0) else ({nonzero})" if dtype in SIGNED else nonzero


def _integer_function(name: str) -> IntegerOp:
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


def _integer_extremum(operator: str) -> IntegerOp:
    return lambda dtype, args: f"{args[0]} if {args[0]} {operator} {args[1]} else {args[1]}"


def _identity(dtype: str, args: Sequence[str]) -> str:
    return args[0]


def _always(truth: bool) -> IntegerOp:
    return lambda dtype, args: f"boolean({truth})"


INTEGER_OPS: dict[str, IntegerOp] = {
    **{op: _compared(operator) for op, operator in COMPARISONS.items()},
    "abs": _abs,
    "sign": _integer_sign,
    "negative": _negative,
    "square": lambda dtype, args: _integer_arithmetic("*")(dtype, [args[0], args[0]]),
    "add": _integer_arithmetic("+"),
    "subtract": _integer_arithmetic("-"),
    "multiply": _integer_arithmetic("*"),
    "floor_divide": _integer_function("floor_divide"),
    "remainder": _integer_function("remainder"),
    "power": _integer_function("power"),
    "maximum": _integer_extremum(">="),
    "minimum": _integer_extremum("<="),
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


__all__ = [
    "device_functions",
    "expression",
    "fold_expression",
    "identity",
    "literal",
    "register_dtype",
    "running_dtype",
    "supported",
]


#: Letters of the results of users' functions; all others are floats.
_RESULTS = {"i64": "i", "u64": "u", "bool": "b"}


def supported(op: str, dtype: str, result_dtype: str) -> bool:
    """Whether `expression` takes `op` at operand dtype `dtype`."""
    if dtype not in DTYPES or result_dtype not in DTYPES:
        return False
    if op == "bitcast":
        return dtypes.can_bitcast(dtype, result_dtype)
    if op in ("astype", "where"):
        return True
    if dtype in FLOATS:
        return op in FLOAT_OPS
    return op in (BOOL_OPS if dtype == "bool" else INTEGER_OPS)


def expression(op: str, dtype: str, result_dtype: str, args: Sequence[str]) -> str:
    """The register value of `op` on register values; `dtype` is that of the operands (for `where`,
    whose first operand is bool, of the other two). Raises UnsupportedError.
    """
    if is_user_function(op):
        _, code, letters = split_name(op)
        result = _RESULTS.get(result_dtype, "f")
        return f"{UserFunction(code, letters, result, dtype).name}({', '.join(args)})"
    if not supported(op, dtype, result_dtype):
        raise UnsupportedError(
            f"op '{op}' on {dtype} -> {result_dtype} has no GPU code",
            hint="run it on the CPU" if dtype in DTYPES else "complex numbers run on the CPU only",
        )
    if op == "astype":
        return dtypes.astype(dtype, result_dtype, args[0])
    if op == "bitcast":
        return dtypes.bitcast(dtype, result_dtype, args[0])
    if op == "where":
        return f"{args[1]} if {args[0]} else {args[2]}"
    if dtype in HALVES:
        if op == "nextafter":  # neighbours are those of the 16-bit format
            return f"wf_nextafter_{dtype}({args[0]}, {args[1]})"
        return FLOAT_OPS[op]("f32", args)
    if dtype in FLOATS:
        return FLOAT_OPS[op](dtype, args)
    return (BOOL_OPS if dtype == "bool" else INTEGER_OPS)[op](dtype, args)


def running_dtype(reduction: str, dtype: str) -> str:
    """The dtype in which a fold over elements of `dtype` is kept."""
    return register_dtype(dtype)


def fold_expression(reduction: str, dtype: str, a: str, b: str) -> str:
    """One step of a fold on two register values of the dtype in which it is kept."""
    return expression(FOLDS[reduction], dtype, dtype, (a, b))


def identity(reduction: str, dtype: str) -> str:
    """The value that a fold starts from."""
    if reduction in ("sum", "any", "prod", "all"):
        return literal(dtype, reduction in ("prod", "all"))
    if dtype in FLOATS:
        return literal(dtype, float("-inf" if reduction == "max" else "inf"))
    if dtype == "bool":
        return literal(dtype, reduction == "min")
    return literal(dtype, lowest(dtype) if reduction == "max" else highest(dtype))
