"""Shapes and the order of axes: reshape, transpose, broadcast, new and vanishing axes, sizes.

Dtypes stay. Joining, cutting and repeating are in `ops/rearrange.py`. Negative axes count from the
end. Errors, at the caller's line: InvalidArgumentError for an axis out of range or a wrong
argument, ShapeError for shapes that do not fit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from weft.frontend.ops.arguments import (
    Axes,
    check_axes,
    check_axis,
    check_shape,
    infer_shape,
)
from weft.frontend.ops.dispatch import apply, in_order
from weft.frontend.ops.promotion import (
    TensorLike,
    broadcast_tensors,
    expand,
    scalar_tensor,
    strong_tensor,
)
from weft.frontend.tensor import Tensor, as_tensor
from weft.ir.dims import format_shape, product
from weft.ir.dtypes import int64
from weft.ir.errors import InvalidArgumentError, ShapeError
from weft.ir.locations import caller_location


def reshape(x: TensorLike, /, shape: Any, *, copy: bool | None = None) -> Tensor:
    """The same elements, in row-major order, in another shape; one size may be -1 (worked out).

    Tensors are immutable: `copy` is accepted and changes nothing that can be seen.
    """
    t = strong_tensor(x)
    wanted = infer_shape("reshape", check_shape("reshape", shape, infer=True), t.shape)
    return in_order(t) if wanted == t.shape else apply("reshape", t, shape=wanted)


def permute_dims(x: TensorLike, /, axes: Sequence[int]) -> Tensor:
    """Axis i of the result is axis axes[i] of x."""
    t = strong_tensor(x)
    given = axes if isinstance(axes, (tuple, list)) else (axes,)
    order = tuple(check_axis("permute_dims", a, t.ndim, "axes") for a in given)
    if sorted(order) != list(range(t.ndim)):
        raise InvalidArgumentError(
            f"wf.permute_dims: axes {tuple(given)} are no permutation of the axes of a tensor of "
            f"rank {t.ndim}",
            location=caller_location(),
        )
    same_order = order == tuple(range(t.ndim))
    return in_order(t) if same_order else apply("permute_dims", t, axes=order)


def transpose(x: TensorLike, /, axes: Sequence[int] | None = None) -> Tensor:
    """`permute_dims`; without `axes`, the axes in reverse order (NumPy's and TF1's name)."""
    t = strong_tensor(x)
    return permute_dims(t, tuple(range(t.ndim))[::-1] if axes is None else axes)


def matrix_transpose(x: TensorLike, /) -> Tensor:
    """The matrices x with their last two axes exchanged."""
    t = strong_tensor(x)
    if t.ndim < 2:
        raise InvalidArgumentError(
            f"wf.matrix_transpose needs a matrix or a stack of them, got shape {list(t.shape)}",
            location=caller_location(),
        )
    return swapaxes(t, -1, -2)


def swapaxes(x: TensorLike, axis1: int, axis2: int, /) -> Tensor:
    """x with two axes exchanged."""
    t = strong_tensor(x)
    a, b = (check_axis("swapaxes", v, t.ndim) for v in (axis1, axis2))
    order = list(range(t.ndim))
    order[a], order[b] = b, a
    return permute_dims(t, order)


def moveaxis(
    x: TensorLike, source: int | Sequence[int], destination: int | Sequence[int], /
) -> Tensor:
    """x with the axes `source` moved to the places `destination`; the others keep their order."""
    t = strong_tensor(x)
    sources, places = (
        [
            check_axis("moveaxis", a, t.ndim, name)
            for a in (v if isinstance(v, (tuple, list)) else (v,))
        ]
        for v, name in ((source, "source"), (destination, "destination"))
    )
    if (
        len(sources) != len(places)
        or len(set(sources)) != len(sources)
        or len(set(places)) != len(places)
    ):
        raise InvalidArgumentError(
            f"wf.moveaxis: source {source} and destination {destination} must be distinct "
            "axes, as many of each",
            location=caller_location(),
        )
    order = [a for a in range(t.ndim) if a not in sources]
    for place, axis in sorted(zip(places, sources, strict=True)):
        order.insert(place, axis)
    return permute_dims(t, order)


def expand_dims(x: TensorLike, /, axis: int | Sequence[int] = 0) -> Tensor:
    """x with new axes of size 1 at the places `axis` of the result."""
    t = strong_tensor(x)
    count = len(axis) if isinstance(axis, (tuple, list)) else 1
    axes = check_axes("expand_dims", axis, t.ndim + count)
    shape = list(t.shape)
    for a in axes:
        shape.insert(a, 1)
    return apply("reshape", t, shape=tuple(shape)) if axes else in_order(t)


def squeeze(x: TensorLike, /, axis: Axes = None) -> Tensor:
    """x without the axes `axis`, which must have size 1; None: without all that have."""
    t = strong_tensor(x)
    if axis is None:
        axes = tuple(i for i, d in enumerate(t.shape) if d == 1)
    else:
        axes = check_axes("squeeze", axis, t.ndim)
    for a in axes:
        if t.shape[a] != 1:
            raise ShapeError(
                f"wf.squeeze: axis {a} of shape {format_shape(t.shape)} does not have size 1",
                location=caller_location(),
            )
    return reshape(t, tuple(d for i, d in enumerate(t.shape) if i not in axes))


def flatten(x: TensorLike, /) -> Tensor:
    """The elements of x in row-major order as a vector."""
    t = strong_tensor(x)
    return reshape(t, (product(t.shape),))


def broadcast_to(x: TensorLike, /, shape: Any) -> Tensor:
    """x repeated along axes of size 1 and new leading axes up to `shape`; ShapeError if it does not
    fit.
    """
    t = strong_tensor(x)
    made = expand(t, check_shape("broadcast_to", shape))
    return in_order(made) if made is t else made


def broadcast_arrays(*arrays: TensorLike) -> list[Tensor]:
    """The arrays broadcast against each other; dtypes stay."""
    return broadcast_tensors(*(strong_tensor(a) for a in arrays))


def shape(x: TensorLike, /) -> Tensor:
    """The sizes of x -> int64 vector; those that a graph does not know are asked for at run
    time.
    """
    t = strong_tensor(x)
    known = [d for d in t.shape if isinstance(d, int)]
    if len(known) == t.ndim:
        return in_order(as_tensor(np.asarray(known, np.int64)))
    sizes = [
        as_tensor(np.asarray([d], np.int64))
        if isinstance(d, int)
        else apply("reshape", apply("dim_size", t, axis=i), shape=(1,))
        for i, d in enumerate(t.shape)
    ]
    return apply("concat", *sizes, axis=0)


def size(x: TensorLike, /) -> Tensor:
    """The number of elements of x -> int64 scalar."""
    t = strong_tensor(x)
    total: Tensor = scalar_tensor(1, int64)
    known = product(t.shape)
    if isinstance(known, int):
        return in_order(scalar_tensor(known, int64))
    for i in range(t.ndim):
        total = apply("multiply", total, apply("dim_size", t, axis=i))
    return total


def rank(x: TensorLike, /) -> Tensor:
    """The number of axes of x -> int64 scalar (TF1's name)."""
    return in_order(scalar_tensor(strong_tensor(x).ndim, int64))
