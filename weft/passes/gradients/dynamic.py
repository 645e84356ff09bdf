"""Gradients of ops whose results have sizes that depend on values.

The cotangent of a part is a part of the cotangent, so the rules name the same sizes as the op.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft.ir.attributes import AttrValue
from weft.ir.dims import product
from weft.ir.dtypes import int64
from weft.passes.expression import Expr
from weft.passes.gradients.rule import Rule, Site


def _unique(s: Site) -> Sequence[Expr | None]:
    """Each value is that of the element where it is first."""
    (g, *_), (_, first, *_) = s.cotangents, s.results
    if g is None:
        return [None]
    flat = s.x.full(0, (product(s.x.shape),))
    return [flat.op("index_add", first, g, axis=0).reshape(s.x.shape)]


def _partition(s: Site) -> Sequence[Expr | None]:
    """Put together again by `dynamic_stitch`, as TensorFlow does."""
    if not s.needed[0]:
        return [None, None]
    data, partitions = s.operands
    rows = product(partitions.shape)
    number = data.iota((rows,), 0, int64).reshape(partitions.shape)
    places = _emit(s.x, "dynamic_partition", [number, partitions], dict(s.attrs))
    pairs = zip(s.cotangents, s.results, strict=True)
    given = [y.full(0) if g is None else g for g, y in pairs]
    attrs: dict[str, AttrValue] = {"rows": rows, "sizes": ()}
    (whole,) = _emit(s.x, "dynamic_stitch", [*places, *given], attrs)
    return [whole.reshape(data.shape), None]


def _stitch(s: Site) -> Sequence[Expr | None]:
    """The row of the cotangent at each index; 0 for a row that a later one with its index has
    replaced. (TensorFlow's rule gives those the cotangent of the row that replaced them.)"""
    count = len(s.operands) // 2
    indices, data = s.operands[:count], s.operands[count:]
    sources = [i.full(k, dtype=int64) for k, i in enumerate(indices)]
    numbers = [i.iota((product(i.shape),), 0, int64).reshape(i.shape) for i in indices]
    (source,) = _emit(s.x, "dynamic_stitch", [*indices, *sources], dict(s.attrs))
    (number,) = _emit(s.x, "dynamic_stitch", [*indices, *numbers], dict(s.attrs))
    grads: list[Expr | None] = []
    for k, (index, rows) in enumerate(zip(indices, data, strict=True)):
        if not s.needed[count + k]:
            grads.append(None)
            continue
        last = source.op("take", index, axis=0).equals(sources[k])
        last = last.op("logical_and", number.op("take", index, axis=0).equals(numbers[k]))
        ones = (1,) * (rows.rank - index.rank)
        last = last.reshape((*index.shape, *ones)).broadcast_to(rows.shape)
        grads.append(last.where(s.g.op("take", index, axis=0), 0))
    return [*[None] * count, *grads]


def _emit(x: Expr, op: str, operands: Sequence[Expr], attrs: Mapping[str, AttrValue]) -> list[Expr]:
    made = x.builder.emit(op, [o.value for o in operands], attrs, locations=x.locations)
    return [x.wrap(v) for v in made]


GRADIENTS: Mapping[str, Rule] = {
    "unique": _unique,
    "dynamic_partition": _partition,
    "dynamic_stitch": _stitch,
    "ensure_shape": lambda s: _emit(s.g, "ensure_shape", [s.g], {"shape": s.x.shape, "sizes": ()}),
}
#: Positions.
NO_GRADIENT = frozenset({"nonzero", "repeat_index"})
