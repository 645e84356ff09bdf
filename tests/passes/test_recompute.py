"""Values that nests compute again: the same results, fewer of them stored."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from example_counts import examples
from graphs import Case
from hypothesis import given
from random_graph_checks import check_exactly
from row_graphs import row_cases

import weft as wf
from weft.codegen.llvm.target import multiplies_and_adds
from weft.ir import dtypes
from weft.ir.analysis.verify import verify
from weft.ir.graph import Graph
from weft.ir.interpreter.evaluate import interpret
from weft.passes.fusion import recompute as module
from weft.passes.fusion.fuse import fuse
from weft.passes.fusion.recompute import recompute, recompute_reasons
from weft.passes.memory.plan_memory import plan_memory
from weft.passes.simplify.algebra import contract
from weft.runtime.native.executable import compile_graph

X, W, G = (np.random.default_rng(k).standard_normal((64, 64)).astype(np.float32) for k in range(3))


#: Columns too long for a row kernel: their reductions are nests of their own.
TALL = (np.tile(X, (20, 1)), W, np.tile(G, (20, 1)))


def graph_of(function: Any, args: tuple[Any, ...] = (X, W, G)) -> Graph:
    return wf.compile(function)._specialized(args, {}).traced.graph


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
        compile_graph(graph, passes=(fuse, recompute)).run([X, W, G]),
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


@given(row_cases((dtypes.int32, dtypes.uint8), steps=20))
@examples(80)
def test_random_graphs_exactly(case: Case) -> None:
    with patch.object(module, "REPEATED_BYTES", 0):
        check_exactly(case, (fuse, recompute))


def test_what_a_nest_reads_instead_of_its_result() -> None:
    """x - mean(x) over the columns of an input is not stored: x is there."""

    def centred(x: Any, w: Any, g: Any) -> Any:
        c = x - wf.mean(x, axis=0, keepdims=True)
        return c * wf.rsqrt(wf.mean(c * c, axis=0, keepdims=True)) * g

    graph = graph_of(centred, TALL)
    before, after = fuse(graph), recompute(fuse(graph))
    verify(after)
    large = [r for op in before.ops for r in op.results if str(r.type) == "f32[1280,64]"]
    fewer = [r for op in after.ops for r in op.results if str(r.type) == "f32[1280,64]"]
    assert (len(large), len(fewer)) == (2, 1)
    (wanted,) = interpret(graph, list(TALL))
    (got,) = compile_graph(graph, passes=(fuse, recompute)).run(list(TALL))
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4)


def test_the_bodies_of_loops_too() -> None:
    def body(x: Any, g: Any) -> Any:
        return gelu_gradient(x, 0.1 * W, g), wf.sum(x)

    f = wf.compile(lambda x, w, g: wf.scan(body, x, wf.stack([g, g * 2])))
    graph = fuse(f._specialized((X, W, G), {}).traced.graph)
    after = recompute(graph)
    verify(after)

    def inside(g: Graph) -> int:
        (loop,) = (op for op in g.ops if op.name == "scan")
        return sum(len(op.results) for op in loop.regions[0].ops if op.name == "fused")

    assert inside(after) < inside(graph)
    small = [0.1 * a for a in (X, W, G)]
    for a, b in zip(f(*small), interpret(graph, small), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_what_an_update_changes_in_place_is_not_read_later() -> None:
    def f(x: Any, w: Any, g: Any) -> Any:
        y = wf.tanh(x)
        c = y - wf.sum(y, axis=0, keepdims=True)
        m = wf.matmul(wf.matmul(c, w), w)
        return wf.scatter_nd_add(y, np.array([[1], [2]]), g[:2]), m * c

    after = recompute(fuse(graph_of(f, TALL)))
    wanted = interpret(graph_of(f, TALL), list(TALL))
    assert plan_memory(after).copies == []
    for a, b in zip(interpret(after, list(TALL)), wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-3)


def test_products_of_what_a_nest_reads_are_stored() -> None:
    """Contracted with the subtraction, x * g - max(x * g) would not be 0."""

    def below(x: Any, w: Any, g: Any) -> Any:
        v = x * g
        return v - wf.max(v, axis=0, keepdims=True)

    (got,) = compile_graph(graph_of(below, TALL), passes=(fuse, recompute)).run(list(TALL))
    assert (np.asarray(got).max(axis=0) == 0).all()


def dear(x: Any, w: Any, g: Any) -> Any:
    """tanh of s is read together with s, and much is computed in between."""
    s = x * g
    t = wf.tanh(s * 0.5 + s * s)
    later = ((t + s) @ w) @ w
    return later * t + s


def test_dear_functions_are_weighed() -> None:
    large = [np.tile(a, (8, 8)) for a in (X, W, G)]
    small = [np.tile(a, (2, 2)) for a in (X, W, G)]
    graph = graph_of(dear, tuple(large))
    before, after = fuse(graph), recompute(fuse(graph))
    verify(after)
    assert stored(after) == stored(before) - 1
    assert plan_memory(after).arena_bytes < plan_memory(before).arena_bytes
    (why,) = (w for v, w in recompute_reasons(before) if "again" in w)
    assert why.startswith("computed again: arithmetic 0.1")
    compiled = contract(graph) if multiplies_and_adds() else graph
    (why,) = (w for v, w in recompute_reasons(fuse(compiled)) if "again" in w)
    assert why in wf.compile(dear).explain(*large)
    (wanted,) = interpret(graph, large)
    (got,) = compile_graph(graph, passes=(fuse, recompute)).run(large)
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-3)
    graph = graph_of(dear, tuple(small))
    assert stored(recompute(fuse(graph))) == stored(fuse(graph))
    assert any(w.startswith("stored: arithmetic") for _, w in recompute_reasons(fuse(graph)))


def test_a_dear_function_of_what_its_reader_does_not_read_is_stored() -> None:
    def other(x: Any, w: Any, g: Any) -> Any:
        s = x * g
        return ((s @ w) @ w) * wf.exp(s)

    graph = fuse(graph_of(other, tuple(np.tile(a, (8, 8)) for a in (X, W, G))))
    assert recompute(graph) is graph
    ((_, why),) = recompute_reasons(graph)
    assert why == "stored: who reads it would read other arrays in its place"


@given(row_cases((dtypes.int32, dtypes.uint8), steps=20))
@examples(80)
def test_random_graphs_exactly_whatever_it_takes(case: Case) -> None:
    with patch.object(module, "REPEATED_BYTES", 0), patch.object(module, "MOST_ARITHMETIC", 1e9):
        check_exactly(case, (fuse, recompute))


def test_numbers_of_rows_are_stored_in_place_of_arrays() -> None:
    """(x - mean) / deviation follows from x, which is there, and two numbers for each row."""

    def normal(x: Any, w: Any, g: Any) -> Any:
        c = x - wf.mean(x, axis=1, keepdims=True)
        n = c * wf.rsqrt(wf.mean(c * c, axis=1, keepdims=True) + 1e-5)
        return wf.sum(((n * 2 + 1) @ w) @ w * n * g, axis=0)

    args = tuple(np.tile(a, (2, 2)) for a in (X, W, G))
    graph = graph_of(normal, args)
    before, after = fuse(graph), recompute(fuse(graph))
    verify(after)
    shapes = [[str(r.type) for o in g.ops for r in o.results] for g in (before, after)]
    assert [s.count("f32[128,128]") for s in shapes] == [4, 3]
    assert [s.count("f32[128,1]") for s in shapes] == [0, 2]
    (wanted,) = interpret(graph, list(args))
    for got in (
        interpret(after, list(args))[0],
        compile_graph(graph, passes=(fuse, recompute)).run(list(args))[0],
    ):
        np.testing.assert_allclose(got, wanted, rtol=1e-3, atol=1e-2)


def test_products_that_are_added_to_something_have_the_same_bits_again() -> None:
    """As above, but the reader subtracts: with one rounding less the difference would not be 0."""

    def zero(x: Any, w: Any, g: Any) -> Any:
        n = x * wf.rsqrt(wf.mean(x * x, axis=1, keepdims=True))
        top = wf.max(n, axis=0, keepdims=True)
        return n - top

    args = tuple(np.tile(a, (2, 2)) for a in (X, W, G))
    graph = graph_of(zero, args)
    assert recompute(fuse(graph)) != fuse(graph)
    (got,) = compile_graph(graph, passes=(fuse, recompute)).run(list(args))
    assert (np.asarray(got).max(axis=0) == 0).all()
    (got,) = compile_graph(graph).run(list(args))
    assert (np.asarray(got).max(axis=0) == 0).all()
