"""Scans, argmax and argmin of lines that are cut into parts, in the emulator."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from cuda_budget_checks import faults
from cuda_loads import counted_loads
from cuda_on_cpu import native
from cuda_op_checks import check, graph_of
from cuda_ops import emulated, run_graph
from cuda_toolchain import TARGETS, needs_toolchain
from example_counts import examples
from hypothesis import given
from hypothesis import strategies as st

import weft as wf
from weft.codegen.cuda.kernels import axes, scatter
from weft.codegen.cuda.lowerings import launches_of
from weft.codegen.cuda.source import dtypes
from weft.codegen.cuda.source.kernel import Launch
from weft.ir.dtypes import as_dtype

Array = np.ndarray[Any, Any]
SCANS = ("sum", "prod", "max", "min", "logsumexp")


@contextmanager
def small_blocks() -> Iterator[None]:
    """Blocks of two warps, and lines that are cut as soon as they are longer than a turn."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(axes, "THREADS", 64)
        patch.setattr(axes, "TURNS", 1)
        patch.setattr(axes, "SHORT", 1)
        yield


@pytest.fixture
def small() -> Iterator[None]:
    """As `small_blocks`, for a whole test."""
    with small_blocks():
        yield


def launches(op: str, shape: tuple[int, ...], dtype: str = "f32", **attrs: Any) -> list[Launch]:
    (made,) = graph_of(op, [np.zeros(shape, as_dtype(dtype).numpy)], **attrs).ops
    return launches_of(made)


def values(shape: tuple[int, ...], dtype: str, seed: int) -> Array:
    """Few different numbers; NaN and infinities among the floats."""
    rng = np.random.default_rng(seed)
    x = rng.integers(0, 5, shape)
    if dtype[0] in "fb" and seed % 3 == 0 and dtype != "bool":
        special = rng.random(shape)
        with np.errstate(invalid="ignore"):
            y = np.where(special < 0.01, np.nan, np.where(special > 0.99, np.inf, x))
        return y.astype(as_dtype(dtype).numpy)
    return x.astype(as_dtype(dtype).numpy)


@examples(15, deadline=None)
@given(
    op=st.sampled_from(["argmax", "argmin"]),
    outer=st.integers(1, 3),
    n=st.sampled_from([1, 2, 63, 300, 700]),
    inner=st.sampled_from([1, 2, 5, 40]),
    dtype=st.sampled_from(["f32", "f64", "bf16", "f16", "i8", "u32", "i64", "bool"]),
    seed=st.integers(0, 1000),
)
def test_positions(op: str, outer: int, n: int, inner: int, dtype: str, seed: int) -> None:
    with small_blocks():
        check(op, [values((outer, n, inner), dtype, seed)], axis=1)


@examples(15, deadline=None)
@given(
    op=st.sampled_from(["sum", "prod", "max", "min"]),
    outer=st.integers(1, 3),
    n=st.sampled_from([1, 2, 63, 300, 704]),
    inner=st.sampled_from([1, 2, 5, 40]),
    dtype=st.sampled_from(["i32", "u8", "i16", "i64", "u64"]),
    reverse=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_whole_numbers(
    op: str, outer: int, n: int, inner: int, dtype: str, reverse: bool, seed: int
) -> None:
    with small_blocks():
        check(f"cumulative_{op}", [values((outer, n, inner), dtype, seed)], axis=1, reverse=reverse)


@pytest.mark.parametrize(("op", "inner"), [*zip(SCANS, (1, 3, 40, 1, 3), strict=True), ("max", 1)])
def test_floats(small: None, op: str, inner: int) -> None:
    """Also with NaN, infinities and zeros of both signs where the order is no matter."""
    rng = np.random.default_rng(1)
    for dtype in ("f32", "f64"):
        x = rng.standard_normal((2, 150, inner)).astype(as_dtype(dtype).numpy)
        x = 1 + x / 100 if op == "prod" else x + 1 if op == "sum" else x
        check(f"cumulative_{op}", [x], exact=op in ("max", "min"), axis=1, reverse=inner == 3)
    x = np.zeros((1, 300, inner), np.float32)
    x[0, :200] = -0.0
    x[0, 270], x[0, 280] = np.inf, np.nan
    graph = graph_of(f"cumulative_{op}", [x], axis=1, reverse=False)
    (got,) = run_graph(graph, [x])
    assert np.isinf(got[0, 270]).all() or op in ("prod", "min")
    assert np.isnan(got[0, 280:]).all()
    if op == "sum":
        np.testing.assert_array_equal(
            np.signbit(got[0, :270]), np.signbit(np.cumsum(x, 1)[0, :270])
        )


def test_sums_are_near_the_exact_ones() -> None:
    """What is added up plainly is few: a thread's elements, threads, warps, turns, parts."""
    x = np.random.default_rng(0).random((1, 1 << 16)).astype(np.float32)
    graph = graph_of("cumulative_sum", [x], axis=1, reverse=False)
    (got,) = run_graph(graph, [x], runner=emulated(check=False))
    exact = np.cumsum(x.astype(np.float64), axis=1)
    assert (np.abs(got - exact) <= 64 * 2.0**-24 * exact).all()


def test_levels(small: None) -> None:
    """Many parts are cut themselves: down, the last level, and up again."""
    shape = (1, 2000, 40)
    made = launches("cumulative_sum", shape, axis=1, reverse=False)
    assert [launch.kernel.name.split("_")[3] for launch in made] == [
        *("totals", "totals", "lines", "parts", "parts")
    ]
    check("cumulative_sum", [values(shape, "i32", 1)], axis=1, reverse=True)
    assert len(launches("argmax", shape, axis=1)) == 4


def test_threads_in_random_orders(small: None) -> None:
    x = np.random.default_rng(0).standard_normal((2, 400, 1)).astype(np.float32)
    for op, attrs in (("cumulative_sum", {"reverse": False}), ("argmax", {})):
        graph = graph_of(op, [x], axis=1, **attrs)
        (wanted,) = run_graph(graph, [x])
        (got,) = run_graph(graph, [x], seed=3)
        assert got.tobytes() == wanted.tobytes()


@pytest.mark.parametrize("shape", [(1, 1 << 20, 1), (1, 1 << 20, 2), (4, 1 << 16, 64)])
def test_long_lines_have_many_blocks(shape: tuple[int, int, int]) -> None:
    """No block, and so no thread, goes through more than a few turns; other sizes have the same
    kernel."""
    for op, attrs in (("cumulative_sum", {"reverse": False}), ("argmax", {})):
        made = launches(op, shape, axis=1, **attrs)
        assert made[0].blocks >= 1000
        level = axes.lines_of(shape, 4)
        while True:
            turns = -(-level.cut.size // (level.deep * level.each))
            assert turns <= 16
            if level.cut.parts == 1:
                break
            level = axes.lines_of((level.outer, level.cut.parts, level.inner), 4)
        other = launches(op, (shape[0], shape[1] + 1024, shape[2]), axis=1, **attrs)
        assert other[0].kernel.key == made[0].kernel.key


def test_loads() -> None:
    """A scan in parts reads each element twice, argmax once, beside the few of the parts."""
    x = np.random.default_rng(0).random((1, 1 << 15)).astype(np.float32)
    for op, attrs, times in (("cumulative_sum", {"reverse": False}, 2), ("argmax", {}, 1)):
        graph = graph_of(op, [x], axis=1, **attrs)
        assert len(launches_of(graph.ops[0])) > 1
        with counted_loads() as counts:
            run_graph(graph, [x], runner=emulated(check=False))
        assert 0.95 * times * x.size <= counts["given"] <= 1.02 * times * x.size


@needs_toolchain
@pytest.mark.parametrize("op", ["cumulative_sum", "argmax"])
def test_as_llvm_has_it(small: None, op: str) -> None:
    """The compiled kernels, carried out on the CPU: the emulator's bits."""
    x = np.random.default_rng(0).standard_normal((1, 300, 1)).astype(np.float32)
    attrs: dict[str, Any] = {} if op == "argmax" else {"reverse": False}
    graph = graph_of(op, [x], axis=1, **attrs)
    (got,), (wanted,) = run_graph(graph, [x], runner=native), run_graph(graph, [x])
    assert got.tobytes() == wanted.tobytes()


@pytest.mark.slow
@needs_toolchain
@pytest.mark.parametrize("dtype", ["f32", "f64", "i8"])
@pytest.mark.parametrize("inner", [1, 32])
def test_budget(dtype: str, inner: int) -> None:
    """Nothing spills on any architecture."""
    shape = (1, 1 << 14, inner)
    made = launches("argmax", shape, dtype, axis=1)
    for op in ("sum", "logsumexp") if dtype[0] in "fb" else ("sum", "max"):
        made += launches(f"cumulative_{op}", shape, dtype, axis=1, reverse=True)
    for kernel in {launch.kernel for launch in made}:
        for cc in TARGETS:
            assert faults(kernel, cc) == []


_SIZED: dict[str, Callable[[Any], Any]] = {
    "columns": lambda x: wf.cumulative_sum(x, axis=0) * 0.1,
    "row": lambda x: wf.cumulative_max(wf.reshape(x, [-1]), axis=0),
    "positions": lambda x: x * wf.cast(wf.argmax(x, axis=0), wf.float32),
    "position": lambda x: x * wf.cast(wf.argmin(wf.reshape(x, [-1]), axis=0), wf.float32),
    "updates": lambda x: wf.scatter_nd_add(
        x[:12], wf.reshape(wf.cast(wf.abs(x[:, 0] * 3), wf.int64) % 12, [-1, 1]), x
    ),
    "odd rows": lambda x: wf.nn.softmax(wf.matrix_transpose(x) * 1.5),
    "odd sums": lambda x: wf.sum(wf.reshape(x * 1.5, [12, -1])[:, 1:], axis=1),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", _SIZED)
def test_plans_for_many_sizes(name: str, small: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes that are filled in: the bits of a plan for them alone."""
    for module, limit, value in (
        (scatter, "PIECE", 8),
        (scatter, "WORTH", 0),
        (scatter, "LONG", 16),
        (dtypes, "LEAST_ODD", 16),
    ):
        monkeypatch.setattr(module, limit, value)
    monkeypatch.setenv("WEFT_EMULATE_GPU", "1")

    def session() -> Callable[[Array], Array]:
        with wf.Graph().as_default(), wf.device("/gpu:0"):
            x = wf.placeholder(wf.float32, [None, 12])
            run = wf.Session().make_callable(_SIZED[name](x), [x])
        return lambda given: np.asarray(run(given))

    many = session()
    for rows in (300, 340, 347, 420):
        x = np.random.default_rng(rows).standard_normal((rows, 12)).astype(np.float32)
        assert many(x).tobytes() == session()(x).tobytes()
