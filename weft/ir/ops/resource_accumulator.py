"""Accumulators in a graph: gradients of several workers, taken when enough are there (the paper,
section 4.4; TensorFlow's ConditionalAccumulator and SparseConditionalAccumulator)."""

from __future__ import annotations

from collections.abc import Sequence

from weft.ir.attributes import Attrs, AttrSpec
from weft.ir.dims import SymbolicDim
from weft.ir.dtypes import int32, int64
from weft.ir.errors import ShapeError, TypeRuleError
from weft.ir.graph import Block
from weft.ir.ops.dynamic import fill_sizes, size_names
from weft.ir.ops.resource import (
    HOST,
    NAMES,
    SIZES,
    check_operand,
    declared_parts,
    given_tensors,
    nothing_more,
    parts_of,
)
from weft.ir.spec import OpSpec, tensors
from weft.ir.types import TOKEN, HandleType, TensorType, Type

_KINDS = ("accumulator", "sparse_accumulator")
_STEP = TensorType(int64)


def _declared(op: str, attrs: Attrs) -> TensorType:
    (part,) = declared_parts(op, attrs, 1)
    if not part.dtype.is_inexact:
        raise TypeRuleError(f"op '{op}': gradients are floats or complex, got {part}")
    if attrs["reduction"] not in ("MEAN", "SUM"):
        raise TypeRuleError(f'op \'{op}\': reduction is "MEAN" or "SUM"')
    return part


def _dense_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    part = _declared("accumulator", attrs)
    return [HandleType("accumulator", (part,))]


def _sparse_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    part = _declared("sparse_accumulator", attrs)
    if not part.rank:
        raise ShapeError(f"op 'sparse_accumulator': an array without axes has no rows, got {part}")
    return [HandleType("sparse_accumulator", (part,))]


def _apply_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    op = "accumulator_apply_gradient"
    (part,) = parts_of(op, types, "accumulator")
    step, gradient = given_tensors(op, types, "local_step", "gradient")
    check_operand(op, "local_step", step, _STEP)
    check_operand(op, "gradient", gradient, part)
    return [TOKEN]


def _apply_rows_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    op = "sparse_accumulator_apply_gradient"
    (part,) = parts_of(op, types, "sparse_accumulator")
    step, indices, values = given_tensors(op, types, "local_step", "indices", "values")
    check_operand(op, "local_step", step, _STEP)
    if indices.rank != 1:
        raise ShapeError(f"op '{op}': indices have one axis, got {indices}")
    check_operand(op, "indices", indices, TensorType(int64, indices.shape))
    rows = TensorType(part.dtype, (indices.shape[0], *part.shape[1:]))
    check_operand(op, "values", values, rows)
    return [TOKEN]


def _take_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    op = "accumulator_take_gradient"
    (part,) = parts_of(op, types, "accumulator")
    (required,) = given_tensors(op, types, "num_required")
    check_operand(op, "num_required", required, _STEP)
    return fill_sizes(op, [part], attrs)


def _take_rows_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    op = "sparse_accumulator_take_gradient"
    (part,) = parts_of(op, types, "sparse_accumulator")
    (required,) = given_tensors(op, types, "num_required")
    check_operand(op, "num_required", required, _STEP)
    names = size_names(attrs)  # the number of rows, then the sizes of a row that are not known
    n = SymbolicDim.symbol(names[0]) if names else None
    rows = fill_sizes(op, [TensorType(part.dtype, part.shape[1:])], {"sizes": names[1:]})
    (row,) = tensors(op, rows)
    return [TensorType(int64, (n,)), TensorType(part.dtype, (n, *row.shape))]


def _set_step_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    op = "accumulator_set_global_step"
    parts_of(op, types, *_KINDS)
    (step,) = given_tensors(op, types, "new_global_step")
    check_operand(op, "new_global_step", step, _STEP)
    return [TOKEN]


def _number_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    nothing_more("accumulator_num_accumulated", types, *_KINDS)
    return [TensorType(int32)]


_ATTRS = {
    "name": AttrSpec("str"),
    "parts": AttrSpec("strs"),
    "reduction": AttrSpec("str", "MEAN"),
}

TABLE = (
    OpSpec(
        "accumulator", 0, _dense_type, None,
        "A handle to the accumulator called `name`, which steps share; parts: of its gradients.",
        _ATTRS, NAMES,
    ),
    OpSpec(
        "sparse_accumulator", 0, _sparse_type, None,
        "A handle to an accumulator of rows; parts: of the whole array.", _ATTRS, NAMES,
    ),
    OpSpec(
        "accumulator_apply_gradient", 3, _apply_type, None,
        "Add a gradient, unless local_step is before the global step.", traits=HOST,
    ),
    OpSpec(
        "sparse_accumulator_apply_gradient", 4, _apply_rows_type, None,
        "Add rows at indices, unless local_step is before the global step.", traits=HOST,
    ),
    OpSpec(
        "accumulator_take_gradient", 2, _take_type, None,
        "Wait for so many gradients; the mean or sum of all that are there.", SIZES, HOST,
    ),
    OpSpec(
        "sparse_accumulator_take_gradient", 2, _take_rows_type, None,
        "Wait for so many gradients; the rows that are there: indices, ascending, and values.",
        SIZES, HOST,
    ),
    OpSpec(
        "accumulator_set_global_step", 2, _set_step_type, None,
        "Drop gradients of earlier steps from now on.", traits=HOST,
    ),
    OpSpec(
        "accumulator_num_accumulated", 1, _number_type, None,
        "How many gradients were added since the last take.", traits=HOST,
    ),
)  # fmt: skip
