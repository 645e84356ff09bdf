"""Gathers inside nests: random graphs, what is read through an index and what is stored, errors."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from compiled_checks import PIPELINE, same
from example_counts import examples
from graphs import Case
from hypothesis import given
from hypothesis import strategies as st
from random_graph_checks import check_exactly, check_roughly
from row_graphs import row_cases
from row_kernel_checks import check_cuts

import weft as wf
from weft.ir import dtypes
from weft.ir.analysis.verify import verify
from weft.ir.interpreter.evaluate import interpret
from weft.ir.interpreter.state import DictState
from weft.ir.text.parser import parse_graph
from weft.passes.fusion import gathers
from weft.passes.fusion.fuse import fuse
from weft.passes.memory.plan_memory import plan_memory

Array = np.ndarray[Any, Any]
RNG = np.random.default_rng(0)
TABLE = RNG.standard_normal((300, 64)).astype(np.float32)
IDS = RNG.integers(-300, 300, (8, 16))


@contextlib.contextmanager
def everything_inside() -> Iterator[None]:
    """Short runs of elements go into nests, too."""
    with patch.object(gathers, "GATHERED_BYTES", 0):
        yield


class TestRandomGraphs:
    @given(row_cases((dtypes.int32, dtypes.int64, dtypes.uint8), gathers=True))
    @examples(80)
    def test_whole_numbers_exactly(self, case: Case) -> None:
        with everything_inside():
            check_exactly(case, (fuse,))

    @given(row_cases((dtypes.float32, dtypes.float64), gathers=True))
    @examples(60)
    def test_floats(self, case: Case) -> None:
        with everything_inside():
            check_roughly(case, (fuse,))

    @given(row_cases((dtypes.float16,), gathers=True))
    @examples(40)
    def test_halves(self, case: Case) -> None:
        with everything_inside():
            check_roughly(case, (fuse,))

    @given(row_cases((dtypes.int32,), sizes=(0, 1, 3), gathers=True))
    @examples(60)
    def test_empty_and_single(self, case: Case) -> None:
        with everything_inside():
            check_exactly(case, (fuse,))

    @given(row_cases((dtypes.int32,), steps=20, gathers=True))
    @examples(60)
    def test_the_fused_graph_means_the_same(self, case: Case) -> None:
        with everything_inside():
            fused = fuse(case.graph)
        verify(fused)
        wanted = interpret(case.graph, case.inputs, DictState({}))
        for x, y in zip(interpret(fused, case.inputs, DictState({})), wanted, strict=True):
            assert same(np.asarray(x), np.asarray(y))

    @given(
        row_cases((dtypes.int32, dtypes.float32, dtypes.float64), gathers=True),
        st.integers(0, 2**20),
    )
    @examples(60)
    def test_cuts(self, case: Case, seed: int) -> None:
        with everything_inside():
            check_cuts(fuse(case.graph), case.inputs, seed)


# ------------------------------------------------------------------------------- what is read where


def fused_ops(f: Callable[..., Any], *args: Any) -> list[str]:
    """The ops of the fused graph: nests by their members, others by name; views are left out."""
    graph = wf.compile(f).trace(*args)
    for each in PIPELINE:
        graph = each(graph)
    ops = [op for op in graph.ops if op.name not in ("reshape", "constant", "variable")]
    names = [[op.name] if op.name != "fused" else [o.name for o in op.regions[0].ops] for op in ops]
    return [" ".join(n) for n in names]


def softmax(x: Any) -> Any:
    e = wf.exp(x - wf.max(x, axis=-1, keepdims=True))
    return e / wf.sum(e, axis=-1, keepdims=True)


def layer_norm(x: Any) -> Any:
    x = x - wf.mean(x, axis=-1, keepdims=True)
    return x * wf.rsqrt(wf.mean(x * x, axis=-1, keepdims=True) + 1e-5)


POINTS = RNG.integers(-8, 8, (3000, 2))
CUBE = RNG.standard_normal((8, 8, 33)).astype(np.float32)
ONE_NEST: list[tuple[str, Callable[..., Any], tuple[Array, ...]]] = [
    ("elementwise", lambda t, i: wf.tanh(wf.take(t, i, axis=0) + 1), (TABLE, IDS)),
    ("softmax", lambda t, i: softmax(wf.take(t, i, axis=0) * 2), (TABLE, IDS)),
    ("layer norm", lambda t, i: layer_norm(wf.take(t, i, axis=0)), (TABLE, IDS)),
    (
        "two tables",
        lambda t, i: layer_norm(wf.take(t, i, axis=0) + wf.take(t, i[0], axis=0)),
        (TABLE, IDS),
    ),
    ("bag", lambda t, i: wf.sum(wf.take(t, i, axis=0), axis=1), (TABLE, IDS)),
    ("rows of points", lambda t, i: layer_norm(wf.gather_nd(t, i)), (CUBE, POINTS)),
    (
        "parts of rows",
        lambda t, i: wf.take(wf.reshape(t, (300, 4, 16)), i[0] % 4, axis=1) * 2,
        (TABLE, IDS),
    ),
    ("sliced", lambda t, i: wf.take(t[:, 3:50], i, axis=0)[:, 2:] * 2, (TABLE, IDS)),
]


@pytest.mark.share(2)
@pytest.mark.parametrize(("name", "f", "args"), ONE_NEST, ids=[n for n, _, _ in ONE_NEST])
def test_read_through_the_index(name: str, f: Any, args: tuple[Array, ...]) -> None:
    gather = "gather_nd" if "points" in name else "take"
    ops = fused_ops(f, *args)
    assert sum(gather in op.split() for op in ops) == 1, ops
    assert gather not in ops
    wanted = f(*(wf.asarray(a) for a in args))
    np.testing.assert_allclose(wf.compile(f)(*args), wanted, rtol=2e-5, atol=2e-6)


@st.composite
def picks_of_picks(draw: st.DrawFn) -> tuple[Array, list[tuple[str, Any]]]:
    """An array, and ops on it: takes, index arrays, slices, transposes; sizes 0 and 1, too."""
    shape = tuple(draw(st.lists(st.sampled_from([8, 3, 2, 1, 0, 9]), min_size=2, max_size=4)))
    x = np.arange(float(np.prod(shape))).reshape(shape)
    y, steps = x, list[tuple[str, Any]]()
    for _ in range(draw(st.integers(2, 5))):
        kind = draw(st.sampled_from(["take", "pair", "slice", "permute", "affine"]))
        axes = draw(st.permutations(range(y.ndim)))
        rows = draw(st.integers(0, 5))
        if kind == "pair" and y.ndim > 1 and y.size:
            key: list[Any] = [slice(None)] * y.ndim
            for a in axes[:2]:
                key[a] = np.array([draw(st.integers(0, y.shape[a] - 1)) for _ in range(rows)], int)
            steps.append(("key", tuple(key)))
        elif kind == "take" and y.shape[axes[0]]:
            n = y.shape[axes[0]]
            index = np.array([draw(st.integers(-n, n - 1)) for _ in range(rows)], int)
            steps.append((kind, (index, axes[0])))
        elif kind == "slice":
            ends = st.none() | st.integers(-9, 9)
            steps.append(
                (
                    "key",
                    tuple(slice(draw(ends), None, draw(st.sampled_from([1, 2, -1]))) for _ in axes),
                )
            )
        else:
            steps.append(("permute" if kind == "permute" else "affine", tuple(axes)))
        y = applied(np, y, steps[-1:])
    return x, steps


def applied(xp: Any, x: Any, steps: list[tuple[str, Any]]) -> Any:
    """The steps in NumPy or weft."""
    for kind, how in steps:
        if kind == "key":
            x = x[how]
        elif kind == "take":
            x = xp.take(x, how[0], axis=how[1])
        elif kind == "permute":
            x = xp.transpose(x, how)
        else:
            x = x * 2 + 1
    return x


@examples(400, deadline=None)
@given(picks_of_picks())
def test_gathers_of_gathers(case: tuple[Array, list[tuple[str, Any]]]) -> None:
    """A nest reads through one gather at most on each way to memory; the others are stored."""
    x, steps = case
    with everything_inside():
        got = wf.compile(lambda x: applied(wf, x, steps))(x)
    np.testing.assert_array_equal(got, applied(np, x, steps))


def test_a_gather_whose_table_is_a_gather() -> None:
    i, k, x = np.array([0, 1, 1]), np.array([0, 1, 0, 1, 1]), RNG.standard_normal((8, 8, 2, 2))
    got = wf.compile(lambda x: x[:, :, i, i][:, k, k])(x)
    np.testing.assert_array_equal(got, x[:, :, i, i][:, k, k])


def test_stored_where_it_would_not_pay() -> None:
    """Single elements, columns, results, products."""

    def across(t: Any, i: Any) -> Any:
        return wf.permute_dims(wf.take(t, i[0], axis=0), (1, 0)) * 2

    single = wf.compile(lambda t, i: wf.exp(wf.gather_nd(t, i)))
    assert "gather_nd" in fused_ops(single, CUBE[..., 0], POINTS)
    assert "take" in fused_ops(lambda t, i: wf.abs(wf.take(t, i[0] % 64, axis=1)), TABLE, IDS)
    assert "take" in fused_ops(across, TABLE, IDS)
    assert "take" in fused_ops(lambda t, i: wf.take(t, i, axis=0), TABLE, IDS)
    assert "take" in fused_ops(lambda t, i: wf.take(t, i[0], axis=0) @ t.T, TABLE, IDS)
    assert "'gather_nd' is stored: an index moves 4 bytes only" in single.explain(
        CUBE[..., 0], POINTS
    )


@pytest.mark.parametrize("bad", [300, -301])
@pytest.mark.parametrize("rows", [False, True])
def test_an_index_out_of_bounds_names_op_and_element(bad: int, rows: bool) -> None:
    def f(t: Any, i: Any) -> Any:
        looked = wf.take(t, i, axis=0)
        return softmax(looked) if rows else looked * 2

    ids = IDS.copy()
    ids[2, 3] = bad
    with pytest.raises(wf.errors.InvalidArgumentError, match=r"op 'take'.*element 35 of") as info:
        wf.compile(f)(TABLE, ids)
    assert "looked = wf.take(t, i, axis=0)" in str(info.value)


def test_a_failed_check_leaves_variables_alone() -> None:
    v = wf.Variable(np.zeros((8, 16, 64), np.float32))

    @wf.compile
    def f(t: Any, i: Any) -> Any:
        v.assign(wf.tanh(wf.take(t, i, axis=0)))
        return wf.sum(i)

    ids = IDS.copy()
    ids[7, 15] = 300
    with pytest.raises(wf.errors.InvalidArgumentError):
        f(TABLE, ids)
    assert not np.asarray(v).any()
    f(TABLE, IDS)
    np.testing.assert_allclose(np.asarray(v), np.tanh(TABLE[IDS]), rtol=1e-6)


def test_a_table_that_is_updated_is_not_copied() -> None:
    """The nest that reads a table runs before what changes it in place."""
    table = wf.Variable(RNG.standard_normal((5000, 64)).astype(np.float32))
    before = np.asarray(table).copy()
    ids = np.arange(0, 256, 2)

    @wf.compile
    def step(i: Any) -> Any:
        loss = wf.sum(wf.tanh(wf.nn.embedding_lookup(table, i)))
        wf.train.SGD(0.1).minimize(loss, [table])
        return loss

    loss = step(ids)
    np.testing.assert_allclose(loss, np.tanh(before[ids]).sum(), rtol=1e-4, atol=1e-3)
    before[ids] -= 0.1 * (1 - np.tanh(before[ids]) ** 2)
    np.testing.assert_allclose(np.asarray(table), before, rtol=1e-5, atol=1e-6)
    graph = parse_graph(step.ir(ids))
    assert "take" not in [op.name for op in graph.ops]
    assert plan_memory(graph).copies == []
