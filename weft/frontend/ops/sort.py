"""Sorting along an axis and searching in sorted data.

The order is total: false < true, NaN is the largest number. Equal elements keep their order in both
directions. Real numbers and bools. Errors, at the caller's line: InvalidArgumentError for an axis
out of range, TypeRuleError for complex numbers and strings.
"""

from __future__ import annotations

from typing import NamedTuple

from weft.frontend.core.tensor import Tensor
from weft.frontend.eager.native import runs_native
from weft.frontend.eager.numpy_calls import quick_argsort, quick_sort
from weft.frontend.ops.arguments import check_axis, check_int
from weft.frontend.ops.dispatch import apply
from weft.frontend.ops.manipulation import cut
from weft.frontend.ops.promotion import TensorLike, promote_tensors, strong_tensor
from weft.ir.dims import format_shape
from weft.ir.errors import InvalidArgumentError
from weft.ir.locations import caller_location


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
