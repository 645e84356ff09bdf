"""`donate=`: results in the memory of arguments, and every way in which that is not possible."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import weft as wf
from weft.ir.errors import FailedPreconditionError, InvalidArgumentError

X = np.arange(6, dtype=np.float32).reshape(2, 3)


def address(t: Any) -> int:
    return int(t._data.ctypes.data)


def test_the_result_is_where_the_argument_was() -> None:
    f = wf.compile(donate="x")(lambda x, y: x * 2 + y)
    x = wf.asarray(X)
    before = address(x)
    for k in range(1, 4):
        x = f(x, 1.0)
        assert address(x) == before
        np.testing.assert_allclose(x.numpy(), X * 2**k + 2**k - 1)


def test_a_training_step_keeps_its_memory() -> None:
    @wf.compile(donate=("params", "state"))
    def step(params: Any, state: Any, grad: Any) -> Any:
        new = {k: state[k] + grad * grad for k in state}
        return {k: params[k] - grad * wf.rsqrt(new[k] + 1) for k in params}, new

    params = {k: wf.asarray(X + i) for i, k in enumerate("ab")}
    state = {k: wf.zeros((2, 3)) for k in "ab"}
    homes = {address(t) for t in (*params.values(), *state.values())}
    wanted_p, wanted_s = {k: t.numpy().copy() for k, t in params.items()}, 0.0
    for _ in range(5):
        params, state = step(params, state, X)
        wanted_s = wanted_s + X * X
        wanted_p = {k: p - X / np.sqrt(wanted_s + 1) for k, p in wanted_p.items()}
    assert {address(t) for t in (*params.values(), *state.values())} == homes
    for k in "ab":
        np.testing.assert_allclose(params[k].numpy(), wanted_p[k], rtol=1e-5)
        np.testing.assert_allclose(state[k].numpy(), wanted_s, rtol=1e-6)
    described = step.explain(params, state, X)
    assert "results 0;" in described


def test_a_donated_tensor_says_where_it_went() -> None:
    f = wf.compile(donate="x")(lambda x: x + 1)
    x = wf.asarray(X)
    f(x)
    assert "donated" in repr(x)
    for use in (lambda: x + 1, lambda: x.numpy(), lambda: x.shape, lambda: np.asarray(x),
                lambda: f(x), lambda: wf.sum(x), lambda: x[0], lambda: float(x),
                lambda: wf.compile(lambda y: y)(x),
                lambda: wf.compile(lambda: x + 1)()):  # fmt: skip
        with pytest.raises(FailedPreconditionError, match=r"was donated to 'lambda' at .*f\(x\)"):
            use()


def refused(match: str, f: Any, *args: Any) -> None:
    with pytest.raises((InvalidArgumentError, TypeError), match=match):
        f(*args)


def test_what_no_result_can_take_over() -> None:
    refused("no result of that type", wf.compile(donate="x")(lambda x: wf.sum(x)), wf.asarray(X))
    refused("no result of that type", wf.compile(donate="x")(lambda x: (x + 1, x)), wf.asarray(X))
    refused(
        "no result of that type",
        wf.compile(donate="x")(lambda x: wf.matmul(x, x)),
        wf.ones((40, 40)),
    )
    kept = wf.asarray(X)
    refused("cannot use the donated 'x'", wf.compile(donate="x")(lambda x: x > 1), kept)
    np.testing.assert_array_equal(kept.numpy(), X)


def memoryview_of(t: Any) -> memoryview:
    return memoryview(np.asarray(t))


def test_memory_that_others_see() -> None:
    f = wf.compile(donate="x")(lambda x, y: x + y)
    x, y = wf.asarray(X), wf.asarray(X)
    refused("NumPy|ndarray", f, X, y)
    refused("float", wf.compile(donate="x")(lambda x: x + 1), 1.0)
    for take in (lambda t: t.numpy(), np.asarray, np.from_dlpack, memoryview_of):
        view = take(x)
        refused("is seen by an array", f, x, y)
        np.testing.assert_array_equal(view, X)
        del view
    refused("more than once", f, x, x)
    assert f(x, y).shape == (2, 3)
    g = wf.compile(donate="x")(lambda x: x * 3)
    whole = wf.asarray(X)
    part = wf.reshape(whole, (6,))
    if np.shares_memory(part.numpy(), whole.numpy()):
        refused("shares its memory|is seen", g, part)
        refused("is seen by", g, whole)


def test_names_are_checked() -> None:
    with pytest.raises(InvalidArgumentError, match="donate names 'z'"):
        wf.compile(donate="z")(lambda x: x)
    with pytest.raises(InvalidArgumentError, match="static_argnames and in donate"):
        wf.compile(donate="x", static_argnames="x")(lambda x: x)


def test_methods_and_keywords() -> None:
    class Model:
        @wf.compile(donate="state")
        def step(self, x: Any, state: Any) -> Any:
            return state + x

    state = wf.zeros((2, 3))
    home = address(state)
    result = Model().step(X, state=state)
    assert address(result) == home
    np.testing.assert_array_equal(result.numpy(), X)


def test_a_failing_call_took_the_memory_all_the_same() -> None:
    f = wf.compile(donate="x")(lambda x, i: (x + 1, wf.take(X, i, axis=0)))
    x = wf.asarray(X)
    f(wf.asarray(X), np.array([1]))
    refused("out of bounds", f, x, np.array([9]))
    with pytest.raises(FailedPreconditionError, match="donated"):
        x.numpy()


def test_in_a_trace_it_means_nothing() -> None:
    inner = wf.compile(donate="x")(lambda x: x + 1)
    outer = wf.compile(lambda x: inner(x) * x)
    np.testing.assert_array_equal(outer(X).numpy(), (X + 1) * X)


def test_parameters_by_position() -> None:
    """As JAX's donate_argnums; the name is the same thing."""
    for donate in (0, -2, [0], (0, "x"), {"x"}):
        f = wf.compile(donate=donate)(lambda x, y: x * 2 + y)  # type: ignore[arg-type]
        x = wf.asarray(X)
        before = address(x)
        assert address(f(x, 1.0)) == before, donate

    class Model:
        @wf.compile(donate=1)
        def double(self, x: Any) -> Any:
            return x * 2

    x = wf.asarray(X)
    before = address(x)
    assert address(Model().double(x)) == before
    power = wf.compile(static_argnames=1)(lambda x, n: x**n)
    assert power(X, 2).tolist() == (X**2).tolist()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"donate": 2}, "donate names parameter 2, but 'f' has 2: x, y"),
        ({"donate": -3}, "donate names parameter -3, but 'f' has 2: x, y"),
        ({"donate": True}, "donate takes names or positions of parameters, but got a bool: True"),
        ({"donate": 0.5}, "donate takes names or positions of parameters, but got a float: 0.5"),
        ({"donate": ["x", None]}, "but got a NoneType: None"),
        ({"static_argnames": b"x"}, "static_argnames names parameter 120, but 'f' has 2"),
        ({"donate": 0, "static_argnames": "x"}, "'x' is in static_argnames and in donate"),
    ],
)
def test_what_names_no_parameter(options: Any, said: str) -> None:
    def f(x: Any, y: Any) -> Any:
        return x + y

    with pytest.raises(InvalidArgumentError, match=said):
        wf.compile(**options)(f)
