"""`vmap` against a Python loop, forward derivatives against finite differences, and both composed.

The tables of ops are tested in tests/passes/test_batching.py and test_forward_mode.py."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from loop_checks import executable

import weft as wf
from weft.ir.errors import GradientError, InvalidArgumentError, ShapeError, UnsupportedError

Array = np.ndarray[Any, Any]
RNG = np.random.default_rng(0)
X, P = RNG.standard_normal((5, 3)), RNG.random((5, 3)) + 0.5
STACK = RNG.standard_normal((5, 4, 3))
W = RNG.standard_normal((3, 2))
IMAGES, KERNEL = RNG.standard_normal((5, 2, 6, 6, 3)), RNG.standard_normal((3, 3, 3, 4))
INDEX = RNG.integers(0, 3, (5, 2))


def zero() -> Any:
    return wf.zeros((), dtype=wf.float64)


def grows(a: Any) -> Any:
    return wf.while_loop(lambda v: wf.sum(v * v) < 100, lambda v: v * 1.5 + 0.1 * wf.sin(v), a)


def thrice(a: Any) -> Any:
    return wf.while_loop(lambda i, v: i < 3, lambda i, v: (i + 1, wf.sin(v) + a), (0, a))[1]


def running(a: Any) -> Any:
    return wf.scan(lambda c, r: (c + wf.sum(r), c * r), zero(), a)


def branch(a: Any) -> Any:
    return wf.cond(wf.sum(a) > 0, lambda: a * a, lambda: wf.ones_like(a))


def loss(w: Any, x: Any) -> Any:
    return wf.sum(wf.tanh(x @ w) ** 2)


@wf.custom_jvp
def _twice_exp(x: Any) -> Any:
    """The exponential, whose rule says twice its derivative."""
    return wf.exp(x)


@_twice_exp.defjvp
def _twice_exp_jvp(primals: Any, tangents: Any) -> Any:
    y = _twice_exp(*primals)
    return y, 2 * y * tangents[0]


@wf.custom_gradient
def clipped(x: Any) -> Any:
    return x * 2, lambda dy: wf.clip(dy, -1.0, 1.0) * x


#: name: (function of one example, arguments, in_axes)
BATCHED: dict[str, tuple[Callable[..., Any], Sequence[Array], Any]] = {
    "dot": (lambda a, b: wf.sum(a * b), (X, X), 0),
    "x @ w": (lambda w, x: x @ w, (W, X), (None, 0)),
    "w @ x": (lambda w, x: w.T @ x, (W, X), (None, 0)),
    "rows": (lambda a, b: a @ b, (STACK, W), (0, None)),
    "left": (lambda a, b: b @ a, (STACK, RNG.standard_normal((6, 4))), (0, None)),
    "each its own": (lambda a: a @ a.T, (STACK,), 0),
    "another axis": (lambda a: a.sum(axis=0) * 2, (STACK,), 1),
    "negative axis": (lambda a: a.sum(axis=0) * 2, (STACK,), -1),
    "softmax": (wf.nn.softmax, (X,), 0),
    "take, both": (lambda a, i: wf.take(a, i, axis=1), (STACK, INDEX), 0),
    "take, indices": (lambda a, i: wf.take(a, i, axis=1), (STACK[0], INDEX), (None, 0)),
    "take, array": (lambda a, i: wf.take(a, i, axis=1), (STACK, INDEX[0]), (0, None)),
    "an element": (lambda a, i: a[i], (X, INDEX[:, 0]), 0),
    "sort": (lambda a: (wf.sort(a), wf.argsort(a), wf.argmax(a)), (X,), 0),
    "searchsorted": (lambda a: wf.searchsorted(wf.sort(a), a), (X,), 0),
    "cumulative": (wf.cumulative_sum, (X,), 0),
    "gradient": (wf.grad(lambda a: wf.sum(wf.tanh(a) ** 2)), (X,), 0),
    "gradient of rows": (
        wf.grad(lambda a, i: wf.sum(wf.take(a, i, axis=1) ** 3)), (STACK, INDEX), 0,
    ),
    "per-example gradients": (wf.grad(loss), (W, X), (None, 0)),
    "second derivatives": (
        wf.grad(lambda a: wf.sum(wf.grad(lambda b: wf.sum(b**3))(a) ** 2)), (X,), 0,
    ),
    "cond": (branch, (X,), 0),
    "shared cond": (
        lambda p, a: wf.cond(p > 0, lambda: a * 2, lambda: wf.ones_like(a)),
        (np.float64(1), X), (None, 0),
    ),
    "loop in a branch": (
        lambda a: wf.cond(wf.sum(a) > 0, lambda: thrice(a), lambda: -a), (X,), 0,
    ),
    "while": (grows, (X,), 0),
    "while of one length": (thrice, (X,), 0),
    "gradient of while of one length": (wf.grad(lambda a: wf.sum(thrice(a))), (X,), 0),
    "scan": (running, (STACK,), 0),
    "gradient of scan": (wf.grad(lambda a: wf.sum(running(a)[1])), (STACK,), 0),
    "convolution": (lambda a, k: wf.nn.conv2d(a, k, padding="SAME"), (IMAGES, KERNEL), (0, None)),
    "kernels": (
        lambda a, k: wf.nn.conv2d(a, k, padding="VALID"),
        (IMAGES, RNG.standard_normal((5, 3, 3, 3, 4))), 0,
    ),
    "per-example gradients of kernels": (
        wf.grad(lambda a, k: wf.sum(wf.nn.conv2d(a, k, padding="VALID") ** 2), argnums=(0, 1)),
        (IMAGES, KERNEL), (0, None),
    ),
    "pooling": (
        wf.grad(lambda a: wf.sum(wf.nn.max_pool(a, 2, 2, "VALID") ** 2)), (IMAGES,), 0,
    ),
    "custom gradient": (wf.grad(lambda a: wf.sum(clipped(a) ** 2)), (X,), 0),
    "keys": (
        lambda k: wf.random.normal(k, (3,)),
        (np.stack([np.asarray(wf.random.key(i)) for i in range(5)]),), 0,
    ),
    "keys by number": (
        lambda k, i: wf.random.uniform(wf.random.fold_in(k, i), (3,)),
        (np.asarray(wf.random.key(1)), np.arange(5)), (None, 0),
    ),
    "vmap": (wf.vmap(lambda a: wf.sum(a * a)), (STACK,), 0),
    "jvp": (lambda a: wf.jvp(lambda b: wf.sin(b) * b, (a,), (a * a,)), (X,), 0),
    "einsum": (lambda a, b: wf.einsum("ij,jk->ik", a, b), (STACK, W), (0, None)),
}  # fmt: skip


class TestVmap:
    @pytest.mark.share(12)
    @pytest.mark.parametrize("compiled", [False, True], ids=["at once", "compiled"])
    @pytest.mark.parametrize("name", BATCHED)
    def test_as_a_loop(self, name: str, compiled: bool) -> None:
        fn, args, in_axes = BATCHED[name]
        axes = in_axes if isinstance(in_axes, tuple) else (in_axes,) * len(args)
        batched = wf.vmap(fn, in_axes)
        made = (wf.compile(batched) if compiled else batched)(*map(wf.asarray, args))
        for k in range(5 if "axis" not in name else STACK.shape[axes[0]]):
            rows = [
                wf.asarray(a if ax is None else np.take(a, k, ax))
                for a, ax in zip(args, axes, strict=True)
            ]
            for got, want in zip(wf.tree_leaves(made), wf.tree_leaves(fn(*rows)), strict=True):
                np.testing.assert_allclose(np.asarray(got)[k], want, rtol=1e-6, atol=1e-9)

    def test_in_a_session(self) -> None:
        with wf.Graph().as_default(), wf.Session() as session:
            x = wf.placeholder(wf.float32, (None, 3))
            made = wf.vmap(lambda a: wf.sum(a) * a)(x)
            for rows in (1, 4):
                given = X[:rows].astype(np.float32)
                got = session.run(made, {x: given})
                want = given.sum(axis=1, keepdims=True) * given
                np.testing.assert_allclose(got, want, rtol=1e-6)

    def test_gradient_of_a_batch(self) -> None:
        total = wf.grad(lambda w: wf.sum(wf.vmap(lambda x: loss(w, x))(wf.asarray(X))))(W)
        each = [np.asarray(wf.grad(loss)(W, x)) for x in X]
        np.testing.assert_allclose(total, np.sum(each, axis=0), rtol=1e-9)

    def test_trees_and_axes(self) -> None:
        tree = {"a": X, "b": (STACK, 2.0)}
        made = wf.vmap(
            lambda t, n=0.0: {"y": t["a"] * t["b"][1], "z": wf.sum(t["b"][0]) + n},
            in_axes=({"a": 0, "b": (0, None)},),
            out_axes={"y": 1, "z": 0},
        )(tree)
        np.testing.assert_allclose(made["y"], (X * 2).T)
        np.testing.assert_allclose(made["z"], STACK.sum(axis=(1, 2)))

    def test_keyword_arguments_have_the_examples_first(self) -> None:
        made = wf.vmap(lambda a, b: a - b)(X, b=P)
        np.testing.assert_allclose(made, X - P)

    def test_results_that_all_share(self) -> None:
        both = wf.vmap(lambda a: (a, wf.ones(2)), out_axes=(0, None))(X)
        assert both[1].shape == (2,)
        assert wf.vmap(lambda a: wf.ones(2))(X).shape == (5, 2)
        assert wf.vmap(lambda: wf.ones(2), axis_size=4)().shape == (4, 2)

    def test_generators_differ_by_example(self) -> None:
        rng = wf.random.Generator(1)
        drawn = np.asarray(wf.vmap(lambda a: rng.normal((4,)) + a)(wf.zeros(3)))
        assert len({tuple(row) for row in drawn}) == 3
        again = np.asarray(wf.vmap(lambda a: rng.normal((4,)) + a)(wf.zeros(3)))
        assert not np.array_equal(drawn, again)
        key = wf.random.key(1)
        same = np.asarray(wf.vmap(lambda a: wf.random.normal(key, (4,)) + a)(wf.zeros(3)))
        assert len({tuple(row) for row in same}) == 1

    def test_keys_made_of_a_generators(self) -> None:
        rng = wf.random.Generator(1)

        def split(a: Any) -> Any:
            return wf.random.normal(wf.random.split(rng.next_key())[1], (2,)) + a

        def loop(a: Any) -> Any:
            key = rng.next_key()
            return wf.fori_loop(
                0, 2, lambda i, t: t + wf.random.normal(wf.random.fold_in(key, i), (2,)), a
            )

        def branch(a: Any) -> Any:
            key = rng.next_key()
            return wf.cond(a[0] < 1, lambda: wf.random.normal(key, (2,)), lambda: a)

        for fn in (split, loop, branch):
            drawn = np.asarray(wf.vmap(fn)(wf.zeros((3, 2))))
            assert len({tuple(row) for row in drawn}) == 3

        def again(a: Any) -> Any:  # the gradient draws what the function has drawn
            key = rng.next_key()
            return wf.value_and_grad(
                wf.checkpoint(lambda x: wf.sum(wf.random.normal(key, (2,)) * x))
            )(a)

        value, slope = wf.vmap(again)(wf.ones(3))
        np.testing.assert_allclose(value, slope, rtol=1e-6)
        assert len(set(np.asarray(value).tolist())) == 3

        def one_by_one(a: Any) -> Any:
            key = rng.next_key()
            drawn = lambda: wf.fori_loop(0, 2, lambda i, t: t + wf.random.normal(key, (2,)), a)  # noqa: E731
            return wf.cond(a[0] < 1, drawn, lambda: a)

        with pytest.raises(UnsupportedError, match="would be the same in each row"):
            wf.vmap(one_by_one)(wf.zeros((3, 2)))

    def test_a_branch_that_prints(self, capsys: pytest.CaptureFixture[str]) -> None:
        def fn(a: Any) -> Any:
            return wf.cond(a > 0, lambda: (wf.print("{:.0f}", a), a)[1], lambda: -a)

        np.testing.assert_allclose(wf.vmap(fn)(np.array([1.0, -2.0, 3.0])), [1, 2, 3])
        assert capsys.readouterr().err == "1\n3\n"

    def test_prints_and_checks(self, capsys: pytest.CaptureFixture[str]) -> None:
        def fn(a: Any) -> Any:
            wf.print("sum {:.0f}", wf.sum(a))
            wf.check(wf.sum(a) < 100, "too large")
            return a * 2

        rows = np.arange(6.0).reshape(3, 2)
        for batched in (wf.vmap(fn), wf.compile(wf.vmap(fn))):
            np.testing.assert_allclose(batched(rows), rows * 2)
            assert capsys.readouterr().err == "sum 1\nsum 5\nsum 9\n"
        with pytest.raises(InvalidArgumentError, match="too large"):
            wf.compile(wf.vmap(fn))(rows * 50)

    def test_variables(self) -> None:
        v = wf.Variable(np.ones(3))
        np.testing.assert_allclose(wf.vmap(lambda a: a * v)(X), X)
        wf.vmap(lambda a: v.assign(v * 2))(X)
        np.testing.assert_allclose(v, np.full(3, 2.0))
        with pytest.raises(UnsupportedError, match="one value for each example"):
            wf.vmap(lambda a: v.assign(a))(X)

    def test_errors(self) -> None:
        with pytest.raises(InvalidArgumentError, match="names 2 arguments"):
            wf.vmap(lambda a: a, (0, 0))(X)
        with pytest.raises(InvalidArgumentError, match="axis 2 for"):
            wf.vmap(lambda a: a, 2)(X)
        with pytest.raises(InvalidArgumentError, match="no argument has an axis"):
            wf.vmap(lambda a: a, None)(X)
        with pytest.raises(ShapeError, match="has 5 examples, and"):
            wf.vmap(lambda a, b: a)(X, X[:4])
        with pytest.raises(InvalidArgumentError, match="out_axes is None"):
            wf.vmap(lambda a: a, out_axes=None)(X)
        with pytest.raises(InvalidArgumentError, match="not a function"):
            wf.vmap(3)  # type: ignore[arg-type]
        with pytest.raises(UnsupportedError, match="would differ from row to row"):
            wf.vmap(wf.unique_values)(X)


#: name: (function, arguments)
MOVED: dict[str, tuple[Callable[..., Any], Sequence[Array]]] = {
    "elementwise": (lambda a: wf.exp(wf.sin(a)) / wf.sqrt(a), (P,)),
    "binary": (lambda a, b: wf.pow(a, b) + wf.atan2(a, b) * wf.hypot(a, b), (P, P + 0.3)),
    "products": (lambda a, b: wf.tanh(a @ b), (X, W)),
    "softmax": (wf.nn.softmax, (X,)),
    "sort": (lambda a: wf.sort(a, axis=1), (X,)),
    "extrema": (lambda a: wf.max(a, axis=0) * wf.min(a, axis=0), (X,)),
    "prod": (lambda a: wf.prod(a, axis=1), (X,)),
    "cumulative": (lambda a: wf.cumulative_prod(a, axis=1) + wf.cumulative_logsumexp(a, axis=1),
                   (X,)),
    "indices": (lambda a: wf.take(a, np.array([0, 2, 2]), axis=1) ** 2, (X,)),
    "cond": (branch, (X,)),
    "while": (grows, (X,)),
    "while, with others": (thrice, (X,)),
    "scan": (running, (X,)),
    "gradient": (wf.grad(lambda a: wf.sum(wf.tanh(a) ** 3)), (X,)),
    "gradient of scan": (wf.grad(lambda a: wf.sum(running(a)[1])), (X,)),
    "gradient of while": (wf.grad(lambda a: wf.sum(grows(a))), (X,)),
    "convolution": (lambda a, k: wf.nn.conv2d(a, k, padding="SAME"), (IMAGES[0], KERNEL)),
    "pooling": (lambda a: wf.nn.max_pool(a, 2, 2, "VALID"), (IMAGES[0],)),
    "complex": (lambda a: wf.exp(a) * wf.conj(a) / a + wf.abs(a), (X + 1j * P,)),
    "vmap": (wf.vmap(wf.grad(lambda a: wf.sum(a**3))), (X,)),
    "jvp": (lambda a: wf.jvp(lambda b: wf.sin(b) * b, (a,), (a * a,))[1], (X,)),
}  # fmt: skip


def finite(fn: Callable[..., Any], args: Sequence[Array], along: Sequence[Array]) -> list[Array]:
    sides = []
    for step in (1e-6, -1e-6):
        made = fn(*(wf.asarray(a + step * t) for a, t in zip(args, along, strict=True)))
        sides.append([np.asarray(y) for y in wf.tree_leaves(made)])
    return [(a - b) / 2e-6 for a, b in zip(*sides, strict=True)]


class TestForward:
    @pytest.mark.share(12)
    @pytest.mark.parametrize("way", ["jvp", "compiled", "linearize"])
    @pytest.mark.parametrize("name", MOVED)
    def test_against_finite_differences(self, name: str, way: str) -> None:
        fn, args = MOVED[name]
        rng = np.random.default_rng(1)
        along = [rng.standard_normal(a.shape) + (1j * a.real if a.dtype.kind == "c" else 0)
                 for a in args]  # fmt: skip
        xs, ts = tuple(map(wf.asarray, args)), tuple(map(wf.asarray, along))
        if way == "linearize":
            out, pushforward = wf.linearize(fn, *xs)
            made = out, pushforward(*ts)
        elif way == "compiled":
            made = wf.compile(lambda x, t: wf.jvp(fn, tuple(x), tuple(t)))(xs, ts)
        else:
            made = wf.jvp(fn, xs, ts)
        for got, want in zip(wf.tree_leaves(made[0]), wf.tree_leaves(fn(*xs)), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-12)
        wanted = finite(fn, args, along)
        for got, want in zip(wf.tree_leaves(made[1]), wanted, strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)

    def test_variables_are_assigned_once(self) -> None:
        v = wf.Variable(np.float64(1))

        def counted(x: Any) -> Any:
            v.assign(v + 1)
            return x * v

        y, moved = wf.jvp(counted, (wf.asarray(3.0),), (wf.asarray(1.0),))
        assert (float(y), float(moved), float(v)) == (6.0, 2.0, 2.0)

    def test_integer_results_have_the_tangent_zero(self) -> None:
        out, moved = wf.jvp(lambda x: (x, wf.argmax(x)), (wf.asarray(P[0]),), (wf.asarray(X[0]),))
        assert moved[1].dtype == out[1].dtype
        assert int(moved[1]) == 0

    def test_jacobians(self) -> None:
        def fn(v: Any) -> Any:
            return {"a": wf.stack([v[0] * v[1], wf.sin(v[1]), v[0] ** 2]), "b": wf.sum(v)}

        v = np.array([2.0, 3.0])
        want = [[3.0, 2.0], [0.0, np.cos(3.0)], [4.0, 0.0]]
        for jacobian in (wf.jacfwd, wf.jacrev):
            for made in (jacobian(fn)(v), wf.compile(jacobian(fn))(v)):
                np.testing.assert_allclose(made["a"], want)
                np.testing.assert_allclose(made["b"], [1, 1])

    def test_jacobians_of_several_arguments(self) -> None:
        for jacobian in (wf.jacfwd, wf.jacrev):
            a, b = jacobian(lambda x, y: x @ y, argnums=(0, 1))(X, W)
            assert a.shape == (5, 2, 5, 3)
            assert b.shape == (5, 2, 3, 2)
            np.testing.assert_allclose(a[2, 1, 2], W[:, 1])
            np.testing.assert_allclose(b[2, 1, :, 1], X[2])
            np.testing.assert_allclose(b[2, 1, :, 0], 0)

    def test_hessian(self) -> None:
        made = wf.hessian(lambda d: wf.sum(d["a"] ** 2 * d["b"]))(
            {"a": np.array([1.0, 2.0]), "b": np.array([3.0, 4.0])}
        )
        np.testing.assert_allclose(made["a"]["a"], np.diag([6.0, 8.0]))
        np.testing.assert_allclose(made["a"]["b"], np.diag([2.0, 4.0]))
        np.testing.assert_allclose(made["b"]["b"], np.zeros((2, 2)))

    def test_products_with_the_hessian(self) -> None:
        def fn(x: Any) -> Any:
            return wf.sum(wf.sin(x) * wf.sum(x))

        t = np.array([1.0, -2.0, 0.5])
        (made,) = wf.hvp(fn, (P[0],), (t,))
        np.testing.assert_allclose(made, np.asarray(wf.hessian(fn)(P[0])) @ t, rtol=1e-9)

    def test_custom_jvp(self) -> None:
        @wf.custom_jvp
        def safe(x: Any) -> Any:
            return wf.log(x)

        with pytest.raises(GradientError, match="has no rule"):
            wf.grad(safe)(wf.asarray(0.25))

        @safe.defjvp
        def rule(primals: Any, tangents: Any) -> Any:
            (x,), (t,) = primals, tangents
            return safe(x), t / wf.maximum(x, 0.5)

        x, t = wf.asarray(0.25), wf.asarray(3.0)
        assert float(safe(x)) == pytest.approx(np.log(0.25))
        assert float(wf.grad(safe)(x)) == 2.0
        assert float(wf.compile(wf.grad(safe))(x)) == 2.0
        assert float(wf.jvp(safe, (x,), (t,))[1]) == 6.0
        np.testing.assert_allclose(wf.vmap(wf.grad(safe))(wf.asarray([0.25, 1.0])), [2, 1])

    def test_custom_jvp_with_static_arguments(self) -> None:
        @wf.custom_jvp
        def power(n: int, x: Any) -> Any:
            return x**n

        power.nondiff_argnums = (0,)
        power.defjvp(lambda n, p, t: (p[0] ** n, 100.0 * n * t[0]))
        assert float(wf.grad(lambda x: power(2, x))(wf.asarray(3.0))) == 200.0

    def test_rules_are_differentiated(self) -> None:
        """The function has its rule in the rule: n derivatives have it n times."""
        f = _twice_exp
        x, one = wf.asarray(0.3, dtype=wf.float64), wf.asarray(1.0, dtype=wf.float64)
        second = {
            "grad of grad": wf.grad(wf.grad(f))(x),
            "compiled": wf.compile(wf.grad(wf.grad(f)))(x),
            "jvp of jvp": wf.jvp(lambda x: wf.jvp(f, (x,), (one,))[1], (x,), (one,))[1],
            "jvp of grad": wf.jvp(wf.grad(f), (x,), (one,))[1],
            "grad of jvp": wf.grad(lambda x: wf.jvp(f, (x,), (one,))[1])(x),
            "hessian": wf.hessian(f)(x),
            "jacrev of jacfwd": wf.jacrev(wf.jacfwd(f))(x),
            "hvp": wf.hvp(f, (x,), (one,))[0],
            "linearize": wf.linearize(wf.grad(f), x)[1](one),
            "vjp": wf.vjp(wf.grad(f), x)[1](one)[0],
            "checkpoint": wf.grad(wf.grad(wf.checkpoint(f)))(x),
            "vmap": wf.vmap(wf.grad(wf.grad(f)))(x[None])[0],
            "of vmap": wf.hessian(lambda x: wf.sum(wf.vmap(f)(x)))(x[None])[0, 0],
        }
        for name, found in second.items():
            assert float(found) == pytest.approx(4 * np.exp(0.3)), name
        assert float(wf.grad(wf.grad(wf.grad(f)))(x)) == pytest.approx(8 * np.exp(0.3))

    def test_rules_are_differentiated_in_loops(self) -> None:
        def unrolled(x: Any) -> Any:
            for _ in range(3):
                x = _twice_exp(x * 0.5)
            return x

        def scanned(x: Any) -> Any:
            return wf.scan(lambda c, _: (_twice_exp(c * 0.5), None), x, None, length=3)[0]

        x = wf.asarray(0.3, dtype=wf.float64)
        for transform in (lambda f: wf.grad(wf.grad(f)), wf.hessian):
            want = float(transform(unrolled)(x))
            assert float(transform(scanned)(x)) == pytest.approx(want)
            assert float(wf.vmap(transform(scanned))(x[None])[0]) == pytest.approx(want)

    def test_rules_that_call_each_other(self) -> None:
        @wf.custom_jvp
        def sine(x: Any) -> Any:
            return wf.sin(x)

        @wf.custom_jvp
        def cosine(x: Any) -> Any:
            return wf.cos(x)

        sine.defjvp(lambda p, t: (sine(*p), 2 * cosine(*p) * t[0]))
        cosine.defjvp(lambda p, t: (cosine(*p), -3 * sine(*p) * t[0]))
        third = wf.grad(wf.grad(wf.grad(sine)))(wf.asarray(0.3, dtype=wf.float64))
        assert float(third) == pytest.approx(-12 * np.cos(0.3))

        @wf.custom_jvp
        def power(n: int, x: Any) -> Any:
            return x**n

        power.nondiff_argnums = (0,)
        power.defjvp(lambda n, p, t: (power(n, *p), 2 * n * power(n - 1, *p) * t[0]))
        third = wf.grad(wf.grad(wf.grad(lambda x: power(4, x))))(wf.asarray(0.3))
        assert float(third) == pytest.approx(8 * 24 * 0.3)

    def test_rules_use_what_is_outside(self) -> None:
        """A tensor of the trace around the call, and a variable."""
        v = wf.Variable(np.float64(2.0))

        def fn(a: Any, x: Any) -> Any:
            factor = wf.sin(a)

            @wf.custom_jvp
            def f(x: Any) -> Any:
                return x * factor

            f.defjvp(lambda p, t: (f(*p), v * factor * f(*p) * t[0]))
            return wf.grad(wf.grad(f))(x)

        a, x = wf.asarray(0.7, dtype=wf.float64), wf.asarray(0.3, dtype=wf.float64)
        for run in (fn, wf.compile(fn)):
            assert float(run(a, x)) == pytest.approx(4 * np.sin(0.7) ** 3 * 0.3)

    def test_what_a_later_rule_does_not_know(self) -> None:
        """A keyword argument is no argument of the rule: it belongs to a trace that ended."""

        @wf.custom_gradient
        def f(x: Any, k: Any = None) -> Any:
            return x * k, lambda g: g * f(x, k=wf.sin(x))

        x, k = wf.asarray(0.3), wf.asarray(2.0)
        assert float(wf.grad(f)(x, k=k)) == pytest.approx(0.3 * np.sin(0.3))
        with pytest.raises(GradientError, match=r"higher order uses .*\n.*\n.*an argument of the"):
            wf.grad(wf.grad(f))(x, k=k)

    def test_custom_gradients_that_call_themselves(self) -> None:
        @wf.custom_gradient
        def f(x: Any) -> Any:
            return wf.exp(x), lambda g: 2 * f(x) * g

        x = wf.asarray(0.3, dtype=wf.float64)
        for order in range(1, 4):
            fn: Any = f
            for _ in range(order):
                fn = wf.grad(fn)
            assert float(fn(x)) == pytest.approx(2**order * np.exp(0.3))
            assert float(wf.vmap(fn)(x[None])[0]) == pytest.approx(2**order * np.exp(0.3))

    def test_errors(self) -> None:
        with pytest.raises(GradientError, match="Jacobians are of real functions"):
            wf.jacfwd(lambda x: x)(X + 1j)
        with pytest.raises(GradientError, match="only real floating results"):
            wf.jacrev(wf.argmax)(X)
        with pytest.raises(InvalidArgumentError, match="not a tuple with an entry"):
            wf.jvp(wf.sin, X, X)  # type: ignore[arg-type]


class TestInBodies:
    """Derivatives of what was computed outside of the body that asks for them."""

    @staticmethod
    def fn(a: Any) -> Any:
        return wf.sin(a) * wf.sum(a)

    @pytest.mark.parametrize("compiled", [False, True], ids=["at once", "compiled"])
    def test_pullbacks_and_pushforwards(self, compiled: bool) -> None:
        def both(x: Any) -> Any:
            pullback, push = wf.vjp(self.fn, x)[1], wf.linearize(self.fn, x)[1]
            basis = wf.eye(3, dtype=wf.float64)
            return wf.vmap(lambda c: pullback(c)[0])(basis), wf.vmap(push)(basis)

        x = wf.asarray(P[0])
        rows, columns = (wf.compile(both) if compiled else both)(x)
        want = np.asarray(wf.jacfwd(self.fn)(x))
        np.testing.assert_allclose(rows, want, rtol=1e-9)
        np.testing.assert_allclose(columns, want.T, rtol=1e-9)

    def test_in_branches_and_loops(self) -> None:
        @wf.compile
        def step(x: Any) -> Any:
            y, pullback = wf.vjp(lambda a: running(a)[1], x)
            chosen = wf.cond(wf.sum(x) > 0, lambda: pullback(y)[0], lambda: x)
            total = wf.fori_loop(0, 3, lambda i, t: t + pullback(y)[0], wf.zeros_like(x))
            return chosen, total

        y, pullback = wf.vjp(lambda a: running(a)[1], wf.asarray(P))
        (want,) = pullback(y)
        chosen, total = step(P)
        np.testing.assert_allclose(chosen, want, rtol=1e-9)
        np.testing.assert_allclose(total, 3 * np.asarray(want), rtol=1e-9)

    def test_a_function_of_which_a_result_is_not_of_its_own(self) -> None:
        @wf.compile
        def step(x: Any) -> Any:
            shared = x * 2
            return wf.cond(
                wf.sum(x) > 0,
                lambda: wf.vmap(lambda c: wf.vjp(lambda a: (a * a, shared), x)[1]((c, c))[0])(
                    wf.eye(3, dtype=wf.float64)
                ),
                lambda: wf.zeros((3, 3), dtype=wf.float64),
            )

        np.testing.assert_allclose(step(P[0]), np.diag(2 * P[0]))

    def test_gradients_by_way_of_ops_on_both_sides_are_an_error(self) -> None:
        @wf.compile
        def step(x: Any) -> Any:
            y = wf.sin(x)
            return wf.cond(wf.sum(x) > 0, lambda: wf.gradients(y * 2, x)[0], lambda: x)

        with pytest.raises(GradientError, match="by way of ops in both"):
            step(P[0])

        @wf.compile
        def apart(x: Any) -> Any:
            y = wf.sin(x)
            return wf.cond(wf.sum(x) > 0, lambda: wf.gradients(y, x)[0], lambda: x)

        np.testing.assert_allclose(apart(P[0]), np.cos(P[0]))

    def test_linearize_assigns_once(self) -> None:
        v = wf.Variable(np.float64(1))

        @wf.compile
        def step(x: Any) -> Any:
            push = wf.linearize(lambda a: a * v.assign(v + 1), x)[1]
            return push(x) + push(x)

        np.testing.assert_allclose(step(P[0]), 4 * P[0])
        assert float(v) == 2

    def test_effects_in_a_graph_are_refused(self) -> None:
        def prints(a: Any) -> Any:
            wf.print("{}", a)
            return a

        with wf.Graph().as_default():
            x = wf.placeholder(wf.float64, (3,))
            for transform in (wf.vmap, lambda f: lambda x: wf.jvp(f, (x,), (x,)), wf.checkpoint):
                with pytest.raises(UnsupportedError, match=r"or prints, in a wf\.Graph"):
                    transform(prints)(x)


class TestCheckpoint:
    @staticmethod
    def layer(w: Any, h: Any) -> Any:
        return wf.tanh(wf.tap("inner", wf.tanh(wf.tanh(h @ w) * 2)) @ w)

    @pytest.mark.share(2)
    @pytest.mark.parametrize("policy", [None, "products", ("inner",), lambda op: op == "tanh"])
    def test_the_same_gradient(self, policy: Any) -> None:
        weights = [RNG.standard_normal((4, 4)) for _ in range(3)]
        x = RNG.standard_normal((5, 4))

        def loss(block: Any) -> Any:
            def total(ws: Any) -> Any:
                h = wf.asarray(x)
                for w in ws:
                    h = block(w, h)
                return wf.sum(h * h)

            return total

        block = wf.checkpoint(self.layer, policy=policy)
        want = wf.grad(loss(self.layer))(weights)
        for made in (wf.grad(loss(block))(weights), wf.compile(wf.grad(loss(block)))(weights)):
            for got, wanted in zip(made, want, strict=True):
                np.testing.assert_allclose(got, wanted, rtol=1e-9, atol=1e-12)
        along = [w * 0.5 for w in weights]
        both = [wf.hvp(loss(b), (weights,), (along,))[0] for b in (block, self.layer)]
        for got, wanted in zip(*both, strict=True):
            np.testing.assert_allclose(got, wanted, rtol=1e-9, atol=1e-12)

    def test_less_memory(self) -> None:
        weights = [RNG.standard_normal((16, 16)) for _ in range(4)]

        def bytes_between(block: Any) -> int:
            def total(ws: Any) -> Any:
                h = wf.ones((64, 16), dtype=wf.float64)
                for w in ws:
                    h = block(w, h)
                return wf.sum(h * h)

            return int(executable(wf.compile(wf.grad(total)), weights).report.memory.peak_bytes)

        assert bytes_between(wf.checkpoint(self.layer)) < 0.8 * bytes_between(self.layer)

    def test_what_it_closes_over_has_a_gradient(self) -> None:
        def loss(w: Any) -> Any:
            return wf.sum(wf.checkpoint(lambda x: wf.sin(x @ w))(wf.asarray(X)))

        want = wf.grad(lambda w: wf.sum(wf.sin(wf.asarray(X) @ w)))(W)
        np.testing.assert_allclose(wf.grad(loss)(W), want)

    def test_loops_and_rows(self) -> None:
        fn = wf.checkpoint(lambda a: wf.sum(running(a)[1]))
        want = wf.vmap(wf.grad(lambda a: wf.sum(running(a)[1])))(STACK)
        np.testing.assert_allclose(wf.vmap(wf.grad(fn))(STACK), want, rtol=1e-9)

    def test_as_a_decorator(self) -> None:
        @wf.checkpoint(policy="products")
        def fn(x: Any, *, scale: float = 2.0) -> Any:
            return wf.sin(x) * scale, 3

        assert wf.grad(lambda x: fn(x, scale=3.0)[0])(0.0).item() == 3.0

    def test_errors(self) -> None:
        v = wf.Variable(1.0)
        with pytest.raises(UnsupportedError, match="assigns to variables"):
            wf.grad(wf.checkpoint(lambda x: x * v.assign(v + 1)))(wf.asarray(1.0))
        with pytest.raises(InvalidArgumentError, match="policy is 3"):
            wf.checkpoint(wf.sin, policy=3)  # type: ignore[arg-type]


class TestAssociativeScan:
    @pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 7, 8, 13, 16, 31])
    @pytest.mark.parametrize("reverse", [False, True])
    def test_prefixes(self, count: int, reverse: bool) -> None:
        matrices = RNG.standard_normal((count, 2, 2))
        made = wf.associative_scan(lambda a, b: a @ b, matrices, reverse=reverse)
        order = matrices[::-1] if reverse else matrices
        want, total = [], np.eye(2)
        for m in order:
            total = total @ m
            want.append(total)
        np.testing.assert_allclose(made, want[::-1] if reverse else want, rtol=1e-9)

    def test_trees_along_another_axis(self) -> None:
        a, b = RNG.standard_normal((3, 6)), RNG.standard_normal((3, 6))

        def linear(first: Any, second: Any) -> Any:  # h -> a h + b, one after the other
            return {"a": first["a"] * second["a"], "b": second["a"] * first["b"] + second["b"]}

        def fn(a: Any, b: Any) -> Any:
            return wf.associative_scan(linear, {"a": a, "b": b}, axis=-1)["b"]

        h, want = np.zeros(3), []
        for k in range(6):
            h = a[:, k] * h + b[:, k]
            want.append(h)
        for made in (fn(a, b), wf.compile(fn)(a, b)):
            np.testing.assert_allclose(made, np.stack(want, axis=1), rtol=1e-9)
        step = 1e-6
        slope = wf.grad(lambda a: wf.sum(fn(a, b)))(a)
        moved = [np.asarray(wf.sum(fn(a + s * np.ones_like(a), b))) for s in (step, -step)]
        np.testing.assert_allclose(np.sum(slope), (moved[0] - moved[1]) / (2 * step), rtol=1e-5)

    def test_errors(self) -> None:
        with pytest.raises(ShapeError, match="sizes along axis 0 are 5, 4"):
            wf.associative_scan(lambda a, b: a, (X, X[:4]))
        with pytest.raises(wf.errors.TypeRuleError, match="fn changes a type"):
            wf.associative_scan(lambda a, b: wf.sum(a), X)
        with pytest.raises(InvalidArgumentError, match="axis 2"):
            wf.associative_scan(lambda a, b: a, X, axis=2)


class TestLinearAlgebraAndFourier:
    """Ops of matrices and lines, in batches and forward."""

    MATRICES = RNG.standard_normal((4, 3, 3)) + 3 * np.eye(3)
    FUNCTIONS: Any = (
        wf.linalg.inv, wf.linalg.det, lambda a: wf.linalg.cholesky(a @ a.T),
        lambda a: wf.linalg.eigh(a + a.T)[0], wf.linalg.svdvals, lambda a: wf.linalg.qr(a)[1],
        lambda a: wf.linalg.solve(a, wf.ones(3, dtype=wf.float64)),
        lambda a: wf.abs(wf.fft.fft(a)),
        lambda a: wf.fft.irfft(wf.fft.rfft(a, axis=0) ** 2, axis=0),
    )  # fmt: skip

    @pytest.mark.share(6)
    @pytest.mark.parametrize("number", range(len(FUNCTIONS)))
    def test_batches(self, number: int) -> None:
        fn = self.FUNCTIONS[number]
        for batched in (wf.vmap(fn), wf.compile(wf.vmap(fn))):
            made = batched(wf.asarray(self.MATRICES))
            for row, a in zip(np.asarray(made), self.MATRICES, strict=True):
                np.testing.assert_allclose(row, fn(wf.asarray(a)), rtol=1e-9, atol=1e-10)

    @pytest.mark.parametrize("number", range(len(FUNCTIONS)))
    def test_forward(self, number: int) -> None:
        fn, a = self.FUNCTIONS[number], self.MATRICES[0]
        t = np.random.default_rng(2).standard_normal(a.shape)
        _, moved = wf.jvp(fn, (wf.asarray(a),), (wf.asarray(t),))
        np.testing.assert_allclose(moved, finite(fn, [a], [t])[0], rtol=1e-5, atol=1e-6)
        moved = wf.jvp(wf.vmap(fn), (self.MATRICES,), (self.MATRICES,))[1]
        wanted = finite(wf.vmap(fn), [self.MATRICES], [self.MATRICES])[0]
        np.testing.assert_allclose(moved, wanted, rtol=1e-5, atol=1e-6)

    def test_one_matrix_for_all_right_hand_sides(self) -> None:
        a, b = self.MATRICES[0], RNG.standard_normal((7, 3))
        made = wf.compile(wf.vmap(lambda x: wf.linalg.solve(wf.asarray(a), x)))(b)
        np.testing.assert_allclose(made, np.linalg.solve(a, b.T).T, rtol=1e-9)
