"""Sparse products: a gather of rows, times a number each, added up by another index, is one op.

Before::

    %1 = slice(%entries) {starts=[0, 1], stops=[n, 2]} : i64[n,1]
    %2 = take(%dense, reshape(%1)) {axis=0} : f32[n,64]
    %3 = multiply(%2, broadcast_to(reshape(%values))) : f32[n,64]
    %4 = slice(%entries) {starts=[0, 0], stops=[n, 1]} : i64[n,1]
    %5 = scatter_nd_add(zeros, %4, %3) : f32[1000,64]

After: ``%5 = sparse_matmul(%dense, %entries, %values) {rows=[1000], row=0}``, which stores no rows.
That is what `wf.sparse.matmul` composes, and, by `gather_nd` and `index_add`, its gradient in the
dense operand. Rows and columns of the entries that are no parts of one tensor are put beside each
other. The result has the same bits: the op does the same additions in the same order. The rules:

* f32 or f64, and more elements than a small loop keeps in registers;
* the dense operand is a matrix or a vector, and nobody else reads the product %3;
* rows that are added as they are (a segment sum of looked-up rows) have ones for values;
* %5 is added into zeros, by one number for each entry."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from weft.ir.analysis.known_values import uniform
from weft.ir.cost.thresholds import LEAST_ADDED
from weft.ir.dims import Dim, product, same
from weft.ir.dtypes import float32, float64
from weft.ir.graph import Graph, Operation, Value
from weft.ir.ops.builder import Builder
from weft.ir.spec import ConstArray, int_attr, ints_attr, shape_attr
from weft.passes.fusion.attention import blocks_in, made_by, readers_in
from weft.passes.rewriting.rewrite import emit_at, rewrite, shape_of, tensor


class Column(NamedTuple):
    """A vector of indices: a column of a tensor [n, width]."""

    entries: Value
    number: int


def pairs_by_kernel(graph: Graph) -> Graph:
    """Leave `sparse_pairs_padded` without its results by other ops, which are dead then."""

    def rule(builder: Builder, op: Operation) -> Sequence[Value] | None:
        if op.name != "sparse_pairs_padded" or len(op.operands) == 2:
            return None
        return builder.emit(op.name, op.operands[:2], op.attrs, locations=op.locations)

    return rewrite(graph, rule)


def pairs_by_ops(graph: Graph) -> Graph:
    """Replace `sparse_pairs_padded` by its results by other ops, where there is no kernel."""
    return rewrite(
        graph,
        lambda _, op: op.operands[2:] or None if op.name == "sparse_pairs_padded" else None,
    )


def fuse_sparse_products(graph: Graph) -> Graph:
    """Make `sparse_matmul` of what the module's docstring shows."""
    shared = {
        v
        for block in blocks_in(graph.block)
        for v, readers in readers_in(block).items()
        if len(readers) > 1
    }

    def rule(builder: Builder, op: Operation) -> Sequence[Value] | None:
        rows = _added_rows(op)
        found = None if rows is None or op.operands[2] in shared else _weighed(op.operands[2])
        if rows is None or found is None:
            return None
        columns, dense, values = found
        if tensor(rows.entries).dtype is not tensor(columns.entries).dtype:
            return None
        entries, row = _entries(builder, op, rows, columns)
        count, n = shape_of(op.result)[:1], shape_of(op.operands[2])[:1]
        if values is None:
            one = ConstArray(np.ones((), tensor(dense).dtype.numpy))
            values = emit_at(builder, op, "constant", value=one)
            values = emit_at(builder, op, "broadcast_to", values, shape=n)
        if len(shape_of(values)) == 2:
            values = emit_at(builder, op, "reshape", values, shape=n)
        narrow = len(shape_of(dense)) == 2 and shape_of(dense)[1] == 1
        if narrow:  # a vector
            dense = emit_at(builder, op, "reshape", dense, shape=shape_of(dense)[:1])
        out = emit_at(builder, op, "sparse_matmul", dense, entries, values, rows=count, row=row)
        return [emit_at(builder, op, "reshape", out, shape=(*count, 1)) if narrow else out]

    return rewrite(graph, rule)


def _weighed(rows: Value) -> tuple[Column, Value, Value | None] | None:
    """Rows that are taken from a tensor, times a number each or as they are: by which index, of
    what, and the numbers."""
    columns = _taken_rows(rows)
    if columns is not None and rows.op is not None:
        return columns, rows.op.operands[0], None
    weighed = made_by(rows, "multiply")
    if weighed is None:
        return None
    for taken, numbers in (weighed.operands, weighed.operands[::-1]):
        columns, values = _taken_rows(taken), _values(numbers)
        if columns is None or values is None or shape_of(values)[0] != shape_of(taken)[0]:
            continue
        assert taken.op is not None
        return columns, taken.op.operands[0], values
    return None


def _added_rows(op: Operation) -> Column | None:
    """By which index an op adds rows into zeros."""
    if op.name not in ("scatter_nd_add", "index_add") or len(shape_of(op.result)) not in (1, 2):
        return None
    zeros = uniform(op.operands[0])
    count = product(shape_of(op.operands[2]))
    if isinstance(count, int) and count < LEAST_ADDED:
        return None
    if tensor(op.result).dtype not in (float32, float64) or zeros is None or zeros != 0:
        return None
    if op.name == "index_add" and int_attr(op.attrs, "axis"):
        return None
    return _column(op.operands[1], op.name == "scatter_nd_add")


def _taken_rows(value: Value) -> Column | None:
    """By which index rows of a matrix, or elements of a vector, are taken."""
    op = value.op
    if op is None or op.name not in ("take", "gather_nd"):
        return None
    if op.name == "take" and int_attr(op.attrs, "axis"):
        return None
    return _column(op.operands[1], op.name == "gather_nd")


def _column(index: Value, listed: bool) -> Column | None:
    """The vector that indices are, or if they are `listed` by rows, [n, 1]."""
    shape = shape_of(index)
    if len(shape) != 1 + listed or (listed and shape[1] != 1):
        return None
    source, n = index, shape[0]
    while (view := made_by(source, "reshape")) is not None and _is_column(view.operands[0], n):
        source = view.operands[0]
    part = made_by(source, "slice")
    if part is not None and len(shape_of(source)) == 2:
        starts, stops = (shape_attr(part.attrs, name) for name in ("starts", "stops"))
        whole = shape_of(part.operands[0])
        if (starts[0], stops[0]) == (0, whole[0]) and set(ints_attr(part.attrs, "steps")) == {1}:
            assert isinstance(starts[1], int)
            return Column(part.operands[0], starts[1])
    return Column(source, 0)


def _is_column(value: Value, n: Dim) -> bool:
    """Whether it is [n] or [n, 1]."""
    shape = shape_of(value)
    return bool(shape) and shape[0] == n and shape[1:] in ((), (1,))


def _values(value: Value) -> Value | None:
    """The numbers of which each row of `value` repeats one, as [n] or [n, 1]."""
    if len(shape_of(value)) == 1:
        return value
    spread = made_by(value, "broadcast_to")
    column = value if spread is None else spread.operands[0]
    shape, whole = shape_of(column), shape_of(value)
    if len(whole) != 2 or len(shape) != 2 or shape[1] != 1 or shape[0] != whole[0]:
        return None
    view = made_by(column, "reshape")
    return (
        view.operands[0] if view is not None and _is_column(view.operands[0], shape[0]) else column
    )


def _entries(builder: Builder, op: Operation, rows: Column, columns: Column) -> tuple[Value, int]:
    """Rows and columns side by side, [n, 2], and which of the two the rows are."""
    shape = shape_of(rows.entries)
    if rows.entries is columns.entries and len(shape) == 2 and same(shape[1], 2):
        if {rows.number, columns.number} == {0, 1}:
            return rows.entries, rows.number
    made = [_side(builder, op, column) for column in (rows, columns)]
    return emit_at(builder, op, "concat", *made, axis=1), 0


def _side(builder: Builder, op: Operation, column: Column) -> Value:
    """A column as a tensor [n, 1]."""
    shape = shape_of(column.entries)
    if shape[1:] in ((), (1,)):
        flat = column.entries
        return flat if len(shape) == 2 else emit_at(builder, op, "reshape", flat,
                                                    shape=(shape[0], 1))  # fmt: skip
    at = column.number
    return emit_at(
        builder, op, "slice", column.entries, starts=(0, at), stops=(shape[0], at + 1), steps=(1, 1)
    )
