"""Where the host looks for indices out of bounds: before a variable is written."""

from __future__ import annotations

from collections.abc import Sequence

from weft.runtime.device.planning.plan import (
    CheckFaults,
    DeviceBranch,
    DeviceLoop,
    DeviceNode,
    PlannedCopy,
    PlannedLaunch,
    PlannedProduct,
)


def looked_first(nodes: Sequence[DeviceNode]) -> tuple[tuple[DeviceNode, ...], bool]:
    """`nodes` with a look before what first writes a variable, where none comes before that; and
    whether there is one now. For bodies of loops, where the iteration before may have failed."""
    for k, node in enumerate(nodes):
        if isinstance(node, CheckFaults):
            return tuple(nodes), True
        if _writes(node):
            return (*nodes[:k], CheckFaults(), *nodes[k:]), True
    return tuple(nodes), False


def _writes(node: DeviceNode) -> bool:
    """Whether a variable may be written."""
    match node:
        case PlannedLaunch():
            return bool(node.writes)
        case PlannedProduct():
            return any(map(_writes, node.own))
        case PlannedCopy():
            return node.target.kind == "variable"
        case DeviceLoop():
            return any(map(_writes, (*node.test, *node.body)))
        case DeviceBranch():
            return any(map(_writes, (*node.then, *node.orelse)))
        case _:
            return False
