"""Values that nests compute again: the same results, fewer of them stored."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import weft as wf
from weft.ir.graph import Graph
from weft.ir.interpreter import interpret
from weft.ir.verify import verify
from weft.passes.fusion.fuse import fuse
from weft.passes.recompute import recompute
from weft.runtime.executable import compile_graph

X, W, G = (np.random.default_rng(k).standard_normal((64, 64)).astype(np.float32) for k in range(3))


def graph_of(function: Any) -> Graph:
    return wf.compile(function)._specialized((X, W, G), {}).traced.graph


def stored(graph: Graph) -> int:
    return sum(len(op.results) for op in graph.ops if op.name == "fused")


def gelu_gradient(x: Any, w: Any, g: Any) -> Any:
    t = wf.tanh(x * 0.5 + 1)
    later = ((t * x) @ w) @ w
    return later * (1 - t * t) * (0.5 * (1 + t)) * g


def row_kernel(x: Any, w: Any, g: Any) -> Any:
    centred = x - wf.mean(x, axis=1, keepdims=True)
    scale = wf.rsqrt(wf.mean(centred * centred, axis=1, keepdims=True) + 1e-5)
    later = (centred @ w) @ w
    return later * (centred * 0.03) * scale + g


FORMS = {"gelu": (gelu_gradient, 1), "rows": (row_kernel, 1)}


@pytest.mark.parametrize("name", FORMS)
def test_same_results_with_fewer_stored(name: str) -> None:
    function, fewer = FORMS[name]
    graph = graph_of(function)
    before = fuse(graph)
    after = recompute(before)
    verify(after)
    assert stored(after) <= stored(before) - fewer
    wanted = interpret(graph, [X, W, G])
    for got in (
        interpret(after, [X, W, G]),
        compile_graph(graph, passes=(fuse, recompute))([X, W, G]),
    ):
        for a, b in zip(got, wanted, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


def test_results_of_the_graph_and_small_ones_stay() -> None:
    def shown(x: Any, w: Any, g: Any) -> Any:
        t = wf.tanh(x)
        q = t * t
        return (t @ w) * q, q

    before = fuse(graph_of(shown))
    assert recompute(before) is before
    small = [v[:4, :4].copy() for v in (X, W, G)]
    graph = wf.compile(gelu_gradient)._specialized(tuple(small), {}).traced.graph
    before = fuse(graph)
    assert recompute(before) is before
