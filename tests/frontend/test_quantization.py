"""`wf.quantization`: numbers of few bits against NumPy and ONNX's reference evaluator, gradients
straight through, weights, and functions that `quantize` makes."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from example_counts import examples
from hypothesis import given
from hypothesis import strategies as st

import weft as wf
from weft.frontend.quantization.calibration import Observer, scale_and_zero

Array = np.ndarray[Any, Any]
Q = wf.quantization
InvalidArgumentError, NotFoundError = wf.errors.InvalidArgumentError, wf.errors.NotFoundError
ShapeError, TypeRuleError = wf.errors.ShapeError, wf.errors.TypeRuleError
HELD = {"int8": wf.int8, "uint8": wf.uint8, "int16": wf.int16, "uint16": wf.uint16}


def spread(given: Array, shape: tuple[int, ...], axis: int | None, block: int | None) -> Array:
    """A scale or zero point for each element, by NumPy."""
    if given.ndim == 0 or axis is None:
        return np.broadcast_to(given, shape)
    if block is not None:
        return np.repeat(given, block, axis)
    return np.broadcast_to(given.reshape([-1 if i == axis % len(shape) else 1
                                          for i in range(len(shape))]), shape)  # fmt: skip


@given(
    data=st.data(),
    shape=st.sampled_from([(), (0,), (7,), (2, 6), (3, 0, 4), (2, 4, 6)]),
    held=st.sampled_from(sorted(HELD)),
    seed=st.integers(0, 2**16),
)
@examples(150)
def test_linear_against_numpy(data: st.DataObject, shape: Any, held: str, seed: int) -> None:
    rng, dtype = np.random.default_rng(seed), HELD[held]
    axis = data.draw(st.none() | st.integers(-len(shape), len(shape) - 1)) if shape else None
    block = data.draw(st.sampled_from([None, 1, 2])) if axis is not None else None
    if axis is not None and block is not None and shape[axis] % block:
        block = None
    sizes: tuple[int, ...] = () if axis is None else (shape[axis],)
    if axis is not None and block is not None:
        at = axis % len(shape)
        sizes = (*shape[:at], shape[at] // block, *shape[at + 1 :])
    bits = data.draw(st.sampled_from([None, 2, 4, dtype.bits]))
    narrow = data.draw(st.booleans())
    info = np.iinfo(dtype.numpy)
    low, high = int(info.min), int(info.max)
    if bits is not None:
        low, high = low >> dtype.bits - bits, high >> dtype.bits - bits
    low += narrow
    scale = np.asarray(rng.random(sizes) + 0.05, np.float32)
    zero = np.asarray(rng.integers(low, high + 1, sizes), dtype.numpy)
    x = (rng.standard_normal(shape) * 10.0 ** rng.integers(-1, 4)).astype(np.float32)
    x = np.where(rng.random(shape) < 0.1, rng.choice([np.nan, np.inf, -np.inf, 0.0]), x)
    x = np.asarray(x, np.float32)
    s, z = (spread(v, shape, axis, block) for v in (scale, zero))
    steps = np.rint(x / s)
    want = np.clip(np.where(np.isnan(steps), 0, steps).astype(np.float64) + z, low, high)
    how: dict[str, Any] = {"axis": axis, "block_size": block}
    few: dict[str, Any] = {"dtype": dtype, "bits": bits, "narrow_range": narrow}

    def quantized(x: Any, scale: Any, zero: Any) -> Any:
        return Q.quantize_linear(x, scale, zero, **few, **how)

    for run in (quantized, wf.compile(quantized)):
        got = run(x, scale, zero)
        assert got.dtype is dtype
        np.testing.assert_array_equal(got.numpy(), want.astype(dtype.numpy))
    back = Q.dequantize_linear(got, scale, zero, **how).numpy()
    exact = (got.numpy().astype(np.float32) - z.astype(np.float32)) * s
    np.testing.assert_array_equal(back, exact.astype(np.float32))
    with np.errstate(invalid="ignore"):
        fake = Q.fake_quantize(x, scale, zero, **few, **how).numpy()
    np.testing.assert_array_equal(fake, np.where(np.isnan(x), np.float32(np.nan), exact))


@pytest.mark.parametrize("kind", ["INT8", "UINT8", "INT16", "UINT16", "INT4", "UINT4"])
@pytest.mark.parametrize(("axis", "block"), [(None, None), (1, None), (1, 3)])
def test_linear_against_onnx(kind: str, axis: int | None, block: int | None) -> None:
    onnx = pytest.importorskip("onnx")
    reference = pytest.importorskip("onnx.reference")
    rng, helper = np.random.default_rng(9), onnx.helper
    x = (rng.standard_normal((4, 6)) * 20).astype(np.float32)
    x[0] = [0.5, 1.5, 2.5, -0.5, -1.5, -2.5]  # ties
    size = () if axis is None else (6,) if block is None else (4, 2)
    scale = np.ones(size, np.float32) if axis is None else rng.random(size).astype(np.float32) + 0.5
    signed, bits = kind.startswith("INT"), int(kind.removeprefix("U").removeprefix("INT"))
    dtype = HELD[f"{'' if signed else 'u'}int{max(bits, 8)}"]
    zero = np.full(size, 2, dtype.numpy)
    element = getattr(onnx.TensorProto, kind)
    attributes: dict[str, Any] = {} if axis is None else {"axis": axis}
    attributes |= {} if block is None else {"block_size": block}
    point = helper.make_tensor("z", element, size, zero.reshape(-1).tolist())
    graph = helper.make_graph(
        [helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"], **attributes),
         helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"], **attributes)],
        "g", [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, x.shape),
              helper.make_tensor_value_info("s", onnx.TensorProto.FLOAT, size)],
        [helper.make_tensor_value_info("q", element, x.shape),
         helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, x.shape)], [point],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)])
    q, y = reference.ReferenceEvaluator(model).run(None, {"x": x, "s": scale})
    got = Q.quantize_linear(x, scale, zero, dtype=dtype, bits=bits, axis=axis, block_size=block)
    np.testing.assert_array_equal(got.numpy(), np.asarray(q).astype(dtype.numpy))
    back = Q.dequantize_linear(got, scale, zero, axis=axis, block_size=block)
    np.testing.assert_array_equal(back.numpy(), y)


@given(
    seed=st.integers(0, 2**16), lead=st.sampled_from([(), (3,), (2, 0)]), pairs=st.integers(0, 9)
)
@examples(30)
def test_pairs_of_four_bits(seed: int, lead: tuple[int, ...], pairs: int) -> None:
    rng = np.random.default_rng(seed)
    for signed, dtype in ((True, np.int8), (False, np.uint8)):
        q = rng.integers(*((-8, 8) if signed else (0, 16)), (*lead, 2 * pairs)).astype(dtype)
        packed = Q.pack_int4(q)
        low, high = q[..., ::2].astype(int) & 15, q[..., 1::2].astype(int) & 15
        np.testing.assert_array_equal(packed.numpy(), (low | high << 4).astype(np.uint8))
        for unpack in (Q.unpack_int4, wf.compile(lambda p, s=signed: Q.unpack_int4(p, signed=s))):
            back = unpack(packed, signed=signed) if unpack is Q.unpack_int4 else unpack(packed)
            np.testing.assert_array_equal(back.numpy(), q)
            assert back.numpy().dtype == dtype


def test_the_gradient_goes_straight_through() -> None:
    x = wf.asarray([0.3, -1.3, 9.0, -9.0, np.nan, 3.5, -4.0])
    got = wf.grad(lambda x: wf.sum(Q.fake_quantize(x, 0.5, bits=4)))(x)
    np.testing.assert_array_equal(got.numpy(), [1, 1, 0, 0, 0, 1, 1])


def test_the_gradient_of_a_scale_is_that_of_lsq() -> None:
    x, s = wf.asarray([0.3, -1.3, 9.0, -9.0]), wf.asarray(0.5)
    got = wf.grad(
        lambda s: wf.sum(Q.fake_quantize(x, s, bits=4) * wf.asarray([1.0, 10, 100, 1000]))
    )(s)
    ratio = np.array([0.6, -2.6])
    inside = np.rint(ratio) - ratio
    want = inside[0] + 10 * inside[1] + 100 * 7 + 1000 * -8
    assert math.isclose(float(got), want, rel_tol=1e-5)


def test_fake_quantize_in_training_and_other_transforms() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((64, 8)).astype(np.float32), rng.standard_normal((64, 1))
    w = wf.Variable(rng.standard_normal((8, 1)).astype(np.float32) * 0.1)
    optimizer = wf.train.GradientDescentOptimizer(0.1)

    @wf.compile
    def step() -> Any:
        loss = wf.mean((x @ Q.fake_quantize(w, 0.02) - y.astype(np.float32)) ** 2)
        optimizer.minimize(loss, var_list=[w])
        return loss

    first = float(step())
    for _ in range(30):
        last = float(step())
    assert last < first
    f = lambda x: Q.fake_quantize(x, 0.25, bits=4)  # noqa: E731
    v = wf.asarray(rng.standard_normal((3, 5)).astype(np.float32))
    np.testing.assert_array_equal(wf.vmap(f)(v).numpy(), f(v).numpy())
    _, tangent = wf.jvp(f, (v,), (wf.ones_like(v),))
    np.testing.assert_array_equal(tangent.numpy(), (np.abs(v.numpy()) < 1.75).astype(np.float32))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: Q.quantize_linear([1.0], 1.0, dtype=wf.int32), TypeRuleError, "not int32"),
        (lambda: Q.quantize_linear([1.0], 1.0, bits=9), InvalidArgumentError, "2 to 8 bits, not 9"),
        (lambda: Q.quantize_linear([1j], 1.0), TypeRuleError, "real numbers"),
        (lambda: Q.quantize_linear([1.0, 2.0], [1.0, 2.0]), ShapeError, "with axis="),
        (lambda: Q.quantize_linear([1.0, 2.0], [1.0], axis=0), ShapeError, r"or \[2\]"),
        (lambda: Q.quantize_linear([1.0, 2.0], 1.0, block_size=2), InvalidArgumentError, "axis="),
        (lambda: Q.quantize_linear([1.0] * 3, 1.0, axis=0, block_size=2), InvalidArgumentError,
         "blocks of 2"),
        (lambda: Q.dequantize_linear([1.0], 1.0), TypeRuleError, "integers become floats"),
        (lambda: Q.dequantize_linear([1], 1.0, "a"), TypeRuleError, "zero point is a number"),
        (lambda: Q.pack_int4(np.zeros(3, np.int8)), ShapeError, "no whole pairs"),
        (lambda: Q.pack_int4(np.zeros(2, np.int32)), TypeRuleError, "int8 or uint8"),
        (lambda: Q.unpack_int4(np.zeros(2, np.int8)), TypeRuleError, "takes uint8"),
        (lambda: Q.quantize_weights(np.zeros((2, 2, 2), np.float32)), ShapeError, "a matrix"),
        (lambda: Q.quantize_weights(wf.eye(32), bits=3), InvalidArgumentError, "4 bits, not 3"),
        (lambda: Q.quantize_weights(wf.eye(96), bits=4, block_size=96), InvalidArgumentError,
         "32, 64, 128"),
        (lambda: Q.quantize_weights([[1j]]), TypeRuleError, "quantize_weights: w is of real"),
        (lambda: Q.matmul([[1j]], Q.quantize_weights(wf.eye(1))), TypeRuleError, "x is of real"),
        (lambda: Q.matmul(wf.ones((2, 3)), wf.eye(3)), TypeRuleError, "QuantizedMatrix"),
        (lambda: Q.matmul(wf.ones((2, 3)), Q.quantize_weights(wf.eye(4))), ShapeError, "not fit"),
    ],
)  # fmt: skip
def test_errors(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message) as caught:
        call()
    assert "test_quantization.py" in str(caught.value)


# -------------------------------------------------------------------------------------- weights
@pytest.mark.share(2)
@pytest.mark.parametrize(
    ("k", "n", "bits", "block"),
    [(64, 9, 8, None), (100, 5, 8, None), (100, 7, 4, None), (96, 3, 8, 32), (1, 1, 4, None),
     (256, 6, 4, 128)],
)  # fmt: skip
def test_matrices(k: int, n: int, bits: int, block: int | None) -> None:
    rng = np.random.default_rng(k)
    w = rng.standard_normal((k, n)).astype(np.float32)
    w[:, 0] = 0.0
    q = Q.quantize_weights(w, bits=bits, block_size=block)
    size = q.block_size
    assert (q.shape, q.dtype, size % 16) == ((k, n), wf.float32, 0)
    back = q.dequantize().numpy()
    blocks = np.pad(np.abs(w), ((0, -k % size), (0, 0))).reshape(-1, size, n).max(1)
    most = np.repeat(blocks, size, 0)[:k]  # the largest number of each block
    if bits == 8:
        assert np.all(np.abs(back - w) <= most / 254 * (1 + 1e-5))
    else:  # clipped by at most 30 %
        plain = np.rint(w / np.where(most > 0, most / 7, 1)) * most / 7
        assert ((back - w) ** 2).sum() <= ((plain - w) ** 2).sum() * (1 + 1e-5)
    assert not back[:, 0].any()
    for lead in [(), (1,), (2, 3), (20,)]:
        x = rng.standard_normal((*lead, k)).astype(np.float32)
        for run in (Q.matmul, wf.compile(Q.matmul)):
            np.testing.assert_allclose(run(x, q).numpy(), x @ back, rtol=1e-4, atol=1e-4 * k**0.5)
    x16 = wf.astype(wf.ones((2, k)), wf.bfloat16)
    assert Q.matmul(x16, q).dtype is wf.bfloat16
    leaves = wf.tree_leaves(q)
    assert sum(np.asarray(leaf).nbytes for leaf in leaves) == q.nbytes


def test_gradients_with_respect_to_x_and_scale() -> None:
    rng = np.random.default_rng(1)
    x = wf.asarray(rng.standard_normal((3, 32)).astype(np.float32))
    q = Q.quantize_weights(rng.standard_normal((32, 4)).astype(np.float32))
    dense = q.dequantize()
    got = wf.compile(lambda x: wf.grad(lambda x: wf.sum(Q.matmul(x, q) ** 2))(x))(x)
    want = wf.grad(lambda x: wf.sum((x @ dense) ** 2))(x)
    np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=1e-4)


# ------------------------------------------------------------------------------------ functions
def scaled(rng: np.random.Generator, *shape: int) -> Array:
    return (rng.standard_normal(shape) / math.sqrt(shape[0])).astype(np.float32)


def mlp() -> tuple[Any, Array, Any]:
    """A function, inputs, and its type."""
    rng = np.random.default_rng(3)
    w1, b1 = wf.Variable(scaled(rng, 64, 128), name="w1"), wf.Variable(scaled(rng, 128), name="b1")
    w2 = wf.Variable(scaled(rng, 128, 16), name="w2")
    x = rng.standard_normal((100, 64)).astype(np.float32)
    return lambda x: wf.nn.relu(x @ w1 + b1) @ w2, x, wf.TensorType(wf.float32, ("n", 64))


def distance(a: Any, b: Any) -> float:
    a, b = np.asarray(a), np.asarray(b)
    return float(np.linalg.norm(a - b) / np.linalg.norm(a))


WAYS: list[tuple[dict[str, Any], float]] = [
    ({}, 0.012), ({"block_size": 32}, 0.009), ({"weights": "int4"}, 0.14),
    ({"weights": "int4", "block_size": 64}, 0.16), ({"activations": "dynamic"}, 0.02),
    ({"activations": "static", "method": "minmax"}, 0.02),
    ({"activations": "static", "method": "percentile"}, 0.025),
    ({"activations": "static", "method": "entropy"}, 0.06),
]  # fmt: skip


@pytest.mark.share(4)
@pytest.mark.parametrize(("how", "most"), WAYS, ids=lambda v: "-".join(map(str, v.values()))
                         if isinstance(v, dict) else "")  # fmt: skip
def test_quantised_functions(how: dict[str, Any], most: float, tmp_path: Path) -> None:
    f, x, kind = mlp()
    more = {"calibration": [x[:50], x[50:]]} if "method" in how else {}
    q = Q.quantize(f, kind, **how, **more)
    want = f(x)
    got = q(x)
    assert 0.0 < distance(want, got) < most
    np.testing.assert_allclose(q(x[:1]).numpy(), got[:1].numpy(), rtol=1e-4, atol=1e-5)
    bits = 4 if how.get("weights") == "int4" else 8
    found = [(one.name, one.op, one.bits) for one in q.layers]
    assert found == [("w1", "matmul", bits), ("w2", "matmul", bits)]
    # few rows read the bytes of weights; with activations more rows are products of integers
    few, many = q.function.ir(x[:1]), q.function.ir(x)
    assert few.count("= quantized_matmul(") == 2
    assert many.count("= quantized_matmul(") == (0 if "activations" in how else 2)
    assert many.count(": i32[100,") >= (2 if "activations" in how else 0)
    report = q.report(x)
    assert report.layers[-1].error == pytest.approx(report.results[0], rel=1e-3)
    assert report.nbytes < report.float_nbytes * (0.2 if bits == 4 else 0.3) + 600
    assert "w1" in str(report)
    wf.export(q.function, tmp_path / "model")
    loaded = wf.load(tmp_path / "model")
    np.testing.assert_array_equal(loaded(x).numpy(), got.numpy())
    assert (tmp_path / "model" / "weights.safetensors").stat().st_size < report.nbytes + 3000


def test_a_module_with_convolutions_and_batch_norm(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)

    class Net(wf.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = wf.Variable(scaled(rng, 3, 3, 2, 8), name="conv")
            self.dense = wf.Variable(scaled(rng, 8 * 4, 10), name="dense")

        def __call__(self, x: Any) -> Any:
            y = wf.nn.relu(wf.nn.conv2d(x, self.conv, strides=2, padding="SAME"))
            return wf.reshape(y, (-1, 32)) @ self.dense

    net = Net()
    x = rng.standard_normal((12, 4, 4, 2)).astype(np.float32)
    kind = wf.TensorType(wf.float32, ("n", 4, 4, 2))
    want = net(x)
    for how, most in (({}, 0.012), ({"activations": "static", "calibration": [x]}, 0.03)):
        q = Q.quantize(net, kind, **how)
        assert [one.op for one in q.layers] == ["conv", "matmul"]
        assert distance(want, q(x)) < most
        report = q.report(x)
        assert [one.op for one in report.layers] == ["conv", "matmul"]
    wf.export(net, tmp_path / "net", example=kind)
    q = Q.quantize(wf.load(tmp_path / "net"))
    assert distance(want, q(x)) < 0.012


def test_layers_are_chosen() -> None:
    f, x, kind = mlp()
    q = Q.quantize(f, kind, layers=["w2"])
    assert [one.bits for one in q.layers] == [0, 8]
    assert [one.bits for one in Q.quantize(f, kind, layers="w2").layers] == [
        one.bits for one in q.layers
    ]
    with pytest.raises(wf.errors.NotFoundError, match="no layer 'w3'"):
        Q.quantize(f, kind, layers="w3")
    assert Q.quantize(f, kind, layers=lambda one: one.shape[0] == 64).layers[1].bits == 0
    assert len(q.report(x).layers) == 1
    assert "1 of 2 layers" in repr(q)


@pytest.mark.parametrize(
    ("how", "error", "message"),
    [
        ({"weights": "int2"}, InvalidArgumentError, "weights='int2'"),
        ({"activations": "both"}, InvalidArgumentError, "activations='both'"),
        ({"activations": "static"}, InvalidArgumentError, "need calibration"),
        ({"calibration": []}, InvalidArgumentError, "need calibration"),
        ({"activations": "static", "calibration": []}, InvalidArgumentError, "no batches"),
        ({"method": "guess"}, InvalidArgumentError, "no method 'guess'"),
        ({"activations": "static", "calibration": [np.full((2, 64), np.nan, np.float32)]},
         InvalidArgumentError, "gives layer 'w1' no finite number"),
        ({"activations": "dynamic", "weights": "int4"}, InvalidArgumentError, "are int8"),
        ({"layers": ["w3"]}, NotFoundError, "no layer 'w3'"),
        ({"percentile": 0.0}, InvalidArgumentError, "percentile=0.0"),
    ],
)  # fmt: skip
def test_quantize_refuses(how: dict[str, Any], error: type[Exception], message: str) -> None:
    f, _, kind = mlp()
    with pytest.raises(error, match=message) as caught:
        Q.quantize(f, kind, **how)
    assert "test_quantization.py" in str(caught.value)


def test_the_function_keeps_no_weights_in_float32() -> None:
    f, x, kind = mlp()
    q = Q.quantize(f, kind, layers=["w1"])
    text = q.function.ir(x[:1], after="traced")
    assert "value=f32[64,128]" not in text
    assert "value=f32[128,16]" in text
    assert "value=i8[128,64]" in text


def test_weights_of_one_number() -> None:
    q = Q.quantize(
        lambda x: x @ np.full((64, 3), 0.25, np.float32), wf.TensorType(wf.float32, (2, 64))
    )
    np.testing.assert_allclose(q(np.ones((2, 64), np.float32)).numpy(), 16.0, rtol=1e-5)
    assert [one.name for one in q.layers] == ["matmul_0"]


@pytest.mark.parametrize("activations", ["static", "dynamic"])
def test_depths_that_are_no_whole_blocks_are_integers_too(activations: str) -> None:
    rng = np.random.default_rng(6)
    w, x = scaled(rng, 100, 24), rng.standard_normal((20, 100)).astype(np.float32) + 1
    kind = wf.TensorType(wf.float32, ("n", 100))
    calibration = [x] if activations == "static" else None
    q = Q.quantize(lambda x: x @ w, kind, activations=activations, calibration=calibration)
    assert "i32[20,24]" in q.function.ir(x)
    assert "= quantized_matmul(" in q.function.ir(x[:1])
    assert 0.0 < distance(x @ w, q(x)) < 0.02
    np.testing.assert_allclose(q(x[:3]).numpy(), q(x)[:3].numpy(), rtol=1e-4, atol=1e-5)


def test_a_function_without_layers() -> None:
    with pytest.raises(InvalidArgumentError, match="has no matmul or convolution"):
        Q.quantize(lambda x: x + 1, wf.TensorType(wf.float32, (2,)))


# ---------------------------------------------------------------------------------- calibration
def test_ranges() -> None:
    rng = np.random.default_rng(0)
    batches = [rng.standard_normal(20000) for _ in range(3)]
    batches[0][0], batches[1][:2] = 40.0, [np.nan, np.inf]
    observer = Observer()
    for again in (observer.see, observer.count):
        for batch in batches:
            again(batch)
    held = np.concatenate(batches)
    held = held[np.isfinite(held)]
    assert observer.range("minmax", 100.0) == (held.min(), 40.0)
    low, high = observer.range("percentile", 99.0)
    step = (40.0 - held.min()) / 2048
    for found, percent in ((low, 0.5), (high, 99.5)):
        assert abs(found - np.percentile(held, percent)) <= 1.5 * step
    low, high = observer.range("entropy", 100.0)
    assert 2.5 < high < 10.0  # the outlier is clipped, hardly anything else
    assert low == -high or low == held.min()
    assert Observer().range("entropy", 99.0) == (0.0, 0.0)
    same = Observer()
    same.see(np.full(3, 2.0))
    same.count(np.full(3, 2.0))
    assert same.range("entropy", 99.0) == (2.0, 2.0)


@given(low=st.floats(-1e6, 1e6), high=st.floats(-1e6, 1e6))
@examples(60)
def test_zero_is_exact_in_every_range(low: float, high: float) -> None:
    low, high = min(low, high), max(low, high)
    scale, zero = scale_and_zero(low, high)
    assert scale > 0.0
    assert -128 <= zero <= 127
    ends = (np.array([-128, 127]) - zero) * scale
    slack = scale * 0.51 + 1e-9
    assert ends[0] <= min(low, 0.0) + slack
    assert ends[1] >= max(high, 0.0) - slack
