"""Transposes of loop invariants are made once: a product in a loop's body reads them as they lie.

Before, in the body of a loop with the invariant `%u`::

    %d = matmul(%z, %u) {transpose_a=false, transpose_b=true}

After, with `%t = permute_dims(%u) {axes=[1, 0]}` before the loop and a further invariant `%v`::

    %d = matmul(%z, %v) {transpose_a=false, transpose_b=false}

The way back through an RNN multiplies by the transposed weights in every step; with few rows in
`%z`, going through `%u` across its rows costs as much as a third of the product.
"""

from __future__ import annotations

from collections.abc import Mapping

from weft.ir.builder import Builder
from weft.ir.graph import Block, Graph, Operation, Value
from weft.ir.rules import int_attr
from weft.ir.types import TensorType
from weft.passes.control.regions import in_regions


def transpose_outside_loops(graph: Graph) -> Graph:
    """Rewrite products with transposed loop invariants, in all loops of `graph`."""
    if not any(op.name in ("while", "scan") for op in graph.walk()):
        return graph
    graph = in_regions(graph, transpose_outside_loops)
    builder = Builder([a.type for a in graph.args])
    mapping: dict[Value, Value] = dict(zip(graph.args, builder.args, strict=True))
    for op in graph.ops:
        products = _products(op)
        made = _with_transposes(builder, op, products, mapping) if products else None
        results = builder.clone(op, mapping) if made is None else made
        mapping.update(zip(op.results, results, strict=True))
    outputs = [mapping[v] for v in graph.results]
    return builder.graph(graph.name, graph.arg_names, outputs, graph.stage)


def _products(op: Operation) -> dict[Operation, int]:
    """The products in a loop's body by a transposed invariant, and the invariant's number."""
    if op.name not in ("while", "scan"):
        return {}
    varying = int_attr(op.attrs, "carries")
    if op.name == "scan":
        varying += int_attr(op.attrs, "sequences")
    number = {arg: k for k, arg in enumerate(op.regions[-1].args) if k >= varying}
    return {
        inner: number[inner.operands[1]]
        for inner in op.regions[-1].ops
        if inner.name == "matmul" and inner.attrs["transpose_b"] and inner.operands[1] in number
    }


def _with_transposes(
    builder: Builder, op: Operation, products: Mapping[Operation, int], mapping: dict[Value, Value]
) -> tuple[Value, ...]:
    turned: dict[int, Value] = {}
    for product, k in products.items():
        if k not in turned:
            operand = mapping[op.operands[k]]
            assert isinstance(operand.type, TensorType)
            *batch, rows, columns = range(operand.type.rank)
            axes = (*batch, columns, rows)
            turned[k] = builder.emit1(
                "permute_dims", operand, axes=axes, locations=product.locations
            )
    place = {k: len(op.operands) + j for j, k in enumerate(turned)}
    extra = list(turned.values())
    aim = {product: place[k] for product, k in products.items()}
    regions = [_with_arguments(region, extra, aim) for region in op.regions]
    operands = [*(mapping[v] for v in op.operands), *extra]
    control = tuple(mapping[v] for v in op.control)
    return builder.emit(
        op.name, operands, op.attrs, regions=regions, control=control, locations=op.locations
    )


def _with_arguments(region: Block, extra: list[Value], aim: Mapping[Operation, int]) -> Block:
    """The region with further arguments, which the products in `aim` multiply by."""
    builder = Builder([*(a.type for a in region.args), *(v.type for v in extra)])
    mapping: dict[Value, Value] = dict(zip(region.args, builder.args, strict=False))
    for op in region.ops:
        if op in aim:
            operands = [mapping[op.operands[0]], builder.args[aim[op]]]
            attrs = {**op.attrs, "transpose_b": False}
            results = builder.emit(op.name, operands, attrs, locations=op.locations)
        else:
            results = builder.clone(op, mapping)
        mapping.update(zip(op.results, results, strict=True))
    return builder.block([mapping[v] for v in region.results])
