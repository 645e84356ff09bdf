"""Where the host looks for indices out of bounds: before a variable is written, and at the end."""

from __future__ import annotations

from collections.abc import Sequence

from weft.runtime.device.planning.plan import (
    CheckFaults,
    DeviceNode,
    PlannedCopy,
    PlannedLaunch,
    inner,
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


def marks(nodes: Sequence[DeviceNode], last: bool) -> frozenset[int]:
    """After which of `nodes` a point in the device's work is noted for the next look: it waits for
    that alone, so the last before it that checks, unless it is the very last. last: whether there
    is a look behind them all. None where there is no look: what is noted is not recorded."""
    if not last and not _looks(nodes):
        return frozenset()
    found: set[int] = set()
    told = -1
    for k, node in enumerate(nodes):
        if isinstance(node, CheckFaults):
            if 0 <= told < k - 1:
                found.add(told)
            told = -1
        elif checks(node):
            told = k
    return frozenset(found if told < 0 else {*found, told})


def _looks(nodes: Sequence[DeviceNode]) -> bool:
    """Whether the host may look somewhere in there."""
    return any(isinstance(node, CheckFaults) or _looks(inner(node)) for node in nodes)


def checks(node: DeviceNode) -> bool:
    """Whether indices may be checked."""
    if isinstance(node, PlannedLaunch):
        return node.fault >= 0
    return any(map(checks, inner(node)))


def _writes(node: DeviceNode) -> bool:
    """Whether a variable may be written."""
    match node:
        case PlannedLaunch():
            return bool(node.writes)
        case PlannedCopy():
            return node.target.kind == "variable"
        case _:
            return any(map(_writes, inner(node)))
