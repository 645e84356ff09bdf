"""Convolutions with few results per channel, as products of a matrix of few rows.

Before::

    %0 = conv(%x, %w) {strides=[2], lo=[1], dilation=[1], groups=1, size=[2]} : f32[1,2,64]

After, where %x is f32[1,3,16] and %w is f32[3,16,64]::

    %0 = pad(%x, 0) {lo=[0, 1, 0], hi=[0, 1, 0]} : f32[1,5,16]
    %1 = slice(%0) {starts=[0, 0, 0], stops=[1, 3, 16]} : f32[1,3,16]
    %2 = slice(%0) {starts=[0, 2, 0], stops=[1, 5, 16]} : f32[1,3,16]
    %3 = concat(reshape(%1), reshape(%2)) {axis=1} : f32[1,2,48]
    %4 = matmul(reshape(%3), reshape(%w)) : f32[2,64]
    %5 = reshape(%4) : f32[1,2,64]

A convolution's kernel packs weights that are no constants in each call, which many pixels pay for
and few do not; a product of few rows reads them where they lie (`NARROW_ROWS`). Of constants both
read panels, but a product has no patch to copy and no pixels beyond its rows. Taps that see nothing
but padding are cut off first, with their weights: of a window of three over one position a third is
left.

Left alone are groups, sizes that are open, and other dtypes than f32 and f64: sums of integers cost
more than their weights."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product

from weft.ir.dims import Dim
from weft.ir.dtypes import float32, float64
from weft.ir.graph import Graph, Operation, Value
from weft.ir.ops.builder import Builder
from weft.ir.ops.windows import Sliding, sliding_of
from weft.ir.sizes import is_traced
from weft.ir.spec import int_attr, ints_attr
from weft.passes.rewriting.expression import Expr
from weft.passes.rewriting.rewrite import rewrite, shape_of, tensor

#: Results per channel, at most. By AVX2 and AVX-512, times of a convolution over those of the
#: product: 1.0 to 5 up to 8 rows, 0.8 to 1.5 at 16 (large windows of one channel: 3).
MOST_ROWS = 8


def small_convolutions(graph: Graph) -> Graph:
    """Products for convolutions of few results (see the module's text), inside regions too."""
    return rewrite(graph, _as_product)


def _as_product(builder: Builder, op: Operation) -> Sequence[Value] | None:
    if op.name != "conv" or int_attr(op.attrs, "groups") != 1 or not _is_small(op):
        return None
    x, w = (Expr(builder, v, op.locations) for v in op.operands)
    size = ints_attr(op.attrs, "size")
    seen = _seen_taps(x, w, sliding_of(op.attrs), size)
    if seen is None:
        return None
    w, sliding = seen
    window = _known(w.shape[:-2])
    x = _padded(x, sliding, window, size)
    depth = math.prod(window) * _known(w.shape[-2:-1])[0]
    if depth != x.shape[-1] or x.shape[1:-1] != size:
        rows = [
            _patch(x, at, window, sliding).reshape((x.shape[0], 1, depth))
            for at in product(*map(range, size))
        ]
        x = rows[0].op("concat", *rows[1:], axis=1) if len(rows) > 1 else rows[0]
    shape = shape_of(op.result)
    x = x.reshape((math.prod(_known(shape[:-1])), depth))
    weights = w.reshape((depth, w.shape[-1]))
    made = x.op("matmul", weights, transpose_a=False, transpose_b=False)
    return [made.reshape(shape).value]


def _is_small(op: Operation) -> bool:
    x, w, out = (tensor(v) for v in (*op.operands, op.result))
    if out.dtype not in (float32, float64) or not (x.is_static and w.is_static):
        return False
    sizes = _known((*x.shape, *w.shape, *out.shape))
    if any(is_traced(n) for n in sizes) or 0 in sizes:
        return False
    return math.prod(_known(out.shape[:-1])) <= MOST_ROWS


def _known(shape: Sequence[Dim]) -> tuple[int, ...]:
    """Sizes, all of which are known."""
    return tuple(n for n in shape if isinstance(n, int))


def _seen_taps(x: Expr, w: Expr, s: Sliding, size: Sequence[int]) -> tuple[Expr, Sliding] | None:
    """The weights without the first and last taps that meet no element, and where the rest is; None
    if none is left."""
    lo = list(s.lo)
    for axis, (large, small) in enumerate(zip(_known(x.shape[1:-1]), size, strict=True)):
        seen = [
            tap
            for tap in range(_known(w.shape)[axis])
            if _meets(tap * s.dilation[axis] - s.lo[axis], s.strides[axis], large, small)
        ]
        if not seen:
            return None
        if seen[-1] - seen[0] + 1 < _known(w.shape)[axis]:
            w = w.slice_axis(axis, seen[0], seen[-1] + 1)
        lo[axis] -= seen[0] * s.dilation[axis]
    return w, Sliding(s.strides, tuple(lo), s.dilation)


def _meets(start: int, stride: int, large: int, small: int) -> bool:
    """Whether one of `small` positions from `start` on is one of `large`."""
    return any(0 <= start + i * stride < large for i in range(small))


def _padded(x: Expr, s: Sliding, window: Sequence[int], size: Sequence[int]) -> Expr:
    """`x` from the first position that a window sees to the last, zeros where it has none."""
    before, after = [0] * x.rank, [0] * x.rank
    for i, (lo, n) in enumerate(zip(s.lo, size, strict=True)):
        large = _known(x.shape)[i + 1]
        end = (n - 1) * s.strides[i] + (window[i] - 1) * s.dilation[i] + 1 - lo
        before[i + 1], after[i + 1] = max(lo, 0), max(end - large, 0)
        if lo < 0:
            x = x.slice_axis(i + 1, -lo, large)
    if not any(before + after):
        return x
    return x.op("pad", x.scalar(0), lo=tuple(before), hi=tuple(after))


def _patch(x: Expr, at: Sequence[int], window: Sequence[int], s: Sliding) -> Expr:
    """What the window sees of each image at one position."""
    starts, stops, steps = [0], list(_known(x.shape[:1])), [1]
    for o, k, stride, step in zip(at, window, s.strides, s.dilation, strict=True):
        starts.append(o * stride)
        stops.append(o * stride + (k - 1) * step + 1)
        steps.append(step)
    channels = _known(x.shape[-1:])[0]
    attrs = {"starts": (*starts, 0), "stops": (*stops, channels), "steps": (*steps, 1)}
    return x.op("slice", **attrs)
