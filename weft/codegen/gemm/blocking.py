"""How a product is cut: the blocks of C that threads take, the runs of k, what is packed.

All of it follows from the sizes and the target's tile, so that the bits and the code are the same
for any number of threads. Blocks are chosen by an estimate of what a product takes on two and on
eight threads: what the register tile needs for whole and for partial vectors, packing, and how even
the shares are. Many small blocks are even; few large ones pack and read less.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from weft.codegen.cost import CHUNK_NS, MOST_CHUNKS, WORTH_CUTTING_NS
from weft.codegen.gemm.product import K_BY_COLUMNS, PACKED_BEFORE
from weft.codegen.gemm.tile import Tile, converts
from weft.ir.dataclass import dataclass
from weft.ir.sizes import of_sizes

#: A run of k: a panel's part of it fits into L1, or of 3 vectors of 512 bits into L2. Longer ones
#: are some percent faster there, but their sums err more than BLAS's.
RUN = 256
#: Steps of k in A so many bytes apart and more are packed: they share few sets of the cache, and
#: pages.
FAR_STEP_BYTES = 4096
#: Bytes of a cache line.
LINE = 64
#: Rows of a block of C, at most: they and their part of A stay in L2.
BLOCK_ROWS = 96
#: The columns of a block of C, at most: their part of a run of B stays in L2 too.
BLOCK_COLUMNS = 384
#: Above so many bytes B is packed: read in place, its rows lie on too many pages.
DIRECT_B_BYTES = 1 << 20
#: Above so many bytes of B (all of k) it is packed run by run, for each block of C anew.
PACKED_B_BYTES = 1 << 22
#: Up to so many bytes of a run of k any B is read in place: its pages are few at a time.
DIRECT_RUN_BYTES = 1 << 17
#: A block of rows of A that a prologue computes has at most so many bytes, where possible.
COMPUTED_BYTES = 1 << 18
#: Below so many rows, twice as large a B is read in place.
MANY_ROWS = 512
#: From so many rows and panels on B is packed where a panel has one cache line of each row of B
#: (16 registers): read in place, the lines beside it take their room in L1.
NARROW_ROWS, NARROW_PANELS = 192, 4
#: A is asked for a tile ahead if it has more bytes than this: half of the L2 cache or more.
NEAR_A_BYTES = 1 << 20
#: Up to so many bytes of B a call before the product packs all of it; of more, each chunk packs
#: the columns that it needs: they stay in L2, and the step's memory does not grow by all of B.
PACKED_BEFORE_BYTES = 1 << 19

#: Cycles of a step of k for a tile of 1, 2, 3 vectors, by the vectors of a whole tile: of a single
#: vector the loads of 8 rows bind, and the latency of 6 sums.
VECTOR_CYCLES = {4: (0, 4, 6, 9, 12), 3: (0, 5, 8, 12), 2: (0, 4, 6)}
#: What a tile takes beside its steps of k: the call, its sums to memory.
TILE_CYCLES = 40
#: What a block takes beside its tiles.
BLOCK_CYCLES = 400
#: An element of B that is packed; a step of k of a tile's rows of A, which each block packs anew.
PACK_CYCLES, PACK_ROWS_CYCLES = 0.25, 2.0
#: What a block reads again: a vector of B, the rows of a tile of A, so many times as much if the
#: operands are in memory, not in a cache.
AGAIN_CYCLES, FAR, FAR_BYTES = 0.6, 8, 1 << 24
CYCLES_PER_NS = 4.0


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


def blocking(p: Product, tile: Tile, computed: tuple[bool, bool] = (False, False)) -> Blocking:
    """How a product is cut: a function of its sizes and of the target's tile alone.

    computed: A, B are computed by prologues: blocks of all columns, of all rows, compute them once.
    """
    item = tile.itemsize
    steps = tile.steps(p.k)  # of narrow integers a run is as long in memory, and has more of k
    runs = max(1, -(-steps // RUN))
    k = max(1, up(-(-steps // runs), tile.lanes)) * tile.depth
    pack_b = K_BY_COLUMNS if computed[1] else _packing(p, tile, item)
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
        """The units of a chunk, as `weft.codegen.cost.split` will have them."""
        chunks = max(1, min(MOST_CHUNKS, units, int(total / CYCLES_PER_NS / CHUNK_NS)))
        return -(-units // chunks)


def _cut(size: int, block: int) -> tuple[int, int]:
    """Whole blocks, and what is left over."""
    return divmod(size, block)
