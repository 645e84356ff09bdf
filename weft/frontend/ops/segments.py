"""Reductions of the rows of an array by segment: all rows with the same id become one row.

`segment_ids`, integers of shape data.shape[:k] (usually one for each row), need not be sorted. Ids
are 0 .. num_segments - 1: others, negative ones too, raise InvalidArgumentError when the op runs.
"""

from __future__ import annotations

import math

import numpy as np

from weft.frontend.ops.arguments import check_int, is_concrete
from weft.frontend.ops.arithmetic import divide, less, maximum, where
from weft.frontend.ops.creation import full, ones, zeros
from weft.frontend.ops.dispatch import apply
from weft.frontend.ops.dtype_info import iinfo
from weft.frontend.ops.index import as_indices
from weft.frontend.ops.precision import widened
from weft.frontend.ops.promotion import TensorLike, cast, inexact_tensor, strong_tensor
from weft.frontend.ops.shape import expand_dims, reshape
from weft.frontend.tensor import Tensor
from weft.ir.dims import format_shape
from weft.ir.dtypes import DType, int64
from weft.ir.errors import InvalidArgumentError, ShapeError
from weft.ir.locations import caller_location
from weft.ir.type_rules import fits


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
    return _extremum("segment_max", "scatter_nd_max", data, segment_ids, num_segments)


def segment_min(data: TensorLike, segment_ids: TensorLike, num_segments: int) -> Tensor:
    """out[i] is the least of the rows data[j] with segment_ids[j] == i, element by element.

    Where there are none: inf, of integers their largest value (JAX, TF). Real numbers; NaN wins.
    """
    return _extremum("segment_min", "scatter_nd_min", data, segment_ids, num_segments)


def _extremum(
    op: str, scatter: str, data: TensorLike, segment_ids: TensorLike, num_segments: int
) -> Tensor:
    t, rows, count = _segments(op, strong_tensor(data), segment_ids, num_segments)
    nothing = _nothing(t.dtype, op == "segment_max")
    base = full((count, *t.shape[rows.ndim - 1 :]), nothing, dtype=t.dtype)
    return apply(scatter, base, rows, t)


def _nothing(dtype: DType, is_max: bool) -> float:
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
