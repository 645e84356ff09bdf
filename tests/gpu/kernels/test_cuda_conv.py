"""Convolutions in tiles as CUDA launches, in the emulator, against the interpreter."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from cuda_budget_checks import faults
from cuda_loads import counted_loads
from cuda_on_cpu import native
from cuda_op_checks import check, graph_of
from cuda_ops import emulated, run_graph
from cuda_toolchain import TARGETS, needs_toolchain
from cuda_window_spaces import SPACES, attributes, numbers
from example_counts import examples
from hypothesis import given
from hypothesis import strategies as st
from shares import every

from weft.codegen.cuda.kernels import conv
from weft.codegen.cuda.lowerings import launches_of
from weft.codegen.cuda.products.tiles import TENSOR_TILES, TILES, TILES_OF_64, Tile
from weft.codegen.cuda.source import writer
from weft.ir.interpreter.evaluate import interpret
from weft.ir.interpreter.state import DictState

Array = np.ndarray[Any, Any]
RNG = np.random.default_rng(9)


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small convolutions are done in tiles too."""
    monkeypatch.setattr(conv, "LEAST", (1, 1, 1))


def kernels(op: str, inputs: list[Array], **attrs: Any) -> list[str]:
    (made,) = graph_of(op, inputs, **attrs).ops
    return [launch.kernel.name for launch in launches_of(made)]


def tiled(op: str, inputs: list[Array], **attrs: Any) -> None:
    """In tiles, with the interpreter's results."""
    assert any("x" in name.split("d_")[-1] for name in kernels(op, inputs, **attrs)), "no tiles"
    check(op, inputs, **attrs)


@pytest.mark.parametrize(("groups", "parts"), [(1, True), (2, False)])
@pytest.mark.parametrize("space", every(3, SPACES))
def test_conv_and_its_derivatives(
    space: str, groups: int, parts: bool, always: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if parts:
        monkeypatch.setattr(conv, "choose", lambda *given, **how: (Tile(32, 4, 4, 16), 3))
    (large, window, small), attrs = attributes(space)
    x = numbers((2, *large, 2 * groups))
    w, y = numbers((*window, 2, 3 * groups)), numbers((2, *small, 3 * groups))
    tiled("conv", [x, w], groups=groups, size=small, **attrs)
    tiled("conv_input", [y, w], groups=groups, size=large, **attrs)
    tiled("conv_kernel", [x, y], groups=groups, size=window, **attrs)


@pytest.mark.parametrize("tile", every(4, [*reversed(TILES), TILES_OF_64[-1]]), ids=str)
def test_each_tile(tile: Tile, always: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows and columns that make no whole tiles, and k no whole runs."""
    monkeypatch.setattr(conv, "choose", lambda *given, **how: (tile, 1))
    attrs: dict[str, Any] = {"strides": (2,), "lo": (1,), "dilation": (1,), "groups": 1}
    x, w, y = numbers((3, 44, 9)), numbers((4, 9, 131)), numbers((3, 22, 131))
    tiled("conv", [x, w], size=(22,), **attrs)
    tiled("conv_input", [y, w], size=(44,), **attrs)
    tiled("conv_kernel", [x, y], size=(4,), **attrs)


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_on_tensor_cores(dtype: str, always: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """All three, with groups, strides and parts of k."""
    monkeypatch.setattr(conv, "choose", lambda *given, **how: (TENSOR_TILES[1], 2))
    attrs: dict[str, Any] = {"strides": (2,), "lo": (1,), "dilation": (1,), "groups": 2}
    x, w, y = (numbers(s, dtype) for s in ((3, 24, 18), (4, 9, 134), (3, 12, 134)))
    assert "_tensor" in kernels("conv", [x, w], size=(12,), **attrs)[0]
    tiled("conv", [x, w], size=(12,), **attrs)
    tiled("conv_input", [y, w], size=(24,), **attrs)
    tiled("conv_kernel", [x, y], size=(4,), **attrs)


def test_which_tile() -> None:
    """The largest one of which there are enough."""
    same = {"strides": (1, 1), "lo": (1, 1), "dilation": (1, 1), "groups": 1}

    def kernel(batch: int, size: int, inside: int, outside: int) -> str:
        x = np.zeros((batch, size, size, inside), np.float32)
        w = np.zeros((3, 3, inside, outside), np.float32)
        return kernels("conv", [x, w], size=(size, size), **same)[0].removeprefix("conv_")

    assert kernel(16, 56, 64, 128) == "f32_2d_128x128_u32"
    assert kernel(16, 56, 64, 64) == "f32_2d_64x64_u32"
    assert kernel(16, 56, 64, 32) == "f32_2d_32x32_u32"
    assert kernel(1, 14, 256, 256) == "parts_f32_2d_64x64_u32"
    assert kernel(1, 7, 8, 64) == "f32_2d_32x32_u32"


@examples(15)
@given(data=st.data())
def test_any_sizes(data: st.DataObject) -> None:
    """Drawn ones: each axis for itself, several tiles among them."""
    draw = data.draw
    rank = draw(st.integers(1, 3))
    axes = [
        [draw(st.integers(*ends)) for ends in ((1, 7), (1, 3), (1, 3), (-1, 2), (1, 2))]
        for _ in range(rank)
    ]
    large, window, strides, lo, dilation = map(tuple, zip(*axes, strict=True))
    small = tuple(draw(st.integers(1, 6)) for _ in range(rank))
    groups, inside, outside = (
        draw(st.integers(1, 2)),
        draw(st.integers(1, 9)),
        draw(st.sampled_from([1, 4, 33, 65])),
    )
    dtype = draw(st.sampled_from(["f32", "f32", "f64", "f16", "bf16", "i8", "u32", "i64"]))
    batch = draw(st.integers(1, 3))
    x = numbers((batch, *large, inside * groups), dtype)
    w = numbers((*window, inside, outside * groups), dtype)
    y = numbers((batch, *small, outside * groups), dtype)
    attrs: dict[str, Any] = {"strides": strides, "lo": lo, "dilation": dilation, "groups": groups}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(conv, "LEAST", (1, 1, 1))
        tiles = TENSOR_TILES * 2 + TILES if dtype in ("f16", "bf16") else TILES
        tile, parts = draw(st.sampled_from(tiles)), draw(st.sampled_from([1, 3]))
        if dtype not in ("f64", "i64"):
            patch.setattr(conv, "choose", lambda *given, **how: (tile, parts))
        op = draw(st.sampled_from(["conv", "conv_input", "conv_kernel"]))
        inputs, size = {
            "conv": ([x, w], small),
            "conv_input": ([y, w], large),
            "conv_kernel": ([x, y], window),
        }[op]
        check(op, inputs, size=size, **attrs)


@pytest.mark.parametrize(("dtype", "parts"), [("f32", 1), ("f32", 2), ("f16", 1), ("f16", 2)])
@pytest.mark.parametrize("op", ["conv", "conv_input", "conv_kernel"])
def test_infinities_beyond_the_edges_take_no_part(
    op: str, dtype: str, parts: int, always: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tap that sees nothing adds nothing, whatever it would be multiplied by."""
    tile = TENSOR_TILES[1] if dtype == "f16" else TILES[2]
    monkeypatch.setattr(conv, "choose", lambda *given, **how: (tile, parts))
    (large, window, small), attrs = attributes("same")
    x, w, y = (numbers(s, dtype) for s in ((2, *large, 2), (*window, 2, 3), (2, *small, 3)))
    w[0, 0, 0, 0], w[2, 2, 1, 2], y[0, 0, 0, 0], y[1, 5, 6, 1] = np.inf, np.nan, -np.inf, np.nan
    inputs, size = {
        "conv": ([x, w], small),
        "conv_input": ([np.nan_to_num(y, posinf=9, neginf=-9), w], large),
        "conv_kernel": ([x, y], window),
    }[op]
    names = kernels(op, inputs, groups=1, size=size, **attrs)
    assert [name.endswith("nan_u32") for name in names[parts:]] == [True] * (op == "conv_kernel")
    with np.errstate(invalid="ignore"):
        check(op, inputs, groups=1, size=size, **attrs)
    graph = graph_of(op, inputs, groups=1, size=size, **attrs)
    (wanted,) = interpret(graph, inputs, DictState({}))
    assert not np.isnan(wanted).all()


def test_without_padding_there_is_one_launch(always: None) -> None:
    (large, window, small), attrs = attributes("plain")
    x, w = numbers((2, *large, 2)), numbers((*window, 2, 3))
    assert len(kernels("conv", [x, w], groups=1, size=small, **attrs)) == 1


def test_each_channel_its_own_group() -> None:
    """One column in each product: no tiles."""
    (large, window, small), attrs = attributes("same")
    x, w = numbers((2, *large, 40)), numbers((*window, 1, 40))
    assert kernels("conv", [x, w], groups=40, size=small, **attrs) == ["conv_f32_2d_u32"]
    check("conv", [x, w], groups=40, size=small, **attrs)


def test_strides_have_phases(always: None) -> None:
    """Each phase goes through those taps alone that reach it: a quarter of the products."""
    space = {"strides": (2, 2), "lo": (1, 1), "dilation": (1, 1)}
    y, w = numbers((1, 4, 4, 8)), numbers((4, 4, 8, 8))
    (op,) = graph_of("conv_input", [y, w], groups=1, size=(8, 8), **space).ops
    geometry = conv.Geometry(op)
    assert (len(geometry.phases), geometry.rows, geometry.k) == (4, 16, 4 * 8)
    tiled("conv_input", [y, w], groups=1, size=(8, 8), **space)


def test_indices_of_64_bits(always: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "MANY", 0)
    (large, window, small), attrs = attributes("strides")
    x, w, y = numbers((2, *large, 2)), numbers((*window, 2, 3)), numbers((2, *small, 3))
    tiled("conv", [x, w], groups=1, size=small, **attrs)
    tiled("conv_input", [y, w], groups=1, size=large, **attrs)
    tiled("conv_kernel", [x, y], groups=1, size=window, **attrs)


def test_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Elements read for each product: two by a thread for each result, a sixteenth in tiles."""
    x, w = numbers((1, 8, 16, 16)), numbers((3, 3, 16, 32))
    attrs: dict[str, Any] = {"strides": (1, 1), "lo": (1, 1), "dilation": (1, 1), "groups": 1}
    graph = graph_of("conv", [x, w], size=(8, 16), **attrs)
    found = {}
    for least in (1, 1 << 20):
        monkeypatch.setattr(conv, "LEAST", (least,) * 3)
        with counted_loads() as counts:
            run_graph(graph, [x, w], runner=emulated(check=False))
        found[least] = sum(counts[name] for name in ("a", "b", "x", "w"))
    products = 8 * 16 * 32 * 9 * 16
    assert found[1 << 20] > 1.7 * products
    assert found[1] < products / 15


@needs_toolchain
@pytest.mark.parametrize("op", ["conv", "conv_input", "conv_kernel"])
def test_as_llvm_has_it(op: str, always: None) -> None:
    """The compiled kernels, carried out on the CPU: the emulator's bits."""
    attrs: dict[str, Any] = {"strides": (2, 2), "lo": (1, 1), "dilation": (1, 1), "groups": 1}
    shapes = {"x": (2, 6, 6, 9), "w": (3, 3, 9, 5), "y": (2, 3, 3, 5)}
    given = {k: RNG.standard_normal(n).astype(np.float32) for k, n in shapes.items()}
    names, size = {"conv": ("xw", (3, 3)), "conv_input": ("yw", (6, 6))}.get(op, ("xy", (3, 3)))
    inputs = [given[name] for name in names]
    graph = graph_of(op, inputs, size=size, **attrs)
    (got,), (wanted,) = run_graph(graph, inputs, runner=native), run_graph(graph, inputs)
    np.testing.assert_array_equal(got, wanted)


@pytest.mark.slow
@needs_toolchain
@pytest.mark.parametrize(
    ("tile", "dtype"),
    [
        *((tile, "f32") for tile in TILES),
        *((tile, "f16") for tile in TENSOR_TILES[1:]),
        *((tile, "f64") for tile in TILES_OF_64),
    ],
    ids=str,
)
@pytest.mark.parametrize("op", ["conv", "conv_input", "conv_kernel"])
def test_budget(
    op: str, tile: Tile, dtype: str, always: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing spills on any architecture, in three axes with strides and groups."""
    monkeypatch.setattr(conv, "choose", lambda *given, **how: (tile, 1))
    (large, window, small), attrs = attributes("cube")
    x, w, y = (
        numbers(shape, dtype) for shape in ((2, *large, 40), (*window, 20, 40), (2, *small, 40))
    )
    inputs, size = {
        "conv": ([x, w], small),
        "conv_input": ([y, w], large),
        "conv_kernel": ([x, y], window),
    }[op]
    (made,) = graph_of(op, inputs, groups=2, size=size, **attrs).ops
    for launch in launches_of(made):
        for cc in TARGETS:
            assert faults(launch.kernel, cc) == []
