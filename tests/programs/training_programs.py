"""Training programs: momentum, Adam, embeddings, an LSTM, convolutions, attention, dropout."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import weft as wf

Array = np.ndarray[Any, Any]
Step = Callable[..., Any]
LABELS = np.array([0, 3, 6, 2, 1])


def _random(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32) * 0.3


def _cross_entropy(labels: wf.Tensor, logits: wf.Tensor) -> wf.Tensor:
    return wf.mean(wf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))


def _mlp() -> Step:
    w1, w2 = wf.Variable(_random(20, 32)), wf.Variable(_random(32, 7))
    optimizer = wf.train.AdamOptimizer(1e-2)

    def step(x: wf.Tensor, labels: wf.Tensor) -> wf.Tensor:
        loss = _cross_entropy(labels, wf.matmul(wf.nn.gelu(wf.matmul(x, w1)), w2))
        optimizer.minimize(loss)
        return loss

    return step


def _momentum() -> Step:
    w = wf.Variable(_random(20, 7))
    optimizer = wf.train.MomentumOptimizer(1e-2, 0.9)

    def step(x: wf.Tensor, labels: wf.Tensor) -> wf.Tensor:
        loss = _cross_entropy(labels, wf.matmul(x, w))
        optimizer.minimize(loss)
        return loss

    return step


def _embedding() -> Step:
    table, w = wf.Variable(_random(50, 8)), wf.Variable(_random(8, 3))
    optimizer = wf.train.AdagradOptimizer(0.1)

    def step(index: wf.Tensor) -> Any:
        rows = wf.nn.embedding_lookup(table, index)
        loss = wf.mean(wf.square(wf.matmul(wf.mean(rows, axis=1), w) - 1.0))
        optimizer.minimize(loss)
        return loss, table.read()

    return step


def _lstm() -> Step:
    wx, wh = wf.Variable(_random(6, 32)), wf.Variable(_random(8, 32))
    optimizer = wf.train.GradientDescentOptimizer(0.1)

    def step(xs: wf.Tensor) -> wf.Tensor:
        def body(carry: Any, x: wf.Tensor) -> Any:
            h, c = carry
            i, forget, o, u = wf.split(wf.matmul(x, wx) + wf.matmul(h, wh), 4, axis=1)
            c = wf.sigmoid(forget) * c + wf.sigmoid(i) * wf.tanh(u)
            h = wf.sigmoid(o) * wf.tanh(c)
            return (h, c), h

        start = (wf.zeros((3, 8)), wf.zeros((3, 8)))
        (h, _), ys = wf.scan(body, init=start, xs=xs)
        loss = wf.mean(ys * ys) + wf.sum(h)
        optimizer.minimize(loss)
        return loss

    return step


def _conv() -> Step:
    first, second = wf.Variable(_random(3, 3, 2, 5)), wf.Variable(_random(3, 3, 5, 4))
    w = wf.Variable(_random(64, 3))
    optimizer = wf.train.GradientDescentOptimizer(0.1)

    def step(x: wf.Tensor, labels: wf.Tensor) -> wf.Tensor:
        h = wf.nn.relu(wf.nn.conv2d(x, first, padding="SAME"))
        h = wf.nn.max_pool2d(h, 2, 2, padding="SAME")
        h = wf.nn.conv2d(h, second, padding="SAME")
        loss = _cross_entropy(labels, wf.matmul(wf.reshape(h, [2, -1]), w))
        optimizer.minimize(loss)
        return loss

    return step


def _attention() -> Step:
    inner, outer = wf.Variable(_random(16, 48)), wf.Variable(_random(16, 16))
    gain = wf.Variable(np.ones(16, np.float32))
    optimizer = wf.train.AdamOptimizer(1e-2)

    def heads(t: wf.Tensor) -> wf.Tensor:
        return wf.permute_dims(wf.reshape(t, [2, 5, 4, 4]), [0, 2, 1, 3])

    def step(x: wf.Tensor) -> wf.Tensor:
        off = x - wf.mean(x, axis=-1, keepdims=True)
        normed = off * wf.rsqrt(wf.mean(wf.square(off), axis=-1, keepdims=True) + 1e-5) * gain
        q, k, v = (heads(t) for t in wf.split(wf.matmul(normed, inner), 3, axis=-1))
        scores = wf.matmul(q, wf.permute_dims(k, [0, 1, 3, 2])) / 2.0
        scores = wf.where(np.tril(np.ones((5, 5), bool)), scores, -1e9)
        mixed = wf.permute_dims(wf.matmul(wf.nn.softmax(scores), v), [0, 2, 1, 3])
        y = x + wf.matmul(wf.reshape(mixed, [2, 5, 16]), outer)
        loss = wf.mean(y * y)
        optimizer.minimize(loss)
        return loss

    return step


def _dropout() -> Step:
    rng, w = wf.random.Generator(3), wf.Variable(_random(20, 20))

    def step(x: wf.Tensor) -> Any:
        key = wf.random.key(5)
        noise = wf.random.normal(key, (5, 4)), wf.random.uniform(key, (7,))
        return wf.nn.dropout(wf.matmul(x, w), 0.3, rng=rng), noise

    return step


def _growing() -> Step:
    w = wf.Variable(_random(4, 4))

    def step(x: wf.Tensor) -> wf.Tensor:
        def loss(w: wf.Tensor) -> wf.Tensor:
            y = wf.while_loop(
                lambda y: wf.sum(wf.abs(y)) < 50.0, lambda y: wf.tanh(wf.matmul(y, w)) + y * 1.3, x
            )
            return wf.sum(y * y)

        return wf.grad(loss)(w.read())

    return step


def _halves() -> Step:
    def step(x: wf.Tensor) -> Any:
        brain, half = wf.astype(x, wf.bfloat16), wf.astype(x, wf.float16)
        return wf.astype(brain * brain + 1.0, wf.float32), half * 2.0, wf.astype(x * 10, wf.int32)

    return step


PROGRAMS: dict[str, tuple[Callable[[], Step], tuple[Array, ...]]] = {
    "mlp, Adam": (_mlp, (_random(5, 20), LABELS)),
    "linear, momentum": (_momentum, (_random(5, 20), LABELS)),
    "embedding, Adagrad": (_embedding, (np.array([[1, 2, 3], [3, 4, 49]]),)),
    "lstm": (_lstm, (_random(4, 3, 6),)),
    "conv": (_conv, (_random(2, 8, 8, 2), np.array([0, 2]))),
    "attention, Adam": (_attention, (_random(2, 5, 16),)),
    "dropout": (_dropout, (_random(5, 20),)),
    "loop of unknown length": (_growing, (_random(4, 4),)),
    "halves": (_halves, (_random(6, 9),)),
}
