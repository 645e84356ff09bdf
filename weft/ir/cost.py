"""Cost model of the CPU: prices of arithmetic and of memory traffic, code size, cuts of long sums.

Prices are nanoseconds on one core, measured with AVX-512 and operands in the caches;
`benchmarks/prices.py` holds them against the clock. Code generation cuts calls for threads by them
(`codegen/cost.py`), `passes/fusion/recompute.py` weighs them.

Code size is the number of LLVM instructions that one element of an elementwise op takes. What a
compiler takes for a kernel grows with its instructions, from some thousands on faster than they do:
fusion cuts nests by this measure (`MOST_INSTRUCTIONS`). A test holds the table against the code
that is emitted.

Products with a small result and a long sum over k have too few blocks of C for threads to share,
and all of both operands passes through each: k is cut into `k_pieces`, each of which gives a
partial product of its own; they are added up in order."""

from __future__ import annotations

from collections.abc import Iterable

#: A byte that is streamed: from memory, and from the caches of one core, which hold so many bytes.
NS_PER_BYTE_STREAMED, NS_PER_BYTE_CACHED, CACHED = 0.02, 0.0045, 1 << 20

#: Elementwise ops at f32, nanoseconds for an element in a vectorised loop.
_NANOSECONDS = {
    **dict.fromkeys(("divide", "sqrt", "reciprocal", "exp", "exp2"), 0.06),
    **dict.fromkeys(("rsqrt", "tanh", "cosh"), 0.1),
    "sigmoid": 0.14,
    **dict.fromkeys(("expm1", "sinh", "log", "log1p", "erf", "hypot"), 0.18),
    **dict.fromkeys(("log2", "log10", "sin", "cos", "asin", "acos"), 0.28),
    **dict.fromkeys(("tan", "atan"), 0.36),
    **dict.fromkeys(("power", "logaddexp", "atan2", "atanh", "cbrt"), 0.52),
    **dict.fromkeys(("erfc", "asinh", "acosh"), 0.7),
    "erfinv": 1.3,
    "digamma": 2.7,
    "lgamma": 2.8,
    "remainder": 0.35,
    "floor_divide": 0.35,
}
_CHEAP = 0.012
#: How many times as long as f32 other operands take.
_WIDER = {"f64": 2.5, "i64": 2.0, "u64": 2.0, "c64": 40.0, "c128": 40.0}
#: Divisions of integers are single instructions at 64 bits, else they are vectors of floats.
_INTEGER_DIVISION, _NARROW_DIVISION = 1.5, 0.2


def streamed(nbytes: float) -> float:
    """Nanoseconds that so many bytes of a call's operands and results take, one after another."""
    cached = min(nbytes, CACHED)
    return cached * NS_PER_BYTE_CACHED + (nbytes - cached) * NS_PER_BYTE_STREAMED


def arithmetic(ops: Iterable[tuple[str, str]]) -> float:
    """Nanoseconds of the (op, operand dtype) pairs of a loop's body for one element."""
    return sum(_arithmetic(op, dtype) for op, dtype in ops)


def _arithmetic(op: str, dtype: str) -> float:
    if op in ("remainder", "floor_divide") and dtype[0] in "iu":
        return _INTEGER_DIVISION if dtype in ("i64", "u64") else _NARROW_DIVISION
    price = _NANOSECONDS.get(op)
    if price is None:
        return _CHEAP * min(_WIDER.get(dtype, 1.0), 4.0)
    return price if price >= 2.7 else price * _WIDER.get(dtype, 1.0)


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


#: Results of up to so many tiles of `TILE` elements are small.
FEW_TILES, TILE = 32, (8, 48)
#: A piece of k has at least so many products, and there are at most so many pieces.
LEAST_DEPTH, MOST_PIECES = 2048, 64


def k_pieces(m: int, n: int, k: int, count: int = 1) -> int:
    """Into how many pieces the sums over k of `count` products of m x k by k x n are cut."""
    tiles = -(-m // TILE[0]) * -(-n // TILE[1])
    if count != 1 or not 0 < tiles <= FEW_TILES or k < 2 * LEAST_DEPTH:
        return 1
    return min(MOST_PIECES, k // LEAST_DEPTH)
