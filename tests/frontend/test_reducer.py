"""`wf.reducer`: functions of two numbers as reductions, by both engines."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
import pytest
from cuda_device import use_device
from example_counts import examples
from hypothesis import given
from hypothesis import strategies as st

import weft as wf


@pytest.fixture(autouse=True, params=["llvm", pytest.param("numba", marks=pytest.mark.slow)])
def _engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_ENGINE", request.param)


@wf.reducer(init=0.0)
def farthest(a: Any, b: Any) -> Any:
    """The number of the largest magnitude."""
    return a if abs(a) >= abs(b) else b


@wf.reducer(init=-math.inf)
def log_sum(a: Any, b: Any) -> Any:
    return wf.logaddexp(a, b)


@wf.reducer(init=0)
def gcd(a: Any, b: Any) -> Any:
    while b != 0:
        a, b = b, a % b
    return a


def sequential(f: Any, x: Any, axis: Any, keepdims: bool = False) -> Any:
    """Element after element, in Python."""
    axes = range(x.ndim) if axis is None else np.atleast_1d(axis) % x.ndim
    for k in sorted(axes, reverse=True):
        x = np.apply_along_axis(lambda row: functools.reduce(f, row), k, x)
        x = np.expand_dims(x, k) if keepdims else x
    return x


@examples(60, deadline=None)
@given(
    st.lists(st.sampled_from([1, 2, 3, 7, 8, 9, 17, 65]), min_size=1, max_size=3),
    st.data(),
)
def test_over_any_axes_as_one_after_the_other(shape: list[int], data: st.DataObject) -> None:
    axis = data.draw(st.one_of(st.none(), st.integers(-len(shape), len(shape) - 1)))
    x = np.random.default_rng(sum(shape)).permutation(math.prod(shape)).reshape(shape)
    x = np.where(x % 3 == 0, -x, x).astype(np.float32)
    keepdims = data.draw(st.booleans())
    wanted = sequential(lambda a, b: a if abs(a) >= abs(b) else b, x, axis, keepdims)
    got = wf.compile(lambda x: farthest(x, axis=axis, keepdims=keepdims))(x)
    np.testing.assert_array_equal(got, wanted)
    assert got.shape == np.sum(x, axis, keepdims=keepdims).shape


def test_integers_and_loops() -> None:
    x = np.random.default_rng(0).integers(1, 50, (5, 23)) * 6
    assert wf.compile(lambda x: gcd(x, axis=1))(x).tolist() == np.gcd.reduce(x, 1).tolist()
    assert gcd(x).numpy() == np.gcd.reduce(x.ravel())
    assert gcd(x.astype(np.int32)).dtype is wf.int32
    assert gcd(x[:, :0], axis=1).tolist() == [0] * 5
    np.testing.assert_array_equal(gcd(x, axis=()), x)


def test_known_folds_are_wefts_own() -> None:
    total = wf.reducer(init=0)(lambda a, b: b + a)
    largest = wf.reducer(init=-math.inf)(lambda a, b: wf.maximum(a, b))
    other = wf.reducer(init=3)(lambda a, b: a + b)  # not what a sum starts from
    x = np.arange(20, dtype=np.float32).reshape(4, 5)

    def names(f: Any) -> set[str]:
        return {op.name for op in wf.compile(lambda x: f(x, axis=1)).trace(x).walk()}

    assert "sum" in names(total)
    assert "max" in names(largest)
    assert "sum" not in names(other)
    np.testing.assert_array_equal(total(x, axis=0), x.sum(0))
    assert total(x.astype(np.uint8)).dtype is wf.uint8
    np.testing.assert_array_equal(largest(x, axis=1), x.max(1))
    np.testing.assert_array_equal(other(x, axis=1), x.sum(1))


def test_gradients() -> None:
    x = np.random.default_rng(1).normal(size=(3, 20)).astype(np.float32)
    got = wf.compile(wf.grad(lambda x: wf.sum(log_sum(x, axis=1))))(x)
    soft = np.exp(x - x.max(1, keepdims=True))
    np.testing.assert_allclose(got, soft / soft.sum(1, keepdims=True), rtol=1e-4)
    with pytest.raises(wf.errors.GradientError, match="def_gradient"):
        wf.grad(lambda x: wf.sum(farthest(x, axis=1)))(x)


def test_in_sessions_and_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    value = np.random.default_rng(2).normal(size=(4, 19)).astype(np.float32)
    wanted = sequential(lambda a, b: a if abs(a) >= abs(b) else b, value, 1)
    with wf.Graph().as_default(), wf.Session() as session:
        x = wf.placeholder(wf.float32, [None, 19])
        np.testing.assert_array_equal(session.run(farthest(x, axis=1), {x: value}), wanted)
        with pytest.raises(wf.errors.UnsupportedError, match="needs the size of axis 0") as caught:
            farthest(x, axis=0)
        assert "test_reducer.py" in str(caught.value)
    monkeypatch.setenv("WEFT_ENGINE", "llvm")  # kernels of GPUs have no other engine
    use_device("check", monkeypatch)
    got = wf.compile(lambda x: farthest(x, axis=1), device="gpu:0")(value)
    np.testing.assert_array_equal(got.numpy(), wanted)


def test_bad_reducers() -> None:
    with pytest.raises(wf.errors.InvalidArgumentError, match="two numbers"):
        wf.reducer(init=0)(lambda a: a)
    with pytest.raises(wf.errors.InvalidArgumentError, match="init must be a Python number"):
        wf.reducer(init="0")(lambda a, b: a)  # type: ignore[arg-type]
    differ = wf.reducer(init=False)(lambda a, b: a < b)
    with pytest.raises(wf.errors.TypeRuleError, match="gives bool for two of float32"):
        differ(np.ones(3, np.float32))
    with pytest.raises(wf.errors.InvalidArgumentError, match="axis"):
        farthest(np.ones(3, np.float32), axis=2)
