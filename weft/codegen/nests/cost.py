"""What elementwise work costs in loops: for keeping values, and for how loops are written.

Prices of single ops are those of `weft.ir.cost` for any target: nanoseconds for one element in a
vectorised loop. Nothing but speed depends on them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from weft.ir.cost import arithmetic

#: A plain vector instruction, memory included: of folds that add up partial results.
CHEAP = 0.05
#: Bodies that cost at least so much are interleaved by `INTERLEAVE`, and those that cost `DEAR_NS`
#: beside their dearest op by twice as much, unless they cost `LONGEST_NS` (the code takes long to
#: compile).
LONG_NS, DEAR_NS, LONGEST_NS = 0.06, 0.4, 6.0
INTERLEAVE = 4
#: Short (`vector/tables.py`): they count for `LONG_NS` only. More of them side by side do not wait
#: less, and spill.
BY_TABLES = frozenset({("exp", "f32"), ("log", "f32"), ("erf", "f32")})
#: An innermost loop of a nest over several is not shorter than this, or its remainder, which is not
#: interleaved, is most of the work; or it leaves no remainder. Twice that for `DEAR_NS`.
LEAST_INTERLEAVED, NO_REMAINDER = 256, 64


def op_nanoseconds(op: str, dtype: str) -> float:
    """One element of an elementwise op at this operand dtype."""
    return arithmetic([(op, dtype)])


def interleave(
    ops: Iterable[tuple[str, str]], extents: Sequence[int], chain: float | None = None
) -> int:
    """How many vectors an iteration of the innermost loop over these (op, dtype) pairs should do;
    0: LLVM's choice. LLVM takes long bodies one by one, and they wait for their own results.

    chain: the nanoseconds of what one result follows from, if that is not all: what several results
    need does not wait. A single loop is taken to be long, so that its extent is no matter of the
    kernel.
    """
    done = list(ops)
    prices = [op_nanoseconds(op, dtype) for op, dtype in done]
    work = sum(prices)
    if not extents or not LONG_NS <= work <= LONGEST_NS:
        return 0
    long = [price for op, price in zip(done, prices, strict=True) if op not in BY_TABLES]
    waits = (work if chain is None else chain) - (work - sum(long))
    for times in (2, 1) if waits - max(long, default=0.0) >= DEAR_NS else (1,):
        if is_long(extents, times):
            return times * INTERLEAVE
    return 0


def is_long(extents: Sequence[int], times: int = 1) -> bool:
    """Whether the innermost loop is long enough to be interleaved, or leaves no remainder."""
    if len(extents) < 2:
        return True
    return extents[-1] >= times * LEAST_INTERLEAVED or extents[-1] % (times * NO_REMAINDER) == 0
