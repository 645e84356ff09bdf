"""What follows from the sums of a nest, apart from the product that takes the nest over."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import weft as wf
from weft.ir.analysis.verify import verify
from weft.ir.graph import Graph
from weft.ir.interpreter.evaluate import interpret
from weft.passes.fusion.epilogues import fuse_matmul, split_tails
from weft.passes.fusion.fuse import fuse
from weft.runtime.native.executable import compile_graph

RNG = np.random.default_rng(3)


def arrays(rows: int, columns: int, depth: int) -> list[Any]:
    shapes = [(rows, depth), (depth, columns), (rows, columns), (columns,), (columns,)]
    return [RNG.standard_normal(s, dtype=np.float32) for s in shapes]


def update(d: Any, w: Any, h: Any, b: Any, m: Any) -> Any:
    """The gradient of a hidden layer, and a step of the bias with momentum."""
    g = wf.where(h > 0, wf.matmul(d, w), 0)
    new = 0.9 * m + wf.sum(g, axis=0)
    return g, b - 0.1 * new, new


def graph_of(function: Any, args: list[Any]) -> Graph:
    return wf.compile(function)._specialized(tuple(args), {}).traced.graph


def joined(graph: Graph) -> int:
    regions = [op.regions[0] for op in graph.ops if op.name == "fused"]
    return sum(any(o.name == "matmul" for o in r.ops) for r in regions)


SIZES = [(64, 48, 32), (300, 100, 17), (5, 7, 3)]  # of the last, fusion leaves the tail outside


@pytest.mark.parametrize(("rows", "columns", "depth"), SIZES)
def test_the_product_takes_the_rest(rows: int, columns: int, depth: int) -> None:
    args = arrays(rows, columns, depth)
    graph = graph_of(update, args)
    after = fuse_matmul(split_tails(fuse(graph)))
    verify(after)
    assert (joined(fuse_matmul(fuse(graph))), joined(after)) == (int(columns < 8), 1)
    wanted = interpret(graph, args)
    passes = (fuse, split_tails, fuse_matmul)
    for got in (interpret(after, args), compile_graph(graph, passes=passes).run(args)):
        for a, b in zip(got, wanted, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


def keeps_another(d: Any, w: Any, h: Any, b: Any, m: Any) -> Any:
    """The product itself is a result."""
    product = wf.matmul(d, w)
    g = product * h
    return product, g, b - wf.square(wf.sum(g, axis=0))


def by_rows(d: Any, w: Any, h: Any, b: Any, m: Any) -> Any:
    """Sums along the rows are none that a product's blocks leave."""
    g = wf.matmul(d, w) * h
    return g, wf.square(wf.sum(g, axis=1))


def goes_back(d: Any, w: Any, h: Any, b: Any, m: Any) -> Any:
    """What follows from the sums is as large as the nest."""
    g = wf.matmul(d, w) * h
    return g, g - wf.square(wf.sum(g, axis=0))


@pytest.mark.parametrize("function", [keeps_another, by_rows, goes_back])
def test_nests_that_stay_whole(function: Any) -> None:
    graph = fuse(graph_of(function, arrays(64, 48, 32)))
    assert split_tails(graph) is graph
