"""Whose memory a value is in, and which ops may write there: what an order of groups must respect
if nothing is to be copied.
"""

from __future__ import annotations

from collections.abc import Iterator

from weft.ir.graph import Graph, Operation, Value
from weft.ir.index_maps import is_index_map
from weft.ir.ops import lookup
from weft.ir.ops.control import CONTROL
from weft.passes.fusion.matmul import variable_of
from weft.passes.memory.in_place import UPDATES
from weft.passes.rewrite import behind_views


def root_of(value: Value) -> Value:
    """The value in whose memory `value` is, seen through views and index maps."""
    while value.op is not None and value.op.operands:
        if "view" not in lookup(value.op.name).traits and not is_index_map(value.op):
            break
        value = value.op.operands[0]
    return value


class Writers:
    """The ops of a graph that may write into the buffer of a value."""

    def __init__(self, graph: Graph) -> None:
        self._of: dict[Value, list[Operation]] = {}
        self._assigns: dict[str, list[Operation]] = {}
        for op in graph.ops:
            if op.name in UPDATES or op.name in CONTROL:
                given = op.operands[:1] if op.name in UPDATES else op.operands
                for root in dict.fromkeys(root_of(v) for v in given):
                    self._of.setdefault(root, []).append(op)
            name = variable_of(op.operands[0]) if op.name == "assign" else None
            if name is not None:
                self._assigns.setdefault(name, []).append(op)

    def of(self, root: Value) -> Iterator[Operation]:
        """What may write where `root` is."""
        yield from self._of.get(root, ())
        name = variable_of(root)
        for op in self._assigns.get(name, ()) if name is not None else ():
            yield op
            yield from makers_of(op.operands[1])


def makers_of(value: Value) -> Iterator[Operation]:
    """What computes a value, an update of another one together with that."""
    op = behind_views(value).op
    if op is not None and op.name != "read":
        yield op
        if op.name in UPDATES:
            yield from makers_of(op.operands[0])
