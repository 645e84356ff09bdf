"""Gradients through `wf.tf1.switch` and `wf.tf1.merge`, against derivatives by hand and `wf.cond`.

As TensorFlow's control_flow_grad.py: that of a switch is a merge, that of a merge switches by the
index that was taken."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from example_counts import examples
from hypothesis import given
from hypothesis import strategies as st

import weft as wf

X = np.array([1.0, -2.0, 3.0])
MODES = ["auto", "dataflow"]


def placeholders() -> tuple[Any, Any]:
    return wf.placeholder(wf.float64, [3], name="x"), wf.placeholder(wf.bool, [], name="p")


@pytest.mark.parametrize("mode", MODES)
def test_a_branch(mode: str) -> None:
    with wf.Graph().as_default(), wf.Session(control_flow=mode) as session:
        x, p = placeholders()
        no, yes = wf.tf1.switch(x, p)
        y, _ = wf.tf1.merge([no * no, wf.exp(yes)])
        (dx,) = wf.gradients(y, x)
        (ddx,) = wf.gradients(dx, x)
        for pred, first, second in ((False, 2 * X, X * 0 + 2), (True, np.exp(X), np.exp(X))):
            found = session.run([dx, ddx], {x: X, p: pred})
            np.testing.assert_allclose(found, [first, second], rtol=1e-12)


@pytest.mark.parametrize("mode", MODES)
def test_a_side_that_ends_without_a_merge(mode: str) -> None:
    """The gradient is 0 where that side is not taken, though the value is dead there (TensorFlow:
    so, too, since the cotangent of an output is there whatever the predicate is)."""
    with wf.Graph().as_default(), wf.Session(control_flow=mode) as session:
        x, p = placeholders()
        _, yes = wf.tf1.switch(x, p)
        (dx,) = wf.gradients(yes * 3.0, x)
        assert session.run(dx, {x: X, p: True}).tolist() == [3, 3, 3]
        assert session.run(dx, {x: X, p: False}).tolist() == [0, 0, 0]


def test_the_value_is_used_outside_as_well() -> None:
    with wf.Graph().as_default(), wf.Session() as session:
        x, p = placeholders()
        no, yes = wf.tf1.switch(x * 2, p)
        y, index = wf.tf1.merge([no, yes * yes])
        (dx,) = wf.gradients([y, x * x], x)
        assert session.run([dx, index], {x: X, p: False})[0].tolist() == (2 + 2 * X).tolist()
        assert session.run(dx, {x: X, p: True}).tolist() == (8 * X + 2 * X).tolist()


def test_inside_another_and_two_tensors() -> None:
    """y = x*w if not p, else (x - w if not q, else x*x*w)."""
    with wf.Graph().as_default(), wf.Session() as session:
        x, p = placeholders()
        w, q = wf.placeholder(wf.float64, [3]), wf.placeholder(wf.bool, [])
        (x0, x1), (w0, w1), (_, q1) = (wf.tf1.switch(t, p) for t in (x, w, q))
        (x10, x11), (w10, w11) = wf.tf1.switch(x1, q1), wf.tf1.switch(w1, q1)
        inner, _ = wf.tf1.merge([x10 - w10, x11 * x11 * w11])
        y, _ = wf.tf1.merge([x0 * w0, inner])
        slopes = wf.gradients(y, [x, w])
        W, one = np.array([2.0, 5.0, -1.0]), np.ones(3)
        cases = {
            (False, False): (W, X), (False, True): (W, X),
            (True, False): (one, -one), (True, True): (2 * X * W, X * X),
        }  # fmt: skip
        for (pp, qq), wanted in cases.items():
            found = session.run(slopes, {x: X, w: W, p: pp, q: qq})
            np.testing.assert_allclose(found, wanted, rtol=1e-12)


def test_more_than_two_operands_and_values_from_outside() -> None:
    """A merge of three, one of which no switch by hand has anything to do with in that run."""
    with wf.Graph().as_default(), wf.Session() as session:
        x, p = placeholders()
        q = wf.placeholder(wf.bool, [])
        no, yes = wf.tf1.switch(x, p)
        _, q1 = wf.tf1.switch(q, p)
        a, b = wf.tf1.switch(yes, q1)
        y, index = wf.tf1.merge([no, a * 2, b * 3])
        (dx,) = wf.gradients(y * y, x)
        for pp, qq, k in ((False, True, 1), (True, False, 2), (True, True, 3)):
            found, number = session.run([dx, index], {x: X, p: pp, q: qq})
            np.testing.assert_allclose(found, 2 * k * k * X)
            assert number == k - 1


def test_training_through_a_branch() -> None:
    """A variable that both sides get by a switch: its reads are of the outside, as TensorFlow's."""
    with wf.Graph().as_default(), wf.Session() as session:
        w = wf.Variable(np.array([1.0, 1.0, 1.0]))
        _, p = placeholders()
        no, yes = wf.tf1.switch(w.read(), p)
        loss, _ = wf.tf1.merge([wf.sum(no * 2.0), wf.sum(yes**2)])
        train = wf.train.SGD(0.25).minimize(loss, [w])
        session.run(wf.global_variables_initializer())
        session.run(train, {p: False})
        assert session.run(w).tolist() == [0.5] * 3
        session.run(train, {p: True})
        assert session.run(w).tolist() == [0.25] * 3


def test_what_one_side_takes_without_a_switch_is_dead_with_it() -> None:
    """As in TensorFlow's raw ops: what a side uses needs a switch of its own to have a gradient in
    runs that take the other."""
    with wf.Graph().as_default(), wf.Session() as session:
        x, p = placeholders()
        w = wf.placeholder(wf.float64, [3])
        no, yes = wf.tf1.switch(x, p)
        y, _ = wf.tf1.merge([no, yes * w])
        (dw,) = wf.gradients(y, w)
        np.testing.assert_array_equal(session.run(dw, {x: X, w: X, p: True}), X)
        with pytest.raises(wf.errors.InvalidArgumentError, match="is dead in this run"):
            session.run(dw, {x: X, w: X, p: False})


SIDES: list[Callable[[Any], Any]] = [
    lambda t: t * t, wf.sin, lambda t: wf.sum(t) * t, lambda t: 2.0 * t, wf.exp,
    lambda t: wf.stop_gradient(t) * t,
]  # fmt: skip


@given(
    st.lists(st.tuples(*[st.integers(0, len(SIDES) - 1)] * 2), min_size=1, max_size=3), st.data()
)
@examples(40)
def test_as_cond(layers: list[tuple[int, int]], data: Any) -> None:
    """Branches one after the other, each with a predicate of its own: `wf.cond`'s gradient."""
    truths = [data.draw(st.booleans()) for _ in layers]
    with wf.Graph().as_default(), wf.Session() as session:
        x = wf.placeholder(wf.float64, [3])
        preds = [wf.placeholder(wf.bool, []) for _ in layers]
        raw, whole = x, x
        for (i, j), p in zip(layers, preds, strict=True):
            no, yes = wf.tf1.switch(raw, p)
            raw, _ = wf.tf1.merge([SIDES[i](no), SIDES[j](yes)])
            whole = wf.cond(p, SIDES[j], SIDES[i], whole)
        fed = {x: X / 4, **dict(zip(preds, truths, strict=True))}
        found = session.run(wf.gradients(raw, x), fed)
        wanted = session.run(wf.gradients(whole, x), fed)
        np.testing.assert_allclose(found, wanted, rtol=1e-12)


def test_over_two_devices() -> None:
    """Cut into parts, dead values are sent as such."""
    servers = wf.train.Server.create_local_cluster({"ps": 1, "worker": 1})
    try:
        with wf.Graph().as_default() as graph:
            x, p = placeholders()
            with wf.device("/job:ps"):
                no, yes = wf.tf1.switch(x, p)
            with wf.device("/job:worker"):
                y, _ = wf.tf1.merge([no * no, wf.exp(yes)])
                (dx,) = wf.gradients(y, x)
            with wf.Session(servers[0].target, graph=graph) as session:
                assert session.run(dx, {x: X, p: False}).tolist() == (2 * X).tolist()
                np.testing.assert_allclose(session.run(dx, {x: X, p: True}), np.exp(X))
    finally:
        for server in servers:
            server.stop()


# ---------------------------------------------------------------------- options that change nothing
def test_options_of_gradients_are_taken_and_checked() -> None:
    method = wf.tf1.AggregationMethod
    with wf.Graph().as_default(), wf.Session() as session:
        x = wf.placeholder(wf.float64, [3])
        w = wf.Variable(np.zeros(3))
        y = x * x + wf.sin(x) + w
        ways = [None, method.DEFAULT, method.EXPERIMENTAL_TREE, method.EXPERIMENTAL_ACCUMULATE_N]
        found = [wf.gradients(y, x, aggregation_method=way, gate_gradients=True)[0] for way in ways]
        values = session.run(found, {x: X})
        for value in values:
            np.testing.assert_array_equal(value, values[0])
        np.testing.assert_allclose(values[0], 2 * X + np.cos(X))
        optimizer = wf.train.SGD(0.1)
        optimizer.minimize(wf.sum(y), gate_gradients=optimizer.GATE_GRAPH, aggregation_method=2)
        with pytest.raises(wf.errors.InvalidArgumentError, match="aggregation_method=7 is none"):
            wf.gradients(y, x, aggregation_method=7)
        with pytest.raises(wf.errors.InvalidArgumentError, match=r"SGD: gate_gradients=9"):
            optimizer.compute_gradients(wf.sum(y), gate_gradients=9)
        for way in (np.int64(1), np.bool_(True), np.array(2)):
            wf.gradients(y, x, gate_gradients=way)
        for none in (np.arange(2), [y, y], y, wf.sum(y), 1.5, "1"):  # it asked arrays whether
            with pytest.raises(wf.errors.InvalidArgumentError, match=r"gate_gradients=.* is none"):
                wf.gradients(y, x, gate_gradients=none)


def test_options_of_recurrent_nets_are_taken_and_checked() -> None:
    cell, x = wf.nn.GRUCell(2), wf.ones([1, 3, 2])
    plain, _ = wf.nn.dynamic_rnn(cell, x)
    options: dict[str, Any] = {"parallel_iterations": 1, "swap_memory": True, "dtype": wf.float32}
    given_all, _ = wf.nn.dynamic_rnn(cell, x, **options)
    np.testing.assert_array_equal(plain, given_all)
    both, _ = wf.nn.bidirectional_dynamic_rnn(cell, cell, x, **options)
    np.testing.assert_array_equal(both[0], plain)
    with pytest.raises(wf.errors.TypeRuleError, match="dtype=float64, but the inputs are float32"):
        wf.nn.dynamic_rnn(cell, x, dtype=wf.float64)
    with pytest.raises(wf.errors.InvalidArgumentError, match="parallel_iterations is 0"):
        wf.nn.dynamic_rnn(cell, x, parallel_iterations=0)


def test_stop_gradients_gives_partial_derivatives() -> None:
    """The example of TensorFlow's documentation: a = 0, b = 2a; d(a + b)/d(a, b)."""
    with wf.Graph().as_default(), wf.Session() as session:
        a = wf.placeholder(wf.float64, [])
        b = 2.0 * a
        c = wf.sin(b)
        total = wf.gradients(a + b, [a, b])
        partial = wf.gradients(a + b, [a, b], stop_gradients=[a, b])
        through = wf.gradients(c * a, [a, b], stop_gradients=c)
        assert session.run(total, {a: 0.0}) == [3, 1]
        assert session.run(partial, {a: 0.0}) == [1, 1]
        np.testing.assert_allclose(session.run(through[0], {a: 2.0}), np.sin(4.0))
        assert through[1] is None

        def inner(t: Any) -> Any:
            squared = t * t
            return wf.gradients(squared * t, t, stop_gradients=[squared])[0]

        chosen = wf.cond(a > 0, inner, lambda t: t, a)
        assert session.run(chosen, {a: 3.0}) == 9
