"""Training steps of the nets of `table1_nets.py` in weft, JAX and PyTorch: forward, backward, and
plain SGD on all parameters, in place. Each has the layout that its library likes best: NHWC in weft
and JAX, channels_last in PyTorch, whose weights lie as its kernels want them from the beginning.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from table1_nets import Array, Lrn, Problem, loss_of, padding

import weft as wf

RATE = 1e-3


@dataclass(frozen=True)
class Contestant:
    """step(): one training step, which returns the loss before it. params(): the parameters now,
    in the order and layout of `Problem.params`."""

    step: Callable[[], Any]
    params: Callable[[], list[Array]]


# --------------------------------------------------------------------------------------------- weft
class Weft:
    """Words of weft."""

    relu = staticmethod(wf.nn.relu)

    @staticmethod
    def conv(x: Any, w: Any, b: Any, window: int, stride: int, pad: int | str) -> Any:
        return wf.nn.conv2d(x, w, stride, pad) + b

    @staticmethod
    def conv_norm(x: Any, w: Any, offset: Any, window: Any, stride: int, pad: int | str) -> Any:
        y = wf.nn.conv2d(x, w, stride, pad)
        mean, variance = wf.nn.moments(y, axes=(0, 1, 2))
        return wf.nn.batch_norm(y, mean, variance, offset)

    @staticmethod
    def max_pool(x: Any, window: int, stride: int, pad: str) -> Any:
        return wf.nn.max_pool2d(x, window, stride, pad)

    @staticmethod
    def mean_pool(x: Any, window: int, stride: int, pad: str) -> Any:
        return wf.nn.avg_pool2d(x, window, stride, pad)

    @staticmethod
    def average(x: Any) -> Any:
        return wf.mean(x, axis=(1, 2))

    @staticmethod
    def lrn(x: Any, how: Lrn) -> Any:
        return wf.nn.local_response_normalization(x, how.radius, how.bias, how.alpha, how.beta)

    @staticmethod
    def flat(x: Any) -> Any:
        return wf.reshape(x, (x.shape[0], -1))

    @staticmethod
    def dense(x: Any, w: Any, b: Any) -> Any:
        return wf.matmul(x, w) + b

    @staticmethod
    def concat(parts: list[Any]) -> Any:
        return wf.concat(parts, axis=-1)

    @staticmethod
    def cross_entropy(logits: Any, labels: Any) -> Any:
        losses = wf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
        return wf.mean(losses)


def weft_step(given: Problem) -> Contestant:
    """A compiled function of the batch; `wf.train.SGD` updates variables."""
    params = [wf.Variable(p) for p in given.params]
    loss_function, optimizer = loss_of(Weft, given.net), wf.train.SGD(RATE)

    @wf.compile
    def step(x: Any, labels: Any) -> Any:
        loss = loss_function(params, x, labels)
        optimizer.minimize(loss)
        return loss

    return Contestant(
        lambda: step(given.x, given.labels), lambda: [np.asarray(p.read()) for p in params]
    )


# ---------------------------------------------------------------------------------------------- JAX
def _jax_words() -> Any:
    import jax
    import jax.numpy as jnp
    from jax import lax

    class Jax:
        """Words of JAX."""

        relu = staticmethod(jax.nn.relu)

        @staticmethod
        def conv(x: Any, w: Any, b: Any, window: int, stride: int, pad: int | str) -> Any:
            around = [padding(pad, n, window, stride) for n in x.shape[1:3]]
            names = ("NHWC", "HWIO", "NHWC")
            made = lax.conv_general_dilated(x, w, (stride, stride), around, dimension_numbers=names)
            return made + b

        @staticmethod
        def max_pool(x: Any, window: int, stride: int, pad: str) -> Any:
            size, step = (1, window, window, 1), (1, stride, stride, 1)
            return lax.reduce_window(x, -jnp.inf, lax.max, size, step, pad)

        @staticmethod
        def average(x: Any) -> Any:
            return jnp.mean(x, axis=(1, 2))

        @staticmethod
        def lrn(x: Any, how: Lrn) -> Any:
            window = (1, 1, 1, 2 * how.radius + 1)
            total = lax.reduce_window(x * x, 0.0, lax.add, window, (1, 1, 1, 1), "SAME")
            return x / (how.bias + how.alpha * total) ** how.beta

        @staticmethod
        def flat(x: Any) -> Any:
            return x.reshape(x.shape[0], -1)

        @staticmethod
        def dense(x: Any, w: Any, b: Any) -> Any:
            return x @ w + b

        @staticmethod
        def concat(parts: list[Any]) -> Any:
            return jnp.concatenate(parts, axis=-1)

        @staticmethod
        def cross_entropy(logits: Any, labels: Any) -> Any:
            each = jax.nn.log_softmax(logits)
            return -jnp.mean(jnp.take_along_axis(each, labels[:, None], axis=1))

    return Jax


def jax_step(given: Problem) -> Contestant:
    """jax.jit of value, gradients and update; the parameters are donated."""
    import jax
    import jax.numpy as jnp

    loss_function = loss_of(_jax_words(), given.net)

    def update(params: list[Any], x: Any, labels: Any) -> tuple[list[Any], Any]:
        loss, grads = jax.value_and_grad(loss_function)(params, x, labels)
        return [p - RATE * g for p, g in zip(params, grads, strict=True)], loss

    compiled = jax.jit(update, donate_argnums=0)
    state = [jnp.array(p) for p in given.params]
    x, labels = jnp.array(given.x), jnp.array(given.labels)

    def step() -> Any:
        state[:], loss = compiled(list(state), x, labels)
        return jax.block_until_ready((loss, state))[0]

    return Contestant(step, lambda: [np.asarray(p) for p in state])


# ------------------------------------------------------------------------------------------ PyTorch
def _torch_words() -> Any:
    import torch
    from torch.nn import functional

    class Torch:
        """Words of PyTorch, whose images are (batch, channels, height, width)."""

        relu = staticmethod(functional.relu)

        @staticmethod
        def conv(x: Any, w: Any, b: Any, window: int, stride: int, pad: int | str) -> Any:
            before, after = padding(pad, x.shape[2], window, stride)
            if before != after:
                raise ValueError("PyTorch's convolutions pad both sides alike")
            return functional.conv2d(x, w, b, stride, before)

        @staticmethod
        def max_pool(x: Any, window: int, stride: int, pad: str) -> Any:
            before, after = padding(pad, x.shape[2], window, stride)
            if after - before not in (0, 1):
                raise ValueError("PyTorch's pools have at most a last window that reaches out")
            return functional.max_pool2d(x, window, stride, before, ceil_mode=after > before)

        @staticmethod
        def average(x: Any) -> Any:
            return x.mean((2, 3))

        @staticmethod
        def lrn(x: Any, how: Lrn) -> Any:
            size = 2 * how.radius + 1  # alpha is for the mean there
            return functional.local_response_norm(x, size, how.alpha * size, how.beta, how.bias)

        @staticmethod
        def flat(x: Any) -> Any:
            # in NHWC order, as the others: of channels_last a view
            return x.permute(0, 2, 3, 1).reshape(x.shape[0], -1) if x.ndim == 4 else x

        @staticmethod
        def dense(x: Any, w: Any, b: Any) -> Any:
            return functional.linear(x, w, b)

        @staticmethod
        def concat(parts: list[Any]) -> Any:
            return torch.cat(parts, 1)

        @staticmethod
        def cross_entropy(logits: Any, labels: Any) -> Any:
            return functional.cross_entropy(logits, labels)

    return Torch


def torch_step(given: Problem, compiled: bool = False, last: bool = True) -> Contestant:
    """Autograd and its fused SGD; compiled: by torch.compile. last: channels_last, or else NCHW."""
    import torch

    layout = torch.channels_last if last else torch.contiguous_format

    def moved(p: Array) -> Any:
        if p.ndim == 4:
            return torch.tensor(p.transpose(3, 2, 0, 1)).contiguous(memory_format=layout)
        return torch.tensor(p.T if p.ndim == 2 else p).contiguous()

    params = [moved(p).requires_grad_() for p in given.params]
    x = torch.tensor(given.x.transpose(0, 3, 1, 2)).contiguous(memory_format=layout)
    labels = torch.tensor(given.labels)
    loss_function = loss_of(_torch_words(), given.net)
    evaluate = torch.compile(loss_function, dynamic=False) if compiled else loss_function
    optimizer = torch.optim.SGD(params, RATE, fused=True)

    def step() -> Any:
        optimizer.zero_grad(set_to_none=True)
        loss = evaluate(params, x, labels)
        loss.backward()
        optimizer.step()
        return loss.detach()

    def back(p: Any) -> Array:
        made = p.detach().numpy()
        return made.transpose(2, 3, 1, 0) if made.ndim == 4 else made.T

    return Contestant(step, lambda: [back(p) for p in params])


MAKERS: dict[str, Callable[[Problem], Contestant]] = {
    "weft": weft_step,
    "jax": jax_step,
    "torch": torch_step,
    "torch nchw": lambda given: torch_step(given, last=False),
    "torch.compile": lambda given: torch_step(given, compiled=True),
}
