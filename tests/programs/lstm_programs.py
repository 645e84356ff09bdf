"""An LSTM with its gradients, as a scan and as a loop whose length the data decide, and a step of
the paper's Figure 1."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

import weft as wf

SIZE = 4


def floats(*shape: int) -> Any:
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float32)


def cell(w: Any, b: Any, x: Any, h: Any, c: Any) -> tuple[Any, Any]:
    z = wf.concat([x, h], axis=1) @ w + b
    i, f, g, o = (z[:, k * SIZE : (k + 1) * SIZE] for k in range(4))
    c = wf.sigmoid(f) * c + wf.sigmoid(i) * wf.tanh(g)
    return wf.sigmoid(o) * wf.tanh(c), c


def scanned(w: Any, b: Any, xs: Any, h: Any, c: Any) -> Any:
    def step(carry: Any, x: Any) -> Any:
        made = cell(w, b, x, *carry)
        return made, made[0]

    _, ys = wf.scan(step, (h, c), xs)
    return wf.sum(ys**2)


def looped(w: Any, b: Any, xs: Any, h: Any, c: Any) -> Any:
    """The same as a while whose length depends on the data: its gradient pops from stacks."""
    xs = wf.asarray(xs)

    def going(i: Any, h: Any, c: Any) -> Any:
        return (i < xs.shape[0]) & (wf.sum(h) < 1e6)

    def body(i: Any, h: Any, c: Any) -> Any:
        h, c = cell(w, b, xs[i], h, c)
        return i + 1, h, c

    _, h, c = wf.while_loop(going, body, (0, h, c))
    return wf.sum(h * c)


def digits() -> Callable[..., Any]:
    """Weights, slots and Adagrad."""
    w1 = wf.Variable(floats(64, 10), name="w1")
    w2 = wf.Variable(floats(10, 10), name="w2")
    optimizer = wf.train.AdagradOptimizer(0.01)

    def step(x: Any, labels: Any) -> Any:
        logits = wf.nn.relu(x @ w1) @ w2
        losses = wf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
        loss = wf.mean(losses)
        optimizer.minimize(loss)
        return loss

    return step


def _lstm(loss: Callable[..., Any]) -> Callable[..., Any]:
    return wf.value_and_grad(loss, argnums=(0, 1))


LSTM_ARGS = tuple(
    floats(*s) for s in ((3 + SIZE, 4 * SIZE), (4 * SIZE,), (5, 2, 3), (2, SIZE), (2, SIZE))
)
#: What makes each function, and its arguments.
PROGRAMS: dict[str, tuple[Callable[[], Callable[..., Any]], tuple[Any, ...]]] = {
    "scanned": (partial(_lstm, scanned), LSTM_ARGS),
    "looped": (partial(_lstm, looped), LSTM_ARGS),
    "digits": (digits, (floats(8, 64), np.arange(8) % 10)),
}
