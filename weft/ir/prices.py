"""Prices: what arithmetic and streamed bytes take, in nanoseconds on one core.

Measured with AVX-512 and operands in the caches; `benchmarks/prices.py` holds them against the
clock. Code generation cuts calls by them (`codegen/cost.py`), `passes/recompute.py` weighs them.
"""

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
