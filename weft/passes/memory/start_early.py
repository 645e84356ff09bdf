"""Sums over processes start when their last member is made, so that the step goes on meanwhile.

Before::

    %1 = matmul(%a, %g); %2 = matmul(%g, %w); ...; %8 = matmul(%b, %h)
    %9 = exchange(%1) {kind="start"}; %10 = exchange(%8) {kind="start"}

After: `%9` comes right behind `%1`. It stays behind what it waits for by control operands, so calls
of Python keep their order. It is the last pass: the order that it gives is that of the step."""

from __future__ import annotations

from weft.ir.graph import Block, Graph, Operation
from weft.ir.ops.collectives import is_exchange
from weft.passes.rewriting.rewrite import is_view, rebuilt, with_block


def start_early(graph: Graph) -> Graph:
    """Put the starts of sums where they can be first (see the module's text)."""
    if not any(is_exchange(op, "start") for op in graph.ops):
        return graph
    return with_block(graph, _moved(graph.block))


def _moved(block: Block) -> Block:
    #: By op: the number of the one that it comes behind, or its own, and which of those it is.
    place: dict[Operation, tuple[int, int]] = {op: (k, 0) for k, op in enumerate(block.ops)}
    moved = 0

    def move(op: Operation) -> None:
        """Put the op, and the views that it reads, behind all that it waits for."""
        nonlocal moved
        before = -1
        for value in (*op.operands, *op.control):
            if value.op is None:
                continue
            if is_view(value.op) and place[value.op][1] == 0:
                move(value.op)
            before = max(before, place[value.op][0])
        moved += 1
        place[op] = before, moved

    for op in block.ops:
        if is_exchange(op, "start"):
            move(op)
    ops = sorted(block.ops, key=place.__getitem__)
    return rebuilt(block, ops, block.results)
