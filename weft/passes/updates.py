"""Updates of variables become a read, an op and an assignment, which other passes know.

Before::

    %1 = assign_add(%0, %x) after(%t) : f32[4]
    %2 = read(%0) after(%1) : f32[4]
    return %1

After::

    %1 = read(%0) after(%t) : f32[4]
    %2 = add(%1, %x) : f32[4]
    %3 = assign(%0, %2) after(%t) : token
    %4 = identity(%2) after(%3) : f32[4]
    %5 = read(%0) after(%3) : f32[4]
    return %4

It runs on what becomes one compiled step: the step holds the variable's lock from the first of
these ops to the last, so the update is still one access to everybody else.
"""

from __future__ import annotations

from weft.ir.builder import Builder
from weft.ir.dtypes import int64, uint64
from weft.ir.graph import Block, Graph, Operation, Value
from weft.ir.ops.state import UPDATES
from weft.passes.rewrite import emit_at, extend, rebuilt, tensor, with_block


def expand_updates(graph: Graph) -> Graph:
    """Expand every update (see the module's text), inside regions too; same object if there is
    none."""
    if not any(op.name in UPDATES for op in graph.walk()):
        return graph
    return with_block(graph, _expanded(graph.block))


def _expanded(block: Block) -> Block:
    builder = extend(block)
    values: dict[Value, Value] = {}  # what stands for a value where it is read
    order: dict[Value, Value] = {}  # and where something comes after it
    read = {v for op in block.ops for v in op.operands} | set(block.results)
    for op in block.ops:
        operands = [values.get(v, v) for v in op.operands]
        control = list(dict.fromkeys(order.get(v, values.get(v, v)) for v in op.control))
        if op.name not in UPDATES:
            regions = tuple(_expanded(r) for r in op.regions)
            types = [r.type for r in op.results]
            same = (*operands, *control) == (*op.operands, *op.control) and regions == op.regions
            made = op if same else Operation(
                op.name, operands, op.attrs, types, regions, control, op.locations,
                device=op.device, group=op.group,
            )  # fmt: skip
            builder.ops.append(made)
            values.update(zip(op.results, made.results, strict=True))
            continue
        ref, *given = operands
        where = op.locations
        # one access: its operands, and the effects that they wait for, come before all of it
        before = dict.fromkeys([*control, *(v for v in given if v.op is not None)])
        (old,) = builder.emit("read", [ref], control=list(before), locations=where)
        new = _combined(builder, op, old, given)
        (token,) = builder.emit("assign", [ref, new], control=control, locations=where)
        order[op.result] = values[op.result] = token
        if op.result in read:
            (after,) = builder.emit("identity", [new], control=[token], locations=where)
            values[op.result] = after
    return rebuilt(block, builder.ops, [values.get(v, v) for v in block.results])


def _combined(builder: Builder, op: Operation, old: Value, given: list[Value]) -> Value:
    """The new value, from the old one and the operands after the handle."""
    if op.name in ("assign_add", "assign_sub"):
        name = "add" if op.name == "assign_add" else "subtract"
        return emit_at(builder, op, name, old, *given)
    indices, updates = given
    kind = tensor(indices)
    if kind.dtype not in (int64, uint64):
        indices = emit_at(builder, op, "astype", indices, dtype=int64)
    indices = emit_at(builder, op, "reshape", indices, shape=(*kind.shape, 1))
    if op.name == "scatter_sub":
        updates = emit_at(builder, op, "negative", updates)
    name = "scatter_nd_update" if op.name == "scatter_update" else "scatter_nd_add"
    return emit_at(builder, op, name, old, indices, updates)
