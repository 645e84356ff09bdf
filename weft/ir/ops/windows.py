"""Ops over sliding windows: convolutions and pooling of (batch, spatial..., channels) arrays.

Position o of the small side and tap k of the window meet at position

    p = o * stride + k * dilation - lo

of the large side, along each spatial axis. Where p is outside the large side there is nothing:
that is all there is to padding, and no op needs to know how far it goes at the end. The attribute
`size` of an op is the spatial shape of its result.

Convolution is one trilinear form, and its derivatives by each of its three arguments:

    T(x, w, y) = sum over n, o, k, i, j of  x[n, p, i] * w[k, i', j] * y[n, o, j]

x is (batch, spatial..., channels in), w (window..., channels in / groups, channels out), y (batch,
spatial..., channels out); i runs over the input channels of j's group, i' is its number in the
group. So conv(x, w) = dT/dy, conv_input(y, w) = dT/dx (also known as transposed convolution),
conv_kernel(x, y) = dT/dw, and each one's gradients are the two others. Like everywhere in machine
learning the window is not reversed: this is a correlation.

Pooling reduces each window. Windows that see nothing have the sum 0 and the lowest maximum of their
dtype. Of several equal maxima the first in row-major order counts, and NaN is larger than any
number (the first NaN counts). The sum's adjoint is window_spread, and the other way round. The
maximum of x is window_pick(x, x): window_pick(x, t) takes t where x is largest, is linear in t, and
its adjoint is window_place(x, g), so gradients of any order stay among these ops."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

import numpy as np

from weft.ir.dataclass import dataclass
from weft.ir.dims import Dim, same
from weft.ir.errors import ShapeError, TypeRuleError
from weft.ir.graph import Block, Operation
from weft.ir.spec import Array, Attrs, AttrSpec, InferRule, OpSpec, tensors
from weft.ir.type_rules import (
    NUMERIC,
    REAL,
    check_same_dtype,
    check_shape,
    fits,
    int_attr,
    ints_attr,
    known_dim,
    one_tensor,
    require_dtype,
    widen,
)
from weft.ir.types import TensorType, Type

#: Convolutions and pooling have so many spatial axes.
MOST_AXES = 3
SLIDING = {"strides": AttrSpec("ints"), "lo": AttrSpec("ints"), "dilation": AttrSpec("ints")}


@dataclass(frozen=True, slots=True)
class Sliding:
    """Sizes, strides and shifts of a sliding window: one number per spatial axis in each."""

    strides: tuple[int, ...]
    lo: tuple[int, ...]
    dilation: tuple[int, ...]

    def meetings(
        self, large: tuple[int, ...], window: tuple[int, ...], small: tuple[int, ...]
    ) -> Iterator[tuple[tuple[int, ...], tuple[slice, ...], tuple[slice, ...]]]:
        """For each tap, row-major: (tap, the positions of the large side, of the small side).

        The two tuples of slices pick equally many positions; pairs outside are left out.
        """
        for tap in product(*map(range, window)):
            pairs = [self._axis(i, k, large[i], small[i]) for i, k in enumerate(tap)]
            yield tap, tuple(p for p, _ in pairs), tuple(o for _, o in pairs)

    def _axis(self, axis: int, tap: int, large: int, small: int) -> tuple[slice, slice]:
        stride = self.strides[axis]
        start = tap * self.dilation[axis] - self.lo[axis]  # p at o = 0
        first = max(0, -(start // stride))
        stop = min(small, (large - 1 - start) // stride + 1)
        if stop <= first:
            return slice(0, 0), slice(0, 0)
        at = start + first * stride
        return slice(at, start + (stop - 1) * stride + 1, stride), slice(first, stop)


def sliding_of(attrs: Attrs) -> Sliding:
    """The attributes `strides`, `lo` and `dilation`."""
    return Sliding(*(ints_attr(attrs, name) for name in SLIDING))


def check_sliding(op: str, attrs: Attrs, rank: int, *sizes: str) -> int:
    """The number of spatial axes of operands of `rank`, to which all attributes must fit.

    sizes: further attributes that hold one size per spatial axis.
    """
    axes = rank - 2
    if not 1 <= axes <= MOST_AXES:
        raise ShapeError(
            f"op '{op}' needs 1 to {MOST_AXES} spatial axes between batch and channels, got "
            f"operands of rank {rank}"
        )
    for name, least in (("strides", 1), ("lo", None), ("dilation", 1), *((s, 0) for s in sizes)):
        given = ints_attr(attrs, name)
        if len(given) != axes or (least is not None and any(v < least for v in given)):
            wanted = "integers" if least is None else f"integers of at least {least}"
            raise TypeRuleError(
                f"op '{op}': {name} {list(given)} must be {axes} {wanted}, one per spatial axis"
            )
    return axes


def part(array: Array, slices: tuple[slice, ...]) -> Array:
    """The positions `slices` of all spatial axes."""
    picked: Array = array[(slice(None), *slices)]
    return picked


def lowest(dtype: np.dtype[Any]) -> int | float:
    """What no number of a real dtype is below: the maximum of nothing."""
    if dtype.kind in "iu":
        return int(np.iinfo(dtype).min)
    return -np.inf


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


_CONV_ATTRS = {**SLIDING, "groups": AttrSpec("int", 1), "size": AttrSpec("ints")}

CONV_TABLE: tuple[OpSpec, ...] = (
    OpSpec(
        "conv",
        2,
        _conv_type,
        _conv,
        "Convolution of x by the kernel w. 16-bit floats accumulate in float32.",
        _CONV_ATTRS,
    ),
    OpSpec(
        "conv_input",
        2,
        _conv_input_type,
        _conv_input,
        "Transposed convolution of y by the kernel w: the adjoint of conv in x.",
        _CONV_ATTRS,
    ),
    OpSpec(
        "conv_kernel",
        2,
        _conv_kernel_type,
        _conv_kernel,
        "The sum of products of x and y for each tap of a kernel: the adjoint of conv in w.",
        _CONV_ATTRS,
    ),
)


def _resized(op: str, given: TensorType, attrs: Attrs) -> TensorType:
    check_sliding(op, attrs, given.rank, "window", "size")
    return TensorType(given.dtype, (given.shape[0], *ints_attr(attrs, "size"), given.shape[-1]))


def _unary(op: str) -> InferRule:
    def rule(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
        allowed = REAL if op == "window_max" else NUMERIC
        return [_resized(op, one_tensor(op, types, allowed), attrs)]

    return rule


def _pick_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    x, t = tensors("window_pick", types)
    check_same_dtype("window_pick", (x, t))
    require_dtype("window_pick", x, REAL)
    check_shape("window_pick", "operand 1", t.shape, x.shape)
    return [_resized("window_pick", x, attrs)]


def _place_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    x, g = tensors("window_place", types)
    check_same_dtype("window_place", (x, g))
    require_dtype("window_place", x, REAL)
    check_sliding("window_place", attrs, x.rank, "window")
    if x.rank != g.rank or not fits((x.shape[0], x.shape[-1]), (g.shape[0], g.shape[-1])):
        raise ShapeError(f"op 'window_place': {x} and {g} differ in batch or channels")
    return [x]


def _window_sum(arrays: Sequence[Array], attrs: Attrs) -> Array:
    (x,) = map(widen, arrays)
    size, window = ints_attr(attrs, "size"), ints_attr(attrs, "window")
    y = np.zeros((x.shape[0], *size, x.shape[-1]), x.dtype)
    for _, at, out in sliding_of(attrs).meetings(x.shape[1:-1], window, size):
        part(y, out)[...] += part(x, at)
    return y.astype(arrays[0].dtype, copy=False)


def _window_spread(arrays: Sequence[Array], attrs: Attrs) -> Array:
    (y,) = map(widen, arrays)
    size, window = ints_attr(attrs, "size"), ints_attr(attrs, "window")
    x = np.zeros((y.shape[0], *size, y.shape[-1]), y.dtype)
    for _, at, out in sliding_of(attrs).meetings(size, window, y.shape[1:-1]):
        part(x, at)[...] += part(y, out)
    return x.astype(arrays[0].dtype, copy=False)


def _best(x: Array, attrs: Attrs, size: tuple[int, ...]) -> tuple[Array, Array]:
    """The maximum of each window and the number of the tap that saw it, -1 where none did."""
    best = np.full((x.shape[0], *size, x.shape[-1]), lowest(x.dtype), x.dtype)
    tap_of = np.full(best.shape, -1, np.int64)
    window = ints_attr(attrs, "window")
    meetings = sliding_of(attrs).meetings(x.shape[1:-1], window, size)
    for number, (_, at, out) in enumerate(meetings):
        seen, held, tap = part(x, at), part(best, out), part(tap_of, out)
        nan = (seen != seen) & ~(held != held)
        better = (seen > held) | nan | (tap < 0)
        held[better], tap[better] = seen[better], number
    return best, tap_of


def _window_max(arrays: Sequence[Array], attrs: Attrs) -> Array:
    (x,) = map(widen, arrays)
    return _best(x, attrs, ints_attr(attrs, "size"))[0].astype(arrays[0].dtype, copy=False)


def _window_pick(arrays: Sequence[Array], attrs: Attrs) -> Array:
    x, t = widen(arrays[0]), arrays[1]
    size, window = ints_attr(attrs, "size"), ints_attr(attrs, "window")
    _, tap_of = _best(x, attrs, size)
    y = np.zeros((x.shape[0], *size, x.shape[-1]), t.dtype)
    meetings = sliding_of(attrs).meetings(x.shape[1:-1], window, size)
    for number, (_, at, out) in enumerate(meetings):
        hit = part(tap_of, out) == number
        part(y, out)[hit] = part(t, at)[hit]
    return y


def _window_place(arrays: Sequence[Array], attrs: Attrs) -> Array:
    x, g = map(widen, arrays)
    size, window = g.shape[1:-1], ints_attr(attrs, "window")
    _, tap_of = _best(x, attrs, size)
    out_x = np.zeros(x.shape, g.dtype)
    meetings = sliding_of(attrs).meetings(x.shape[1:-1], window, size)
    for number, (_, at, out) in enumerate(meetings):
        hit = part(tap_of, out) == number
        part(out_x, at)[hit] += part(g, out)[hit]
    return out_x.astype(arrays[0].dtype, copy=False)


_WINDOW = {"window": AttrSpec("ints"), **SLIDING}
_WINDOW_ATTRS = {**_WINDOW, "size": AttrSpec("ints")}

WINDOW_TABLE: tuple[OpSpec, ...] = (
    OpSpec(
        "window_sum", 1, _unary("window_sum"), _window_sum, "Sum over each window.", _WINDOW_ATTRS
    ),
    OpSpec(
        "window_spread",
        1,
        _unary("window_spread"),
        _window_spread,
        "Each element added to all that its window sees: the adjoint of window_sum.",
        _WINDOW_ATTRS,
    ),
    OpSpec(
        "window_max", 1, _unary("window_max"), _window_max, "Maximum of each window.", _WINDOW_ATTRS
    ),
    OpSpec(
        "window_pick",
        2,
        _pick_type,
        _window_pick,
        "Operand 1 where operand 0 is largest in each window; 0 if the window sees nothing.",
        _WINDOW_ATTRS,
    ),
    OpSpec(
        "window_place",
        2,
        _place_type,
        _window_place,
        "Each element of operand 1 added where operand 0 is largest in its window: the adjoint of "
        "window_pick in operand 1.",
        _WINDOW,
    ),
)
