"""Ops whose results have sizes that depend on values.

Outside a trace they run at once. In a `wf.Graph` and a compiled function such a size is a symbol
(`x.shape[0]` prints its name), which a step knows when the op has run; the dataflow executor
compiles what follows for the sizes that come.

`dim_tensor` gives an open size of an input (`wf.placeholder`, `input_signature=`) as a tensor.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from weft.frontend.core.tensor import Tensor, as_tensor
from weft.frontend.core.trace import current_trace
from weft.frontend.eager.by_value import (
    distinct,
    distinct_as_they_occur,
    distinct_values,
    large_chosen,
    large_places,
    quick_parted,
    quick_rows,
    quick_stitched,
)
from weft.frontend.eager.numpy_moves import quick_places
from weft.frontend.ops.creation import arange, iota, zeros
from weft.frontend.ops.dispatch import (
    apply,
    apply_dynamic,
    apply_many,
    fresh_sizes,
    in_order,
    nonzero_columns,
    once,
)
from weft.frontend.ops.elementwise import floor_divide, less, maximum, not_equal, remainder, where
from weft.frontend.ops.indexing import gather
from weft.frontend.ops.manipulation import flatten, reshape, stack
from weft.frontend.ops.promotion import (
    TensorLike,
    cast,
    check_axis,
    check_dtype,
    check_int,
    check_shape,
    promote_tensors,
    scalar_tensor,
    strong_tensor,
)
from weft.frontend.ops.reduction import argsort, cumulative_sum, searchsorted
from weft.ir.dims import Shape, SymbolicDim, format_shape, product, same
from weft.ir.dtypes import bool_, int32, int64
from weft.ir.errors import InvalidArgumentError, ShapeError, TypeRuleError
from weft.ir.locations import caller_location
from weft.ir.spec import AttrValue, fits


class UniqueAll(NamedTuple):
    """The result of `unique_all`; the array API's field names."""

    values: Tensor
    indices: Tensor
    inverse_indices: Tensor
    counts: Tensor


class UniqueCounts(NamedTuple):
    """The result of `unique_counts`; the array API's field names."""

    values: Tensor
    counts: Tensor


class UniqueInverse(NamedTuple):
    """The result of `unique_inverse`; the array API's field names."""

    values: Tensor
    inverse_indices: Tensor


class Unique(NamedTuple):
    """The result of `unique`; TensorFlow 1's field names."""

    y: Tensor
    idx: Tensor


class UniqueWithCounts(NamedTuple):
    """The result of `unique_with_counts`; TensorFlow 1's field names."""

    y: Tensor
    idx: Tensor
    count: Tensor  # type: ignore[assignment]  # TensorFlow's name, which hides tuple.count


# ------------------------------------------------------------------------------- choosing by values
def nonzero(
    x: TensorLike, /, *, size: int | None = None, fill_value: int = 0
) -> tuple[Tensor, ...]:
    """The indices of the elements that are not 0, one int64 vector for each axis, in row-major
    order.

    size: so many of them, the first ones; fill_value where there are fewer (JAX's arguments). With
    it, compiled functions can do this.

    >>> wf.nonzero([[0, 7], [8, 0]])
    (Tensor([0, 1], dtype=int64), Tensor([1, 0], dtype=int64))
    >>> wf.nonzero([0, 5, 0, 6], size=3, fill_value=-1)
    (Tensor([ 1,  3, -1], dtype=int64),)
    """
    places = (quick_places(x) or large_places(x)) if size is None else None
    if places is not None:
        return places
    t = strong_tensor(x)
    if not t.ndim:
        raise InvalidArgumentError(
            "wf.nonzero needs a tensor with at least one axis", location=caller_location()
        )
    if size is None:
        return tuple(nonzero_columns(t, "nonzero"))
    return tuple(_first_nonzero("nonzero", t, size, fill_value))


def argwhere(x: TensorLike, /, *, size: int | None = None, fill_value: int = 0) -> Tensor:
    """The indices of the elements that are not 0 as rows -> int64[count, rank], in row-major order
    (what TensorFlow 1's tf.where(x) gives). size, fill_value: as in `nonzero`.

    >>> wf.argwhere([[0, 7], [8, 0]])
    Tensor([[0, 1],
            [1, 0]], dtype=int64)
    """
    made = quick_rows(x) if size is None else None
    if made is not None:
        return made
    t = strong_tensor(x)
    if size is not None:
        columns = _first_nonzero("argwhere", t, size, fill_value)
        return stack(columns, axis=1) if columns else zeros((size, 0), dtype=int64)
    (rows,) = apply_dynamic("nonzero", [t], what="argwhere")
    return rows


def _first_nonzero(op: str, t: Tensor, size: int, fill_value: int) -> list[Tensor]:
    """The indices of the first `size` elements that are not 0, filled up."""
    count = check_int(op, size, "size")
    if count < 0:
        raise InvalidArgumentError(
            f"wf.{op}: size={count} must not be negative", location=caller_location()
        )
    flat = flatten(t)
    so_far = cumulative_sum(cast(not_equal(flat, zeros((), dtype=t.dtype)), int64))
    wanted = arange(1, count + 1, dtype=int64)
    place = searchsorted(so_far, wanted)  # past the end where there are fewer
    there = less(place, flat.shape[0])
    columns: list[Tensor] = []
    for n in reversed(t.shape):
        columns.append(where(there, remainder(place, maximum(n, 1)), fill_value))
        place = floor_divide(place, maximum(n, 1))
    return columns[::-1]


def boolean_mask(x: TensorLike, mask: TensorLike, axis: int = 0) -> Tensor:
    """The parts of x for which the mask, over its axes from `axis` on, is true (TF1's
    boolean_mask).

    >>> wf.tf1.boolean_mask([[1, 2], [3, 4]], [True, False])
    Tensor([[1, 2]], dtype=int64)
    >>> wf.tf1.boolean_mask([[1, 2], [3, 4]], [[True, False], [True, True]])
    Tensor([1, 3, 4], dtype=int64)
    """
    made = large_chosen(x, mask) if axis == 0 else None
    if made is not None:
        return made
    t, chosen = strong_tensor(x), as_tensor(mask)
    along = check_axis("boolean_mask", axis, t.ndim)
    covered = t.shape[along : along + chosen.ndim]
    if chosen.dtype is not bool_ or not chosen.ndim or not fits(covered, chosen.shape):
        raise InvalidArgumentError(
            f"wf.tf1.boolean_mask: a mask of dtype {chosen.dtype.name} and shape "
            f"{format_shape(chosen.shape)} does not fit axis {along} of a tensor of shape "
            f"{format_shape(t.shape)}",
            location=caller_location(),
        )
    (places,) = nonzero_columns(flatten(chosen), "boolean_mask")
    flat = reshape(t, (*t.shape[:along], product(covered), *t.shape[along + chosen.ndim :]))
    return apply("take", flat, places, axis=along)


# --------------------------------------------------------------------------------- each value once
def _unique(op: str, x: TensorLike) -> tuple[Tensor, ...]:
    """Values, first indices, inverse and counts. The array API keeps every NaN as a value."""
    t = strong_tensor(x)
    return distinct(t) or apply_dynamic("unique", [t], what=op)


def unique_values(x: TensorLike, /) -> Tensor:
    """The distinct elements of x, ascending; each NaN counts as distinct.

    >>> wf.unique_values([3.0, 1.0, np.nan, 3.0, np.nan])
    Tensor([ 1.,  3., nan, nan], dtype=float32)
    """
    t = strong_tensor(x)
    made = distinct_values(t)
    return _unique("unique_values", t)[0] if made is None else made


def unique_counts(x: TensorLike, /) -> UniqueCounts:
    """The distinct elements of x, ascending, and how often each occurs (int64).

    >>> wf.unique_counts([3, 1, 3]).counts
    Tensor([1, 2], dtype=int64)
    """
    values, _, _, counts = _unique("unique_counts", x)
    return UniqueCounts(values, counts)


def unique_inverse(x: TensorLike, /) -> UniqueInverse:
    """The distinct elements of x, ascending, and for each element its place among them (int64).

    >>> found = wf.unique_inverse([3, 1, 3])
    >>> found.inverse_indices, found.values[found.inverse_indices]
    (Tensor([1, 0, 1], dtype=int64), Tensor([3, 1, 3], dtype=int64))
    """
    values, _, inverse, _ = _unique("unique_inverse", x)
    return UniqueInverse(values, inverse)


def unique_all(x: TensorLike, /) -> UniqueAll:
    """The distinct elements of x, where each occurs first, the place of each element, and
    counts.

    >>> found = wf.unique_all([[3, 1], [3, 2]])
    >>> found.values, found.indices
    (Tensor([1, 2, 3], dtype=int64), Tensor([1, 3, 0], dtype=int64))
    >>> found.inverse_indices
    Tensor([[2, 0],
            [2, 1]], dtype=int64)
    >>> found.counts
    Tensor([1, 1, 2], dtype=int64)
    """
    return UniqueAll(*_unique("unique_all", x))


def unique(x: TensorLike, out_idx: object = int32) -> Unique:
    """TensorFlow 1's unique: the distinct elements of a vector in the order in which they occur
    first, and for each element its place among them, as out_idx (int32 or int64).

    >>> wf.tf1.unique([3, 1, 3])
    Unique(y=Tensor([3, 1], dtype=int64), idx=Tensor([0, 1, 0], dtype=int32))
    """
    return Unique(*_by_occurrence("unique", x, out_idx)[:2])


def unique_with_counts(x: TensorLike, out_idx: object = int32) -> UniqueWithCounts:
    """As `unique`, and how often each occurs.

    >>> wf.tf1.unique_with_counts([3, 1, 3]).count
    Tensor([2, 1], dtype=int32)
    """
    return UniqueWithCounts(*_by_occurrence("unique_with_counts", x, out_idx))


def _by_occurrence(op: str, x: TensorLike, out_idx: object) -> tuple[Tensor, Tensor, Tensor]:
    t, dtype = strong_tensor(x), check_dtype(out_idx)
    if t.ndim != 1 or dtype not in (int32, int64):
        raise InvalidArgumentError(
            f"wf.{op} takes a vector, and out_idx int32 or int64; got shape "
            f"{format_shape(t.shape)} and {dtype.name}",
            location=caller_location(),
        )
    made = distinct_as_they_occur(t, dtype.numpy)
    if made is not None:
        values, places, counts = made
        return values, places, counts
    values, first, inverse, counts = _unique(op, t)
    order = argsort(first)  # order[i]: which value occurs as number i
    place = argsort(order)
    parts = (gather(place, inverse), gather(counts, order))
    return gather(values, order), cast(parts[0], dtype), cast(parts[1], dtype)


# ------------------------------------------------------------------------------ parts and the whole
def dynamic_partition(
    data: TensorLike, partitions: TensorLike, num_partitions: int, name: str | None = None
) -> list[Tensor]:
    """Part i holds, in their order, the rows data[j] with partitions[j] == i (TF1).

    partitions: integers in 0 .. num_partitions - 1, of shape data.shape[:k]; InvalidArgumentError
    for others when it runs. Part i has shape [count of i, *data.shape[k:]]. The gradient is put
    together by `dynamic_stitch`.

    >>> wf.tf1.dynamic_partition([10, 20, 30, 40], [1, 0, 1, 1], 3)
    [Tensor([20], dtype=int64), Tensor([10, 30, 40], dtype=int64), Tensor([], dtype=int64)]
    """
    count = check_int("dynamic_partition", num_partitions, "num_partitions")
    rows, t = _integers("dynamic_partition", "partitions", partitions), strong_tensor(data)
    made = quick_parted(t, rows, count)
    if made is not None:
        return made
    attrs: dict[str, AttrValue] = {"num_partitions": count}
    if current_trace() is not None:
        attrs["sizes"] = tuple(str(p.shape[0]) for p in partition_places(rows, count))
    return list(apply_many("dynamic_partition", [t, rows], attrs))


def partition_places(partitions: Tensor, count: int) -> tuple[Tensor, ...]:
    """For each part the places of its rows in the flattened partitions (int64), by
    `dynamic_partition`.

    In a graph it is made once for the same partitions: whatever is parted by them has parts of
    these sizes, and a step that needs one of the sizes needs nothing else that was parted.
    """
    rows, trace = product(partitions.shape), current_trace()
    attrs: dict[str, AttrValue] = {"num_partitions": count}

    def make() -> tuple[Tensor, ...]:
        sizes = fresh_sizes(trace, "dynamic_partition", max(count, 0))
        number = reshape(iota((rows,), 0, dtype=int64), partitions.shape)
        return apply_many("dynamic_partition", [number, partitions], {**attrs, "sizes": sizes})

    return make() if trace is None else once(trace, ("places", count), [partitions], make)


def dynamic_stitch(
    indices: Sequence[TensorLike], data: Sequence[TensorLike], name: str | None = None
) -> Tensor:
    """Row `indices[k][i, ...]` of the result is `data[k][i, ...]`; of several the last (TF1).

    indices[k]: integers >= 0 of the shape that data[k].shape begins with; what remains of these
    shapes must be equal. The result has as many rows as the largest index asks for; rows that no
    index names are 0.

    >>> wf.tf1.dynamic_stitch([[0, 4], [2]], [[10, 50], [30]])
    Tensor([10,  0, 30,  0, 50], dtype=int64)
    >>> wf.tf1.dynamic_stitch([[0], [1, 0]], [[1.0], [2.0, 3.0]])
    Tensor([3., 2.], dtype=float32)
    """
    if not isinstance(indices, (list, tuple)) or not isinstance(data, (list, tuple)):
        raise TypeRuleError(
            "wf.tf1.dynamic_stitch takes a list of indices and a list of data",
            location=caller_location(),
        )
    if len(indices) != len(data) or not indices:
        raise InvalidArgumentError(
            f"wf.tf1.dynamic_stitch: {len(indices)} indices and {len(data)} data",
            hint="there must be as many of both, and at least one",
            location=caller_location(),
        )
    rows = [_integers("dynamic_stitch", "indices", i) for i in indices]
    parts = promote_tensors(*data, op="dynamic_stitch")
    made = quick_stitched(rows, parts)
    return apply_dynamic("dynamic_stitch", [*rows, *parts])[0] if made is None else made


def _integers(op: str, what: str, x: TensorLike) -> Tensor:
    t = strong_tensor(x)
    if t.dtype in (int32, int64):
        return t
    if t.size == 0 and t._data is not None:  # an empty list
        return cast(t, int64)
    if not t.dtype.is_integer:
        raise TypeRuleError(
            f"wf.{op}: {what} must be integers, got {t.dtype.name}", location=caller_location()
        )
    return cast(t, int64)


# ----------------------------------------------------------------------------------- naming a size
def rank(x: TensorLike, /) -> Tensor:
    """The number of axes of x -> int64 scalar (TF1's name).

    >>> wf.tf1.rank([[1, 2, 3], [4, 5, 6]])
    Tensor(2, dtype=int64)
    """
    return in_order(scalar_tensor(strong_tensor(x).ndim, int64))


def ensure_shape(x: TensorLike, shape: Sequence[Any], name: str | None = None) -> Tensor:
    """x, which must have this shape (TF1): sizes, None for any.

    In a graph a size that depends on values becomes what `shape` says, checked when a step runs;
    ShapeError if it is not so. There sizes may be scalar tensors of integers.

    >>> wf.ensure_shape([[1, 2], [3, 4]], (None, 2))
    Tensor([[1, 2],
            [3, 4]], dtype=int64)
    >>> wf.ensure_shape([[1, 2], [3, 4]], (None, 3))
    Traceback (most recent call last):
        ...
    weft.ir.errors.ShapeError: wf.ensure_shape: the shape is [2,2], not [?,3] ...
    """
    t = strong_tensor(x)
    if not isinstance(shape, (list, tuple)):
        raise ShapeError(
            f"wf.ensure_shape: {shape!r:.60} is no shape",
            hint="give a tuple of sizes, None for any",
            location=caller_location(),
        )
    given = tuple(shape)
    dims = tuple(t.shape[i] if d is None and i < t.ndim else d for i, d in enumerate(given))
    dims = check_shape("ensure_shape", dims)
    if len(dims) != t.ndim or not all(same(a, b) for a, b in zip(t.shape, dims, strict=True)):
        raise ShapeError(
            f"wf.ensure_shape: the shape is {format_shape(t.shape)}, not {format_shape(given)}",
            location=caller_location(),
        )
    if dims == t.shape:
        return in_order(t)
    return _of_shape(t, dims)


def _of_shape(t: Tensor, dims: Shape) -> Tensor:
    """t, whose sizes are checked when a step runs: numbers by `ensure_shape`, those that are
    themselves sizes of the graph where they meet in an op."""
    known = tuple(d if isinstance(d, int) else n for d, n in zip(dims, t.shape, strict=True))
    made = t if known == t.shape else apply("ensure_shape", t, shape=known)
    return made if made.shape == dims else apply("broadcast_to", made, shape=dims)


def dim_tensor(dim: SymbolicDim) -> Tensor:
    """The value that a symbolic size has when the graph runs, as a weak int64 scalar.

    It comes from whichever feeds decide the size, so it needs no placeholder of its own: a factor
    is the length of a vector that is never made (`fold` leaves a constant). TracerError where no
    graph is being built.
    """
    total: Tensor | int = 0
    for symbols, factor in dim.terms:
        total = total + math.prod((_symbol_tensor(s) for s in symbols), start=factor)
    assert isinstance(total, Tensor)
    return total


def _symbol_tensor(symbol: str) -> Tensor:
    shape = (SymbolicDim({(symbol,): 1}),)
    vector = apply("broadcast_to", as_tensor(np.asarray(0, np.int8)), shape=shape)
    size = apply("dim_size", vector, axis=0)
    size.weak = True
    return size


SymbolicDim.as_operand = dim_tensor
