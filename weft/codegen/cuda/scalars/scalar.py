"""One elementwise operation as the text of kernel source: `expression`, and steps of folds.

The meaning is NumPy 2's, as on the CPU (`codegen/scalar`). Operands are names or constants: a text
may hold them twice.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.codegen.cuda.scalars import casts
from weft.codegen.cuda.scalars.floats import FLOAT_OPS
from weft.codegen.cuda.scalars.functions import device_functions
from weft.codegen.cuda.scalars.integers import BOOL_OPS, INTEGER_OPS
from weft.codegen.cuda.scalars.memory import (
    DTYPES,
    FLOATS,
    HALVES,
    highest,
    literal,
    load,
    loaded,
    lowest,
    register_dtype,
    stored,
)
from weft.ir.errors import UnsupportedError
from weft.ir.ops.reduction import FOLDS

__all__ = [
    "device_functions",
    "expression",
    "fold_expression",
    "identity",
    "literal",
    "load",
    "loaded",
    "register_dtype",
    "running_dtype",
    "stored",
    "supported",
]


def supported(op: str, dtype: str, result_dtype: str) -> bool:
    """Whether `expression` takes `op` at operand dtype `dtype`."""
    if dtype not in DTYPES or result_dtype not in DTYPES:
        return False
    if op == "bitcast":
        return casts.can_bitcast(dtype, result_dtype)
    if op in ("astype", "where"):
        return True
    if dtype in FLOATS:
        return op in FLOAT_OPS
    return op in (BOOL_OPS if dtype == "bool" else INTEGER_OPS)


def expression(op: str, dtype: str, result_dtype: str, args: Sequence[str]) -> str:
    """The register value of `op` on register values; `dtype` is that of the operands (for `where`,
    whose first operand is bool, of the other two). Raises UnsupportedError.
    """
    if not supported(op, dtype, result_dtype):
        raise UnsupportedError(
            f"op '{op}' on {dtype} -> {result_dtype} has no GPU code",
            hint="run it on the CPU" if dtype in DTYPES else "complex numbers run on the CPU only",
        )
    if op == "astype":
        return casts.astype(dtype, result_dtype, args[0])
    if op == "bitcast":
        return casts.bitcast(dtype, result_dtype, args[0])
    if op == "where":
        return f"{args[1]} if {args[0]} else {args[2]}"
    if dtype in HALVES:
        if op == "nextafter":  # neighbours are those of the 16-bit format
            return f"wf_nextafter_{dtype}({args[0]}, {args[1]})"
        return FLOAT_OPS[op]("f32", args)
    if dtype in FLOATS:
        return FLOAT_OPS[op](dtype, args)
    return (BOOL_OPS if dtype == "bool" else INTEGER_OPS)[op](dtype, args)


def running_dtype(reduction: str, dtype: str) -> str:
    """The dtype in which a fold over elements of `dtype` is kept."""
    return register_dtype(dtype)


def fold_expression(reduction: str, dtype: str, a: str, b: str) -> str:
    """One step of a fold on two register values of the dtype in which it is kept."""
    return expression(FOLDS[reduction], dtype, dtype, (a, b))


def identity(reduction: str, dtype: str) -> str:
    """The value that a fold starts from."""
    if reduction in ("sum", "any", "prod", "all"):
        return literal(dtype, reduction in ("prod", "all"))
    if dtype in FLOATS:
        return literal(dtype, float("-inf" if reduction == "max" else "inf"))
    if dtype == "bool":
        return literal(dtype, reduction == "min")
    return literal(dtype, lowest(dtype) if reduction == "max" else highest(dtype))
