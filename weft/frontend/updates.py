"""What the operands of updates of variables must be, and what updates compute outside graphs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.frontend.ops.promotion import cast, common_dtype, expand, is_scalar
from weft.frontend.tensor import Tensor, as_tensor
from weft.frontend.tracing.trace import Effect, Trace, effect_trace
from weft.ir.dims import Shape, broadcast_shapes, format_shape
from weft.ir.dtypes import DType
from weft.ir.errors import ShapeError, TypeRuleError, UnsupportedError, WeftError
from weft.ir.graph import Value
from weft.ir.interpreter.state import check_initialized
from weft.ir.locations import caller_location

if TYPE_CHECKING:
    from weft.frontend.variable import Variable


def misfit(variable: Variable, given: DType) -> TypeRuleError:
    """The error for a value of another dtype."""
    return TypeRuleError(
        f"a {given.name} value does not fit variable '{variable.name}' ({variable.dtype.name})",
        hint=f"convert it with wf.astype(x, wf.{variable.dtype.name})",
        location=caller_location(),
    )


def _converted(variable: Variable, op: str, value: Any) -> Tensor:
    """`value` in the variable's dtype, if computing with both gives that."""
    held = value if is_scalar(value) else as_tensor(value)
    stands_for = Tensor(np.empty(0, variable.dtype.numpy))
    dtype = common_dtype(f"Variable.{op}", [stands_for, held])
    if dtype is not variable.dtype:
        raise misfit(variable, dtype)
    return cast(held, dtype)


def _spread(variable: Variable, op: str, value: Tensor, shape: Shape, what: str) -> Tensor:
    try:
        if broadcast_shapes(value.shape, shape) == shape:
            return expand(value, shape)
    except WeftError:
        pass
    known = all(isinstance(n, int) for n in (*value.shape, *shape))
    raise ShapeError(
        f"{op}: a value of shape {format_shape(value.shape)} does not fit {what}variable "
        f"'{variable.name}' ({variable.dtype.short}{format_shape(variable.shape)})"
        + ("" if shape == variable.shape else f": {format_shape(shape)}"),
        hint="a variable keeps its shape; use wf.broadcast_to or wf.reshape"
        if known
        else 'sizes that are always equal should have one name: wf.placeholder(dtype, ["n"])',
        location=caller_location(),
    )


def _whole(op: str) -> Callable[..., list[Tensor]]:
    def operands(variable: Variable, delta: Any) -> list[Tensor]:
        value = _converted(variable, op, delta)
        return [_spread(variable, op, value, variable.shape, "")]

    return operands


def _rows(op: str) -> Callable[..., list[Tensor]]:
    def operands(variable: Variable, indices: Any, updates: Any) -> list[Tensor]:
        index = checked_indices(variable, op, indices)
        shape = (*index.shape, *variable.shape[1:])
        value = _converted(variable, op, updates)
        return [index, _spread(variable, op, value, shape, "the rows of ")]

    return operands


def checked_indices(variable: Variable, op: str, indices: Any) -> Tensor:
    """`indices` of rows as a tensor. TypeRuleError if they are no integers, ShapeError if the
    variable has no rows."""
    index = as_tensor(indices)
    if index._data is not None and index.shape == (0,) and not index.dtype.is_integer:
        index = Tensor(np.zeros(0, np.int64))  # an empty list
    if not index.dtype.is_integer:
        raise TypeRuleError(
            f"{op}: the indices of rows of variable '{variable.name}' must be integers, got "
            f"{index.dtype.name}",
            hint="convert them with wf.astype(indices, wf.int64)",
            location=caller_location(),
        )
    if not variable.ndim:
        raise ShapeError(
            f"{op}: variable '{variable.name}' has no axes, so no rows",
            hint="use assign or assign_add",
            location=caller_location(),
        )
    return index


#: By the name of an update: (variable, what the method was given) -> the op's operands.
UPDATE_OPERANDS: Mapping[str, Callable[..., list[Tensor]]] = {
    **{op: _whole(op) for op in ("assign_add", "assign_sub")},
    **{op: _rows(op) for op in ("scatter_add", "scatter_sub", "scatter_update")},
}


def added(old: Any, indices: Any, updates: Any) -> Any:
    """What scatter_add makes of the old value."""
    return old.at[as_tensor(indices)].add(updates)


def subtracted(old: Any, indices: Any, updates: Any) -> Any:
    """What scatter_sub makes of the old value."""
    return old.at[as_tensor(indices)].subtract(updates)


def replaced(old: Any, indices: Any, updates: Any) -> Any:
    """What scatter_update makes of the old value."""
    return old.at[as_tensor(indices)].set(updates)


# ------------------------------------------------------------------------------- asked of the state
def graph_or_none(what: str) -> Trace | None:
    """The graph that is being built, None outside. UnsupportedError in a traced function."""
    trace = effect_trace(what)
    if trace is not None and trace.kind != "graph":
        raise UnsupportedError(
            f"{what} while '{trace.root().name}' is traced is not supported",
            hint="do it outside of the compiled function, or in a wf.Graph",
            location=caller_location(),
        )
    return trace


def count_up_to(variable: Variable, limit: Any) -> Tensor:
    """`Variable.count_up_to`."""
    what = f"count_up_to of variable '{variable.name}'"
    if isinstance(limit, bool) or not isinstance(limit, (int, np.integer)):
        raise TypeRuleError(
            f"{what}: the limit is a {type(limit).__name__}, not an int", location=caller_location()
        )
    if variable.ndim or not variable.dtype.is_integer:
        raise TypeRuleError(
            f"{what}: it holds {variable.dtype.short}{format_shape(variable.shape)}, not one "
            "integer",
            hint="make it with wf.Variable(0)",
            location=caller_location(),
        )
    trace = graph_or_none(what)
    if trace is not None:
        ref = trace.effects.ref(variable)
        return trace.tensor(trace.emit("count_up_to", (ref,), {"limit": int(limit)})[0])
    try:
        return Tensor(variable.state.count_up_to(int(limit)))
    except WeftError as error:
        raise error.at(caller_location()) from None


def is_initialized(variable: Variable) -> Tensor:
    """`Variable.is_initialized`."""
    trace = graph_or_none(f"asking whether variable '{variable.name}' is initialised")
    if trace is None:
        return Tensor(np.array(variable.state.initialized))
    return trace.tensor(trace.emit("is_initialized", (trace.effects.ref(variable),))[0])


def assert_initialized(variables: Sequence[Variable]) -> Effect:
    """An effect that raises FailedPreconditionError for those that have no value; outside a graph
    it is done at once."""
    trace = graph_or_none("asking whether variables are initialised")
    name = "assert_variables_initialized"
    if trace is None:
        try:
            check_initialized([v.name for v in variables if not v.state.initialized])
        except WeftError as error:
            raise error.at(caller_location()) from None
        return Effect(name)
    done = [
        trace.emit("assert_initialized", list(dict(pairs)))[0]
        for pairs in by_place(trace, variables)
    ]
    if len(done) > 1:
        done = list(trace.emit("group", control=done))
    return Effect(trace.name_scope + name, done[0], trace)


def by_place(trace: Trace, variables: Sequence[Variable]) -> list[list[tuple[Value, Variable]]]:
    """The variables with their handles, apart where marks say that their devices may differ; at
    least one list."""
    found: dict[tuple[str, str], list[tuple[Value, Variable]]] = {}
    for variable in variables:
        handle = trace.effects.ref(variable)
        marks = ("", "") if handle.op is None else (handle.op.device, handle.op.group)
        found.setdefault(marks, []).append((handle, variable))
    return list(found.values()) or [[]]
