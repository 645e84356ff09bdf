"""One host op by itself, at once: what eager calls do with the rows that the executor has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weft.ir.errors import InternalError, WeftError
from weft.ir.graph import Value
from weft.ir.interpreter.evaluate import type_of
from weft.ir.ops.builder import make_op
from weft.ir.spec import Attrs
from weft.runtime.dataflow.host_ops import HOST_OPS
from weft.runtime.dataflow.host_ops.row import Array
from weft.runtime.resources.cancel import CancelToken


def run_alone(op_name: str, arrays: Sequence[Array], attrs: Attrs) -> list[Any]:
    """What a host op that names no object and waits for nothing gives on arrays (None: a token).

    Raises what the type rule and the op raise.
    """
    op = make_op(op_name, [Value(type_of(a)) for a in arrays], attrs)
    made: list[Any] = []
    HOST_OPS[op_name](None, op, list(arrays), made.append, CancelToken())
    if not made:
        raise InternalError(f"op '{op_name}' waits, and was called alone")
    (results,) = made
    if isinstance(results, WeftError):
        raise results
    return list(results)
