"""A plan for a GPU, for people: which launches, on what, why."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from weft.codegen.nests.rows import RowNest, describe_rows
from weft.runtime.device.planning.plan import (
    CheckFaults,
    DeviceAdd,
    DeviceBranch,
    DeviceLoop,
    DeviceNode,
    DevicePlan,
    DevicePop,
    DevicePush,
    PlannedCopy,
    PlannedLaunch,
    PlannedProduct,
)


def describe_plan(plan: DevicePlan) -> str:
    """The launches numbered in order; loops and branches with their bodies indented."""
    return "\n".join(_lines(plan.nodes, "", iter(range(1, 1 << 62))))


def _lines(nodes: Sequence[DeviceNode], pad: str, number: Iterator[int]) -> Iterator[str]:
    inner, told = pad + "  ", None
    for node in nodes:
        match node:
            case PlannedLaunch():
                yield f"{pad}{next(number)}. {_launch(node)}"
                if node.nest is not None and node.nest is not told:
                    told = node.nest
                    text = describe_rows(told) if isinstance(told, RowNest) else told.describe()
                    yield from (f"{pad}   {line}" for line in text.rstrip().splitlines())
            case PlannedProduct():
                yield from _lines(node.own, pad, number)
            case PlannedCopy():
                yield (f"{pad}copy {node.source.nbytes} bytes {node.source} -> {node.target}"
                       f"  # {node.why}")  # fmt: skip
            case CheckFaults():
                yield f"{pad}the host looks for indices out of bounds: variables are written next"
            case DeviceLoop():
                times = "" if node.limit < 0 else f" {node.limit} times"
                yield f"{pad}{node.op.name}: loop{' at most' if node.test else ''}{times}"
                yield from _lines(node.test, inner, number)
                if node.decision is not None:
                    yield f"{inner}the host leaves unless {node.decision} holds"
                yield from _lines(node.body, inner, number)
            case DevicePush():
                yield f"{pad}the host keeps {node.value} for the gradient  # {node.op.name}"
            case DevicePop():
                yield f"{pad}the host gives back what was kept to {node.top}  # {node.op.name}"
            case DeviceAdd():
                yield f"{pad}the host adds up what was kept, element by element  # {node.op.name}"
                yield from _lines(node.launches, inner, number)
            case DeviceBranch():
                yield f"{pad}cond: if {node.decision}, which the host reads"
                yield from _lines(node.then, inner, number)
                yield f"{pad}else"
                yield from _lines(node.orelse, inner, number)


def _launch(node: PlannedLaunch) -> str:
    launch, op = node.launch, node.op
    where = f" ({op.locations[0]})" if op is not None and op.locations else ""
    what = f"  # {op.name}{where}" if op is not None else ""
    return f"{launch.kernel.name}<<<{launch.blocks}, {launch.block_threads}>>>{what}"
