"""The few words that benchmark models are written in: in weft, NumPy, JAX and PyTorch.

A model is one function of a vocabulary, so that every contestant computes the same thing.
"""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

from weft.frontend import nn
from weft.frontend.ops import arithmetic as ops_arithmetic
from weft.frontend.ops import elementwise as ops_elementwise
from weft.frontend.ops import index as ops_index
from weft.frontend.ops import linalg as ops_linalg
from weft.frontend.ops import rearrange as ops_rearrange
from weft.frontend.ops import reduction as ops_reduction
from weft.frontend.ops import shape as ops_shape

EPSILON = 1e-5  # of layer norm


class Weft:
    """Words of weft."""

    sum = staticmethod(ops_reduction.sum)
    max = staticmethod(ops_reduction.max)
    mean = staticmethod(ops_reduction.mean)
    matmul = staticmethod(ops_linalg.matmul)
    relu = staticmethod(nn.relu)
    reshape = staticmethod(ops_shape.reshape)
    permute = staticmethod(ops_shape.permute_dims)
    where = staticmethod(ops_arithmetic.where)
    abs = staticmethod(ops_arithmetic.abs)
    exp = staticmethod(ops_elementwise.exp)
    log = staticmethod(ops_elementwise.log)
    log1p = staticmethod(ops_elementwise.log1p)
    sqrt = staticmethod(ops_elementwise.sqrt)
    tanh = staticmethod(ops_elementwise.tanh)
    erf = staticmethod(ops_elementwise.erf)
    concat = staticmethod(ops_rearrange.concat)

    @staticmethod
    def take(x: Any, rows: Any) -> Any:
        return ops_index.take(x, rows, axis=0)

    @staticmethod
    def softmax(x: Any) -> Any:
        return nn.softmax(x)

    @staticmethod
    def gelu(x: Any) -> Any:
        return nn.gelu(x, approximate=True)

    @staticmethod
    def layer_norm(x: Any, gamma: Any, beta: Any) -> Any:
        return nn.layer_norm(x, scale=gamma, offset=beta, epsilon=EPSILON)

    @staticmethod
    def cross_entropy(logits: Any, labels: Any) -> Any:
        losses = nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
        return ops_reduction.mean(losses)

    @staticmethod
    def conv(x: Any, kernel: Any) -> Any:
        return nn.conv2d(x, kernel, padding="SAME")

    @staticmethod
    def max_pool(x: Any) -> Any:
        return nn.max_pool2d(x, 2, strides=2)


class NumPy:
    """Words of NumPy, as people write them."""

    sum = staticmethod(np.sum)
    max = staticmethod(np.max)
    mean = staticmethod(np.mean)
    matmul = staticmethod(np.matmul)
    reshape = staticmethod(np.reshape)
    permute = staticmethod(np.transpose)
    where = staticmethod(np.where)
    abs = staticmethod(np.abs)
    exp = staticmethod(np.exp)
    log = staticmethod(np.log)
    log1p = staticmethod(np.log1p)
    sqrt = staticmethod(np.sqrt)
    tanh = staticmethod(np.tanh)
    concat = staticmethod(np.concatenate)

    @staticmethod
    def erf(x: Any) -> Any:
        return importlib.import_module("scipy.special").erf(x)

    @staticmethod
    def relu(x: Any) -> Any:
        return np.maximum(x, 0)

    @staticmethod
    def take(x: Any, rows: Any) -> Any:
        return np.take(x, rows, axis=0)

    @staticmethod
    def softmax(x: Any) -> Any:
        e = np.exp(x - x.max(-1, keepdims=True))
        return e / e.sum(-1, keepdims=True)

    @staticmethod
    def layer_norm(x: Any, gamma: Any, beta: Any) -> Any:
        centred = x - x.mean(-1, keepdims=True)
        variance = (centred * centred).mean(-1, keepdims=True)
        return centred / np.sqrt(variance + EPSILON) * gamma + beta

    @staticmethod
    def conv(x: Any, kernel: Any) -> Any:
        raise NotImplementedError("NumPy has no convolutions of images")

    @staticmethod
    def cross_entropy(logits: Any, labels: Any) -> Any:
        shifted = logits - logits.max(-1, keepdims=True)
        rows = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
        return -np.take_along_axis(rows, labels[..., None], axis=-1).mean()


def jax_vocabulary() -> Any:
    """Words of JAX. ImportError without it."""
    jax = importlib.import_module("jax")
    jnp = importlib.import_module("jax.numpy")

    class Jax:
        sum = staticmethod(jnp.sum)
        max = staticmethod(jnp.max)
        mean = staticmethod(jnp.mean)
        matmul = staticmethod(jnp.matmul)
        relu = staticmethod(jax.nn.relu)
        reshape = staticmethod(jnp.reshape)
        permute = staticmethod(jnp.transpose)
        where = staticmethod(jnp.where)
        softmax = staticmethod(jax.nn.softmax)
        gelu = staticmethod(jax.nn.gelu)
        abs = staticmethod(jnp.abs)
        exp = staticmethod(jnp.exp)
        log = staticmethod(jnp.log)
        log1p = staticmethod(jnp.log1p)
        sqrt = staticmethod(jnp.sqrt)
        tanh = staticmethod(jnp.tanh)
        erf = staticmethod(jax.scipy.special.erf)
        concat = staticmethod(jnp.concatenate)

        @staticmethod
        def take(x: Any, rows: Any) -> Any:
            return jnp.take(x, rows, axis=0)

        @staticmethod
        def layer_norm(x: Any, gamma: Any, beta: Any) -> Any:
            centred = x - x.mean(-1, keepdims=True)
            variance = (centred * centred).mean(-1, keepdims=True)
            return centred * jax.lax.rsqrt(variance + EPSILON) * gamma + beta

        @staticmethod
        def cross_entropy(logits: Any, labels: Any) -> Any:
            rows = jax.nn.log_softmax(logits)
            return -jnp.take_along_axis(rows, labels[..., None], axis=-1).mean()

        @staticmethod
        def conv(x: Any, kernel: Any) -> Any:
            layout = ("NHWC", "HWIO", "NHWC")
            return jax.lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=layout)

        @staticmethod
        def max_pool(x: Any) -> Any:
            window = (1, 2, 2, 1)
            return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, window, window, "VALID")

    return Jax


def torch_vocabulary() -> Any:
    """Words of PyTorch. ImportError without it."""
    torch = importlib.import_module("torch")
    functional = importlib.import_module("torch.nn.functional")

    class Torch:
        sum = staticmethod(torch.sum)
        max = staticmethod(torch.amax)
        mean = staticmethod(torch.mean)
        matmul = staticmethod(torch.matmul)
        relu = staticmethod(torch.relu)
        reshape = staticmethod(torch.reshape)
        permute = staticmethod(torch.permute)
        abs = staticmethod(torch.abs)
        exp = staticmethod(torch.exp)
        log = staticmethod(torch.log)
        log1p = staticmethod(torch.log1p)
        sqrt = staticmethod(torch.sqrt)
        tanh = staticmethod(torch.tanh)
        erf = staticmethod(torch.erf)
        concat = staticmethod(torch.cat)

        @staticmethod
        def take(x: Any, rows: Any) -> Any:
            return torch.index_select(x, 0, rows)

        @staticmethod
        def where(condition: Any, x: Any, y: Any) -> Any:
            return torch.where(condition, x, torch.tensor(y, dtype=x.dtype))

        @staticmethod
        def softmax(x: Any) -> Any:
            return torch.softmax(x, -1)

        @staticmethod
        def gelu(x: Any) -> Any:
            return functional.gelu(x, approximate="tanh")

        @staticmethod
        def layer_norm(x: Any, gamma: Any, beta: Any) -> Any:
            return functional.layer_norm(x, gamma.shape, gamma, beta, eps=EPSILON)

        @staticmethod
        def cross_entropy(logits: Any, labels: Any) -> Any:
            flat = logits.reshape(-1, logits.shape[-1])
            return functional.cross_entropy(flat, labels.reshape(-1))

        @staticmethod
        def conv(x: Any, kernel: Any) -> Any:
            # channels last in memory, which is what oneDNN likes best
            out = functional.conv2d(x.permute(0, 3, 1, 2), kernel.permute(3, 2, 0, 1), padding=1)
            return out.permute(0, 2, 3, 1)

        @staticmethod
        def max_pool(x: Any) -> Any:
            return functional.max_pool2d(x.permute(0, 3, 1, 2), 2).permute(0, 2, 3, 1)

    return Torch
