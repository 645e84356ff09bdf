"""Keys of `x[key]` and `x.at[key]`: NumPy's basic and advanced indexing, resolved.

A key is resolved once into a `Plan`: one slice for each axis, index arrays for some axes, and the
layout of the result. Rules: the NumPy reference, "Indexing on ndarrays". Integers next to index
arrays count as index arrays; arrays that stand side by side leave their axes in place, separated
ones move them to the front. Boolean masks become integer arrays. Their number of ones decides a
shape: in the trace of a compiled function they must be concrete.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from weft.frontend.ops.arguments import is_concrete
from weft.frontend.ops.dispatch import apply
from weft.frontend.ops.dynamic_sizes import nonzero_columns, open_sizes
from weft.frontend.ops.promotion import broadcast_tensors, cast
from weft.frontend.ops.shape import permute_dims, reshape
from weft.frontend.tensor import Tensor, as_tensor
from weft.ir.dataclass import dataclass
from weft.ir.dims import (
    Dim,
    Shape,
    SymbolicDim,
    broadcast_shapes,
    format_shape,
    least,
    positive,
    same,
)
from weft.ir.dtypes import int64
from weft.ir.errors import InvalidArgumentError, TracerError, UnsupportedError, WeftError
from weft.ir.locations import caller_location

Bounds = tuple[Dim, Dim, int]  # start, stop, step as the IR's `slice` wants them
NEW = -1  # in a layout: an axis of size 1 made by None


@dataclass(frozen=True, slots=True)
class Plan:
    """A resolved key for a tensor of `shape`.

    bounds: the slice of each axis. dropped: axes indexed by an integer (their slice has length 1).
    arrays: the index array of each axis that has one. layout: the kept axes and NEW, in the key's
    order. front: how many entries of the layout come before the axes of the broadcast index arrays.
    """

    shape: Shape
    bounds: tuple[Bounds, ...]
    dropped: tuple[int, ...]
    arrays: dict[int, Tensor]
    layout: tuple[int, ...]
    front: int

    @property
    def sliced(self) -> bool:
        """Whether some slice is not the whole axis."""
        return any(b != (0, d, 1) for b, d in zip(self.bounds, self.shape, strict=True))


def _fail(what: str, hint: str | None = None) -> InvalidArgumentError:
    return InvalidArgumentError(what, hint=hint, location=caller_location())


def resolve(t: Tensor, key: Any) -> Plan:
    """The plan for t[key]. InvalidArgumentError for a key that does not fit, TracerError for a
    traced mask.
    """
    items = [_item(i) for i in (key if isinstance(key, tuple) else (key,))]
    used = sum(_axes_used(i) for i in items)
    if used > t.ndim:
        raise _fail(f"too many indices: {used} for a tensor of shape {format_shape(t.shape)}")
    ellipses = [n for n, i in enumerate(items) if i is Ellipsis]
    if len(ellipses) > 1:
        raise _fail("an index can have only one ellipsis ('...')")
    rest: list[Any] = [slice(None)] * (t.ndim - used)
    if ellipses:
        # an ellipsis that stands for no axis still separates index arrays
        rest = rest or [Ellipsis]
        items[ellipses[0] : ellipses[0] + 1] = rest
    else:
        items += rest
    return _place(t, items)


def _place(t: Tensor, items: list[Any]) -> Plan:
    """Go through the items, one or more axes each, and note where each ends up."""
    bounds: list[Bounds] = []
    dropped: list[int] = []
    arrays: dict[int, Tensor] = {}
    layout: list[int] = []
    advanced: list[tuple[int, int]] = []  # (place in the key, place in the layout)
    for place, item in enumerate(items):
        axis = len(bounds)
        if item is None:
            layout.append(NEW)
        elif isinstance(item, slice):
            layout.append(axis)
            bounds.append(_bounds(item, t.shape[axis]))
        elif isinstance(item, int):
            advanced.append((place, len(layout)))
            dropped.append(axis)
            bounds.append(_int_bounds(item, axis, t.shape[axis]))
        elif isinstance(item, Tensor):
            advanced.append((place, len(layout)))
            for index in _index_arrays(item, axis, t.shape):
                arrays[len(bounds)] = index
                bounds.append((0, t.shape[len(bounds)], 1))
    places = [p for p, _ in advanced]
    adjacent = not places or places[-1] - places[0] == len(places) - 1
    front = advanced[0][1] if adjacent and advanced else 0
    return Plan(t.shape, tuple(bounds), tuple(dropped), arrays, tuple(layout), front)


def _item(item: Any) -> Any:
    """One entry of a key as None, Ellipsis, slice, int or an index tensor (integers or bool)."""
    if item is None or item is Ellipsis or isinstance(item, slice):
        return item
    if isinstance(item, (int, np.integer)) and not isinstance(item, bool):
        return int(item)
    if isinstance(item, (list, tuple)) and not len(item):
        return as_tensor(np.zeros(0, np.int64))
    try:
        index = as_tensor(item)
    except WeftError:
        index = None
    if index is None or not (index.dtype.is_integer or index.dtype.kind == "bool"):
        raise _fail(
            f"{item!r} is not a valid index",
            "an index is an integer, a slice, None, '...', or an array of integers or bools",
        )
    if index.dtype.kind == "bool" and index.ndim == 0:
        raise UnsupportedError(
            f"indexing with the single bool {item} is not supported",
            hint="use wf.expand_dims or wf.where, or index with an array of bools",
            location=caller_location(),
        )
    if index.dtype.kind == "bool" and not is_concrete(index) and not open_sizes():
        raise TracerError(
            "a traced boolean mask cannot index a tensor: the result's shape would depend on it",
            hint="wf.where(mask, x, 0) keeps the shape; x.at[mask].set(v) writes through a mask",
            location=caller_location(),
        )
    return int(index.numpy()) if index.ndim == 0 and is_concrete(index) else index


def _axes_used(item: Any) -> int:
    if item is None or item is Ellipsis:
        return 0
    return item.ndim if isinstance(item, Tensor) and item.dtype.kind == "bool" else 1


def _index_arrays(item: Tensor, axis: int, shape: Shape) -> list[Tensor]:
    """The integer arrays that an index tensor stands for, one for each axis it takes."""
    if item.dtype.is_integer:
        return [item]
    for i, (m, d) in enumerate(zip(item.shape, shape[axis:], strict=False)):
        if not same(m, d):
            raise _fail(
                f"a mask of shape {format_shape(item.shape)} does not fit axis {axis + i} of a "
                f"tensor of shape {format_shape(shape)}"
            )
    return nonzero_columns(item, "mask")


def _int_bounds(index: int, axis: int, size: Dim) -> Bounds:
    if isinstance(size, int) and not -size <= index < size:
        raise _fail(f"index {index} is out of bounds for axis {axis} of size {size}")
    start = _from_end(index, size)
    return (start, None if start is None else start + 1, 1)


def _from_end(value: Any, size: Dim) -> Dim:
    if isinstance(value, SymbolicDim) or value >= 0:
        return value  # type: ignore[no-any-return]
    return None if size is None else size + value


def _bounds(s: slice, size: Dim) -> Bounds:
    symbolic = any(isinstance(v, SymbolicDim) for v in (s.start, s.stop))
    try:
        if isinstance(size, int) and not symbolic:
            return s.indices(size)
        step = 1 if s.step is None else operator.index(s.step)
        start, stop = (
            v if v is None or isinstance(v, SymbolicDim) else operator.index(v)
            for v in (s.start, s.stop)
        )
    except WeftError as error:
        raise error.at(caller_location()) from None
    except (TypeError, ValueError) as error:
        raise _fail(f"{s} is not a valid slice: {error}") from None
    if step == 0:
        raise _fail("slice step cannot be zero")
    last = None if size is None else size - 1
    ends: tuple[Dim, Dim] = (0, size) if step > 0 else (last, -1)
    # bounds that are sizes themselves are taken to lie inside, which is checked when the graph runs
    held = symbolic or size is None
    low, high = (0, size) if step > 0 else (-1, last)
    cut = [
        end if v is None else _from_end(v, size) if held else _clamped(v, size, low, high)
        for v, end in zip((start, stop), ends, strict=True)
    ]
    return cut[0], cut[1], step


def _clamped(value: Any, size: Any, low: int, high: Any) -> Dim:
    """A bound of a slice as `slice.indices` gives it for an axis whose size is a symbol."""
    return least(value, high) if value >= 0 else low + positive(size + value - low)


# ------------------------------------------------------------------------------ carrying a plan out
def apply_slices(t: Tensor, plan: Plan) -> Tensor:
    """t cut by the plan's slices; all axes are still there."""
    if not plan.sliced:
        return t
    starts, stops, steps = zip(*plan.bounds, strict=True)
    return apply("slice", t, starts=starts, stops=stops, steps=steps)


def stacked_indices(plan: Plan) -> Tensor:
    """The plan's index arrays, broadcast together, side by side along a new last axis -> int64."""
    arrays = list(plan.arrays.values())
    try:
        broadcast_shapes(*(a.shape for a in arrays))
    except WeftError as error:
        raise _fail(f"index arrays do not fit together: {error.what}", error.hint) from None
    if all(is_concrete(a) for a in arrays):
        known = np.broadcast_arrays(*(a.numpy().astype(np.int64) for a in arrays))
        return as_tensor(np.stack(known, axis=-1))
    parts = broadcast_tensors(*(cast(a, int64) for a in arrays), op="getitem")
    columns = [reshape(p, (*p.shape, 1)) for p in parts]
    return columns[0] if len(columns) == 1 else apply("concat", *columns, axis=columns[0].ndim - 1)


def index_rank(plan: Plan) -> int:
    """The number of axes of the broadcast index arrays."""
    return max(a.ndim for a in plan.arrays.values())


def arrays_first(y: Tensor, plan: Plan) -> tuple[Tensor, tuple[int, ...]]:
    """The sliced tensor without dropped axes, those with index arrays in front; and that
    permutation.
    """
    kept = [a for a in range(len(plan.shape)) if a not in plan.dropped]
    squeezed = reshape(y, tuple(y.shape[a] for a in kept))
    order = [i for i, a in enumerate(kept) if a in plan.arrays]
    order += [i for i, a in enumerate(kept) if a not in plan.arrays]
    return permute_dims(squeezed, order), tuple(order)


def result_shape(y: Tensor, plan: Plan, index_shape: Sequence[Dim]) -> Shape:
    """The shape of x[key], given the sliced tensor and the shape of the broadcast index arrays."""
    sizes: list[Dim] = [1 if a == NEW else y.shape[a] for a in plan.layout]
    sizes[plan.front : plan.front] = index_shape
    return tuple(sizes)
