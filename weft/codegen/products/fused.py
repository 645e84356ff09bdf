"""Epilogues and prologues of products: kernels that the product's kernel calls block by block.

An epilogue, `epilogue(where, 0, 1, worker)`, takes each finished block of C while it is in the
cache: the words of `gemm.BLOCK_WORDS` say where the block is, its own words come after those of the
product. So products share one kernel, whatever follows them.

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

from collections.abc import Callable, Iterator
from dataclasses import replace

from llvmlite import ir

from weft.codegen.call import Address, Arg, Code, KernelCall
from weft.codegen.llvm.elements import INTEGERS, memory_type
from weft.codegen.llvm.emitter import I64, Emitter
from weft.codegen.llvm.jit import Kernel
from weft.codegen.nests.cut import cut_kind
from weft.codegen.nests.nest import Access, Nest, Statement, Store, plain_nest
from weft.codegen.nests.writer import NestWriter, output_of
from weft.codegen.products.calls import Before, Follow, Prologues, gemm_calls, load_words
from weft.codegen.products.gemm import BLOCK_WORDS, Product
from weft.codegen.tiles.tile import converts, tile_of
from weft.ir.analysis.index_maps import (
    contiguous_strides,
    is_index_map,
    over_rows,
    read_of,
    static_shape,
)
from weft.ir.errors import InternalError
from weft.ir.graph import Operation, Value
from weft.ir.ops.builder import Builder
from weft.ir.types import TensorType

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
    converted from (`weft.passes.fusion.narrow_products`), others as they are.
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


def _emit_epilogue(e: Emitter, nest: Nest, c: int) -> None:
    b = e.builder
    where = {name: e.argument(k) for k, name in enumerate(BLOCK_WORDS)}
    words = b.inttoptr(where["words"], I64.as_pointer())
    position = iter(range(1 << 30))

    def word() -> ir.Value:
        return b.load(e.at(words, e.index(next(position))))

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
    nest = nest_over_rows(plain_nest(_alone(op, value)), None)
    (store,) = nest.stores
    nest = replace(nest, stores=(replace(store, strides=(2, 1)),))
    args, strides = load_words(nest.loads, [Address(v) for v in op.operands])
    rows = value.type.static_shape[-2]  # type: ignore[union-attr]
    kernel = Kernel(
        f"gemm-prologue-1-{nest.key}", f"prologue_{nest.name}", lambda e: _emit_prologue(e, nest)
    )
    return Before(kernel, [*args, *strides, rows], len(nest.statements), False)


def _alone(op: Operation, value: Value) -> Operation:
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
    where = {name: e.argument(k) for k, name in enumerate(BLOCK_WORDS)}
    words = b.inttoptr(where["words"], I64.as_pointer())
    position = iter(range(1 << 30))

    def word() -> ir.Value:
        return b.load(e.at(words, e.index(next(position))))

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
