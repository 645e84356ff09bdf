"""Sizes of images: `resize`, `resize_with_pad`, `crop_and_resize`.

A resize is linear along each axis: element i of the result is the sum of a few elements of x, its
taps, times weights that are known when the function is traced. Kernels and centres as TensorFlow's
`tf.image.resize` and `jax.image.resize` (TensorFlow, core/kernels/image/scale_and_translate_op.cc);
the kernels are those of D. Mitchell and A. Netravali, "Reconstruction filters in computer
graphics", 1988, and R. Keys, "Cubic convolution interpolation for digital image processing",
1981."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from weft.frontend.autodiff.custom import custom_gradient
from weft.frontend.core.tensor import Tensor, as_tensor
from weft.frontend.eager.native import runs_native
from weft.frontend.image.geometry import images, pair, resize_with_crop_or_pad, spatial
from weft.frontend.image.geometry import wrong as wrong_argument
from weft.frontend.nn.windows import type_of
from weft.frontend.ops.creation import arange
from weft.frontend.ops.dispatch import apply
from weft.frontend.ops.elementwise import (
    add,
    ceil,
    floor,
    greater_equal,
    less_equal,
    logical_and,
    multiply,
    subtract,
    where,
)
from weft.frontend.ops.indexing import as_indices
from weft.frontend.ops.linalg import matmul
from weft.frontend.ops.manipulation import concat, cut, expand_dims, reshape, swapaxes, unstack
from weft.frontend.ops.promotion import (
    TensorLike,
    broadcast_tensors,
    cast,
    inexact_tensor,
    strong_tensor,
    widened,
)
from weft.ir.dims import same
from weft.ir.dtypes import int64
from weft.ir.errors import ShapeError, UnsupportedError
from weft.ir.locations import caller_location

_Numbers = np.ndarray[Any, np.dtype[np.float64]]
_Indices = np.ndarray[Any, np.dtype[np.int64]]
#: Taps by rows: the index and the weight of tap k of element i, both of shape [taps, elements].
_Taps = tuple[_Indices, _Numbers]

#: More taps than so many are a product with a matrix: each tap is code of its own.
_MOST_TAPS = 32
#: Fewer channels than so many are looked up one by one, which makes longer vectors.
_FEW_CHANNELS = 16
#: The nearest pixels of a result of so many numbers are looked up at once: the indices are kept.
_MOST_INDICES = 1 << 18


# -------------------------------------------------------------------------------------- kernels
def _triangle(x: _Numbers) -> _Numbers:
    made: _Numbers = np.maximum(1 - np.abs(x), 0)
    return made


def _cubic(b: float, c: float) -> Callable[[_Numbers], _Numbers]:
    """Mitchell and Netravali's family, equation 8; b = 0 is Keys' with a = -c."""

    def kernel(x: _Numbers) -> _Numbers:
        t = np.abs(x)
        near = ((12 - 9 * b - 6 * c) * t + (-18 + 12 * b + 6 * c)) * t * t + (6 - 2 * b)
        far = (((-b - 6 * c) * t + (6 * b + 30 * c)) * t - 12 * b - 48 * c) * t + 8 * b + 24 * c
        made: _Numbers = np.where(t < 1, near, np.where(t < 2, far, 0)) / 6
        return made

    return kernel


def _lanczos(radius: float) -> Callable[[_Numbers], _Numbers]:
    def kernel(x: _Numbers) -> _Numbers:
        made: _Numbers = np.where(np.abs(x) < radius, np.sinc(x) * np.sinc(x / radius), 0)
        return made

    return kernel


def _gaussian(x: _Numbers) -> _Numbers:
    """TensorFlow's: a standard deviation of 1/2, cut at 3 of them."""
    made: _Numbers = np.where(np.abs(x) < 1.5, np.exp(-2 * x * x), 0)
    return made


#: The kernel of each method, and how far it reaches.
_KERNELS: dict[str, tuple[Callable[[_Numbers], _Numbers], float]] = {
    "bilinear": (_triangle, 1.0),
    "bicubic": (_cubic(0.0, 0.5), 2.0),
    "lanczos3": (_lanczos(3.0), 3.0),
    "lanczos5": (_lanczos(5.0), 5.0),
    "gaussian": (_gaussian, 1.5),
    "mitchellcubic": (_cubic(1 / 3, 1 / 3), 2.0),
}
_METHODS = ("nearest", "area", *_KERNELS)


def _kernel_taps(size: int, wanted: int, method: str, antialias: bool) -> _Taps:
    """Taps around half-pixel centres; weights of taps outside go to those inside."""
    kernel, radius = _KERNELS[method]
    step = size / wanted
    wide = max(step, 1.0) if antialias else 1.0
    centre = (np.arange(wanted) + 0.5) * step - 0.5
    first = np.floor(centre - radius * wide).astype(np.int64) + 1
    count = math.ceil(2 * radius * wide) + 1
    index = first + np.arange(count)[:, None]
    weight = kernel((index - centre) / wide)
    weight = np.where((index >= 0) & (index < size), weight, 0)
    return _used(index, weight / weight.sum(0), size)


def _corner_taps(size: int, wanted: int, method: str, step: float) -> _Taps:
    """Taps around i * step: TensorFlow 1's, whose bicubic kernel has a = -3/4 and reads the edge
    again beyond it."""
    centre = np.arange(wanted) * step
    first = np.floor(centre).astype(np.int64)
    if method == "bilinear":
        index, part = first + np.arange(2)[:, None], centre - first
        return _used(index, np.stack([1 - part, part]), size)
    index = first + np.arange(-1, 3)[:, None]
    return _used(index, _cubic(0.0, 0.75)(index - centre), size)


def _area_taps(size: int, wanted: int, step: float) -> _Taps:
    """Each element the mean over [i * step, (i + 1) * step)."""
    step = max(step, 1e-6)  # corners of a single pixel
    low = np.arange(wanted) * step
    index = np.floor(low + 1e-9).astype(np.int64) + np.arange(math.ceil(step) + 1)[:, None]
    inside = np.minimum(index + 1, low + step) - np.maximum(index, low)
    inside = np.where(inside > 1e-9 * step, inside, 0)
    return _used(index, inside / inside.sum(0), size)


def _used(index: _Indices, weight: _Numbers, size: int) -> _Taps:
    """Without the taps that have no weight anywhere."""
    keep = np.abs(weight).max(1, initial=0) > 0
    return np.clip(index[keep], 0, size - 1), weight[keep]


def _nearest(size: int, wanted: int, align_corners: bool, centres: bool) -> _Indices:
    """The index of the nearest element; in integers, as a rounded step can be the next one."""
    i = np.arange(wanted, dtype=np.int64)
    if centres:
        return (2 * i + 1) * size // (2 * wanted)
    if align_corners and wanted > 1:  # halves are rounded up
        return (2 * i * (size - 1) + wanted - 1) // (2 * (wanted - 1))
    return i * size // wanted


def _step(size: int, wanted: int, align_corners: bool) -> float:
    return (size - 1) / (wanted - 1) if align_corners and wanted > 1 else size / wanted


def _taps(
    size: int,
    wanted: int,
    method: str,
    antialias: bool,
    align_corners: bool,
    centres: bool,
) -> _Taps:
    if method == "nearest":
        found = _nearest(size, wanted, align_corners, centres)[None]
        return found, np.ones(found.shape)
    step = _step(size, wanted, align_corners)
    if method == "area":
        return _area_taps(size, wanted, step)
    if centres:
        return _kernel_taps(size, wanted, method, antialias)
    if antialias or method not in ("bilinear", "bicubic"):
        what = "antialias=True" if antialias else f"method {method!r}"
        raise UnsupportedError(
            f"wf.image.resize: {what} is built for half-pixel centres alone",
            hint="leave align_corners and half_pixel_centers out",
            location=caller_location(),
        )
    return _corner_taps(size, wanted, method, step)


# --------------------------------------------------------------------------------------- resize
def weighted_sums(t: Tensor, axis: int, taps: _Taps) -> Tensor:
    """The sums over taps along height (-3) or width (-2) of images."""
    index, weight = taps
    count, wanted = index.shape
    size = t.shape[axis]
    assert isinstance(size, int)
    same_places = wanted == size and count == 1 and (index[0] == np.arange(size)).all()
    if same_places and (weight == 1).all():
        return t
    if count > _MOST_TAPS:
        return _by_product(t, axis, taps)
    if not t.dtype.is_inexact:
        return _summed(t, axis, taps)
    made: Tensor = _linear(t, axis=axis, taps=taps)
    return made


@custom_gradient
def _linear(t: Tensor, *, axis: int, taps: _Taps) -> Any:
    """`weighted_sums`, whose gradient is such a sum, too: that of a look-up would be a scatter, as
    the second gradient is."""
    size: Any = t.shape[axis]

    def gradient(g: Tensor) -> Tensor:
        back = _adjoint(taps, size)
        return (_by_product if len(back[0]) > _MOST_TAPS else _summed)(g, axis, back)

    return _summed(t, axis, taps), gradient


def _adjoint(taps: _Taps, size: int) -> _Taps:
    """The taps of the transpose: for each element of x the elements of the result that it is in."""
    index, weight = taps
    used = weight != 0
    source, share = index[used], weight[used]
    made = np.broadcast_to(np.arange(index.shape[1]), index.shape)[used]
    order = np.argsort(source, kind="stable")
    source, share, made = source[order], share[order], made[order]
    counts = np.bincount(source, minlength=size)
    place = np.arange(source.size) - (np.cumsum(counts) - counts)[source]
    rows = np.zeros((max(int(counts.max(initial=0)), 1), size), np.int64)
    weights = np.zeros(rows.shape)
    rows[place, source], weights[place, source] = made, share
    return rows, weights


def _summed(t: Tensor, axis: int, taps: _Taps) -> Tensor:
    (index, weight), size, channels = taps, t.shape[axis], t.shape[-1]
    count, wanted = index.shape
    assert isinstance(size, int)
    place, shape = t.ndim + axis, (*t.shape[: t.ndim + axis], wanted, *t.shape[axis + 1 :])
    if axis == -2 and isinstance(channels, int) and 1 < channels < _FEW_CHANNELS:
        # rows of width * channels numbers, so that a vector holds several pixels
        index = (index[:, :, None] * channels + np.arange(channels)).reshape(count, -1)
        weight = np.repeat(weight, channels, axis=1)
        t = reshape(t, (*t.shape[:-2], size * channels))
        after = 0
    else:
        after = t.ndim - 1 - place
    total: Tensor | None = None
    for row, share in zip(index, weight, strict=True):
        part = _parts_at(t, place, row)
        if count > 1 or (share != 1).any():
            own = share.reshape(-1, *(1,) * after).astype(t.dtype.numpy)
            part = multiply(part, as_tensor(own))
        total = part if total is None else add(total, part)
    assert total is not None
    return reshape(total, shape)


def _parts_at(t: Tensor, axis: int, row: _Indices) -> Tensor:
    """t at the indices along an axis; a slice, where they are one, is read in place."""
    steps = np.diff(row)
    if len(steps) and steps[0] > 0 and (steps == steps[0]).all():
        return cut(t, axis, int(row[0]), int(row[-1]) + 1, int(steps[0]))
    return apply("take", t, as_tensor(row), axis=axis)


def _by_product(t: Tensor, axis: int, taps: _Taps) -> Tensor:
    """As `weighted_sums`, by a matrix."""
    (index, weight), size = taps, t.shape[axis]
    assert isinstance(size, int)
    count, wanted = index.shape
    matrix = np.zeros((wanted, size))
    np.add.at(matrix, (np.arange(wanted)[None].repeat(count, 0), index), weight)
    held = as_tensor(matrix.astype(t.dtype.numpy))
    if axis == -2:
        return swapaxes(matmul(swapaxes(t, -2, -1), as_tensor(held.numpy().T.copy())), -2, -1)
    flat = reshape(t, (*t.shape[:-2], -1))
    return reshape(matmul(held, flat), (*t.shape[:-3], wanted, *t.shape[-2:]))


def resize(
    image: TensorLike,
    size: Sequence[int],
    method: str = "bilinear",
    *,
    antialias: bool = False,
    align_corners: bool = False,
    half_pixel_centers: bool | None = None,
    preserve_aspect_ratio: bool = False,
) -> Tensor:
    """Images of another size: (..., height, width, channels) -> (..., *size, channels).

    method: "nearest", "bilinear", "bicubic", "area" (means of boxes), "lanczos3", "lanczos5",
    "gaussian" or "mitchellcubic". antialias: when it makes images smaller, the kernel is as much
    wider, so no pixel is left out (`jax.image.resize`, PIL; not of "nearest" and "area").

    Pixel i of n lies at (i + 1/2) / n, as in TensorFlow 2, JAX and PyTorch. align_corners: the
    outermost pixels lie on each other. half_pixel_centers=False without align_corners: pixel i at i
    / n, as in TensorFlow 1; "area" is always so. The bicubic kernel is Keys' with a = -1/2, in the
    two older ways a = -3/4 (both as TensorFlow; PyTorch always has -3/4). preserve_aspect_ratio:
    `size` is the largest.

    Integers become the default float, but for "nearest"; 16-bit floats are computed in float32. Has
    a gradient. UnsupportedError for antialias, or a kernel but bilinear and bicubic, in the older
    ways.

    >>> x = wf.asarray([[[0.0], [4.0]]])
    >>> wf.image.resize(x, (1, 4))[0, :, 0]
    Tensor([0., 1., 3., 4.], dtype=float32)
    >>> wf.image.resize(x, (1, 4), align_corners=True).numpy().round(2)[0, :, 0]
    array([0.  , 1.33, 2.67, 4.  ], dtype=float32)
    >>> wf.image.resize(wf.asarray([[[7], [9]]], dtype=wf.uint8), (1, 4), "nearest")[0, :, 0]
    Tensor([7, 7, 9, 9], dtype=uint8)
    """
    op, t = "resize", images("resize", image)
    wanted = pair(op, size, "size", 1)
    if method not in _METHODS:
        raise wrong_argument(op, f"method {method!r} is unknown", "it is " + ", ".join(_METHODS))
    if align_corners and half_pixel_centers:
        raise wrong_argument(op, "align_corners and half_pixel_centers exclude each other")
    if preserve_aspect_ratio:
        height, width = spatial(op, t)
        scale = min(wanted[0] / height, wanted[1] / width)
        wanted = max(1, round(scale * height)), max(1, round(scale * width))
    centres = not align_corners if half_pixel_centers is None else bool(half_pixel_centers)
    settings = (method, bool(antialias), bool(align_corners), centres)
    return _resized(t, wanted[0], wanted[1], *settings)


@runs_native
def _resized(
    image: TensorLike,
    height: int,
    width: int,
    method: str,
    antialias: bool,
    align_corners: bool,
    centres: bool,
) -> Tensor:
    t = strong_tensor(image)
    given = spatial("resize", t)
    if 0 in given:
        raise ShapeError(f"wf.image.resize: {type_of(t)} has no pixels", location=caller_location())
    kind = t.dtype
    if method != "nearest":
        t = inexact_tensor(t, "image.resize")
        kind, t = t.dtype, widened(t)
    how = (method, antialias, align_corners, centres)
    taps = [_taps(n, m, *how) for n, m in zip(given, (height, width), strict=True)]
    order = [(-3, taps[0]), (-2, taps[1])]
    # look-ups of pixels are stored, those of rows are read in place: they cost a third
    if height * given[1] + 3 * height * width > 3 * given[0] * width + height * width:
        order.reverse()
    channels = t.shape[-1]
    if method == "nearest" and isinstance(channels, int):
        if channels < _FEW_CHANNELS and height * width * channels <= _MOST_INDICES:
            made: Tensor = _nearest_of(t, taps=taps) if t.dtype.is_inexact else _picked(t, taps)
            return made
    for axis, own in order:
        t = weighted_sums(t, axis, own)
    return cast(t, kind)


def _picked(t: Tensor, taps: list[_Taps]) -> Tensor:
    """The pixels at the first taps of rows and columns, by one look-up of numbers."""
    (rows, columns), lead = ([index[0] for index, _ in taps]), t.shape[:-3]
    width, channels = t.shape[-2:]
    assert isinstance(width, int)
    assert isinstance(channels, int)
    place = (rows[:, None] * width + columns)[..., None] * channels + np.arange(channels)
    flat = reshape(t, (*lead, spatial("resize", t)[0] * width * channels))
    made = apply("take", flat, as_tensor(place.reshape(-1)), axis=len(lead))
    return reshape(made, (*lead, len(rows), len(columns), channels))


@custom_gradient
def _nearest_of(t: Tensor, *, taps: list[_Taps]) -> Any:
    """`_picked`, with the gradient of `weighted_sums`."""
    sizes = spatial("resize", t)

    def gradient(g: Tensor) -> Tensor:
        for axis, own, size in zip((-3, -2), taps, sizes, strict=True):
            g = weighted_sums(g, axis, _adjoint(own, size))
        return g

    return _picked(t, taps), gradient


def resize_with_pad(
    image: TensorLike,
    target_height: int,
    target_width: int,
    method: str = "bilinear",
    *,
    antialias: bool = False,
) -> Tensor:
    """Images resized with their aspect ratio to fit into target_height x target_width, and zeros
    around them (TF's); as `resize` in all else.

    >>> wf.image.resize_with_pad(wf.ones([2, 2, 1]), 2, 4)[..., 0]
    Tensor([[0., 1., 1., 0.],
            [0., 1., 1., 0.]], dtype=float32)
    """
    made = resize(
        image, (target_height, target_width), method, antialias=antialias,
        preserve_aspect_ratio=True,
    )  # fmt: skip
    return resize_with_crop_or_pad(made, target_height, target_width)


# ------------------------------------------------------------------------------ parts by boxes
def crop_and_resize(
    image: TensorLike,
    boxes: TensorLike,
    box_indices: TensorLike,
    crop_size: Sequence[int],
    method: str = "bilinear",
    extrapolation_value: float = 0.0,
) -> Tensor:
    """Parts of images, each resized to crop_size -> (boxes, *crop_size, channels), floating (TF's).

    image: (batch, height, width, channels). boxes: (n, 4), rows of y1, x1, y2, x2 in which 0 is the
    first pixel and 1 the last one; y1 > y2 turns the part upside down. box_indices: integers (n),
    which image each one is from. The corners of a box are pixels of the result ("bilinear" or
    "nearest"); what lies outside the image is extrapolation_value. Boxes may be traced: there is a
    gradient in image and, for "bilinear", in boxes.

    >>> x = wf.reshape(wf.arange(9.0), [1, 3, 3, 1])
    >>> wf.image.crop_and_resize(x, [[0.0, 0.0, 0.5, 1.0]], [0], (2, 2))[0, :, :, 0]
    Tensor([[0., 2.],
            [3., 5.]], dtype=float32)
    """
    op = "crop_and_resize"
    given = inexact_tensor(images(op, image), f"image.{op}")
    t, kind = widened(given), given.dtype
    if method not in ("bilinear", "nearest"):
        raise wrong_argument(op, f"method {method!r} is unknown", 'it is "bilinear" or "nearest"')
    wanted = pair(op, crop_size, "crop_size", 1)
    where_ = cast(inexact_tensor(boxes, f"image.{op}"), t.dtype)
    rows = cast(as_indices(f"image.{op}", box_indices), int64)
    fit = t.ndim == 4 and where_.ndim == 2 and where_.shape[1] == 4 and rows.ndim == 1
    if not fit or not same(where_.shape[0], rows.shape[0]):
        raise ShapeError(
            f"wf.image.{op}: image (batch, height, width, channels), boxes (n, 4) and box_indices "
            f"(n) are needed, got {type_of(t)}, {type_of(where_)} and {type_of(rows)}",
            location=caller_location(),
        )
    corners = unstack(where_, axis=1)
    places = [
        _line(first, last, n, m)
        for first, last, n, m in zip(corners[:2], corners[2:], spatial(op, t), wanted, strict=True)
    ]
    held = [_within(p, n) for p, n in zip(places, t.shape[1:3], strict=True)]
    inside = logical_and(expand_dims(held[0], -1), expand_dims(held[1], 1))
    safe = [where(h, p, 0) for h, p in zip(held, places, strict=True)]
    if method == "nearest":
        made = _pixels(t, rows, *(floor(add(p, 0.5)) for p in safe))
    else:
        made = _between_pixels(t, rows, *safe)
    made = where(expand_dims(inside, -1), made, extrapolation_value)
    return cast(made, kind)


def _line(first: Tensor, last: Tensor, size: int, wanted: int) -> Tensor:
    """Where the `wanted` rows or columns of each box lie, in pixels."""
    if wanted == 1:
        return expand_dims(multiply(add(first, last), 0.5 * (size - 1)), -1)
    step = multiply(subtract(last, first), (size - 1) / (wanted - 1))
    begin = expand_dims(multiply(first, size - 1), -1)
    return add(begin, multiply(expand_dims(step, -1), cast(arange(wanted), first.dtype)))


def _within(place: Tensor, size: Any) -> Tensor:
    return logical_and(greater_equal(place, 0), less_equal(place, size - 1))


def _pixels(t: Tensor, rows: Tensor, y: Tensor, x: Tensor) -> Tensor:
    """The pixels at rows y and columns x of each box's image."""
    parts = (reshape(rows, (-1, 1, 1)), expand_dims(cast(y, int64), -1),
             expand_dims(cast(x, int64), 1))  # fmt: skip
    return apply(
        "gather_nd", t, concat([expand_dims(p, -1) for p in broadcast_tensors(*parts)], -1)
    )


def _between_pixels(t: Tensor, rows: Tensor, y: Tensor, x: Tensor) -> Tensor:
    top, left = floor(y), floor(x)
    down, right = (
        expand_dims(expand_dims(subtract(y, top), -1), -1),
        expand_dims(expand_dims(subtract(x, left), 1), -1),
    )
    corners = [
        [_pixels(t, rows, v, h) for h in (left, ceil(x))] for v in (top, ceil(y))
    ]  # fmt: skip
    upper, lower = (add(a, multiply(subtract(b, a), right)) for a, b in corners)
    return add(upper, multiply(subtract(lower, upper), down))
