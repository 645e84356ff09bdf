"""`wf.nn` against float64 formulas, at infinities, and its gradients against finite differences."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import scipy.special as sp

import weft as wf
from weft.ir.interpreter.evaluate import interpret

RNG = np.random.default_rng(3)
X = RNG.normal(size=(4, 5)) * 3
INF = np.inf

ACTIVATIONS: dict[str, tuple[Callable[..., Any], Callable[..., Any], tuple[float, float]]] = {
    # weft, NumPy in float64, the limits at -inf and inf
    "relu": (wf.nn.relu, lambda x: np.maximum(x, 0), (0, INF)),
    "relu6": (wf.nn.relu6, lambda x: np.clip(x, 0, 6), (0, 6)),
    "leaky_relu": (wf.nn.leaky_relu, lambda x: np.where(x > 0, x, 0.2 * x), (-INF, INF)),
    "elu": (wf.nn.elu, lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0))), (-1, INF)),
    "selu": (
        wf.nn.selu,
        lambda x: (
            1.0507009873554805 * np.where(x > 0, x, 1.6732632423543772 * np.expm1(np.minimum(x, 0)))
        ),
        (-1.0507009873554805 * 1.6732632423543772, INF),
    ),
    "gelu": (wf.nn.gelu, lambda x: x * sp.ndtr(x), (0, INF)),
    "gelu_tanh": (
        lambda x: wf.nn.gelu(x, approximate=True),
        lambda x: x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
        (0, INF),
    ),
    "silu": (wf.nn.silu, lambda x: x * sp.expit(x), (0, INF)),
    "mish": (wf.nn.mish, lambda x: x * np.tanh(np.logaddexp(0, x)), (0, INF)),
    "softplus": (wf.nn.softplus, lambda x: np.logaddexp(0, x), (0, INF)),
    "log_sigmoid": (wf.nn.log_sigmoid, lambda x: -np.logaddexp(0, -x), (-INF, 0)),
    "hard_sigmoid": (wf.nn.hard_sigmoid, lambda x: np.clip(x + 3, 0, 6) / 6, (0, 1)),
    "sigmoid": (wf.nn.sigmoid, sp.expit, (0, 1)),
    "tanh": (wf.nn.tanh, np.tanh, (-1, 1)),
}
SOFT = {
    "softmax": (wf.nn.softmax, lambda x: sp.softmax(x, -1)),
    "softmax0": (lambda x: wf.nn.softmax(x, axis=0), lambda x: sp.softmax(x, 0)),
    "log_softmax": (wf.nn.log_softmax, lambda x: sp.log_softmax(x, -1)),
    "softsign": (wf.nn.softsign, lambda x: x / (1 + np.abs(x))),
    "layer_norm": (
        wf.nn.layer_norm,
        lambda x: (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5),
    ),
    "l2_normalize": (
        lambda x: wf.nn.l2_normalize(x, 1),
        lambda x: x / np.linalg.norm(x, axis=1, keepdims=True),
    ),
    "l2_loss": (wf.nn.l2_loss, lambda x: (x**2).sum() / 2),
    "logsumexp": (lambda x: wf.nn.logsumexp(x, -1), lambda x: sp.logsumexp(x, -1)),
    "moments": (lambda x: wf.nn.moments(x, [0])[1], lambda x: x.var(0)),
}
ALL = {n: (f, g) for n, (f, g, _) in ACTIVATIONS.items()} | SOFT


def traced(fn: Any, *inputs: Any) -> Any:
    graph = wf.compile(lambda *xs: fn(*xs)).trace(*inputs)
    return interpret(graph, [np.asarray(x) for x in inputs])[0]


@pytest.mark.parametrize("name", ALL)
def test_values(name: str) -> None:
    """float64 and float32, eager and traced."""
    function, reference = ALL[name]
    expected = reference(X)
    np.testing.assert_allclose(function(X), expected, rtol=1e-13, atol=1e-14)
    np.testing.assert_allclose(traced(function, X), expected, rtol=1e-13, atol=1e-14)
    single = function(X.astype(np.float32))
    assert single.dtype is wf.float32
    np.testing.assert_allclose(single, reference(X.astype("f4").astype("f8")), rtol=3e-6, atol=1e-6)
    half = function(X.astype(np.float16))
    assert half.dtype is wf.float16
    np.testing.assert_allclose(half, reference(X.astype("f2").astype("f8")), rtol=2e-2, atol=1e-2)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_limits(name: str) -> None:
    function, _, limits = ACTIVATIONS[name]
    got = function(np.array([-INF, INF, np.nan]))
    np.testing.assert_allclose(got, [*limits, np.nan])
    large = function(np.float32([-1e4, 1e4, -88, 88]))
    assert np.isfinite(large).all()


@pytest.mark.parametrize("name", ALL)
def test_gradients(name: str) -> None:
    """Against central differences of the float64 formula, and finite where the function is flat."""
    function, reference = ALL[name]
    if name in ("relu6", "hard_sigmoid"):
        x = np.array([[-4.0, -1.5, 0.5, 2.0, 5.0, 7.0]])
    else:
        x = X + 0.01
    weights = RNG.normal(size=np.shape(reference(x)))
    got = wf.grad(lambda t: wf.sum(function(t) * weights))(x)
    step = 1e-6
    expected = np.zeros_like(x)
    for i in np.ndindex(x.shape):
        d = np.zeros_like(x)
        d[i] = step
        expected[i] = ((reference(x + d) - reference(x - d)) * weights).sum() / (2 * step)
    np.testing.assert_allclose(got, expected, rtol=2e-6, atol=2e-8)


@pytest.mark.parametrize("name", sorted(set(ACTIVATIONS) - {"leaky_relu"}))
def test_gradients_do_not_overflow(name: str) -> None:
    got = wf.grad(lambda t: wf.sum(ACTIVATIONS[name][0](t)))(np.float32([-200.0, 200.0, -1e4, 1e4]))
    assert np.isfinite(got).all(), got


def test_softmax_with_minus_infinity() -> None:
    """Masked scores get weight 0, and their gradient is 0."""
    x = np.array([[1.0, -INF, 2.0], [-INF, 0.0, -INF]])
    np.testing.assert_allclose(wf.nn.softmax(x), sp.softmax(x, -1))
    np.testing.assert_allclose(wf.nn.log_softmax(x), sp.log_softmax(x, -1))
    got = wf.grad(lambda t: wf.sum(wf.nn.softmax(t) * [[1.0, 2.0, 3.0]]))(x)
    p = sp.softmax(x, -1) * [1, 2, 3]
    np.testing.assert_allclose(got, p - sp.softmax(x, -1) * p.sum(-1, keepdims=True), atol=1e-15)


def test_softmax_cross_entropy() -> None:
    logits = RNG.normal(size=(6, 4)) * 50
    labels = sp.softmax(RNG.normal(size=(6, 4)), -1)
    expected = -(labels * sp.log_softmax(logits, -1)).sum(-1)
    got = wf.nn.softmax_cross_entropy_with_logits(labels=labels, logits=logits)
    np.testing.assert_allclose(got, expected)
    turned = wf.nn.softmax_cross_entropy_with_logits(labels=labels.T, logits=logits.T, axis=0)
    np.testing.assert_allclose(turned, expected)
    grad = wf.grad(
        lambda z: wf.sum(wf.nn.softmax_cross_entropy_with_logits(labels=labels, logits=z))
    )
    np.testing.assert_allclose(grad(logits), sp.softmax(logits, -1) - labels, atol=1e-14)
    impossible = wf.nn.softmax_cross_entropy_with_logits(
        labels=[0.0, 1.0, 0.0], logits=[-INF, 2.0, 2.0]
    )
    assert float(impossible) == pytest.approx(np.log(2))


def test_sparse_softmax_cross_entropy() -> None:
    logits, labels = RNG.normal(size=(2, 3, 4)), RNG.integers(0, 4, (2, 3))
    dense = wf.nn.softmax_cross_entropy_with_logits(
        labels=wf.one_hot(labels, 4, dtype=wf.float64), logits=logits
    )
    got = wf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
    np.testing.assert_allclose(got, dense)
    with pytest.raises(wf.errors.TypeRuleError, match="labels must be integers"):
        wf.nn.sparse_softmax_cross_entropy_with_logits(labels=logits[..., 0], logits=logits)
    with pytest.raises(wf.errors.ShapeError, match=r"labels of shape \[3\]"):
        wf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels[0], logits=logits)


@pytest.mark.share(3)
@pytest.mark.parametrize("dtype", ["i1", "i4", "i8", "u1"])
@pytest.mark.parametrize("label", [-1, -3, 3, 100])
def test_sparse_softmax_cross_entropy_out_of_range(dtype: str, label: int) -> None:
    """A label below 0 does not count from the end, neither eagerly nor compiled."""
    if dtype == "u1" and label < 0:
        label += 256
    labels, logits = np.array([0, label, 2], dtype), np.zeros((3, 3), np.float32)

    def loss(z: Any, x: Any) -> Any:
        return wf.nn.sparse_softmax_cross_entropy_with_logits(labels=z, logits=x)

    with pytest.raises(wf.errors.InvalidArgumentError, match=rf"label {label} at \[1\] is out of"):
        loss(labels, logits)
    step = wf.compile(loss)
    with pytest.raises(wf.errors.InvalidArgumentError, match=r"element 1 .* is out of bounds"):
        step(labels, logits)
    with pytest.raises(wf.errors.InvalidArgumentError, match=r"is out of bounds"):
        interpret(step.trace(labels, logits), [labels, logits])
    np.testing.assert_allclose(step(labels * 0 + 2, logits), np.log([3.0, 3, 3]), rtol=1e-6)


def test_sparse_softmax_cross_entropy_of_a_constant_label() -> None:
    """Labels known while tracing are checked then."""
    with pytest.raises(wf.errors.InvalidArgumentError, match=r"label -1 at \[0\] is out of range"):
        wf.compile(lambda x: wf.nn.sparse_softmax_cross_entropy_with_logits(labels=[-1], logits=x))(
            np.zeros((1, 3))
        )


def test_sigmoid_cross_entropy() -> None:
    z, x = RNG.uniform(size=7), RNG.normal(size=7) * 100
    expected = z * np.logaddexp(0, -x) + (1 - z) * np.logaddexp(0, x)
    got = wf.nn.sigmoid_cross_entropy_with_logits(labels=z, logits=x)
    np.testing.assert_allclose(got, expected, rtol=1e-13)
    weighted = wf.nn.weighted_cross_entropy_with_logits(labels=z, logits=x, pos_weight=2.5)
    expected = 2.5 * z * np.logaddexp(0, -x) + (1 - z) * np.logaddexp(0, x)
    np.testing.assert_allclose(weighted, expected, rtol=1e-13)


def test_sigmoid_cross_entropy_does_not_cancel() -> None:
    """The small loss of a confident, right answer keeps its digits in float32."""
    z, x = np.float32([0, 0, 1, 1]), np.float32([-20, -60, 20, 60])
    expected = np.exp(-np.abs(x.astype(float)))
    got = wf.nn.sigmoid_cross_entropy_with_logits(labels=z, logits=x)
    np.testing.assert_allclose(got, expected, rtol=1e-6)
    weighted = wf.nn.weighted_cross_entropy_with_logits(labels=z, logits=x, pos_weight=3.0)
    np.testing.assert_allclose(weighted, expected * [1, 1, 3, 3], rtol=1e-6)


def test_mean_squared_error() -> None:
    assert float(wf.nn.mean_squared_error([1.0, 2.0], [3.0, 2.0])) == 2


def test_batch_norm() -> None:
    x, scale, offset = RNG.normal(size=(8, 3)), RNG.normal(size=3), RNG.normal(size=3)
    mean, variance = wf.nn.moments(x, 0)
    got = wf.nn.batch_norm(x, mean, variance, offset, scale, 1e-3)
    expected = (x - x.mean(0)) / np.sqrt(x.var(0) + 1e-3) * scale + offset
    np.testing.assert_allclose(got, expected)
    assert wf.nn.batch_normalization is wf.nn.batch_norm
    kept = wf.nn.moments(x, [0, 1], keepdims=True)
    assert kept.mean.shape == kept.variance.shape == (1, 1)


def test_layer_norm_with_weights() -> None:
    x = RNG.normal(size=(2, 3, 4))
    scale, offset = RNG.normal(size=(3, 4)), RNG.normal(size=4)
    got = wf.nn.layer_norm(x, scale, offset, axis=(1, 2), epsilon=1e-6)
    mean, var = x.mean((1, 2), keepdims=True), x.var((1, 2), keepdims=True)
    np.testing.assert_allclose(got, (x - mean) / np.sqrt(var + 1e-6) * scale + offset)


def test_dropout() -> None:
    x = np.full((100, 100), 3.0, np.float32)
    key = wf.random.key(5)
    got = wf.nn.dropout(x, 0.25, key=key)
    np.testing.assert_array_equal(got, wf.nn.dropout(x, 0.25, key=key))
    values = np.unique(got)
    np.testing.assert_allclose(values, [0, 4])
    assert abs(np.mean(got.numpy() == 0) - 0.25) < 0.02
    rows = wf.nn.dropout(x, 0.5, key=key, noise_shape=(100, 1)).numpy()
    assert all(len(set(row)) == 1 for row in rows)
    assert len(np.unique(rows)) == 2
    np.testing.assert_array_equal(wf.nn.dropout(x, 0), x)
    np.testing.assert_array_equal(wf.nn.dropout(x, 1.0, key=key), 0 * x)
    generator = wf.random.Generator(1)
    first, second = (wf.nn.dropout(x, 0.5, rng=generator).numpy() for _ in range(2))
    assert (first != second).any()
    with pytest.raises(wf.errors.InvalidArgumentError, match="rate must be in"):
        wf.nn.dropout(x, 1.5)
    with pytest.raises(wf.errors.InvalidArgumentError, match="not both"):
        wf.nn.dropout(x, 0.5, key=key, rng=generator)


def test_dropout_gradient_uses_the_same_mask() -> None:
    key, x = wf.random.key(2), np.ones(50)
    got = wf.grad(lambda t: wf.sum(wf.nn.dropout(t, 0.4, key=key)))(x)
    np.testing.assert_allclose(got, wf.nn.dropout(x, 0.4, key=key))


def test_embedding_lookup() -> None:
    table, ids = RNG.normal(size=(7, 3)), np.array([[1, 6], [0, 1]])
    np.testing.assert_array_equal(wf.nn.embedding_lookup(table, ids), table[ids])
    np.testing.assert_array_equal(wf.nn.embedding_lookup([table], ids), table[ids])
    got = wf.grad(lambda t: wf.sum(wf.nn.embedding_lookup(t, ids)))(table)
    np.testing.assert_array_equal(np.asarray(got)[:, 0], [1, 2, 0, 0, 0, 0, 1])
    with pytest.raises(wf.errors.InvalidArgumentError, match="partition_strategy"):
        wf.nn.embedding_lookup(table, ids, "hash")


def test_integers_become_the_default_float() -> None:
    assert wf.nn.softmax([1, 2, 3]).dtype is wf.float32
    assert wf.nn.gelu(np.arange(3)).dtype is wf.float32
    assert wf.nn.relu(np.arange(3)).dtype is wf.int64


@pytest.mark.parametrize("fn", [wf.nn.softmax, wf.nn.log_softmax])
def test_softmax_of_nothing(fn: Callable[..., Any]) -> None:
    """As in JAX and TensorFlow: no elements, no weights, no error."""
    for shape, axis in (((3, 0), -1), ((0, 3), 0), ((0, 3), 1)):
        x = np.zeros(shape, np.float32)
        assert fn(x, axis=axis).shape == shape
        assert wf.compile(partial(fn, axis=axis))(x).shape == shape
        assert wf.grad(lambda x, axis=axis: wf.sum(fn(x, axis=axis)))(wf.asarray(x)).shape == shape


def test_logsumexp_of_nothing() -> None:
    """The log of an empty sum, as in JAX."""
    x = np.zeros((2, 0), np.float32)
    for keep in (False, True):
        expected = np.full((2, 1) if keep else 2, -np.inf, np.float32)
        np.testing.assert_array_equal(wf.logsumexp(x, axis=1, keepdims=keep), expected)
        compiled = wf.compile(partial(wf.logsumexp, axis=1, keepdims=keep))
        np.testing.assert_array_equal(compiled(x), expected)
