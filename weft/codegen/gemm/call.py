"""The call of a matrix product: how it is cut into blocks, what is packed, what a thread takes.

All of it follows from the sizes, so that the bits and the code are the same for any thread count.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from weft.codegen.call import Address, Arg, Code, KernelCall, Pool, Scratch, WorkerScratch
from weft.codegen.cost import NS_PER_BYTE_STREAMED, split
from weft.codegen.elements import HALVES
from weft.codegen.gemm.product import PACKED_BEFORE, gemm_kernel, pack_kernel
from weft.codegen.gemm.tile import Tile, tile_of
from weft.codegen.jit import Kernel
from weft.ir.attributes import ConstArray
from weft.ir.dtypes import as_dtype

#: A run of k: its part of a panel of B (48 columns of f32) and of A fit into L1 together.
RUN = 256
#: Rows of a block of C: a panel of B is used for so many rows once it is in the cache. Of medium
#: sizes there are about 16 blocks, so that the shares of few threads are equal.
BLOCK_ROWS = 96
LEAST_ROWS = 48
#: Above so many bytes B is packed: read in place, its rows lie on too many pages.
DIRECT_B_BYTES = 1 << 20
#: Above so many bytes of B (all of k) it is packed run by run, for each block of C anew.
PACKED_B_BYTES = 1 << 22
#: Below so many rows, twice as large a B is read in place.
MANY_ROWS = 512
#: Up to so many bytes of B a call before the product packs all of it; of more, each thread packs
#: blocks of columns of its own, because what is packed adds to the step's memory.
PACKED_BEFORE_BYTES = 1 << 19
#: The columns of a block of C, at most.
BLOCK_COLUMNS = 1024
#: Products of one core, for the cost model: multiply-adds per nanosecond at 2 x 512 bits, f32.
MULTIPLY_ADDS_PER_NS = 96.0


@dataclass(frozen=True, slots=True)
class Product:
    """`count` products C = A B of m x k by k x n; `a` and `b` say where the matrices begin.

    transposes: A is stored k x m, B is stored n x k.
    """

    dtype: str
    m: int
    n: int
    k: int
    a_at: tuple[int, ...]
    b_at: tuple[int, ...]
    transpose_a: bool
    transpose_b: bool


@dataclass(frozen=True, slots=True)
class Blocking:
    """Block sizes of C and k. pack_b: 0 read B where it is, 1 pack it once for a range of units, 2
    pack each run of k anew for each unit, PACKED_BEFORE a call of its own packs all of it.
    """

    rows: int
    columns: int
    k: int
    pack_a: bool
    pack_b: int


def _up(size: int, step: int) -> int:
    return -(-size // step) * step


def blocking(p: Product, tile: Tile) -> Blocking:
    """How a product is cut: a function of its sizes and of the target's tile alone."""
    item = 8 if tile.dtype == "f64" else 4
    runs = max(1, -(-p.k // RUN))
    k = max(1, _up(-(-p.k // runs), tile.lanes))
    columns = min(_up(max(p.n, 1), tile.columns), _up(BLOCK_COLUMNS, tile.columns))
    share = max(LEAST_ROWS, -(-p.m // 16))
    rows = min(BLOCK_ROWS, _up(share, tile.rows), _up(max(p.m, 1), tile.rows))
    halves = p.dtype in HALVES
    direct = tile.masks and not p.transpose_b and not halves
    few = p.m < MANY_ROWS  # packing B costs as much as what it gives to some 500 rows
    direct = direct and p.k * p.n * item <= DIRECT_B_BYTES << few
    pack_b = 0 if direct else 1
    if pack_b and p.k * columns * item > PACKED_B_BYTES:
        pack_b, rows = 2, min(4 * BLOCK_ROWS, _up(max(p.m, 1), tile.rows))
    # few blocks of many columns: cut the columns too, so that threads have equal shares
    blocks = len(p.a_at) * -(-p.m // rows) * -(-p.n // columns) if p.m and p.n else 0
    if 0 < blocks < 8 and columns > 2 * tile.columns:
        columns = _share(p.n, -(-16 // blocks), tile, direct)
    far = p.transpose_a and p.m * item >= 4096 and p.n > tile.columns
    if pack_b == 1 and len(set(p.b_at)) == 1 and p.m > rows and p.n and p.k:
        if _up(p.n, tile.columns) * p.k * item <= PACKED_BEFORE_BYTES:
            pack_b = PACKED_BEFORE
        else:  # about eight chunks, each of which packs its own columns
            columns = min(columns, max(2 * tile.columns, _up(-(-p.n // 8), tile.columns)))
    return Blocking(rows, columns, k, halves or far, pack_b)


def _share(n: int, pieces: int, tile: Tile, direct: bool) -> int:
    """The columns of a block if n are cut into about so many pieces, equal as far as possible."""
    wide = n >= 4 * tile.columns
    least, step = (2 * tile.columns, tile.columns) if wide else (4 * tile.lanes, tile.lanes)
    pieces = min(pieces, n // least if wide else -(-n // least))
    return _up(-(-n // pieces), step if direct else tile.columns)


def gemm_calls(
    p: Product,
    c: Arg,
    a: Address,
    b: Address,
    epilogue: Kernel | None = None,
    epilogue_args: Sequence[Arg] = (),
    statements: int = 0,
) -> list[KernelCall]:
    """C = A B, block by block; each block is handed to `epilogue` instead of C if there is one.

    The last call is the product, before it there may be one that packs B.
    """
    tile = tile_of(p.dtype)
    cut = blocking(p, tile)
    item = 8 if tile.dtype == "f64" else 4
    depth = min(max(p.k, 1), cut.k)
    b_bytes = _up((p.k if cut.pack_b == 1 else depth) * cut.columns * item, 64)
    b_bytes = b_bytes if cut.pack_b in (1, 2) else 0
    before: list[KernelCall] = []
    packed: Arg = 0
    if cut.pack_b == PACKED_BEFORE:
        packed = Scratch(_up(p.n, tile.columns) * p.k * item)
        before = [_pack_call(p, b, packed, cut, tile)]
    a_bytes = _up(_up(cut.rows, tile.rows) * depth * item + 64, 64) if cut.pack_a else 0
    block_bytes = _up(cut.rows * cut.columns * item, 64) if epilogue else 0
    scratch = max(64, b_bytes + a_bytes + block_bytes)
    steps = [*((1, p.m) if p.transpose_a else (p.k, 1)), *_b_steps(p)]
    blocks = -(-p.m // cut.rows) * -(-p.n // cut.columns)
    units = len(p.a_at) * blocks
    args: tuple[Arg, ...] = (
        c, a, b, _offsets(p.a_at), _offsets(p.b_at), WorkerScratch(scratch), scratch,
        p.m, p.n, p.k, *steps, cut.rows, cut.columns, cut.k, int(cut.pack_a), cut.pack_b,
        b_bytes, a_bytes, packed, Code(epilogue) if epilogue else 0, *epilogue_args,
    )  # fmt: skip
    area = min(p.m, cut.rows) * min(p.n, cut.columns)
    # a vector operation on an element costs about as much as eight multiply-adds in the tile
    chunk = split(units, area * (max(p.k, 8) + 8 * statements) / MULTIPLY_ADDS_PER_NS)
    if chunk and cut.pack_b == 1:  # whole blocks of columns: B is packed once
        chunk = _up(chunk, -(-p.m // cut.rows))
    return [*before, KernelCall(gemm_kernel(p.dtype), args, units, chunk if chunk < units else 0)]


def _b_steps(p: Product) -> tuple[int, int]:
    """The strides of B over k and over columns."""
    return (1, p.k) if p.transpose_b else (p.n, 1)


def _pack_call(p: Product, b: Address, target: Scratch, cut: Blocking, tile: Tile) -> KernelCall:
    """B as panels, all runs of k of each block of columns side by side."""
    first = Address(b.value, b.offset + p.b_at[0] * as_dtype(p.dtype).itemsize)
    args = (target, first, p.n, p.k, *_b_steps(p), cut.columns, cut.k)
    units = -(-p.k // cut.k) * -(-p.n // tile.columns)
    each = 2 * target.nbytes * (2 if p.transpose_b else 1) * NS_PER_BYTE_STREAMED / units
    return KernelCall(pack_kernel(p.dtype), args, units, split(units, each))


def _offsets(at: tuple[int, ...]) -> Pool:
    return Pool(ConstArray(np.array(at, np.int64)))
