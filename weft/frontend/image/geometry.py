"""Crops, paddings, flips, turns and patches of images: what moves pixels and computes nothing.

Images are (height, width, channels) with any number of axes in front: (batch, height, width,
channels). Any dtype; gradients move back. Sizes of height and width must be known (but for
`random_crop`), those in front need not be. Functions that draw take a key first
(`wf.random.key`). Errors, at the caller's line: ShapeError for what is no image or too small,
InvalidArgumentError for wrong arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from weft.frontend.core.tensor import Tensor
from weft.frontend.nn.windows import same_padding, type_of
from weft.frontend.ops.creation import arange
from weft.frontend.ops.dispatch import apply
from weft.frontend.ops.elementwise import add, maximum, subtract, where
from weft.frontend.ops.manipulation import cut, flip, pad, permute_dims, reshape, swapaxes
from weft.frontend.ops.manipulation import rot90 as turned
from weft.frontend.ops.promotion import TensorLike, check_int, concrete_array, strong_tensor
from weft.frontend.random import bernoulli, randint
from weft.frontend.random import split as split_key
from weft.ir.errors import InvalidArgumentError, ShapeError
from weft.ir.locations import caller_location

#: `sizes=`, `strides=`: one number, or one for height and one for width.
Pair = int | Sequence[int]


def wrong(op: str, text: str, hint: str | None = None) -> InvalidArgumentError:
    """An error in the arguments of `wf.image.{op}`."""
    return InvalidArgumentError(f"wf.image.{op}: {text}", hint=hint, location=caller_location())


def images(op: str, x: TensorLike, channels: int | None = None) -> Tensor:
    """`x` as a tensor. ShapeError if it is no image, or has not so many channels."""
    t = strong_tensor(x)
    if t.ndim < 3:
        raise ShapeError(
            f"wf.image.{op}: images are (..., height, width, channels), got {type_of(t)}",
            hint="wf.expand_dims(x, -1) makes one channel",
            location=caller_location(),
        )
    return t if channels is None else with_channels(op, t, channels)


def with_channels(op: str, x: TensorLike, channels: int) -> Tensor:
    """`x` as a tensor of any rank. ShapeError if its last axis is not so many channels."""
    t = strong_tensor(x)
    if not t.ndim or t.shape[-1] != channels:
        what = "1 channel" if channels == 1 else f"{channels} channels"
        raise ShapeError(
            f"wf.image.{op}: the last axis must be {what}, got {type_of(t)}",
            location=caller_location(),
        )
    return t


def spatial(op: str, t: Tensor) -> tuple[int, int]:
    """Height and width, which must be known."""
    height, width = t.shape[-3:-1]
    if not isinstance(height, int) or not isinstance(width, int):
        raise ShapeError(
            f"wf.image.{op}: the height and width of {type_of(t)} must be known",
            hint="wf.ensure_shape says what they are",
            location=caller_location(),
        )
    return height, width


def pair(op: str, value: Any, name: str, least: int = 0) -> tuple[int, int]:
    """One number, or one for height and one for width; TF's lists with ones around them, too."""
    if isinstance(value, (Tensor, np.ndarray)):
        value = concrete_array(f"image.{op}", value, name).tolist()
    given = list(value) if isinstance(value, (tuple, list)) else [value, value]
    if len(given) == 4 and given[0] == given[3] == 1:
        given = given[1:3]
    numbers = [check_int(f"image.{op}", v, name) for v in given]
    if len(numbers) != 2 or min(numbers) < least:
        raise wrong(
            op, f"{name} must be one or two integers of at least {least}, got {value!r:.60}"
        )
    return numbers[0], numbers[1]


# ------------------------------------------------------------------------------ flips and turns
def flip_left_right(image: TensorLike) -> Tensor:
    """Images with their columns in reverse order.

    >>> wf.image.flip_left_right([[[1], [2], [3]]])[..., 0]
    Tensor([[3, 2, 1]], dtype=int64)
    """
    return flip(images("flip_left_right", image), axis=-2)


def flip_up_down(image: TensorLike) -> Tensor:
    """Images with their rows in reverse order.

    >>> wf.image.flip_up_down([[[1]], [[2]]])[..., 0]
    Tensor([[2],
            [1]], dtype=int64)
    """
    return flip(images("flip_up_down", image), axis=-3)


def random_flip_left_right(key: TensorLike, image: TensorLike) -> Tensor:
    """Each image of a batch flipped left to right with probability 1/2.

    >>> x = wf.reshape(wf.arange(8), [4, 1, 2, 1])
    >>> wf.image.random_flip_left_right(wf.random.key(0), x)[:, 0, :, 0]
    Tensor([[1, 0],
            [2, 3],
            [5, 4],
            [6, 7]], dtype=int64)
    """
    return _by_chance("random_flip_left_right", key, image, -2)


def random_flip_up_down(key: TensorLike, image: TensorLike) -> Tensor:
    """Each image of a batch flipped upside down with probability 1/2.

    >>> x = wf.zeros([16, 8, 8, 3])
    >>> wf.image.random_flip_up_down(wf.random.key(0), x).shape
    (16, 8, 8, 3)
    """
    return _by_chance("random_flip_up_down", key, image, -3)


def _by_chance(op: str, key: TensorLike, image: TensorLike, axis: int) -> Tensor:
    t = images(op, image)
    coin = bernoulli(key, 0.5, (*t.shape[:-3], 1, 1, 1))
    return where(coin, flip(t, axis=axis), t)


def rot90(image: TensorLike, k: int = 1) -> Tensor:
    """Images turned by 90 degrees k times, against the clock.

    >>> wf.image.rot90([[[1], [2]], [[3], [4]]])[..., 0]
    Tensor([[2, 4],
            [1, 3]], dtype=int64)
    """
    return turned(images("rot90", image), k, axes=(-3, -2))


def transpose(image: TensorLike) -> Tensor:
    """Images with rows and columns exchanged.

    >>> wf.image.transpose(wf.zeros([2, 4, 6, 3])).shape
    (2, 6, 4, 3)
    """
    return swapaxes(images("transpose", image), -3, -2)


# ------------------------------------------------------------------------------ crops, paddings
def _part(op: str, t: Tensor, axis: int, start: TensorLike, size: int) -> Tensor:
    """`size` elements from `start`, a number or an integer that a step computes."""
    axis %= t.ndim
    if isinstance(start, (int, np.integer)):
        whole = t.shape[axis]
        if isinstance(whole, int) and not 0 <= start <= whole - size:
            raise wrong(op, f"{size} pixels from {start} on are not within {whole} of {type_of(t)}")
        return cut(t, axis, int(start), int(start) + size)
    return apply("take", t, add(strong_tensor(start), arange(size)), axis=axis)


def crop_to_bounding_box(
    image: TensorLike,
    offset_height: TensorLike,
    offset_width: TensorLike,
    target_height: int,
    target_width: int,
) -> Tensor:
    """The target_height x target_width pixels from row offset_height and column offset_width on.

    Offsets may be tensors: then one out of range is an InvalidArgumentError when it runs.

    >>> wf.image.crop_to_bounding_box(wf.reshape(wf.arange(12), [3, 4, 1]), 1, 2, 2, 1)[..., 0]
    Tensor([[ 6],
            [10]], dtype=int64)
    """
    op = "crop_to_bounding_box"
    t = images(op, image)
    height, width = pair(op, (target_height, target_width), "the target size")
    rows = _part(op, t, -3, offset_height, height)
    return _part(op, rows, -2, offset_width, width)


def pad_to_bounding_box(
    image: TensorLike,
    offset_height: int,
    offset_width: int,
    target_height: int,
    target_width: int,
) -> Tensor:
    """Images in zeros of target_height x target_width, their first pixel at row offset_height and
    column offset_width.

    >>> wf.image.pad_to_bounding_box([[[7]]], 0, 1, 2, 3)[..., 0]
    Tensor([[0, 7, 0],
            [0, 0, 0]], dtype=int64)
    """
    op = "pad_to_bounding_box"
    t = images(op, image)
    sizes = spatial(op, t)
    targets = pair(op, (target_height, target_width), "the target size")
    offsets = pair(op, (offset_height, offset_width), "the offset")
    after = [w - o - n for w, o, n in zip(targets, offsets, sizes, strict=True)]
    if min(after) < 0:
        raise wrong(
            op, f"{type_of(t)} at {list(offsets)} does not fit into {targets[0]} x {targets[1]}"
        )
    rows, columns = zip(offsets, after, strict=True)
    return pad(t, [(0, 0)] * (t.ndim - 3) + [rows, columns, (0, 0)])


def resize_with_crop_or_pad(image: TensorLike, target_height: int, target_width: int) -> Tensor:
    """Images cut at their edges, or with zeros around them, to target_height x target_width; their
    middle stays in the middle (TF's).

    >>> wf.image.resize_with_crop_or_pad(wf.ones([4, 2, 1]), 2, 4)[0, :, 0]
    Tensor([0., 1., 1., 0.], dtype=float32)
    """
    op = "resize_with_crop_or_pad"
    t = images(op, image)
    for axis, target in zip(
        (-3, -2), pair(op, (target_height, target_width), "the target size"), strict=True
    ):
        size = spatial(op, t)[axis + 3]
        if size > target:
            t = _part(op, t, axis, (size - target) // 2, target)
        elif size < target:
            before = (target - size) // 2
            pairs = [(0, 0)] * t.ndim
            pairs[axis] = (before, target - size - before)
            t = pad(t, pairs)
    return t


def central_crop(image: TensorLike, central_fraction: float) -> Tensor:
    """The middle of images: so much of their height and width, in (0, 1] (TF's).

    >>> wf.image.central_crop(wf.zeros([8, 5, 3]), 0.5).shape
    (4, 3, 3)
    """
    op = "central_crop"
    t = images(op, image)
    if not 0 < central_fraction <= 1:
        raise wrong(op, f"central_fraction must be in (0, 1], got {central_fraction!r}")
    for axis, size in zip((-3, -2), spatial(op, t), strict=True):
        start = int((size - size * central_fraction) / 2)
        t = _part(op, t, axis, start, size - 2 * start)
    return t


def random_crop(key: TensorLike, image: TensorLike, size: Sequence[int]) -> Tensor:
    """A part of a tensor of shape `size`, from a random place on; every place is equally likely.

    size: a size for each axis (TF's), or (height, width) of images. All images of a batch are cut
    at one place; `wf.vmap` of this function over keys cuts each at its own. Sizes of the tensor
    that only a run knows will do; InvalidArgumentError, then when it runs, if it is smaller.

    >>> x = wf.reshape(wf.arange(12), [3, 4, 1])
    >>> wf.image.random_crop(wf.random.key(0), x, [2, 2])[..., 0]
    Tensor([[2, 3],
            [6, 7]], dtype=int64)
    >>> keys = wf.stack(wf.random.split(wf.random.key(0), 8))
    >>> crop = wf.vmap(lambda key, image: wf.image.random_crop(key, image, [5, 5, 3]))
    >>> crop(keys, wf.zeros([8, 7, 7, 3])).shape
    (8, 5, 5, 3)
    """
    op, t = "random_crop", strong_tensor(image)
    wanted = [check_int(f"image.{op}", n, "a size") for n in size]
    if len(wanted) == 2 and t.ndim > 2:
        axes: Sequence[int] = (t.ndim - 3, t.ndim - 2)
    elif len(wanted) == t.ndim:
        axes = range(t.ndim)
    else:
        raise wrong(op, f"size {wanted} has neither 2 numbers nor one per axis of {type_of(t)}")
    keys = split_key(key, len(wanted))
    for axis, n, own in zip(axes, wanted, keys, strict=True):
        whole = t.shape[axis]
        if whole == n:
            continue
        if n < 0 or (isinstance(whole, int) and n > whole):
            raise wrong(op, f"size {wanted} is not within {type_of(t)}")
        places: Any
        if isinstance(whole, int):
            places = whole - n + 1
        else:  # of a smaller tensor it begins at 0, and `take` says that the last one is not there
            places = maximum(subtract(apply("dim_size", t, axis=axis), n - 1), 1)
        start = randint(own, (), 0, places)
        t = apply("take", t, add(start, arange(n)), axis=axis)
    return t


def extract_patches(
    image: TensorLike,
    sizes: Pair,
    strides: Pair = 1,
    rates: Pair = 1,
    padding: str = "VALID",
) -> Tensor:
    """Windows of `sizes` pixels as channels: (..., rows, columns, height * width * channels), the
    channels of a pixel side by side (TF's).

    strides: from one window to the next. rates: from one pixel of a window to the next. padding:
    "VALID", or "SAME": zeros around, so that there are ceil(size / stride) windows. Numbers, pairs,
    or TF's lists [1, height, width, 1].

    >>> wf.image.extract_patches(wf.reshape(wf.arange(9), [3, 3, 1]), 2)[0]
    Tensor([[0, 1, 3, 4],
            [1, 2, 4, 5]], dtype=int64)
    """
    op = "extract_patches"
    t = images(op, image)
    window, steps = pair(op, sizes, "sizes", 1), pair(op, strides, "strides", 1)
    spread, kind = pair(op, rates, "rates", 1), str(padding).upper()
    if kind not in ("SAME", "VALID"):
        raise wrong(op, f"padding {padding!r} is unknown", 'it is "SAME" or "VALID"')
    reach = [(k - 1) * r + 1 for k, r in zip(window, spread, strict=True)]
    if kind == "SAME":
        sides = zip(spatial(op, t), reach, steps, strict=True)
        rows, columns = (same_padding(*side) for side in sides)
        t = pad(t, [(0, 0)] * (t.ndim - 3) + [rows, columns, (0, 0)])
    places = []
    for n, k, s, r, far in zip(spatial(op, t), window, steps, spread, reach, strict=True):
        if n < far:
            raise ShapeError(
                f"wf.image.{op}: windows reach over {far} pixels, {type_of(t)} has {n}",
                hint='padding="SAME" puts zeros around',
                location=caller_location(),
            )
        places.append(np.arange((n - far) // s + 1)[:, None] * s + np.arange(k) * r)
    made = apply("take", t, strong_tensor(places[0].reshape(-1)), axis=t.ndim - 3)
    made = apply("take", made, strong_tensor(places[1].reshape(-1)), axis=t.ndim - 2)
    lead, channels = t.shape[:-3], t.shape[-1]
    if not isinstance(channels, int):
        raise ShapeError(f"wf.image.{op}: the channels of {type_of(t)} must be known",
                         location=caller_location())  # fmt: skip
    apart = reshape(made, (*lead, *places[0].shape, *places[1].shape, channels))
    k = len(lead)
    moved = permute_dims(apart, (*range(k), k, k + 2, k + 1, k + 3, k + 4))
    whole = (*lead, len(places[0]), len(places[1]), window[0] * window[1] * channels)
    return reshape(moved, whole)
