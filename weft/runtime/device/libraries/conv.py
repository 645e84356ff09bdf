"""A convolution as cuDNN takes it: images and filters with strides, (batch, channels, spatial...).

weft's images have their channels last, which is a matter of strides. Its filters are (window...,
channels in, channels out); cuDNN's tensor cores want (channels out, window..., channels in). It
accepts strides of weft's order, too, but plans the same kernels, with no room for a copy in the
other order (cuDNN 9.28, asked without a device), so filters are turned by a kernel of weft's own.
"""

from __future__ import annotations

import math
from typing import Literal, cast

from weft.codegen.windows.geometry import sizes_of
from weft.ir.dataclass import dataclass
from weft.ir.dtypes import MathMode
from weft.ir.graph import Operation
from weft.ir.sizes import same_size
from weft.ir.type_rules import ints_attr

ConvKind = Literal["conv", "conv_input", "conv_kernel"]
CONVOLUTIONS: frozenset[str] = frozenset({"conv", "conv_input", "conv_kernel"})
#: What cuDNN takes of what weft has. Of f64 it has but slow ways.
DTYPES = frozenset({"f16", "bf16", "f32"})


@dataclass(frozen=True, slots=True)
class Conv:
    """One of the three forms of a convolution (`weft/ir/ops/windows.py`).

    x: (batch, large..., groups * inside), y: (batch, small..., groups * outside), the filter:
    (groups * outside, window..., inside), in this order in memory. pre, post: zeros that x has
    around it, in thought. Two or three spatial axes; dtype: of all three, sums are in f32.
    """

    kind: ConvKind
    dtype: str
    mode: MathMode
    batch: int
    groups: int
    inside: int
    outside: int
    large: tuple[int, ...]
    window: tuple[int, ...]
    small: tuple[int, ...]
    strides: tuple[int, ...]
    pre: tuple[int, ...]
    post: tuple[int, ...]
    dilation: tuple[int, ...]

    @property
    def epilogue(self) -> str:
        """None: what follows is a kernel of weft's own."""
        return "none"

    @property
    def offsets(self) -> tuple[int, ...]:
        """Of the result and the operands: whole buffers."""
        return (0, 0, 0)

    @property
    def k(self) -> int:
        """Products in each sum, at most."""
        taps = math.prod(self.window)
        if self.kind == "conv_kernel":
            return self.batch * math.prod(self.small)
        return taps * (self.inside if self.kind == "conv" else self.outside)

    @property
    def key(self) -> str:
        """Equal keys, equal calls but for the addresses."""
        walk = f"strides {self.strides} pre {self.pre} post {self.post} dilation {self.dilation}"
        return f"{self.describe()}; {walk}"

    def describe(self) -> str:
        """Sizes, as users see them: x, the filter, y."""
        x = (self.batch, *self.large, self.groups * self.inside)
        w = (*self.window, self.inside, self.groups * self.outside)
        y = (self.batch, *self.small, self.groups * self.outside)
        sizes = " ".join("x".join(map(str, shape)) for shape in (x, w, y))
        groups = f", {self.groups} groups" if self.groups > 1 else ""
        mode = f" ({self.mode})" if self.dtype == "f32" else ""
        return f"{self.kind} {sizes}{groups}, {self.dtype}{mode}"


def conv_of(op: Operation, mode: MathMode) -> Conv | None:
    """A `conv`, `conv_input` or `conv_kernel` as cuDNN takes it. None for what it does not: other
    dtypes, sizes of 0, results of other sizes than padding by zeros gives."""
    z = sizes_of(op)
    extents = (z.batch, z.groups, z.inside, z.outside, *z.large, *z.window, *z.small)
    if z.dtype not in DTYPES or 0 in extents:
        return None
    # sizes_of makes three axes of one and two: the middle one is the one more
    kept = (0, 1, 2) if len(ints_attr(op.attrs, "strides")) == 3 else (0, 2)
    post = []
    for a in kept:
        reach = (z.window[a] - 1) * z.dilation[a] + 1
        last = (z.small[a] - 1) * z.strides[a] + reach
        after = last - z.large[a] - z.lo[a]
        after = after if after > 0 else 0
        made = (z.large[a] + z.lo[a] + after - reach) // z.strides[a] + 1
        if z.lo[a] < 0 or not same_size(made, z.small[a]):
            return None
        post.append(after)

    def axes(values: tuple[int, ...]) -> tuple[int, ...]:
        return tuple([values[a] for a in kept])

    return Conv(
        cast(ConvKind, op.name), z.dtype, mode if z.dtype == "f32" else "ieee", z.batch, z.groups,
        z.inside, z.outside, axes(z.large), axes(z.window), axes(z.small), axes(z.strides),
        axes(z.lo), tuple(post), axes(z.dilation),
    )  # fmt: skip
