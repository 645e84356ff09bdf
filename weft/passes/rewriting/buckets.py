"""Buckets of sums over processes (`ir.ops.collectives`) as ops: packed by `concat`, and taken apart
by slices. For what passes make of a sum that is in two halves: one that is waited for."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from weft.ir.graph import Operation
from weft.ir.ops.collectives import member_starts
from weft.ir.spec import Attrs, AttrValue, ints_attr
from weft.ir.types import TensorType
from weft.passes.rewriting.expression import Expr


def packed(members: Sequence[Expr], types: Sequence[TensorType]) -> Expr:
    """The bucket of members of these types; they may have the axis of a batch in front, which the
    bucket then has."""
    starts, count = member_starts(types)
    parts = []
    rows = members[0].shape[: members[0].rank - types[0].rank]
    for x, kind, start, end in zip(members, types, starts, [*starts[1:], count], strict=True):
        size = prod(kind.static_shape)
        parts.append(x.reshape((*rows, size)))
        if start + size < end:
            parts.append(x.full(0, (*rows, end - start - size)))
    first, *rest = parts
    return first.op("concat", *rest, axis=len(rows)) if rest else first


def taken_apart(bucket: Expr, types: Sequence[TensorType]) -> list[Expr]:
    """The members of a bucket, which may have the axis of a batch in front."""
    rows = bucket.shape[:-1]
    whole = len(rows)
    found = []
    for kind, start in zip(types, member_starts(types)[0], strict=True):
        part = bucket.op(
            "slice",
            starts=(*(0,) * whole, start),
            stops=(*rows, start + prod(kind.static_shape)),
            steps=(1,) * (whole + 1),
        )
        found.append(part.reshape((*rows, *kind.static_shape)))
    return found


def summed(bucket: Expr, op: Operation) -> Expr:
    """The sum of a bucket over the axes of its `start`, waited for at once."""
    attrs = op.attrs
    axes = attrs["axes"]
    assert isinstance(axes, tuple)
    for axis, size in zip(axes, ints_attr(attrs, "sizes"), strict=True):
        bucket = bucket.op("exchange", **_of_a_sum(attrs, str(axis), size))
    return bucket


def _of_a_sum(attrs: Attrs, axis: str, size: int) -> dict[str, AttrValue]:
    kept = {key: attrs[key] for key in ("mesh", "shapes", "line")}
    return {**kept, "kind": "psum", "axis_name": axis, "size": size}
