"""ONNX nodes of reductions, running reductions, sorts, searches and products of matrices."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from weft.frontend.onnx.save_elementwise import Expr, _logaddexp
from weft.frontend.onnx.save_graph import (
    Body,
    GraphWriter,
    dtype_of,
    tensor_of,
)
from weft.frontend.onnx.save_moves import bind_turned, indices
from weft.ir import dtypes
from weft.ir.dtypes import DType
from weft.ir.graph import Operation, Value
from weft.ir.ops.windows import lowest
from weft.ir.spec import int_attr, ints_attr
from weft.ir.types import TensorType

_KINDS = {
    "sum": "ReduceSum", "prod": "ReduceProd", "max": "ReduceMax", "min": "ReduceMin",
    "all": "ReduceMin", "any": "ReduceMax",
}  # fmt: skip
_NARROW_FLOATS = (dtypes.float16, dtypes.bfloat16)


def _reduction(writer: GraphWriter, op: Operation) -> None:
    dtype = dtype_of(op.operands[0])
    reduce(writer, op, _KINDS[op.name], dtype)


def reduce(
    writer: GraphWriter, op: Operation, kind: str, dtype: DType, value: Value | None = None
) -> None:
    """Write a reduction of a value (the op's operand) over the op's axes, in its layout."""
    value = op.operands[0] if value is None else value
    axes, keepdims = ints_attr(op.attrs, "axes"), bool(op.attrs["keepdims"])
    held = writer.held[value]
    if not axes:
        writer.held[op.result] = held
        return
    perm = held.perm if held.full else ()
    rank = tensor_of(value).rank
    order = tuple(int(a) for a in np.argsort(perm)) if perm else ()
    own = [perm[a] for a in axes] if perm else list(axes)
    left: tuple[int, ...] = perm
    if perm and not keepdims:  # of the axes that stay, numbered anew
        kept = [perm[a] for a in range(rank) if a not in axes]
        ranks = {a: k for k, a in enumerate(sorted(kept))}
        left = tuple(ranks[a] for a in kept)
        left = () if left == tuple(range(len(left))) else left
    working = dtype
    if dtype in _NARROW_FLOATS and kind in ("ReduceSum", "ReduceProd"):
        working = dtypes.float32
    name = writer.cast(writer.use(value, order), dtype, working)
    inputs = [name, writer.ints(*sorted(own))]
    made = writer.call(kind, inputs, working, typed=1, keepdims=int(keepdims))
    made = writer.cast(made, working, dtype)
    bind_turned(writer, op.result, made, left)


def _position(writer: GraphWriter, op: Operation) -> None:
    kind = "ArgMax" if op.name == "argmax" else "ArgMin"
    dtype = dtype_of(op.operands[0])
    name = writer.use(op.operands[0])
    attrs = {"axis": int_attr(op.attrs, "axis"), "keepdims": int(bool(op.attrs["keepdims"]))}
    if dtype in _NARROW_FLOATS or dtype is dtypes.bool_:
        wide = dtypes.float32 if dtype.is_floating else dtypes.int32
        name, dtype = writer.cast(name, dtype, wide), wide
    writer.bind(op.result, writer.call(kind, [name], dtype, result=dtypes.int64, **attrs))


def _cumulative_sum(writer: GraphWriter, op: Operation) -> None:
    dtype, name = dtype_of(op.operands[0]), writer.use(op.operands[0])
    working = dtypes.float32 if dtype in _NARROW_FLOATS else dtype
    axis = writer.constant(np.asarray(int_attr(op.attrs, "axis"), np.int64))
    made = writer.call(
        "CumSum", [writer.cast(name, dtype, working), axis], working, typed=1,
        reverse=int(bool(op.attrs["reverse"])),
    )  # fmt: skip
    writer.bind(op.result, writer.cast(made, working, dtype))


_COMBINES: dict[str, Callable[[Expr, Expr], Expr]] = {
    "cumulative_prod": lambda a, b: a * b,
    "cumulative_max": lambda a, b: a.call("Max", b),
    "cumulative_min": lambda a, b: a.call("Min", b),
    "cumulative_logsumexp": _logaddexp,
}


def _neutral(op: str, dtype: DType) -> float | int:
    if op == "cumulative_prod":
        return 1
    if op == "cumulative_min":
        return int(np.iinfo(dtype.numpy).max) if dtype.is_integer else np.inf
    return lowest(dtype.numpy) if dtype.is_integer else -np.inf


def _cumulative(writer: GraphWriter, op: Operation) -> None:
    """A `Scan` along the axis, which carries what is combined so far."""
    (x,) = op.operands
    kind, axis, dtype = tensor_of(x), int_attr(op.attrs, "axis"), dtype_of(x)
    working = dtypes.float32 if dtype in _NARROW_FLOATS else dtype
    name = writer.cast(writer.use(x), dtype, working)
    rest = tuple(d for a, d in enumerate(kind.shape) if a != axis)
    neutral = writer.constant(np.asarray(_neutral(op.name, dtype)).astype(working.numpy))
    first = writer.node("Expand", neutral, writer.shape(rest)) if rest else neutral
    row = TensorType(working, rest)
    with writer.body() as scope:
        carried, given = writer.name("carried"), writer.name("row")
        made = _COMBINES[op.name](Expr(writer, carried, working), Expr(writer, given, working))
        names = writer.own(scope, [made.name, made.name])
    body = Body(
        "combine", scope.nodes, [(carried, row), (given, row)], [(n, row) for n in names]
    )
    back = [1] if op.attrs["reverse"] else None
    outs = writer.nodes_of(
        "Scan", [first, name], 2, {"body": body}, num_scan_inputs=1, scan_input_axes=[axis],
        scan_output_axes=[axis], scan_input_directions=back, scan_output_directions=back,
    )  # fmt: skip
    writer.bind(op.result, writer.cast(outs[1], working, dtype))


# -------------------------------------------------------------------------------------------- sorts
def _sort(writer: GraphWriter, op: Operation) -> None:
    """`TopK` of all; equal elements stay in order in both directions, as it says."""
    (x,) = op.operands
    axis = int_attr(op.attrs, "axis")
    count = writer.size(tensor_of(x).shape[axis])
    values, places = top_k(writer, x, axis, count, bool(op.attrs["descending"]))
    writer.bind(op.result, values if op.name == "sort" else places)


def top_k(
    writer: GraphWriter, x: Value, axis: int, count: str, largest: bool
) -> tuple[str, str]:
    """The first elements in order along an axis, and where they are."""
    dtype = dtype_of(x)
    working = dtype
    if dtype not in (dtypes.float32, dtypes.float64, dtypes.int32, dtypes.int64):
        working = dtypes.float32 if dtype.is_floating else dtypes.int64
    name = writer.cast(writer.use(x), dtype, working)
    turned = None
    if dtype is dtypes.uint64:  # in the order of signed numbers
        turned = Expr(writer, name, working)
        name = turned.call("BitwiseXor", np.iinfo(np.int64).min).name
    values, places = writer.nodes_of(
        "TopK", [name, count], 2, axis=axis, largest=int(largest), sorted=1
    )
    if turned is not None:
        values = Expr(writer, values, working).call("BitwiseXor", np.iinfo(np.int64).min).name
    return writer.cast(values, working, dtype), places


def _searchsorted(writer: GraphWriter, op: Operation) -> None:
    """How many of the data are smaller than (or equal to) each value."""
    data, values = op.operands
    dtype = dtype_of(data)
    rank = tensor_of(values).rank
    found = Expr(writer, writer.use(data), dtype)
    name = writer.use(values)
    if rank:
        name = writer.node("Unsqueeze", name, writer.ints(rank))
    asked = Expr(writer, name, dtype)
    if dtype is dtypes.bool_:
        found, asked = found.cast(dtypes.uint8), asked.cast(dtypes.uint8)
    before = found < asked if op.attrs["side"] == "left" else found <= asked
    if dtype.is_floating:  # a NaN is the largest number
        nan = asked.truth("IsNaN")
        before = before | (nan if op.attrs["side"] == "right" else nan & ~found.truth("IsNaN"))
    counted = writer.cast(before.name, dtypes.bool_, dtypes.int64)
    writer.bind(op.result, writer.node("ReduceSum", counted, writer.ints(rank), keepdims=0))


# ----------------------------------------------------------------------------------------- products
def matmul(writer: GraphWriter, op: Operation) -> None:
    """`MatMul`, of constants that are transposed here, and `Gemm` where one is transposed."""
    dtype = dtype_of(op.result)
    kinds = [tensor_of(v) for v in op.operands]
    flags = [bool(op.attrs["transpose_a"]), bool(op.attrs["transpose_b"])]
    names = []
    for value, kind, flag in zip(op.operands, kinds, flags, strict=True):
        swap = (*range(kind.rank - 2), kind.rank - 1, kind.rank - 2)
        names.append(writer.use(value, swap if flag else ()))
    working = dtypes.float32 if dtype is dtypes.bfloat16 else dtype
    names = [writer.cast(n, dtype, working) for n in names]
    made = writer.call("MatMul", names, working)
    writer.bind(op.result, writer.cast(made, working, dtype))


BUILDERS: dict[str, Callable[[GraphWriter, Operation], None]] = {
    **dict.fromkeys(_KINDS, _reduction),
    **dict.fromkeys(("argmax", "argmin"), _position),
    "cumulative_sum": _cumulative_sum,
    **dict.fromkeys(_COMBINES, _cumulative),
    **dict.fromkeys(("sort", "argsort"), _sort),
    "searchsorted": _searchsorted,
    "matmul": matmul,
}

__all__ = ["BUILDERS", "indices", "matmul", "reduce", "top_k"]
