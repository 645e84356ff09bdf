"""Remove the ops that only tell autodiff something, when no more gradients will be taken.

Before::

    %1 = stop_gradient(%0) : f32[4]
    %2 = custom_gradient(%1, %x) {outputs=1, inputs=1} : f32[4] { ... }
    return %2

After: ``return %0``, and the graph's stage is `optimized`.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.ir.builder import Builder
from weft.ir.graph import Graph, Operation, Value
from weft.ir.rules import int_attr
from weft.passes.effects import order_effects
from weft.passes.rewrite import rewrite
from weft.passes.updates import expand_updates


def strip_gradient_ops(graph: Graph) -> Graph:
    """Replace `identity`, `stop_gradient` and `custom_gradient` by the operands they pass on.

    Orders effects first, or the order that such an op stands for would be lost, and expands
    updates, of which no later stage knows.
    """
    new = rewrite(order_effects(expand_updates(graph)), strip_mark)
    return new.at_stage("optimized") if new.stage == "traced" else new


def strip_mark(builder: Builder, op: Operation) -> Sequence[Value] | None:
    """The rule by which one mark goes; marks that take part in the order of effects stay."""
    if op.name in ("identity", "stop_gradient"):
        return op.operands
    if op.name == "custom_gradient":
        return op.operands[: int_attr(op.attrs, "outputs")]
    return None
