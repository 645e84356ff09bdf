"""A `wf.Graph` as text, and back: the IR's text, with what has a name among its results.

Named tensors and effects are the results of the printed graph, by their names. A result
`NAME/initial_value` is what the initializer of the variable NAME assigns. Collections say which
variables optimizers change, and which have their initial value from the start.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from weft.frontend.queues.sharing import shared_as
from weft.frontend.session.graph_import import LOCAL, SHARED, STARTED, TRAINABLE
from weft.frontend.session.import_names import INITIAL
from weft.ir.errors import InvalidArgumentError
from weft.ir.graph import Block, Value
from weft.ir.graph import Graph as IRGraph
from weft.ir.locations import caller_location
from weft.ir.ops.builder import make_op
from weft.ir.spec import ConstArray

if TYPE_CHECKING:
    from weft.frontend.session.graph import Graph


def to_ir(graph: Graph) -> IRGraph:
    """The whole graph with its names. InvalidArgumentError if a tensor has the name that the
    initial value of a variable gets."""
    trace = graph._trace
    names: dict[str, Value] = {n: trace.lift(t) for n, t in graph._named.items()}
    names |= {n: e.value for n, e in graph._effects.items() if e.value is not None}
    ir = trace.graph([])
    ops = list(ir.ops)
    started: list[str] = []
    for name, variable in trace.variables.items():
        label = name + INITIAL
        if label in names:
            raise InvalidArgumentError(
                f"the name '{label}' is that of the initial value of variable '{name}'",
                hint="give the tensor or effect another name",
                location=caller_location(),
            )
        start = variable._initial_tensor
        if start is not None and start._trace is trace:
            names[label] = trace.lift(start)
        elif variable._initial is not None:
            where = trace.effects.refs[variable].op
            made = make_op(
                "constant",
                attrs={"value": ConstArray(variable._initial)},
                locations=() if where is None else where.locations,
            )
            ops.append(made)
            names[label] = made.result
        if start is None:
            started.append(name)
    trainable = tuple(n for n, v in trace.variables.items() if v.trainable)
    held = {n: v.state for n, v in trace.variables.items()} | graph.resources
    locals_ = set(graph.local_variables)
    local = tuple(n for n, v in trace.variables.items() if v in locals_)
    others = ((STARTED, tuple(started)), (LOCAL, local), (SHARED, _shared(held)))
    return replace(
        ir,
        block=Block(ir.args, tuple(ops), tuple(names.values())),
        result_names=tuple(names),
        collections=((TRAINABLE, trainable), *((n, c) for n, c in others if c)),
    )


def _shared(held: Mapping[str, Any]) -> tuple[str, ...]:
    """Four strings for each object that has a shared name: its name in the graph, its container,
    the shared name, and how it was declared."""
    found: list[str] = []
    for name, thing in held.items():
        key = shared_as(thing)
        if key is not None:
            found += [name, *key, thing.declared]
    return tuple(found)
