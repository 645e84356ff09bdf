"""Tiles of products: the bits of their sums, the banks of shared memory, what they take of a
multiprocessor, and which is taken."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from cuda_banks import Banks, counted_banks, taken
from cuda_budget_checks import compiled, faults
from cuda_ops import run_graph
from cuda_product_graphs import done_in, graph_of, kernel_of, product_graph
from cuda_toolchain import needs_toolchain

from weft.codegen.cuda.cubins.cache import occupancy
from weft.codegen.cuda.emulator import run as emulate
from weft.codegen.cuda.emulator.numpy_functions import fma_f32, fma_f64
from weft.codegen.cuda.products.tiles import (
    QUAD_TILES,
    TENSOR_TILES,
    TILES,
    TILES_OF_64,
    Tile,
    choose,
)
from weft.codegen.cuda.source.kernel import Launch
from weft.ir.analysis.index_maps import static_shape
from weft.ir.dtypes import as_dtype
from weft.ir.graph import Graph

Array = np.ndarray[Any, Any]
EACH = [*((tile, "f32") for tile in TILES), *((tile, "f64") for tile in TILES_OF_64)]
NUMPY = {"f32": np.float32, "f64": np.float64}
#: What the loop over k reads.
INNER = re.compile(r"load_\w+\(shared_[ab], (?:u32\()?at")


def banks_of(graph: Graph, dtype: str, change: Callable[[str], str] = str) -> Banks:
    """What the accesses of the product take; change: of the kernel's source."""

    def runner(launch: Launch, args: Sequence[Any]) -> None:
        kernel = replace(launch.kernel, source=change(launch.kernel.source))
        emulate(kernel, launch.blocks, launch.block_threads, args, check=False)

    inputs = [np.ones(static_shape(v), as_dtype(dtype).numpy) for v in graph.args]
    with counted_banks() as banks:
        run_graph(graph, inputs, runner=runner)
    return banks


@pytest.mark.parametrize(("tile", "dtype"), EACH, ids=str)
def test_each_sum_is_one_chain_over_k(
    tile: Tile, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bits of one fma after the other, whatever the tile."""
    done_in(tile, monkeypatch)
    rng = np.random.default_rng(4)
    a, b = (rng.standard_normal(s).astype(NUMPY[dtype]) for s in ((19, 37), (37, 33)))
    (got,) = run_graph(product_graph(a.shape, b.shape, dtype), [a, b])
    wanted = np.zeros((19, 33), NUMPY[dtype])
    for k in range(37):
        x, y = (np.broadcast_to(x, wanted.shape).ravel() for x in (a[:, k, None], b[k]))
        wanted = {"f32": fma_f32, "f64": fma_f64}[dtype](x, y, wanted.ravel()).reshape(19, 33)
    assert got.tobytes() == wanted.tobytes()


def test_banks() -> None:
    """Requests and cycles of accesses whose numbers are known."""
    lanes = np.arange(32)
    assert taken(lanes, lanes * 4, 4) == (1, 1)
    assert taken(lanes, lanes * 8, 4) == (2, 1)
    assert taken(lanes, lanes * 0, 4) == (1, 1)
    assert taken(lanes, lanes * 128, 4) == (32, 1)
    assert taken(lanes, lanes * 8, 8) == (2, 2)
    assert taken(lanes, lanes * 16, 16) == (4, 4)
    assert taken(lanes, lanes // 2 * 16, 16) == (2, 2)
    assert taken(lanes, lanes * 32, 16) == (8, 4)
    assert taken(lanes[:5], lanes[:5] * 128, 4) == (5, 1)


@pytest.mark.parametrize(
    ("tile", "dtype", "ta", "tb"),
    [(t, d, turned, turned) for t, d in EACH for turned in (False, True) if d == "f32" or turned],
    ids=str,
)
def test_no_access_to_shared_memory_waits_for_banks(
    tile: Tile, dtype: str, ta: bool, tb: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every request takes one cycle; vectors of A and B are two requests each, as each of them is
    for several lanes."""
    done_in(tile, monkeypatch)
    k = 2 * tile.depth
    graph = graph_of(tile.size, tile.size, k, dtype, ta, tb)
    banks = banks_of(graph, dtype)
    assert banks.conflicts() == []
    source = kernel_of(graph).source.split("\n")
    reads = [n for n in banks.accesses if INNER.search(source[n - 1])]
    vectors = (tile.rows + tile.columns) * np.dtype(NUMPY[dtype]).itemsize // 16
    assert sum(banks.accesses[n] for n in reads) == k * vectors * tile.threads // 32
    assert all(banks.requests[n] == 2 * banks.accesses[n] for n in reads)


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("tile", TENSOR_TILES, ids=str)
def test_no_access_of_tensor_tiles_waits_for_banks(
    tile: Tile, turned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Vectors of A and B are four requests of a cycle each: all lanes have their own."""
    done_in(tile, monkeypatch)
    graph = graph_of(tile.size, tile.size, 32, "f16", turned, turned)
    banks, source = banks_of(graph, "f16"), kernel_of(graph).source.split("\n")
    assert banks.conflicts() == []
    reads = [n for n in banks.accesses if INNER.search(source[n - 1])]
    vectors = 2 * (tile.rows // 4 + 1)  # of a thread, for 16 numbers of k
    assert sum(banks.accesses[n] for n in reads) == 2 * vectors * tile.threads // 32
    assert all(banks.requests[n] == 4 * banks.accesses[n] for n in reads)


@pytest.mark.parametrize("k", [63, 64])
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("tile", QUAD_TILES, ids=str)
def test_no_access_of_tiles_of_bytes_waits_for_banks(
    tile: Tile, turned: bool, k: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As those of 32 bits, for a quarter of the steps; k: by bytes, and by words."""
    done_in(tile, monkeypatch)
    graph = graph_of(tile.size, tile.size, k, "i8", turned, turned)
    banks, source = banks_of(graph, "i8"), kernel_of(graph).source.split("\n")
    assert banks.conflicts() == []
    reads = [n for n in banks.accesses if INNER.search(source[n - 1])]
    vectors = (tile.rows + tile.columns) // 4
    assert sum(banks.accesses[n] for n in reads) == 64 // 4 * vectors * tile.threads // 32
    assert all(banks.requests[n] == 2 * banks.accesses[n] for n in reads)


@pytest.mark.parametrize(
    ("padded", "bare"),
    [
        ("u32(72)", "u32(64)"),  # lines
        ("u32(div_u32(fast, u32(4)) * u32(4))", "u32(0)"),  # fours of lines
        ("rem_u32(group, u32(2)) * u32(36)", "rem_u32(group, u32(2)) * u32(32)"),
    ],
)
def test_without_padding_tensor_tiles_wait(
    padded: str, bare: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    done_in(TENSOR_TILES[1], monkeypatch)
    graph = graph_of(64, 64, 16, "f16", False, True)
    assert padded in kernel_of(graph).source
    assert banks_of(graph, "f16", lambda source: source.replace(padded, bare)).conflicts() != []


@pytest.mark.parametrize("padded", ["u32(36)", "u32(48)"])
def test_without_padding_they_wait(padded: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Elements on their way in, and sums on their way out."""
    done_in(TILES[2], monkeypatch)
    graph = graph_of(32, 32, 16, "f32")
    assert padded in kernel_of(graph).source
    banks = banks_of(graph, "f32", lambda source: source.replace(padded, "u32(32)"))
    assert banks.conflicts() != []


@pytest.mark.parametrize(
    ("m", "n", "k", "tile", "parts"),
    [
        (4096, 4096, 4096, 128, 1),
        (2048, 768, 768, 64, 1),
        (768, 768, 2048, 128, 3),
        (512, 512, 512, 64, 4),
        (128, 100, 784, 32, 6),
        (100, 100, 100, 32, 1),
    ],
)
def test_which_tile_and_how_many_parts(m: int, n: int, k: int, tile: int, parts: int) -> None:
    chosen, count = choose((m, n, k), 1, bits=32)
    assert (chosen.size, count) == (tile, parts)
    assert choose((m, n, k), 1, bits=32, whole=True)[1] == 1


@needs_toolchain
@pytest.mark.parametrize("tile", TILES, ids=str)
def test_instructions(tile: Tile, monkeypatch: pytest.MonkeyPatch) -> None:
    """In PTX: a multiply-add for each product, a load of 128 bits for each vector, two blocks or
    more on a multiprocessor, nothing spilled."""
    done_in(tile, monkeypatch)
    kernel = kernel_of(graph_of(1250, 1251, 777, "f32"))
    assert faults(kernel, (9, 0)) == []
    ptx, report = compiled(kernel, (9, 0))
    assert report.registers <= 128
    found = occupancy(report, kernel.threads, (9, 0))
    assert found is not None
    assert found.blocks >= tile.resident / 2
    loop = inner_loop(ptx)
    products, vectors = loop.count("fma.rn.f32"), loop.count("ld.shared.v4")
    steps = products // (tile.rows * tile.columns)
    assert products == steps * tile.rows * tile.columns == 128
    assert vectors == steps * (tile.rows + tile.columns) // 4
    assert len(re.findall(r"^\s+[a-z]", loop, re.MULTILINE)) <= products + vectors + 12


def inner_loop(ptx: str) -> str:
    """The block of PTX with most multiply-adds."""
    return max(re.split(r"^\$L\w+:", ptx, flags=re.MULTILINE), key=lambda b: b.count("fma.rn"))
