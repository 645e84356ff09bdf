"""Which ops may end a step with an error while it runs, and what is written by then."""

from __future__ import annotations

from collections.abc import Iterator

from weft.ir.graph import Operation, Value
from weft.ir.index_maps import GATHERS, index_operand, index_sizes
from weft.ir.ops.index import CHECKED
from weft.ir.registered import REGISTERED
from weft.ir.rules import int_attr
from weft.passes.memory.in_place import UPDATES
from weft.passes.rewrite import behind_views


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
