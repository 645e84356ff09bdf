"""Products of two quantised operands: computed in integers, as ONNX's QDQ form means them.

`integer_products`. Before::

    %1 = astype(%a) {dtype=f32} : f32[64,256]
    %2 = multiply(%1, %sa) : f32[64,256]  (%sa: a number for each row, repeated)
    %3 = astype(%b) {dtype=f32} : f32[32,256]
    %4 = multiply(%3, %sb) : f32[32,256]  (the same)
    %5 = matmul(%2, %4) {transpose_b=true} : f32[64,32]

After::

    %1 = astype(%a) {dtype=i32} : i32[64,256]
    %2 = astype(%b) {dtype=i32} : i32[32,256]
    %3 = matmul(%1, %2) {transpose_b=true} : i32[64,32]
    %4 = astype(%3) {dtype=f32} : f32[64,32]
    %5 = ... %4 times the scales of its row and of its column ...

The sums are exact, `narrow_products` has the product read bytes, and what follows is its epilogue,
quantising for the next product too. A zero point is subtracted with the sums of the other operand:
(a - z) b = a b - z (sum of b's column). The rules:

* both operands are scale * (q - zero) of i8 or u8 (which becomes i8, with a zero less 128), with
  scales that do not change along k, and zeros that are one whole number, of A also one for each
  row;
* A is not transposed, B is one matrix; k is at most `MOST_DEPTH`, so that no sum wraps;
* C has more than `FEW_PRODUCT_ROWS` rows: with fewer, B is best read once, as f32
  (`quantized_matmul`).

A convolution is such a product, too: of what its windows see, gathered as bytes, in rows of all
taps and channels, with the zero point where there is nothing. It must have one scale and zero for
all of its input, one group, and at least `LEAST_CHANNELS` in and out: with fewer the bytes take as
long to gather as the float convolution does.

`integer_matmuls`, for GPUs: the same for matmuls of any number of rows, as no other kernel there
reads bytes. Convolutions stay: theirs gather what windows see as they multiply, so nothing is
stored."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from weft.ir.analysis.known_values import constant_of, uniform
from weft.ir.cost.thresholds import FEW_PRODUCT_ROWS
from weft.ir.dataclass import dataclass
from weft.ir.dims import Shape, product
from weft.ir.dtypes import DType, float32, int8, int16, int32, uint8
from weft.ir.graph import Graph, Operation, Value
from weft.ir.ops.builder import Builder
from weft.ir.ops.windows import sliding_of
from weft.ir.spec import ConstArray, ints_attr
from weft.passes.fusion.quantized_products import turned_matrix
from weft.passes.rewriting.rewrite import emit_at, rewrite, shape_of, tensor

#: Of so many products of bytes less their zeros, 255 * 255 each, a sum fits into 32 bits.
MOST_DEPTH = 1 << 15
#: Channels of a convolution that is computed in integers.
LEAST_CHANNELS = 64


@dataclass(frozen=True, slots=True)
class Affine:
    """scale * (held - zero): held of i8 or u8, scale of one number along k, zero a number, or f32
    of one number along k."""

    held: Value
    scale: Value
    zero: int | Value


def integer_products(graph: Graph) -> Graph:
    """Make integer products of what the module's docstring shows."""

    def rule(builder: Builder, op: Operation) -> Sequence[Value] | None:
        if op.name == "conv":
            made = _convolution(builder, op)
            return None if made is None else [made]
        return _matmul(builder, op, FEW_PRODUCT_ROWS)

    return rewrite(graph, rule)


def integer_matmuls(graph: Graph) -> Graph:
    """`integer_products` for GPUs."""
    return rewrite(graph, lambda builder, op: _matmul(builder, op, 0))


def _matmul(builder: Builder, op: Operation, few: int) -> Sequence[Value] | None:
    """A quantised matmul of more than `few` rows; None for one that stays."""
    if op.name != "matmul" or op.attrs["transpose_a"] or tensor(op.result).dtype is not float32:
        return None
    a, (b, turned) = op.operands[0], turned_matrix(op)
    depth, rows = shape_of(a)[-1], product(shape_of(a)[:-1])
    if tensor(b).rank != 2 or not isinstance(depth, int) or depth > MOST_DEPTH:
        return None
    left, right = affine(a, (tensor(a).rank - 1,)), affine(b, (1 if turned else 0,))
    if left is None or right is None or not isinstance(right.zero, int):
        return None
    if not isinstance(rows, int) or rows <= few:
        return None
    return [_Product(builder, op, turned, depth).write(left, right)]


def affine(value: Value, axes: Sequence[int]) -> Affine | None:
    """What an operand is dequantised from, if scale and zero do not change along `axes`."""
    scaling = value.op
    if scaling is None or scaling.name != "multiply":
        return None
    for numbers, scale in (scaling.operands, scaling.operands[::-1]):
        by, shift = _along(scale, axes), numbers.op
        shifted = shift is not None and shift.name == "subtract"
        made = shift.operands[0].op if shift is not None and shifted else shift
        if by is None or made is None or made.name != "astype":
            continue
        held = made.operands[0]
        if tensor(held).dtype not in (int8, uint8):
            continue
        zero: int | Value | None = 0
        if shift is not None and shifted:
            zero = _zero(shift.operands[1], axes, tensor(held).dtype)
        if zero is not None:
            return Affine(held, by, zero)
    return None


def _zero(value: Value, axes: Sequence[int], dtype: DType) -> int | Value | None:
    """A number that is one of the dtype, so that no sum wraps."""
    number, info = uniform(value), np.iinfo(dtype.name)
    if number is not None:
        fits = float(number) % 1 == 0 and info.min <= float(number) <= info.max
        return int(number) if fits else None
    found = _along(value, axes)
    if found is not None and (known := constant_of(found)) is not None:
        whole = np.all(np.trunc(known.array) == known.array)
        inside = np.all((info.min <= known.array) & (known.array <= info.max))
        return found if whole and inside else None
    # which is whole if it was made from integers
    made = None if found is None else found.op
    while made is not None and made.name in ("reshape", "broadcast_to"):
        made = made.operands[0].op
    if made is None or made.name != "astype":
        return None
    return found if tensor(made.operands[0]).dtype is dtype else None


def _along(value: Value, axes: Sequence[int]) -> Value | None:
    """What `value` repeats along axes, with one element there; None if it does not."""
    op = value.op
    if op is None or op.name != "broadcast_to":
        return None
    source, whole = op.operands[0], shape_of(value)
    own = shape_of(source)
    places = [axis - (len(whole) - len(own)) for axis in axes]
    return source if all(at < 0 or own[at] == 1 for at in places) else None


def _convolution(builder: Builder, op: Operation) -> Value | None:
    """A quantised convolution as a product; None for one that stays."""
    x, w = op.operands
    kinds = [tensor(v) for v in (x, w, op.result)]
    if (
        kinds[2].dtype is not float32
        or not all(k.is_static for k in kinds)
        or op.attrs["groups"] != 1
    ):
        return None
    *window, inside, outside = kinds[1].static_shape
    depth, rows = math.prod(window) * inside, math.prod(kinds[2].static_shape[:-1])
    if min(inside, outside) < LEAST_CHANNELS or depth > MOST_DEPTH or rows <= FEW_PRODUCT_ROWS:
        return None
    left = affine(x, range(kinds[0].rank))
    right = affine(w, range(kinds[1].rank - 1))
    if left is None or right is None:
        return None
    if not isinstance(left.zero, int) or not isinstance(right.zero, int):
        return None
    if min(ints_attr(op.attrs, "lo"), default=0) < 0:
        return None
    made = _Product(builder, op, False, depth)
    held, zero = made.signed(left)
    assert isinstance(zero, int)
    known = constant_of(right.held)
    if known is not None:
        kernel = made.constant(known.array.reshape(depth, outside))
    else:
        kernel = made.emit("reshape", right.held, shape=(depth, outside))
    patches = _patches(made, held, zero, tuple(window))
    return made.write(Affine(patches, left.scale, zero), replace(right, held=kernel))


def _patches(made: _Product, x: Value, zero: int, window: tuple[int, ...]) -> Value:
    """What the windows see of x, [batch, places..., taps * channels]; `zero` outside of it."""
    s = sliding_of(made.op.attrs)
    _, *sizes, channels = tensor(x).static_shape
    batch, *places, _ = tensor(made.op.result).static_shape
    wanted = [
        (o - 1) * step + (k - 1) * apart + 1
        for o, step, k, apart in zip(places, s.strides, window, s.dilation, strict=True)
    ]
    after = [max(0, n - lo - size) for n, lo, size in zip(wanted, s.lo, sizes, strict=True)]
    if any((*s.lo, *after)):
        fill = made.constant(np.array(zero, np.int8))
        x = made.emit("pad", x, fill, lo=(0, *s.lo, 0), hi=(0, *after, 0))
    parts = []
    for tap in itertools.product(*map(range, window)):
        starts = [t * apart for t, apart in zip(tap, s.dilation, strict=True)]
        stops = [
            a + (o - 1) * step + 1 for a, o, step in zip(starts, places, s.strides, strict=True)
        ]
        parts.append(made.emit(
            "slice", x, starts=(0, *starts, 0), stops=(batch, *stops, channels),
            steps=(1, *s.strides, 1),
        ))  # fmt: skip
    return parts[0] if len(parts) == 1 else made.emit("concat", *parts, axis=len(places) + 1)


class _Product:
    """The ops in the place of one product."""

    def __init__(self, builder: Builder, op: Operation, turned: bool, depth: int) -> None:
        self.builder, self.op, self.turned, self.depth = builder, op, turned, depth
        self.shape = shape_of(op.result)

    def write(self, left: Affine, right: Affine) -> Value:
        a, za = self.signed(left)
        b, zb = self.signed(right)
        wide = [self._cast(x, int32) for x in (a, b)]
        total = self.emit("matmul", *wide, transpose_a=False, transpose_b=self.turned)
        if za != 0:
            sums = self._sums(b, 1 if self.turned else 0)
            total = self.emit("subtract", total, self._times(za, self._column(sums)))
        if zb != 0:
            sums = self.emit("sum", wide[0], axes=(len(shape_of(a)) - 1,), keepdims=True)
            sums = self.emit("broadcast_to", sums, shape=self.shape)
            total = self.emit("subtract", total, self._times(zb, sums))
            if za != 0:
                both = self._times(za, self._number(int(zb) * self.depth))  # type: ignore[arg-type]
                total = self.emit("add", total, both)
        made = self._cast(total, float32)
        made = self.emit("multiply", made, self._spread(left.scale))
        return self.emit("multiply", made, self._column(right.scale))

    def emit(self, name: str, *operands: Value, **attrs: object) -> Value:
        return emit_at(self.builder, self.op, name, *operands, **attrs)  # type: ignore[arg-type]

    def _cast(self, value: Value, dtype: DType) -> Value:
        return self.emit("astype", value, dtype=dtype)

    def constant(self, array: np.ndarray[Any, Any]) -> Value:
        return self.emit("constant", value=ConstArray(array))

    def _number(self, number: int) -> Value:
        """An i32 for each element of the result."""
        return self._spread(self.constant(np.array(number, np.int32)))

    def _spread(self, value: Value, shape: Shape | None = None) -> Value:
        """Repeated to the shape of the result."""
        return self.emit("broadcast_to", value, shape=self.shape if shape is None else shape)

    def signed(self, given: Affine) -> tuple[Value, int | Value]:
        """As i8, with the zero that is then meant."""
        if tensor(given.held).dtype is int8:
            return given.held, given.zero
        half = self.constant(np.array(128, np.int16))
        wide = self._cast(given.held, int16)
        held = self.emit("subtract", wide, self._spread(half, shape_of(wide)))
        if isinstance(given.zero, int):
            zero: int | Value = given.zero - 128
        else:
            less = self.constant(np.array(128, np.float32))
            zero = self.emit("subtract", given.zero, self._spread(less, shape_of(given.zero)))
        return self._cast(held, int8), zero

    def _sums(self, b: Value, axis: int) -> Value:
        """The sums of B over k: computed here of a constant."""
        known = constant_of(b)
        if known is not None:
            return self.constant(known.array.sum(axis, dtype=np.int32, keepdims=True))
        return self.emit("sum", self._cast(b, int32), axes=(axis,), keepdims=True)

    def _column(self, value: Value) -> Value:
        """What B has one of for each column, or one for all, as one for each element."""
        n = self.shape[-1]
        if product(shape_of(value)) != 1:
            value = self.emit("reshape", value, shape=(n,))
        elif shape_of(value) != ():
            value = self.emit("reshape", value, shape=())
        return self._spread(value)

    def _times(self, zero: int | Value, sums: Value) -> Value:
        by = self._number(zero) if isinstance(zero, int) else self._spread(self._cast(zero, int32))
        return self.emit("multiply", by, sums)
