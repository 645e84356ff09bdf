"""Colours of images: dtypes and ranges, brightness, contrast, hue, saturation, gamma, grey and HSV.

Floating images hold 0 to 1, integer ones 0 to the largest number of their dtype. Adjustments are
computed in floats (integers as float32, 16-bit floats, too) and come back in the dtype of the
image; integers are cut to their range, floats are not. Factors may be tensors; gradients are those
of the formulas. Functions that draw take a key first, and draw one number for the whole call:
`wf.vmap` over keys draws one for each image. Errors, at the caller's line: ShapeError,
InvalidArgumentError, TypeRuleError for complex numbers and bools."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from weft.frontend.core.tensor import Tensor, as_tensor
from weft.frontend.image.geometry import images, with_channels, wrong
from weft.frontend.nn.windows import type_of
from weft.frontend.ops.elementwise import (
    add,
    clip,
    divide,
    equal,
    floor,
    floor_divide,
    greater,
    less,
    maximum,
    minimum,
    multiply,
    subtract,
    where,
)
from weft.frontend.ops.manipulation import expand_dims, stack, unstack
from weft.frontend.ops.promotion import (
    TensorLike,
    cast,
    check_dtype,
    expand,
    iinfo,
    is_scalar,
    strong_tensor,
    widened,
)
from weft.frontend.ops.reduction import mean, std
from weft.frontend.ops.special import pow
from weft.frontend.random import uniform
from weft.ir.dims import product
from weft.ir.dtypes import DType, float32
from weft.ir.errors import ShapeError, TypeRuleError
from weft.ir.locations import caller_location


# ---------------------------------------------------------------------------------------- dtypes
def convert_image_dtype(image: TensorLike, dtype: object, saturate: bool = False) -> Tensor:
    """A tensor of any shape in another dtype and its range: 255 of uint8 is 1.0 of a float (TF's).

    From floats to integers x becomes x * (largest + 1/2), cut off; between integers the range is
    multiplied or divided by a power of two. saturate: what does not fit becomes the nearest number
    that does, before it is converted.

    >>> wf.image.convert_image_dtype(wf.asarray([0, 51, 255], dtype=wf.uint8), wf.float32)
    Tensor([0. , 0.2, 1. ], dtype=float32)
    >>> wf.image.convert_image_dtype([0.0, 0.2, 1.0, 1.5], wf.uint8, saturate=True)
    Tensor([  0,  51, 255, 255], dtype=uint8)
    """
    op, t, target = "convert_image_dtype", strong_tensor(image), check_dtype(dtype)
    for kind in (t.dtype, target):
        _check_kind(op, kind)
    if t.dtype is target:
        return t
    if t.dtype.is_floating and target.is_floating:
        return cast(t, target)
    if target.is_floating:
        wide = float32 if target.itemsize < 4 else target
        return cast(divide(cast(t, wide), float(iinfo(t.dtype).max)), target)
    top = iinfo(target).max
    if t.dtype.is_floating:
        scaled = multiply(widened(t), top + 0.5)
        return cast(_cut_off(scaled, target) if saturate else scaled, target)
    given = iinfo(t.dtype).max
    if given > top:
        scaled = floor_divide(t, (given + 1) // (top + 1))
        return cast(clip(scaled, iinfo(target).min, top) if saturate else scaled, target)
    if saturate and iinfo(target).min == 0:
        t = maximum(t, 0) if iinfo(t.dtype).min else t
    return multiply(cast(t, target), (top + 1) // (given + 1))


def _check_kind(op: str, dtype: DType) -> None:
    if not (dtype.is_integer or dtype.is_floating):
        raise TypeRuleError(
            f"wf.image.{op} takes integers and floats, got {dtype.name}", location=caller_location()
        )


def _cut_off(t: Tensor, target: DType) -> Tensor:
    """Floats within the range of an integer dtype, of which not each end may be a float."""
    ends = iinfo(target)
    top: Any = t.dtype.numpy.type(ends.max)
    if int(top) > ends.max:
        top = np.nextafter(top, t.dtype.numpy.type(0))
    return clip(t, float(ends.min), float(top))


def _floats(op: str, t: Tensor) -> Tensor:
    """The image in floats that are computed in."""
    _check_kind(op, t.dtype)
    return convert_image_dtype(t, float32) if t.dtype.is_integer else widened(t)


def _as_floats(op: str, t: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
    """`function` of the image in floats, in the image's own dtype."""
    return convert_image_dtype(function(_floats(op, t)), t.dtype, saturate=True)


# ----------------------------------------------------------------------------------- adjustments
def adjust_brightness(image: TensorLike, delta: TensorLike) -> Tensor:
    """image + delta; delta is of a floating image's range, usually in (-1, 1).

    >>> wf.image.adjust_brightness(wf.asarray([[[0, 100, 250]]], dtype=wf.uint8), 0.1)
    Tensor([[[ 25, 125, 255]]], dtype=uint8)
    """
    t = strong_tensor(image)
    return _as_floats("adjust_brightness", t, lambda x: add(x, cast(delta, x.dtype)))


def adjust_contrast(image: TensorLike, contrast_factor: TensorLike) -> Tensor:
    """(x - mean) * contrast_factor + mean, with the mean of each channel of each image.

    >>> wf.image.adjust_contrast([[[1.0], [3.0]]], 2.0)[..., 0]
    Tensor([[0., 4.]], dtype=float32)
    """
    t = images("adjust_contrast", image)

    def adjusted(x: Tensor) -> Tensor:
        centre = mean(x, (-3, -2), keepdims=True)
        return add(multiply(subtract(x, centre), cast(contrast_factor, x.dtype)), centre)

    return _as_floats("adjust_contrast", t, adjusted)


def adjust_gamma(image: TensorLike, gamma: TensorLike = 1.0, gain: TensorLike = 1.0) -> Tensor:
    """gain * x ^ gamma, of numbers that are not negative: gamma > 1 makes darker.

    >>> wf.image.adjust_gamma([[[0.25, 1.0]]], 0.5)
    Tensor([[[0.5, 1. ]]], dtype=float32)
    """
    if is_scalar(gamma) and not gamma >= 0:
        raise wrong("adjust_gamma", f"gamma must not be negative, got {gamma!r}")

    def adjusted(x: Tensor) -> Tensor:
        power = pow(x, gamma if is_scalar(gamma) else cast(gamma, x.dtype))
        return multiply(power, cast(gain, x.dtype))

    return _as_floats("adjust_gamma", strong_tensor(image), adjusted)


def adjust_hue(image: TensorLike, delta: TensorLike) -> Tensor:
    """RGB images whose hue is turned by `delta`, of which 1 is the whole circle.

    >>> wf.image.adjust_hue([[[1.0, 0.0, 0.0]]], 1 / 3).numpy().round(3)  # red becomes green
    array([[[0., 1., 0.]]], dtype=float32)
    """
    op = "adjust_hue"
    if is_scalar(delta) and not -1 <= delta <= 1:
        raise wrong(op, f"delta must be in [-1, 1], got {delta!r}")

    def adjusted(x: Tensor) -> Tensor:
        h, s, v = _hsv(x)
        return _rgb(add(h, cast(delta, x.dtype)), s, v)

    return _as_floats(op, images(op, image, 3), adjusted)


def adjust_saturation(image: TensorLike, saturation_factor: TensorLike) -> Tensor:
    """RGB images whose saturation is multiplied by `saturation_factor`, at most to 1.

    >>> wf.image.adjust_saturation([[[1.0, 0.5, 0.5]]], 2.0)
    Tensor([[[1., 0., 0.]]], dtype=float32)
    """
    op = "adjust_saturation"

    def adjusted(x: Tensor) -> Tensor:
        h, s, v = _hsv(x)
        return _rgb(h, clip(multiply(s, cast(saturation_factor, x.dtype)), 0, 1), v)

    return _as_floats(op, images(op, image, 3), adjusted)


def _drawn(op: str, key: TensorLike, low: float, high: float) -> Tensor:
    if not (is_scalar(low) and is_scalar(high) and low <= high):
        raise wrong(op, f"the lower bound {low!r} must be a number, and not above {high!r}")
    return uniform(key, (), float32, low, high)


def random_brightness(key: TensorLike, image: TensorLike, max_delta: float) -> Tensor:
    """`adjust_brightness` by a number that is uniform in [-max_delta, max_delta).

    >>> wf.image.random_brightness(wf.random.key(0), wf.zeros([1, 1, 1]), 0.5).numpy().round(3)
    array([[[-0.082]]], dtype=float32)
    """
    return adjust_brightness(image, _drawn("random_brightness", key, -max_delta, max_delta))


def random_contrast(key: TensorLike, image: TensorLike, lower: float, upper: float) -> Tensor:
    """`adjust_contrast` by a factor that is uniform in [lower, upper).

    >>> x = wf.asarray([[[1.0], [3.0]]])
    >>> wf.image.random_contrast(wf.random.key(0), x, 0.5, 1.5).numpy().round(3)[..., 0]
    array([[1.082, 2.918]], dtype=float32)
    """
    if not lower >= 0:
        raise wrong("random_contrast", f"lower must not be negative, got {lower!r}")
    return adjust_contrast(image, _drawn("random_contrast", key, lower, upper))


def random_hue(key: TensorLike, image: TensorLike, max_delta: float) -> Tensor:
    """`adjust_hue` by a number that is uniform in [-max_delta, max_delta), max_delta up to 1/2.

    >>> wf.image.random_hue(wf.random.key(0), wf.ones([4, 4, 3]), 0.1).shape
    (4, 4, 3)
    """
    if not 0 <= max_delta <= 0.5:
        raise wrong("random_hue", f"max_delta must be in [0, 0.5], got {max_delta!r}")
    return adjust_hue(image, _drawn("random_hue", key, -max_delta, max_delta))


def random_saturation(key: TensorLike, image: TensorLike, lower: float, upper: float) -> Tensor:
    """`adjust_saturation` by a factor that is uniform in [lower, upper).

    >>> wf.image.random_saturation(wf.random.key(0), wf.ones([4, 4, 3]), 0.5, 1.5).shape
    (4, 4, 3)
    """
    if not lower >= 0:
        raise wrong("random_saturation", f"lower must not be negative, got {lower!r}")
    return adjust_saturation(image, _drawn("random_saturation", key, lower, upper))


def per_image_standardization(image: TensorLike) -> Tensor:
    """(x - mean) / max(standard deviation, 1 / sqrt(n)) over the n numbers of each image, floating;
    the second one keeps images of one colour finite (TF's).

    >>> wf.image.per_image_standardization([[[1], [3]]])[..., 0]
    Tensor([[-1.,  1.]], dtype=float32)
    """
    op, t = "per_image_standardization", images("per_image_standardization", image)
    _check_kind(op, t.dtype)
    kind = t.dtype if t.dtype.is_floating else float32
    wide, axes, count = widened(cast(t, kind)), (-3, -2, -1), product(t.shape[-3:])
    if not isinstance(count, int):
        raise ShapeError(f"wf.image.{op}: the sizes of {type_of(t)} must be known",
                         location=caller_location())  # fmt: skip
    least = 1 / math.sqrt(count) if count else math.inf
    spread = maximum(std(wide, axes, keepdims=True), least)
    return cast(divide(subtract(wide, mean(wide, axes, keepdims=True)), spread), kind)


# -------------------------------------------------------------------------------- spaces of colour
def _hsv(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Hue, saturation and value of red, green and blue in floats."""
    r, g, b = unstack(x, axis=-1)  # vectors hold pixels, not channels
    value = maximum(maximum(r, g), b)
    spread = subtract(value, minimum(minimum(r, g), b))
    grey = equal(spread, 0)
    sixth = divide(1 / 6, where(grey, 1, spread))
    hue = where(
        equal(r, value),
        multiply(subtract(g, b), sixth),
        where(
            equal(g, value),
            add(multiply(subtract(b, r), sixth), 2 / 6),
            add(multiply(subtract(r, g), sixth), 4 / 6),
        ),
    )
    hue = where(grey, 0, where(greater(0, hue), add(hue, 1), hue))
    none = equal(value, 0)
    return hue, where(none, 0, divide(spread, where(none, 1, value))), value


def _rgb(h: Tensor, s: Tensor, v: Tensor) -> Tensor:
    """Red, green and blue, on a new last axis, of hue, saturation and value."""
    turn = multiply(subtract(h, floor(h)), 6)
    # how far red, green and blue are from where each is least
    place = add(expand_dims(turn, -1), as_tensor(np.array([5, 3, 1], h.dtype.numpy)))
    place = where(less(place, 6), place, subtract(place, 6))
    part = clip(minimum(place, subtract(4, place)), 0, 1)
    return subtract(expand_dims(v, -1), multiply(expand_dims(multiply(v, s), -1), part))


def rgb_to_hsv(image: TensorLike) -> Tensor:
    """Hue, saturation and value, all in [0, 1], of red, green and blue in [0, 1] on the last axis
    (A. Smith, "Color gamut transform pairs", 1978).

    Floating; integers become floats as by `convert_image_dtype`. The hue of greys is 0.

    >>> wf.image.rgb_to_hsv([1.0, 0.5, 0.0]).numpy().round(3)
    array([0.083, 1.   , 1.   ], dtype=float32)
    """
    op, t = "rgb_to_hsv", with_channels("rgb_to_hsv", image, 3)
    made = stack(_hsv(_floats(op, t)), axis=-1)
    return cast(made, t.dtype if t.dtype.is_floating else float32)


def hsv_to_rgb(image: TensorLike) -> Tensor:
    """Red, green and blue of hue, saturation and value on the last axis: the inverse of
    `rgb_to_hsv`. Hues outside [0, 1] go round.

    >>> wf.image.hsv_to_rgb([[0.0, 1.0, 1.0], [1.5, 1.0, 0.5]])
    Tensor([[1. , 0. , 0. ],
            [0. , 0.5, 0.5]], dtype=float32)
    """
    op, t = "hsv_to_rgb", with_channels("hsv_to_rgb", image, 3)
    made = _rgb(*unstack(_floats(op, t), axis=-1))
    return cast(made, t.dtype if t.dtype.is_floating else float32)


def rgb_to_grayscale(image: TensorLike) -> Tensor:
    """0.2989 red + 0.587 green + 0.114 blue, as one channel (TF's); the dtype stays.

    >>> wf.image.rgb_to_grayscale(wf.asarray([[[200, 100, 0]]], dtype=wf.uint8))
    Tensor([[[118]]], dtype=uint8)
    """
    op, t = "rgb_to_grayscale", with_channels("rgb_to_grayscale", image, 3)

    def grey(x: Tensor) -> Tensor:
        r, g, b = unstack(x, axis=-1)
        made = add(add(multiply(r, 0.2989), multiply(g, 0.587)), multiply(b, 0.114))
        return expand_dims(made, -1)

    return _as_floats(op, t, grey)


def grayscale_to_rgb(image: TensorLike) -> Tensor:
    """One channel as three equal ones; any dtype.

    >>> wf.image.grayscale_to_rgb([[[5], [7]]])
    Tensor([[[5, 5, 5],
             [7, 7, 7]]], dtype=int64)
    """
    t = with_channels("grayscale_to_rgb", image, 1)
    return expand(t, (*t.shape[:-1], 3))
