"""In which lanes a loop adds up."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from weft.codegen.elements import HALVES, width_bits
from weft.codegen.llvm.target import target_vector_bits
from weft.codegen.nests.cost import INTERLEAVE, is_long


def lanes_of_folds(
    folds: Iterable[tuple[str, str]], ops: int, extents: Sequence[int], interleave: int
) -> tuple[int, int]:
    """How many vectors the innermost of these loops does at once, of how many lanes, if it folds
    (reduction, dtype) over the results of so many ops; 0: LLVM's choice. interleave: what its ops
    alone would have.

    In which lanes a sum adds up decides its last bits, and LLVM would choose by the loop's memory
    accesses: by whether an operand is overwritten, say, which is another kernel of the same nest.
    """
    widths = [width_bits(d) for r, d in folds if r in ("sum", "prod") and d in ("f32", "f64")]
    widths += [32 for r, d in folds if r in ("sum", "prod") and d in HALVES]
    if not widths:
        return interleave, 0
    lanes = target_vector_bits() // max(widths)
    if interleave or not is_long(extents):
        return interleave or 1, lanes if is_long(extents) else short_lanes(extents[-1], lanes)
    many = INTERLEAVE * max(widths) // 32
    return (many if ops <= 8 else many // 2 if ops <= 16 else 1), lanes


def short_lanes(count: int, lanes: int) -> int:
    """The lanes, these or fewer, by which so many elements take the fewest steps: what is left over
    is done one by one."""
    fewer = (lanes >> k for k in range(3) if lanes >> k)
    return min(fewer, key=lambda n: count // n + count % n)


def lanes_key(extents: Sequence[int]) -> str:
    """What `lanes_of_folds` takes of the extents, as text."""
    if is_long(extents):
        return "long"
    return " ".join(["short", *(str(short_lanes(extents[-1], n)) for n in (16, 8, 4, 2))])
