"""Folds along rows of odd length, which begin anywhere: vectors are counted from the last address
before the row that is a multiple of 128 bits. The first and the last one are read one by one.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.codegen.cuda.language import LANES, memory_dtype
from weft.codegen.cuda.nests.body import MOST_STATEMENTS, Buffers, arg_of, is_aligned, is_contiguous
from weft.codegen.cuda.nests.fold import Fold, Target, sizes_of
from weft.codegen.cuda.scalars import memory
from weft.codegen.cuda.scalars.memory import nbytes
from weft.codegen.nests.nest import Nest


def odd_loads(nest: Nest, buffers: Buffers) -> frozenset[int]:
    """The loads of 128 bits, by their numbers: those that are contiguous along the row and move
    from row to row as most do; none if nothing is to be had."""
    simple = nest.reduced[-1:] == (True,) and not any(nest.reduced[:-1]) and len(nest.reduced) > 1
    stores = any(w.reduction is None for w in nest.stores)
    if not simple or stores or any(a.picks for a in nest.loads):
        return frozenset()
    if nest.extents[-1] < memory.LEAST_ODD:
        return frozenset()
    walks = [
        k
        for k, a in enumerate(nest.loads)
        if isinstance(a.leaf, int)
        and is_contiguous(a.strides)
        and nbytes(a.dtype) > 1
        and min(a.strides) >= 0
        and is_aligned(arg_of(nest, a, buffers))
    ]
    most = max([LANES[memory_dtype(nest.loads[k].dtype)] for k in walks], default=1)
    walks = [k for k in walks if nest.loads[k].offset % most == 0]
    ways = [nest.loads[k].strides for k in walks if any(nest.loads[k].strides[:-1])]
    way = max(ways, key=ways.count, default=None)
    odd = frozenset(k for k in walks if nest.loads[k].strides == way)
    return (
        odd if odd_lanes(nest, odd) * 2 * len(nest.statements) <= MOST_STATEMENTS else frozenset()
    )


def odd_lanes(nest: Nest, odd: frozenset[int]) -> int:
    """Elements of a vector: 128 bits of the narrowest of these loads; 1 if there are none."""
    return max([LANES[memory_dtype(nest.loads[k].dtype)] for k in odd], default=1)


def odd_items(count: int, lanes: int) -> int:
    """Vectors of a row of so many elements, wherever it begins."""
    return -(-(count + lanes - 1) // lanes)


def fold_of(
    kind: str,
    nest: Nest,
    buffers: Buffers,
    targets: list[Target],
    lanes: int,
    odd: frozenset[int],
) -> Fold:
    """The kernel of a fold; odd: what `odd_loads` says of it."""
    if not odd:
        return Fold(kind, nest, buffers, targets, lanes)
    return OddFold(kind, nest, buffers, targets, odd)


class OddFold(Fold):
    """A fold along rows of odd length."""

    def __init__(
        self, kind: str, nest: Nest, buffers: Buffers, targets: list[Target], odd: frozenset[int]
    ) -> None:
        lanes = odd_lanes(nest, odd)
        _, count = sizes_of(nest)
        super().__init__(f"odd_{kind}", nest, buffers, targets, lanes, odd_items(count, lanes))
        self.body.odd = odd
        self.size = self.s.number("size", count)

    def add_all(self, kept: Sequence[str], bounds: tuple[str, str], step: int) -> None:
        """Vectors start, start + step, ... as long as they are less than stop."""
        s, lanes = self.s, self.lanes
        access = self.nest.loads[min(self.body.odd)]
        self.body.begin()
        base = self.body.place(access.offset, access.strides, [*kept, s.const(0)])
        shift = s.let(s.mod(base, s.const(lanes)), "shift")
        end = s.let(s.add(self.size, shift), "end")
        with s.loop(bounds[0], bounds[1], s.const(step), "r") as item:
            j = s.let(s.mul(item, s.const(lanes)), "j")
            after = s.let(s.add(j, s.const(lanes)), "after")
            with s.block(f"if {j} >= {shift} and {after} <= {end}"):
                self.add_at(kept, [[s.let(s.sub(j, shift), "first")]], lanes)
            with s.block("else"):
                for k in range(lanes):
                    at = s.let(s.add(j, s.const(k)), "at")
                    with s.block(f"if {at} >= {shift} and {at} < {end}"):
                        self.add_at(kept, [[s.let(s.sub(at, shift), "one")]], 1)
