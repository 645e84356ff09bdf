"""Ops whose results have sizes that depend on values.

Such a size is a symbol of its own, named by the attribute `sizes`: the ops that follow are written
in terms of it, as in terms of a size that a feed decides, and learn it when the op has run. Without
names the sizes stay open (`?`), as in a call on concrete tensors. No compiled step holds these ops;
the dataflow executor compiles what follows them for the sizes that come.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from weft.ir.dims import Dim, SymbolicDim, format_shape
from weft.ir.dtypes import int8, int32, int64
from weft.ir.errors import (
    InvalidArgumentError,
    ResourceExhaustedError,
    ShapeError,
    TypeRuleError,
)
from weft.ir.graph import Block
from weft.ir.spec import (
    Array,
    Attrs,
    AttrSpec,
    OpSpec,
    check_same_dtype,
    dim_attr,
    fits,
    int_attr,
    known_dim,
    shape_attr,
    static_attr,
    tensors,
)
from weft.ir.types import TensorType, Type

_HOST = frozenset({"host", "no_fold"})
#: The ops that have native kernels besides their references (`runtime/dynamic/`).
BY_KERNELS = frozenset({
    "nonzero", "unique", "dynamic_partition", "dynamic_stitch", "repeat_index", "sparse_pairs",
})  # fmt: skip
#: Whoever repeats something more often has no memory for the result on any machine.
MOST_REPEATED = 1 << 40
#: The attribute of ops that make sizes.
SIZES = {"sizes": AttrSpec("strs", ())}


def size_names(attrs: Attrs) -> tuple[str, ...]:
    """The attribute `sizes`."""
    names = attrs["sizes"]
    assert isinstance(names, tuple)
    return names


def fill_sizes(op: str, types: Sequence[Type], attrs: Attrs) -> list[Type]:
    """`types` with the names in `sizes` for the unknown sizes (`?`) of tensors, in their order; as
    they are if there are no names. TypeRuleError for another number of names."""
    names = list(size_names(attrs))
    if not names:
        return list(types)
    out: list[Type] = []
    missing = 0
    for t in types:
        if not isinstance(t, TensorType):
            out.append(t)
            continue
        shape: list[Dim] = []
        for d in t.shape:
            missing += d is None
            shape.append(SymbolicDim.symbol(names.pop(0)) if d is None and names else d)
        out.append(TensorType(t.dtype, tuple(shape)))
    given = len(size_names(attrs))
    if given != missing:
        raise TypeRuleError(f"op '{op}': sizes= names {given} sizes, its results have {missing}")
    return out


def _one_size(op: str, attrs: Attrs) -> Dim:
    """The size that all results share."""
    names = size_names(attrs)
    if len(names) > 1:
        raise TypeRuleError(f"op '{op}': sizes= names {len(names)} sizes, its results have 1")
    return SymbolicDim.symbol(names[0]) if names else None


# ------------------------------------------------------------------------------- choosing by values
def _nonzero_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    (x,) = tensors("nonzero", types)
    return [TensorType(int64, (_one_size("nonzero", attrs), x.rank))]


def _nonzero(arrays: Sequence[Array], attrs: Attrs) -> Array:
    return np.argwhere(arrays[0]).astype(np.int64, copy=False)


def _unique_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    (x,) = tensors("unique", types)
    n = _one_size("unique", attrs)
    index = TensorType(int64, (n,))
    return [TensorType(x.dtype, (n,)), index, TensorType(int64, x.shape), index]


def _unique(arrays: Sequence[Array], attrs: Attrs) -> list[Array]:
    (x,) = arrays
    ordered = x.astype(np.float32) if x.dtype.kind == "V" else x  # a bfloat16 NaN sorts anywhere
    values, index, inverse, counts = np.unique(
        ordered, return_index=True, return_inverse=True, return_counts=True, equal_nan=False
    )
    whole = (index, inverse.reshape(x.shape), counts)
    return [values if ordered is x else x.reshape(-1)[index], *(a.astype(np.int64) for a in whole)]


# ------------------------------------------------------------------------------ parts and the whole
def _partition_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    data, partitions = tensors("dynamic_partition", types)
    count = int_attr(attrs, "num_partitions")
    if count < 1:
        raise TypeRuleError(
            f"op 'dynamic_partition': num_partitions={count}, there must be at least 1"
        )
    if partitions.dtype not in (int32, int64):
        raise TypeRuleError(
            f"op 'dynamic_partition': partitions must be int32 or int64, got {partitions}"
        )
    if not fits(data.shape[: partitions.rank], partitions.shape):
        raise ShapeError(
            f"op 'dynamic_partition': the shape of data, {format_shape(data.shape)}, must begin "
            f"with that of partitions, {format_shape(partitions.shape)}"
        )
    part = TensorType(data.dtype, (None, *data.shape[partitions.rank :]))
    open_sizes = sum(d is None for d in part.shape[1:])
    if open_sizes and size_names(attrs):
        raise ShapeError(f"op 'dynamic_partition': {data} has sizes without a name")
    return fill_sizes("dynamic_partition", [part] * count, attrs)


def _partition(arrays: Sequence[Array], attrs: Attrs) -> list[Array]:
    data, partitions = arrays
    count = int_attr(attrs, "num_partitions")
    _check_begins(data, partitions, "data", "partitions")
    if _largest(partitions) >= count:
        wrong = (partitions < 0) | (partitions >= count)
        place = tuple(int(i) for i in np.argwhere(wrong)[0])
        raise InvalidArgumentError(
            f"partitions{list(place)} is {partitions[place]}",
            hint=f"with num_partitions={count} they must be in 0 .. {count - 1}",
        )
    return [data[partitions == i] for i in range(count)]


def _largest(integers: Array) -> int:
    """The largest of them; a larger one than there is if one is negative, -1 if there are none.
    One pass: on few indices most of an op is calls of NumPy."""
    return int(integers.view(f"u{integers.itemsize}").max()) if integers.size else -1


def _check_begins(whole: Array, start: Array, what: str, wanted: str) -> None:
    """Sizes that depended on values are known here: those of `whole` begin with all of `start`."""
    if whole.shape[: start.ndim] != start.shape:
        raise ShapeError(
            f"the shape of {what}, {format_shape(whole.shape)}, must begin with that of {wanted}, "
            f"{format_shape(start.shape)}"
        )


def _stitch_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    given = tensors("dynamic_stitch", types)
    count = len(given) // 2
    if len(given) % 2 or not count:
        raise TypeRuleError(
            f"op 'dynamic_stitch' takes indices and then as many data, got {len(given)} operands"
        )
    indices, data = given[:count], given[count:]
    check_same_dtype("dynamic_stitch", data)
    rest: list[Dim] | None = None
    for i, (index, rows) in enumerate(zip(indices, data, strict=True)):
        if index.dtype not in (int32, int64):
            raise TypeRuleError(
                f"op 'dynamic_stitch': indices {i} must be int32 or int64, got {index}"
            )
        own = rows.shape[index.rank :]
        if not fits(rows.shape[: index.rank], index.shape):
            raise ShapeError(
                f"op 'dynamic_stitch': the shape of data {i}, {format_shape(rows.shape)}, must "
                f"begin with that of its indices, {format_shape(index.shape)}"
            )
        if rest is not None and not fits(own, tuple(rest)):
            raise ShapeError(
                f"op 'dynamic_stitch': what each index stands for has shape {format_shape(own)} "
                f"in data {i} and {format_shape(tuple(rest))} before"
            )
        rest = (
            list(own) if rest is None else [known_dim(a, b) for a, b in zip(rest, own, strict=True)]
        )
    assert rest is not None
    rows_known = dim_attr(attrs, "rows")
    if isinstance(rows_known, int) and rows_known < 0:
        raise ShapeError(f"op 'dynamic_stitch': rows={rows_known} is negative")
    first = _one_size("dynamic_stitch", attrs) if rows_known is None else rows_known
    return [TensorType(data[0].dtype, (first, *rest))]


def _stitch(arrays: Sequence[Array], attrs: Attrs) -> Array:
    count = len(arrays) // 2
    indices, data = arrays[:count], arrays[count:]
    size = 0
    for i, index in enumerate(indices):
        _check_begins(data[i], index, f"data {i}", "its indices")
        largest = _largest(index)
        if largest >= 1 << (8 * index.itemsize - 1):
            place = tuple(int(k) for k in np.argwhere(index < 0)[0])
            raise InvalidArgumentError(
                f"indices {i}: {list(place)} is {index[place]}", hint="indices must not be negative"
            )
        size = max(size, largest + 1)
    rows = attrs["rows"]
    if isinstance(rows, int):
        if size > rows:
            raise InvalidArgumentError(f"the largest index is {size - 1}, there are {rows} rows")
        size = rows
    row = data[0].shape[indices[0].ndim :]
    if size * max(math.prod(row) * data[0].itemsize, 1) >= 1 << 63:
        raise ResourceExhaustedError(f"there is no memory for {size} rows, one for each index")
    text = data[0].dtype.hasobject
    out = np.full((size, *row), b"", object) if text else np.zeros((size, *row), data[0].dtype)
    for i, (index, values) in enumerate(zip(indices, data, strict=True)):
        if values.shape[index.ndim :] != row:
            raise ShapeError(f"a row is {format_shape(values.shape[index.ndim :])} in data {i} and "
                             f"{format_shape(row)} in data 0")  # fmt: skip
        out[index] = values  # of several values for one index the last stays
    return out


def _repeat_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    (counts,) = tensors("repeat_index", types)
    if counts.rank != 1 or not counts.dtype.is_integer:
        raise TypeRuleError(f"op 'repeat_index' takes a vector of integers, got {counts}")
    return [TensorType(int64, (_one_size("repeat_index", attrs),))]


def _repeat(arrays: Sequence[Array], attrs: Attrs) -> Array:
    (counts,) = arrays
    if counts.size and counts.min() < 0:
        place = int(counts.argmin())
        raise InvalidArgumentError(
            f"the number of repeats at {place} is {counts[place]}", hint="it must not be negative"
        )
    return places_repeated(counts)


def places_repeated(counts: Array) -> Array:
    """The index i counts[i] times, for each i in order; no count is negative. MemoryError for too
    many: NumPy adds them up without a look at what a word holds, and writes beyond its array."""
    total = float(counts.sum(dtype=np.float64))
    if total > MOST_REPEATED:
        raise MemoryError(f"{total:.4g} repeats in all are more than fit into memory")
    return np.repeat(np.arange(len(counts)), counts.astype(np.int64))


# ------------------------------------------------------------------------- entries of two matrices
def _pairs_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    for t in tensors("sparse_pairs", types):
        if t.dtype is not int64 or t.rank != 2 or not fits(t.shape[1:], (2,)):
            raise TypeRuleError(f"op 'sparse_pairs' takes indices i64[n,2], got {t}")
    names = size_names(attrs)
    if len(names) not in (0, 2):
        raise TypeRuleError(
            f"op 'sparse_pairs': sizes= names {len(names)} sizes, its results have 2"
        )
    places, pairs = (SymbolicDim.symbol(n) for n in names) if names else (None, None)
    return [TensorType(int64, (places, 2)), *[TensorType(int64, (pairs,))] * 3]


def _pairs(arrays: Sequence[Array], attrs: Attrs) -> list[Array]:
    a, b = arrays
    by_rows, others = (np.argsort(x[:, 0], kind="stable") for x in arrays)
    meets, given = a[by_rows, 1], b[others, 0]
    first = np.searchsorted(given, meets)
    counts = np.searchsorted(given, meets, side="right") - first
    if counts.sum() > MOST_REPEATED:
        raise MemoryError(f"{counts.sum():.4g} pairs of entries are more than fit into memory")
    each = places_repeated(counts)
    left = by_rows[each]
    right = others[(first - np.cumsum(counts) + counts)[each] + np.arange(len(each))]
    at = np.stack([a[left, 0], b[right, 1]], axis=1)
    order = np.lexsort((at[:, 1], at[:, 0]))
    ordered = at[order]
    new = np.ones(len(at), np.bool_)
    new[1:] = (ordered[1:] != ordered[:-1]).any(axis=1)
    place = np.empty(len(at), np.int64)
    place[order] = np.cumsum(new) - 1
    return [ordered[new], left, right, place]


def _padded_pairs_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    op, given = "sparse_pairs_padded", tensors("sparse_pairs_padded", types)
    room = int_attr(attrs, "room")
    made = [TensorType(int64, (room, 2)), *[TensorType(int64, (room,))] * 3]
    if len(given) not in (2, 6) or any(t.dtype is not int64 for t in given):
        raise TypeRuleError(f"op '{op}' takes indices i64[n,2] of two, and 4 results or none")
    for t in given[:2]:
        if t.rank != 2 or not fits(t.shape[1:], (2,)):
            raise TypeRuleError(f"op '{op}' takes indices i64[n,2], got {t}")
    if room < 0 or len(shape_attr(attrs, "shape")) != 3:
        raise ShapeError(f"op '{op}': room >= 0, shape=[rows, inner, columns]")
    for t, wanted in zip(given[2:], made, strict=False):
        if not fits(t.shape, wanted.shape):
            raise ShapeError(f"op '{op}': results in another way must be {wanted}, got {t}")
    return list(made)


def _padded_pairs(arrays: Sequence[Array], attrs: Attrs) -> list[Array]:
    room, (rows, inner, columns) = int_attr(attrs, "room"), static_attr(attrs, "shape")
    kept = []
    for x, sizes in zip(arrays[:2], ((rows, inner), (inner, columns)), strict=True):
        kept.append(np.flatnonzero(((x >= 0) & (x < sizes)).all(axis=1)))
    a, b = (x[k] for x, k in zip(arrays[:2], kept, strict=True))
    _, left, right, _ = _pairs([a, b], attrs)
    left, right = left[:room], right[:room]
    at = np.stack([a[left, 0], b[right, 1]], axis=1)
    found, place = np.unique(at, axis=0, return_inverse=True)
    indices = np.full((room, 2), (rows, columns), np.int64)
    indices[: len(found)] = found
    outs = [np.full(room, fill, np.int64) for fill in (0, 0, room - 1)]
    for out, part in zip(outs, (kept[0][left], kept[1][right], place.reshape(-1)), strict=True):
        out[: len(left)] = part
    return [indices, *outs]


# ------------------------------------------------------------------------------------ naming a size
def _ensure_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    (x,) = tensors("ensure_shape", types)
    shape = shape_attr(attrs, "shape")
    if not fits(x.shape, shape):
        raise ShapeError(
            f"op 'ensure_shape': {x} does not have the shape {format_shape(shape)}",
        )
    return fill_sizes("ensure_shape", [TensorType(x.dtype, shape)], attrs)


def _ensure(arrays: Sequence[Array], attrs: Attrs) -> Array:
    shape = shape_attr(attrs, "shape")
    if not fits(arrays[0].shape, shape):
        raise ShapeError(f"the shape is {format_shape(arrays[0].shape)}, not {format_shape(shape)}")
    return arrays[0]


# -------------------------------------------------------------------------------- a value as a size
def _size_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    (n,) = tensors("dynamic_size", types)
    if n.rank or not n.dtype.is_integer:
        raise TypeRuleError(f"op 'dynamic_size' takes an integer without axes, got {n}")
    return [TensorType(int8, (_one_size("dynamic_size", attrs), 0))]


def _size(arrays: Sequence[Array], attrs: Attrs) -> Array:
    n = int(arrays[0])
    if n < 0:
        raise InvalidArgumentError(f"{attrs['what']} is {n}", hint="it must not be negative")
    if n > np.iinfo(np.int64).max:
        raise InvalidArgumentError(f"{attrs['what']} is {n}", hint="no axis is as long as that")
    return np.empty((n, 0), np.int8)


TABLE = (
    OpSpec(
        "nonzero", 1, _nonzero_type, _nonzero,
        "The indices of the elements that are not 0, one row each, in row-major order.",
        SIZES, _HOST,
    ),
    OpSpec(
        "unique", 1, _unique_type, _unique,
        "The distinct elements, ascending, each NaN a distinct one; where each is first; for each "
        "element its place among them; how often each occurs.",
        SIZES, _HOST,
    ),
    OpSpec(
        "dynamic_partition", 2, _partition_type, _partition,
        "For each i below num_partitions the parts of operand 0 where operand 1 is i.",
        {"num_partitions": AttrSpec("int"), **SIZES}, _HOST,
    ),
    OpSpec(
        "dynamic_stitch", None, _stitch_type, _stitch,
        "Row indices_k[i] is data_k[i], the last one that says so; 0 where none does; as many "
        "rows as the largest index asks for, or `rows`.",
        {"rows": AttrSpec("dim", None, optional=True), **SIZES}, _HOST,
    ),
    OpSpec(
        "repeat_index", 1, _repeat_type, _repeat,
        "The index i operand[i] times, for each i in order.", SIZES, _HOST,
    ),
    OpSpec(
        "sparse_pairs", 2, _pairs_type, _pairs,
        "Of the indices of two sparse matrices: those of the entries of their product, in "
        "row-major order; for each pair of entries that meet, by the rows of the left one, which "
        "entry of each matrix it has, and to which of the product it adds.",
        SIZES, _HOST,
    ),
    OpSpec(
        "ensure_shape", 1, _ensure_type, _ensure,
        "The operand, which has this shape; sizes that `shape` leaves open are named by `sizes`.",
        {"shape": AttrSpec("shape"), **SIZES}, _HOST,
    ),
    OpSpec(
        "dynamic_size", 1, _size_type, _size,
        "No elements: an array whose first size is the operand, which must not be negative; "
        "`what` names it in the error.",
        {"what": AttrSpec("str", "a size"), **SIZES}, _HOST,
    ),
)  # fmt: skip

#: Of results whose sizes are known: native code has these ops.
PADDED_TABLE = (
    OpSpec(
        "sparse_pairs_padded", None, _padded_pairs_type, _padded_pairs,
        "As `sparse_pairs`, of matrices [rows, inner] and [inner, columns], for the first `room` "
        "pairs, and with room for so many: what is left of indices is [rows, columns], of left and "
        "right 0, of place the last one. Entries out of range are none. Further operands: the same "
        "results, with pairs in any order, by other ops, for where there is no kernel.",
        {"shape": AttrSpec("shape"), "room": AttrSpec("int")},
    ),
)  # fmt: skip
