"""float16 and bfloat16: composed functions leave the range of 16 bits only in their result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft as wf

ROW = np.array([300.0, -300.0, 300.0, -300.0])
LONG = np.zeros(70000)
RAMP = np.linspace(-300, 300, 12).reshape(3, 4)
HALVES = np.concatenate([[0.5, 0.5], np.zeros(69998)])
LABELS = np.array([1.0, 0.0, 0.25, 0.0])


def sparse(x: Any) -> Any:
    return wf.nn.sparse_softmax_cross_entropy_with_logits(labels=[3], logits=x[None])


def dense(x: Any) -> Any:
    return wf.nn.softmax_cross_entropy_with_logits(labels=wf.astype(HALVES, x.dtype), logits=x)


# function, input, the right answer
CASES: dict[str, tuple[Callable[[Any], Any], Any, Any]] = {
    "layer_norm": (wf.nn.layer_norm, ROW, [1, -1, 1, -1]),
    "layer_norm weights": (
        lambda x: wf.nn.layer_norm(x, wf.full((4,), 2, dtype=x.dtype), 1.0), ROW, [3, -1, 3, -1],
    ),
    "batch_norm": (
        lambda x: wf.nn.batch_norm(x, *wf.nn.moments(x / 2, 0), None, None), ROW, [2, -2, 2, -2],
    ),
    "tiny variance": (
        lambda x: wf.nn.batch_norm(x, 0.0, wf.zeros(4, dtype=x.dtype), variance_epsilon=1e-8),
        ROW / 1e4, [300, -300, 300, -300],
    ),
    "mean": (wf.mean, LONG + 2, 2),
    "moments": (lambda x: wf.nn.moments(x).mean, LONG + 2, 2),
    "moments of many": (lambda x: wf.nn.moments(x).variance, LONG + 2, 0),
    "var": (wf.var, ROW * 0.5, 22500),
    "std": (wf.std, ROW, 300),
    "2-norm": (wf.linalg.vector_norm, ROW, 600),
    "3-norm": (lambda x: wf.linalg.vector_norm(x, ord=3), ROW, 300 * 4 ** (1 / 3)),
    "matrix_norm": (lambda x: wf.linalg.matrix_norm(x[None]), ROW, 600),
    "l2_loss": (lambda x: wf.nn.l2_loss(x), ROW[:1], 45000),
    "l2_normalize": (wf.nn.l2_normalize, ROW, [0.5, -0.5, 0.5, -0.5]),
    "l2_normalize of small": (wf.nn.l2_normalize, ROW[:2] / 1e6, np.sqrt([0.5, 0.5]) * [1, -1]),
    "mean_squared_error": (lambda x: wf.nn.mean_squared_error(x, x + 250), LONG, 62500),
    "softmax": (lambda x: wf.nn.softmax(x)[:2], LONG, [1 / 70000] * 2),
    "log_softmax": (lambda x: wf.nn.log_softmax(x)[:2], LONG, [-np.log(70000)] * 2),
    "logsumexp": (wf.logsumexp, LONG, np.log(70000)),
    "sparse loss": (sparse, LONG, [np.log(70000)]),
    "dense loss": (dense, LONG, np.log(70000)),
    "sigmoid loss": (
        lambda x: wf.nn.sigmoid_cross_entropy_with_logits(
            labels=wf.astype(LABELS, x.dtype), logits=x
        ),
        ROW / 10, [0, 0, 22.5, 0],
    ),
    "weighted loss": (
        lambda x: wf.nn.weighted_cross_entropy_with_logits(
            labels=wf.astype(LABELS, x.dtype), logits=x, pos_weight=4.0
        ),
        ROW / 10, [0, 0, 22.5, 0],
    ),
    "gelu": (lambda x: wf.nn.gelu(x, approximate=True), ROW, [300, 0, 300, 0]),
    "softplus": (wf.nn.softplus, ROW / 100, np.logaddexp(0, ROW / 100)),
}  # fmt: skip


@pytest.mark.share(4)
@pytest.mark.parametrize("dtype", [wf.float16, wf.bfloat16], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_values(name: str, dtype: Any) -> None:
    """Eager and compiled, correct to the rounding of the input and of the result."""
    function, x, expected = CASES[name]
    half = wf.astype(x, dtype)
    for call in (function, wf.compile(lambda t: function(t))):
        got = call(half)
        assert got.dtype is dtype
        eps = 2.0**-7 if dtype is wf.bfloat16 else 2.0**-10
        np.testing.assert_allclose(
            wf.astype(got, wf.float64), expected, rtol=eps, atol=1e-6 + 1e-2 * eps
        )


@pytest.mark.parametrize(
    "function",
    [wf.nn.layer_norm, wf.std, wf.linalg.vector_norm, wf.nn.l2_normalize, wf.nn.softmax,
     wf.logsumexp, lambda x: wf.nn.gelu(x, approximate=True), wf.nn.mish, wf.nn.log_sigmoid],
)  # fmt: skip
def test_gradients_are_those_of_float32(function: Callable[[Any], Any]) -> None:
    weights = np.array([1.0, 2.0, -3.0, 0.5], np.float32)
    gradient = wf.grad(lambda t: wf.sum(wf.astype(function(t), wf.float32) * weights))
    got = gradient(ROW.astype(np.float16))
    assert got.dtype is wf.float16
    expected = gradient(ROW.astype(np.float32))
    np.testing.assert_allclose(np.float32(got), expected, rtol=2e-3, atol=2e-7)


def test_norms_promote_with_their_weights() -> None:
    """The dtype of the result is that of all operands together, as before the float32 inside."""
    x = RAMP.astype(np.float16)
    single = np.ones(4, np.float32)
    assert wf.nn.layer_norm(x).dtype is wf.float16
    assert wf.nn.layer_norm(x, single).dtype is wf.float32
    assert wf.nn.layer_norm(x, [1, 1, 1, 1], 2.0).dtype is wf.float16
    assert wf.nn.batch_norm(x, 0.0, 1.0).dtype is wf.float16
    assert wf.nn.batch_norm(x, single, single).dtype is wf.float32
    loss = wf.nn.weighted_cross_entropy_with_logits
    assert loss(labels=x, logits=x, pos_weight=2).dtype is wf.float16
    assert loss(labels=x, logits=x, pos_weight=single).dtype is wf.float32
