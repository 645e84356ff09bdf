"""More layers, what their variables hold, and random cuts of them over tasks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from layer_programs import LAYERS
from placed_programs import place_at_random
from tasks_here import run_steps

import weft as wf
from weft.ir.dtypes import as_dtype
from weft.ir.graph import Graph
from weft.passes.partition.partition import partition
from weft.passes.pipelines import REPRODUCIBLE
from weft.passes.simplify.effects import strip_gradient_ops
from weft.runtime.dataflow.executor import dataflow_step
from weft.runtime.resources.variables import VariableState

Arrays = Sequence[np.ndarray[Any, Any]]

Held = dict[str, VariableState]


def held_of(state: dict[str, Any]) -> Held:
    return {
        name: VariableState(name, as_dtype(value.dtype), value.shape, value.copy())
        for name, value in state.items()
    }


def cut(graph: Graph, held: Held, inputs: Arrays, seed: int, count: int) -> list[Any]:
    bare = strip_gradient_ops(graph)
    made = partition(place_at_random(bare, seed, count, stay=(seed % 4) / 4))
    steps = [
        dataflow_step(part.graph, held, {}, "auto", passes=REPRODUCIBLE) for part in made.parts
    ]
    found, exchange = run_steps(made.parts, steps, inputs, 20.0)
    assert not exchange.left()
    return found


def same(found: Sequence[Any], wanted: Sequence[Any], what: str) -> None:
    for k, (a, b) in enumerate(zip(found, wanted, strict=True)):
        assert (a is None) == (b is None)
        if a is not None:
            assert a.dtype == b.dtype
            assert a.tobytes() == b.tobytes(), f"result {k} of {what}"


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
