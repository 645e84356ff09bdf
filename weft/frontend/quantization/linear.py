"""Numbers of few bits for floats, as ONNX's QuantizeLinear and DequantizeLinear: x is
scale * (q - zero_point), with one scale and zero point for a tensor, for each place of an axis, or
for each block of an axis.

`fake_quantize` is both in floats, with a gradient: Y. Bengio et al., "Estimating or propagating
gradients through stochastic neurons for conditional computation", 2013 (straight through), and for
scales S. Esser et al., "Learned step size quantization", 2020. Two numbers of 4 bits are packed
into a byte by `pack_int4`, the low half first.

Errors, at the caller's line: TypeRuleError for dtypes, ShapeError for scales that do not fit,
InvalidArgumentError for other arguments."""

from __future__ import annotations

from typing import Any

from weft.frontend.autodiff.gradients import stop_gradient
from weft.frontend.core.tensor import Tensor
from weft.frontend.eager.native import runs_native
from weft.frontend.ops.creation import asarray
from weft.frontend.ops.elementwise import (
    add,
    astype,
    bitwise_and,
    bitwise_left_shift,
    bitwise_or,
    bitwise_right_shift,
    bitwise_xor,
    clip,
    divide,
    greater_equal,
    isnan,
    less_equal,
    logical_and,
    multiply,
    round,
    subtract,
    where,
)
from weft.frontend.ops.indexing import getitem
from weft.frontend.ops.manipulation import broadcast_to, expand_dims, reshape
from weft.frontend.ops.promotion import (
    TensorLike,
    cast,
    check_axis,
    check_dtype,
    check_int,
    iinfo,
    inexact_tensor,
    strong_tensor,
)
from weft.ir.dataclass import dataclass
from weft.ir.dims import Shape, format_shape, same
from weft.ir.dtypes import DType, float32, int8, int16, uint8, uint16
from weft.ir.errors import InvalidArgumentError, ShapeError, TypeRuleError
from weft.ir.locations import caller_location

#: What holds numbers of few bits.
_HELD = (int8, uint8, int16, uint16)


def value_range(dtype: DType, bits: int | None, narrow_range: bool, op: str) -> tuple[int, int]:
    """The least and the largest number of so many bits in such a dtype; narrow_range: without the
    least one, so that signed numbers are as far below 0 as above."""
    if dtype not in _HELD:
        raise TypeRuleError(
            f"wf.quantization.{op}: numbers of few bits are int8, uint8, int16 or uint16, not "
            f"{dtype.name}",
            location=caller_location(),
        )
    width = dtype.bits if bits is None else check_int(op, bits, "bits")
    if not 2 <= width <= dtype.bits:
        raise InvalidArgumentError(
            f"wf.quantization.{op}: {dtype.name} holds 2 to {dtype.bits} bits, not {width}",
            location=caller_location(),
        )
    least, most = iinfo(dtype).min >> dtype.bits - width, iinfo(dtype).max >> dtype.bits - width
    return least + narrow_range, most


@dataclass(frozen=True, slots=True)
class Scaled:
    """A tensor with its scale and zero point as floats that broadcast to it. x: in blocks, of one
    more axis, if there are such; shape: that it had."""

    x: Tensor
    scale: Tensor
    zero: Tensor | None
    shape: Shape

    def result(self, made: Tensor) -> Tensor:
        """What was made of x, without blocks."""
        return made if made.ndim == len(self.shape) else reshape(made, self.shape)


def scaled(
    op: str, x: Tensor, scale: TensorLike, zero_point: TensorLike | None, axis: int | None,
    block_size: int | None, dtype: DType,
) -> Scaled:  # fmt: skip
    """x with its scale and zero point, of that dtype."""
    scales = cast(inexact_tensor(scale, op), dtype)
    zeros = None if zero_point is None else strong_tensor(zero_point)
    if zeros is not None and not (zeros.dtype.is_integer or zeros.dtype.is_floating):
        raise TypeRuleError(
            f"wf.quantization.{op}: a zero point is a number, got {zeros.describe()}",
            location=caller_location(),
        )
    at = None if axis is None else check_axis(op, axis, x.ndim)
    sizes: Shape = ()
    parts = x.shape
    if at is not None:
        size = x.shape[at]
        sizes = (size,)
        if block_size is not None:
            block = check_int(op, block_size, "block_size")
            if not isinstance(size, int) or block < 1 or size % block:
                raise InvalidArgumentError(
                    f"wf.quantization.{op}: axis {at} of {x.describe()} does not consist of "
                    f"blocks of {block}",
                    location=caller_location(),
                )
            sizes = (*x.shape[:at], size // block, *x.shape[at + 1 :])
            parts = (*sizes[: at + 1], block, *sizes[at + 1 :])
    elif block_size is not None:
        raise InvalidArgumentError(
            f"wf.quantization.{op}: blocks are those of an axis: axis=", location=caller_location()
        )

    def spread(given: Tensor, what: str) -> Tensor:
        if given.ndim == 0:
            return given
        if given.ndim != len(sizes) or not all(map(same, given.shape, sizes)):
            raise ShapeError(
                f"wf.quantization.{op}: the {what} of a {x.describe()} is {given.describe()}",
                hint=f"it is one number, or {format_shape(sizes)}" if sizes else
                "it is one number; with axis= one for each place of that",
                location=caller_location(),
            )  # fmt: skip
        if block_size is not None and at is not None:
            return expand_dims(given, axis=at + 1)
        return reshape(given, tuple([sizes[0] if i == at else 1 for i in range(x.ndim)]))

    held = x if parts == x.shape else reshape(x, parts)
    return Scaled(
        held, spread(scales, "scale"),
        None if zeros is None else spread(cast(zeros, dtype), "zero point"), x.shape,
    )  # fmt: skip


@runs_native
def quantize_linear(
    x: TensorLike, scale: TensorLike, zero_point: TensorLike | None = None, *,
    dtype: Any = int8, bits: int | None = None, narrow_range: bool = False,
    axis: int | None = None, block_size: int | None = None,
) -> Tensor:  # fmt: skip
    """round(x / scale) + zero_point in few bits: ties to even, and what is out of range becomes the
    nearest that is in it (ONNX's QuantizeLinear). NaN becomes the zero point.

    x: floats [...]. scale, zero_point: one number; with `axis` one for each place of it, [size];
    with `block_size` also one for each block of so many elements along it, [..., size / block_size,
    ...]. No zero point: 0. dtype: int8, uint8, int16 or uint16; bits: fewer than it has (4: -8 to
    7, or 0 to 15). narrow_range: without the least number. Result: `dtype` [...].

    >>> wf.quantization.quantize_linear([-1.0, 0.25, 0.75, 9.0], 0.5, dtype=wf.int8, bits=4)
    Tensor([-2,  0,  2,  7], dtype=int8)
    """
    held = check_dtype(dtype)
    low, high = value_range(held, bits, narrow_range, "quantize_linear")
    t = inexact_tensor(x, "quantize_linear")
    check_real("quantize_linear", t)
    wide = t.dtype if t.dtype.bits >= 32 else float32
    s = scaled("quantize_linear", cast(t, wide), scale, zero_point, axis, block_size, wide)
    q = round(divide(s.x, s.scale))
    q = where(isnan(q), 0.0, q)
    q = q if s.zero is None else add(q, s.zero)
    return s.result(astype(clip(q, low, high), held))


@runs_native
def dequantize_linear(
    q: TensorLike, scale: TensorLike, zero_point: TensorLike | None = None, *,
    axis: int | None = None, block_size: int | None = None, dtype: Any = float32,
) -> Tensor:  # fmt: skip
    """(q - zero_point) * scale (ONNX's DequantizeLinear).

    q: integers [...]; scale, zero_point, axis, block_size: as `quantize_linear`. Result: floats
    `dtype` [...]. A product with dequantised weights reads them as they are
    (docs/guide/quantization.md).

    >>> wf.quantization.dequantize_linear(np.array([[1, 2], [3, 4]], np.int8), [0.5, 2.0], axis=0)
    Tensor([[0.5, 1. ],
            [6. , 8. ]], dtype=float32)
    """
    made, t = check_dtype(dtype), strong_tensor(q)
    if not t.dtype.is_integer or not made.is_floating:
        raise TypeRuleError(
            f"wf.quantization.dequantize_linear: integers become floats, not {t.describe()} "
            f"{made.name}",
            location=caller_location(),
        )
    wide = made if made.bits >= 32 else float32
    s = scaled("dequantize_linear", t, scale, zero_point, axis, block_size, wide)
    held = cast(s.x, wide)
    held = held if s.zero is None else subtract(held, s.zero)
    return s.result(cast(multiply(held, s.scale), made))


@runs_native
def fake_quantize(
    x: TensorLike, scale: TensorLike, zero_point: TensorLike | None = None, *,
    dtype: Any = int8, bits: int | None = None, narrow_range: bool = False,
    axis: int | None = None, block_size: int | None = None,
) -> Tensor:  # fmt: skip
    """What x is after `quantize_linear` and `dequantize_linear`, as floats: for training that knows
    of it. NaN stays NaN.

    The gradient goes straight through rounding: with respect to x it is 1 where x is in range and 0
    where it is clipped; with respect to scale it is that of the result for what was rounded (LSQ).
    Arguments: as `quantize_linear`. Result: of the shape and dtype of x.

    >>> f = lambda x: wf.quantization.fake_quantize(x, 0.5, bits=4)
    >>> f([0.3, -1.3, 9.0])
    Tensor([ 0.5, -1.5,  3.5], dtype=float32)
    >>> wf.grad(lambda x: wf.sum(f(x)))(wf.asarray([0.3, -1.3, 9.0]))
    Tensor([1., 1., 0.], dtype=float32)
    """
    low, high = value_range(check_dtype(dtype), bits, narrow_range, "fake_quantize")
    t = inexact_tensor(x, "fake_quantize")
    check_real("fake_quantize", t)
    wide = t.dtype if t.dtype.bits >= 32 else float32
    s = scaled("fake_quantize", cast(t, wide), scale, zero_point, axis, block_size, wide)
    ratio = divide(s.x, s.scale)
    held = round(ratio)
    if s.zero is not None:
        held, ratio = add(held, s.zero), add(ratio, s.zero)
    inside = logical_and(greater_equal(held, low), less_equal(held, high))
    straight = add(stop_gradient(held), subtract(ratio, stop_gradient(ratio)))
    # NaN is in no range, and clipped is NaN
    made = where(inside, straight, stop_gradient(clip(held, low, high)))
    made = made if s.zero is None else subtract(made, s.zero)
    return s.result(cast(multiply(made, s.scale), t.dtype))


def check_real(op: str, x: Tensor, name: str = "x") -> None:
    """TypeRuleError for complex numbers."""
    if not x.dtype.is_floating:
        raise TypeRuleError(
            f"wf.quantization.{op}: {name} is of real numbers, got {x.describe()}",
            location=caller_location(),
        )


@runs_native
def pack_int4(q: TensorLike) -> Tensor:
    """Pairs of neighbours of the last axis as one byte each, the first in the low half: the low 4
    bits of each.

    q: int8 or uint8 [..., n], n even. Result: uint8 [..., n / 2].

    >>> wf.quantization.pack_int4(np.array([1, -1, 7, -8], np.int8))
    Tensor([241, 135], dtype=uint8)
    """
    t = strong_tensor(q)
    if t.dtype not in (int8, uint8) or t.ndim == 0:
        raise TypeRuleError(
            f"wf.quantization.pack_int4 takes int8 or uint8 [..., n], got {t.describe()}",
            location=caller_location(),
        )
    size = t.shape[-1]
    if not isinstance(size, int) or size % 2:
        raise ShapeError(
            f"wf.quantization.pack_int4: the last axis of {t.describe()} has no whole pairs",
            hint="its size must be known and even; pad it with zeros",
            location=caller_location(),
        )
    held = cast(t, uint8) if t.dtype is uint8 else _as_unsigned(t)
    low, high = (getitem(held, (..., slice(start, None, 2))) for start in (0, 1))
    return bitwise_or(bitwise_and(low, _byte(15)), bitwise_left_shift(high, _byte(4)))


@runs_native
def unpack_int4(packed: TensorLike, *, signed: bool = True) -> Tensor:
    """What `pack_int4` packed: int8 from -8 to 7, or uint8 from 0 to 15.

    packed: uint8 [..., n]. Result: [..., 2 n].

    >>> wf.quantization.unpack_int4(np.array([241, 135], np.uint8))
    Tensor([ 1, -1,  7, -8], dtype=int8)
    """
    t = strong_tensor(packed)
    if t.dtype is not uint8 or t.ndim == 0:
        raise TypeRuleError(
            f"wf.quantization.unpack_int4 takes uint8 [..., n], got {t.describe()}",
            location=caller_location(),
        )
    pairs = broadcast_to(expand_dims(t, axis=-1), (*t.shape, 2))
    places = broadcast_to(asarray([0, 4], dtype=uint8), (*t.shape, 2))
    halves = bitwise_and(bitwise_right_shift(pairs, places), _byte(15))
    size = t.shape[-1]
    made = reshape(halves, (*t.shape[:-1], -1 if size is None else 2 * size))
    if not signed:
        return made
    # the sign is bit 3
    return subtract(astype(bitwise_xor(made, _byte(8)), int8), asarray(8, dtype=int8))


def _byte(number: int) -> Tensor:
    return asarray(number, dtype=uint8)


def _as_unsigned(t: Tensor) -> Tensor:
    """The same bits as uint8."""
    return astype(bitwise_and(astype(t, int16), asarray(255, dtype=int16)), uint8)
