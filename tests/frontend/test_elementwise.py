"""`wf.elementwise`: scalar Python functions on tensors, traced and compiled, by both engines."""

from __future__ import annotations

import math
import pickle  # noqa: TID251  # what users do to functions
import sys
from collections.abc import Callable
from math import sqrt
from typing import Any

import numpy as np
import pytest
from example_counts import examples
from hypothesis import given
from hypothesis import strategies as st

import weft as wf
from weft.frontend.eager.numpy_calls import SWITCH
from weft.ir.interpreter.evaluate import interpret
from weft.ir.ops.scalar_function import find_scalar_function
from weft.ir.text.parser import parse_graph
from weft.ir.text.printer import print_graph

X = np.linspace(-2, 2, 9, dtype=np.float32)


@pytest.fixture(autouse=True, params=["llvm", pytest.param("numba", marks=pytest.mark.slow)])
def _engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_ENGINE", request.param)


@wf.elementwise
def smooth(x: Any, *, beta: float = 2.0) -> Any:
    return math.log1p(math.exp(beta * x)) / beta


@wf.elementwise
def elu(x: Any, *, alpha: float = 0.5) -> Any:
    if x > 0:
        return x
    return alpha * (math.exp(x) - 1)


@wf.elementwise
def steps(n: Any) -> Any:
    count = 0
    while n > 1:
        n = n // 2 if n % 2 == 0 else 3 * n + 1
        count += 1
    return count


def ops(f: Any, *args: Any) -> list[str]:
    return [op.name for op in f.trace(*args).walk()]


def numpy_elu(x: Any, alpha: float = 0.5) -> Any:
    return np.where(x > 0, x, alpha * (np.exp(np.minimum(x, 0)) - 1))


# ---------------------------------------------------------------------------------------- traced
def test_traced_functions_are_ops() -> None:
    f = wf.compile(lambda x: smooth(x) + 1)
    assert "scalar_function" not in ops(f, X)
    assert {"exp", "log1p", "divide"} <= set(ops(f, X))
    np.testing.assert_allclose(f(X), np.logaddexp(0, 2 * X) / 2 + 1, rtol=1e-6)
    assert f(X).dtype is wf.float32
    slope = wf.compile(wf.grad(lambda x: wf.sum(smooth(x))))(X)
    np.testing.assert_allclose(slope, 1 / (1 + np.exp(-2 * X)), rtol=1e-6)


def test_what_a_trace_knows_of_math_numpy_and_builtins() -> None:
    @wf.elementwise
    def mixed(x: Any, y: Any) -> Any:
        a = sqrt(abs(x)) + math.hypot(x, y) + math.atan2(x, y) + math.fabs(x) + math.pi
        b = np.tanh(x) + np.arctan2(y, x) + np.maximum(x, y) + np.float32(2)
        return a + b + max(x, y, 0.5) - min(x, y) + float(x) + math.floor(y) + round(x) + x % 3

    y = X[::-1].copy() + np.float32(0.3)
    got = wf.compile(mixed)(X, y)
    a = np.sqrt(np.abs(X)) + np.hypot(X, y) + np.arctan2(X, y) + np.abs(X) + np.pi
    b = np.tanh(X) + np.arctan2(y, X) + np.maximum(X, y) + 2
    wanted = a + b + np.maximum(np.maximum(X, y), 0.5) - np.minimum(X, y) + X
    wanted = wanted + np.floor(y) + np.round(X) + X % np.float32(3)
    np.testing.assert_allclose(got, wanted, rtol=1e-5)
    assert got.dtype is wf.float32
    np.testing.assert_allclose(mixed(X, y), wanted, rtol=1e-5)


def test_helpers_numbers_and_other_elementwise_functions_are_traced_into() -> None:
    def halved(x: Any) -> Any:
        return math.exp(x) / 2

    @wf.elementwise
    def outer(x: Any, *, n: int = 3) -> Any:
        total = 0
        for k in range(n):  # of a number that is known: unrolled
            total += halved(x) * k
        return total + smooth(x)

    f = wf.compile(outer)
    assert "scalar_function" not in ops(f, X)
    np.testing.assert_allclose(f(X), np.exp(X) * 1.5 + np.logaddexp(0, 2 * X) / 2, rtol=1e-5)


def test_results_broadcast_and_numbers_are_weak() -> None:
    @wf.elementwise
    def first(x: Any, y: Any) -> Any:
        return 2 * x

    assert first(X, np.ones((3, 1), np.float32)).shape == (3, 9)
    assert first(np.float16(1), 3.0).dtype is wf.float16
    assert first(2, 3).dtype is wf.int64
    assert elu(2.0).dtype is wf.float32
    assert elu(X, alpha=np.ones((2, 1), np.float32)).shape == (2, 9)

    @wf.elementwise
    def one(x: Any) -> Any:
        return 1

    assert one(X).tolist() == [1.0] * 9
    assert one(X).dtype is wf.float32


# -------------------------------------------------------------------------------------- compiled
@pytest.mark.share(4)
@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "i4", "u1", "bool"])
def test_branches_at_each_dtype(dtype: str) -> None:
    x = X.astype(dtype)
    f = wf.compile(lambda x: elu(x) * 2)
    assert ops(f, x).count("scalar_function") == 1
    got, eager = f(x), elu(x) * 2
    wide = "f8" if dtype == "f8" else "f4"
    tolerance = {"f2": 2e-3, "f8": 1e-14}.get(dtype, 1e-6)
    np.testing.assert_allclose(got, 2 * numpy_elu(x.astype(wide)), rtol=tolerance, atol=1e-7)
    np.testing.assert_allclose(got, eager, rtol=tolerance)
    assert got.dtype is eager.dtype
    assert str(got.dtype.numpy) == {"f2": "float16", "f8": "float64"}.get(dtype, "float32")


def test_literals_do_not_widen() -> None:
    """All of the function is in f32: the bits are those of the same steps in f32."""

    @wf.elementwise
    def third(x: Any) -> Any:
        if x < 0:
            return x * 0.1 + 1.0 / 3.0
        return x * 0.1 - 0.7

    a = np.float32
    wanted = np.where(X < 0, X * a(0.1) + a(1.0 / 3.0), X * a(0.1) - a(0.7))
    assert wanted.dtype == np.float32
    np.testing.assert_array_equal(wf.compile(third)(X), wanted)
    text = wf.compile(third).ir(X)
    assert "f64" not in text


def test_loops_integers_and_bools() -> None:
    n = np.array([1, 6, 27, 97])
    assert wf.compile(steps)(n).tolist() == [0, 8, 111, 118]
    assert steps(n).tolist() == [0, 8, 111, 118]
    assert steps(n.astype(np.int32)).dtype is wf.int32

    @wf.elementwise
    def between(x: Any, low: Any, high: Any) -> Any:
        return low < x < high

    got = wf.compile(lambda x: between(x, -1, 1.5))(X)
    assert got.dtype is wf.bool
    np.testing.assert_array_equal(got, (X > -1) & (X < 1.5))

    @wf.elementwise
    def power(x: Any, n: Any, on: Any) -> Any:
        result = 1.0
        for _ in range(n):
            result *= x
        return result if on else x

    counts, on = np.arange(9) % 4, np.arange(9) % 2 == 0
    got = wf.compile(power)(X, counts, on)
    np.testing.assert_allclose(got, np.where(on, X**counts, X), rtol=1e-6)
    assert got.dtype is wf.float32


EXPRESSIONS = st.recursive(
    st.sampled_from(["x", "y", "0.3", "2", "-1.5"]),
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from("+-*"), inner).map(lambda t: f"({t[0]} {t[1]} {t[2]})"),
        st.tuples(st.sampled_from(["math.tanh", "abs", "math.sin"]), inner).map(
            lambda t: f"{t[0]}({t[1]})"
        ),
        st.tuples(inner, inner, inner).map(lambda t: f"({t[0]} if {t[1]} > 0.1 else {t[2]})"),
    ),
    max_leaves=6,
)


@examples(36, deadline=None)
@given(EXPRESSIONS)
def test_random_functions_are_what_python_makes_of_them(text: str) -> None:
    scope: dict[str, Any] = {"math": math}
    exec(f"def f(x, y):\n    z = {text}\n    if x > y: return z\n    return z * y\n", scope)
    f = wf.elementwise(scope["f"])
    y = X[::-1].copy() * np.float32(0.7)
    wanted = [scope["f"](float(a), float(b)) for a, b in zip(X, y, strict=True)]
    for dtype, limit in (("f4", 2e-5), ("f8", 1e-6)):
        got = wf.compile(f)(X.astype(dtype), y.astype(dtype))
        np.testing.assert_allclose(got, wanted, rtol=limit, atol=limit)
        assert got.dtype.numpy == dtype


# ------------------------------------------------------------------------------------- gradients
def test_a_compiled_function_has_the_gradient_it_is_given() -> None:
    @wf.elementwise
    def leaky(x: Any, y: Any, *, slope: float = 0.1) -> Any:
        return x * y if x > 0 else slope * x * y

    def loss(x: Any, y: Any) -> Any:
        return wf.sum(leaky(x, y) * 3)

    y = np.float32(2.5)
    with pytest.raises(wf.errors.GradientError, match=r"leaky.def_gradient") as caught:
        wf.grad(loss)(X, y)
    assert "test_elementwise.py" in str(caught.value)

    @leaky.def_gradient
    def leaky_gradient(op: Any, dy: Any) -> Any:
        a, b = op.inputs
        factor = wf.where(a > 0, 1.0, op.attrs["slope"])
        return dy * factor * b, dy * factor * a

    factor = np.where(X > 0, 1, np.float32(0.1))
    for f in (wf.grad(loss, argnums=(0, 1)), wf.compile(wf.grad(loss, argnums=(0, 1)))):
        dx, dy = f(X, y)
        np.testing.assert_allclose(dx, 3 * factor * y, rtol=1e-6)
        np.testing.assert_allclose(dy, np.sum(3 * factor * X), rtol=1e-5)
        assert dy.shape == ()
    with pytest.raises(wf.errors.AlreadyExistsError, match="has a gradient already"):
        leaky.def_gradient(lambda op, dy: dy)


def test_a_gradient_goes_before_the_traced_one() -> None:
    @wf.elementwise
    def straight(x: Any) -> Any:
        return math.floor(x) * 1.0

    @straight.def_gradient
    def _(op: Any, dy: Any) -> Any:
        return dy

    assert wf.grad(lambda x: wf.sum(straight(x)))(X).tolist() == [1.0] * 9


# ------------------------------------------------------------------------------ errors and names
def error_of(call: Callable[[], Any]) -> str:
    with pytest.raises(wf.errors.WeftError) as caught:
        call()
    return str(caught.value)


def test_bad_functions() -> None:
    for bad, match in (
        (np.exp, "plain Python function"),
        (lambda *xs: xs, "any number of arguments"),
        (lambda: 1, "no operand"),
    ):
        with pytest.raises(wf.errors.InvalidArgumentError, match=match):
            wf.elementwise(bad)
    with pytest.raises(TypeError, match="missing a required argument"):
        elu()


def test_both_reasons_are_told() -> None:
    @wf.elementwise
    def odd(x: Any) -> Any:
        if x > 0:
            return x.wrong
        return x

    said = error_of(lambda: wf.compile(odd)(X))
    assert "Numba cannot compile the scalar function 'odd'" in said
    assert "test_elementwise.py" in said
    assert "It cannot be traced either" in said
    assert "a Python condition" in said


def test_what_cannot_be_inside_a_loop_over_elements() -> None:
    @wf.elementwise
    def raises(x: Any) -> Any:
        if x < 0:
            raise ValueError("negative")
        return x

    assert "raises an error for some numbers" in error_of(lambda: wf.compile(raises)(X))

    @wf.elementwise
    def gamma(x: Any) -> Any:
        return math.gamma(x) if x > 0 else x

    said = error_of(lambda: wf.compile(gamma)(X))
    assert "calls gamma, for which weft has no code" in said
    assert "lgamma" in said

    @wf.elementwise
    def text(x: Any) -> Any:
        return "a" if x > 0 else "b"

    assert "not a number" in error_of(lambda: wf.compile(text)(X))
    said = error_of(lambda: wf.compile(elu)(X.astype(np.complex64)))
    assert "complex" in said
    table = X.copy()

    @wf.elementwise
    def looks_up(x: Any) -> Any:
        return table[int(x)] if x > 0 else x

    assert "uses 'table', a ndarray" in error_of(lambda: wf.compile(looks_up)(X))
    assert "do not broadcast" in error_of(lambda: elu(X, alpha=np.ones(4, np.float32)))


def test_text_names_the_function_and_other_code_is_refused() -> None:
    graph = wf.compile(elu).trace(X)
    again = parse_graph(print_graph(graph))
    (got,) = interpret(again, [X])
    np.testing.assert_allclose(got, numpy_elu(X), rtol=1e-6)
    changed = print_graph(graph).replace("test_elementwise.elu", "test_elementwise.absent")
    with pytest.raises(wf.errors.FailedPreconditionError, match=r"absent.*is not defined here"):
        interpret(parse_graph(changed), [X])
    with pytest.raises(wf.errors.FailedPreconditionError, match="other code or other constants"):
        find_scalar_function("test_elementwise.elu", "0" * 24)


def test_a_function_that_is_defined_again_is_another_one() -> None:
    def make(factor: float) -> Any:
        @wf.elementwise
        def scaled(x: Any) -> Any:
            return factor * x if x > 0 else x

        return scaled

    two, three = make(2.0), make(3.0)
    f = wf.compile(lambda x: two(x) + 10 * three(x))
    np.testing.assert_allclose(f(X), np.where(X > 0, 32 * X, 11 * X), rtol=1e-6)


def test_in_sessions_and_pickles() -> None:
    with wf.Graph().as_default() as graph, wf.Session() as session:
        x = wf.placeholder(wf.float32, [None])
        y = wf.sum(elu(x) + smooth(x))
        loops = wf.while_loop(lambda i, v: i < 3, lambda i, v: (i + 1, elu(v)), (0, x))[1]
        got = session.run([y, loops], {x: X})
        assert "scalar_function" in graph.as_text()
    wanted = numpy_elu(X) + np.logaddexp(0, 2 * X) / 2
    np.testing.assert_allclose(got[0], wanted.sum(), rtol=1e-5)
    np.testing.assert_allclose(got[1], numpy_elu(numpy_elu(numpy_elu(X))), rtol=1e-5)
    assert pickle.loads(pickle.dumps(elu)) is elu
    assert "wf.elementwise elu(x" in repr(elu)
    assert elu.__name__ == "elu"


def test_large_eager_calls_run_natively(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call of Python for each of so many elements would take a second."""
    x = np.linspace(-2, 2, 1 << 20, dtype=np.float32)
    calls = []
    monkeypatch.setattr(SWITCH, "on", True)
    monkeypatch.setattr(
        sys.modules["weft.ir.ops.scalar_function"], "_element_by_element",
        lambda *given: calls.append(given),
    )  # fmt: skip
    np.testing.assert_allclose(elu(x), numpy_elu(x), rtol=1e-6, atol=1e-7)
    assert not calls


RATE = 2.0


def scaled(x: float) -> float:
    return x * RATE


def scaled_where_positive(x: float) -> float:
    return x * RATE if x > 0 else 0.0


@pytest.mark.share(4)
@pytest.mark.parametrize("function", [scaled, scaled_where_positive])
def test_globals_that_change(function: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A later call sees them; a graph that was made before does not."""
    f, x = wf.elementwise(function), np.array([1, 2], np.float32)
    before = wf.compile(f)
    assert before(x).tolist() == f(wf.asarray(x)).tolist() == [2, 4]
    graph = wf.Graph()
    with graph.as_default():
        y = f(wf.constant(x))
    monkeypatch.setitem(globals(), "RATE", 5.0)
    with wf.Session(graph=graph, control_flow="dataflow") as session:
        assert session.run(y).tolist() == [2, 4]
    assert before(x).tolist() == [2, 4]
    assert wf.compile(f)(x).tolist() == f(wf.asarray(x)).tolist() == [5, 10]


def test_comparisons_count() -> None:
    def steps(x: float) -> int:
        return (x > 0) + (x > 1) if x < 5 else 0

    f, x = wf.elementwise(steps), np.array([2, 0.5, -1, 7], np.float32)
    assert f(wf.asarray(x)).tolist() == wf.compile(f)(x).tolist() == [2, 1, 0, 0]


def test_literals_take_the_dtype_in_comparisons() -> None:
    def tenth(x: float) -> float:
        return 1.0 if x == 0.1 else 0.0

    f, x = wf.elementwise(tenth), np.array([0.1], np.float32)
    assert f(wf.asarray(x)).tolist() == wf.compile(f)(x).tolist() == [1]


def test_what_would_mean_something_else_is_refused() -> None:
    def guarded(x: float) -> float:
        try:
            return 1 / x
        except ZeroDivisionError:
            return 0.0

    def typed(x: float) -> float:
        return x * 2 if type(x) is float else x

    with pytest.raises(wf.errors.InvalidArgumentError, match=r"handles errors \(try, with\)"):
        wf.elementwise(guarded)
    with pytest.raises(wf.errors.InvalidArgumentError, match="asks for the type"):
        wf.elementwise(typed)

    def is_float(x: float) -> float:
        return 1.0 if isinstance(x, float) else 2.0

    f, x = wf.elementwise(is_float), np.array([3], np.float32)
    assert f(wf.asarray(x)).tolist() == wf.compile(f)(x).tolist() == [1]
