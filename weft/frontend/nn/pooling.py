"""`wf.nn`: pooling, reductions over windows of 1 to 3 spatial axes.

Arrays, strides, padding and errors: as for convolutions (`wf.nn.conv2d`); ksize is the window, and
strides are those of ksize unless given. Padding takes no part: it is never a maximum, and a mean
divides by the elements that are there (TensorFlow's rule) unless count_include_pad."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from weft.frontend.autodiff.gradients import stop_gradient
from weft.frontend.core.tensor import Tensor, as_tensor
from weft.frontend.nn.windows import Layout, Padding, PerAxis, Window, layout_of, slide, type_of
from weft.frontend.ops.dispatch import apply
from weft.frontend.ops.elementwise import divide, negative
from weft.frontend.ops.promotion import TensorLike, cast, expand, inexact_tensor, strong_tensor
from weft.ir.dtypes import bfloat16, float16, float32, float64, int64, uint64
from weft.ir.errors import InvalidArgumentError
from weft.ir.locations import caller_location


def max_pool(
    x: TensorLike,
    ksize: PerAxis,
    strides: PerAxis | None = None,
    padding: Padding = "VALID",
    *,
    data_format: str | None = None,
    dilations: PerAxis = 1,
) -> Tensor:
    """The maximum of each window, over 1 to 3 spatial axes; NaN if there is one.

    Its gradient goes to the first of several equal maxima.

    >>> x = wf.reshape(wf.asarray([3, 1, 4, 1, 5]), [1, 5, 1])
    >>> wf.nn.max_pool(x, 2)[0, :, 0]  # strides are those of ksize
    Tensor([3, 4], dtype=int64)
    >>> wf.nn.max_pool(x, 2, strides=1, padding="SAME")[0, :, 0]
    Tensor([3, 4, 4, 5, 5], dtype=int64)
    """
    return _max("max_pool", None, x, ksize, strides, padding, data_format, dilations)


def max_pool1d(
    x: TensorLike,
    ksize: PerAxis,
    strides: PerAxis | None = None,
    padding: Padding = "VALID",
    *,
    data_format: str | None = None,
    dilations: PerAxis = 1,
) -> Tensor:
    """`max_pool` of (batch, width, channels).

    >>> wf.nn.max_pool1d(wf.reshape(wf.asarray([3, 1, 4, 1, 5]), [1, 5, 1]), 3, strides=2)[0, :, 0]
    Tensor([4, 5], dtype=int64)
    """
    return _max("max_pool1d", 1, x, ksize, strides, padding, data_format, dilations)


def max_pool2d(
    x: TensorLike,
    ksize: PerAxis,
    strides: PerAxis | None = None,
    padding: Padding = "VALID",
    *,
    data_format: str | None = None,
    dilations: PerAxis = 1,
) -> Tensor:
    """`max_pool` of (batch, height, width, channels).

    >>> wf.nn.max_pool2d(wf.reshape(wf.arange(16), [1, 4, 4, 1]), 2)[0, :, :, 0]
    Tensor([[ 5,  7],
            [13, 15]], dtype=int64)
    """
    return _max("max_pool2d", 2, x, ksize, strides, padding, data_format, dilations)


def max_pool3d(
    x: TensorLike,
    ksize: PerAxis,
    strides: PerAxis | None = None,
    padding: Padding = "VALID",
    *,
    data_format: str | None = None,
    dilations: PerAxis = 1,
) -> Tensor:
    """`max_pool` of (batch, depth, height, width, channels).

    >>> wf.nn.max_pool3d(wf.reshape(wf.arange(16), [1, 4, 2, 2, 1]), 2)[0, :, 0, 0, 0]
    Tensor([ 7, 15], dtype=int64)
    """
    return _max("max_pool3d", 3, x, ksize, strides, padding, data_format, dilations)


class MaxPool(NamedTuple):
    """The result of `max_pool_with_argmax`: the maxima, and where in x they are."""

    values: Tensor
    indices: Tensor


def max_pool_with_argmax(
    x: TensorLike,
    ksize: PerAxis,
    strides: PerAxis | None = None,
    padding: Padding = "VALID",
    *,
    data_format: str | None = None,
    dilations: PerAxis = 1,
    include_batch_in_index: bool = False,
) -> MaxPool:
    """`max_pool`, and the flat index of each maximum in its item of the batch (TF's) -> int64.

    The index is that of (spatial..., channels), whatever data_format says, and of (batch,
    spatial..., channels) with include_batch_in_index. Of equal maxima the first counts; a window
    that sees nothing has index 0. 1 to 3 spatial axes of known sizes.

    >>> x = wf.reshape(wf.asarray([3, 1, 4, 1]), [1, 4, 1])
    >>> made = wf.nn.max_pool_with_argmax(x, 2)
    >>> made.values[0, :, 0], made.indices[0, :, 0]
    (Tensor([3, 4], dtype=int64), Tensor([0, 2], dtype=int64))
    """
    t = strong_tensor(x)
    given = (ksize, strides, padding, data_format, dilations)
    layout, seen, how = _enter("max_pool_with_argmax", None, t, *given)
    values = _maxima(seen, how)
    # numbers and their places in one dtype that has both: exact up to 2^53 of float64
    wide = int64 if t.dtype is int64 else uint64 if t.dtype is uint64 else float64
    begin = 0 if include_batch_in_index else 1
    where = seen.shape[begin:]
    known = tuple(d for d in where if isinstance(d, int))
    if len(known) != len(where):
        raise layout.shape_error(f"the sizes of {type_of(t)} must be known, as indices are of them")
    numbers = np.arange(int(np.prod(known, dtype=np.int64))).reshape((1,) * begin + known)
    places = as_tensor(numbers.astype(wide.numpy))
    indices = apply(
        "window_pick", cast(seen, wide), expand(places, seen.shape), window=how.window,
        **how.attrs, size=how.size,
    )  # fmt: skip
    return MaxPool(layout.leave(values), layout.leave(cast(stop_gradient(indices), int64)))


def avg_pool(
    x: TensorLike,
    ksize: PerAxis,
    strides: PerAxis | None = None,
    padding: Padding = "VALID",
    *,
    data_format: str | None = None,
    dilations: PerAxis = 1,
    count_include_pad: bool = False,
) -> Tensor:
    """The mean of each window, over 1 to 3 spatial axes.

    count_include_pad: divide by the size of the window everywhere (PyTorch's default), as if the
    padding were zeros.

    >>> x = wf.reshape(wf.asarray([2.0, 4.0, 6.0]), [1, 3, 1])
    >>> wf.nn.avg_pool(x, 2, padding="SAME")[0, :, 0]
    Tensor([3., 6.], dtype=float32)
    >>> wf.nn.avg_pool(x, 2, padding="SAME", count_include_pad=True)[0, :, 0]
    Tensor([3., 3.], dtype=float32)
    """
    given = (ksize, strides, padding, data_format, dilations)
    return _average("avg_pool", None, x, *given, count_include_pad)


def avg_pool1d(
    x: TensorLike,
    ksize: PerAxis,
    strides: PerAxis | None = None,
    padding: Padding = "VALID",
    *,
    data_format: str | None = None,
    dilations: PerAxis = 1,
    count_include_pad: bool = False,
) -> Tensor:
    """`avg_pool` of (batch, width, channels).

    >>> wf.nn.avg_pool1d(wf.reshape(wf.asarray([2.0, 4.0, 6.0, 8.0]), [1, 4, 1]), 2)[0, :, 0]
    Tensor([3., 7.], dtype=float32)
    """
    given = (ksize, strides, padding, data_format, dilations)
    return _average("avg_pool1d", 1, x, *given, count_include_pad)


def avg_pool2d(
    x: TensorLike,
    ksize: PerAxis,
    strides: PerAxis | None = None,
    padding: Padding = "VALID",
    *,
    data_format: str | None = None,
    dilations: PerAxis = 1,
    count_include_pad: bool = False,
) -> Tensor:
    """`avg_pool` of (batch, height, width, channels).

    >>> wf.nn.avg_pool2d(wf.reshape(wf.arange(16), [1, 4, 4, 1]), 2)[0, :, :, 0]
    Tensor([[ 2.5,  4.5],
            [10.5, 12.5]], dtype=float32)
    """
    given = (ksize, strides, padding, data_format, dilations)
    return _average("avg_pool2d", 2, x, *given, count_include_pad)


def avg_pool3d(
    x: TensorLike,
    ksize: PerAxis,
    strides: PerAxis | None = None,
    padding: Padding = "VALID",
    *,
    data_format: str | None = None,
    dilations: PerAxis = 1,
    count_include_pad: bool = False,
) -> Tensor:
    """`avg_pool` of (batch, depth, height, width, channels).

    >>> wf.nn.avg_pool3d(wf.reshape(wf.arange(16), [1, 4, 2, 2, 1]), 2)[0, :, 0, 0, 0]
    Tensor([ 3.5, 11.5], dtype=float32)
    """
    given = (ksize, strides, padding, data_format, dilations)
    return _average("avg_pool3d", 3, x, *given, count_include_pad)


def pool(
    x: TensorLike,
    window_shape: PerAxis,
    pooling_type: str,
    strides: PerAxis = 1,
    padding: Padding = "VALID",
    *,
    dilations: PerAxis = 1,
    data_format: str | None = None,
) -> Tensor:
    """A windowed reduction: pooling_type is "MAX", "MIN", "SUM" or "AVG".

    >>> x = wf.reshape(wf.asarray([3, 1, 4, 1]), [1, 4, 1])
    >>> {kind: wf.nn.pool(x, 2, kind)[0, :, 0].numpy().tolist() for kind in ("MIN", "SUM", "AVG")}
    {'MIN': [1, 1, 1], 'SUM': [4, 5, 5], 'AVG': [2.0, 2.5, 2.5]}
    """
    kind = str(pooling_type).upper()
    given = (window_shape, strides, padding, data_format, dilations)
    if kind == "MAX":
        return _max("pool", None, x, *given)
    if kind == "MIN":
        t = strong_tensor(x)
        if t.dtype.kind == "uint":  # ~t orders them the other way round
            return apply("bitwise_invert", _max("pool", None, apply("bitwise_invert", t), *given))
        return _minimum(t, given)
    if kind == "AVG":
        return _average("pool", None, x, *given, False)
    if kind == "SUM":
        layout, t, how = _enter("pool", None, strong_tensor(x), *given)
        return layout.leave(_sum(t, how))
    raise InvalidArgumentError(
        f"wf.nn.pool: pooling_type {pooling_type!r} is unknown",
        hint='it is "MAX", "MIN", "SUM" or "AVG"',
        location=caller_location(),
    )


_Given = tuple[PerAxis, PerAxis, Padding, str | None, PerAxis]


def _minimum(t: Tensor, given: _Given) -> Tensor:
    if t.dtype.kind == "int":
        return apply("bitwise_invert", _max("pool", None, apply("bitwise_invert", t), *given))
    return negative(_max("pool", None, negative(t), *given))


def _enter(
    op: str,
    axes: int | None,
    x: Tensor,
    ksize: PerAxis,
    strides: PerAxis | None,
    padding: Padding,
    data_format: str | None,
    dilations: PerAxis,
) -> tuple[Layout, Tensor, Window]:
    """The layout, x as (batch, spatial..., channels), and its windows."""
    layout = layout_of(op, x, data_format, axes)
    seen, window = layout.enter(x), layout.per_axis(ksize, "ksize")
    how = slide(
        layout, layout.spatial(seen), window, window if strides is None else strides, padding,
        dilations, lambda: f"x {type_of(x)}, ksize {list(window)}",
    )  # fmt: skip
    return layout, seen, how


def _max(
    op: str,
    axes: int | None,
    x: TensorLike,
    ksize: PerAxis,
    strides: PerAxis | None,
    padding: Padding,
    data_format: str | None,
    dilations: PerAxis,
) -> Tensor:
    t = strong_tensor(x)
    layout, seen, how = _enter(op, axes, t, ksize, strides, padding, data_format, dilations)
    return layout.leave(_maxima(seen, how))


def _maxima(t: Tensor, how: Window) -> Tensor:
    return apply("window_max", t, window=how.window, **how.attrs, size=how.size)


def _sum(t: Tensor, how: Window) -> Tensor:
    return apply("window_sum", t, window=how.window, **how.attrs, size=how.size)


def _average(
    op: str,
    axes: int | None,
    x: TensorLike,
    ksize: PerAxis,
    strides: PerAxis | None,
    padding: Padding,
    data_format: str | None,
    dilations: PerAxis,
    count_include_pad: bool,
) -> Tensor:
    t = inexact_tensor(x, f"nn.{op}")
    layout, seen, how = _enter(op, axes, t, ksize, strides, padding, data_format, dilations)
    half = t.dtype in (float16, bfloat16)  # a sum may overflow where the mean does not
    total = _sum(cast(seen, float32) if half else seen, how)
    counts = np.array(float(np.prod(how.window)))
    if not count_include_pad:
        counts = _counts(layout.spatial(seen), how)
    real = np.float64 if t.dtype.itemsize >= 8 and t.dtype.name != "complex64" else np.float32
    mean = divide(total, as_tensor(counts.astype(real)))
    return layout.leave(cast(mean, t.dtype))


def _counts(
    sizes: tuple[int, ...], how: Window
) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """How many elements each window sees, at least 1: (spatial..., 1), or one number for all."""
    total = np.ones((1,) * len(sizes))
    for axis, (n, k, s, d, (lo, _), m) in enumerate(
        zip(sizes, how.window, how.strides, how.dilations, how.padding, how.size, strict=True)
    ):
        at = np.arange(m)[:, None] * s + np.arange(k) * d - lo
        seen = ((at >= 0) & (at < n)).sum(1)
        total = total * np.expand_dims(seen, [i for i in range(len(sizes)) if i != axis])
    total = np.maximum(total, 1)
    if total.size and (total == total.flat[0]).all():
        return np.array(total.flat[0])
    return total[..., None]
