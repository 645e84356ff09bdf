"""Ops that move, repeat, cut or join elements, and ask for sizes."""

from __future__ import annotations

from collections.abc import Sequence
from types import EllipsisType

import numpy as np

from weft.ir.dims import Dim, Shape, divided, format_dim, format_shape, positive, product, same
from weft.ir.dtypes import int64
from weft.ir.errors import InvalidArgumentError, ShapeError, TypeRuleError
from weft.ir.graph import Block
from weft.ir.spec import Array, Attrs, AttrSpec, OpSpec, tensors
from weft.ir.type_rules import (
    add_dims,
    check_same_dtype,
    check_shape,
    checked_axis,
    dtype_attr,
    int_attr,
    ints_attr,
    known_dim,
    shape_attr,
    static_attr,
)
from weft.ir.types import TensorType, Type


def _reshape_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    (x,) = tensors("reshape", types)
    shape = shape_attr(attrs, "shape")
    if any(isinstance(d, int) and d < 0 for d in shape):
        raise ShapeError(f"op 'reshape': shape {format_shape(shape)} has a negative dimension")
    if not same(x.size, product(shape)):
        raise ShapeError(
            f"op 'reshape': {x} has {format_dim(x.size)} elements, "
            f"shape {format_shape(shape)} has {format_dim(product(shape))}"
        )
    return [TensorType(x.dtype, shape)]


def _reshape(arrays: Sequence[Array], attrs: Attrs) -> Array:
    shape = shape_attr(attrs, "shape")
    if shape.count(None) == 1:  # the one unknown dim follows from the number of elements
        known = product(d for d in shape if d is not None)
        if isinstance(known, int) and known > 0:
            return arrays[0].reshape([-1 if d is None else int(d) for d in shape])
    return arrays[0].reshape(static_attr(attrs, "shape"))


def _permute_dims_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    (x,) = tensors("permute_dims", types)
    axes = ints_attr(attrs, "axes")
    if sorted(axes) != list(range(x.rank)):
        raise ShapeError(f"op 'permute_dims': axes {axes} are no permutation of the axes of {x}")
    return [TensorType(x.dtype, tuple(x.shape[a] for a in axes))]


def _broadcast_to_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    (x,) = tensors("broadcast_to", types)
    shape = shape_attr(attrs, "shape")
    lead = len(shape) - x.rank
    negative = any(isinstance(d, int) and d < 0 for d in shape)
    if (
        negative
        or lead < 0
        or not all(d == 1 or same(d, t) for d, t in zip(x.shape, shape[lead:], strict=True))
    ):
        raise ShapeError(
            f"op 'broadcast_to': {x} does not broadcast to {format_shape(shape)}",
            hint="sizes must be equal or 1 in the operand, compared from the last dimension",
        )
    return [TensorType(x.dtype, shape)]


def _concat_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    xs = tensors("concat", types)
    if not xs:
        raise TypeRuleError("op 'concat' needs at least one operand")
    dtype = check_same_dtype("concat", xs)
    axis = checked_axis("concat", attrs, xs[0].rank)
    shape: list[Dim] = list(xs[0].shape)
    for x in xs[1:]:
        if x.rank != len(shape) or not all(
            i == axis or same(a, b) for i, (a, b) in enumerate(zip(shape, x.shape, strict=True))
        ):
            listed = ", ".join(map(str, xs))
            raise ShapeError(f"op 'concat': ({listed}) differ outside axis {axis}")
        shape = [known_dim(a, b) for a, b in zip(shape, x.shape, strict=True)]
    shape[axis] = add_dims(*(x.shape[axis] for x in xs))
    return [TensorType(dtype, tuple(shape))]


def _pad_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    x, fill = tensors("pad", types)
    check_same_dtype("pad", (x, fill))
    check_shape("pad", "the fill value", fill.shape, ())
    lo, hi = ints_attr(attrs, "lo"), ints_attr(attrs, "hi")
    if len(lo) != x.rank or len(hi) != x.rank or min((*lo, *hi), default=0) < 0:
        raise ShapeError(
            f"op 'pad': lo={lo}, hi={hi} need one number >= 0 for each axis of {x}",
            hint="to cut elements off use a slice",
        )
    dims = tuple(add_dims(d, a, b) for d, a, b in zip(x.shape, lo, hi, strict=True))
    return [TensorType(x.dtype, dims)]


def _pad(arrays: Sequence[Array], attrs: Attrs) -> Array:
    x, fill = arrays
    lo, hi = ints_attr(attrs, "lo"), ints_attr(attrs, "hi")
    shape = tuple(n + a + b for n, a, b in zip(x.shape, lo, hi, strict=True))
    out = np.full(shape, fill, x.dtype)
    kept = tuple(slice(a, a + n) for n, a in zip(x.shape, lo, strict=True))
    out[kept if kept else ...] = x  # by (), a 0-d array of strings would become another's element
    return out


def slice_length(dim: Dim, start: Dim, stop: Dim, step: int) -> Dim:
    """max(0, ceil((stop - start) / step)) for bounds inside an axis of size `dim`; None if one is
    unknown."""
    if start is None or stop is None:
        return None
    span = stop - start
    if isinstance(span, int):
        return max(0, -(-span // step))
    span, step = (span, step) if step > 0 else (-span, -step)
    if not (start == 0 or stop == dim or stop == -1):  # else it is not negative
        span = positive(span)
    try:
        return span // step
    except ShapeError:
        return divided(positive(span) + (step - 1), step)


def _check_bounds(axis: int, dim: Dim, start: Dim, stop: Dim, step: int) -> None:
    # the ranges that Python's slice.indices gives
    low, high = (0, dim) if step > 0 else (-1, None if dim is None else dim - 1)
    for what, bound in (("start", start), ("stop", stop)):
        if not isinstance(bound, int):
            continue
        if bound < low or (isinstance(high, int) and bound > high):
            raise InvalidArgumentError(
                f"op 'slice': {what} {bound} is out of bounds for axis {axis} of size "
                f"{format_dim(dim)} with step {step}",
                hint="an index, and a bound that is a size itself, must lie inside an axis whose "
                "size is known only when the graph runs",
            )


def slice_shape(op: str, shape: Shape, attrs: Attrs) -> Shape:
    """The shape of `x[starts:stops:steps]` for x of shape `shape`. InvalidArgumentError for bounds
    outside it."""
    starts, stops = shape_attr(attrs, "starts"), shape_attr(attrs, "stops")
    steps = ints_attr(attrs, "steps")
    if not len(starts) == len(stops) == len(steps) == len(shape) or 0 in steps:
        raise ShapeError(
            f"op '{op}': starts={format_shape(starts)}, stops={format_shape(stops)}, steps={steps} "
            f"need one entry for each axis of {format_shape(shape)}, and no step 0"
        )
    for axis, bounds in enumerate(zip(shape, starts, stops, steps, strict=True)):
        _check_bounds(axis, *bounds)
    return tuple(map(slice_length, shape, starts, stops, steps))


def numpy_slices(shape: tuple[int, ...], attrs: Attrs) -> tuple[slice | EllipsisType, ...]:
    """What indexes an array of `shape`; checks bounds that were symbolic until now."""
    static = {
        "starts": static_attr(attrs, "starts"),
        "stops": static_attr(attrs, "stops"),
        "steps": ints_attr(attrs, "steps"),
    }
    lengths = slice_shape("slice", shape, static)
    cut = (
        slice(0, 0) if n == 0 else slice(start, None if stop < 0 else stop, step)
        for n, start, stop, step in zip(lengths, *static.values(), strict=True)
    )
    return (*cut, ...)  # the ellipsis keeps what is indexed by nothing an array


def _slice_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    (x,) = tensors("slice", types)
    return [TensorType(x.dtype, slice_shape("slice", x.shape, attrs))]


def _slice(arrays: Sequence[Array], attrs: Attrs) -> Array:
    (x,) = arrays
    return x[numpy_slices(x.shape, attrs)]


def _slice_update_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    x, update = tensors("slice_update", types)
    check_same_dtype("slice_update", (x, update))
    wanted = slice_shape("slice_update", x.shape, attrs)
    check_shape("slice_update", "the update", update.shape, wanted)
    return [x]


def _slice_update(arrays: Sequence[Array], attrs: Attrs) -> Array:
    x, update = arrays
    out = x.copy()
    slices = numpy_slices(x.shape, attrs)
    check_shape("slice_update", "the update", update.shape, out[slices].shape)
    out[slices] = update
    return out


def _iota_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    made = TensorType(dtype_attr(attrs, "dtype"), shape_attr(attrs, "shape"))
    if not made.dtype.is_numeric:
        raise TypeRuleError(f"op 'iota' makes numbers, not {made.dtype.name}")
    if any(isinstance(d, int) and d < 0 for d in made.shape):
        raise ShapeError(f"op 'iota': {made} has a negative dimension")
    checked_axis("iota", attrs, made.rank)
    return [made]


def _iota(arrays: Sequence[Array], attrs: Attrs) -> Array:
    shape, axis = static_attr(attrs, "shape"), int_attr(attrs, "axis")
    # beyond the dtype integers wrap and float16 gives inf
    index = np.arange(shape[axis]).astype(dtype_attr(attrs, "dtype").numpy)
    column = index.reshape([-1 if i == axis else 1 for i in range(len(shape))])
    return np.broadcast_to(column, shape).copy()


def _dim_size_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    (x,) = tensors("dim_size", types)
    checked_axis("dim_size", attrs, x.rank)
    return [TensorType(int64)]


_SHAPE = {"shape": AttrSpec("shape")}
_AXIS = {"axis": AttrSpec("int")}
_SLICE = {"starts": AttrSpec("shape"), "stops": AttrSpec("shape"), "steps": AttrSpec("ints")}

TABLE: tuple[OpSpec, ...] = (
    OpSpec(
        "reshape",
        1,
        _reshape_type,
        _reshape,
        "The same elements, in row-major order, in another shape (complete: no -1).",
        _SHAPE,
        frozenset({"view"}),
    ),
    OpSpec(
        "permute_dims",
        1,
        _permute_dims_type,
        lambda arrays, attrs: np.transpose(arrays[0], ints_attr(attrs, "axes")),
        "Axis i of the result is axis axes[i] of the operand.",
        {"axes": AttrSpec("ints")},
    ),
    OpSpec(
        "broadcast_to",
        1,
        _broadcast_to_type,
        lambda arrays, attrs: np.broadcast_to(arrays[0], static_attr(attrs, "shape")),
        "Repeat along axes of size 1 and new leading axes (NumPy's rule).",
        _SHAPE,
    ),
    OpSpec(
        "concat",
        None,
        _concat_type,
        lambda arrays, attrs: np.concatenate(arrays, axis=int_attr(attrs, "axis")),
        "The operands one after the other along an axis.",
        _AXIS,
    ),
    OpSpec(
        "pad",
        2,
        _pad_type,
        _pad,
        "lo[i] copies of the scalar operand 1 before and hi[i] after the elements along axis i.",
        {"lo": AttrSpec("ints"), "hi": AttrSpec("ints")},
    ),
    OpSpec(
        "slice",
        1,
        _slice_type,
        _slice,
        "Elements starts[i], starts[i]+steps[i], ... before stops[i] along axis i (stop -1 with a "
        "negative step: through element 0).",
        _SLICE,
    ),
    OpSpec(
        "slice_update",
        2,
        _slice_update_type,
        _slice_update,
        "Operand 0 with the slice replaced by operand 1.",
        _SLICE,
    ),
    OpSpec(
        "iota",
        0,
        _iota_type,
        _iota,
        "Each element is its index along the axis.",
        {"dtype": AttrSpec("dtype"), **_SHAPE, **_AXIS},
    ),
    OpSpec(
        "dim_size",
        1,
        _dim_size_type,
        lambda arrays, attrs: np.asarray(arrays[0].shape[int_attr(attrs, "axis")], np.int64),
        "The size of an axis as a tensor.",
        _AXIS,
    ),
)
