"""Dead code elimination: drop ops whose results nobody needs.

Before::

    %0 = exp(%x) : f32[4]
    %1 = log(%x) : f32[4]
    return %1

After: `%0` is gone. Ops with the trait ``no_dce`` (assignments) stay. A control operand does not
keep an op alive, unless it tells a size (`tie_sizes`); if a dropped op stood between two effects,
the later one is ordered after what the dropped op itself was ordered after. An op that might fail
(an index out of bounds) goes, too.
At stage `dataflow` control operands count: whether they are dead decides whether the op runs.
"""

from __future__ import annotations

from weft.ir.graph import WITH_DEAD_VALUES, Block, Graph, Operation, Value
from weft.passes.rewrite import must_run, rebuilt, with_block, with_control, with_operands
from weft.passes.tie_sizes import told_by_control


def dce(graph: Graph) -> Graph:
    """Drop dead ops, inside regions too. Arguments and results of the graph stay."""
    return with_block(graph, _dce_block(graph.block, graph.stage in WITH_DEAD_VALUES))


def _dce_block(block: Block, control_counts: bool = False) -> Block:
    live: set[Operation] = set()
    needed = set(block.results)
    for op in reversed(block.ops):
        if must_run(op) or not needed.isdisjoint(op.results):
            live.add(op)
            needed.update(op.operands)
            if op.control:
                needed.update(op.control if control_counts else told_by_control(op))
    order: dict[Value, tuple[Value, ...]] = {}  # result of a dropped op -> what it came after
    mapping: dict[Value, Value] = {}
    ops: list[Operation] = []
    for op in block.ops:
        control = [w for v in op.control for w in order.get(v, (v,))] if op.control else []
        if op not in live:
            before = [w for v in op.operands for w in order.get(v, (v,)) if w.op is not None]
            carried = tuple(dict.fromkeys([*control, *before]))
            order.update((r, carried) for r in op.results)
            continue
        new = with_control(op, list(dict.fromkeys(control))) if control or op.control else op
        new = with_operands(new, mapping, op.regions and tuple(_dce_block(r) for r in op.regions))
        if new is not op:
            mapping.update(zip(op.results, new.results, strict=True))
        ops.append(new)
    return rebuilt(block, ops, [mapping.get(v, v) for v in block.results])
