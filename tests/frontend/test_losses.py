"""`wf.losses` against NumPy in float64 and scikit-learn: values, gradients, weights, reductions,
what is refused."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import scipy.special as sp
import sklearn.metrics
from example_counts import examples
from hypothesis import given

import weft as wf
from weft.ir.interpreter.evaluate import interpret

Array = np.ndarray[Any, Any]
RNG = np.random.default_rng(7)
ROWS, N = 6, 4
X = RNG.normal(size=(ROWS, N)) * 2
Z = RNG.normal(size=(ROWS, N))
ONES = (RNG.random((ROWS, N)) < 0.5) * 1.0
SOFT = RNG.random((ROWS, N))
COUNTS = RNG.integers(0, 6, (ROWS, N)) * 1.0
P, Q = sp.softmax(X, -1), sp.softmax(Z, -1)
CLASSES = RNG.integers(0, N, ROWS)
ONEHOT = np.eye(N)[CLASSES]
SIGMOID = sp.expit(X)


def entropy(z: Array, x: Array) -> Array:
    return -z * np.log(sp.expit(x)) - (1 - z) * np.log(sp.expit(-x))


def smoothed(z: Array, by: float) -> Array:
    return z * (1 - by) + by / z.shape[-1]


def pairs(z: Array, x: Array) -> Array:
    """By the definition: every two elements of a row that are not the same."""
    d = x - z
    found = [[(r[i] - r[j]) ** 2 for i in range(N) for j in range(N) if i != j] for r in d]
    return np.mean(found, axis=1)


def stirling(z: Array, c: Array) -> Array:
    n = np.where(z > 1, z, 2)
    more = n * np.log(n) - n + 0.5 * np.log(2 * np.pi * n)
    return np.exp(c) - z * c + np.where(z > 1, more, 0)


def distance(a: Array, b: Array) -> Array:
    return np.sqrt(((a - b) ** 2).sum(-1) + 1e-6)


W = wf.losses
#: Name and variant: weft's function, the arguments, the loss of each element or row.
CASES: dict[str, tuple[Callable[..., Any], tuple[Array, ...], Array]] = {
    "mean_squared_error": (W.mean_squared_error, (Z, X), (X - Z) ** 2),
    "absolute_difference": (W.absolute_difference, (Z, X), np.abs(X - Z)),
    "huber_loss": (
        partial(W.huber_loss, delta=1.5), (Z, X),
        np.where(np.abs(X - Z) <= 1.5, (X - Z) ** 2 / 2, 1.5 * np.abs(X - Z) - 1.5**2 / 2),
    ),
    "log_cosh": (W.log_cosh, (Z, X), np.log(np.cosh(X - Z))),
    "log_loss": (
        W.log_loss, (SOFT, SIGMOID),
        -SOFT * np.log(SIGMOID + 1e-7) - (1 - SOFT) * np.log(1 - SIGMOID + 1e-7),
    ),
    "poisson": (W.poisson, (COUNTS, np.exp(X)), np.exp(X) - COUNTS * np.log(np.exp(X) + 1e-7)),
    "log_poisson": (W.log_poisson, (COUNTS, X), np.exp(X) - COUNTS * X),
    "log_poisson full": (
        partial(W.log_poisson, compute_full_loss=True), (COUNTS, X),
        stirling(COUNTS, X),
    ),
    "hinge_loss": (W.hinge_loss, (ONES, X), np.maximum(0, 1 - (2 * ONES - 1) * X)),
    "squared_hinge": (W.squared_hinge, (ONES, X), np.maximum(0, 1 - (2 * ONES - 1) * X) ** 2),
    "sigmoid_cross_entropy": (W.sigmoid_cross_entropy, (SOFT, X), entropy(SOFT, X)),
    "sigmoid_cross_entropy smoothed": (
        partial(W.sigmoid_cross_entropy, label_smoothing=0.2), (ONES, X),
        entropy(ONES * 0.8 + 0.1, X),
    ),
    "sigmoid_focal_cross_entropy": (
        W.sigmoid_focal_cross_entropy, (ONES, X),
        (1 - np.where(ONES, SIGMOID, 1 - SIGMOID)) ** 2 * entropy(ONES, X),
    ),
    "sigmoid_focal_cross_entropy alpha": (
        partial(W.sigmoid_focal_cross_entropy, alpha=0.25, gamma=1.5), (ONES, X),
        np.where(ONES, 0.25, 0.75)
        * (1 - np.where(ONES, SIGMOID, 1 - SIGMOID)) ** 1.5 * entropy(ONES, X),
    ),
    "softmax_cross_entropy": (W.softmax_cross_entropy, (Q, X), -(Q * np.log(P)).sum(-1)),
    "softmax_cross_entropy smoothed": (
        partial(W.softmax_cross_entropy, label_smoothing=0.3), (ONEHOT, X),
        -(smoothed(ONEHOT, 0.3) * np.log(P)).sum(-1),
    ),
    "softmax_focal_cross_entropy": (
        W.softmax_focal_cross_entropy, (ONEHOT, X), -(ONEHOT * (1 - P) ** 2 * np.log(P)).sum(-1),
    ),
    "softmax_focal_cross_entropy alpha": (
        partial(W.softmax_focal_cross_entropy, alpha=0.25, gamma=3.0), (Q, X),
        -0.25 * (Q * (1 - P) ** 3 * np.log(P)).sum(-1),
    ),
    "categorical_hinge": (
        W.categorical_hinge, (ONEHOT, X),
        np.maximum(0, 1 + ((1 - ONEHOT) * X).max(-1) - (ONEHOT * X).sum(-1)),
    ),
    "kl_divergence": (W.kl_divergence, (Q, P), sp.rel_entr(Q, P).sum(-1)),
    "kl_divergence of logs": (
        partial(W.kl_divergence, log_predictions=True), (Q, np.log(P)),
        sp.rel_entr(Q, P).sum(-1),
    ),
    "cosine_distance": (
        W.cosine_distance, (Z, X),
        sklearn.metrics.pairwise.paired_cosine_distances(Z, X),
    ),
    "mean_pairwise_squared_error": (W.mean_pairwise_squared_error, (Z, X), pairs(Z, X)),
    "margin_ranking_loss": (
        lambda z, x, **k: W.margin_ranking_loss(z, x, Z, margin=0.5, **k), (2 * ONES - 1, X),
        np.maximum(0, 0.5 - (2 * ONES - 1) * (X - Z)),
    ),
    "contrastive_loss": (
        partial(W.contrastive_loss, margin=2.0), (ONES, np.abs(X)),
        ONES * X**2 + (1 - ONES) * np.maximum(2 - np.abs(X), 0) ** 2,
    ),
    "triplet_margin_loss": (
        lambda a, b, **k: W.triplet_margin_loss(a, b, Q, margin=0.7, **k), (Z, X),
        np.maximum(0, distance(Z, X) - distance(Z, Q) + 0.7),
    ),
}  # fmt: skip


def traced(fn: Callable[..., Any], *inputs: Any) -> Any:
    graph = wf.compile(lambda *xs: fn(*xs)).trace(*inputs)
    return interpret(graph, [np.asarray(x) for x in inputs])[0]


@pytest.mark.share(9)
@pytest.mark.parametrize("name", CASES)
def test_values(name: str) -> None:
    """Of each element or row, eagerly, by the interpreter and compiled; float32 near them."""
    call, inputs, expected = CASES[name]
    each = lambda *a: call(*a, reduction="none")  # noqa: E731
    np.testing.assert_allclose(each(*inputs), expected, rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(traced(each, *inputs), expected, rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(wf.compile(each)(*inputs), expected, rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(call(*inputs), expected.mean(), rtol=1e-12)
    if "margin" not in name:  # their closures are float64
        single = each(*(x.astype(np.float32) for x in inputs))
        assert single.dtype is wf.float32
        np.testing.assert_allclose(single, expected, rtol=2e-5, atol=2e-6)


@pytest.mark.share(9)
@pytest.mark.parametrize("name", CASES)
def test_gradients(name: str) -> None:
    """Of the predictions, compiled, against central differences of the eager values."""
    call, (labels, x), _ = CASES[name]
    got = wf.compile(wf.grad(lambda x: call(labels, x, reduction="sum")))(x).numpy()
    for at in [(0, 0), (1, 2), (3, 1), (5, 3)]:
        step = np.zeros_like(x)
        step[at] = 1e-6
        high, low = (float(call(labels, x + s, reduction="sum")) for s in (step, -step))
        np.testing.assert_allclose(got[at], (high - low) / 2e-6, rtol=2e-4, atol=2e-7)


def test_every_loss_has_a_case() -> None:
    others = {
        "Reduction", "compute_weighted_loss", "get_regularization_loss", "l1_regularizer",
        "get_regularization_losses", "l1_l2_regularizer", "l2_regularizer",
        "sparse_softmax_cross_entropy",
    }  # fmt: skip
    assert {n.split()[0] for n in CASES} == set(W.__all__) - others


# ------------------------------------------------------------------------ weights and reductions
def reduced(losses: Array, weights: Array, how: str) -> Any:
    weighted = losses * weights
    by = {
        "none": None, "sum": 1, "mean": np.broadcast_to(weights, losses.shape).sum(),
        "sum_over_batch_size": losses.size,
        "sum_by_nonzero_weights": np.count_nonzero(np.broadcast_to(weights, losses.shape)),
    }[how]  # fmt: skip
    return weighted if by is None else weighted.sum() / by if by else 0.0


HOW = ["none", "sum", "mean", "sum_over_batch_size", "sum_by_nonzero_weights"]


@examples(60, deadline=None)
@given(st.data())
def test_weights_and_reductions(data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=3)))
    rng = np.random.default_rng(data.draw(st.integers(0, 999)))
    kept = tuple(data.draw(st.sampled_from([1, n])) for n in shape)
    losses = rng.normal(size=shape)
    weights = data.draw(st.sampled_from([
        rng.integers(0, 3, kept) * 0.5, np.zeros(kept), np.asarray(0.25), np.asarray(0),
    ]))  # fmt: skip
    how = data.draw(st.sampled_from(HOW))
    got = W.compute_weighted_loss(losses, weights, how)
    np.testing.assert_allclose(got, reduced(losses, weights, how), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("how", HOW)
def test_python_numbers_are_weights(how: str) -> None:
    for weight in (0, 0.0, 1, 1.0, 3, 0.5):
        got = W.compute_weighted_loss(X, weight, how)
        np.testing.assert_allclose(got, reduced(X, np.asarray(weight), how), rtol=1e-12)


def test_what_has_weight_0_does_not_count() -> None:
    weights = [1.0, 0.0, 0.0]
    for how, expected in [("sum", 4.0), ("mean", 4.0), ("sum_by_nonzero_weights", 4.0)]:
        got = W.mean_squared_error([0.0, 1.0, 1.0], [2.0, np.inf, np.nan], weights, how)
        assert float(got) == expected
    all_zero = wf.grad(lambda x: W.mean_squared_error([0.0, 1.0], x, [0.0, 0.0]))
    np.testing.assert_array_equal(all_zero(wf.asarray([1.0, 5.0])), [0, 0])


def test_weights_of_rows_in_every_engine() -> None:
    weights = RNG.integers(0, 2, (ROWS, 1)) * 2.0
    expected = reduced((X - Z) ** 2, weights, "sum_by_nonzero_weights")
    np.testing.assert_allclose(
        wf.compile(W.mean_squared_error)(Z, X, weights), expected, rtol=1e-12
    )
    with wf.Graph().as_default(), wf.Session() as session:
        z, x = (wf.placeholder(wf.float64, ["rows", N]) for _ in range(2))
        w = wf.placeholder(wf.float64, ["rows", 1])
        loss = W.mean_squared_error(z, x, w)
        for rows in (ROWS, 3):
            got = session.run(loss, {z: Z[:rows], x: X[:rows], w: weights[:rows]})
            truth = reduced(((X - Z) ** 2)[:rows], weights[:rows], "sum_by_nonzero_weights")
            np.testing.assert_allclose(got, truth, rtol=1e-12)


def test_16_bit_floats_are_computed_in_float32() -> None:
    x = wf.asarray(np.full(4096, 300.0), dtype=wf.float16)
    assert float(W.absolute_difference(0.0, x)) == 300  # the sum is beyond float16
    assert W.mean_squared_error(0.0, wf.asarray([1.0], dtype=wf.bfloat16)).dtype is wf.bfloat16
    one = wf.asarray([256.0, 0.0, 0.0, 0.0], dtype=wf.float16)  # 65536, which is beyond it, too
    for call in (W.mean_squared_error, wf.compile(W.mean_squared_error)):
        assert float(call(0.0, one)) == 16384
    assert float(W.mean_squared_error(0.0, one, weights=0.25, reduction="sum")) == 16384


@pytest.mark.share(2)
@pytest.mark.parametrize("how", HOW[1:])
@pytest.mark.parametrize("weight", [1.0, 2.0])
def test_of_nothing(how: str, weight: float) -> None:
    """0, as in TensorFlow 1, whether the size is known or not."""
    nothing = np.zeros((0, 3))
    call = lambda x: W.mean_squared_error(0.0, x, weight, how)  # noqa: E731
    assert float(call(nothing)) == 0
    assert float(wf.compile(call)(nothing)) == 0
    with wf.Graph().as_default(), wf.Session() as session:
        x = wf.placeholder(wf.float64, [None, 3])
        loss = call(x)
        assert session.run(loss, {x: nothing}) == 0
        some = session.run(loss, {x: Z[:, :3]})
    np.testing.assert_allclose(some, call(Z[:, :3]), rtol=1e-12)


# ------------------------------------------------------------------------------- single functions
def test_sparse_softmax_cross_entropy() -> None:
    expected = -np.log(P)[np.arange(ROWS), CLASSES]
    sparse = W.sparse_softmax_cross_entropy
    truth = sklearn.metrics.log_loss(CLASSES, P, labels=range(N))
    np.testing.assert_allclose(sparse(CLASSES, X, reduction="none"), expected, rtol=1e-12)
    np.testing.assert_allclose(sparse(CLASSES, X), truth)
    soft = -(smoothed(ONEHOT, 0.3) * np.log(P)).sum(-1)
    got = wf.compile(lambda z, x: sparse(z, x, label_smoothing=0.3))(CLASSES, X)
    np.testing.assert_allclose(got, soft.mean(), rtol=1e-12)
    weights = np.arange(ROWS) * 1.0
    got = sparse(CLASSES, X, weights, reduction="mean")
    np.testing.assert_allclose(got, np.average(expected, weights=weights), rtol=1e-12)
    with pytest.raises(wf.errors.InvalidArgumentError, match="label 9"):
        sparse([9] * ROWS, X)


def test_far_from_0_and_at_the_edges() -> None:
    """Where formulas written down plainly overflow, cancel, or give NaN."""
    none = {"reduction": "none"}
    np.testing.assert_allclose(
        W.log_cosh(0.0, np.float32([1e-4, -1e-4, 1e4, -1e4]), **none),
        np.float32([5e-9, 5e-9, 1e4 - np.log(2), 1e4 - np.log(2)]), rtol=1e-6,
    )  # fmt: skip
    grad = wf.grad(lambda x: W.log_cosh(wf.zeros(4), x, reduction="sum"))
    np.testing.assert_allclose(grad(wf.asarray([0.0, 1e-3, 1e4, -1e4])), [0, 1e-3, 1, -1], 1e-6)
    one = wf.ones(2)
    focal = W.sigmoid_focal_cross_entropy(one, [200.0, -200.0], **none)
    np.testing.assert_allclose(focal, [0, 200])
    for gamma in (0.0, 1.0, 2.0):
        slope = wf.grad(lambda x, g=gamma: W.sigmoid_focal_cross_entropy(one, x, gamma=g))
        assert np.isfinite(slope(wf.asarray([500.0, -500.0])).numpy()).all()
    np.testing.assert_allclose(
        W.sigmoid_focal_cross_entropy(ONES, X, gamma=0.0, **none), entropy(ONES, X), rtol=1e-12
    )
    np.testing.assert_allclose(W.kl_divergence([0.0, 1.0], [0.0, 1.0], **none), 0)
    assert np.isinf(float(W.kl_divergence([0.5, 0.5], [0.0, 1.0], **none)))
    slope = wf.grad(lambda p: W.kl_divergence([0.0, 1.0], p))
    np.testing.assert_allclose(slope(wf.asarray([0.0, 1.0])), [0, -1])
    assert float(W.cosine_distance([0.0, 0.0], [1.0, 0.0])) == 1


def test_regularizers() -> None:
    assert float(W.l1_regularizer(0.5)(X)) == pytest.approx(0.5 * np.abs(X).sum())
    assert float(W.l2_regularizer(0.5)(X)) == pytest.approx(0.25 * (X**2).sum())
    assert float(W.l1_l2_regularizer(0.1, 0.2)(X)) == pytest.approx(
        0.1 * np.abs(X).sum() + 0.1 * (X**2).sum()
    )
    assert float(W.l1_regularizer(0.0)(X)) == 0
    for bad in (-1.0, np.nan, np.inf, "a", True):
        with pytest.raises(wf.errors.InvalidArgumentError, match="must be a number >= 0"):
            W.l2_regularizer(bad)  # type: ignore[arg-type]


def test_regularizers_of_get_variable() -> None:
    with wf.Graph().as_default(), wf.Session() as session:
        with wf.tf1.variable_scope("a", regularizer=W.l1_regularizer(1.0)):
            w = wf.tf1.get_variable("w", initializer=[1.0, -2.0])
            wf.tf1.get_variable("v", initializer=[1.0], regularizer=W.l2_regularizer(1.0))
        wf.tf1.get_variable("b", initializer=[7.0])
        with wf.tf1.variable_scope("a", reuse=True):
            assert wf.tf1.get_variable("w") is w  # counted once
        loss = W.get_regularization_loss()
        train = wf.train.SGD(0.5).minimize(loss)
        session.run(wf.global_variables_initializer())
        assert session.run(W.get_regularization_losses()) == [3.0, 0.5]
        assert session.run(W.get_regularization_losses("a/v")) == [0.5]
        session.run(train)
        np.testing.assert_allclose(session.run(w), [0.5, -1.5])


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: W.mean_squared_error(np.ones(3), np.ones((3, 1))), "ShapeError",
         r"labels of shape \[3\] for predictions of shape \[3,1\]"),
        (lambda: W.compute_weighted_loss(np.ones((3, 2)), np.ones(3)), "ShapeError",
         r"weights of shape \[3\] for losses of shape \[3,2\]"),
        (lambda: W.hinge_loss([1.0], [1.0], [[1.0]]), "ShapeError", "losses.hinge_loss: weights"),
        (lambda: W.poisson([1.0], [1.0], reduction="average"), "InvalidArgumentError",
         "reduction 'average' is none of"),
        (lambda: W.huber_loss([1.0], [1.0], delta=0.0), "InvalidArgumentError", "delta must be"),
        (lambda: W.softmax_cross_entropy([[1.0]], [[1.0]], label_smoothing=1.5),
         "InvalidArgumentError", r"label_smoothing must be in \[0, 1\]"),
        (lambda: W.mean_pairwise_squared_error(1.0, 2.0), "ShapeError", "needs rows"),
        (lambda: W.cosine_distance([1.0], [1.0], axis=1), "InvalidArgumentError", "out of range"),
    ],
)  # fmt: skip
def test_errors(call: Callable[[], Any], error: str, message: str) -> None:
    with pytest.raises(getattr(wf.errors, error), match=message) as caught:
        call()
    assert caught.value.locations[0].file == __file__
