"""Ops on variables that plans leave to Python: whether they have values, counting, variables of
strings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from weft.ir.interpreter.state import check_initialized, missing_names, updated
from weft.ir.spec import Attrs, int_attr
from weft.runtime.dataflow.host_ops.row import Array, HostRow, at_once
from weft.runtime.resources.variables import VariableState


def _states(given: Any) -> tuple[VariableState, ...]:
    """The variables of the op's handles, of which there may be any number."""
    return given if isinstance(given, tuple) else () if given is None else (given,)


def _assert_initialized(given: object, arrays: list[Array], attrs: Attrs) -> None:
    check_initialized([state.name for state in _states(given) if not state.initialized])


def _report(given: object, arrays: list[Array], attrs: Attrs) -> Array:
    return missing_names(attrs["names"], [state.initialized for state in _states(given)])


ROWS: Mapping[str, HostRow] = {
    "is_initialized": at_once(VariableState, lambda v, *_: np.array(v.initialized), brief=True),
    "assert_initialized": at_once(object, _assert_initialized, brief=True),
    "report_uninitialized": at_once(object, _report),
    "count_up_to": at_once(
        VariableState, lambda v, _, attrs: v.count_up_to(int_attr(attrs, "limit")), brief=True
    ),
}


def _scatter_update(v: VariableState, arrays: list[Array], attrs: Attrs) -> Array:
    with v.lock:
        new = updated("scatter_update", v.read(), arrays)
        v.write(new)
    return new


#: What ops do that have no trait "host", on variables of strings.
STRING_ROWS: Mapping[str, HostRow] = {
    "read": at_once(VariableState, lambda v, *_: v.read()),
    "assign": at_once(VariableState, lambda v, given, _: v.write(given[0])),
    "scatter_update": at_once(VariableState, _scatter_update),
}
