"""What elementwise work costs, roughly: for cutting calls over threads, and for keeping values.

Figures are nanoseconds for one f32 element in a loop over 8 lanes, measured once on a 4 GHz core to
within a factor of two; wider types take in proportion. Nothing but speed depends on them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

#: Ops that cost more than a plain vector instruction (`CHEAP`).
_NANOSECONDS = {
    **dict.fromkeys(("divide", "sqrt", "reciprocal", "rsqrt"), 0.2),
    **dict.fromkeys(("exp", "exp2", "expm1", "sigmoid", "tanh", "erf"), 0.5),
    **dict.fromkeys(("log", "log2", "log10", "log1p", "sin", "cos"), 0.6),
    **dict.fromkeys(("sinh", "cosh", "erfc", "power", "logaddexp"), 1.2),
    **dict.fromkeys(("tan", "asin", "acos", "atan", "asinh", "acosh", "atanh"), 6.0),
    **dict.fromkeys(("atan2", "hypot", "remainder", "floor_divide"), 6.0),
    **dict.fromkeys(("erfinv", "digamma", "lgamma"), 20.0),
}
CHEAP = 0.05
#: Bodies that cost at least so much are interleaved by `INTERLEAVE`, unless they are longer than
#: `LONGEST_NS` (registers are spilt then, and the code takes long to compile).
LONG_NS, LONGEST_NS = 0.2, 6.0
INTERLEAVE = 4
#: An innermost loop of a nest over several is not shorter than this, or its remainder, which is not
#: interleaved, is most of the work.
LEAST_INTERLEAVED = 256
_BYTES = {"f64": 8, "i64": 8, "u64": 8, "c64": 8, "c128": 16}


def op_nanoseconds(op: str, dtype: str) -> float:
    """One element of an elementwise op at this operand dtype."""
    return _NANOSECONDS.get(op, CHEAP) * _BYTES.get(dtype, 4) / 4


def element_nanoseconds(
    ops: Iterable[tuple[str, str]], dtypes: Iterable[str], ns_per_byte: float
) -> float:
    """One element of a loop body: its (op, dtype) pairs, and the dtypes of loads and stores."""
    work = sum(op_nanoseconds(op, dtype) for op, dtype in ops)
    return max(work, ns_per_byte * sum(_BYTES.get(d, 4) for d in dtypes)) + CHEAP


def interleave(ops: Iterable[tuple[str, str]], extents: Sequence[int]) -> int:
    """How many vectors an iteration of the innermost loop over these (op, dtype) pairs should do;
    0: LLVM's choice. LLVM takes long bodies one by one, and they wait for their own results.

    A single loop is taken to be long, so that its extent is no matter of the kernel.
    """
    if not extents or (len(extents) > 1 and extents[-1] < LEAST_INTERLEAVED):
        return 0
    work = sum(op_nanoseconds(op, dtype) for op, dtype in ops)
    return INTERLEAVE if LONG_NS <= work <= LONGEST_NS else 0
