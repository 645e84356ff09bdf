"""Normalisations."""

from __future__ import annotations

from functools import reduce
from typing import Any

import weft as wf
from weft.frontend.core.tensor import Tensor
from weft.frontend.onnx.run import at_once
from weft.frontend.onnx.sizes import known_size
from weft.frontend.onnx.table import Call, op
from weft.ir.dtypes import DType


def _channels(x: Tensor, like: Tensor) -> Tensor:
    """A vector with an element for each channel, the axis 1, as a tensor that broadcasts."""
    return wf.reshape(x, (-1, *[1] * (like.ndim - 2)))


@op("BatchNormalization", since=14)
def _batch_norm(
    X: Tensor, scale: Tensor, B: Tensor, input_mean: Tensor, input_var: Tensor, *,
    epsilon: float = 1e-5, momentum: float = 0.9, training_mode: int = 0,
) -> Any:  # fmt: skip
    if training_mode:
        axes = (0, *range(2, X.ndim))
        mean, var = wf.mean(X, axes), wf.var(X, axes)
        kept = 1 - momentum
        return (
            _normalised(X, scale, B, mean, var, epsilon),
            input_mean * momentum + wf.astype(mean, input_mean.dtype) * kept,
            input_var * momentum + wf.astype(var, input_var.dtype) * kept,
        )
    return _normalised(X, scale, B, input_mean, input_var, epsilon)


def _normalised(
    x: Tensor, scale: Tensor, bias: Tensor, mean: Tensor, var: Tensor, epsilon: float
) -> Tensor:
    def factors() -> tuple[Tensor, Tensor]:
        factor = scale / wf.sqrt(var + epsilon)
        return factor, bias - mean * factor

    factor, offset = at_once([scale, bias, mean, var], factors)
    made = x * _channels(factor, x) + _channels(offset, x)
    return wf.astype(made, x.dtype)


@op("BatchNormalization")
def _batch_norm_old(
    X: Tensor, scale: Tensor, B: Tensor, mean: Tensor, var: Tensor, *, epsilon: float = 1e-5,
    momentum: float = 0.9, is_test: int = 0, spatial: int = 1, consumed_inputs: Any = None,
    node: Call,
) -> Any:  # fmt: skip
    if node.outputs > 1:  # what it was trained with
        made = _batch_norm(
            X, scale, B, mean, var, epsilon=epsilon, momentum=momentum, training_mode=1
        )
        return (*made, mean, var)
    if not spatial:
        return (X - mean) / wf.sqrt(var + epsilon) * scale + B
    return _normalised(X, scale, B, mean, var, epsilon)


@op("InstanceNormalization")
def _instance_norm(
    input: Tensor, scale: Tensor, B: Tensor, *, epsilon: float = 1e-5, consumed_inputs: Any = None
) -> Tensor:
    axes = tuple(range(2, input.ndim))
    return _standardised(input, axes, epsilon, input.dtype) * _channels(scale, input) + _channels(
        B, input
    )


def _standardised(x: Tensor, axes: tuple[int, ...], epsilon: float, dtype: DType) -> Tensor:
    mean, var = wf.mean(x, axes, keepdims=True), wf.var(x, axes, keepdims=True)
    return wf.astype((x - mean) / wf.sqrt(var + epsilon), dtype)


def _stash(x: Tensor, stash_type: int) -> Tensor:
    """x in the dtype that ONNX computes it in."""
    return wf.astype(x, wf.float32) if stash_type == 1 and x.dtype.bits < 32 else x


@op("LayerNormalization", since=17)
def _layer_norm(
    X: Tensor, Scale: Tensor, B: Tensor | None = None, *, axis: int = -1, epsilon: float = 1e-5,
    stash_type: int = 1, node: Call,
) -> Any:  # fmt: skip
    wide = _stash(X, stash_type)
    axes = tuple(range(axis % X.ndim, X.ndim))
    mean = wf.mean(wide, axes, keepdims=True)
    inverse = wf.rsqrt(wf.var(wide, axes, keepdims=True) + epsilon)
    made = wf.astype((wide - mean) * inverse, X.dtype) * Scale
    made = made if B is None else made + B
    return (made, mean, inverse)[: max(node.outputs, 1)]


@op("RMSNormalization", since=23)
def _rms_norm(
    X: Tensor, scale: Tensor, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1
) -> Tensor:
    wide = _stash(X, stash_type)
    axes = tuple(range(axis % X.ndim, X.ndim))
    inverse = wf.rsqrt(wf.mean(wf.square(wide), axes, keepdims=True) + epsilon)
    return wf.astype(wide * inverse, X.dtype) * scale


def _grouped(X: Tensor, num_groups: int, epsilon: float, stash_type: int) -> Tensor:
    wide = _stash(X, stash_type)
    batch, channels = X.shape[0], known_size(X, 1)
    parts = wf.reshape(wide, (batch, num_groups, channels // num_groups, *X.shape[2:]))
    made = _standardised(parts, tuple(range(2, parts.ndim)), epsilon, wide.dtype)
    return wf.reshape(made, X.shape)


@op("GroupNormalization", since=21)
def _group_norm(
    X: Tensor, scale: Tensor, bias: Tensor, *, epsilon: float = 1e-5, num_groups: int,
    stash_type: int = 1,
) -> Tensor:  # fmt: skip
    made = wf.astype(_grouped(X, num_groups, epsilon, stash_type), X.dtype)
    return made * _channels(scale, X) + _channels(bias, X)


@op("GroupNormalization", since=18)
def _group_norm_by_group(
    X: Tensor, scale: Tensor, bias: Tensor, *, epsilon: float = 1e-5, num_groups: int
) -> Tensor:
    each = known_size(X, 1) // num_groups
    made = _grouped(X, num_groups, epsilon, 0)
    return made * _channels(wf.repeat(scale, each), X) + _channels(wf.repeat(bias, each), X)


@op("MeanVarianceNormalization", since=9)
def _mean_variance(X: Tensor, *, axes: Any = (0, 2, 3)) -> Tensor:
    mean = wf.mean(X, tuple(axes), keepdims=True)
    deviation = wf.sqrt(wf.mean(wf.square(X), tuple(axes), keepdims=True) - wf.square(mean))
    return (X - mean) / (deviation + 1e-9)


@op("LRN")
def _lrn(
    X: Tensor, *, alpha: float = 1e-4, beta: float = 0.75, bias: float = 1.0, size: int
) -> Tensor:
    channels = known_size(X, 1)
    before = min((size - 1) // 2, channels - 1)  # further ones see nothing
    after = min(size - 1 - (size - 1) // 2, channels - 1)
    pairs = [(0, 0)] * X.ndim
    pairs[1] = (before, after)
    squares = wf.pad(wf.square(X), pairs)
    total = reduce(wf.add, [squares[:, i : i + channels] for i in range(before + after + 1)])
    return X / wf.pow(bias + alpha / size * total, beta)


@op("LpNormalization")
def _lp_norm(input: Tensor, *, axis: int = -1, p: int = 2) -> Tensor:
    size = wf.linalg.vector_norm(input, axis=axis, keepdims=True, ord=p)
    return wf.where(size == 0, wf.zeros_like(input), input / size)
