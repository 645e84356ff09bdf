"""What tests of composed functions share: eager and compiled results beside an array, and gradients
beside a difference."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft as wf

Array = np.ndarray[Any, Any]


def check(
    f: Callable[..., Any],
    xs: tuple[Any, ...],
    expected: Any,
    rtol: float = 0,
    atol: float | None = None,
) -> None:
    """f eagerly and compiled: the dtype, shape and values of `expected`; atol: as rtol."""
    expected = np.asarray(expected)
    for got in (f(*xs), wf.compile(lambda *xs: f(*xs))(*xs)):
        assert got.dtype == expected.dtype
        assert got.shape == expected.shape
        np.testing.assert_allclose(got, expected, rtol=rtol, atol=rtol if atol is None else atol)


def check_gradient(
    f: Callable[..., Any], *xs: Array, step: float = 1e-6, compiled: bool = True
) -> None:
    """The gradient by all arguments, along one random direction: a difference, and weft's two
    modes, eager and compiled."""
    rng = np.random.default_rng(0)
    weights = rng.random(f(*xs).shape)
    total = lambda *xs: wf.sum(f(*xs) * weights)  # noqa: E731
    ways = [rng.normal(size=x.shape) for x in xs]
    ahead, behind = (
        float(total(*(x + s * step * w for x, w in zip(xs, ways, strict=True)))) for s in (1, -1)
    )
    wanted = pytest.approx((ahead - behind) / (2 * step), rel=1e-6, abs=1e-6)
    grad = wf.grad(total, tuple(range(len(xs))))
    for run in (grad, wf.compile(grad))[: 1 + compiled]:
        slopes = run(*xs)
        assert sum(float(np.sum(s * w)) for s, w in zip(slopes, ways, strict=True)) == wanted
    assert float(wf.jvp(total, xs, tuple(ways))[1]) == wanted
