"""The pairs of entries of two sparse matrices that meet, by kernels: both matrices by rows, what
each span of rows of the left one gives counted, and then written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from weft.codegen.dynamic.kernels import room_words
from weft.ir.spec import Array, Attrs
from weft.runtime.dynamic.calls import CHUNK, behaved, run_kernel
from weft.runtime.dynamic.unique import unique_ascending
from weft.runtime.native.ahead import address

#: Rows of the left matrix are cut into so many spans at most.
_MOST_SPANS = 16
#: With fewer entries in both matrices fewer steps count, with more of them, or with more pairs than
#: so many, threads.
FEW_ENTRIES, _MOST_ROOM = 1 << 13, 1 << 16


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
    if not (a.size and b.size and behaved(a, b)):
        return None
    ends = np.empty(5, np.int64)
    run_kernel("bounds", (), (address(a), a.size, address(b), b.size, address(ends)))
    last_row, last_meets, last_given, last_column, least = ends.tolist()
    if least < 0:
        return None
    inner = max(last_meets, last_given) + 1
    if len(a) + len(b) < FEW_ENTRIES:
        found = _few_pairs(a, b, (last_row + 1, inner, last_column + 1))
        if found is not None:
            return found
    rows, columns = _axis(a[:, 0], last_row), _axis(b[:, 1], last_column)
    meets, given = a[:, 1], b[:, 0]
    if inner > _dense(len(a) + len(b)):
        shared = _axis(np.concatenate([meets, given]), inner - 1)
        meets, given, inner = shared.numbers[: len(a)], shared.numbers[len(a) :], shared.size
    left = _by_rows(rows.numbers, meets, rows.size)
    right = _by_rows(given, columns.numbers, inner)
    return _pairs(rows, left, right, columns)


def _few_pairs(a: Array, b: Array, sizes: tuple[int, int, int]) -> list[Array] | None:
    """The same for few entries: two kernels for all, one array for what is not kept. None where a
    size is too large for a word each, or pairs are many."""
    words = room_words(len(a), len(b), sizes)
    if words > _dense(len(a) + len(b)):
        return None
    scratch = np.empty(words + 2, np.int64)
    at = address(scratch)
    given = (address(a), len(a), address(b), len(b), *sizes)
    run_kernel("begin_pairs", (), (*given, 0, at + 16, at))
    pairs = int(scratch[0])
    if pairs > _MOST_ROOM:
        return None
    made = np.empty((5, pairs), np.int64)
    to = address(made)
    results = (to, to + 16 * pairs, to + 24 * pairs, to + 32 * pairs)
    run_kernel("fill_room", (), (*given, pairs, at + 16, at, *results))
    indices = made[:2].reshape(-1)[: 2 * int(scratch[1])].reshape(-1, 2)
    return [part.copy() for part in (indices, *made[2:])]


def _dense(entries: int) -> int:
    """How many rows may have a word each for so many entries."""
    return 4 * entries + CHUNK


def _axis(numbers: Array, last: int) -> _Axis:
    """last: the largest of them."""
    size = last + 1
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


def merged_rows(a: Array, b: Array) -> tuple[Array, Array, Array] | None:
    """The rows of either of two i64[n, rank] in their order, each once, and for each row of both
    which of them it is. None if those of one are not in order, or repeat."""
    if not behaved(a, b):
        return None
    found = np.empty(1, np.int64)
    rows, left, right = (
        np.empty(shape, np.int64) for shape in ((len(a) + len(b), a.shape[1]), len(a), len(b))
    )
    given = (address(a), len(a), address(b), len(b), a.shape[1])
    run_kernel("merge_rows", (), (*given, *map(address, (found, rows, left, right))))
    count = int(found[0])
    return None if count < 0 else (rows[:count].copy(), left, right)
