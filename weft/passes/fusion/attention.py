"""Attention: softmax between two products becomes one op, which stores no matrix of scores.

Before::

    %2 = matmul(%q, %k) {transpose_b=true} : f32[2,12,512,512]
    %3 = multiply(%2, %scale) : f32[2,12,512,512]
    %4 = where(%mask, %3, %minus_inf) : f32[2,12,512,512]
    %5 = ... softmax of the last axis of %4: max, subtract, exp, sum, divide ...
    %6 = matmul(%5, %v) : f32[2,12,512,64]

After: ``%6, %7 = attention(%q, %k, %v) {scale=0.125, causal=true}``, where the mask is that of a
causal model; its gradient, which reads the weights %5, becomes ``attention_grad`` with it. Operands
that are permuted from (..., rows, heads, depth) are read as they are. The rules:

* f32 or f64, a softmax of the last axis as `wf.nn.softmax` makes it, with or without its test for
  infinities; before it a multiple of the product, up to one mask (`where` with a number for what is
  hidden, or `add`), and the causal one, which must hide by -inf;
* who else reads a matrix of scores or weights is the gradient in query, key and value: a weight
  that is dropped out or returned, or the gradient in an added mask, leaves all as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weft.ir.builder import Builder
from weft.ir.dtypes import bool_
from weft.ir.graph import Block, Graph, Operation, Value
from weft.ir.source import merge_locations
from weft.passes.fusion.attention_match import (
    Match,
    Unfit,
    blocks_in,
    made_by,
    match_softmax,
    readers_in,
)
from weft.passes.rewrite import bind, extend, rebuilt, tensor, with_block, with_operands


def fuse_attention(graph: Graph) -> Graph:
    """Make `attention` and `attention_grad` of what the module's docstring shows."""
    return with_block(graph, _block(graph.block))


def attention_reasons(graph: Graph) -> list[tuple[Operation, str]]:
    """For people: of each softmax between two products of a graph, before this pass, what becomes
    of it."""
    found = []
    for block in blocks_in(graph.block):
        readers = readers_in(block)
        for op in block.ops:
            try:
                made = match_softmax(op, readers)
            except Unfit as why:
                found.append((op, str(why)))
                continue
            if made is not None:
                found.append((op, "one kernel, and no matrix of scores is stored"))
    return found


def _block(block: Block) -> Block:
    readers = readers_in(block)
    matches: list[Match] = []
    for op in block.ops:
        try:
            made = match_softmax(op, readers)
        except Unfit:
            continue
        if made is not None:
            matches.append(made)
    at = {m.out: m for m in matches} | {op: m for m in matches for op in m.grads}
    if not at and not any(op.regions for op in block.ops):
        return block
    builder, mapping = extend(block), dict[Value, Value]()
    written: dict[int, tuple[Sequence[Value], bool]] = {}
    grads: dict[int, Sequence[Value]] = {}
    for op in block.ops:
        match = at.get(op)
        if match is None:
            regions = op.regions and tuple(_block(r) for r in op.regions)
            new = with_operands(op, mapping, regions)
            builder.ops.append(new)
            bind(mapping, op, new.results)
            continue
        writer = _Writer(builder, mapping, match)
        if op is match.out:
            written[id(match)] = writer.forward()
            bind(mapping, op, [writer.outward(written[id(match)][0][0], written[id(match)][1])])
            continue
        results, inner = written[id(match)]
        if id(match) not in grads:
            grads[id(match)] = writer.backward(results, inner)
        which, turned = match.grads[op]
        made_value = writer.outward(grads[id(match)][which], inner)
        bind(mapping, op, [writer.swapped(made_value) if turned else made_value])
    return rebuilt(block, builder.ops, [mapping.get(v, v) for v in block.results])


_INNER = (0, 2, 1, 3)


class _Writer:
    """Appends the ops of one match to a block."""

    def __init__(self, builder: Builder, mapping: dict[Value, Value], match: Match) -> None:
        self.builder, self.mapping, self.match = builder, mapping, match
        ops = [*match.ops, match.out, *match.grads]
        self.locations = merge_locations(*(op.locations for op in ops))

    def forward(self) -> tuple[Sequence[Value], bool]:
        """The results of `attention`, and whether heads are inside of rows."""
        operands, inner = self.operands()
        return self.builder.emit(
            "attention", operands, self.attrs(inner), locations=self.locations
        ), inner

    def backward(self, results: Sequence[Value], inner: bool) -> Sequence[Value]:
        """The results of `attention_grad`."""
        assert self.match.g is not None
        g = self.mapping.get(self.match.g, self.match.g)
        operands, _ = self.operands()
        operands += [*results, self.permuted(g, _INNER) if inner else g]
        return self.builder.emit(
            "attention_grad", operands, self.attrs(inner), locations=self.locations
        )

    def operands(self) -> tuple[list[Value], bool]:
        """Query, key, value and the mask; those with heads inside if all three are permuted."""
        m = self.match
        found = [self.mapping.get(v, v) for v in (m.query, m.key, m.value)]
        if m.key_turned:
            found[1] = self.swapped(found[1])
        inner = all(tensor(v).rank == 4 and _axes(v) == _INNER for v in found)
        if inner:
            found = [self.permuted(v, _INNER) for v in found]
        if m.mask is not None:
            found.append(self.mapping.get(m.mask, m.mask))
        return found, inner

    def attrs(self, inner: bool) -> dict[str, Any]:
        m = self.match
        has_fill = m.mask is not None and tensor(m.mask).dtype == bool_
        fill = m.fill if has_fill else float("-inf")
        return {"scale": m.scale, "causal": m.causal, "fill": fill, "heads_inner": inner}

    def outward(self, value: Value, inner: bool) -> Value:
        """A result with heads before rows."""
        return self.permuted(value, _INNER) if inner else value

    def swapped(self, value: Value) -> Value:
        """The last two axes the other way round."""
        rank = tensor(value).rank
        return self.permuted(value, (*range(rank - 2), rank - 1, rank - 2))

    def permuted(self, value: Value, axes: tuple[int, ...]) -> Value:
        """permute_dims; of one that it undoes, what that permutes."""
        held = _axes(value)
        if held is not None and value.op is not None:
            axes, value = tuple(held[k] for k in axes), value.op.operands[0]
        if axes == tuple(range(len(axes))):
            return value
        return self.builder.emit1("permute_dims", value, axes=axes, locations=self.locations)


def _axes(value: Value) -> tuple[int, ...] | None:
    op = made_by(value, "permute_dims")
    axes = None if op is None else op.attrs["axes"]
    return axes if isinstance(axes, tuple) else None
