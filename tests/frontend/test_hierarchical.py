"""Hierarchical softmax against decisions in NumPy, one after the other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft as wf

N = wf.nn


@pytest.mark.share(3)
@pytest.mark.parametrize("classes", [2, 3, 8, 13])
@pytest.mark.parametrize("biased", [True, False])
def test_hierarchical_softmax(classes: int, biased: bool) -> None:
    """Each class from its leaf to the root; and the probabilities of all are 1."""
    rng = np.random.default_rng(classes)
    w, x = rng.normal(size=(classes - 1, 3)), rng.normal(size=(4, 3))
    b = rng.normal(size=classes - 1) if biased else None
    call = wf.compile(lambda w, x, c: N.hierarchical_softmax_loss(w, b, c, x))
    total = np.zeros(4)
    for c in range(classes):
        got = call(w, x, np.full(4, c)).numpy()
        expected = np.zeros(4)
        node = classes + c
        while node > 1:
            parent, goes_right = divmod(node, 2)
            logit = x @ w[parent - 1] + (b[parent - 1] if b is not None else 0.0)
            p = 1 / (1 + np.exp(-logit))
            expected -= np.log(p if goes_right else 1 - p)
            node = parent
        np.testing.assert_allclose(got, expected, rtol=1e-10)
        total += np.exp(-got)
    np.testing.assert_allclose(total, 1.0, rtol=1e-10)


def test_gradients() -> None:
    """Against central differences; only rows on the way have any."""
    rng = np.random.default_rng(0)
    w, x, labels = rng.normal(size=(6, 3)), rng.normal(size=(2, 3)), np.array([1, 1])
    loss = lambda w: wf.sum(N.hierarchical_softmax_loss(w, None, labels, x))  # noqa: E731
    slope = wf.compile(wf.grad(loss))(w).numpy()
    for at in np.ndindex(*w.shape):
        step = np.zeros_like(w)
        step[at] = 1e-6
        difference = (float(loss(w + step)) - float(loss(w - step))) / 2e-6
        np.testing.assert_allclose(slope[at], difference, rtol=1e-5, atol=1e-9)
    assert np.flatnonzero(slope.any(1)).tolist() == [0, 1, 3]  # leaf 7 + 1: nodes 4, 2, 1


@pytest.mark.slow
def test_training_touches_the_rows_looked_up() -> None:
    """A variable's slots, too: the gradient is of rows."""
    w = wf.Variable(np.zeros((1023, 4), np.float32))
    optimizer = wf.train.Adagrad(0.5)
    rng = np.random.default_rng(0)

    @wf.compile
    def step(x: Any, labels: Any) -> Any:
        loss = wf.mean(N.hierarchical_softmax_loss(w, None, labels, x))
        optimizer.minimize(loss)
        return loss

    x, labels = rng.normal(size=(8, 4)).astype(np.float32), np.arange(8)
    losses = [float(step(x, labels)) for _ in range(200)]
    assert losses[-1] < 0.6 * losses[0]
    assert (w.numpy().any(1)).sum() <= 7 + 7  # 1024 leaves: seven nodes above, seven among 8


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: N.hierarchical_softmax_loss(np.zeros((3, 2)), None, [4], np.zeros((1, 2))),
         "InvalidArgumentError", "out of"),
        (lambda: N.hierarchical_softmax_loss(np.zeros((3, 2)), None, [-1], np.zeros((1, 2))),
         "InvalidArgumentError", "out of"),
        (lambda: N.hierarchical_softmax_loss(np.zeros((3, 2)), None, [0], np.zeros((1, 3))),
         "ShapeError", r"are not \[classes - 1, dim\]"),
        (lambda: N.hierarchical_softmax_loss(np.zeros((3, 2)), [0.0], [0], np.zeros((1, 2))),
         "ShapeError", r"biases \[1\]"),
    ],
)  # fmt: skip
def test_errors(call: Callable[[], Any], error: str, message: str) -> None:
    with pytest.raises(getattr(wf.errors, error), match=message) as caught:
        call()
    assert caught.value.locations[0].file == __file__
