"""Makers of ops whose results have sizes that depend on values (see `graph_makers`)."""

from __future__ import annotations

from typing import Any, cast

from graphs import GraphMaker, Unfit

from weft.ir.dtypes import ALL, int32, int64

ORDERED = tuple(d for d in ALL if d.kind in ("bool", "int", "uint", "float"))


def nonzero(m: GraphMaker, op: str) -> None:
    m.emit(op, [m.some()], sizes=_names(m, 1))


def unique(m: GraphMaker, op: str) -> None:
    m.emit(op, [m.some(dtypes=ORDERED)], sizes=_names(m, 1))


def dynamic_partition(m: GraphMaker, op: str) -> None:
    data = m.some(lambda t: t.rank > 0)
    count = m.int(1, 3)
    rank = m.int(1, data.type.rank)
    if any(d is None for d in data.type.shape):
        raise Unfit
    dtype = m.pick([int32, int64])
    parts = m.indices(dtype, data.type.shape[:rank], count)
    m.emit(op, [data, parts], num_partitions=count, sizes=_names(m, count))


def dynamic_stitch(m: GraphMaker, op: str) -> None:
    dtype = m.dtype(ALL)
    rest = m.shape()
    if any(d is None for d in rest):
        raise Unfit
    sizes = [m.int(0, 3) for _ in range(m.int(1, 2))]
    indices = [m.indices(m.pick([int32, int64]), (n,), 5) for n in sizes]
    data = [m.like(dtype, (n, *rest)) for n in sizes]
    rows = m.pick([None, 5])
    m.emit(op, [*indices, *data], rows=rows, sizes=_names(m, 1) if rows is None else ())


def repeat_index(m: GraphMaker, op: str) -> None:
    m.emit(op, [m.indices(m.pick([int32, int64]), (m.int(0, 3),), 4)], sizes=_names(m, 1))


def sparse_pairs(m: GraphMaker, op: str) -> None:
    operands = [m.indices(int64, (m.int(0, 4), 2), 3) for _ in range(2)]
    m.emit(op, operands, sizes=_names(m, 2))


def sparse_pairs_padded(m: GraphMaker, op: str) -> None:
    operands = [m.indices(int64, (m.int(0, 4), 2), 3) for _ in range(2)]
    m.emit(op, operands, shape=tuple(m.int(0, 4) for _ in range(3)), room=m.int(0, 9))


def ensure_shape(m: GraphMaker, op: str) -> None:
    x = m.some()
    if any(d is None for d in x.type.shape):
        raise Unfit
    new = [m.flag() for _ in x.type.shape]
    shape = tuple(None if n else d for n, d in zip(new, x.type.shape, strict=True))
    m.emit(op, [x], shape=shape, sizes=_names(m, sum(new)))


def dynamic_size(m: GraphMaker, op: str) -> None:
    n = m.indices(m.pick([int32, int64]), (), 4)
    m.emit(op, [n], sizes=_names(m, 1), what=m.pick(["a size", "wf.zeros: a size"]))


def _names(m: GraphMaker, count: int) -> tuple[str, ...]:
    """Names that no op of the graph has yet, or none."""
    if m.flag():
        return ()
    taken = sum(len(cast(tuple[Any, ...], o.attrs.get("sizes", ()))) for o in m.builder.ops)
    return tuple(f"k{taken + i}" for i in range(count))


MAKERS = {
    "nonzero": nonzero,
    "unique": unique,
    "dynamic_partition": dynamic_partition,
    "dynamic_stitch": dynamic_stitch,
    "repeat_index": repeat_index,
    "sparse_pairs": sparse_pairs,
    "sparse_pairs_padded": sparse_pairs_padded,
    "ensure_shape": ensure_shape,
    "dynamic_size": dynamic_size,
}
