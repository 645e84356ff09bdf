"""ONNX nodes of convolutions and pooling: channels first in ONNX, last in weft.

Operands are used, and results noted, in ONNX's layout, so that no Transpose stands between two
layers. What ONNX's operators cannot say - windows that see nothing, dtypes they lack - is written
tap by tap: a strided slice for each tap of the window."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import numpy as np

from weft.frontend.onnx.nodes.dtypes import RUNS_IN
from weft.frontend.onnx.nodes.elementwise import Expr
from weft.frontend.onnx.nodes.graph import GraphWriter, Held, RefusedError, dtype_of, tensor_of
from weft.frontend.onnx.nodes.moves import bind_turned, padded, permuted, sliced
from weft.ir import dtypes
from weft.ir.dims import Shape
from weft.ir.dtypes import DType
from weft.ir.graph import Operation, Value
from weft.ir.ops.windows import lowest
from weft.ir.spec import int_attr, ints_attr

#: Windows of more taps than that are not written tap by tap.
_MOST_TAPS = 256


def channels_first(rank: int) -> tuple[int, ...]:
    """Of which axes of (batch, spatial..., channels) those of ONNX's layout are."""
    return (0, rank - 1, *range(1, rank - 1))


def channels_last(rank: int) -> tuple[int, ...]:
    """The other way round: how a tensor in ONNX's layout is permuted."""
    return (0, *range(2, rank), 1)


def _spatial(shape: Shape, op: Operation) -> tuple[int, ...]:
    """The spatial sizes, which are known where an op's are. RefusedError otherwise."""
    sizes = [d for d in shape if isinstance(d, int)]
    if len(sizes) != len(shape):
        raise RefusedError(
            "it has spatial sizes that are open",
            "give them: only sizes of the batch may be open in convolutions and pooling",
        )
    return tuple(sizes)


class _Window:
    """Where windows lie: attributes of an op on a large side of `sizes`."""

    def __init__(self, op: Operation, sizes: tuple[int, ...], small: tuple[int, ...],
                 window: tuple[int, ...]) -> None:  # fmt: skip
        self.strides = ints_attr(op.attrs, "strides")
        self.dilation = ints_attr(op.attrs, "dilation")
        self.lo = ints_attr(op.attrs, "lo")
        self.window, self.small = window, small
        self.reach = tuple((k - 1) * d + 1 for k, d in zip(window, self.dilation, strict=True))
        last = zip(small, self.strides, self.reach, self.lo, sizes, strict=True)
        self.hi = tuple((n - 1) * s + r - lo - size for n, s, r, lo, size in last)

    @property
    def pads(self) -> list[int]:
        return [max(p, 0) for p in (*self.lo, *self.hi)]

    def cut(
        self, writer: GraphWriter, name: str, shape: Shape, strides: Sequence[int] | None = None
    ) -> str:
        """The large side, in ONNX's layout, without what no window sees: at the end only where
        there would be room for one more window. strides: of windows, unless they are the op's."""
        starts, stops = [0] * len(shape), list(shape)
        ends = zip(self.lo, self.hi, strides or self.strides, strict=True)
        for axis, (lo, hi, stride) in enumerate(ends, 2):
            size = shape[axis]
            assert isinstance(size, int)
            starts[axis] = min(max(-lo, 0), size)
            if -hi >= stride:
                stops[axis] = max(size + hi, starts[axis])
        return sliced(writer, name, shape, tuple(starts), tuple(stops), (1,) * len(shape))

    def blind(self, sizes: tuple[int, ...]) -> bool:
        """Whether all windows lie before or behind the large side, along some axis."""
        axes = zip(self.small, self.strides, self.reach, self.lo, sizes, strict=True)
        return any((n - 1) * s + r <= lo or -lo >= size for n, s, r, lo, size in axes)

    def inside(self, sizes: tuple[int, ...]) -> bool:
        """Whether every window sees something, and there are fewer pads than taps."""
        fits = zip(self.lo, self.hi, self.window, sizes, strict=True)
        return all(lo < k and hi < k and n > 0 for lo, hi, k, n in fits)


def _attrs(window: _Window) -> dict[str, Any]:
    return {
        "kernel_shape": list(window.window), "strides": list(window.strides),
        "dilations": list(window.dilation), "pads": window.pads,
    }  # fmt: skip


def _first(writer: GraphWriter, value: Value) -> tuple[str, Shape]:
    """A value in ONNX's layout, and its shape there."""
    kind = tensor_of(value)
    order = channels_first(kind.rank)
    return writer.use(value, order), tuple(kind.shape[a] for a in order)


def _weights(writer: GraphWriter, value: Value) -> str:
    """A kernel (window..., in, out) as (out, in, window...)."""
    rank = tensor_of(value).rank
    return writer.use(value, (rank - 1, rank - 2, *range(rank - 2)))


def _floats(op: Operation) -> None:
    """RefusedError for what ONNX's convolutions do not take."""
    dtype = dtype_of(op.result)
    if not dtype.is_floating:
        raise RefusedError(
            f"of {dtype.name}, which ONNX convolves as 8-bit numbers only",
            "compute it in floats: wf.astype(x, wf.float32)",
        )


def _empty(writer: GraphWriter, op: Operation, fill: float | int = 0) -> bool:
    """Whether nothing is seen: a window, an image or channels without elements. The result is then
    noted as so many times `fill`."""
    sizes = [d for v in (*op.operands, op.result) for d in tensor_of(v).shape]
    if 0 not in [*sizes, *ints_attr(op.attrs, "window" if "window" in op.attrs else "size")]:
        return False
    _nothing(writer, op, fill)
    return True


def _nothing(writer: GraphWriter, op: Operation, fill: float | int = 0) -> None:
    """Note the result as so many times `fill`."""
    number = np.asarray(fill).astype(dtype_of(op.result).numpy)
    writer.held[op.result] = Held(writer.constant(number), (), (), False)


def conv(writer: GraphWriter, op: Operation, bias: str | None = None) -> None:
    """`Conv`; bias: one number for each channel."""
    if bias is None and _empty(writer, op):
        return
    _floats(op)
    x, w = op.operands
    name, shape = _first(writer, x)
    sizes = _spatial(tensor_of(x).shape[1:-1], op)
    window = _Window(op, sizes, ints_attr(op.attrs, "size"), _spatial(tensor_of(w).shape[:-2], op))
    if window.blind(sizes):
        _nothing(writer, op)
        if bias is not None:
            writer.held[op.result] = Held(bias, tensor_of(op.result).shape[-1:], (), False)
        return
    name = window.cut(writer, name, shape)
    _conv(writer, op, name, _weights(writer, w), _attrs(window), bias, op.result)


def _conv(
    writer: GraphWriter, op: Operation, x: str, w: str, attrs: dict[str, Any],
    bias: str | None, result: Value,
) -> None:  # fmt: skip
    inputs = [x, w] if bias is None else [x, w, bias]
    groups = int_attr(op.attrs, "groups")
    made = writer.call("Conv", inputs, dtype_of(result), group=groups, **attrs)
    bind_turned(writer, result, made, channels_last(tensor_of(result).rank))


def conv_bias(
    op: Operation, bias: Value, result: Value, less: bool, axes: Sequence[int], writer: GraphWriter
) -> None:
    """`Conv` with a bias of its own: result = op + bias, or op - bias, with the axes of op
    permuted. bias: a constant."""
    channels = tensor_of(op.result).shape[-1]
    assert isinstance(channels, int)
    held = writer.held[bias]
    array = np.broadcast_to(writer.arrays[held.name].reshape(-1), (channels,))
    conv(writer, op, writer.constant(-array if less else array, f"{held.name}.bias"))
    writer.held[result] = permuted(writer, writer.held.pop(op.result), axes)


def _conv_input(writer: GraphWriter, op: Operation) -> None:
    """`ConvTranspose`, with what lies beyond its reach as a Pad."""
    if _empty(writer, op):
        return
    _floats(op)
    y, w = op.operands
    name, _ = _first(writer, y)
    rank, size = tensor_of(y).rank, ints_attr(op.attrs, "size")
    small = _spatial(tensor_of(y).shape[1:-1], op)
    window = _Window(op, size, small, _spatial(tensor_of(w).shape[:-2], op))
    _transposed_conv(writer, op, name, _weights(writer, w), window, rank)


def _transposed_conv(
    writer: GraphWriter, op: Operation, y: str, w: str, window: _Window, rank: int,
    groups: int | None = None,
) -> None:  # fmt: skip
    attrs = _attrs(window)
    zero = writer.constant(np.zeros((), dtype_of(op.result).numpy))
    spans = zip(window.small, window.strides, window.reach, window.lo, window.hi, strict=True)
    if any((n - 1) * s + r <= max(lo, 0) + max(hi, 0) for n, s, r, lo, hi in spans):
        writer.held[op.result] = Held(zero, (), (), False)  # all is cut off
        return
    made = writer.call(
        "ConvTranspose", [y, w], dtype_of(op.result),
        group=int_attr(op.attrs, "groups") if groups is None else groups, **attrs,
    )  # fmt: skip
    more_lo, more_hi = ([max(-p, 0) for p in side] for side in (window.lo, window.hi))
    made = padded(writer, made, [0, 0, *more_lo], [0, 0, *more_hi], zero, op)
    bind_turned(writer, op.result, made, channels_last(rank))


def _conv_kernel(writer: GraphWriter, op: Operation) -> None:
    """`Conv` of x by y, channels in the place of the batch, with strides for dilations."""
    if _empty(writer, op):
        return
    _floats(op)
    x, y = op.operands
    if int_attr(op.attrs, "groups") != 1:
        raise RefusedError("of groups: the gradient of a grouped convolution in its kernel",
                           "export the inference graph, not the gradient")  # fmt: skip
    rank = tensor_of(x).rank
    order = (rank - 1, 0, *range(1, rank - 1))
    shape = tuple(tensor_of(x).shape[a] for a in order)
    taps = ints_attr(op.attrs, "size")
    sizes = _spatial(tensor_of(x).shape[1:-1], op)
    window = _Window(op, sizes, _spatial(tensor_of(y).shape[1:-1], op), taps)
    if window.blind(sizes):
        _nothing(writer, op)
        return
    name = window.cut(writer, writer.use(x, order), shape, window.dilation)
    made = writer.call(
        "Conv", [name, writer.use(y, order)], dtype_of(op.result),
        kernel_shape=list(window.small), strides=list(window.dilation),
        dilations=list(window.strides), pads=window.pads,
    )  # fmt: skip
    bind_turned(writer, op.result, made, (*range(2, rank), 0, 1))


# ------------------------------------------------------------------------------------------ pooling
def _pool_window(op: Operation, value: Value, size: tuple[int, ...]) -> _Window:
    sizes = _spatial(tensor_of(value).shape[1:-1], op)
    return _Window(op, sizes, size, ints_attr(op.attrs, "window"))


def _window_max(writer: GraphWriter, op: Operation) -> None:
    (x,) = op.operands
    dtype, shape = dtype_of(x), tensor_of(x).shape
    if _empty(writer, op, lowest(dtype.numpy)):
        return
    window = _pool_window(op, x, ints_attr(op.attrs, "size"))
    rank = len(shape)
    pooled = dtype.short in RUNS_IN["MaxPool"] or dtype is dtypes.float16
    if window.inside(_spatial(shape[1:-1], op)) and pooled:
        name, turned = _first(writer, x)
        name = window.cut(writer, name, turned)
        made = writer.call("MaxPool", [name], dtype, **_attrs(window))
        bind_turned(writer, op.result, made, channels_last(rank))
        return
    taps = _taps(writer, op, x, window, lowest(dtype.numpy))
    best = taps[0]
    for tap in taps[1:]:
        best = best.call("Max", tap)
    bind_turned(writer, op.result, best.name, channels_last(rank))


def _taps(
    writer: GraphWriter, op: Operation, x: Value, window: _Window, fill: float | int,
    dtype: DType | None = None,
) -> list[Expr]:  # fmt: skip
    """What each tap of the window sees, `fill` where that is nothing, in ONNX's layout."""
    if int(np.prod(window.window)) > _MOST_TAPS or 0 in window.window:
        raise RefusedError(f"its window {list(window.window)} has too many taps, or none")
    name, shape = _first(writer, x)
    name = window.cut(writer, name, shape)
    spatial = len(window.window)
    own = dtype_of(x) if dtype is None else dtype
    pads = window.pads
    filled = writer.constant(np.asarray(fill).astype(dtype_of(x).numpy))
    name = padded(writer, name, [0, 0, *pads[:spatial]], [0, 0, *pads[spatial:]], filled, op)
    whole = (*shape[:2], *(None,) * spatial)
    made = []
    for tap in product(*map(range, window.window)):
        starts = [0, 0, *(t * d for t, d in zip(tap, window.dilation, strict=True))]
        ends = zip(starts[2:], window.small, window.strides, strict=True)
        stops = [*shape[:2], *(a + (n - 1) * s + 1 if n else a for a, n, s in ends)]
        part = sliced(writer, name, whole, tuple(starts), tuple(stops), (1, 1, *window.strides))
        made.append(Expr(writer, part, own))
    return made


def _window_sum(writer: GraphWriter, op: Operation) -> None:
    """`AveragePool` times the number of taps, for floats."""
    (x,) = op.operands
    if _empty(writer, op):
        return
    dtype = dtype_of(x)
    rank = tensor_of(x).rank
    window = _pool_window(op, x, ints_attr(op.attrs, "size"))
    if window.inside(_spatial(tensor_of(x).shape[1:-1], op)) and dtype.is_floating:
        made = average_pool(writer, op, x, window_pads=True)
        total = Expr(writer, made, dtype) * float(np.prod(window.window))
        bind_turned(writer, op.result, total.name, channels_last(rank))
        return
    wide = dtypes.float32 if dtype in (dtypes.float16, dtypes.bfloat16) else dtype
    taps = [t.cast(wide) for t in _taps(writer, op, x, window, 0)]
    total = taps[0]
    for tap in taps[1:]:
        total = total + tap
    bind_turned(writer, op.result, total.cast(dtype).name, channels_last(rank))


def average_pool(writer: GraphWriter, op: Operation, x: Value, *, window_pads: bool) -> str:
    """`AveragePool` of a window_sum's operand, in ONNX's layout; window_pads: what is outside
    counts."""
    window = _pool_window(op, x, ints_attr(op.attrs, "size"))
    name, shape = _first(writer, x)
    name = window.cut(writer, name, shape)
    return writer.call(
        "AveragePool", [name], dtype_of(x), count_include_pad=int(window_pads), **_attrs(window)
    )


def pool_counts(op: Operation) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    """How many elements each window of a window_sum sees: (size..., 1)."""
    (x,) = op.operands
    size = ints_attr(op.attrs, "size")
    window = _pool_window(op, x, size)
    counts = np.ones((*size, 1), np.int64)
    for axis, n in enumerate(_spatial(tensor_of(x).shape[1:-1], op)):
        starts = np.arange(size[axis]) * window.strides[axis] - window.lo[axis]
        at = starts[:, None] + np.arange(window.window[axis]) * window.dilation[axis]
        own = ((at >= 0) & (at < n)).sum(1)
        counts = counts * own.reshape([-1 if a == axis else 1 for a in range(counts.ndim)])
    return counts


def pads_less_than_windows(op: Operation) -> bool:
    """Whether `AveragePool` can say what a window_sum sees."""
    (x,) = op.operands
    sizes = _spatial(tensor_of(x).shape[1:-1], op)
    return _pool_window(op, x, ints_attr(op.attrs, "size")).inside(sizes)


def _window_pick(writer: GraphWriter, op: Operation) -> None:
    """Tap by tap, the maximum so far and what stands there."""
    if _empty(writer, op):
        return
    x, t = op.operands
    dtype, rank = dtype_of(x), tensor_of(x).rank
    window = _pool_window(op, x, ints_attr(op.attrs, "size"))
    least = lowest(dtype.numpy)
    seen, given = _taps(writer, op, x, window, least), _taps(writer, op, t, window, 0)
    inside = _tap_masks(writer, op, x, window)
    best, picked, found = seen[0], given[0], inside[0]
    for here, value, there in zip(seen[1:], given[1:], inside[1:], strict=True):
        better = here > best
        if dtype.is_floating:
            better = better | (here.truth("IsNaN") & ~best.truth("IsNaN"))
        better = there & (better | ~found)
        best, picked, found = better.where(here, best), better.where(value, picked), found | there
    bind_turned(writer, op.result, picked.name, channels_last(rank))


def _tap_masks(writer: GraphWriter, op: Operation, x: Value, window: _Window) -> list[Expr]:
    """For each tap, in which windows it sees an element: constants (1, 1, size...)."""
    made = []
    sizes = _spatial(tensor_of(x).shape[1:-1], op)
    for tap in product(*map(range, window.window)):
        mask = np.ones((1, 1, *window.small), np.bool_)
        for axis, k in enumerate(tap):
            at = np.arange(window.small[axis]) * window.strides[axis]
            at = at + k * window.dilation[axis] - window.lo[axis]
            own = (at >= 0) & (at < sizes[axis])
            mask &= own.reshape([-1 if a == axis + 2 else 1 for a in range(mask.ndim)])
        made.append(Expr(writer, writer.constant(mask), dtypes.bool_))
    return made


def _window_spread(writer: GraphWriter, op: Operation) -> None:
    """`ConvTranspose` by ones, channel by channel."""
    if _empty(writer, op):
        return
    _floats(op)
    (y,) = op.operands
    kind = tensor_of(y)
    channels = kind.shape[-1]
    if not isinstance(channels, int):
        raise RefusedError("its number of channels is open", "give it in the example's shape")
    taps = ints_attr(op.attrs, "window")
    window = _Window(op, ints_attr(op.attrs, "size"), _spatial(kind.shape[1:-1], op), taps)
    ones = writer.constant(np.ones((channels, 1, *taps), kind.dtype.numpy))
    name, _ = _first(writer, y)
    _transposed_conv(writer, op, name, ones, window, kind.rank, channels)


BUILDERS: dict[str, Callable[[GraphWriter, Operation], None]] = {
    "conv": conv,
    "conv_input": _conv_input,
    "conv_kernel": _conv_kernel,
    "window_max": _window_max,
    "window_sum": _window_sum,
    "window_pick": _window_pick,
    "window_spread": _window_spread,
}
