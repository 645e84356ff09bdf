"""Cutting of a plain nest into units, from its loops and extents alone.

* A nest whose outermost loop is parallel: units are blocks of that loop; if the next loop is
  parallel too, of the two together (`pair`), so that a few long rows are cut as well. Neighbouring
  units write different cache lines.
* A nest whose outermost loop is reduced: units are fixed blocks of it, times blocks of the next
  loop if that is parallel (`partial`). Each block of the reduced loop has partial results of its
  own, which `folds.combine_call` adds up in order; a single block writes the output."""

from __future__ import annotations

from typing import Literal

from weft.codegen.call import Address, KernelCall, Scratch
from weft.codegen.llvm.elements import width_bits
from weft.codegen.llvm.target import narrower
from weft.codegen.nests.folds import (
    MOST_PARTIALS,
    SUM_BLOCK,
    Partials,
    combine_call,
    lay_out,
    running_dtype,
)
from weft.codegen.nests.nest import Access, Nest
from weft.ir.cost.rates import APART_NS, arithmetic, streamed
from weft.ir.dataclass import dataclass
from weft.ir.sizes import smallest

CutKind = Literal["none", "single", "pair", "partial", "partial_pair"]
#: Elements of an innermost loop that make one unit: whole cache lines of every dtype.
ELEMENTS = 1024
#: Sides of the tiles in which a transposed operand is read.
TILE = 64
#: Rows of one number each that make one unit.
ROWS = 64
#: A block of a reduced loop that folds rows has at least so many of them.
LEAST_ROWS = 16
#: A block of a reduced loop has at least so many elements.
LEAST_FOLDED = 4 * SUM_BLOCK


def cut_kind(nest: Nest) -> CutKind:
    """Which loops are cut: a matter of structure, so that the sizes may change."""
    kinds = nest.reduced[:2]
    if not kinds:
        return "none"
    if kinds[0]:
        return "partial_pair" if kinds == (True, False) else "partial"
    return "pair" if kinds == (False, False) and not is_tiled(nest) else "single"


def is_tiled(nest: Nest) -> bool:
    """Whether an operand of a nest without folds is contiguous in the last loop but one: it is read
    in tiles, or each of its cache lines would be read again for every element.
    """
    if any(nest.reduced) or len(nest.extents) < 2:
        return False
    return any(crosses(a) for a in nest.loads)


def crosses(load: Access) -> bool:
    """Whether a load is contiguous in the last loop but one."""
    return load.leaf != "index" and not load.picks and load.pattern()[-2:] == "1s"


def is_transposing_copy(nest: Nest) -> bool:
    """Whether a tiled nest only moves elements, so that it needs no buffer in between."""
    (store, *others), inner = nest.stores, nest.stores[0].strides[-1:]
    plain = len(nest.loads) == 1 and not nest.statements and not others and inner == (1,)
    return plain and store.dtype == nest.loads[0].dtype and store.source == ("load", 0)


@dataclass(frozen=True, slots=True)
class Cut:
    """outer, inner: the iterations of the first and the second loop in one unit; inner_blocks: how
    many units there are along the second loop (1 if it is not cut). partials: of the folds.
    """

    kind: CutKind
    units: int
    outer: int
    inner: int
    inner_blocks: int
    partials: tuple[Partials, ...] = ()
    scratch: Scratch | None = None

    def combine_calls(self) -> list[KernelCall]:
        """What adds up the partial results."""
        return [combine_call(p, self.scratch) for p in self.partials if self.scratch]


def cut_nest(nest: Nest, outputs: list[Address]) -> Cut:
    """The cut of a nest whose stores go to `outputs`."""
    kind, extents = cut_kind(nest), nest.extents
    if kind == "none":
        return Cut(kind, 1, 1, 1, 1)
    first = extents[0]
    rest = _product(extents[1:])
    if kind == "single":
        block = ELEMENTS if len(extents) == 1 else 1 if rest >= ELEMENTS else ROWS
        block = TILE if is_tiled(nest) and len(extents) == 2 else block
        return Cut(kind, _blocks(first, block), block, 1, 1)
    if kind == "pair":
        deep = _product(extents[2:])
        block = max(1, -(-ELEMENTS // max(deep, 1))) if first < 4 * MOST_PARTIALS else extents[1]
        block = smallest(block, max(extents[1], 1))
        blocks = max(_blocks(extents[1], block), 1)
        return Cut(kind, first * blocks, 1, block, blocks)
    return _cut_folds(nest, kind, outputs)


def _cut_folds(nest: Nest, kind: CutKind, outputs: list[Address]) -> Cut:
    first, rest = nest.extents[0], _product(nest.extents[1:])
    block = max(_blocks(first, MOST_PARTIALS), _blocks(LEAST_FOLDED, max(rest, 1)), 1)
    inner, inner_blocks = 1, 1
    if kind == "partial_pair":
        inner = nest.extents[1]
        # few long rows: no partial results, they would be as large as the rows
        block = max(block, LEAST_ROWS)
        if inner >= 4 * ELEMENTS and _blocks(first, block) < 4:
            block, inner = max(first, 1), ELEMENTS
        inner_blocks = max(_blocks(nest.extents[1], inner), 1)
    elif len(nest.extents) == 1:
        block = _blocks(block, SUM_BLOCK) * SUM_BLOCK
    blocks = max(_blocks(first, block), 1)
    folds = [(s.reduction, s.dtype, fold_count(nest), outputs[s.output]) for s in nest.stores]
    named = [(r, d, c, o) for r, d, c, o in folds if r is not None]
    partials, nbytes = lay_out(named, blocks)
    if blocks == 1 and all(p.running == p.dtype for p in partials):
        return Cut(kind, inner_blocks, block, inner, inner_blocks)
    return Cut(
        kind, blocks * inner_blocks, block, inner, inner_blocks, tuple(partials), Scratch(nbytes)
    )


def fold_count(nest: Nest) -> int:
    """Elements of the result of a fold: of all parallel loops."""
    return _product(tuple(n for n, r in zip(nest.extents, nest.reduced, strict=True) if not r))


def fold_dtype(nest: Nest, reduction: str, dtype: str) -> str:
    """The dtype that partial results of the nest are kept in."""
    if cut_kind(nest) not in ("partial", "partial_pair"):
        return dtype
    return running_dtype(reduction, dtype, all(nest.reduced))


def unit_nanoseconds(nest: Nest, cut: Cut) -> float:
    """An estimate of what one unit takes on one core."""
    count = _product(nest.extents)
    read = [a for a in nest.loads if a.leaf != "index" and any(a.strides)]
    moved = [a.dtype for a in read] + [s.dtype for s in nest.stores if s.reduction is None]
    apart = sum(bool(a.picks) or crosses(a) for a in read)
    work = arithmetic((s.op, s.dtype) for s in nest.statements) * narrower() + APART_NS * apart
    total = max(work * count, streamed(sum(map(width_bits, moved)) / 8 * count))
    return total / max(cut.units, 1)


def _blocks(size: int, block: int) -> int:
    return -(-size // max(block, 1))


def _product(sizes: tuple[int, ...]) -> int:
    total = 1
    for size in sizes:
        total *= size
    return total
