"""Parts, reductions and softmax of SparseTensors, by their entries."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from typing import Any, NamedTuple

from weft.frontend.core.tensor import Tensor, as_tensor
from weft.frontend.ops.creation import iota, zeros
from weft.frontend.ops.dispatch import apply, exact_sizes
from weft.frontend.ops.elementwise import add as added
from weft.frontend.ops.elementwise import divide as divided
from weft.frontend.ops.elementwise import equal, greater_equal, less, logical_and, subtract, where
from weft.frontend.ops.indexing import getitem, take
from weft.frontend.ops.manipulation import concat as joined
from weft.frontend.ops.manipulation import reshape, stack
from weft.frontend.ops.promotion import (
    Axes,
    TensorLike,
    cast,
    check_axes,
    check_axis,
    check_int,
    expand,
    filled,
    iinfo,
    inexact_tensor,
    promote_tensors,
    strong_tensor,
)
from weft.frontend.ops.special import exp
from weft.frontend.sparse.sparse_tensor import (
    SparseTensor,
    as_sparse,
    as_text,
    column,
    flat_places,
    is_there,
    kept,
    made,
    nowhere,
    places,
    real_values,
    reorder,
    scattered,
    together,
)
from weft.ir.dims import Dim, format_shape, product
from weft.ir.dtypes import DType, bool_, int8, int64
from weft.ir.errors import InvalidArgumentError, ShapeError, TypeRuleError
from weft.ir.locations import caller_location
from weft.ir.spec import fits


# -------------------------------------------------------------------------------------------- parts
def concat(inputs: Sequence[Any], axis: int = 0) -> SparseTensor:
    """SparseTensors one after the other along `axis`; the other sizes must be equal. Entries stay
    in the order of the inputs.

    >>> a = wf.sparse.SparseTensor([[0, 1]], [5.0], (1, 2))
    >>> wf.sparse.concat([a, a], axis=1).to_dense()
    Tensor([[0., 5., 0., 5.]], dtype=float32)
    """
    parts = [as_sparse("concat", x) for x in inputs]
    if not parts:
        raise InvalidArgumentError("wf.sparse.concat needs an input", location=caller_location())
    first = parts[0].dense_shape
    along = check_axis("sparse.concat", axis, len(first))
    for part in parts[1:]:
        others = (*part.dense_shape[:along], first[along], *part.dense_shape[along + 1 :])
        if part.ndim != len(first) or not fits(first, others):
            shapes = ", ".join(format_shape(p.dense_shape) for p in parts)
            raise ShapeError(
                f"wf.sparse.concat: the shapes {shapes} differ in more than axis {along}",
                location=caller_location(),
            )
    shape = (*first[:along], sum(p.dense_shape[along] for p in parts), *first[along + 1 :])
    start: Any = 0
    indices: list[Tensor] = []
    for part in parts:
        columns = [column(part, i) for i in range(part.ndim)]
        columns[along] = added(columns[along], start)
        indices.append(nowhere(is_there(part), stack(columns, axis=1), shape))
        start = start + part.dense_shape[along]
    values = promote_tensors(*(p.values for p in parts), op="sparse.concat")
    padded = any(p.padded for p in parts)
    return made(joined(indices, axis=0), joined(values, axis=0), shape, padded)


def slice(x: Any, start: Sequence[int], size: Sequence[int]) -> SparseTensor:
    """The part of `x` from `start` on, of `size`, cut off at the end of each axis (as
    TensorFlow's); a size of -1 is all that follows.

    How many entries are in it depends on values; in a compiled function the number stays, and the
    others become padding.

    >>> a = wf.sparse.SparseTensor([[0, 1], [2, 0]], [5.0, 7.0], (3, 2))
    >>> wf.sparse.slice(a, [1, 0], [2, 1]).to_dense()
    Tensor([[0.],
            [7.]], dtype=float32)
    """
    sparse = as_sparse("slice", x)
    starts = [check_int("sparse.slice", s, "start") for s in start]
    sizes = [check_int("sparse.slice", s, "size") for s in size]
    if (
        len(starts) != sparse.ndim
        or len(sizes) != sparse.ndim
        or min(starts) < 0
        or min(sizes) < -1
    ):
        raise InvalidArgumentError(
            f"wf.sparse.slice: start {starts} and size {sizes} are no part of a tensor of shape "
            f"{format_shape(sparse.dense_shape)}",
            hint="give one start >= 0 and one size >= 0 (or -1) for each axis",
            location=caller_location(),
        )
    shape: list[Dim] = []
    keep: Tensor | None = None
    columns: list[Tensor] = []
    for axis, (low, count) in enumerate(zip(starts, sizes, strict=True)):
        line = zeros((0, sparse.dense_shape[axis]), dtype=int8)
        whole, part = builtins.slice(None), builtins.slice(low, None if count < 0 else low + count)
        n = getitem(line, (whole, part)).shape[1]
        shape.append(n)
        moved = subtract(column(sparse, axis), low)
        inside = logical_and(greater_equal(moved, 0), less(moved, n))
        keep = inside if keep is None else logical_and(keep, inside)
        columns.append(moved)
    return kept(sparse, keep, stack(columns, axis=1), shape)


def retain(x: Any, to_retain: TensorLike) -> SparseTensor:
    """The entries for which `to_retain`, bool [n], is true. In a compiled function the others
    become padding.

    >>> a = wf.sparse.SparseTensor([[0], [2]], [1.0, 2.0], (3,))
    >>> wf.sparse.retain(a, a.values > 1).to_dense()
    Tensor([0., 0., 2.], dtype=float32)
    """
    sparse, keep = as_sparse("retain", x), as_tensor(to_retain)
    if keep.dtype is not bool_ or not fits(keep.shape, (sparse.nse,)):
        raise TypeRuleError(
            f"wf.sparse.retain: to_retain must be bool [{sparse.nse}], got {keep.describe()}",
            location=caller_location(),
        )
    return kept(sparse, keep, sparse.indices, sparse.dense_shape)


def reset_shape(x: Any, new_shape: Any = None) -> SparseTensor:
    """The same entries in a tensor of another shape, at least as large in each axis; without
    `new_shape` (eagerly and in graphs) the smallest that has all entries.

    >>> a = wf.sparse.SparseTensor([[0], [2]], [1.0, 2.0], (9,))
    >>> wf.sparse.reset_shape(a).shape, wf.sparse.reset_shape(a, [12]).shape
    ((3,), (12,))
    """
    sparse = as_sparse("reset_shape", x)
    if new_shape is not None:
        shape = SparseTensor(zeros((0, sparse.ndim), dtype=int64), [], new_shape).dense_shape
        pairs = list(zip(shape, sparse.dense_shape, strict=False))
        smaller = any(isinstance(a, int) and isinstance(b, int) and a < b for a, b in pairs)
        if len(shape) != sparse.ndim or smaller:
            raise ShapeError(
                f"wf.sparse.reset_shape: {format_shape(shape)} is smaller than "
                f"{format_shape(sparse.dense_shape)}",
                location=caller_location(),
            )
        indices = nowhere(is_there(sparse), sparse.indices, shape)
        return made(indices, sparse.values, shape, sparse.padded)
    if exact_sizes():
        sparse = kept(sparse, None, sparse.indices, sparse.dense_shape)
    ends = scattered(
        (1, sparse.ndim), [zeros((sparse.nse,), dtype=int64)], added(sparse.indices, 1), None,
        how="scatter_nd_max", fill=0,
    )  # fmt: skip
    return SparseTensor(sparse.indices, sparse.values, reshape(ends, [sparse.ndim]))


class FilledRows(NamedTuple):
    """The result of `fill_empty_rows`: a SparseTensor, and for each row whether it had no entry."""

    output: SparseTensor
    empty_row_indicator: Tensor


def fill_empty_rows(x: Any, default_value: Any) -> FilledRows:
    """`x` [rows, ...] with an entry `default_value` at the start of each row that has none, in
    row-major order.

    >>> a = wf.sparse.SparseTensor([[1, 2]], [5.0], (2, 3))
    >>> made = wf.sparse.fill_empty_rows(a, -1.0)
    >>> made.output.to_dense(), made.empty_row_indicator
    (Tensor([[-1.,  0.,  0.],
            [ 0.,  0.,  5.]], dtype=float32), Tensor([ True, False], dtype=bool))
    """
    sparse = as_sparse("fill_empty_rows", x)
    there, columns = places(sparse)
    rows = sparse.dense_shape[0]
    ones = filled(1, int8, sparse.values.shape)
    empty = equal(scattered((rows,), columns[:1], ones, there, how="scatter_nd_max"), 0)
    number = iota((rows,), 0, dtype=int64)
    filler = stack([number, *([zeros((rows,), dtype=int64)] * (sparse.ndim - 1))], axis=1)
    values = cast(strong_tensor(default_value), sparse.dtype)
    new = made(filler, expand(values, (rows,)), sparse.dense_shape)
    added_rows = kept(new, empty, filler, sparse.dense_shape)
    return FilledRows(reorder(together([sparse, added_rows])), empty)


# --------------------------------------------------------------------------------------- reductions
def reduce_sum(x: Any, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """The sum of `x` over `axis` (all without), a dense tensor.

    >>> a = wf.sparse.SparseTensor([[0, 1], [2, 0], [2, 1]], [5.0, 7.0, 1.0], (3, 2))
    >>> wf.sparse.reduce_sum(a, axis=1)
    Tensor([5., 0., 8.], dtype=float32)
    """
    sparse = as_sparse("reduce_sum", x)
    axes, rest, shape = _reduced("reduce_sum", sparse, axis)
    there, columns = places(sparse)
    values = real_values(sparse, there)
    out = scattered(shape, [columns[a] for a in rest], values, there)
    return _with_axes(out, sparse, axes) if keepdims else out


def reduce_max(x: Any, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """The largest of the entries over `axis` (all without), a dense tensor; 0 where there is no
    entry. Places without an entry do not count (as in TensorFlow), and each of equal indices counts
    by itself: `coalesce` first.

    >>> a = wf.sparse.SparseTensor([[0, 1], [2, 0], [2, 1]], [-5.0, 7.0, 1.0], (3, 2))
    >>> wf.sparse.reduce_max(a, axis=1)
    Tensor([-5.,  0.,  7.], dtype=float32)
    """
    return _extremum("reduce_max", x, axis, keepdims)


def reduce_min(x: Any, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """The least of the entries over `axis`; see `reduce_max`.

    >>> a = wf.sparse.SparseTensor([[0, 1], [2, 0], [2, 1]], [-5.0, 7.0, 1.0], (3, 2))
    >>> wf.sparse.reduce_min(a, axis=0)
    Tensor([ 7., -5.], dtype=float32)
    """
    return _extremum("reduce_min", x, axis, keepdims)


def _extremum(op: str, x: Any, axis: Axes, keepdims: bool) -> Tensor:
    sparse = as_sparse(op, x)
    axes, rest, shape = _reduced(op, sparse, axis)
    there, columns = places(sparse)
    own = [columns[a] for a in rest]
    how = f"scatter_nd_{op[-3:]}"
    worst = _worst(sparse.dtype, op == "reduce_max")
    out = scattered(shape, own, sparse.values, there, how=how, fill=worst)
    ones = filled(1, int8, sparse.values.shape)
    hit = scattered(shape, own, ones, there, how="scatter_nd_max")
    out = where(equal(hit, 0), filled(0, sparse.dtype, ()), out)
    return _with_axes(out, sparse, axes) if keepdims else out


def _worst(dtype: DType, is_max: bool) -> int | float:
    if dtype.is_integer:
        return iinfo(dtype).min if is_max else iinfo(dtype).max
    return float("-inf") if is_max else float("inf")


def _reduced(
    op: str, x: SparseTensor, axis: Axes
) -> tuple[tuple[int, ...], list[int], tuple[Any, ...]]:
    """The axes that go, those that stay, and the sizes of these."""
    axes = check_axes(f"sparse.{op}", axis, x.ndim)
    rest = [a for a in range(x.ndim) if a not in axes]
    return axes, rest, tuple(x.dense_shape[a] for a in rest)


def _with_axes(out: Tensor, x: SparseTensor, axes: Sequence[int]) -> Tensor:
    return reshape(out, tuple(1 if a in axes else n for a, n in enumerate(x.dense_shape)))


def softmax(x: Any) -> SparseTensor:
    """exp(x) / sum(exp(x)) over the entries of each row of the last axis, as those of a batch of
    [..., rows, columns]; places without an entry stay 0 (as in TensorFlow).

    Bools and integers become float32. Equal indices are entries each by themselves.

    >>> a = wf.sparse.SparseTensor([[0, 0], [0, 2], [1, 1]], [1.0, 1.0, 9.0], (2, 3))
    >>> wf.sparse.softmax(a).to_dense()
    Tensor([[0.5, 0. , 0.5],
            [0. , 1. , 0. ]], dtype=float32)
    """
    sparse = as_sparse("softmax", x)
    values = inexact_tensor(sparse.values, "sparse.softmax")
    if sparse.ndim < 2:
        raise ShapeError(
            f"wf.sparse.softmax needs at least 2 axes, got {as_text(sparse)}",
            hint="wf.sparse.reshape(x, [1, n])",
            location=caller_location(),
        )
    there, columns = places(sparse)
    lines = sparse.dense_shape[:-1]
    row = flat_places("softmax", columns[:-1], lines, sparse.nse)
    count = product(lines)
    largest = scattered((count,), [row], values, there, how="scatter_nd_max", fill=float("-inf"))
    powers = exp(subtract(values, _of_rows(apply("stop_gradient", largest), row, there)))
    total = scattered((count,), [row], powers, there)
    return sparse.with_values(divided(powers, _of_rows(total, row, there)))


def _of_rows(totals: Tensor, row: Tensor, there: Tensor | None) -> Tensor:
    """What belongs to each entry's row; 1 for padding."""
    if there is None:
        return take(totals, row)
    if totals.shape[0] == 0:
        return filled(1, totals.dtype, row.shape)
    return where(there, take(totals, row), 1)


def expand_dims(x: Any, axis: int = 0) -> SparseTensor:
    """`x` with a new axis of size 1.

    >>> wf.sparse.expand_dims(wf.sparse.SparseTensor([[2]], [1.0], (4,)), 0).shape
    (1, 4)
    """
    sparse = as_sparse("expand_dims", x)
    at = check_axis("sparse.expand_dims", axis, sparse.ndim + 1)
    columns = [column(sparse, i) for i in range(sparse.ndim)]
    columns.insert(at, zeros((sparse.nse,), dtype=int64))
    shape = (*sparse.dense_shape[:at], 1, *sparse.dense_shape[at:])
    indices = nowhere(is_there(sparse), stack(columns, axis=1), shape)
    return made(indices, sparse.values, shape, sparse.padded)
