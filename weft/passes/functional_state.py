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

from weft.ir.analysis.effects import state_key
from weft.ir.dataclass import dataclass
from weft.ir.errors import UnsupportedError
from weft.ir.graph import Graph, Operation, Value, unique_name
from weft.ir.types import HandleType, RefType
from weft.passes.rewriting.rewrite import bind, extend, with_control, with_operands
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
        made = with_operands(op, mapping)
        # what was read is an argument now, or an operand of what was assigned: it orders nothing
        after = [v for v in made.control if v.op is not None and v not in done]
        made = with_control(made, after)
        builder.ops.append(made)
        bind(mapping, op, made.results)
    for name in first:
        names.append(unique_name(name, names))
    written = tuple(name for name, value in held.items() if value is not first[name])
    results = [mapping.get(v, v) for v in graph.block.results]
    block = builder.block([*results, *(held[name] for name in written)])
    return Functional(Graph(graph.name, block, tuple(names), graph.stage), tuple(first), written)


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
