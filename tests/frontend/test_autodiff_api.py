"""`grad` and its kin: results against closed forms, eagerly, compiled, in graphs, to several
orders."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose

import weft as wf
from weft.ir.errors import GradientError, InvalidArgumentError, TracerError

X = np.array([0.3, -1.2, 2.0])
Run = Callable[[Callable[..., Any]], Callable[..., Any]]


@pytest.fixture(params=["eager", "compiled"])
def run(request: pytest.FixtureRequest) -> Run:
    return wf.compile if request.param == "compiled" else lambda fn: fn


def test_grad(run: Run) -> None:
    g = run(wf.grad(lambda x: wf.sum(wf.sin(x) * x)))(X)
    assert_allclose(g, np.cos(X) * X + np.sin(X), rtol=1e-12)


def test_value_and_grad_with_aux_and_argnums(run: Run) -> None:
    def loss(x: Any, scale: Any, p: Any) -> Any:
        y = x * p["w"] * scale
        return wf.sum(y), {"y": y, "n": 3}

    f = run(wf.value_and_grad(loss, argnums=(0, 2), has_aux=True))
    (value, aux), (gx, gp) = f(X, 2.0, {"w": X + 1})
    assert_allclose(value, (X * (X + 1) * 2).sum())
    assert_allclose(aux["y"], X * (X + 1) * 2)
    assert int(aux["n"]) == 3
    assert_allclose(gx, (X + 1) * 2)
    assert_allclose(gp["w"], X * 2)
    gradient, aux = run(wf.grad(loss, has_aux=True, argnums=-1))(X, 2.0, {"w": X})
    assert_allclose(gradient["w"], X * 2)
    assert set(aux) == {"y", "n"}


def test_gradients_nest_like_the_argument(run: Run) -> None:
    tree = {"a": [X, (X * 2,)], "none": None}
    g = run(wf.grad(lambda t: wf.sum(t["a"][0] * t["a"][1][0])))(tree)
    assert g["none"] is None
    assert_allclose(g["a"][0], X * 2)
    assert_allclose(g["a"][1][0], X)


def test_unconnected_arguments_have_gradient_zero(run: Run) -> None:
    g = run(wf.grad(lambda x, y: wf.sum(x), argnums=1))(X, np.ones((2, 2), np.float32))
    assert g.dtype is wf.float32
    assert g.tolist() == [[0, 0], [0, 0]]
    assert_allclose(run(wf.grad(lambda x: 1.0))(X), [0, 0, 0])


@pytest.mark.share(2)
@pytest.mark.parametrize("order", [1, 2, 3, 4])
def test_higher_orders(run: Run, order: int) -> None:
    def derivative(fn: Callable[[Any], Any]) -> Callable[[Any], Any]:
        return wf.grad(fn)

    def damped(x: Any) -> Any:
        return wf.sin(x) * wf.exp(x)

    f: Callable[[Any], Any] = damped
    for _ in range(order):
        f = derivative(f)
    # the n-th derivative of Im exp((1+i) x) is Im((1+i)^n exp((1+i) x))
    wanted = ((1 + 1j) ** order * np.exp((1 + 1j) * 0.7)).imag
    assert_allclose(run(f)(np.float64(0.7)), wanted, rtol=1e-12)


def test_what_else_depends_on_the_argument_stays_constant() -> None:
    def f(x: Any) -> Any:
        other = x * 3
        return wf.grad(lambda y: wf.sum(y * other))(x)

    assert_allclose(wf.compile(f)(X), X * 3)


def test_python_numbers_can_be_differentiated(run: Run) -> None:
    assert float(run(wf.grad(lambda x: x * x * 0.5))(3.0)) == 3.0


def test_complex_gradients_follow_the_stated_convention() -> None:
    z = np.array([1 + 2j, -0.5j])
    g = wf.grad(lambda z: wf.sum(wf.real(z * wf.conj(z))))(z)
    assert_allclose(g, 2 * z)  # d|z|^2 = 2 Re(z) dRe + 2 Im(z) dIm


def test_vjp(run: Run) -> None:
    def both(x: Any, y: Any, ct: Any) -> Any:
        out, pullback = wf.vjp(lambda a, b: {"p": a * b, "s": wf.sin(a)}, x, y)
        return out, pullback({"p": ct, "s": ct})

    out, (gx, gy) = run(both)(X, X + 1, X + 2)
    assert_allclose(out["p"], X * (X + 1))
    assert_allclose(gx, (X + 2) * (X + 1) + (X + 2) * np.cos(X))
    assert_allclose(gy, (X + 2) * X)


def test_an_eager_pullback_runs_the_function_once_and_joins_a_trace() -> None:
    count = wf.Variable(0.0)

    def f(x: Any) -> Any:
        count.assign_add(1.0)
        return wf.exp(x) * x

    out, pullback = wf.vjp(f, X)
    for factor in (1.0, 2.0):
        assert_allclose(pullback(np.full(3, factor))[0], factor * np.exp(X) * (1 + X))
    assert float(count) == 1
    assert_allclose(out, np.exp(X) * X)
    compiled = wf.compile(lambda ct: pullback(ct)[0])
    assert_allclose(compiled(np.ones(3)), np.exp(X) * (1 + X))
    twice = wf.grad(lambda ct: wf.sum(pullback(ct * ct)[0]))(np.full(3, 2.0))
    assert_allclose(twice, 2 * 2 * np.exp(X) * (1 + X))


def test_jvp(run: Run) -> None:
    def f(x: Any, y: Any) -> Any:
        return [wf.tanh(x) * y, x > 0, y * 2.0]

    t = np.array([1.0, 2.0, -1.0])
    out, tangent = run(lambda *a: wf.jvp(f, a[:2], a[2:]))(X, X + 1, t, 3 * t)
    assert_allclose(out[0], np.tanh(X) * (X + 1))
    assert_allclose(tangent[0], (1 - np.tanh(X) ** 2) * (X + 1) * t + np.tanh(X) * 3 * t)
    assert tangent[1].dtype is wf.bool
    assert_allclose(tangent[2], 6 * t)


def test_jvp_is_dual_to_vjp_for_complex_functions() -> None:
    rng = np.random.default_rng(0)
    z, t, u = (rng.normal(size=4) + 1j * rng.normal(size=4) for _ in range(3))

    def f(z: Any) -> Any:
        return wf.exp(z) * wf.conj(z)

    _, pushed = wf.jvp(f, (z,), (t,))
    _, pullback = wf.vjp(f, z)

    def inner(a: Any, b: Any) -> Any:
        return np.sum((np.conj(a) * b).real)

    assert_allclose(inner(u, pushed.numpy()), inner(pullback(u)[0].numpy(), t), rtol=1e-12)
    assert_allclose(pushed, np.exp(z) * t * np.conj(z) + np.exp(z) * np.conj(t), rtol=1e-12)


def test_hessian_vector_product(run: Run) -> None:
    def hvp(x: Any, v: Any) -> Any:
        return wf.jvp(wf.grad(lambda x: wf.sum(x * x * x)), (x,), (v,))[1]

    assert_allclose(run(hvp)(X, X + 1), 6 * X * (X + 1))


def test_stop_gradient(run: Run) -> None:
    g = run(wf.grad(lambda x: wf.sum(x * wf.stop_gradient({"k": x})["k"])))(X)
    assert_allclose(g, X)


# ---------------------------------------------------------------------------------------- gradients
def test_gradients_of_variables_and_tensors() -> None:
    w, unused = wf.Variable([1.0, 2.0]), wf.Variable([1.0])

    @wf.compile
    def f(x: Any) -> Any:
        h = x * w
        y = wf.sum(h * h)
        gw, gh, gu, gx = wf.gradients(y, [w, h, unused, x])
        assert gu is None
        return gw, gh, gx

    x = np.array([3.0, 4.0], np.float32)
    gw, gh, gx = f(x)
    assert_allclose(gw, 2 * x * x * [1, 2])
    assert_allclose(gh, 2 * x * [1, 2])
    assert_allclose(gx, 2 * x * [1, 4])


def test_gradients_sum_over_every_read_of_a_variable() -> None:
    w = wf.Variable(3.0)

    @wf.compile
    def f() -> Any:
        before = w * w
        w.assign(5.0 * wf.stop_gradient(w))
        after = w * 2.0
        return wf.gradients([before, after], [w])[0]

    assert float(f()) == 2 * 3 + 2


def test_gradients_with_given_cotangents() -> None:
    @wf.compile
    def f(x: Any) -> Any:
        return wf.gradients([x * 2.0, x * x], [x], grad_ys=[None, x])[0]

    assert_allclose(f(X), 2 + 2 * X * X)


def test_gradients_in_a_graph() -> None:
    with wf.Graph().as_default() as graph:
        x = wf.placeholder(wf.float64, [None])
        w = wf.Variable(np.ones(()))
        y = wf.sum(wf.exp(x) * w)
        (gx, gw) = wf.gradients(y, [x, w])
        (gxx,) = wf.gradients(gx, [x])
        init = wf.global_variables_initializer()
    with wf.Session(graph=graph) as session:
        session.run(init)
        for values in (X, X[:2]):
            for found in session.run([gx, gxx], {x: values}):
                assert_allclose(found, np.exp(values))
            assert_allclose(session.run(gw, {x: values}), np.exp(values).sum())


# ---------------------------------------------------------------------------------- custom_gradient
@wf.custom_gradient
def log1pexp(x: Any) -> Any:
    e = wf.exp(x)
    return wf.log(1 + e), lambda dy: dy * (1 - 1 / (1 + e))


def test_custom_gradient_to_second_order(run: Run) -> None:
    s = 1 / (1 + np.exp(-X))
    assert_allclose(log1pexp(X), np.log1p(np.exp(X)))
    assert_allclose(run(wf.grad(lambda x: wf.sum(log1pexp(x))))(X), s)
    second = wf.grad(lambda x: wf.sum(wf.grad(lambda y: wf.sum(log1pexp(y)))(x)))
    assert_allclose(run(second)(X), s * (1 - s))


def test_custom_gradient_is_what_is_used(run: Run) -> None:
    @wf.custom_gradient
    def f(x: Any, k: Any, n: int) -> Any:
        return [x * k, k * 2.0], lambda dx, dk: (dx * 100.0, None, None)

    gx, gk = run(wf.grad(lambda x, k: wf.sum(f(x, k, 3)[0]) + f(x, k, 3)[1], argnums=(0, 1)))(
        X, 2.0
    )
    assert_allclose(gx, [100, 100, 100])
    assert float(gk) == 0


def test_custom_gradient_of_a_python_number(run: Run) -> None:
    """A number is weak and held in 64 bits; what it meets, and so its gradient, may be float32."""
    w = np.asarray([1.0, 2.0], np.float32)

    @wf.custom_gradient
    def scaled(x: Any, k: Any) -> Any:
        return x * k, lambda dy: (dy * k, wf.sum(dy * x))

    slopes = run(wf.grad(lambda x, k: wf.sum(scaled(x, k)), argnums=(0, 1)))(w, 3.0)
    assert [s.tolist() for s in slopes] == [[3, 3], 3]
    assert slopes[0].dtype is wf.float32

    @wf.custom_gradient
    def captured(k: Any) -> Any:
        return k * wf.asarray(w), lambda dy: wf.sum(dy * w)

    assert float(run(wf.grad(lambda k: wf.sum(captured(k))))(2.0)) == 3


def test_custom_gradient_may_use_variables(run: Run) -> None:
    v = wf.Variable(7.0)

    @wf.custom_gradient
    def f(x: Any) -> Any:
        return x * 1.0, lambda dy: dy * v

    assert float(run(wf.grad(f))(np.float32(1))) == 7


@pytest.mark.parametrize(
    ("fn", "match"),
    [
        (lambda x: x, "must return \\(y, grad_fn\\), it returned a Tensor"),
        (lambda x: (x, lambda dy: wf.sum(dy)), "gradient of argument 0 has type f64\\[\\]"),
        (lambda x: (x, lambda dy: (dy, dy)), "2 gradients for 1 arguments"),
        (lambda x: (x > 0, lambda dy: dy), "only floating and complex results have gradients"),
    ],
)
def test_custom_gradients_that_do_not_fit(fn: Callable[..., Any], match: str) -> None:
    with pytest.raises(GradientError, match=match):
        wf.grad(lambda x: wf.sum(wf.custom_gradient(fn)(x)))(X)


def test_state_changes_in_a_gradient_function_are_refused() -> None:
    v = wf.Variable(0.0)

    @wf.custom_gradient
    def f(x: Any) -> Any:
        def gradient(dy: Any) -> Any:
            v.assign(1.0)
            return dy

        return x * 1.0, gradient

    with pytest.raises(wf.errors.UnsupportedError, match="assigning to variable 'variable' inside"):
        wf.grad(f)(1.0)


# ------------------------------------------------------------------------------------------- errors
@pytest.mark.parametrize(
    ("call", "match"),
    [
        (
            lambda: wf.grad(lambda x: x * 2)(X),
            r"the loss that '<?lambda>?' returned has type f64\[3\]",
        ),
        (lambda: wf.grad(lambda x: (x, x))(1.0), "must return one number, it returned a tuple"),
        (lambda: wf.grad(lambda x: wf.sum(x), has_aux=True)(X), r"must return \(loss, aux\)"),
        (lambda: wf.grad(lambda x: x)(3), "grad: argument\\[0\\] is int64; only floating"),
        (lambda: wf.grad(lambda p: p["n"])({"n": np.arange(2)}), r"argument\[0\]\['n'\] is int64"),
        (lambda: wf.grad(lambda x: x)("s"), r"argument\[0\] is a str"),
        (lambda: wf.grad(lambda x: x, argnums=1)(1.0), "argnums 1 is out of range"),
        (lambda: wf.grad(lambda z: wf.sum(z))(np.ones(2, complex)), "c128.*not a real scalar"),
        (
            lambda: wf.gradients(wf.asarray(1.0), [wf.asarray(1.0)]),
            "concrete tensors keep no history",
        ),
        (lambda: wf.compile(lambda x: wf.gradients(x, ["x"]))(X), "xs holds a str"),
        (lambda: wf.compile(lambda x: wf.gradients(x, [x > 0]))(X), "xs is bool"),
        (lambda: wf.compile(lambda x: wf.gradients(x > 0, [x]))(X), "ys is bool"),
        (lambda: wf.vjp(lambda n: n, np.arange(3)), r"vjp: primals\[0\] is int64"),
    ],
)
def test_gradients_that_do_not_exist(call: Callable[[], Any], match: str) -> None:
    with pytest.raises(GradientError, match=match) as caught:
        call()
    assert "test_autodiff_api.py" in str(caught.value)


def test_cotangents_must_fit() -> None:
    _, pullback = wf.vjp(lambda x: {"y": x * 2}, X)
    with pytest.raises(InvalidArgumentError, match=r"cotangent\['y'\] has type f64\[2\].*f64\[3\]"):
        pullback({"y": np.ones(2)})
    with pytest.raises(InvalidArgumentError, match=r"the structures .* differ"):
        pullback(np.ones(3))
    with pytest.raises(InvalidArgumentError, match="1 ys but 2 grad_ys"):
        wf.compile(lambda x: wf.gradients(x, [x], [x, x]))(X)
    with pytest.raises(InvalidArgumentError, match="primals and tangents"):
        wf.jvp(lambda x: x, (X,), (X, X))


def test_a_pullback_of_an_ended_trace() -> None:
    kept: list[Any] = []

    def f(x: Any) -> Any:
        out, pullback = wf.vjp(wf.sin, x)
        kept.append(pullback)
        return out

    wf.compile(f)(X)
    with pytest.raises(TracerError, match="after the trace of 'f'"):
        kept[0](X)


def test_derivatives_of_python_numbers_stay_weak() -> None:
    out, tangent = wf.jvp(wf.sin, (1.0,), (1.0,))
    unused = wf.grad(lambda a, b: a, argnums=(0, 1))(1.0, 2.0)[1]
    for made in (out, tangent, unused):
        assert (np.ones(2, np.float32) * made).dtype == wf.float32


def test_cumulative_logsumexp_of_nothing_and_of_much() -> None:
    """JAX has NaN where the sum is still 0; exp of the others overflows or vanishes."""
    x = np.array([-np.inf, -np.inf, 1.0, -np.inf, 2.0])
    got = wf.grad(lambda x: wf.sum(wf.cumulative_logsumexp(x)))(x).numpy()
    np.testing.assert_allclose(got[[0, 1, 3, 4]], [0, 0, 0, 1 / (1 + np.exp(-1))], rtol=1e-15)
    far = np.array([1000.0, 0.0, -1000.0, 1001.0])
    got = wf.grad(lambda x: wf.sum(wf.cumulative_logsumexp(x)))(far).numpy()
    np.testing.assert_allclose(got, [3 + 1 / (1 + np.e), 0, 0, 1 / (1 + np.exp(-1))], atol=1e-15)


def test_the_hessian_of_cumulative_logsumexp_where_a_cotangent_is_zero() -> None:
    """y_0 w with w = 0: the cotangent of y is 0, its derivative is not."""
    x, w = np.array([0.5, -1.0]), np.zeros(2)

    def inner(x: wf.Tensor, w: wf.Tensor) -> wf.Tensor:
        return wf.grad(lambda x: wf.sum(wf.cumulative_logsumexp(x) * w))(x)[0]

    got = wf.grad(inner, argnums=1)(x, w).numpy()
    np.testing.assert_allclose(got, [1, 1 / (1 + np.exp(-1.5))], rtol=1e-14)
