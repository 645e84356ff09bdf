"""Common subexpression elimination: equal ops on equal operands become one.

Before::

    %0 = exp(%x) : f32[4]        loc("m.py":1:1)
    %1 = exp(%x) : f32[4]        loc("m.py":2:1)
    %2 = add(%0, %1) : f32[4]

After: ``%2 = add(%0, %0)``, and `%0` has both locations. The operands of a commutative op
may come in either order. A reduction with keepdims=true and one without are one reduction, and a
reshape. Reads of state are merged by `effects`, which knows what was written between.
"""

from __future__ import annotations

from weft.ir.graph import Block, Graph, Operation, Value, canonical_block
from weft.ir.ops import lookup
from weft.ir.source import Locations
from weft.ir.types import TensorType
from weft.passes.rewrite import bind, has_effect, rebuilt, relocate, with_block, with_operands


def cse(graph: Graph) -> Graph:
    """Merge equal ops, inside regions too (each region by itself)."""
    return with_block(graph, cse_block(graph.block))


def cse_block(block: Block) -> Block:
    mapping: dict[Value, Value] = {}
    ordering = {v for op in block.ops for v in op.control}
    seen: dict[object, Operation] = {}
    ops: list[Operation] = []
    merged: dict[Operation, list[Locations]] = {}
    for op in block.ops:
        new = with_operands(op, mapping, op.regions and tuple(map(cse_block, op.regions)))
        fixed = op.control or has_effect(op) or any(r in ordering for r in op.results)
        key = None if fixed or "no_cse" in lookup(op.name).traits else _key(new)
        if key is not None and key not in seen and "keepdims" in new.attrs:
            twin = seen.get(_key(_other_keepdims(new)))
            if twin is not None:
                new = _reshaped(twin.result, new)
                key = _key(new)
        first = None if key is None else seen.get(key)
        if first is None:
            if key is not None:
                seen[key] = new
            ops.append(new)
            bind(mapping, op, new.results)
        else:
            merged.setdefault(first, []).append(op.locations)
            bind(mapping, op, first.results)
    results = [mapping.get(v, v) for v in block.results]
    return relocate(rebuilt(block, ops, results), merged)


def _other_keepdims(op: Operation) -> Operation:
    """The reduction that `op` would be with keepdims the other way round."""
    attrs = {**op.attrs, "keepdims": not op.attrs["keepdims"]}
    types = lookup(op.name).infer([v.type for v in op.operands], attrs, ())
    return Operation(op.name, op.operands, attrs, types)


def _reshaped(value: Value, op: Operation) -> Operation:
    """What `op` is, as a reshape of `value`."""
    held = op.result.type
    assert isinstance(held, TensorType)
    return Operation("reshape", (value,), {"shape": held.shape}, (held,), (), (), op.locations)


def _key(op: Operation) -> object:
    operands = tuple(op.operands)
    if "commutative" in lookup(op.name).traits:
        operands = tuple(sorted(operands, key=id))  # ids only compare; the order of ops is kept
    attrs = tuple((k, type(v).__name__, _exact(v)) for k, v in op.attrs.items())
    types = tuple(r.type for r in op.results)
    return (op.name, operands, attrs, types, tuple(canonical_block(r) for r in op.regions))


def _exact(value: object) -> object:
    """A key that tells -0.0 from 0.0 and lets NaN equal itself."""
    return repr(value) if isinstance(value, float) else value
