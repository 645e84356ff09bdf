"""Conversions of narrow integers that matrix products do themselves, where they pack them."""

from __future__ import annotations

from weft.ir.dtypes import int8, int16, int32, uint8, uint32
from weft.ir.graph import Operation
from weft.ir.types import TensorType

#: What a product may read, and what it then adds up in: 16 signed bits hold the former.
NARROW, WIDE = (int8, uint8, int16), (int32, uint32)


def is_widening(op: Operation | None) -> bool:
    """Whether an op converts narrow integers to those of 32 bits."""
    if op is None or op.name != "astype":
        return False
    given, made = op.operands[0].type, op.result.type
    held = isinstance(given, TensorType) and given.dtype in NARROW
    return held and isinstance(made, TensorType) and made.dtype in WIDE


def is_narrow_product(op: Operation) -> bool:
    """Whether an op is a product of two widened operands."""
    return op.name == "matmul" and all(is_widening(v.op) for v in op.operands)
