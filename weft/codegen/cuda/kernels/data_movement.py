"""Data movement: concat, pad, slice_update, dim_size as strided copies; gathers and index checks.

A copy does not look at its elements, so that all dtypes of one width share kernels. An index out of
bounds is reported in the launch's status words (`source/kernel.py`), and nothing is read or written
for it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import copy

from weft.codegen.call import Address, Status
from weft.codegen.cuda.kernels.axes import axis_sizes, count_of, dtype_of, shape_of, tensor
from weft.codegen.cuda.nests.plain_nests import plain_launches
from weft.codegen.cuda.source.dtypes import SIGNED
from weft.codegen.cuda.source.kernel import FAULT_FUNCTION, Launch
from weft.codegen.cuda.source.writer import Source, index_dtype
from weft.codegen.nests.nest import Access, Nest, Store, simplify_nest
from weft.ir.analysis.index_maps import contiguous_strides, index_sizes
from weft.ir.graph import Operation, Value
from weft.ir.type_rules import int_attr, ints_attr

#: The dtype that stands for elements of so many bytes; of 16 there are two of 8.
_COPY_DTYPES = {1: "u8", 2: "u16", 4: "u32", 8: "u64"}
#: An address, and the strides of the elements from there on.
End = tuple[Address, Sequence[int]]


def strided_copy(shape: Sequence[int], itemsize: int, source: End, target: End) -> list[Launch]:
    """Copy elements, `shape` of them, between places."""
    if 0 in shape:
        return []
    ends = [(address, tuple(strides)) for address, strides in (source, target)]
    extents = tuple(shape)
    if itemsize == 16:
        extents, itemsize = (*extents, 2), 8
        ends = [(a, (*(2 * n for n in strides), 1)) for a, strides in ends]
    (given, from_steps), (into, to_steps) = ends
    first, at = 0, into.offset
    for n, step, to in zip(extents, from_steps, to_steps, strict=True):
        if to < 0:  # places in a kernel count upwards: from the other end, both
            first, at = first + (n - 1) * step, at + (n - 1) * to * itemsize
    turned = [-1 if to < 0 else 1 for to in to_steps]
    raw = _COPY_DTYPES[itemsize]
    load = Access(0, raw, first, tuple(s * t for s, t in zip(from_steps, turned, strict=True)))
    store = Store(0, raw, ("load", 0), None, tuple(map(abs, to_steps)))
    nest = Nest("strided_copy", extents, (False,) * len(extents), (load,), (), (store,))
    return plain_launches(simplify_nest(nest), [Address(into.value, at)], [given])


def _itemsize(value: Value) -> int:
    return tensor(value).dtype.itemsize


def _from(value: Value) -> End:
    return Address(value), contiguous_strides(shape_of(value))


def concat_launches(op: Operation) -> list[Launch]:
    """One copy for each operand."""
    axis, itemsize = int_attr(op.attrs, "axis"), _itemsize(op.result)
    out = shape_of(op.result)
    into = contiguous_strides(out)
    row = math.prod(out[axis + 1 :]) * itemsize
    launches, offset = [], 0
    for operand in op.operands:
        shape = shape_of(operand)
        target = Address(op.result, offset), into
        launches += strided_copy(shape, itemsize, _from(operand), target)
        offset += shape[axis] * row
    return launches


def pad_launches(op: Operation) -> list[Launch]:
    """Fill with the scalar, then copy the operand into its place."""
    x, fill = op.operands
    out, itemsize = shape_of(op.result), _itemsize(op.result)
    into = contiguous_strides(out)
    offset = sum(a * s for a, s in zip(ints_attr(op.attrs, "lo"), into, strict=True)) * itemsize
    still = Address(fill), (0,) * len(out)
    launches = strided_copy(out, itemsize, still, (Address(op.result), into))
    target = Address(op.result, offset), into
    return launches + strided_copy(shape_of(x), itemsize, _from(x), target)


def slice_update_launches(op: Operation) -> list[Launch]:
    """Copy the update into its slice: the operand is in the result already."""
    x, update = op.operands
    itemsize, whole = _itemsize(x), contiguous_strides(shape_of(x))
    starts, steps = ints_attr(op.attrs, "starts"), ints_attr(op.attrs, "steps")
    offset = sum(a * s for a, s in zip(starts, whole, strict=True)) * itemsize
    into = tuple(s * t for s, t in zip(whole, steps, strict=True))
    target = Address(op.result, offset), into
    return strided_copy(shape_of(update), itemsize, _from(update), target)


def dim_size_launches(op: Operation) -> list[Launch]:
    """The size is known when the plan is made: store it."""
    size = shape_of(op.operands[0])[int_attr(op.attrs, "axis")]
    load, store = Access("index", "i64", size, ()), Store(0, "i64", ("load", 0), None, ())
    nest = Nest("dim_size", (), (), (load,), (), (store,))
    return plain_launches(nest, [Address(op.result)], [])


#: Elements are moved as these, 16 bytes as two u64.
_GATHER_DTYPES = {1: "u8", 2: "u16", 4: "u32", 8: "u64"}
WIDE = 16


class Indices:
    """Rows of indices in memory, `depth` of them each, that number the parts of an array."""

    def __init__(self, s: Source, index: Value, sizes: Sequence[int], tells: bool = True) -> None:
        """tells: whether faults are told of."""
        self.s, self.depth, self.dtype = s, len(sizes), dtype_of(index)
        self.pointer = s.pointer("index", self.dtype, Address(index))
        self.status = s.pointer("status", "i64", Status()) if tells else ""
        self.sizes = [s.number(f"size{k}", n) for k, n in enumerate(sizes)]
        if tells:
            s.function(FAULT_FUNCTION)

    def quiet(self) -> Indices:
        """The same ones, whose faults are not told of."""
        other = copy(self)
        other.status = ""
        return other

    def read(self, row: str) -> tuple[str, str]:
        """(the number of the part that row `row` of the indices names, whether all of them are in
        bounds)."""
        s = self.s
        number, good = s.let(s.const(0), "number"), s.let("boolean(True)", "good")
        for k, size in enumerate(self.sizes):
            position = s.let(s.add(s.mul(row, s.const(self.depth)), s.const(k)), "position")
            given = s.let(f"i64({self.pointer}[{position}])", "given")
            wide, place = s.let(f"i64({size})", "wide"), given
            if self.dtype in SIGNED:
                wrapped = f"i64({given} + {wide}) if {given} < i64(0) else {given}"
                place = s.let(wrapped, "place")
            inside = s.let(f"{place} >= i64(0) and {place} < {wide}", "inside")
            if self.status:
                with s.block(f"if not {inside}"):
                    s.line(f"report_fault({self.status}, i64(0), i64({position}), {given})")
            s.line(f"{good} = {good} and {inside}")
            part = s.let(s.cast(f"{place} if {inside} else i64(0)"), "part")
            s.line(f"{number} = {s.add(s.mul(number, size), part)}")
        return number, good


def check_launches(gather: Operation, index: Value) -> list[Launch]:
    """A launch that only checks the indices of a gather or scatter, which are in `index`; a thread
    for each row of them."""
    sizes = index_sizes(gather)
    rows = count_of(index) // max(len(sizes), 1)
    if not sizes or not rows:
        return []
    kind = index_dtype(rows * len(sizes))
    s = Source(f"check_{dtype_of(index)}_{len(sizes)}_{kind}", kind)
    indices = Indices(s, index, sizes)
    count = s.number("rows", rows)
    row = s.let(s.add(s.mul(s.block_index, s.const(s.threads)), s.thread), "row")
    with s.block(f"if {row} < {count}"):
        indices.read(row)
    return [s.launch(-(-rows // s.threads))]


def gather_launches(op: Operation) -> list[Launch]:
    """take, take_along_axis, gather_nd: a thread for each element of the result, or for 16 bytes
    of what an index names."""
    x, index = op.operands
    if not count_of(op.result) or 0 in index_sizes(op):  # an index out of bounds is an error still
        return check_launches(op, index)
    along = op.name == "take_along_axis"
    if op.name == "gather_nd":
        depth = shape_of(index)[-1]
        outer, inner = 1, math.prod(shape_of(x)[depth:])
        n = count_of(op.result) // inner
        sizes: Sequence[int] = shape_of(x)[:depth]
    else:
        outer, size, inner = axis_sizes(op)
        sizes = (size,)
        n = shape_of(index)[int_attr(op.attrs, "axis")] if along else count_of(index)
    itemsize, pairs = tensor(x).dtype.itemsize, 1
    if not along and inner * itemsize % WIDE == 0:
        inner, itemsize, pairs = inner * itemsize // WIDE, 8, 2
    elif itemsize == WIDE:
        itemsize, pairs = 8, 2
    total = outer * n * inner
    kind = index_dtype(total * pairs, *map(count_of, (x, index, op.result)))
    name = f"{op.name}_{8 * itemsize * pairs}_{dtype_of(index)}_{len(sizes)}_{kind}"
    s = Source(name, kind)
    out = s.pointer("out", _GATHER_DTYPES[itemsize], Address(op.result))
    data = s.pointer("data", _GATHER_DTYPES[itemsize], Address(x))
    indices = Indices(s, index, sizes)
    count, runs, width = s.number("count", total), s.number("n", n), s.number("inner", inner)
    i = s.let(s.add(s.mul(s.block_index, s.const(s.threads)), s.thread), "i")
    with s.block(f"if {i} < {count}"):
        at_outer, row, at_inner = s.split(i, ["", runs, width])
        number, good = indices.read(i if along else row)
        if op.name != "gather_nd":
            number = s.add(s.mul(at_outer, indices.sizes[0]), number)
        with s.block(f"if {good}"):
            place = s.let(s.add(s.mul(number, width), at_inner), "place")
            if pairs == 1:
                s.line(f"{out}[{i}] = {data}[{place}]")
            else:
                low, high = s.fresh("low"), s.fresh("high")
                two = s.const(2)
                s.line(f"{low}, {high} = load_u64x2({data}, {s.mul(place, two)})")
                s.line(f"store_u64x2({out}, {s.mul(i, two)}, {low}, {high})")
    return [s.launch(-(-total // s.threads))]
