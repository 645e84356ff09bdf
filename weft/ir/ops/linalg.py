"""Linear algebra: matmul."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from weft.ir.attributes import Attrs, AttrSpec
from weft.ir.dims import broadcast_shapes, same
from weft.ir.dtype_classes import NUMERIC, require_dtype, widen
from weft.ir.errors import ShapeError
from weft.ir.graph import Block
from weft.ir.rules import check_same_dtype
from weft.ir.spec import Array, OpSpec, tensors
from weft.ir.types import TensorType, Type


def _matmul_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    a, b = tensors("matmul", types)
    check_same_dtype("matmul", (a, b))
    require_dtype("matmul", a, NUMERIC)
    if a.rank < 2 or b.rank < 2:
        raise ShapeError(
            f"op 'matmul' needs operands of rank 2 or more, got {a} and {b}",
            hint="the frontend gives vectors a second axis",
        )
    m, k = a.shape[-2:][:: -1 if attrs["transpose_a"] else 1]
    k2, n = b.shape[-2:][:: -1 if attrs["transpose_b"] else 1]
    if not same(k, k2):
        marks = ["^T" if attrs[f"transpose_{x}"] else "" for x in "ab"]
        raise ShapeError(
            f"op 'matmul': {a}{marks[0]} and {b}{marks[1]} do not fit: {k} columns, {k2} rows"
        )
    try:
        batch = broadcast_shapes(a.shape[:-2], b.shape[:-2])
    except ShapeError as error:
        raise ShapeError(
            f"op 'matmul': the batch dimensions of {a} and {b} do not broadcast", hint=error.hint
        ) from None
    return [TensorType(a.dtype, (*batch, m, n))]


def _matmul(arrays: Sequence[Array], attrs: Attrs) -> Array:
    a, b = map(widen, arrays)
    if attrs["transpose_a"]:
        a = a.swapaxes(-1, -2)
    if attrs["transpose_b"]:
        b = b.swapaxes(-1, -2)
    return np.asarray(np.matmul(a, b)).astype(arrays[0].dtype, copy=False)


TABLE: tuple[OpSpec, ...] = (
    OpSpec(
        "matmul",
        2,
        _matmul_type,
        _matmul,
        "Matrix product of the last two axes, either operand transposed first if asked; leading "
        "axes broadcast. Integers wrap; 16-bit floats accumulate in float32.",
        {"transpose_a": AttrSpec("bool", False), "transpose_b": AttrSpec("bool", False)},
    ),
)
