"""Explanation of a graph on the dataflow executor: nodes, regions and ops of the host as text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from weft.ir.graph import Operation
from weft.runtime.dataflow import layout as at
from weft.runtime.dataflow.build import Built

_MOST_LINES = 40


def describe_nodes(built: Built) -> Iterator[str]:
    """The nodes of the executor: regions with their kernels, ops of the host, control flow."""
    regions = list(zip(built.region_of.items(), built.notes, strict=True))
    yield f"{len(built.nodes)} nodes"
    yield f"  {len(regions)} compiled regions"
    for (node, region), note in regions[:_MOST_LINES]:
        python = node.kind == at.HOST and note.python
        how = f", run by Python, since {note.python}" if python else ""
        inside = f", in loop {built.frame_names[node.frame]}" if node.frame else ""
        yield f"    {_names(region.ops)}{inside}: {note.text}{how}"
    if len(regions) > _MOST_LINES:
        yield f"    and {len(regions) - _MOST_LINES} more"
    alone = {node: op for node, op in built.op_of.items() if node not in built.region_of}
    hosts = [op for node, op in alone.items() if node.kind == at.HOST]
    yield f"  {len(hosts)} ops of the host"
    yield from (f"    {op.name}{_at(op)}" for op in hosts[:_MOST_LINES])
    if len(hosts) > _MOST_LINES:
        yield f"    and {len(hosts) - _MOST_LINES} more"
    counts: dict[str, int] = {}
    for node, op in alone.items():
        if node.kind != at.HOST:
            counts[op.name] = counts.get(op.name, 0) + 1
    listed = ", ".join(f"{n} {name}" for name, n in counts.items())
    yield f"  control flow: {listed or 'none'}"


def _names(ops: Sequence[Operation]) -> str:
    names = list(dict.fromkeys(op.name for op in ops if op.name not in ("constant", "variable")))
    where = next((_at(op) for op in ops if op.locations), "")
    return ", ".join(names[:6]) + (", ..." if len(names) > 6 else "") + where


def _at(op: Operation) -> str:
    return f" at {op.locations[0]}" if op.locations else ""
