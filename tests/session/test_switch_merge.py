"""`wf.switch`, `wf.merge` and loops by hand in a `wf.Graph`: what runs, what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import weft as wf
from weft.ir.analysis.verify import verify

X = np.arange(3, dtype=np.float32)


def diamond() -> tuple[wf.Graph, wf.Tensor, wf.Tensor, tuple[wf.Tensor, ...]]:
    """A graph with placeholders x and p, and the two sides of a switch."""
    graph = wf.Graph()
    with graph.as_default():
        x = wf.placeholder("float32", [3], "x")
        p = wf.placeholder("bool", [], "p")
        return graph, x, p, wf.switch(x, p)


def test_a_branch() -> None:
    graph, x, p, (f, t) = diamond()
    with graph.as_default():
        y, index = wf.merge([wf.negative(f), wf.sin(t)])
    verify(graph.ir([y, index]))
    assert graph.ir([y]).stage == "dataflow"
    assert wf.Graph().ir().stage == "traced"
    session = wf.Session(graph=graph)
    no, first = session.run([y, index], {x: X, p: False})
    np.testing.assert_array_equal(no, -X)
    yes, second = session.run([y, index], {x: X, p: True})
    np.testing.assert_allclose(yes, np.sin(X), rtol=1e-6)
    assert (int(first), int(second)) == (0, 1)
    assert index.dtype is wf.int32


def test_effects_happen_on_one_side() -> None:
    """Also where the session puts writes of one variable in order: a dead one kills none."""
    graph, x, p, (f, t) = diamond()
    with graph.as_default():
        v = wf.Variable(np.zeros(3, np.float32), name="v")
        on_true = wf.group(v.assign(t))
        on_false = wf.group(v.assign_add(f * 10))
        start = wf.global_variables_initializer()
    session = wf.Session(graph=graph)
    session.run(start)
    for pred, wanted in ((True, X), (False, 11 * X), (False, 21 * X), (True, X)):
        assert session.run([on_true, on_false], {x: X, p: pred}) == [None, None]
        np.testing.assert_array_equal(session.run(v), wanted)


def test_control_dependencies_on_a_side() -> None:
    graph, x, p, (f, t) = diamond()
    with graph.as_default():
        with wf.control_dependencies([t]):
            there = wf.identity(x + 1)
        y, _ = wf.merge([f, there])
    session = wf.Session(graph=graph)
    np.testing.assert_array_equal(session.run(y, {x: X, p: True}), X + 1)
    np.testing.assert_array_equal(session.run(y, {x: X, p: False}), X)


def test_beside_structured_branches_and_loops() -> None:
    """A cond or a loop on a dead value is dead as a whole, whatever it would use of it."""
    graph, x, p, (f, t) = diamond()
    with graph.as_default():
        grown = wf.while_loop(
            lambda a: wf.sum(a) < 50.0, lambda a: wf.stop_gradient(a) * 2, t, maximum_iterations=9
        )
        unused = wf.cond(x[1] > 0, lambda a: wf.zeros(3), lambda a: wf.ones(3), f)
        y, _ = wf.merge([unused, grown])
    session = wf.Session(graph=graph)
    np.testing.assert_array_equal(session.run(y, {x: X, p: True}), X * 32)
    np.testing.assert_array_equal(session.run(y, {x: X, p: False}), np.zeros(3))


def test_a_side_can_be_fed() -> None:
    graph, x, p, (_, t) = diamond()
    with graph.as_default():
        y = t * 2
    found = wf.Session(graph=graph).run(y, {t: X})
    np.testing.assert_array_equal(found, X * 2)
    session = wf.Session(graph=graph)
    np.testing.assert_array_equal(session.run(y, {x: X, p: True}), X * 2)
    with pytest.raises(wf.errors.InvalidArgumentError, match=r"is dead in this run: .* is false"):
        session.run(y, {x: X, p: False})
    np.testing.assert_array_equal(session.run(y, {x: X, p: True}), X * 2)  # the session goes on


def line_of(text: str) -> int:
    """The line of this file that holds `text` and an anchor."""
    with open(__file__, encoding="utf-8") as file:
        return next(i for i, line in enumerate(file, 1) if text in line and "# here" in line)


def test_a_fetch_that_is_dead_names_the_switch() -> None:
    graph = wf.Graph()
    with graph.as_default():
        x = wf.placeholder("float32", [3], "x")
        q = wf.sum(x) > 0
        _, t = wf.switch(x, q)  # here
        y = wf.exp(t)
    with pytest.raises(wf.errors.InvalidArgumentError) as caught:
        wf.Session(graph=graph).run(y, {x: -X})
    np.testing.assert_allclose(wf.Session(graph=graph).run(y, {x: X}), np.exp(X), rtol=1e-6)
    message = str(caught.value)
    assert f"of op 'switch' at {__file__}:{line_of('wf.switch(x, q)')}:" in message
    assert "predicate, " in message
    assert "of op 'greater'" in message or "of op 'less'" in message
    assert "is false" in message


def test_two_live_inputs() -> None:
    graph, x, p, (f, t) = diamond()
    with graph.as_default():
        y, _ = wf.merge([x, x + 1])
        n = wf.logical_not(p)
        _, other = wf.switch(x, n)
        z, _ = wf.merge([f, other])
        z, _ = wf.merge([z, t])
    session = wf.Session(graph=graph)
    with pytest.raises(wf.errors.InvalidArgumentError, match="live together"):
        session.run(y, {x: X})
    with pytest.raises(wf.errors.InvalidArgumentError, match="two live"):
        session.run(z, {x: X, p: False})


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda x, p: wf.switch(x, x), TypeError, "pred is .*not a bool without axes"),
        (lambda x, p: wf.merge(x), TypeError, r"inputs is a Tensor, not a list of tensors"),
        (lambda x, p: wf.merge([]), TypeError, "needs at least one operand"),
        (lambda x, p: wf.merge([x, p]), TypeError, "operands of one type"),
        (
            lambda x, p: wf.cond(p, lambda: wf.switch(x, p)[0], lambda: x),
            NotImplementedError,
            "wf.tf1.switch belongs to a wf.Graph",
        ),
    ],
)
def test_errors(call: Any, error: type[Exception], match: str) -> None:
    graph, x, p, _ = diamond()
    with graph.as_default(), pytest.raises(error, match=match) as caught:
        call(x, p)
    assert caught.value.locations[0].file == __file__  # type: ignore[attr-defined]


@pytest.mark.parametrize("call", [lambda: wf.switch(X, True), lambda: wf.merge([X])])
def test_only_in_a_graph(call: Any) -> None:
    with pytest.raises(NotImplementedError, match="outside of any graph"):
        call()
    with pytest.raises(NotImplementedError, match=r"belongs to a wf\.Graph"):
        wf.compile(call)()


def test_a_loop_by_hand() -> None:
    graph = wf.Graph()
    with graph.as_default():
        n = wf.placeholder("int64", [], "n")
        limit = wf.enter(n, "count", is_constant=True, parallel_iterations=3)
        one = wf.enter(1, "count", is_constant=True, parallel_iterations=3)
        i, _ = wf.merge([wf.enter(0, "count", parallel_iterations=3)], loop=True)
        total, _ = wf.merge([wf.enter(0, "count", parallel_iterations=3)], loop=True)
        more = wf.loop_cond(i < limit)
        ended, body = wf.switch(i, more)
        result, so_far = wf.switch(total, more)
        wf.next_iteration(body + one, i)
        wf.next_iteration(so_far + body, total)
        fetches = [wf.exit(ended), wf.exit(result)]
    session = wf.Session(graph=graph)
    for count in (0, 1, 7):
        assert session.run(fetches, {n: count}) == [count, sum(range(count))]
    with pytest.raises(wf.errors.WeftError, match="frame"):
        session.run(body, {n: 3})


def test_values_of_two_frames_do_not_meet() -> None:
    graph = wf.Graph()
    with graph.as_default():
        x = wf.placeholder("int64", [], "x")
        wrong = wf.enter(x, "a") + wf.enter(x, "b")
    with pytest.raises(wf.errors.WeftError, match="frame") as caught:
        wf.Session(graph=graph).run(wrong, {x: 1})
    assert caught.value.locations[0].file == __file__
