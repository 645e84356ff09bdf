"""Ops on variables that plans leave to Python: whether they have values, counting, variables of
strings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from weft.ir.errors import WeftError
from weft.ir.graph import Operation
from weft.ir.interpreter.state import check_initialized, missing_names, updated
from weft.ir.spec import int_attr
from weft.runtime.dataflow.host_ops.row import Array, Begin, Done
from weft.runtime.resources.cancel import CancelToken
from weft.runtime.resources.variables import VariableState

#: (the variables of the op's handles, the op) -> its results.
_Run = Callable[[tuple[VariableState, ...], Operation], list[Any]]


def _at_once(run: _Run) -> Begin:
    def begin(given: Any, op: Operation, arrays: list[Array], done: Done, c: CancelToken) -> None:
        states = given if isinstance(given, tuple) else () if given is None else (given,)
        try:
            made: Any = run(states, op)
        except WeftError as error:
            made = error
        done(made)

    return begin


def _is_initialized(states: tuple[VariableState, ...], op: Operation) -> list[Any]:
    return [np.array(states[0].initialized)]


def _assert_initialized(states: tuple[VariableState, ...], op: Operation) -> list[Any]:
    check_initialized([state.name for state in states if not state.initialized])
    return [None]


def _report(states: tuple[VariableState, ...], op: Operation) -> list[Any]:
    return [missing_names(op.attrs["names"], [state.initialized for state in states])]


def _count_up_to(states: tuple[VariableState, ...], op: Operation) -> list[Any]:
    return [states[0].count_up_to(int_attr(op.attrs, "limit"))]


VARIABLE_ROWS: Mapping[str, Begin] = {
    "is_initialized": _at_once(_is_initialized),
    "assert_initialized": _at_once(_assert_initialized),
    "report_uninitialized": _at_once(_report),
    "count_up_to": _at_once(_count_up_to),
}


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
