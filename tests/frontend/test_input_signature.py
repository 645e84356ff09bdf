"""`wf.compile(input_signature=)`: one trace for all sizes, NumPy's results, what does not fit."""

from __future__ import annotations

import copy
import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

import weft as wf
from weft.ir.errors import (
    DeadlineExceededError,
    InvalidArgumentError,
    ShapeError,
    TypeRuleError,
)
from weft.ir.text.parser import parse_graph
from weft.passes.sizes import specialize_inputs
from weft.runtime.native.executable import compile_graph
from weft.runtime.native.size_plan import native_step_of_any_size
from weft.runtime.recorder import TraceRecorder
from weft.runtime.step import RunContext

X = wf.TensorType(wf.float32, (None, 8))
W = wf.TensorType(wf.float32, (8, 3))


def data(*shape: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def softmax(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def layer(x: Any, w: Any) -> Any:
    return wf.nn.softmax(x @ w)


@given(st.lists(st.integers(0, 40), min_size=1, max_size=6), st.integers(0, 9))
def test_results_for_any_sizes_are_those_of_numpy(counts: list[int], seed: int) -> None:
    f = wf.compile(layer, input_signature=[X, W])
    w = data(8, 3, seed=seed)
    for n in counts:
        x = data(n, 8, seed=seed + n)
        got = f(x, w)
        assert got.shape == (n, 3)
        assert_allclose(got, softmax(x @ w), rtol=1e-5, atol=1e-6)
    assert f.cache_info().made == 1


def test_the_function_is_traced_once() -> None:
    calls = []

    @wf.compile(input_signature=[X])
    def f(x: Any) -> Any:
        calls.append(x.shape)
        return wf.sum(x, axis=0) * x.shape[0]

    for n in (5, 1, 0, 33, 5, 7):
        assert_allclose(f(np.ones((n, 8), np.float32)), np.full(8, n * n))
    assert len(calls) == 1
    assert str(calls[0][0]) == "x_0"


def test_gradients_and_variables() -> None:
    w = wf.Variable(data(8, 3))
    held = np.asarray(w).copy()

    @wf.compile(input_signature=[X, wf.TensorType(wf.float32, (None, 3))])
    def step(x: Any, y: Any) -> Any:
        def loss(value: Any) -> Any:
            return wf.mean((x @ value - y) ** 2)

        found, gradient = wf.value_and_grad(loss)(w)
        w.assign_sub(0.1 * gradient)
        return found

    for n in (4, 6, 11, 16, 17):
        x, y = data(n, 8, seed=n), data(n, 3, seed=-n % 97)
        off = x @ held - y
        assert_allclose(step(x, y), np.mean(off**2), rtol=1e-4)
        held = held - 0.1 * (x.T @ (off * 2 / off.size))
        assert_allclose(np.asarray(w), held, rtol=1e-4, atol=1e-5)
    assert step.cache_info().made == 1


def test_names_are_sizes_that_must_agree() -> None:
    of = wf.TensorType(wf.float32, ("batch", 2))
    f = wf.compile(lambda a, b: a + b, input_signature=[of, of])
    assert_array_equal(
        f(np.ones((3, 2), np.float32), np.ones((3, 2), np.float32)), np.full((3, 2), 2)
    )
    with pytest.raises(ShapeError, match="batch") as caught:
        f(np.ones((3, 2), np.float32), np.ones((4, 2), np.float32))
    assert caught.value.locations[0].file == __file__


def test_containers_numbers_keywords_and_static_arguments() -> None:
    @wf.compile(
        static_argnames="twice",
        input_signature=[{"a": X, "b": wf.TensorType(wf.float32, (8,))}, wf.TensorType(wf.float32)],
    )
    def f(p: Any, s: Any, twice: bool = False) -> Any:
        return (p["a"] + p["b"]) * s * (2 if twice else 1)

    x, b = data(5, 8), data(8)
    assert_allclose(f({"a": x, "b": b}, 3), (x + b) * 3, rtol=1e-6)
    assert_allclose(f({"a": x, "b": b}, s=np.float32(0.5), twice=True), x + b, rtol=1e-6)
    assert f.cache_info().made == 2  # for each value of the static argument


@pytest.mark.parametrize("size", [None, 4])
def test_python_numbers_become_the_dtype_that_is_given(size: int | None) -> None:
    """Each time: what is quick for calls that were met before converts nothing."""
    kinds = [wf.TensorType(wf.float32, (size,)), wf.TensorType(wf.float32)]
    f = wf.compile(lambda x, s: x * s, input_signature=kinds)
    x = data(4)
    for s in (3, 3, 2.5, 2.5, True * 1.5, np.float32(4), np.float32(4), 2, wf.asarray(x)[0], 7):
        for _ in range(3):
            got = f(x, s)
            assert got.dtype is wf.float32
            assert_array_equal(got, x * np.float32(s))
    assert f.cache_info().made == 1


def test_python_integers_that_do_not_fit() -> None:
    f = wf.compile(lambda i: i + 0, input_signature=[wf.TensorType(wf.int8)])
    assert_array_equal(f(100), 100)
    with pytest.raises(InvalidArgumentError, match="300 of a Python number"):
        f(300)
    with pytest.raises(InvalidArgumentError, match="argument i"):
        f(1.5)


def test_deadlines_end_steps_of_open_and_traced_sizes() -> None:
    graph = parse_graph(ENDLESS)
    late = RunContext(timeout=0.1)
    with pytest.raises(DeadlineExceededError):
        native_step_of_any_size(graph, {}).run([np.zeros(3, np.float32)], late)
    static = compile_graph(specialize_inputs(graph, [(3,)]))
    with pytest.raises(DeadlineExceededError):
        static.run([np.zeros(3, np.float32)], RunContext(timeout=0.1, recorder=TraceRecorder()))


ENDLESS = """
graph @g(%x: f32[n]) -> (f32[n]) stage=traced {
  %0 = while(%x) {carries=1, limit=-1, parallel_iterations=10} : f32[n] {
    ^(%a0: f32[n])
    %0 = constant() {value=bool[] true} : bool[]
    yield %0
  } {
    ^(%a0: f32[n])
    %0 = sin(%a0) : f32[n]
    yield %0
  }
  return %0
}
"""


def test_what_tells_of_the_function_tells_of_these_sizes() -> None:
    f = wf.compile(layer, input_signature=[X, W])
    x, w = data(6, 8), data(8, 3)
    f(x, w)
    assert "f32[x_0,8]" in f.explain(x, w)
    assert "one call runs" in f.explain(x, w)
    assert "f32[6,8]" in f.ir(x, w)
    assert "f32[9,8]" in f.ir(wf.TensorType(wf.float32, (9, 8)), W, after="traced")
    assert "x_0" in str(f.trace(x, w))
    assert "define" in f.llvm(x, w)
    assert f.asm(x, w)


def test_methods_copies_and_threads() -> None:
    class Model:
        def __init__(self) -> None:
            self.w = wf.Variable(data(8, 3))

        @wf.compile(input_signature=[X])
        def __call__(self, x: Any) -> Any:
            return x @ self.w

    model = Model()
    w = np.asarray(model.w)
    assert_allclose(copy.copy(model)(data(2, 8)), data(2, 8) @ w, rtol=1e-5, atol=1e-6)
    wrong: list[int] = []

    def run(n: int) -> None:
        for k in range(n, n + 30, 3):
            if not np.allclose(model(data(k, 8)), data(k, 8) @ w, rtol=1e-4, atol=1e-5):
                wrong.append(k)

    threads = [threading.Thread(target=run, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_smaller_instruction_set() -> None:
    f = wf.compile(layer, input_signature=[X, W], target="x86-64-v2")
    x, w = data(6, 8), data(8, 3)
    assert_allclose(f(x, w), softmax(x @ w), rtol=1e-5, atol=1e-6)
    assert "compiled for x86-64-v2" in f.explain(x, w)


def test_static_signatures_are_checked_too() -> None:
    f = wf.compile(lambda w: w * 2, input_signature=[W])
    assert_array_equal(f(np.ones((8, 3), np.float32)), np.full((8, 3), 2))
    with pytest.raises(InvalidArgumentError, match=r"argument w .* is f32\[7,3\]"):
        f(np.ones((7, 3), np.float32))


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ((data(3, 7), data(8, 3)), r"argument x of 'layer' is f32\[3,7\]"),
        ((data(3, 8).astype(np.float64), data(8, 3)), r"argument x of 'layer' is f64\[3,8\]"),
        ((data(8), data(8, 3)), r"argument x of 'layer' is f32\[8\]"),
        (([data(3, 8)], data(8, 3)), "was called with"),
        ((1j, data(8, 3)), "argument x of 'layer'"),
    ],
)
def test_arguments_that_do_not_fit(args: Any, says: str) -> None:
    f = wf.compile(layer, input_signature=[X, W])
    with pytest.raises(InvalidArgumentError, match=says) as caught:
        f(*args)
    assert caught.value.locations[0].file == __file__
    assert_allclose(f(data(2, 8), data(8, 3)), softmax(data(2, 8) @ data(8, 3)), rtol=1e-5)


def test_signatures_that_are_none() -> None:
    with pytest.raises(TypeRuleError, match="input_signature of 'layer' is a TensorType"):
        wf.compile(layer, input_signature=X)  # type: ignore[call-overload]
    with pytest.raises(TypeRuleError, match="has 3 at x"):
        wf.compile(layer, input_signature=[3, W])
