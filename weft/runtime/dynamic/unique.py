"""Distinct elements: by a hash table while there are few, else by weft's own sort.

The table numbers groups in the order in which they occur first, which is TensorFlow 1's order. For
the ascending order of the array API only its values are sorted. With more than `MOST_GROUPS`
distinct values the table leaves the processor's caches, and sorting all elements is faster."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np

from weft.codegen.dynamic.kernels import Constants, element_constants, row_constants
from weft.codegen.dynamic.unique import GROUPS, LOOKS, NEXT
from weft.ir.dims import SymbolicDim
from weft.ir.dtypes import DType, as_dtype, int64
from weft.ir.graph import Graph
from weft.ir.ops.builder import Builder
from weft.ir.spec import Array, Attrs
from weft.ir.types import TensorType
from weft.runtime.dynamic.calls import (
    CHUNK,
    behaved,
    chunks_of,
    dtype_of,
    per_chunk,
    run_kernel,
    starts_of,
)
from weft.runtime.dynamic.selection import gathered
from weft.runtime.native.ahead import address
from weft.runtime.native.size_plan import NativeMaker, NativeSizedStep
from weft.runtime.sized_step import SizedGraph, SizedStep

#: Of `unique_ascending` without an index.
_NOTHING = np.empty(0, np.int64)
#: Groups in the first table, by how much tables grow, and where sorting takes over.
FIRST_GROUPS, GROWTH, MOST_GROUPS = 1 << 11, 8, 1 << 14
#: Further looks at a table, for each element: more than some belong to keys that do not spread.
_LOOKS = 8
#: Floats whose elements the sort moves as they are.
_SORTED = ("f32", "f64")
_COMPLEX_PARTS = {"c64": np.dtype(np.float32), "c128": np.dtype(np.float64)}


class Distinct(NamedTuple):
    """The distinct elements; where each is first; of each element its place among them, of the
    elements' shape (None: not wanted); how often each occurs: i64."""

    values: Array
    firsts: Array
    inverse: Array | None
    counts: Array


def unique_ascending(
    x: Array, *, inverse: bool = True, index: bool = True,
    sort: Callable[[Array], Array | None] | None = None,
) -> Distinct | None:  # fmt: skip
    """The distinct elements in ascending order, each NaN a distinct one. Without `index`
    firsts and counts mean nothing. sort: sorts a vector as NumPy's stable sort, where
    it can. None: the reference is to decide."""
    dtype = dtype_of(x)
    if dtype is None or not behaved(x) or not x.size:
        return None
    flat = x.reshape(-1)
    numbers = np.empty(x.shape, np.int64) if inverse else None
    groups = Groups(flat, dtype, numbers)
    is_sorted = dtype.short in _SORTED or dtype.is_integer
    values_alone = is_sorted and not (inverse or index)
    if groups.find(FIRST_GROUPS if values_alone else MOST_GROUPS):
        return _in_order(groups.taken(), dtype)
    if not values_alone:
        return _by_order(flat, dtype, numbers)
    lying = None if sort is None else sort(flat)
    if lying is None:
        lying = _step("sort", dtype).run([flat])[0]
    starts, constants = _count_runs(lying, dtype, None)
    values = np.empty(int(starts[-1]), flat.dtype)
    given = (address(lying), len(lying), CHUNK, address(starts), address(values))
    run_kernel("fill_run_values", constants + row_constants(flat.itemsize), given, len(starts) - 1)
    return Distinct(values, _NOTHING, None, _NOTHING)


def unique_as_they_occur(x: Array) -> Distinct | None:
    """The distinct elements of a vector in the order in which they occur first."""
    dtype = dtype_of(x)
    if dtype is None or not behaved(x):
        return None
    numbers = np.empty(len(x), np.int64)
    groups = Groups(x, dtype, numbers)
    if groups.find(len(x)):
        return groups.taken()
    found = _by_order(x, dtype, numbers)
    return _rearranged(found, _order(found.firsts, int64))


class Groups:
    """The groups of a vector's first elements, and their table. numbers: where the group of each
    element goes, if that is wanted."""

    def __init__(self, x: Array, dtype: DType, numbers: Array | None = None) -> None:
        self._x, self._constants, self._numbers = x, element_constants(dtype), numbers
        self._state = np.zeros(3, np.int64)
        self._state[LOOKS // 8] = _LOOKS * len(x) + MOST_GROUPS
        self._most = min(FIRST_GROUPS, max(len(x), 1))
        self._firsts, self._counts = (np.empty(self._most, np.int64) for _ in range(2))

    def find(self, most: int) -> bool:
        """Go on to the end of the vector, or to `most` groups, or until rows of the table are too
        often taken; whether that was the end."""
        self._run("find_groups")
        while self._state[NEXT // 8] < len(self._x):
            if self._most >= most or self._state[LOOKS // 8] <= 0:
                return False
            self._most = min(GROWTH * self._most, most)
            self._firsts, self._counts = map(self._grown, (self._firsts, self._counts))
            self._run("fill_table", "find_groups")
        return True

    def _grown(self, words: Array) -> Array:
        made = np.empty(self._most, np.int64)
        made[: len(words)] = words
        return made

    def _run(self, *entries: str) -> None:
        bits = max((2 * self._most - 1).bit_length(), 1)
        table = np.zeros((1 << bits, 2), np.int64)
        numbers = 0 if self._numbers is None else address(self._numbers)
        given = (
            address(self._x), len(self._x), address(table), 64 - bits, (1 << bits) - 1,
            address(self._firsts), address(self._counts), numbers, self._most,
            address(self._state),
        )  # fmt: skip
        for entry in entries:
            run_kernel(entry, self._constants, given)

    def taken(self) -> Distinct:
        """What was found, of the whole vector."""
        count = int(self._state[GROUPS // 8])
        firsts, counts = self._firsts[:count].copy(), self._counts[:count].copy()
        values = gathered(self._x, firsts)
        if values.dtype == np.bool_:  # from any bytes to 0 and 1
            values = values.view(np.uint8) != 0
        return Distinct(values, firsts, self._numbers, counts)


def _in_order(found: Distinct, dtype: DType) -> Distinct:
    """The same in ascending order."""
    return _rearranged(found, _order(found.values, dtype))


def _rearranged(found: Distinct, order: Array) -> Distinct:
    """The same in another order; the inverse in place."""
    values, index, counts = (gathered(a, order) for a in (found.values, found.firsts, found.counts))
    if found.inverse is not None:
        places = np.empty(len(order), np.int64)
        given = (address(order), len(order), CHUNK, address(places))
        run_kernel("invert", (), given, chunks_of(len(order)))
        size = found.inverse.size
        given = (address(found.inverse), size, CHUNK, address(places))
        run_kernel("renumber", (), given, chunks_of(size))
    return Distinct(values, index, found.inverse, counts)


def _by_order(flat: Array, dtype: DType, numbers: Array | None) -> Distinct:
    """The distinct elements of many, by the order of all. numbers: as of `Groups`."""
    order = _order(flat, dtype)
    starts, constants = _count_runs(flat, dtype, order)
    firsts, begun = (np.empty(int(starts[-1]), np.int64) for _ in range(2))
    given = (
        address(flat), len(flat), CHUNK, address(starts), address(order), address(firsts),
        address(begun), 0 if numbers is None else address(numbers),
    )  # fmt: skip
    run_kernel("fill_runs", constants, given, len(starts) - 1)
    counts = np.diff(begun, append=len(flat))
    return Distinct(gathered(flat, firsts), firsts, numbers, counts)


def _count_runs(x: Array, dtype: DType, order: Array | None) -> tuple[Array, Constants]:
    """Where the runs of equal elements that begin in each chunk are numbered from; and the
    constants of the elements."""
    constants, at = element_constants(dtype), 0 if order is None else address(order)
    return starts_of(per_chunk("count_runs", constants, x, at)), constants


# ---------------------------------------------------------------------------------------- in order
def _order(x: Array, dtype: DType) -> Array:
    """The stable ascending order of a vector as NumPy has it: NaN last, of complex numbers those
    with a NaN in the imaginary part before those with one in the real part."""
    part = _COMPLEX_PARTS.get(dtype.short)
    if part is None:
        made: Array = _step("argsort", dtype).run([x])[0]
        return made
    # by the least significant key first
    real, imaginary = (np.ascontiguousarray(p) for p in (x.real, x.imag))
    kinds = (2 * np.isnan(real) + np.isnan(imaginary)).astype(np.int32)
    order = _order(imaginary, as_dtype(part))
    for keys in (real, kinds):
        order = gathered(order, _order(gathered(keys, order), as_dtype(keys.dtype)))
    return order


@cache
def _step(op: str, dtype: DType) -> NativeSizedStep:
    """sort or argsort of a vector of any length."""
    builder = Builder([TensorType(dtype, (SymbolicDim.symbol("n"),))])
    result = builder.emit1(op, builder.args[0], axis=0, descending=False)
    graph = Graph(op, builder.block([result]), ("x",))
    return SizedStep(NativeMaker(SizedGraph.of(graph), {}), 0)


# ------------------------------------------------------------------------------------- rows of ops
def unique_op(arrays: Sequence[Array], attrs: Attrs) -> list[Array] | None:
    (x,) = arrays
    made = unique_ascending(x)
    if made is None or made.inverse is None:
        return None
    return [made.values, made.firsts, made.inverse, made.counts]
