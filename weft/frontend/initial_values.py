"""What a variable starts with, and which state it gets."""

from __future__ import annotations

from typing import Any

from weft.frontend.arrays import contiguous
from weft.frontend.containers import current_container
from weft.frontend.ops.operators import METHODS
from weft.frontend.queues.sharing import shared
from weft.frontend.session.subgraph import constant_value, needed_ops
from weft.frontend.tensor import Tensor, as_tensor
from weft.frontend.tracing.trace import Trace, suspend_trace
from weft.ir.dims import format_shape
from weft.ir.dtypes import DEFAULT_COMPLEX, DEFAULT_FLOAT, as_dtype
from weft.ir.errors import (
    InvalidArgumentError,
    ShapeError,
    TypeRuleError,
    UnsupportedError,
    WeftError,
)
from weft.ir.locations import caller_location
from weft.runtime.resources.variables import VariableState


class FullName(str):
    """The name of a variable with all its scopes: that of the trace is not put before it."""

    __slots__ = ()


def check_creation(trace: Trace | None, name: str | None, **other: str | None) -> None:
    """UnsupportedError where a variable is made anew on every trace of a compiled function,
    TypeRuleError for a name, or one of the `other` names, that is no str."""
    for what, given in {"name": name, **other}.items():
        if given is not None and not isinstance(given, str):
            raise TypeRuleError(
                f"wf.Variable: {what} is a {type(given).__name__}, not a str",
                location=caller_location(),
            )
    if trace is not None and trace.kind != "graph" and not trace.root().creates_variables:
        raise UnsupportedError(
            f"variable '{name or 'variable'}' is created again: '{trace.root().name}' was traced "
            "before",
            hint="create variables outside the compiled function, or once, on its first call",
            location=caller_location(),
        )


def initial_tensor(initial: Any, dtype: object, trace: Trace | None) -> Tensor:
    """The initial value, of a static shape; concrete except in a graph, which may compute it."""
    in_graph = trace is not None and trace.kind == "graph"
    if in_graph:
        t = as_tensor(initial() if callable(initial) else initial)
    else:
        with suspend_trace():
            if callable(initial):
                initial = initial()
            t = initial if isinstance(initial, Tensor) else as_tensor(initial)
    if t._data is None and not in_graph:
        value = constant_value(t)
        if value is None:
            raise InvalidArgumentError(
                "the initial value of a variable depends on the inputs of the traced function: "
                f"{t.describe()}",
                hint="create the variable outside, and assign to it here",
                location=caller_location(),
            )
        t = Tensor(contiguous(value), weak=t.weak)
    if not all(isinstance(d, int) for d in t.shape):
        raise ShapeError(
            f"the initial value of a variable has the shape {format_shape(t.shape)}, which is not "
            "known",
            hint="give it a static shape",
            location=caller_location(),
        )
    target = as_dtype(dtype) if dtype is not None else t.dtype
    if dtype is None and t.weak and t.dtype.is_inexact:
        target = DEFAULT_FLOAT if t.dtype.is_floating else DEFAULT_COMPLEX
    if t._data is not None:
        return Tensor(contiguous(t._data.astype(target.numpy)))
    return t if target is t.dtype else METHODS["astype"](t, target)


def made_state(
    name: str, initial: Tensor, trace: Trace | None, shared_name: str | None, container: str | None
) -> VariableState:
    """The state of a new variable: its own, or the one of that shared name.

    Outside a graph it has a value; one that is shared keeps the value that it has.
    """
    in_graph = trace is not None and trace.kind == "graph"
    shape = tuple(d for d in initial.shape if isinstance(d, int))
    place = current_container() if container is None else container
    array = None if in_graph else initial._data
    declared = f"{initial.dtype.short}{format_shape(shape)}"
    first = None if shared_name else array

    def make() -> VariableState:
        # what has a value from the start and is nobody else's is not cleared with a container
        held = place if in_graph or shared_name or place else None
        return VariableState(name, initial.dtype, shape, first, held)

    try:
        state = shared(shared_name, VariableState, declared, make, place)
    except WeftError as error:
        raise error.at(caller_location()) from None
    if first is None and array is not None:
        with state.lock:
            if not state.initialized:
                state.write(array)
    if in_graph and shared_name:
        assert trace is not None
        _check_no_cycle(name, state, initial, trace)
    return state


def _check_no_cycle(name: str, state: VariableState, initial: Tensor, trace: Trace) -> None:
    """InvalidArgumentError if the initial value is computed, at the end, from `state` itself."""
    todo, seen = [initial], set[VariableState]()
    while todo:
        t = todo.pop()
        if t._value is None or t._trace is not trace:
            continue
        for op in needed_ops(trace.builder.ops, [t._value])[0]:
            if op.name != "variable":
                continue
            used = trace.variables[str(op.attrs["name"])]
            if used.state is state:
                raise InvalidArgumentError(
                    f"the initial value of variable '{name}' is computed from that variable itself",
                    hint="variables of one shared_name are one; begin with a value of its own",
                    location=caller_location(),
                )
            if used.state not in seen and used._initial_tensor is not None:
                seen.add(used.state)
                todo.append(used._initial_tensor)
