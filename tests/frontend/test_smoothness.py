"""First and higher gradients of composed functions where their formulas have seams: at 0, at ties,
at extremes.

The expected numbers are closed forms; where a function has no derivative they are JAX 0.10.2's,
but for norms and `std` at 0 and `xlogy` at its pole: 0, where JAX has NaN.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft as wf

ALPHA, SCALE = 1.6732632423543772, 1.0507009873554805
PAIR = [0.3, 0.7]


def pair(x: Any) -> Any:
    return wf.stack([x, 0 * x])


def sigmoid_loss(x: Any) -> Any:
    return wf.nn.sigmoid_cross_entropy_with_logits(labels=0.3, logits=x)


def weighted_loss(x: Any) -> Any:
    return wf.nn.weighted_cross_entropy_with_logits(labels=0.3, logits=x, pos_weight=2.0)


def softmax_loss(x: Any) -> Any:
    return wf.nn.softmax_cross_entropy_with_logits(labels=np.array(PAIR), logits=pair(x))


def loss_of_labels(x: Any) -> Any:
    return wf.nn.softmax_cross_entropy_with_logits(
        labels=wf.stack([x, 1 - x]), logits=np.array([1.0, 2.0])
    )


def loss_of_both(x: Any) -> Any:
    return wf.nn.softmax_cross_entropy_with_logits(labels=wf.stack([x * x, 1 - x]), logits=pair(x))


LOG2, PI2 = math.log(2), math.pi**2
# function: its value and first three derivatives at 0
AT_ZERO: dict[str, tuple[Callable[[Any], Any], list[float]]] = {
    "softplus": (wf.nn.softplus, [LOG2, 0.5, 0.25, 0]),
    "log_sigmoid": (wf.nn.log_sigmoid, [-LOG2, 0.5, -0.25, 0]),
    "elu": (wf.nn.elu, [0, 1, 1, 1]),  # from below, as JAX
    "selu": (wf.nn.selu, [0, *[SCALE * ALPHA] * 3]),
    "gelu": (wf.nn.gelu, [0, 0.5, math.sqrt(2 / math.pi), 0]),
    "gelu_tanh": (
        lambda x: wf.nn.gelu(x, approximate=True), [0, 0.5, math.sqrt(2 / math.pi), 0],
    ),
    "silu": (wf.nn.silu, [0, 0.5, 0.5, 0]),
    "mish": (wf.nn.mish, [0, 0.6, 0.64, -0.096]),
    "relu": (wf.nn.relu, [0, 0, 0, 0]),
    "relu6": (wf.nn.relu6, [0, 0, 0, 0]),
    "sinc": (wf.sinc, [1, 0, -PI2 / 3, 0]),
    "sigmoid cross entropy": (sigmoid_loss, [LOG2, 0.2, 0.25, 0]),
    "weighted cross entropy": (weighted_loss, [1.3 * LOG2, 0.05, 0.325, 0]),
    "softmax cross entropy": (softmax_loss, [LOG2, 0.2, 0.25, 0]),
    "labels": (loss_of_labels, [math.log1p(math.e) - 1, 1, 0, 0]),
    "labels and logits": (loss_of_both, [LOG2, 0.5 - LOG2, 2 * LOG2 - 0.75, -3.75]),
    "logaddexp": (lambda x: wf.logaddexp(x, 0.0), [LOG2, 0.5, 0.25, 0]),
    "logaddexp tie": (lambda x: wf.logaddexp(x, -x), [LOG2, 0, 1, 0]),
    "logsumexp": (lambda x: wf.logsumexp(pair(x)), [LOG2, 0.5, 0.25, 0]),
    "softmax": (lambda x: wf.nn.softmax(pair(x))[0], [0.5, 0.25, 0, -0.125]),
    "log_softmax": (lambda x: wf.nn.log_softmax(pair(x))[0], [-LOG2, 0.5, -0.25, 0]),
    "xlogy of x": (lambda x: wf.xlogy(x, 2.0), [0, LOG2, 0, 0]),
    "xlogy of both": (lambda x: wf.xlogy(x, x + 1), [0, 0, 2, -3]),
    "xlog1py of both": (lambda x: wf.xlog1py(x, x), [0, 0, 2, -3]),
    "xlogy at the pole": (lambda x: wf.xlogy(x, x), [0, 0, 0, 0]),
    "xlogy of y": (lambda y: wf.xlogy(0.0, y), [0, 0, 0, 0]),
    "hypot": (lambda x: wf.hypot(x, 1.0), [1, 0, 1, 0]),
    "2-norm": (lambda x: wf.linalg.vector_norm(wf.stack([x, 1 + 0 * x])), [1, 0, 1, 0]),
    "2-norm of 0": (lambda x: wf.linalg.vector_norm(pair(x)), [0, 0, 0, 0]),
    "3-norm of 0": (lambda x: wf.linalg.vector_norm(pair(x), ord=3), [0, 0, 0, 0]),
    "matrix norm of 0": (lambda x: wf.linalg.matrix_norm(pair(x)[:, None]), [0, 0, 0, 0]),
    "std of equals": (lambda x: wf.std(pair(x)), [0, 0, 0, 0]),
    "var of equals": (lambda x: wf.var(pair(x)), [0, 0, 0.5, 0]),
    "layer_norm of equals": (
        lambda x: wf.nn.layer_norm(pair(x), epsilon=0.25)[0], [0, 1, 0, -3],
    ),
    "l2_normalize of 0": (lambda x: wf.nn.l2_normalize(pair(x))[0], [0, 1e6, 0, 0]),
    "prod": (lambda x: wf.prod(wf.stack([x, x, 1 + x])), [0, 0, 2, 6]),
}  # fmt: skip


def derivative(function: Callable[[Any], Any], order: int) -> Callable[[Any], Any]:
    """The `order`-th derivative, element by element."""
    out = function
    for _ in range(order):
        out = wf.grad(lambda t, inner=out: wf.sum(inner(t)))
    return out


@pytest.mark.share(3)
@pytest.mark.parametrize("order", [0, 1, 2, 3])
@pytest.mark.parametrize("name", AT_ZERO)
def test_at_zero(name: str, order: int) -> None:
    function, expected = AT_ZERO[name]
    for zero in (0.0, -0.0):
        got = float(derivative(function, order)(np.array(zero)))
        assert got == pytest.approx(expected[order], rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize(
    "name", ["softplus", "log_sigmoid", "sigmoid cross entropy", "weighted cross entropy", "mish",
             "silu", "gelu", "elu", "selu"],
)  # fmt: skip
def test_near_zero_and_far_out(name: str, order: int) -> None:
    """Both sides of the seam agree with it; nothing overflows far away, and NaN stays."""
    function, expected = AT_ZERO[name]
    sides = [-1e-9, 1e-9] if name not in ("elu", "selu") else [-1e-9]
    got = np.asarray(derivative(function, order)(np.array(sides)))
    np.testing.assert_allclose(got, expected[order], atol=2e-8)
    far = np.float32([-1e4, -100, 100, 1e4])
    assert np.isfinite(derivative(function, order)(far)).all()
    if order == 2:
        np.testing.assert_array_equal(np.abs(derivative(function, 2)(far)) < 1e-30, True)
    assert np.isnan(derivative(function, order)(np.array([np.nan]))).all()


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_sinc_near_zero(dtype: str) -> None:
    """The quotient rule cancels near 0; at the seam |pi x| = 1 series and quotient agree."""
    x = np.array([1e-6, 1e-4, 1e-2, 0.3, 1 / np.pi - 1e-3, 1 / np.pi + 1e-3], dtype)
    a = np.pi * x.astype(np.longdouble)

    def series(order: int) -> Any:
        powers = range((order + 1) // 2 * 2, 40, 2)
        terms = [
            (-1) ** (k // 2) * a ** (k - order) * math.perm(k, order) / math.factorial(k + 1)
            for k in powers
        ]
        return np.sum(terms, axis=0) * np.longdouble(np.pi) ** order

    tolerance = 50 * np.finfo(dtype).eps
    for order in (0, 1, 2):
        got = np.asarray(derivative(wf.sinc, order)(x))
        np.testing.assert_allclose(got, series(order).astype(float), rtol=tolerance)
    z = np.array([0.1 + 0.1j, 2 - 1j, 0j])
    np.testing.assert_allclose(wf.sinc(z), np.sinc(z), rtol=1e-14)
    assert np.isnan(wf.sinc(np.array([np.nan, np.inf]))).all()


def test_xlogy_where_the_logarithm_is_no_number() -> None:
    """0 times it is 0, and no gradient is NaN (SciPy's values)."""
    x, y = np.zeros(4), np.array([0.0, -1.0, np.inf, np.nan])
    np.testing.assert_array_equal(wf.xlogy(x, y), [0, 0, 0, np.nan])
    np.testing.assert_array_equal(wf.xlog1py(x, y - 1), [0, 0, 0, np.nan])
    for argnum in (0, 1):
        got = wf.grad(lambda a, b: wf.sum(wf.xlogy(a, b)), argnum)(x[:3], y[:3])
        np.testing.assert_array_equal(got, [0, 0, 0])
    z = np.array([0j, 0j, 1j])
    np.testing.assert_allclose(wf.xlogy(z, np.array([0j, -1 + 0j, 1j])), [0, 0, -np.pi / 2])


def test_impossible_classes_have_no_gradient() -> None:
    """A class with probability 0 and logit -inf counts nothing."""
    labels, logits = np.array([0.0, 1.0, 0.0]), np.array([-np.inf, 2.0, 2.0])

    def loss(z: Any, x: Any) -> Any:
        return wf.nn.softmax_cross_entropy_with_logits(labels=z, logits=x)

    of_labels, of_logits = wf.grad(loss, (0, 1))(labels, logits)
    np.testing.assert_allclose(of_labels, [0, LOG2, LOG2])
    np.testing.assert_allclose(of_logits, [0, -0.5, 0.5])
