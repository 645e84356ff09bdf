"""What waits for what over all parts of a partitioned graph, as the executor runs them."""

from __future__ import annotations

from typing import Any

import networkx as nx

from weft.ir.analysis.frames import find_frames
from weft.ir.graph import Operation
from weft.ir.program import Part, Program
from weft.passes.control.dataflow_regions import control_operands, data_operands, plan_regions
from weft.passes.control.lower_control_flow import lower_control_flow
from weft.passes.sizes import tie_sizes

#: Where enters, next_iterations and exits of loops are, by the names of their frames.
_Loops = dict[tuple[str, ...], tuple[list[object], list[object]]]


def cycle_of(made: Program) -> list[object]:
    """Regions, ops and keys of messages that wait for each other in one iteration; [] if none do.

    A loop is over, on each device, when all that goes round in it anywhere has done so.
    """
    waits = nx.DiGraph()
    loops: _Loops = {}
    for part in made.parts:
        _add(waits, part, loops)
    for before, exits in loops.values():
        waits.add_edges_from((first, last) for first in before for last in exits)
    try:
        return [edge[0] for edge in nx.find_cycle(waits)]
    except nx.NetworkXNoCycle:
        return []


def _add(waits: Any, part: Part, loops: _Loops) -> None:
    graph = lower_control_flow(tie_sizes(part.graph), mode="auto", whole_updates=True)
    shared = {op.attrs["frame"] for op in part.graph.ops if op.name == "enter"}
    owner: dict[Operation, object] = {
        op: region for region in plan_regions(graph).regions for op in region.ops
    }

    def node(op: Operation) -> object:
        return owner.get(op, op)

    for op in graph.ops:
        given = op.operands[:1] if op.name == "next_iteration" else data_operands(op)
        made = [v.op for v in (*given, *control_operands(op)) if v.op is not None]
        waits.add_edges_from((node(first), node(op)) for first in made if node(first) != node(op))
        if op.name == "send":
            waits.add_edge(node(op), op.attrs["key"])
        elif op.name == "recv":
            waits.add_edge(op.attrs["key"], node(op))
    for frame in find_frames(graph.block).inner:
        name = tuple(f.name for f in frame.around())
        held = loops.setdefault(name if frame.name in shared else (part.device, *name), ([], []))
        held[0].extend(map(node, (*frame.enters, *frame.nexts.values())))
        held[1].extend(map(node, frame.exits))
