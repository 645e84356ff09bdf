"""What computes an operand of a product while it is multiplied: a nest in place of packing.

A prologue is a kernel of its own that the product's kernel calls before each run of k, as
`prologue(frame, 0, 1, worker)`, with the frame of an epilogue (`gemm.product.FRAME`): it computes a
block of the operand - rows of A by k, k by rows of a transposed A, k by columns of B - and writes
it row by row to the worker's scratch, where the micro-kernel reads it. The operand is never stored.

Its words: one address per operand of the nest, then for each of its loads, in order, the strides
over rows and columns; for "index" loads the offset and the strides; last the rows of a matrix.
"""

from __future__ import annotations

from dataclasses import replace

from llvmlite import ir

from weft.codegen.call import Address
from weft.codegen.elements import memory_type
from weft.codegen.emitter import I64, Emitter
from weft.codegen.gemm.epilogue import nest_over_rows, product_in, unconverted
from weft.codegen.gemm.follow import Before, load_words
from weft.codegen.gemm.product import FRAME
from weft.codegen.jit import Kernel
from weft.codegen.nests.cut import cut_kind
from weft.codegen.nests.nest import Nest, plain_nest
from weft.codegen.nests.writer import NestWriter
from weft.ir.analysis.index_maps import read_of
from weft.ir.graph import Operation, Value
from weft.ir.ops.builder import Builder


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
        f"gemm-prologue-1-{nest.key}", f"prologue_{nest.name}", lambda e: _emit(e, nest)
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


def _emit(e: Emitter, nest: Nest) -> None:
    b = e.builder
    frame = {name: e.argument(k) for k, name in enumerate(FRAME)}
    words = b.inttoptr(frame["words"], I64.as_pointer())
    position = iter(range(1 << 30))

    def word() -> ir.Value:
        return b.load(e.at(words, e.index(next(position))))

    buffers = [a for a in nest.loads if a.leaf != "index"]
    bases = iter([b.inttoptr(word(), memory_type(a.dtype).as_pointer()) for a in buffers])
    numbers = [[word() for _ in range(3 if a.leaf == "index" else 2)] for a in nest.loads]
    row = b.add(b.mul(frame["matrix"], word()), frame["row"])

    def start(steps: list[ir.Value]) -> ir.Value:
        return b.add(b.mul(row, steps[0]), b.mul(frame["column"], steps[1]))

    (store,) = nest.stores
    given = [b.inttoptr(frame["tile"], memory_type(store.dtype).as_pointer())]
    scalars: list[ir.Value] = [frame["rows"], frame["columns"], frame["rows"], frame["columns"]]
    scalars += [e.index(1), e.index(0)]
    for load, own in zip(nest.loads, numbers, strict=True):
        if load.leaf == "index":
            offset, *steps = own
            scalars += [b.add(offset, start(steps)), *steps]
            continue
        given.append(e.at(next(bases), start(own)))
        scalars += [v for s, v in zip(load.strides, own, strict=True) if s not in (0, 1)]
    scalars.append(frame["tile_row"])
    units = frame["rows"] if cut_kind(nest) == "pair" else e.index(1)
    with e.loop_function("block", given, [*scalars, units]) as (f, held, values):
        NestWriter(f, nest, held, values[:-1]).write(f.index(0), values[-1])
