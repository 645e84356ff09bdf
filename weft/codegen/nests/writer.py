"""Code of a plain nest: how it is cut into units, loops, tiles, gathers, accumulators, statements
(arguments: `nests/calls.py`).

Reductions over the innermost loops accumulate in registers; f32 sums are cut into blocks of
`SUM_BLOCK` elements, summed in f32 by vector lanes, whose totals add up in f64. The shape of that
tree depends on nothing but the extent, so the bits do not change from run to run. Reductions over
outer loops accumulate in the output or its partial results.

Where an operand is contiguous across the innermost loop, the last two loops go in tiles, which are
transposed in registers. `PickWalk` is a gather: a load whose place takes in what its index loads
say; its cache lines are prefetched.

How a nest is cut into units follows from its loops and extents alone:

* A nest whose outermost loop is parallel: units are blocks of that loop; if the next loop is
  parallel too, of the two together (`pair`), so that a few long rows are cut as well. Neighbouring
  units write different cache lines.
* A nest whose outermost loop is reduced: units are fixed blocks of it, times blocks of the next
  loop if that is parallel (`partial`). Each block of the reduced loop has partial results of its
  own, which `folds.combine_call` adds up in order; a single block writes the output."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

from llvmlite import ir

from weft.codegen.call import Address, KernelCall, Scratch
from weft.codegen.llvm.emitter import I64, Emitter, memory_type, width_bits
from weft.codegen.llvm.target import narrower, target_vector_bits
from weft.codegen.nests.folds import (
    MOST_PARTIALS,
    SUM_BLOCK,
    Held,
    Partials,
    combine_call,
    convert,
    fold,
    identity,
    is_wide_sum,
    lay_out,
    running_dtype,
)
from weft.codegen.nests.nest import (
    Access,
    Nest,
    Statement,
    Store,
    lanes_of_folds,
    op_nanoseconds,
)
from weft.codegen.scalar.element_access import load_element, store_element
from weft.codegen.scalar.elementwise import emit_scalar
from weft.codegen.scalar.user_functions import loops_inside
from weft.codegen.tiles.packing import interleave
from weft.ir.cost.rates import APART_NS, streamed
from weft.ir.dataclass import dataclass
from weft.ir.dtypes import as_dtype
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
    """Sizes of the units of a nest. outer, inner: the iterations of the first and the second loop
    in one unit; inner_blocks: how many units there are along the second loop (1 if it is not cut).
    partials: of the folds.
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
    rest = math.prod(extents[1:])
    if kind == "single":
        block = ELEMENTS if len(extents) == 1 else 1 if rest >= ELEMENTS else ROWS
        block = TILE if is_tiled(nest) and len(extents) == 2 else block
        return Cut(kind, _blocks(first, block), block, 1, 1)
    if kind == "pair":
        deep = math.prod(extents[2:])
        block = max(1, -(-ELEMENTS // max(deep, 1))) if first < 4 * MOST_PARTIALS else extents[1]
        block = smallest(block, max(extents[1], 1))
        blocks = max(_blocks(extents[1], block), 1)
        return Cut(kind, first * blocks, 1, block, blocks)
    return _cut_folds(nest, kind, outputs)


def _cut_folds(nest: Nest, kind: CutKind, outputs: list[Address]) -> Cut:
    first, rest = nest.extents[0], math.prod(nest.extents[1:])
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
    return math.prod(n for n, r in zip(nest.extents, nest.reduced, strict=True) if not r)


def fold_dtype(nest: Nest, reduction: str, dtype: str) -> str:
    """The dtype that partial results of the nest are kept in."""
    if cut_kind(nest) not in ("partial", "partial_pair"):
        return dtype
    return running_dtype(reduction, dtype, all(nest.reduced))


def unit_nanoseconds(nest: Nest, cut: Cut) -> float:
    """An estimate of what one unit takes on one core."""
    count = math.prod(nest.extents)
    read = [a for a in nest.loads if a.leaf != "index" and any(a.strides)]
    moved = [a.dtype for a in read] + [s.dtype for s in nest.stores if s.reduction is None]
    apart = sum(bool(a.picks) or crosses(a) for a in read)
    work = sum(op_nanoseconds(s.op, s.dtype) for s in nest.statements) * narrower()
    work += APART_NS * apart
    total = max(work * count, streamed(sum(map(width_bits, moved)) / 8 * count))
    return total / max(cut.units, 1)


def _blocks(size: int, block: int) -> int:
    return -(-size // max(block, 1))


#: Vectors that are transposed together, at most: more than that many do not fit the registers.
MOST_VECTORS = 16


def lanes_of(dtype: str) -> int:
    """Rows and columns of a block: a vector of elements, or a cache line of large ones."""
    bits = width_bits(dtype)
    return min(target_vector_bits() // bits, MOST_VECTORS) if bits <= 64 else 512 // bits


def transpose(
    e: Emitter,
    dtype: str,
    source: tuple[ir.Value, ir.Value],
    target: tuple[ir.Value, ir.Value],
    sizes: tuple[ir.Value, ir.Value],
) -> None:
    """target[i, j] = source[j, i] for (rows, columns) `sizes` of the target; source and target are
    (pointer, elements from one row to the next). By blocks of `lanes_of` rows and columns, of which
    the last overlap; what is smaller than a block one by one.
    """
    b, lanes = e.builder, e.index(lanes_of(dtype))
    rows, columns = sizes
    large = b.and_(b.icmp_signed(">=", rows, lanes), b.icmp_signed(">=", columns, lanes))
    with b.if_else(large, likely=True) as (then, otherwise):
        with then:
            last_i, last_j = b.sub(rows, lanes), b.sub(columns, lanes)
            with (
                e.for_range(e.index(0), rows, lanes) as i,
                e.for_range(e.index(0), columns, lanes) as j,
            ):
                i = b.select(b.icmp_signed("<", i, last_i), i, last_i)
                j = b.select(b.icmp_signed("<", j, last_j), j, last_j)
                _block(e, dtype, source, target, (i, j))
        with otherwise:
            _one_by_one(e, source, target, sizes)


def _block(
    e: Emitter,
    dtype: str,
    source: tuple[ir.Value, ir.Value],
    target: tuple[ir.Value, ir.Value],
    corner: tuple[ir.Value, ir.Value],
) -> None:
    b, lanes, bits, (i, j) = e.builder, lanes_of(dtype), width_bits(dtype), corner
    wide = bits > 64
    vector = ir.VectorType(ir.IntType(64 if wide else bits), 2 if wide else lanes).as_pointer()

    def place(matrix: tuple[ir.Value, ir.Value], row: ir.Value, k: int, column: ir.Value) -> object:
        at = b.add(b.mul(b.add(row, e.index(k)), matrix[1], flags=["nsw"]), column)
        return b.bitcast(e.at(matrix[0], at), vector)

    if wide:  # an element is a vector
        for k in range(lanes):
            for n in range(lanes):
                value = b.load(place(source, j, k, b.add(i, e.index(n))), align=8)
                b.store(value, place(target, i, n, b.add(j, e.index(k))), align=8)
        return
    read = [b.load(place(source, j, k, i), align=bits // 8) for k in range(lanes)]
    for k, value in enumerate(interleave(b, read)):
        b.store(value, place(target, i, k, j), align=bits // 8)


def _one_by_one(
    e: Emitter,
    source: tuple[ir.Value, ir.Value],
    target: tuple[ir.Value, ir.Value],
    sizes: tuple[ir.Value, ir.Value],
) -> None:
    b = e.builder
    with e.for_range(e.index(0), sizes[1]) as j, e.for_range(e.index(0), sizes[0]) as i:
        value = b.load(e.at(source[0], b.add(b.mul(j, source[1], flags=["nsw"]), i)))
        b.store(value, e.at(target[0], b.add(b.mul(i, target[1], flags=["nsw"]), j)))


def tile_buffer(e: Emitter, dtype: str) -> ir.Value:
    """Memory for one tile of an operand."""
    kind = ir.ArrayType(memory_type(dtype), TILE * TILE)
    return e.builder.gep(e.alloca(kind), [e.index(0), e.index(0)], inbounds=True)


def write_tiles(w: NestWriter, loop: int, loads: list[ir.Value], stores: list[ir.Value]) -> None:
    """Loops `loop` and `loop` + 1. What is contiguous across a tile is first copied into a small
    buffer: its cache lines, often all of one set, are read once, and the body vectorises. A nest
    that only moves elements needs no buffer.
    """
    e, (first, stop) = w.e, w.range_of(loop)
    if is_transposing_copy(w.nest):
        _copy(w, loop, loads[0], stores[0])
        return
    size, width = e.index(TILE), w.extents[loop + 1]
    with (
        e.for_range(first, stop, size) as i0,
        e.for_range(e.index(0), width, size) as j0,
    ):
        i1 = w.least(e.builder.add(i0, size), stop)
        j1 = w.least(e.builder.add(j0, size), width)
        corner = i0, i1, j0, j1
        for k, buffer in w.tiles.items():
            _turn(w, k, loads[k], (buffer, size), corner)
        with e.for_range(i0, i1) as i:
            row_loads, outputs = w.moved(loop, i, loads, stores)
            lines = {
                k: e.at(buffer, e.builder.mul(e.builder.sub(i, i0), size))
                for k, buffer in w.tiles.items()
            }
            with e.for_range(j0, j1) as j:
                inside, to = w.moved(loop + 1, j, row_loads, outputs)
                for k, line in lines.items():
                    inside[k] = e.at(line, e.builder.sub(j, j0))
                w.loop(loop + 2, inside, to)


def _copy(w: NestWriter, loop: int, source: ir.Value, store: ir.Value) -> None:
    """Tiles that begin where cache lines of the source do, in rows that lie alike; tiles at an edge
    overlap others.
    """
    e, b, (first, stop) = w.e, w.e.builder, w.range_of(loop)
    dtype, size, width = w.nest.loads[0].dtype, w.e.index(TILE), w.extents[loop + 1]
    line = e.index(max(512 // width_bits(dtype), 1))
    number = b.udiv(b.ptrtoint(e.at(source, first), I64), e.index(width_bits(dtype) // 8))
    begin = b.sub(first, b.urem(number, line))
    row = w.stores[0].strides[-2]
    with e.for_range(begin, stop, size) as start, e.for_range(e.index(0), width, size) as j0:
        end = w.least(b.add(start, size), stop)
        i0, j0 = _start(w, start, first, end), _start(w, j0, e.index(0), width)
        target = e.at(stepped(e, store, i0, row), j0)
        corner = i0, end, j0, w.least(b.add(j0, size), width)
        _turn(w, 0, source, (target, e.index(0) if row is None else row), corner)


def _start(w: NestWriter, start: ir.Value, first: ir.Value, end: ir.Value) -> ir.Value:
    """Where a tile begins that is no smaller than a block if there are so many iterations."""
    b, block = w.e.builder, w.e.index(lanes_of(w.nest.loads[0].dtype))
    start = w.least(start, b.sub(end, block))
    return b.select(b.icmp_signed("<", start, first), first, start)


def _turn(
    w: NestWriter,
    k: int,
    source: ir.Value,
    target: tuple[ir.Value, ir.Value],
    corner: tuple[ir.Value, ...],
) -> None:
    """Transpose a tile of load k to the target (pointer, elements from row to row)."""
    e, b, (i0, i1, j0, j1) = w.e, w.e.builder, corner
    stride = w.strides_of(k)[-1]
    place = e.at(stepped(e, source, j0, stride), i0)
    sizes = b.sub(i1, i0), b.sub(j1, j0)
    transpose(e, w.nest.loads[k].dtype, (place, stride), target, sizes)


LINE = 64
#: How many rows before it is read a row is asked for; what an index says, no processor foresees.
AHEAD, MOST_LINES = 4, 16


@dataclass(frozen=True, slots=True)
class PickWalk:
    """The step that a gather's index adds to a pointer: the element of load `index` counts elements
    of `stride` along an axis of `size`, from the end if negative. loop: the last loop that moves
    the index load, after which it is read; -1: none does.
    """

    index: int
    dtype: str
    loop: int
    stride: ir.Value
    size: ir.Value

    def applied(self, e: Emitter, pointer: ir.Value, index_at: ir.Value) -> ir.Value:
        """The pointer, moved by the index at `index_at`, which has been checked."""
        b = e.builder
        held = load_element(e, index_at, self.dtype)
        index = emit_scalar(e, "astype", self.dtype, [held], {"dtype": "i64"})
        if self.dtype.startswith("i"):
            wrapped = b.add(index, self.size, flags=["nsw"])
            index = b.select(b.icmp_signed("<", index, e.index(0)), wrapped, index)
        return e.at(pointer, b.mul(index, self.stride, flags=["nsw"]))


def last_moving(strides: Sequence[int]) -> int:
    """The innermost loop with a stride; -1 if there is none."""
    return max((k for k, s in enumerate(strides) if s), default=-1)


def pick_walks(
    picks: Sequence[tuple[int, int, int]],
    loads: Sequence[tuple[str, tuple[int, ...]]],
    following: Callable[[], ir.Value],
) -> list[PickWalk]:
    """The picks of a load. loads: dtype and strides of each index load, in their order; following:
    the next of the kernel's numbers.
    """
    return [
        PickWalk(k, dtype, last_moving(strides), following(), following())
        for (k, _, _), (dtype, strides) in zip(picks, loads, strict=True)
    ]


def ask_ahead(
    e: Emitter,
    pointer: ir.Value,
    picks: Sequence[tuple[PickWalk, ir.Value]],
    elements: ir.Value,
    dtype: str,
) -> None:
    """Ask for the cache lines of so many elements from where the picks, each with the place of its
    index, move the pointer; of `MOST_LINES` at most: the processor foresees those after them.
    """
    for pick, index_at in picks:
        pointer = pick.applied(e, pointer, index_at)
    itemsize = as_dtype(dtype).itemsize
    b, byte = e.builder, ir.IntType(8).as_pointer()
    flag = ir.IntType(32)
    function = ir.FunctionType(ir.VoidType(), [byte, flag, flag, flag])
    intrinsic = e.module.declare_intrinsic("llvm.prefetch", [byte], function)
    step = e.index(max(LINE // itemsize, 1))
    most = e.index(MOST_LINES * max(LINE // itemsize, 1))
    count = b.select(b.icmp_signed("<", elements, most), elements, most)
    with e.for_range(e.index(0), count, step) as j:
        place = b.bitcast(e.at(pointer, j), byte)
        # to read, to stay in all caches, data
        b.call(intrinsic, [place, *(ir.Constant(flag, k) for k in (0, 3, 1))])


def output_of(nest: Nest, load: Access) -> int | None:
    """The position in `nest.stores` of the output whose buffer and place the load shares."""
    if not isinstance(load.leaf, int):
        return None
    output = dict(nest.in_place).get(load.leaf)
    return next((k for k, s in enumerate(nest.stores) if s.output == output), None)


def store_dtype(nest: Nest, store: Store) -> str:
    """The dtype of the memory that a store writes: for folds that of partial results."""
    if store.reduction is None:
        return store.dtype
    return fold_dtype(nest, store.reduction, store.dtype)


class Walk:
    """A pointer (for "index" a number) that moves through the loops: strides as LLVM values."""

    def __init__(
        self, base: ir.Value, strides: list[ir.Value | None], picks: Sequence[PickWalk] = ()
    ) -> None:
        self.base = base
        self.strides = strides  # per loop; None: does not move
        self.picks = picks


def stepped(e: Emitter, place: ir.Value, i: ir.Value, stride: ir.Value | None) -> ir.Value:
    """A pointer or number, `i` strides further."""
    if stride is None:
        return place
    b = e.builder
    unit = isinstance(stride, ir.Constant) and stride.constant == 1
    distance = i if unit else b.mul(i, stride, flags=["nsw"])
    return b.add(place, distance) if place.type == I64 else e.at(place, distance)


class NestWriter:
    """Emits one nest at `e`; `numbers`: its scalar arguments in the order of `nests/calls.py`."""

    def __init__(
        self, e: Emitter, nest: Nest, buffers: list[ir.Value], numbers: list[ir.Value]
    ) -> None:
        self.e = e
        self.nest = nest
        self.rank = len(nest.extents)
        self.extents = numbers[: self.rank]
        self.outer, self.inner, self.inner_blocks, self.count = numbers[self.rank : self.rank + 4]
        rest = iter(numbers[self.rank + 4 :])
        #: first and last + 1 of the iterations of the loops that are cut
        self.bounds: dict[int, tuple[ir.Value, ir.Value]] = {}
        stores = buffers[: len(nest.stores)]
        others = iter(buffers[len(nest.stores) :])
        self.loads: list[Walk | int] = []  # a number: moves with that store, from the same pointer
        for load in nest.loads:
            output = output_of(nest, load)
            if output is not None:
                # LLVM must see one address for both, or it cannot tell that the loop vectorises
                assert load.strides == nest.stores[output].strides
                self.loads.append(output)
            elif load.leaf == "index":
                base = next(rest)
                self.loads.append(Walk(base, [next(rest) for _ in load.strides]))
            else:
                strides = self._strides(load.strides, rest)
                self.loads.append(Walk(next(others), strides, self._picks(load, rest)))
        self.stores = [
            Walk(p, self._strides(s.strides, rest))
            for p, s in zip(stores, nest.stores, strict=True)
        ]
        #: first of the innermost reduced loops: accumulators live in registers from there on
        self.tail = self.rank
        while self.tail > 0 and nest.reduced[self.tail - 1]:
            self.tail -= 1
        self.outer_reduced = any(nest.reduced[: self.tail])
        self.accumulators: dict[int, Held] = {}
        self.running = [store_dtype(nest, s) for s in nest.stores]
        #: buffers for what is read across a tile
        crossing = [k for k, load in enumerate(nest.loads) if is_tiled(nest) and crosses(load)]
        self.tiles = {k: tile_buffer(e, nest.loads[k].dtype) for k in crossing}

    def _strides(self, strides: tuple[int, ...], rest: Any) -> list[ir.Value | None]:
        return [None if s == 0 else self.e.index(1) if s == 1 else next(rest) for s in strides]

    def _picks(self, load: Access, rest: Any) -> list[PickWalk]:
        held = [self.nest.loads[k] for k, _, _ in load.picks]
        return pick_walks(load.picks, [(at.dtype, at.strides) for at in held], rest.__next__)

    def _picked(self, loop: int, loads: list[ir.Value]) -> list[ir.Value]:
        """The loads' places, where index loads have got to theirs in this loop."""
        out = list(loads)
        for k, walk in enumerate(self.loads):
            for pick in walk.picks if isinstance(walk, Walk) else ():
                if pick.loop == loop:
                    out[k] = pick.applied(self.e, out[k], loads[pick.index])
        return out

    @property
    def folds(self) -> list[tuple[int, Store]]:
        return [(k, s) for k, s in enumerate(self.nest.stores) if s.reduction is not None]

    # -- units ------------------------------------------------------------------------------------

    def write(self, lo: ir.Value, hi: ir.Value) -> None:
        """All units in [lo, hi)."""
        kind = cut_kind(self.nest)
        if kind in ("partial", "partial_pair"):
            with self.e.for_range(lo, hi) as unit:
                self._partial(unit, kind == "partial_pair")
        elif kind == "pair":
            self._pair(lo, hi)
        else:
            if kind == "single":
                b = self.e.builder
                first, end = b.mul(lo, self.outer), b.mul(hi, self.outer)
                self.bounds[0] = first, self.least(end, self.extents[0])
            self._unit(self.e.index(0))

    def _pair(self, lo: ir.Value, hi: ir.Value) -> None:
        """Blocks of the second loop: neighbouring ones of one row are done in one go."""
        e, b, blocks = self.e, self.e.builder, self.inner_blocks
        last = b.sub(hi, e.index(1))
        top, bottom = b.sdiv(lo, blocks), b.sdiv(last, blocks)
        begin = b.mul(b.srem(lo, blocks), self.inner)
        end = b.mul(b.add(b.srem(last, blocks), e.index(1)), self.inner)
        stores = [w.base for w in self.stores]
        with e.for_range(top, b.add(bottom, e.index(1))) as i:
            first = b.select(b.icmp_signed("==", i, top), begin, e.index(0))
            stop = b.select(b.icmp_signed("==", i, bottom), end, self.extents[1])
            self.bounds[1] = first, self.least(stop, self.extents[1])
            loads, row = self.moved(0, i, self._loads_at(stores), stores)
            self._fill(1, row)
            self.loop(1, loads, row)

    def _partial(self, unit: ir.Value, pair: bool) -> None:
        b = self.e.builder
        row = b.sdiv(unit, self.inner_blocks) if pair else unit
        first = b.mul(row, self.outer)
        self.bounds[0] = first, self.least(b.add(first, self.outer), self.extents[0])
        if pair:
            begin = b.mul(b.srem(unit, self.inner_blocks), self.inner)
            self.bounds[1] = begin, self.least(b.add(begin, self.inner), self.extents[1])
        self._unit(b.mul(row, self.count))

    def _unit(self, partial: ir.Value) -> None:
        """The loops within `bounds`; folds go to their output (partial results) at `partial`."""
        stores = [w.base for w in self.stores]
        if cut_kind(self.nest) in ("partial", "partial_pair"):
            for k, _ in self.folds:
                stores[k] = self.e.at(stores[k], partial)
        self._fill(0, stores)
        self.loop(0, self._loads_at(stores), stores)

    def _loads_at(self, stores: list[ir.Value]) -> list[ir.Value]:
        places = [
            self._in_place(k, w, stores) if isinstance(w, int) else w.base
            for k, w in enumerate(self.loads)
        ]
        return self._picked(-1, places)

    def least(self, a: ir.Value, b: ir.Value) -> ir.Value:
        return self.e.builder.select(self.e.builder.icmp_signed("<", a, b), a, b)

    def range_of(self, loop: int) -> tuple[ir.Value, ir.Value]:
        return self.bounds.get(loop, (self.e.index(0), self.extents[loop]))

    def _in_place(self, load: int, store: int, stores: list[ir.Value]) -> ir.Value:
        """The store's pointer, in the load's dtype (of the same width)."""
        kind = memory_type(self.nest.loads[load].dtype).as_pointer()
        return self.e.builder.bitcast(stores[store], kind)

    # -- loops ------------------------------------------------------------------------------------

    def _fill(self, first: int, stores: list[ir.Value]) -> None:
        """Before outer reductions: results start as the identity of the fold, from loop `first`."""

        def level(k: int, loop: int, pointer: ir.Value) -> None:
            if loop == self.rank:
                start = identity(self.nest.stores[k].reduction, self.running[k])
                store_element(self.e, start, pointer, self.running[k])
            elif self.nest.reduced[loop]:
                level(k, loop + 1, pointer)
            else:
                with self.e.for_range(*self.range_of(loop)) as i:
                    level(k, loop + 1, stepped(self.e, pointer, i, self.stores[k].strides[loop]))

        if self.outer_reduced:
            for k, _ in self.folds:
                level(k, first, stores[k])

    def strides_of(self, load: int) -> list[ir.Value | None]:
        """The strides of a load, per loop; None: it does not move."""
        walk = self.loads[load]
        return (self.stores[walk] if isinstance(walk, int) else walk).strides

    def loop(self, loop: int, loads: list[ir.Value], stores: list[ir.Value]) -> None:
        if loop == self.tail:
            self._open_accumulators()
        if loop == self.rank:
            self._body(loads, stores)
        elif loop == self.rank - 1 and self.tail < self.rank and self._blocked():
            self._blocked_loop(loop, loads, stores)
        elif loop == self.rank - 2 and is_tiled(self.nest):
            write_tiles(self, loop, loads, stores)
        else:
            count, width = self._lanes() if loop == self.rank - 1 else (0, 0)
            with self.e.for_range(*self.range_of(loop), interleave=count, width=width) as i:
                self.loop(loop + 1, *self.moved(loop, i, loads, stores))
        if loop == self.tail:
            self._close_accumulators(stores)

    def moved(
        self, loop: int, i: ir.Value, loads: list[ir.Value], stores: list[ir.Value]
    ) -> tuple[list[ir.Value], list[ir.Value]]:
        moved = [
            stepped(self.e, p, i, w.strides[loop]) for p, w in zip(stores, self.stores, strict=True)
        ]
        moved_loads = [
            self._in_place(k, w, moved)
            if isinstance(w, int)
            else stepped(self.e, p, i, w.strides[loop])
            for k, (p, w) in enumerate(zip(loads, self.loads, strict=True))
        ]
        if loop == self.rank - 2:
            self._ask_ahead(loop, i, loads)
        return self._picked(loop, moved_loads), moved

    def _ask_ahead(self, loop: int, i: ir.Value, loads: list[ir.Value]) -> None:
        """Prefetch the rows that indices pick in a later iteration of this loop."""
        e, b = self.e, self.e.builder
        later, last = b.add(i, e.index(AHEAD)), b.sub(self.range_of(loop)[1], e.index(1))
        later = self.least(later, last)
        for k, walk in enumerate(self.loads):
            picks = [p for p in walk.picks if p.loop == loop] if isinstance(walk, Walk) else []
            if not picks or self.nest.loads[k].strides[-1] != 1:
                continue
            assert isinstance(walk, Walk)
            at = []
            for pick in picks:
                index = self.loads[pick.index]
                assert isinstance(index, Walk)
                at.append((pick, stepped(self.e, loads[pick.index], later, index.strides[loop])))
            place = stepped(self.e, loads[k], later, walk.strides[loop])
            ask_ahead(e, place, at, self.extents[-1], self.nest.loads[k].dtype)

    def _blocked(self) -> bool:
        return any(is_wide_sum(s.reduction, s.dtype) for _, s in self.folds)

    def _blocked_loop(self, loop: int, loads: list[ir.Value], stores: list[ir.Value]) -> None:
        e, (first, last) = self.e, self.range_of(loop)
        with e.for_range(first, last, e.index(SUM_BLOCK)) as start:
            stop = self.least(e.builder.add(start, e.index(SUM_BLOCK)), last)
            for k, store in self.folds:
                if self._wide(store):
                    self.accumulators[k].begin()
            count, width = self._lanes()
            with e.for_range(start, stop, interleave=count, width=width) as i:
                self.loop(loop + 1, *self.moved(loop, i, loads, stores))
            for k, store in self.folds:
                if self._wide(store):
                    part = e.builder.fpext(self.accumulators[k].value(), ir.DoubleType())
                    total = e.builder.load(self.totals[k])
                    e.builder.store(e.builder.fadd(total, part), self.totals[k])

    # -- accumulators -----------------------------------------------------------------------------

    def _lanes(self) -> tuple[int, int]:
        """Of the innermost loop: vectors at once, and lanes of each; 0: as LLVM likes."""
        if loops_inside(s.op for s in self.nest.statements):
            return 0, 0
        reduced = self.tail < self.rank
        folds = [(s.reduction or "", s.dtype) for _, s in self.folds] if reduced else []
        nest = self.nest
        return lanes_of_folds(folds, len(nest.statements), nest.extents, nest.interleave)

    def _wide(self, store: Store) -> bool:
        return is_wide_sum(store.reduction, store.dtype)

    def _open_accumulators(self) -> None:
        """Registers for the folds, if the innermost loops are reduced (or all were dropped)."""
        self.totals: dict[int, ir.Value] = {}
        for k, store in self.folds:
            if not self._in_register():
                continue
            assert store.reduction is not None
            self.accumulators[k] = Held(self.e, store.reduction, store.dtype)
            self.accumulators[k].begin()
            if self._wide(store) and self.tail < self.rank:
                self.totals[k] = self.e.alloca(ir.DoubleType())
                self.e.builder.store(ir.Constant(ir.DoubleType(), 0.0), self.totals[k])

    def _in_register(self) -> bool:
        return self.tail < self.rank or not self.outer_reduced

    def _close_accumulators(self, stores: list[ir.Value]) -> None:
        for k, store in self.folds:
            if k not in self.accumulators:
                continue
            running = self.running[k]
            if k in self.totals:
                value = convert(self.e, self.e.builder.load(self.totals[k]), "f64", running)
            else:
                value = convert(self.e, self.accumulators[k].value(), store.dtype, running)
            if self.outer_reduced:
                held = load_element(self.e, stores[k], running)
                value = self._fold(store, held, value)
            store_element(self.e, value, stores[k], running)

    def _fold(self, store: Store, a: ir.Value, b: ir.Value) -> ir.Value:
        assert store.reduction is not None
        return fold(self.e, store.reduction, store.dtype, a, b)

    # -- the innermost body -----------------------------------------------------------------------

    def _body(self, loads: list[ir.Value], stores: list[ir.Value]) -> None:
        loaded = [self._load(a, p) for a, p in zip(self.nest.loads, loads, strict=True)]
        values: list[ir.Value] = []

        def get(reference: tuple[str, int]) -> ir.Value:
            kind, i = reference
            return loaded[i] if kind == "load" else values[i]

        for statement in self.nest.statements:
            values.append(self._statement(statement, get))
        for k, store in enumerate(self.nest.stores):
            value = get(store.source)
            if store.reduction is None:
                store_element(self.e, value, stores[k], store.dtype)
            elif k in self.accumulators:
                self.accumulators[k].add(value)
            else:
                running = self.running[k]
                held = load_element(self.e, stores[k], running)
                value = convert(self.e, value, store.dtype, running)
                store_element(self.e, self._fold(store, held, value), stores[k], running)

    def _load(self, access: Access, place: ir.Value) -> ir.Value:
        if access.leaf == "index":
            return emit_scalar(self.e, "astype", "i64", [place], {"dtype": access.dtype})
        return load_element(self.e, place, access.dtype)

    def _statement(
        self, statement: Statement, get: Callable[[tuple[str, int]], ir.Value]
    ) -> ir.Value:
        args = [get(r) for r in statement.args]
        attrs = {"dtype": statement.result_dtype}
        return emit_scalar(self.e, statement.op, statement.dtype, args, attrs)
