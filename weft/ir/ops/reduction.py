"""Ops along axes: reductions, positions of extrema, running reductions, sorting and searching.

The result of a reduction keeps the operand's dtype: integers wrap around, float16 and bfloat16
accumulate in float32 and are rounded once per result. max and min give NaN if a NaN takes part;
argmax and argmin give the first NaN. Axes are normalised: 0 <= axis < rank, increasing. No axes:
nothing changes.

The order of sorts is total: false < true, and NaN is the largest number, so it comes last in
ascending and first in descending order. Equal elements (also 0.0 and -0.0, and NaNs) keep their
order in both directions, as the array API asks of a stable sort."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from weft.ir import dtypes
from weft.ir.dims import Shape, product
from weft.ir.errors import ShapeError, TypeRuleError
from weft.ir.graph import Block
from weft.ir.spec import (
    BOOL,
    FLOATING,
    NUMERIC,
    ORDERED,
    REAL,
    Array,
    Attrs,
    AttrSpec,
    DTypeClass,
    InferRule,
    OpSpec,
    Reference,
    check_same_dtype,
    checked_axis,
    int_attr,
    ints_attr,
    one_tensor,
    quietly,
    require_dtype,
    tensors,
    widen,
)
from weft.ir.types import TensorType, Type

#: Reductions over axes, and the op that folds two elements.
FOLDS = {
    "sum": "add",
    "prod": "multiply",
    "max": "maximum",
    "min": "minimum",
    "all": "logical_and",
    "any": "logical_or",
}
_AXES = {"axes": AttrSpec("ints"), "keepdims": AttrSpec("bool", False)}
_AXIS = {"axis": AttrSpec("int"), "keepdims": AttrSpec("bool", False)}
_SCAN = {"axis": AttrSpec("int"), "reverse": AttrSpec("bool", False)}


def _checked_axes(op: str, given: TensorType, axes: tuple[int, ...]) -> tuple[int, ...]:
    in_range = all(0 <= axis < given.rank for axis in axes)
    if not in_range or sorted(set(axes)) != list(axes):
        raise ShapeError(
            f"op '{op}': axes {list(axes)} do not fit a {given}",
            hint="axes are distinct, in increasing order and 0 to rank-1 in the IR",
        )
    return axes


def _reduced(shape: Shape, axes: tuple[int, ...], keepdims: object) -> Shape:
    if keepdims:
        return tuple(1 if i in axes else d for i, d in enumerate(shape))
    return tuple(d for i, d in enumerate(shape) if i not in axes)


def _require_elements(op: str, given: TensorType, axes: tuple[int, ...]) -> None:
    # nothing to choose from, unless there are no results to choose for either
    kept = product(_reduced(given.shape, axes, False))
    if product(given.shape[i] for i in axes) == 0 and kept != 0:
        raise ShapeError(
            f"op '{op}' has no value over no elements: axes {list(axes)} of a {given}",
            hint="make sure that the reduced axes are not empty",
        )


def reduction(name: str, allowed: DTypeClass, function: Callable[..., Any], doc: str) -> OpSpec:
    """The row of a reduction over `axes`; `function` is NumPy's, with `axis` and `keepdims`."""

    def infer(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
        given = one_tensor(name, types, allowed)
        axes = _checked_axes(name, given, ints_attr(attrs, "axes"))
        if name in ("max", "min"):
            _require_elements(name, given, axes)
        return [TensorType(given.dtype, _reduced(given.shape, axes, attrs["keepdims"]))]

    def reference(arrays: Sequence[Array], attrs: Attrs) -> Array:
        (x,) = arrays
        axes, wide = ints_attr(attrs, "axes"), widen(x)
        out = quietly(function, wide, axis=axes, keepdims=attrs["keepdims"])
        # NumPy sums small integers in 64 bits: the same modulo 2**bits
        return quietly(np.asarray(out).astype, x.dtype, copy=False)

    return OpSpec(name, 1, infer, reference, doc, _AXES, frozenset({"reduction"}))


def _position_rule(name: str) -> InferRule:
    def infer(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
        given = one_tensor(name, types, ORDERED)
        axes = (checked_axis(name, attrs, given.rank),)
        _require_elements(name, given, axes)
        return [TensorType(dtypes.int64, _reduced(given.shape, axes, attrs["keepdims"]))]

    return infer


def position(name: str, function: Callable[..., Any], doc: str) -> OpSpec:
    """The row of argmax or argmin along `axis`."""

    def reference(arrays: Sequence[Array], attrs: Attrs) -> Array:
        axis, keepdims = int_attr(attrs, "axis"), attrs["keepdims"]
        return np.asarray(function(widen(arrays[0]), axis=axis, keepdims=keepdims), dtype=np.int64)

    return OpSpec(name, 1, _position_rule(name), reference, doc, _AXIS)


def _running(ufunc: np.ufunc) -> Reference:
    def reference(arrays: Sequence[Array], attrs: Attrs) -> Array:
        (x,) = arrays
        axis, wide = int_attr(attrs, "axis"), widen(x)
        if attrs["reverse"]:
            wide = np.flip(wide, axis)
        with np.errstate(all="ignore"):
            out: Array = ufunc.accumulate(wide, axis=axis, dtype=wide.dtype)
            out = np.flip(out, axis) if attrs["reverse"] else out
            return out.astype(x.dtype, order="C", copy=False)

    return reference


def cumulative(name: str, allowed: DTypeClass, ufunc: np.ufunc, doc: str) -> OpSpec:
    """The row of a running reduction along `axis`, from the end if `reverse`."""

    def infer(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
        given = one_tensor(name, types, allowed)
        checked_axis(name, attrs, given.rank)
        return [given]

    return OpSpec(name, 1, infer, _running(ufunc), doc, _SCAN)


REDUCTION_TABLE: tuple[OpSpec, ...] = (
    reduction("sum", NUMERIC, np.sum, "Sum of the elements over `axes`; 0 over none."),
    reduction("prod", NUMERIC, np.prod, "Product of the elements over `axes`; 1 over none."),
    reduction("max", REAL, np.max, "Largest element over `axes`; NaN if one is."),
    reduction("min", REAL, np.min, "Smallest element over `axes`; NaN if one is."),
    reduction("all", BOOL, np.all, "Whether all elements over `axes` are true; true over none."),
    reduction("any", BOOL, np.any, "Whether an element over `axes` is true; false over none."),
    position("argmax", np.argmax, "Index along `axis` of the first largest element or NaN."),
    position("argmin", np.argmin, "Index along `axis` of the first smallest element or NaN."),
    cumulative("cumulative_sum", NUMERIC, np.add, "Sum of the elements up to and with each one."),
    cumulative("cumulative_prod", NUMERIC, np.multiply, "Product of the elements up to each one."),
    cumulative("cumulative_max", REAL, np.maximum, "Largest element up to each one; NaN from one."),
    cumulative(
        "cumulative_min", REAL, np.minimum, "Smallest element up to each one; NaN from one."
    ),
    cumulative(
        "cumulative_logsumexp", FLOATING, np.logaddexp, "log(sum(exp(x))) up to and with each one."
    ),
)


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


SORT_TABLE: tuple[OpSpec, ...] = (
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
