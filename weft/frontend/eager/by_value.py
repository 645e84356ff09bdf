"""Eager calls whose results have sizes that depend on values, and calls on strings: large ones as
native kernels that run without the GIL, small ones as NumPy calls without a tensor in between.

As in `numpy_calls.py`: None, as of all functions here, where it is to be done the long way, whose
results these are. Results own their memory, and share none with operands."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from weft.frontend.core.tensor import Tensor
from weft.frontend.core.trace import at_once
from weft.frontend.eager.numpy_calls import LARGE, PLAIN_CHARS, SWITCH, quick_sort, tensor_of
from weft.ir.cost.thresholds import FEW_PAIRED
from weft.ir.spec import QUIET, Attrs

Array = np.ndarray[Any, Any]
#: So many strings are worth the compilation of a kernel: each takes Python a microsecond.
MANY_STRINGS = 1 << 12
_BOOL = np.dtype(np.bool_)
_WORDS = np.dtype(np.int64)


def large_results(op: str, operands: Sequence[Tensor], attrs: Attrs) -> tuple[Tensor, ...] | None:
    """The results of an op on concrete tensors, by native kernels."""
    if not SWITCH.on:
        return None
    from weft.runtime.dynamic.door import native_results  # not for `import weft`

    arrays = [t._data for t in operands if type(t) is Tensor and t._data is not None]
    if len(arrays) < len(operands):
        return None
    made = native_results(op, arrays, attrs, few=LARGE, few_strings=MANY_STRINGS)
    return None if made is None else tuple(map(tensor_of, made))


def _array(x: Any) -> Array | None:
    """The elements of a tensor that is not weak, whose ops run at once."""
    if not SWITCH.on or type(x) is not Tensor or x.weak or not at_once():
        return None
    a: Array | None = x._data
    return None if a is None or a.dtype.kind == "O" else a


# ---------------------------------------------------------------------------------------- selection
def large_places(x: Any) -> tuple[Tensor, ...] | None:
    """The indices of the elements that are not 0, a vector for each axis."""
    a = _array(x)
    if a is None or a.size < LARGE:
        return None
    from weft.runtime.dynamic.selection import nonzero_columns

    made = nonzero_columns(a)
    return None if made is None else tuple(map(tensor_of, made))


def quick_rows(x: Any) -> Tensor | None:
    """The same of few elements, as the rows of a matrix."""
    a = _array(x)
    if a is None or not a.ndim or a.size >= LARGE:
        return None
    return tensor_of(np.array(np.array(a.nonzero()).T, order="C"))


def large_chosen(x: Any, mask: Any) -> Tensor | None:
    """x[mask], for a mask over the first axes of x."""
    if type(mask) is not Tensor or mask._data is None:
        return None
    chosen = mask._data
    if chosen.dtype is not _BOOL or chosen.size < LARGE:
        return None
    a = _array(x)
    if a is None:
        return None
    from weft.runtime.dynamic.selection import chosen_rows

    made = chosen_rows(a, chosen)
    return None if made is None else tensor_of(made)


def repeated(x: Any, repeats: Any, axis: Any) -> Tensor | None:
    """The parts of x along an axis (None: the elements) as often as a vector says."""
    a, counts = _array(x), repeats._data if type(repeats) is Tensor else None
    if a is None or counts is None or counts.dtype.kind not in "iu" or counts.ndim != 1:
        return None
    if axis is None:
        a, axis = a.reshape(-1), 0
    if type(axis) is not int or not -a.ndim <= axis < a.ndim or counts.shape[0] != a.shape[axis]:
        return None
    if max(a.size, counts.size) >= LARGE:
        from weft.runtime.dynamic.selection import repeated as repeated_parts

        try:
            made = repeated_parts(a, counts, axis % a.ndim)
        except (MemoryError, ValueError):  # NumPy's, for too large an array
            return None
        return None if made is None else tensor_of(made)
    if not counts.size or counts.dtype != _WORDS or int(counts.min()) < 0:
        return None
    if int(counts.max()) >= LARGE:  # which may be more than fits into memory
        return None
    return tensor_of(a.repeat(counts, axis))


# ------------------------------------------------------------------------------ parts and the whole
def quick_parted(data: Any, partitions: Any, count: int) -> list[Tensor] | None:
    """For each i below `count` the parts of `data` where `partitions` is i, of few elements."""
    a, p = _array(data), _array(partitions)
    if a is None or p is None or p.dtype.kind != "i" or not 0 < p.ndim <= a.ndim or not p.size:
        return None
    if max(a.size, p.size) >= LARGE or a.shape[: p.ndim] != p.shape:
        return None
    if int(p.min()) < 0 or int(p.max()) >= count:
        return None
    return [tensor_of(a[p == i]) for i in range(count)]


def quick_stitched(indices: Sequence[Any], data: Sequence[Any]) -> Tensor | None:
    """Row indices[k][i] is data[k][i], of few elements: the last one that says so, 0 where none
    does."""
    places, rows = [_array(i) for i in indices], [_array(d) for d in data]
    first, size = rows[0], 0
    pairs: list[tuple[Array, Array]] = []
    for p, a in zip(places, rows, strict=True):
        if p is None or a is None or first is None or p.dtype.kind != "i" or not p.size:
            return None
        if a.dtype is not first.dtype or a.shape[: p.ndim] != p.shape or int(p.min()) < 0:
            return None
        size = max(size, int(p.max()) + 1)
        pairs.append((p, a))
    assert first is not None
    rest = first.shape[pairs[0][0].ndim :]
    if any(a.shape[p.ndim :] != rest for p, a in pairs) or sum(a.size for _, a in pairs) >= LARGE:
        return None
    if size * math.prod(rest) >= LARGE:
        return None
    out = np.zeros((size, *rest), first.dtype)
    for p, a in pairs:
        out[p] = a
    return tensor_of(out)


def merged_indices(x: Any, y: Any) -> tuple[Array, Array, Array] | None:
    """The rows of either of two known i64[n, rank] of many elements in their order, each once, and
    for each row of both which of them it is. None also where rows are not in order, or repeat."""
    a, b = x._data, y._data
    if not SWITCH.on or a is None or b is None or a.size + b.size < FEW_PAIRED:
        return None
    from weft.runtime.dynamic.pairs import merged_rows

    return merged_rows(a, b)


def spread_values(x: Any, place: Array, count: int) -> Tensor | None:
    """A vector of so many elements with x at these places, which are all different."""
    a = _array(x)
    if a is None:
        return None
    out = np.zeros(count, a.dtype)
    out[place] = a
    return tensor_of(out)


def quick_pairs_added(
    x: Any, y: Any, left: Any, right: Any, place: Any, indices: Any
) -> Tensor | None:
    """The sums of x[left[k]] * y[right[k]] by place[k], which is a row of `indices`, of few pairs;
    all of these are in range."""
    a, b, i, j, to, rows = map(_array, (x, y, left, right, place, indices))
    if a is None or b is None or i is None or j is None or to is None or rows is None:
        return None
    if to.size >= LARGE:
        return None
    if a.dtype is not b.dtype or a.dtype.char not in PLAIN_CHARS or a.dtype is _BOOL:
        return None
    return tensor_of(QUIET.run(_added, a.take(i), b.take(j), to, len(rows)))


def _added(a: Array, b: Array, place: Array, count: int) -> Array:
    out = np.zeros(count, a.dtype)
    np.add.at(out, place, a * b)
    return out


# ---------------------------------------------------------------------------------- each value once
def distinct_values(x: Any) -> Tensor | None:
    """The distinct elements in ascending order, each NaN a distinct one."""
    a = _array(x)
    if a is None:
        return None
    if a.size >= LARGE:
        from weft.runtime.dynamic.unique import unique_ascending

        found = unique_ascending(a, inverse=False, index=False, sort=_sorted)
        return None if found is None else tensor_of(found.values)
    if a.dtype.char not in PLAIN_CHARS:
        return None
    flat = a.flatten()
    QUIET.run(flat.sort, -1, None if flat.dtype.kind in "iub" else "stable")
    return tensor_of(flat[_first_of_runs(flat)])


def distinct(x: Any) -> tuple[Tensor, ...] | None:
    """The distinct elements in ascending order; where each is first; of each element its place
    among them; how often each occurs."""
    a = _array(x)
    if a is None:
        return None
    if a.size >= LARGE:
        from weft.runtime.dynamic.unique import unique_ascending

        found = unique_ascending(a)
        if found is None or found.inverse is None:
            return None
        return tuple(map(tensor_of, (found.values, found.firsts, found.inverse, found.counts)))
    if a.dtype.char not in PLAIN_CHARS:
        return None
    return tuple(map(tensor_of, QUIET.run(_few_distinct, a)))


def distinct_as_they_occur(x: Any, out: Any) -> tuple[Tensor, ...] | None:
    """The distinct elements of a vector in the order in which they occur first; of each element its
    place among them, and how often each occurs, of the dtype `out`."""
    a = _array(x)
    if a is None or a.ndim != 1:
        return None
    if a.size >= LARGE:
        from weft.runtime.dynamic.unique import unique_as_they_occur

        found = unique_as_they_occur(a)
        if found is None or found.inverse is None:
            return None
        made = found.values, found.inverse.astype(out, copy=False), found.counts.astype(out)
        return tuple(map(tensor_of, made))
    if a.dtype.char not in PLAIN_CHARS:
        return None
    values, index, numbers, counts = QUIET.run(_few_distinct, a)
    order = index.argsort()
    place = np.empty(len(order), out)
    place[order] = np.arange(len(order))
    return tuple(map(tensor_of, (values[order], place[numbers], counts[order].astype(out))))


def _first_of_runs(flat: Array) -> Array:
    """Of elements in order, whether each is another one than that before."""
    new = np.empty(flat.shape, np.bool_)
    new[:1] = True
    np.not_equal(flat[1:], flat[:-1], out=new[1:])
    return new


def _few_distinct(a: Array) -> tuple[Array, Array, Array, Array]:
    flat, numbers = a.reshape(-1), np.empty(a.shape, np.int64)
    order = flat.argsort(kind="stable")
    lying = flat[order]
    new = _first_of_runs(lying)
    begun = new.nonzero()[0]
    numbers.reshape(-1)[order] = new.cumsum() - 1
    counts = np.empty(len(begun), np.int64)
    if len(begun):
        np.subtract(begun[1:], begun[:-1], out=counts[:-1])
        counts[-1] = len(flat) - begun[-1]
    return lying[new], order[new], numbers, counts


def _sorted(a: Array) -> Array | None:
    """A vector in order, where NumPy sorts it in vectors."""
    made = quick_sort(tensor_of(a), -1, False)
    return None if made is None else made._data
