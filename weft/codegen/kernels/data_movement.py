"""Data movement: concat, pad, slice_update and dim_size as strided copies, loop nests over raw
bits; gathers, scatters and first_occurrence.

A copy does not look at its elements, so every dtype of one width shares a kernel.

Every index is checked: one out of bounds sets the step's status word. take, index_add and the
*_along_axis pair see their operand as (outer, size, inner); gather_nd and scatter_nd_* as rows that
a tuple of indices numbers. first_occurrence says which indices are equal, in time and memory
traffic proportional to them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from llvmlite import ir

from weft.codegen.call import Address, Arg, KernelCall, Scratch, Status, cut_call, table_of
from weft.codegen.faults import emit_fault
from weft.codegen.llvm.emitter import I64, Emitter, unit_parts
from weft.codegen.llvm.jit import Kernel
from weft.codegen.nests.calls import call_nest
from weft.codegen.nests.nest import Access, Nest, Store, simplify_nest
from weft.codegen.scalar.element_access import load_element, store_element
from weft.codegen.scalar.elementwise import emit_scalar
from weft.ir.analysis.index_maps import contiguous_strides, index_sizes
from weft.ir.cost.rates import NS_PER_GATHERED, NS_PER_INDEX, streamed
from weft.ir.cost.thresholds import SCATTERED_BYTES
from weft.ir.graph import Operation, Value
from weft.ir.ops.data_movement import COMBINES
from weft.ir.spec import int_attr
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


def _count(shape: tuple[int, ...]) -> int:
    return math.prod(shape)


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
    outer, size, inner = _count(shape[:axis]), shape[axis], _count(shape[axis + 1 :])
    gather = len(op.operands) == 2
    emit = _emit_gather_axis if gather else _emit_scatter_axis
    single = gather and inner == 1 and size > 0
    run = 1 if along else max(inner, 1)
    if single:
        emit = _emit_gather_single
    rows = outer * n if gather else n
    return _calls(
        op,
        _count(picks),
        (outer, size, inner, n),
        (),
        _cut(op, rows, outer * inner, inner, NS_PER_GATHERED if run == 1 else NS_PER_INDEX / run),
        lambda e, o, d, i: emit(e, o, d, i, along),
        "single" if single else "runs",
    )


def lower_nd(op: Operation) -> list[KernelCall]:
    """gather_nd and scatter_nd_*; args as above but sizes, strides (tables), depth, rows, inner."""
    x, index = op.operands[:2]
    shape, picks = tensor(x).static_shape, tensor(index).static_shape
    depth, rows, inner = picks[-1], _count(picks[:-1]), _count(shape[picks[-1] :])
    strides = [_count(shape[k + 1 :]) for k in range(depth)]
    tables = (
        table_of(shape[:depth]),
        table_of(strides),
    )
    cut = _cut(op, rows, inner, inner, NS_PER_INDEX / max(inner, 1))
    return _calls(op, rows, (depth, rows, inner), tables, cut, _emit_nd)


_Emit = Callable[[Emitter, str, str, str], None]


def _cut(
    op: Operation, rows: int, columns: int, inner: int, index: float
) -> tuple[int, float, int]:
    """For `cut_call`: units, what one takes, how many stay together. `index`: what indices cost an
    element that is moved, in nanoseconds.

    A gather's units are the elements of its result. A scatter's are the columns of its target: all
    updates of one element stay with one thread, in order; columns go in runs of cache lines.
    """
    itemsize = tensor(op.result).dtype.itemsize
    gather = len(op.operands) == 2
    moved = rows * (inner if gather else columns)
    total = streamed((2 if gather else 3) * itemsize * moved) + index * moved
    if gather:
        return moved, total / max(moved, 1), 0
    return columns, total / max(columns, 1), -(-SCATTERED_BYTES // itemsize)


def _calls(
    op: Operation,
    indices: int,
    sizes: tuple[int, ...],
    tables: tuple[Arg, ...],
    cut: tuple[int, float, int],
    emit: _Emit,
    form: str = "runs",
) -> list[KernelCall]:
    x, index = op.operands[:2]
    dtype, index_dtype = tensor(x).dtype.short, tensor(index).dtype.short
    gather = len(op.operands) == 2
    calls = [] if gather else [check_call(op, index), _copy(x, op.result)]
    data, other = (x, op.result) if gather else (op.result, op.operands[2])
    key = f"{op.name}-4-{form}-{dtype}-{index_dtype}"
    kernel = Kernel(key, f"{op.name}_{dtype}", lambda e: emit(e, op.name, dtype, index_dtype))
    args = (Address(data), Address(index), Address(other), Status(), *tables, *sizes)
    if cut[0] and indices:
        calls.append(cut_call(kernel, args, *cut))
    elif indices and gather:  # nothing moves, but an index out of bounds is an error all the same
        calls.append(check_call(op, index))
    return calls if indices else calls[1:]


def check_call(op: Operation, index: Value) -> KernelCall:
    """A call that only checks the indices of the gather or scatter `op`, which are in `index`.

    args: index, status, sizes (table), depth, rows.
    """
    sizes, dtype = index_sizes(op), tensor(index).dtype.short
    rows = _count(tensor(index).static_shape) // max(len(sizes), 1)
    kernel = Kernel(f"check-3-{dtype}", f"check_{dtype}", lambda e: _emit_check(e, dtype))
    args = (Address(index), Status(), table_of(sizes), len(sizes), rows)
    return cut_call(kernel, args, rows, len(sizes) * NS_PER_INDEX / 4)


def _emit_check(e: Emitter, dtype: str) -> None:
    """Units: rows of indices. Without branches in the loops, so that they vectorise."""
    pointers = [e.pointer_argument(k, d) for k, d in enumerate((dtype, "i64", "i64"))]
    with e.loop_function("loop", pointers, [e.argument(3), e.lo, e.hi]) as (
        f,
        (index, status, sizes),
        (depth, lo, hi),
    ):
        b = f.builder
        bad = _First(f)
        with f.for_range(f.index(0), depth) as d:
            size = b.load(f.at(sizes, d))
            with f.for_range(lo, hi) as r:
                position = b.add(b.mul(r, depth), d)
                _, good = checked_index(f, f.at(index, position), dtype, size)
                bad.note(good, position)
        bad.report(status, index, dtype)


def _copy(source: Value, target: Value) -> KernelCall:
    shape = tensor(source).static_shape
    walk = contiguous_strides(shape)
    return strided_copy(
        shape, tensor(source).dtype.itemsize, (Address(source), walk), (Address(target), walk)
    )


def _as_i64(f: Emitter, index_at: ir.Value, dtype: str) -> ir.Value:
    return emit_scalar(f, "astype", dtype, [load_element(f, index_at, dtype)], {"dtype": "i64"})


def checked_index(
    f: Emitter, index_at: ir.Value, dtype: str, size: ir.Value
) -> tuple[ir.Value, ir.Value]:
    """The index as i64 in 0..size-1, and whether it was in bounds."""
    b = f.builder
    raw = _as_i64(f, index_at, dtype)
    zero = f.index(0)
    if dtype.startswith("i"):
        raw = b.select(b.icmp_signed("<", raw, zero), b.add(raw, size), raw)
    return raw, b.icmp_unsigned("<", raw, size)  # a negative one is a huge unsigned one


def _meet(f: Emitter, op: str, dtype: str, data_at: ir.Value, other_at: ir.Value) -> None:
    """Gather data into other, or combine other into data."""
    if op in ("take", "take_along_axis", "gather_nd"):
        f.builder.store(f.builder.load(data_at), other_at)
        return
    value, combine = load_element(f, other_at, dtype), COMBINES[op]
    if combine is not None:
        held = f.freeze(load_element(f, data_at, dtype))
        value = emit_scalar(f, combine, dtype, [held, value], {})
    store_element(f, value, data_at, dtype)


def report_index(
    f: Emitter, status: ir.Value, position: ir.Value, index: ir.Value, dtype: str
) -> None:
    """index[position] is out of bounds."""
    emit_fault(f, status, position, _as_i64(f, f.at(index, position), dtype))


class _First:
    """The first position out of bounds that a loop without branches has met."""

    def __init__(self, f: Emitter) -> None:
        self.f, self.none, self.held = f, f.index(2**63 - 1), f.alloca(I64)
        f.builder.store(self.none, self.held)

    def note(self, good: ir.Value, position: ir.Value) -> None:
        b = self.f.builder
        here, first = b.select(good, self.none, position), b.load(self.held)
        b.store(b.select(b.icmp_signed("<", here, first), here, first), self.held)

    def report(self, status: ir.Value, index: ir.Value, dtype: str) -> None:
        b, first = self.f.builder, self.f.builder.load(self.held)
        with b.if_then(b.icmp_signed("!=", first, self.none), likely=False):
            report_index(self.f, status, first, index, dtype)


@contextmanager
def _good_index(
    f: Emitter, index: ir.Value, position: ir.Value, dtype: str, size: ir.Value, status: ir.Value
) -> Iterator[ir.Value]:
    """The index at `position`; one out of bounds is reported, and the body skipped."""
    picked, good = checked_index(f, f.at(index, position), dtype, size)
    with f.builder.if_else(good, likely=True) as (then, otherwise):
        with otherwise:
            report_index(f, status, position, index, dtype)
        with then:
            yield picked


def _emit_gather_axis(e: Emitter, op: str, dtype: str, index_dtype: str, along: bool) -> None:
    """Units: elements of the result."""
    pointers = [e.pointer_argument(k, d) for k, d in enumerate((dtype, index_dtype, dtype, "i64"))]
    _, size, inner, n = (e.argument(4 + k) for k in range(4))
    with e.loop_function("loop", pointers, [size, inner, n, e.lo, e.hi]) as (
        f,
        (data, index, other, status),
        (size, inner, n, lo, hi),
    ):
        b = f.builder
        with unit_parts(f, lo, hi, b.mul(n, inner)) as (o, start, stop):
            plane = b.mul(o, size)
            with unit_parts(f, start, stop, inner) as (j, first, last):
                row = b.mul(b.add(b.mul(o, n), j), inner)

                def part(position: ir.Value, first: ir.Value, last: ir.Value) -> None:
                    with _good_index(f, index, position, index_dtype, size, status) as picked:
                        source = f.at(data, b.mul(b.add(plane, picked), inner))
                        with f.for_range(first, last) as i:
                            _meet(f, op, dtype, f.at(source, i), f.at(f.at(other, row), i))

                if along:
                    with f.for_range(first, last) as i:
                        part(b.add(row, i), i, b.add(i, f.index(1)))
                else:
                    part(j, first, last)


def _emit_gather_single(e: Emitter, op: str, dtype: str, index_dtype: str, along: bool) -> None:
    """A gather of single elements (inner 1), without branches: an index out of bounds reads element
    0 and is reported after the loop."""
    pointers = [e.pointer_argument(k, d) for k, d in enumerate((dtype, index_dtype, dtype, "i64"))]
    with e.loop_function("loop", pointers, [e.argument(5), e.argument(7), e.lo, e.hi]) as (
        f,
        (data, index, other, status),
        (size, n, lo, hi),
    ):
        b = f.builder
        bad = _First(f)
        with unit_parts(f, lo, hi, n) as (o, first, last):
            source, row = f.at(data, b.mul(o, size)), b.mul(o, n)
            with f.for_range(first, last) as j:
                position = b.add(row, j) if along else j
                picked, good = checked_index(f, f.at(index, position), index_dtype, size)
                found = f.at(source, b.select(good, picked, f.index(0)))
                _meet(f, op, dtype, found, f.at(other, b.add(row, j)))
                bad.note(good, position)
        bad.report(status, index, index_dtype)


def _emit_scatter_axis(e: Emitter, op: str, dtype: str, index_dtype: str, along: bool) -> None:
    """Units: columns (outer, inner) of the target."""
    pointers = [e.pointer_argument(k, d) for k, d in enumerate((dtype, index_dtype, dtype, "i64"))]
    _, size, inner, n = (e.argument(4 + k) for k in range(4))
    with e.loop_function("loop", pointers, [size, inner, n, e.lo, e.hi]) as (
        f,
        (data, index, other, status),
        (size, inner, n, lo, hi),
    ):
        b = f.builder
        with (
            unit_parts(f, lo, hi, inner) as (o, first, last),
            f.for_range(f.index(0), n) as j,
        ):
            row = b.mul(b.add(b.mul(o, n), j), inner)

            def part(position: ir.Value, first: ir.Value, last: ir.Value) -> None:
                with _good_index(f, index, position, index_dtype, size, status) as picked:
                    target = f.at(data, b.mul(b.add(b.mul(o, size), picked), inner))
                    with f.for_range(first, last) as i:
                        _meet(f, op, dtype, f.at(target, i), f.at(f.at(other, row), i))

            if along:
                with f.for_range(first, last) as i:
                    part(b.add(row, i), i, b.add(i, f.index(1)))
            else:
                part(j, first, last)


def _emit_nd(e: Emitter, op: str, dtype: str, index_dtype: str) -> None:
    """Units: elements of a gather's result, columns of a scatter's target."""
    kinds = (dtype, index_dtype, dtype, "i64", "i64", "i64")
    pointers = [e.pointer_argument(k, d) for k, d in enumerate(kinds)]
    numbers = [*(e.argument(6 + k) for k in range(3)), e.lo, e.hi]
    with e.loop_function("loop", pointers, numbers) as (
        f,
        (data, index, other, status, sizes, strides),
        (depth, rows, inner, lo, hi),
    ):
        b = f.builder
        offset, good_so_far = f.alloca(I64), f.alloca(ir.IntType(1))

        def part(r: ir.Value, first: ir.Value, last: ir.Value) -> None:
            b.store(f.index(0), offset)
            b.store(ir.Constant(ir.IntType(1), 1), good_so_far)
            with f.for_range(f.index(0), depth) as d:
                position = b.add(b.mul(r, depth), d)
                picked, good = checked_index(
                    f, f.at(index, position), index_dtype, b.load(f.at(sizes, d))
                )
                step = b.mul(picked, b.load(f.at(strides, d)))
                b.store(b.add(b.load(offset), step), offset)
                with b.if_then(b.not_(good), likely=False):
                    b.store(ir.Constant(ir.IntType(1), 0), good_so_far)
                    report_index(f, status, position, index, index_dtype)
            row = f.at(other, b.mul(r, inner))
            with b.if_then(b.load(good_so_far)), f.for_range(first, last) as i:
                _meet(f, op, dtype, f.at(data, b.add(b.load(offset), i)), f.at(row, i))

        if op == "gather_nd":
            with unit_parts(f, lo, hi, inner) as (r, first, last):
                part(r, first, last)
        else:
            with f.for_range(f.index(0), rows) as r:
                part(r, lo, hi)


def lower_first_occurrence(op: Operation) -> list[KernelCall]:
    """args: result, index, status, scratch (an i64 for each row of the axis), size, n."""
    index = tensor(op.operands[0])
    dtype, n = index.dtype.short, index.static_shape[0]
    size = int_attr(op.attrs, "size")
    kernel = Kernel(f"first-occurrence-2-{dtype}", f"first_{dtype}", lambda e: _emit(e, dtype))
    scratch = Scratch(8 * max(size, 1))
    args = (Address(op.result), Address(op.operands[0]), Status(), scratch, size, n)
    return [KernelCall(kernel, args)] if n else []


def _emit(e: Emitter, dtype: str) -> None:
    """From the last index to the first each notes its place in scratch: of equal ones the first is
    left. Scratch need not be cleared: only what has been written is read.
    """
    kinds = ("i64", dtype, "i64", "i64")
    pointers = [e.pointer_argument(k, kind) for k, kind in enumerate(kinds)]
    with e.loop_function("loop", pointers, [e.argument(4), e.argument(5)]) as (
        f,
        (out, index, status, places),
        (size, n),
    ):
        b = f.builder
        bad = f.alloca(I64)
        b.store(f.index(0), bad)
        with f.for_range(f.index(0), n) as i:
            j = b.sub(b.sub(n, f.index(1)), i)
            picked, good = checked_index(f, f.at(index, j), dtype, size)
            with b.if_else(good, likely=True) as (then, otherwise):
                with then:
                    b.store(j, f.at(places, picked))
                with otherwise:
                    b.store(b.add(b.load(bad), f.index(1)), bad)
                    report_index(f, status, j, index, dtype)
        none = b.icmp_signed("==", b.load(bad), f.index(0))
        with b.if_then(none, likely=True), f.for_range(f.index(0), n) as i:
            picked, _ = checked_index(f, f.at(index, i), dtype, size)
            b.store(b.load(f.at(places, picked)), f.at(out, i))
