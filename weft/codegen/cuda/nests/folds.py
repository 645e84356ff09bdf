"""Nests with reductions: along rows (the last loop is reduced) or down columns.

Threads of a warp or a block share a row where the last loop is reduced; where it is not, they stand
side by side on columns, eight deep. Large folds with few results are split over blocks, which leave
partial results in scratch memory, folded in order by a second launch. All of it is chosen by sizes,
so the bits are the same on every run and every device.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.codegen.call import Scratch
from weft.codegen.cuda.kernel import THREADS, Launch
from weft.codegen.cuda.nests.accumulate import (
    WARP,
    block_folds,
    ordered_fold,
    warp_fold,
)
from weft.codegen.cuda.nests.body import Buffers, lanes_of
from weft.codegen.cuda.nests.fold import Fold, Target, sizes_of
from weft.codegen.cuda.nests.odd_rows import fold_of, odd_items, odd_lanes, odd_loads
from weft.codegen.cuda.nests.order import ordered
from weft.codegen.cuda.scalars.memory import nbytes
from weft.codegen.cuda.scalars.scalar import running_dtype, stored
from weft.codegen.cuda.writer import Source, product
from weft.codegen.nests.nest import Access, Nest, Store, simplify_nest
from weft.ir.analysis.index_maps import contiguous_strides
from weft.ir.dataclass import dataclass

#: Folds are split until there are about so many blocks.
ENOUGH_BLOCKS = 1024
#: Vectors of a row that one block takes at least, and rows that one block of columns does.
LEAST_ITEMS, LEAST_ROWS = 8 * THREADS, 64
#: Rows of at most so many vectors are a warp's.
WARP_ITEMS = 512
#: A reduced loop of at most so many iterations is one thread's.
FEW = 8
#: Columns that one block has side by side.
COLUMNS = 32


@dataclass(frozen=True, slots=True)
class Split:
    """A reduced loop in `parts` parts of `size` iterations each, the last one shorter."""

    parts: int
    size: int


def fold_launches(nest: Nest, buffers: Buffers) -> list[Launch]:
    """The launches of a nest that has reduced loops."""
    nest = ordered(nest)
    results, count = sizes_of(nest)
    if count <= FEW or not nest.reduced[-1]:
        return _columns(nest, buffers, results, count)
    return _rows(nest, buffers, results, count)


def split(count: int, blocks: int, least: int, step: int) -> Split:
    """`count` iterations in so many parts that there are enough blocks, if `blocks` take one part
    each; parts have at least `least` iterations, and whole steps."""
    parts = min(-(-ENOUGH_BLOCKS // blocks), count // least)
    if parts <= 1:
        return Split(1, count)
    size = -(-count // (parts * step)) * step
    return Split(-(-count // size), size)


def _rows(nest: Nest, buffers: Buffers, results: int, count: int) -> list[Launch]:
    lanes, odd = lanes_of(nest), frozenset[int]()
    items = count // lanes
    if lanes == 1:
        odd = odd_loads(nest, buffers)
        lanes = odd_lanes(nest, odd)
        items = odd_items(count, lanes)
    cut = split(items, results, LEAST_ITEMS, THREADS)
    targets, second = _targets(nest, buffers, results, cut.parts, rows=True)
    if cut.parts == 1 and items <= WARP_ITEMS and results > 1:
        return [_warp_rows(nest, buffers, targets, lanes, odd), *second]
    return [_block_rows(nest, buffers, targets, cut, lanes, odd), *second]


def _columns(nest: Nest, buffers: Buffers, results: int, count: int) -> list[Launch]:
    deep = 1 if count <= FEW else THREADS // COLUMNS
    blocks = -(-results * deep // THREADS)
    cut = split(count, blocks, LEAST_ROWS, deep)
    targets, second = _targets(nest, buffers, results, cut.parts, rows=False)
    return [_column_launch(nest, buffers, targets, cut, deep), *second]


# -- partial results ------------------------------------------------------------------------------


def _targets(
    nest: Nest, buffers: Buffers, results: int, parts: int, rows: bool
) -> tuple[list[Target], list[Launch]]:
    """Where the folds go, and what folds their partial results if there are several parts."""
    folds = [w for w in nest.stores if w.reduction is not None]
    if parts == 1:
        return [Target(w, w.dtype, buffers.outputs[w.output]) for w in folds], []
    offsets, total = [], 0
    kept = [running_dtype(w.reduction or "", w.dtype) for w in folds]
    for dtype in kept:
        offsets.append(total // nbytes(dtype))
        total += -(-results * parts * nbytes(dtype) // 64) * 64
    scratch, steps = Scratch(total), (parts, 1) if rows else (1, results)
    targets = [
        Target(w, dtype, scratch, offset, steps)
        for w, dtype, offset in zip(folds, kept, offsets, strict=True)
    ]
    return targets, [_combine(nest, buffers, targets, parts, rows)]


def _combine(nest: Nest, buffers: Buffers, targets: list[Target], parts: int, rows: bool) -> Launch:
    """The fold of partial results, as a nest of its own."""
    loops = [k for k, reduced in enumerate(nest.reduced) if not reduced]
    sizes = tuple(nest.extents[k] for k in loops)

    def along(results: tuple[int, ...], part: int) -> tuple[int, ...]:
        return (*results, part) if rows else (part, *results)

    loads, stores = [], []
    for k, target in enumerate(targets):
        assert target.steps is not None
        step, part = target.steps
        within = tuple(step * n for n in contiguous_strides(sizes))
        loads.append(Access(k, target.dtype, target.offset, along(within, part)))
        places = along(tuple(target.store.strides[n] for n in loops), 0)
        fold = target.store
        stores.append(Store(k, fold.dtype, ("load", k), fold.reduction, places))
    reduced = tuple(bool(n) for n in along((0,) * len(loops), 1))
    second = simplify_nest(
        Nest(f"{nest.name}_combine", along(sizes, parts), reduced, tuple(loads), (), tuple(stores))
    )
    own = Buffers([buffers.outputs[t.store.output] for t in targets], [t.arg for t in targets])
    results = product(sizes)
    direct, _ = _targets(second, own, results, 1, rows)
    if not rows:
        deep = 1 if parts <= FEW else THREADS // COLUMNS
        return _column_launch(second, own, direct, Split(1, parts), deep)
    lanes = lanes_of(second)
    if parts // lanes <= WARP_ITEMS and results > 1:
        return _warp_rows(second, own, direct, lanes)
    return _block_rows(second, own, direct, Split(1, parts // lanes), lanes)


# -- kernels --------------------------------------------------------------------------------------


def _warp_rows(
    nest: Nest,
    buffers: Buffers,
    targets: list[Target],
    lanes: int,
    odd: frozenset[int] = frozenset(),
) -> Launch:
    """A warp for each result."""
    f = fold_of("warp_rows", nest, buffers, targets, lanes, odd)
    s, warps = f.s, THREADS // WARP
    warp = s.div(s.thread, s.const(WARP))
    row = s.let(s.add(s.mul(s.block_index, s.const(warps)), warp), "row")
    lane = s.let(s.mod(s.thread, s.const(WARP)), "lane")
    with s.block(f"if {row} < {f.results}"):
        kept = f.result_index(row)
        f.open()
        f.add_all(kept, (lane, f.items), WARP)
        values, folds = f.close()
        made = [warp_fold(s, v, *fold) for v, fold in zip(values, folds, strict=True)]
        with s.block(f"if {lane} == {s.const(0)}"):
            f.store(row, s.const(0), made)
    results, _ = sizes_of(nest)
    return s.launch(-(-results // warps))


def _block_rows(
    nest: Nest,
    buffers: Buffers,
    targets: list[Target],
    cut: Split,
    lanes: int,
    odd: frozenset[int] = frozenset(),
) -> Launch:
    """A block for each result, or each part of one."""
    f = fold_of("block_rows", nest, buffers, targets, lanes, odd)
    s = f.s
    thread = s.let(s.thread, "thread")
    row, part, start, stop = s.block_index, s.const(0), thread, f.items
    if cut.parts > 1:
        row, part, start, stop = _part(f, cut)
        start = s.add(start, thread)
    row = s.let(row, "row")
    kept = f.result_index(row)
    f.open()
    f.add_all(kept, (start, stop), THREADS)
    if lanes > 1 and len(nest.extents) == 1:
        _fold_tail(f, cut, part, thread)
    values, folds = f.close()
    made = block_folds(s, values, folds, THREADS)
    with s.block(f"if {thread} == {s.const(0)}"):
        f.store(row, part, made)
    results, _ = sizes_of(nest)
    return s.launch(results * cut.parts)


def _part(f: Fold, cut: Split) -> tuple[str, str, str, str]:
    """Of the block: what it folds for, which part of that, and where the part begins and ends."""
    s = f.s
    parts, size = s.number("parts", cut.parts), s.number("size", cut.size)
    unit = s.div(s.block_index, parts)
    part = s.let(s.mod(s.block_index, parts), "part")
    start = s.let(s.mul(part, size), "start")
    end = s.add(start, size)
    return unit, part, start, s.let(f"{end} if {end} < {f.items} else {f.items}", "stop")


def _fold_tail(f: Fold, cut: Split, part: str, thread: str) -> None:
    """The elements of a single loop that make no whole vector: the first threads' of the last
    part."""
    s = f.s
    rest = s.number("rest", f.nest.extents[0] % f.lanes)
    last = f" and {part} == {s.sub(s.number('last', cut.parts), s.const(1))}"
    with s.block(f"if {thread} < {rest}" + last * (cut.parts > 1)):
        index = s.let(s.add(s.mul(f.items, s.const(f.lanes)), thread), "j")
        f.add_at([], [[index]], 1)


def _column_launch(
    nest: Nest, buffers: Buffers, targets: list[Target], cut: Split, deep: int
) -> Launch:
    """Neighbouring results by neighbouring threads, `deep` threads for each."""
    f = Fold("columns", nest, buffers, targets, 1)
    s, wide = f.s, THREADS // deep
    thread = s.let(s.thread, "thread")
    tile, part, start, stop = s.block_index, s.const(0), s.const(0), f.items
    if cut.parts > 1:
        tile, part, start, stop = _part(f, cut)
    column = s.mod(thread, s.const(wide)) if deep > 1 else thread
    column = s.let(s.add(s.mul(tile, s.const(wide)), column), "column")
    f.open()
    if deep > 1:
        row = s.let(s.div(thread, s.const(wide)), "row")
        start = s.add(start, row)
    with s.block(f"if {column} < {f.results}"):
        kept = f.result_index(column)
        f.add_all(kept, (start, stop), deep)
    values, folds = f.close()
    if deep > 1:
        values = _columns_fold(s, values, folds, (thread, wide, deep))
        row_test = f"{row} == {s.const(0)} and "
    else:
        row_test = ""
    with s.block(f"if {row_test}{column} < {f.results}"):
        f.store(column, part, values)
    results, _ = sizes_of(nest)
    return s.launch(-(-results // wide) * cut.parts)


def _columns_fold(
    s: Source, values: Sequence[str], folds: Sequence[tuple[str, str]], sizes: tuple[str, int, int]
) -> list[str]:
    """The folds over the threads of each column, in their order."""
    thread, wide, deep = sizes
    arrays = []
    for value, (_, dtype) in zip(values, folds, strict=True):
        memory = "u8" if dtype == "bool" else dtype
        arrays.append(s.let(f"cuda.shared.array({wide * deep}, {memory})", "shared"))
        s.line(f"{arrays[-1]}[{thread}] = {stored(dtype, value)}")
    s.line("cuda.syncthreads()")
    column = s.let(s.mod(thread, s.const(wide)), "at")
    return [
        ordered_fold(s, (array, column, s.const(wide)), deep, *fold)
        for array, fold in zip(arrays, folds, strict=True)
    ]
