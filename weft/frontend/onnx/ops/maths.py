"""Elementwise operators and activations. Operands are of one dtype and broadcast as NumPy's, before
opset 7 where the attribute `broadcast` says so."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce
from typing import Any

import weft as wf
from weft.frontend.core.tensor import Tensor
from weft.frontend.onnx.dtypes import converted, dtype_of, number_of
from weft.frontend.onnx.reader import package
from weft.frontend.onnx.table import Call, op
from weft.ir.dims import product


# --------------------------------------------------------------------------------- of one operand
def _unary(name: str, compute: Callable[[Tensor], Tensor]) -> None:
    def run(X: Tensor, *, consumed_inputs: Any = None) -> Tensor:
        return compute(X)

    op(name)(run)


for _name, _function in {
    "Abs": wf.abs, "Acos": wf.acos, "Acosh": wf.acosh, "Asin": wf.asin, "Asinh": wf.asinh,
    "Atan": wf.atan, "Atanh": wf.atanh, "Ceil": wf.ceil, "Cos": wf.cos, "Cosh": wf.cosh,
    "Erf": wf.erf, "Exp": wf.exp, "Floor": wf.floor, "Identity": lambda x: x, "Log": wf.log,
    "Neg": wf.negative, "Not": wf.logical_not, "Reciprocal": wf.reciprocal, "Round": wf.round,
    "Sigmoid": wf.sigmoid, "Sign": wf.sign, "Sin": wf.sin, "Sinh": wf.sinh,
    "Softplus": wf.nn.softplus, "Softsign": wf.nn.softsign, "Sqrt": wf.sqrt, "Tan": wf.tan,
    "Tanh": wf.tanh, "BitwiseNot": wf.bitwise_invert, "IsNaN": wf.isnan, "Mish": wf.nn.mish,
    "Relu": lambda x: wf.nn.relu(x) if x.dtype.is_floating else wf.maximum(x, 0),
}.items():  # fmt: skip
    _unary(_name, _function)


@op("IsInf", since=10)
def _is_inf(X: Tensor, *, detect_negative: int = 1, detect_positive: int = 1) -> Tensor:
    found = wf.isinf(X)
    if not detect_negative:
        found = found & (X > 0)
    return found if detect_positive else found & (X < 0)


# --------------------------------------------------------------------------------- of two or more
def _aligned(A: Tensor, B: Tensor, broadcast: int, axis: int | None) -> Tensor:
    """B as the rules before opset 7 broadcast it: its axes are those of A from `axis` on."""
    if not broadcast or axis is None or axis == -1:
        return B
    after = A.ndim - axis - B.ndim
    return wf.reshape(B, (*B.shape, *[1] * after))


def _binary(name: str, compute: Callable[[Tensor, Tensor], Tensor]) -> None:
    def run(A: Tensor, B: Tensor) -> Tensor:
        return compute(A, B)

    def old(
        A: Tensor, B: Tensor, *, axis: int | None = None, broadcast: int = 0,
        consumed_inputs: Any = None,
    ) -> Tensor:  # fmt: skip
        return compute(A, _aligned(A, B, broadcast, axis))

    op(name, since=7)(run)
    op(name)(old)


def _divide(a: Tensor, b: Tensor) -> Tensor:
    """The quotient, of integers rounded towards 0."""
    if not a.dtype.is_integer:
        return wf.divide(a, b)
    if a.dtype.kind == "uint":
        return wf.floor_divide(a, b)
    down = wf.floor_divide(a, b)
    moved = (wf.remainder(a, b) != 0) & ((a < 0) ^ (b < 0))
    return wf.where(moved, down + 1, down)


def _power(a: Tensor, b: Tensor) -> Tensor:
    """In the dtype of a."""
    if a.dtype.is_floating or b.dtype.is_integer:
        return wf.pow(a, wf.astype(b, a.dtype))
    return wf.astype(wf.pow(wf.astype(a, wf.float64), wf.astype(b, wf.float64)), a.dtype)


for _name, _two in {
    "Add": wf.add, "And": wf.logical_and, "BitwiseAnd": wf.bitwise_and,
    "BitwiseOr": wf.bitwise_or, "BitwiseXor": wf.bitwise_xor, "Div": _divide, "Equal": wf.equal,
    "Greater": wf.greater, "GreaterOrEqual": wf.greater_equal, "Less": wf.less,
    "LessOrEqual": wf.less_equal, "Mul": wf.multiply, "Or": wf.logical_or, "Pow": _power,
    "Sub": wf.subtract, "Xor": wf.logical_xor,
}.items():  # fmt: skip
    _binary(_name, _two)


@op("Mod", since=10)
def _mod(A: Tensor, B: Tensor, *, fmod: int = 0) -> Tensor:
    if not fmod or A.dtype.kind == "uint":
        return wf.remainder(A, B)
    size = wf.remainder(wf.abs(A), wf.abs(B))
    return wf.copysign(size, A) if A.dtype.is_floating else wf.where(A < 0, -size, size)


@op("BitShift", since=11)
def _bit_shift(X: Tensor, Y: Tensor, *, direction: str) -> Tensor:
    return (wf.bitwise_left_shift if direction == "LEFT" else wf.bitwise_right_shift)(X, Y)


@op("BitCast", since=26)
def _bit_cast(X: Tensor, *, to: int) -> Tensor:
    dtype = dtype_of(to)
    if X.dtype is wf.bool:
        X = wf.astype(X, wf.uint8)
    if dtype is wf.bool:
        return wf.bitcast(X, wf.uint8) != 0
    return wf.bitcast(X, dtype)


@op("Max")
def _max(*data: Tensor, consumed_inputs: Any = None) -> Tensor:
    return reduce(wf.maximum, data)


@op("Min")
def _min(*data: Tensor, consumed_inputs: Any = None) -> Tensor:
    return reduce(wf.minimum, data)


@op("Sum")
def _sum(*data: Tensor, consumed_inputs: Any = None) -> Tensor:
    return reduce(wf.add, data)


@op("Mean")
def _mean(*data: Tensor, consumed_inputs: Any = None) -> Tensor:
    return wf.divide(reduce(wf.add, data), len(data))


@op("Where", since=9)
def _where(condition: Tensor, X: Tensor, Y: Tensor) -> Tensor:
    return wf.where(condition, X, Y)


@op("Clip", since=11)
def _clip(input: Tensor, min: Tensor | None = None, max: Tensor | None = None) -> Tensor:
    low = input if min is None else wf.maximum(input, min)
    return low if max is None else wf.minimum(low, max)


@op("Clip")
def _clip_attributes(
    input: Tensor, *, min: float = -math.inf, max: float = math.inf, consumed_inputs: Any = None
) -> Tensor:
    return wf.clip(input, min, max)


@op("Einsum", since=12)
def _einsum(*Inputs: Tensor, equation: str) -> Tensor:
    return wf.einsum(equation, *Inputs)


# ----------------------------------------------------------------------------------------- dtypes
@op("Cast")
def _cast(input: Tensor, *, to: Any, saturate: int = 1, round_mode: str = "up") -> Tensor:
    if isinstance(to, str):  # before opset 6
        to = package().TensorProto.DataType.Value(to)
    return _converted(input, to, saturate, round_mode)


@op("CastLike", since=15, like=["target_type"])
def _cast_like(
    input: Tensor, target_type: Tensor, *, saturate: int = 1, round_mode: str = "up", node: Call
) -> Tensor:
    number = node.input_types[1] if len(node.input_types) > 1 else 0
    return _converted(input, number or number_of(target_type.dtype), saturate, round_mode)


def _converted(x: Tensor, number: int, saturate: int, round_mode: str) -> Tensor:
    text = dtype_of(number) is wf.string
    if x.dtype is wf.string and not text:
        wanted = dtype_of(number)
        near = wanted if wanted in (wf.float32, wf.float64, wf.int32, wf.int64) else wf.float64
        return converted(wf.strings.to_number(x, near), number, bool(saturate), round_mode)
    if text:
        return x if x.dtype is wf.string else wf.strings.as_string(x, shortest=True)
    return converted(x, number, bool(saturate), round_mode)


# ------------------------------------------------------------------------------------ activations
@op("LeakyRelu")
def _leaky_relu(X: Tensor, *, alpha: float = 0.01, consumed_inputs: Any = None) -> Tensor:
    return wf.nn.leaky_relu(X, alpha)


@op("PRelu")
def _prelu(X: Tensor, slope: Tensor, *, consumed_inputs: Any = None, node: Call) -> Tensor:
    if node.opset < 7 and slope.ndim == 1 and X.ndim > 2 and slope.shape != (1,):
        slope = wf.reshape(slope, (-1, *[1] * (X.ndim - 2)))  # one for each channel
    return wf.where(X < 0, X * slope, X)


@op("Elu")
def _elu(X: Tensor, *, alpha: float = 1.0, consumed_inputs: Any = None) -> Tensor:
    return wf.nn.elu(X, alpha)


@op("Selu")
def _selu(
    X: Tensor, *, alpha: float = 1.67326319217681884765625,
    gamma: float = 1.05070102214813232421875, consumed_inputs: Any = None,
) -> Tensor:  # fmt: skip
    return gamma * wf.nn.elu(X, alpha)


@op("Celu", since=12)
def _celu(X: Tensor, *, alpha: float = 1.0) -> Tensor:
    return wf.maximum(X, 0) + wf.minimum(alpha * wf.expm1(X / alpha), 0)


@op("ThresholdedRelu", since=10)
def _thresholded_relu(X: Tensor, *, alpha: float = 1.0) -> Tensor:
    return wf.where(alpha < X, X, wf.zeros_like(X))


@op("HardSigmoid")
def _hard_sigmoid(
    X: Tensor, *, alpha: float = 0.2, beta: float = 0.5, consumed_inputs: Any = None
) -> Tensor:
    return wf.clip(X * alpha + beta, 0, 1)


@op("HardSwish", since=14)
def _hard_swish(X: Tensor) -> Tensor:
    return X * wf.clip(X / 6 + 0.5, 0, 1)


@op("Gelu", since=20)
def _gelu(X: Tensor, *, approximate: str = "none") -> Tensor:
    return wf.nn.gelu(X, approximate == "tanh")


@op("Swish", since=24)
def _swish(X: Tensor, *, alpha: float = 1.0) -> Tensor:
    return wf.nn.silu(X) if alpha == 1 else X * wf.sigmoid(alpha * X)


@op("Shrink", since=9)
def _shrink(input: Tensor, *, bias: float = 0.0, lambd: float = 0.5) -> Tensor:
    wide = wf.astype(input, wf.float32) if input.dtype.is_integer else input
    made = wf.where(wide < -lambd, wide + bias, wf.where(wide > lambd, wide - bias, 0))
    return wf.astype(made, input.dtype)


def _rows(x: Tensor, axis: int) -> tuple[Tensor, tuple[Any, ...]]:
    """x as a matrix, cut before an axis: what softmax and its relatives took before opset 13."""
    axis = axis % x.ndim if x.ndim else 0
    return wf.reshape(x, (product(x.shape[:axis]), product(x.shape[axis:]))), x.shape


for _name, _along in {"Softmax": wf.nn.softmax, "LogSoftmax": wf.nn.log_softmax}.items():

    def _softmax(input: Tensor, *, axis: int = -1, _along: Any = _along) -> Tensor:
        made: Tensor = _along(input, axis)
        return made

    def _softmax_rows(input: Tensor, *, axis: int = 1, _along: Any = _along) -> Tensor:
        rows, shape = _rows(input, axis)
        return wf.reshape(_along(rows, 1), shape)

    op(_name, since=13)(_softmax)
    op(_name)(_softmax_rows)


@op("Hardmax", since=13)
def _hardmax(input: Tensor, *, axis: int = -1) -> Tensor:
    first = wf.argmax(input, axis=axis, keepdims=True)
    places = wf.reshape(
        wf.arange(input.shape[axis], dtype=wf.int64),
        [-1 if i == axis % input.ndim else 1 for i in range(input.ndim)],
    )
    return wf.astype(first == places, input.dtype)


@op("Hardmax")
def _hardmax_rows(input: Tensor, *, axis: int = 1) -> Tensor:
    rows, shape = _rows(input, axis)
    return wf.reshape(_hardmax(rows, axis=1), shape)
