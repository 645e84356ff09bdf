"""Order statistics and counts: medians and quantiles, histograms, `bincount`, `digitize`, and
reductions that leave NaN out.

NumPy's functions, with weft's dtypes: integers become the default float where a mean is taken, and
counts are int64. Errors, at the caller's line: InvalidArgumentError for an axis or a setting out of
range, TypeRuleError for a dtype that a function does not have, TracerError for sizes that would
depend on traced values."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from weft.frontend.core.tensor import Tensor, as_tensor
from weft.frontend.eager.native import runs_native
from weft.frontend.ops.creation import full, ones
from weft.frontend.ops.dispatch import apply, open_sizes, sizes_from
from weft.frontend.ops.elementwise import (
    add,
    ceil,
    clip,
    divide,
    equal,
    floor,
    floor_divide,
    greater_equal,
    isfinite,
    isnan,
    less,
    less_equal,
    logical_and,
    logical_not,
    minimum,
    multiply,
    round,
    subtract,
    where,
)
from weft.frontend.ops.manipulation import concat, cut, diff, flip, permute_dims, reshape, size
from weft.frontend.ops.promotion import (
    Axes,
    TensorLike,
    cast,
    check_axes,
    check_dtype,
    check_positive,
    check_size,
    concrete_array,
    inexact_tensor,
    is_concrete,
    promote_tensors,
    strong_tensor,
    widened,
)
from weft.frontend.ops.reduction import all, max, min, segment_sum, sort, sum
from weft.frontend.ops.reduction import searchsorted as places_in
from weft.ir.dims import Size, format_shape, largest, product
from weft.ir.dtypes import bool_, float64, int32, int64
from weft.ir.errors import InvalidArgumentError, ShapeError, TypeRuleError
from weft.ir.locations import caller_location

_METHODS = ("linear", "lower", "higher", "nearest", "midpoint")


class Histogram(NamedTuple):
    """The result of `histogram`: how many elements are in each bin, and the edges of the bins, one
    more than there are bins."""

    counts: Tensor
    edges: Tensor


def _fail(op: str, text: str, hint: str | None = None) -> InvalidArgumentError:
    return InvalidArgumentError(f"wf.{op}: {text}", hint=hint, location=caller_location())


def _real(op: str, t: Tensor) -> Tensor:
    if t.dtype.is_complex or not (t.dtype.is_numeric or t.dtype is bool_):
        raise TypeRuleError(
            f"wf.{op} takes real numbers, got {t.dtype.name}", location=caller_location()
        )
    return t


# ----------------------------------------------------------------------------------- quantiles
def _lines(t: Tensor, axes: tuple[int, ...]) -> Tensor:
    """The reduced axes as one, which comes last."""
    kept = tuple(a for a in range(t.ndim) if a not in axes)
    length = product(t.shape[a] for a in axes)
    moved = permute_dims(t, (*kept, *axes))
    return reshape(moved, (*(t.shape[a] for a in kept), -1 if length is None else length))


def _kept(t: Tensor, made: Tensor, axes: tuple[int, ...], lead: int) -> Tensor:
    """`made`, which has `lead` axes of its own, with size 1 in place of the reduced axes of t."""
    sizes = [1 if a in axes else d for a, d in enumerate(t.shape)]
    return reshape(made, (*made.shape[:lead], *sizes))


def median(x: TensorLike, /, axis: Axes = None, *, keepdims: bool = False) -> Tensor:
    """The middle element in order over `axis`, or the mean of the two in the middle (NumPy's).

    NaN where there is one, and of no elements. Real numbers; integers become the default float.

    >>> wf.tf1.median([[3, 1, 2], [9, 7, 7]], axis=1)
    Tensor([2., 7.], dtype=float32)
    >>> wf.tf1.median([1.0, 2.0, 4.0, 8.0])
    Tensor(3., dtype=float32)
    """
    t = _real("median", inexact_tensor(x, "median"))
    axes = check_axes("median", axis, t.ndim)
    lines = sort(_lines(t, axes))
    if lines.shape[-1] == 0:
        return _of_nothing(t, axes, (), keepdims)
    count = _count(lines)
    low, high = (
        _picked(lines, floor_divide(c, 2) if isinstance(c, Tensor) else c // 2)
        for c in (count - 1, count)
    )
    half = multiply(add(widened(low), widened(high)), 0.5)
    made = cast(where(_nan_inside(lines), math.nan, half), t.dtype)
    return _kept(t, made, axes, 0) if keepdims else made


def _count(lines: Tensor) -> Any:
    """The size of the last axis: a number, or a tensor where only a step knows it."""
    length = lines.shape[-1]
    return length if isinstance(length, int) else apply("dim_size", lines, axis=lines.ndim - 1)


def _picked(lines: Tensor, at: Any) -> Tensor:
    """lines[..., at]; `at`: a number, or integers."""
    if isinstance(at, int):
        found = cut(lines, lines.ndim - 1, at, at + 1)
        return reshape(found, lines.shape[:-1])
    index = cast(at, int64)
    found = apply("take", lines, index, axis=lines.ndim - 1)
    lead = lines.ndim - 1  # the axes of the index come first, as NumPy's
    return permute_dims(found, (*range(lead, found.ndim), *range(lead)))


def _nan_inside(lines: Tensor) -> Tensor:
    """Whether a sorted line has NaN: it would come last."""
    return isnan(_picked(lines, _count(lines) - 1))


def _of_nothing(t: Tensor, axes: tuple[int, ...], lead: tuple[Any, ...], keepdims: bool) -> Tensor:
    kept = [d for a, d in enumerate(t.shape) if a not in axes]
    made = full((*lead, *kept), math.nan, dtype=t.dtype)
    return _kept(t, made, axes, len(lead)) if keepdims else made


def quantile(
    x: TensorLike,
    q: TensorLike,
    /,
    axis: Axes = None,
    *,
    method: str = "linear",
    keepdims: bool = False,
) -> Tensor:
    """The q-th quantiles of x over `axis`, q in 0 .. 1 (NumPy's); the axes of q come first.

    The place in the sorted elements is q * (n - 1). Between two elements: `method` "linear" goes
    from one to the other, "lower" and "higher" take one of them, "nearest" the nearer one (of
    equally near ones the one with the even index), "midpoint" their mean. NaN where there is one,
    where q is traced and out of range, and of no elements. Real numbers; integers become the
    default float for "linear" and "midpoint". Has gradients, in x and for "linear" in q.

    >>> wf.tf1.quantile([1.0, 2.0, 4.0, 8.0], [0.5, 1.0])
    Tensor([3., 8.], dtype=float32)
    >>> wf.tf1.quantile([[1, 2, 4], [5, 6, 7]], 0.75, axis=1, method="higher")
    Tensor([4, 7], dtype=int64)
    """
    return _quantile("quantile", x, q, 1.0, axis, method, keepdims)


def percentile(
    x: TensorLike,
    q: TensorLike,
    /,
    axis: Axes = None,
    *,
    method: str = "linear",
    keepdims: bool = False,
) -> Tensor:
    """`quantile`, with q in 0 .. 100.

    >>> wf.tf1.percentile([10.0, 20.0, 30.0, 40.0, 50.0], [25, 60])
    Tensor([20., 34.], dtype=float32)
    """
    return _quantile("percentile", x, q, 100.0, axis, method, keepdims)


def _quantile(
    op: str, x: TensorLike, q: TensorLike, whole: float, axis: Axes, method: str, keepdims: bool
) -> Tensor:
    if method not in _METHODS:
        raise _fail(op, f"method {method!r} is unknown", "it is " + ", ".join(_METHODS))
    mixed = method in ("linear", "midpoint")
    t = _real(op, inexact_tensor(x, op) if mixed else strong_tensor(x))
    axes = check_axes(op, axis, t.ndim)
    share = as_tensor(q)
    if is_concrete(share):
        given = share.numpy().astype(np.float64) / whole
        if not ((given >= 0) & (given <= 1)).all():
            raise _fail(op, f"q must be in 0 to {whole:g}, got {q!r:.60}")
    lines = sort(_lines(t, axes))
    if lines.shape[-1] == 0:
        if not t.dtype.is_floating:
            raise _fail(op, f"no elements of {t.dtype.name} have a quantile")
        return _of_nothing(t, axes, share.shape, keepdims)
    last = _count(lines) - 1
    if is_concrete(share) and isinstance(last, int):
        made = _at_known_places(lines, given * last, last, method)
    else:
        made = _at_places(lines, share, whole, last, method)
    made = cast(made, t.dtype)
    if t.dtype.is_floating:
        made = where(_nan_inside(lines), math.nan, made)
    return _kept(t, made, axes, share.ndim) if keepdims else made


def _at_known_places(lines: Tensor, place: Any, last: int, method: str) -> Tensor:
    """The elements at places that are known now, in float64."""
    if method in ("lower", "higher", "nearest"):
        rounds: Callable[..., Any] = {"lower": np.floor, "higher": np.ceil, "nearest": np.rint}[
            method
        ]
        return _picked(lines, as_tensor(rounds(place).astype(np.int64)))
    low = np.floor(place)
    part = place - low if method == "linear" else np.where(place > low, 0.5, 0.0)
    ends = (low, np.minimum(low + 1, last))
    first, second = (widened(_picked(lines, as_tensor(e.astype(np.int64)))) for e in ends)
    part = np.reshape(part, (*part.shape, *(1,) * (lines.ndim - 1)))
    return _between(first, second, as_tensor(part.astype(first.dtype.numpy)))


def _at_places(lines: Tensor, share: Tensor, whole: float, last: Any, method: str) -> Tensor:
    """The elements at places that a step decides; they are computed in float64."""
    part = divide(cast(share, float64), whole)
    inside = logical_and(greater_equal(part, 0), less_equal(part, 1))
    place = multiply(clip(where(inside, part, 0), 0, 1), cast(last, float64))
    wide = (*share.shape, *(1,) * (lines.ndim - 1))
    if method in ("lower", "higher", "nearest"):
        rounds = {"lower": floor, "higher": ceil, "nearest": round}[method]
        made = _picked(lines, cast(rounds(place), int64))
        if not made.dtype.is_floating:
            return made
    else:
        low = floor(place)
        first = widened(_picked(lines, cast(low, int64)))
        second = widened(_picked(lines, cast(minimum(add(low, 1), cast(last, float64)), int64)))
        apart = subtract(place, low)
        if method == "midpoint":
            apart = where(equal(apart, 0), cast(0.0, float64), cast(0.5, float64))
        made = _between(first, second, reshape(cast(apart, first.dtype), wide))
    return where(reshape(inside, wide), made, math.nan)


def _between(first: Tensor, second: Tensor, part: Tensor) -> Tensor:
    """From the one to the other; exact at both ends, as NumPy's."""
    way = subtract(second, first)
    near = less(part, 0.5)
    made = where(
        near, add(first, multiply(way, part)), subtract(second, multiply(way, subtract(1, part)))
    )
    # no part of a way without end: 0 times that would be NaN
    return where(logical_and(equal(part, 0), logical_not(isfinite(way))), first, made)


# ------------------------------------------------------------------------------ NaN left out
@runs_native
def nansum(x: TensorLike, /, axis: Axes = None, *, keepdims: bool = False) -> Tensor:
    """The sum of the elements that are not NaN over `axis`, 0 of none; dtypes as for `wf.sum`.

    >>> wf.tf1.nansum([1.0, np.nan, 2.0])
    Tensor(3., dtype=float32)
    """
    t = strong_tensor(x)
    return sum(where(isnan(t), 0, t) if t.dtype.is_inexact else t, axis, keepdims=keepdims)


@runs_native
def nanmean(x: TensorLike, /, axis: Axes = None, *, keepdims: bool = False) -> Tensor:
    """The mean of the elements that are not NaN over `axis`, NaN of none; dtypes as for `wf.mean`.

    >>> wf.tf1.nanmean([[1.0, np.nan], [3.0, np.nan]], axis=0)
    Tensor([ 2., nan], dtype=float32)
    """
    t = inexact_tensor(x, "nanmean")
    wide, missing = widened(t), isnan(t)
    count = sum(cast(missing == 0, wide.dtype), axis, keepdims=keepdims)
    return cast(divide(sum(where(missing, 0, wide), axis, keepdims=keepdims), count), t.dtype)


@runs_native
def nanmax(x: TensorLike, /, axis: Axes = None, *, keepdims: bool = False) -> Tensor:
    """The largest element that is not NaN over `axis`; NaN where all are.

    >>> wf.tf1.nanmax([1.0, np.nan, 2.0])
    Tensor(2., dtype=float32)
    """
    return _nan_extremum(max, -math.inf, strong_tensor(x), axis, keepdims)


@runs_native
def nanmin(x: TensorLike, /, axis: Axes = None, *, keepdims: bool = False) -> Tensor:
    """The least element that is not NaN over `axis`; NaN where all are.

    >>> wf.tf1.nanmin([[1.0, np.nan], [np.nan, np.nan]], axis=1)
    Tensor([ 1., nan], dtype=float32)
    """
    return _nan_extremum(min, math.inf, strong_tensor(x), axis, keepdims)


def _nan_extremum(
    extremum: Callable[..., Tensor], none: float, t: Tensor, axis: Axes, keepdims: bool
) -> Tensor:
    if not t.dtype.is_inexact:
        return extremum(t, axis, keepdims=keepdims)
    missing = isnan(t)
    made = extremum(where(missing, none, t), axis, keepdims=keepdims)
    return where(all(missing, axis, keepdims=keepdims), math.nan, made)


# ------------------------------------------------------------------------------------- counts
def bincount(
    x: TensorLike,
    /,
    weights: TensorLike | None = None,
    minlength: int = 0,
    *,
    length: Any = None,
) -> Tensor:
    """How often each integer 0 .. length-1 is in x -> int64 [length]; with weights their sums, of
    their dtype.

    x: integers of any shape, weights of the same. length: the size of the result, and numbers from
    it on do not count (JAX's); if not given it is max(x) + 1, at least minlength, a size that
    depends on values in a graph. Negative numbers are an
    InvalidArgumentError, when it runs. Has a gradient in the weights.

    >>> wf.tf1.bincount([1, 3, 1])
    Tensor([0, 2, 0, 1], dtype=int64)
    >>> wf.tf1.bincount([1, 3, 1], weights=[0.5, 1.0, 2.0], length=3)
    Tensor([0. , 2.5, 0. ], dtype=float32)
    """
    t = strong_tensor(x)
    if not (t.dtype.is_integer or t.dtype is bool_):
        raise TypeRuleError(
            f"wf.tf1.bincount counts integers, got {t.dtype.name}",
            hint="wf.tf1.histogram counts in bins",
            location=caller_location(),
        )
    least = check_size("bincount", minlength, "minlength")
    count: Size
    if length is not None:
        count = check_size("bincount", length, "length")
    elif is_concrete(t) or not open_sizes():
        known = concrete_array("bincount", t, "x, or length=,")
        count = largest(int(known.max()) + 1 if known.size else 0, least)
    else:  # one more than the largest, which a first 0 - 1 keeps from being that of nothing
        numbers = concat([cast(reshape(t, -1), int64), as_tensor(np.array([-1]))])
        (found,) = sizes_from("bincount", add(max(numbers), 1), "the size of the result")
        count = least if found is None else largest(found, least)
    return _counted("bincount", t, weights, count)


def _counted(op: str, numbers: Tensor, weights: TensorLike | None, count: Size) -> Tensor:
    """The sums of the weights by number; numbers from `count` on do not count."""
    if weights is None:
        each = ones(numbers.shape, dtype=int64)
    else:
        each = strong_tensor(weights)
        if each.shape != numbers.shape:
            raise ShapeError(
                f"wf.{op}: weights of shape {format_shape(each.shape)} for x of shape "
                f"{format_shape(numbers.shape)}",
                location=caller_location(),
            )
        each = cast(each, int64) if each.dtype is bool_ else each
    ids = minimum(cast(numbers, int64), count)
    return cut(segment_sum(reshape(each, -1), reshape(ids, -1), count + 1), 0, 0, count)


def histogram(
    x: TensorLike,
    /,
    bins: TensorLike = 10,
    range: tuple[TensorLike, TensorLike] | None = None,
    *,
    weights: TensorLike | None = None,
    density: bool = False,
) -> Histogram:
    """How many elements of x are in each bin, and the edges of the bins (NumPy's).

    bins: so many equal ones over `range` (low, high), by default that of x; or their edges, which
    ascend. A bin is half open, the last one is closed; what is in none, and NaN, does not count.
    Counts are int64, with weights sums of their dtype; density: floating, divided by the total and
    by the widths. Bins may depend on traced values, their number may not.

    >>> wf.tf1.histogram([1.0, 2.0, 1.0, 4.0], bins=3)
    Histogram(counts=Tensor([2, 1, 1], dtype=int64), edges=Tensor([1., 2., 3., 4.], dtype=float32))
    >>> wf.tf1.histogram([1, 5, 5, 9], bins=[0, 5, 8]).counts
    Tensor([1, 2], dtype=int64)
    """
    t = _real("histogram", inexact_tensor(x, "histogram"))
    edges = _edges(t, bins, range)
    t, edges = promote_tensors(t, edges, op="histogram")
    count = edges.shape[0]
    if edges.ndim != 1 or not isinstance(count, int) or count < 2:
        raise _fail("histogram", f"bins need at least 2 edges, got shape {list(edges.shape)}")
    place = places_in(edges, t, side="right")
    at_end = equal(t, cut(edges, 0, count - 1, count))
    place = subtract(place, cast(at_end, int64))  # the last bin has its upper edge
    counts = cut(_counted("histogram", place, weights, count), 0, 1, count)
    if density:
        counts = cast(counts, t.dtype)
        counts = divide(divide(counts, sum(counts)), diff(edges))
    return Histogram(counts, edges)


def _edges(t: Tensor, bins: TensorLike, range: tuple[TensorLike, TensorLike] | None) -> Tensor:
    given = as_tensor(bins)
    if given.ndim:
        edges = strong_tensor(bins)
        if is_concrete(edges) and (np.diff(edges.numpy()) < 0).any():
            raise _fail("histogram", f"the edges of bins must ascend, got {bins!r:.60}")
        return edges if edges.dtype.is_floating else inexact_tensor(edges, "histogram")
    count = check_positive("histogram", bins, "bins")
    if range is None:
        nothing = product(t.shape) == 0  # NumPy's bins of nothing: 0 to 1
        low, high = (0.0, 1.0) if nothing else (min(t), max(t))
    else:
        low, high = range
    low, high = (cast(v, t.dtype) for v in (low, high))
    if low.ndim or high.ndim:
        raise _fail("histogram", "range must be two numbers, low and high")
    if is_concrete(low) and is_concrete(high):
        ends = float(low.numpy()), float(high.numpy())
        if not (np.isfinite(ends).all() and ends[0] <= ends[1]):
            raise _fail("histogram", f"the range {ends} must be finite, its low end first")
        if ends[0] == ends[1]:
            ends = ends[0] - 0.5, ends[1] + 0.5
        return as_tensor(np.linspace(*ends, count + 1).astype(t.dtype.numpy))
    point = equal(low, high)
    low, high = subtract(low, where(point, 0.5, 0)), add(high, where(point, 0.5, 0))
    parts = np.arange(count + 1)
    step = divide(subtract(high, low), count)
    return where(parts == count, high, add(low, multiply(step, parts.astype(t.dtype.numpy))))


def histogram_fixed_width(
    values: TensorLike,
    value_range: tuple[TensorLike, TensorLike],
    nbins: int = 100,
    dtype: object = None,
) -> Tensor:
    """How many values are in each of `nbins` equal bins over value_range, what is outside in the
    first and the last one (TF1's) -> int32 [nbins] by default. NaN is in none.

    >>> wf.tf1.histogram_fixed_width([-1.0, 0.0, 1.5, 2.0, 5.0, 15.0], [0.0, 5.0], nbins=5)
    Tensor([2, 1, 1, 0, 2], dtype=int32)
    """
    op = "histogram_fixed_width"
    t, target = _real(op, inexact_tensor(values, op)), check_dtype(dtype, int32)
    count = check_positive(op, nbins, "nbins")
    low, high = (cast(v, t.dtype) for v in value_range)
    if is_concrete(low) and is_concrete(high) and not low.numpy() < high.numpy():
        raise _fail(op, f"value_range {low.numpy()}, {high.numpy()} must ascend")
    place = floor(multiply(divide(subtract(t, low), subtract(high, low)), count))
    held = where(isnan(t), count, clip(where(isnan(t), 0, place), 0, count - 1))
    return cast(_counted(op, cast(held, int64), None, count), target)


def digitize(x: TensorLike, bins: TensorLike, /, right: bool = False) -> Tensor:
    """The number i of the bin of each element, bins[i-1] <= x < bins[i] -> int64, the shape of x.

    right: bins[i-1] < x <= bins[i]. bins: a vector that ascends, or descends: then bins[i-1] > x >=
    bins[i], or with right=True bins[i-1] >= x > bins[i] (NumPy's). NaN is beyond all bins.

    >>> wf.tf1.digitize([0.2, 6.4, 3.0, 1.6], [0.0, 1.0, 2.5, 4.0, 10.0])
    Tensor([1, 4, 3, 2], dtype=int64)
    """
    t, edges = promote_tensors(x, bins, op="digitize")
    if edges.ndim != 1:
        raise _fail("digitize", f"bins must be a vector, got shape {format_shape(edges.shape)}")
    side = "left" if right else "right"

    def ascending() -> Tensor:
        return places_in(edges, t, side=side)

    def descending() -> Tensor:
        return subtract(size(edges), places_in(flip(edges), t, side=side))

    if edges.shape[0] == 0 or edges.shape[0] == 1:
        return ascending()
    if is_concrete(edges):
        steps = np.diff(edges.numpy().astype(np.float64))
        if not ((steps >= 0).all() or (steps <= 0).all()):
            raise _fail("digitize", "bins must ascend or descend")
        return ascending() if (steps >= 0).all() else descending()
    is_up = less_equal(_picked(edges, 0), _picked(edges, _count(edges) - 1))
    return where(is_up, ascending(), descending())
