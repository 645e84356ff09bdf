"""Ops that are Python calls: Python functions, prints and assertions, results of sizes by value."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from weft.ir.errors import InvalidArgumentError, WeftError
from weft.ir.graph import Operation
from weft.ir.interpreter.evaluate import type_of
from weft.ir.ops import lookup
from weft.ir.ops.dynamic import TABLE
from weft.ir.ops.io import call_function, report
from weft.ir.spec import Attrs
from weft.runtime.dataflow.host_ops.row import Array, Begin, Done
from weft.runtime.resources.cancel import CancelToken


def _py_function(_: None, op: Operation, arrays: list[Array], done: Done, c: CancelToken) -> None:
    try:
        # copies: the function may go on to write to what it gave
        made: Any = [np.array(a) for a in call_function(arrays, op.attrs)]
    except WeftError as error:
        made = error
    done(made)


FUNCTION_ROWS: Mapping[str, Begin] = {"py_function": _py_function}


def show(arrays: Sequence[Array], attrs: Attrs) -> None:
    """Print to the standard error, in one write."""
    sys.stderr.write(report(arrays, attrs) + "\n")
    sys.stderr.flush()


def failed(arrays: Sequence[Array], attrs: Attrs) -> InvalidArgumentError | None:
    """The error of an assertion whose condition, the first array, does not hold."""
    if bool(arrays[0]):
        return None
    what = report(arrays[1:], attrs)
    return InvalidArgumentError(f"assertion failed{': ' if what else ''}{what}")


def _print(_: None, op: Operation, arrays: list[Array], done: Done, c: CancelToken) -> None:
    show(arrays, op.attrs)
    done([None])


def _assert(_: None, op: Operation, arrays: list[Array], done: Done, c: CancelToken) -> None:
    done(failed(arrays, op.attrs) or [None])


REPORT_ROWS: Mapping[str, Begin] = {"print": _print, "assert": _assert}


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


DYNAMIC_ROWS: Mapping[str, Begin] = {spec.name: _by_reference for spec in TABLE}
#: They read their operands, and neither write to them nor keep them.
READ_ONLY = frozenset(DYNAMIC_ROWS)
