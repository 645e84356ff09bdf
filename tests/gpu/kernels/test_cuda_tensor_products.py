"""Products of 16-bit floats on tensor cores, carried out by the emulator, and compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from cuda_budget_checks import compiled, faults
from cuda_ops import check_any_order, run_graph
from cuda_product_graphs import done_in, graph_of, kernel_of, product_graph
from cuda_toolchain import TARGETS, needs_toolchain
from gpu_kinds import EMULATED_OR_REAL, REAL, runner_of
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.codegen.cuda.lowerings import launches_of
from weft.codegen.cuda.products import matmul
from weft.codegen.cuda.products.tiles import TENSOR_TILES, Tile, choose
from weft.codegen.cuda.source.kernel import CudaKernel
from weft.codegen.cuda.source.writer import MANY
from weft.ir.interpreter.evaluate import interpret
from weft.ir.interpreter.state import DictState

Array = np.ndarray[Any, Any]
NUMPY = {"f16": np.dtype(np.float16), "bf16": np.dtype(ml_dtypes.bfloat16)}
EPS = {"f16": 2.0**-11, "bf16": 2.0**-8}


def numbers(shape: tuple[int, ...], dtype: str, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(NUMPY[dtype])


#: None: the emulator.
Runner = Callable[..., Any] | None


def product(
    a: Array, b: Array, dtype: str, ta: bool = False, tb: bool = False, runner: Runner = None
) -> Array:
    """Of the operands as they lie in memory."""
    graph = product_graph(a.shape, b.shape, dtype, ta, tb)
    (made,) = run_graph(graph, [a, b], runner=runner)
    assert made.dtype == NUMPY[dtype]
    return made


def check(
    a: Array, b: Array, dtype: str, ta: bool = False, tb: bool = False, runner: Runner = None
) -> None:
    """Against f64: products are exact, sums of k of them and the result are rounded. A GPU's adders
    cut off in place of rounding, each of the 17 numbers of an instruction, and the sum."""
    got = product(a, b, dtype, ta, tb, runner).astype(np.float64)
    x, y = (np.asarray(v, np.float64) for v in (a, b))
    x, y = (v.swapaxes(-1, -2) if t else v for v, t in ((x, ta), (y, tb)))
    k = x.shape[-1]
    roundings = k if runner is None else 20 * (k // 16 + 2)  # each of two parts may have a rest
    allowed = 1.001 * EPS[dtype] * np.abs(x @ y)
    allowed += roundings * 2.0**-23 * (np.abs(x) @ np.abs(y)) * (1 if runner is None else 1.01)
    assert (np.abs(got - x @ y) <= allowed + 2.0**-25).all()  # f16 has numbers down to 2**-24


@pytest.mark.parametrize("dtype", EPS)
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("tile", TENSOR_TILES, ids=str)
@pytest.mark.parametrize("kind", EMULATED_OR_REAL)
def test_tiles(
    kind: str, tile: Tile, turned: bool, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Edges, and both ways in which A and B lie."""
    _tile(kind, tile, turned, dtype, monkeypatch)


def test_a_tile_over_a_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU."""
    _tile("faked", TENSOR_TILES[1], True, "f16", monkeypatch)


def _tile(kind: str, tile: Tile, turned: bool, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = runner_of(kind, monkeypatch)
    done_in(tile, monkeypatch)
    m, n, k = tile.size + 9, tile.size - 1, 35
    assert "_tensor" in kernel_of(graph_of(m, n, k, dtype)).name
    a, b = ((k, m), (n, k)) if turned else ((m, k), (k, n))
    check(numbers(a, dtype), numbers(b, dtype, 1), dtype, turned, turned, runner)


@pytest.mark.parametrize("dtype", EPS)
@pytest.mark.parametrize("tile", TENSOR_TILES, ids=str)
def test_the_bits_depend_on_k_alone(
    tile: Tile, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs of 16 numbers of k, one after the other, whatever the tile."""
    done_in(tile, monkeypatch)
    a, b = numbers((19, 37), dtype), numbers((37, 33), dtype, 1)
    x, y = np.zeros((19, 48)), np.zeros((48, 33))
    x[:, :37], y[:37] = a, b
    wanted = np.zeros((19, 33), np.float32)
    for first in range(0, 48, 16):
        total = wanted.astype(np.float64)
        for k in range(first, first + 16):
            total += x[:, k, None] * y[k]
        wanted = total.astype(np.float32)
    assert product(a, b, dtype).tobytes() == wanted.astype(NUMPY[dtype]).tobytes()


@settings(max_examples=12, deadline=None)
@given(st.data())
def test_any_sizes(data: st.DataObject) -> None:
    _random(data, 40)


@pytest.mark.parametrize(
    ("kind", "count", "most"),
    [("faked", 2, 40), pytest.param("real", 400, 300, marks=pytest.mark.gpu)],
)
def test_any_sizes_on_a_device(
    kind: str, count: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = runner_of(kind, monkeypatch)

    @settings(max_examples=count, deadline=None)
    @given(st.data())
    def some(data: st.DataObject) -> None:
        _random(data, most, runner)

    some()


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(st.data())
def test_any_sizes_at_length(data: st.DataObject) -> None:
    _random(data, 140)


def _random(data: st.DataObject, most: int, runner: Runner = None) -> None:
    """Of each size the numbers around those of instructions and tiles are likelier."""
    size = st.sampled_from([1, 15, 16, 17, 32, 33]) | st.integers(1, most)
    m, n, k = data.draw(size), data.draw(size), data.draw(st.just(0) | size)
    batch = data.draw(st.sampled_from([(), (2,)]))
    ta, tb = data.draw(st.booleans()), data.draw(st.booleans())
    dtype, tile = data.draw(st.sampled_from([*EPS])), data.draw(st.sampled_from(TENSOR_TILES))
    parts = data.draw(st.sampled_from([1, 2]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(matmul, "is_thin", lambda p: False)
        patch.setattr(matmul, "choose", lambda *given, **how: (tile, parts))
        a = numbers((*batch, *((k, m) if ta else (m, k))), dtype)
        b = numbers((*batch, *((n, k) if tb else (k, n))), dtype, 1)
        check(a, b, dtype, ta, tb, runner)


def test_parts_begin_at_multiples_of_16(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matmul, "choose", lambda *given, **how: (TENSOR_TILES[1], 3))
    graph = graph_of(40, 33, 100, "f16")
    (op,) = graph.ops
    first, second = launches_of(op)
    assert "_tensor" in first.kernel.name
    assert first.args.count(48) == 1
    assert "add_parts" in second.kernel.name
    check(numbers((40, 100), "f16"), numbers((100, 33), "f16", 1), "f16")


@pytest.mark.parametrize("dtype", EPS)
@pytest.mark.parametrize("tile", TENSOR_TILES, ids=str)
@pytest.mark.parametrize("kind", ["emulated", "faked", REAL])
def test_what_is_not_finite(
    kind: str, tile: Tile, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the interpreter has it: infinities, NaN, and sums beyond the largest f16."""
    runner = runner_of(kind, monkeypatch)
    done_in(tile, monkeypatch)
    a, b = numbers((20, 40), dtype), numbers((40, 40), dtype, 1)
    a[0, 3], a[5, 39], b[0, 7], b[16, 8], a[3, 0] = np.inf, np.nan, -np.inf, np.inf, 0
    a[9], b[:, 9] = 300, 300
    graph = product_graph(a.shape, b.shape, dtype)
    with np.errstate(all="ignore"):
        (wanted,) = interpret(graph, [a, b], DictState({}))
    got = product(a, b, dtype, runner=runner)
    assert np.isnan(wanted).any()
    assert np.isinf(wanted[9, 9]) == (dtype == "f16")
    np.testing.assert_array_equal(np.isnan(got), np.isnan(wanted))
    np.testing.assert_array_equal(np.isposinf(got), np.isposinf(wanted))
    np.testing.assert_array_equal(np.isneginf(got), np.isneginf(wanted))


def test_threads_in_any_order() -> None:
    graph = product_graph((19, 20), (20, 18), "bf16")
    inputs = [numbers((19, 20), "bf16"), numbers((20, 18), "bf16", 1)]
    assert "_tensor" in kernel_of(graph).name
    check_any_order(graph, inputs)


@pytest.mark.parametrize(
    ("sizes", "count", "tile", "parts"),
    [
        ((4096, 4096, 4096), 1, 128, 1),
        ((512, 512, 512), 1, 64, 4),
        ((100, 100, 100), 1, 64, 1),
        ((32, 32, 256), 1000, 64, 1),
    ],
)
def test_which_tile_and_how_many_parts(
    sizes: tuple[int, int, int], count: int, tile: int, parts: int
) -> None:
    chosen, cut = choose(sizes, count, bits=16)
    assert chosen.tensor
    assert (chosen.size, cut) == (tile, parts)
    assert choose(sizes, count, bits=16, largest=64)[0].size <= 64


def kernels_of(tile: Tile, dtype: str, index: str) -> list[CudaKernel]:
    """Both ways in which operands lie."""
    long = MANY // 1000 if index == "i64" else 777
    return [
        kernel_of(graph_of(1250, 1251, long, dtype, turned, turned)) for turned in (False, True)
    ]


@needs_toolchain
@pytest.mark.parametrize("tile", TENSOR_TILES, ids=str)
def test_instructions(tile: Tile, monkeypatch: pytest.MonkeyPatch) -> None:
    """An instruction of tensor cores for 16 x 8 sums of a warp, two blocks or more."""
    done_in(tile, monkeypatch)
    kernel, _ = kernels_of(tile, "f16", "u32")
    assert faults(kernel, (9, 0)) == []
    ptx, _ = compiled(kernel, (9, 0))
    assert ptx.count("mma.sync.aligned.m16n8k16") == tile.size**2 // (16 * 8) * 32 // tile.threads
    assert "fma.rn.f32" not in ptx
    assert "cvt.f32.f16" not in ptx


@needs_toolchain
def test_what_shuffles_bring_has_all_registers(monkeypatch: pytest.MonkeyPatch) -> None:
    """bf16 on sm_75: a number of blocks would be paid for by spills."""
    done_in(TENSOR_TILES[1], monkeypatch)
    kernel, _ = kernels_of(TENSOR_TILES[1], "bf16", "u32")
    bound = ".minnctapersm"
    assert [bound in compiled(kernel, cc)[0] for cc in ((7, 5), (8, 0))] == [False, True]


@pytest.mark.slow
@needs_toolchain
@pytest.mark.parametrize("index", ["u32", "i64"])
@pytest.mark.parametrize("dtype", EPS)
@pytest.mark.parametrize("tile", TENSOR_TILES, ids=str)
def test_budget(tile: Tile, dtype: str, index: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing spills, on any architecture (but bf16 on sm_75, which `faults` leaves out). With
    indices of 64 bits one block may fill a multiprocessor."""
    done_in(tile, monkeypatch)
    for kernel in kernels_of(tile, dtype, index):
        assert ("_i64" in kernel.name) == (index == "i64")
        for cc in TARGETS:
            found = faults(kernel, cc)
            if index == "i64":
                found = [fault for fault in found if "registers of" not in fault]
            assert found == []
