"""The variable that counts training steps, found again by its name "global_step"."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import numpy as np

from weft.frontend.core.trace import current_trace
from weft.frontend.session.graph import Graph, get_default_graph
from weft.frontend.session.session import Session
from weft.frontend.state.variable import FullName, Variable
from weft.ir.errors import AlreadyExistsError, FailedPreconditionError, TypeRuleError
from weft.ir.locations import caller_location

NAME = "global_step"


def get_global_step(graph: Graph | None = None) -> Variable | None:
    """The graph's variable "global_step" (the graph being built if None); None if there is none.

    TypeRuleError if that variable is no integer without axes.
    """
    found = next((v for v in _graph(graph).variables if v.name == NAME), None)
    if found is not None and not (found.dtype.is_integer and found.ndim == 0):
        raise TypeRuleError(
            f"the variable 'global_step' is {found.dtype.name}{list(found.shape)}, it must be an "
            "integer without axes",
            location=caller_location(),
        )
    return found


def create_global_step(graph: Graph | None = None) -> Variable:
    """Make it: int64, 0, not trainable. AlreadyExistsError if there is one."""
    held = _graph(graph)
    if get_global_step(held) is not None:
        raise AlreadyExistsError(
            "the graph has a global step already",
            hint="wf.train.get_or_create_global_step",
            location=caller_location(),
        )
    building = current_trace() is held._trace
    with nullcontext() if building else held.as_default():
        return Variable(np.int64(0), trainable=False, name=FullName(NAME))


def get_or_create_global_step(graph: Graph | None = None) -> Variable:
    """The graph's global step, made if there is none. Pass it to `minimize(global_step=)`."""
    held = _graph(graph)
    found = get_global_step(held)
    return create_global_step(held) if found is None else found


def global_step(sess: Session, global_step_tensor: Variable) -> int:
    """Its value now, an int."""
    value: Any = sess.run(global_step_tensor)
    return int(value)


def needed_global_step(what: str, graph: Graph) -> Variable:
    """The graph's global step. FailedPreconditionError if there is none."""
    found = get_global_step(graph)
    if found is None:
        raise FailedPreconditionError(
            f"{what}: the graph has no global step",
            hint="step = wf.train.get_or_create_global_step(); optimizer.minimize(loss, "
            "global_step=step)",
            location=caller_location(),
        )
    return found


def _graph(graph: Graph | None) -> Graph:
    return get_default_graph() if graph is None else graph
