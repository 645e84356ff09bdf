"""Layers whose sizes stay open."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import weft as wf

Layer = Callable[[Any, Any], Any]
DIM = 12
#: What has no value over no rows.
EMPTY_FAILS = frozenset({"max", "over_rows"})


def split_by(x: Any, w: Any) -> Any:
    """Sizes of two parts meet in a third one."""
    left, right = wf.dynamic_partition(x, wf.cast(x[:, 0] > 0, wf.int32), 2)
    return wf.concat([right * 2, left + 1], axis=0)


def rows_of(x: Any, w: Any) -> Any:
    """As many rows of a table as the operand has, by its own values."""
    index = wf.cast(wf.abs(x[:, 0] * 100), wf.int64) % DIM
    return x + wf.gather(w, index)


LAYERS: dict[str, Layer] = {
    "dense": lambda x, w: wf.tanh(x @ w) * 0.5 + x,
    "self": lambda x, w: (x @ x.T) @ x * 0.01,
    "normal": lambda x, w: x - wf.mean(x, axis=1, keepdims=True),
    "columns": lambda x, w: x - 0.5 * wf.mean(x, axis=0),
    "softmax": lambda x, w: wf.nn.softmax(x * 1.5 - 0.25),
    "over_rows": lambda x, w: wf.nn.softmax(x, axis=0),
    "norm": lambda x, w: x / (1 + wf.sqrt(wf.sum(wf.square(x)))),
    "poly": lambda x, w: ((0.1 * x + 0.3) * x - 0.2) * x + 0.9 * x - x * x * 0.1,
    "transpose": lambda x, w: (w.T @ x.T).T * 0.5,
    "gram": lambda x, w: x @ (x.T @ x) * 0.01,
    "cumulative": lambda x, w: wf.cumulative_sum(x, axis=0) * 0.1,
    "sorted": lambda x, w: wf.sort(x, axis=0),
    "flat": lambda x, w: wf.reshape(wf.reshape(x, [-1]) * 2, [-1, DIM]),
    "max": lambda x, w: x - wf.max(x, axis=0),
    "parts": split_by,
    "rows": rows_of,
    "concat": lambda x, w: wf.concat([x, w, x], axis=0)[: x.shape[0]],
    "ones": lambda x, w: x + wf.ones([x.shape[0], DIM]) / wf.cast(wf.shape(x)[0] + 1, wf.float32),
}
