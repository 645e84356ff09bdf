"""Products of 8-bit integers on a GPU, four neighbours in k by one dp4a: carried out by the
emulator, and compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from cuda_budget_checks import compiled, faults
from cuda_ops import check_any_order, run_graph
from cuda_product_graphs import done_in, graph_of, kernel_of, product_graph
from cuda_toolchain import TARGETS, needs_toolchain
from gpu_kinds import EMULATED_OR_REAL, runner_of
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.codegen.cuda.lowerings import launches_of
from weft.codegen.cuda.products import matmul
from weft.codegen.cuda.products.tiles import QUAD_TILES, TILES, Tile, choose, cycles
from weft.codegen.cuda.source.kernel import CudaKernel
from weft.codegen.cuda.source.writer import MANY
from weft.ir.dtypes import as_dtype, int32
from weft.ir.graph import Graph
from weft.ir.ops.builder import Builder
from weft.ir.types import TensorType

Array = np.ndarray[Any, Any]
DTYPES = ("i8", "u8")
#: None: the emulator.
Runner = Callable[..., Any] | None


def numbers(shape: tuple[int, ...], dtype: str, seed: int = 0) -> Array:
    """All bits, and many of the ends of the range."""
    rng, numpy = np.random.default_rng(seed), as_dtype(dtype).numpy
    info = np.iinfo(numpy)
    x = rng.integers(info.min, info.max + 1, shape)
    return np.where(rng.random(shape) < 0.3, rng.choice([info.min, info.max], shape), x).astype(
        numpy
    )


def wide_graph(a: Array, b: Array, ta: bool, tb: bool) -> Graph:
    """A product in i32 that reads bytes, as `narrow_products` makes it."""
    builder, inner = Builder(), Builder()
    kinds = [TensorType(as_dtype(x.dtype), x.shape) for x in (a, b)]
    given = [builder.add_arg(kind) for kind in kinds]
    wide = [inner.emit1("astype", inner.add_arg(kind), dtype=int32) for kind in kinds]
    made = inner.emit1("matmul", *wide, transpose_a=ta, transpose_b=tb)
    results = builder.emit("fused", given, {"kind": "astype_matmul"}, regions=[inner.block([made])])
    return builder.graph("product", ("a", "b"), list(results))


def check(a: Array, b: Array, ta: bool = False, tb: bool = False, runner: Runner = None) -> None:
    """All bits of sums in 32 bits, and of those that the operands' own dtype leaves of them."""
    (got,) = run_graph(wide_graph(a, b, ta, tb), [a, b], runner=runner)
    x, y = (v.swapaxes(-1, -2) if t else v for v, t in ((a, ta), (b, tb)))
    wanted = np.matmul(x.astype(np.int32), y.astype(np.int32))
    assert got.dtype == np.int32
    np.testing.assert_array_equal(got, wanted)
    graph = product_graph(a.shape, b.shape, as_dtype(a.dtype).short, ta, tb)
    (own,) = run_graph(graph, [a, b], runner=runner)
    np.testing.assert_array_equal(own, wanted.astype(a.dtype))


@pytest.mark.share(2)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("k", [35, 36])
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("tile", QUAD_TILES, ids=str)
@pytest.mark.parametrize("kind", EMULATED_OR_REAL)
def test_tiles(
    kind: str, tile: Tile, turned: bool, k: int, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Edges, both ways in which A and B lie, and words of memory that are those of dp4a."""
    runner = runner_of(kind, monkeypatch)
    done_in(tile, monkeypatch)
    m, n = tile.size + 9, tile.size - 1
    name = kernel_of(graph_of(m, n, k, dtype, turned, turned)).name
    assert "_quad" in name
    assert ("_words_of_" + "ab"[turned] in name) == (k % 4 == 0)
    a, b = ((k, m), (n, k)) if turned else ((m, k), (k, n))
    check(numbers(a, dtype), numbers(b, dtype, 1), turned, turned, runner)


def test_a_tile_over_a_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU."""
    runner = runner_of("faked", monkeypatch)
    done_in(QUAD_TILES[2], monkeypatch)
    for k in (7, 8):
        check(numbers((40, k), "i8"), numbers((33, k), "i8", 1), False, True, runner)


@pytest.mark.share(2)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("k", [1, 3, 4, 5, 63, 64, 129])
def test_ends_of_k(k: int, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond them are zeros, also where the largest products are."""
    done_in(QUAD_TILES[2], monkeypatch)
    info = np.iinfo(as_dtype(dtype).numpy)
    for turned in (False, True):
        for x in (info.min, info.max):
            a = np.full((k, 37) if turned else (37, k), x, info.dtype)
            b = np.full((35, k) if turned else (k, 35), info.max, info.dtype)
            check(a, b, turned, turned)


def _random(data: st.DataObject, most: int, runner: Runner = None) -> None:
    size = st.sampled_from([1, 3, 4, 5, 31, 32, 33, 63]) | st.integers(1, most)
    m, n, k = data.draw(size), data.draw(size), data.draw(st.just(0) | size)
    batches = data.draw(st.sampled_from([((), ()), ((2,), (2,)), ((3,), ()), ((), (2,))]))
    ta, tb = data.draw(st.booleans()), data.draw(st.booleans())
    dtype, tile = data.draw(st.sampled_from(DTYPES)), data.draw(st.sampled_from(QUAD_TILES))
    parts = data.draw(st.sampled_from([1, 2]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(matmul, "is_thin", lambda p: False)
        patch.setattr(matmul, "choose", lambda *given, **how: (tile, parts))
        a = numbers((*batches[0], *((k, m) if ta else (m, k))), dtype)
        b = numbers((*batches[1], *((n, k) if tb else (k, n))), dtype, 1)
        check(a, b, ta, tb, runner)


@settings(max_examples=12, deadline=None)
@given(st.data())
def test_any_sizes(data: st.DataObject) -> None:
    _random(data, 70)


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(st.data())
def test_any_sizes_at_length(data: st.DataObject) -> None:
    _random(data, 140)


@pytest.mark.parametrize(("m", "n", "k"), [(1, 5, 3), (4, 129, 63), (63, 3, 129), (16, 40, 33)])
def test_thin_and_short_ones(m: int, n: int, k: int) -> None:
    """With few lines each element is widened by itself."""
    for dtype in DTYPES:
        check(numbers((m, k), dtype), numbers((k, n), dtype, 1))


def test_threads_in_any_order() -> None:
    graph = product_graph((19, 44), (44, 18), "i8")
    inputs = [numbers((19, 44), "i8"), numbers((44, 18), "i8", 1)]
    assert "_quad" in kernel_of(graph).name
    check_any_order(graph, inputs)


def test_parts_begin_at_whole_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matmul, "choose", lambda *given, **how: (QUAD_TILES[1], 3))
    (op,) = graph_of(40, 33, 100, "i8").ops
    first, second = launches_of(op)
    assert "_quad" in first.kernel.name
    assert first.args.count(64) == 1
    assert "add_parts" in second.kernel.name
    check(numbers((40, 100), "i8"), numbers((100, 33), "i8", 1))


@pytest.mark.parametrize(
    ("sizes", "tile", "parts"),
    [
        ((4096, 4096, 4096), 128, 1),
        ((2048, 768, 768), 64, 1),
        ((512, 512, 512), 64, 4),
        ((100, 100, 100), 32, 1),
    ],
)
def test_which_tile_and_how_many_parts(sizes: tuple[int, int, int], tile: int, parts: int) -> None:
    chosen, cut = choose(sizes, 1, bits=8)
    assert chosen.quad
    assert (chosen.size, cut) == (tile, parts)


def test_the_estimate_is_for_four_numbers_of_k() -> None:
    """Large ones are taken to be 1.5 to 4 times as fast as those of 32 bits."""
    sizes = 4096, 4096, 4096
    wide, quad = cycles(sizes, 1, TILES[0], 1, 32), cycles(sizes, 1, QUAD_TILES[0], 1, 8)
    assert 1.5 * quad < wide < 4 * quad


def kernels_of(dtype: str, index: str) -> list[CudaKernel]:
    """The ways in which operands lie, with words and without."""
    long = MANY // 1000 if index == "i64" else 777
    ways = [(False, False), (True, True), (False, True)]
    depths = long, long // 4 * 4
    return [kernel_of(graph_of(1252, 1252, k, dtype, *way)) for way in ways for k in depths]


@needs_toolchain
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("tile", QUAD_TILES, ids=str)
def test_instructions(tile: Tile, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A dp4a for four products, and no other product in the loop; two blocks or more; nothing
    spilled."""
    done_in(tile, monkeypatch)
    for kernel in kernels_of(dtype, "u32"):
        assert faults(kernel, (9, 0)) == []
        ptx, _ = compiled(kernel, (9, 0))
        kind = {"i8": "dp4a.s32.s32", "u8": "dp4a.u32.u32"}[dtype]
        assert ptx.count(kind) == ptx.count("dp4a") == 64
        assert ptx.count("ld.shared.v4") >= 64 // (tile.rows * tile.columns) * (
            (tile.rows + tile.columns) // 4
        )


@needs_toolchain
def test_words_are_one_load(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where memory has words of four neighbours in k, no byte is loaded."""
    done_in(QUAD_TILES[0], monkeypatch)
    bytes_, words = (
        compiled(kernel_of(graph_of(1252, 1252, k, "i8", False, True)), (9, 0))[0]
        for k in (777, 776)
    )
    # two matrices, the first run and the next one
    assert bytes_.count("ld.global.b8") == 2 * 2 * 16
    assert words.count("ld.global.b8") == 0
    assert words.count("ld.global.b32") == 2 * 2 * 4


@pytest.mark.slow
@needs_toolchain
@pytest.mark.parametrize("index", ["u32", "i64"])
@pytest.mark.parametrize("tile", QUAD_TILES, ids=str)
def test_budget(tile: Tile, index: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing spills, on any architecture. With indices of 64 bits one block may fill a
    multiprocessor."""
    done_in(tile, monkeypatch)
    for kernel in kernels_of("i8", index):
        assert ("_i64" in kernel.name) == (index == "i64")
        for cc in TARGETS:
            found = faults(kernel, cc)
            if index == "i64":
                found = [fault for fault in found if "registers of" not in fault]
            assert found == []
