"""Quantisation as plain arithmetic: exact products of integers, and floats that are rounded half to
even, moved by a zero point and cut off at the ends of the dtype."""

from __future__ import annotations

from typing import Any

import weft as wf
from weft.frontend.core.tensor import Tensor
from weft.frontend.onnx.dtypes import converted, dtype_of, is_small_float, number_of, range_of
from weft.frontend.onnx.ops.windows import convolution
from weft.frontend.onnx.table import Call, op


def _spread(scale: Tensor, x: Tensor, axis: int, block_size: int) -> Tensor:
    """A scale or zero point as it broadcasts to x: one, one for each index of an axis, or one for
    each block along it."""
    if scale.ndim == 0 or scale.shape == (1,):
        return wf.reshape(scale, ())
    axis %= max(x.ndim, 1)
    if block_size and scale.ndim == x.ndim:
        wide = wf.repeat(scale, block_size, axis=axis)
        return wide[(*[slice(None)] * axis, slice(0, x.shape[axis]))]
    return wf.reshape(scale, [-1 if i == axis else 1 for i in range(x.ndim)])


@op("QuantizeLinear", since=10)
def _quantize(
    x: Tensor, y_scale: Tensor, y_zero_point: Tensor | None = None, *, axis: int = 1,
    block_size: int = 0, output_dtype: int = 0, precision: int = 0, saturate: int = 1, node: Call,
) -> Tensor:  # fmt: skip
    known = node.input_types[2] if len(node.input_types) > 2 else 0
    number = known or output_dtype or (2 if y_zero_point is None else number_of(y_zero_point.dtype))
    work = dtype_of(precision) if precision else y_scale.dtype
    if work.bits < 32:
        work = wf.float32
    scale = _spread(wf.astype(y_scale, work), x, axis, block_size)
    scaled = wf.astype(x, work) / scale
    if is_small_float(number):
        return converted(scaled, number, bool(saturate))
    zero = None
    if y_zero_point is not None:
        zero = _spread(y_zero_point, x, axis, block_size)
    return _rounded(scaled, zero, number)


def _rounded(scaled: Tensor, zero: Tensor | None, number: int) -> Tensor:
    low, high = range_of(number)
    near = wf.round(scaled)
    if zero is not None:
        near = near + wf.astype(zero, near.dtype)
    return wf.astype(wf.clip(near, low, high), dtype_of(number))


@op("DequantizeLinear", since=10)
def _dequantize(
    x: Tensor, x_scale: Tensor, x_zero_point: Tensor | None = None, *, axis: int = 1,
    block_size: int = 0, output_dtype: int = 0,
) -> Tensor:  # fmt: skip
    dtype = dtype_of(output_dtype) if output_dtype else x_scale.dtype
    work = wf.float32 if x_scale.dtype.bits < 32 else x_scale.dtype
    if x_zero_point is not None:
        zero = _spread(x_zero_point, x, axis, block_size)
        x = _less(x, zero) if x.dtype.is_integer else x - zero
    scale = _spread(wf.astype(x_scale, work), x, axis, block_size)
    return wf.astype(wf.astype(x, work) * scale, dtype)


def _less(x: Tensor, zero: Tensor | None) -> Tensor:
    """Integers without their zero point, in int32."""
    wide = wf.astype(x, wf.int32)
    return wide if zero is None else wide - wf.astype(zero, wf.int32)


@op("DynamicQuantizeLinear", since=11)
def _dynamic(x: Tensor) -> Any:
    low, high = wf.minimum(wf.min(x), 0), wf.maximum(wf.max(x), 0)
    scale = (high - low) / 255
    safe = wf.where(scale == 0, wf.ones_like(scale), scale)
    zero = wf.astype(wf.clip(wf.round(0 - low / safe), 0, 255), wf.uint8)
    return _rounded(x / safe, zero, 2), scale, zero


def _rows(zero: Tensor | None, x: Tensor, last: bool) -> Tensor | None:
    """A zero point as it broadcasts to a matrix: of each row, or of each column (last)."""
    if zero is None or zero.ndim != 1 or zero.shape == (1,):
        return None if zero is None else zero if zero.ndim > 1 else wf.reshape(zero, ())
    return zero if last or x.ndim < 2 else wf.expand_dims(zero, -1)


@op("MatMulInteger", since=10)
def _matmul_integer(
    A: Tensor, B: Tensor, a_zero_point: Tensor | None = None, b_zero_point: Tensor | None = None
) -> Tensor:
    left = _less(A, _rows(a_zero_point, A, False))
    return wf.matmul(left, _less(B, _rows(b_zero_point, B, True)))


@op("QLinearMatMul", since=10)
def _qlinear_matmul(
    a: Tensor, a_scale: Tensor, a_zero_point: Tensor, b: Tensor, b_scale: Tensor,
    b_zero_point: Tensor, y_scale: Tensor, y_zero_point: Tensor,
) -> Tensor:  # fmt: skip
    total = _matmul_integer(a, b, a_zero_point, b_zero_point)
    work = [
        wf.astype(s, wf.float32)
        for s in (
            _rows(a_scale, a, False), _rows(b_scale, b, True), _rows(y_scale, a, False)
        )
    ]  # fmt: skip
    scaled = wf.astype(total, wf.float32) * (work[0] * work[1] / work[2])
    return _rounded(scaled, _rows(y_zero_point, a, False), number_of(y_zero_point.dtype))


@op("ConvInteger", since=10)
def _conv_integer(
    x: Tensor, w: Tensor, x_zero_point: Tensor | None = None, w_zero_point: Tensor | None = None,
    *,
    auto_pad: str = "NOTSET", dilations: Any = None, group: int = 1, kernel_shape: Any = None,
    pads: Any = None, strides: Any = None,
) -> Tensor:  # fmt: skip
    zero = None if x_zero_point is None else wf.reshape(x_zero_point, ())
    return convolution(
        _less(x, zero), _less(w, _of_outputs(w_zero_point, w)), auto_pad=auto_pad,
        dilations=dilations, group=group, pads=pads, strides=strides,
    )  # fmt: skip


def _of_outputs(values: Tensor | None, w: Tensor) -> Tensor | None:
    """A value for each output of a kernel, as it broadcasts to it."""
    if values is None or values.ndim == 0 or values.shape == (1,):
        return None if values is None else wf.reshape(values, ())
    return wf.reshape(values, (-1, *[1] * (w.ndim - 1)))


@op("QLinearConv", since=10)
def _qlinear_conv(
    x: Tensor, x_scale: Tensor, x_zero_point: Tensor, w: Tensor, w_scale: Tensor,
    w_zero_point: Tensor, y_scale: Tensor, y_zero_point: Tensor, B: Tensor | None = None, *,
    auto_pad: str = "NOTSET", dilations: Any = None, group: int = 1, kernel_shape: Any = None,
    pads: Any = None, strides: Any = None,
) -> Tensor:  # fmt: skip
    total = _conv_integer(
        x, w, x_zero_point, w_zero_point, auto_pad=auto_pad, dilations=dilations, group=group,
        pads=pads, strides=strides,
    )  # fmt: skip
    channels = (-1, *[1] * (x.ndim - 2))
    if B is not None:
        total = total + wf.reshape(B, channels)
    each = w_scale if w_scale.ndim == 0 or w_scale.shape == (1,) else wf.reshape(w_scale, channels)
    factor = wf.reshape(x_scale, ()) * each / wf.reshape(y_scale, ())
    scaled = wf.astype(total, wf.float32) * factor
    return _rounded(scaled, wf.reshape(y_zero_point, ()), number_of(y_zero_point.dtype))
