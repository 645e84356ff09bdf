"""Measures of images: total variation, `psnr`, `ssim`, `ssim_multiscale`; and
`non_max_suppression` of boxes.

Images are (..., height, width, channels), and a measure is one number for each, of shape (...).
Integers become float32, with their range as 1 (`convert_image_dtype`), but for `total_variation`,
which takes them as they are; 16-bit floats are computed in float32. Errors, at the caller's line:
ShapeError for images that differ or are too small, InvalidArgumentError for wrong arguments."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from weft.frontend.autodiff.gradients import stop_gradient
from weft.frontend.control.loops import fori_loop
from weft.frontend.core.tensor import Tensor
from weft.frontend.image.colour import convert_image_dtype
from weft.frontend.image.geometry import images, spatial, wrong
from weft.frontend.image.sampling import weighted_sums
from weft.frontend.nn.windows import type_of
from weft.frontend.ops.creation import arange, zeros
from weft.frontend.ops.elementwise import (
    abs,
    add,
    divide,
    equal,
    greater,
    less_equal,
    logical_and,
    maximum,
    minimum,
    multiply,
    square,
    subtract,
    where,
)
from weft.frontend.ops.indexing import take_along_axis
from weft.frontend.ops.manipulation import diff, pad, reshape, squeeze, unstack
from weft.frontend.ops.promotion import (
    TensorLike,
    cast,
    check_int,
    check_positive,
    iinfo,
    inexact_tensor,
    widened,
)
from weft.frontend.ops.reduction import argmax, mean, sum
from weft.frontend.ops.special import log10, pow
from weft.ir.dims import format_shape
from weft.ir.dtypes import DType, float32, int64
from weft.ir.errors import ShapeError
from weft.ir.locations import caller_location


def total_variation(image: TensorLike) -> Tensor:
    """The sum of absolute differences of neighbouring pixels, down and across, of each image (TF's;
    L. Rudin, S. Osher and E. Fatemi, 1992). Its gradient removes noise.

    >>> wf.image.total_variation([[[1.0], [3.0]], [[1.0], [0.0]]])
    Tensor(6., dtype=float32)
    """
    t = inexact_tensor(images("total_variation", image), "image.total_variation")
    wide, axes = widened(t), (-3, -2, -1)
    down, across = (sum(abs(diff(wide, axis=a)), axes) for a in (-3, -2))
    return cast(add(down, across), t.dtype)


def _both(op: str, a: TensorLike, b: TensorLike) -> tuple[Tensor, Tensor, DType, float]:
    """Two images in floats of one dtype, that of the result, and what 1 of `max_val` is in them."""
    first, second = images(op, a), images(op, b)
    if first.shape != second.shape or first.dtype is not second.dtype:
        raise ShapeError(
            f"wf.image.{op}: two images of one shape and dtype are needed, got {type_of(first)} "
            f"and {type_of(second)}",
            location=caller_location(),
        )
    if first.dtype.is_integer:
        scale = 1.0 / iinfo(first.dtype).max
        made = [convert_image_dtype(t, float32) for t in (first, second)]
        return made[0], made[1], float32, scale
    first, second = (inexact_tensor(t, f"image.{op}") for t in (first, second))
    return widened(first), widened(second), first.dtype, 1.0


def psnr(a: TensorLike, b: TensorLike, max_val: TensorLike) -> Tensor:
    """20 log10(max_val) - 10 log10(mean squared difference) of each image, in decibels; infinite
    for equal ones. max_val: the range of the images, 1.0 of floats, 255 of uint8.

    >>> wf.image.psnr(wf.zeros([2, 2, 1]), wf.full([2, 2, 1], 0.1), 1.0).numpy().round(3)
    np.float32(20.0)
    """
    first, second, kind, scale = _both("psnr", a, b)
    error = mean(square(subtract(first, second)), (-3, -2, -1))
    most = multiply(cast(max_val, first.dtype), scale)
    return cast(subtract(multiply(20.0, log10(most)), multiply(10.0, log10(error))), kind)


def ssim(
    a: TensorLike,
    b: TensorLike,
    max_val: TensorLike,
    filter_size: int = 11,
    filter_sigma: float = 1.5,
    k1: float = 0.01,
    k2: float = 0.03,
) -> Tensor:
    """The structural similarity of each pair of images: 1 for equal ones (Z. Wang, A. Bovik, H.
    Sheikh and E. Simoncelli, "Image quality assessment", 2004, equation 13).

    Means, variances and covariances are weighted by a Gaussian window of filter_size x filter_size
    pixels; what is given is the mean over all places where it fits, and over channels (TF's).
    max_val: as for `psnr`.

    >>> x = wf.reshape(wf.linspace(0.0, 1.0, 256), [16, 16, 1])
    >>> wf.image.ssim(x, x, 1.0), wf.image.ssim(x, 1 - x, 1.0) < 0
    (Tensor(1., dtype=float32), Tensor(True, dtype=bool))
    """
    x, y, kind, scale = _both("ssim", a, b)
    size = _window_size("ssim", x, filter_size, 1)
    most = multiply(cast(max_val, x.dtype), scale)
    similar, _ = _similarity(x, y, most, _gaussian(size, filter_sigma), (k1, k2))
    return cast(mean(similar, -1), kind)


#: The weights of Wang, Simoncelli and Bovik's five scales.
_SCALES = (0.0448, 0.2856, 0.3001, 0.2363, 0.1333)


def ssim_multiscale(
    a: TensorLike,
    b: TensorLike,
    max_val: TensorLike,
    power_factors: Sequence[float] = _SCALES,
    filter_size: int = 11,
    filter_sigma: float = 1.5,
    k1: float = 0.01,
    k2: float = 0.03,
) -> Tensor:
    """The structural similarity of each pair of images over several scales (Z. Wang, E. Simoncelli
    and A. Bovik, "Multiscale structural similarity for image quality assessment", 2003): 1 for
    equal ones.

    power_factors: a weight for each scale, which is half as large as the one before (an odd size
    has its last row or column twice, as in TF). At each but the last one contrasts are compared, at
    the last one `ssim`; what is below 0 counts as 0, and is given no gradient. The result is the
    product of these to the power of their weights, the mean over channels. Others as for `ssim`.
    ShapeError for images that are smaller than the window at the last scale: 161 x 161 pixels by
    default.

    >>> x = wf.reshape(wf.linspace(0.0, 1.0, 1024), [32, 32, 1])
    >>> y = wf.sqrt(x)
    >>> [float(wf.image.ssim_multiscale(x, z, 1.0, (0.3, 0.7))) < 1.0 for z in (x, y)]
    [False, True]
    """
    op = "ssim_multiscale"
    x, y, kind, scale = _both(op, a, b)
    weights = _weights(power_factors)
    size = _window_size(op, x, filter_size, len(weights))
    most, over = multiply(cast(max_val, x.dtype), scale), _gaussian(size, filter_sigma)
    whole: Tensor | None = None
    for level, weight in enumerate(weights):
        if level:
            x, y = _halved(op, x), _halved(op, y)
        similar, contrast = _similarity(x, y, most, over, (k1, k2))
        score = similar if level == len(weights) - 1 else contrast
        none = less_equal(score, 0.0)
        # the power of 1 in its place: that of 0 has an infinite gradient
        part = where(none, 0.0**weight, pow(where(none, 1.0, score), weight))
        whole = part if whole is None else multiply(whole, part)
    assert whole is not None
    return cast(mean(whole, -1), kind)


def _weights(given: Sequence[float]) -> list[float]:
    try:
        weights = np.asarray(given, np.float64)
    except (TypeError, ValueError):
        weights = np.empty(0)
    if weights.ndim != 1 or not weights.size or not np.all((weights >= 0) & (weights < math.inf)):
        raise wrong(
            "ssim_multiscale", f"power_factors={given!r:.60} are no numbers of at least 0, one for "
            "each scale"
        )  # fmt: skip
    return [float(w) for w in weights]


def _window_size(op: str, x: Tensor, filter_size: int, levels: int) -> int:
    """The size of the window. ShapeError for images that are smaller, at the last of `levels`."""
    size = check_positive(f"image.{op}", filter_size, "filter_size")
    least = (size - 1) * 2 ** (levels - 1) + 1
    known = [d for d in x.shape[-3:] if isinstance(d, int)]
    if len(known) < 3 or min(known[:2]) < least:
        raise ShapeError(
            f"wf.image.{op}: images of known sizes, at least {least} x {least} pixels, are needed, "
            f"got {type_of(x)}",
            hint="filter_size= makes the window smaller"
            + (", fewer power_factors make fewer scales" if levels > 1 else ""),
            location=caller_location(),
        )
    return size


def _similarity(
    x: Tensor, y: Tensor, most: Tensor, over: Any, k: tuple[float, float]
) -> tuple[Tensor, Tensor]:
    """The structural similarity of each channel, and its part that compares contrasts."""
    c1, c2 = (square(multiply(most, factor)) for factor in k)
    x_mean, y_mean = _filtered(x, over), _filtered(y, over)
    means = multiply(x_mean, y_mean)
    squares = add(square(x_mean), square(y_mean))
    light = divide(add(multiply(means, 2), c1), add(squares, c1))
    both = multiply(_filtered(multiply(x, y), over), 2)
    spread = _filtered(add(square(x), square(y)), over)
    contrast = divide(
        add(subtract(both, multiply(means, 2)), c2), add(subtract(spread, squares), c2)
    )
    return mean(multiply(light, contrast), (-3, -2)), mean(contrast, (-3, -2))


def _halved(op: str, t: Tensor) -> Tensor:
    """Images half as large: means of 2 x 2 pixels."""
    rows, columns = spatial(op, t)
    outer = t.shape[:-3]
    if rows % 2 or columns % 2:
        around = [(0, 0)] * len(outer) + [(0, rows % 2), (0, columns % 2), (0, 0)]
        t = pad(t, around, "symmetric")
    pairs = (*outer, -(-rows // 2), 2, -(-columns // 2), 2, t.shape[-1])
    return mean(reshape(t, pairs), (-4, -2))


def _gaussian(size: int, sigma: float) -> Any:
    """A window's weights along one axis."""
    distance = np.arange(size) - (size - 1) / 2
    weights = np.exp(-0.5 * (distance / sigma) ** 2)
    return weights / weights.sum()


def _filtered(t: Tensor, over: Any) -> Tensor:
    """Means over windows: along the columns, then along the rows."""
    for axis, size in zip((-3, -2), spatial("ssim", t), strict=True):
        index = np.arange(size - over.size + 1) + np.arange(over.size)[:, None]
        t = weighted_sums(t, axis, (index, np.broadcast_to(over[:, None], index.shape)))
    return t


# ----------------------------------------------------------------------------------------- boxes
class Suppressed(NamedTuple):
    """The result of `non_max_suppression`: the boxes that are kept, by falling score, with zeros
    after the last one; and how many they are."""

    indices: Tensor
    number: Tensor


def non_max_suppression(
    boxes: TensorLike,
    scores: TensorLike,
    max_output_size: int,
    iou_threshold: float = 0.5,
    score_threshold: float = -math.inf,
) -> Suppressed:
    """The boxes with the highest scores that do not overlap a better one: greedily, at most
    max_output_size of them -> int64 [..., max_output_size], and how many, int64 [...].

    boxes: (..., n, 4), rows of y1, x1, y2, x2: two opposite corners. scores: (..., n). A box is
    left out if its intersection with a better one over their union is more than iou_threshold, or
    if its score is not more than score_threshold; of equal scores the first is better. The size of
    the result does not depend on values: after the last box there are zeros (TF's
    non_max_suppression_padded). A native loop of max_output_size rounds; it has no gradient.

    >>> boxes = [[0.0, 0.0, 1.0, 1.0], [0.0, 0.1, 1.0, 1.1], [0.0, 3.0, 1.0, 4.0]]
    >>> wf.image.non_max_suppression(boxes, [0.9, 0.8, 0.7], max_output_size=3)
    Suppressed(indices=Tensor([0, 2, 0], dtype=int64), number=Tensor(2, dtype=int64))
    """
    op = "non_max_suppression"
    held = stop_gradient(widened(inexact_tensor(boxes, f"image.{op}")))
    score = stop_gradient(widened(inexact_tensor(scores, f"image.{op}")))
    most = check_int(f"image.{op}", max_output_size, "max_output_size")
    if not held.ndim or held.shape[-1] != 4 or held.shape[:-1] != score.shape or not score.ndim:
        raise ShapeError(
            f"wf.image.{op}: boxes (..., n, 4) and scores (..., n) are needed, got shapes "
            f"{format_shape(held.shape)} and {format_shape(score.shape)}",
            location=caller_location(),
        )
    if most < 0 or not 0 <= iou_threshold <= 1:
        raise wrong(op, f"max_output_size {most} must not be negative, and iou_threshold "
                    f"{iou_threshold!r} in [0, 1]")  # fmt: skip
    lead: Any = score.shape[:-1]
    if score.shape[-1] == 0:
        nothing = zeros(lead, dtype=int64)
        return Suppressed(zeros((*lead, most), dtype=int64), nothing)
    corners = _ordered(cast(held, score.dtype) if held.dtype is not score.dtype else held)
    alive = greater(score, score_threshold)
    slots = arange(most)

    def pick(k: Tensor, state: Any) -> Any:
        left, found, count = state
        best = argmax(where(left, score, -math.inf), -1, keepdims=True)
        good = take_along_axis(left, best)
        near = greater(_overlap(corners, best), iou_threshold)
        mine = equal(arange(score.shape[-1]), best)  # a box without area overlaps nothing
        left = logical_and(left, less_equal(cast(near, int64) + cast(mine, int64), 0))
        put = logical_and(equal(slots, k), good)
        return left, where(put, best, found), add(count, cast(squeeze(good, -1), int64))

    start = (alive, zeros((*lead, most), dtype=int64), zeros(lead, dtype=int64))
    _, found, count = fori_loop(0, most, pick, start)
    return Suppressed(found, count)


def _ordered(boxes: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Upper, left, lower and right ends of boxes whose corners may be any two opposite ones."""
    y1, x1, y2, x2 = unstack(boxes, axis=-1)
    return minimum(y1, y2), minimum(x1, x2), maximum(y1, y2), maximum(x1, x2)


def _overlap(corners: tuple[Tensor, ...], best: Tensor) -> Tensor:
    """Intersection over union of every box with the one at `best`; 0 for boxes without area."""
    own = [take_along_axis(c, best) for c in corners]
    height = subtract(minimum(corners[2], own[2]), maximum(corners[0], own[0]))
    width = subtract(minimum(corners[3], own[3]), maximum(corners[1], own[1]))
    common = multiply(maximum(height, 0), maximum(width, 0))
    areas = [multiply(subtract(c[2], c[0]), subtract(c[3], c[1])) for c in (corners, own)]
    union = subtract(add(*areas), common)
    real = logical_and(greater(areas[0], 0), greater(areas[1], 0))
    return where(real, divide(common, where(real, union, 1)), 0)
