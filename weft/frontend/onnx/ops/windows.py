"""Convolutions and pooling. ONNX's tensors are (batch, channels, spatial...)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

import weft as wf
from weft.frontend.core.tensor import Tensor
from weft.frontend.nn.windows import same_padding
from weft.frontend.onnx.budget import check_table
from weft.frontend.onnx.ops.shapes import cropped
from weft.frontend.onnx.run import at_once
from weft.frontend.onnx.sizes import known_size
from weft.frontend.onnx.table import Call, op
from weft.ir.errors import ResourceExhaustedError, ShapeError, UnsupportedError

_MOST_TAPS = 2**22  # passes look at each
_FIRST = {1: "NCW", 2: "NCHW", 3: "NCDHW"}


def spatial_sizes(x: Tensor) -> tuple[int, ...]:
    """The sizes of the spatial axes, which must be known."""
    sizes = tuple(d for d in x.shape[2:] if isinstance(d, int))
    if len(sizes) < x.ndim - 2:
        raise ShapeError(
            f"the spatial sizes of its input {list(x.shape)} must be known",
            hint="a call with arrays is compiled for their sizes; in a signature, an example or a "
            "placeholder only the batch may be open",
        )
    return sizes


def pairs_of(
    auto_pad: str, pads: Any, sizes: Sequence[int], window: Sequence[int], strides: Sequence[int],
    dilations: Sequence[int],
) -> list[tuple[int, int]]:  # fmt: skip
    """Padding before and after each spatial axis."""
    axes = len(sizes)
    if auto_pad in ("SAME_UPPER", "SAME_LOWER"):
        reach = [d * (k - 1) + 1 for k, d in zip(window, dilations, strict=True)]
        found = [same_padding(*v) for v in zip(sizes, reach, strides, strict=True)]
        return found if auto_pad == "SAME_UPPER" else [(hi, lo) for lo, hi in found]
    if auto_pad == "VALID" or not pads:
        return [(0, 0)] * axes
    return list(zip(pads[:axes], pads[axes:], strict=True))


def check_window(
    sizes: Sequence[int], window: Sequence[int], strides: Sequence[int],
    pairs: Sequence[tuple[int, int]],
) -> None:  # fmt: skip
    """ResourceExhaustedError for windows that no model has, of which tables would be made."""
    for n, (lo, hi) in zip(sizes, pairs, strict=True):
        check_table("where its window is", n + abs(lo) + abs(hi))
    for name, numbers in (("its window", window), ("its strides", strides)):
        if math.prod(numbers) > _MOST_TAPS:
            raise ResourceExhaustedError(f"{name}: {' x '.join(map(str, numbers))}")


def kernel_last(w: Tensor) -> Tensor:
    """A kernel (out, in, window...) as (window..., in, out); at once where it is known."""
    order = (*range(2, w.ndim), 1, 0)
    return at_once([w], lambda: wf.permute_dims(w, order))


@op("Conv")
def convolution(
    X: Tensor, W: Tensor, B: Tensor | None = None, *, auto_pad: str = "NOTSET",
    dilations: Any = None, group: int = 1, kernel_shape: Any = None, pads: Any = None,
    strides: Any = None,
) -> Tensor:  # fmt: skip
    """Conv, of which others here are made."""
    axes = X.ndim - 2
    if axes not in _FIRST:
        raise UnsupportedError(f"a convolution over {axes} spatial axes")
    steps, spread = strides or [1] * axes, dilations or [1] * axes
    window = [known_size(W, i) for i in range(2, W.ndim)]
    pairs = pairs_of(auto_pad, pads, spatial_sizes(X), window, steps, spread)
    check_window(spatial_sizes(X), window, steps, pairs)
    X, pairs = cropped(X, pairs)
    made = wf.nn.conv(
        X, kernel_last(W), steps, pairs, data_format=_FIRST[axes], dilations=spread, groups=group
    )
    return made if B is None else made + wf.reshape(B, (-1, *[1] * axes))


@op("ConvTranspose")
def _conv_transpose(
    X: Tensor, W: Tensor, B: Tensor | None = None, *, auto_pad: str = "NOTSET",
    dilations: Any = None, group: int = 1, kernel_shape: Any = None, output_padding: Any = None,
    output_shape: Any = None, pads: Any = None, strides: Any = None,
) -> Tensor:  # fmt: skip
    axes = X.ndim - 2
    steps, spread = strides or [1] * axes, dilations or [1] * axes
    more = output_padding or [0] * axes
    sizes, window = spatial_sizes(X), [known_size(W, i) for i in range(2, W.ndim)]
    full = [
        (n - 1) * s + d * (k - 1) + 1
        for n, s, k, d in zip(sizes, steps, window, spread, strict=True)
    ]
    if output_shape is not None:
        wanted = list(output_shape)[-axes:]
    elif auto_pad in ("SAME_UPPER", "SAME_LOWER"):
        wanted = [n * s for n, s in zip(sizes, steps, strict=True)]
    else:
        wanted = []
    if wanted:
        pairs = []
        for f, m, n in zip(full, more, wanted, strict=True):
            total = max(f + m - n, 0)
            half = total // 2
            pairs.append((half, total - half) if auto_pad == "SAME_UPPER" else (total - half, half))
    else:
        pairs = list(zip(pads[:axes], pads[axes:], strict=True)) if pads else [(0, 0)] * axes
        wanted = [f + m - lo - hi for f, m, (lo, hi) in zip(full, more, pairs, strict=True)]
    check_window(full, window, steps, pairs)
    made = _transposed(X, W, group, steps, spread, full)
    grown = [(0, max(0, lo + n - f)) for (lo, _), n, f in zip(pairs, wanted, full, strict=True)]
    made = wf.pad(made, [(0, 0), (0, 0), *grown])
    key = [slice(lo, lo + n) for (lo, _), n in zip(pairs, wanted, strict=True)]
    made = made[(slice(None), slice(None), *key)]
    return made if B is None else made + wf.reshape(B, (-1, *[1] * axes))


def _transposed(
    x: Tensor, w: Tensor, group: int, steps: Any, spread: Any, full: Sequence[int]
) -> Tensor:
    """The transposed convolution without padding. w: (channels in, channels out / group, ...)."""
    functions = {1: wf.nn.conv1d_transpose, 2: wf.nn.conv2d_transpose, 3: wf.nn.conv3d_transpose}
    axes = x.ndim - 2
    if axes not in functions:
        raise UnsupportedError(f"a transposed convolution over {axes} spatial axes")
    return functions[axes](
        x, kernel_last(w), list(full), list(steps), "VALID", data_format=_FIRST[axes],
        dilations=list(spread), groups=group,
    )  # fmt: skip


# ---------------------------------------------------------------------------------------- pooling
def _pool_window(
    X: Tensor, auto_pad: str, ceil_mode: int, dilations: Any, kernel_shape: Any, pads: Any,
    strides: Any,
) -> tuple[list[int], list[int], list[tuple[int, int]], list[tuple[int, int]]]:  # fmt: skip
    """Strides, dilations, padding, and the padding with what `ceil_mode` adds at the end."""
    sizes = spatial_sizes(X)
    axes = len(sizes)
    steps, spread = list(strides or [1] * axes), list(dilations or [1] * axes)
    pairs = pairs_of(auto_pad, pads, sizes, kernel_shape, steps, spread)
    grown = []
    for n, k, s, d, (lo, hi) in zip(sizes, kernel_shape, steps, spread, pairs, strict=True):
        reach = d * (k - 1) + 1
        out = (n + lo + hi - reach) // s + 1
        if ceil_mode and auto_pad not in ("SAME_UPPER", "SAME_LOWER"):
            out = -(-(n + lo + hi - reach) // s) + 1
            if (out - 1) * s >= n + lo:  # a window that would begin in the padding after it
                out -= 1
        grown.append((lo, max(hi, (out - 1) * s + reach - n - lo)))
    check_window(sizes, kernel_shape, steps, grown)
    return steps, spread, pairs, grown


@op("MaxPool")
def _max_pool(
    X: Tensor, *, auto_pad: str = "NOTSET", ceil_mode: int = 0, dilations: Any = None,
    kernel_shape: Any, pads: Any = None, storage_order: int = 0, strides: Any = None, node: Call,
) -> Any:  # fmt: skip
    steps, spread, _, grown = _pool_window(
        X, auto_pad, ceil_mode, dilations, kernel_shape, pads, strides
    )
    given = (list(kernel_shape), steps, grown)
    layout = _FIRST[X.ndim - 2]
    if node.outputs < 2:
        return wf.nn.max_pool(X, *given, data_format=layout, dilations=spread)
    made, places = wf.nn.max_pool_with_argmax(X, *given, data_format=layout, dilations=spread)
    return made, _flat_places(X, places, storage_order)


def _flat_places(x: Tensor, places: Tensor, storage_order: int) -> Tensor:
    """Flat indices in x, row by row or column by column, of indices in (spatial..., channels)."""
    sizes, channels = spatial_sizes(x), x.shape[1]
    inside = wf.floor_divide(places, channels)
    if storage_order:
        rest, parts = inside, []
        for n in reversed(sizes):
            parts.append(wf.remainder(rest, n))
            rest = wf.floor_divide(rest, n)
        inside, step = parts[-1], 1
        for n, part in zip(sizes, parts[::-1], strict=True):
            inside = part if step == 1 else inside + part * step
            step *= n
    area = math.prod(sizes)
    batch = wf.iota(places.shape, 0, dtype=wf.int64)
    channel = wf.iota(places.shape, 1, dtype=wf.int64)
    return (batch * channels + channel) * area + inside


@op("AveragePool")
def _average_pool(
    X: Tensor, *, auto_pad: str = "NOTSET", ceil_mode: int = 0, count_include_pad: int = 0,
    dilations: Any = None, kernel_shape: Any, pads: Any = None, strides: Any = None,
) -> Tensor:  # fmt: skip
    steps, spread, pairs, grown = _pool_window(
        X, auto_pad, ceil_mode, dilations, kernel_shape, pads, strides
    )
    layout = _FIRST[X.ndim - 2]
    if not count_include_pad or pairs == grown:
        return wf.nn.avg_pool(
            X, list(kernel_shape), steps, grown, data_format=layout, dilations=spread,
            count_include_pad=bool(count_include_pad),
        )  # fmt: skip
    total = wf.nn.avg_pool(
        X, list(kernel_shape), steps, grown, data_format=layout, dilations=spread,
        count_include_pad=True,
    )  # fmt: skip
    sizes = [n + lo + hi for n, (lo, hi) in zip(spatial_sizes(X), grown, strict=True)]
    check_table("how many elements its windows see", *sizes)
    seen = np.ones((1, 1, *spatial_sizes(X)), np.float32)
    padded = wf.asarray(np.pad(seen, [(0, 0), (0, 0), *pairs], constant_values=1))
    rest = [(0, g - p) for (_, g), (_, p) in zip(grown, pairs, strict=True)]
    part = wf.nn.avg_pool(
        padded, list(kernel_shape), steps, rest, data_format=layout, dilations=spread,
        count_include_pad=True,
    )  # fmt: skip
    return total / wf.astype(part, X.dtype)


@op("LpPool")
def _lp_pool(
    X: Tensor, *, auto_pad: str = "NOTSET", ceil_mode: int = 0, dilations: Any = None,
    kernel_shape: Any, p: int = 2, pads: Any = None, strides: Any = None,
) -> Tensor:  # fmt: skip
    steps, spread, _, grown = _pool_window(
        X, auto_pad, ceil_mode, dilations, kernel_shape, pads, strides
    )
    mean = wf.nn.avg_pool(
        wf.pow(wf.abs(X), p), list(kernel_shape), steps, grown, data_format=_FIRST[X.ndim - 2],
        dilations=spread, count_include_pad=True,
    )  # fmt: skip
    return wf.pow(mean * math.prod(kernel_shape), 1 / p)


def _spatial(x: Tensor) -> tuple[int, ...]:
    return tuple(range(2, x.ndim))


@op("GlobalAveragePool")
def _global_average(X: Tensor) -> Tensor:
    return wf.mean(X, _spatial(X), keepdims=True)


@op("GlobalMaxPool")
def _global_max(X: Tensor) -> Tensor:
    return wf.max(X, _spatial(X), keepdims=True)


@op("GlobalLpPool")
def _global_lp(X: Tensor, *, p: int = 2) -> Tensor:
    return wf.pow(wf.sum(wf.pow(wf.abs(X), p), _spatial(X), keepdims=True), 1 / p)


@op("MaxUnpool", since=9, known=["output_shape"])
def _max_unpool(
    X: Tensor, I: Tensor, output_shape: Any = None, *, kernel_shape: Any, pads: Any = None,  # noqa: E741
    strides: Any = None,
) -> Tensor:  # fmt: skip
    axes = len(kernel_shape)
    steps = strides or [1] * axes
    ends = pads or [0] * 2 * axes
    sizes = [
        (n - 1) * s - ends[i] - ends[axes + i] + k
        for i, (n, s, k) in enumerate(zip(spatial_sizes(X), steps, kernel_shape, strict=True))
    ]
    small = (*X.shape[:2], *sizes)
    flat = wf.zeros((math.prod(small),), dtype=X.dtype)
    made = flat.at[wf.reshape(I, (-1,))].set(wf.reshape(X, (-1,)))
    made = wf.reshape(made, small)
    if output_shape is None:
        return made
    pairs = [(0, int(n) - m) for n, m in zip(output_shape, small, strict=True)]
    return wf.pad(made, pairs)


@op("Col2Im", since=18, known=["image_shape", "block_shape"])
def _col2im(
    input: Tensor, image_shape: Any, block_shape: Any, *, dilations: Any = None, pads: Any = None,
    strides: Any = None,
) -> Tensor:  # fmt: skip
    image, block = [int(v) for v in image_shape], [int(v) for v in block_shape]
    axes = len(image)
    steps, spread = strides or [1] * axes, dilations or [1] * axes
    ends = pads or [0] * 2 * axes
    padded = [n + ends[i] + ends[axes + i] for i, n in enumerate(image)]
    counts = [
        (n - d * (k - 1) - 1) // s + 1
        for n, k, s, d in zip(padded, block, steps, spread, strict=True)
    ]
    batch = input.shape[0]
    area = math.prod(block)
    channels = known_size(input, 1) // area
    check_table("the places of its columns", area, *counts)
    places = np.zeros((area, math.prod(counts)), np.int64)
    for i in range(axes):
        shape = [1] * (2 * axes)
        shape[i], shape[axes + i] = block[i], counts[i]
        first = np.arange(block[i])[:, None] * spread[i] + np.arange(counts[i])[None] * steps[i]
        whole = np.broadcast_to(first.reshape(shape), (*block, *counts)).reshape(area, -1)
        places = places * padded[i] + whole
    values = wf.reshape(input, (batch, channels, -1))
    flat = wf.zeros((batch, channels, math.prod(padded)), dtype=input.dtype)
    made = flat.at[:, :, wf.asarray(places.ravel())].add(values)
    made = wf.reshape(made, (batch, channels, *padded))
    key = [slice(ends[i], ends[i] + n) for i, n in enumerate(image)]
    return made[(slice(None), slice(None), *key)]
