"""concat, pad, slice_update, dim_size: strided copies, as loop nests over raw bits.

A copy does not look at its elements, so that all dtypes of one width share kernels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from weft.codegen.call import Address
from weft.codegen.cuda.kernel import Launch
from weft.codegen.cuda.nests.emit import plain_launches
from weft.codegen.cuda.others.sizes import shape_of, tensor
from weft.codegen.nests.nest import Access, Nest, Store, simplify_nest
from weft.ir.analysis.index_maps import contiguous_strides
from weft.ir.graph import Operation, Value
from weft.ir.type_rules import int_attr, ints_attr

#: The dtype that stands for elements of so many bytes; of 16 there are two of 8.
_RAW = {1: "u8", 2: "u16", 4: "u32", 8: "u64"}
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
    raw = _RAW[itemsize]
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
