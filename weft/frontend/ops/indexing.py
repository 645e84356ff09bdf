"""Reading and writing parts of tensors: `x[key]`, `x.at[key]`, take, gather, scatter.

Indices are integers of any dtype; negative ones count from the end. One that is out of bounds
raises BoundsError when the op runs (eagerly at once, compiled when the step does). Nothing
writes in place: scatters return a new tensor.

A key, NumPy's basic or advanced indexing, is resolved once into a `Plan`: one slice for each axis,
index arrays for some axes, and the layout of the result. Rules: the NumPy reference, "Indexing on
ndarrays". Integers next to index arrays count as index arrays; arrays that stand side by side leave
their axes in place, separated ones move them to the front. Boolean masks become integer arrays.
Their number of ones decides a shape: in the trace of a compiled function they must be concrete.

In a graph the bounds of a slice may be scalar tensors: x[i:j] then takes the places i .. j-1, cut
off at the ends as Python does it, and has a size that depends on values."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from weft.frontend.core.tensor import Tensor, as_tensor
from weft.frontend.eager.by_value import large_chosen
from weft.frontend.eager.numpy_moves import quick_part, quick_taken
from weft.frontend.ops.creation import iota, zeros
from weft.frontend.ops.dispatch import (
    apply,
    known_sizes,
    nonzero_columns,
    open_sizes,
    sizes_from,
)
from weft.frontend.ops.elementwise import (
    add,
    floor_divide,
    less,
    maximum,
    minimum,
    multiply,
    subtract,
    where,
)
from weft.frontend.ops.manipulation import moveaxis, permute_dims, reshape
from weft.frontend.ops.promotion import (
    TensorLike,
    broadcast_tensors,
    cast,
    check_axis,
    check_int,
    check_shape,
    common_dtype,
    expand,
    is_concrete,
    is_scalar,
    strong_tensor,
    weaken,
)
from weft.ir.dataclass import dataclass
from weft.ir.dims import (
    Dim,
    Shape,
    SymbolicDim,
    broadcast_shapes,
    format_shape,
    least,
    never_negative,
    positive,
    same,
)
from weft.ir.dtypes import bool_, int64
from weft.ir.errors import (
    BoundsError,
    InvalidArgumentError,
    ShapeError,
    TypeRuleError,
    UnsupportedError,
    WeftError,
)
from weft.ir.locations import caller_location
from weft.ir.spec import fits

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


def _fail(what: str, hint: str | None = None) -> BoundsError:
    return BoundsError(what, hint=hint, location=caller_location())


def resolve(t: Tensor, key: Any) -> Plan:
    """The plan for t[key], a key without masks of no axes (`_with_masks`). BoundsError for one that
    does not fit, TracerError for a traced mask.
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
        if not same(m, d) and m != 0:  # NumPy takes a mask of no elements for any axis
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
    ahead = isinstance(value, SymbolicDim) or value >= 0
    return least(value, high) if ahead else low + positive(size + value - low)


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


def getitem(x: TensorLike, key: Any) -> Tensor:
    """x[key] with NumPy's rules for integers, slices, None, `...`, integer arrays and boolean
    masks.

    Errors, at the caller's line: BoundsError for a key that does not fit the shape. An index
    out of bounds in an array raises when it is used. Part of a weak tensor is weak. In a graph
    bounds of slices may be tensors.
    """
    made = quick_part(x, key)
    if made is None:
        made = large_chosen(x, key)
    if made is not None:
        return made
    t = as_tensor(x)
    whole = Tensor(t._data, t._value, t._trace) if t.weak else t
    whole, key = _cut_by_values(*_with_masks(whole, key))
    return weaken(_part(whole, resolve(whole, key)), [t])


def _is_flag(item: Any) -> bool:
    """Whether an item of a key is a mask of no axes."""
    if isinstance(item, (Tensor, np.ndarray)):
        return not item.ndim and item.dtype == bool_
    return isinstance(item, (bool, np.bool_))


def _with_masks(t: Tensor, key: Any) -> tuple[Tensor, Any]:
    """t with an axis of size 1 for each mask of no axes in the key, and the key with a mask of that
    axis in its place: it keeps or empties the axis."""
    items = list(key) if isinstance(key, tuple) else [key]
    if not any(map(_is_flag, items)):
        return t, key
    rest = [0 if _is_flag(i) else _axes_used(_item(i)) for i in items]
    sizes, axis = list(t.shape), 0
    for n, item in enumerate(items):
        if item is Ellipsis:
            axis += max(t.ndim - sum(rest), 0)
        elif _is_flag(item):
            mask = as_tensor(item)
            items[n] = as_tensor(mask.numpy()[None]) if is_concrete(mask) else reshape(mask, (1,))
            sizes.insert(axis, 1)
            axis += 1
        axis += rest[n]
    return reshape(t, sizes), tuple(items) if isinstance(key, tuple) else items[0]


def _cut_by_values(t: Tensor, key: Any) -> tuple[Tensor, Any]:
    """t cut by those slices of the key whose bounds are values of the graph, and the key with whole
    axes in their place. Bounds that are seen to be sizes become these."""
    items = list(key) if isinstance(key, tuple) else [key]
    if not any(isinstance(i, slice) and _by_values(i) for i in items):
        return t, key
    axis = 0
    for n, item in enumerate(items):
        if item is Ellipsis:
            axis = t.ndim - sum(_axes_used(_item(i)) for i in items[n + 1 :])
            continue
        if isinstance(item, slice) and _by_values(item) and axis < t.ndim:
            items[n] = _by_sizes(item, t.shape[axis])
            if _by_values(items[n]) and open_sizes():
                t, items[n] = apply("take", t, _places(item, t.shape[axis]), axis=axis), slice(None)
        axis += _axes_used(_item(item))
    return t, tuple(items)


def _by_sizes(s: slice, size: Dim) -> slice:
    """The slice with sizes for those bounds that are seen to be some; where there is no other way,
    for those that a step finds to be so."""
    step = -1 if isinstance(s.step, int) and s.step < 0 else 1
    cut = False  # whether a bound may lie beyond the axis

    def of(bound: Any) -> Any:
        nonlocal cut
        if not isinstance(bound, Tensor) or is_concrete(bound) or bound.ndim or size is None:
            return bound
        (known,) = known_sizes(bound) or [None]
        if known is None:
            return bound
        if never_negative(known):
            cut = cut or not never_negative(size - known)
            return known
        return bound if open_sizes() else known

    ends = of(s.start), of(s.stop)
    if not cut or size is None:
        return slice(*ends, s.step)
    low, high = (0, size) if step > 0 else (-1, size - 1)
    first, last = (
        _clamped(v, size, low, high)
        if isinstance(v, int) or (isinstance(v, SymbolicDim) and never_negative(v))
        else v
        for v in ends
    )
    return slice(first, last, s.step)


def _by_values(s: slice) -> bool:
    return any(isinstance(v, Tensor) and not is_concrete(v) for v in (s.start, s.stop))


def _places(s: slice, size: Dim) -> Tensor:
    """The indices that a slice with tensors for bounds takes of an axis, as `slice.indices` has
    them."""
    step = 1 if s.step is None else check_int("getitem", s.step, "the step of a slice")
    if size is None or step == 0:
        raise _fail("slice step cannot be zero" if not step else f"{s}: the size is not known")
    count = SymbolicDim.as_operand(size) if isinstance(size, SymbolicDim) else as_tensor(size)
    low, high = (0, count) if step > 0 else (-1, subtract(count, 1))

    def bound(value: Any, end: Any) -> Tensor:
        if value is None:
            return cast(end, int64)
        t = as_indices("getitem", value) if not isinstance(value, SymbolicDim) else value
        place = cast(t, int64) if isinstance(t, Tensor) else SymbolicDim.as_operand(t)
        if place.ndim:
            raise _fail(f"the bound {place.describe()} of a slice is no scalar")
        return minimum(maximum(where(less(place, 0), add(place, count), place), low), high)

    start = bound(s.start, 0 if step > 0 else high)
    stop = bound(s.stop, count if step > 0 else -1)
    span = subtract(stop, start) if step > 0 else subtract(start, stop)
    length = floor_divide(add(maximum(span, 0), abs(step) - 1), abs(step))
    (n,) = sizes_from("getitem", cast(length, int64), "the length of a slice")
    return add(multiply(iota((n,), 0, dtype=int64), step), start)


def _part(t: Tensor, plan: Plan) -> Tensor:
    y = apply_slices(t, plan)
    if not plan.arrays:
        return reshape(y, tuple(1 if a == NEW else y.shape[a] for a in plan.layout))
    if len(plan.arrays) == 1:
        ((axis, index),) = plan.arrays.items()
        kept = [a for a in range(t.ndim) if a not in plan.dropped]
        at, count = kept.index(axis), index.ndim
        z = apply("take", reshape(y, tuple(y.shape[a] for a in kept)), index, axis=at)
    else:
        first, _ = arrays_first(y, plan)
        at, count = 0, index_rank(plan)
        z = apply("gather_nd", first, stacked_indices(plan))
    before = sum(a != NEW for a in plan.layout[: plan.front])
    moved = moveaxis(z, tuple(range(at, at + count)), tuple(range(before, before + count)))
    return reshape(moved, result_shape(y, plan, moved.shape[before : before + count]))


class At:
    """`x.at`: `x.at[key].set(y)` and its relatives, x with a part replaced. NumPy's index rules."""

    __slots__ = ("_tensor",)

    def __init__(self, tensor: Tensor) -> None:
        self._tensor = tensor

    def __getitem__(self, key: Any) -> PartUpdate:
        return PartUpdate(self._tensor, key)


class PartUpdate:
    """A part of a tensor, `x.at[key]`: each method gives x with that part changed.

    Values broadcast to the shape of x[key] and convert to the dtype of x, unless that would lose
    something (TypeRuleError). Where index arrays name an element twice, `set` keeps the last value
    in row-major order; `multiply` and `divide` refuse, the others apply all of them. A traced
    boolean mask of the leading axes is allowed if the values have no axis of their own along it.
    """

    __slots__ = ("_key", "_tensor")

    def __init__(self, tensor: Tensor, key: Any) -> None:
        self._tensor = tensor
        self._key = key

    def get(self) -> Tensor:
        """x[key]."""
        return getitem(self._tensor, self._key)

    def set(self, values: TensorLike) -> Tensor:
        """x with x[key] replaced by `values`."""
        return _update(self._tensor, self._key, values, "update", None)

    def add(self, values: TensorLike) -> Tensor:
        """x with `values` added to x[key]."""
        return _update(self._tensor, self._key, values, "add", "add")

    def subtract(self, values: TensorLike) -> Tensor:
        """x with `values` subtracted from x[key]."""
        return self.add(apply("negative", _fitting(self._tensor, values)))

    def multiply(self, values: TensorLike) -> Tensor:
        """x with x[key] multiplied by `values`. UnsupportedError for index arrays that may name
        an element twice: a mask, or indices that are known while tracing, do not."""
        return _update(self._tensor, self._key, values, "", "multiply")

    def divide(self, values: TensorLike) -> Tensor:
        """x with x[key] divided by `values`, for floating and complex x; as `multiply`."""
        if not self._tensor.dtype.is_inexact:
            raise TypeRuleError(
                f"x.at[...].divide needs a floating or complex tensor, got "
                f"{self._tensor.dtype.name}",
                hint="convert it with wf.astype(x, wf.float32)",
                location=caller_location(),
            )
        return _update(self._tensor, self._key, values, "", "divide")

    def min(self, values: TensorLike) -> Tensor:
        """x with x[key] lowered to `values` where those are less; NaN wins."""
        return _update(self._tensor, self._key, values, "min", "minimum")

    def max(self, values: TensorLike) -> Tensor:
        """x with x[key] raised to `values` where those are greater; NaN wins."""
        return _update(self._tensor, self._key, values, "max", "maximum")


def at(x: TensorLike) -> At:
    """`x.at`."""
    return At(as_tensor(x))


def _fitting(t: Tensor, values: TensorLike) -> Tensor:
    """`values` in the dtype of t. TypeRuleError if they do not convert without loss of kind."""
    held = values if is_scalar(values) else as_tensor(values)
    if common_dtype("at", [t, held]) is not t.dtype:
        given = type(held).__name__ if is_scalar(held) else as_tensor(held).dtype.name
        raise TypeRuleError(
            f"a value of dtype {given} cannot be written into a tensor of dtype {t.dtype.name}",
            hint=f"convert it with wf.astype(value, wf.{t.dtype.name})",
            location=caller_location(),
        )
    return cast(held, t.dtype)


def _broadcast_value(value: Tensor, shape: Shape) -> Tensor:
    lead = len(shape) - value.ndim
    pairs = zip(value.shape, shape[lead:], strict=False)
    if lead >= 0 and all(d == 1 or same(d, n) for d, n in pairs):
        return expand(value, shape)
    raise ShapeError(
        f"a value of shape {format_shape(value.shape)} does not broadcast to the indexed part, of "
        f"shape {format_shape(shape)}",
        location=caller_location(),
    )


def _update(t: Tensor, key: Any, values: TensorLike, scatter: str, combine: str | None) -> Tensor:
    """t with t[key] changed: by `scatter_nd_<scatter>`, or without index arrays by `combine`.

    scatter "": there is no such op; `combine` also serves indices that are known to differ.
    """
    t = strong_tensor(t)
    value, shape = _fitting(t, values), t.shape
    t, key = _with_masks(t, key)
    if t.shape != shape:
        return reshape(_update(t, key, value, scatter, combine), shape)
    mask = _traced_mask(key)
    if mask is not None:
        return _masked_update(t, mask, value, combine)
    plan = resolve(t, key)
    y = apply_slices(t, plan)
    if not plan.arrays:
        new = reshape(_broadcast_value(value, result_shape(y, plan, ())), y.shape)
        if combine is not None:
            new = apply(combine, y, new)
    elif scatter:
        new = _scattered(y, plan, value, f"scatter_nd_{scatter}")
    else:
        assert combine is not None
        _check_distinct(plan, combine)
        return _update(t, key, apply(combine, *_both(getitem(t, key), value)), "update", None)
    if not plan.sliced:
        return new
    starts, stops, steps = zip(*plan.bounds, strict=True)
    return apply("slice_update", t, new, starts=starts, stops=stops, steps=steps)


def _both(part: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    return part, _broadcast_value(value, part.shape)


def _check_distinct(plan: Plan, combine: str) -> None:
    """UnsupportedError unless the index arrays are known to name no element twice."""
    indices = stacked_indices(plan)
    sizes = [plan.shape[axis] for axis in plan.arrays]
    if is_concrete(indices) and all(isinstance(d, int) for d in sizes):
        rows = indices.numpy().reshape(-1, len(sizes))
        rows = np.where(rows < 0, rows + np.asarray(sizes, np.int64), rows)
        if len(np.unique(rows, axis=0)) == len(rows):
            return
    raise UnsupportedError(
        f"x.at[...].{combine} with index arrays that may name an element twice is not supported",
        hint=f"if no index repeats: x.at[i].set(wf.{combine}(x[i], values))",
        location=caller_location(),
    )


def _scattered(y: Tensor, plan: Plan, value: Tensor, op: str) -> Tensor:
    first, order = arrays_first(y, plan)
    indices = stacked_indices(plan)
    index_shape, count = indices.shape[:-1], index_rank(plan)
    part = _broadcast_value(value, result_shape(y, plan, index_shape))
    # axes made by None vanish again, the axes of the index arrays go to the front
    keep = [a != NEW for a in plan.layout]
    keep[plan.front : plan.front] = [True] * count
    part = reshape(part, tuple(d for d, k in zip(part.shape, keep, strict=True) if k))
    before = sum(a != NEW for a in plan.layout[: plan.front])
    part = moveaxis(part, tuple(range(before, before + count)), tuple(range(count)))
    out = apply(op, first, indices, part)
    inverse = sorted(range(len(order)), key=order.__getitem__)
    return reshape(permute_dims(out, inverse), y.shape)


def _traced_mask(key: Any) -> Tensor | None:
    if isinstance(key, Tensor) and key.dtype.kind == "bool" and key.ndim and not is_concrete(key):
        return key
    return None


def _masked_update(t: Tensor, mask: Tensor, value: Tensor, combine: str | None) -> Tensor:
    if mask.ndim <= t.ndim and 0 in mask.shape:
        return t
    if not fits(mask.shape, t.shape[: mask.ndim]):
        raise _fail(
            f"a mask of shape {format_shape(mask.shape)} does not fit a tensor of shape "
            f"{format_shape(t.shape)}"
        )
    rest = t.shape[mask.ndim :]
    if value.ndim > len(rest):
        raise InvalidArgumentError(
            f"x.at[mask] with a traced mask takes values of at most {len(rest)} axes, got shape "
            f"{format_shape(value.shape)}",
            hint="how many elements are masked is not known; use wf.where(mask, values, x)",
            location=caller_location(),
        )
    new = expand(_broadcast_value(value, rest), t.shape)
    if combine is not None:
        new = apply(combine, t, new)
    return where(reshape(mask, (*mask.shape, *(1,) * len(rest))), new, t)


# --------------------------------------------------------------------------- takes and gathers
def as_indices(op: str, indices: TensorLike) -> Tensor:
    """`indices` as a tensor of integers. TypeRuleError for others."""
    t = strong_tensor(indices)
    if not t.dtype.is_integer:
        raise TypeRuleError(
            f"wf.{op}: indices must be integers, got {t.dtype.name}",
            hint="convert them with wf.astype(indices, wf.int64)",
            location=caller_location(),
        )
    return t


#: An index that no axis has.
NOWHERE = int(np.iinfo(np.int64).max)


def from_the_front(indices: Tensor) -> Tensor:
    """Integers as indices that do not count from the end: a negative one is out of bounds."""
    if indices.dtype.kind == "uint":
        return indices
    wide = cast(indices, int64)
    return where(less(wide, 0), NOWHERE, wide)


def take(x: TensorLike, indices: TensorLike, /, *, axis: int | None = None) -> Tensor:
    """The parts of x at `indices` along `axis`, which may be left out for a vector.

    Shape: x.shape[:axis] + indices.shape + x.shape[axis+1:].

    >>> wf.take([10, 20, 30], [[0, -1], [1, 1]])
    Tensor([[10, 30],
            [20, 20]], dtype=int64)
    >>> wf.take([[1, 2], [3, 4]], [1], axis=1)
    Tensor([[2],
            [4]], dtype=int64)
    >>> wf.take([10, 20, 30], 3)
    Traceback (most recent call last):
        ...
    weft.ir.errors.BoundsError: wf.take on (i64[3], i64[]): index 3 is out of ...
    """
    made = quick_taken(x, indices, axis)
    if made is not None:
        return made
    t = strong_tensor(x)
    if axis is None:
        if t.ndim != 1:
            raise InvalidArgumentError(
                f"wf.take: axis is needed for a tensor of rank {t.ndim}", location=caller_location()
            )
        axis = 0
    return apply("take", t, as_indices("take", indices), axis=check_axis("take", axis, t.ndim))


def gather(x: TensorLike, indices: TensorLike, axis: int = 0) -> Tensor:
    """`take` with TF1's name and its default axis, the first.

    >>> wf.tf1.gather([[1, 2], [3, 4]], [1, 0, 1])
    Tensor([[3, 4],
            [1, 2],
            [3, 4]], dtype=int64)
    """
    t = strong_tensor(x)
    return apply("take", t, as_indices("gather", indices), axis=check_axis("gather", axis, t.ndim))


def take_along_axis(x: TensorLike, indices: TensorLike, /, *, axis: int = -1) -> Tensor:
    """out[.., i, ..] = x[.., indices[.., i, ..], ..] along `axis`; the other axes broadcast.

    >>> x = wf.asarray([[3, 1, 2], [6, 5, 4]])
    >>> wf.take_along_axis(x, wf.argsort(x), axis=-1)
    Tensor([[1, 2, 3],
            [4, 5, 6]], dtype=int64)
    """
    t, index = strong_tensor(x), as_indices("take_along_axis", indices)
    along = check_axis("take_along_axis", axis, t.ndim)
    if index.ndim != t.ndim:
        raise ShapeError(
            f"wf.take_along_axis: indices of rank {index.ndim} for a tensor of rank {t.ndim}",
            location=caller_location(),
        )
    others = [(*s.shape[:along], 1, *s.shape[along + 1 :]) for s in (t, index)]
    try:
        common = broadcast_shapes(*others)
    except WeftError as error:
        raise error.at(caller_location()) from None
    shapes = [(*common[:along], s.shape[along], *common[along + 1 :]) for s in (t, index)]
    return apply("take_along_axis", expand(t, shapes[0]), expand(index, shapes[1]), axis=along)


def gather_nd(x: TensorLike, indices: TensorLike, /) -> Tensor:
    """For each row of indices[..., k] the part x[i0, ..., ik-1] (TF1's gather_nd).

    Shape: indices.shape[:-1] + x.shape[k:].

    >>> wf.tf1.gather_nd([[1, 2], [3, 4]], [[0, 1], [1, 0]])
    Tensor([2, 3], dtype=int64)
    >>> wf.tf1.gather_nd([[1, 2], [3, 4]], [[1]])
    Tensor([[3, 4]], dtype=int64)
    """
    return apply("gather_nd", strong_tensor(x), as_indices("gather_nd", indices))


def _scatter_nd(op: str, x: TensorLike, indices: TensorLike, updates: TensorLike) -> Tensor:
    t, index = strong_tensor(x), as_indices(op, indices)
    value = _fitting(t, updates)
    depth = index.shape[-1] if index.ndim else None
    if not isinstance(depth, int) or depth > t.ndim:
        raise ShapeError(
            f"wf.{op}: the last axis of the indices, of shape {format_shape(index.shape)}, must "
            f"have a size of at most the rank of x, {t.ndim}",
            location=caller_location(),
        )
    return apply(op, t, index, _broadcast_value(value, (*index.shape[:-1], *t.shape[depth:])))


def scatter_nd_add(x: TensorLike, indices: TensorLike, updates: TensorLike, /) -> Tensor:
    """x with updates[j] added to x[indices[j]] for each row j of indices[..., k]; duplicates
    add.

    >>> wf.tf1.scatter_nd_add([0, 10, 20], [[1], [1]], [1, 2])
    Tensor([ 0, 13, 20], dtype=int64)
    """
    return _scatter_nd("scatter_nd_add", x, indices, updates)


def scatter_nd_update(x: TensorLike, indices: TensorLike, updates: TensorLike, /) -> Tensor:
    """x with x[indices[j]] replaced by updates[j]; of duplicates the last (row-major) stays.

    >>> wf.tf1.scatter_nd_update([0, 10, 20], [[1], [1]], [1, 2])
    Tensor([ 0,  2, 20], dtype=int64)
    """
    return _scatter_nd("scatter_nd_update", x, indices, updates)


def scatter_nd_min(x: TensorLike, indices: TensorLike, updates: TensorLike, /) -> Tensor:
    """x with x[indices[j]] lowered to updates[j] where that is less; NaN wins. Real numbers.

    >>> wf.tf1.scatter_nd_min([0, 10, 20], [[1], [2]], [11, 12])
    Tensor([ 0, 10, 12], dtype=int64)
    """
    return _scatter_nd("scatter_nd_min", x, indices, updates)


def scatter_nd_max(x: TensorLike, indices: TensorLike, updates: TensorLike, /) -> Tensor:
    """x with x[indices[j]] raised to updates[j] where that is greater; NaN wins. Real numbers.

    >>> wf.tf1.scatter_nd_max([0, 10, 20], [[1], [2]], [11, 12])
    Tensor([ 0, 11, 20], dtype=int64)
    """
    return _scatter_nd("scatter_nd_max", x, indices, updates)


def scatter_nd(indices: TensorLike, updates: TensorLike, shape: Sequence[int]) -> Tensor:
    """Zeros of `shape` with the updates added at the indices (TF1's scatter_nd).

    >>> wf.tf1.scatter_nd([[3], [0], [3]], [1, 2, 4], (5,))
    Tensor([2, 0, 0, 5, 0], dtype=int64)
    """
    value = strong_tensor(updates)
    base = zeros(check_shape("scatter_nd", shape), dtype=value.dtype)
    return _scatter_nd("scatter_nd_add", base, indices, value)
