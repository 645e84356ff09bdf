"""Matrix multiplication of weft's own: blocks of C as units, packed panels, one micro-kernel.

The cut of a product is here, too: the blocks of C that threads take, the runs of k, what is packed.

C, or each matrix of a batch of them, is cut into blocks of `block_rows` x `block_columns`: the
units of the call, which threads take in any order. A block is made by one thread:

    for each run of `block_k` of k:
        pack the run's rows of B and columns of A, if that pays, into the worker's scratch
        for each panel of B, for each panel of A: micro-kernel -> one tile of C (+= after the first)

The sums over k are cut by `block_k` alone, a function of k, and never over threads: the bits depend
on the sizes only. Consecutive units go down the rows if they share a panel of B that is packed here
for all of them, else along the columns; a small B that all matrices share is packed by a call
before the product (`pack_kernel`), over threads too.
Blocking after Goto and van de Geijn and BLIS, see `weft.codegen.tiles.micro_kernel`. A thread's
block of A and its scratch stay in its L2 cache, a panel of B in L1 or L2.

Before a run a block of an operand may be computed by a prologue, after its last run a block may be
handed to an epilogue, which reads it while it is in the cache (`weft.codegen.products.calls`).

`blocking` follows from the sizes and the target's tile alone, so that the bits and the code are the
same for any number of threads. Blocks are chosen by an estimate of what a product takes on two and
on eight threads: what the register tile needs for whole and for partial vectors, packing, and how
even the shares are. Many small blocks are even; few large ones pack and read less."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from llvmlite import ir

from weft.codegen.llvm.emitter import I64, KERNEL_TYPE, Emitter
from weft.codegen.llvm.jit import Kernel
from weft.codegen.tiles.micro_kernel import (
    Asking,
    Tile,
    converts,
    emit_micro,
    for_each_form,
    row_tiles,
    tile_of,
)
from weft.codegen.tiles.packing import emit_pack_a, emit_pack_b, packed_steps
from weft.ir.cost.rates import (
    AGAIN_CYCLES,
    BLOCK_CYCLES,
    CYCLES_PER_NS,
    FAR,
    FAR_BYTES,
    PACK_CYCLES,
    PACK_ROWS_CYCLES,
    TILE_CYCLES,
    VECTOR_CYCLES,
)
from weft.ir.cost.thresholds import (
    CHUNK_NS,
    COMPUTED_BYTES,
    DIRECT_B_BYTES,
    DIRECT_RUN_BYTES,
    FAR_STEP_BYTES,
    MANY_ROWS,
    MOST_CHUNKS,
    NARROW_PANELS,
    NARROW_ROWS,
    NEAR_A_BYTES,
    PACKED_B_BYTES,
    PACKED_BEFORE_BYTES,
    WORTH_CUTTING_NS,
)
from weft.ir.dataclass import dataclass
from weft.ir.sizes import of_sizes

#: Words of a gemm call, in order; `weft.codegen.products.calls` fills them. Each matrix takes `k`
#: of `k_all`, the last one what is left.
WORDS = (
    "c", "a", "b", "a_offsets", "b_offsets", "c_offsets", "c_row", "scratch", "scratch_bytes",
    "m", "n", "k", "a_row", "a_k", "b_k", "b_column", "block_rows", "block_columns", "block_k",
    "pack_a", "pack_b", "b_bytes", "a_bytes", "b_packed", "k_all", "a_code", "a_words", "b_code",
    "b_words", "ahead", "wide", "epilogue",
)  # fmt: skip
#: `k_all` of products that are no pieces of one.
WHOLE = 1 << 62
#: Words of the call that packs B for all blocks of C before the product.
PACK_WORDS = ("target", "b", "n", "k", "b_k", "b_column", "block_k")
#: `pack_b` of a product whose B lies packed at `b_packed`.
PACKED_BEFORE = 3
#: `pack_a`, `pack_b` of an operand that a prologue computes (`weft.codegen.products.calls`): rows
#: of A by k, k by rows of a transposed A, k by columns of B. Steps are then those of what it makes.
ROWS_BY_K, K_BY_ROWS, K_BY_COLUMNS = 2, 3, 4
#: Words that an epilogue gets: where its block is, and where its own words are.
BLOCK_WORDS = ("tile", "tile_row", "row", "rows", "column", "columns", "matrix", "words")


def gemm_kernel(dtype: str) -> Kernel:
    """The kernel of products of `dtype`: any sizes, transposed or not, with or without epilogue."""
    tile = tile_of(dtype)
    key = f"gemm-16-{dtype}-{tile.key}"
    # its vectors are written out: half the time to compile, the same speed
    return Kernel(key, f"gemm_{dtype}", lambda e: _Gemm(e, tile, dtype).write(), loops=False)


def pack_kernel(dtype: str) -> Kernel:
    """The kernel that packs the one B of a product for all its blocks; a unit is one panel of one
    run of k. All of k of a panel lie side by side, as in constants (`tiles/panels.py`)."""
    tile = tile_of(dtype)
    key = f"gemm-pack-4-{dtype}-{tile.key}"
    return Kernel(key, f"pack_{dtype}", lambda e: _emit_pack_all(e, tile, dtype), loops=False)


def _emit_pack_all(e: Emitter, tile: Tile, dtype: str) -> None:
    b = e.builder
    w = {name: e.argument(k) for k, name in enumerate(PACK_WORDS)}
    source, lanes = e.pointer_argument(1, dtype), e.index(tile.columns)
    target = b.inttoptr(w["target"], tile.element.as_pointer())
    pack = emit_pack_b(e, tile, dtype)

    def up(size: ir.Value) -> ir.Value:
        return b.mul(b.sdiv(b.add(size, b.sub(lanes, e.index(1))), lanes), lanes)

    def least(x: ir.Value, y: ir.Value) -> ir.Value:
        return b.select(b.icmp_signed("<", x, y), x, y)

    panels = b.sdiv(up(w["n"]), lanes)
    with e.for_range(e.lo, e.hi) as unit:
        p = b.mul(b.sdiv(unit, panels), w["block_k"])
        column = b.mul(b.srem(unit, panels), lanes)
        k = least(b.sub(w["k"], p), w["block_k"])
        before, all_k = (packed_steps(e, tile, x) for x in (p, w["k"]))
        place = b.add(b.mul(column, all_k), b.mul(before, lanes))
        start = b.add(b.mul(p, w["b_k"]), b.mul(column, w["b_column"]))
        items = least(b.sub(w["n"], column), lanes)
        b.call(pack, [e.at(source, start), w["b_column"], w["b_k"], items, k, e.at(target, place)])


@dataclass(slots=True)
class _Block:
    """A block of C under construction: where it and what it reads begin, its sizes."""

    matrix: ir.Value
    row: ir.Value
    column: ir.Value
    a: ir.Value
    b: ir.Value
    c: ir.Value
    c_row: ir.Value = None
    rows: ir.Value = None
    columns: ir.Value = None


class _Gemm:
    def __init__(self, e: Emitter, tile: Tile, dtype: str) -> None:
        self.e, self.tile, self.dtype = e, tile, dtype
        self.word = {name: e.argument(k) for k, name in enumerate(WORDS)}
        self.a, self.b = e.pointer_argument(1, dtype), e.pointer_argument(2, dtype)
        self.element = tile.element.as_pointer()
        scratch = e.builder.mul(e.worker, self.word["scratch_bytes"])
        start = e.builder.add(self.word["scratch"], scratch)
        self.b_pack = e.builder.inttoptr(start, self.element)
        start = e.builder.add(start, self.word["b_bytes"])
        self.a_pack = e.builder.inttoptr(start, self.element)
        start = e.builder.add(start, self.word["a_bytes"])
        self.tile_at = e.builder.inttoptr(start, self.element)

    def write(self) -> None:
        e, b, tile, w = self.e, self.e.builder, self.tile, self.word
        self.micro = for_each_form(tile, lambda rows, v: emit_micro(e, tile, rows, v))
        self.asking = emit_micro(e, tile, tile.rows, tile.vectors, asks=True)
        if tile.wide is not None:
            self.wide = emit_micro(e, tile, tile.wide.rows, tile.wide.vectors)
        self.packing_a = emit_pack_a(e, tile, self.dtype)
        self.packing_b = emit_pack_b(e, tile, self.dtype)
        self.packed = e.alloca(I64)  # the block of B that is in b_pack, by its address
        b.store(e.index(0), self.packed)
        down = self._blocks(w["m"], w["block_rows"])
        across = self._blocks(w["n"], w["block_columns"])
        matrices = b.mul(down, across)
        offsets = [b.inttoptr(w[f"{x}_offsets"], I64.as_pointer()) for x in "abc"]
        places = self.a, self.b, b.inttoptr(w["c"], self.element)
        # what is packed here serves the next blocks of the same columns; else a thread's blocks
        # are rows, as in the nests before and after: they are in its cache
        here = b.and_(
            b.icmp_signed("!=", w["pack_b"], e.index(0)),
            b.icmp_signed("!=", w["pack_b"], e.index(PACKED_BEFORE)),
        )
        with e.for_range(e.lo, e.hi) as unit:
            matrix, inside = b.sdiv(unit, matrices), b.srem(unit, matrices)
            a, bb, c = (
                e.at(p, b.load(e.at(o, matrix))) for p, o in zip(places, offsets, strict=True)
            )
            i = b.select(here, b.srem(inside, down), b.sdiv(inside, across))
            j = b.select(here, b.sdiv(inside, down), b.srem(inside, across))
            row, column = b.mul(i, w["block_rows"]), b.mul(j, w["block_columns"])
            self._unit(_Block(matrix, row, column, a, bb, c))

    def _blocks(self, size: ir.Value, block: ir.Value) -> ir.Value:
        b = self.e.builder
        return b.sdiv(b.add(size, b.sub(block, self.e.index(1))), block)

    def _least(self, x: ir.Value, y: ir.Value) -> ir.Value:
        b = self.e.builder
        return b.select(b.icmp_signed("<", x, y), x, y)

    def _unit(self, at: _Block) -> None:
        e, b, w = self.e, self.e.builder, self.word
        at.rows = self._least(b.sub(w["m"], at.row), w["block_rows"])
        at.columns = self._least(b.sub(w["n"], at.column), w["block_columns"])
        at.a = e.at(at.a, b.mul(at.row, w["a_row"]))
        at.b = e.at(at.b, b.mul(at.column, w["b_column"]))
        plain = b.icmp_signed("==", w["epilogue"], e.index(0))
        c = e.at(at.c, b.add(b.mul(at.row, w["c_row"]), at.column))
        at.c = b.select(plain, c, self.tile_at)
        at.c_row = b.select(plain, w["c_row"], w["block_columns"])
        fresh = b.icmp_signed("!=", b.load(self.packed), b.ptrtoint(at.b, I64))
        b.store(b.ptrtoint(at.b, I64), self.packed)
        deep = self._least(w["k"], b.sub(w["k_all"], b.mul(at.matrix, w["k"])))
        longer = b.select(b.icmp_signed(">", deep, e.index(0)), deep, e.index(1))
        with e.for_range(e.index(0), longer, w["block_k"]) as p:
            k = self._least(b.sub(deep, p), w["block_k"])
            self._run(p, k, at, fresh)
        with b.if_then(b.not_(plain)):
            block = (at.c, at.c_row, at.row, at.rows, at.column, at.columns, at.matrix)
            self._call(w["epilogue"], block, e.index(len(WORDS)))

    def _run(self, p: ir.Value, k: ir.Value, at: _Block, fresh: ir.Value) -> None:
        """One run of k: packing, then all tiles of the block."""
        e, b, w, tile = self.e, self.e.builder, self.word, self.tile
        zero, one = e.index(0), e.index(1)
        lanes, columns, rows = e.index(tile.columns), at.columns, at.rows
        steps = packed_steps(e, tile, k)
        b_pack = self._pack_b(p, k, at, fresh)
        computed = self._pack_a(p, k, at)
        a_at = e.at(at.a, b.mul(p, w["a_k"]))
        b_at = e.at(at.b, b.mul(p, w["b_k"]))
        in_pack = b.icmp_signed("!=", w["pack_b"], zero)
        panels = b.and_(in_pack, b.icmp_signed("!=", w["pack_b"], e.index(K_BY_COLUMNS)))
        b_start = b.select(in_pack, b_pack, self._direct(b_at))
        before = b.icmp_signed("==", w["pack_b"], e.index(PACKED_BEFORE))
        all_k = packed_steps(e, tile, w["k"])
        b_panel = b.select(before, all_k, b.select(panels, steps, one))
        # of a B that lies packed the next panel is asked for
        asking = Asking(self.asking, lanes, b.select(before, b.mul(all_k, lanes), zero))
        b_k = b.select(panels, lanes, w["b_k"])
        a_start = b.select(b.icmp_signed("!=", w["pack_a"], zero), computed, self._direct(a_at))
        # past a row of B that is read in place comes its next row, if that is as long as a vector
        long = b.icmp_signed(">=", b_k, e.index(tile.lanes))
        guarded = b.select(in_pack, zero, b.select(long, one, k))
        a_packed = b.icmp_signed("==", w["pack_a"], one)
        a_steps = b.add(steps, e.index(int(tile.has_starts)))
        a_panel = b.mul(a_steps, e.index(tile.packed_rows))
        a_row = b.select(a_packed, one, w["a_row"])
        a_k = b.select(a_packed, e.index(tile.packed_rows), w["a_k"])
        c, c_row = at.c, at.c_row
        add = b.icmp_signed(">", p, zero)
        wide = b.icmp_signed("!=", w["wide"], zero)
        if tile.wide is not None:
            with b.if_then(wide):
                run = [a_row, a_k, b_start, b_k, steps, guarded]
                self._wide(a_start, run, at, add)
        with e.for_range(b.select(wide, columns, zero), columns, lanes) as j:
            b_tile = e.at(b_start, b.mul(j, b_panel))
            width = self._least(b.sub(columns, j), lanes)
            # the first panel's rows come from memory, the next ones' from the cache
            ahead = b.select(b.icmp_signed("==", j, zero), w["ahead"], zero)
            with row_tiles(e, tile, rows, a_packed) as (i, few, height):
                panel = b.mul(b.sdiv(i, e.index(tile.rows)), a_panel)
                a_tile = e.at(a_start, b.select(a_packed, panel, b.mul(i, w["a_row"])))
                c_tile = e.at(c, b.add(b.mul(i, c_row), j))
                run = [a_tile, a_row, a_k, b_tile, b_k, steps, guarded]
                args = [*run, height, width, c_tile, c_row, add, ahead]
                asking.call_or(e, tile, i, (few, width), args, self.micro)

    def _wide(self, a: ir.Value, run: list[ir.Value], at: _Block, add: ir.Value) -> None:
        """All tiles of a block whose columns are one panel of `Tile.wide`; run: what is the same
        for all of them."""
        e, b, tile = self.e, self.e.builder, self.tile.wide
        assert tile is not None
        with e.for_range(e.index(0), at.rows, e.index(tile.rows)) as i:
            height = self._least(b.sub(at.rows, i), e.index(tile.rows))
            a_tile, c_tile = e.at(a, b.mul(i, run[0])), e.at(at.c, b.mul(i, at.c_row))
            args = [a_tile, *run, height, at.columns, c_tile, at.c_row, add, self.word["ahead"]]
            b.call(self.wide, args)

    def _pack_b(self, p: ir.Value, k: ir.Value, at: _Block, fresh: ir.Value) -> ir.Value:
        """Where the run of B is, if it is packed: packed here or by its prologue, or before."""
        e, b, w = self.e, self.e.builder, self.word
        zero, lanes = e.index(0), e.index(self.tile.columns)

        def mode(number: int) -> ir.Value:
            return b.icmp_signed("==", w["pack_b"], e.index(number))

        # all runs of B side by side if they are packed once for a block, else those of a panel
        before = mode(PACKED_BEFORE)
        wide = b.mul(self._blocks(at.columns, lanes), lanes)
        steps, all_k = (packed_steps(e, self.tile, x) for x in (p, w["k"]))
        shared = e.at(b.inttoptr(w["b_packed"], self.element), b.mul(at.column, all_k))
        place = b.select(before, shared, self.b_pack)
        across = b.select(before, lanes, b.select(mode(1), wide, zero))
        place = e.at(place, b.mul(steps, across))
        source = e.at(at.b, b.mul(p, w["b_k"]))
        with b.if_then(b.or_(mode(2), b.and_(mode(1), fresh))):
            b.call(self.packing_b, [source, w["b_column"], w["b_k"], at.columns, k, place])
        with b.if_then(mode(K_BY_COLUMNS)):
            block = (place, w["b_k"], p, k, at.column, at.columns, at.matrix)
            self._call(w["b_code"], block, w["b_words"])
        return place

    def _pack_a(self, p: ir.Value, k: ir.Value, at: _Block) -> ir.Value:
        """Where the run of A is, if it is packed, or computed: before the first run, for all."""
        e, b, w = self.e, self.e.builder, self.word

        def mode(number: int) -> ir.Value:
            return b.icmp_signed("==", w["pack_a"], e.index(number))

        zero = e.index(0)
        first = b.icmp_signed("==", p, zero)
        with b.if_then(mode(1)):
            source = e.at(at.a, b.mul(p, w["a_k"]))
            b.call(self.packing_a, [source, w["a_row"], w["a_k"], at.rows, k, self.a_pack])
        with b.if_then(b.and_(mode(ROWS_BY_K), first)):
            block = (self.a_pack, w["a_row"], at.row, at.rows, zero, w["k"], at.matrix)
            self._call(w["a_code"], block, w["a_words"])
        with b.if_then(b.and_(mode(K_BY_ROWS), first)):
            block = (self.a_pack, w["a_k"], zero, w["k"], at.row, at.rows, at.matrix)
            self._call(w["a_code"], block, w["a_words"])
        return e.at(self.a_pack, b.select(mode(1), zero, b.mul(p, w["a_k"])))

    def _direct(self, place: ir.Value) -> ir.Value:
        """The operand where it is, as accumulators (what `converts` is always packed)."""
        return self.e.builder.bitcast(place, self.element)

    def _call(self, code: ir.Value, values: tuple[ir.Value, ...], first: ir.Value) -> None:
        """Hand a block to another kernel: BLOCK_WORDS describe it, its own words begin at number
        `first`."""
        e, b = self.e, self.e.builder
        where = e.alloca(ir.ArrayType(I64, len(BLOCK_WORDS)))
        start = b.bitcast(where, I64.as_pointer())
        words = b.ptrtoint(e.at(e.arguments, first), I64)
        for k, value in enumerate((*values, words)):
            held = b.ptrtoint(value, I64) if isinstance(value.type, ir.PointerType) else value
            b.store(held, e.at(start, e.index(k)))
        function = b.inttoptr(code, KERNEL_TYPE.as_pointer())
        b.call(function, [start, e.index(0), e.index(1), e.worker])


#: A run of k: a panel's part of it fits into L1, or of 3 vectors of 512 bits into L2. Longer ones
#: are some percent faster there, but their sums err more than BLAS's.
RUN = 256
#: Bytes of a cache line.
LINE = 64
#: Rows of a block of C, at most: they and their part of A stay in L2.
BLOCK_ROWS = 96
#: The columns of a block of C, at most: their part of a run of B stays in L2 too.
BLOCK_COLUMNS = 384


@dataclass(frozen=True, slots=True)
class Product:
    """Products C = A B of m x k by k x n; `a_at`, `b_at`, `c_at`: where the matrices begin.

    a_steps: the strides of A over rows and k; b_steps: of B over k and columns; c_row: of C over
    rows (its columns are neighbours). All in elements.
    """

    dtype: str
    m: int
    n: int
    k: int
    a_at: tuple[int, ...]
    b_at: tuple[int, ...]
    c_at: tuple[int, ...]
    a_steps: tuple[int, int]
    b_steps: tuple[int, int]
    c_row: int


def dense_product(
    dtype: str,
    sizes: tuple[int, int, int],
    a_at: tuple[int, ...],
    b_at: tuple[int, ...],
    transposed: tuple[bool, bool],
) -> Product:
    """Of contiguous matrices, sizes m, n, k; transposed: A is stored k x m, B is stored n x k."""
    m, n, k = sizes
    a_steps = (1, m) if transposed[0] else (k, 1)
    b_steps = (1, k) if transposed[1] else (n, 1)
    c_at = tuple([i * m * n for i in range(len(a_at))])
    return Product(dtype, m, n, k, a_at, b_at, c_at, a_steps, b_steps, n)


@dataclass(frozen=True, slots=True)
class Blocking:
    """Block sizes of C and k. pack_b: 0 read B where it is, 1 pack it once for a range of units, 2
    pack each run of k anew for each unit, PACKED_BEFORE a call of its own packs all of it.
    chunk: the units of a chunk if they share what they pack; 0: that does not matter.
    ahead: the elements of A between a tile's rows and the next one's, if those are to be asked for.
    wide: a block is one panel of `Tile.wide`.
    """

    rows: int
    columns: int
    k: int
    pack_a: bool
    pack_b: int
    chunk: int = 0
    ahead: int = 0
    wide: bool = False


def blocking(
    p: Product, tile: Tile, computed: tuple[bool, bool] = (False, False), constant: bool = False
) -> Blocking:
    """How a product is cut: a function of its sizes and of the target's tile alone.

    computed: A, B are computed by prologues: blocks of all columns, of all rows, compute them once.
    constant: B is a constant, which is packed once for all calls.
    """
    item = tile.itemsize
    steps = tile.steps(p.k)  # of narrow integers a run is as long in memory, and has more of k
    runs = max(1, -(-steps // RUN))
    k = max(1, up(-(-steps // runs), tile.lanes)) * tile.depth
    pack_b = K_BY_COLUMNS if computed[1] else _packing(p, tile, item)
    if constant and (pack_b or _gains(p, tile)):
        pack_b = PACKED_BEFORE
    sizes = max(p.m, 1), max(p.n, 1), max(steps, 1), max(len(p.a_at), 1)
    most = BLOCK_ROWS
    if computed[0]:  # all of k for the rows of a block stays in L2
        fit = COMPUTED_BYTES // (computed_row(p.k) * item)
        most = max(tile.rows, min(most, fit // tile.rows * tile.rows))
    widens = converts(p.dtype)
    far = p.a_steps[1] * item >= FAR_STEP_BYTES and p.n > tile.columns
    pack_a = widens or (far and not computed[0])
    wide = not (pack_a or pack_b) and _is_wide(p, tile)
    tile = tile.wide if wide and tile.wide else tile
    rows, columns, chunk = _blocks(*sizes, tile, pack_b, most, BLOCK_COLUMNS, computed, widens)
    columns = up(columns, tile.columns) if pack_b else columns  # packed: whole panels
    streams = tile.asks_ahead and not (pack_a or computed[0]) and p.a_steps[1] == 1
    streams = streams and len(p.a_at) * p.m * p.k * item > NEAR_A_BYTES
    ahead = tile.rows * p.a_steps[0] if streams else 0
    return Blocking(rows, columns, k, pack_a, pack_b, chunk, ahead, wide)


def _gains(p: Product, tile: Tile) -> bool:
    """Whether a product whose B could lie in place is faster by panels that cost nothing."""
    return p.m > 1 and p.n > (tile.wide or tile).columns


def computed_row(k: int) -> int:
    """Elements from one row of a computed A to the next: not a power of two, which would put a
    tile's rows into one set of the cache."""
    return up(k, 16) + 16


def up(size: int, step: int) -> int:
    """The next multiple of `step`."""
    return -(-size // step) * step


def _is_wide(p: Product, tile: Tile) -> bool:
    """Whether all columns are one panel of the wide tile. Not if rows of B begin inside a cache
    line: each of four loads would be two."""
    wide = tile.wide
    return (
        wide is not None
        and tile.columns < p.n <= wide.columns
        and p.b_steps[0] * tile.itemsize % LINE == 0
    )


def _packing(p: Product, tile: Tile, item: int) -> int:
    few = p.m < MANY_ROWS  # packing B costs as much as what it gives to some 500 rows
    direct = p.b_steps[1] == 1 and not converts(p.dtype)
    one_line = tile.columns * item <= LINE
    if one_line and p.m >= NARROW_ROWS and p.n >= NARROW_PANELS * tile.columns:
        direct = False
    width, steps = up(p.n, tile.columns), tile.steps(p.k)
    read = up(p.n, tile.lanes) * steps * item  # of a panel, the vectors that have columns
    before = len(set(p.b_at)) == 1 and p.m > BLOCK_ROWS and 0 < read <= PACKED_BEFORE_BYTES
    # rows of B that begin inside a line: most of its vectors would be two loads
    split = tile.mask_registers and p.b_steps[0] * item % LINE != 0 and p.m >= NARROW_ROWS
    if split and before and p.n > (tile.wide or tile).columns:
        return PACKED_BEFORE
    if direct and p.k * p.n * item <= DIRECT_B_BYTES << few:
        return 0
    if direct and min(p.k, RUN) * p.n * item <= DIRECT_RUN_BYTES:
        return 0
    if before:
        return PACKED_BEFORE
    least = min(width, 2 * tile.columns)
    return 1 if steps * least * item <= PACKED_B_BYTES else 2


@dataclass(frozen=True, slots=True)
class _Grid:
    """Blocks of rows x columns; in units of the estimate, what all of them take and what the
    largest of so many equal chunks takes, and the smallest."""

    rows: int
    columns: int
    chunk: int
    total: float
    largest: float
    many: int
    smallest: float

    def on(self, threads: int) -> float:
        """An estimate of the time on so many threads."""
        even = self.total / threads + (self.smallest / 2 if self.many > 1 else 0)
        return max(-(-self.many // threads) * self.largest, even)

    @property
    def badness(self) -> float:
        """Two threads are what most steps find; with eight the shares must not be useless."""
        return self.on(2) + self.on(8)


@of_sizes
def _blocks(*sizes: Any) -> tuple[int, int, int]:
    grid = _grid(*sizes)
    return grid.rows, grid.columns, grid.chunk


@lru_cache(maxsize=1024)
def _grid(
    m: int,
    n: int,
    k: int,
    count: int,
    tile: Tile,
    pack_b: int,
    most_rows: int,
    most_columns: int,
    computed: tuple[bool, bool],
    widens: bool,
) -> _Grid:
    """The best grid; products that are too small to be cut have the largest blocks. widens: each
    block packs its rows of A."""
    size = _Size(m, n, k, count, tile, pack_b, PACK_ROWS_CYCLES if widens else 0.0)
    work = m * n * k * count
    largest = _tiles(size.down, max(1, most_rows // tile.rows))
    wide = _vectors(size.across, max(tile.vectors, most_columns // tile.lanes), tile)
    if work < WORTH_CUTTING_NS * tile.multiply_adds_per_ns / 2:
        return size.grid(largest, wide, 0)
    heights = _row_choices(size.down, most_rows // tile.rows, pack_b)
    whole = computed[0] or tile == tile.wide  # whose blocks are one panel
    widths = [wide] if whole else _column_choices(size, wide)
    candidates = itertools.product([largest] if computed[1] else heights, widths)
    grids = (g for rows, columns in candidates for g in size.grids(rows, columns))
    return min(grids, key=lambda g: g.badness)


def _tiles(down: int, most: int) -> int:
    """Tiles of a block of at most so many, of blocks that are as equal as they can be."""
    return -(-down // -(-down // most))


def _vectors(across: int, most: int, tile: Tile) -> int:
    """Vectors of a block of whole panels, at most so many."""
    if across <= most:
        return across
    pieces = -(-across // most)
    return up(-(-across // pieces), tile.vectors)


def _row_choices(down: int, most: int, pack_b: int) -> Iterator[int]:
    """In tiles, largest first."""
    sizes = [t for t in (12, 8, 6, 4, 3, 2, 1) if t <= max(most, 1)]
    sizes = [48, 32, 24, *sizes] if pack_b == 2 else sizes
    return iter(dict.fromkeys(_tiles(down, t) for t in sizes))


def _column_choices(size: _Size, wide: int) -> list[int]:
    """In vectors, widest first: whole panels, or any vectors where there are few."""
    tile, across = size.tile, size.across
    step = 1 if across <= 4 * tile.vectors and size.pack_b == 0 else tile.vectors
    found = {min(wide, up(-(-across // p), step)) for p in (1, 2, 3, 4, 6, 8, 11)}
    return sorted(found | {min(wide, 2 * tile.vectors)}, reverse=True)


@dataclass(frozen=True, slots=True)
class _Size:
    m: int
    n: int
    k: int
    count: int
    tile: Tile
    pack_b: int
    pack_rows: float

    @property
    def down(self) -> int:
        """Tiles of all rows."""
        return -(-self.m // self.tile.rows)

    @property
    def across(self) -> int:
        """Vectors of all columns."""
        return -(-self.n // self.tile.lanes)

    def grids(self, rows: int, columns: int) -> Iterator[_Grid]:
        """Grids of blocks of so many tiles and vectors, with chunks of several sizes."""
        if self.pack_b != 1:
            yield self.grid(rows, columns, 0)
            return
        item = self.tile.itemsize
        least = columns <= 2 * self.tile.vectors
        if self.k * columns * self.tile.lanes * item > PACKED_B_BYTES and not least:
            return
        down = -(-self.down // rows)
        for parts in (1, 2, 4):
            if parts == 1 or down % parts == 0:
                yield self.grid(rows, columns, down // parts)

    def grid(self, rows: int, columns: int, chunk: int) -> _Grid:
        """chunk: units that share a packed panel of B; 0: nothing is shared."""
        k, tile = self.k, self.tile
        pack = tile.lanes * PACK_CYCLES * k if self.pack_b in (1, 2) else 0.0
        far = k * (self.m + self.n) * self.count * 4 > FAR_BYTES
        read = AGAIN_CYCLES * k * (FAR if far else 1)

        def block(tiles: int, vectors: int) -> float:
            whole, rest = divmod(vectors, tile.vectors)
            cycles = VECTOR_CYCLES[tile.vectors]
            steps = whole * cycles[tile.vectors] + cycles[rest]
            calls = (whole + (rest > 0)) * TILE_CYCLES
            again = read * (vectors + tiles / 2)
            packed = (pack * vectors if not chunk else 0) + self.pack_rows * tiles * k
            return tiles * (steps * k + calls) + again + packed + BLOCK_CYCLES

        down, last_rows = _cut(self.down, rows)
        across, last_columns = _cut(self.across, columns)
        full = block(rows, columns)
        units = (down + (last_rows > 0)) * (across + (last_columns > 0)) * self.count
        total = (
            down * across * full
            + (across * block(last_rows, columns) if last_rows else 0)
            + (down * block(rows, last_columns) if last_columns else 0)
            + (block(last_rows, last_columns) if last_rows and last_columns else 0)
        ) * self.count
        group = chunk or self._joined(units, total)
        chunks = -(-units // group)
        if chunk:
            total += pack * self.across * self.count * -(-(down + (last_rows > 0)) // chunk)
            full = group * full + pack * columns
            many = chunks if not last_columns else chunks * across // (across + 1)
        elif group > 1:
            full, many = full * group, int(total / (full * group))
        else:
            many = down * across * self.count
        least = block(last_rows or rows, last_columns or columns) * group
        return _Grid(rows * tile.rows, columns * tile.lanes, chunk, total, full, many, least)

    @staticmethod
    def _joined(units: int, total: float) -> int:
        """The units of a chunk, as `weft.codegen.call.split` will have them."""
        chunks = max(1, min(MOST_CHUNKS, units, int(total / CYCLES_PER_NS / CHUNK_NS)))
        return -(-units // chunks)


def _cut(size: int, block: int) -> tuple[int, int]:
    """Whole blocks, and what is left over."""
    return divmod(size, block)
