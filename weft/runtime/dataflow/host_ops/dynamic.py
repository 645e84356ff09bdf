"""Ops whose results have sizes that depend on values, on the executor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from weft.ir.errors import WeftError
from weft.ir.graph import Operation
from weft.ir.interpreter.evaluate import type_of
from weft.ir.ops import lookup
from weft.ir.ops.dynamic import TABLE
from weft.runtime.dataflow.host_ops.row import Array, Begin, Done
from weft.runtime.resources.cancel import CancelToken


def _by_reference(_: None, op: Operation, arrays: list[Array], done: Done, c: CancelToken) -> None:
    try:
        done(_carry_out(op, arrays))
    except WeftError as error:
        given = ", ".join(str(type_of(a)) for a in arrays)
        done(type(error)(f"op '{op.name}' on ({given}): {error.what}", hint=error.hint))


def _carry_out(op: Operation, arrays: list[Array]) -> list[Any]:
    """What the op's meaning in NumPy gives, as arrays that share nothing with the operands."""
    spec = lookup(op.name)
    assert spec.reference is not None
    made = spec.reference(arrays, op.attrs)
    results: Sequence[Array] = [made] if isinstance(made, np.ndarray) else made
    return [r if r.base is None and r is not arrays[0] else np.array(r) for r in results]


ROWS: Mapping[str, Begin] = {spec.name: _by_reference for spec in TABLE}
#: They read their operands, and neither write to them nor keep them.
READ_ONLY = frozenset(ROWS)
