"""Name scopes, control dependencies, and effects that stand for others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from weft.frontend import pytree
from weft.frontend.ops.operators import Operators
from weft.frontend.tensor import as_tensor
from weft.frontend.tracing.region_trace import RegionTrace, graph_around
from weft.frontend.tracing.trace import Effect, Trace, check_usable, current_trace
from weft.ir.errors import InvalidArgumentError, TypeRuleError
from weft.ir.graph import Value
from weft.ir.locations import caller_location


@contextmanager
def name_scope(name: str) -> Iterator[str]:
    """Prefix the names of variables and placeholders made in the block with `name/`."""
    trace = current_trace()
    if trace is None:
        yield f"{name}/"
        return
    before = trace.name_scope
    trace.name_scope = f"{before}{name}/"
    try:
        yield trace.name_scope
    finally:
        trace.name_scope = before


@contextmanager
def control_dependencies(control_inputs: Sequence[Any] | None) -> Iterator[None]:
    """In a graph: whoever runs an op made in the block runs `control_inputs` before it.

    control_inputs: tensors, effects, variables; None lifts the surrounding ones. In the body of a
    branch or loop, what is outside of it comes before the whole branch or loop. In compiled
    functions and outside graphs it changes nothing: effects follow program order there.
    """
    trace = graph_around(current_trace())
    given = [] if control_inputs is None else control_inputs
    values = tuple(_dependencies("wf.control_dependencies", given, trace))
    if trace is None:
        yield
        return
    before = trace.control
    trace.control = () if control_inputs is None else tuple(dict.fromkeys((*before, *values)))
    try:
        yield
    finally:
        trace.control = before


def _dependencies(what: str, items: Any, trace: Trace | None) -> Iterator[Value]:
    for item in pytree.tree_leaves(items):
        if not isinstance(item, (Operators, Effect)):
            raise TypeRuleError(
                f"{what}: a {type(item).__name__} is not a tensor or effect: {item!r:.60}",
                location=caller_location(),
            )
        if trace is None:
            continue
        if isinstance(item, Effect):
            owner, value = item.trace, item.value
        else:
            t = as_tensor(item)
            if t._trace is not None:
                check_usable(t, trace)
            owner, value = t._trace, t._value
        if owner is None or value is None:
            continue  # done, or known
        if owner is trace:
            if value.op is not None or trace.kind == "graph":
                yield value
        elif isinstance(trace, RegionTrace) and owner.encloses(trace) and not owner.closed:
            trace.wait_for(owner, value)
        else:
            assert isinstance(item, Effect)  # of tensors check_usable says so
            raise _foreign(what, item, owner)


def _foreign(what: str, effect: Effect, owner: Trace) -> InvalidArgumentError:
    if owner.kind == "graph":
        made, hint = "belongs to another graph", None
    else:
        made = f"was made in the {owner.name}"
        hint = "what a body does is done whenever it runs; depend on what the branch or loop gives"
    return InvalidArgumentError(
        f"{what}: the effect '{effect.name}' {made}", hint=hint, location=caller_location()
    )


def group(*inputs: Any, name: str = "group") -> Effect:
    """An effect that is done when all of `inputs` (tensors, effects, lists of them) are."""
    trace = graph_around(current_trace())
    values = list(_dependencies("wf.group", inputs, trace))
    if trace is None:
        return Effect(name)
    (token,) = trace.emit("group", control=values)
    return Effect(trace.name_scope + name, token, trace)


def no_op(name: str = "no_op") -> Effect:
    """An effect that does nothing; in `control_dependencies` it stands for them."""
    return group(name=name)
