"""The pairs of entries of two sparse matrices that meet, by kernels: both matrices by rows, what
each span of rows of the left one gives counted, and then written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from weft.ir.spec import Array, Attrs
from weft.runtime.dynamic.calls import CHUNK, behaved, run_kernel
from weft.runtime.dynamic.unique import unique_ascending
from weft.runtime.native.ahead import address

#: Rows of the left matrix are cut into so many spans at most.
_MOST_SPANS = 16


class _Axis(NamedTuple):
    """numbers: the entries' indices along an axis, below `size`; names: what these numbers stand
    for (None: themselves)."""

    numbers: Array
    size: int
    names: Array | None


class _ByRows(NamedTuple):
    """The entries by rows: where each row's begin; their numbers before; their columns."""

    starts: Array
    order: Array
    columns: Array


def pairs_op(arrays: Sequence[Array], attrs: Attrs) -> list[Array] | None:
    a, b = arrays
    if not (a.size and b.size and behaved(a, b)) or min(int(a.min()), int(b.min())) < 0:
        return None
    rows, columns = _axis(a[:, 0]), _axis(b[:, 1])
    inner = max(int(a[:, 1].max()), int(b[:, 0].max())) + 1
    meets, given = a[:, 1], b[:, 0]
    if inner > _dense(len(a) + len(b)):
        shared = _axis(np.concatenate([meets, given]))
        meets, given, inner = shared.numbers[: len(a)], shared.numbers[len(a) :], shared.size
    left = _by_rows(rows.numbers, meets, rows.size)
    right = _by_rows(given, columns.numbers, inner)
    return _pairs(rows, left, right, columns)


def _dense(entries: int) -> int:
    """How many rows may have a word each for so many entries."""
    return 4 * entries + CHUNK


def _axis(numbers: Array) -> _Axis:
    size = int(numbers.max()) + 1
    if size <= _dense(len(numbers)):
        return _Axis(numbers, size, None)
    found = unique_ascending(np.ascontiguousarray(numbers))
    assert found is not None
    assert found.inverse is not None
    return _Axis(found.inverse, len(found.values), found.values)


def _by_rows(rows: Array, columns: Array, size: int) -> _ByRows:
    starts = np.zeros(size + 1, np.int64)
    order, out = (np.empty(len(rows), np.int64) for _ in range(2))
    given = (address(rows), rows.strides[0], len(rows))
    run_kernel("count_rows", (), (*given, address(starts) + 8))
    np.cumsum(starts, out=starts)
    following = starts.copy()
    more = (address(following), address(columns), columns.strides[0], address(order), address(out))
    run_kernel("fill_by_rows", (), (*given, *more))
    return _ByRows(starts, order, out)


def _pairs(rows: _Axis, left: _ByRows, right: _ByRows, columns: _Axis) -> list[Array]:
    # before anything counts them one by one: they may be more than fit into memory
    pairs = int(np.diff(right.starts)[left.columns].sum())
    outs = [np.empty(pairs, np.int64) for _ in range(3)]
    # each span has a word for each column: no more in all than there are entries
    entries = len(left.order) + len(right.order)
    span = -(-rows.size // min(_MOST_SPANS, max(1, entries // columns.size)))
    spans = -(-rows.size // span)
    marks = np.zeros((spans, columns.size), np.int64)
    found = np.empty((spans, 2), np.int64)
    both = (left.starts, left.columns, right.starts, right.columns)
    given = (rows.size, span, *map(address, both))
    run_kernel("count_pairs", (), (*given, *map(address, (found, marks)), columns.size), spans)
    begins = np.cumsum(found, axis=0)
    indices = np.empty((int(begins[-1, 1]), 2), np.int64)
    begins -= found
    levels = [-(-columns.size >> bits) for bits in (6, 12, 18)]
    tree = np.zeros((spans, sum(levels) + columns.size + 1), np.int64)
    names = [0 if axis.names is None else address(axis.names) for axis in (rows, columns)]
    more = (
        *map(address, (begins, marks)), columns.size, address(left.order), address(right.order),
        address(tree), *levels, *map(address, outs), address(indices), *names,
        tree.shape[1],
    )  # fmt: skip
    run_kernel("fill_pairs", (), (*given, *more), spans)
    return [indices, *outs]
