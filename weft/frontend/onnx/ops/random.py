"""Random numbers. With the attribute `seed` they are the same in each call, without it others."""

from __future__ import annotations

from typing import Any

import numpy as np

import weft as wf
from weft.frontend.core.tensor import Tensor
from weft.frontend.onnx.dtypes import dtype_of
from weft.frontend.onnx.table import op


def _key(seed: float | None) -> Tensor:
    if seed is None:
        return wf.random.default_generator().next_key()
    return wf.random.key(int(np.float32(seed).view(np.uint32)))


def _like(x: Tensor, dtype: int | None) -> Any:
    return dtype_of(dtype) if dtype else x.dtype


@op("RandomNormal", folds=False)
def _normal(
    *, dtype: int = 1, mean: float = 0.0, scale: float = 1.0, seed: float | None = None, shape: Any
) -> Tensor:
    return wf.random.normal(_key(seed), tuple(shape), dtype_of(dtype), mean, scale)


@op("RandomNormalLike", folds=False)
def _normal_like(
    input: Tensor, *, dtype: int | None = None, mean: float = 0.0, scale: float = 1.0,
    seed: float | None = None,
) -> Tensor:  # fmt: skip
    return wf.random.normal(_key(seed), input.shape, _like(input, dtype), mean, scale)


@op("RandomUniform", folds=False)
def _uniform(
    *, dtype: int = 1, high: float = 1.0, low: float = 0.0, seed: float | None = None, shape: Any
) -> Tensor:
    return wf.random.uniform(_key(seed), tuple(shape), dtype_of(dtype), low, high)


@op("RandomUniformLike", folds=False)
def _uniform_like(
    input: Tensor, *, dtype: int | None = None, high: float = 1.0, low: float = 0.0,
    seed: float | None = None,
) -> Tensor:  # fmt: skip
    return wf.random.uniform(_key(seed), input.shape, _like(input, dtype), low, high)


@op("Multinomial", since=7, folds=False)
def _multinomial(
    input: Tensor, *, dtype: int = 6, sample_size: int = 1, seed: float | None = None
) -> Tensor:
    drawn = wf.random.categorical(
        _key(seed), wf.expand_dims(input, 1), shape=(input.shape[0], sample_size)
    )
    return wf.astype(drawn, dtype_of(dtype))


@op("Bernoulli", since=15, folds=False)
def _bernoulli(input: Tensor, *, dtype: int | None = None, seed: float | None = None) -> Tensor:
    return wf.astype(wf.random.bernoulli(_key(seed), input), _like(input, dtype))


@op("Dropout", since=12, known=["training_mode"], folds=False)
def _dropout(
    data: Tensor, ratio: Tensor | None = None, training_mode: Any = None, *, seed: int | None = None
) -> Any:
    if training_mode is None or not bool(np.reshape(training_mode, ())):
        return data, wf.ones_like(data, dtype=wf.bool)
    rate = wf.asarray(np.float32(0.5)) if ratio is None else wf.astype(ratio, wf.float32)
    kept = wf.random.uniform(_key(seed), data.shape) >= rate
    scale = wf.astype(1 / (1 - rate), data.dtype)
    return wf.where(kept, data * scale, wf.zeros_like(data)), kept


@op("Dropout")
def _dropout_old(
    data: Tensor, *, ratio: float = 0.5, is_test: int = 1, consumed_inputs: Any = None
) -> Any:
    """Before opset 12 the runtime said whether it trains: here it does not."""
    return data, wf.ones_like(data, dtype=wf.bool)
