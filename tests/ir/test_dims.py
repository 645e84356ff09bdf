"""Symbolic dimensions as numbers: what stays a dimension, what becomes a tensor, what has no
value."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose

import weft as wf
from weft.ir.dims import SymbolicDim
from weft.ir.errors import InvalidArgumentError, ShapeError, TracerError
from weft.ir.text.parser import parse_dim

N = SymbolicDim.symbol("n")


@pytest.fixture
def x() -> Iterator[Any]:
    with wf.Graph("g").as_default():
        yield wf.placeholder(wf.float32, ["n", 3], name="x")


def run(t: Any, x: Any, size: int = 4) -> Any:
    return wf.Session(graph=x._trace.owner).run(t, {x: np.ones((size, 3))})


@pytest.mark.parametrize(
    ("dim", "text"),
    [
        (N + np.int64(3), "n+3"),
        (np.int64(3) * N, "3*n"),
        (3 - N, "-n+3"),
        (-N + True, "-n+1"),
        (N**2 * N, "n*n*n"),
        (N**0, "1"),
        ((N * 6) // 3, "2*n"),
    ],
)
def test_integers_and_dimensions_give_dimensions(dim: Any, text: str) -> None:
    assert isinstance(dim, (int, SymbolicDim))
    assert dim == parse_dim(text)


@pytest.mark.parametrize(
    ("compute", "value", "dtype"),
    [
        (lambda n, t: t / n, 3.0, wf.float32),
        (lambda n, t: n / t, 1 / 3, wf.float32),
        (lambda n, t: n * t, 48.0, wf.float32),
        (lambda n, t: n - t, -8.0, wf.float32),
        (lambda n, t: t - n, 8.0, wf.float32),
        (lambda n, t: t // n, 3.0, wf.float32),
        (lambda n, t: t / (n * 3), 1.0, wf.float32),
        (lambda n, t: t / (2 * n * n - n - 4), 0.5, wf.float32),
        (lambda n, t: (n - 5) * wf.ones(()), -1.0, wf.float32),
        (lambda n, t: wf.astype(t, wf.int32) + n, 16, wf.int32),
        (lambda n, t: np.float32(2) * n, 8.0, wf.float32),
        (lambda n, t: np.ones(2, np.float64) * n, [4.0, 4.0], wf.float64),
        (lambda n, t: t > n, True, wf.bool),
        (lambda n, t: n > t, False, wf.bool),
        (lambda n, t: n == t, False, wf.bool),
        (lambda n, t: n != t, True, wf.bool),
        (lambda n, t: t == 3 * n, True, wf.bool),
        (lambda n, t: t * (n / 8), 6.0, wf.float32),
        (lambda n, t: t * (1.0 / n), 3.0, wf.float32),
        (lambda n, t: n % 3, 1, wf.int64),
        (lambda n, t: 7 // n, 1, wf.int64),
        (lambda n, t: 2**n, 16, wf.int64),
    ],
)
def test_with_a_tensor_or_a_float_a_dimension_is_its_value(
    x: Any, compute: Callable[[Any, Any], Any], value: Any, dtype: Any
) -> None:
    t = compute(x.shape[0], wf.sum(x))
    assert t.dtype is dtype
    assert_allclose(run(t, x), value, rtol=1e-6)


def test_the_value_follows_the_feed_and_gradients_pass_it_by(x: Any) -> None:
    mean = wf.sum(x * x) / x.shape[0]
    (g,) = wf.gradients(mean, [x])
    for size in (1, 4, 7):
        assert run(mean, x, size) == 3
        assert_allclose(run(g, x, size), np.full((size, 3), 2 / size), rtol=1e-6)


def test_the_value_comes_from_whichever_feed_decides_it(x: Any) -> None:
    y = wf.placeholder(wf.float32, ["n"], name="y")
    session = wf.Session()
    assert session.run(wf.sum(y) / x.shape[0], {y: [1.0, 2.0]}) == 1.5
    with pytest.raises(InvalidArgumentError, match=r"feeds do not say the shape \[n\]") as caught:
        session.run(1.0 / x.shape[0])
    assert "1.0 / x.shape[0]" in str(caught.value)


@pytest.mark.parametrize(
    ("use", "error", "match"),
    [
        (lambda n: n > 2, ShapeError, r"comparison `n > 2` has no value yet"),
        (lambda n: n <= n + 1, ShapeError, r"comparison `n <= n\+1` has no value yet"),
        (lambda n: max(n, 1), ShapeError, "has no value yet"),
        (range, ShapeError, "the dimension n has no value yet"),
        (float, ShapeError, "the dimension n has no value yet"),
        (lambda n: [0] * n, ShapeError, "the dimension n has no value yet"),
        (lambda n: n // 2, ShapeError, "n is not known to be divisible by 2"),
        (lambda n: n // 0, ShapeError, "n is not known to be divisible by 0"),
        (lambda n: n**-1, ShapeError, r"`n \*\* -1` is no size"),
    ],
)
def test_what_python_needs_at_once(
    x: Any, use: Callable[[Any], Any], error: type[Exception], match: str
) -> None:
    with pytest.raises(error, match=match) as caught:
        use(x.shape[0])
    assert caught.value.locations[0].file == __file__  # type: ignore[attr-defined]
    assert "hint: " in str(caught.value)


def test_outside_the_graph_a_dimension_has_no_value() -> None:
    with wf.Graph("g").as_default():
        x = wf.placeholder(wf.float32, ["n"])
    with pytest.raises(TracerError, match="sizes that have values only while the graph"):
        operator.truediv(x.shape[0], 2)


def test_what_is_no_number_is_refused_by_python(x: Any) -> None:
    for other in (None, object()):
        with pytest.raises(TypeError, match="unsupported operand"):
            x.shape[0] + other
