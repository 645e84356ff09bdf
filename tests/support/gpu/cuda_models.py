"""Programs whose kernels are compiled for every architecture: the test models and single ops."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn

import ml_dtypes
import numpy as np
import training_programs
from paths import ROOT

import weft as wf
from weft.codegen.cuda.source.kernel import CudaKernel
from weft.frontend.tools.run import variable_types
from weft.ir.graph import Graph
from weft.runtime.device.execution.executable import compile_for_device
from weft.runtime.resources.variables import VariableState

sys.path.insert(0, str(ROOT / "benchmarks"))
import models

Array = np.ndarray[Any, Any]
F32 = np.float32


def normal(*shape: int, dtype: Any = F32) -> Array:
    return np.random.default_rng(0).standard_normal(shape).astype(dtype)


@dataclass(frozen=True)
class Call:
    """A function and what it is called with."""

    function: Callable[..., Any]
    args: tuple[Any, ...]

    def kernels(self) -> list[CudaKernel]:
        """Of its plan for a GPU."""
        return kernels_of(self.function, *self.args)


def call(function: Callable[..., Any], *args: Any) -> Call:
    return Call(function, args)


def kernels_of(function: Callable[..., Any], *args: Any) -> list[CudaKernel]:
    """The kernels of a function's plan for a GPU."""
    return graph_kernels(wf.compile(function).trace(*args))


def graph_kernels(graph: Graph) -> list[CudaKernel]:
    variables = {
        name: VariableState(name, t.dtype, t.static_shape, None)
        for name, t in variable_types(graph).items()
    }
    return compile_for_device(graph, variables, find=_no_device).plan.kernels()


def _no_device() -> NoReturn:
    raise AssertionError("a plan needs no device")


# ---------------------------------------------------------------------------------------- models


def digits_step() -> Call:
    """Figure 1: a training step of two layers, with its optimizer."""
    w1, b1 = wf.Variable(normal(784, 100)), wf.Variable(normal(100))
    w2, b2 = wf.Variable(normal(100, 10)), wf.Variable(normal(10))
    optimizer = wf.train.AdagradOptimizer(0.1)

    def step(x: Any, y: Any) -> Any:
        logits = wf.matmul(wf.nn.relu(wf.matmul(x, w1) + b1), w2) + b2
        loss = wf.mean(wf.nn.softmax_cross_entropy_with_logits(labels=y, logits=logits))
        optimizer.minimize(loss)
        return loss

    return call(step, normal(128, 784), np.eye(10, dtype=F32)[np.arange(128) % 10])


def adam_step() -> Call:
    w = wf.Variable(normal(300, 40))
    optimizer = wf.train.AdamOptimizer(0.1)

    def step(x: Any) -> Any:
        loss = wf.mean(wf.square(wf.matmul(x, w)))
        optimizer.minimize(loss)
        return loss

    return call(step, normal(64, 300))


def with_gradients(function: Callable[..., Any], *args: Array) -> Call:
    """Forward and backward."""

    def both(*xs: Any) -> Any:
        y = function(*xs)
        return y, wf.gradients([wf.sum(y * y)], list(xs))

    return call(both, *args)


def layer_norm(x: Any, gain: Any, offset: Any) -> Any:
    mean = wf.mean(x, axis=-1, keepdims=True)
    centred = x - mean
    variance = wf.mean(wf.square(centred), axis=-1, keepdims=True)
    return centred * wf.rsqrt(variance + 1e-5) * gain + offset


def cross_entropy(x: Any) -> Any:
    labels = wf.constant(np.arange(x.shape[0]) % x.shape[1])
    return wf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=x)


class Vocabulary:
    """What `benchmarks/models.py` asks of a framework."""

    relu, gelu, softmax = staticmethod(wf.nn.relu), staticmethod(wf.nn.gelu), None
    matmul, reshape, where = wf.matmul, wf.reshape, wf.where
    permute = staticmethod(wf.permute_dims)

    @staticmethod
    def conv(x: Any, kernel: Any) -> Any:
        return wf.nn.conv2d(x, kernel, strides=1, padding="SAME")

    @staticmethod
    def max_pool(x: Any) -> Any:
        return wf.nn.max_pool2d(x, 2)

    @staticmethod
    def layer_norm(x: Any, gain: Any, offset: Any) -> Any:
        return layer_norm(x, gain, offset)

    @staticmethod
    def cross_entropy(logits: Any, labels: Any) -> Any:
        losses = wf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
        return wf.mean(losses)


Vocabulary.softmax = staticmethod(wf.nn.softmax)


def model_step(model: models.Model) -> Call:
    """The loss and all gradients of a model of the benchmarks."""
    names = list(model.params)

    def step(x: Any, labels: Any, *values: Any) -> Any:
        loss = model.loss(Vocabulary, dict(zip(names, values, strict=True)), x, labels)
        return loss, wf.gradients([loss], list(values))

    return call(step, model.x, model.labels, *model.params.values())


def lstm_step() -> Call:
    """The loss and all gradients of the benchmarks' LSTM, a scan."""
    params, x = models.lstm_inputs()

    def step(x: Any, *values: Any) -> Any:
        loss = models.lstm_loss(wf, wf.sigmoid, scan, values, x)
        return loss, wf.gradients([loss], list(values))

    def scan(body: Any, carry: Any, xs: Any) -> Any:
        return wf.scan(body, init=carry, xs=xs)

    return call(step, x, *params)


MODELS: dict[str, Callable[[], Call]] = {
    "digits step": digits_step,
    "adam step": adam_step,
    "softmax": lambda: with_gradients(wf.nn.softmax, normal(64, 1000)),
    "layer norm": lambda: with_gradients(layer_norm, normal(64, 1000), normal(1000), normal(1000)),
    "cross entropy": lambda: with_gradients(cross_entropy, normal(64, 1000)),
    "MLP": lambda: model_step(models.mlp()),
    "GPT": lambda: model_step(models.gpt(lambda mask: mask)),
    "conv net": lambda: model_step(models.conv_net()),
    "LSTM": lstm_step,
}


def program_step(name: str) -> Call:
    """A training program of the tests: an LSTM, an embedding, attention, dropout, loops."""
    make, args = training_programs.PROGRAMS[name]
    return call(make(), *args)


PROGRAMS: dict[str, Callable[[], Call]] = {
    name: partial(program_step, name) for name in training_programs.PROGRAMS
}

# ------------------------------------------------------------------------------------ single ops

OPS: dict[str, Callable[[], Call]] = {
    "chain": lambda: call(lambda x, y: wf.exp(x) * y + wf.tanh(x), *2 * [normal(1 << 12)]),
    "gelu f16": lambda: call(wf.nn.gelu, normal(4096, dtype=np.float16)),
    "chain bf16": lambda: call(
        lambda x: wf.astype(wf.exp(wf.astype(x, wf.bfloat16)), wf.float32), normal(4096)
    ),
    "chain f64": lambda: call(lambda x: wf.exp(x) * x + 1, normal(4096, dtype=np.float64)),
    "integers": lambda: call(lambda x: (x * 3 + 1) // 7 % 5, np.arange(4096, dtype=np.int32)),
    "broadcast": lambda: call(
        lambda x, y, z: x * y + z, normal(64, 100), normal(100), normal(64, 1)
    ),
    "transposed": lambda: call(
        lambda x, y: wf.permute_dims(x, (1, 0)) + y, normal(70, 90), normal(90, 70)
    ),
    "sum": lambda: call(wf.sum, normal(1 << 14)),
    "sum of rows": lambda: call(lambda x: wf.sum(wf.exp(x), axis=1), normal(100, 300)),
    "sum of columns": lambda: call(lambda x: wf.sum(wf.exp(x), axis=0), normal(300, 100)),
    "mean f16": lambda: call(lambda x: wf.mean(x, axis=1), normal(100, 300, dtype=np.float16)),
    "max f64": lambda: call(lambda x: wf.max(x, axis=1), normal(100, 300, dtype=np.float64)),
    "argmax": lambda: call(lambda x: wf.argmax(x, axis=1), normal(100, 300)),
    "cumsum": lambda: call(lambda x: wf.cumulative_sum(x, axis=1), normal(100, 300)),
    "gather": lambda: call(lambda x, i: wf.take(x, i, axis=0), normal(100, 30), np.arange(50)),
    "segment sum": lambda: call(
        lambda x, i: wf.segment_sum(x, i, 10), normal(100, 30), np.arange(100) // 10
    ),
    "one hot": lambda: call(lambda i: wf.one_hot(i, 10), np.arange(100) % 10),
    "random": lambda: call(
        lambda x: x * wf.random.bernoulli(wf.random.key(3), 0.5, x.shape), normal(100, 30)
    ),
    "scatter": lambda: call(
        lambda x, u: wf.scatter_nd_max(x, np.arange(8)[:, None], u), normal(100, 30), normal(8, 30)
    ),
    "sort": lambda: call(lambda x: (wf.sort(x, axis=1), wf.argsort(x, axis=0)), normal(3, 600)),
    "convolution": lambda: with_gradients(wf.nn.conv2d, normal(2, 9, 9, 4), normal(3, 3, 4, 8)),
    "pooling": lambda: with_gradients(
        lambda x: wf.nn.max_pool2d(x, 2) + wf.nn.avg_pool2d(x, 2), normal(2, 8, 8, 4)
    ),
    "matmul large tiles": lambda: call(wf.matmul, *2 * [np.ones((1250, 1250), np.float32)]),
    "matmul f16": lambda: call(wf.matmul, *2 * [normal(128, 128, dtype=np.float16)]),
    "matmul f64": lambda: call(wf.matmul, *2 * [normal(128, 128, dtype=np.float64)]),
    "matmul i32": lambda: call(wf.matmul, *2 * [np.ones((40, 40), np.int32)]),
    "matmul batched": lambda: call(wf.matmul, normal(6, 64, 40), normal(6, 40, 64)),
    "matmul few rows": lambda: call(
        lambda x, y, z: (wf.exp(x @ y), wf.exp(x @ z.T)),
        normal(16, 99),
        normal(99, 99),
        normal(99, 99),
    ),
    "matmul few rows, many columns": lambda: call(
        lambda x, y: wf.exp(x @ y.T), normal(4, 40), np.ones((9000, 40), np.float32)
    ),
    "matmul gelu": lambda: call(
        lambda x, y, b, r: wf.nn.gelu(x @ y + b) * r,
        *(np.ones(shape, np.float32) for shape in ((1250, 40), (40, 1252), 1252, (1250, 1252))),
    ),
    "matmul tanh bf16": lambda: call(
        lambda x, y, b: wf.tanh(x @ y + b),
        *(np.ones(shape, ml_dtypes.bfloat16) for shape in ((1250, 40), (40, 1280), 1280)),
    ),
    "matmul sums of columns": lambda: call(
        lambda x, y: (wf.tanh(x @ y), wf.sum(wf.tanh(x @ y), axis=0)),
        np.ones((1250, 40), np.float32),
        np.ones((40, 1252), np.float32),
    ),
}
