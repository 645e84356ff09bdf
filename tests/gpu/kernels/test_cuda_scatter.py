"""Scatters of many updates: indices put in order, the same bits as one update after the other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from cuda_budget_checks import faults
from cuda_loads import counted_loads
from cuda_on_cpu import native
from cuda_op_checks import check, graph_of
from cuda_ops import OpMemory, emulated, run_graph
from cuda_toolchain import TARGETS, needs_toolchain
from example_counts import examples
from hypothesis import example, given, settings
from hypothesis import strategies as st

from weft.codegen.cuda.emulator.memory import Elements
from weft.codegen.cuda.kernels import scatter
from weft.codegen.cuda.lowerings import launches_of
from weft.codegen.cuda.source import writer
from weft.ir.dtypes import as_dtype
from weft.ir.interpreter.evaluate import interpret
from weft.ir.interpreter.state import DictState

Array = np.ndarray[Any, Any]
RNG = np.random.default_rng(3)
DTYPES = ("f32", "f64", "f16", "bf16", "i8", "u16", "i64", "f32", "f32")


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few indices are put in order too."""
    monkeypatch.setattr(scatter, "WORTH", 0)


@pytest.fixture(autouse=True, scope="module")
def quick() -> Iterator[None]:
    """Runs of four keys: merges of few."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("weft.codegen.cuda.kernels.sort.RUN", 4)
        patch.setattr(scatter, "RUN", 4)
        yield


def values(shape: tuple[int, ...], dtype: str, seed: int) -> Array:
    """Numbers whose sums depend on their order, NaN and infinities among the floats."""
    rng = np.random.default_rng(seed)
    kind = as_dtype(dtype).numpy
    if dtype[0] in "iu":
        return rng.integers(0, 100, shape).astype(kind)
    x = rng.standard_normal(shape) * 10.0 ** rng.integers(-2, 3, shape)
    if dtype == "bf16":  # whose NaN NumPy's tests do not take as equal
        return x.astype(kind)
    special = rng.random(shape)
    x = np.where(special < 0.02, np.nan, np.where(special > 0.98, np.inf, x))
    return x.astype(kind)


def kernels(op: str, inputs: list[Array], **attrs: Any) -> list[str]:
    (made,) = graph_of(op, inputs, **attrs).ops
    return [launch.kernel.name for launch in launches_of(made)]


@examples(25, deadline=None)
@given(
    n=st.integers(1, 40),
    parts=st.integers(1, 12),
    inner=st.sampled_from([1, 2, 3, 4, 8]),
    outer=st.integers(1, 3),
    dtype=st.sampled_from(DTYPES),
    seed=st.integers(0, 1000),
)
def test_index_add(n: int, parts: int, inner: int, outer: int, dtype: str, seed: int) -> None:
    index = np.random.default_rng(seed).integers(-parts, parts, n)
    inputs = [values((outer, parts, inner), dtype, seed), index]
    inputs.append(values((outer, n, inner), dtype, seed + 1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scatter, "WORTH", 0)
        if min(n, parts) * outer > scatter.loads_in_order(n):
            assert any("ordered" in name for name in kernels("index_add", inputs, axis=1))
        patch.setattr(scatter, "worth_ordering", lambda *_: True)
        patch.setattr("weft.codegen.cuda.kernels.scatter.worth_ordering", lambda *_: True)
        check("index_add", inputs, axis=1)


@examples(15, deadline=None)
@given(
    op=st.sampled_from(["add", "update", "min", "max"]),
    n=st.integers(1, 40),
    depth=st.integers(1, 2),
    inner=st.sampled_from([1, 4, 5]),
    index_dtype=st.sampled_from(["i8", "u8", "i32", "i64"]),
    seed=st.integers(0, 1000),
)
def test_scatter_nd(op: str, n: int, depth: int, inner: int, index_dtype: str, seed: int) -> None:
    x = values((3, 4, inner), "f32", seed)
    low = 0 if index_dtype == "u8" else -3
    index = np.random.default_rng(seed).integers(low, 3, (n, depth))
    inputs = [x, index.astype(as_dtype(index_dtype).numpy)]
    inputs.append(values((n, *x.shape[depth:]), "f32", seed + 1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("weft.codegen.cuda.kernels.scatter.worth_ordering", lambda *_: True)
        assert "ordered" in kernels(f"scatter_nd_{op}", inputs)[-1]
        check(f"scatter_nd_{op}", inputs)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_along_an_axis(axis: int, always: None) -> None:
    shape = [3, 4, 2]
    shape[axis] = 60
    inputs = [values((3, 4, 2), "f32", 1), RNG.integers(-2, 2, shape)]
    inputs.append(values(tuple(shape), "f32", 2))
    assert "ordered" in kernels("scatter_along_axis_add", inputs, axis=axis)[-1]
    check("scatter_along_axis_add", inputs, axis=axis)


@pytest.mark.parametrize("n", [1, 60, 700])
def test_first_occurrence(n: int, always: None) -> None:
    check("first_occurrence", [RNG.integers(-9, 9, n)], size=9)
    assert (
        "first_of_part" in kernels("first_occurrence", [np.zeros(n, np.int64)], size=9)[-1]
    ) == (n > 1)


@pytest.mark.parametrize("op", ["index_add", "first_occurrence"])
def test_an_index_out_of_bounds(op: str, always: None) -> None:
    """Is told of: the first one, and nothing else is wrong."""
    index = np.zeros(700, np.int64)
    index[[70, 6, 300]] = 9, -10, 1 << 40
    attrs: dict[str, Any] = {"size": 9} if op == "first_occurrence" else {"axis": 0}
    x = np.zeros((9, 3), np.float32)
    inputs: list[Array] = (
        [index] if op == "first_occurrence" else [x, index, np.ones((700, 3), np.float32)]
    )
    with pytest.raises(IndexError) as raised:
        run_graph(graph_of(op, inputs, **attrs), inputs)
    assert raised.value.args == (0, 6, -10)


def test_nothing_is_written_for_an_index_out_of_bounds(always: None) -> None:
    """Though the launches after the check go on, until the host looks."""
    index = np.arange(700) % 11 - 1
    index[[0, 600]] = 1 << 40, -99
    x, updates = np.zeros((12, 3), np.float32), np.ones((700, 3), np.float32)
    (op,) = graph_of("index_add", [x, index, updates], axis=0).ops
    memory = OpMemory()
    arrays: list[Array] = [x, index, updates, x]
    for value, array in zip((*op.operands, op.result), arrays, strict=True):
        memory.put(value, array)
    for launch in launches_of(op):
        pairs = zip(launch.kernel.parameters, launch.args, strict=True)
        args = [memory.pointer(a, p.dtype) if p.kind == "pointer" else a for p, a in pairs]
        emulated()(launch, args)
    assert memory.status.any()
    good = (index >= -12) & (index < 12)
    np.add.at(x, index[good], updates[good])
    np.testing.assert_array_equal(memory.get(op.result), x)


@pytest.mark.parametrize("n", [256, 520])
def test_one_part_has_all(n: int, always: None) -> None:
    """As many updates of one element as a piece has come after each other; more are put together
    piece by piece."""
    updates = (10.0 ** RNG.integers(-6, 6, (n, 4))).astype(np.float32)
    x = np.ones((40, 4), np.float32)
    index: Array = np.full(n, 17)
    names = kernels("index_add", [x, index, updates], axis=0)
    assert any("ordered" in name for name in names)
    assert ("of_pieces" in names[-1]) == (n > scatter.PIECE)
    if n == scatter.PIECE:
        check("index_add", [x, index, updates], axis=0)
        return
    wanted = 1 + np.zeros(4, np.float32)
    for update in updates[: scatter.PIECE]:
        wanted += update
    for k in range(scatter.PIECE, n, scatter.PIECE):
        wanted += updates[k : k + scatter.PIECE].cumsum(0, dtype=np.float32)[-1]
    (got,) = run_graph(graph_of("index_add", [x, index, updates], axis=0), [x, index, updates])
    np.testing.assert_array_equal(got[17], wanted)  # the very order that the docs promise


@settings(max_examples=6, deadline=None)
@given(
    op=st.sampled_from(["add", "update", "min", "max"]),
    n=st.integers(1, 60),
    parts=st.integers(1, 9),
    inner=st.sampled_from([1, 3, 4, 8]),
    dtype=st.sampled_from(["f32", "f16", "i8", "u16", "i64", "f64"]),
    seed=st.integers(0, 1000),
)
@example(op="add", n=60, parts=3, inner=4, dtype="f32", seed=1)
@example(op="update", n=50, parts=2, inner=3, dtype="i8", seed=3)
def test_pieces(op: str, n: int, parts: int, inner: int, dtype: str, seed: int) -> None:
    """Pieces of four updates: what does not depend on the order of sums is the interpreter's."""
    rng = np.random.default_rng(seed)
    index = rng.integers(-parts, parts, (n, 1)) if seed % 2 else rng.integers(0, 1, (n, 1))
    kind = as_dtype(dtype).numpy
    whole = op == "add"  # whole numbers, whose sums are exact, without NaN
    inputs = [values((parts, inner), dtype, seed), index, values((n, inner), dtype, seed + 1)]
    if whole:
        inputs[0] = rng.integers(0, 9, (parts, inner)).astype(kind)
        inputs[2] = rng.integers(0, 9, (n, inner)).astype(kind)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("weft.codegen.cuda.kernels.scatter.worth_ordering", lambda *_: True)
        patch.setattr(scatter, "PIECE", 4)
        assert ("of_pieces" in kernels(f"scatter_nd_{op}", inputs)[-1]) == (n > 4)
        check(f"scatter_nd_{op}", inputs)


def test_no_thread_does_many_updates(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 3000 of one row a thread does 256, one after the other; each is read once. Without a
    limit on the number of indices, few rows were looked through, by a thread for each column."""
    n, width = 3000, 4
    inputs: list[Array] = [np.zeros((8, width), np.float32), np.full(n, 5)]
    inputs.append(np.ones((n, width), np.float32))
    graph = graph_of("index_add", inputs, axis=0)
    turns = 0
    load_wide = Elements.load_wide

    def counting(self: Elements, index: Any, count: int, mask: Any, line: int) -> Any:
        nonlocal turns
        turns += self.name == "updates"
        return load_wide(self, index, count, mask, line)

    monkeypatch.setattr(Elements, "load_wide", counting)
    with counted_loads() as counts:
        (got,) = run_graph(graph, inputs, runner=emulated(check=False))
    assert (got[5] == n).all()
    assert counts["updates"] == n * width
    # first pieces, the first update of later ones, and those themselves; read AHEAD at a time
    assert turns <= 2 * (scatter.PIECE + scatter.AHEAD) + 1
    assert counts["pieces"] == (n // scatter.PIECE) * width


def test_indices_of_64_bits(always: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "MANY", 0)
    inputs = [values((30, 4), "f32", 1), RNG.integers(-30, 30, 90), values((90, 4), "f32", 2)]
    assert kernels("index_add", inputs, axis=0)[-1].endswith("i64_i64")
    check("index_add", inputs, axis=0)


def test_threads_in_random_orders(always: None) -> None:
    inputs = [values((30, 3), "f32", 1), RNG.integers(-30, 30, 200), values((200, 3), "f32", 2)]
    graph = graph_of("index_add", inputs, axis=0)
    (wanted,) = interpret(graph, inputs, DictState({}))
    for seed in range(2):
        np.testing.assert_array_equal(run_graph(graph, inputs, seed=seed)[0], wanted)


@needs_toolchain
def test_as_llvm_has_it(always: None) -> None:
    """The compiled kernels, carried out on the CPU: the emulator's bits."""
    inputs = [values((30, 4), "f32", 1), RNG.integers(-30, 30, 200), values((200, 4), "f32", 2)]
    graph = graph_of("index_add", inputs, axis=0)
    (got,), (wanted,) = run_graph(graph, inputs, runner=native), run_graph(graph, inputs)
    np.testing.assert_array_equal(got, wanted)


def test_few_indices_are_looked_through() -> None:
    """The rule is one of sizes; so is the order of the sums, which is the same either way."""
    few: list[Array] = [
        np.zeros((4, 2), np.float32),
        np.zeros(90, np.int64),
        np.zeros((90, 2), np.float32),
    ]
    assert "ordered" not in kernels("index_add", few, axis=0)[-1]


def test_loads_of_an_embedding(monkeypatch: pytest.MonkeyPatch) -> None:
    """512 indices into 2048 rows of 32: what is read for each index, by looking and in order."""
    monkeypatch.setattr("weft.codegen.cuda.kernels.sort.RUN", 256)
    monkeypatch.setattr(scatter, "RUN", 256)
    n, rows, width = 512, 2048, 32
    index = np.random.default_rng(0).integers(0, rows, n)
    inputs = [values((rows, width), "f32", 1), index, values((n, width), "f32", 2)]
    graph = graph_of("index_add", inputs, axis=0)
    found: dict[int, tuple[int, int]] = {}
    for worth in (0, 1000):
        monkeypatch.setattr(scatter, "WORTH", worth)
        with counted_loads() as counts:
            run_graph(graph, inputs, runner=emulated(check=False))
        found[worth] = counts["index"] + counts["keys"], counts["updates"]
    looks, ordered_looks = found[1000][0] // n, found[0][0] // n
    assert found[0][1] == found[1000][1] == n * width  # each update is read once
    assert looks >= n  # each index, for each of them
    # sorting, and in the end each vector of columns: its key, the one before, those ahead
    assert ordered_looks <= 2 + scatter.loads_in_order(n) + (2 + 2 * scatter.AHEAD) * width // 4


@pytest.mark.slow
@needs_toolchain
@pytest.mark.parametrize("dtype", ["f32", "f16", "f64", "i8"])
@pytest.mark.parametrize("inner", [1, 8])
def test_budget(dtype: str, inner: int, always: None) -> None:
    """Nothing spills on any architecture."""
    x, updates = values((90, inner), dtype, 1), values((700, inner), dtype, 2)
    (op,) = graph_of("index_add", [x, RNG.integers(0, 90, 700), updates], axis=0).ops
    assert "of_pieces" in launches_of(op)[-1].kernel.name
    for launch in launches_of(op):
        for cc in TARGETS:
            assert faults(launch.kernel, cc) == []
