"""Which branches and loops span devices: those become Switch, Merge and frames before the cut.

One whose ops are all on one device stays as it is, and native code there.
"""

from __future__ import annotations

from collections.abc import Iterator

from weft.ir.builder import Builder
from weft.ir.errors import UnsupportedError
from weft.ir.graph import Block, Graph, Operation, Value
from weft.ir.ops.control import CONTROL
from weft.ir.types import HandleType, RefType
from weft.passes.control.lower_control_flow import lower_control_flow
from weft.passes.control.lowering_choice import decide
from weft.passes.control.places import used_args
from weft.passes.rewrite import bind, rebuilt, rewrite, with_block, with_operands
from weft.passes.strip import strip_mark


def lower_spanning(graph: Graph) -> Graph:
    """`graph` without branches and loops that span devices, and without marks for gradients.

    UnsupportedError for a scan that spans devices and whose length only a step knows.
    """
    graph = rewrite(graph, strip_mark)
    graph = with_block(graph, _without_idle_handles(graph.block))
    for op in graph.walk():
        if op.name in CONTROL and spans(op):
            lowered, why = decide(op, "dataflow")
            if not lowered:
                raise UnsupportedError(
                    f"op '{op.name}' runs on several devices, "
                    f"{', '.join(sorted(devices_in(op)))}, but cannot be cut: {why}",
                    hint="put all of it on one device",
                    location=op.locations,
                )
    return lower_control_flow(graph, which=spans)


def _without_idle_handles(block: Block) -> Block:
    """`block` in which branches and loops take no state and no queues that they do not use."""
    mapping: dict[Value, Value] = {}
    ops: list[Operation] = []
    for op in block.ops:
        new = with_operands(op, mapping)
        if op.name in CONTROL:
            new = _shed(new, tuple(_without_idle_handles(r) for r in op.regions))
        bind(mapping, op, new.results)
        ops.append(new)
    return rebuilt(block, ops, [mapping.get(v, v) for v in block.results])


def _shed(op: Operation, regions: tuple[Block, ...]) -> Operation:
    """A branch or loop with other regions, and without the handles that these do not use."""
    first = op.name == "cond"
    used = set[int]().union(*map(used_args, regions))
    handles = (RefType, HandleType)
    idle = {
        i
        for i, v in enumerate(op.operands[first:])
        if i not in used and isinstance(v.type, handles)
    }
    if not idle and all(a is b for a, b in zip(regions, op.regions, strict=True)):
        return op
    shed = []
    for region in regions:
        builder = Builder([a.type for i, a in enumerate(region.args) if i not in idle])
        kept = [a for i, a in enumerate(region.args) if i not in idle]
        mapping = dict(zip(kept, builder.args, strict=True))
        for inner in region.ops:
            mapping.update(zip(inner.results, builder.clone(inner, mapping), strict=True))
        shed.append(builder.block([mapping[v] for v in region.results]))
    operands = [v for i, v in enumerate(op.operands) if i - first not in idle]
    return Operation(
        op.name, operands, op.attrs, [r.type for r in op.results], shed, op.control, op.locations,
        device=op.device, group=op.group,
    )  # fmt: skip


def spans(op: Operation) -> bool:
    """Whether the ops in the regions of `op` are on several devices."""
    return len(devices_in(op)) > 1


def home_of(op: Operation) -> str:
    """Where an op that spans no devices runs: with the ops in its regions, if there are any; ""
    if nothing says where."""
    return next(iter(devices_in(op)), op.device)


def devices_in(op: Operation) -> set[str]:
    """The devices of the ops in the regions of `op`; constants are copied, so theirs do not
    count, nor do those of branches and loops that hold others."""
    return {inner.device for region in op.regions for inner in _leaves(region) if inner.device}


def _leaves(block: Block) -> Iterator[Operation]:
    for op in block.ops:
        if op.name == "constant":
            continue
        inside = [inner for region in op.regions for inner in _leaves(region)]
        if op.name in CONTROL and inside:
            yield from inside
        else:
            yield op
