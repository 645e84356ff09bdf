"""ONNX nodes of reductions, running reductions, sorts, searches and products of matrices."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from weft.frontend.onnx.nodes.control import Rows, scanned
from weft.frontend.onnx.nodes.elementwise import Expr, logaddexp
from weft.frontend.onnx.nodes.graph import (
    GraphWriter,
    dtype_of,
    inverted,
    tensor_of,
)
from weft.frontend.onnx.nodes.moves import bind_turned
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
    order = inverted(perm)
    own = [perm[a] for a in axes] if perm else list(axes)
    left: tuple[int, ...] = perm
    if perm and not keepdims:  # of the axes that stay, numbered anew
        kept = [perm[a] for a in range(rank) if a not in axes]
        ranks = {a: k for k, a in enumerate(sorted(kept))}
        left = tuple(ranks[a] for a in kept)
        left = () if left == tuple(range(len(left))) else left
    x = Expr(writer, writer.use(value, order), dtype)
    made = _folded(x, kind, sorted(own), int(keepdims), _has_elements(value, axes))
    bind_turned(writer, op.result, made.name, left)


def _has_elements(value: Value, axes: Sequence[int]) -> bool:
    """Whether there surely is an element along each axis."""
    sizes = [tensor_of(value).shape[a] for a in axes]
    return all(isinstance(d, int) and d > 0 for d in sizes)


def _folded(x: Expr, kind: str, axes: Sequence[int], keepdims: int, sure: bool) -> Expr:
    """The reduction of a tensor over its axes; sure: there are elements along them."""
    dtype = x.dtype
    if dtype is dtypes.bool_ and not sure:  # the least of no bools is an error in onnxruntime
        given = x if kind == "ReduceMax" else ~x
        found = _folded(given.cast(dtypes.int64), "ReduceSum", axes, keepdims, False)
        found = found.cast(dtypes.bool_)
        return found if kind == "ReduceMax" else ~found
    if kind in ("ReduceMax", "ReduceMin"):
        x = signed(x)
    elif dtype.is_integer:  # onnxruntime adds up integers as floats of 64 bits, and wraps none
        x = x.cast(dtypes.int64)
    elif dtype in _NARROW_FLOATS and kind != "ReduceMean":
        x = x.cast(dtypes.float32)
    places = x.writer.ints(*axes)
    name = x.writer.call(kind, [x.name, places], x.dtype, typed=1, keepdims=keepdims)
    made = Expr(x.writer, name, x.dtype)
    return unsigned(made) if dtype is dtypes.uint64 and x.dtype is dtypes.int64 and kind in (
        "ReduceMax", "ReduceMin"
    ) else made.cast(dtype)  # fmt: skip


_TOP_BIT = 1 << 63


def signed(x: Expr) -> Expr:
    """Numbers of uint64 as those of int64 in the same order; others as they are."""
    if x.dtype is not dtypes.uint64:
        return x
    return x.call("BitwiseXor", np.uint64(_TOP_BIT)).cast(dtypes.int64)


def unsigned(x: Expr) -> Expr:
    """The other way round."""
    return x.cast(dtypes.uint64).call("BitwiseXor", np.uint64(_TOP_BIT))


def _position(writer: GraphWriter, op: Operation) -> None:
    kind = "ArgMax" if op.name == "argmax" else "ArgMin"
    dtype = dtype_of(op.operands[0])
    x = signed(Expr(writer, writer.use(op.operands[0]), dtype))
    attrs = {"axis": int_attr(op.attrs, "axis"), "keepdims": int(bool(op.attrs["keepdims"]))}
    if dtype in _NARROW_FLOATS or dtype is dtypes.bool_:
        x = x.cast(dtypes.float32 if dtype.is_floating else dtypes.int32)
    writer.bind(op.result, x.call(kind, result=dtypes.int64, **attrs).name)


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
    "cumulative_logsumexp": logaddexp,
}


def _largest(dtype: DType) -> float | int:
    return (1 << dtype.bits) - 1 if dtype.is_integer else np.inf


def _neutral(op: str, dtype: DType) -> float | int:
    if op == "cumulative_prod":
        return 1
    if op == "cumulative_min":
        return -1 - int(lowest(dtype.numpy)) if dtype.kind == "int" else _largest(dtype)
    return lowest(dtype.numpy) if dtype.is_integer else -np.inf


def _cumulative(writer: GraphWriter, op: Operation) -> None:
    """A scan along the axis, which carries what is combined so far."""
    (x,) = op.operands
    kind, axis, dtype = tensor_of(x), int_attr(op.attrs, "axis"), dtype_of(x)
    working = dtypes.float32 if dtype in _NARROW_FLOATS else dtype
    name = writer.cast(writer.use(x), dtype, working)
    rest = tuple(d for a, d in enumerate(kind.shape) if a != axis)
    neutral = writer.constant(np.asarray(_neutral(op.name, dtype)).astype(working.numpy))
    first = writer.node("Expand", neutral, writer.shape(rest)) if rest else neutral
    row = TensorType(working, rest)

    def step(names: Sequence[str]) -> list[str]:
        carried, given = (Expr(writer, n, working) for n in names)
        return [_COMBINES[op.name](carried, given).name] * 2

    rows = Rows(kind.shape[axis], bool(op.attrs["reverse"]), axis)
    made = scanned(writer, rows, [first, name], [row, row], [row, row], 1, step)
    writer.bind(op.result, writer.cast(made[1], working, dtype))


# -------------------------------------------------------------------------------------------- sorts
def _sort(writer: GraphWriter, op: Operation) -> None:
    """`TopK` of all; equal elements stay in order in both directions, as it says."""
    (x,) = op.operands
    axis = int_attr(op.attrs, "axis")
    count = writer.size(tensor_of(x).shape[axis])
    values, places = top_k(writer, x, axis, count, bool(op.attrs["descending"]))
    writer.bind(op.result, values if op.name == "sort" else places)


def top_k(writer: GraphWriter, x: Value, axis: int, count: str, largest: bool) -> tuple[str, str]:
    """The first elements in order along an axis, and where they are."""
    dtype = dtype_of(x)
    given = Expr(writer, writer.use(x), dtype)
    if dtype is dtypes.uint64:
        given = signed(given)
    elif dtype not in (dtypes.float32, dtypes.float64, dtypes.int32, dtypes.int64):
        given = given.cast(dtypes.float32 if dtype.is_floating else dtypes.int64)
    names = [given.name, count]
    values, places = writer.nodes_of("TopK", names, 2, axis=axis, largest=int(largest), sorted=1)
    made = Expr(writer, values, given.dtype)
    return (unsigned(made) if dtype is dtypes.uint64 else made.cast(dtype)).name, places


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
