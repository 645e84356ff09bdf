"""Operators on images: resize, samples at given places, regions of interest, suppression of boxes.

Resize is one axis after the other, each a gather of the elements that its results are weighted sums
of; places and weights are known at import."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np

import weft as wf
from weft.frontend.core.tensor import Array, Tensor
from weft.frontend.onnx.budget import check_table
from weft.frontend.onnx.dtypes import limits
from weft.frontend.onnx.sizes import known_size
from weft.frontend.onnx.table import Call, op
from weft.frontend.ops.dynamic import boolean_mask
from weft.frontend.ops.promotion import is_concrete
from weft.ir.errors import InvalidArgumentError, ShapeError, UnsupportedError

_MOST_TAPS = 4096  # each is a few ops of the graph


# ----------------------------------------------------------------------------------------- resize
def _origins(
    mode: str, size: int, scale: float, count: int, roi: tuple[float, float]
) -> tuple[Array, Array | None]:
    """Where each result lies in the input, and which lie outside of it."""
    check_table("the places of its results along an axis", count)
    y, whole = np.arange(count, dtype=np.float64), scale * size
    if mode == "align_corners":
        return (y * 0 if whole == 1 else y * (size - 1) / (whole - 1)), None
    if mode == "asymmetric":
        return y / scale, None
    if mode == "tf_crop_and_resize":
        first, last = roi
        if whole == 1:
            x = np.full(count, (last - first) * (size - 1) / 2)
        else:
            x = y * (last - first) * (size - 1) / (whole - 1)
        x = x + first * (size - 1)
        return x, (x < 0) | (x > size - 1)
    if mode == "pytorch_half_pixel" and whole == 1:
        return np.full(count, -0.5), None
    if mode == "half_pixel_symmetric":
        offset = size / 2 * (1 - count / whole)
        return offset + (y + 0.5) / scale - 0.5, None
    if mode in ("half_pixel", "pytorch_half_pixel"):
        return (y + 0.5) / scale - 0.5, None
    if mode == "tf_half_pixel_for_nn":
        return (y + 0.5) / scale, None
    raise UnsupportedError(f"the coordinate_transformation_mode '{mode}'")


def _nearest(x: Array, mode: str) -> Array:
    if mode == "round_prefer_floor":
        return np.ceil(x - 0.5)
    if mode == "round_prefer_ceil":
        return np.floor(x + 0.5)
    return np.floor(x) if mode == "floor" else np.ceil(x)


def _cubic(x: Array, a: float) -> Array:
    """R. Keys, "Cubic convolution interpolation for digital image processing", 1981."""
    x = np.abs(x)
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    return np.where(x <= 1, near, np.where(x < 2, far, 0))


def _taps(
    mode: str, x: Array, size: int, scale: float, antialias: int, a: float, exclude_outside: int
) -> tuple[Array, Array]:
    """The elements that each result is a sum of, and their weights: [results, taps]."""
    reach = (1 if mode == "linear" else 2) / (min(scale, 1.0) if antialias else 1.0)
    first = np.floor(x - reach).astype(np.int64) + 1
    count = 2 * math.ceil(reach) + (1 if antialias else 0)
    if count > _MOST_TAPS:
        raise UnsupportedError(f"each of its results is a sum of {count} elements along an axis")
    check_table("its weights along an axis", len(first), count)
    places = first[:, None] + np.arange(count)
    apart = (places - x[:, None]) * (min(scale, 1.0) if antialias else 1.0)
    weights = np.clip(1 - np.abs(apart), 0, 1) if mode == "linear" else _cubic(apart, a)
    if exclude_outside:
        weights = np.where((places < 0) | (places >= size), 0, weights)
    weights = weights / weights.sum(axis=1, keepdims=True)
    return np.clip(places, 0, size - 1), weights


@op("Resize", since=11, known=["roi", "scales", "sizes"])
def _resize(
    X: Tensor, roi: Any = None, scales: Any = None, sizes: Any = None, *, antialias: int = 0,
    axes: Any = None, coordinate_transformation_mode: str = "half_pixel",
    cubic_coeff_a: float = -0.75, exclude_outside: int = 0, extrapolation_value: float = 0.0,
    keep_aspect_ratio_policy: str = "stretch", mode: str = "nearest",
    nearest_mode: str = "round_prefer_floor",
) -> Tensor:  # fmt: skip
    chosen = list(range(X.ndim)) if axes is None else [a % X.ndim for a in axes]
    factors, counts = _scales_and_sizes(X, chosen, scales, sizes, keep_aspect_ratio_policy)
    if not all(0 < f < math.inf for f in factors):
        raise InvalidArgumentError(f"its result would be {factors} times as large")
    regions = np.asarray([] if roi is None else roi, np.float64)
    wide = X if X.dtype.is_floating and X.dtype.bits >= 32 else wf.astype(X, wf.float32)
    cut = coordinate_transformation_mode == "tf_crop_and_resize" and regions.size
    for i, axis in enumerate(chosen):
        part = (regions[i], regions[len(chosen) + i]) if cut else (0.0, 1.0)
        size, scale, count = wide.shape[axis], factors[i], counts[i]
        if size == count and scale == 1 and part == (0.0, 1.0):
            continue
        if not isinstance(size, int):
            raise ShapeError("the sizes of the axes that it changes must be known")
        x, outside = _origins(coordinate_transformation_mode, size, scale, count, part)
        if mode == "nearest":
            places = np.clip(_nearest(x, nearest_mode), 0, size - 1).astype(np.int64)
            wide = wf.take(wide, wf.asarray(places), axis=axis)
        else:
            kind = "linear" if mode == "linear" else "cubic"
            taps = _taps(kind, x, size, scale, antialias, cubic_coeff_a, exclude_outside)
            wide = _weighted(wide, axis, *taps)
        if outside is not None and outside.any():
            shape = [-1 if k == axis else 1 for k in range(X.ndim)]
            fill = np.asarray(extrapolation_value, wide.dtype.numpy)
            wide = wf.where(wf.asarray(outside.reshape(shape)), wf.asarray(fill), wide)
    return wide if wide.dtype is X.dtype else _saturated(wide, X)


def _saturated(x: Tensor, like: Tensor) -> Tensor:
    if like.dtype.is_integer:
        x = wf.clip(wf.round(x), *limits(like.dtype))
    return wf.astype(x, like.dtype)


def _weighted(x: Tensor, axis: int, places: Array, weights: Array) -> Tensor:
    """Sums of elements along an axis. places, weights: [results, taps]."""
    shape = [-1 if k == axis else 1 for k in range(x.ndim)]
    total: Tensor | None = None
    for tap in range(places.shape[1]):
        if total is not None and not weights[:, tap].any():
            continue
        factor = wf.asarray(weights[:, tap].astype(x.dtype.numpy).reshape(shape))
        part = wf.take(x, wf.asarray(places[:, tap]), axis=axis) * factor
        total = part if total is None else total + part
    assert total is not None
    return total


def _scales_and_sizes(
    x: Tensor, axes: list[int], scales: Any, sizes: Any, policy: str
) -> tuple[list[float], list[Any]]:
    have: list[Any] = [x.shape[a] for a in axes]
    if sizes is None or not np.size(sizes):
        factors = [float(s) for s in scales]
        return factors, [
            h if f == 1 else math.floor(known_size(x, a) * f)
            for h, f, a in zip(have, factors, axes, strict=True)
        ]
    wanted = [int(s) for s in sizes]
    factors = [1.0 if w == h else w / h for w, h in zip(wanted, have, strict=True)]
    if policy == "stretch":
        return factors, wanted
    factor = min(factors) if policy == "not_larger" else max(factors)
    return [factor] * len(axes), [int(factor * h + 0.5) for h in have]


@op("Resize", since=10, known=["scales"])
def _resize_scales(X: Tensor, scales: Any, *, mode: str = "nearest") -> Tensor:
    return _resize(
        X, None, scales, mode=mode, coordinate_transformation_mode="asymmetric",
        nearest_mode="floor",
    )  # fmt: skip


@op("Upsample", since=9, known=["scales"])
def _upsample(X: Tensor, scales: Any, *, mode: str = "nearest") -> Tensor:
    return _resize_scales(X, scales, mode="linear" if mode == "bilinear" else mode)


@op("Upsample", since=7)
def _upsample_attribute(X: Tensor, *, scales: Any, mode: str = "nearest") -> Tensor:
    return _upsample(X, scales, mode=mode)


# --------------------------------------------------------------------------------------- sampling
def _reflected(x: Tensor, low: float, high: float) -> Tensor:
    """x mirrored at both ends until it lies between them."""
    reach = high - low
    if reach <= 0:
        return wf.full_like(x, low)
    part = wf.remainder(x - low, 2 * reach)
    return low + wf.where(part > reach, 2 * reach - part, part)


def _picked(
    x: Tensor, index: list[Tensor], padding: str, borders: list[tuple[float, float]]
) -> Tensor:
    """Elements of x [batch, channels, sizes...] at indices [batch, places] -> [batch, channels,
    places]; outside of it by the rules of `padding`."""
    sizes = [known_size(x, i) for i in range(2, x.ndim)]
    inside: Tensor | None = None
    flat: Tensor | None = None
    for i, n, (low, high) in zip(index, sizes, borders, strict=True):
        if padding == "zeros":
            here = (i >= 0) & (i <= n - 1)
            inside = here if inside is None else inside & here
        elif padding == "reflection":
            i = wf.trunc(_reflected(i, low, high))
        place = wf.astype(wf.clip(i, 0, n - 1), wf.int64)
        flat = place if flat is None else flat * n + place
    assert flat is not None
    rows = wf.reshape(x, (*x.shape[:2], math.prod(sizes)))
    wanted = wf.broadcast_to(wf.expand_dims(flat, 1), (*x.shape[:2], flat.shape[1]))
    found = wf.take_along_axis(rows, wanted, axis=2)
    return found if inside is None else wf.where(wf.expand_dims(inside, 1), found, 0)


def _cubic_weights(t: Tensor) -> list[Tensor]:
    a = -0.75

    def far(x: Tensor) -> Tensor:
        return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a

    def near(x: Tensor) -> Tensor:
        return ((a + 2) * x - (a + 3)) * x * x + 1

    return [far(t + 1), near(t), near(1 - t), far(2 - t)]


def sampled(
    x: Tensor, at: list[Tensor], mode: str, padding: str, borders: list[tuple[float, float]]
) -> Tensor:
    """x [batch, channels, sizes...] at places [batch, places], one tensor for each axis."""
    if mode == "nearest":
        return _picked(x, [wf.round(c) for c in at], padding, borders)
    firsts = [wf.floor(c) for c in at]
    parts = [c - f for c, f in zip(at, firsts, strict=True)]
    if mode == "cubic":
        weights, begin = [_cubic_weights(p) for p in parts], -1
    else:
        weights, begin = [[1 - p, p] for p in parts], 0
    total: Tensor | None = None
    for taps in itertools.product(range(len(weights[0])), repeat=len(at)):
        index = [f + (t + begin) for f, t in zip(firsts, taps, strict=True)]
        factor = math.prod(w[t] for w, t in zip(weights, taps, strict=True))
        one = _picked(x, index, padding, borders) * wf.expand_dims(factor, 1)
        total = one if total is None else total + one
    assert total is not None
    return total


@op("GridSample", since=16)
def _grid_sample(
    X: Tensor, grid: Tensor, *, align_corners: int = 0, mode: str = "linear",
    padding_mode: str = "zeros",
) -> Tensor:  # fmt: skip
    kind = {"bilinear": "linear", "bicubic": "cubic"}.get(mode, mode)
    sizes = [known_size(X, i) for i in range(2, X.ndim)]
    out = grid.shape[1:-1]
    flat = wf.reshape(grid, (grid.shape[0], -1, len(sizes)))
    at, borders = [], []
    for i, n in enumerate(sizes):
        c = flat[..., len(sizes) - 1 - i]
        c = (c + 1) / 2 * (n - 1) if align_corners else ((c + 1) * n - 1) / 2
        low, high = (0.0, n - 1.0) if align_corners else (-0.5, n - 0.5)
        c = wf.round(c) if kind == "nearest" else c
        if padding_mode == "border":
            c = wf.clip(c, 0, n - 1)
        elif padding_mode == "reflection":
            c = _reflected(c, low, high)
        at.append(c)
        borders.append((low, high))
    made = sampled(X, at, kind, padding_mode, borders)
    return wf.astype(wf.reshape(made, (*X.shape[:2], *out)), X.dtype)


@op("DeformConv", since=19)
def _deform_conv(
    X: Tensor, W: Tensor, offset: Tensor, B: Tensor | None = None, mask: Tensor | None = None, *,
    dilations: Any = None, group: int = 1, kernel_shape: Any = None, offset_group: int = 1,
    pads: Any = None, strides: Any = None,
) -> Tensor:  # fmt: skip
    if X.ndim != 4:
        raise UnsupportedError("a deformable convolution that is not over two spatial axes")
    n, channels, filters = X.shape[0], known_size(X, 1), known_size(W, 0)
    kh, kw = (known_size(W, i) for i in (2, 3))
    oh, ow = (known_size(offset, i) for i in (2, 3))
    (sy, sx), (dy, dx) = strides or (1, 1), dilations or (1, 1)
    top, left = (pads or (0, 0))[:2]
    moves = wf.reshape(offset, (n, offset_group, kh * kw, 2, oh, ow))
    base = np.zeros((2, kh * kw, oh, ow), X.dtype.numpy)
    for i, (k, o, s, d, p) in enumerate(((kh, oh, sy, dy, top), (kw, ow, sx, dx, left))):
        line = np.arange(k)[:, None] * d + np.arange(o) * s - p
        shape = (k, 1, o, 1) if i == 0 else (1, k, 1, o)
        base[i] = np.broadcast_to(line.reshape(shape), (kh, kw, oh, ow)).reshape(kh * kw, oh, ow)
    weights = None if mask is None else wf.reshape(mask, (n, offset_group, 1, -1))
    each, parts = channels // offset_group, []
    for g in range(offset_group):
        at = [wf.reshape(moves[:, g, :, i] + wf.asarray(base[i]), (n, -1)) for i in range(2)]
        seen = sampled(X[:, g * each : (g + 1) * each], at, "linear", "zeros", [(0.0, 0.0)] * 2)
        parts.append(seen if weights is None else seen * weights[:, g])
    columns = wf.reshape(wf.concat(parts, axis=1), (n, group, -1, oh * ow))
    kernel = wf.reshape(W, (group, filters // group, -1))
    made = wf.reshape(wf.matmul(kernel, columns), (n, filters, oh, ow))
    return made if B is None else made + wf.reshape(B, (-1, 1, 1))


# ------------------------------------------------------------------------------ regions and boxes
@op("RoiAlign", since=10)
def _roi_align(
    X: Tensor, rois: Tensor, batch_indices: Tensor, *,
    coordinate_transformation_mode: str | None = None, mode: str = "avg", output_height: int = 1,
    output_width: int = 1, sampling_ratio: int = 0, spatial_scale: float = 1.0, node: Call,
) -> Tensor:  # fmt: skip
    half = (
        coordinate_transformation_mode or ("half_pixel" if node.opset >= 16 else "")
    ) == "half_pixel"
    corners = rois * spatial_scale - (0.5 if half else 0.0)
    starts = [corners[:, 1], corners[:, 0]]
    lengths = [corners[:, 3] - corners[:, 1], corners[:, 2] - corners[:, 0]]
    if not half:
        lengths = [wf.maximum(v, 1.0) for v in lengths]
    out = (output_height, output_width)
    picked = wf.take(X, batch_indices, axis=0)
    if sampling_ratio > 0:
        grid = (sampling_ratio, sampling_ratio)
        return _aligned(picked, starts, lengths, out, grid, mode)
    if not is_concrete(rois):
        raise UnsupportedError("sampling_ratio=0 with regions that are not known at import")
    rows = []
    for r in range(known_size(rois, 0)):
        here = slice(r, r + 1)
        counts = [math.ceil(float(v[r]) / o) for v, o in zip(lengths, out, strict=True)]
        first, long = ([v[here] for v in part] for part in (starts, lengths))
        cells = (max(counts[0], 1), max(counts[1], 1))
        rows.append(_aligned(picked[here], first, long, out, cells, mode))
    return wf.concat(rows, axis=0)


def _aligned(
    x: Tensor, starts: list[Tensor], lengths: list[Tensor], out: tuple[int, int],
    grid: tuple[int, int], mode: str,
) -> Tensor:  # fmt: skip
    """A region of each x [regions, channels, h, w], as out cells of grid samples each."""
    lines, valid = [], []
    for start, length, o, g, n in zip(
        starts, lengths, out, grid, (known_size(x, 2), known_size(x, 3)), strict=True
    ):
        check_table("the places of its samples", o, g)
        steps = np.arange(o)[:, None] + (np.arange(g) + 0.5) / g
        line = wf.expand_dims(start, 1) + wf.expand_dims(length / o, 1) * wf.asarray(
            steps.ravel().astype(x.dtype.numpy)
        )
        valid.append((line >= -1.0) & (line <= n))
        lines.append(wf.clip(line, 0, n - 1))
    rows, columns = lines
    shape = (x.shape[0], rows.shape[1], columns.shape[1])
    at = [
        wf.reshape(wf.broadcast_to(wf.expand_dims(rows, 2), shape), (shape[0], -1)),
        wf.reshape(wf.broadcast_to(wf.expand_dims(columns, 1), shape), (shape[0], -1)),
    ]
    inside = wf.reshape(
        wf.expand_dims(valid[0], 2) & wf.expand_dims(valid[1], 1), (shape[0], 1, -1)
    )
    cells = (*x.shape[:2], out[0], grid[0], out[1], grid[1])
    borders = [(0.0, 0.0)] * 2
    if mode == "avg":
        seen = wf.where(inside, sampled(x, at, "linear", "border", borders), 0)
        return wf.mean(wf.reshape(seen, cells), (3, 5))
    firsts = [wf.floor(c) for c in at]
    parts = [c - f for c, f in zip(at, firsts, strict=True)]
    most: Tensor | None = None
    for i, j in itertools.product((0, 1), repeat=2):
        factor = (parts[0] if i else 1 - parts[0]) * (parts[1] if j else 1 - parts[1])
        one = _picked(x, [firsts[0] + i, firsts[1] + j], "border", borders)
        one = one * wf.expand_dims(factor, 1)
        most = one if most is None else wf.maximum(most, one)
    assert most is not None
    return wf.max(wf.reshape(wf.where(inside, most, 0), cells), (3, 5))


@op("MaxRoiPool", known=["rois"])
def _max_roi_pool(X: Tensor, rois: Any, *, pooled_shape: Any, spatial_scale: float = 1.0) -> Tensor:
    """R. Girshick, "Fast R-CNN", 2015: the maximum of each cell of a region."""
    height, width = (known_size(X, i) for i in (2, 3))
    made = []
    for number, *corners in np.asarray(rois).tolist():
        x1, y1, x2, y2 = (math.floor(c * spatial_scale + 0.5) for c in corners)
        cells = []
        for first, last, n, size in (
            (y1, y2, pooled_shape[0], height), (x1, x2, pooled_shape[1], width),
        ):  # fmt: skip
            each = max(last - first + 1, 1) / n
            cells.append(
                [
                    (
                        min(max(math.floor(i * each) + first, 0), size),
                        min(max(math.ceil((i + 1) * each) + first, 0), size),
                    )
                    for i in range(n)
                ]
            )
        image = X[int(number)]
        rows = [
            wf.stack([
                wf.max(image[:, a:b, c:d], (1, 2))
                if b > a and d > c
                else wf.zeros((X.shape[1],), dtype=X.dtype)
                for c, d in cells[1]
            ], axis=-1)
            for a, b in cells[0]
        ]  # fmt: skip
        made.append(wf.stack(rows, axis=1))
    return wf.stack(made)


@op("NonMaxSuppression", since=10, known=[
    "max_output_boxes_per_class", "iou_threshold", "score_threshold",
])  # fmt: skip
def _non_max_suppression(
    boxes: Tensor, scores: Tensor, max_output_boxes_per_class: Any = None,
    iou_threshold: Any = None, score_threshold: Any = None, *, center_point_box: int = 0,
) -> Tensor:  # fmt: skip
    most, overlap, least = (
        None if v is None or not np.size(v) else np.ravel(v)[0]
        for v in (max_output_boxes_per_class, iou_threshold, score_threshold)
    )
    batch, classes, count = (known_size(scores, i) for i in range(3))
    limit = min(max(int(most or 0), 0), count)
    if center_point_box:
        x, y, w, h = (boxes[..., i] for i in range(4))
        boxes = wf.stack([y - h / 2, x - w / 2, y + h / 2, x + w / 2], axis=-1)
    wide = wf.broadcast_to(wf.expand_dims(boxes, 1), (batch, classes, count, 4))
    chosen, number = wf.image.non_max_suppression(
        wide, scores, limit, 0.0 if overlap is None else float(overlap),
        -math.inf if least is None else float(least),
    )  # fmt: skip
    shape = (batch, classes, limit)
    table = wf.stack([wf.iota(shape, 0), wf.iota(shape, 1), chosen], axis=-1)
    kept = wf.iota(shape, 2) < wf.expand_dims(number, -1)
    return boolean_mask(wf.reshape(table, (-1, 3)), wf.reshape(kept, (-1,)))
