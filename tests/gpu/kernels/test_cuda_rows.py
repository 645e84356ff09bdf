"""Row kernels as CUDA launches, in the emulator, against the reference interpreter."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from cuda_nests import bytes_of
from cuda_ops import OpMemory, emulated, run_graph
from cuda_row_checks import (
    FLOATS,
    HALVES,
    WHOLE,
    Maker,
    check_exactly,
    check_in_place,
    check_roughly,
)
from example_counts import examples
from graphs import Case
from hypothesis import given
from row_graphs import row_cases

from weft.codegen.call import Address, Scratch
from weft.codegen.cuda.lowerings import fused_launches
from weft.codegen.cuda.nests import accumulators
from weft.codegen.cuda.source import writer
from weft.ir import dtypes
from weft.ir.dtypes import as_dtype
from weft.ir.errors import UnsupportedError
from weft.ir.graph import Graph
from weft.ir.interpreter.evaluate import interpret
from weft.ir.interpreter.state import DictState
from weft.ir.ops.builder import Builder
from weft.ir.types import TensorType

Array = np.ndarray[Any, Any]


class TestRandomGraphs:
    @given(row_cases(WHOLE))
    @examples(30, deadline=None)
    def test_whole_numbers(self, case: Case) -> None:
        check_exactly(case)

    @given(row_cases(FLOATS))
    @examples(30, deadline=None)
    def test_floats(self, case: Case) -> None:
        check_roughly(case)

    @given(row_cases(HALVES))
    @examples(20, deadline=None)
    def test_halves(self, case: Case) -> None:
        check_roughly(case)

    @given(row_cases(WHOLE, sizes=(0, 1, 3)))
    @examples(20, deadline=None)
    def test_empty_and_single(self, case: Case) -> None:
        check_exactly(case)

    @given(row_cases(WHOLE, gathers=True))
    @examples(20, deadline=None)
    def test_gathers(self, case: Case) -> None:
        check_exactly(case)

    @given(row_cases(WHOLE, sizes=(2, 5, 12), columns=(33, 100)))
    @examples(20, deadline=None)
    def test_columns(self, case: Case) -> None:
        check_exactly(case)

    @given(row_cases(WHOLE, sizes=(3, 64, 600, 2000), steps=6))
    @examples(20, deadline=None)
    def test_long_rows(self, case: Case) -> None:
        check_exactly(case)


def normalised(shape: tuple[int, int], dtype: str = "f32") -> Graph:
    """softmax of x * scale, the sum of it over all rows, and that of each row's maximum."""
    m = Maker(dtype)
    x, scale = m.input(*shape), m.input(1, shape[1])
    scaled = m("multiply", x, m.wide(scale, shape))
    top = m("max", scaled, axes=(1,), keepdims=True)
    e = m("exp", m("subtract", scaled, m.wide(top, shape)))
    total = m("sum", e, axes=(1,), keepdims=True)
    out = m("divide", e, m.wide(total, shape))
    return m.graph(
        out, m("sum", out, axes=(0,), keepdims=False), m("sum", top, axes=(0, 1), keepdims=False)
    )


#: shape, dtype: what the name of the kernel says of its layout.
LAYOUTS = {
    ((40, 3), "f32"): "by4_x1_v1",
    ((7, 24), "f32"): "by8_x1_v4",
    ((64, 128), "f32"): "by32_x1_v4_whole",
    ((5, 500), "f32"): "by32_x4_v4",
    ((4, 1024), "f16"): "by128_x1_v8",
    ((4, 512), "f64"): "by128_x2_v2",
    ((9, 2048), "f32"): "by128_x4_v4",
    ((3, 8200), "f32"): "by256_v4",
    ((6, 1003), "f32"): "by256_x4_v1",
}


@pytest.mark.parametrize(("shape", "dtype"), LAYOUTS)
def test_layouts(shape: tuple[int, int], dtype: str) -> None:
    graph = normalised(shape, dtype)
    (op,) = graph.ops
    launches, _ = fused_launches(op)
    rng = np.random.default_rng(0)
    kind = as_dtype(dtype).numpy
    x, scale = (
        rng.standard_normal(shape).astype(kind),
        rng.standard_normal(shape[1:])[None].astype(kind),
    )
    got = run_graph(graph, [x, scale])
    wide = x.astype(np.float64) * scale.astype(np.float64)
    e = np.exp(wide - wide.max(1, keepdims=True))
    soft = e / e.sum(1, keepdims=True)
    rtol = {"f16": 4e-3, "f32": 4e-6, "f64": 1e-13}[dtype]
    for a, b in zip(got, (soft, soft.sum(0), wide.max(1).sum()), strict=True):
        np.testing.assert_allclose(a.astype(np.float64), b, rtol=rtol, atol=rtol / 100)
    assert LAYOUTS[shape, dtype] in launches[0].kernel.name


@pytest.mark.parametrize("shape", [(5, 24), (6, 300), (3, 900)])
def test_threads_in_any_order_give_the_same_bits(shape: tuple[int, int]) -> None:
    graph = normalised(shape)
    rng = np.random.default_rng(2)
    inputs = [rng.standard_normal(s).astype(np.float32) for s in (shape, (1, shape[1]))]
    wanted = run_graph(graph, inputs)
    for seed in range(2):
        for x, y in zip(run_graph(graph, inputs, seed=seed), wanted, strict=True):
            np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("shape", [(70, 12), (9, 40), (4, 700)])
def test_in_place(shape: tuple[int, int]) -> None:
    """The result of a row kernel in the buffer of what it reads."""
    rng = np.random.default_rng(3)
    inputs = [rng.standard_normal(s).astype(np.float32) for s in (shape, (1, shape[1]))]
    check_in_place(normalised(shape), inputs)


def cross_entropy(rows: int, classes: int) -> Graph:
    """The element of each row of log x at its label."""
    m = Maker("f32")
    x, labels = m.input(rows, classes), m.builder.add_arg(TensorType(dtypes.int64, (rows, 1)))
    total = m("sum", x, axes=(1,), keepdims=True)
    logs = m("log", m("divide", x, m.wide(total, (rows, classes))))
    return m.graph(m("take_along_axis", logs, labels, axis=1))


@pytest.mark.parametrize("bad", [10, -11, 1 << 50])
def test_a_label_out_of_bounds_is_told_of_with_its_row(bad: int) -> None:
    graph = cross_entropy(200, 10)
    x = np.random.default_rng(4).uniform(1, 2, (200, 10)).astype(np.float32)
    labels = (np.arange(200) * 7 % 10).reshape(200, 1)
    (got,) = run_graph(graph, [x, labels])
    (wanted,) = interpret(graph, [x, labels], DictState({}))
    np.testing.assert_allclose(got, wanted, rtol=1e-6)
    labels[170], labels[33], labels[140] = bad, bad, 11
    with pytest.raises(IndexError) as raised:
        run_graph(graph, [x, labels])
    assert raised.value.args == (0, 33, min(bad, (1 << 31) - 1))


def test_complex_numbers_are_refused() -> None:
    m = Maker("c64")
    x = m.input(4, 5)
    total = m("sum", x, axes=(1,), keepdims=True)
    (op,) = m.graph(m("divide", x, m.wide(total, (4, 5)))).ops
    with pytest.raises(UnsupportedError, match="complex numbers"):
        fused_launches(op)


def test_many_rows_have_few_partial_results() -> None:
    """Totals of 40000 rows: element by element in 512 units, numbers in 16384 at most."""
    (op,) = normalised((40000, 512)).ops
    launches, _ = fused_launches(op)
    first, *rest = launches
    sizes = {a.nbytes for a in first.args if isinstance(a, Scratch)}
    assert [launch.kernel.name.endswith("_runs") for launch in rest] == [True, False, False]
    assert max(sizes) <= 4 * (513 * 4096 + 64)


@pytest.mark.parametrize("value", [0.1, 0.7, None])
def test_a_row_of_a_million(value: float | None) -> None:
    """Its sum is within 4 units of f32, whether its roundings go one way or all ways."""
    m, shape = Maker("f32"), (1, 1 << 20)
    x = m.input(*shape)
    graph = m.graph(m("divide", x, m.wide(m("sum", x, axes=(1,), keepdims=True), shape)))
    given = np.random.default_rng(3).random(shape).astype(np.float32)
    given = given if value is None else np.full(shape, value, np.float32)
    (got,) = run_graph(graph, [given], check=False)
    wide = given.astype(np.float64)
    np.testing.assert_allclose(got, wide / wide.sum(), rtol=4 * 2.0**-24)


@pytest.mark.parametrize("columns", [8, 10])
def test_totals_of_many_rows(columns: int) -> None:
    """Partial results of many units are folded in runs first, and what is rounded off is kept."""
    m, shape = Maker("f32"), (1 << 16, columns)
    x = m.input(*shape)
    part = m("divide", x, m.wide(m("sum", x, axes=(1,), keepdims=True), shape))
    graph = m.graph(part, m("sum", part, axes=(0,), keepdims=False))
    (op,) = graph.ops
    names = [launch.kernel.name for launch in fused_launches(op)[0]]
    assert [name.endswith("_runs") for name in names] == [False, True, False]
    given = np.full(shape, 0.1, np.float32)
    given[:, 0] = 0.33
    got, total = run_graph(graph, [given], check=False)
    np.testing.assert_allclose(total, got.astype(np.float64).sum(0), rtol=8 * 2.0**-24)


@pytest.mark.parametrize("units", [3, 64, 65, 200])
@pytest.mark.parametrize("reduction", ["sum", "max"])
def test_units_in_runs(units: int, reduction: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As without runs, whatever their number; no thread reads what another one overwrites."""
    monkeypatch.setattr(accumulators, "FEW_UNITS", 2)
    count, first = 70, 5
    parts = np.random.default_rng(units).integers(0, 99, first + units * count).astype(np.float32)
    wanted = getattr(parts[first:].reshape(units, count), reduction)(0)
    out = TensorType(dtypes.float32, (count,))
    value = Builder().add_arg(out)
    partial = accumulators.Partial(reduction, "f32", "f32", count, first, Address(value))
    launches = accumulators.combine_launches([partial], Scratch(parts.nbytes), units)
    assert len(launches) == 2
    memory = OpMemory()
    memory.put(value)
    memory.scratch = bytes_of(parts)
    for launch in launches:
        pairs = zip(launch.kernel.parameters, launch.args, strict=True)
        args = [memory.pointer(a, p.dtype) if p.kind == "pointer" else a for p, a in pairs]
        emulated()(launch, args)
    np.testing.assert_array_equal(memory.get(value), wanted)


@pytest.mark.parametrize("first", [0, 1, 4, 8])
@pytest.mark.parametrize("width", [1024, 1000, 72])
def test_rows_that_begin_anywhere(first: int, width: int) -> None:
    """Softmax of x[:, first : first + width] in f32, x in f16: what can be read by 128 bits is."""
    m = Maker("f16")
    shape = (3, width)
    x = m.input(3, 1040)
    part = m("slice", x, starts=(0, first), stops=(3, first + width), steps=(1, 1))
    wide = m("astype", part, dtype=dtypes.float32)
    top = m("max", wide, axes=(1,), keepdims=True)
    e = m("exp", m("subtract", wide, m.wide(top, shape)))
    graph = m.graph(m("divide", e, m.wide(m("sum", e, axes=(1,), keepdims=True), shape)))
    (op,) = graph.ops
    (launch,) = fused_launches(op)[0]
    assert ("load_u16x8" in launch.kernel.source) == (first % 8 == 0)
    assert "store_f32x4" in launch.kernel.source
    given = np.random.default_rng(7).standard_normal((3, 1040)).astype(np.float16)
    (got,) = run_graph(graph, [given])
    powers = np.exp(given[:, first : first + width].astype(np.float64))
    np.testing.assert_allclose(got, powers / powers.sum(1, keepdims=True), rtol=3e-6)


def test_indices_of_64_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """As for buffers of 2**31 elements."""
    shape = (6, 300)
    rng = np.random.default_rng(8)
    inputs = [rng.standard_normal(s).astype(np.float32) for s in (shape, (1, shape[1]))]
    wanted = run_graph(normalised(shape), inputs)
    monkeypatch.setattr(writer, "MANY", 0)
    graph = normalised(shape)
    (op,) = graph.ops
    assert all(x.kernel.name.endswith("_i64") for x in fused_launches(op)[0])
    for x, y in zip(run_graph(graph, inputs), wanted, strict=True):
        np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("axis", [0, 1])
def test_which_of_two_labels_is_out_of_bounds(axis: int) -> None:
    """Rows, and columns side by side; the launch's second check has number 1."""
    m = Maker("f32")
    shape = (70, 12) if axis else (12, 70)
    kept = tuple(1 if k == axis else n for k, n in enumerate(shape))
    x = m.input(*shape)
    labels = [m.builder.add_arg(TensorType(dtypes.int32, kept)) for _ in range(2)]
    total = m("sum", x, axes=(axis,), keepdims=True)
    part = m("divide", x, m.wide(total, shape))
    picked = [m("take_along_axis", part, index, axis=axis) for index in labels]
    graph = m.graph(m("subtract", picked[0], picked[1]))
    (op,) = graph.ops
    assert ("_columns_" in fused_launches(op)[0][0].kernel.name) == (axis == 0)
    rng = np.random.default_rng(9)
    inputs = [rng.uniform(1, 2, shape).astype(np.float32)]
    inputs += [rng.integers(-12, 12, kept).astype(np.int32) for _ in range(2)]
    (got,) = run_graph(graph, inputs)
    (wanted,) = interpret(graph, inputs, DictState({}))
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-7)
    inputs[2].reshape(-1)[[41, 55]] = 12, -13
    with pytest.raises(IndexError) as raised:
        run_graph(graph, inputs)
    assert raised.value.args == (1, 41, 12)
