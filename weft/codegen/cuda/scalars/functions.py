"""Device functions that expressions call, `wf_NAME_DTYPE`: each is emitted once a kernel.

They have no early returns and no synchronisation, so that a warp stays together.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable

from weft.codegen.cuda.scalars.gamma import digamma, lgamma
from weft.codegen.cuda.scalars.memory import SIGNED, bits, highest, literal

_CALL = re.compile(r"\bwf_([a-z_]+)_([iufb]+\d+)\b")


def device_functions(text: str) -> str:
    """The definitions of all device functions that `text` calls, those that they call first."""
    made: dict[str, str] = {}

    def define(called: str) -> None:
        for name, dtype in _CALL.findall(called):
            symbol = f"wf_{name}_{dtype}"
            if symbol not in made and name in _FUNCTIONS:
                definition = _FUNCTIONS[name](dtype)
                define(definition.replace(f"def {symbol}(", "def ("))
                made.setdefault(symbol, definition)

    define(text)
    return "".join(definition + "\n\n" for definition in made.values())


def _function(name: str, dtype: str, parameters: str, body: str, **texts: str) -> str:
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
#: (`codegen/scalar/cast.py`); LLVM's own conversion would leave it undefined. H is the greatest
#: float in the range, M the greatest integer.
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
        return _function(name, dtype, "a", _WHOLE, I=target, L=low, H=high, M=most)

    return define


def _floor_divide(dtype: str) -> str:
    body = _FLOOR_DIVIDE_SIGNED if dtype in SIGNED else _FLOOR_DIVIDE_UNSIGNED
    body = _FLOOR_DIVIDE_FLOAT if dtype.startswith("f") else body
    return _function("floor_divide", dtype, "a, b", body)


def _remainder(dtype: str) -> str:
    body = _REMAINDER_SIGNED if dtype in SIGNED else _REMAINDER_UNSIGNED
    body = _REMAINDER_FLOAT if dtype.startswith("f") else body
    return _function("remainder", dtype, "a, b", body)


def _power(dtype: str) -> str:
    if dtype not in SIGNED:
        wide = "u64" if bits(dtype) == 64 else "u32"
        return _function("power", dtype, "a, b", _POWER_UNSIGNED, N=f"{wide}(b)")
    wide = "u64" if bits(dtype) == 64 else "u32"
    exponent = f"{wide}(0) if b < {dtype}(0) else {wide}(b)"
    return _function("power", dtype, "a, b", _POWER_SIGNED, N=exponent)


_FUNCTIONS: dict[str, Callable[[str], str]] = {
    "floor_divide": _floor_divide,
    "remainder": _remainder,
    "power": _power,
    "int": _whole("int", "i32"),
    "long": _whole("long", "i64"),
    "ulong": _whole("ulong", "u64"),
    "odd": lambda dtype: _function("odd", dtype, "a", _ODD),
    "sigmoid": lambda dtype: _function("sigmoid", dtype, "a", _SIGMOID),
    "logaddexp": lambda dtype: _function(
        "logaddexp", dtype, "a, b", _LOGADDEXP, L=literal(dtype, math.log(2.0))
    ),
    "lgamma": lgamma,
    "nextafter": lambda dtype: _function("nextafter", dtype, "a, b", _NEXTAFTER),
    "digamma": digamma,
}
