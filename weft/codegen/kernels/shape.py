"""concat, pad, slice_update, dim_size: strided copies, as loop nests over raw bits.

A copy does not look at its elements, so every dtype of one width shares a kernel.
"""

from __future__ import annotations

import math

from weft.codegen.call import Address, KernelCall
from weft.codegen.nests.calls import call_nest
from weft.codegen.nests.nest import Access, Nest, Store, simplify_nest
from weft.ir.analysis.index_maps import contiguous_strides
from weft.ir.graph import Operation, Value
from weft.ir.types import TensorType

#: The dtype that stands for elements of so many bytes.
_RAW = {1: "u8", 2: "u16", 4: "u32", 8: "u64", 16: "c128"}


def tensor(value: Value) -> TensorType:
    """The type of a value that is known to be a tensor."""
    assert isinstance(value.type, TensorType)
    return value.type


def strided_copy(
    shape: tuple[int, ...],
    itemsize: int,
    source: tuple[Address, tuple[int, ...]],
    target: tuple[Address, tuple[int, ...]],
) -> KernelCall:
    """Copy `shape` elements between (address, element strides) pairs."""
    raw = _RAW[itemsize]
    load, store = Access(0, raw, 0, source[1]), Store(0, raw, ("load", 0), None, target[1])
    nest = Nest("strided_copy", shape, (False,) * len(shape), (load,), (), (store,))
    return call_nest(simplify_nest(nest), [target[0]], [source[0]])


def _copy_all(source: Value, target: Value) -> KernelCall:
    shape, itemsize = tensor(source).static_shape, tensor(source).dtype.itemsize
    walk = contiguous_strides(shape)
    return strided_copy(shape, itemsize, (Address(source), walk), (Address(target), walk))


def lower_concat(op: Operation) -> list[KernelCall]:
    """One strided copy for each operand that has elements."""
    axis = op.attrs["axis"]
    assert isinstance(axis, int)
    out, itemsize = tensor(op.result), tensor(op.result).dtype.itemsize
    into = contiguous_strides(out.static_shape)
    row = math.prod(out.static_shape[axis + 1 :]) * itemsize
    calls, offset = [], 0
    for operand in op.operands:
        shape = tensor(operand).static_shape
        source = (Address(operand), contiguous_strides(shape))
        if 0 not in shape:
            calls.append(strided_copy(shape, itemsize, source, (Address(op.result, offset), into)))
        offset += shape[axis] * row
    return calls


def lower_pad(op: Operation) -> list[KernelCall]:
    """Fill with the scalar, then copy the operand into its place."""
    x, fill = op.operands
    out, itemsize = tensor(op.result).static_shape, tensor(op.result).dtype.itemsize
    lo: tuple[int, ...] = op.attrs["lo"]  # type: ignore[assignment]
    into = contiguous_strides(out)
    offset = sum(a * s for a, s in zip(lo, into, strict=True)) * itemsize
    shape = tensor(x).static_shape
    calls = [
        strided_copy(out, itemsize, (Address(fill), (0,) * len(out)), (Address(op.result), into))
    ]
    if 0 not in shape:
        source = (Address(x), contiguous_strides(shape))
        calls.append(strided_copy(shape, itemsize, source, (Address(op.result, offset), into)))
    return calls


def lower_slice_update(op: Operation) -> list[KernelCall]:
    """Copy the operand, then the update into its slice."""
    x, update = op.operands
    itemsize, whole = tensor(x).dtype.itemsize, contiguous_strides(tensor(x).static_shape)
    starts: tuple[int, ...] = op.attrs["starts"]  # type: ignore[assignment]
    steps: tuple[int, ...] = op.attrs["steps"]  # type: ignore[assignment]
    offset = sum(a * s for a, s in zip(starts, whole, strict=True)) * itemsize
    into = tuple(s * t for s, t in zip(whole, steps, strict=True))
    shape = tensor(update).static_shape
    calls = [_copy_all(x, op.result)]
    if 0 not in shape:
        source = (Address(update), contiguous_strides(shape))
        calls.append(strided_copy(shape, itemsize, source, (Address(op.result, offset), into)))
    return calls


def lower_dim_size(op: Operation) -> list[KernelCall]:
    """The size is known when the plan is made: store it."""
    axis = op.attrs["axis"]
    assert isinstance(axis, int)
    size = tensor(op.operands[0]).static_shape[axis]
    load, store = Access("index", "i64", size, ()), Store(0, "i64", ("load", 0), None, ())
    return [call_nest(Nest("dim_size", (), (), (load,), (), (store,)), [Address(op.result)], [])]
