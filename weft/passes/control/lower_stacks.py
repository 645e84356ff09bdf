"""Lowering of stacks: they become handles, i64[], which later passes treat as any other number.

Before::

    %0 = stack_new() {dtype=f32, shape=[3], depth=1} : stack<f32[3]>
    %1 = stack_push(%0, %x) {limit=-1} : stack<f32[3]>
    %2, %3 = stack_pop(%1) : stack<f32[3]>, f32[3]

After::

    %0 = constant() {value=i64[] 0} : i64[]
    %1 = arena_push(%0, %x) {limit=-1, nested=false} : i64[]
    %2, %3 = arena_pop(%1) {dtype=f32, shape=[3], ...} : i64[], f32[3]

The elements are in the arena of the running step (`codegen/kernels/stack.py`). Comes after
autodiff, which must know what is a stack."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from weft.ir.graph import Block, Graph, Operation, Value
from weft.ir.ops.builder import Builder
from weft.ir.ops.control_flow import HANDLE
from weft.ir.spec import AttrValue, ConstArray
from weft.ir.types import StackType, Type
from weft.passes.rewriting.rewrite import with_block

_ZERO = ConstArray(np.zeros((), np.int64))


def lower_stacks(graph: Graph) -> Graph:
    """The graph without stacks; the same object if there are none."""
    return with_block(graph, _block(graph.block))


def holds_stacks(op: Operation) -> bool:
    """Whether the op, or one in its regions, takes or gives a stack."""
    if any(isinstance(v.type, StackType) for v in (*op.operands, *op.results)):
        return True
    return any(holds_stacks(inner) for region in op.regions for inner in region.ops)


def _block(block: Block) -> Block:
    stacks = any(isinstance(a.type, StackType) for a in block.args)
    if not stacks and not any(map(holds_stacks, block.ops)):
        return block
    builder = Builder([_lowered(a.type) for a in block.args])
    mapping: dict[Value, Value] = dict(zip(block.args, builder.args, strict=True))
    for op in block.ops:
        made = _op(builder, op, mapping)
        mapping.update(zip(op.results, made, strict=True))
    return builder.block([mapping[v] for v in block.results])


def _lowered(given: Type) -> Type:
    return HANDLE if isinstance(given, StackType) else given


def _op(builder: Builder, op: Operation, mapping: Mapping[Value, Value]) -> Sequence[Value]:
    if op.name == "stack_new":
        return builder.emit(
            "constant", (), {"value": _ZERO}, locations=op.locations, device=op.device
        )
    held = op.operands[0].type if op.operands else None
    if op.name.startswith("stack_") and isinstance(held, StackType):
        operands = [mapping[v] for v in op.operands]
        name = op.name.replace("stack_", "arena_")
        attrs = _attrs(op, held)
        return builder.emit(name, operands, attrs, locations=op.locations, device=op.device)
    if not op.regions:
        return builder.clone(op, mapping)
    types = [_lowered(r.type) for r in op.results]
    regions = [_block(r) for r in op.regions]
    made = Operation(op.name, op.operands, op.attrs, types, regions, op.control, op.locations)
    made.device, made.group = op.device, op.group
    return builder.clone(made, mapping)


def _attrs(op: Operation, held: StackType) -> dict[str, AttrValue]:
    nested = isinstance(held.element, StackType)
    inner = held.element
    shape = () if isinstance(inner, StackType) else inner.shape
    dtype = HANDLE.dtype if isinstance(inner, StackType) else inner.dtype
    if op.name == "stack_push":
        return {"limit": op.attrs["limit"], "nested": nested}
    if op.name == "stack_pop":
        return {"dtype": dtype, "shape": shape, "nested": nested}
    return {"dtype": held.tensor.dtype, "shape": held.tensor.shape, "depth": held.depth}
