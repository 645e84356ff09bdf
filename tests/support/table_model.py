"""A small model whose rows of a table are looked up, for tests of functions over a mesh."""

from __future__ import annotations

from typing import Any

import numpy as np

import weft as wf


class TableModel:
    """A table that is looked up, and a layer."""

    def __init__(self, optimizer: Any) -> None:
        rng = np.random.default_rng(3)
        self.table = wf.Variable(rng.normal(size=(50, 4)).astype(np.float32))
        self.w = wf.Variable(rng.normal(size=(4, 3)).astype(np.float32))
        self.optimizer = optimizer()
        self.steps = wf.Variable(np.int64(0), trainable=False)

    def step(self, ids: Any, labels: Any, scale: Any) -> Any:
        rows = wf.nn.embedding_lookup(self.table, ids)
        logits = wf.matmul(wf.tanh(rows), self.w) * scale
        losses = wf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
        loss = wf.mean(losses)
        self.optimizer.minimize(loss, global_step=self.steps)
        return {"loss": loss, "right": wf.mean(wf.astype(losses < 1, wf.float32))}
