"""What happens to a finished block of a product while it is in the cache.

An epilogue is a kernel of its own that the product's kernel calls for each block, as
`epilogue(frame, 0, 1, worker)`: the words of `gemm.product.FRAME` say where the block is, its own
words come after those of the product. So products share one kernel, whatever follows them.

The words of an epilogue: one address per output, one per operand that is not in place, then for
each of them, in the same order, its strides over rows and columns; for "index" loads the offset and
the strides. Rows are those of all matrices of the batch, one after another; there are `m` of them
in each (the last word).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from llvmlite import ir

from weft.codegen.call import Address, Arg, KernelCall, Pool
from weft.codegen.elements import memory_type
from weft.codegen.emitter import I64, Emitter
from weft.codegen.gemm.call import Product, gemm_calls
from weft.codegen.gemm.product import FRAME
from weft.codegen.jit import Kernel
from weft.codegen.nests.cut import cut_kind
from weft.codegen.nests.nest import Access, Nest, Store, _NestBuilder
from weft.codegen.nests.writer import NestWriter, output_of
from weft.ir.attributes import ConstArray
from weft.ir.builder import Builder
from weft.ir.dtypes import as_dtype
from weft.ir.errors import InternalError
from weft.ir.graph import Operation, Value
from weft.ir.row_strides import over_rows

Walk = Access | Store


@dataclass(frozen=True, slots=True)
class Follow:
    """An epilogue: its kernel, its words, and how many statements it has for each element."""

    kernel: Kernel
    args: list[Arg]
    statements: int


#: (product, its operands, epilogue of a product of so many rows) -> the calls.
Lower = Callable[[Operation, Address, Address, Callable[[int], Follow]], list[KernelCall]]


def is_product(op: Operation) -> bool:
    """Whether a `fused` op begins with a product: a matmul or a convolution."""
    first = [o.name for o in op.regions[0].ops[:1]] if op.name == "fused" else []
    return first in (["matmul"], ["conv"], ["conv_input"])


def store_calls(p: Product, c: Address, a: Address, b: Address) -> list[KernelCall]:
    """A product that is summed in f32 and stored as 16-bit floats."""
    loads = (Access(0, "f32", 0, (2, 1)),)
    nest = Nest("store", (p.m, p.n), (False, False), loads, (), (
        Store(0, p.dtype, ("load", 0), None, (p.n, 1)),
    ))  # fmt: skip
    kernel, args = _epilogue(nest, 0, p.m, [c], [c])
    return gemm_calls(p, 0, a, b, kernel, args)


def product_calls(
    op: Operation, in_place: tuple[tuple[int, int], ...], lower: Lower
) -> tuple[list[KernelCall], Nest]:
    """The kernel calls of a `fused` op that begins with a product, and the nest that follows it."""
    (region,) = op.regions
    product = region.ops[0]
    rest, c = _without_product(op)
    nest = _NestBuilder(rest, in_place).build()
    nest = _over_rows(nest, c)
    outside = dict(zip(region.args, op.operands, strict=True))
    a, b = (Address(outside[v]) for v in product.operands)
    operands = [Address(v) for v in rest.operands]
    results = [Address(v) for v in op.results]

    def epilogue(rows: int) -> Follow:
        return Follow(*_epilogue(nest, c, rows, results, operands), len(nest.statements))

    return lower(product, a, b, epilogue), nest


def _without_product(op: Operation) -> tuple[Operation, int]:
    """The nest alone, with the product as one more operand; the number of that operand."""
    (region,) = op.regions
    product = region.ops[0]
    inner = Builder([a.type for a in region.args])
    local: dict[Value, Value] = dict(zip(region.args, inner.args, strict=True))
    local[product.result] = inner.add_arg(product.result.type)
    for member in region.ops[1:]:
        local.update(zip(member.results, inner.clone(member, local), strict=True))
    block = inner.block([local[v] for v in region.results])
    types = [r.type for r in op.results]
    operands = [*op.operands, product.result]
    return Operation("fused", operands, op.attrs, types, [block], (), op.locations), len(
        op.operands
    )


def _over_rows(nest: Nest, c: int) -> Nest:
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
        reduced=(False, False),
        loads=tuple(replace(a, strides=(2, 1) if a.leaf == c else two(a)) for a in nest.loads),
        stores=tuple(replace(s, strides=two(s)) for s in nest.stores),
    )


def _epilogue(
    nest: Nest, c: int, rows: int, outputs: list[Address], operands: list[Address]
) -> tuple[Kernel, list[Arg]]:
    args: list[Arg] = [outputs[s.output] for s in nest.stores]
    strides: list[Arg] = [x for s in nest.stores for x in s.strides]
    for load in _moving(nest, c):
        if load.leaf == "index":
            strides += [load.offset, *load.strides]
            continue
        strides += load.strides
        if isinstance(load.leaf, ConstArray):
            args.append(Pool(load.leaf))
        else:
            held = operands[load.leaf]
            size = as_dtype(load.dtype).itemsize
            args.append(Address(held.value, held.offset + load.offset * size))
    where = [k for k, load in enumerate(nest.loads) if load.leaf == c]
    key = f"gemm-epilogue-1-{where}-{nest.key}"
    kernel = Kernel(key, f"epilogue_{nest.name}", lambda e: _emit(e, nest, c))
    return kernel, [*args, *strides, rows]


def _moving(nest: Nest, c: int) -> list[Access]:
    """The loads that have a place of their own: not the product, not what is in place."""
    return [a for a in nest.loads if a.leaf != c and output_of(nest, a) is None]


def _emit(e: Emitter, nest: Nest, c: int) -> None:
    b = e.builder
    frame = {name: e.argument(k) for k, name in enumerate(FRAME)}
    words = b.inttoptr(frame["words"], I64.as_pointer())
    position = iter(range(1 << 30))

    def word() -> ir.Value:
        return b.load(e.at(words, e.index(next(position))))

    loads = _moving(nest, c)
    buffers = [a for a in loads if a.leaf != "index"]
    kinds = [w.dtype for w in nest.stores] + [w.dtype for w in buffers]
    bases = [b.inttoptr(word(), memory_type(dtype).as_pointer()) for dtype in kinds]
    order: list[Walk] = [*nest.stores, *loads]
    numbers = [[word() for _ in range(3 if _is_index(w) else 2)] for w in order]
    row = b.add(b.mul(frame["matrix"], word()), frame["row"])

    def start(steps: list[ir.Value]) -> ir.Value:
        return b.add(b.mul(row, steps[0]), b.mul(frame["column"], steps[1]))

    at = dict(zip((id(w) for w in order), numbers, strict=True))
    pointers = {
        id(w): e.at(base, start(at[id(w)]))
        for w, base in zip([*order[: len(nest.stores)], *buffers], bases, strict=True)
    }
    block = b.inttoptr(frame["tile"], memory_type(_block_dtype(nest, c)).as_pointer())
    scalars: list[ir.Value] = [frame["rows"], frame["columns"], frame["rows"], frame["columns"]]
    scalars += [e.index(1), e.index(0)]
    given = [pointers[id(s)] for s in nest.stores]
    for load in nest.loads:
        if load.leaf == c:
            given.append(block)
            scalars.append(frame["tile_row"])
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
    units = e.index(1) if cut_kind(nest) == "single" else frame["rows"]
    with e.loop_function("block", given, [*scalars, units]) as (f, held, values):
        NestWriter(f, nest, held, values[:-1]).write(f.index(0), values[-1])


def _block_dtype(nest: Nest, c: int) -> str:
    return next((a.dtype for a in nest.loads if a.leaf == c), "f32")


def _is_index(walk: Walk) -> bool:
    return isinstance(walk, Access) and walk.leaf == "index"


def _free(walk: Walk, steps: list[ir.Value]) -> list[ir.Value]:
    """The strides that are arguments: those that the nest's structure does not fix."""
    return [value for s, value in zip(walk.strides, steps, strict=True) if s not in (0, 1)]
