"""`wf.nn`: convolutions and transposed convolutions, over windows of 1 to 3 spatial axes.

Arrays are (batch, spatial..., channels), or (batch, channels, spatial...) with
data_format="NCW" / "NCHW" / "NCDHW"; kernels are (window..., channels in / groups, channels out) in
either case. As everywhere in machine learning the window is not reversed. Dtypes promote; 16-bit
floats accumulate in float32, integers wrap.

strides, dilations: a number, or one per spatial axis (TF1's lists with ones for batch and channels
are taken too). padding: "SAME" (TensorFlow's), "VALID" (none), a number, or a number or a pair
(before, after) per spatial axis. Errors, at the caller's line: ShapeError for sizes and channels
that do not fit, InvalidArgumentError for wrong arguments.

Data formats, strides and padding (`Layout`, `Window`) are pooling's too: all is turned into one
number (padding: one pair) per spatial axis; arrays become (batch, spatial..., channels) on the way
in and what the data format says on the way out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from weft.frontend.core.tensor import Tensor
from weft.frontend.ops.dispatch import apply
from weft.frontend.ops.manipulation import permute_dims, reshape
from weft.frontend.ops.promotion import TensorLike, check_int, promote_tensors
from weft.ir.dataclass import dataclass
from weft.ir.dims import Dim
from weft.ir.errors import InvalidArgumentError, ShapeError
from weft.ir.locations import caller_location
from weft.ir.types import TensorType

#: `padding=`: "SAME", "VALID", a number for all sides, or one number or pair for each spatial axis.
Padding = str | int | Sequence[int | Sequence[int]]
#: `strides=`, `dilations=`, `ksize=`: one number, or one for each spatial axis.
PerAxis = int | Sequence[int]

_FORMATS = {1: ("NWC", "NCW"), 2: ("NHWC", "NCHW"), 3: ("NDHWC", "NCDHW")}


def type_of(t: Tensor) -> TensorType:
    """What errors call a tensor: f32[32,28,28,3]."""
    return TensorType(t.dtype, t.shape)


@dataclass(frozen=True, slots=True)
class Layout:
    """The public function's name, the number of spatial axes, and whether channels come second."""

    op: str
    axes: int
    channels_first: bool

    def enter(self, x: Tensor) -> Tensor:
        """`x` as (batch, spatial..., channels)."""
        return permute_dims(x, (0, *range(2, x.ndim), 1)) if self.channels_first else x

    def leave(self, y: Tensor) -> Tensor:
        """(batch, spatial..., channels) in the caller's format."""
        return permute_dims(y, (0, y.ndim - 1, *range(1, y.ndim - 1))) if self.channels_first else y

    def error(self, text: str, hint: str | None = None) -> InvalidArgumentError:
        """An error of this function at the user's line."""
        return InvalidArgumentError(
            f"wf.nn.{self.op}: {text}", hint=hint, location=caller_location()
        )

    def shape_error(self, text: str, hint: str | None = None) -> ShapeError:
        """A ShapeError of this function at the user's line."""
        return ShapeError(f"wf.nn.{self.op}: {text}", hint=hint, location=caller_location())

    def per_axis(self, value: object, name: str, least: int = 1) -> tuple[int, ...]:
        """One number for each spatial axis; TF1's lists with a 1 for batch and channels too."""
        if not isinstance(value, (tuple, list)):
            return (self._number(value, name, least),) * self.axes
        given = [self._number(v, name, least) for v in value]
        if len(given) == 1:
            return tuple(given) * self.axes
        if len(given) == self.axes + 2:
            spatial, others = self.apart(given)
            if any(v != 1 for v in others):
                raise self.error(f"{name} {list(given)} must be 1 for batch and channels")
            given = spatial
        if len(given) != self.axes:
            raise self.error(
                f"{name} {list(value)} must be one number or {self.axes}, one per spatial axis"
            )
        return tuple(given)

    def apart(self, values: list[Any]) -> tuple[list[Any], list[Any]]:
        """The values of the spatial axes, and those of batch and channels."""
        if self.channels_first:
            return values[2:], values[:2]
        return values[1:-1], [values[0], values[-1]]

    def _number(self, value: object, name: str, least: int) -> int:
        number = check_int(f"nn.{self.op}", value, name)
        if number < least:
            raise self.error(f"{name} must be at least {least}, got {number}")
        return number

    def spatial(self, x: Tensor) -> tuple[int, ...]:
        """The spatial sizes of a (batch, spatial..., channels) array, which must be known."""
        sizes = tuple(d for d in x.shape[1:-1] if isinstance(d, int))
        if len(sizes) != self.axes:
            raise self.shape_error(
                f"the spatial sizes of {type_of(x)} must be known",
                "only the batch may be a dimension without a size",
            )
        return sizes

    def pairs(
        self,
        padding: Padding,
        sizes: Sequence[int],
        window: Sequence[int],
        strides: Sequence[int],
    ) -> list[tuple[int, int]]:
        """(before, after) for each spatial axis; `window` with dilation counted in."""
        if isinstance(padding, str):
            kind = padding.upper()
            if kind == "VALID":
                return [(0, 0)] * self.axes
            if kind != "SAME":
                raise self.error(
                    f"padding {padding!r} is unknown",
                    '"SAME", "VALID", a number, or a pair (before, after) per spatial axis',
                )
            return [same_padding(*v) for v in zip(sizes, window, strides, strict=True)]
        if not isinstance(padding, (tuple, list)):
            return [(self._number(padding, "padding", 0),) * 2] * self.axes
        given: list[Any] = list(padding)
        if len(given) == self.axes + 2:
            given, others = self.apart(given)
            if any(v not in (0, (0, 0), [0, 0]) for v in others):
                raise self.error(f"padding {padding!r} must be 0 for batch and channels")
        if len(given) != self.axes:
            raise self.error(f"padding {padding!r} needs {self.axes} entries, one per spatial axis")
        return [self._pair(v) for v in given]

    def _pair(self, value: object) -> tuple[int, int]:
        if isinstance(value, (tuple, list)):
            if len(value) != 2:
                raise self.error(f"a padding must be (before, after), got {value!r}")
            lo, hi = (self._number(v, "padding", 0) for v in value)
            return lo, hi
        both = self._number(value, "padding", 0)
        return both, both


def same_padding(size: int, window: int, stride: int) -> tuple[int, int]:
    """TensorFlow's SAME: ceil(size / stride) results, the odd element of padding after."""
    out = -(-size // stride)
    total = max((out - 1) * stride + window - size, 0)
    return total // 2, total - total // 2


def layout_of(op: str, x: Tensor, data_format: str | None, axes: int | None = None) -> Layout:
    """The layout of `x`; axes: how many spatial axes it must have (None: 1 to 3)."""
    found = x.ndim - 2
    if found not in _FORMATS or (axes is not None and found != axes):
        wanted = f"{axes}" if axes is not None else "1 to 3"
        raise ShapeError(
            f"wf.nn.{op}: x must have {wanted} spatial axes beside batch and channels, got "
            f"{type_of(x)}",
            hint="wf.expand_dims(x, 0) makes a batch of one",
            location=caller_location(),
        )
    last, first = _FORMATS[found]
    if data_format not in (None, last, first):
        raise InvalidArgumentError(
            f"wf.nn.{op}: data_format {data_format!r} is unknown",
            hint=f"it is {last!r} or {first!r} for {found} spatial axes",
            location=caller_location(),
        )
    return Layout(op, found, data_format == first)


@dataclass(frozen=True, slots=True)
class Window:
    """How a window slides: one number (padding: a pair) per spatial axis; sizes of the result."""

    window: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    size: tuple[int, ...]

    @property
    def attrs(self) -> dict[str, tuple[int, ...]]:
        """The attributes of IR ops that slide."""
        lo = tuple(p for p, _ in self.padding)
        return {"strides": self.strides, "lo": lo, "dilation": self.dilations}


def slide(
    layout: Layout,
    sizes: tuple[int, ...],
    window: tuple[int, ...],
    strides: PerAxis,
    padding: Padding,
    dilations: PerAxis,
    name: Callable[[], str],
) -> Window:
    """A window over `sizes`. ShapeError if it is larger than the padded input, called `name()`."""
    steps, spread = layout.per_axis(strides, "strides"), layout.per_axis(dilations, "dilations")
    reach = [d * (k - 1) + 1 if k else 0 for k, d in zip(window, spread, strict=True)]
    pairs = layout.pairs(padding, sizes, reach, steps)
    out = []
    for axis, (n, k, s, (lo, hi)) in enumerate(zip(sizes, reach, steps, pairs, strict=True)):
        if n + lo + hi < k:
            raise layout.shape_error(
                f"{name()}: along spatial axis {axis} the window reaches over {k} elements, the "
                f"input has {n} and padding {lo} + {hi}",
                'padding="SAME" keeps the size, or make the input larger',
            )
        out.append((n + lo + hi - k) // s + 1)
    return Window(window, steps, spread, tuple(pairs), tuple(out))


def conv(
    x: TensorLike,
    kernel: TensorLike,
    strides: PerAxis = 1,
    padding: Padding = "VALID",
    *,
    data_format: str | None = None,
    dilations: PerAxis = 1,
    groups: int = 1,
) -> Tensor:
    """The convolution of x by `kernel` over all its spatial axes, 1 to 3.

    groups: the channels are cut into so many groups, each with its part of the kernels (also called
    feature groups).

    >>> x, kernel = wf.ones([1, 5, 8]), wf.ones([3, 4, 6])  # one spatial axis
    >>> wf.nn.conv(x, kernel, groups=2).shape  # 4 of 8 channels for each half of the 6
    (1, 3, 6)
    """
    return _conv("conv", None, x, kernel, strides, padding, data_format, dilations, groups)


def conv1d(
    x: TensorLike,
    kernel: TensorLike,
    strides: PerAxis = 1,
    padding: Padding = "VALID",
    *,
    data_format: str | None = None,
    dilations: PerAxis = 1,
    groups: int = 1,
) -> Tensor:
    """`conv` of (batch, width, channels) by a kernel (window, channels in / groups, channels
    out).

    >>> x = wf.reshape(wf.asarray([1, 2, 4, 8]), [1, 4, 1])
    >>> kernel = wf.reshape(wf.asarray([10, 1]), [2, 1, 1])
    >>> wf.nn.conv1d(x, kernel)[0, :, 0]  # 10*1 + 1*2, ...
    Tensor([12, 24, 48], dtype=int64)
    """
    return _conv("conv1d", 1, x, kernel, strides, padding, data_format, dilations, groups)


def conv2d(
    x: TensorLike,
    kernel: TensorLike,
    strides: PerAxis = 1,
    padding: Padding = "VALID",
    *,
    data_format: str | None = None,
    dilations: PerAxis = 1,
    groups: int = 1,
) -> Tensor:
    """`conv` of (batch, height, width, channels) by a kernel (height, width, channels in / groups,
    channels out).

    >>> x, kernel = wf.ones([1, 28, 28, 3]), wf.ones([5, 5, 3, 16])
    >>> wf.nn.conv2d(x, kernel).shape, wf.nn.conv2d(x, kernel, strides=2, padding="SAME").shape
    ((1, 24, 24, 16), (1, 14, 14, 16))
    >>> wf.nn.conv2d(wf.ones([1, 3, 28, 28]), kernel, data_format="NCHW").shape
    (1, 16, 24, 24)
    """
    return _conv("conv2d", 2, x, kernel, strides, padding, data_format, dilations, groups)


def conv3d(
    x: TensorLike,
    kernel: TensorLike,
    strides: PerAxis = 1,
    padding: Padding = "VALID",
    *,
    data_format: str | None = None,
    dilations: PerAxis = 1,
    groups: int = 1,
) -> Tensor:
    """`conv` of (batch, depth, height, width, channels).

    >>> wf.nn.conv3d(wf.ones([1, 4, 8, 8, 2]), wf.ones([3, 3, 3, 2, 5]), padding="SAME").shape
    (1, 4, 8, 8, 5)
    """
    return _conv("conv3d", 3, x, kernel, strides, padding, data_format, dilations, groups)


def depthwise_conv2d(
    x: TensorLike,
    kernel: TensorLike,
    strides: PerAxis = 1,
    padding: Padding = "VALID",
    *,
    data_format: str | None = None,
    dilations: PerAxis = 1,
) -> Tensor:
    """Each channel by kernels of its own: kernel is (height, width, channels, multiplier), and
    result channel c * multiplier + q comes from channel c by kernel[:, :, c, q].

    >>> x, kernel = wf.asarray([[[[1, 10]]]]), wf.asarray([[[[1, 2], [3, 4]]]])
    >>> wf.nn.depthwise_conv2d(x, kernel)[0, 0, 0]  # 2 channels, multiplier 2
    Tensor([ 1,  2, 30, 40], dtype=int64)
    """
    return _depthwise("depthwise_conv2d", 2, x, kernel, strides, padding, data_format, dilations)


def depthwise_conv1d(
    x: TensorLike,
    kernel: TensorLike,
    strides: PerAxis = 1,
    padding: Padding = "VALID",
    *,
    data_format: str | None = None,
    dilations: PerAxis = 1,
) -> Tensor:
    """`depthwise_conv2d` with one spatial axis: kernel is (window, channels, multiplier).

    >>> wf.nn.depthwise_conv1d(wf.asarray([[[1, 10], [2, 20]]]), wf.asarray([[[1], [3]]]))[0]
    Tensor([[ 1, 30],
            [ 2, 60]], dtype=int64)
    """
    return _depthwise("depthwise_conv1d", 1, x, kernel, strides, padding, data_format, dilations)


def _depthwise(
    op: str,
    axes: int,
    x: TensorLike,
    kernel: TensorLike,
    strides: PerAxis,
    padding: Padding,
    data_format: str | None,
    dilations: PerAxis,
) -> Tensor:
    t, w = promote_tensors(x, kernel, op=f"nn.{op}")
    layout = layout_of(op, t, data_format, axes)
    channels = layout.enter(t).shape[-1]
    if w.ndim != axes + 2 or not isinstance(channels, int) or w.shape[-2] != channels:
        raise layout.shape_error(
            f"x {type_of(t)} has {channels} channels, kernel {type_of(w)} does not fit",
            f"kernel is ({'height, width' if axes == 2 else 'window'}, channels, multiplier)",
        )
    flat = reshape(w, (*w.shape[:-2], 1, channels * _known(layout, w, axes + 1)))
    return _conv(op, axes, t, flat, strides, padding, data_format, dilations, max(channels, 1))


def separable_conv2d(
    x: TensorLike,
    depthwise_kernel: TensorLike,
    pointwise_kernel: TensorLike,
    strides: PerAxis = 1,
    padding: Padding = "VALID",
    *,
    data_format: str | None = None,
    dilations: PerAxis = 1,
) -> Tensor:
    """`depthwise_conv2d`, then `conv2d` by the 1x1 `pointwise_kernel`.

    >>> depthwise, pointwise = wf.ones([3, 3, 3, 2]), wf.ones([1, 1, 6, 4])
    >>> wf.nn.separable_conv2d(wf.ones([1, 8, 8, 3]), depthwise, pointwise).shape
    (1, 6, 6, 4)
    """
    seen = depthwise_conv2d(
        x, depthwise_kernel, strides, padding, data_format=data_format, dilations=dilations
    )
    return conv2d(seen, pointwise_kernel, data_format=data_format)


def separable_conv1d(
    x: TensorLike,
    depthwise_kernel: TensorLike,
    pointwise_kernel: TensorLike,
    strides: PerAxis = 1,
    padding: Padding = "VALID",
    *,
    data_format: str | None = None,
    dilations: PerAxis = 1,
) -> Tensor:
    """`depthwise_conv1d`, then `conv1d` by the `pointwise_kernel`, whose window is 1.

    >>> wf.nn.separable_conv1d(wf.ones([1, 8, 3]), wf.ones([3, 3, 2]), wf.ones([1, 6, 4])).shape
    (1, 6, 4)
    """
    seen = depthwise_conv1d(
        x, depthwise_kernel, strides, padding, data_format=data_format, dilations=dilations
    )
    return conv1d(seen, pointwise_kernel, data_format=data_format)


def _known(layout: Layout, t: Tensor, axis: int) -> int:
    size = t.shape[axis]
    if not isinstance(size, int):
        raise layout.shape_error(f"the size of axis {axis} of {type_of(t)} must be known")
    return size


def _window(layout: Layout, w: Tensor) -> tuple[int, ...]:
    """The window of a kernel, checked to fit the number of spatial axes."""
    if w.ndim != layout.axes + 2:
        raise layout.shape_error(
            f"kernel {type_of(w)} must have {layout.axes + 2} axes",
            "it is (window..., channels in / groups, channels out)",
        )
    return tuple(_known(layout, w, axis) for axis in range(layout.axes))


def _groups(layout: Layout, groups: int, channels: Dim, w: Tensor) -> int:
    count = check_int(f"nn.{layout.op}", groups, "groups")
    for size, what in ((channels, "channels in"), (w.shape[-1], "channels out")):
        if count < 1 or (isinstance(size, int) and size % count):
            raise layout.error(f"groups={count} does not divide {size} {what}")
    return count


def _conv(
    op: str,
    axes: int | None,
    x: TensorLike,
    kernel: TensorLike,
    strides: PerAxis,
    padding: Padding,
    data_format: str | None,
    dilations: PerAxis,
    groups: int,
) -> Tensor:
    t, w = promote_tensors(x, kernel, op=f"nn.{op}")
    layout = layout_of(op, t, data_format, axes)
    window, seen = _window(layout, w), layout.enter(t)
    channels = seen.shape[-1]
    count = _groups(layout, groups, channels, w)
    inside = w.shape[-2]
    if isinstance(channels, int) and isinstance(inside, int) and channels != inside * count:
        raise layout.shape_error(
            f"x {type_of(t)} has {channels} channels, kernel {type_of(w)} takes {inside}"
            + (f" in each of {count} groups" if count > 1 else ""),
            "kernel is (window..., channels in / groups, channels out); "
            "data_format says where the channels of x are",
        )
    sizes = layout.spatial(seen)
    how = slide(
        layout, sizes, window, strides, padding, dilations,
        lambda: f"x {type_of(t)}, kernel {type_of(w)}",
    )  # fmt: skip
    return layout.leave(apply("conv", seen, w, **how.attrs, groups=count, size=how.size))


def conv1d_transpose(
    x: TensorLike,
    kernel: TensorLike,
    output_shape: Sequence[Dim] | int | None = None,
    strides: PerAxis = 1,
    padding: Padding = "SAME",
    *,
    data_format: str | None = None,
    dilations: PerAxis = 1,
    groups: int = 1,
) -> Tensor:
    """`conv2d_transpose` with one spatial axis.

    >>> x, kernel = wf.reshape(wf.asarray([1, 2]), [1, 2, 1]), wf.ones([3, 1, 1], dtype=wf.int64)
    >>> wf.nn.conv1d_transpose(x, kernel, strides=2, padding="VALID")[0, :, 0]
    Tensor([1, 1, 3, 2, 2], dtype=int64)
    """
    return _transpose(
        "conv1d_transpose", 1, x, kernel, output_shape, strides, padding, data_format, dilations,
        groups,
    )  # fmt: skip


def conv2d_transpose(
    x: TensorLike,
    kernel: TensorLike,
    output_shape: Sequence[Dim] | int | None = None,
    strides: PerAxis = 1,
    padding: Padding = "SAME",
    *,
    data_format: str | None = None,
    dilations: PerAxis = 1,
    groups: int = 1,
) -> Tensor:
    """The transpose (adjoint) of the convolution that takes the result's shape to that of x.

    kernel: that convolution's, (window..., channels of the result / groups, channels of x), as in
    TF1. output_shape: the shape of the result, or its spatial sizes; None: size * stride for
    "SAME", else the smallest that fits, (size - 1) * stride + window - padding.

    >>> x, kernel = wf.ones([1, 7, 7, 16]), wf.ones([5, 5, 3, 16])
    >>> wf.nn.conv2d_transpose(x, kernel, strides=2).shape
    (1, 14, 14, 3)
    >>> wf.nn.conv2d_transpose(x, kernel, output_shape=[13, 13], strides=2).shape
    (1, 13, 13, 3)
    """
    return _transpose(
        "conv2d_transpose", 2, x, kernel, output_shape, strides, padding, data_format, dilations,
        groups,
    )  # fmt: skip


def conv3d_transpose(
    x: TensorLike,
    kernel: TensorLike,
    output_shape: Sequence[Dim] | int | None = None,
    strides: PerAxis = 1,
    padding: Padding = "SAME",
    *,
    data_format: str | None = None,
    dilations: PerAxis = 1,
    groups: int = 1,
) -> Tensor:
    """`conv2d_transpose` with three spatial axes.

    >>> x, kernel = wf.ones([1, 2, 4, 4, 8]), wf.ones([3, 3, 3, 5, 8])
    >>> wf.nn.conv3d_transpose(x, kernel, strides=(1, 2, 2)).shape
    (1, 2, 8, 8, 5)
    """
    return _transpose(
        "conv3d_transpose", 3, x, kernel, output_shape, strides, padding, data_format, dilations,
        groups,
    )  # fmt: skip


def _transpose(
    op: str,
    axes: int,
    x: TensorLike,
    kernel: TensorLike,
    output_shape: Sequence[Dim] | int | None,
    strides: PerAxis,
    padding: Padding,
    data_format: str | None,
    dilations: PerAxis,
    groups: int,
) -> Tensor:
    t, w = promote_tensors(x, kernel, op=f"nn.{op}")
    layout = layout_of(op, t, data_format, axes)
    window, seen = _window(layout, w), layout.enter(t)
    channels, outside = seen.shape[-1], w.shape[-1]
    if isinstance(channels, int) and isinstance(outside, int) and channels != outside:
        raise layout.shape_error(
            f"x {type_of(t)} has {channels} channels, kernel {type_of(w)} takes {outside}",
            "kernel is (window..., channels of the result / groups, channels of x)",
        )
    count = _groups(layout, groups, channels, w)
    sizes = layout.spatial(seen)
    inside = w.shape[-2]
    made = inside * count if isinstance(inside, int) else None
    given = _given_sizes(layout, output_shape, (seen.shape[0], made))
    wanted = given or _least_sizes(layout, sizes, window, strides, padding, dilations)
    how = slide(
        layout, wanted, window, strides, padding, dilations,
        lambda: f"x {type_of(t)}, kernel {type_of(w)}",
    )  # fmt: skip
    if how.size != sizes:
        raise layout.shape_error(
            f"a result with spatial sizes {list(wanted)} does not fit x {type_of(t)}: its "
            f"convolution has sizes {list(how.size)}",
            "leave output_shape out, or give one that the convolution takes to x",
        )
    return layout.leave(apply("conv_input", seen, w, **how.attrs, groups=count, size=wanted))


def _given_sizes(
    layout: Layout, output_shape: Sequence[Dim] | int | None, others: tuple[Dim, Dim]
) -> tuple[int, ...] | None:
    """The spatial sizes that `output_shape` asks for; its batch and channels must be `others`."""
    if output_shape is None:
        return None
    given = list(output_shape) if isinstance(output_shape, (tuple, list)) else [output_shape]
    if len(given) != layout.axes + 2:
        return layout.per_axis(given, "output_shape", 0)
    spatial, rest = layout.apart(given)
    for what, size, made in zip(("batch", "channels"), rest, others, strict=True):
        if isinstance(size, (int, np.integer)) and isinstance(made, int) and size != made:
            raise layout.shape_error(
                f"output_shape {given} has {size} for the {what}, the result has {made}",
                "data_format says where the channels are",
            )
    return layout.per_axis(spatial, "output_shape", 0)


def _least_sizes(
    layout: Layout,
    sizes: tuple[int, ...],
    window: tuple[int, ...],
    strides: PerAxis,
    padding: Padding,
    dilations: PerAxis,
) -> tuple[int, ...]:
    """The spatial sizes of a transposed convolution's result where none are asked for."""
    steps, spread = layout.per_axis(strides, "strides"), layout.per_axis(dilations, "dilations")
    if isinstance(padding, str) and padding.upper() == "SAME":
        return tuple(n * s for n, s in zip(sizes, steps, strict=True))
    reach = [d * (k - 1) + 1 if k else 0 for k, d in zip(window, spread, strict=True)]
    pairs = layout.pairs(padding, sizes, reach, steps)
    return tuple(
        max(0, (n - 1) * s + k - lo - hi)
        for n, s, k, (lo, hi) in zip(sizes, steps, reach, pairs, strict=True)
    )
