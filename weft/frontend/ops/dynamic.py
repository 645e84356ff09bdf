"""Ops whose result's shape depends on values: they run eagerly, on concrete tensors only.

A compiled function has one shape for each result, so in a trace these raise TracerError and name
what to use there.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from weft.frontend.ops.arguments import check_axis, is_concrete
from weft.frontend.ops.promotion import TensorLike, strong_tensor
from weft.frontend.tensor import Tensor, as_tensor
from weft.frontend.tracing.trace import current_trace
from weft.ir.dims import format_shape
from weft.ir.errors import InvalidArgumentError, TracerError
from weft.ir.source import caller_location

_WHERE = "wf.where(condition, x, y) keeps the shape; or compute this outside and pass it in"


class UniqueAll(NamedTuple):
    """What `unique_all` gives; the array API's field names."""

    values: Tensor
    indices: Tensor
    inverse_indices: Tensor
    counts: Tensor


class UniqueCounts(NamedTuple):
    """What `unique_counts` gives; the array API's field names."""

    values: Tensor
    counts: Tensor


class UniqueInverse(NamedTuple):
    """What `unique_inverse` gives; the array API's field names."""

    values: Tensor
    inverse_indices: Tensor


def _value(op: str, x: TensorLike) -> np.ndarray[Any, Any]:
    t = strong_tensor(x) if current_trace() is None else as_tensor(x)
    if not is_concrete(t):
        raise TracerError(
            f"wf.{op}: the shape of the result depends on the values of {t.describe()}, which are "
            "not known during a trace",
            hint=_WHERE,
            location=caller_location(),
        )
    return t.numpy()


def nonzero(x: TensorLike, /) -> tuple[Tensor, ...]:
    """The indices of the elements that are not 0, one int64 vector for each axis, in row-major
    order.
    """
    array = _value("nonzero", x)
    if not array.ndim:
        raise InvalidArgumentError(
            "wf.nonzero needs a tensor with at least one axis", location=caller_location()
        )
    return tuple(as_tensor(i.astype(np.int64)) for i in np.nonzero(array))


def argwhere(x: TensorLike, /) -> Tensor:
    """The indices of the elements that are not 0 as rows -> int64[count, rank], in row-major
    order.
    """
    array = _value("argwhere", x)
    return as_tensor(np.argwhere(array).astype(np.int64))


def boolean_mask(x: TensorLike, mask: TensorLike, axis: int = 0) -> Tensor:
    """The parts of x for which the mask, over its axes from `axis` on, is true (TF1's
    boolean_mask).
    """
    array, chosen = _value("boolean_mask", x), _value("boolean_mask", mask)
    along = check_axis("boolean_mask", axis, array.ndim)
    covered = array.shape[along : along + chosen.ndim]
    if chosen.dtype != np.bool_ or not chosen.ndim or covered != chosen.shape:
        raise InvalidArgumentError(
            f"wf.boolean_mask: a mask of dtype {chosen.dtype} and shape "
            f"{format_shape(chosen.shape)} does not fit axis {along} of a tensor of shape "
            f"{format_shape(array.shape)}",
            location=caller_location(),
        )
    return as_tensor(array[(slice(None),) * along + (chosen,)])


def _unique(op: str, x: TensorLike) -> tuple[np.ndarray[Any, Any], ...]:
    """Values, first indices, inverse and counts. The array API keeps every NaN as a value."""
    array = _value(op, x)
    values, indices, inverse, counts = np.unique(
        array, return_index=True, return_inverse=True, return_counts=True, equal_nan=False
    )
    return values, indices, inverse.reshape(array.shape), counts


def unique_values(x: TensorLike, /) -> Tensor:
    """The distinct elements of x, ascending; each NaN counts as distinct."""
    return as_tensor(_unique("unique_values", x)[0])


def unique_counts(x: TensorLike, /) -> UniqueCounts:
    """The distinct elements of x, ascending, and how often each occurs (int64)."""
    values, _, _, counts = _unique("unique_counts", x)
    return UniqueCounts(as_tensor(values), as_tensor(counts.astype(np.int64)))


def unique_inverse(x: TensorLike, /) -> UniqueInverse:
    """The distinct elements of x, ascending, and for each element its place among them (int64)."""
    values, _, inverse, _ = _unique("unique_inverse", x)
    return UniqueInverse(as_tensor(values), as_tensor(inverse.astype(np.int64)))


def unique_all(x: TensorLike, /) -> UniqueAll:
    """The distinct elements of x, where each occurs first, the place of each element, and
    counts.
    """
    values, indices, inverse, counts = _unique("unique_all", x)
    return UniqueAll(
        as_tensor(values),
        as_tensor(indices.astype(np.int64)),
        as_tensor(inverse.astype(np.int64)),
        as_tensor(counts.astype(np.int64)),
    )
