"""Programs with scalar functions of the user's: compiled by Numba, with a gradient, in a loop."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import weft as wf


@wf.elementwise
def bent(x: Any, *, slope: float = 0.25) -> Any:
    """Branches: Numba compiles it."""
    if x > 0:
        return x + math.sin(x)
    return slope * (math.exp(x) - 1)


@bent.def_gradient
def bent_gradient(op: Any, dy: Any) -> Any:
    (x,) = op.inputs
    return dy * wf.where(x > 0, 1 + wf.cos(x), op.attrs["slope"] * wf.exp(x))


@wf.elementwise
def halvings(x: Any, n: Any) -> Any:
    """A loop of its own over an integer operand."""
    for _ in range(n):
        x = x / 2 if x > 1 else 3 * x + 0.1
    return x


@wf.elementwise
def squashed(x: Any, y: Any = 1.0) -> Any:
    """Traced."""
    return math.tanh(x) / (1 + abs(x * y))


def trained(x: Any, w: Any) -> Any:
    """A value and its gradient, beside sums of rows."""

    def loss(w: Any) -> Any:
        y = bent(x @ w)
        return wf.sum(squashed(y, 0.5)) + wf.sum(wf.nn.softmax(bent(y - 1)) * y)

    return wf.value_and_grad(loss)(w)


def looped(x: Any, n: Any) -> Any:
    """In a loop of weft's, and on integers."""
    y = wf.fori_loop(0, 3, lambda i, v: bent(v) + 0.5 * halvings(v, n), x)
    return y, halvings(wf.astype(n, wf.float32), n), wf.sum(bent(y), axis=0)


_RNG = np.random.default_rng(5)
PROGRAMS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "trained": (
        trained,
        (_RNG.normal(size=(7, 5)).astype("f4"), _RNG.normal(size=(5, 6)).astype("f4")),
    ),
    "looped": (looped, (_RNG.normal(size=(4, 9)).astype("f4"), np.arange(9) % 4)),
}
