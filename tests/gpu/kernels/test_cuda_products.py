"""Matrix products as CUDA launches, in the emulator, against the reference interpreter."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from cuda_ops import check_any_order, run_graph
from cuda_product_graphs import Shape, product_graph
from shares import every

from weft.codegen.cuda.lowerings import launches_of
from weft.codegen.cuda.products import matmul
from weft.codegen.cuda.products.tiles import TILES, TILES_OF_64, Tile
from weft.ir.dtypes import as_dtype
from weft.ir.errors import UnsupportedError
from weft.ir.graph import Graph
from weft.ir.interpreter.evaluate import interpret
from weft.ir.interpreter.state import DictState

Array = np.ndarray[Any, Any]
RTOL = {"f32": 2e-6, "f64": 1e-14, "f16": 1e-3, "bf16": 1e-2}


def check(graph: Graph, dtype: str, seed: int | None = None) -> None:
    """Against the interpreter: bits for integers, else relative to the largest."""
    rng = np.random.default_rng(0)
    kind = as_dtype(dtype).numpy
    shapes = [v.type.static_shape for v in graph.args]  # type: ignore[union-attr]
    if dtype in RTOL:
        inputs = [rng.standard_normal(s).astype(kind) for s in shapes]
    else:
        low = 0 if dtype.startswith("u") else -9
        inputs = [rng.integers(low, 100, s).astype(kind) for s in shapes]
    (got,) = run_graph(graph, inputs, seed=seed)
    (wanted,) = interpret(graph, inputs, DictState({}))
    if dtype not in RTOL:
        np.testing.assert_array_equal(got, wanted)
        return
    scale = max(float(np.abs(np.asarray(wanted, np.float64)).max(initial=0.0)), 1e-30)
    apart = np.abs(np.asarray(got, np.float64) - np.asarray(wanted, np.float64))
    assert apart.max(initial=0.0) <= RTOL[dtype] * scale


@pytest.mark.parametrize("ta", [False, True])
@pytest.mark.parametrize("tb", [False, True])
@pytest.mark.parametrize(("m", "k", "n"), [(5, 7, 3), (33, 65, 40), (1, 40, 1)])
def test_transposes_and_edges(m: int, k: int, n: int, ta: bool, tb: bool) -> None:
    a, b = ((k, m) if ta else (m, k)), ((n, k) if tb else (k, n))
    check(product_graph(a, b, "f32", ta, tb), "f32")


@pytest.mark.parametrize(
    "dtype", ["f64", "f16", "bf16", "i8", "u8", "i16", "u16", "i32", "i64", "u64"]
)
def test_dtypes(dtype: str) -> None:
    check(product_graph((20, 37), (37, 35), dtype), dtype)


def test_integers_wrap() -> None:
    graph = product_graph((3, 4), (4, 2), "i64")
    inputs = [np.full(s, 3**39 + 1) for s in ((3, 4), (4, 2))]
    (wanted,) = interpret(graph, inputs, DictState({}))
    np.testing.assert_array_equal(run_graph(graph, inputs)[0], wanted)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((4, 6, 5), (4, 5, 7)),
        ((4, 6, 5), (5, 7)),
        ((3, 1, 6, 5), (2, 5, 7)),
        ((1, 6, 5), (3, 5, 7)),
    ],
)
def test_batches(a: Shape, b: Shape) -> None:
    check(product_graph(a, b, "f32"), "f32")
    turned = (*b[:-2], b[-1], b[-2])
    check(product_graph(a, turned, "f32", False, True), "f32")


@pytest.mark.parametrize(("a", "b"), [((0, 4), (4, 3)), ((3, 0), (0, 4)), ((0, 2, 3), (0, 3, 2))])
def test_nothing_to_do_or_to_add(a: Shape, b: Shape) -> None:
    check(product_graph(a, b, "f32"), "f32")


@pytest.mark.parametrize("batch", [(), (2,)])
@pytest.mark.parametrize("dtype", every(3, ["f32", "f16", "i8"]))
def test_long_k_is_cut_into_parts(dtype: str, batch: Shape) -> None:
    graph = product_graph((*batch, 20, 1100), (*batch, 1100, 36), dtype)
    (op,) = graph.ops
    assert len(launches_of(op)) == 2
    check(graph, dtype)


@pytest.mark.parametrize(
    ("tile", "dtype"), [(TILES[0], "f32"), (TILES[1], "f32"), (TILES_OF_64[0], "f64")], ids=str
)
def test_large_tiles(tile: Tile, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matmul, "choose", lambda *given, **how: (tile, 1))
    graph = product_graph((tile.size + 9, 37), (37, tile.size + 9), dtype)
    (op,) = graph.ops
    (launch,) = launches_of(op)
    assert f"{tile.size}x{tile.size}" in launch.kernel.name
    check(graph, dtype)


@pytest.mark.parametrize(("ta", "tb"), [(False, False), (True, True)])
@pytest.mark.parametrize(
    ("m", "n", "dtype"),
    [(1, 70, "f32"), (70, 3, "f16"), (5, 5, "f64"), (16, 33, "i8"), (40, 16, "f32"), (1, 1, "f32")],
)
def test_few_rows_or_columns(m: int, n: int, dtype: str, ta: bool, tb: bool) -> None:
    """Both sides of C, each operand lying along k and across it, k of several rounds and a rest."""
    k = 300
    a, b = ((k, m) if ta else (m, k)), ((n, k) if tb else (k, n))
    graph = product_graph(a, b, dtype, ta, tb)
    (op,) = graph.ops
    (launch,) = launches_of(op)
    assert "_thin" in launch.kernel.name
    check(graph, dtype)


@pytest.mark.parametrize("few", [1, 7])
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("along", [False, True])
def test_threads_with_several_lines(
    few: int, turned: bool, along: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(matmul, "LONG", 64)
    m, n, k = (131, few, 150) if turned else (few, 131, 150)
    ta, tb = turned and not along, not turned and along
    graph = product_graph((k, m) if ta else (m, k), (n, k) if tb else (k, n), "f32", ta, tb)
    (op,) = graph.ops
    (launch,) = launches_of(op)
    assert f"thin{1 << (few - 1).bit_length()}x{min(4 if along else 2, 16 // few)}" in (
        launch.kernel.name
    )
    check(graph, "f32")


@pytest.mark.parametrize(("a", "b"), [((3, 2, 1100), (3, 1100, 2)), ((1, 3000), (3000, 5))])
def test_few_rows_and_long_k_are_cut_into_parts(a: Shape, b: Shape) -> None:
    graph = product_graph(a, b, "f32")
    (op,) = graph.ops
    assert ["_thin" in n.kernel.name for n in launches_of(op)] == [True, False]
    check(graph, "f32")


@pytest.mark.parametrize("dtype", ["f32", "bf16", "u16"])
@pytest.mark.parametrize(
    ("a", "b"), [((40, 3, 4), (40, 4, 5)), ((1000, 1), (1, 2)), ((2, 0), (0, 5))]
)
def test_small_products_are_threads(a: Shape, b: Shape, dtype: str) -> None:
    graph = product_graph(a, b, dtype)
    (op,) = graph.ops
    (launch,) = launches_of(op)
    assert "_short" in launch.kernel.name
    check(graph, dtype)


def test_threads_in_any_order() -> None:
    graph = product_graph((7, 40), (40, 5), "f32")
    rng = np.random.default_rng(1)
    inputs = [rng.standard_normal(s).astype(np.float32) for s in ((7, 40), (40, 5))]
    check_any_order(graph, inputs)


def test_complex_numbers_are_refused() -> None:
    (op,) = product_graph((2, 2), (2, 2), "c64").ops
    with pytest.raises(UnsupportedError, match="'matmul' on complex64 has no GPU"):
        launches_of(op)
