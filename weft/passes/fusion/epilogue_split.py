"""Epilogue split: ops that follow from a nest's sums leave it, so that a product can take it over.

Before::

    %2 = matmul(%dy, %w) : f32[256,512]
    %3, %4 = fused(%2, %mask, %b) { multiply; sum over axis 0; an update of %b with the sum }

After: one ``fused`` op that multiplies and sums, which `fuse_matmul` lets the product do in its
blocks, and one of 512 elements that updates. Without a product before it a nest keeps its tail: it
is no pass over large arrays less. The rules:

* an operand is a product that only this nest needs, and whose shape the nest runs over;
* the results of other shapes are sums, or follow from sums and what is no larger than them;
* without the latter the nest is one that the product can take over."""

from __future__ import annotations

from collections.abc import Mapping, Set

from weft.ir.graph import Graph, Operation, Value
from weft.ir.ops.builder import Builder
from weft.ir.types import TensorType
from weft.passes.fusion.epilogues import can_follow, is_deep
from weft.passes.fusion.fuse import nest_name
from weft.passes.rewriting.rewrite import in_regions


def split_tails(graph: Graph) -> Graph:
    """Part nests from what follows from their sums, where the module's rules allow."""
    graph = in_regions(graph, split_tails)
    uses: dict[Value, int] = {}
    for value in [v for op in graph.ops for v in (*op.operands, *op.control)] + [*graph.results]:
        uses[value] = uses.get(value, 0) + 1
    parts = {op: found for op in graph.ops if (found := _parts(op, uses)) is not None}
    if not parts:
        return graph
    builder = Builder([a.type for a in graph.args])
    mapping: dict[Value, Value] = dict(zip(graph.args, builder.args, strict=True))
    for op in graph.ops:
        if op not in parts:
            mapping.update(zip(op.results, builder.clone(op, mapping), strict=True))
            continue
        (region,) = op.regions
        known = {a: mapping[v] for a, v in zip(region.args, op.operands, strict=True)}
        for wanted in parts[op]:
            known.update(emit_nest(builder, op, wanted, known))
        mapping.update(zip(op.results, (known[v] for v in region.results), strict=True))
    results = [mapping[v] for v in graph.results]
    return builder.graph(graph.name, graph.arg_names, results, graph.stage)


def _parts(op: Operation, uses: Mapping[Value, int]) -> tuple[list[Value], list[Value]] | None:
    """What the nest before its tail gives, and what the tail; None if they stay together."""
    if op.name != "fused" or op.control:
        return None
    (region,) = op.regions
    for k, value in enumerate(op.operands):
        made = value.op
        if made is None or made.name != "matmul" or uses[value] != 1 or is_deep(made):
            continue
        sums = dict.fromkeys(o.result for o in region.ops if o.name == "sum")  # in order
        tail = [v for v in region.results if v not in sums and not _alike(v, value)]
        follow = _needed(tail, sums.keys())
        limit = max((_elements(v) for v in sums), default=0)
        if not tail or any(_elements(v) > limit for o in follow for v in o.results):
            continue
        read = {v for o in follow for v in o.operands}
        first = [v for v in region.results if v not in tail]
        first += [v for v in sums if v in read and v not in first]
        scratch = Builder([v.type for v in op.operands])
        known = dict(zip(region.args, scratch.args, strict=True))
        if not read & sums.keys() or region.args[k] in read:
            continue
        emit_nest(scratch, op, first, known)
        (nest,) = scratch.ops
        if can_follow(nest.regions[0], nest.operands.index(scratch.args[k])):
            return first, tail
    return None


def emit_nest(
    builder: Builder, op: Operation, wanted: list[Value], known: Mapping[Value, Value]
) -> dict[Value, Value]:
    """A nest of what these values of the region of `op` need besides what is known."""
    members = _needed(wanted, set(known) - set(wanted))
    inner = Builder()
    local: dict[Value, Value] = {}
    given: list[Value] = []
    for member in members:
        for value in member.operands:
            if value not in local:
                local[value] = inner.add_arg(value.type)
                given.append(known[value])
        local.update(zip(member.results, inner.clone(member, local), strict=True))
    results = builder.emit(
        "fused",
        given,
        {"kind": nest_name([o for o in members if o.name not in ("constant", "broadcast_to")])},
        regions=[inner.block([local[v] for v in wanted])],
        locations=op.locations,
    )
    return dict(zip(wanted, results, strict=True))


def _needed(wanted: list[Value], known: Set[Value]) -> list[Operation]:
    """The ops of a region that the values need besides what is known, in order."""
    found: dict[Operation, None] = {}

    def visit(value: Value) -> None:
        op = value.op
        if value in known or op is None or op in found:
            return
        for operand in op.operands:
            visit(operand)
        found[op] = None

    for value in wanted:
        visit(value)
    return list(found)


def _alike(a: Value, b: Value) -> bool:
    return (
        isinstance(a.type, TensorType)
        and isinstance(b.type, TensorType)
        and (a.type.shape == b.type.shape)
    )


def _elements(value: Value) -> int:
    held = value.type
    if not isinstance(held, TensorType) or not held.is_static:
        return 1 << 62
    return held.nbytes // max(held.dtype.itemsize, 1)
