"""Contraction: a multiply and an add, rounded together, become one `fma` (fused multiply-add).

Before::

    %2 = multiply(%x, %w) : f32[4]
    %3 = add(%2, %b) : f32[4]

After::

    %3 = fma(%x, %w, %b) : f32[4]

One instruction, and one rounding, in place of two: the decision is made here, in the graph, and
never by the code generator. So the bits of a program depend neither on what is fused with what nor
on whether a native plan or the dataflow executor runs it, and the interpreter has the same.
Products that something else reads as well are rounded anyway: they stay."""

from __future__ import annotations

from collections import Counter

from weft.ir.analysis.index_maps import is_index_map
from weft.ir.dtypes import float32, float64
from weft.ir.graph import Block, Graph, Operation, Value
from weft.ir.locations import merge_locations
from weft.ir.ops.builder import Builder
from weft.passes.rewriting.rewrite import (
    bind,
    emit_at,
    extend,
    has_effect,
    rebuilt,
    tensor,
    with_block,
    with_operands,
)
from weft.passes.simplify.cse_dce import dce

_PRODUCTS = {"multiply": (0, 1), "square": (0, 0)}


def contract(graph: Graph) -> Graph:
    """`graph` with `fma` for every sum or difference of f32 or f64 with a product that only it
    reads; same object if there is none."""
    block = _contracted(graph.block)
    return graph if block is graph.block else dce(with_block(graph, block))


def _contracted(block: Block) -> Block:
    uses = Counter(v for op in block.ops for v in (*op.operands, *op.control))
    uses.update(block.results)
    builder = extend(block)
    mapping: dict[Value, Value] = {}
    for op in block.ops:
        new = with_operands(op, mapping, tuple(map(_contracted, op.regions)))
        made = None if has_effect(op) or op.control else _fused(builder, op, new, uses)
        if made is None:
            builder.ops.append(new)
        bind(mapping, op, new.results if made is None else [made])
    return rebuilt(block, builder.ops, [mapping.get(v, v) for v in block.results])


def _fused(builder: Builder, op: Operation, new: Operation, uses: Counter[Value]) -> Value | None:
    """The `fma` for a sum or difference; `op`: it before operands were mapped, as `uses` has it."""
    if op.name not in ("add", "subtract") or tensor(op.result).dtype not in (float32, float64):
        return None
    for place in (0, 1):
        product, other = new.operands[place], new.operands[1 - place]
        if product.op is None or uses[op.operands[place]] != 1 or product.op.control:
            continue
        if product.op.name not in _PRODUCTS:
            continue
        a, b = (product.op.operands[k] for k in _PRODUCTS[product.op.name])
        if op.name == "subtract" and place == 0:
            other = emit_at(builder, op, "negative", other)
        elif op.name == "subtract":
            a, b = (b, a) if _is_number(b) else (a, b)
            a = emit_at(builder, product.op, "negative", a)
        where = merge_locations(op.locations, product.op.locations)
        return builder.emit1("fma", a, b, other, locations=where)
    return None


def _is_number(value: Value) -> bool:
    """Whether it is a constant, or one repeated."""
    op = value.op
    while op is not None and is_index_map(op) and op.operands:
        op = op.operands[0].op
    return op is not None and op.name == "constant"
