"""`wf.nn`: blocks of space moved to channels or to the batch and back, and normalisation over
neighbouring channels.

The first ones move elements and compute nothing: any dtype, and their gradients move them back.
Arrays are (batch, spatial..., channels) unless data_format says otherwise. Spatial sizes must be
known, the batch need not be. Errors, at the caller's line: ShapeError for sizes that do not divide,
InvalidArgumentError for wrong arguments."""

from __future__ import annotations

import math
from typing import Any

from weft.frontend.autodiff.custom import custom_gradient
from weft.frontend.core.tensor import Tensor
from weft.frontend.nn.windows import layout_of, type_of
from weft.frontend.ops.elementwise import add, multiply, square, subtract
from weft.frontend.ops.manipulation import cut, known_size, moveaxis, pad, permute_dims, reshape
from weft.frontend.ops.promotion import (
    TensorLike,
    cast,
    check_axis,
    check_int,
    check_positive,
    concrete_array,
    inexact_tensor,
    strong_tensor,
    widened,
)
from weft.frontend.ops.special import pow
from weft.ir.errors import InvalidArgumentError, ShapeError, TypeRuleError
from weft.ir.locations import caller_location


def space_to_depth(x: TensorLike, block_size: int, *, data_format: str | None = None) -> Tensor:
    """Each block of block_size x block_size pixels as channels of one pixel (TF's).

    (batch, height, width, c) -> (batch, height / b, width / b, b * b * c): channel (i * b + j) * c
    + k is channel k of pixel i, j of the block. PyTorch's pixel_unshuffle has the channels of x
    outermost instead.

    >>> x = wf.reshape(wf.arange(8), [1, 2, 4, 1])
    >>> wf.nn.space_to_depth(x, 2)[0, 0]
    Tensor([[0, 1, 4, 5],
            [2, 3, 6, 7]], dtype=int64)
    """
    t = strong_tensor(x)
    layout = layout_of("space_to_depth", t, data_format, 2)
    seen, b = layout.enter(t), check_positive("nn.space_to_depth", block_size, "block_size")
    height, width = layout.spatial(seen)
    if height % b or width % b:
        raise layout.shape_error(f"{type_of(t)} is not cut into blocks of {b} x {b} pixels")
    batch, channels = seen.shape[0], known_size("nn.space_to_depth", seen, 3)
    cells = reshape(seen, (batch, height // b, b, width // b, b, channels))
    moved = permute_dims(cells, (0, 1, 3, 2, 4, 5))
    return layout.leave(reshape(moved, (batch, height // b, width // b, b * b * channels)))


def depth_to_space(x: TensorLike, block_size: int, *, data_format: str | None = None) -> Tensor:
    """The inverse of `space_to_depth` (TF's): (batch, height, width, b * b * c) -> (batch, height *
    b, width * b, c).

    >>> wf.nn.depth_to_space(wf.reshape(wf.arange(4), [1, 1, 1, 4]), 2)[0, :, :, 0]
    Tensor([[0, 1],
            [2, 3]], dtype=int64)
    """
    t = strong_tensor(x)
    layout = layout_of("depth_to_space", t, data_format, 2)
    seen, b = layout.enter(t), check_positive("nn.depth_to_space", block_size, "block_size")
    height, width = layout.spatial(seen)
    channels = seen.shape[3]
    if not isinstance(channels, int) or channels % (b * b):
        raise layout.shape_error(f"the channels of {type_of(t)} are not {b} x {b} equal parts")
    batch, inside = seen.shape[0], channels // (b * b)
    cells = reshape(seen, (batch, height, width, b, b, inside))
    moved = permute_dims(cells, (0, 1, 3, 2, 4, 5))
    return layout.leave(reshape(moved, (batch, height * b, width * b, inside)))


def _rows(op: str, value: Any, name: str, count: int | None, least: int) -> list[Any]:
    """An argument of `space_to_batch_nd` and its inverse: integers, or pairs, known now."""
    table = concrete_array(op, value, name)
    wanted = 1 if name == "block_shape" else 2
    wrong = table.ndim != wanted or (table.size and table.dtype.kind not in "iu")
    wrong = wrong or (wanted == 2 and table.shape[1:] != (2,))
    if wrong or (count is not None and len(table) != count) or (table.size and table.min() < least):
        what = "integers" if wanted == 1 else "pairs of integers"
        many = f"{count} " if count is not None else ""
        raise InvalidArgumentError(
            f"wf.{op}: {name} must be {many}{what} of at least {least}, got {value!r:.60}",
            location=caller_location(),
        )
    return table.tolist()  # type: ignore[no-any-return]


def _blocked(
    op: str, x: TensorLike, block_shape: TensorLike, pairs: TensorLike, name: str
) -> tuple[Tensor, list[int], list[int], list[Any]]:
    """The tensor and its spatial sizes, and for each of these the block and the pair `name`."""
    t, block = strong_tensor(x), _rows(op, block_shape, "block_shape", None, 1)
    ends = _rows(op, pairs, name, len(block), 0)
    sizes = [d for d in t.shape[1 : len(block) + 1] if isinstance(d, int)]
    if not t.ndim or len(sizes) != len(block):
        raise ShapeError(
            f"wf.{op}: {type_of(t)} must have {len(block)} spatial axes of known sizes after the "
            "batch",
            location=caller_location(),
        )
    return t, sizes, block, ends


def space_to_batch_nd(x: TensorLike, block_shape: TensorLike, paddings: TensorLike) -> Tensor:
    """The places of each block of space, after padding with zeros, as further rows of the batch
    (TF's): so a convolution over the result has holes in x.

    x: (batch, spatial..., rest...), with as many spatial axes as block_shape has numbers. paddings:
    a pair (before, after) for each. Result: (prod(block) * batch, spatial / block..., rest...), the
    places of the block outermost. block_shape and paddings must be known.

    >>> x = wf.reshape(wf.arange(4), [1, 4, 1])
    >>> wf.nn.space_to_batch_nd(x, [2], [[0, 0]])[:, :, 0]
    Tensor([[0, 2],
            [1, 3]], dtype=int64)
    """
    op = "nn.space_to_batch_nd"
    t, sizes, block, pairs = _blocked(op, x, block_shape, paddings, "paddings")
    m = len(block)
    t = pad(t, [(0, 0), *pairs, *[(0, 0)] * (t.ndim - 1 - m)])
    sizes = [n + lo + hi for n, (lo, hi) in zip(sizes, pairs, strict=True)]
    if any(n % b for n, b in zip(sizes, block, strict=True)):
        raise ShapeError(
            f"wf.{op}: padded sizes {sizes} are not cut into blocks of {block}",
            hint="paddings make each size a multiple of its block",
            location=caller_location(),
        )
    batch, rest = known_size(op, t, 0), t.shape[m + 1 :]
    cells = [d for n, b in zip(sizes, block, strict=True) for d in (n // b, b)]
    parts = reshape(t, (batch, *cells, *rest))
    places, outer = range(2, 2 * m + 1, 2), range(1, 2 * m + 1, 2)
    moved = permute_dims(parts, (*places, 0, *outer, *range(2 * m + 1, parts.ndim)))
    inside = (n // b for n, b in zip(sizes, block, strict=True))
    return reshape(moved, (batch * math.prod(block), *inside, *rest))


def batch_to_space_nd(x: TensorLike, block_shape: TensorLike, crops: TensorLike) -> Tensor:
    """The inverse of `space_to_batch_nd` (TF's): rows of the batch as places of blocks of space, of
    which `crops`, a pair (before, after) for each spatial axis, is cut off.

    >>> x = wf.reshape(wf.arange(4), [2, 2, 1])
    >>> wf.nn.batch_to_space_nd(x, [2], [[0, 1]])[0, :, 0]
    Tensor([0, 2, 1], dtype=int64)
    """
    op = "nn.batch_to_space_nd"
    t, sizes, block, pairs = _blocked(op, x, block_shape, crops, "crops")
    m, many = len(block), math.prod(block)
    batch, rest = known_size(op, t, 0), t.shape[m + 1 :]
    if isinstance(batch, int) and batch % many:
        raise ShapeError(
            f"wf.{op}: the batch of {type_of(t)} is not a multiple of {many}, the size of blocks",
            location=caller_location(),
        )
    inner = batch // many
    parts = reshape(t, (*block, inner, *sizes, *rest))
    order = [a for i in range(m) for a in (m + 1 + i, i)]
    moved = permute_dims(parts, (m, *order, *range(2 * m + 1, parts.ndim)))
    whole = [n * b for n, b in zip(sizes, block, strict=True)]
    made = reshape(moved, (inner, *whole, *rest))
    for axis, (n, (lo, hi)) in enumerate(zip(whole, pairs, strict=True), 1):
        if lo + hi > n:
            raise ShapeError(f"wf.{op}: crops {[lo, hi]} cut more than {n} off",
                             location=caller_location())  # fmt: skip
        made = cut(made, axis, lo, n - hi) if lo or hi else made
    return made


# ------------------------------------------------------------------------------- normalisation
def local_response_normalization(
    x: TensorLike,
    depth_radius: int = 5,
    bias: float = 1.0,
    alpha: float = 1.0,
    beta: float = 0.5,
    *,
    axis: int = -1,
) -> Tensor:
    """x / (bias + alpha * sum of x^2 over the channels within depth_radius) ^ beta (TF's `lrn`;
    Krizhevsky, Sutskever and Hinton 2012, section 3.3).

    axis: where the channels are. PyTorch's divides alpha by the number of channels, 2 radius + 1.
    Real numbers; bools and integers become the default float, 16-bit floats are computed in
    float32.

    >>> wf.nn.local_response_normalization(wf.asarray([3.0, 0.0, 4.0]), 1, bias=0.0)
    Tensor([1., 0., 1.], dtype=float32)
    """
    op = "nn.local_response_normalization"
    t = inexact_tensor(x, op)
    if t.dtype.is_complex:
        raise TypeRuleError(f"wf.{op} takes real numbers, got {t.dtype.name}",
                            location=caller_location())  # fmt: skip
    along, radius = check_axis(op, axis, t.ndim), check_int(op, depth_radius, "depth_radius")
    size = t.shape[along]
    if radius < 0 or not isinstance(size, int):
        raise InvalidArgumentError(
            f"wf.{op}: depth_radius must not be negative and the channels of {type_of(t)} known, "
            f"got {radius}",
            location=caller_location(),
        )
    wide = widened(moveaxis(t, along, -1))
    radius = min(radius, max(size - 1, 0))
    made = _normalized(wide, radius=radius, bias=float(bias), alpha=float(alpha), beta=float(beta))
    return moveaxis(cast(made, t.dtype), -1, along)


def _neighbours(t: Tensor, radius: int) -> Tensor:
    """The sum over the elements within `radius` along the last axis. Sums of slices: a product with
    a band would spread an infinity over all channels."""
    last, size = t.ndim - 1, t.shape[-1]
    assert isinstance(size, int)
    wide = pad(t, [(0, 0)] * last + [(radius, radius)])
    total = cut(wide, last, 0, size)
    for k in range(1, 2 * radius + 1):
        total = add(total, cut(wide, last, k, k + size))
    return total


@custom_gradient
def _normalized(t: Tensor, *, radius: int, bias: float, alpha: float, beta: float) -> Any:
    """With a gradient that sums over neighbours once more, where that of each slice would be as
    large as x."""
    base = add(bias, multiply(alpha, _neighbours(square(t), radius)))

    def gradient(g: Tensor) -> Tensor:
        # dy_j/dx_i = [i = j] base^-b - 2 a b x_i x_j base_j^-(b+1) for neighbours i, j
        share = _neighbours(multiply(multiply(g, t), pow(base, -beta - 1)), radius)
        own = multiply(g, pow(base, -beta))
        return subtract(own, multiply(multiply(2 * alpha * beta, t), share))

    return multiply(t, pow(base, -beta)), gradient
