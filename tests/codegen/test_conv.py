"""Convolutions: meaning, native code for any sizes, cuts, the functions of wf.nn."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
import scipy.signal
from conv_checks import DTYPES, check, graph_of, numbers
from cut_calls import cut_everything, same_in_cuts
from example_counts import examples
from hypothesis import given
from hypothesis import strategies as st

import weft as wf
from weft.codegen.llvm.jit import compile_count
from weft.ir.interpreter.evaluate import evaluate_op, interpret, type_of
from weft.ir.ops.builder import Builder
from weft.passes.fusion.epilogues import fuse_matmul
from weft.passes.fusion.fuse import fuse
from weft.runtime.native.executable import compile_graph
from weft.runtime.native.pool import POOL

Array = np.ndarray[Any, Any]
RNG = np.random.default_rng(0)


@st.composite
def convolutions(draw: st.DrawFn) -> dict[str, Any]:
    axes = draw(st.sampled_from([1, 2, 2, 3]))
    most = {1: 40, 2: 12, 3: 5}[axes]

    def ints(low: int, high: int) -> tuple[int, ...]:
        return tuple(draw(st.integers(low, high)) for _ in range(axes))

    groups = draw(st.sampled_from([1, 1, 2, 3]))
    inside, outside = (draw(st.sampled_from([0, 1, 2, 3, 7, 16, 33, 70])) for _ in range(2))
    if draw(st.booleans()) and groups > 1:
        groups, inside, outside = draw(st.sampled_from([5, 16, 67])), 1, 1
    large, small, window = ints(0, most), ints(0, most), ints(0, 4)
    sliding = {"strides": ints(1, 3), "lo": ints(-2, 5), "dilation": ints(1, 3)}
    if draw(st.sampled_from([False, False, True])):  # a product of matrices
        ones, zeros = (1,) * axes, (0,) * axes
        small, window, sliding = large, ones, {"strides": ones, "lo": zeros, "dilation": ones}
    return {
        "x": (draw(st.sampled_from([0, 1, 2, 3])), *large, groups * inside),
        "w": (*window, inside, groups * outside),
        "small": small,
        "groups": groups,
        **sliding,
    }


def three(case: dict[str, Any], dtype: str) -> list[tuple[str, list[Array], dict[str, Any]]]:
    """The three ops of one trilinear form."""
    attrs = {k: case[k] for k in ("strides", "lo", "dilation", "groups")}
    x, w = numbers(case["x"], dtype, 1), numbers(case["w"], dtype, 2)
    y = numbers((case["x"][0], *case["small"], case["w"][-1]), dtype, 3)
    return [
        ("conv", [x, w], {**attrs, "size": case["small"]}),
        ("conv_input", [y, w], {**attrs, "size": case["x"][1:-1]}),
        ("conv_kernel", [x, y], {**attrs, "size": case["w"][:-2]}),
    ]


@examples(60)
@given(convolutions(), st.sampled_from(sorted(DTYPES)))
def test_native_code_is_the_interpreter(case: dict[str, Any], dtype: str) -> None:
    for op, arrays, attrs in three(case, dtype):
        check(op, arrays, dtype, **attrs)


BLOCKS: list[dict[str, Any]] = [
    # several blocks of rows, runs of products and panels
    {"x": (2, 40, 40, 70), "w": (3, 3, 70, 100), "small": (40, 40), "groups": 1,
     "strides": (1, 1), "lo": (1, 1), "dilation": (1, 1)},
    {"x": (1, 61, 45, 16), "w": (5, 3, 8, 40), "small": (30, 16), "groups": 2,
     "strides": (2, 3), "lo": (1, 0), "dilation": (1, 2)},
    {"x": (3, 3000, 4), "w": (9, 4, 24), "small": (1496,), "groups": 1,
     "strides": (2,), "lo": (0,), "dilation": (1,)},
    # items that are joined to blocks, fewer in the last one; rows of x that no whole step covers
    {"x": (23, 5, 7, 40), "w": (3, 2, 20, 70), "small": (3, 6), "groups": 2,
     "strides": (2, 1), "lo": (1, 0), "dilation": (1, 1)},
    # one axis, whose pixels are one step each or one step in all, in several runs
    {"x": (2, 700, 1, 16), "w": (3, 1, 16, 48), "small": (350, 1), "groups": 1,
     "strides": (2, 1), "lo": (1, 0), "dilation": (1, 1)},
    # a kernel so large that its gradient has no partial results
    {"x": (2, 6, 6, 200), "w": (3, 3, 200, 160), "small": (6, 6), "groups": 1,
     "strides": (1, 1), "lo": (1, 1), "dilation": (1, 1)},
    {"x": (20, 9, 9, 67), "w": (3, 3, 1, 67), "small": (9, 9), "groups": 67,
     "strides": (1, 1), "lo": (1, 1), "dilation": (1, 1)},
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["f32", "f64", "f16", "bf16"])
@pytest.mark.parametrize("case", BLOCKS, ids=lambda c: f"{c['x']} by {c['w']}")
def test_large_convolutions(case: dict[str, Any], dtype: str) -> None:
    for op, arrays, attrs in three(case, dtype):
        check(op, arrays, dtype, **attrs)


@pytest.mark.share(8)
@pytest.mark.parametrize("dtype", ["f32", "bf16", "i32"])
@pytest.mark.parametrize("case", BLOCKS[1:], ids=lambda c: f"{c['x']} by {c['w']}")
def test_bits_do_not_depend_on_cuts(case: dict[str, Any], dtype: str) -> None:
    limit = POOL.limit
    try:
        POOL.set_limit(16)
        for op, arrays, attrs in three(case, dtype):
            with pytest.MonkeyPatch.context() as patch:
                cut_everything(patch)
                step = compile_graph(graph_of(op, arrays, **attrs))
            whole = step.run(arrays)
            same_in_cuts(step, arrays, whole)
    finally:
        POOL.set_limit(limit)


def test_the_meaning_is_the_formula() -> None:
    """T(x, w, y) summed in Python, and each op as its derivative."""
    case = {
        "x": (2, 5, 4, 4), "w": (2, 3, 2, 6), "small": (3, 4), "groups": 2,
        "strides": (2, 1), "lo": (1, 2), "dilation": (2, 1),
    }  # fmt: skip
    (_, (x, w), attrs), (_, (y, _), to_x), (_, _, to_w) = three(case, "f64")
    total = np.zeros(())
    for n, a, b, i, j, c, o in product(*map(range, (2, 3, 4, 2, 3, 2, 6))):
        p, q = a * 2 + i * 2 - 1, b + j - 2
        if 0 <= p < 5 and 0 <= q < 4:
            total = total + x[n, p, q, o // 3 * 2 + c] * w[i, j, c, o] * y[n, a, b, o]
    for op, arrays, given_attrs, other in (
        ("conv", [x, w], attrs, y),
        ("conv_input", [y, w], to_x, x),
        ("conv_kernel", [x, y], to_w, w),
    ):
        (found,) = evaluate_op(op, arrays, given_attrs)
        np.testing.assert_allclose((found * other).sum(), total, rtol=1e-12)


@pytest.mark.parametrize("mode", ["SAME", "VALID"])
def test_against_scipy(mode: str) -> None:
    x, w = RNG.normal(size=(2, 9, 8, 3)), RNG.normal(size=(3, 5, 3, 4))
    wanted = np.zeros((2, *((9, 8) if mode == "SAME" else (7, 4)), 4))
    for n, c, o in product(range(2), range(3), range(4)):
        wanted[n, ..., o] += scipy.signal.correlate(x[n, ..., c], w[..., c, o], mode.lower())
    for f in (wf.nn.conv2d, wf.compile(wf.nn.conv2d, static_argnames="padding")):
        np.testing.assert_allclose(f(x, w, padding=mode), wanted, rtol=1e-12, atol=1e-12)


def test_sizes_of_results() -> None:
    """TensorFlow's: ceil(n / s) for SAME, ceil((n - window + 1) / s) for VALID."""
    w = np.ones((3, 2, 1, 5), np.float32)
    for n, s, d in product((4, 7, 10), (1, 2, 3), (1, 2)):
        x = np.ones((1, n, n, 1), np.float32)
        if s == 1 or d == 1:
            same = wf.nn.conv2d(x, w, s, "SAME", dilations=d)
            assert same.shape == (1, -(-n // s), -(-n // s), 5)
        if n > 2 * d:
            valid = wf.nn.conv2d(x, w, s, "VALID", dilations=d)
            assert valid.shape == (1, -(-(n - 2 * d) // s), -(-(n - d) // s), 5)
    padded = wf.nn.conv2d(np.ones((1, 5, 5, 1)), w, padding=((1, 2), (0, 3)))
    assert padded.shape == (1, 6, 7, 5)
    lists = wf.nn.conv2d(np.ones((1, 8, 8, 1)), w, [1, 2, 4, 1], "SAME", dilations=[1, 1, 1, 1])
    assert lists.shape == (1, 4, 2, 5)
    # the odd element of SAME comes after
    edge = wf.nn.conv1d(
        np.arange(1.0, 5)[None, :, None], np.array([1.0, 10])[:, None, None], 1, "SAME"
    )
    np.testing.assert_array_equal(np.asarray(edge)[0, :, 0], [21, 32, 43, 4])


def test_channels_first_is_the_same_convolution() -> None:
    x, w = RNG.normal(size=(2, 7, 6, 4)), RNG.normal(size=(3, 3, 2, 6))
    options = {"strides": [2, 1], "padding": "SAME", "groups": 2}
    last = wf.nn.conv2d(x, w, **options)
    first = wf.nn.conv2d(x.transpose(0, 3, 1, 2), w, **options, data_format="NCHW")
    np.testing.assert_allclose(np.asarray(first).transpose(0, 2, 3, 1), last)
    first = wf.nn.conv1d(x[:, 0].transpose(0, 2, 1), w[0], groups=2, data_format="NCW")
    np.testing.assert_allclose(
        np.asarray(first).transpose(0, 2, 1), wf.nn.conv(x[:, 0], w[0], groups=2)
    )
    transposed = wf.nn.conv2d_transpose(last, w, (7, 6), [2, 1], groups=2)
    first = wf.nn.conv2d_transpose(
        np.asarray(last).transpose(0, 3, 1, 2),
        w,
        (2, 4, 7, 6),
        [2, 1],
        groups=2,
        data_format="NCHW",
    )
    np.testing.assert_allclose(np.asarray(first).transpose(0, 2, 3, 1), transposed)


def test_depthwise_and_separable() -> None:
    x, w = RNG.normal(size=(2, 6, 5, 3)), RNG.normal(size=(3, 2, 3, 2))
    got = np.asarray(wf.nn.depthwise_conv2d(x, w, 1, "SAME"))
    for c, q in product(range(3), range(2)):
        alone = wf.nn.conv2d(x[..., c : c + 1], w[:, :, c : c + 1, q : q + 1], 1, "SAME")
        np.testing.assert_allclose(got[..., c * 2 + q], np.asarray(alone)[..., 0])
    mix = RNG.normal(size=(1, 1, 6, 4))
    separable = wf.nn.separable_conv2d(x, w, mix, 1, "SAME")
    np.testing.assert_allclose(separable, got @ mix[0, 0])


@pytest.mark.share(6)
@pytest.mark.parametrize("window", [2, 3, 5, 7, 8])
def test_depthwise_rows_of_taps(window: int) -> None:
    # Results side by side share what their taps see: forward and back, by stride and dilation.
    channels = 37  # vectors, and channels that fill none
    for dtype, stride, dilation in (("i32", 1, 1), *product(["f32"], (1, 2), (1, 2))):
        high, wide = 4 + window, dilation * (window - 1) + 11
        large, small = (2, high, wide, channels), (high - 2) // stride + 1
        result = (small, (wide - dilation * (window - 1) + 1) // stride + 1)
        x, w = numbers(large, dtype, 1), numbers((3, window, 1, channels), dtype, 2)
        dy = numbers((2, *result, channels), dtype, 3)
        attrs: dict[str, Any] = {"lo": (0, 1), "groups": channels}
        attrs |= {"strides": (stride, stride), "dilation": (1, dilation)}
        check("conv", [x, w], dtype, **attrs, size=result)
        check("conv_input", [dy, w], dtype, **attrs, size=large[1:3])


@pytest.mark.parametrize(
    ("strides", "padding", "output_shape"),
    [
        (2, "SAME", None),
        (2, "SAME", (2, 9, 9, 3)),
        (3, "VALID", None),
        ((2, 1), 1, None),
        (1, "SAME", None),
    ],
)
def test_transposed_convolution_is_the_adjoint(
    strides: Any, padding: Any, output_shape: Any
) -> None:
    y, w = RNG.normal(size=(2, 5, 5, 4)), RNG.normal(size=(3, 3, 3, 4))
    x = np.asarray(wf.nn.conv2d_transpose(y, w, output_shape, strides, padding))
    seen = RNG.normal(size=x.shape)
    forward = np.asarray(wf.nn.conv2d(seen, w, strides, padding))
    np.testing.assert_allclose((forward * y).sum(), (seen * x).sum())
    assert output_shape is None or x.shape == output_shape
    if output_shape is None and padding == "SAME":
        assert x.shape[1] == 5 * strides


def test_gradients_through_the_api() -> None:
    """Of a small network, eager and compiled, against finite differences."""
    x, w = RNG.normal(size=(2, 6, 6, 2)), RNG.normal(size=(3, 3, 2, 3))

    def loss(x: Any, w: Any) -> Any:
        hidden = wf.nn.max_pool(wf.tanh(wf.nn.conv2d(x, w, padding="SAME")), 2)
        return wf.sum(wf.nn.avg_pool(hidden, 2, 1, "SAME") ** 2)

    gradient = wf.grad(loss, argnums=(0, 1))
    direction = RNG.normal(size=x.shape), RNG.normal(size=w.shape)
    up, down = (float(loss(x + s * direction[0], w + s * direction[1])) for s in (1e-6, -1e-6))
    for g in (gradient(x, w), wf.compile(gradient)(x, w)):
        along = sum(float(np.sum(np.asarray(a) * b)) for a, b in zip(g, direction, strict=True))
        np.testing.assert_allclose(along, (up - down) / 2e-6, rtol=1e-6)


def test_another_batch_compiles_nothing() -> None:
    def step(x: Any, w: Any) -> Any:
        return wf.grad(lambda w: wf.sum(wf.nn.max_pool(wf.nn.conv2d(x, w, 1, "SAME"), 2) ** 2))(w)

    f, w = wf.compile(step), RNG.normal(size=(3, 3, 5, 20)).astype(np.float32)
    f(RNG.normal(size=(4, 16, 16, 5)).astype(np.float32), w)
    before = compile_count()
    f(RNG.normal(size=(7, 20, 24, 5)).astype(np.float32), w)
    assert compile_count() == before


ERRORS: dict[str, tuple[Any, type[Exception], str]] = {
    "channels": (
        lambda x: wf.nn.conv2d(x, np.ones((3, 3, 4, 8), np.float32)),
        wf.errors.ShapeError,
        r"x f32\[2,8,8,3\] has 3 channels, kernel f32\[3,3,4,8\] takes 4",
    ),
    "rank": (
        lambda x: wf.nn.conv1d(x, np.ones((3, 3, 8), np.float32)),
        wf.errors.ShapeError,
        r"x must have 1 spatial axes",
    ),
    "kernel": (
        lambda x: wf.nn.conv2d(x, np.ones((3, 3, 8), np.float32)),
        wf.errors.ShapeError,
        r"kernel f32\[3,3,8\] must have 4 axes",
    ),
    "window": (
        lambda x: wf.nn.conv2d(x, np.ones((9, 3, 3, 8), np.float32)),
        wf.errors.ShapeError,
        "axis 0 the window reaches over 9 elements, the input has 8",
    ),
    "padding": (
        lambda x: wf.nn.conv2d(x, np.ones((3, 3, 3, 8), np.float32), padding="FULL"),
        wf.errors.InvalidArgumentError,
        "padding 'FULL' is unknown",
    ),
    "stride": (
        lambda x: wf.nn.conv2d(x, np.ones((3, 3, 3, 8), np.float32), 0),
        wf.errors.InvalidArgumentError,
        "strides must be at least 1, got 0",
    ),
    "groups": (
        lambda x: wf.nn.conv2d(x, np.ones((3, 3, 3, 8), np.float32), groups=2),
        wf.errors.InvalidArgumentError,
        "groups=2 does not divide 3 channels in",
    ),
    "format": (
        lambda x: wf.nn.conv2d(x, np.ones((3, 3, 3, 8), np.float32), data_format="NWC"),
        wf.errors.InvalidArgumentError,
        "data_format 'NWC' is unknown",
    ),
    "transposed": (
        lambda x: wf.nn.conv2d_transpose(x, np.ones((3, 3, 8, 3), np.float32), (8, 30), 2),
        wf.errors.ShapeError,
        r"spatial sizes \[8, 30\] does not fit x f32\[2,8,8,3\]",
    ),
    "transposed channels": (
        lambda x: wf.nn.conv2d_transpose(x, np.ones((3, 3, 8, 3), np.float32), (2, 16, 16, 3), 2),
        wf.errors.ShapeError,
        r"output_shape \[2, 16, 16, 3\] has 3 for the channels, the result has 8",
    ),
    "pooling_type": (
        lambda x: wf.nn.pool(x, 2, "MEDIAN"),
        wf.errors.InvalidArgumentError,
        "pooling_type 'MEDIAN' is unknown",
    ),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors_name_the_user_s_line(name: str) -> None:
    call, kind, text = ERRORS[name]
    for f in (call, wf.compile(call)):
        with pytest.raises(kind, match=text) as caught:
            f(np.ones((2, 8, 8, 3), np.float32))
        assert "test_conv.py" in str(caught.value)


@pytest.mark.share(6)
@pytest.mark.parametrize("dtype", ["f32", "f64", "bf16"])
@pytest.mark.parametrize("case", [*BLOCKS[:5], "1x1"], ids=str)
def test_what_follows_a_convolution_joins_it(case: Any, dtype: str) -> None:
    """Bias, ReLU and a residual in the blocks of conv and conv_input (f32, f64), in any cuts."""
    if case == "1x1":
        ones, zeros = (1, 1), (0, 0)
        case = {"x": (2, 19, 7, 20), "w": (1, 1, 20, 24), "small": (19, 7), "groups": 1,
                "strides": ones, "lo": zeros, "dilation": ones}  # fmt: skip
    for op, (a, w), attrs in three(case, dtype)[:2]:
        (made,) = evaluate_op(op, [a, w], attrs)
        arrays = [a, w, numbers(made.shape[-1:], dtype, 4), numbers(made.shape, dtype, 5)]
        builder = Builder([type_of(x) for x in arrays])
        x, k, bias, other = builder.args
        y = builder.emit1(op, x, k, **attrs)
        y = builder.emit1("add", y, builder.emit1("broadcast_to", bias, shape=made.shape))
        y = builder.emit1("multiply", builder.emit1("tanh", y), other)
        graph = builder.graph("g", list("abcd"), [y])
        begins = [o.regions[0].ops[0].name for o in fuse_matmul(fuse(graph)).ops if o.regions]
        assert begins == ([op] if dtype != "bf16" else ["broadcast_to"])
        limit = POOL.limit
        try:
            POOL.set_limit(16)
            with pytest.MonkeyPatch.context() as patch:
                cut_everything(patch)
                step = compile_graph(graph)
            (whole,), (wanted,) = step.run(arrays), interpret(graph, arrays)
            tolerance = 0.05 if dtype == "bf16" else 2e-3 if dtype == "f32" else 1e-9
            wide = np.float64
            np.testing.assert_allclose(
                whole.astype(wide), wanted.astype(wide), rtol=tolerance, atol=tolerance
            )
            same_in_cuts(step, arrays, [whole])
        finally:
            POOL.set_limit(limit)
