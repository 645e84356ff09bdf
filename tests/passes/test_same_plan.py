"""The passes make the same graph each time: a plan, and so the bits of a step, are the same in all
processes. A set of values is in the order of their addresses: a pass must not walk through one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from compiled_checks import PIPELINE
from example_counts import examples
from graphs import Case, graphs
from hypothesis import given
from structured_programs import programs

import weft as wf
from weft.ir import dtypes
from weft.ir.graph import Graph
from weft.ir.ops import OPS
from weft.ir.ops.collectives import COLLECTIVES
from weft.ir.text.printer import print_graph
from weft.passes.manager import PassOptions, run_passes

Params = dict[str, Any]
TRACED = [
    name
    for name, spec in OPS.items()
    if not spec.traits & {"host", "handle"}
    and not name.startswith(("stack_", "arena_"))
    and name not in COLLECTIVES
]


def check(graph: Graph, times: int) -> None:
    """After each pass the graph reads the same; those of before live on, at other addresses."""
    kept: list[Any] = []
    for _ in range(times):
        result, reports = run_passes(graph, PIPELINE, options=PassOptions())
        kept.append((result, reports))
        for first, again in zip(kept[0][1], reports, strict=True):
            assert print_graph(first.graph) == print_graph(again.graph), first.name


@given(graphs(stage="traced", ops=TRACED, dtypes=[dtypes.float32, dtypes.int64], max_ops=40))
@examples(40)
def test_any_graph(graph: Graph) -> None:
    check(graph, 2)


@given(programs())
@examples(40)
def test_control_flow(program: Case) -> None:
    check(program.graph, 2)


def block(p: Params, x: Any, labels: Any) -> Any:
    """A layer with norms, attention and GELU, and a classifier."""
    h = wf.nn.layer_norm(x, -1) * p["gain"] + p["shift"]
    q, k, v = (h @ p[n] for n in ("query", "key", "value"))
    x = x + wf.nn.scaled_dot_product_attention(q, k, v, is_causal=True) @ p["out"]
    h = wf.nn.layer_norm(x, -1) * p["gain2"] + p["shift2"]
    x = x + wf.nn.gelu(h @ p["up"] + p["bias"]) @ p["down"]
    loss = wf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=x @ p["head"])
    return wf.mean(loss)


def step(p: Params, m: Params, x: Any, labels: Any) -> Any:
    """A step of momentum: small updates go along with the sums that they need."""
    loss, grads = wf.value_and_grad(block)(p, x, labels)
    m = {name: 0.9 * m[name] + grads[name] for name in p}
    return loss, {name: p[name] - 0.1 * m[name] for name in p}, m


@pytest.mark.share(2)
@pytest.mark.parametrize("rows", [16, 512])
def test_training_step(rows: int) -> None:
    n, classes = 96, 32
    shapes: dict[str, tuple[int, ...]] = dict.fromkeys(("query", "key", "value", "out"), (n, n))
    shapes |= {"up": (n, 4 * n), "down": (4 * n, n), "bias": (4 * n,), "head": (n, classes)}
    shapes |= dict.fromkeys(("gain", "shift", "gain2", "shift2"), (n,))
    params = {name: np.ones(shape, np.float32) for name, shape in shapes.items()}
    momenta = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
    x = np.ones((2, rows, n), np.float32)
    labels = np.zeros((2, rows), np.int32)
    traced = wf.compile(step)._specialized((params, momenta, x, labels), {}).traced
    check(traced.graph, 4)
