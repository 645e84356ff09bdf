"""Plain loop nests as launches: elementwise nests, and folds, along rows (the last loop is reduced)
or down columns.

Folds: threads of a warp or a block share a row where the last loop is reduced; where it is not,
they stand side by side on columns, eight deep. Large folds with few results are split over blocks,
which leave partial results in scratch memory, folded in order by a second launch. All of it is
chosen by sizes, so the bits are the same on every run and every device.

* Loop order, for coalescing: the 32 threads of a warp read 32 neighbouring elements at once, so the
  last loop is to be one that buffers are contiguous in: a reduced one (threads share a row) or not
  (they stand on columns).
* Rows of odd length begin anywhere: vectors are counted from the last address before the row that
  is a multiple of 128 bits. The first and the last one are read one by one.

Which kernel a nest becomes follows from its loops and extents alone. Elementwise nests are one
grid-stride loop over all elements, vector by vector; those that read across their last two loops
are transposed by tiles in shared memory. A tile is 32 x 32. What is contiguous in the last loop but
one is read along it, 32 threads side by side, and taken from shared memory along the last loop, in
which everything else is contiguous. A row of a tile has one element more than it needs, so that
neither way meets one memory bank twice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from weft.codegen.call import Address, Arg, Scratch
from weft.codegen.cuda.nests.accumulators import Accumulator, block_folds, ordered_fold, warp_fold
from weft.codegen.cuda.nests.body import (
    MOST_STATEMENTS,
    Body,
    Buffers,
    arg_of,
    index_of,
    is_aligned,
    is_contiguous,
    lanes_of,
)
from weft.codegen.cuda.source import dtypes as memory
from weft.codegen.cuda.source.dtypes import DTYPES, loaded, nbytes, stored
from weft.codegen.cuda.source.elementwise import running_dtype
from weft.codegen.cuda.source.kernel import LANES, THREADS, WARP, Launch, memory_dtype
from weft.codegen.cuda.source.writer import Source, product
from weft.codegen.nests.nest import Access, Nest, Store, simplify_nest
from weft.codegen.nests.writer import crosses
from weft.ir.analysis.index_maps import contiguous_strides
from weft.ir.dataclass import dataclass
from weft.ir.errors import UnsupportedError


def with_coalesced_loops(nest: Nest) -> Nest:
    """The nest with its loops in the order in which most of its buffers lie in memory."""
    if not nest.extents:
        return nest
    last = max(range(len(nest.extents)), key=lambda k: (_contiguous(nest, k), k))
    kinds = [k for k in range(len(nest.extents)) if nest.reduced[k] is nest.reduced[last]]
    others = [k for k in range(len(nest.extents)) if nest.reduced[k] is not nest.reduced[last]]
    kinds.append(kinds.pop(kinds.index(last)))
    return simplify_nest(_arranged(nest, others + kinds))


def _contiguous(nest: Nest, loop: int) -> int:
    """How many buffers lie in memory as the loop goes."""
    walks = [a.strides for a in nest.loads if isinstance(a.leaf, int)]
    walks += [w.strides for w in nest.stores if w.reduction is None]
    return sum(strides[loop] in (1, -1) for strides in walks)


def _arranged(nest: Nest, loops: list[int]) -> Nest:
    def pick(strides: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(strides[k] for k in loops) if strides else ()

    return replace(
        nest,
        extents=tuple(nest.extents[k] for k in loops),
        reduced=tuple(nest.reduced[k] for k in loops),
        loads=tuple(replace(a, strides=pick(a.strides)) for a in nest.loads),
        stores=tuple(replace(w, strides=pick(w.strides)) for w in nest.stores),
    )


#: So many elements, by vectors or one by one, a thread reads before it adds them up.
AHEAD = 4


@dataclass(frozen=True, slots=True)
class Target:
    """The destination of a fold's results: to their output, or, with `steps`, to scratch memory:
    part k of result p to `offset + p * steps[0] + k * steps[1]`."""

    store: Store
    dtype: str
    arg: Arg
    offset: int = 0
    steps: tuple[int, int] | None = None


def sizes_of(nest: Nest) -> tuple[int, int]:
    """The elements of each result, and how many are folded into one of them."""
    pairs = list(zip(nest.extents, nest.reduced, strict=True))
    return product([n for n, r in pairs if not r]), product([n for n, r in pairs if r])


class Fold:
    """A kernel that folds, with what all of them have: the indices, accumulators, results."""

    def __init__(
        self,
        kind: str,
        nest: Nest,
        buffers: Buffers,
        targets: list[Target],
        lanes: int,
        items: int | None = None,
    ) -> None:
        """items: the turns that a row takes, of `lanes` elements each; None: as many as it has."""
        self.nest, self.targets, self.lanes = nest, targets, lanes
        results, count = sizes_of(nest)
        self.s = Source(f"{nest.name}_{kind}", index_of(nest))
        self.body = Body(self.s, nest, buffers, lanes)
        self.results = self.s.number("results", results)
        self.items = self.s.number("items", count // lanes if items is None else items)
        self.pointers = [self.s.pointer(f"out{k}", t.dtype, t.arg) for k, t in enumerate(targets)]
        self.steps = [
            [self.s.number("offset", n) if n > 1 else self.s.const(n) for n in (t.offset, *t.steps)]
            if t.steps is not None
            else []
            for t in targets
        ]
        loops = range(len(nest.extents))
        #: the loops that are not reduced, and those that are
        self._loops = (
            [k for k in loops if not nest.reduced[k]],
            [k for k in loops if nest.reduced[k]],
        )
        self._extents = [
            ["", *(self._extent(k) for k in group[1:])] if group else [] for group in self._loops
        ]
        self.accumulators: list[Accumulator] = []

    def _extent(self, loop: int) -> str:
        last = loop == len(self.nest.extents) - 1
        return self.s.number(f"n{loop}", self.nest.extents[loop] // (self.lanes if last else 1))

    def open(self) -> None:
        """Accumulators of one result."""
        self.accumulators = [
            Accumulator(self.s, t.store.reduction or "", t.store.dtype) for t in self.targets
        ]

    def result_index(self, result: str) -> list[str]:
        """The indices of the loops that are not reduced."""
        return self.s.split(result, self._extents[0], "i") if self._loops[0] else []

    def add_all(self, kept: Sequence[str], bounds: tuple[str, str], step: int) -> None:
        """Iterations start, start + step, ... of the reduced loops, as long as they are less than
        stop; single elements several at once, so that as many bytes are on their way."""
        s, (start, stop) = self.s, bounds
        item = s.let(start, "r")
        ahead = AHEAD // self.lanes
        if ahead > 1:
            furthest = s.add(item, s.const((ahead - 1) * step))
            with s.block(f"while {furthest} < {stop}"):
                items = [item, *(s.add(item, s.const(k * step)) for k in range(1, ahead))]
                self._add(kept, items)
                s.line(f"{item} = {s.add(item, s.const(ahead * step))}")
        with s.block(f"while {item} < {stop}"):
            self._add(kept, [item])
            s.line(f"{item} = {s.add(item, s.const(step))}")

    def _add(self, kept: Sequence[str], items: Sequence[str]) -> None:
        """The elements of these iterations of the reduced loops."""
        s, places = self.s, []
        for item in items:
            folded = s.split(item if item.isidentifier() else s.let(item), self._extents[1], "r")
            if self.lanes > 1:
                folded[-1] = s.let(s.mul(folded[-1], s.const(self.lanes)), "j")
            places.append(folded)
        self.add_at(kept, places, self.lanes)

    def add_at(self, kept: Sequence[str], places: Sequence[Sequence[str]], lanes: int) -> None:
        """The elements at these indices of the reduced loops: all are read before any is used."""
        self.body.begin()
        read = []
        for folded in places:
            at = self._at(kept, folded)
            read.append((at, self.body.values(at, lanes)))
        for at, values in read:
            self.body.write(at, values)
        for target, accumulator in zip(self.targets, self.accumulators, strict=True):
            source = target.store.source
            accumulator.add([v.source(source, n) for _, v in read for n in range(lanes)])

    def _at(self, kept: Sequence[str], folded: Sequence[str]) -> list[str]:
        """The indices of all loops, in their order."""
        at = [""] * len(self.nest.extents)
        for loops, indices in zip(self._loops, (kept, folded), strict=True):
            for loop, index in zip(loops, indices, strict=False):
                at[loop] = index
        return at

    def close(self) -> tuple[list[str], list[tuple[str, str]]]:
        """The values of the accumulators, and (reduction, dtype in which it is kept) of each."""
        made = [a.close() for a in self.accumulators]
        return made, [(a.reduction, a.dtype) for a in self.accumulators]

    def store(self, result: str, part: str, values: Sequence[str]) -> None:
        """The values of a result, or of one part of it."""
        s = self.s
        self.body.begin()
        whole = any(not steps for steps in self.steps)
        at = self._at(self.result_index(result), []) if whole else []
        for target, pointer, steps, value in zip(
            self.targets, self.pointers, self.steps, values, strict=True
        ):
            place = self.body.place(0, target.store.strides, at) if not steps else ""
            if steps:
                pairs = zip((result, part), steps[1:], strict=True)
                place = s.total([steps[0], *(s.mul(n, step) for n, step in pairs)])
            s.line(f"{pointer}[{place}] = {stored(target.dtype, value)}")


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
    nest = with_coalesced_loops(nest)
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


#: A grid has at most so many blocks; their threads go on in strides of the grid.
MOST_BLOCKS = 65536


def elementwise_launch(nest: Nest, buffers: Buffers) -> Launch:
    """The launch of a nest whose loops are all parallel."""
    if not nest.extents:
        nest = _one_loop(nest)
    lanes = lanes_of(nest)
    s = Source(f"{nest.name}_each", index_of(nest))
    body = Body(s, nest, buffers, lanes)
    items = product(nest.extents) // lanes
    count = s.number("items", items)
    first = s.let(s.add(s.mul(s.block_index, s.const(THREADS)), s.thread), "first")
    *outer, last = nest.extents
    inner = [s.number(f"n{k + 1}", n) for k, n in enumerate((*outer[1:], last // lanes)) if outer]
    step = s.let(s.mul(s.block_count, s.const(THREADS)), "step")
    with s.loop(first, count, step) as i:
        body.begin()
        at = s.split(i, ["", *inner] if outer else [""])
        if lanes > 1:
            at[-1] = s.let(s.mul(at[-1], s.const(lanes)), "j")
        body.write(at, body.values(at, lanes))
    if lanes > 1 and not outer:
        _tail(s, body, s.mul(count, s.const(lanes)), first, last % lanes)
    return s.launch(max(1, min(-(-items // THREADS), MOST_BLOCKS)))


def _tail(s: Source, body: Body, start: str, thread: str, rest: int) -> None:
    """The elements that make no whole vector, one each for the first threads."""
    with s.block(f"if {thread} < {s.number('rest', rest)}"):
        body.begin()
        at = [s.let(s.add(start, thread), "j")]
        body.write(at, body.values(at, 1))


def _one_loop(nest: Nest) -> Nest:
    """A single element as a loop of one iteration."""
    return replace(
        nest,
        extents=(1,),
        reduced=(False,),
        loads=tuple(replace(a, strides=(0,)) for a in nest.loads),
        stores=tuple(replace(w, strides=(0,)) for w in nest.stores),
    )


TILE = 32
#: Bytes of shared memory for tiles; what does not fit is read as it lies.
MOST_BYTES = 40960


def tiled_loads(nest: Nest) -> list[int]:
    """The loads that go through tiles: of a nest without reductions, those contiguous in the last
    loop but one."""
    if any(nest.reduced) or len(nest.extents) < 2 or min(nest.extents[-2:]) < 4:
        return []
    out, total = [], 0
    for k, access in enumerate(nest.loads):
        nbytes_ = TILE * (TILE + 1) * nbytes(access.dtype)
        if isinstance(access.leaf, int) and crosses(access) and total + nbytes_ <= MOST_BYTES:
            out.append(k)
            total += nbytes_
    return out


def transposed_launch(nest: Nest, buffers: Buffers) -> Launch:
    """The launch of a nest that has `tiled_loads`: a block for each tile."""
    s = Source(f"{nest.name}_transposed", index_of(nest))
    body = Body(s, nest, buffers)
    *outer, rows, columns = nest.extents
    tiled = {
        k: s.let(
            f"cuda.shared.array({TILE * (TILE + 1)}, {memory_dtype(nest.loads[k].dtype)})", "tile"
        )
        for k in tiled_loads(nest)
    }
    i_count, j_count = s.number("rows", rows), s.number("columns", columns)
    i_tiles, j_tiles = (s.number(f"tiles{k}", -(-n // TILE)) for k, n in enumerate((rows, columns)))
    extents = ["", *(s.number(f"n{k}", n) for k, n in enumerate(outer[1:], 1))][: len(outer)]
    *outside, i_tile, j_tile = s.split(
        s.let(s.block_index, "block"), [*(extents or []), i_tiles, j_tiles], "t"
    )
    x = s.let(s.mod(s.thread, s.const(TILE)), "x")
    y = s.let(s.div(s.thread, s.const(TILE)), "y")
    i0, j0 = (s.let(s.mul(t, s.const(TILE)), "first") for t in (i_tile, j_tile))
    steps = range(0, TILE, THREADS // TILE)
    i = s.let(s.add(i0, x), "i")
    for step in steps:
        j = s.let(s.add(j0, s.add(y, s.const(step))), "j")
        with s.block(f"if {i} < {i_count} and {j} < {j_count}"):
            body.begin()
            for k, tile in tiled.items():
                access = nest.loads[k]
                place = body.place(access.offset, access.strides, [*outside, i, j])
                spot = s.add(s.mul(s.add(y, s.const(step)), s.const(TILE + 1)), x)
                s.line(f"{tile}[{spot}] = {body.loads[k]}[{place}]")
    s.line("cuda.syncthreads()")
    j = s.let(s.add(j0, x), "j")
    for step in steps:
        i = s.let(s.add(i0, s.add(y, s.const(step))), "i")
        with s.block(f"if {i} < {i_count} and {j} < {j_count}"):
            body.begin()
            spot = s.let(s.add(s.mul(x, s.const(TILE + 1)), s.add(y, s.const(step))), "spot")
            turned = {
                k: [s.let(loaded(nest.loads[k].dtype, f"{tile}[{spot}]"), "turned")]
                for k, tile in tiled.items()
            }
            at = [*outside, i, j]
            body.write(at, body.values(at, 1, turned))
    tiles = -(-rows // TILE) * -(-columns // TILE)
    return s.launch(product(outer) * tiles)


def plain_launches(
    nest: Nest, outputs: Sequence[Address], operands: Sequence[Address]
) -> list[Launch]:
    """The launches of a nest on these buffers, in order; none if there is nothing to write.

    Buffers begin at multiples of 16 bytes. Launches with the same `Scratch` see the same memory.
    Raises UnsupportedError for an op, or a dtype, that has no GPU code.
    """
    _check_dtypes(nest)
    buffers = Buffers(outputs, operands)
    written = [n for n, reduced in zip(nest.extents, nest.reduced, strict=True) if not reduced]
    if product(written) == 0 or _picks_of_nothing(nest):
        return []
    if any(nest.reduced):
        return fold_launches(nest, buffers)
    if tiled_loads(nest):
        return [transposed_launch(nest, buffers)]
    return [elementwise_launch(nest, buffers)]


def _check_dtypes(nest: Nest) -> None:
    held = [access.dtype for access in nest.loads] + [store.dtype for store in nest.stores]
    other = next((dtype for dtype in held if dtype not in DTYPES), None)
    if other is not None:
        raise UnsupportedError(
            f"kernel '{nest.name}' on {other} has no GPU code",
            hint="complex numbers run on the CPU only",
        )


def _picks_of_nothing(nest: Nest) -> bool:
    """Whether indices pick from an axis of no elements: the check before tells of all of them."""
    return any(size == 0 for access in nest.loads for _, _, size in access.picks)
