"""The few words that the benchmark models are written in, in weft, JAX and PyTorch.

A model is one function of a vocabulary, so that every contestant computes the same thing.
"""

from __future__ import annotations

from typing import Any

import weft as wf

EPSILON = 1e-5  # of layer norm


class Weft:
    """Words of weft."""

    sum = staticmethod(wf.sum)
    mean = staticmethod(wf.mean)
    matmul = staticmethod(wf.matmul)
    relu = staticmethod(wf.nn.relu)
    reshape = staticmethod(wf.reshape)
    permute = staticmethod(wf.permute_dims)
    where = staticmethod(wf.where)

    @staticmethod
    def softmax(x: Any) -> Any:
        return wf.nn.softmax(x)

    @staticmethod
    def gelu(x: Any) -> Any:
        return wf.nn.gelu(x, approximate=True)

    @staticmethod
    def layer_norm(x: Any, gamma: Any, beta: Any) -> Any:
        return wf.nn.layer_norm(x, scale=gamma, offset=beta, epsilon=EPSILON)

    @staticmethod
    def cross_entropy(logits: Any, labels: Any) -> Any:
        losses = wf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
        return wf.mean(losses)

    @staticmethod
    def conv(x: Any, kernel: Any) -> Any:
        return wf.nn.conv2d(x, kernel, padding="SAME")

    @staticmethod
    def max_pool(x: Any) -> Any:
        return wf.nn.max_pool2d(x, 2, strides=2)


def jax_vocabulary() -> Any:
    """Words of JAX; imported here, so that weft alone can be timed without it."""
    import jax
    import jax.numpy as jnp

    class Jax:
        sum = staticmethod(jnp.sum)
        mean = staticmethod(jnp.mean)
        matmul = staticmethod(jnp.matmul)
        relu = staticmethod(jax.nn.relu)
        reshape = staticmethod(jnp.reshape)
        permute = staticmethod(jnp.transpose)
        where = staticmethod(jnp.where)
        softmax = staticmethod(jax.nn.softmax)
        gelu = staticmethod(jax.nn.gelu)

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
    """Words of PyTorch."""
    import torch
    from torch.nn import functional

    class Torch:
        sum = staticmethod(torch.sum)
        mean = staticmethod(torch.mean)
        matmul = staticmethod(torch.matmul)
        relu = staticmethod(torch.relu)
        reshape = staticmethod(torch.reshape)
        permute = staticmethod(torch.permute)

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
