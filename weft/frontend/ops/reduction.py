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
    greater,
    isfinite,
    less,
    logical_and,
    logical_not,
    maximum,
    multiply,
    not_equal,
    square,
    subtract,
    where,
)
from weft.frontend.ops.indexing import as_indices, from_the_front
from weft.frontend.ops.manipulation import concat, cut, expand_dims, reshape
from weft.frontend.ops.promotion import (
    Axes,
    TensorLike,
    cast,
    check_axes,
    check_axis,
    check_dtype,
    check_number,
    check_size,
    iinfo,
    inexact_tensor,
    is_concrete,
    promote_tensors,
    scalar_tensor,
    strong_tensor,
    widened,
)
from weft.frontend.ops.special import exp, log, pow, sqrt
from weft.ir.dims import SymbolicDim, format_shape, product
from weft.ir.dtypes import DEFAULT_INT, DType, bool_, int64, real_of, uint64
from weft.ir.errors import InvalidArgumentError, ShapeError, TypeRuleError
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

    >>> wf.sum([[1.0, 2.0], [3.0, 4.0]], axis=0)
    Tensor([4., 6.], dtype=float32)
    >>> wf.sum(wf.asarray([200, 100], dtype=wf.uint8))
    Tensor(300, dtype=uint64)
    >>> wf.sum([True, True, False])
    Tensor(2, dtype=int64)
    """
    made = quick_fold("sum", x, axis, keepdims) if dtype is None else None
    return _total("sum", x, axis, dtype, keepdims) if made is None else made


def prod(
    x: TensorLike, /, axis: Axes = None, *, dtype: object = None, keepdims: bool = False
) -> Tensor:
    """The product over `axis`; 1 over no elements. Dtypes as for `sum`.

    >>> wf.prod([[1, 2], [3, 4]], axis=1, keepdims=True)
    Tensor([[ 2],
            [12]], dtype=int64)
    >>> wf.prod([])
    Tensor(1., dtype=float32)
    """
    made = quick_fold("prod", x, axis, keepdims) if dtype is None else None
    return _total("prod", x, axis, dtype, keepdims) if made is None else made


def max(x: TensorLike, /, axis: Axes = None, *, keepdims: bool = False) -> Tensor:
    """The largest element over `axis`, NaN if one is; real x.

    >>> wf.max([[1.0, 5.0], [3.0, np.nan]], axis=0)
    Tensor([ 3., nan], dtype=float32)
    >>> wf.max([])
    Traceback (most recent call last):
        ...
    weft.ir.errors.ShapeError: wf.max has no value over no elements: axes [0] of a f32[0] ...
    """
    made = quick_fold("max", x, axis, keepdims)
    return _extremum("max", x, axis, keepdims) if made is None else made


def min(x: TensorLike, /, axis: Axes = None, *, keepdims: bool = False) -> Tensor:
    """The smallest element over `axis`, NaN if one is; real x.

    >>> wf.min([[1, 5], [3, 2]], axis=(0, 1))
    Tensor(1, dtype=int64)
    """
    made = quick_fold("min", x, axis, keepdims)
    return _extremum("min", x, axis, keepdims) if made is None else made


@runs_native
def _truth(op: str, x: TensorLike, axis: Axes, keepdims: bool) -> Tensor:
    return _reduce(op, cast(x, bool_), axis, keepdims)


def all(x: TensorLike, /, axis: Axes = None, *, keepdims: bool = False) -> Tensor:
    """Whether all elements over `axis` are true (numbers: not 0) -> bool; true over none.

    >>> wf.all([[1, 2], [0, 3]], axis=1)
    Tensor([ True, False], dtype=bool)
    >>> wf.all([])
    Tensor(True, dtype=bool)
    """
    made = quick_fold("all", x, axis, keepdims)
    return _truth("all", x, axis, keepdims) if made is None else made


def any(x: TensorLike, /, axis: Axes = None, *, keepdims: bool = False) -> Tensor:
    """Whether some element over `axis` is true (numbers: not 0) -> bool; false over none.

    >>> wf.any([[0, 0], [0, 3]], axis=1)
    Tensor([False,  True], dtype=bool)
    >>> wf.any([np.nan])
    Tensor(True, dtype=bool)
    """
    made = quick_fold("any", x, axis, keepdims)
    return _truth("any", x, axis, keepdims) if made is None else made


@runs_native
def count_nonzero(x: TensorLike, /, axis: Axes = None, *, keepdims: bool = False) -> Tensor:
    """How many elements over `axis` are not 0 -> int64.

    >>> wf.count_nonzero([0.0, 2.0, np.nan, -0.0])
    Tensor(2, dtype=int64)
    """
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

    >>> wf.mean([1, 2])
    Tensor(1.5, dtype=float32)
    >>> wf.mean(wf.asarray([60000, 60000], dtype=wf.float16))  # 120000 is beyond float16
    Tensor(6.e+04, dtype=float16)
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

    >>> wf.var([1.0, 3.0]), wf.var([1.0, 3.0], correction=1)
    (Tensor(1., dtype=float32), Tensor(2., dtype=float32))
    >>> wf.var([1.0], correction=1)
    Tensor(nan, dtype=float32)
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
    """The standard deviation over `axis`, the square root of `var`; its gradient at 0 is 0.

    >>> wf.std([[1, 5], [2, 2]], axis=1)
    Tensor([2., 0.], dtype=float32)
    >>> wf.grad(wf.std)(wf.asarray([2.0, 2.0]))
    Tensor([0., 0.], dtype=float32)
    """
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

    >>> wf.argmax([[1, 9], [9, 2]])
    Tensor(1, dtype=int64)
    >>> wf.argmax([[1, 9], [9, 2]], axis=1)
    Tensor([1, 0], dtype=int64)
    >>> wf.argmax([1.0, np.nan, 3.0])
    Tensor(1, dtype=int64)
    """
    made = quick_position("argmax", x, axis, keepdims)
    return _position("argmax", x, axis, keepdims) if made is None else made


def argmin(x: TensorLike, /, axis: int | None = None, *, keepdims: bool = False) -> Tensor:
    """The index of the first smallest element along `axis` (None: in the flattened x) -> int64.

    A NaN counts as smallest.

    >>> wf.argmin([[4, 1], [0, 0]], axis=1, keepdims=True)
    Tensor([[1],
            [0]], dtype=int64)
    """
    made = quick_position("argmin", x, axis, keepdims)
    return _position("argmin", x, axis, keepdims) if made is None else made


@runs_native
def logsumexp(x: TensorLike, /, axis: Axes = None, *, keepdims: bool = False) -> Tensor:
    """log(sum(exp(x))) over `axis` without overflow; -inf where all elements are -inf, or none is.

    Bools and integers become the default float; real x. The largest element is taken out first
    (Blanchard, Higham and Higham, "Accurately computing the log-sum-exp", 2021, equation 1.4).

    >>> wf.logsumexp([1000.0, 1000.0]).numpy().round(3)
    np.float32(1000.693)
    >>> wf.logsumexp([-np.inf, -np.inf])
    Tensor(-inf, dtype=float32)
    """
    t = inexact_tensor(x, "logsumexp")
    if t.dtype.is_complex:
        raise TypeRuleError(
            f"wf.logsumexp takes real numbers, got {t.dtype.name}", location=caller_location()
        )
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
            f"wf.linalg.vector_norm: ord must be a number, got {ord!r}", location=caller_location()
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

    >>> wf.linalg.vector_norm([3, 4])
    Tensor(5., dtype=float32)
    >>> wf.linalg.vector_norm([[3, -4], [0, 1]], axis=1, ord=1)
    Tensor([7., 1.], dtype=float32)
    >>> wf.linalg.vector_norm([3, -4, 0], ord=np.inf), wf.linalg.vector_norm([3, -4, 0], ord=0)
    (Tensor(4., dtype=float32), Tensor(2., dtype=float32))
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

    >>> wf.cumulative_sum([1, 2, 3])
    Tensor([1, 3, 6], dtype=int64)
    >>> wf.cumulative_sum([1, 2, 3], include_initial=True)
    Tensor([0, 1, 3, 6], dtype=int64)
    >>> wf.cumulative_sum([[1, 2], [3, 4]])
    Traceback (most recent call last):
        ...
    weft.ir.errors.InvalidArgumentError: wf.cumulative_sum: axis is needed for a tensor of ...
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
    """The product of the elements up to and with each one along `axis`; as `cumulative_sum`.

    >>> wf.cumulative_prod([[1, 2], [3, 4]], axis=0)
    Tensor([[1, 2],
            [3, 8]], dtype=int64)
    >>> wf.cumulative_prod([2, 3], include_initial=True)
    Tensor([1, 2, 6], dtype=int64)
    """
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

    >>> wf.cumulative_max([1.0, 3.0, 2.0, np.nan, 5.0])
    Tensor([ 1.,  3.,  3., nan, nan], dtype=float32)
    """
    return _running("cumulative_max", strong_tensor(x), axis, 0, False)


@runs_native
def cumulative_min(x: TensorLike, /, *, axis: int | None = None) -> Tensor:
    """The smallest element up to and with each one along `axis`, NaN from the first NaN on; real
    x.

    >>> wf.cumulative_min([[3, 1, 2], [5, 6, 4]], axis=1)
    Tensor([[3, 1, 1],
            [5, 5, 4]], dtype=int64)
    """
    return _running("cumulative_min", strong_tensor(x), axis, 0, False)


@runs_native
def cumulative_logsumexp(
    x: TensorLike, /, *, axis: int | None = None, include_initial: bool = False
) -> Tensor:
    """log(sum(exp(x))) of the elements up to and with each one along `axis`, without overflow.

    Floating; integers become float32. include_initial: a -inf comes first (`cumulative_sum`).

    >>> wf.cumulative_logsumexp([0, 0, 0]).numpy().round(3)
    array([0.   , 0.693, 1.099], dtype=float32)
    >>> wf.cumulative_logsumexp([1000.0], include_initial=True)
    Tensor([ -inf, 1000.], dtype=float32)
    """
    t = inexact_tensor(x, "cumulative_logsumexp")
    return _running("cumulative_logsumexp", t, axis, -math.inf, include_initial)


def segment_sum(data: TensorLike, segment_ids: TensorLike, num_segments: TensorLike) -> Tensor:
    """out[i] is the sum of the rows data[j] with segment_ids[j] == i; 0 where there are none.

    >>> wf.segment_sum([1, 2, 4, 8], [0, 2, 0, 2], 4)
    Tensor([ 5,  0, 10,  0], dtype=int64)
    >>> wf.segment_sum([1, 2], [0, -1], 2)
    Traceback (most recent call last):
        ...
    weft.ir.errors.InvalidArgumentError: wf.segment_sum: the id -1 at [1] is out of range ...
    """
    t, rows, count = _segments("segment_sum", strong_tensor(data), segment_ids, num_segments)
    base = zeros((count, *t.shape[rows.ndim - 1 :]), dtype=t.dtype)
    return apply("scatter_nd_add", base, rows, t)


def segment_mean(data: TensorLike, segment_ids: TensorLike, num_segments: TensorLike) -> Tensor:
    """out[i] is the mean of the rows data[j] with segment_ids[j] == i; 0 where there are none.

    Floating; 16-bit floats are computed in float32.

    >>> wf.segment_mean([[1, 2], [3, 4], [5, 6]], [0, 0, 1], 3)
    Tensor([[2., 3.],
            [5., 6.],
            [0., 0.]], dtype=float32)
    """
    t = inexact_tensor(data, "segment_mean")
    wide = widened(t)
    _, rows, count = _segments("segment_mean", wide, segment_ids, num_segments)
    sums = segment_sum(wide, segment_ids, num_segments)
    one = ones(rows.shape[:-1], dtype=wide.dtype)
    each = apply("scatter_nd_add", zeros((count,), dtype=wide.dtype), rows, one)
    shape = (count, *(1 for _ in sums.shape[1:]))
    return cast(divide(sums, reshape(maximum(each, 1), shape)), t.dtype)


def segment_max(data: TensorLike, segment_ids: TensorLike, num_segments: TensorLike) -> Tensor:
    """out[i] is the largest of the rows data[j] with segment_ids[j] == i, element by element.

    Where there are none: -inf, of integers their least value (JAX, TF). Real numbers; NaN wins.

    >>> wf.segment_max([1.0, 5.0, 3.0], [0, 0, 2], 3)
    Tensor([  5., -inf,   3.], dtype=float32)
    """
    return _segment_extremum("segment_max", "scatter_nd_max", data, segment_ids, num_segments)


def segment_min(data: TensorLike, segment_ids: TensorLike, num_segments: TensorLike) -> Tensor:
    """out[i] is the least of the rows data[j] with segment_ids[j] == i, element by element.

    Where there are none: inf, of integers their largest value (JAX, TF). Real numbers; NaN wins.

    >>> wf.segment_min(wf.asarray([4, 2], dtype=wf.int8), [1, 1], 2)
    Tensor([127,   2], dtype=int8)
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
) -> tuple[Tensor, Tensor, int | SymbolicDim]:
    """The data, the ids as rows of indices that do not count from the end, and how many."""
    ids = as_indices(op, segment_ids)
    if not fits(ids.shape, t.shape[: ids.ndim]):
        raise ShapeError(
            f"wf.{op}: segment_ids of shape {format_shape(ids.shape)} do not fit data of shape "
            f"{format_shape(t.shape)}",
            location=caller_location(),
        )
    count = check_size(op, num_segments, "num_segments")
    if is_concrete(ids) and isinstance(count, int):
        wrong = np.argwhere((ids.numpy() < 0) | (ids.numpy() >= count))
        if len(wrong):
            at = tuple(map(int, wrong[0]))
            raise InvalidArgumentError(
                f"wf.{op}: the id {ids.numpy()[at]} at {list(at)} is out of range for {count} "
                f"segments",
                hint="give rows that belong nowhere one more segment, and leave it out after that",
                location=caller_location(),
            )
    else:
        ids = from_the_front(ids)
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

    >>> wf.sort([[3, 1], [2, 4]])
    Tensor([[1, 3],
            [2, 4]], dtype=int64)
    >>> wf.sort([2.0, np.nan, 3.0], descending=True)
    Tensor([nan,  3.,  2.], dtype=float32)
    """
    made = quick_sort(x, axis, descending)
    return _sorted("sort", x, axis, descending) if made is None else made


def argsort(
    x: TensorLike, /, *, axis: int = -1, descending: bool = False, stable: bool = True
) -> Tensor:
    """The indices that put x in order along `axis` -> int64. Always stable.

    >>> wf.argsort([2, 1, 2])
    Tensor([1, 0, 2], dtype=int64)
    >>> wf.argsort([2, 1, 2], descending=True)
    Tensor([0, 2, 1], dtype=int64)
    """
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

    >>> wf.searchsorted([1, 3, 3, 5], [3, 0, 9])
    Tensor([1, 0, 4], dtype=int64)
    >>> wf.searchsorted([1, 3, 3, 5], 3, side="right")
    Tensor(3, dtype=int64)
    >>> wf.searchsorted([3, 1, 5], [2, 3], sorter=[1, 0, 2])
    Tensor([1, 1], dtype=int64)
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


#: So few numbers are looked for one by one; more of them are sorted first.
_FEW_NUMBERS = 16


@runs_native
def isin(x1: TensorLike, x2: TensorLike, /, *, invert: bool = False) -> Tensor:
    """Whether each element of x1 is equal to one of x2 -> bool, the shape of x1; invert: to none.

    Numbers, bools and strings, which promote; as by `equal`, NaN is in nothing, and 0. is -0.
    Takes O((n + m) log m) for m real numbers in x2, O(nm) if they are complex or strings.

    >>> wf.isin([1, 2, 5], [5, 1])
    Tensor([ True, False,  True], dtype=bool)
    >>> wf.isin([[0.0, np.nan]], [np.nan, -0.0], invert=True)
    Tensor([[False,  True]], dtype=bool)
    """
    values, given = promote_tensors(x1, x2, op="isin")
    count = product(given.shape)
    one_by_one = isinstance(count, int) and count <= _FEW_NUMBERS
    if count is None or one_by_one or given.dtype.kind in ("complex", "string"):
        found = any(equal(expand_dims(values, -1), reshape(given, -1)), axis=-1)
    else:
        # one element more, so that the place after all others is one, too
        ordered = sort(reshape(given, -1))
        place = apply("searchsorted", ordered, values, side="left")
        near = apply("take", concat([ordered, zeros(1, dtype=given.dtype)]), place, axis=0)
        found = logical_and(equal(near, values), less(place, count))
    return logical_not(found) if invert else found


@runs_native
def top_k(
    x: TensorLike, /, k: int = 1, *, axis: int = -1, sorted: bool = True, largest: bool = True
) -> TopK:
    """The k largest elements along `axis`, descending, and their indices (int64); with
    largest=False the k smallest, ascending.

    Of equal elements the one with the lower index comes first (TF1's top_k); NaN counts as largest.
    Always in order: `sorted` is accepted and changes nothing.

    >>> wf.top_k([3.0, 9.0, 9.0, 1.0], 2)
    TopK(values=Tensor([9., 9.], dtype=float32), indices=Tensor([1, 2], dtype=int64))
    >>> wf.top_k([[3, 9, 1], [7, 5, 6]], 1, axis=1, largest=False).indices
    Tensor([[2],
            [1]], dtype=int64)
    """
    t = strong_tensor(x)
    along = check_axis("top_k", axis, t.ndim)
    count, size = check_number("top_k", k, "k"), t.shape[along]
    if isinstance(count, int) and (count < 0 or (isinstance(size, int) and count > size)):
        raise InvalidArgumentError(
            f"wf.top_k: k={count} does not fit axis {along} of shape {format_shape(t.shape)}",
            location=caller_location(),
        )
    order = apply("argsort", t, axis=along, descending=bool(largest))
    indices = cut(order, along, 0, count)
    return TopK(apply("take_along_axis", t, indices, axis=along), indices)
