"""Scales and offsets after products with constant weights, multiplied into the weights: inference
with batch normalisation does one product and one addition (Jacob et al. 2018, section 3.2).

Before, where %w, %s, %a and %b are constants, the latter three with an element for each column::

    %0 = matmul(%x, %w) : f32[n,8]
    %1 = subtract(%0, %a) : f32[n,8]
    %2 = multiply(%1, %s) : f32[n,8]
    %3 = add(%2, %b) : f32[n,8]

After: ``matmul(%x, %w * %s)`` and ``add(that, %b - %a * %s)``, of which `fold` computes what is
known. Sums are rounded otherwise than before, so no pipeline does it by itself: `wf.export` with
`freeze=True` does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from weft.ir.analysis.known_values import constant_of, uniform
from weft.ir.graph import Block, Graph, Operation, Value
from weft.ir.ops.builder import Builder
from weft.ir.types import TensorType
from weft.passes.rewriting.rewrite import emit_at, fixed_point, rewrite, shape_of, tensor
from weft.passes.simplify.cse_dce import dce
from weft.passes.simplify.fold import fold

_SCALES, _OFFSETS = ("multiply", "divide"), ("add", "subtract")


def fold_scales(graph: Graph) -> Graph:
    """Multiply scales into the weights (see the module's text), inside regions too."""
    return fixed_point(dce(graph), _once)  # who is dead uses nothing


def _once(graph: Graph) -> Graph:
    uses = _uses(graph.block)
    return dce(fold(rewrite(graph, lambda builder, op: _folded(builder, op, uses))))


def _uses(block: Block) -> Counter[Value]:
    found: Counter[Value] = Counter(block.results)
    for op in block.ops:
        found.update(op.operands)
        for region in op.regions:
            found.update(_uses(region))
    return found


def _folded(builder: Builder, op: Operation, uses: Counter[Value]) -> Sequence[Value] | None:
    if op.name not in (*_SCALES, *_OFFSETS) or not tensor(op.result).dtype.is_inexact:
        return None
    value, other = op.operands
    if op.name in ("multiply", "add") and _leads_to_product(other):
        value, other = other, value
    before = value.op
    if before is None or uses[value] != 1 or not _leads_to_product(value):
        return None
    channels = _channels(builder, op, other)
    if channels is None:
        return None
    if op.name in _SCALES:
        if before.name not in _OFFSETS:
            return [_scaled(builder, op, before, channels)]
        inner, offset = before.operands
        own = _channels(builder, op, offset)
        if own is None:
            return None
        scaled = emit_at(builder, op, op.name, inner, _spread(builder, op, channels, op.result))
        moved = emit_at(builder, op, op.name, own, channels)
        return [emit_at(builder, op, before.name, scaled, _spread(builder, op, moved, op.result))]
    if before.name not in _OFFSETS:
        return None  # a product and an offset: as simple as it gets
    inner, offset = before.operands
    own = _channels(builder, op, offset)
    if own is None:
        return None
    name = "add" if before.name == op.name else "subtract"
    moved = emit_at(builder, op, name, own, channels)  # of the sign that the first one has
    return [emit_at(builder, op, before.name, inner, _spread(builder, op, moved, op.result))]


def _leads_to_product(value: Value) -> bool:
    """Whether it is a product with constant weights, with offsets after it or not."""
    op = value.op
    while op is not None and op.name in _OFFSETS:
        op = op.operands[0].op
    return op is not None and op.name in ("matmul", "conv") and _weights(op) is not None


def _weights(op: Operation) -> Value | None:
    return None if constant_of(op.operands[1]) is None else op.operands[1]


def _scaled(builder: Builder, op: Operation, product: Operation, channels: Value) -> Value:
    """The product with scaled weights. op: multiplies or divides by `channels`."""
    weights = product.operands[1]
    if product.attrs.get("transpose_b"):  # columns are the last axis but one
        column = emit_at(builder, op, "reshape", channels, shape=(*shape_of(channels), 1))
        scale = emit_at(builder, op, "broadcast_to", column, shape=shape_of(weights))
    else:
        scale = _spread(builder, op, channels, weights)
    made = emit_at(builder, op, op.name, weights, scale)
    (result,) = builder.emit(
        product.name, [product.operands[0], made], product.attrs,
        locations=(*product.locations, *op.locations),
    )  # fmt: skip
    return result


def _spread(builder: Builder, op: Operation, channels: Value, like: Value) -> Value:
    return emit_at(builder, op, "broadcast_to", channels, shape=shape_of(like))


def _channels(builder: Builder, op: Operation, value: Value) -> Value | None:
    """The element of each channel, a constant of rank 1, of a constant that differs along the last
    axis alone; None for any other value."""
    kind = value.type
    assert isinstance(kind, TensorType)
    size = kind.shape[-1] if kind.rank else None
    if not isinstance(size, int):
        return None
    if uniform(value) is not None:
        scalar = value if value.op is None or value.op.name == "constant" else value.op.operands[0]
        return emit_at(builder, op, "broadcast_to", scalar, shape=(size,))
    if value.op is not None and value.op.name == "broadcast_to":
        value = value.op.operands[0]
    held = constant_of(value)
    if held is None or held.array.size != size or shape_of(value)[-1:] != (size,):
        return None
    return emit_at(builder, op, "reshape", value, shape=(size,))
