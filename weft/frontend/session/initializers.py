"""The variables of a graph, and the effects that give them their initial values."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence

from weft.frontend.random.state import is_graph_state
from weft.frontend.session.graph import get_default_graph, graph_trace
from weft.frontend.session.scopes import group
from weft.frontend.session.subgraph import needed_ops
from weft.frontend.tracing.trace import Effect, Trace
from weft.frontend.variable import Variable
from weft.ir.graph import Operation, Value
from weft.ir.ops import lookup
from weft.passes.rewriting.rewrite import with_control


def variables_initializer(var_list: Sequence[Variable], name: str = "init") -> Effect:
    """An effect that gives the variables their initial values; outside a graph they have them
    already.

    An initial value that is computed from other variables of the list uses their initial values;
    of variables that are not in the list, it uses the values that they have.
    """
    trace = graph_trace("wf.variables_initializer")
    if trace is None:
        return Effect(name)
    for v in var_list:
        trace.effects.ref(v)
    wanted = set(var_list)
    starts: dict[Value, Value] = {}  # a read of a variable of the list -> its initial value
    states = {trace.effects.ref(v) for v in wanted if is_graph_state(v)}
    done: list[Effect] = []
    for v in list(trace.variables.values()):  # a variable is made after those it is computed from
        if v in wanted:
            start = _computed_from(trace, trace.lift(v._start_in(trace)), starts, states)
            starts.update((read, start) for read in trace.effects.reads.get(v, ()))
            done.append(v._initialize(trace, start))
    return group(done, name=name)


def _computed_from(
    trace: Trace, value: Value, given: Mapping[Value, Value], states: Container[Value]
) -> Value:
    """`value`, computed again with the values `given` in place of others that it depends on.

    `value` itself if it depends on none of them, or if that would repeat an effect. states: handles
    of the states of random ops; each is one op's own, which draws from the initial state here and
    need not store the next.
    """
    ops, _ = needed_ops(trace.builder.ops, [value], given)
    changed = set(given)
    again: list[Operation] = []
    stored: set[Value] = set()
    for op in ops:
        if changed.isdisjoint((*op.operands, *op.control)):
            continue
        changed.update(op.results)
        if op.name == "assign" and op.operands[0] in states:
            stored.update(op.results)
        else:
            again.append(op)
    if any(lookup(op.name).traits & {"reads_state", "writes_state"} for op in again):
        return value
    mapping = dict(given)
    for op in again:
        after = with_control(op, [v for v in op.control if v not in stored])
        mapping.update(zip(op.results, trace.builder.clone(after, mapping), strict=True))
    return mapping.get(value, value)


def global_variables_initializer() -> Effect:
    """An effect that gives every variable of the graph its initial value.

    That is the value passed to `wf.Variable`; for a variable made outside the graph, the one that
    it had when the graph first used it.
    """
    trace = graph_trace("wf.global_variables_initializer")
    held = [] if trace is None else list(trace.variables.values())
    return variables_initializer(held)


def global_variables() -> list[Variable]:
    """The variables of the graph being built."""
    return get_default_graph().variables


def trainable_variables() -> list[Variable]:
    """Those of them that optimizers change by default."""
    return get_default_graph().trainable_variables


initialize_all_variables = global_variables_initializer
