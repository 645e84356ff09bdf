"""Every transformation of every other, over control flow, rules of users, random numbers, linear
algebra and Fourier transforms. The truth is NumPy: differences of high order, and a loop over the
examples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose

import weft as wf

Array = np.ndarray[Any, Any]
#: A function of a vector of three elements that gives a number; and of rows of such vectors.
Fn = Callable[[Any], Any]
Rows = Callable[[Array], Array]

X = np.array([0.7, -0.4, 1.1])
U = np.array([0.5, 1.0, -0.3])
V = np.array([-0.2, 0.8, 0.6])
#: The examples of a batch: X by these. Branches go both ways, and loops have several lengths.
SCALES = np.array([1.0, -0.6, 1.7])
WEIGHTS = np.array([0.5, 2.0, -1.0])

# ------------------------------------------------------------------------------------ functions
MATRIX = np.array([[3.0, 0.4, -0.2], [0.4, 2.5, 0.3], [-0.2, 0.3, 4.0]])
FOURIER = np.array([0.3, -1.0, 0.7])
NORMAL = np.asarray(wf.random.normal(wf.random.key(7), (3,), dtype=wf.float64))


def branch(x: Any) -> Any:
    total = wf.sum(x)
    return wf.cond(total > 0.2, lambda: wf.sum(wf.exp(x) * x), lambda: wf.sum(x**3) * total)


def branch_rows(x: Array) -> Array:
    total = x.sum(-1)
    return np.where(total > 0.2, (np.exp(x) * x).sum(-1), (x**3).sum(-1) * total)


def loop(x: Any) -> Any:
    """As long as the first element is small."""

    def body(v: Any, n: Any) -> Any:
        return wf.sin(v) * 0.3 + v * 1.4 + x * 0.2, n + 1

    return wf.sum(wf.while_loop(lambda v, n: (v[0] ** 2 < 4.0) & (n < 9), body, (x, 0))[0] ** 2)


def loop_rows(x: Array) -> Array:
    v, on = x, np.ones(len(x), bool)
    for _ in range(9):
        on = on & (v[:, 0] ** 2 < 4.0)
        v = np.where(on[:, None], np.sin(v) * 0.3 + v * 1.4 + x * 0.2, v)
    return (v**2).sum(-1)


def scanned(x: Any) -> Any:
    def body(c: Any, row: Any) -> Any:
        c = wf.tanh(c * row + 0.3) * x[0]
        return c, c * row

    last, ys = wf.scan(body, x[1], x)
    return last**2 + wf.sum(ys)


def scanned_rows(x: Array) -> Array:
    c, total = x[:, 1], np.zeros(len(x))
    for k in range(3):
        c = np.tanh(c * x[:, k] + 0.3) * x[:, 0]
        total = total + c * x[:, k]
    return c**2 + total


@wf.custom_jvp
def softplus(x: Any) -> Any:
    return wf.log1p(wf.exp(x))


@softplus.defjvp
def _softplus_jvp(primals: Any, tangents: Any) -> Any:
    y = softplus(*primals)  # the derivatives of the rule are those of the rule again
    return y, tangents[0] * (1 - wf.exp(-y))


@wf.custom_gradient
def sigmoid(x: Any) -> Any:
    def gradient(g: Any) -> Any:
        y = sigmoid(x)
        return g * y * (1 - y)

    return 1 / (1 + wf.exp(-x)), gradient


def drawn(x: Any) -> Any:
    return wf.sum(wf.sin(x * wf.random.normal(wf.random.key(7), (3,), dtype=wf.float64)) * x)


def solved(x: Any) -> Any:
    a = MATRIX + 0.2 * x[:, None] * x[None, :]
    return wf.sum(wf.linalg.solve(a, x[:, None])) + wf.linalg.slogdet(a)[1] + wf.linalg.inv(a)[0, 1]


def solved_rows(x: Array) -> Array:
    a = MATRIX + 0.2 * x[:, :, None] * x[:, None, :]
    solution = np.linalg.solve(a, x[:, :, None]).sum((1, 2))
    return solution + np.linalg.slogdet(a)[1] + np.linalg.inv(a)[:, 0, 1]


def transformed(x: Any) -> Any:
    spectrum = wf.fft.fft(wf.astype(wf.sin(x), wf.complex128))
    return wf.sum((wf.real(spectrum) + wf.imag(spectrum)) ** 2 * FOURIER)


def transformed_rows(x: Array) -> Array:
    spectrum = np.fft.fft(np.sin(x))
    return ((spectrum.real + spectrum.imag) ** 2 * FOURIER).sum(-1)


FUNCTIONS: dict[str, tuple[Fn, Rows]] = {
    "cond": (branch, branch_rows),
    "while_loop": (loop, loop_rows),
    "scan": (scanned, scanned_rows),
    "custom_jvp": (
        lambda x: wf.sum(softplus(x) * x),
        lambda x: (np.log1p(np.exp(x)) * x).sum(-1),
    ),
    "custom_gradient": (
        lambda x: wf.sum(sigmoid(x) * x),
        lambda x: (x / (1 + np.exp(-x))).sum(-1),
    ),
    "random": (drawn, lambda x: (np.sin(x * NORMAL) * x).sum(-1)),
    "linalg": (solved, solved_rows),
    "fft": (transformed, transformed_rows),
}

# ------------------------------------------------------------------------------ transformations
#: Differences of the eighth order; the step is far from where a loop has another length.
STENCIL = {1: 4 / 5, 2: -1 / 5, 3: 4 / 105, 4: -1 / 280}
STEP = 0.01


def slope(fn: Rows, along: Array) -> Rows:
    """The derivative along a vector."""

    def rows(x: Array) -> Array:
        pairs = [
            (c, fn(x + k * STEP * along) - fn(x - k * STEP * along)) for k, c in STENCIL.items()
        ]
        return sum(c * d for c, d in pairs) / STEP  # type: ignore[no-any-return]

    return rows


def example_by_example(fn: Rows) -> Rows:
    return lambda x: np.stack([fn(x * s) for s in SCALES], -1) @ WEIGHTS


def vector(v: Array) -> Any:
    return wf.asarray(v)


TRANSFORMATIONS: dict[str, tuple[Callable[[Fn], Fn], Callable[[Rows], Rows]]] = {
    "grad": (lambda f: lambda x: wf.sum(wf.grad(f)(x) * U), lambda f: slope(f, U)),
    "jvp": (lambda f: lambda x: wf.jvp(f, (x,), (vector(V),))[1], lambda f: slope(f, V)),
    "linearize": (lambda f: lambda x: wf.linearize(f, x)[1](vector(U)), lambda f: slope(f, U)),
    "hvp": (
        lambda f: lambda x: wf.sum(wf.hvp(f, (x,), (vector(U),))[0] * V),
        lambda f: slope(slope(f, U), V),
    ),
    "vmap": (
        lambda f: lambda x: wf.sum(wf.vmap(f)(x * SCALES[:, None]) * WEIGHTS),
        example_by_example,
    ),
    "checkpoint": (wf.checkpoint, lambda f: f),
    "compile": (wf.compile, lambda f: f),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_truth_is_that_of_the_function(name: str) -> None:
    fn, rows = FUNCTIONS[name]
    for x in X * SCALES[:, None]:
        assert_allclose(float(fn(vector(x))), rows(x[None])[0], rtol=1e-12)


@pytest.mark.share(9)
@pytest.mark.parametrize("inner", TRANSFORMATIONS)
@pytest.mark.parametrize("outer", TRANSFORMATIONS)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_pairs(name: str, outer: str, inner: str) -> None:
    fn, rows = FUNCTIONS[name]
    for transform, truth in (TRANSFORMATIONS[inner], TRANSFORMATIONS[outer]):
        fn, rows = transform(fn), truth(rows)
    want = rows(X[None])[0]
    assert_allclose(float(fn(vector(X))), want, rtol=1e-5, atol=1e-5)


# --------------------------------------------------------------------------- loops that rows leave
def growing(x: Any, until: float = 10.0, **options: Any) -> Any:
    return wf.while_loop(lambda v: v < until, lambda v: v * x * 1.5 + 1, x, **options)


def nested(x: Any) -> Any:
    def body(v: Any) -> Any:
        return wf.while_loop(lambda u: u < v * 2, lambda u: u * x * 1.2 + 1, v)

    return wf.while_loop(lambda v: v < 10, body, x)


def in_scan(x: Any) -> Any:
    def body(c: Any, _: Any) -> Any:
        return wf.while_loop(lambda v: v < c * 3, lambda v: v * x * 1.5 + 1, c), None

    return wf.scan(body, x, None, length=3)[0]


def with_scan(x: Any) -> Any:
    def body(v: Any) -> Any:
        return wf.scan(lambda c, _: (c * x * 1.1 + 0.1 * wf.sin(c), None), v, None, length=3)[0]

    return wf.while_loop(lambda v: v < 10, body, x)


def with_cond(x: Any) -> Any:
    def body(v: Any) -> Any:
        return wf.cond(v > 4, lambda: v * x * 1.5 + 1, lambda: v * v + x)

    return wf.while_loop(lambda v: v < 10, body, x)


def no_number_beyond(x: Any) -> Any:
    """What the body computes for a row that has left the loop is NaN."""

    def body(v: Any) -> Any:
        return wf.sqrt(v - 0.3) * 0.6 + 0.01 * wf.sin(x) - 0.4

    return wf.while_loop(lambda v: v > 0.3, body, x)


LOOPS: dict[str, Fn] = {
    "alone": growing,
    "limited": lambda x: growing(x, maximum_iterations=4),
    "checkpoints": lambda x: growing(x, 100.0, maximum_iterations=20, checkpoint_every=3),
    "nested": nested,
    "in a scan": in_scan,
    "with a scan": with_scan,
    "with a branch": with_cond,
    "in a branch": lambda x: wf.cond(x > 1.2, lambda: growing(x), lambda: x * x),
    "to NaN": no_number_beyond,
}
ONE = wf.asarray(1.0, dtype=wf.float64)
ORDERS: dict[str, Callable[[Fn], Fn]] = {
    "grad": wf.grad,
    "grad of grad": lambda f: wf.grad(wf.grad(f)),
    "third": lambda f: wf.grad(wf.grad(wf.grad(f))),
    "hessian": wf.hessian,
    "hvp": lambda f: lambda x: wf.hvp(f, (x,), (ONE,))[0],
    "grad of vmap of grad": lambda f: wf.grad(
        lambda x: wf.sum(wf.vmap(wf.grad(f))(wf.stack([x, 2 * x])))
    ),
}
#: Seconds for one loop in another.
LONG = ("third", "grad of vmap of grad")


@wf.custom_gradient
def own_rule(w: Any, v: Any) -> Any:
    return w * v, lambda d: (d * v * 2.0, d * w * 3.0)


def shared(step: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """A loop of n steps on a vector, whose quotient is infinite once it has ended."""

    def fn(w: Any, n: Any) -> Any:
        def body(i: Any, v: Any) -> Any:
            return i + 1.0, wf.tanh(step(w, v / wf.sqrt(n - i)))

        start = wf.asarray(0.0, dtype=wf.float64), wf.asarray(np.array([0.7, 1.2]))
        return wf.sum(wf.while_loop(lambda i, v: i < n, body, start)[1])

    return fn


#: Of weights that all rows share, and of a number of steps for each.
SHARED: dict[str, Callable[[Any, Any], Any]] = {
    "product": shared(lambda w, v: v @ w),
    "product with a vector": shared(lambda w, v: w @ v),
    "elementwise": shared(lambda w, v: w[0] * v + w[1] ** 2 / (1.0 + v)),
    "scan": shared(lambda w, v: wf.scan(lambda c, r: (c * w[1] + r, c), v, w)[0]),
    "branch": shared(lambda w, v: wf.cond(v[0] > 0.5, lambda: v @ w, lambda: v * w[0])),
    "rule": shared(lambda w, v: own_rule(w[1], v)),
    "solve": shared(wf.linalg.solve),
    "solve for shared": shared(lambda w, v: wf.linalg.solve(w + v, w[1])),
}


class TestLoopsThatRowsLeave:
    """The truth is the loop over the examples. The last one never enters the loop."""

    XS = np.array([1.0, 1.5, 2.5, 3.5, 20.5])

    @pytest.mark.share(16)
    @pytest.mark.parametrize(
        ("name", "order"),
        [(n, o) for n in LOOPS for o in ORDERS if o not in LONG or n in ("alone", "nested")],
    )
    def test_derivatives(self, name: str, order: str) -> None:
        fn = ORDERS[order](LOOPS[name])
        want = [float(fn(wf.asarray(x))) for x in self.XS]
        assert np.isfinite(want).all()
        for run in (wf.vmap(fn), wf.compile(wf.vmap(fn))):
            assert_allclose(run(self.XS), want, rtol=1e-9)

    @pytest.mark.share(4)
    @pytest.mark.parametrize("name", LOOPS)
    def test_of_the_batched_function(self, name: str) -> None:
        want = [float(wf.grad(LOOPS[name])(wf.asarray(x))) for x in self.XS]
        total = wf.grad(lambda x: wf.sum(wf.vmap(LOOPS[name])(x)))
        for run in (total, wf.compile(total)):
            assert_allclose(run(self.XS), want, rtol=1e-9)

    def test_two_batches_and_shared_weights(self) -> None:
        rng = np.random.default_rng(0)
        w, xs, scales = rng.normal(size=(3, 3)) * 0.5, rng.normal(size=(5, 3)), [0.5, 1.0, 3.0]

        def fn(w: Any, x: Any, s: Any) -> Any:
            def body(v: Any, n: Any) -> Any:
                return wf.tanh(w @ v) * 0.9, n + 1

            last = wf.while_loop(lambda v, n: (v @ v > 0.05) & (n < 20), body, (x * s, 0))[0]
            return wf.sum(last**2)

        per_example = wf.grad(fn, argnums=(0, 2))
        rows = wf.vmap(wf.vmap(per_example, in_axes=(None, None, 0)), in_axes=(None, 0, None))
        for run in (rows, wf.compile(rows)):
            of_w, of_s = run(w, xs, np.array(scales))
            for k, x in enumerate(xs):
                for m, s in enumerate(scales):
                    want = per_example(wf.asarray(w), wf.asarray(x), wf.asarray(s, dtype=w.dtype))
                    assert_allclose(of_w[k, m], want[0], rtol=1e-9, atol=1e-12)
                    assert_allclose(of_s[k, m], want[1], rtol=1e-9, atol=1e-12)

    @pytest.mark.share(4)
    @pytest.mark.parametrize("name", SHARED)
    def test_gradients_of_what_all_rows_share(self, name: str) -> None:
        """Rows that left go on with derivatives that are infinite; no part of them is in the
        sum."""
        fn, w = SHARED[name], wf.asarray(np.array([[0.4, 0.3], [-0.2, 0.9]]))
        ns = np.array([1.0, 3.0, 6.0])

        def total(w: Any) -> Any:
            return wf.sum(wf.vmap(fn, in_axes=(None, 0))(w, ns))

        def over_scales(w: Any) -> Any:
            rows = wf.vmap(fn, in_axes=(None, 0))
            both = wf.vmap(lambda n: rows(w, n), in_axes=1)
            return wf.sum(both(wf.asarray(np.stack([ns, ns[::-1] + 1], 1))))

        of_each = {
            n: np.asarray(wf.grad(fn)(w, wf.asarray(n))) for n in (1.0, 2.0, 3.0, 4.0, 6.0, 7.0)
        }
        want = sum(of_each[n] for n in (1.0, 3.0, 6.0))
        assert np.isfinite(want).all()
        for run in (wf.grad(total), wf.compile(wf.grad(total))):
            assert_allclose(run(w), want, rtol=1e-9)
        want = want + sum(of_each[n] for n in (2.0, 4.0, 7.0))
        assert_allclose(wf.compile(wf.grad(over_scales))(w), want, rtol=1e-9)
        hessian = sum(np.asarray(wf.hessian(fn)(w, wf.asarray(n))) for n in ns)
        assert_allclose(wf.compile(wf.hessian(total))(w), hessian, rtol=1e-8)

    def test_loops_within_end_for_rows_that_left(self) -> None:
        """The loop within would go on for ever where the outer one has ended."""

        def fn(n: Any) -> Any:
            def body(n: Any) -> Any:
                grown = wf.while_loop(lambda v: v < 100.0, lambda v: v * (n + 0.5), 1.0)
                return n - 1.0 + grown * 1e-3

            return wf.while_loop(lambda n: n > 0.9, body, n)

        ns = np.array([1.0, 2.0, 3.0])
        want = [float(fn(wf.asarray(n))) for n in ns]
        slopes = [float(wf.grad(fn)(wf.asarray(n))) for n in ns]
        for change in (lambda f: f, wf.compile):
            assert_allclose(change(wf.vmap(fn))(ns), want, rtol=1e-9)
            assert_allclose(change(wf.vmap(wf.grad(fn)))(ns), slopes, rtol=1e-9)
            outside = wf.grad(lambda n: wf.sum(wf.vmap(fn)(n)))
            assert_allclose(change(outside)(ns), slopes, rtol=1e-9)

    def test_branches_that_rows_do_not_take(self) -> None:
        """The side that a row does not take has no derivative for it."""

        def fn(x: Any) -> Any:
            return wf.cond(x > 0, lambda: wf.sqrt(x), lambda: x * 3)

        xs = np.array([4.0, -1.0, 0.25])
        for run in (wf.vmap(wf.grad(fn)), wf.grad(lambda x: wf.sum(wf.vmap(fn)(x)))):
            assert_allclose(run(xs), [0.25, 3.0, 1.0])


# ------------------------------------------------------------------------------------ random keys
DRAWS: dict[str, Fn] = {
    "normal": lambda key: wf.random.normal(key, (2, 3)),
    "truncated_normal": lambda key: wf.random.truncated_normal(key, (4,)),
    "gamma": lambda key: wf.random.gamma(key, 2.0, (4,)),
    "beta": lambda key: wf.random.beta(key, 2.0, 1.0, (3,)),
    "dirichlet": lambda key: wf.random.dirichlet(key, np.ones(3)),
    "poisson": lambda key: wf.random.poisson(key, 3.0, (4,)),
    "bernoulli": lambda key: wf.random.bernoulli(key, 0.5, (8,)),
    "categorical": lambda key: wf.random.categorical(key, np.zeros(9)),
    "randint": lambda key: wf.random.randint(key, (4,), 0, 99),
    "permutation": lambda key: wf.random.permutation(key, 5),
    "choice": lambda key: wf.random.choice(key, 50, (3,)),
    "split": lambda key: wf.random.normal(wf.random.split(key, 2)[1]),
    "in a batch": lambda key: wf.vmap(wf.random.normal)(wf.stack(wf.random.split(key, 2))),
    "in a branch": lambda key: wf.cond(
        wf.random.normal(key) > -1, lambda: wf.random.normal(key, (2,)), lambda: wf.zeros(2)
    ),
    "in a loop": lambda key: wf.while_loop(
        lambda v, key: v < 1,
        lambda v, key: (v + wf.random.uniform(key), wf.random.fold_in(key, 1)),
        (wf.zeros(()), key),
    )[0],
}


@pytest.mark.share(8)
@pytest.mark.parametrize("name", DRAWS)
def test_a_key_for_each_example(name: str) -> None:
    """What each key gives alone."""
    keys = wf.random.split(wf.random.key(3), 4)
    want = np.stack([np.asarray(DRAWS[name](key)) for key in keys])
    assert len(np.unique(want)) > 1
    for run in (wf.vmap(DRAWS[name]), wf.compile(wf.vmap(DRAWS[name]))):
        assert_allclose(run(wf.stack(keys)), want, rtol=1e-5, atol=1e-6)


def test_keys_in_a_list_are_no_batch() -> None:
    with pytest.raises(
        wf.errors.TypeRuleError, match=r"(?s)a key is a uint32\[2\].*wf.stack\(keys"
    ):
        wf.vmap(wf.random.normal)(wf.random.split(wf.random.key(0), 3))


def test_effects_of_a_branch_that_differs_by_example() -> None:
    """What acts on Python runs for the rows that take the side; state that all share cannot."""
    seen: list[float] = []

    def note(x: Any) -> Any:
        seen.append(float(x))
        return x

    def fn(x: Any) -> Any:
        call = lambda: wf.py_function(note, [x], wf.float64, shapes=())  # noqa: E731
        return wf.cond(x > 0, call, lambda: -x)

    assert_allclose(wf.vmap(fn)(np.array([1.0, -2.0, 3.0])), [1, 2, 3])
    assert seen == [1, 3]
    v, generator = wf.Variable(1.0), wf.random.Generator(0)
    for act in (lambda: v.assign(5.0), lambda: generator.normal()):
        with pytest.raises(wf.errors.UnsupportedError, match="one value for each example"):
            wf.vmap(lambda x, act=act: wf.cond(x > 0, act, lambda: wf.zeros(())))(np.ones(3))
