"""Windowed reductions: meaning, native code for any sizes, cuts, the functions of wf.nn."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from conv_checks import DTYPES, check, graph_of, numbers
from cut_calls import cut_everything, same_in_cuts
from example_counts import examples
from hypothesis import given
from hypothesis import strategies as st

import weft as wf
from weft.ir.interpreter.evaluate import evaluate_op, interpret
from weft.runtime.native.executable import compile_graph
from weft.runtime.native.pool import POOL

Array = np.ndarray[Any, Any]
RNG = np.random.default_rng(0)
REAL = sorted(d for d in DTYPES if d[0] != "c")


@st.composite
def windows(draw: st.DrawFn) -> dict[str, Any]:
    axes = draw(st.sampled_from([1, 2, 2, 3]))

    def ints(low: int, high: int) -> tuple[int, ...]:
        return tuple(draw(st.integers(low, high)) for _ in range(axes))

    case = {
        "window": ints(0, 4), "strides": ints(1, 4), "lo": ints(-2, 5), "dilation": ints(1, 3),
        "large": ints(0, 9), "small": ints(0, 8),
    }  # fmt: skip
    if draw(st.booleans()):  # windows that tile the array
        case |= {"strides": case["window"], "lo": (0,) * axes, "dilation": (1,) * axes}
        case["window"] = case["strides"] = tuple(max(1, k) for k in case["window"])
        case["large"] = tuple(k * n for k, n in zip(case["window"], case["small"], strict=True))
    case["batch"], case["channels"] = (
        draw(st.integers(0, 3)),
        draw(st.sampled_from([0, 1, 3, 16, 70])),
    )
    return case


def five(case: dict[str, Any], dtype: str) -> list[tuple[str, list[Array], dict[str, Any]]]:
    attrs = {k: case[k] for k in ("window", "strides", "lo", "dilation")}
    large = (case["batch"], *case["large"], case["channels"])
    small = (case["batch"], *case["small"], case["channels"])
    # few different numbers: equal maxima; and some NaN
    x = (numbers(large, dtype, 1) * 2).round()
    if dtype[0] in "fb":
        x = np.where(np.random.default_rng(5).random(large) < 0.03, np.array(np.nan, x.dtype), x)
    y, t = numbers(small, dtype, 2), numbers(large, dtype, 3)
    return [
        ("window_sum", [t], {**attrs, "size": case["small"]}),
        ("window_spread", [y], {**attrs, "size": case["large"]}),
        ("window_max", [x], {**attrs, "size": case["small"]}),
        ("window_pick", [x, t], {**attrs, "size": case["small"]}),
        ("window_place", [x, y], attrs),
    ]


@examples(60)
@given(windows(), st.sampled_from(REAL))
def test_native_code_is_the_interpreter(case: dict[str, Any], dtype: str) -> None:
    for op, arrays, attrs in five(case, dtype):
        if op in ("window_sum", "window_spread"):
            check(op, arrays, dtype, **attrs)
            continue
        graph = graph_of(op, arrays, **attrs)
        (wanted,), (got,) = interpret(graph, arrays), compile_graph(graph).run(arrays)
        rtol = 0 if op != "window_place" else {"f16": 4e-3, "bf16": 3e-2}.get(dtype, 1e-5)
        wide = np.float64
        np.testing.assert_allclose(got.astype(wide), wanted.astype(wide), rtol=rtol, atol=rtol)


@pytest.mark.parametrize("exact", [False, True])
def test_bits_do_not_depend_on_cuts(exact: bool) -> None:
    case = {
        "window": (2, 2), "strides": (2, 2), "lo": (0, 0), "dilation": (1, 1), "large": (12, 16),
        "small": (6, 8), "batch": 3, "channels": 70,
    }  # fmt: skip
    if not exact:
        case |= {"window": (3, 3), "lo": (1, 1)}
    limit = POOL.limit
    try:
        POOL.set_limit(16)
        for op, arrays, attrs in five(case, "f32"):
            with pytest.MonkeyPatch.context() as patch:
                cut_everything(patch)
                step = compile_graph(graph_of(op, arrays, **attrs))
            whole = step.run(arrays)
            same_in_cuts(step, arrays, whole)
    finally:
        POOL.set_limit(limit)


def test_the_meaning() -> None:
    """Windows cut out with slices."""
    x = RNG.normal(size=(2, 7, 6, 3))
    attrs = {"window": (3, 2), "strides": (2, 1), "lo": (1, 0), "dilation": (1, 2), "size": (4, 5)}
    (most,), (total,) = (evaluate_op(f"window_{k}", [x], attrs) for k in ("max", "sum"))
    for i, j in product(range(4), range(5)):
        seen = x[:, max(0, 2 * i - 1) : 2 * i + 2, j : j + 3 : 2].reshape(2, -1, 3)
        if j == 4:
            seen = x[:, max(0, 2 * i - 1) : 2 * i + 2, 4:5].reshape(2, -1, 3)
        np.testing.assert_array_equal(most[:, i, j], seen.max(1))
        np.testing.assert_allclose(total[:, i, j], seen.sum(1))


def test_ties_and_nan() -> None:
    """Of equal maxima the first one counts, as in PyTorch; NaN is the maximum."""
    x = np.array([[[3.0], [3], [1], [np.nan], [5], [np.nan]]])
    attrs = {"window": (3,), "strides": (3,), "lo": (0,), "dilation": (1,)}
    (most,) = evaluate_op("window_max", [x], {**attrs, "size": (2,)})
    np.testing.assert_array_equal(most[0, :, 0], [3, np.nan])
    (placed,) = evaluate_op("window_place", [x, np.array([[[7.0], [8]]])], attrs)
    np.testing.assert_array_equal(placed[0, :, 0], [7, 0, 0, 8, 0, 0])


def test_windows_of_nothing() -> None:
    x = np.ones((1, 2, 1), np.float32)
    attrs = {"window": (1,), "strides": (3,), "lo": (3,), "dilation": (1,), "size": (2,)}
    assert evaluate_op("window_max", [x], attrs)[0].ravel().tolist() == [-np.inf, 1]
    (low,) = evaluate_op("window_max", [x.astype(np.int8)], attrs)
    assert low.ravel().tolist() == [-128, 1]


def test_max_pool() -> None:
    x = RNG.normal(size=(2, 6, 8, 3)).astype(np.float32)
    wanted = x.reshape(2, 3, 2, 4, 2, 3).max((2, 4))
    for f in (wf.nn.max_pool2d, wf.compile(lambda x, _: wf.nn.max_pool2d(x, 2))):
        np.testing.assert_array_equal(f(x, 2), wanted)
    np.testing.assert_array_equal(wf.nn.max_pool(x, [1, 2, 2, 1], [1, 2, 2, 1]), wanted)
    first = wf.nn.max_pool2d(x.transpose(0, 3, 1, 2), 2, data_format="NCHW")
    np.testing.assert_array_equal(np.asarray(first).transpose(0, 2, 3, 1), wanted)
    assert wf.nn.max_pool2d(x, 3, 2, "SAME").shape == (2, 3, 4, 3)
    line = wf.nn.max_pool1d(x[:, 0], 3, 1, "SAME")
    np.testing.assert_array_equal(np.asarray(line)[:, 0], x[:, 0, :2].max(1))
    assert wf.nn.max_pool2d((x * 9).astype(np.int8), 2).dtype is wf.int8


def test_avg_pool_counts_what_is_there() -> None:
    x = np.arange(1.0, 6)[None, :, None]
    mean = np.asarray(wf.nn.avg_pool1d(x, 3, 1, "SAME"))[0, :, 0]
    np.testing.assert_allclose(mean, [1.5, 2, 3, 4, 4.5])
    mean = np.asarray(wf.nn.avg_pool1d(x, 3, 1, "SAME", count_include_pad=True))[0, :, 0]
    np.testing.assert_allclose(mean, [1, 2, 3, 4, 3])
    assert wf.nn.avg_pool1d(np.ones((1, 4, 1), np.int32), 2).dtype is wf.float32
    half = np.full((1, 4, 4, 2), 30000, np.float16)
    assert np.asarray(wf.nn.avg_pool2d(half, 4)).ravel().tolist() == [30000, 30000]


def test_pool_by_type() -> None:
    x = RNG.normal(size=(1, 6, 2))
    pairs = np.stack([x[:, :-1], x[:, 1:]])
    for kind, wanted in (
        ("MAX", pairs.max(0)),
        ("MIN", pairs.min(0)),
        ("SUM", pairs.sum(0)),
        ("avg", pairs.mean(0)),
    ):
        np.testing.assert_allclose(wf.nn.pool(x, 2, kind), wanted)
    for dtype in (np.uint8, np.int8):
        low = np.array([[[0], [200], [7], [128]]]).astype(dtype)
        got = np.asarray(wf.nn.pool(low, 2, "MIN"))
        np.testing.assert_array_equal(got, np.minimum(low[:, :-1], low[:, 1:]))
