"""Matrix products and convolutions as cuBLASLt and cuDNN take them.

A product is column-major matrices, as BLAS has had them since 1979. weft's matrices are row-major:
C = A B there is C' = B' A' here, so the library's A is weft's B. That is also why a bias of one
element per column of C is one per row of the library's D, the only one that its epilogues know.

A convolution is images and filters with strides, (batch, channels, spatial...). weft's images have
their channels last, which is a matter of strides. Its filters are (window..., channels in, channels
out); cuDNN's tensor cores want (channels out, window..., channels in). It accepts strides of weft's
order, too, but plans the same kernels, with no room for a copy in the other order (cuDNN 9.28,
asked without a device), so filters are turned by a kernel of weft's own."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Literal, cast

from weft.codegen.products.gemm import Product
from weft.codegen.windows.geometry import sizes_of
from weft.ir.dataclass import dataclass
from weft.ir.dtypes import MathMode
from weft.ir.graph import Operation
from weft.ir.sizes import same_size
from weft.ir.spec import ints_attr

Epilogue = Literal["none", "bias", "relu", "relu_bias"]

#: Every buffer of a plan begins at a multiple of so many bytes.
ALIGNMENT = 16
_BYTES = {"f16": 2, "bf16": 2, "f32": 4, "f64": 8}
#: Those that libraries take.
GEMM_DTYPES = frozenset(_BYTES)


@dataclass(frozen=True, slots=True)
class Operand:
    """A matrix of `rows` x `columns` in memory, columns after each other, `ld` elements apart; one
    for each product, `stride` elements apart (0: the same for all). offset: of the first one, in
    bytes. transposed: op(X) is its transpose."""

    rows: int
    columns: int
    ld: int
    stride: int = 0
    transposed: bool = False
    offset: int = 0

    @property
    def alignment(self) -> int:
        """Bytes of which its address is a multiple."""
        return math.gcd(ALIGNMENT, self.offset)

    def __str__(self) -> str:
        text = f"{self.rows}x{self.columns}" + "'" * self.transposed + f" ld {self.ld}"
        return text + (f" stride {self.stride}" if self.stride else "")


@dataclass(frozen=True, slots=True)
class Gemm:
    """`batch` products D = op(A) op(B), D of m x n, sums over k, then the epilogue: plus a bias of
    m elements for each column, then max(x, 0).

    dtype: of A, B, D and the bias; f16 and bf16 are summed in f32. mode: how f32 is multiplied.
    """

    dtype: str
    mode: MathMode
    m: int
    n: int
    k: int
    a: Operand
    b: Operand
    d: Operand
    batch: int = 1
    epilogue: Epilogue = "none"

    @property
    def offsets(self) -> tuple[int, ...]:
        """Of D, A, B and the bias, in bytes."""
        return (self.d.offset, self.a.offset, self.b.offset, 0)

    @property
    def key(self) -> str:
        """Equal keys, equal calls but for the addresses."""
        offsets = [x.alignment for x in (self.a, self.b, self.d)]
        return f"{self.describe()}; {self.a} | {self.b} | {self.d}; aligned {offsets}"

    def describe(self) -> str:
        """Sizes as users see them: rows of C, its columns, k."""
        text = f"{self.n} x {self.m} x {self.k}"
        text += f", {self.batch} of them" if self.batch > 1 else ""
        how = f" ({self.mode})" if self.dtype == "f32" else ""
        return f"{text}, {self.dtype}{how}" + f", {self.epilogue}" * (self.epilogue != "none")


def gemm_of(p: Product, mode: MathMode = "ieee", epilogue: Epilogue = "none") -> Gemm | None:
    """The products `p` as a library takes them. None for what it does not: dtypes other than
    floats, nothing to add up, matrices whose rows and columns both have gaps or overlap, batches
    that do not lie at equal distances."""
    if p.dtype not in _BYTES or not (p.m and p.n and p.k and p.c_at):
        return None
    size = _BYTES[p.dtype]
    a = _operand(p.n, p.k, p.b_steps[1], p.b_steps[0], p.b_at, size)
    b = _operand(p.k, p.m, p.a_steps[1], p.a_steps[0], p.a_at, size)
    d = _operand(p.n, p.m, 1, p.c_row, p.c_at, size)
    if a is None or b is None or d is None or d.transposed:
        return None
    batch = len(p.c_at)
    if batch > 1 and d.stride < (p.m - 1) * d.ld + p.n:
        return None
    # tf32 is a way to multiply f32 alone
    mode = mode if p.dtype == "f32" else "ieee"
    return Gemm(p.dtype, mode, p.n, p.m, p.k, a, b, d, batch, epilogue)


def _operand(
    rows: int, columns: int, row_step: int, column_step: int, at: tuple[int, ...], size: int
) -> Operand | None:
    """op(X) is rows x columns with these steps in memory; `at`: where each of the batch begins."""
    stride = _stride(at)
    if stride is None:
        return None
    for transposed in (False, True):
        near, far, inner, outer = (
            (column_step, row_step, columns, rows)
            if transposed
            else (row_step, column_step, rows, columns)
        )
        ld = far if outer > 1 else inner  # one column: there is no next one
        if (near == 1 or inner == 1) and ld >= inner:
            return Operand(inner, outer, ld, stride, transposed, at[0] * size)
    return None


def _stride(at: tuple[int, ...]) -> int | None:
    """The one distance of neighbours, None if there is none."""
    if len(at) == 1:
        return 0
    first, *others = (after - before for before, after in pairwise(at))
    return first if first >= 0 and all(same_size(first, step) for step in others) else None


ConvKind = Literal["conv", "conv_input", "conv_kernel"]
CONVOLUTIONS: frozenset[str] = frozenset({"conv", "conv_input", "conv_kernel"})
#: What cuDNN takes of what weft has. Of f64 it has but slow ways.
CONV_DTYPES = frozenset({"f16", "bf16", "f32"})


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
    if z.dtype not in CONV_DTYPES or 0 in extents:
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
