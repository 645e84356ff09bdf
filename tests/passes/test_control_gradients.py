"""Gradients through cond, while and scan: against differences, Python loops, and to third order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import weft as wf
from weft.ir.analysis.verify import verify
from weft.ir.graph import Graph
from weft.ir.interpreter.evaluate import interpret
from weft.passes.pipelines import STANDARD

Array = np.ndarray[Any, Any]
Function = Callable[..., Any]

RNG = np.random.default_rng(7)
W, XS, H = RNG.normal(size=(3, 3)) * 0.5, RNG.normal(size=(4, 3)), RNG.normal(size=3)
ARGUMENTS = (W, XS, H)


def rnn(w: Any, xs: Any, h: Any) -> Any:
    """Weights, sequence and start matter; ys are used and the final carry is."""
    last, ys = wf.scan(lambda h, x: ((n := wf.tanh(w @ h + x * wf.exp(w[0]))), n * n), h, xs)
    return wf.sum(ys * ys) + wf.sum(wf.sin(last))


def nested(w: Any, xs: Any, h: Any) -> Any:
    """A scan and a cond in a scan that runs backwards."""

    def step(h: Any, x: Any) -> Any:
        inner, _ = wf.scan(lambda a, b: (wf.sin(a * b) + x, None), h, xs * (0.2 * wf.sum(h)))
        new = wf.cond(
            wf.sum(h) > 0, lambda: wf.tanh(inner) * x, lambda: inner * inner * 0.1 + w @ h
        )
        return new, inner

    h, ys = wf.scan(step, h, xs, reverse=True)
    return wf.sum(wf.tanh(ys)) + wf.sum(h)


def limited_while(w: Any, xs: Any, h: Any) -> Any:
    """Runs for a number of iterations that depends on the data; an integer counts them."""
    i, last = wf.while_loop(
        lambda s: wf.sum(s[1] * s[1]) > 0.05,
        lambda s: (s[0] + 1, wf.tanh(w @ s[1]) * xs[s[0] % 4]),
        (0, h),
        maximum_iterations=9,
    )
    return wf.sum(last * h) * i


def while_in_cond_in_scan(w: Any, xs: Any, h: Any) -> Any:
    def halve(a: Any) -> Any:
        return wf.while_loop(
            lambda s: wf.max(wf.abs(s)) > 0.3, lambda s: s * w[0] * 0.9, a, maximum_iterations=6
        )

    def step(c: Any, x: Any) -> Any:
        return wf.cond(x[0] > 0, lambda: halve(c + x), lambda: wf.sin(c) * x), None

    return wf.sum(wf.scan(step, h, xs)[0] ** 2)


def counted(w: Any, xs: Any, h: Any) -> Any:
    """Counted loops, one of them a while that is proved to be one."""
    a = wf.fori_loop(1, 4, lambda i, a: wf.sin(w @ a) * i, h)
    _, b = wf.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, s[1] * a + xs[s[0]]), (0, h))
    return wf.sum(a * b)


def folds(w: Any, xs: Any, h: Any) -> Any:
    squares = wf.map_fn(lambda x: x * wf.exp(h), xs)
    return (
        wf.sum(wf.foldl(lambda a, x: a * 0.5 + w @ x, squares))
        + wf.sum(wf.scan(lambda a, x: a * x, elems=xs, initializer=h))
        + wf.sum(wf.foldr(lambda a, x: a * x + 1.0, xs))
    )


PROGRAMS = [rnn, nested, limited_while, while_in_cond_in_scan, counted, folds]


def weighted(a: Any) -> Any:
    return wf.sum(a * np.linspace(0.5, 1.5, a.size).reshape(a.shape))


def directional(f: Function, order: int) -> Function:
    """A weighted sum of the gradients of order `order` - 1; f itself for the first."""
    if order == 1:
        return f
    inner = directional(f, order - 1)

    def g(*args: Any) -> Any:
        return sum(weighted(a) for a in wf.grad(inner, (0, 1, 2))(*args))

    return g


def difference(f: Function, args: tuple[Array, ...], along: tuple[Array, ...]) -> float:
    """The derivative of f along a direction, by fourth-order central differences."""
    eps = 1e-4

    def at(t: float) -> float:
        return float(f(*(wf.asarray(a + t * d) for a, d in zip(args, along, strict=True))))

    return (8 * (at(eps) - at(-eps)) - (at(2 * eps) - at(-2 * eps))) / (12 * eps)


@pytest.mark.share(8)
@pytest.mark.parametrize("order", [1, 2, 3])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_gradients_against_differences(program: Function, order: int) -> None:
    f = directional(program, order)
    along = tuple(RNG.normal(size=a.shape) for a in ARGUMENTS)
    grads = wf.grad(f, (0, 1, 2))(*map(wf.asarray, ARGUMENTS))
    found = sum(float((g.numpy() * d).sum()) for g, d in zip(grads, along, strict=True))
    expected = difference(f, ARGUMENTS, along)
    assert expected != 0
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_forward_mode(program: Function) -> None:
    along = tuple(RNG.normal(size=a.shape) for a in ARGUMENTS)
    _, tangent = wf.jvp(program, ARGUMENTS, along)
    np.testing.assert_allclose(
        float(tangent), difference(program, ARGUMENTS, along), rtol=1e-7, atol=1e-9
    )


@pytest.mark.share(4)
@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_the_passes_keep_the_meaning(program: Function, order: int) -> None:
    """The whole pipeline up to fusion, verified after each pass, gives the same numbers."""
    f = wf.compile(wf.value_and_grad(directional(program, order), (0, 1, 2)))
    graph: Graph = f.trace(*ARGUMENTS)
    verify(graph)
    before = interpret(graph, ARGUMENTS)
    for run in STANDARD[:-1]:
        graph = run(graph)
        verify(graph)
    for a, b in zip(before, interpret(graph, ARGUMENTS), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-11)


# ------------------------------------------------------------------------- against a Python loop

STEPS: list[Function] = [
    lambda a, b, x, w: wf.sin(a) * x,
    lambda a, b, x, w: a * w + b,
    lambda a, b, x, w: wf.cond(wf.sum(a) > 0, lambda: a * b, lambda: b - x),
    lambda a, b, x, w: wf.where(a > x, b, w),
    lambda a, b, x, w: b,
    lambda a, b, x, w: wf.exp(-a * a) + wf.stop_gradient(b),
    lambda a, b, x, w: x * 0.5,
    lambda a, b, x, w: wf.maximum(a, b) / (1 + w * w),
]


@settings(max_examples=30, deadline=None)
@given(
    first=st.sampled_from(range(len(STEPS))),
    second=st.sampled_from(range(len(STEPS))),
    output=st.sampled_from(range(len(STEPS))),
    length=st.integers(0, 3),
    reverse=st.booleans(),
    used=st.tuples(st.booleans(), st.booleans(), st.booleans()),
)
def test_random_bodies(
    first: int, second: int, output: int, length: int, reverse: bool, used: tuple[bool, bool, bool]
) -> None:
    """A scan of a random body is the Python loop over it, in value and gradient."""
    rng = np.random.default_rng(first + 10 * second)
    start, xs, w = rng.normal(size=2), rng.normal(size=(length, 2)), rng.normal(size=2)

    def body(c: Any, x: Any, w: Any) -> Any:
        a, b = c
        new = STEPS[first](a, b, x, w), STEPS[second](b, a, x, w)
        return new, STEPS[output](new[0], new[1], x, w)

    def loss(last: Any, ys: Any) -> Any:
        parts = [wf.sum(last[0]), wf.sum(last[1] * 2), wf.sum(wf.sin(ys))]
        return sum(
            (p for p, u in zip(parts, used, strict=True) if u), wf.asarray(0.0, dtype=wf.float64)
        )

    def scanned(start: Any, xs: Any, w: Any) -> Any:
        return loss(*wf.scan(lambda c, x: body(c, x, w), (start, start), xs, reverse=reverse))

    def unrolled(start: Any, xs: Any, w: Any) -> Any:
        c, ys = (start, start), {}
        for i in range(length)[::-1] if reverse else range(length):
            c, ys[i] = body(c, xs[i], w)
        rows = [ys[i] for i in range(length)]
        return loss(c, wf.stack(rows) if rows else wf.zeros((0, 2), dtype=wf.float64))

    args = tuple(map(wf.asarray, (start, xs, w)))
    for order in (1, 2):
        value, grads = wf.value_and_grad(directional(scanned, order), (0, 1, 2))(*args)
        wanted, expected = wf.value_and_grad(directional(unrolled, order), (0, 1, 2))(*args)
        np.testing.assert_allclose(value, wanted, rtol=1e-12)
        for g, e in zip(grads, expected, strict=True):
            np.testing.assert_allclose(g, e, rtol=1e-10, atol=1e-12)


# --------------------------------------------------------------------------------- what is stored


def loops(f: Function, *args: Any) -> list[Any]:
    """The loops of the gradient's graph after simplification."""
    graph = wf.compile(wf.value_and_grad(f)).trace(*args)
    for run in STANDARD[:-1]:
        graph = run(graph)
    return [op for op in graph.ops if op.name in ("scan", "while")]


def test_a_linear_loop_stores_nothing() -> None:
    forward, backward = loops(
        lambda w: wf.sum(wf.scan(lambda c, x: (c * 0.5 + x, None), w, XS)[0]), H
    )
    assert [len(op.results) for op in (forward, backward)] == [1, 1]
    assert backward.attrs["sequences"] == 0


def test_the_forward_loop_runs_once_and_stores_what_is_dear() -> None:
    """tanh is stored; 1 - y*y, the rows of xs and the invariant weights are not."""
    forward, backward = loops(
        lambda w: wf.sum(wf.scan(lambda c, x: (wf.tanh(c * x * w), None), H, XS)[0]), H
    )
    assert len(forward.results) == 3  # the carry; stacks of the carry before, and of tanh
    assert backward.attrs["reverse"] is True
    assert "tanh" not in [op.name for op in backward.regions[0].ops]


def test_what_is_stacked_already_is_not_stored_again() -> None:
    def f(w: Any) -> Any:
        _, ys = wf.scan(lambda c, x: (c + 1.0, wf.exp(w * x)), H, XS)
        return wf.sum(ys)

    forward, backward = loops(f, H)
    assert len(forward.results) == 1
    assert set(backward.operands) & set(forward.results) == set(forward.results)


def test_invariant_values_are_computed_once_and_not_stored() -> None:
    def f(w: Any) -> Any:
        return wf.sum(wf.scan(lambda c, x: (c + x * wf.exp(w), None), H, XS)[0])

    forward, backward = loops(f, H)
    assert len(forward.results) == 1
    for op in (forward, backward):
        assert "exp" not in [inner.name for inner in op.walk()] if hasattr(op, "walk") else True
        assert "exp" not in [inner.name for inner in op.regions[0].ops]


def test_a_gather_in_a_loop_is_added_where_it_came_from() -> None:
    """The sum of the cotangents of a table is updated in place, not added to as a whole."""

    def f(table: Any) -> Any:
        return wf.sum(wf.scan(lambda c, i: (c * table[i], None), H, wf.asarray([0, 2, 2]))[0])

    _, backward = loops(f, XS)
    names = [op.name for op in backward.regions[0].ops]
    assert "index_add" in names
    found = wf.grad(f)(wf.asarray(XS)).numpy()
    np.testing.assert_allclose(found[0], H * XS[2] ** 2)
    np.testing.assert_allclose(found[2], 2 * H * XS[0] * XS[2])
    np.testing.assert_array_equal(found[[1, 3]], 0)


def test_many_scalar_carries_give_a_graph_of_the_size_of_the_body() -> None:
    """jax-ml/jax#40150: 60 scalar carries over 614 iterations, value and gradient."""
    count, steps = 60, 614
    params, xs = np.linspace(0.1, 0.9, 9), np.sin(np.arange(steps) * 0.1)

    def f(params: Any) -> Any:
        def step(c: Any, x: Any) -> Any:
            pairs = zip(c, (*c[1:], c[0]), strict=True)
            new = [
                a * 0.99 + params[k % 8] * wf.tanh(b + x) * 0.01 for k, (a, b) in enumerate(pairs)
            ]
            return tuple(new), new[0]

        last, ys = wf.scan(step, tuple(params[8] + 0.01 * k for k in range(count)), xs)
        return wf.sum(ys) + sum(last)

    forward, backward = loops(f, params)
    assert len(forward.regions[0].ops) <= 7 * count
    assert len(backward.regions[0].ops) <= 10 * count
    assert backward.attrs["carries"] == count + 8  # the eight parameters are summed once each


# ------------------------------------------------------------------------------- what is special


def test_custom_gradients_in_bodies() -> None:
    @wf.custom_gradient
    def clipped(x: Any) -> Any:
        return x * x, lambda dy: wf.clip(dy, -0.1, 0.1)

    def f(x: Any) -> Any:
        return wf.scan(lambda c, _: (clipped(c), None), x, length=1)[0]

    assert wf.grad(f)(wf.asarray(3.0)).item() == pytest.approx(0.1)

    def g(x: Any) -> Any:
        return wf.cond(x > 0, lambda: clipped(x), lambda: x)

    assert wf.grad(g)(wf.asarray(3.0)).item() == pytest.approx(0.1)
    assert wf.grad(g)(wf.asarray(-3.0)).item() == 1


def test_gradients_in_bodies() -> None:
    """Newton's method on a traced function: a gradient in the body, and one through it."""

    def root(a: Any) -> Any:
        def f(x: Any) -> Any:
            return x**3 - a

        return wf.fori_loop(
            0, 20, lambda i, x: x - f(x) / wf.grad(f)(x), wf.asarray(1.5, dtype=wf.float64)
        )

    assert root(wf.asarray(8.0, dtype=wf.float64)).item() == pytest.approx(2)
    slope = wf.grad(root)(wf.asarray(8.0, dtype=wf.float64)).item()
    assert slope == pytest.approx(1 / 12)


def test_variables_have_gradients_through_loops() -> None:
    v = wf.Variable(np.float64(2))

    @wf.compile
    def f(x: Any) -> Any:
        y = wf.scan(lambda c, _: (c * v, None), x, length=3)[0]
        return wf.gradients(y, [v])[0]

    graph = f.trace(np.float64(5))
    assert verify(graph) is None

    def inside(c: Any, _: Any) -> Any:
        return c, wf.gradients(v * v * c, [v])[0]

    _, found = wf.scan(inside, np.float64(3), length=2)
    np.testing.assert_array_equal(found, [12, 12])


def test_integers_and_bools_have_no_cotangents() -> None:
    def f(x: Any) -> Any:
        (i, _, y), seen = wf.scan(
            lambda c, _: ((c[0] + 1, c[2] > 10, c[2] * (c[0] + 1)), c[1]),
            (0, False, x),
            length=4,
        )
        return y * wf.astype(i, wf.float64) + wf.sum(wf.astype(seen, wf.float64))

    assert wf.grad(f)(wf.asarray(2.0, dtype=wf.float64)).item() == 24 * 4


def test_complex_carries() -> None:
    z = np.array(0.3 + 0.4j)

    def f(z: Any) -> Any:
        w, _ = wf.scan(lambda c, _: (c * c + z, None), z, length=3)
        return wf.real(w * wf.conj(w))

    found = wf.grad(f)(wf.asarray(z)).item()
    eps = 1e-6
    for unit in (1, 1j):
        rise = float(f(wf.asarray(z + eps * unit))) - float(f(wf.asarray(z - eps * unit)))
        part = found.real if unit == 1 else found.imag
        assert rise / (2 * eps) == pytest.approx(part, rel=1e-8)


def test_a_branch_that_is_not_taken_does_not_poison_the_gradient() -> None:
    def f(x: Any) -> Any:
        return wf.cond(x > 0, lambda: wf.sqrt(x), lambda: wf.zeros_like(x))

    assert wf.grad(f)(wf.asarray(-1.0)).item() == 0
    assert wf.grad(f)(wf.asarray(4.0)).item() == 0.25


def test_unconnected_and_stopped() -> None:
    def f(x: Any, y: Any) -> Any:
        c, _ = wf.scan(lambda c, _: (wf.stop_gradient(c) + x, None), y, length=3)
        return c

    dx, dy = wf.grad(f, (0, 1))(wf.asarray(1.0), wf.asarray(1.0))
    assert (dx.item(), dy.item()) == (1, 0)


@pytest.mark.parametrize("length", [0, 1, 3])
def test_a_scan_that_gives_what_it_only_reads_as_rows(length: int) -> None:
    def loss(x: Any, w: Any) -> Any:
        last, rows = wf.scan(lambda c, e: (c * w + e, w), init=x[0], xs=x[:length])
        return wf.sum(last * last) + wf.sum(rows)

    x, w = np.arange(1.0, 4.0), np.array(2.0)
    by_x, by_w = wf.grad(loss, argnums=(0, 1))(x, w)
    for k, got in ((0, by_x), (1, by_w)):
        step = np.eye(3)[0] * 1e-6 if k == 0 else np.array(1e-6)
        args = [[x, w], [x, w]]
        args[0][k], args[1][k] = args[0][k] + step, args[1][k] - step
        slope = (loss(*args[0]) - loss(*args[1])).numpy() / 2e-6
        first = np.asarray(got)[0] if k == 0 else np.asarray(got)
        np.testing.assert_allclose(first, slope, rtol=1e-6, atol=1e-6)
