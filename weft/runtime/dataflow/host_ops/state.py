"""Ops on variables that the executor leaves to Python: whether they have values, and counting."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from weft.ir.errors import WeftError
from weft.ir.graph import Operation
from weft.ir.interpreter.state import check_initialized, missing_names
from weft.ir.type_rules import int_attr
from weft.runtime.dataflow.host_ops.row import Array, Begin, Done
from weft.runtime.resources.cancel import CancelToken
from weft.runtime.variables import VariableState

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


ROWS: Mapping[str, Begin] = {
    "is_initialized": _at_once(_is_initialized),
    "assert_initialized": _at_once(_assert_initialized),
    "report_uninitialized": _at_once(_report),
    "count_up_to": _at_once(_count_up_to),
}
