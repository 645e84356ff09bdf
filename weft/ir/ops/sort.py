"""Sorting along an axis and searching in sorted data.

The order is total: false < true, and NaN is the largest number, so it comes last in ascending and
first in descending order. Equal elements (also 0.0 and -0.0, and NaNs) keep their order in both
directions, as the array API asks of a stable sort.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from weft.ir import dtypes
from weft.ir.attributes import Attrs, AttrSpec
from weft.ir.dtype_classes import ORDERED, one_tensor, require_dtype, widen
from weft.ir.errors import ShapeError, TypeRuleError
from weft.ir.graph import Block
from weft.ir.rules import check_same_dtype, checked_axis, int_attr
from weft.ir.spec import Array, OpSpec, tensors
from weft.ir.types import TensorType, Type

_SORT = {"axis": AttrSpec("int"), "descending": AttrSpec("bool", False)}


def _sort_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    given = one_tensor("sort", types, ORDERED)
    checked_axis("sort", attrs, given.rank)
    return [given]


def _argsort_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    given = one_tensor("argsort", types, ORDERED)
    checked_axis("argsort", attrs, given.rank)
    return [TensorType(dtypes.int64, given.shape)]


def _order(x: Array, attrs: Attrs) -> Array:
    axis = int_attr(attrs, "axis")
    if not attrs["descending"]:
        return np.argsort(widen(x), axis=axis, kind="stable").astype(np.int64, copy=False)
    # the reverse of an ascending order of the reversed data keeps equal elements in their order
    back = np.flip(np.argsort(np.flip(widen(x), axis), axis=axis, kind="stable"), axis)
    return np.ascontiguousarray(x.shape[axis] - 1 - back).astype(np.int64, copy=False)


def _sort(arrays: Sequence[Array], attrs: Attrs) -> Array:
    (x,) = arrays
    return np.take_along_axis(x, _order(x, attrs), int_attr(attrs, "axis"))


def _searchsorted_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    data, values = operands = tensors("searchsorted", types)
    for operand in operands:
        require_dtype("searchsorted", operand, ORDERED)
    check_same_dtype("searchsorted", operands)
    if data.rank != 1:
        raise ShapeError(f"op 'searchsorted' searches in data of rank 1, got {data}")
    if attrs["side"] not in ("left", "right"):
        raise TypeRuleError(
            f"op 'searchsorted': side {attrs['side']!r} is unknown", hint="it is 'left' or 'right'"
        )
    return [TensorType(dtypes.int64, values.shape)]


def _searchsorted(arrays: Sequence[Array], attrs: Attrs) -> Array:
    data, values = map(widen, arrays)
    side = "left" if attrs["side"] == "left" else "right"
    return np.asarray(np.searchsorted(data, values, side=side), dtype=np.int64)  # type: ignore[call-overload]


TABLE: tuple[OpSpec, ...] = (
    OpSpec("sort", 1, _sort_type, _sort, "The elements in order along `axis`; stable.", _SORT),
    OpSpec(
        "argsort",
        1,
        _argsort_type,
        lambda arrays, attrs: _order(arrays[0], attrs),
        "The indices along `axis` that put the elements in order; stable.",
        _SORT,
    ),
    OpSpec(
        "searchsorted",
        2,
        _searchsorted_type,
        _searchsorted,
        "Where to insert each value into ascending data: before equal elements (left) or after.",
        {"side": AttrSpec("str", "left")},
    ),
)
