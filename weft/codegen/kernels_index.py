"""Gathers and scatters. Every index is checked: one out of bounds sets the step's status word.

take, index_add and the *_along_axis pair see their operand as (outer, size, inner); gather_nd and
scatter_nd_* as rows that a tuple of indices numbers.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from llvmlite import ir

from weft.codegen.call import Address, Arg, KernelCall, Pool, Status
from weft.codegen.element_access import load_element, store_element
from weft.codegen.emitter import I64, Emitter
from weft.codegen.jit import Kernel
from weft.codegen.kernels_shape import strided_copy, tensor
from weft.codegen.nest import contiguous_strides
from weft.codegen.scalar import emit_scalar
from weft.ir.attributes import ConstArray
from weft.ir.graph import Operation, Value

#: How an update meets the element that is there; None: it replaces it.
_COMBINE = {
    "index_add": "add",
    "scatter_along_axis_add": "add",
    "scatter_nd_add": "add",
    "scatter_nd_min": "minimum",
    "scatter_nd_max": "maximum",
}


def _count(shape: tuple[int, ...]) -> int:
    return int(np.prod(shape, dtype=np.int64))


def lower_along_axis(op: Operation) -> list[KernelCall]:
    """take, index_add, take_along_axis, scatter_along_axis_add.

    args: data, index, other (gathers: the result; scatters: the updates), status, outer, size,
    inner, n. For the *_along_axis pair the index array is (outer, n, inner), for the others just
    (n).
    """
    x, index = op.operands[:2]
    axis = op.attrs["axis"]
    assert isinstance(axis, int)
    shape, picks = tensor(x).static_shape, tensor(index).static_shape
    along = op.name in ("take_along_axis", "scatter_along_axis_add")
    n = picks[axis] if along else _count(picks)
    sizes = (_count(shape[:axis]), shape[axis], _count(shape[axis + 1 :]), n)
    return _calls(
        op,
        f"{'along' if along else 'take'}",
        sizes,
        (),
        lambda e, o, d, i: _emit_axis(e, o, d, i, along),
    )


def lower_nd(op: Operation) -> list[KernelCall]:
    """gather_nd and scatter_nd_*; args as above but sizes, strides (tables), depth, rows, inner."""
    x, index = op.operands[:2]
    shape, picks = tensor(x).static_shape, tensor(index).static_shape
    depth, inner = picks[-1], _count(shape[picks[-1] :])
    strides = [_count(shape[k + 1 :]) for k in range(depth)]
    tables = (
        Pool(ConstArray(np.array(shape[:depth], np.int64))),
        Pool(ConstArray(np.array(strides, np.int64))),
    )
    return _calls(op, "nd", (depth, _count(picks[:-1]), inner), tables, _emit_nd)


_Emit = Callable[[Emitter, str, str, str], None]


def _calls(
    op: Operation, family: str, sizes: tuple[int, ...], tables: tuple[Arg, ...], emit: _Emit
) -> list[KernelCall]:
    x, index = op.operands[:2]
    dtype, index_dtype = tensor(x).dtype.short, tensor(index).dtype.short
    gather = len(op.operands) == 2
    calls = [] if gather else [_copy(x, op.result)]
    data, other = (x, op.result) if gather else (op.result, op.operands[2])
    key = f"{op.name}-1-{dtype}-{index_dtype}"
    kernel = Kernel(key, f"{op.name}_{dtype}", lambda e: emit(e, op.name, dtype, index_dtype))
    args = (Address(data), Address(index), Address(other), Status(), *tables, *sizes)
    if _count(tensor(index).static_shape[:-1] if family == "nd" else tensor(index).static_shape):
        calls.append(KernelCall(kernel, args))
    return calls


def _copy(source: Value, target: Value) -> KernelCall:
    shape = tensor(source).static_shape
    walk = contiguous_strides(shape)
    return strided_copy(
        shape, tensor(source).dtype.itemsize, (Address(source), walk), (Address(target), walk)
    )


def _checked(
    f: Emitter, index_at: ir.Value, dtype: str, size: ir.Value
) -> tuple[ir.Value, ir.Value]:
    """The index as i64 in 0..size-1, and whether it was in bounds."""
    b = f.builder
    raw = emit_scalar(f, "astype", dtype, [load_element(f, index_at, dtype)], {"dtype": "i64"})
    zero = f.index(0)
    if dtype.startswith("i"):
        raw = b.select(b.icmp_signed("<", raw, zero), b.add(raw, size), raw)
    return raw, b.icmp_unsigned("<", raw, size)  # a negative one is a huge unsigned one


def _meet(f: Emitter, op: str, dtype: str, data_at: ir.Value, other_at: ir.Value) -> None:
    """Gather data into other, or combine other into data."""
    if op in ("take", "take_along_axis", "gather_nd"):
        f.builder.store(f.builder.load(data_at), other_at)
        return
    value, combine = load_element(f, other_at, dtype), _COMBINE.get(op)
    if combine is not None:
        value = emit_scalar(f, combine, dtype, [load_element(f, data_at, dtype), value], {})
    store_element(f, value, data_at, dtype)


def _emit_axis(e: Emitter, op: str, dtype: str, index_dtype: str, along: bool) -> None:
    pointers = [e.pointer_argument(k, d) for k, d in enumerate((dtype, index_dtype, dtype, "i64"))]
    sizes = [e.argument(4 + k) for k in range(4)]
    with e.loop_function("loop", pointers, sizes) as (
        f,
        (data, index, other, status),
        (outer, size, inner, n),
    ):
        b = f.builder
        zero, one = f.index(0), f.index(1)
        with f.for_range(zero, outer) as o, f.for_range(zero, n) as j:
            rows = b.add(b.mul(o, n), j)
            row = f.at(other, b.mul(rows, inner))
            plane = b.mul(o, size)

            def part(position: ir.Value, first: ir.Value, last: ir.Value) -> None:
                picked, good = _checked(f, f.at(index, position), index_dtype, size)
                with b.if_else(good) as (then, otherwise):
                    with then:
                        source = f.at(data, b.mul(b.add(plane, picked), inner))
                        with f.for_range(first, last) as i:
                            _meet(f, op, dtype, f.at(source, i), f.at(row, i))
                    with otherwise:
                        b.store(b.add(position, one), status)

            if along:
                with f.for_range(zero, inner) as i:
                    part(b.add(b.mul(rows, inner), i), i, b.add(i, one))
            else:
                part(j, zero, inner)


def _emit_nd(e: Emitter, op: str, dtype: str, index_dtype: str) -> None:
    kinds = (dtype, index_dtype, dtype, "i64", "i64", "i64")
    pointers = [e.pointer_argument(k, d) for k, d in enumerate(kinds)]
    numbers = [e.argument(6 + k) for k in range(3)]
    with e.loop_function("loop", pointers, numbers) as (
        f,
        (data, index, other, status, sizes, strides),
        s,
    ):
        b = f.builder
        depth, rows, inner = s
        zero, one = f.index(0), f.index(1)
        offset, good_so_far = f.alloca(I64), f.alloca(ir.IntType(1))
        with f.for_range(zero, rows) as r:
            b.store(zero, offset)
            b.store(ir.Constant(ir.IntType(1), 1), good_so_far)
            with f.for_range(zero, depth) as d:
                position = b.add(b.mul(r, depth), d)
                picked, good = _checked(
                    f, f.at(index, position), index_dtype, b.load(f.at(sizes, d))
                )
                step = b.mul(picked, b.load(f.at(strides, d)))
                b.store(b.add(b.load(offset), step), offset)
                with b.if_then(b.not_(good)):
                    b.store(ir.Constant(ir.IntType(1), 0), good_so_far)
                    b.store(b.add(position, one), status)
            with b.if_then(b.load(good_so_far)), f.for_range(zero, inner) as i:
                _meet(
                    f,
                    op,
                    dtype,
                    f.at(data, b.add(b.load(offset), i)),
                    f.at(other, b.add(b.mul(r, inner), i)),
                )
