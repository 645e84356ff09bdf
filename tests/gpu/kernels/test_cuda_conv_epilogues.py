"""Convolutions and what follows them in one kernel, in the emulator, against the interpreter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cuda_models
import numpy as np
import pytest
from cuda_budget_checks import faults
from cuda_epilogue_checks import DTYPES, array, check, kernels, traced
from cuda_graphs import lanes, run
from cuda_toolchain import TARGETS, needs_toolchain
from hypothesis import given, settings
from hypothesis import strategies as st

import weft as wf
from weft.codegen.cuda.kernels import conv as conv_geometry
from weft.codegen.cuda.kernels import conv as conv_tiles
from weft.codegen.cuda.lowerings import fused_launches
from weft.codegen.cuda.products.tiles import TENSOR_TILES, TILES, Tile
from weft.codegen.cuda.source.kernel import CudaKernel
from weft.ir.graph import Graph
from weft.ir.interpreter.evaluate import interpret

Array = np.ndarray[Any, Any]


def names_of(graph: Graph) -> list[str]:
    """The kernels of a graph that is one `fused` op."""
    (op,) = graph.ops
    return [launch.kernel.name for launch in fused_launches(op)[0]]


@settings(max_examples=5, deadline=None)
@given(data=st.data())
def test_any_sizes(data: st.DataObject) -> None:
    """One to three axes, strides, groups, both directions, tiles, parts of k and single threads."""
    draw = data.draw
    rank, groups = draw(st.integers(1, 3)), draw(st.sampled_from([1, 1, 2]))
    size, window = draw(st.integers(3, 9 - 2 * rank)), draw(st.integers(1, 3))
    stride, padding = draw(st.integers(1, 2)), draw(st.sampled_from(["SAME", "VALID"]))
    inside, outside = draw(st.integers(1, 9)), draw(st.sampled_from([1, 4, 8, 33]))
    dtype, back = draw(st.sampled_from(DTYPES)), draw(st.booleans())
    x = array(2, *[size] * rank, inside * groups, dtype=dtype)
    w = array(*[window] * rank, inside, outside * groups, dtype=dtype, seed=1)
    conv: Callable[..., Any] = (wf.nn.conv1d, wf.nn.conv2d, wf.nn.conv3d)[rank - 1]

    def forward(x: Any, w: Any) -> Any:
        return conv(x, w, strides=stride, padding=padding, groups=groups)

    graph = wf.compile(forward).trace(x, w)
    y = array(*graph.results[0].type.static_shape, dtype=dtype, seed=2)  # type: ignore[union-attr]
    bias, full = array(y.shape[-1], dtype=dtype, seed=3), array(*y.shape, dtype=dtype, seed=4)

    def program(x: Any, w: Any, bias: Any, full: Any, y: Any) -> Any:
        if back and np.dtype(dtype).kind == "f":
            (dx,) = wf.gradients([forward(x, w)], [x], grad_ys=[y])
            return dx * x + dx
        made = forward(x, w) + bias
        return wf.maximum(made, wf.zeros_like(made)) * full, made

    with pytest.MonkeyPatch.context() as patch:
        if draw(st.booleans()):
            patch.setattr(conv_geometry, "LEAST", (1, 1, 1))
            tiles = TENSOR_TILES if dtype == np.float16 else TILES
            tile, parts = draw(st.sampled_from(tiles)), draw(st.sampled_from([1, 3]))
            if np.dtype(dtype).itemsize < 8:
                patch.setattr(conv_tiles, "choose", lambda *given, **how: (tile, parts))
        made = check(program, x, w, bias, full, y)
    assert len(kernels(made)) == 1


def dense(x: Any, w: Any, b: Any) -> Any:
    return wf.nn.relu(wf.nn.conv2d(x, w, padding="SAME") + b)


@pytest.mark.parametrize(
    ("columns", "wide", "parts"), [(36, True, 1), (33, False, 1), (36, True, 2)]
)
def test_tiles_and_parts(
    columns: int, wide: bool, parts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One launch, or one more for the parts; rows are written in vectors where they are such."""
    monkeypatch.setattr(conv_tiles, "choose", lambda *given, **how: (TILES[2], parts))
    x, w, b = array(1, 4, 9, 4), array(3, 3, 4, columns), array(columns)
    made = check(dense, x, w, b)
    (op,) = made.ops
    *before, last = fused_launches(op)[0]
    assert len(before) == parts - 1
    assert ("store_f32x4(out0" in last.kernel.source) == (wide and parts == 1)


@pytest.mark.parametrize(("groups", "parts"), [(2, 1), (1, 2)])
def test_infinities_beyond_the_edges(
    groups: int, parts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sum that is NaN only by a 0 beyond an edge is added up anew before anything follows: here
    what is NaN would become 0."""
    monkeypatch.setattr(conv_tiles, "choose", lambda *given, **how: (TILES[2], parts))

    def program(x: Any, w: Any) -> Any:
        y = wf.nn.conv2d(x, w, padding="SAME", groups=groups)
        return wf.where(wf.equal(y, y), y, wf.zeros_like(y)), y

    x, w = array(1, 6, 6, 8 * groups), array(3, 3, 8, 16 * groups, seed=1)
    w[0, 0, 3, 1], w[2, 1, 5, 7], x[0, 5, 0, 2] = np.inf, -np.inf, np.inf
    graph, made = traced(program, x, w)
    assert kernels(made) == ["conv_equal_where"]
    with np.errstate(invalid="ignore"):
        results, wanted = run(made, [x, w], lanes), interpret(graph, [x, w])
    for got, want in zip(results, wanted, strict=True):
        assert np.array_equal(np.isnan(got), np.isnan(want))
        assert np.array_equal(np.isinf(got), np.isinf(want))
        known = np.isfinite(want)
        np.testing.assert_allclose(got[known], want[known], rtol=1e-5, atol=1e-5)
    assert np.isinf(wanted[0]).any()
    assert not np.isnan(wanted[1]).all()


def test_strided_gradients_have_phases(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of C are positions of one phase; the nest reads and writes where they are."""
    monkeypatch.setattr(conv_geometry, "LEAST", (1, 1, 1))

    def program(y: Any, w: Any, mask: Any) -> Any:
        return wf.nn.conv2d_transpose(y, w, (7, 9), strides=2) * mask

    y, w, mask = array(2, 4, 5, 8), array(3, 3, 8, 12), array(2, 7, 9, 12)
    made = check(program, y, np.swapaxes(w, 2, 3).copy(), mask)
    assert "phases" in names_of(made)[0]


def test_a_residual_and_who_else_needs_the_result() -> None:
    def program(x: Any, w: Any, r: Any) -> Any:
        y = wf.nn.conv2d(x, w, padding="SAME")
        return wf.nn.gelu(y + r), wf.nn.max_pool2d(y, 2)

    x, w, r = array(1, 8, 8, 16), array(3, 3, 16, 16), array(1, 8, 8, 16, seed=3)
    made = check(program, x, w, r)
    assert [op.name for op in made.ops] == ["fused", "window_max"]


def test_depthwise_ones_too() -> None:
    """A thread for each result does what follows as well."""
    x, w, b = array(1, 6, 6, 5), array(3, 3, 1, 5), array(5)
    made = check(lambda x, w, b: wf.tanh(wf.nn.conv2d(x, w, groups=5) + b), x, w, b)
    assert names_of(made) == ["conv_add_tanh_f32_2d_u32"]


@needs_toolchain
def test_nothing_spills(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the loops that add up NaN anew in the kernel."""
    monkeypatch.setattr(conv_tiles, "choose", lambda *given, **how: (TILES[0], 1))
    _, made = traced(dense, array(4, 16, 16, 32), array(3, 3, 32, 64), array(64))
    (op,) = made.ops
    ((launch,), _) = fused_launches(op)
    assert "one != one" in launch.kernel.source
    assert faults(launch.kernel, (9, 0)) == []


@pytest.mark.slow
@needs_toolchain
@pytest.mark.parametrize(
    ("tile", "dtype"),
    [*((tile, np.float32) for tile in TILES), *((tile, np.float16) for tile in TENSOR_TILES[1:])],
    ids=str,
)
def test_nothing_spills_anywhere(tile: Tile, dtype: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """On all architectures, forward and backward."""
    monkeypatch.setattr(conv_tiles, "choose", lambda *given, **how: (tile, 1))

    def step(x: Any, w: Any, b: Any) -> Any:
        y = wf.nn.relu(wf.nn.conv2d(x, w, 2, "SAME") + b)
        return y, wf.gradients([wf.sum(y * y)], [x, w, b])

    x, w, b = (array(*shape, dtype=dtype) for shape in ((4, 16, 16, 32), (3, 3, 32, 64), (64,)))
    found: list[CudaKernel] = cuda_models.kernels_of(step, x, w, b)
    assert [fault for kernel in found for cc in TARGETS for fault in faults(kernel, cc)] == []
