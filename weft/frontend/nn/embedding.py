"""Rows of tables that may be split over several tensors (the paper, section 4.2)."""

from __future__ import annotations

from collections.abc import Sequence

from weft.frontend.devices import beside
from weft.frontend.ops.arithmetic import (
    add,
    equal,
    floor_divide,
    less,
    maximum,
    minimum,
    remainder,
    subtract,
    where,
)
from weft.frontend.ops.dispatch import apply
from weft.frontend.ops.dynamic import partition_places
from weft.frontend.ops.dynamic_sizes import open_sizes
from weft.frontend.ops.index import as_indices, take
from weft.frontend.ops.promotion import TensorLike, cast
from weft.frontend.ops.shape import expand_dims, reshape
from weft.frontend.tensor import Tensor, as_tensor
from weft.ir.dims import format_shape
from weft.ir.dtypes import int64
from weft.ir.errors import InvalidArgumentError, ShapeError, UnsupportedError
from weft.ir.locations import caller_location


def embedding_lookup(
    params: TensorLike | Sequence[TensorLike], ids: TensorLike, partition_strategy: str = "mod"
) -> Tensor:
    """The rows of the table `params` at the integers `ids`: shape ids.shape + params.shape[1:].

    params: one table, or a list of P parts of one. partition_strategy "mod": row i is row i // P of
    part i % P; "div": the parts are consecutive, the first ones a row longer where P does not
    divide the number of rows (TensorFlow 1's two). In a graph and eagerly each part is asked for
    its own rows only (dynamic_partition, take, dynamic_stitch, as in section 4.2 of the paper), on
    its device, and its gradient is `IndexedSlices`; in a compiled function, whose sizes are fixed,
    each part is asked for a row for every id. Negative ids count from the end; ids out of range are
    errors.
    """
    if partition_strategy not in ("mod", "div"):
        raise InvalidArgumentError(
            f"wf.nn.embedding_lookup: partition_strategy must be 'mod' or 'div', got "
            f"{partition_strategy!r}",
            location=caller_location(),
        )
    parts = list(params) if isinstance(params, (list, tuple)) else [params]
    if not parts:
        raise InvalidArgumentError(
            "wf.nn.embedding_lookup: params is an empty list", location=caller_location()
        )
    tables = [as_tensor(p) for p in parts]
    for table in tables:
        if not table.ndim:
            raise ShapeError(
                "wf.nn.embedding_lookup: params needs at least one axis", location=caller_location()
            )
    if len(tables) == 1:
        with beside(tables[0]):
            return take(tables[0], ids, axis=0)
    rows = part_sizes(tables, partition_strategy)
    places = cast(as_indices("nn.embedding_lookup", ids), int64)
    flat = reshape(places, [-1])
    total = sum(rows)  # an id below -total becomes one above, which no part has either
    flat = where(less(flat, 0), where(less(flat, -total), total, add(flat, total)), flat)
    found = (_routed if open_sizes() else _selected)(tables, rows, flat, partition_strategy)
    return reshape(found, [*places.shape, *tables[0].shape[1:]])


def part_sizes(tables: Sequence[Tensor], strategy: str) -> list[int]:
    """The number of rows of each part. ShapeError if they are not parts of one table."""
    rows = [t.shape[0] for t in tables]
    known = [n for n in rows if isinstance(n, int)]
    if len(known) < len(rows):
        shapes = ", ".join(format_shape(t.shape) for t in tables)
        raise ShapeError(
            f"wf.nn.embedding_lookup: how many rows the parts {shapes} have is not known",
            hint="give them sizes, such as wf.placeholder(wf.float32, [1000, 64]); or look up in "
            "one table",
            location=caller_location(),
        )
    total, count = sum(known), len(tables)
    wanted = [total // count + (i < total % count) for i in range(count)]
    alike = all(t.shape[1:] == tables[0].shape[1:] for t in tables)
    if known != wanted or not alike or len({t.dtype for t in tables}) > 1:
        shapes = ", ".join(format_shape(t.shape) for t in tables)
        raise ShapeError(
            f"wf.nn.embedding_lookup: {shapes} are not the parts of one table by '{strategy}'",
            hint=f"they would have {wanted} rows, and else the same shape and dtype",
            location=caller_location(),
        )
    return known


def part_of_id(flat: Tensor, rows: Sequence[int], strategy: str) -> tuple[Tensor, Tensor]:
    """For each id the part that has it, and the row there."""
    count, total = len(rows), sum(rows)
    if strategy == "mod":
        return remainder(flat, count), floor_divide(flat, count)
    short, longer = total // count, total % count
    part = floor_divide(flat, short + 1)
    if short:
        part = maximum(part, floor_divide(subtract(flat, longer), short))
    part = minimum(part, count - 1)  # which has no such row either, and says so
    start = add(part * short, where(less(part, longer), part, longer))
    return part, subtract(flat, start)


def _routed(tables: Sequence[Tensor], rows: Sequence[int], flat: Tensor, strategy: str) -> Tensor:
    part, row = part_of_id(flat, rows, strategy)
    back = partition_places(part, len(tables))
    found = []
    for table, places in zip(tables, back, strict=True):
        wanted = take(row, places)
        with beside(table):  # its rows are sent, not the table
            found.append(take(table, wanted, axis=0))
    return apply("dynamic_stitch", *back, *found, rows=flat.shape[0])


def _selected(tables: Sequence[Tensor], rows: Sequence[int], flat: Tensor, strategy: str) -> Tensor:
    if not all(rows):
        raise UnsupportedError(
            "wf.nn.embedding_lookup: in a compiled function no part may be without rows, but they "
            f"have {list(rows)}",
            hint="use fewer parts, or look up in a wf.Graph",
            location=caller_location(),
        )
    part, row = part_of_id(flat, rows, strategy)
    out: Tensor | None = None
    for number, table in enumerate(tables):
        mine = equal(part, number)
        found = take(table, where(mine, row, 0), axis=0)
        column = mine
        for _ in range(table.ndim - 1):
            column = expand_dims(column, -1)
        out = found if out is None else where(column, found, out)
    assert out is not None
    return out
