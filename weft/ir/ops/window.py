"""Windowed reductions (pooling) and their adjoints, over the spatial axes of (batch, spatial...,
channels).

Which elements a window sees: `weft.ir.windows`. `size` is the spatial shape of the result. Windows
that see nothing have the sum 0 and the lowest maximum of their dtype. Of several equal maxima the
first in row-major order counts, and NaN is larger than any number (the first NaN counts).

The sum's adjoint is window_spread, and the other way round. The maximum of x is
window_pick(x, x): window_pick(x, t) takes t where x is largest, is linear in t, and its adjoint is
window_place(x, g), so gradients of any order stay among these ops.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from weft.ir.attributes import Attrs, AttrSpec
from weft.ir.dtype_classes import NUMERIC, REAL, one_tensor, require_dtype, widen
from weft.ir.errors import ShapeError
from weft.ir.graph import Block
from weft.ir.rules import check_same_dtype, check_shape, fits, ints_attr
from weft.ir.spec import Array, InferRule, OpSpec, tensors
from weft.ir.types import TensorType, Type
from weft.ir.windows import SLIDING, check_sliding, lowest, part, sliding_of


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
_ATTRS = {**_WINDOW, "size": AttrSpec("ints")}

TABLE: tuple[OpSpec, ...] = (
    OpSpec("window_sum", 1, _unary("window_sum"), _window_sum, "Sum over each window.", _ATTRS),
    OpSpec(
        "window_spread",
        1,
        _unary("window_spread"),
        _window_spread,
        "Each element added to all that its window sees: the adjoint of window_sum.",
        _ATTRS,
    ),
    OpSpec("window_max", 1, _unary("window_max"), _window_max, "Maximum of each window.", _ATTRS),
    OpSpec(
        "window_pick",
        2,
        _pick_type,
        _window_pick,
        "Operand 1 where operand 0 is largest in each window; 0 if the window sees nothing.",
        _ATTRS,
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
