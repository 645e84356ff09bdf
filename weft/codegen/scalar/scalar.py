"""One elementwise operation as LLVM: `emit_scalar`, over ints, floats and complex numbers.

Every (op, dtype) pair that `supported` accepts compiles; the meaning is NumPy 2's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llvmlite import ir

from weft.codegen.element_access import (
    constant,
    from_memory,
    load_element,
    store_element,
    to_memory,
)
from weft.codegen.elements import COMPLEXES, DTYPES, FLOATS, HALVES, I16, PART
from weft.codegen.emitter import Emitter
from weft.codegen.scalar import cast as scalar_cast
from weft.codegen.scalar.complex_numbers import COMPLEX_OPS, select
from weft.codegen.scalar.float_builder import FloatBuilder
from weft.codegen.scalar.floats import FLOAT_OPS, next_bits
from weft.codegen.scalar.integers import COMPARISONS, INT_TABLE

__all__ = [
    "Unsupported",
    "constant",
    "emit_scalar",
    "load_element",
    "result_dtype",
    "store_element",
    "supported",
]

PREDICATES = (
    *COMPARISONS,
    *("isnan", "isinf", "isfinite", "signbit"),
    *("logical_and", "logical_or", "logical_xor", "logical_not"),
)


class Unsupported(NotImplementedError):
    """weft has no native code for this operation at this dtype (and it has no meaning in NumPy)."""

    def __init__(self, op: str, dtype: str) -> None:
        super().__init__(f"no native code for {op} on {dtype}")
        self.op = op
        self.dtype = dtype


def supported(op: str, dtype: str, attrs: Mapping[str, Any] | None = None) -> bool:
    """Whether `emit_scalar` takes ``op`` at operand ``dtype``; casts need ``attrs["dtype"]``."""
    if dtype not in DTYPES:
        return False
    if op in ("astype", "bitcast"):
        target = (attrs or {}).get("dtype")
        if target not in DTYPES:
            return False
        return op == "astype" or scalar_cast.can_bitcast(dtype, target)
    if op == "where":
        return True
    if dtype in COMPLEXES:
        return op in COMPLEX_OPS
    return op in (FLOAT_OPS if dtype in FLOATS else INT_TABLE[dtype])


def result_dtype(op: str, dtype: str, attrs: Mapping[str, Any] | None = None) -> str:
    """dtype of the result of a supported ``op``."""
    if op in ("astype", "bitcast"):
        return str((attrs or {})["dtype"])
    if op in PREDICATES:
        return "bool"
    if op in ("abs", "real", "imag"):
        return PART.get(dtype, dtype)
    return dtype


def emit_scalar(
    e: Emitter, op: str, dtype: str, args: list[ir.Value], attrs: Mapping[str, Any]
) -> ir.Value:
    """LLVM of one elementwise operation; takes and gives register values.

    ``dtype`` is that of the operands (for ``where``, whose first operand is bool, of the other
    two); ``attrs["dtype"]`` is the target of astype and bitcast.  Raises Unsupported.
    """
    if not supported(op, dtype, attrs):
        raise Unsupported(op, dtype)
    if op == "astype":
        return scalar_cast.astype(e, dtype, attrs["dtype"], args[0])
    if op == "bitcast":
        return scalar_cast.bitcast(e, dtype, attrs["dtype"], args[0])
    if op == "where":
        return select(e, *args) if dtype in COMPLEXES else e.builder.select(*args)
    if dtype in COMPLEXES:
        return COMPLEX_OPS[op](e, dtype, args)
    if dtype in HALVES:
        return _half_op(e, op, dtype, args)
    if dtype in FLOATS:
        return FLOAT_OPS[op](e, dtype, args)
    return INT_TABLE[dtype][op](e, dtype, args)


def _half_op(e: Emitter, op: str, dtype: str, args: list[ir.Value]) -> ir.Value:
    if op != "nextafter":
        return FLOAT_OPS[op](e, "f32", args)
    # Neighbours are those of the 16-bit format.
    bits = [to_memory(e, value, dtype) for value in args]
    rounded = [from_memory(e, value, dtype) for value in bits]
    stepped = next_bits(FloatBuilder(e.builder, "f32"), bits[0], bits[1], rounded)
    assert stepped.type == I16
    return from_memory(e, stepped, dtype)
