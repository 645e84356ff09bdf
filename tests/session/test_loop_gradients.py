"""Gradients of loops by hand, of enter, merge, switch, loop_cond, next_iteration and exit: against
the same program of `wf.while_loop` and `wf.cond`, and against derivatives by NumPy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from example_counts import examples
from hypothesis import given
from hypothesis import strategies as st

import weft as wf
from weft.ir.errors import GradientError, InvalidArgumentError

X = np.array([0.5, -0.75, 0.25])
K = np.array([1.5, 0.5, -1.25])
MODES = ["auto", "dataflow"]

#: The constants that a loop reads, and the values of its variables.
Values = Sequence[Any]


def placeholders() -> tuple[Any, Any, Any]:
    x, k = (wf.placeholder(wf.float64, [3], name=name) for name in "xk")
    return x, k, wf.placeholder(wf.int64, [], name="n")


def loop(
    name: str,
    starts: Values,
    constants: Values,
    test: Callable[[Values, Values], Any],
    body: Callable[[Values, Values], Values],
) -> list[Any]:
    """`wf.while_loop` of enter, merge and the others."""
    merged = [wf.tf1.merge([wf.tf1.enter(x, name)], loop=True)[0] for x in starts]
    kept = [wf.tf1.enter(x, name, is_constant=True) for x in constants]
    going = wf.tf1.loop_cond(test(merged, kept))
    sides = [wf.tf1.switch(x, going) for x in merged]
    for value, merge in zip(body([s[1] for s in sides], kept), merged, strict=True):
        wf.tf1.next_iteration(value, merge)
    return [wf.tf1.exit(s[0]) for s in sides]


def branch(
    pred: Any, values: Values, yes: Callable[[Values], Values], no: Callable[[Values], Values]
) -> list[Any]:
    """`wf.cond` of switch and merge."""
    sides = [wf.tf1.switch(x, pred) for x in values]
    pairs = zip(no([s[0] for s in sides]), yes([s[1] for s in sides]), strict=True)
    return [wf.tf1.merge(list(pair))[0] for pair in pairs]


def counted(
    name: str, n: Any, starts: Values, constants: Values, body: Any, zero: Any = None
) -> list[Any]:
    """The loop of n iterations, body(number, variables, constants). zero: of the frame around."""

    def step(xs: Values, ks: Values) -> Values:
        return [xs[0] + 1, *body(xs[0], xs[1:], ks[1:])]

    begin = wf.constant(0) if zero is None else zero
    made = loop(name, [begin, *starts], [n, *constants], lambda x, k: x[0] < k[0], step)
    return made[1:]


def structured(n: Any, starts: Values, constants: Values, body: Any) -> list[Any]:
    """`counted`, of `wf.while_loop`."""

    def step(i: Any, *xs: Any) -> Any:
        return (i + 1, *body(i, xs, constants))

    return list(wf.while_loop(lambda i, *_: i < n, step, (wf.constant(0), *starts)))[1:]


def whole(pred: Any, values: Values, yes: Any, no: Any) -> Any:
    """`branch`, of `wf.cond`."""
    return wf.cond(pred, lambda *v: tuple(yes(v)), lambda *v: tuple(no(v)), *values)


def check(session: Any, ys: Any, zs: Any, xs: Any, fed: Any) -> None:
    """Values and gradients of ys are those of zs; second derivatives too."""
    found, wanted = wf.gradients(ys, xs), wf.gradients(zs, xs)
    assert [g is None for g in found] == [g is None for g in wanted]
    found, wanted = ([g for g in gs if g is not None] for gs in (found, wanted))
    more = [wf.gradients(gs, xs) for gs in (found, wanted)]
    for one, other in zip(*more, strict=True):
        assert (one is None) == (other is None)
    second = [[g for g in gs if g is not None] for gs in more]
    a, b = session.run([[ys, found, second[0]], [zs, wanted, second[1]]], fed)
    for one, other in zip(_flat(a), _flat(b), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-12)


def _flat(nest: Any) -> list[Any]:
    return [x for n in nest for x in _flat(n)] if isinstance(nest, list) else [nest]


@pytest.mark.share(2)
@pytest.mark.parametrize("mode", MODES)
def test_variables_and_constants(mode: str) -> None:
    """By hand: y = x * k**n."""
    with wf.Graph().as_default(), wf.Session(control_flow=mode) as session:
        x, k, n = placeholders()

        def body(i: Any, xs: Values, ks: Values) -> Values:
            return [xs[0] * ks[0], xs[1] + wf.sin(xs[0])]

        y, total = counted("l", n, [x, x * 0], [k], body)
        slopes = wf.gradients(y, [x, k])
        z, wanted = structured(n, [x, x * 0], [k], body)
        for times in (0, 1, 3):
            fed = {x: X, k: K, n: times}
            power = K ** max(times - 1, 0) * times * X
            np.testing.assert_allclose(session.run(slopes, fed), [K**times, power])
            check(session, [y, total * total], [z, wanted * wanted], [x, k], fed)


def test_a_constant_number_of_iterations_and_constants_of_their_own() -> None:
    with wf.Graph().as_default(), wf.Session() as session:
        x, k, _ = placeholders()

        def body(i: Any, xs: Values, ks: Values) -> Values:
            return [wf.sin(xs[0]) * 2.0 + ks[0] * wf.astype(i, wf.float64)]

        y, z = counted("l", wf.constant(4), [x], [k], body), structured(4, [x], [k], body)
        check(session, y, z, [x, k], {x: X, k: K})


def test_a_gradient_with_respect_to_constants_alone() -> None:
    """What is added up starts as a constant."""
    with wf.Graph().as_default(), wf.Session() as session:
        x, k, n = placeholders()
        (y,) = counted("l", n, [np.zeros(3)], [k], lambda i, xs, ks: [xs[0] + ks[0]])
        slopes = wf.gradients(y, [x, k])
        assert slopes[0] is None
        assert session.run(slopes[1], {k: K, n: 5}).tolist() == [5.0] * 3


@pytest.mark.share(2)
@pytest.mark.parametrize("mode", MODES)
def test_nested(mode: str) -> None:
    with wf.Graph().as_default(), wf.Session(control_flow=mode) as session:
        x, k, n = placeholders()

        def inner(xs: Values, ks: Values) -> Any:
            return [xs[0] * ks[0] + wf.cos(ks[1])]

        def outer(i: Any, xs: Values, ks: Values) -> Values:
            ys = counted("inner", i, [xs[0]], [ks[0], xs[1]], lambda _, a, b: inner(a, b), i * 0)
            return [ys[0], xs[1] * 0.5]

        def same(i: Any, xs: Values, ks: Values) -> Values:
            ys = structured(i, [xs[0]], [ks[0], xs[1]], lambda _, a, b: inner(a, b))
            return [ys[0], xs[1] * 0.5]

        ys, zs = counted("l", n, [x, k], [k], outer), structured(n, [x, k], [k], same)
        for times in (0, 1, 4):
            check(session, ys, zs, [x, k], {x: X, k: K, n: times})


@pytest.mark.slow
@pytest.mark.share(2)
@pytest.mark.parametrize("mode", MODES)
def test_a_branch_in_the_body(mode: str) -> None:
    with wf.Graph().as_default(), wf.Session(control_flow=mode) as session:
        x, k, n = placeholders()

        def body(make: Any) -> Any:
            def run(i: Any, xs: Values, ks: Values) -> Values:
                even = i % 2 == 0
                yes = lambda v: [v[0] * v[2], v[1] + wf.exp(v[0])]  # noqa: E731
                no = lambda v: [v[1] * 3.0, v[2] * v[0]]  # noqa: E731
                return list(make(even, [*xs, ks[0]], yes, no))

            return run

        ys = counted("l", n, [x, k], [k], body(branch))
        zs = structured(n, [x, k], [k], body(whole))
        for times in (0, 1, 2, 5):
            check(session, ys, zs, [x, k], {x: X, k: K, n: times})


@pytest.mark.parametrize("mode", MODES)
def test_what_the_test_computes_leaves_the_loop(mode: str) -> None:
    """An exit of no merge, a switch of a constant, and which iteration it is, as the merge says."""

    def python(x: Any, k: Any, times: int) -> Any:
        for i in range(times):
            x = np.sin(x) * k + (k if i else 0)
        return 2 * np.sin(x) * k

    with wf.Graph().as_default(), wf.Session(control_flow=mode) as session:
        x, k, n = placeholders()
        i, _ = wf.tf1.merge([wf.tf1.enter(wf.constant(0), "l")], loop=True)
        v, number = wf.tf1.merge([wf.tf1.enter(x, "l")], loop=True)
        kept = wf.tf1.enter(k, "l", is_constant=True)
        wave = wf.sin(v) * kept
        going = wf.tf1.loop_cond(i < wf.tf1.enter(n, "l", is_constant=True))
        (_, i1), (out, on), (_, k1), (_, later) = (
            wf.tf1.switch(t, going) for t in (i, wave, kept, number)
        )
        y = wf.tf1.exit(2.0 * out)  # before the next_iterations
        wf.tf1.next_iteration(i1 + 1, i)
        wf.tf1.next_iteration(on + k1 * wf.astype(later, wf.float64), v)
        slopes, e = wf.gradients(y, [x, k]), 1e-6
        for times in (0, 1, 3):
            value, dx, dk = session.run([y, *slopes], {x: X, k: K, n: times})
            np.testing.assert_allclose(value, python(X, K, times))
            by_x = (python(X + e, K, times) - python(X - e, K, times)) / (2 * e)
            by_k = (python(X, K + e, times) - python(X, K - e, times)) / (2 * e)
            np.testing.assert_allclose([dx, dk], [by_x, by_k], rtol=1e-7, atol=1e-8)


@pytest.mark.slow
def test_a_loop_on_one_side_of_a_branch() -> None:
    """The frame is dead where the other side is taken."""
    with wf.Graph().as_default(), wf.Session() as session:
        x, k, n = placeholders()
        p = wf.placeholder(wf.bool, [])
        body = lambda _, xs, ks: [wf.sin(xs[0]) * ks[0]]  # noqa: E731
        (x0, x1), (_, k1), (_, n1) = (wf.tf1.switch(t, p) for t in (x, k, n))
        y, _ = wf.tf1.merge([x0 * 3.0, *counted("l", n1, [x1], [k1], body, n1 * 0)])
        z = wf.cond(p, lambda: structured(n, [x], [k], body)[0], lambda: x * 3.0)
        for times, taken in ((0, True), (2, True), (2, False)):
            check(session, y, z, [x, k], {x: X, k: K, n: times, p: taken})


@pytest.mark.slow
@pytest.mark.share(2)
@pytest.mark.parametrize("mode", MODES)
def test_gradients_in_the_body_of_another_loop(mode: str) -> None:
    """Gradient descent, whose loss is a loop, and the gradient through it."""

    def wave(i: Any, xs: Values, ks: Values) -> Values:
        return [2.0 * wf.sin(xs[0]) * ks[0]]

    def by_hand(i: Any, xs: Values, ks: Values) -> Values:
        (y,) = counted("inner", i, xs, ks, wave, i * 0)
        return [xs[0] - 0.1 * wf.gradients(y * y, [xs[0]])[0]]

    def whole_step(i: Any, xs: Values, ks: Values) -> Values:
        loss = lambda v: wf.sum(structured(i, [v], ks, wave)[0] ** 2)  # noqa: E731
        return [xs[0] - 0.1 * wf.grad(loss)(xs[0])]

    with wf.Graph().as_default(), wf.Session(control_flow=mode) as session:
        x, k, n = placeholders()
        ys, zs = counted("l", n, [x], [k], by_hand), structured(n, [x], [k], whole_step)
        found, wanted = wf.gradients(ys, [x, k]), wf.gradients(zs, [x, k])
        for times in (1, 3):
            a, b = session.run([[*ys, *found], [*zs, *wanted]], {x: X, k: K, n: times})
            np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)


def test_a_gradient_within_one_iteration() -> None:
    """Newton's method on x**3 = 8, by the derivative with respect to the variable of the loop."""
    with wf.Graph().as_default(), wf.Session() as session:
        x, _, n = placeholders()

        def body(i: Any, xs: Values, ks: Values) -> Values:
            cube = xs[0] ** 3
            return [xs[0] - (cube - 8.0) / wf.gradients(cube, [xs[0]])[0]]

        (y,) = counted("l", n, [x], [], body)
        np.testing.assert_allclose(session.run(y, {x: [1.0, 2.0, 3.0], n: 9}), [2.0] * 3)


def test_training_through_a_loop() -> None:
    """The loss x * w**3, of a variable that enters as a constant; what effects there are, an
    enqueue, happen once in each iteration."""
    with wf.Graph().as_default(), wf.Session() as session:
        w, queue = wf.Variable(np.array([1.0, 2.0, 0.5])), wf.FIFOQueue(20, wf.float64, [[3]])
        x, _, _ = placeholders()

        def body(i: Any, xs: Values, ks: Values) -> Values:
            with wf.control_dependencies([queue.enqueue(xs[0])]):
                return [xs[0] * ks[0]]

        (y,) = counted("l", wf.constant(3), [x], [w.read()], body)
        train = wf.train.SGD(0.5).minimize(wf.sum(y), [w])
        session.run(w.initializer)
        before = w.numpy()
        session.run(train, {x: X})
        np.testing.assert_allclose(w.numpy(), before - 0.5 * 3 * X * before**2)
        session.run(y, {x: X})
        assert session.run(queue.size()) == 3


@pytest.mark.slow
def test_many_branches_and_a_long_body() -> None:
    """Nothing recurses once for each op."""
    with wf.Graph().as_default(), wf.Session() as session:
        x, _, n = placeholders()

        def body(i: Any, xs: Values, ks: Values) -> Values:
            (value,) = xs
            for _ in range(120):
                (value,) = branch(i > 1, [value], lambda v: [v[0] * 1.5], lambda v: [v[0] * 1.25])
            for _ in range(1200):
                value = -value
            return [value]

        (y,) = counted("l", n, [x], [], body)
        (dx,) = wf.gradients(y, x)
        assert dx is not None
        np.testing.assert_allclose(session.run(dx, {x: X, n: 3}), 1.25**240 * 1.5**120)


@pytest.mark.share(2)
@pytest.mark.parametrize("mode", MODES)
def test_sizes_that_a_step_tells_and_a_gradient_in_a_branch(mode: str) -> None:
    with wf.Graph().as_default(), wf.Session(control_flow=mode) as session:
        x, k = wf.placeholder(wf.float64, [None, 3]), wf.placeholder(wf.float64, [3, 3])
        n, p = wf.placeholder(wf.int64, []), wf.placeholder(wf.bool, [])
        body = lambda _, xs, ks: [wf.tanh(xs[0] @ ks[0]) + 1.0]  # noqa: E731
        (y,), (z,) = counted("l", n, [x], [k], body), structured(n, [x], [k], body)
        inside = wf.cond(p, lambda: wf.gradients(y, x)[0], lambda: x)
        fed = {x: np.stack([X, 2 * X]), k: np.outer(X, K), n: 3, p: True}
        check(session, y, z, [x, k], fed)
        found, wanted = session.run([inside, wf.gradients(z, x)[0]], fed)
        np.testing.assert_allclose(found, wanted, rtol=1e-9)


@pytest.mark.slow
def test_a_merge_of_three_and_a_loop_on_a_side() -> None:
    """What a branch in a branch gives, and a frame in one, which takes its constant from around."""
    with wf.Graph().as_default(), wf.Session() as session:
        x, k, n = placeholders()

        def wave(_: Any, xs: Values, ks: Values) -> Values:
            return [wf.sin(xs[0]) * ks[0]]

        def by_hand(i: Any, xs: Values, ks: Values) -> Values:
            later = i > 0
            (no, yes), (_, i1) = (wf.tf1.switch(t, later) for t in (xs[0], i))
            odd = i1 % 2 == 1
            (a, b), (_, i11) = (wf.tf1.switch(t, odd) for t in (yes, i1))
            looped = counted("inner", i11, [b], [ks[0]], wave, i11 * 0)
            return [wf.tf1.merge([no * 2.0, *looped, a * a])[0]]

        def same(i: Any, xs: Values, ks: Values) -> Values:
            inner = lambda: wf.cond(  # noqa: E731
                i % 2 == 1, lambda: structured(i, xs, ks, wave)[0], lambda: xs[0] ** 2
            )
            return [wf.cond(i > 0, inner, lambda: xs[0] * 2.0)]

        ys, zs = counted("l", n, [x], [k], by_hand), structured(n, [x], [k], same)
        for times in (1, 2, 4):
            check(session, ys, zs, [x, k], {x: X, k: K, n: times})


@pytest.mark.parametrize("colocated", [False, True])
def test_over_two_devices(colocated: bool) -> None:
    servers = wf.train.Server.create_local_cluster({"ps": 1, "worker": 1})
    try:
        with wf.Graph().as_default() as graph:
            x, k, n = placeholders()
            body = lambda _, xs, ks: [wf.sin(xs[0]) * ks[0]]  # noqa: E731
            with wf.device("/job:ps"):
                (y,) = counted("l", n, [x], [k], body)
            with wf.device("/job:worker"):
                found = wf.gradients(y, [x, k], colocate_gradients_with_ops=colocated)
                wanted = wf.gradients(structured(n, [x], [k], body), [x, k])
            with wf.Session(servers[0].target, graph=graph) as session:
                a, b = session.run([found, wanted], {x: X, k: K, n: 3})
                np.testing.assert_allclose(a, b, rtol=1e-9)
    finally:
        for server in servers:
            server.stop()


def test_loops_that_are_not_on_the_way_may_have_any_form() -> None:
    """It has no loop_cond."""
    with wf.Graph().as_default(), wf.Session() as session:
        x, _, _ = placeholders()
        i, _ = wf.tf1.merge([wf.tf1.enter(x, "l")], loop=True)
        out, on = wf.tf1.switch(i, wf.sum(i) < 5.0)
        wf.tf1.next_iteration(on + 1.0, i)
        y = wf.tf1.exit(out)
        (dx,) = wf.gradients(wf.where(y > 2.0, x * x, x), x)
        np.testing.assert_allclose(session.run(dx, {x: X}), np.where(X + 2 > 2, 2 * X, 1))
        assert wf.gradients(x * y, x, stop_gradients=y)[0] is not None
        with pytest.raises(GradientError, match="no loop_cond"):
            wf.gradients(x * y, x)


# -------------------------------------------------------------------------------- what is refused
def refused(
    match: str, change: Callable[[Any, Any], Any], wanted: Callable[[Any, Any, Any], Any]
) -> None:
    """The gradient of a loop in which `change` makes the next value of what goes on."""
    with wf.Graph().as_default():
        x = wf.placeholder(wf.float64, [3])
        v, _ = wf.tf1.merge([wf.tf1.enter(x, "l")], loop=True)
        out, on = wf.tf1.switch(v, wf.tf1.loop_cond(wf.sum(v) < 9.0))
        wf.tf1.next_iteration(change(v, on), v)
        y = wf.tf1.exit(out)
        with pytest.raises(GradientError, match=match) as found:
            wanted(x, y, on)
        assert "test_loop_gradients.py" in str(found.value)


def plain(x: Any, y: Any, on: Any) -> Any:
    return wf.gradients(y, x)


def test_what_a_loop_does_once_only() -> None:
    doubled = lambda a: a * 2  # noqa: E731
    host = lambda v, on: wf.py_function(doubled, [on], wf.float64, shapes=[3])  # noqa: E731
    refused(r"needs what op 'py_function' in it gives.*a second time", host, plain)


def test_an_iteration_that_ends_the_loop_from_inside() -> None:
    early = lambda v, on: wf.tf1.switch(on, wf.sum(on) > 5.0)[0]  # noqa: E731
    refused("not live exactly where its loop_cond is true", early, plain)


def test_what_goes_on_whatever_the_loop_cond_says() -> None:
    refused("not live exactly where its loop_cond is true", lambda v, on: v + 1.0, plain)


def test_what_goes_on_together_only_by_chance() -> None:
    """Two predicates that are always the same are two to the analysis."""

    def change(v: Any, on: Any) -> Any:
        (no, _), (_, yes) = (wf.tf1.switch(on, wf.sum(on) > 5.0) for _ in range(2))
        return wf.tf1.merge([no, yes * 2.0])[0]

    refused("not live exactly where its loop_cond is true", change, plain)


def test_values_in_the_loop() -> None:
    on_by_one = lambda v, on: on + 1.0  # noqa: E731
    refused("a value in frame 'l'", on_by_one, lambda x, y, on: wf.gradients(y, on))
    stops = lambda x, y, on: wf.gradients(y, x, stop_gradients=on)  # noqa: E731
    refused("stops at a value in frame 'l'", on_by_one, stops)
    refused("leads through op 'merge'", on_by_one, lambda x, y, on: wf.gradients(on, x))


def test_frames_that_could_not_run() -> None:
    with wf.Graph().as_default():
        x, k, _ = placeholders()
        y = counted("l", wf.constant(2), [x], [], lambda i, xs, ks: [xs[0] * k])
        with pytest.raises(InvalidArgumentError, match=r"mixes frames.*bring it in by enter"):
            wf.gradients(y, x)


# --------------------------------------------------------------------------------- random programs
@dataclass
class Way:
    """How loops and branches are written."""

    ops: Any
    branch: Callable[..., Any]
    loop: Callable[..., Any]
    frames: int = 0

    def run(self, program: Any, i: Any, values: Values, ks: Values) -> Values:
        """The variables after the statements, in iteration i; ks are the constants."""
        now = list(values)
        for kind, a, b, c in program:
            if kind == "set":
                number, other = a % len(now), [*now, *ks][b % (len(now) + len(ks))]
                now[number] = STEPS[c](self.ops, now[number], other)
            elif kind == "if":
                pred = self.ops.sum(now[a % len(now)]) > 0.1 if a else i % 2 == 0
                sides = [lambda v, p=p: self.run(p, v[-1], v[:-1], ks) for p in (b, c)]
                now = list(self.branch(pred, [*now, i], *sides))
            else:
                self.frames += 1
                again = lambda j, xs, kept, p=b: self.run(p, j, xs, kept)  # noqa: E731
                given = (i * 0 + a, now, ks, again)
                now = list(self.loop(f"frame{self.frames}", *given, i * 0))
        return now


STEPS: list[Callable[[Any, Any, Any], Any]] = [
    lambda m, a, b: a * m.sin(b),
    lambda m, a, b: m.sin(a) + b,
    lambda m, a, b: a - 0.5 * b,
    lambda m, a, b: m.cos(b) * a,
    lambda m, a, b: a / (1.0 + b * b),
]


def _python_loop(name: str, n: Any, xs: Values, ks: Values, body: Any, zero: Any) -> Values:
    for i in range(int(n)):
        xs = body(np.int64(i), xs, ks)
    return xs


HAND = lambda: Way(wf, branch, counted)  # noqa: E731
WHOLE = lambda: Way(wf, whole, lambda name, n, xs, ks, b, zero: structured(n, xs, ks, b))  # noqa: E731
#: For complex numbers whose imaginary parts carry derivatives: branches are by the real ones.
REAL = SimpleNamespace(sin=np.sin, cos=np.cos, sum=lambda a: np.sum(a).real)
NUMPY = Way(REAL, lambda p, v, yes, no: yes(v) if p else no(v), _python_loop)

sets = st.tuples(
    st.just("set"), st.integers(0, 5), st.integers(0, 5), st.integers(0, len(STEPS) - 1)
)


def statements(inner: Any) -> Any:
    block = st.lists(inner, min_size=1, max_size=3)
    branches = st.tuples(st.just("if"), st.integers(0, 2), block, block)
    return st.one_of(
        sets, branches, st.tuples(st.just("loop"), st.integers(0, 2), block, st.none())
    )


blocks = st.lists(st.recursive(sets, statements, max_leaves=6), min_size=1, max_size=3)


@given(blocks, st.integers(0, 3), st.sampled_from(MODES))
@examples(40, deadline=None)
def test_random_programs(program: Any, times: int, mode: str) -> None:
    """A loop of branches, loops and steps: as of `wf.while_loop`, and as the complex step says
    (f(x + ih) has the imaginary part h f'(x), without a difference; Squire and Trapp 1998)."""
    first = [("loop", times, program, None)]
    values = [X[:2], K[:2], X[1:]]
    with wf.Graph().as_default(), wf.Session(control_flow=mode) as session:
        xs = [wf.placeholder(wf.float64, [2]) for _ in values]
        ys, zs = (list(w.run(first, wf.constant(0), xs[:2], xs[2:])) for w in (HAND(), WHOLE()))
        fed = dict(zip(xs, values, strict=True))
        slopes, wanted = (
            [np.zeros(2) if g is None else session.run(g, fed) for g in wf.gradients(of, xs)]
            for of in (ys, zs)
        )
        a, b = session.run([ys, zs], fed)
    near(a, b)
    near(slopes, wanted)

    def total(flat: Any) -> Any:
        a, b, k = flat.reshape(3, 2)
        return sum(np.sum(y) for y in NUMPY.run(first, np.int64(0), [a, b], [k]))

    flat, step = np.concatenate(values), 1e-30
    moved = [total(flat + 1j * step * d).imag / step for d in np.eye(6)]
    near(np.concatenate(slopes), moved)


def near(found: Any, wanted: Any) -> None:
    scale = float(np.max(np.abs(wanted)))
    np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-10 * (1 + scale))
