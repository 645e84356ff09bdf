"""Arithmetic on indices: flat ones and those by axis, inverse permutations, and looking up in
batches.

Indices are integers of any dtype, results int64. One that is out of range raises
InvalidArgumentError when the op runs (eagerly at once, compiled when the step does); here negative
ones do not count from the end, except in `batch_gather`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from weft.frontend.core.tensor import Tensor, as_tensor
from weft.frontend.ops.creation import arange, iota
from weft.frontend.ops.dispatch import apply
from weft.frontend.ops.elementwise import (
    add,
    clip,
    floor_divide,
    multiply,
    remainder,
)
from weft.frontend.ops.indexing import NOWHERE, as_indices, from_the_front
from weft.frontend.ops.manipulation import expand_dims, known_size
from weft.frontend.ops.promotion import (
    TensorLike,
    broadcast_tensors,
    cast,
    check_shape,
    expand,
    is_concrete,
    strong_tensor,
)
from weft.ir.dims import format_shape, same
from weft.ir.dtypes import int64
from weft.ir.errors import BoundsError, InvalidArgumentError, ShapeError
from weft.ir.locations import caller_location


def _sizes(op: str, shape: Any) -> tuple[int, ...]:
    given = check_shape(op, shape)
    sizes = tuple(d for d in given if isinstance(d, int))
    if len(sizes) != len(given):
        raise ShapeError(f"wf.{op}: all sizes must be known", location=caller_location())
    return sizes


def _inside(op: str, index: Tensor, size: int) -> Tensor:
    """`index`, which must be in 0 .. size-1: checked now, or when the op runs."""
    if is_concrete(index):
        held = index.numpy()
        wrong = held[(held < 0) | (held >= size)]
        if wrong.size:
            raise BoundsError(
                f"wf.{op}: the index {wrong.flat[0]} is out of range for {size}",
                location=caller_location(),
            )
        return index
    # a look-up is checked by all engines, and costs as much as the arithmetic beside it
    return apply("take", arange(size), from_the_front(index), axis=0)


def unravel_index(indices: TensorLike, shape: Any) -> tuple[Tensor, ...]:
    """The indices by axis, of an array of `shape`, that flat indices stand for (NumPy's): one
    int64 tensor, of the shape of `indices`, for each axis.

    >>> wf.tf1.unravel_index([22, 41, 37], (7, 6))
    (Tensor([3, 6, 6], dtype=int64), Tensor([4, 5, 1], dtype=int64))
    """
    sizes = _sizes("unravel_index", shape)
    rest = cast(as_indices("unravel_index", indices), int64)
    if is_concrete(rest):
        rest = _inside("unravel_index", rest, math.prod(sizes))
    parts: list[Tensor] = []
    for size in sizes[:0:-1]:
        parts.append(remainder(rest, size))
        rest = floor_divide(rest, size)
    if sizes:
        parts.append(_inside("unravel_index", rest, sizes[0]))
    return tuple(parts[::-1])


def ravel_multi_index(
    multi_index: Sequence[TensorLike], dims: Any, mode: str = "raise", order: str = "C"
) -> Tensor:
    """The flat indices, in an array of shape `dims`, of indices by axis (NumPy's) -> int64.

    multi_index: for each axis integers, which broadcast. mode: what is out of range is an error
    ("raise"), goes round ("wrap") or is moved to the nearest index ("clip"). order: "C", the last
    axis is the fastest, or "F", the first is.

    >>> wf.tf1.ravel_multi_index(([3, 6, 6], [4, 5, 1]), (7, 6))
    Tensor([22, 41, 37], dtype=int64)
    >>> wf.tf1.ravel_multi_index(([3, 9], [4, -1]), (7, 6), mode="clip")
    Tensor([22, 36], dtype=int64)
    """
    op = "ravel_multi_index"
    sizes = _sizes(op, dims)
    given = list(multi_index)
    if len(given) != len(sizes) or not sizes:
        raise ShapeError(
            f"wf.{op}: {len(given)} indices for {len(sizes)} axes", location=caller_location()
        )
    if mode not in ("raise", "wrap", "clip") or order not in ("C", "F"):
        raise InvalidArgumentError(
            f"wf.{op}: mode {mode!r} or order {order!r} is unknown",
            hint='mode is "raise", "wrap" or "clip", order "C" or "F"',
            location=caller_location(),
        )
    parts = broadcast_tensors(*(cast(as_indices(op, i), int64) for i in given), op=op)
    axes = list(zip(parts, sizes, strict=True))
    total: Tensor | None = None
    for index, size in axes if order == "C" else axes[::-1]:
        if mode == "raise":
            index = _inside(op, index, size)
        else:
            index = remainder(index, size) if mode == "wrap" else clip(index, 0, size - 1)
        total = index if total is None else add(multiply(total, size), index)
    assert total is not None
    return total


def invert_permutation(x: TensorLike) -> Tensor:
    """The inverse y of a permutation x of 0 .. n-1, y[x[i]] = i (TF1's) -> int64 [n].

    What is no permutation is an InvalidArgumentError, when it runs.

    >>> wf.tf1.invert_permutation([3, 4, 0, 2, 1])
    Tensor([2, 4, 3, 0, 1], dtype=int64)
    """
    op = "invert_permutation"
    t = cast(as_indices(op, x), int64)
    if t.ndim != 1:
        raise ShapeError(
            f"wf.{op}: a permutation is a vector, got shape {format_shape(t.shape)}",
            location=caller_location(),
        )
    size = known_size(op, t, 0)
    if is_concrete(t):
        held = t.numpy()
        if not np.array_equal(np.sort(held), np.arange(held.size)):
            raise InvalidArgumentError(
                f"wf.{op}: {held} is no permutation of 0 to {held.size - 1}",
                location=caller_location(),
            )
    places = iota((size,), dtype=int64)
    rows = expand_dims(from_the_front(t), -1)
    made = apply("scatter_nd_update", expand(as_tensor(np.int64(NOWHERE)), (size,)), rows, places)
    # a place that nothing was put in is a look-up out of range
    return made if is_concrete(made) else apply("take", places, made, axis=0)


def batch_gather(params: TensorLike, indices: TensorLike) -> Tensor:
    """out[b..., j, :] = params[b..., indices[b..., j], :]: `gather` in each row of a batch (TF1's).

    indices: integers (batch..., n); params: (batch..., m, ...). Negative ones count from the end.
    Has a gradient in params.

    >>> wf.tf1.batch_gather([[10, 20, 30], [40, 50, 60]], [[0, 2], [-1, 1]])
    Tensor([[10, 30],
            [60, 50]], dtype=int64)
    """
    op = "batch_gather"
    t, index = strong_tensor(params), as_indices(op, indices)
    lead = index.ndim - 1
    fit = index.ndim and t.ndim > lead and all(map(same, t.shape[:lead], index.shape[:lead]))
    if not fit:
        raise ShapeError(
            f"wf.{op}: indices of shape {format_shape(index.shape)} do not fit params of shape "
            f"{format_shape(t.shape)}",
            hint="all axes of the indices but the last one are axes of params, too",
            location=caller_location(),
        )
    if not lead:
        return apply("take", t, index, axis=0)
    wide = cast(index, int64)
    columns = [expand_dims(iota(index.shape, a, dtype=int64), -1) for a in range(lead)]
    where_ = apply("concat", *columns, expand_dims(wide, -1), axis=index.ndim)
    return apply("gather_nd", t, where_)
