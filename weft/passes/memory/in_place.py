"""Which operands an op's kernel may overwrite with its results."""

from __future__ import annotations

from weft.ir.graph import Operation, Value
from weft.ir.ops import lookup
from weft.ir.types import TensorType

#: Ops that copy operand 0 and change some of its elements: in its own buffer nothing is copied.
UPDATES = frozenset(
    {
        "index_add", "scatter_along_axis_add", "scatter_nd_add", "scatter_nd_update",
        "scatter_nd_min", "scatter_nd_max", "slice_update",
    }
)  # fmt: skip


#: Ops that give a handle for a handle, operand 0, which they read first.
HANDLES = frozenset({"arena_push", "arena_pop"})


def in_place_operands(op: Operation) -> list[int]:
    """Operands that may be overwritten: those of a nest that it reads only at the element being
    written, and the array that an update changes.
    """
    if op.name in UPDATES or op.name in HANDLES:
        return [0]
    if op.name != "fused":
        return []
    (region,) = op.regions
    space = _nest_shape(op)
    product = next((k for k, o in enumerate(region.ops) if o.name == "matmul"), 0)
    unsafe: set[Value] = set()
    for k, inner in enumerate(region.ops):
        # before a product: other elements of it need the operand again
        if k < product or lookup(inner.name).traits.isdisjoint(("elementwise", "reduction")):
            unsafe.update(inner.operands)
    return [
        i
        for i, arg in enumerate(region.args)
        if arg not in unsafe and isinstance(arg.type, TensorType) and arg.type.shape == space
    ]


def writes_in_place(value: Value) -> bool:
    """May the buffer of an operand in `in_place_operands` be that of `value`: is `value` the result
    of an update, or a nest's that is written element by element (not a reduction's)?
    """
    if value.op is None:
        return False
    if value.op.name in UPDATES or (value.op.name in HANDLES and value.index == 0):
        return True
    if value.op.name != "fused":
        return False
    inner = value.op.regions[0].results[value.index].op
    return inner is not None and "reduction" not in lookup(inner.name).traits


def _nest_shape(op: Operation) -> object:
    for inner in op.regions[0].ops:
        if "reduction" in lookup(inner.name).traits:
            source = inner.operands[0].type
            return source.shape if isinstance(source, TensorType) else None
    last = op.regions[0].results[0].type
    return last.shape if isinstance(last, TensorType) else None
