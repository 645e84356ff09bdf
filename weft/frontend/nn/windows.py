"""Arguments that convolutions and pooling share: data formats, strides, padding.

Everything is turned into one number (padding: one pair) per spatial axis; arrays become (batch,
spatial..., channels) on the way in and what the data format says on the way out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from weft.frontend.ops.arguments import check_int
from weft.frontend.ops.shape import permute_dims
from weft.frontend.tensor import Tensor
from weft.ir.dataclass import dataclass
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
            return [_same(*v) for v in zip(sizes, window, strides, strict=True)]
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


def _same(size: int, window: int, stride: int) -> tuple[int, int]:
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
