"""Common subexpression elimination (`cse`) and dead code elimination (`dce`).

`cse`: equal ops on equal operands become one. Before::

    %0 = exp(%x) : f32[4]        loc("m.py":1:1)
    %1 = exp(%x) : f32[4]        loc("m.py":2:1)
    %2 = add(%0, %1) : f32[4]

After: ``%2 = add(%0, %0)``, and `%0` has both locations. The operands of a commutative op may come
in either order. A reduction with keepdims=true and one without are one reduction, and a reshape.
Ops that are to run on different devices, or in different groups, are not equal.
Reads of state are merged by `effects`, which knows what was written between.

`dce`: drop ops whose results nobody needs. Before::

    %0 = exp(%x) : f32[4]
    %1 = log(%x) : f32[4]
    return %1

After: `%0` is gone. Ops with the trait ``no_dce`` (assignments) stay, and so does the op that makes
a size which a live op needs and cannot tell from its operands. A control operand does not
keep an op alive, unless it tells a size (`tie_sizes`); if a dropped op stood between two effects,
the later one is ordered after what the dropped op itself was ordered after. An op that might fail
(an index out of bounds) goes, too. At stage `dataflow` control operands count: whether they are
dead decides whether the op runs."""

from __future__ import annotations

from weft.ir.analysis.frames import is_dataflow
from weft.ir.graph import WITH_DEAD_VALUES, Block, Graph, Operation, Value, canonical_block
from weft.ir.locations import Locations
from weft.ir.ops import lookup
from weft.ir.types import TensorType
from weft.passes.rewriting.rewrite import (
    bind,
    has_effect,
    must_run,
    placed_as,
    rebuilt,
    relocate,
    with_block,
    with_control,
    with_operands,
)
from weft.passes.sizes import made_by, needed_sizes, told_by_control


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
    return placed_as(op, Operation(op.name, op.operands, attrs, types))


def _reshaped(value: Value, op: Operation) -> Operation:
    """What `op` is, as a reshape of `value`."""
    held = op.result.type
    assert isinstance(held, TensorType)
    made = Operation("reshape", (value,), {"shape": held.shape}, (held,), (), (), op.locations)
    return placed_as(op, made)


def _key(op: Operation) -> object:
    operands = tuple(op.operands)
    if "commutative" in lookup(op.name).traits:
        operands = tuple(sorted(operands, key=id))  # ids only compare; the order of ops is kept
    attrs = tuple((k, type(v).__name__, _exact(v)) for k, v in op.attrs.items())
    types = tuple(r.type for r in op.results)
    regions = tuple(canonical_block(r) for r in op.regions)
    return (op.name, operands, attrs, types, regions, op.device, op.group)


def _exact(value: object) -> object:
    """A key that tells -0.0 from 0.0 and lets NaN equal itself."""
    return repr(value) if isinstance(value, float) else value


def dce(graph: Graph) -> Graph:
    """Drop dead ops, inside regions too. Arguments and results of the graph stay."""
    may_be_dead = graph.stage in WITH_DEAD_VALUES or is_dataflow(graph.block)
    return with_block(graph, _dce_block(graph.block, may_be_dead))


def _dce_block(block: Block, control_counts: bool = False) -> Block:
    live: set[Operation] = set()
    needed = set(block.results)
    sizes: set[str] | None = set() if any(map(made_by, block.ops)) else None
    for op in reversed(block.ops):
        wanted = sizes is not None and not sizes.isdisjoint(made_by(op))
        if wanted or must_run(op) or not needed.isdisjoint(op.results):
            live.add(op)
            needed.update(op.operands)
            if op.control:
                needed.update(op.control if control_counts else told_by_control(op))
            if sizes is not None:
                sizes.difference_update(made_by(op))
                sizes |= needed_sizes(op)
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
