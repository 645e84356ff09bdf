"""Program order of the effects in a compiled function that runs on the dataflow executor.

A `wf.Graph` orders effects by what the user says (`wf.control_dependencies`); a compiled function
does them in the order in which they stand, as Python would. Before::

    %1 = enqueue(%q, %x) : token
    %2 = dequeue(%q) : f32[]
    %3 = write_file(%name, %text) : token

After: `%2` is ``after(%1)``, `%3` is ``after(%2)``. In the bodies of branches and loops likewise;
an op with such a body is one effect among those around it. Effects are the ops of the host that
look at something or change it, calls of Python (`wf.debug_callback(ordered=False)` does without),
and assignments to variables: what has been stored when an op of the host fails is what the program
says. A graph with Switch and Merge stays as it is: what comes after a dead value would not run."""

from __future__ import annotations

from weft.ir.analysis.effects import INERT
from weft.ir.analysis.frames import is_dataflow
from weft.ir.graph import Block, Graph, Operation, Value
from weft.ir.ops import lookup
from weft.ir.ops.io import PYTHON_CALLS
from weft.passes.rewriting.rewrite import bind, rebuilt, with_block, with_control, with_operands

_STATEFUL = frozenset({"no_cse", "no_dce"})


def program_order(graph: Graph) -> Graph:
    """`graph` with control operands that keep its effects in the order in which they stand."""
    if is_dataflow(graph.block):
        return graph
    return with_block(graph, _ordered(graph.block))


def _ordered(block: Block) -> Block:
    mapping: dict[Value, Value] = {}
    ops: list[Operation] = []
    last: Value | None = None
    for op in block.ops:
        inside = tuple(map(_ordered, op.regions)) if op.regions else ()
        new = with_operands(op, mapping, inside)
        if keeps_order(op):
            if last is not None and last not in (*new.operands, *new.control):
                new = with_control(new, (*new.control, last))
            last = new.results[0] if new.results else last
        bind(mapping, op, new.results)
        ops.append(new)
    return rebuilt(block, ops, [mapping.get(v, v) for v in block.results])


def keeps_order(op: Operation) -> bool:
    """Whether `op`, or one in the regions that it runs, is an effect that keeps its place."""
    if op.name in PYTHON_CALLS:
        return bool(op.attrs.get("ordered", True))
    traits = lookup(op.name).traits
    if op.name == "assign" or ("host" in traits and traits & _STATEFUL):
        return True
    regions = () if op.name in INERT else op.regions
    return any(keeps_order(inner) for region in regions for inner in region.ops)
