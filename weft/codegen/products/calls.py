"""Kernel calls of a matrix product: weft's own for floats and integers, with its epilogues and
prologues, and BLAS for complex numbers.

Prologues (`Before`) and epilogues (`Follow`) are kernels, with their words, that the product's
kernel calls block by block. An epilogue, `epilogue(where, 0, 1, worker)`, takes each finished block
of C while it is in the cache: the words of `gemm.BLOCK_WORDS` say where the block is, its own words
come after those of the product. So products share one kernel, whatever follows them.

The words of an epilogue: one address per output, one per operand that is not in place, then for
each of them, in the same order, its strides over rows and columns; for "index" loads the offset and
the strides. Rows are those of all matrices of the batch, one after another; there are `m` of them
in each (the next word).

What is folded over all rows - a bias gradient, the sum of dy's rows - leaves a partial result for
each block of rows in scratch memory, and `Follow.calls` adds them up in order: blocks depend on the
sizes alone, and so do the bits. Their words come last: the blocks of a matrix, the rows of a
block, the columns of C, for each fold where its partial results are, as an address and an offset.

A prologue, `prologue(where, 0, 1, worker)` with the same words, is a nest in place of packing:
before each run of k it computes a block of an operand - rows of A by k, k by rows of a transposed
A, k by columns of B - and writes it row by row to the worker's scratch, where the micro-kernel
reads it. The operand is never stored. Its words: one address per operand of the nest, then for each
of its loads, in order, the strides over rows and columns; for "index" loads the offset and the
strides; last the rows of a matrix."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np
from llvmlite import ir

from weft.codegen.call import (
    Address,
    Arg,
    Code,
    KernelCall,
    Numbers,
    Pool,
    Routine,
    Scratch,
    WorkerScratch,
    cut_call,
    table_of,
)
from weft.codegen.llvm.emitter import COMPLEXES, I64, INTEGERS, Emitter, memory_type
from weft.codegen.llvm.jit import Kernel
from weft.codegen.llvm.link import LETTER
from weft.codegen.nests.folds import Partials, combine_call, lay_out
from weft.codegen.nests.nest import Access, Nest, Statement, Store, plain_nest
from weft.codegen.nests.writer import NestWriter, cut_kind, output_of
from weft.codegen.products.gemm import (
    BLOCK_WORDS,
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
from weft.codegen.scalar.element_access import constant, store_element
from weft.codegen.tiles.micro_kernel import Tile, converts, tile_of
from weft.codegen.tiles.panels import Panels, constant_of, packed_constant
from weft.ir.analysis.index_maps import (
    Read,
    contiguous_strides,
    is_index_map,
    over_rows,
    read_of,
    static_shape,
)
from weft.ir.cost.rates import PRODUCTS_PER_OPERATION, streamed
from weft.ir.cost.thresholds import k_pieces
from weft.ir.dataclass import dataclass
from weft.ir.dtypes import as_dtype
from weft.ir.errors import InternalError, UnsupportedError
from weft.ir.graph import Operation, Value
from weft.ir.ops.builder import Builder
from weft.ir.sizes import is_traced, smallest
from weft.ir.spec import ConstArray
from weft.ir.types import TensorType


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
    fixed = None if computed[1] else _constant_b(p, b, tile)
    cut = blocking(p, tile, computed, fixed is not None)
    item = tile.itemsize
    run = smallest(max(p.k, 1), cut.k)
    b_steps = tile.steps(p.k if cut.pack_b == 1 else run)
    b_bytes = up(b_steps * cut.columns * item, 64)
    b_bytes = 0 if cut.pack_b in (0, PACKED_BEFORE) else b_bytes
    first: list[KernelCall] = []
    packed: Arg = 0
    b_at: Arg = b
    held = 0
    if cut.pack_b == PACKED_BEFORE and fixed is not None:
        packed = b_at = packed_constant(b, fixed)  # nothing is read of B where it was
    elif cut.pack_b == PACKED_BEFORE:
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
        c, a, b_at, _offsets(p.a_at), _offsets(p.b_at), _offsets(p.c_at), p.c_row,
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
    """B as panels, all runs of k of each side by side."""
    first = Address(b.value, b.offset + p.b_at[0] * as_dtype(p.dtype).itemsize)
    args = (target, first, p.n, p.k, *p.b_steps, cut.k)
    units = -(-p.k // cut.k) * -(-p.n // tile.columns)
    each = streamed(2 * target.nbytes) * (2 if p.b_steps[1] != 1 else 1) / units
    return cut_call(pack_kernel(p.dtype), args, units, each)


def _constant_b(p: Product, b: Address, tile: Tile) -> Panels | None:
    """How B is packed once for all calls, if it is one matrix for all products, and a constant."""
    held = constant_of(b)
    numbers = (p.n, p.k, *p.b_at, *p.b_steps)
    if held is None or held.dtype.short != p.dtype or len(set(p.b_at)) != 1:
        return None
    if not p.n * p.k or any(map(is_traced, numbers)):
        return None
    offset = b.offset // held.dtype.itemsize + p.b_at[0]
    sizes, strides = (1, 1, p.k, p.n), (0, 0, *p.b_steps)
    return Panels(
        offset, sizes, strides, tile.columns, tile.dtype, tile.depth, flipped=tile.has_starts
    )


def _offsets(at: tuple[int, ...]) -> Pool | Numbers:
    return table_of(at)


Walk = Access | Store
#: (product, its operands, epilogue of a product of so many rows, prologues) -> the calls.
Lower = Callable[
    [Operation, Address, Address, Callable[[int], Follow], Prologues], list[KernelCall]
]


#: Ops that a `fused` op is carried out by: the others are what it reads through and what follows.
PRODUCTS = frozenset({"matmul", "conv", "conv_input"})


def is_product(op: Operation) -> bool:
    """Whether a `fused` op holds a product: a matmul or a convolution."""
    return op.name == "fused" and any(o.name in PRODUCTS for o in op.regions[0].ops)


def product_in(op: Operation) -> Operation:
    """The product that a `fused` op holds."""
    return next(o for o in op.regions[0].ops if o.name in PRODUCTS)


def calls_another(call: KernelCall) -> bool:
    """Whether a call is that of a product, which calls its epilogue."""
    return any(isinstance(arg, Code) for arg in call.args)


def store_calls(p: Product, c: Address, a: Address, b: Address) -> list[KernelCall]:
    """A product that is summed in something wider than it is stored as."""
    wide = tile_of(p.dtype).dtype
    loads = (Access(0, wide, 0, (2, 1)),)
    casts = (Statement("astype", wide, (("load", 0),), p.dtype),) if p.dtype in INTEGERS else ()
    stores = (Store(0, p.dtype, ("value" if casts else "load", 0), None, (p.n, 1)),)
    nest = Nest("store", (p.m, p.n), (False, False), loads, casts, stores)
    return gemm_calls(p, 0, a, b, _epilogue(nest, 0, p.m, [c], [c]))


def product_calls(
    op: Operation, in_place: tuple[tuple[int, int], ...], lower: Lower, before: Prologues
) -> tuple[list[KernelCall], Nest]:
    """The kernel calls of a `fused` op that begins with a product, and the nest that follows it."""
    product = product_in(op)
    rest, c = without_product(op)
    nest = plain_nest(rest, in_place)
    nest = nest_over_rows(nest, c)
    a, b = operands_of(op)
    operands = [Address(v) for v in rest.operands]
    results = [Address(v) for v in op.results]

    def epilogue(rows: int) -> Follow:
        return _epilogue(nest, c, rows, results, operands)

    return lower(product, a, b, epilogue, before), nest


def operands_of(op: Operation) -> list[Address]:
    """The arrays that the product in a `fused` op reads, through index maps or as they are; for
    what a prologue computes any array: nothing is read there.
    """
    outside = dict(zip(op.regions[0].args, op.operands, strict=True))
    sources = [read_of(unconverted(v)).source for v in product_in(op).operands]
    return [Address(outside.get(source, op.operands[0])) for source in sources]


def unconverted(value: Value) -> Value:
    """What packing reads of an operand of a product in a region: the narrow integers that it is
    converted from (`weft.passes.fusion.product_operands`), others as they are.
    """
    made = value.op
    if made is None or made.name != "astype":
        return value
    (given,) = made.operands
    types = given.type, value.type
    short = [t.dtype.short for t in types if isinstance(t, TensorType)]
    return given if short[0] in INTEGERS and converts(short[0]) and short[1] in INTEGERS else value


def result_strides(op: Operation) -> tuple[int, ...] | None:
    """The strides of the product in the result of a `fused` op that is nothing but a product and a
    permutation of its axes; None for others.
    """
    (region,) = op.regions
    product = product_in(op)
    after = region.ops[region.ops.index(product) + 1 :]
    if not all(is_index_map(o) for o in after) or len(region.results) != 1:
        return None
    (result,) = region.results
    made, seen = static_shape(result), read_of(result)
    own = contiguous_strides(static_shape(product.result))
    place = dict(zip(seen.strides, contiguous_strides(made), strict=True))
    return tuple(place[step] if step else 0 for step in own)


def without_product(op: Operation) -> tuple[Operation, int]:
    """The nest alone, with the product as one more operand; the number of that operand."""
    (region,) = op.regions
    product = product_in(op)
    inner = Builder([a.type for a in region.args])
    local: dict[Value, Value] = dict(zip(region.args, inner.args, strict=True))
    local[product.result] = inner.add_arg(product.result.type)
    for member in region.ops[region.ops.index(product) + 1 :]:
        local.update(zip(member.results, inner.clone(member, local), strict=True))
    block = inner.block([local[v] for v in region.results])
    types = [r.type for r in op.results]
    operands = [*op.operands, product.result]
    return Operation("fused", operands, op.attrs, types, [block], (), op.locations), len(
        op.operands
    )


def nest_over_rows(nest: Nest, c: int | None) -> Nest:
    """The nest over (rows of all matrices, columns); the product is read from its block."""

    def two(walk: Walk) -> tuple[int, int]:
        strides = over_rows(walk.strides, nest.extents)
        if strides is None:
            raise InternalError(f"an epilogue walks its rows by {walk.strides} over {nest.extents}")
        return strides

    *outer, columns = nest.extents
    rows = 1
    for size in outer:
        rows *= size
    return replace(
        nest,
        extents=(rows, columns),
        reduced=(any(nest.reduced), False),
        loads=tuple(replace(a, strides=(2, 1) if a.leaf == c else two(a)) for a in nest.loads),
        stores=tuple(replace(s, strides=two(s)) for s in nest.stores),
    )


def _epilogue(
    nest: Nest, c: int, rows: int, outputs: list[Address], operands: list[Address]
) -> Follow:
    addresses, strides = load_words(_moving(nest, c), operands)
    where = [k for k, load in enumerate(nest.loads) if load.leaf == c]
    key = f"gemm-epilogue-3-{where}-{nest.key}"
    kernel = Kernel(key, f"epilogue_{nest.name}", lambda e: _emit_epilogue(e, nest, c))
    folds = [(s.reduction, s.dtype, outputs[s.output]) for s in nest.stores]
    named = tuple((name, dtype, output) for name, dtype, output in folds if name is not None)
    words: list[Arg] = [outputs[s.output] for s in nest.stores]
    words += [*addresses, *(x for s in nest.stores for x in s.strides), *strides, rows]
    return Follow(kernel, words, len(nest.statements), named, nest.extents[-1])


def _moving(nest: Nest, c: int) -> list[Access]:
    """The loads that have a place of their own: not the product, not what is in place."""
    return [a for a in nest.loads if a.leaf != c and output_of(nest, a) is None]


def block_words(e: Emitter) -> tuple[dict[str, ir.Value], Callable[[], ir.Value]]:
    """What describes the block, by name, and what loads the next of the kernel's own words."""
    where = {name: e.argument(k) for k, name in enumerate(BLOCK_WORDS)}
    words, position = e.builder.inttoptr(where["words"], I64.as_pointer()), itertools.count()
    return where, lambda: e.builder.load(e.at(words, e.index(next(position))))


def _emit_epilogue(e: Emitter, nest: Nest, c: int) -> None:
    b = e.builder
    where, word = block_words(e)
    loads = _moving(nest, c)
    buffers = [a for a in loads if a.leaf != "index"]
    kinds = [w.dtype for w in nest.stores] + [w.dtype for w in buffers]
    bases = [b.inttoptr(word(), memory_type(dtype).as_pointer()) for dtype in kinds]
    order: list[Walk] = [*nest.stores, *loads]
    numbers = [[word() for _ in range(3 if _is_index(w) else 2)] for w in order]
    row = b.add(b.mul(where["matrix"], word()), where["row"])
    partial = _partials(e, nest, where, word) if any(nest.reduced) else iter(())

    def start(steps: list[ir.Value]) -> ir.Value:
        return b.add(b.mul(row, steps[0]), b.mul(where["column"], steps[1]))

    at = dict(zip((id(w) for w in order), numbers, strict=True))
    pointers = {
        id(w): e.at(base, start(at[id(w)]))
        for w, base in zip([*order[: len(nest.stores)], *buffers], bases, strict=True)
    }
    block = b.inttoptr(where["tile"], memory_type(_block_dtype(nest, c)).as_pointer())
    scalars: list[ir.Value] = [where["rows"], where["columns"], where["rows"], where["columns"]]
    scalars += [e.index(1), e.index(0)]
    given = [next(partial) if s.reduction else pointers[id(s)] for s in nest.stores]
    for load in nest.loads:
        if load.leaf == c:
            given.append(block)
            scalars.append(where["tile_row"])
        elif output_of(nest, load) is not None:
            continue
        elif load.leaf == "index":
            offset, *steps = at[id(load)]
            scalars += [b.add(offset, start(steps)), *steps]
        else:
            given.append(pointers[id(load)])
            scalars += _free(load, at[id(load)])
    for store in nest.stores:
        scalars += _free(store, at[id(store)])
    units = where["rows"] if cut_kind(nest) == "pair" else e.index(1)
    with e.loop_function("block", given, [*scalars, units]) as (f, held, values):
        NestWriter(f, nest, held, values[:-1]).write(f.index(0), values[-1])


def _partials(
    e: Emitter, nest: Nest, where: dict[str, ir.Value], word: Callable[[], ir.Value]
) -> Iterator[ir.Value]:
    """Where the block's partial results of each fold begin."""
    b = e.builder
    blocks, rows, columns = (word() for _ in range(3))
    number = b.add(b.mul(where["matrix"], blocks), b.sdiv(where["row"], rows))
    first = b.add(b.mul(number, columns), where["column"])
    for store in nest.stores:
        if store.reduction:
            base = b.inttoptr(b.add(word(), word()), memory_type(store.dtype).as_pointer())
            yield e.at(base, first)


def _block_dtype(nest: Nest, c: int) -> str:
    return next((a.dtype for a in nest.loads if a.leaf == c), "f32")


def _is_index(walk: Walk) -> bool:
    return isinstance(walk, Access) and walk.leaf == "index"


def _free(walk: Walk, steps: list[ir.Value]) -> list[ir.Value]:
    """The strides that are arguments: those that the nest's structure does not fix."""
    return [value for s, value in zip(walk.strides, steps, strict=True) if s not in (0, 1)]


def prologues(op: Operation) -> tuple[Before | None, Before | None]:
    """What computes A and B of the product in a `fused` op; None for what is in memory."""
    product = product_in(op)
    a, b = (_prologue(op, v) if is_computed(v) else None for v in product.operands)
    if a is not None and product.attrs["transpose_a"]:
        a = replace(a, turned=True)
    return a, b


def is_computed(value: Value) -> bool:
    """Whether an operand of a product in a region is computed there, not read through maps or
    widened where it is packed."""
    return read_of(unconverted(value)).source.op is not None


def _prologue(op: Operation, value: Value) -> Before:
    nest = nest_over_rows(plain_nest(alone(op, value)), None)
    (store,) = nest.stores
    nest = replace(nest, stores=(replace(store, strides=(2, 1)),))
    args, strides = load_words(nest.loads, [Address(v) for v in op.operands])
    rows = value.type.static_shape[-2]  # type: ignore[union-attr]
    kernel = Kernel(
        f"gemm-prologue-1-{nest.key}", f"prologue_{nest.name}", lambda e: _emit_prologue(e, nest)
    )
    return Before(kernel, [*args, *strides, rows], len(nest.statements), False)


def alone(op: Operation, value: Value) -> Operation:
    """The nest that computes `value` in the region of `op`, as an op of its own."""
    (region,) = op.regions
    needed, stack = set(), [value.op]
    while stack:
        made = stack.pop()
        if made is not None and made not in needed:
            needed.add(made)
            stack += [v.op for v in made.operands]
    inner = Builder([a.type for a in region.args])
    local: dict[Value, Value] = dict(zip(region.args, inner.args, strict=True))
    for member in region.ops:
        if member in needed:
            local.update(zip(member.results, inner.clone(member, local), strict=True))
    block = inner.block([local[value]])
    return Operation("fused", op.operands, op.attrs, [value.type], [block], (), op.locations)


def _emit_prologue(e: Emitter, nest: Nest) -> None:
    b = e.builder
    where, word = block_words(e)
    buffers = [a for a in nest.loads if a.leaf != "index"]
    bases = iter([b.inttoptr(word(), memory_type(a.dtype).as_pointer()) for a in buffers])
    numbers = [[word() for _ in range(3 if a.leaf == "index" else 2)] for a in nest.loads]
    row = b.add(b.mul(where["matrix"], word()), where["row"])

    def start(steps: list[ir.Value]) -> ir.Value:
        return b.add(b.mul(row, steps[0]), b.mul(where["column"], steps[1]))

    (store,) = nest.stores
    given = [b.inttoptr(where["tile"], memory_type(store.dtype).as_pointer())]
    scalars: list[ir.Value] = [where["rows"], where["columns"], where["rows"], where["columns"]]
    scalars += [e.index(1), e.index(0)]
    for load, own in zip(nest.loads, numbers, strict=True):
        if load.leaf == "index":
            offset, *steps = own
            scalars += [b.add(offset, start(steps)), *steps]
            continue
        given.append(e.at(next(bases), start(own)))
        scalars += [v for s, v in zip(load.strides, own, strict=True) if s not in (0, 1)]
    scalars.append(where["tile_row"])
    units = where["rows"] if cut_kind(nest) == "pair" else e.index(1)
    with e.loop_function("block", given, [*scalars, units]) as (f, held, values):
        NestWriter(f, nest, held, values[:-1]).write(f.index(0), values[-1])


I32 = ir.IntType(32)


def _type(value: Value) -> TensorType:
    assert isinstance(value.type, TensorType)
    return value.type


def _batch_offsets(batch: tuple[int, ...], read: Read) -> tuple[int, ...]:
    """Element offset of the operand's matrix for each matrix of the broadcast batch."""
    places = np.full((1,) * len(batch), read.offset, np.int64)
    own = read.strides[:-2]
    for axis, step in enumerate(own, len(batch) - len(own)):
        shape = [-1 if k == axis else 1 for k in range(len(batch))]
        moved = np.arange(batch[axis] if step else 1, dtype=np.int64) * step
        places = places + moved.reshape(shape)
    return tuple(np.broadcast_to(places, batch).reshape(-1).tolist())


def _whole(value: Value) -> Read:
    return Read(value, 0, contiguous_strides(_type(value).static_shape))


def product_of(
    op: Operation, read: Callable[[Value], Read] = _whole, c: tuple[int, ...] | None = None
) -> Product:
    """The sizes and strides of a matmul; rows of all matrices of A are one matrix if B is the same
    for all.

    read: where the operands are; c: the strides of the result, contiguous if not given.
    """
    a, b = (_type(v) for v in op.operands)
    at, bt = (read(v) for v in op.operands)
    ta, tb = bool(op.attrs["transpose_a"]), bool(op.attrs["transpose_b"])
    *batch, m, n = _type(op.result).static_shape
    k = a.static_shape[-2 if ta else -1]
    a_steps = (at.strides[-1], at.strides[-2]) if ta else (at.strides[-2], at.strides[-1])
    b_steps = (bt.strides[-1], bt.strides[-2]) if tb else (bt.strides[-2], bt.strides[-1])
    out = Read(op.result, 0, contiguous_strides((*batch, m, n)) if c is None else c)
    count = math.prod(batch)
    dtype = _type(at.source).dtype.short  # of what is packed, where that is narrower
    shared = math.prod(b.static_shape[:-2]) == 1 and count == math.prod(a.static_shape[:-2])
    if shared and not ta and count:
        full = (0,) * (len(out.strides) - len(at.strides)) + at.strides
        a_rows, c_rows = (over_rows(s, (*batch, m, n)) for s in (full, out.strides))
        if a_rows is not None and c_rows is not None and c_rows[1] <= 1:
            first = (at.offset,), (bt.offset,), (0,)
            a_steps, m = (a_rows[0], a_steps[1]), m * count
            return Product(dtype, m, n, k, *first, a_steps, b_steps, c_rows[0])
    at_all = [_batch_offsets(tuple(batch), r) for r in (at, bt, out)]
    steps = a_steps, b_steps, out.strides[-2]
    return Product(dtype, m, n, k, at_all[0], at_all[1], at_all[2], *steps)


def matmul_with(
    op: Operation, a: Address, b: Address, epilogue: Callable[[int], Follow], before: Prologues
) -> list[KernelCall]:
    """A product in a `fused` op whose blocks are handed to an epilogue."""
    p = product_of(op, read_inside)
    return gemm_calls(p, 0, a, b, epilogue(p.m), before=before)


def read_inside(value: Value) -> Read:
    """An operand in the region of a `fused` op; what a prologue computes as if it were stored."""
    return _whole(value) if is_computed(value) else read_of(unconverted(value))


def matmul_into(
    op: Operation, a: Address, b: Address, c: Address, strides: tuple[int, ...], before: Prologues
) -> list[KernelCall]:
    """A product in a `fused` op that reads its operands through index maps, or computes them, and
    writes its result with these strides.
    """
    p = product_of(op, read_inside, strides)
    if converts(p.dtype) and strides == contiguous_strides(_type(op.result).static_shape):
        return stored_calls(p, c, a, b)
    if strides[-1] <= 1:
        return gemm_calls(p, c, a, b, before=before)
    if before != (None, None):
        raise InternalError("a product that is written by columns has no prologue")
    steps = p.b_steps[::-1], p.a_steps[::-1], strides[-1]  # by columns: C' = B' A'
    turned = Product(p.dtype, p.n, p.m, p.k, p.b_at, p.a_at, p.c_at, *steps)
    return gemm_calls(turned, c, b, a)


def lower_matmul(op: Operation) -> list[KernelCall]:
    """The product of all matrices of the batch is one call; one before it may pack B."""
    dtype = _type(op.result).dtype
    if not dtype.is_numeric:
        raise UnsupportedError(f"op 'matmul' on {dtype.name} is not supported")
    product = product_of(op)
    c, a, b = Address(op.result), Address(op.operands[0]), Address(op.operands[1])
    if converts(product.dtype):
        return store_calls(product, c, a, b)
    if product.dtype not in COMPLEXES:
        return stored_calls(product, c, a, b)
    p = product
    args: tuple[Arg, ...] = (
        c, a, b, Pool(ConstArray(np.array(p.a_at, np.int64))),
        Pool(ConstArray(np.array(p.b_at, np.int64))), len(p.a_at), p.m, p.n, p.k,
        int(bool(op.attrs["transpose_a"])), int(bool(op.attrs["transpose_b"])),
    )  # fmt: skip
    routine = LETTER[p.dtype] + "gemm"
    kernel = Kernel(
        f"matmul-blas-1-{p.dtype}", f"matmul_{routine}", lambda e: _emit_blas(e, p.dtype)
    )
    return [KernelCall(kernel, (*args, Routine(routine)))]


def _emit_blas(e: Emitter, dtype: str) -> None:
    """Row-major C = A B is column-major C' = B' A': operands swap, flags stay with theirs."""
    b = e.builder
    c_at, a_at, b_at = (e.pointer_argument(k, dtype) for k in range(3))
    a_offsets, b_offsets = e.pointer_argument(3, "i64"), e.pointer_argument(4, "i64")
    count, m, n, k, ta, tb = (e.argument(j) for j in range(5, 11))
    one, zero = ir.Constant(I64, 1), ir.Constant(I64, 0)

    def cell(value: ir.Value) -> ir.Value:
        slot = e.alloca(value.type)
        b.store(value, slot)
        return slot

    def at_least_one(value: ir.Value) -> ir.Value:
        return b.trunc(b.select(b.icmp_signed(">", value, one), value, one), I32)

    def flag(transposed: ir.Value) -> ir.Value:
        letters = (ir.Constant(ir.IntType(8), ord(x)) for x in "TN")
        return cell(b.select(b.icmp_signed("!=", transposed, zero), *letters))

    lda = cell(at_least_one(b.select(b.icmp_signed("!=", ta, zero), m, k)))
    ldb = cell(at_least_one(b.select(b.icmp_signed("!=", tb, zero), k, n)))
    ldc = cell(at_least_one(n))
    sizes = [cell(b.trunc(v, I32)) for v in (n, m, k)]
    scalars = []
    for number in (1, 0):
        slot = e.alloca(memory_type(dtype))
        store_element(e, constant(dtype, number), slot, dtype)
        scalars.append(slot)
    flag_a, flag_b = flag(ta), flag(tb)
    size = b.mul(m, n)
    operands = [flag_b, flag_a, *sizes, scalars[0], b_at, ldb, a_at, lda, scalars[1], c_at, ldc]
    gemm_type = ir.FunctionType(ir.VoidType(), [v.type for v in operands])
    gemm = b.inttoptr(e.argument(11), gemm_type.as_pointer())
    with b.if_then(b.icmp_signed(">", size, zero)), e.for_range(zero, count) as i:
        operands[6] = e.at(b_at, b.load(e.at(b_offsets, i)))
        operands[8] = e.at(a_at, b.load(e.at(a_offsets, i)))
        operands[11] = e.at(c_at, b.mul(i, size))
        b.call(gemm, operands)
