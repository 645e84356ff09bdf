"""Rows of odd length in row kernels and folds: vectors that are counted from before the row."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from compiled_checks import Case as CompiledCase
from compiled_checks import plain
from cuda_budget_checks import faults
from cuda_loads import counted_sectors
from cuda_nests import NestRun, fused_op
from cuda_on_cpu import native
from cuda_ops import check_any_order, emulated, run_graph
from cuda_row_checks import (
    FLOATS,
    HALVES,
    WHOLE,
    Maker,
    check_exactly,
    check_in_place,
    check_roughly,
)
from cuda_toolchain import TARGETS, needs_toolchain
from graphs import Case
from hypothesis import given, settings
from row_graphs import row_cases

from weft.codegen.cuda.lowerings import fused_launches
from weft.codegen.cuda.nests import plain_nests
from weft.codegen.cuda.source import dtypes as memory
from weft.codegen.cuda.source import writer
from weft.ir import dtypes
from weft.ir.dtypes import as_dtype
from weft.ir.graph import Graph
from weft.ir.interpreter.evaluate import interpret
from weft.ir.interpreter.state import DictState
from weft.ir.types import TensorType

Array = np.ndarray[Any, Any]


def softmax(shape: tuple[int, int], dtype: str = "f32") -> Graph:
    """softmax of x * scale, and the sum of all rows' maxima."""
    m = Maker(dtype)
    x, scale = m.input(*shape), m.input(1, shape[1])
    scaled = m("multiply", x, m.wide(scale, shape))
    top = m("max", scaled, axes=(1,), keepdims=True)
    e = m("exp", m("subtract", scaled, m.wide(top, shape)))
    out = m("divide", e, m.wide(m("sum", e, axes=(1,), keepdims=True), shape))
    return m.graph(out, m("sum", top, axes=(0, 1), keepdims=False))


def inputs_of(shape: tuple[int, int], dtype: str = "f32") -> list[Array]:
    rng = np.random.default_rng(sum(shape))
    kind = as_dtype(dtype).numpy
    return [rng.standard_normal(s).astype(kind) for s in (shape, (1, shape[1]))]


def name_of(graph: Graph) -> str:
    (op,) = graph.ops
    return fused_launches(op)[0][0].kernel.name


@pytest.mark.parametrize(
    ("shape", "dtype", "name"),
    [
        ((9, 257), "f32", "by32_x3_v4_odd"),
        ((5, 259), "bf16", "by32_x2_v8_odd"),
        ((3, 1001), "f64", "by128_x4_v2_odd"),
        ((3, 2051), "f32", "by256_x3_v4_odd"),
        ((3, 9001), "f32", "by256_v4_odd"),
        ((3, 10), "f32", "by16_x1_v1"),
    ],
)
def test_layouts(shape: tuple[int, int], dtype: str, name: str) -> None:
    graph, inputs = softmax(shape, dtype), inputs_of(shape, dtype)
    assert name in name_of(graph)
    wide = inputs[0].astype(np.float64) * inputs[1].astype(np.float64)
    e = np.exp(wide - wide.max(1, keepdims=True))
    got, total = run_graph(graph, inputs)
    rtol = {"f16": 1e-2, "bf16": 1e-1, "f32": 4e-6, "f64": 1e-13}[dtype]
    np.testing.assert_allclose(got.astype(np.float64), e / e.sum(1, keepdims=True), rtol=rtol)
    np.testing.assert_allclose(total.astype(np.float64), wide.max(1).sum(), rtol=rtol)


class TestRandomGraphs:
    @given(row_cases(WHOLE, sizes=(2, 257, 518), steps=6))
    @settings(max_examples=6, deadline=None)
    def test_whole_numbers(self, case: Case) -> None:
        check_exactly(case)

    @given(row_cases((*FLOATS, *HALVES), sizes=(3, 257, 518)))
    @settings(max_examples=4, deadline=None)
    def test_floats(self, case: Case) -> None:
        check_roughly(case)

    @given(row_cases(WHOLE, sizes=(2, 257, 518), gathers=True))
    @settings(max_examples=4, deadline=None)
    def test_gathers(self, case: Case) -> None:
        check_exactly(case)


def test_threads_in_any_order_give_the_same_bits() -> None:
    check_any_order(softmax((3, 301)), inputs_of((3, 301)))


@pytest.mark.parametrize("shape", [(5, 301), (2, 4201)])
def test_in_place(shape: tuple[int, int]) -> None:
    """The result in the buffer of what is read: no thread reads what another one has written."""
    check_in_place(softmax(shape), inputs_of(shape))


def test_cross_entropy_and_labels() -> None:
    """The element of each row of log softmax at its label: a pick, and one number for each row."""
    rows, classes = 6, 263
    m = Maker("f32")
    x, labels = m.input(rows, classes), m.builder.add_arg(TensorType(dtypes.int64, (rows, 1)))
    e = m("exp", x)
    total = m("sum", e, axes=(1,), keepdims=True)
    logs = m("log", m("divide", e, m.wide(total, (rows, classes))))
    graph = m.graph(m("take_along_axis", logs, labels, axis=1))
    assert "_odd" in name_of(graph)
    given_x = inputs_of((rows, classes))[0]
    given_labels = np.array([0, 262, -1, 5, 4, 100]).reshape(rows, 1)
    (got,) = run_graph(graph, [given_x, given_labels])
    (wanted,) = interpret(graph, [given_x, given_labels], DictState({}))
    np.testing.assert_allclose(got, wanted, rtol=1e-5)


def test_sums_over_rows_are_read_as_before() -> None:
    """Where a thread adds up the same elements of all rows, these do not lie alike in each."""
    m, shape = Maker("f32"), (6, 301)
    x = m.input(*shape)
    out = m("divide", x, m.wide(m("sum", x, axes=(1,), keepdims=True), shape))
    assert "_odd" not in name_of(m.graph(out, m("sum", out, axes=(0,), keepdims=False)))


def test_indices_of_64_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, inputs = softmax((3, 259)), inputs_of((3, 259))
    wanted = run_graph(graph, inputs)
    monkeypatch.setattr(writer, "MANY", 0)
    assert name_of(graph).endswith("_odd_i64_i64")
    for x, y in zip(run_graph(graph, inputs), wanted, strict=True):
        assert x.tobytes() == y.tobytes()


def test_what_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row of 3001: one instruction for 128 bits of each thread, each sector once; one by one it
    is read in three passes, as it does not fit into registers so."""
    shape = (4, 3001)
    graph, inputs = softmax(shape), inputs_of(shape)
    found = []
    for least in (memory.LEAST_ODD, 1 << 30):
        monkeypatch.setattr(memory, "LEAST_ODD", least)
        with counted_sectors() as counts:
            run_graph(graph, inputs, runner=emulated(check=False))
        found.append(counts["x0"])
    vectors, single = found
    assert vectors.sectors <= 1.03 * shape[0] * shape[1] / 8
    assert vectors.requests <= shape[0] * shape[1] / 128 + 40
    assert single.requests >= 9 * vectors.requests
    assert single.sectors >= 3 * vectors.sectors


class TestFolds:
    """Folds along odd rows, which are plain nests."""

    def weighted(self, shape: tuple[int, int], dtype: str, name: str = "sum") -> NestRun:
        """The fold of x + scale along each row."""
        case = CompiledCase()
        kind = as_dtype(dtype)
        x, scale = case.input(plain(kind, shape)), case.input(plain(kind, shape[1:], 1))
        wide = case.hidden("broadcast_to", scale, shape=shape)
        case.op(name, case.hidden("add", x, wide), axes=(1,), keepdims=False)
        graph = case.graph()
        made = NestRun(fused_op(graph), case.inputs)
        (self.wanted,) = interpret(graph, case.inputs)
        return made

    @pytest.mark.parametrize(
        ("shape", "dtype"),
        [
            *(((5, 257), "i32"), ((3, 2059), "i32"), ((1, 511), "i32"), ((9, 300), "i32")),
            *(((4, 259), "i16"), ((3, 300), "i16"), ((3, 257), "u64"), ((3, 257), "i8")),
        ],
    )
    def test_whole_numbers(self, shape: tuple[int, int], dtype: str) -> None:
        for name in ("sum", "max"):
            made = self.weighted(shape, dtype, name)
            odd = shape[0] > 1 and dtype != "i8" and shape[1] * as_dtype(dtype).itemsize % 16
            assert ("_odd_" in made.names[0]) == bool(odd)
            np.testing.assert_array_equal(made.run()[0], self.wanted)

    @pytest.mark.parametrize("dtype", ["f32", "f16", "f64"])
    def test_floats(self, dtype: str) -> None:
        made = self.weighted((3, 1027), dtype)
        np.testing.assert_allclose(
            made.run()[0], self.wanted, rtol=2e-3 if dtype == "f16" else 1e-6
        )

    def test_parts(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A row in several parts, thread by thread; the second launch is as for other rows."""
        monkeypatch.setattr(plain_nests, "LEAST_ITEMS", 256)
        made = self.weighted((2, 2101), "f32")
        assert [name.rpartition("_")[0][-4:] for name in made.names] == ["lock", "warp"]
        assert "_odd_" in made.names[0]
        first = made.run()[0]
        np.testing.assert_allclose(first, self.wanted, rtol=1e-6)
        assert made.run(1)[0].tobytes() == first.tobytes()

    def test_indices_of_64_bits(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(writer, "MANY", 0)
        made = self.weighted((3, 301), "i32")
        assert made.names[0].endswith("_odd_warp_rows_i64")
        np.testing.assert_array_equal(made.run()[0], self.wanted)

    def test_operands_that_lie_otherwise(self) -> None:
        """f16 and f32 with rows alike; a slice whose rows begin elsewhere is read one by one."""
        m, shape = Maker("f32"), (4, 301)
        x, h = m.input(*shape), m.builder.add_arg(TensorType(dtypes.float16, shape))
        wide = m.builder.add_arg(TensorType(dtypes.float32, (4, 333)))
        part = m("slice", wide, starts=(0, 3), stops=(4, 304), steps=(1, 1))
        both = m("add", x, m("astype", h, dtype=dtypes.float32))
        graph = m.graph(m("sum", m("add", both, part), axes=(1,), keepdims=False))
        assert "_odd_" in fused_launches(graph.ops[-1])[0][0].kernel.name
        rng = np.random.default_rng(0)
        inputs = [rng.random(s).astype(np.float32) for s in (shape, shape, (4, 333))]
        inputs[1] = inputs[1].astype(np.float16)
        (got,), (wanted,) = run_graph(graph, inputs), interpret(graph, inputs, DictState({}))
        np.testing.assert_allclose(got, wanted, rtol=1e-6)

    def test_what_is_read(self, monkeypatch: pytest.MonkeyPatch) -> None:
        found = []
        for least in (memory.LEAST_ODD, 1 << 30):
            monkeypatch.setattr(memory, "LEAST_ODD", least)
            made = self.weighted((4, 5025), "f32")
            with counted_sectors() as counts:
                made.run()
            found.append(counts["in0"])
        vectors, single = found
        assert vectors.requests <= 4 * 5025 / 128 + 40
        assert single.requests >= 3.5 * vectors.requests
        assert vectors.sectors <= 1.03 * 4 * 5025 / 8


@needs_toolchain
def test_as_llvm_has_it() -> None:
    """The compiled kernel, carried out on the CPU: the emulator's numbers, nearly."""
    graph, inputs = softmax((2, 259)), inputs_of((2, 259))
    got, wanted = run_graph(graph, inputs, runner=native), run_graph(graph, inputs)
    np.testing.assert_allclose(got[0], wanted[0], rtol=1e-6)


@pytest.mark.slow
@needs_toolchain
@pytest.mark.parametrize("dtype", ["f32", "f16", "f64"])
@pytest.mark.parametrize("columns", [301, 2051, 50257])
def test_budget(dtype: str, columns: int) -> None:
    """Nothing spills on any architecture."""
    (op,) = softmax((8, columns), dtype).ops
    made = TestFolds().weighted((8, columns), dtype)
    for launch in [*fused_launches(op)[0], *made.launches]:
        for cc in TARGETS:
            assert faults(launch.kernel, cc) == []
