"""Functions along axes: sums, extrema, statistics and running reductions; reductions by segment;
sorting, and searching in sorted data.

`axis`: one axis or several, negative ones counted from the end; None (the default) means all of
them. The reduced axes vanish, or stay with size 1 if `keepdims`. Errors, at the caller's line:
InvalidArgumentError for an axis out of range, TypeRuleError for a dtype that a function does not
have, ShapeError for an extremum over no elements.

By segment: all rows with the same id become one row. `segment_ids`, integers of shape
data.shape[:k] (usually one for each row), need not be sorted. Ids are 0 .. num_segments - 1:
others, negative ones too, raise InvalidArgumentError when the op runs.

Sorting and searching are of real numbers and bools, in a total order: false < true, NaN is the
largest number. Equal elements keep their order in both directions."""

from __future__ import annotations

import math
from numbers import Real
from typing import NamedTuple

import numpy as np

from weft.frontend.core.tensor import Tensor
from weft.frontend.eager.native import runs_native
from weft.frontend.eager.numpy_calls import (
    quick_argsort,
    quick_fold,
    quick_position,
    quick_running,
    quick_sort,
)
from weft.frontend.ops.creation import full, ones, zeros
from weft.frontend.ops.dispatch import apply
from weft.frontend.ops.elementwise import (
    abs,
    add,
    divide,
    equal,
    exp,
    greater,
    isfinite,
    less,
    log,
    maximum,
    multiply,
    not_equal,
    pow,
    sqrt,
    square,
    subtract,
    where,
)
from weft.frontend.ops.indexing import as_indices
from weft.frontend.ops.manipulation import cut, expand_dims, reshape
from weft.frontend.ops.promotion import (
    Axes,
    TensorLike,
    cast,
    check_axes,
    check_axis,
    check_dtype,
    check_int,
    iinfo,
    inexact_tensor,
    is_concrete,
    promote_tensors,
    scalar_tensor,
    strong_tensor,
    widened,
)
from weft.ir.dims import format_shape, product
from weft.ir.dtypes import DEFAULT_INT, DType, bool_, int64, real_of, uint64
from weft.ir.errors import InvalidArgumentError, ShapeError
from weft.ir.locations import caller_location
from weft.ir.sizes import is_traced
from weft.ir.spec import fits


def _reduce(op: str, t: Tensor, axis: Axes, keepdims: bool) -> Tensor:
    axes = check_axes(op, axis, t.ndim)
    return apply(op, t, axes=axes, keepdims=bool(keepdims))


def _accumulator(dtype: DType) -> DType:
    """The dtype of a sum (array API): small integers add up in 64 bits, bools count."""
    if dtype.kind == "bool":
        return DEFAULT_INT
    if dtype.is_integer and dtype.bits < 64:
        return uint64 if dtype.kind == "uint" else int64
    return dtype


@runs_native
def _total(op: str, x: TensorLike, axis: Axes, dtype: object, keepdims: bool) -> Tensor:
    t = strong_tensor(x)
    return _reduce(op, cast(t, check_dtype(dtype, _accumulator(t.dtype))), axis, keepdims)


@runs_native
def _extremum(op: str, x: TensorLike, axis: Axes, keepdims: bool) -> Tensor:
    return _reduce(op, strong_tensor(x), axis, keepdims)


def sum(
    x: TensorLike, /, axis: Axes = None, *, dtype: object = None, keepdims: bool = False
) -> Tensor:
    """The sum over `axis`; 0 over no elements.

    Integers below 64 bits add up in int64 or uint64 (bools in int64) unless `dtype` says otherwise;
    other dtypes stay.
    """
    made = quick_fold("sum", x, axis, keepdims) if dtype is None else None
    return _total("sum", x, axis, dtype, keepdims) if made is None else made


def prod(
    x: TensorLike, /, axis: Axes = None, *, dtype: object = None, keepdims: bool = False
) -> Tensor:
    """The product over `axis`; 1 over no elements. Dtypes as for `sum`."""
    made = quick_fold("prod", x, axis, keepdims) if dtype is None else None
    return _total("prod", x, axis, dtype, keepdims) if made is None else made


def max(x: TensorLike, /, axis: Axes = None, *, keepdims: bool = False) -> Tensor:
    """The largest element over `axis`, NaN if one is; real x."""
    made = quick_fold("max", x, axis, keepdims)
    return _extremum("max", x, axis, keepdims) if made is None else made


def min(x: TensorLike, /, axis: Axes = None, *, keepdims: bool = False) -> Tensor:
    """The smallest element over `axis`, NaN if one is; real x."""
    made = quick_fold("min", x, axis, keepdims)
    return _extremum("min", x, axis, keepdims) if made is None else made


@runs_native
def all(x: TensorLike, /, axis: Axes = None, *, keepdims: bool = False) -> Tensor:
    """Whether all elements over `axis` are true (numbers: not 0) -> bool; true over none."""
    return _reduce("all", cast(x, bool_), axis, keepdims)


@runs_native
def any(x: TensorLike, /, axis: Axes = None, *, keepdims: bool = False) -> Tensor:
    """Whether some element over `axis` is true (numbers: not 0) -> bool; false over none."""
    return _reduce("any", cast(x, bool_), axis, keepdims)


@runs_native
def count_nonzero(x: TensorLike, /, axis: Axes = None, *, keepdims: bool = False) -> Tensor:
    """How many elements over `axis` are not 0 -> int64."""
    return sum(not_equal(x, 0), axis, keepdims=keepdims)


def _count(t: Tensor, axes: tuple[int, ...], dtype: DType) -> Tensor:
    """The number of elements over `axes` as a scalar; asked for at run time if not known before."""
    known = product(t.shape[a] for a in axes)
    if isinstance(known, int) and not is_traced(known):
        return scalar_tensor(known, dtype)
    total: Tensor | None = None
    for a in axes:
        size = apply("dim_size", t, axis=a)
        total = size if total is None else multiply(total, size)
    assert total is not None
    return cast(total, dtype)


def mean(x: TensorLike, /, axis: Axes = None, *, keepdims: bool = False) -> Tensor:
    """The arithmetic mean over `axis`; NaN over no elements.

    Bools and integers become the default float; 16-bit floats are summed in float32.
    """
    total = quick_fold("sum", x, axis, keepdims)
    if total is None or total._data is None:
        return _mean(x, axis, keepdims)
    sums = total._data
    if sums.dtype.kind != "f" or not sums.size:
        return _mean(x, axis, keepdims)
    return divide(total, x._data.size // sums.size)


@runs_native
def _mean(x: TensorLike, axis: Axes, keepdims: bool) -> Tensor:
    t = inexact_tensor(x, "mean")
    axes = check_axes("mean", axis, t.ndim)
    wide = widened(t)
    total = apply("sum", wide, axes=axes, keepdims=bool(keepdims))
    return cast(divide(total, _count(wide, axes, wide.dtype)), t.dtype)


@runs_native
def var(
    x: TensorLike, /, axis: Axes = None, *, correction: float = 0.0, keepdims: bool = False
) -> Tensor:
    """The variance over `axis`: the sum of |x - mean|^2 divided by (number of elements -
    correction).

    `correction` 1 gives the unbiased estimate. Dtypes as for `mean`; real for complex x.
    """
    t = inexact_tensor(x, "var")
    axes = check_axes("var", axis, t.ndim)
    return cast(_variance(widened(t), axes, correction, keepdims), real_of(t.dtype))


def _variance(t: Tensor, axes: tuple[int, ...], correction: float, keepdims: bool) -> Tensor:
    distance = subtract(t, mean(t, axes, keepdims=True))
    squares = square(abs(distance)) if t.dtype.is_complex else square(distance)
    total = apply("sum", squares, axes=axes, keepdims=bool(keepdims))
    freedom = subtract(_count(t, axes, squares.dtype), correction)
    freedom = where(greater(freedom, 0), freedom, 0)  # no freedom: NaN or inf, as in NumPy
    return divide(total, freedom)


@runs_native
def std(
    x: TensorLike, /, axis: Axes = None, *, correction: float = 0.0, keepdims: bool = False
) -> Tensor:
    """The standard deviation over `axis`, the square root of `var`; its gradient at 0 is 0."""
    t = inexact_tensor(x, "std")
    axes = check_axes("std", axis, t.ndim)
    variance = _variance(widened(t), axes, correction, keepdims)
    return cast(_root(variance, 2), real_of(t.dtype))


def _root(total: Tensor, ord: int | float) -> Tensor:
    """total^(1/ord) for numbers >= 0, with gradient 0 at 0: a subgradient of a norm (PyTorch)."""
    zero = equal(total, 0)
    safe = where(zero, 1, total)
    return where(zero, 0, sqrt(safe) if ord == 2 else pow(safe, 1.0 / ord))


@runs_native
def _position(op: str, x: TensorLike, axis: int | None, keepdims: bool) -> Tensor:
    t = strong_tensor(x)
    if axis is None:
        rank, t = t.ndim, apply("reshape", t, shape=(product(t.shape),))
        out = apply(op, t, axis=0, keepdims=False)
        return apply("reshape", out, shape=(1,) * rank) if keepdims else out
    return apply(op, t, axis=check_axis(op, axis, t.ndim), keepdims=bool(keepdims))


def argmax(x: TensorLike, /, axis: int | None = None, *, keepdims: bool = False) -> Tensor:
    """The index of the first largest element along `axis` (None: in the flattened x) -> int64.

    A NaN counts as largest.
    """
    made = quick_position("argmax", x, axis, keepdims)
    return _position("argmax", x, axis, keepdims) if made is None else made


def argmin(x: TensorLike, /, axis: int | None = None, *, keepdims: bool = False) -> Tensor:
    """The index of the first smallest element along `axis` (None: in the flattened x) -> int64.

    A NaN counts as smallest.
    """
    made = quick_position("argmin", x, axis, keepdims)
    return _position("argmin", x, axis, keepdims) if made is None else made


@runs_native
def logsumexp(x: TensorLike, /, axis: Axes = None, *, keepdims: bool = False) -> Tensor:
    """log(sum(exp(x))) over `axis` without overflow; -inf where all elements are -inf, or none is.

    Bools and integers become the default float; real x. The largest element is taken out first
    (Blanchard, Higham and Higham, "Accurately computing the log-sum-exp", 2021, equation 1.4).
    """
    t = inexact_tensor(x, "logsumexp")
    axes = check_axes("logsumexp", axis, t.ndim)
    wide = widened(t)
    if 0 in [t.shape[a] for a in axes]:  # there is no largest element
        return cast(log(apply("sum", wide, axes=axes, keepdims=bool(keepdims))), t.dtype)
    top = apply("max", wide, axes=axes, keepdims=True)
    top = apply("stop_gradient", where(isfinite(top), top, 0))
    total = apply("sum", exp(subtract(wide, top)), axes=axes, keepdims=bool(keepdims))
    kept = tuple(d for i, d in enumerate(t.shape) if i not in axes)
    top = top if keepdims else apply("reshape", top, shape=kept)
    return cast(add(log(total), top), t.dtype)


def _check_order(ord: object) -> None:
    if not isinstance(ord, Real):
        raise InvalidArgumentError(
            f"wf.vector_norm: ord must be a number, got {ord!r}", location=caller_location()
        )


@runs_native
def vector_norm(
    x: TensorLike,
    /,
    *,
    axis: Axes = None,
    keepdims: bool = False,
    ord: int | float = 2,
) -> Tensor:
    """(sum of |x|^ord)^(1/ord) over `axis`; ord inf and -inf: the largest and least |x|; 0: how
    many are not 0.

    Bools and integers become the default float; real for complex x (array API linalg). The gradient
    of the norm of a zero vector is 0, a subgradient.
    """
    t = inexact_tensor(x, "vector_norm")
    _check_order(ord)
    if ord == float("inf"):
        return max(abs(t), axis, keepdims=keepdims)
    if ord == float("-inf"):
        return min(abs(t), axis, keepdims=keepdims)
    if ord == 0:
        return cast(count_nonzero(t, axis, keepdims=keepdims), real_of(t.dtype))
    if ord == 1:
        return sum(abs(t), axis, keepdims=keepdims)
    wide = widened(t)
    if ord == 2:
        powers = square(abs(wide)) if t.dtype.is_complex else square(wide)
    else:
        powers = pow(abs(wide), float(ord))
    total = sum(powers, axis, keepdims=keepdims)
    return cast(_root(total, ord) if ord > 0 else pow(total, 1.0 / ord), real_of(t.dtype))


# ------------------------------------------------------------------------------ running reductions
def _running_axis(op: str, t: Tensor, axis: int | None) -> int:
    if axis is None:
        if t.ndim != 1:
            raise InvalidArgumentError(
                f"wf.{op}: axis is needed for a tensor of rank {t.ndim}",
                hint="only a vector has an obvious axis",
                location=caller_location(),
            )
        return 0
    return check_axis(op, axis, t.ndim)


def _running(op: str, t: Tensor, axis: int | None, first: float, include_initial: bool) -> Tensor:
    where_ = _running_axis(op, t, axis)
    out = apply(op, t, axis=where_, reverse=False)
    if not include_initial:
        return out
    lo = tuple(int(i == where_) for i in range(t.ndim))
    return apply("pad", out, scalar_tensor(first, t.dtype), lo=lo, hi=(0,) * t.ndim)


@runs_native
def _cumulative(
    op: str, x: TensorLike, axis: int | None, dtype: object, include_initial: bool
) -> Tensor:
    t = strong_tensor(x)
    t = cast(t, check_dtype(dtype, _accumulator(t.dtype)))
    return _running(op, t, axis, int(op == "cumulative_prod"), include_initial)


def cumulative_sum(
    x: TensorLike,
    /,
    *,
    axis: int | None = None,
    dtype: object = None,
    include_initial: bool = False,
) -> Tensor:
    """The sum of the elements up to and with each one along `axis` (needed unless x is a vector).

    Dtypes as for `sum`. include_initial: a 0 comes first, and the axis is longer by one.
    """
    made = None
    if dtype is None and not include_initial:
        made = quick_running("cumulative_sum", x, axis)
    if made is None:
        return _cumulative("cumulative_sum", x, axis, dtype, include_initial)
    return made


def cumulative_prod(
    x: TensorLike,
    /,
    *,
    axis: int | None = None,
    dtype: object = None,
    include_initial: bool = False,
) -> Tensor:
    """The product of the elements up to and with each one along `axis`; as `cumulative_sum`."""
    made = None
    if dtype is None and not include_initial:
        made = quick_running("cumulative_prod", x, axis)
    if made is None:
        return _cumulative("cumulative_prod", x, axis, dtype, include_initial)
    return made


@runs_native
def cumulative_max(x: TensorLike, /, *, axis: int | None = None) -> Tensor:
    """The largest element up to and with each one along `axis`, NaN from the first NaN on; real
    x.
    """
    return _running("cumulative_max", strong_tensor(x), axis, 0, False)


@runs_native
def cumulative_min(x: TensorLike, /, *, axis: int | None = None) -> Tensor:
    """The smallest element up to and with each one along `axis`, NaN from the first NaN on; real
    x.
    """
    return _running("cumulative_min", strong_tensor(x), axis, 0, False)


@runs_native
def cumulative_logsumexp(
    x: TensorLike, /, *, axis: int | None = None, include_initial: bool = False
) -> Tensor:
    """log(sum(exp(x))) of the elements up to and with each one along `axis`, without overflow.

    Floating; integers become float32. include_initial: a -inf comes first (`cumulative_sum`).
    """
    t = inexact_tensor(x, "cumulative_logsumexp")
    return _running("cumulative_logsumexp", t, axis, -math.inf, include_initial)


def segment_sum(data: TensorLike, segment_ids: TensorLike, num_segments: int) -> Tensor:
    """out[i] is the sum of the rows data[j] with segment_ids[j] == i; 0 where there are none."""
    t, rows, count = _segments("segment_sum", strong_tensor(data), segment_ids, num_segments)
    base = zeros((count, *t.shape[rows.ndim - 1 :]), dtype=t.dtype)
    return apply("scatter_nd_add", base, rows, t)


def segment_mean(data: TensorLike, segment_ids: TensorLike, num_segments: int) -> Tensor:
    """out[i] is the mean of the rows data[j] with segment_ids[j] == i; 0 where there are none.

    Floating; 16-bit floats are computed in float32.
    """
    t = inexact_tensor(data, "segment_mean")
    wide = widened(t)
    _, rows, count = _segments("segment_mean", wide, segment_ids, num_segments)
    sums = segment_sum(wide, segment_ids, num_segments)
    one = ones(rows.shape[:-1], dtype=wide.dtype)
    each = apply("scatter_nd_add", zeros((count,), dtype=wide.dtype), rows, one)
    shape = (count, *(1 for _ in sums.shape[1:]))
    return cast(divide(sums, reshape(maximum(each, 1), shape)), t.dtype)


def segment_max(data: TensorLike, segment_ids: TensorLike, num_segments: int) -> Tensor:
    """out[i] is the largest of the rows data[j] with segment_ids[j] == i, element by element.

    Where there are none: -inf, of integers their least value (JAX, TF). Real numbers; NaN wins.
    """
    return _segment_extremum("segment_max", "scatter_nd_max", data, segment_ids, num_segments)


def segment_min(data: TensorLike, segment_ids: TensorLike, num_segments: int) -> Tensor:
    """out[i] is the least of the rows data[j] with segment_ids[j] == i, element by element.

    Where there are none: inf, of integers their largest value (JAX, TF). Real numbers; NaN wins.
    """
    return _segment_extremum("segment_min", "scatter_nd_min", data, segment_ids, num_segments)


def _segment_extremum(
    op: str, scatter: str, data: TensorLike, segment_ids: TensorLike, num_segments: int
) -> Tensor:
    t, rows, count = _segments(op, strong_tensor(data), segment_ids, num_segments)
    nothing = _identity_element(t.dtype, op == "segment_max")
    base = full((count, *t.shape[rows.ndim - 1 :]), nothing, dtype=t.dtype)
    return apply(scatter, base, rows, t)


def _identity_element(dtype: DType, is_max: bool) -> float:
    """What the largest (least) of no elements is."""
    if dtype.is_integer:
        return iinfo(dtype).min if is_max else iinfo(dtype).max
    return -math.inf if is_max else math.inf


def _segments(
    op: str, t: Tensor, segment_ids: TensorLike, num_segments: int
) -> tuple[Tensor, Tensor, int]:
    """The data, the ids as rows of indices that do not count from the end, and how many."""
    ids = as_indices(op, segment_ids)
    if not fits(ids.shape, t.shape[: ids.ndim]):
        raise ShapeError(
            f"wf.{op}: segment_ids of shape {format_shape(ids.shape)} do not fit data of shape "
            f"{format_shape(t.shape)}",
            location=caller_location(),
        )
    count = check_int(op, num_segments, "num_segments")
    if count < 0:
        raise InvalidArgumentError(
            f"wf.{op}: num_segments must not be negative, got {count}", location=caller_location()
        )
    if is_concrete(ids):
        wrong = np.argwhere((ids.numpy() < 0) | (ids.numpy() >= count))
        if len(wrong):
            at = tuple(map(int, wrong[0]))
            raise InvalidArgumentError(
                f"wf.{op}: the id {ids.numpy()[at]} at {list(at)} is out of range for {count} "
                f"segments",
                hint="give rows that belong nowhere one more segment, and leave it out after that",
                location=caller_location(),
            )
    elif ids.dtype.kind != "uint":
        wide = cast(ids, int64)
        ids = where(less(wide, 0), int(np.iinfo(np.int64).max), wide)
    return t, expand_dims(ids, -1), count


class TopK(NamedTuple):
    """The result of `top_k`: the largest elements and their indices."""

    values: Tensor
    indices: Tensor


def sort(
    x: TensorLike, /, *, axis: int = -1, descending: bool = False, stable: bool = True
) -> Tensor:
    """The elements in order along `axis`. Always stable: `stable` is accepted and changes
    nothing.
    """
    made = quick_sort(x, axis, descending)
    return _sorted("sort", x, axis, descending) if made is None else made


def argsort(
    x: TensorLike, /, *, axis: int = -1, descending: bool = False, stable: bool = True
) -> Tensor:
    """The indices that put x in order along `axis` -> int64. Always stable."""
    made = quick_argsort(x, axis, descending)
    return _sorted("argsort", x, axis, descending) if made is None else made


@runs_native
def _sorted(op: str, x: TensorLike, axis: int, descending: bool) -> Tensor:
    t = strong_tensor(x)
    return apply(op, t, axis=check_axis(op, axis, t.ndim), descending=bool(descending))


def searchsorted(
    x1: TensorLike,
    x2: TensorLike,
    /,
    *,
    side: str = "left",
    sorter: TensorLike | None = None,
) -> Tensor:
    """Where to insert each value of x2 into the ascending vector x1 -> int64, the shape of x2.

    side "left": before equal elements, "right": after them. sorter: indices that put x1 in order.
    """
    data, values = promote_tensors(x1, x2, op="searchsorted")
    if data.ndim != 1 or side not in ("left", "right"):
        raise InvalidArgumentError(
            f"wf.searchsorted needs a vector and side 'left' or 'right', got shape "
            f"{format_shape(data.shape)} and {side!r}",
            location=caller_location(),
        )
    if sorter is not None:
        data = apply("take", data, strong_tensor(sorter), axis=0)
    return apply("searchsorted", data, values, side=side)


@runs_native
def top_k(
    x: TensorLike, /, k: int = 1, *, axis: int = -1, sorted: bool = True, largest: bool = True
) -> TopK:
    """The k largest elements along `axis`, descending, and their indices (int64); with
    largest=False the k smallest, ascending.

    Of equal elements the one with the lower index comes first (TF1's top_k); NaN counts as largest.
    Always in order: `sorted` is accepted and changes nothing.
    """
    t = strong_tensor(x)
    along = check_axis("top_k", axis, t.ndim)
    count, size = check_int("top_k", k, "k"), t.shape[along]
    if count < 0 or (isinstance(size, int) and count > size):
        raise InvalidArgumentError(
            f"wf.top_k: k={count} does not fit axis {along} of shape {format_shape(t.shape)}",
            location=caller_location(),
        )
    order = apply("argsort", t, axis=along, descending=bool(largest))
    indices = cut(order, along, 0, count)
    return TopK(apply("take_along_axis", t, indices, axis=along), indices)
