"""ONNX nodes of what patterns find in products and sorts: Gemm, TopK."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from weft.frontend.onnx.save_graph import GraphWriter, dtype_of, tensor_of
from weft.frontend.onnx.save_reductions import top_k
from weft.ir import dtypes
from weft.ir.graph import Operation, Value
from weft.ir.spec import int_attr, ints_attr, shape_attr


def gemm(writer: GraphWriter, product: Operation, bias: Value, result: Value) -> None:
    """`Gemm`: a product of two matrices plus a row."""
    dtype = dtype_of(result)
    working = dtypes.float32 if dtype is dtypes.bfloat16 else dtype
    names = []
    attrs: dict[str, Any] = {}
    for key, value in zip(("transA", "transB"), product.operands, strict=True):
        turned = bool(product.attrs["transpose_" + key[-1].lower()])
        held = writer.held[value]
        if turned and held.name in writer.arrays and held.full:
            names.append(writer.use(value, (1, 0)))
            continue
        if held.perm and held.full:  # a transposed matrix is read as it is
            turned = not turned
            names.append(held.name)
        else:
            names.append(writer.use(value))
        attrs[key] = 1 if turned else None
    names.append(writer.use(bias))
    names = [writer.cast(n, dtype, working) for n in names]
    writer.bind(result, writer.cast(writer.call("Gemm", names, working, **attrs), working, dtype))


def first_sorted(op: Operation, made: Operation) -> Callable[[GraphWriter], None] | None:
    """What writes the slice `op` of a sort, if it takes the first along the axis; None if not."""
    axis, shape = int_attr(made.attrs, "axis"), tensor_of(made.result).shape
    starts, stops = shape_attr(op.attrs, "starts"), shape_attr(op.attrs, "stops")
    steps = ints_attr(op.attrs, "steps")
    whole = all(
        a == axis or (starts[a] == 0 and stops[a] == n and n is not None)
        for a, n in enumerate(shape)
    )
    if not whole or starts[axis] != 0 or any(s != 1 for s in steps) or stops[axis] is None:
        return None

    def write(writer: GraphWriter) -> None:
        (x,) = made.operands
        found = top_k(writer, x, axis, writer.size(stops[axis]), bool(made.attrs["descending"]))
        writer.bind(op.result, found[made.name == "argsort"])

    return write
