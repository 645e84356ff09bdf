"""Kernel calls of a matrix product: its words, what it packs before, what a thread takes at a time.

`Before` and `Follow` are the prologues and epilogues that go before and after a product block by
block: kernels and their words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from weft.codegen.call import (
    Address,
    Arg,
    Code,
    KernelCall,
    Numbers,
    Pool,
    Scratch,
    WorkerScratch,
    cut_call,
    table_of,
)
from weft.codegen.llvm.jit import Kernel
from weft.codegen.nests.folds import Partials, combine_call, lay_out
from weft.codegen.nests.nest import Access
from weft.codegen.products.gemm import (
    K_BY_ROWS,
    PACKED_BEFORE,
    ROWS_BY_K,
    RUN,
    WHOLE,
    WORDS,
    Blocking,
    Product,
    blocking,
    computed_row,
    gemm_kernel,
    pack_kernel,
    up,
)
from weft.codegen.tiles.tile import Tile, converts, tile_of
from weft.ir.cost.rates import PRODUCTS_PER_OPERATION, streamed
from weft.ir.cost.thresholds import k_pieces
from weft.ir.dataclass import dataclass
from weft.ir.dtypes import as_dtype
from weft.ir.sizes import smallest
from weft.ir.spec import ConstArray


@dataclass(frozen=True, slots=True)
class Follow:
    """An epilogue: its kernel, its words, and how many statements it has for each element.

    folds: (reduction, dtype, output) of what it folds over all rows; `columns` elements each.
    """

    kernel: Kernel
    args: list[Arg]
    statements: int
    folds: tuple[tuple[str, str, Address], ...] = ()
    columns: int = 0

    def calls(
        self, blocks: int, rows: int, matrices: int, held: int
    ) -> tuple[list[Arg], list[KernelCall]]:
        """The words for `blocks` blocks of `rows` rows in each of the matrices, and the calls that
        add up, in order, what each block has left. held: bytes of the scratch memory, which all
        calls share, that are in use.
        """
        if not self.folds:
            return self.args, []
        folds = [(name, dtype, self.columns, output) for name, dtype, output in self.folds]
        partials, nbytes = lay_out(folds, blocks * matrices)
        words: list[Arg] = [*self.args, blocks, rows, self.columns]
        if blocks * matrices == 1:  # nothing to add up
            return words + [x for p in partials for x in (p.output, 0)], []
        scratch = Scratch(held + nbytes)
        partials = [replace(p, offset=held + p.offset) for p in partials]
        words += [x for p in partials for x in (scratch, p.offset)]
        return words, [combine_call(p, scratch) for p in partials]


@dataclass(frozen=True, slots=True)
class Before:
    """A prologue: its kernel, its words, how many statements it has for each element; turned: it
    makes k by rows of A, not rows by k.
    """

    kernel: Kernel
    args: list[Arg]
    statements: int
    turned: bool


#: What computes A and B of a product, if anything does.
Prologues = tuple[Before | None, Before | None]


def load_words(loads: Iterable[Access], operands: Sequence[Address]) -> tuple[list[Arg], list[Arg]]:
    """The addresses of what a nest loads, and the strides; an "index" load has no address, but an
    offset before its strides.
    """
    addresses: list[Arg] = []
    strides: list[Arg] = []
    for load in loads:
        if load.leaf == "index":
            strides += [load.offset, *load.strides]
            continue
        strides += load.strides
        if isinstance(load.leaf, ConstArray):
            addresses.append(Pool(load.leaf))
        else:
            held, size = operands[load.leaf], as_dtype(load.dtype).itemsize
            addresses.append(Address(held.value, held.offset + load.offset * size))
    return addresses, strides


def gemm_calls(
    p: Product,
    c: Arg,
    a: Address,
    b: Address,
    follow: Follow | None = None,
    k_all: int = 0,
    before: Prologues = (None, None),
) -> list[KernelCall]:
    """C = A B, block by block; each block is handed to `follow` instead of C if there is one.

    Before the product there may be a call that packs B, after it those that add up what its
    epilogue has folded. k_all: the matrices are pieces of one product over so many k. before:
    prologues that compute A and B, block by block.
    """
    tile = tile_of(p.dtype)
    computed = before[0] is not None, before[1] is not None
    cut = blocking(p, tile, computed)
    item = tile.itemsize
    run = smallest(max(p.k, 1), cut.k)
    b_steps = tile.steps(p.k if cut.pack_b == 1 else run)
    b_bytes = up(b_steps * cut.columns * item, 64)
    b_bytes = 0 if cut.pack_b in (0, PACKED_BEFORE) else b_bytes
    first: list[KernelCall] = []
    packed: Arg = 0
    held = 0
    if cut.pack_b == PACKED_BEFORE:
        held = up(up(p.n, tile.columns) * tile.steps(p.k) * item, 64)
        packed = Scratch(held)
        first = [_pack_call(p, b, packed, cut, tile)]
    pack_a = _packs_a(cut, before[0])
    a_steps = tile.steps(cut.k) + tile.has_starts
    a_size = computed_row(p.k) * cut.rows if before[0] else _panel_rows(cut.rows, tile) * a_steps
    a_bytes = up(a_size * item + 64, 64) if pack_a else 0
    block_bytes = up(cut.rows * cut.columns * item, 64) if follow else 0
    scratch = max(64, b_bytes + a_bytes + block_bytes)
    down = -(-p.m // cut.rows)
    units = len(p.a_at) * down * -(-p.n // cut.columns)
    words, after = follow.calls(down, cut.rows, len(p.a_at), held) if follow else ([], [])
    made = [f.args if f else [] for f in before]
    a_words = len(WORDS) + len(words)
    args: tuple[Arg, ...] = (
        c, a, b, _offsets(p.a_at), _offsets(p.b_at), _offsets(p.c_at), p.c_row,
        WorkerScratch(scratch), scratch, p.m, p.n, p.k, *_steps(p, cut, before),
        cut.rows, cut.columns, cut.k, pack_a, cut.pack_b, b_bytes, a_bytes, packed, k_all or WHOLE,
        _code(before[0]), a_words, _code(before[1]), a_words + len(made[0]), cut.ahead, cut.wide,
        _code(follow), *words, *made[0], *made[1],
    )  # fmt: skip
    each = _nanoseconds(p, cut, follow, before)
    # what is packed serves the whole chunk
    product = cut_call(gemm_kernel(p.dtype), args, units, each, cut.chunk)
    return [*first, product, *after]


def _panel_rows(rows: int, tile: Tile) -> int:
    """Rows of packed panels of A for a block of `rows`."""
    return -(-rows // tile.rows) * tile.packed_rows


def _packs_a(cut: Blocking, made: Before | None) -> int:
    if made is None:
        return int(cut.pack_a)
    return K_BY_ROWS if made.turned else ROWS_BY_K


def _steps(p: Product, cut: Blocking, before: Prologues) -> tuple[int, int, int, int]:
    """The strides of A over rows and k, of B over k and columns; in scratch if they are made."""
    a_steps, b_steps = p.a_steps, p.b_steps
    if before[0] is not None:
        a_steps = (1, cut.rows) if before[0].turned else (computed_row(p.k), 1)
    if before[1] is not None:
        b_steps = (cut.columns, 1)
    return (*a_steps, *b_steps)


def _nanoseconds(p: Product, cut: Blocking, follow: Follow | None, before: Prologues) -> float:
    """Of one unit. An element of C beside its sum costs as much as a vector operation: calls,
    loads and stores."""
    tile = tile_of(p.dtype)
    rows, columns = smallest(p.m, cut.rows), smallest(p.n, cut.columns)
    around = PRODUCTS_PER_OPERATION
    after = around * (follow.statements if follow else 0)
    work = rows * columns * (tile.steps(p.k) + around + after)
    for made, size in zip(before, (rows, columns), strict=True):
        work += around * p.k * size * (made.statements if made else 0)
    return work / tile.multiply_adds_per_ns


def _code(called: Before | Follow | None) -> Arg:
    return Code(called.kernel) if called else 0


def stored_calls(p: Product, c: Address, a: Address, b: Address) -> list[KernelCall]:
    """C = A B, contiguous, and nothing after it."""
    pieces = k_pieces(p.m, p.n, p.k, len(p.a_at))
    return deep_calls(p, c, a, b, pieces) if pieces > 1 else gemm_calls(p, c, a, b)


def deep_calls(p: Product, c: Address, a: Address, b: Address, pieces: int) -> list[KernelCall]:
    """C = A B as the sum of products of pieces of k; see `weft.ir.cost`."""
    wide = tile_of(p.dtype).dtype if converts(p.dtype) else p.dtype
    k = up(-(-p.k // pieces), RUN)
    starts = range(0, p.k, k)
    parts = replace(
        p,
        k=k,
        a_at=tuple(p.a_at[0] + start * p.a_steps[1] for start in starts),
        b_at=tuple(p.b_at[0] + start * p.b_steps[0] for start in starts),
        c_at=tuple([i * p.m * p.n for i in range(len(starts))]),
        c_row=p.n,
    )
    partial = Scratch(len(starts) * p.m * p.n * as_dtype(wide).itemsize)
    partials = Partials("sum", wide, wide, len(starts), p.m * p.n, 0, c)
    calls = gemm_calls(parts, partial, a, b, k_all=p.k)
    return [*calls, combine_call(partials, partial)]


def _pack_call(p: Product, b: Address, target: Scratch, cut: Blocking, tile: Tile) -> KernelCall:
    """B as panels, all runs of k of each block of columns side by side."""
    first = Address(b.value, b.offset + p.b_at[0] * as_dtype(p.dtype).itemsize)
    args = (target, first, p.n, p.k, *p.b_steps, cut.columns, cut.k)
    units = -(-p.k // cut.k) * -(-p.n // tile.columns)
    each = streamed(2 * target.nbytes) * (2 if p.b_steps[1] != 1 else 1) / units
    return cut_call(pack_kernel(p.dtype), args, units, each)


def _offsets(at: tuple[int, ...]) -> Pool | Numbers:
    return table_of(at)
