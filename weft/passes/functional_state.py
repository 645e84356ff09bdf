"""State as values: a graph that reads and assigns variables as one that takes their values and
gives the new ones, so that it can be stored, called and differentiated as a pure function.

Before `functional_state`::

    graph @step(%x: f32[]) -> (f32[]) {
      %0 = variable() {name="total", ...} : ref<f32[]>
      %1 = read(%0) : f32[]
      %2 = add(%1, %x) : f32[]
      %3 = assign(%0, %2) after(%1) : token
      return %2

After, with `variables` and `written` both ("total",)::

    graph @step(%x: f32[], %total: f32[]) -> (f32[], f32[]) {
      %0 = add(%total, %x) : f32[]
      return %0, %0

Effects of a trace stand in the order of the program, so the value of a variable at an op is what
the last assignment before it gave. JAX's `Exported` holds such functions, too."""

from __future__ import annotations

from collections.abc import Mapping

from weft.ir.analysis.effects import state_key
from weft.ir.dataclass import dataclass
from weft.ir.errors import UnsupportedError
from weft.ir.graph import Block, Graph, Operation, Value
from weft.ir.types import HandleType, RefType
from weft.passes.rewriting.rewrite import extend, placed_as
from weft.passes.simplify.effects import expand_updates


@dataclass(frozen=True, slots=True)
class Functional:
    """A graph without state. variables: the names of those whose values follow its own arguments,
    in the order in which they are first used; written: of those whose new values follow its own
    results."""

    graph: Graph
    variables: tuple[str, ...]
    written: tuple[str, ...]


def functional_state(graph: Graph) -> Functional:
    """The graph with values in place of its variables (see the module's text).

    UnsupportedError for what has no such form: objects of the host (queues, tables, readers), ops
    that ask whether a variable has a value, variables whose shape may change, and accesses inside
    the body of a branch or loop that also acts on the host."""
    graph = expand_updates(graph)
    builder = extend(graph.block)
    mapping: dict[Value, Value] = {}
    held: dict[str, Value] = {}  # the value of each variable, at this op
    first: dict[str, Value] = {}  # and at the beginning
    done: set[Value] = set()  # tokens of assignments, which are gone
    names = list(graph.arg_names)
    for op in graph.block.ops:
        if op.name == "variable":
            continue
        _check(op)
        if op.name in ("read", "assign"):
            name = str(state_key(op.operands[0]))
            if name not in held:
                ref = op.operands[0].type
                assert isinstance(ref, RefType)
                held[name] = first[name] = builder.add_arg(ref.tensor)
            if op.name == "read":
                mapping[op.result] = held[name]
            else:
                held[name] = mapping.get(op.operands[1], op.operands[1])
                done.add(op.result)
            continue
        made = _without(op, mapping, done)
        builder.ops.append(made)
        mapping.update(zip(op.results, made.results, strict=True))
    for name in first:
        names.append(_free(name, names))
    written = tuple(name for name, value in held.items() if value is not first[name])
    results = [mapping.get(v, v) for v in graph.block.results]
    block = Block(tuple(builder.args), tuple(builder.ops), (*results, *map(held.get, written)))  # type: ignore[arg-type]
    made_graph = Graph(graph.name, block, tuple(names), graph.stage)
    return Functional(made_graph, tuple(first), written)


def _check(op: Operation) -> None:
    """UnsupportedError for an op that no pure function holds."""
    handles = [v.type for v in (*op.operands, *op.results) if isinstance(v.type, HandleType)]
    if handles:
        raise UnsupportedError(
            f"op '{op.name}' acts on a {handles[0]}, which lives in this process only",
            hint="export the part of the model that computes; feed what queues, tables and readers "
            "give as arguments",
            location=op.locations,
        )
    if op.name in ("read", "assign"):
        return
    refs = [v for v in op.operands if isinstance(v.type, RefType)]
    if refs:
        raise UnsupportedError(
            f"op '{op.name}' acts on the variable '{state_key(refs[0])}' itself, not on its value",
            hint="read the variable outside, and pass the value",
            location=op.locations,
        )


def _without(op: Operation, mapping: Mapping[Value, Value], done: set[Value]) -> Operation:
    """The op on mapped values, after nothing that is gone. The values that were read are arguments
    now, or operands of what was assigned: they order nothing."""
    after = (mapping.get(v, v) for v in op.control if v not in done)
    control = tuple(dict.fromkeys(v for v in after if v.op is not None))
    operands = tuple(mapping.get(v, v) for v in op.operands)
    types = [r.type for r in op.results]
    made = Operation(op.name, operands, op.attrs, types, op.regions, control, op.locations)
    return placed_as(op, made)


def _free(name: str, taken: list[str]) -> str:
    made, number = name, 1
    while made in taken:
        made, number = f"{name}_{number}", number + 1
    return made
