"""Convolutions: one trilinear form, and its derivatives by each of its three arguments.

    T(x, w, y) = sum over n, o, k, i, j of  x[n, p, i] * w[k, i', j] * y[n, o, j]

with p = o * stride + k * dilation - lo (see `weft.ir.windows`). x is (batch, spatial..., channels
in), w (window..., channels in / groups, channels out), y (batch, spatial..., channels out); i runs
over the input channels of j's group, i' is its number in the group. So conv(x, w) = dT/dy,
conv_input(y, w) = dT/dx (also known as transposed convolution), conv_kernel(x, y) = dT/dw, and each
one's gradients are the two others. `size` is the spatial shape of the result. Like everywhere in
machine learning the window is not reversed: this is a correlation.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from weft.ir.attributes import Attrs, AttrSpec
from weft.ir.dims import Dim, same
from weft.ir.dtype_classes import NUMERIC, require_dtype, widen
from weft.ir.errors import ShapeError
from weft.ir.graph import Block, Operation
from weft.ir.rules import check_same_dtype, int_attr, ints_attr, known_dim
from weft.ir.spec import Array, OpSpec, tensors
from weft.ir.types import TensorType, Type
from weft.ir.windows import SLIDING, check_sliding, part, sliding_of


def _two(op: str, types: Sequence[Type], attrs: Attrs) -> tuple[TensorType, TensorType, int]:
    """The operands and the number of groups, checked but for the channels."""
    a, b = tensors(op, types)
    check_same_dtype(op, (a, b))
    require_dtype(op, a, NUMERIC)
    if a.rank != b.rank:
        raise ShapeError(f"op '{op}' needs operands of one rank, got {a} and {b}")
    check_sliding(op, attrs, a.rank, "size")
    return a, b, int_attr(attrs, "groups")


def _channels(op: str, given: TensorType, axis: int, groups: int) -> Dim:
    """A dimension that is cut into groups. ShapeError if it does not divide."""
    size = given.shape[axis]
    if groups < 1 or (isinstance(size, int) and size % groups):
        raise ShapeError(f"op '{op}': the {size} channels of {given} are not {groups} equal groups")
    return size


def _fit(op: str, a: TensorType, b: TensorType, one: Dim, two: Dim, what: str) -> None:
    if not same(one, two):
        raise ShapeError(f"op '{op}': {a} and {b} do not fit: {one} and {two} {what}")


def is_dense(op: Operation) -> bool:
    """Whether a conv or conv_input sums over more than the taps of each channel, and over
    something: its code is that of matrix products.
    """
    values = (*op.operands, op.result)
    shapes = [v.type.static_shape for v in values if isinstance(v.type, TensorType)]
    inside, outside = shapes[1][-2], shapes[1][-1] // int_attr(op.attrs, "groups")
    depthwise = int_attr(op.attrs, "groups") > 1 and inside == outside == 1
    return not depthwise and all(0 not in shape for shape in shapes)


def _conv_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    x, w, groups = _two("conv", types, attrs)
    inside = _channels("conv", x, -1, groups)
    outside = _channels("conv", w, -1, groups)
    per_group = inside // groups if isinstance(inside, int) else None
    _fit("conv", x, w, per_group, w.shape[-2], "input channels in each group")
    return [TensorType(x.dtype, (x.shape[0], *ints_attr(attrs, "size"), outside))]


def _conv_input_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    y, w, groups = _two("conv_input", types, attrs)
    _fit("conv_input", y, w, y.shape[-1], w.shape[-1], "output channels")
    _channels("conv_input", w, -1, groups)
    inside = w.shape[-2]
    channels = None if inside is None else inside * groups
    return [TensorType(y.dtype, (y.shape[0], *ints_attr(attrs, "size"), channels))]


def _conv_kernel_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    x, y, groups = _two("conv_kernel", types, attrs)
    _fit("conv_kernel", x, y, x.shape[0], y.shape[0], "items in the batch")
    inside = _channels("conv_kernel", x, -1, groups)
    outside = _channels("conv_kernel", y, -1, groups)
    per_group = inside // groups if isinstance(inside, int) else None
    known_dim(x.shape[0], y.shape[0])
    return [TensorType(x.dtype, (*ints_attr(attrs, "size"), per_group, outside))]


def _grouped(array: Array, groups: int) -> Array:
    """(..., channels) as (groups, positions, channels of a group)."""
    rows = int(np.prod(array.shape[:-1], dtype=np.int64))
    inside = array.shape[-1] // groups
    return np.moveaxis(array.reshape(rows, groups, inside), 1, 0)


def _tap(kernel: Array, tap: tuple[int, ...], groups: int) -> Array:
    """w[tap] as (groups, channels in of a group, channels out of a group)."""
    inside, outside = kernel.shape[-2:]
    return np.moveaxis(kernel[tap].reshape(inside, groups, outside // groups), 1, 0)


def _flat(grouped: Array, shape: tuple[int, ...]) -> Array:
    """(groups, positions, channels of a group) as (*shape, channels)."""
    return np.moveaxis(grouped, 0, 1).reshape(*shape, grouped.shape[0] * grouped.shape[2])


def _conv(arrays: Sequence[Array], attrs: Attrs) -> Array:
    x, w = map(widen, arrays)
    size, groups = ints_attr(attrs, "size"), int_attr(attrs, "groups")
    y = np.zeros((x.shape[0], *size, w.shape[-1]), x.dtype)
    for tap, at, out in sliding_of(attrs).meetings(x.shape[1:-1], w.shape[:-2], size):
        seen = part(x, at)
        terms = np.matmul(_grouped(seen, groups), _tap(w, tap, groups))
        part(y, out)[...] += _flat(terms, seen.shape[:-1])
    return y.astype(arrays[0].dtype, copy=False)


def _conv_input(arrays: Sequence[Array], attrs: Attrs) -> Array:
    y, w = map(widen, arrays)
    size, groups = ints_attr(attrs, "size"), int_attr(attrs, "groups")
    x = np.zeros((y.shape[0], *size, w.shape[-2] * groups), y.dtype)
    for tap, at, out in sliding_of(attrs).meetings(size, w.shape[:-2], y.shape[1:-1]):
        given = part(y, out)
        terms = np.matmul(_grouped(given, groups), _tap(w, tap, groups).swapaxes(1, 2))
        part(x, at)[...] += _flat(terms, given.shape[:-1])
    return x.astype(arrays[0].dtype, copy=False)


def _conv_kernel(arrays: Sequence[Array], attrs: Attrs) -> Array:
    x, y = map(widen, arrays)
    size, groups = ints_attr(attrs, "size"), int_attr(attrs, "groups")
    w = np.zeros((*size, x.shape[-1] // groups, y.shape[-1]), x.dtype)
    for tap, at, out in sliding_of(attrs).meetings(x.shape[1:-1], size, y.shape[1:-1]):
        seen, given = _grouped(part(x, at), groups), _grouped(part(y, out), groups)
        w[tap] = _flat(np.matmul(seen.swapaxes(1, 2), given), (w.shape[-2],))
    return w.astype(arrays[0].dtype, copy=False)


_ATTRS = {**SLIDING, "groups": AttrSpec("int", 1), "size": AttrSpec("ints")}

TABLE: tuple[OpSpec, ...] = (
    OpSpec(
        "conv",
        2,
        _conv_type,
        _conv,
        "Convolution of x by the kernel w. 16-bit floats accumulate in float32.",
        _ATTRS,
    ),
    OpSpec(
        "conv_input",
        2,
        _conv_input_type,
        _conv_input,
        "Transposed convolution of y by the kernel w: the adjoint of conv in x.",
        _ATTRS,
    ),
    OpSpec(
        "conv_kernel",
        2,
        _conv_kernel_type,
        _conv_kernel,
        "The sum of products of x and y for each tap of a kernel: the adjoint of conv in w.",
        _ATTRS,
    ),
)
