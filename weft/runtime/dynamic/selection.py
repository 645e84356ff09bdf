"""nonzero, masks, dynamic_partition, dynamic_stitch and repeat by kernels in two phases.

The first one counts in chunks; where each chunk's results begin is the running sum of the counts;
the second one fills the results. None: the reference is to decide."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from weft.codegen.dynamic.kernels import Constants, element_constants, row_constants
from weft.ir.dtypes import as_dtype
from weft.ir.spec import Array, Attrs
from weft.runtime.dynamic.calls import (
    CHUNK,
    behaved,
    chunks_of,
    dtype_of,
    per_chunk,
    run_kernel,
    starts_of,
)
from weft.runtime.native.ahead import address

_INDICES = frozenset({np.dtype(np.int32), np.dtype(np.int64)})
#: Rows of fewer bytes are scattered by one thread: others would read all indices, too.
_WIDE_ROW = 64
_MOST_SPANS = 8


def nonzero_rows(x: Array) -> Array | None:
    """The coordinates of the elements that are not 0: i64[count, rank], in row-major order."""
    counted = _count(x) if x.ndim else None
    if counted is None:
        return None
    starts, constants = counted
    out = np.empty((int(starts[-1]), x.ndim), np.int64)
    first = address(out)
    _fill_coordinates(x, starts, constants, [first + 8 * d for d in range(x.ndim)], 8 * x.ndim)
    return out


def nonzero_columns(x: Array) -> list[Array] | None:
    """The same as a vector for each axis."""
    counted = _count(x) if x.ndim else None
    if counted is None:
        return None
    starts, constants = counted
    outs = [np.empty(int(starts[-1]), np.int64) for _ in range(x.ndim)]
    _fill_coordinates(x, starts, constants, [address(out) for out in outs], 8)
    return outs


def _count(x: Array) -> tuple[Array, Constants] | None:
    """Where the places of each chunk begin, and the constants of the elements."""
    dtype = dtype_of(x)
    if dtype is None or not behaved(x):
        return None
    constants = element_constants(dtype)
    return starts_of(per_chunk("count_set", constants, x)), constants


def _fill_coordinates(
    x: Array, starts: Array, constants: Constants, outs: Sequence[int], stride: int
) -> None:
    given = (address(x), x.size, CHUNK, address(starts))
    units = len(starts) - 1
    if len(outs) == 1:
        run_kernel("fill_places", constants, (*given, outs[0]), units)
        return
    dims, places = np.array(x.shape, np.int64), np.array(outs, np.int64)
    more = (x.ndim, address(dims), address(places), stride)
    run_kernel("fill_coordinates", constants, (*given, *more), units)


def chosen_rows(x: Array, mask: Array) -> Array | None:
    """x[mask], for a mask of bools over the first axes of x."""
    if not mask.ndim or mask.dtype != np.bool_ or x.shape[: mask.ndim] != mask.shape:
        return None
    if x.dtype.hasobject or not behaved(x):
        return None
    counted = _count(mask)
    if counted is None:
        return None
    starts, constants = counted
    rest = x.shape[mask.ndim :]
    out = np.empty((int(starts[-1]), *rest), x.dtype)
    row = x.itemsize * math.prod(rest)
    given = (address(mask), mask.size, CHUNK, address(starts), address(out), address(x), row)
    if out.size:
        run_kernel("fill_chosen", constants + row_constants(row), given, len(starts) - 1)
    return out


def gathered(x: Array, places: Array) -> Array:
    """x[places] of a vector, whose elements are no objects; the places are i64 and right."""
    out = np.empty(len(places), x.dtype)
    given = (address(places), len(places), CHUNK, address(out), address(x), x.itemsize)
    run_kernel("gather_rows", row_constants(x.itemsize), given, chunks_of(len(places)))
    return out


# ------------------------------------------------------------------------------ parts and the whole
def partition(data: Array, partitions: Array, count: int) -> list[Array] | None:
    """For each i below `count` the parts of `data` where `partitions` is i."""
    if partitions.dtype not in _INDICES or count < 1 or data.dtype.hasobject:
        return None
    if data.shape[: partitions.ndim] != partitions.shape or not behaved(data, partitions):
        return None
    # the table of counts is no larger than a quarter of the indices
    chunk = max(CHUNK, 4 * count)
    size, units = partitions.size, chunks_of(partitions.size, chunk)
    counts, wrong = np.empty((units, count), np.int64), np.empty(units, np.int64)
    constants = element_constants(as_dtype(partitions.dtype))
    tables = (address(counts), count, address(wrong))
    run_kernel("count_parts", constants, (address(partitions), size, chunk, *tables), units)
    if wrong.any():
        return None
    rest = data.shape[partitions.ndim :]
    row = data.itemsize * math.prod(rest)
    outs = [np.empty((n, *rest), data.dtype) for n in counts.sum(axis=0).tolist()]
    ends = np.zeros((units, count), np.int64)
    np.cumsum(counts[:-1], axis=0, out=ends[1:])
    ends *= row
    ends += np.array([address(out) for out in outs], np.int64)
    given = (address(partitions), size, chunk, address(ends), count, address(data), row)
    if size and row:
        run_kernel("fill_parts", constants + row_constants(row), given, units)
    return outs


def stitch(indices: Sequence[Array], data: Sequence[Array], rows: int | None) -> Array | None:
    """Row indices[k][i] is data[k][i], the last one that says so; 0 where none does; as many rows
    as the largest index asks for, or `rows`."""
    rest = data[0].shape[indices[0].ndim :]
    if data[0].dtype.hasobject:
        return None
    size = 0
    for index, values in zip(indices, data, strict=True):
        if index.dtype not in _INDICES or not behaved(index, values):
            return None
        if values.shape != index.shape + rest or values.dtype != data[0].dtype:
            return None
        largest = _largest(index)
        if largest is None:
            return None
        size = max(size, largest + 1)
    if rows is not None:
        if size > rows:
            return None
        size = rows
    out = np.zeros((size, *rest), data[0].dtype)
    row = out.itemsize * math.prod(rest)
    spans = min(_MOST_SPANS, max(size, 1)) if row >= _WIDE_ROW else 1
    span = -(-size // spans)
    for index, values in zip(indices, data, strict=True):
        if not values.size:
            continue
        given = (address(index), index.size, span, address(out), address(values), row)
        units = chunks_of(size, span) if index.size >= CHUNK else 1
        if units == 1:
            given = (*given[:2], size, *given[3:])
        constants = element_constants(as_dtype(index.dtype)) + row_constants(row)
        run_kernel("fill_rows", constants, given, units)
    return out


def _largest(index: Array) -> int | None:
    """The largest index, -1 if there are none; None if one is negative."""
    if not index.size:
        return -1
    found = per_chunk("largest_index", element_constants(as_dtype(index.dtype)), index)
    return None if found.min() < 0 else int(found.max())


# ------------------------------------------------------------------------------------------ repeats
def repeated_places(counts: Array) -> Array | None:
    """The place i counts[i] times, for each i in order."""
    summed = _sum_repeats(counts)
    if summed is None:
        return None
    starts, constants = summed
    out = np.empty(int(starts[-1]), np.int64)
    given = (address(counts), counts.size, CHUNK, address(starts), address(out))
    run_kernel("fill_repeats", constants, given, len(starts) - 1)
    return out


def repeated(x: Array, counts: Array, axis: int) -> Array | None:
    """Part i of x along an axis counts[i] times, for each i in order."""
    if x.dtype.hasobject or not behaved(x) or counts.shape != (x.shape[axis],):
        return None
    summed = _sum_repeats(counts)
    if summed is None:
        return None
    starts, constants = summed
    out = np.empty((*x.shape[:axis], int(starts[-1]), *x.shape[axis + 1 :]), x.dtype)
    row = x.itemsize * math.prod(x.shape[axis + 1 :])
    outer = math.prod(x.shape[:axis])
    given = (address(counts), counts.size, CHUNK, address(starts), address(out), address(x))
    if out.size:
        constants += row_constants(row)
        run_kernel("fill_repeated", constants, (*given, row, outer), len(starts) - 1)
    return out


def _sum_repeats(counts: Array) -> tuple[Array, Constants] | None:
    dtype = dtype_of(counts)
    if dtype is None or not dtype.is_integer or counts.ndim != 1 or not behaved(counts):
        return None
    constants = element_constants(dtype)
    sums = per_chunk("sum_repeats", constants, counts)
    if sums.size and (sums.min() < 0 or float(sums.sum(dtype=np.float64)) > 2.0**60):
        return None
    return starts_of(sums), constants


# ------------------------------------------------------------------------------------- rows of ops
def nonzero_op(arrays: Sequence[Array], attrs: Attrs) -> list[Array] | None:
    made = nonzero_rows(arrays[0])
    return None if made is None else [made]


def partition_op(arrays: Sequence[Array], attrs: Attrs) -> list[Array] | None:
    count = attrs["num_partitions"]
    return partition(arrays[0], arrays[1], count) if isinstance(count, int) else None


def stitch_op(arrays: Sequence[Array], attrs: Attrs) -> list[Array] | None:
    count, rows = len(arrays) // 2, attrs.get("rows")
    if not count or len(arrays) % 2:
        return None
    made = stitch(arrays[:count], arrays[count:], rows if isinstance(rows, int) else None)
    return None if made is None else [made]


def repeat_op(arrays: Sequence[Array], attrs: Attrs) -> list[Array] | None:
    made = repeated_places(arrays[0])
    return None if made is None else [made]
