"""Updates of variables, and questions about them, as functions with TensorFlow 1's names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weft.frontend.devices import device
from weft.frontend.ops.dynamic_sizes import fresh_sizes
from weft.frontend.ops.rearrange import concat
from weft.frontend.session.graph import get_default_graph, name_tensor
from weft.frontend.tensor import Tensor
from weft.frontend.tracing.trace import Effect
from weft.frontend.updates import assert_initialized, by_place, graph_or_none
from weft.frontend.variable import Variable
from weft.ir.errors import TypeRuleError, UnsupportedError
from weft.ir.interpreter.state import missing_names
from weft.ir.locations import caller_location


def _variable(ref: Any, function: str) -> Variable:
    if not isinstance(ref, Variable):
        raise TypeRuleError(
            f"wf.{function}: the first argument is a {type(ref).__name__}, not a wf.Variable",
            hint="only variables can be changed; x.at[...] gives a changed tensor",
            location=caller_location(),
        )
    return ref


def _named(t: Tensor, name: str | None) -> Tensor:
    return t if name is None else name_tensor(t, name)


def assign(
    ref: Variable, value: Any, validate_shape: bool | None = None, use_locking: bool | None = None,
    name: str | None = None,
) -> Tensor:  # fmt: skip
    """`ref.assign(value)`: the new value. use_locking: updates are atomic with it and without.

    TypeRuleError or ShapeError for a value that does not fit, UnsupportedError for
    validate_shape=False: a variable keeps its shape.
    """
    variable = _variable(ref, "assign")
    if validate_shape is not None and not validate_shape:
        raise UnsupportedError(
            f"wf.assign(validate_shape=False): variable '{variable.name}' keeps its shape",
            hint="make another variable",
            location=caller_location(),
        )
    return _named(variable.assign(value, use_locking), name)


def assign_add(
    ref: Variable, value: Any, use_locking: bool | None = None, name: str | None = None
) -> Tensor:
    """`ref.assign_add(value)`, as one access: the new value."""
    return _named(_variable(ref, "assign_add").assign_add(value, use_locking), name)


def assign_sub(
    ref: Variable, value: Any, use_locking: bool | None = None, name: str | None = None
) -> Tensor:
    """`ref.assign_sub(value)`, as one access: the new value."""
    return _named(_variable(ref, "assign_sub").assign_sub(value, use_locking), name)


def scatter_add(
    ref: Variable, indices: Any, updates: Any, use_locking: bool | None = None,
    name: str | None = None,
) -> Tensor:  # fmt: skip
    """Add `updates`, of shape indices.shape + ref.shape[1:], to the rows of `ref` at `indices`,
    as one access; duplicates add up. The new value."""
    variable = _variable(ref, "scatter_add")
    return _named(variable.scatter_add(indices, updates, use_locking), name)


def scatter_sub(
    ref: Variable, indices: Any, updates: Any, use_locking: bool | None = None,
    name: str | None = None,
) -> Tensor:  # fmt: skip
    """As `scatter_add`, subtracting."""
    variable = _variable(ref, "scatter_sub")
    return _named(variable.scatter_sub(indices, updates, use_locking), name)


def scatter_update(
    ref: Variable, indices: Any, updates: Any, use_locking: bool | None = None,
    name: str | None = None,
) -> Tensor:  # fmt: skip
    """Replace the rows of `ref` at `indices`, as one access; of duplicates the last stays. The
    new value."""
    variable = _variable(ref, "scatter_update")
    return _named(variable.scatter_update(indices, updates, use_locking), name)


def count_up_to(ref: Variable, limit: int, name: str | None = None) -> Tensor:
    """`ref.count_up_to(limit)`: add 1; the value before. OutOfRangeError if that is `limit`."""
    return _named(_variable(ref, "count_up_to").count_up_to(limit), name)


# --------------------------------------------------------------------------------------- questions
def is_variable_initialized(variable: Variable) -> Tensor:
    """Whether it has a value, a bool without axes: now, or in a graph when a step asks."""
    return _variable(variable, "is_variable_initialized").is_initialized()


def report_uninitialized_variables(
    var_list: Sequence[Variable] | None = None, name: str | None = None
) -> Tensor:
    """The names of the variables that have no value, as a vector of strings.

    var_list: all variables of the graph so far if None. In a graph they are looked at when a step
    asks, device by device, elsewhere now. UnsupportedError in a compiled function.
    """
    trace = graph_or_none("wf.report_uninitialized_variables")
    held = _variables(var_list, "report_uninitialized_variables")
    names = tuple(v.name for v in held)
    if trace is None:
        return Tensor(missing_names(names, [v.state.initialized for v in held]))
    found: list[Tensor] = []
    for pairs in by_place(trace, held):  # an op is on one device
        sizes = fresh_sizes(trace, "uninitialized", 1)
        attrs = {"names": tuple(v.name for _, v in pairs), "sizes": sizes}
        refs = [handle for handle, _ in pairs]
        found.append(trace.tensor(trace.emit("report_uninitialized", refs, attrs)[0]))
    if len(found) == 1:
        return _named(found[0], name)
    with device("/cpu:0"):  # strings are not for a GPU, which some of the variables may be on
        return _named(concat(found), name)


def assert_variables_initialized(var_list: Sequence[Variable] | None = None) -> Effect:
    """An effect that raises FailedPreconditionError, which names them, if variables have no value.

    var_list: all variables of the graph so far if None. Outside a graph it is done at once.
    UnsupportedError in a compiled function.
    """
    return assert_initialized(_variables(var_list, "assert_variables_initialized"))


def _variables(given: Sequence[Variable] | None, function: str) -> list[Variable]:
    if given is None:
        return get_default_graph().variables
    return [_variable(v, function) for v in given]
