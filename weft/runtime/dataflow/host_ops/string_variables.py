"""Variables of strings on the executor: reads and writes that plans do for all other dtypes."""

from __future__ import annotations

from collections.abc import Mapping

from weft.ir.errors import WeftError
from weft.ir.graph import Operation
from weft.ir.interpreter.state import updated
from weft.runtime.dataflow.host_ops.row import Array, Begin, Done
from weft.runtime.resources.cancel import CancelToken
from weft.runtime.variables import VariableState


def _read(v: VariableState, op: Operation, arrays: list[Array], done: Done, c: CancelToken) -> None:
    try:
        done([v.read()])
    except WeftError as error:
        done(error)


def _assign(
    v: VariableState, op: Operation, arrays: list[Array], done: Done, c: CancelToken
) -> None:
    v.write(arrays[0])
    done([None])


def _scatter_update(
    v: VariableState, op: Operation, arrays: list[Array], done: Done, c: CancelToken
) -> None:
    try:
        with v.lock:
            new = updated(op.name, v.read(), arrays)
            v.write(new)
    except WeftError as error:
        done(error)
    else:
        done([new])


#: How ops begin that have no trait "host", on variables of strings.
STRING_ROWS: Mapping[str, Begin] = {
    "read": _read,
    "assign": _assign,
    "scatter_update": _scatter_update,
}
