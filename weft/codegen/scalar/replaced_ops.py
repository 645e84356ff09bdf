"""Scalar functions of the user's in place of weft's own code for elementwise ops
(`wf.register_kernel` of an op that weft has).

A nest takes the function where the op has operands of the dtypes that it is registered for; what
the op means, its gradient and its rewriting by passes stay weft's. The table is the process's:
plans on disk know nothing of it, so none is read or kept while there is an entry."""

from __future__ import annotations

from types import FunctionType

from weft.codegen.llvm.scalar_texts import SEPARATOR, scalar_text
from weft.ir.errors import AlreadyExistsError, TypeRuleError
from weft.ir.graph import Operation
from weft.ir.ops.scalar_function import (
    KINDS,
    REPLACED,
    Dtypes,
    code_of,
    define_scalar_function,
    full_name,
    working_dtype,
)
from weft.ir.types import TensorType


def replace_code(
    op: str, function: FunctionType, rows: tuple[Dtypes, ...], *, replace: bool = False
) -> None:
    """Have nests call `function` for an op on these dtypes. AlreadyExistsError if one does."""
    kept = [(f, dtypes) for f, dtypes in REPLACED.get(op, ()) if dtypes not in rows]
    if len(kept) < len(REPLACED.get(op, ())) and not replace:
        raise AlreadyExistsError(
            f"op '{op}' has a kernel of the user's for some of these dtypes already",
            hint="replace=True registers the new one in its place",
        )
    define_scalar_function(function)
    REPLACED[op] = [*kept, *((function, row) for row in rows)]


def replacement_of(op: Operation) -> FunctionType | None:
    """The function in place of an op's code; None for weft's own."""
    held = [v.type.dtype for v in op.operands if isinstance(v.type, TensorType)]
    for function, dtypes in REPLACED.get(op.name, ()):
        row = dtypes * len(held) if len(dtypes) == 1 else dtypes
        if tuple(held) == row:
            return function
    return None


def replaced_statement(op: Operation) -> tuple[str, str] | None:
    """As `statement_name`, of an op whose code is replaced; None for weft's own. TypeRuleError if
    the function gives another kind of number than the op, and what `scalar_text` raises."""
    function = replacement_of(op)
    if function is None:
        return None
    held = [v.type.dtype for v in op.operands if isinstance(v.type, TensorType)]
    assert isinstance(op.result.type, TensorType)
    result = op.result.type.dtype
    letters = "".join(KINDS[d] for d in held)
    name, code = full_name(function), code_of(function)
    given = scalar_text(name, code, letters).result
    if given != KINDS.get(result):
        raise TypeRuleError(
            f"the kernel '{name}' of op '{op.name}' returns {_WORDS[given]}, the op {result.name}",
            hint=f"return {_WORDS[KINDS[result]]} on all ways through it",
        )
    return f"{name}{SEPARATOR}{code}:{letters}", working_dtype(held, result).short


_WORDS = {"f": "a float", "i": "an integer", "u": "an unsigned integer", "b": "a bool"}
