"""In-place safety: operands that a kernel may overwrite, and ops that may fail midway.

A result may be written over an operand that dies there (`in_place_operands`); but a step that ends
with an error must leave its inputs as they were (`may_fail`, `may_fail_midway`)."""

from __future__ import annotations

from collections.abc import Iterator

from weft.ir.analysis.index_maps import GATHERS, index_operand, index_sizes
from weft.ir.graph import Operation, Value
from weft.ir.ops import REGISTERED, lookup
from weft.ir.ops.data_movement import CHECKED
from weft.ir.spec import int_attr
from weft.ir.types import TensorType
from weft.passes.rewriting.rewrite import behind_views

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


def may_fail(op: Operation) -> bool:
    """Whether the op, or one in it, may: for an index out of bounds, or as kernels of users may."""
    if op.name in CHECKED or op.name in REGISTERED:
        return True
    return any(may_fail(inner) for region in op.regions for inner in region.ops)


def may_fail_midway(value: Value) -> bool:
    """Whether what computes the value may fail when it has written a part of it. An update looks at
    all its indices first; a carry of a loop is written whole in each iteration.
    """
    op = behind_views(value).op
    if op is None or op.name in UPDATES:
        return False
    if op.name == "fused":  # the indices that a nest reads through are looked at before it
        return any(may_fail(o) and o.name not in GATHERS for o in op.regions[0].ops)
    if op.name == "cond":
        return any(may_fail_midway(region.results[value.index]) for region in op.regions)
    if "carries" in op.attrs and value.index < int_attr(op.attrs, "carries"):
        return may_fail_midway(op.regions[-1].results[value.index])
    return may_fail(op)


def checks(op: Operation) -> Iterator[tuple[Value, tuple[int, ...]]]:
    """The indices that an op of a fused graph of static shapes looks at, and the sizes of the axes
    they are of."""
    if op.name in CHECKED:
        yield index_operand(op), index_sizes(op)
    elif op.name == "fused":
        (region,) = op.regions
        outside = dict(zip(region.args, op.operands, strict=True))
        for inner in region.ops:
            if inner.name in CHECKED and index_operand(inner) in outside:
                yield outside[index_operand(inner)], index_sizes(inner)
