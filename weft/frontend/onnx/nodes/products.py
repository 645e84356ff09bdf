"""ONNX nodes of products with quantised weights, and of what patterns find in products and sorts:
Gemm, Attention, TopK."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from weft.frontend.onnx.nodes.elementwise import Expr
from weft.frontend.onnx.nodes.graph import GraphWriter, dtype_of, tensor_of
from weft.frontend.onnx.nodes.reductions import top_k
from weft.ir import dtypes
from weft.ir.analysis.known_values import uniform
from weft.ir.dataclass import dataclass
from weft.ir.graph import Operation, Value
from weft.ir.spec import int_attr, ints_attr, shape_attr


def gemm(product: Operation, bias: Value, result: Value, writer: GraphWriter) -> None:
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


@dataclass(frozen=True, slots=True)
class Scores:
    """scale query key^T, masked. turned: the key is (..., depth, columns); mask: bools where to
    look, or numbers that are added."""

    query: Value
    key: Value
    turned: bool
    scale: float
    mask: Value | None


def scores_of(value: Value) -> Scores | None:
    """The scores of attention that a value is: a multiple of a product, with one mask at most."""
    mask: Value | None = None
    op = value.op
    if op is not None and op.name == "where":
        fill = uniform(op.operands[2])
        if fill is None or float(fill) != float("-inf"):
            return None
        mask, op = op.operands[0], op.operands[1].op
    elif op is not None and op.name == "add":
        parts = [v.op for v in op.operands]
        at = next((k for k in (0, 1) if _product_of(parts[k]) is not None), None)
        if at is None:
            return None
        mask, op = op.operands[1 - at], parts[at]
    found = _product_of(op)
    if found is None:
        return None
    product, scale = found
    query, key = product.operands
    if product.attrs["transpose_a"] or tensor_of(query).shape[:2] != tensor_of(key).shape[:2]:
        return None
    return Scores(query, key, not product.attrs["transpose_b"], scale, mask)


def _product_of(op: Operation | None) -> tuple[Operation, float] | None:
    """A product of matrices, and by which number it is multiplied."""
    if op is None:
        return None
    if op.name == "matmul":
        return op, 1.0
    if op.name in ("multiply", "divide"):
        for k in (0,) if op.name == "divide" else (0, 1):
            made, number = op.operands[k].op, uniform(op.operands[1 - k])
            if made is not None and made.name == "matmul" and number is not None and number > 0:
                factor = float(number)
                return made, 1 / factor if op.name == "divide" else factor
    return None


def attention(scores: Scores, value: Value, result: Value, writer: GraphWriter) -> None:
    """`Attention`."""
    swap = (0, 1, 3, 2) if scores.turned else ()
    names = [writer.use(scores.query), writer.use(scores.key, swap), writer.use(value)]
    if scores.mask is not None:
        names.append(_mask(writer, scores.mask))
    writer.bind(result, writer.node("Attention", *names, scale=scores.scale))


def _mask(writer: GraphWriter, mask: Value) -> str:
    """A mask of (rows, columns), or all of it."""
    held = writer.held[mask]
    kind = tensor_of(mask)
    if not held.perm and len(held.shape) >= 2 and held.shape[-2:] == kind.shape[-2:]:
        if all(d == 1 for d in held.shape[:-2]):
            return writer.node("Squeeze", held.name, writer.ints(*range(len(held.shape) - 2))) if (
                len(held.shape) > 2
            ) else held.name  # fmt: skip
    return writer.use(mask)


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


def _quantized_matmul(writer: GraphWriter, op: Operation) -> None:
    """`DequantizeLinear` with an axis, a row of scales for each, before `MatMul`."""
    x, weights, scale = op.operands
    (n, groups), packed = tensor_of(scale).static_shape, dtype_of(weights)
    zero, held = int_attr(op.attrs, "zero"), writer.use(weights)
    if op.attrs["bits"] == 4:  # two to a byte, the low half first
        if op.attrs["signed"]:  # -8 to 7 as 0 to 15
            held = writer.node("BitwiseXor", held, writer.constant(np.uint8(0x88)))
            zero += 8
        low = writer.node("BitwiseAnd", held, writer.constant(np.uint8(15)))
        high = writer.node("BitShift", held, writer.constant(np.uint8(4)), direction="RIGHT")
        halves = [writer.node("Unsqueeze", part, writer.ints(-1)) for part in (low, high)]
        held = writer.node("Concat", *halves, axis=-1)
    rows = writer.node("Reshape", held, writer.ints(n * groups, -1))
    scales = writer.node("Reshape", writer.use(scale), writer.ints(n * groups))
    least = -128 if packed is dtypes.int8 else 0
    if least <= zero <= least + 255:
        offsets = writer.constant(np.full(n * groups, zero, packed.numpy))
        wide = writer.node("DequantizeLinear", rows, scales, offsets, axis=0)
    else:  # a zero point that no number of the weights' dtype is
        centred = Expr(writer, rows, packed).cast(dtype_of(scale)) - zero
        column = Expr(writer, writer.node("Unsqueeze", scales, writer.ints(1)), dtype_of(scale))
        wide = (centred * column).name
    whole = writer.node("Reshape", wide, writer.ints(n, -1))
    turned = writer.node("Transpose", whole, perm=[1, 0])
    writer.bind(op.result, writer.node("MatMul", writer.use(x), turned))


BUILDERS: dict[str, Callable[[GraphWriter, Operation], None]] = {
    "quantized_matmul": _quantized_matmul,
}
