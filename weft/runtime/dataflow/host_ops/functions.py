"""Ops that are Python calls: Python functions, prints and assertions, results of sizes by value."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np

from weft.ir.errors import InvalidArgumentError, WeftError
from weft.ir.interpreter.evaluate import type_of
from weft.ir.ops.dynamic import TABLE
from weft.ir.ops.io import call_function, report
from weft.ir.spec import Attrs, OpSpec
from weft.runtime.dataflow.host_ops.row import Array, HostRow, without_object


def _py_function(arrays: list[Array], attrs: Attrs) -> list[Array]:
    # copies: the function may go on to write to what it gave
    return [np.array(a) for a in call_function(arrays, attrs)]


def _print(arrays: list[Array], attrs: Attrs) -> None:
    """Print to the standard error, in one write."""
    sys.stderr.write(report(arrays, attrs) + "\n")
    sys.stderr.flush()


def _assert(arrays: list[Array], attrs: Attrs) -> None:
    """InvalidArgumentError if the condition, the first array, does not hold."""
    if not bool(arrays[0]):
        what = report(arrays[1:], attrs)
        raise InvalidArgumentError(f"assertion failed{': ' if what else ''}{what}")


def _by_reference(spec: OpSpec, arrays: list[Array], attrs: Attrs) -> list[Array]:
    """What the op's meaning in NumPy gives, as arrays that share nothing with the operands."""
    assert spec.reference is not None
    try:
        made = spec.reference(arrays, attrs)
    except WeftError as error:
        given = ", ".join(str(type_of(a)) for a in arrays)
        raise type(error)(f"op '{spec.name}' on ({given}): {error.what}", hint=error.hint) from None
    results: Sequence[Array] = [made] if isinstance(made, np.ndarray) else made
    return [r if r.base is None and r is not arrays[0] else np.array(r) for r in results]


#: They read their operands, and neither write to them nor keep them.
READ_ONLY = frozenset(spec.name for spec in TABLE)
ROWS: Mapping[str, HostRow] = {
    "py_function": without_object(_py_function),
    "print": without_object(_print),
    "assert": without_object(_assert),
    **{spec.name: without_object(partial(_by_reference, spec)) for spec in TABLE},
}
