"""Size of the code of elementwise ops: how many LLVM instructions one element takes.

What a compiler takes for a kernel grows with its instructions, from some thousands on faster than
they do: fusion cuts nests by this measure (`MOST_INSTRUCTIONS`). A test holds the table against the
code that is emitted.
"""

from __future__ import annotations

#: The most code of a nest that ops join (one op alone may have more): LLVM takes 0.1 to 0.2 s for
#: it. A nest so long computes for 5 to 20 ns an element; what is written and read again at the cut
#: takes 0.04 to 0.2.
MOST_INSTRUCTIONS = 1024

#: Of ops at f32 (16-bit floats are computed in f32), where they are not one or two instructions.
_F32 = {
    **dict.fromkeys(("maximum", "minimum", "sign", "logical_xor"), 5),
    **dict.fromkeys(("hypot", "nextafter"), 16),
    **dict.fromkeys(("exp2", "cosh", "asin", "acos", "tanh", "exp", "log"), 24),
    **dict.fromkeys(
        ("erf", "tan", "cos", "sin", "remainder", "sinh", "atan", "expm1", "sigmoid"), 32
    ),
    **dict.fromkeys(("floor_divide", "acosh", "asinh", "log1p", "atanh"), 43),
    **dict.fromkeys(("log2", "log10", "atan2", "erfc", "cbrt", "erfinv"), 54),
    **dict.fromkeys(("power", "logaddexp"), 72),
    **dict.fromkeys(("digamma", "lgamma"), 160),
}
_F64 = {
    **dict.fromkeys(("exp", "exp2", "cosh", "hypot"), 26),
    **dict.fromkeys(("tanh", "expm1", "log", "sinh", "remainder", "floor_divide", "sigmoid"), 38),
    **dict.fromkeys(("asin", "acos", "log1p", "log2", "log10", "cbrt"), 50),
    **dict.fromkeys(("atanh", "acosh", "asinh", "cos", "sin"), 64),
    **dict.fromkeys(("atan", "tan", "erf", "erfc", "logaddexp"), 80),
    **dict.fromkeys(("atan2", "erfinv", "power"), 127),
}
#: Of integers, those that are loops of instructions.
_INTEGERS = dict.fromkeys(("floor_divide", "remainder", "power"), 16)
#: Complex numbers are computed in parts: so many times as much as of their parts' dtype.
_COMPLEX = 6
_FEW = 2
#: What a nest reads from memory: the address of an element, and its load.
OF_A_LOAD = 3


def instructions(op: str, dtype: str) -> int:
    """About how many LLVM instructions an elementwise op on operands of this dtype takes."""
    kind = dtype[0]
    if kind == "c":
        return _COMPLEX * instructions(op, "f64" if dtype == "c128" else "f32")
    if kind in "fb" and dtype != "bool":
        known = _F64.get(op) if dtype == "f64" else None
        return known or _F32.get(op, _FEW)
    return _INTEGERS.get(op, _FEW)
