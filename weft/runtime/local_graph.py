"""Graphs for sessions without a cluster, and for compiled functions: all on the devices here."""

from __future__ import annotations

from weft.ir.device import DeviceSpec, check_local
from weft.ir.graph import Block, Graph, Operation, Value
from weft.passes.rewriting.rewrite import bind, rebuilt, with_block, with_operands
from weft.runtime.device.names import local_devices


def on_local_device(graph: Graph, gpu: int | None = None) -> Graph:
    """`graph` without devices and groups, after checking that each device is the CPU of this
    process, or that GPU of it; the graph itself if it names none. InvalidArgumentError with the
    line of the op."""
    named = False
    for op in graph.walk():
        if op.device:
            spec = DeviceSpec.parse(op.device)
            check_local(spec, op.locations, gpu, devices=local_devices)
        named = named or bool(op.device or op.group)
    return with_block(graph, _bare(graph.block)) if named else graph


def _bare(block: Block) -> Block:
    mapping: dict[Value, Value] = {}
    ops: list[Operation] = []
    for op in block.ops:
        new = with_operands(op, mapping, tuple(_bare(region) for region in op.regions))
        if new.device or new.group:
            types = [r.type for r in op.results]
            new = Operation(
                op.name, new.operands, op.attrs, types, new.regions, new.control, op.locations
            )
        bind(mapping, op, new.results)
        ops.append(new)
    return rebuilt(block, ops, [mapping.get(v, v) for v in block.results])
