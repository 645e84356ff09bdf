"""`quantized_matmul`: its kernels for each instruction set, and where passes make it; products of
two quantised operands in integers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from cut_calls import check_cuts, step_of
from example_counts import examples
from hypothesis import given
from hypothesis import strategies as st

import weft as wf
from weft.codegen.llvm.target import host_isas
from weft.ir.dtypes import as_dtype
from weft.ir.errors import ShapeError, TypeRuleError
from weft.ir.graph import Graph
from weft.ir.interpreter.evaluate import interpret
from weft.ir.ops.builder import Builder
from weft.ir.types import TensorType

Array = np.ndarray[Any, Any]
Q = wf.quantization


def drawn(seed: int, sizes: tuple[int, ...], bits: int, dtype: str) -> list[Array]:
    """x, weights, scale, for sizes m, n, groups, run."""
    rng = np.random.default_rng(seed)
    m, n, groups, run = sizes
    x = rng.standard_normal((m, groups * run), dtype=np.float32)
    held = (n, groups * run * bits // 8)
    low, high = (-128, 128) if dtype == "int8" else (0, 256)
    weights = rng.integers(low, high, held).astype(dtype)
    return [x, weights, rng.random((n, groups), dtype=np.float32)]


def one_op(arrays: list[Array], **attrs: Any) -> Graph:
    b = Builder([TensorType(as_dtype(str(x.dtype)), x.shape) for x in arrays])
    return b.graph("product", ["x", "w", "scale"], b.emit("quantized_matmul", b.args, attrs))


def exact(arrays: list[Array], bits: int, zero: int, signed: bool) -> tuple[Array, Array]:
    """The product in float64, and what its terms add up to without their signs."""
    x, weights, scale = arrays
    if bits == 4:
        halves = np.stack([weights & 15, weights >> 4], -1).reshape(len(weights), -1).astype(int)
        weights = np.where(halves > 7, halves - 16, halves) if signed else halves
    run = x.shape[1] // scale.shape[1]
    w = (weights.astype(float) - zero) * np.repeat(scale.astype(float), run, 1)
    return x.astype(float) @ w.T, np.abs(x.astype(float)) @ np.abs(w).T


@given(
    seed=st.integers(0, 2**16),
    m=st.integers(0, 20),
    n=st.integers(1, 40),
    groups=st.integers(1, 5),
    run=st.integers(1, 4),
    kind=st.sampled_from([(8, "int8", False), (8, "uint8", False), (4, "uint8", False),
                          (4, "uint8", True)]),
    zero=st.sampled_from([0, 8, -1, 128]),
    isa=st.sampled_from(host_isas() or ("native",)),
)  # fmt: skip
@examples(150)
def test_kernels(
    seed: int, m: int, n: int, groups: int, run: int, kind: tuple[int, str, bool], zero: int,
    isa: str,
) -> None:  # fmt: skip
    bits, dtype, signed = kind
    size = 16 * run if bits == 8 else 32 * (run if groups == 1 else 1 << run % 3)
    arrays = drawn(seed, (m, n, groups, size), bits, dtype)
    graph = one_op(arrays, bits=bits, zero=zero, signed=signed)
    (got,) = step_of(graph, isa).run(arrays)
    want, size_of_terms = exact(arrays, bits, zero, signed)
    assert np.all(np.abs(got - want) <= 4e-6 * size_of_terms + 1e-30)
    (read,) = interpret(graph, arrays)
    assert np.all(np.abs(read - want) <= 4e-6 * size_of_terms + 1e-30)


@pytest.mark.share(2)
@pytest.mark.parametrize(("m", "bits"), [(1, 8), (1, 4), (5, 8), (3, 4), (40, 4), (120, 8)])
def test_bits_do_not_depend_on_cuts(m: int, bits: int) -> None:
    arrays = drawn(1, (m, 300, 4, 64), bits, "uint8" if bits == 4 else "int8")
    check_cuts(one_op(arrays, bits=bits, zero=bits), arrays)


def test_infinities_and_nan_stay_in_their_row() -> None:
    x, weights, scale = drawn(2, (3, 5, 2, 32), 4, "uint8")
    x[0, 3], x[1, 60] = np.nan, np.inf
    (got,) = step_of(one_op([x, weights, scale], bits=4, zero=8), "native").run([x, weights, scale])
    assert np.isnan(got[0]).all()
    assert not np.isfinite(got[1]).any()
    assert np.isfinite(got[2]).all()


@pytest.mark.parametrize(
    ("shapes", "attrs", "error", "message"),
    [
        (((2, 48), (3, 24), (3, 1)), {"bits": 4}, ShapeError, "32 times a power of two"),
        (((2, 96), (3, 48), (3, 2)), {"bits": 4}, ShapeError, "32 times a power of two"),
        (((2, 32), (3, 16), (2, 1)), {"bits": 4}, ShapeError, "do not fit"),
        (((2, 32), (3, 32), (3, 1)), {"bits": 2}, TypeRuleError, "8 or 4 bits, not 2"),
        (((1, 2, 32), (3, 32), (3, 1)), {}, ShapeError, "takes matrices"),
    ],
)
def test_what_the_op_refuses(shapes: Any, attrs: Any, error: Any, message: str) -> None:
    dtypes = (wf.float32, wf.uint8, wf.float32)
    b = Builder([TensorType(d, s) for d, s in zip(dtypes, shapes, strict=True)])
    with pytest.raises(error, match=message):
        b.emit("quantized_matmul", b.args, attrs)


# -------------------------------------------------------------------------------- where passes
def signed_halves(x: Any, q: Any, s: Any) -> Any:
    return x @ Q.dequantize_linear(Q.unpack_int4(q), s, axis=1, block_size=32).T


def unsigned_halves(x: Any, q: Any, s: Any) -> Any:
    halves = Q.unpack_int4(q, signed=False)
    return wf.matmul(x, Q.dequantize_linear(halves, s, 8, axis=1, block_size=32), transpose_b=True)


def of_bytes(x: Any, q: Any, s: Any) -> Any:
    return x @ Q.dequantize_linear(q, s[:, 0], axis=0).T


def one_scale(x: Any, q: Any, s: Any) -> Any:
    return x @ Q.dequantize_linear(q, s[0, 0], np.uint8(3)).T


def by_rows(x: Any, q: Any, s: Any) -> Any:  # no kernel for columns that are far apart
    return x @ Q.dequantize_linear(q.T, s[:, 0], axis=1)[:, ::1]


def zero_of_each(x: Any, q: Any, s: Any) -> Any:
    return x @ Q.dequantize_linear(q, s[:, 0], q[:, 0], axis=0).T


FORMS: list[tuple[Callable[..., Any], int, int]] = [
    (signed_halves, 4, 1), (unsigned_halves, 4, 1), (of_bytes, 8, 1), (one_scale, 8, 1),
    (by_rows, 8, 0), (zero_of_each, 8, 0),
]  # fmt: skip


@pytest.mark.share(6)
@pytest.mark.parametrize(("f", "bits", "count"), FORMS, ids=lambda v: getattr(v, "__name__", None))
@pytest.mark.parametrize("lead", [(), (1,), (2, 3), (40,)], ids=str)
def test_dequantised_weights(
    f: Callable[..., Any], bits: int, count: int, lead: tuple[int, ...]
) -> None:
    x, q, s = drawn(3, (1, 7, 4, 32), bits, "uint8")
    x = np.random.default_rng(4).standard_normal((*lead, 128)).astype(np.float32)
    compiled = wf.compile(f)
    np.testing.assert_allclose(compiled(x, q, s).numpy(), f(x, q, s).numpy(), rtol=2e-5, atol=2e-3)
    assert compiled.ir(x, q, s).count("= quantized_matmul(") == count


def test_constants_are_not_dequantised_ahead() -> None:
    q, s = drawn(5, (1, 128, 1, 128), 8, "int8")[1:]
    compiled = wf.compile(lambda x: of_bytes(x, q, s))
    text = compiled.ir(wf.TensorType(wf.float32, (1, 128)))
    assert "value=i8[128,128]" in text
    assert "value=f32[128,128]" not in text


@pytest.mark.parametrize("block", [None, 32])
@pytest.mark.parametrize("zero", [0, 7])
def test_constants_by_rows_are_turned_for_few_rows(block: int | None, zero: int) -> None:
    rng = np.random.default_rng(8)
    q = rng.integers(-128, 128, (64, 24)).astype(np.int8)
    scale = rng.random(24 if block is None else (2, 24)).astype(np.float32)

    def f(x: Any) -> Any:
        axis = 1 if block is None else 0
        return x @ Q.dequantize_linear(q, scale, np.int8(zero), axis=axis, block_size=block)

    compiled = wf.compile(f)
    spread = scale if block is None else np.repeat(scale, 32, 0)
    dense = (q.astype(float) - zero) * spread
    for m in (1, 8, 9):
        x = rng.standard_normal((m, 64)).astype(np.float32)
        np.testing.assert_allclose(compiled(x).numpy(), x @ dense, rtol=1e-4, atol=1e-2)
        assert compiled.ir(x).count("= quantized_matmul(") == (m <= 8)


def test_the_largest_sums_do_not_wrap() -> None:
    depth = 1 << 15
    a, b = np.zeros((9, depth), np.uint8), np.zeros((depth, 2), np.uint8)

    def f(a: Any, b: Any, za: Any) -> Any:
        left = Q.dequantize_linear(a, 1.0, np.uint8(255))
        return left @ Q.dequantize_linear(b, 1.0, np.uint8(za))

    for za, want in ((255, 255 * 255 * depth), (0, 0)):
        compiled = wf.compile(lambda a, b, za=za: f(a, b, za))
        assert "i32[9,2]" in compiled.ir(a, b)
        np.testing.assert_array_equal(compiled(a, b).numpy(), np.float32(want))


def test_zeros_that_no_byte_holds_stay_in_floats() -> None:
    a, b = np.full((16, 16), 100, np.int8), np.full((16, 16), 3, np.int8)
    f = wf.compile(lambda a, b: Q.dequantize_linear(a, 0.5, 300.0) @ Q.dequantize_linear(b, 0.5))
    assert "i32" not in f.ir(a, b)
    np.testing.assert_array_equal(f(a, b).numpy(), -2400.0)


def test_open_sizes_choose_by_the_number_of_rows() -> None:
    x, q, s = drawn(6, (50, 9, 1, 64), 8, "int8")
    f = wf.compile(of_bytes, input_signature=[wf.TensorType(wf.float32, ("m", 64)),
                                              wf.TensorType(wf.int8, (9, 64)),
                                              wf.TensorType(wf.float32, (9, 1))])  # fmt: skip
    for m in (1, 2, 8, 9, 50, 3):
        np.testing.assert_allclose(f(x[:m], q, s).numpy(), of_bytes(x[:m], q, s).numpy(),
                                   rtol=1e-5, atol=1e-3)  # fmt: skip


def test_a_variable_that_is_written_meanwhile() -> None:
    x, q, s = drawn(7, (2, 5, 1, 64), 8, "int8")
    w = wf.Variable(q, trainable=False)

    @wf.compile
    def step(x: Any) -> Any:
        y = of_bytes(x, w.read(), s)
        w.assign(w.read() * 0)
        return y

    want = of_bytes(x, q, s).numpy()
    np.testing.assert_allclose(step(x).numpy(), want, rtol=1e-5, atol=1e-3)
    assert not w.numpy().any()


# -------------------------------------------------------------------------- products of integers
@given(
    seed=st.integers(0, 2**16),
    m=st.integers(1, 40),
    k=st.integers(1, 70),
    n=st.integers(1, 20),
    x_dtype=st.sampled_from([wf.int8, wf.uint8]),
    w_dtype=st.sampled_from([wf.int8, wf.uint8]),
    zeros=st.tuples(st.integers(-100, 100), st.integers(0, 100)),
    form=st.sampled_from(["per tensor", "per column", "per row", "zero per row"]),
    turned=st.booleans(),
    constant=st.booleans(),
)
@examples(12)
def test_quantised_operands(
    seed: int, m: int, k: int, n: int, x_dtype: Any, w_dtype: Any, zeros: tuple[int, int],
    form: str, turned: bool, constant: bool,
) -> None:  # fmt: skip
    """Exact sums, so within roundings of float32 of the product in float64."""
    rng = np.random.default_rng(seed)
    a, b = (
        rng.integers(*((-128, 128) if d is wf.int8 else (0, 256)), size).astype(d.numpy)
        for d, size in ((x_dtype, (m, k)), (w_dtype, (k, n)))
    )
    za = np.array(zeros[0] if x_dtype is wf.int8 else abs(zeros[0]), x_dtype.numpy)
    zb = np.array(zeros[1], w_dtype.numpy)
    sa, sb = np.float32(0.013), np.float32(0.7)
    if form == "zero per row":
        za = rng.integers(0, 100, m).astype(x_dtype.numpy)
    if form in ("per row", "zero per row"):
        sa = rng.random(m, dtype=np.float32) + np.float32(0.1)
    if form == "per column":
        sb = rng.random(n, dtype=np.float32) + np.float32(0.1)

    def f(a: Any, b: Any) -> Any:
        x = Q.dequantize_linear(a, sa, np.broadcast_to(za, m) if np.ndim(sa) else za,
                                axis=0 if np.ndim(sa) else None)  # fmt: skip
        if turned:
            w = Q.dequantize_linear(b.T, sb, zb, axis=0 if np.ndim(sb) else None)
            return wf.matmul(x, w, transpose_b=True)
        return x @ Q.dequantize_linear(b, sb, zb, axis=1 if np.ndim(sb) else None)

    given_arrays = [a] if constant else [a, b]
    compiled = wf.compile((lambda a: f(a, wf.asarray(b))) if constant else f)
    got = compiled(*given_arrays).numpy()
    left = (a - za.astype(float).reshape(-1, 1)) * np.reshape(sa, (-1, 1)).astype(float)
    right = (b - zb.astype(float)) * sb.astype(float)
    want, terms = left @ right, np.abs(left) @ np.abs(right)
    folded = constant and k * n <= 256  # so few are floats in the plan
    if m > 8 and k > 1 and n > 1 and not folded:
        assert "i32" in compiled.ir(*given_arrays)
        assert np.all(np.abs(got - want) <= 4e-7 * np.abs(want) + 1e-30)  # exact sums
    assert np.all(np.abs(got - want) <= 1e-5 * terms + 1e-30)


def test_a_quantised_layer_hands_bytes_to_the_next() -> None:
    rng = np.random.default_rng(8)
    w = rng.integers(-127, 128, (64, 64)).astype(np.int8)
    step, small = 2.0**-5, 2.0**-9  # so that float32 is exact, too

    def layer(x: Any) -> Any:
        q = Q.quantize_linear(x, step, 5)
        x = Q.dequantize_linear(q, step, np.int8(5))
        return wf.nn.relu(x @ Q.dequantize_linear(w, small).T)

    x = rng.standard_normal((32, 64)).astype(np.float32)
    compiled = wf.compile(lambda x: layer(layer(layer(x))))
    np.testing.assert_array_equal(compiled(x).numpy(), layer(layer(layer(x))).numpy())
    kernels = [line for line in compiled.ir(x).splitlines() if line.startswith("  %")]
    made = [line.split(" {")[0] for line in kernels if "matmul" in line]
    assert [line.count("i8[32,64]") for line in kernels if "matmul" in line] == [1, 1, 0], made


CONVOLUTIONS = [(3, 1, 1, "SAME"), (3, 2, 1, "SAME"), (2, 1, 2, "VALID"), (1, 2, 1, "SAME")]


@pytest.mark.parametrize(("size", "stride", "dilation", "padding"), CONVOLUTIONS)
@pytest.mark.parametrize("constant", [False, True])
def test_convolutions_in_integers(
    size: int, stride: int, dilation: int, padding: str, constant: bool
) -> None:
    """Beside the convolution of what the bytes stand for, in float64."""
    rng = np.random.default_rng(size)
    x = rng.integers(0, 256, (2, 9, 8, 64)).astype(np.uint8)
    w = rng.integers(-127, 128, (size, size, 64, 65)).astype(np.int8)
    scale = rng.random(65).astype(np.float32) + np.float32(0.1)
    how: dict[str, Any] = {"strides": stride, "dilations": dilation, "padding": padding}

    def f(x: Any, w: Any) -> Any:
        held = Q.dequantize_linear(w, scale, axis=-1)
        return wf.nn.conv2d(Q.dequantize_linear(x, 0.5, 130), held, **how) + 1.0

    compiled = wf.compile((lambda x: f(x, w)) if constant else f)
    given_arrays = [x] if constant else [x, w]
    text = compiled.ir(*given_arrays)
    assert "matmul(" in text
    assert "= conv(" not in text
    want = wf.nn.conv2d((x.astype(float) - 130) * 0.5, w * scale.astype(float), **how) + 1.0
    got = compiled(*given_arrays).numpy()
    np.testing.assert_allclose(got, want.numpy(), rtol=1e-6, atol=1e-3)


def test_convolutions_of_few_channels_stay() -> None:
    x, w = np.ones((2, 5, 5, 8), np.int8), np.ones((3, 3, 8, 64), np.int8)
    f = wf.compile(
        lambda x, w: wf.nn.conv2d(Q.dequantize_linear(x, 0.5), Q.dequantize_linear(w, 0.5))
    )
    assert "conv" in f.ir(x, w)
    np.testing.assert_array_equal(f(x, w).numpy().max(), 8 * 9 * 0.25)
