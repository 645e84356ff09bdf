"""Gathers and scatters by integer indices.

Negative indices count from the end, as in NumPy. One that is out of bounds raises
InvalidArgumentError that names the index, the axis and its size; nothing is clipped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from weft.ir.dims import Dim, Shape
from weft.ir.dtypes import int64
from weft.ir.errors import InvalidArgumentError, ShapeError, TypeRuleError
from weft.ir.graph import Block
from weft.ir.spec import Array, Attrs, AttrSpec, InferRule, OpSpec, Reference, tensors
from weft.ir.type_rules import (
    ANY,
    NUMERIC,
    REAL,
    DTypeClass,
    check_same_dtype,
    check_shape,
    checked_axis,
    int_attr,
    require_dtype,
)
from weft.ir.types import TensorType, Type


def wrap_indices(indices: Array, axis: int, size: int) -> Array:
    """`indices` (any integer dtype) as int64 in 0 .. size-1.

    Raises InvalidArgumentError for the first, in row-major order, that is out of bounds.
    """
    # uint64 is compared before the cast: 2**64-1 is no -1
    bad = indices >= size
    if indices.dtype.kind == "i":
        bad = bad | (indices.astype(np.int64) < -size)
    if bad.any():
        first = np.asarray(indices)[bad][0]
        raise InvalidArgumentError(
            f"index {int(first)} is out of bounds for axis {axis} of size {size}"
        )
    out = indices.astype(np.int64)
    return np.asarray(np.where(out < 0, out + size, out))


def _check_integer(op: str, indices: TensorType) -> None:
    if not indices.dtype.is_integer:
        raise TypeRuleError(
            f"op '{op}': the indices must be integers, got {indices}",
            hint="convert them with wf.astype(x, wf.int64)",
        )


def _take_shape(op: str, x: TensorType, indices: TensorType, attrs: Attrs) -> Shape:
    _check_integer(op, indices)
    axis = checked_axis(op, attrs, x.rank)
    return (*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :])


def _take_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    x, indices = tensors("take", types)
    return [TensorType(x.dtype, _take_shape("take", x, indices, attrs))]


def _take(arrays: Sequence[Array], attrs: Attrs) -> Array:
    x, indices = arrays
    axis = int_attr(attrs, "axis")
    index = wrap_indices(indices, axis, x.shape[axis])
    flat = np.take(x, index.ravel(), axis=axis)
    return flat.reshape(x.shape[:axis] + indices.shape + x.shape[axis + 1 :])


def _index_add_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    x, indices, updates = tensors("index_add", types)
    check_same_dtype("index_add", (x, updates))
    require_dtype("index_add", x, NUMERIC)
    wanted = _take_shape("index_add", x, indices, attrs)
    check_shape("index_add", "the updates", updates.shape, wanted)
    return [x]


def _index_add(arrays: Sequence[Array], attrs: Attrs) -> Array:
    x, indices, updates = arrays
    axis = int_attr(attrs, "axis")
    index = wrap_indices(indices, axis, x.shape[axis]).ravel()
    rows = np.moveaxis(x, axis, 0)
    lead, rest = x.shape[:axis], x.shape[axis + 1 :]
    given = np.moveaxis(updates.reshape(*lead, index.size, *rest), axis, 0)
    return np.moveaxis(_accumulate(np.add, rows, index, given), 0, axis)


def _accumulate(combine: np.ufunc, rows: Array, index: Array, updates: Array) -> Array:
    """`rows` with updates[i] combined into rows[index[i]], for i in order."""
    out = np.array(rows, order="C", copy=True)
    combine.at(out, index, updates)
    return out


def _along_axis_type(op: str, x: TensorType, index: TensorType, attrs: Attrs) -> Shape:
    _check_integer(op, index)
    axis = checked_axis(op, attrs, x.rank)
    wanted: list[Dim] = list(x.shape)
    if index.rank == x.rank:
        wanted[axis] = index.shape[axis]
    check_shape(op, "the index array", index.shape, tuple(wanted))
    return index.shape


def _take_along_axis_type(
    types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]
) -> list[Type]:
    x, index = tensors("take_along_axis", types)
    return [TensorType(x.dtype, _along_axis_type("take_along_axis", x, index, attrs))]


def _take_along_axis(arrays: Sequence[Array], attrs: Attrs) -> Array:
    x, indices = arrays
    axis = int_attr(attrs, "axis")
    return np.take_along_axis(x, wrap_indices(indices, axis, x.shape[axis]), axis)


def _scatter_along_axis_add_type(
    types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]
) -> list[Type]:
    op = "scatter_along_axis_add"
    x, index, updates = tensors(op, types)
    check_same_dtype(op, (x, updates))
    require_dtype(op, x, NUMERIC)
    check_shape(op, "the updates", updates.shape, _along_axis_type(op, x, index, attrs))
    return [x]


def _scatter_along_axis_add(arrays: Sequence[Array], attrs: Attrs) -> Array:
    x, indices, updates = arrays
    axis = int_attr(attrs, "axis")
    grid: list[Array] = list(np.indices(indices.shape, sparse=True))
    grid[axis] = wrap_indices(indices, axis, x.shape[axis])
    flat = np.zeros(indices.shape, np.int64)
    for size, place in zip(x.shape, grid, strict=True):
        flat = flat * size + place
    return _accumulate(np.add, x.ravel(), flat.ravel(), updates.ravel()).reshape(x.shape)


def _nd_shape(op: str, x: TensorType, indices: TensorType) -> Shape:
    """The shape of gather_nd's result: one part of x for each row of `indices`."""
    _check_integer(op, indices)
    depth = indices.shape[-1] if indices.rank else None
    if not isinstance(depth, int) or depth > x.rank:
        raise ShapeError(
            f"op '{op}': the last dimension of the indices {indices} must be a known size, "
            f"at most the rank of {x}"
        )
    return (*indices.shape[:-1], *x.shape[depth:])


def _flat_rows(x: Array, indices: Array) -> tuple[Array, Array]:
    """`x` with the indexed leading axes merged into one, and the row number for each index."""
    depth = indices.shape[-1]
    number = np.zeros(indices.shape[:-1], np.int64)
    for axis in range(depth):
        number = number * x.shape[axis] + wrap_indices(indices[..., axis], axis, x.shape[axis])
    count = int(np.prod(x.shape[:depth], dtype=np.int64))
    return x.reshape(count, *x.shape[depth:]), number.ravel()


def _gather_nd_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    x, indices = tensors("gather_nd", types)
    return [TensorType(x.dtype, _nd_shape("gather_nd", x, indices))]


def _gather_nd(arrays: Sequence[Array], attrs: Attrs) -> Array:
    x, indices = arrays
    rows, number = _flat_rows(x, indices)
    return np.take(rows, number, axis=0).reshape(indices.shape[:-1] + rows.shape[1:])


def _scatter_nd_type(op: str, allowed: DTypeClass) -> InferRule:
    def rule(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
        x, indices, updates = tensors(op, types)
        check_same_dtype(op, (x, updates))
        require_dtype(op, x, allowed)
        check_shape(op, "the updates", updates.shape, _nd_shape(op, x, indices))
        return [x]

    return rule


def _scatter_nd(combine: np.ufunc | None) -> Reference:
    """combine None: the update replaces the element; the last one in row-major order stays."""

    def reference(arrays: Sequence[Array], attrs: Attrs) -> Array:
        x, indices, updates = arrays
        rows, number = _flat_rows(x, indices)
        given = updates.reshape(number.size, *rows.shape[1:])
        if combine is not None:
            return _accumulate(combine, rows, number, given).reshape(x.shape)
        out = rows.copy()
        # NumPy promises no order for duplicates: keep the last of each
        rows_hit, from_end = np.unique(number[::-1], return_index=True)
        out[rows_hit] = given[number.size - 1 - from_end]
        return out.reshape(x.shape)

    return reference


def _first_occurrence_type(
    types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]
) -> list[Type]:
    (indices,) = tensors("first_occurrence", types)
    _check_integer("first_occurrence", indices)
    if indices.rank != 1:
        raise ShapeError(f"op 'first_occurrence' takes indices of rank 1, got {indices}")
    return [TensorType(int64, indices.shape)]


def _first_occurrence(arrays: Sequence[Array], attrs: Attrs) -> Array:
    index = wrap_indices(arrays[0], 0, int_attr(attrs, "size"))
    _, first, which = np.unique(index, return_index=True, return_inverse=True)
    return np.asarray(first[which], np.int64)


_AXIS = {"axis": AttrSpec("int")}
_ALONG_AXIS_ADD = "Operand 0 with updates[.., i, ..] added at idx[.., i, ..] along the axis."

#: Updates of elements at indices, and the op by which one meets what is there; None: replaces it.
COMBINES: Mapping[str, str | None] = {
    "index_add": "add",
    "scatter_along_axis_add": "add",
    "scatter_nd_add": "add",
    "scatter_nd_min": "minimum",
    "scatter_nd_max": "maximum",
    "scatter_nd_update": None,
}

TABLE: tuple[OpSpec, ...] = (
    OpSpec("take", 2, _take_type, _take, "The parts of operand 0 at the indices.", _AXIS),
    OpSpec(
        "index_add",
        3,
        _index_add_type,
        _index_add,
        "Operand 0 plus the updates at the indices of an axis; duplicates add (adjoint of take).",
        _AXIS,
    ),
    OpSpec(
        "first_occurrence",
        1,
        _first_occurrence_type,
        _first_occurrence,
        "For each index into an axis of that size, where the same index occurs first.",
        {"size": AttrSpec("int")},
    ),
    OpSpec(
        "take_along_axis",
        2,
        _take_along_axis_type,
        _take_along_axis,
        "Elements at the indices of an axis, all other coordinates being those of the index.",
        _AXIS,
    ),
    OpSpec(
        "scatter_along_axis_add",
        3,
        _scatter_along_axis_add_type,
        _scatter_along_axis_add,
        _ALONG_AXIS_ADD + " Duplicates add (adjoint of take_along_axis).",
        _AXIS,
    ),
    OpSpec(
        "gather_nd",
        2,
        _gather_nd_type,
        _gather_nd,
        "For each row of indices[..., k] the part x[i0, ..., ik-1].",
    ),
    OpSpec(
        "scatter_nd_add",
        3,
        _scatter_nd_type("scatter_nd_add", NUMERIC),
        _scatter_nd(np.add),
        "Operand 0 plus the updates at x[i0, ..., ik-1]; duplicates add.",
    ),
    OpSpec(
        "scatter_nd_update",
        3,
        _scatter_nd_type("scatter_nd_update", ANY),
        _scatter_nd(None),
        "Operand 0 with x[i0, ..., ik-1] replaced; of duplicates the last (row-major) stays.",
    ),
    OpSpec(
        "scatter_nd_min",
        3,
        _scatter_nd_type("scatter_nd_min", REAL),
        _scatter_nd(np.minimum),
        "Operand 0 with x[i0, ..., ik-1] lowered to the updates; NaN wins.",
    ),
    OpSpec(
        "scatter_nd_max",
        3,
        _scatter_nd_type("scatter_nd_max", REAL),
        _scatter_nd(np.maximum),
        "Operand 0 with x[i0, ..., ik-1] raised to the updates; NaN wins.",
    ),
)

#: All of them look at their indices, and end the step where one is out of bounds.
CHECKED = frozenset(spec.name for spec in TABLE)
