"""Passes on the regions of control flow: a body is a graph of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from weft.ir.builder import Builder
from weft.ir.graph import Block, Graph, Operation, Value
from weft.ir.ops.control import CONTROL


def in_regions(graph: Graph, run: Callable[[Graph], Graph]) -> Graph:
    """`run` on every region of `cond`, `while` and `scan`, each of which becomes its op's own.

    `run` is called with the regions as graphs at the stage of `graph`; it sees to their own regions
    itself. The result has the stage of `graph`.
    """
    if not any(op.name in CONTROL for op in graph.ops):
        return graph
    builder = Builder([a.type for a in graph.args])
    mapping: dict[Value, Value] = dict(zip(graph.args, builder.args, strict=True))
    for op in graph.ops:
        made = builder.clone(_on_regions(op, graph.stage, run), mapping)
        mapping.update(zip(op.results, made, strict=True))
    results = [mapping[v] for v in graph.results]
    return builder.graph(graph.name, graph.arg_names, results, graph.stage)


def _on_regions(op: Operation, stage: str, run: Callable[[Graph], Graph]) -> Operation:
    if op.name not in CONTROL:
        return op
    regions = [_run_on(block, op, stage, run) for block in op.regions]
    types = [r.type for r in op.results]
    made = Operation(op.name, op.operands, op.attrs, types, regions, op.control, op.locations)
    made.device, made.group = op.device, op.group
    return made


def _run_on(block: Block, op: Operation, stage: str, run: Callable[[Graph], Graph]) -> Block:
    names = tuple(f"a{k}" for k in range(len(block.args)))
    return run(Graph(f"{op.name} body", block, names, stage)).block


def copy_needed(
    builder: Builder, body: Block, results: Sequence[Value], mapping: dict[Value, Value]
) -> None:
    """Copy the ops that the results need, up to what `mapping` has already, and note the copies."""
    known = set(mapping)
    needed = set(results)
    for op in reversed(body.ops):
        if any(r in needed and r not in known for r in op.results):
            needed.update(op.operands)
    for op in body.ops:
        if any(r in needed and r not in known for r in op.results):
            for old, new in zip(op.results, builder.clone(op, mapping), strict=True):
                mapping.setdefault(old, new)
