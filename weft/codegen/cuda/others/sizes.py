"""Sizes of tensors, as the kernels of ops that are no loop nests see them."""

from __future__ import annotations

import math

from weft.codegen.cuda.scalars.memory import DTYPES
from weft.ir.errors import UnsupportedError
from weft.ir.graph import Operation, Value
from weft.ir.type_rules import int_attr
from weft.ir.types import TensorType


def tensor(value: Value) -> TensorType:
    """The type of a value that is known to be a tensor."""
    assert isinstance(value.type, TensorType)
    return value.type


def shape_of(value: Value) -> tuple[int, ...]:
    """Its sizes."""
    return tensor(value).static_shape


def dtype_of(value: Value) -> str:
    """Its dtype, by its short name."""
    return tensor(value).dtype.short


def count_of(value: Value) -> int:
    """How many elements it has."""
    return math.prod(shape_of(value))


def axis_sizes(op: Operation) -> tuple[int, int, int]:
    """(outer, n, inner): the sizes of the first operand before, along and after the op's axis."""
    shape, axis = shape_of(op.operands[0]), int_attr(op.attrs, "axis")
    return math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])


def computed_dtype(op: Operation, value: Value) -> str:
    """The dtype of a value that a kernel computes with. UnsupportedError for complex numbers."""
    dtype = dtype_of(value)
    if dtype not in DTYPES:
        raise UnsupportedError(
            f"op '{op.name}' on {tensor(value).dtype.name} has no GPU kernel",
            location=op.locations,
        )
    return dtype
