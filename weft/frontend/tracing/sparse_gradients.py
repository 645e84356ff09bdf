"""Which gradient of a table is rows: read off the graph that differentiation has built."""

from __future__ import annotations

from weft.frontend.indexed_slices import IndexedSlices, added
from weft.frontend.ops.shape import reshape
from weft.frontend.tensor import Tensor
from weft.ir.graph import Value
from weft.ir.type_rules import int_attr
from weft.ir.types import TensorType
from weft.passes.simplify.fold import uniform


def as_slices(gradient: Tensor) -> IndexedSlices | None:
    """The gradient as rows, if that is all it is: sums of rows added into zeros, which is what the
    lookups of a table leave. None if anything dense is in it."""
    trace, value = gradient._trace, gradient._value
    if trace is None or value is None or not isinstance(value.type, TensorType):
        return None
    found = _rows(value)
    if not found or not value.type.is_static:
        return None
    shape = value.type.static_shape
    parts = []
    for indices, updates in found:
        rows = reshape(trace.tensor(updates), [-1, *shape[1:]])
        parts.append(IndexedSlices(rows, reshape(trace.tensor(indices), [-1]), shape))
    return added(parts)


def _rows(value: Value) -> list[tuple[Value, Value]]:
    """The (indices, rows) that `value` is the sum of; none if it is not."""
    out: list[tuple[Value, Value]] = []
    todo = [value]
    while todo:
        op = todo.pop().op
        if op is None:
            return []
        if op.name == "add":
            todo += reversed(op.operands)
            continue
        base, *rows = op.operands or (None,)
        if not _adds_rows(op.name, rows) or (op.name == "index_add" and int_attr(op.attrs, "axis")):
            return []
        zero = None if base is None else uniform(base)
        if zero is None or zero.item() != 0:
            return []
        out.append((rows[0], rows[1]))
    return out


def _adds_rows(op: str, rows: list[Value]) -> bool:
    """Whether an op adds into the first axis: `index_add`, or `scatter_nd_add` by one number."""
    if op != "scatter_nd_add":
        return op == "index_add"
    kind = rows[0].type
    return isinstance(kind, TensorType) and kind.shape[-1] == 1
