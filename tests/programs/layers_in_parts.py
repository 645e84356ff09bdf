"""More layers, by what could make their bits depend on where a graph is cut."""

from __future__ import annotations

from typing import Any

from layer_programs import LAYERS

import weft as wf


def convolved(x: Any, w: Any) -> Any:
    image = wf.reshape(x, (1, *x.shape, 1))
    kernel = wf.reshape(w[:3, :6], (3, 3, 1, 2))
    made = wf.nn.relu(wf.nn.conv2d(image, kernel, padding="SAME") + w[0, :2])
    return wf.mean(made, axis=3)[0] + x


def looked_up(x: Any, w: Any) -> Any:
    ids = wf.argsort(w[:, 0])[: x.shape[1] // 2]
    rows = wf.take(w, wf.concat([ids, ids]), axis=0)
    return x + wf.sum(rows, axis=0) * wf.tanh(wf.take(x, ids[:1] % x.shape[0], axis=0))


#: What else has an order in which it adds up, or is rewritten or fused in a way of its own.
OTHERS: dict[str, Any] = {
    "matrix times vector": lambda x, w: wf.tanh(x @ w[:, :1]) * x + x[:1] @ w,
    "outer": lambda x, w: x + wf.tanh(x[:, :1]) @ w[:1, :] * 0.1,
    "cube": lambda x, w: wf.tanh(x) ** 3 + x**2,
    "mish": lambda x, w: x * wf.tanh(wf.nn.softplus(x)),
    "scan": lambda x, w: wf.cumulative_sum(x, axis=1) * 0.1 + wf.cumulative_sum(x, axis=0) * 0.1,
    "transposed sum": lambda x, w: x - wf.sum(wf.permute_dims(x * 0.5, (1, 0)), axis=0)[:, None],
    "all": lambda x, w: x / (1 + wf.var(x) + wf.max(wf.abs(w))) + wf.std(x, axis=0),
    "strided": lambda x, w: x + wf.sum(x[::2, ::3] * 1.5) + wf.sum(w[:, ::2].T, axis=1)[0],
    "broadcast": lambda x, w: x + wf.sum(wf.broadcast_to(x[:1] * 0.3, (5, x.shape[1])), axis=0),
    "batched": lambda x, w: (
        x + wf.sum(wf.einsum("ia,jab->ib", x, wf.stack([w, w.T * 0.5])), axis=1, keepdims=True)
    ),
    "constants": lambda x, w: x * wf.exp(wf.sum(wf.arange(7.0)) * 0.01) + wf.sin(wf.asarray(0.3)),
    "convolution": convolved,
    "lookup": looked_up,
    "drawn": lambda x, w: x + wf.sum(wf.random.normal(wf.random.key(3), x.shape) * x, axis=0),
    "picked": lambda x, w: x - wf.nn.log_softmax(x),
    "cross entropy": lambda x, w: (
        x
        * wf.mean(
            wf.nn.sparse_softmax_cross_entropy_with_logits(
                labels=wf.arange(x.shape[0]) % x.shape[1], logits=x @ w
            )
        )
    ),
}
EVERY: dict[str, Any] = LAYERS | OTHERS
