"""What a loop on small arrays adds up in registers stays there when the loop is lowered.

Native code keeps the values of such a loop in registers, one for each element, and adds them up one
after another; a kernel of its own would do so in the lanes of vectors. Before, in its body::

    %2 = fused(%0) {kind="multiply_sum"} : f32[] { ... }

After::

    %2 = unrolled(%0) : f32[] {
      ^(%a0: f32[4])
      %0 = fused(%a0) {kind="multiply_sum"} : f32[] { ... }
      yield %0
    }

So the lowered loop has the bits of the native one. Comes after fusion; what only goes through
elements one by one has its bits anyway.
"""

from __future__ import annotations

from collections.abc import Callable

from weft.ir.builder import Builder
from weft.ir.graph import Block, Graph, Operation, Value
from weft.ir.ops import lookup
from weft.ir.ops.control import CONTROL
from weft.passes.rewrite import rebuilt, with_block, with_operands


def unroll(graph: Graph, is_unrolled: Callable[[Operation], bool]) -> Graph:
    """`graph` with sums and products of matrices in `unrolled` ops, in the loops that
    `is_unrolled`; the same object if there are none."""
    return with_block(graph, _block(graph.block, is_unrolled, inside=False))


def _block(block: Block, is_unrolled: Callable[[Operation], bool], inside: bool) -> Block:
    builder = Builder()
    builder.args = list(block.args)
    mapping: dict[Value, Value] = {}
    for op in block.ops:
        new = with_operands(op, mapping)
        if op.name in CONTROL:
            within = inside or is_unrolled(op)
            regions = tuple(_block(r, is_unrolled, within) for r in op.regions)
            new = with_operands(op, mapping, regions)
        elif inside and _folds(op):
            new = _unrolled(new)
        builder.ops.append(new)
        mapping.update((a, b) for a, b in zip(op.results, new.results, strict=True) if a is not b)
    return rebuilt(block, builder.ops, [mapping.get(v, v) for v in block.results])


def _folds(op: Operation) -> bool:
    """Whether the order in which an op, or one in its nest, adds up is the code generator's."""
    inner = op.regions[0].ops if op.name == "fused" else (op,)
    return any(o.name == "matmul" or "reduction" in lookup(o.name).traits for o in inner)


def _unrolled(op: Operation) -> Operation:
    inner = Builder([v.type for v in op.operands])
    (*made,) = inner.clone(op, dict(zip(op.operands, inner.args, strict=True)))
    types = [r.type for r in op.results]
    region = inner.block(made)
    return Operation("unrolled", op.operands, {}, types, (region,), op.control, op.locations)
