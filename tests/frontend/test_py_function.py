"""wf.py_function: host Python eagerly and in graphs, once for each execution."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft as wf
from weft.ir.interpreter.evaluate import interpret
from weft.ir.text.parser import parse_graph
from weft.ir.text.printer import print_graph

Array = np.ndarray[Any, Any]
HERE = Path(__file__).name


class Counting:
    """Adds its operands, gives a count besides."""

    def __init__(self) -> None:
        self.calls = 0
        self.lock = threading.Lock()

    def __call__(self, a: Any, b: Any) -> Any:
        with self.lock:
            self.calls += 1
        return np.asarray(a) + np.asarray(b), self.calls


def test_eagerly() -> None:
    add = Counting()
    total, calls = wf.py_function(add, [1.5, wf.ones((2,))], [wf.float32, wf.int64])
    assert total.numpy().tolist() == [2.5, 2.5]
    assert (int(calls), add.calls) == (1, 1)
    assert float(wf.py_function(lambda: 3, [], wf.float32)) == 3
    assert wf.py_function(print, [], []) == []
    text = wf.py_function(lambda x: [x.item().upper()], [wf.asarray("a")], wf.string, (1,))
    assert text.numpy().tolist() == [b"A"]


def test_tensors_have_values_that_are_the_functions_own() -> None:
    x = wf.ones((3,))

    def spoil(t: Any) -> Any:
        assert isinstance(t, wf.Tensor)
        np.asarray(t)
        return t * 2.0 + float(wf.sum(t))

    assert wf.py_function(spoil, x, wf.float32, (3,)).numpy().tolist() == [5, 5, 5]
    assert x.numpy().tolist() == [1, 1, 1]


def graph_of(function: Callable[[Any], Any]) -> tuple[wf.Graph, Any, Any]:
    graph = wf.Graph()
    with graph.as_default():
        x = wf.placeholder(wf.float32, [3], name="x")
        return graph, x, function(x)


def test_once_in_each_step_that_needs_it() -> None:
    add = Counting()

    def build(x: Any) -> Any:
        total, calls = wf.py_function(add, [x * 2.0, x], [wf.float32, wf.int64], [(3,), ()])
        return wf.sum(total) + wf.max(total), total * 1.0, calls, wf.sum(x)

    graph, x, (both, total, calls, plain) = graph_of(build)
    with wf.Session(graph=graph) as session:
        for k in range(1, 4):
            got = session.run([both, total, calls], {x: [1, 2, 3]})
            assert got[0] == 27
            assert got[1].tolist() == [3, 6, 9]
            assert (got[2], add.calls) == (k, k)
        assert session.run(plain, {x: [1, 2, 3]}) == 6
        assert add.calls == 3
        assert session.run(both, {x: [1, 2, 3], total: [0, 0, 0]}) == 27


def test_many_threads_run_steps() -> None:
    add = Counting()
    graph, x, y = graph_of(
        lambda x: wf.py_function(add, [x, x], [wf.float32, wf.int64], [(3,), ()])[0] + x
    )
    with wf.Session(graph=graph) as session:
        run = session.make_callable(y, [x])
        wrong: list[Array] = []

        def work(k: int) -> None:
            for _ in range(25):
                got = run(np.full(3, k, np.float32))
                if got.tolist() != [3.0 * k] * 3:
                    wrong.append(got)

        threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    assert not wrong
    assert add.calls == 100


def test_with_control_dependencies_and_queues() -> None:
    seen: list[float] = []
    graph = wf.Graph()
    with graph.as_default():
        queue = wf.FIFOQueue(4, wf.float32, shapes=[()])
        put = queue.enqueue(wf.constant(5.0))
        with wf.control_dependencies([put]):
            taken = queue.dequeue()
        noted = wf.py_function(lambda t: seen.append(float(t)) or t, [taken], wf.float32, ())
        with wf.control_dependencies([noted]):
            again = wf.py_function(lambda: len(seen), [], wf.int64, ())
    with wf.Session(graph=graph) as session:
        assert session.run([again, noted]) == [1, 5.0]
    assert seen == [5.0]


@pytest.mark.parametrize(
    ("raised", "wanted"),
    [
        (ValueError("v"), wf.errors.InvalidArgumentError),
        (KeyError("k"), wf.errors.NotFoundError),
        (StopIteration(), wf.errors.OutOfRangeError),
        (ZeroDivisionError("z"), wf.errors.UnknownError),
    ],
)
def test_errors_come_out_with_line_and_cause(raised: Exception, wanted: type[Exception]) -> None:
    def fail(x: Any) -> Any:
        raise raised

    graph, x, y = graph_of(lambda x: wf.py_function(fail, [x], wf.float32, (3,)))
    session = wf.Session(graph=graph)
    message = rf"(?s)fail' raised {type(raised).__name__}.*{HERE}"
    with pytest.raises(wanted, match=message) as caught:
        session.run(y, {x: [1, 2, 3]})
    assert caught.value.__cause__ is raised
    with pytest.raises(wanted, match=message) as caught:
        wf.py_function(fail, [1.0], wf.float32)
    assert caught.value.__cause__ is raised


def test_wefts_own_errors_and_interrupts_stay_what_they_are() -> None:
    def ends(x: Any) -> Any:
        raise wf.errors.OutOfRangeError("no more lines")

    def interrupted(x: Any) -> Any:
        raise KeyboardInterrupt

    graph, x, (a, b, c) = graph_of(
        lambda x: (
            wf.py_function(ends, [x], wf.float32, (3,)),
            wf.py_function(interrupted, [x], wf.float32, (3,)),
            wf.py_function(lambda t: t, [x], wf.float32, (3,)),
        )
    )
    with wf.Session(graph=graph) as session:
        with pytest.raises(wf.errors.OutOfRangeError, match="no more lines"):
            session.run(a, {x: [1, 2, 3]})
        with pytest.raises(KeyboardInterrupt):
            session.run(b, {x: [1, 2, 3]})
        assert session.run(c, {x: [1, 2, 3]}).tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (lambda: np.zeros(3), "result 0 of .* is float64, Tout says float32"),
        (lambda: np.zeros(2, np.float32), r"has shape \(2,\), shapes says \(3,\)"),
        (lambda: None, "result 0 of"),
        (lambda: ["a", "b", "c"], "result 0 of"),
        (lambda: (1, 2), r"has shape \(2,\)"),
    ],
)
def test_results_are_checked(given: Callable[[], Any], message: str) -> None:
    graph, _, y = graph_of(lambda x: wf.py_function(given, [], wf.float32, (3,)))
    session = wf.Session(graph=graph)
    for run in (lambda: session.run(y), lambda: wf.py_function(given, [], wf.float32, (3,))):
        with pytest.raises((TypeError, ValueError), match=rf"(?s){message}.*{HERE}"):
            run()


def test_the_number_of_results_is_checked() -> None:
    with pytest.raises(ValueError, match="returned 3 values, Tout has 2"):
        wf.py_function(lambda: (1, 2, 3), [], [wf.float32, wf.float32])
    with pytest.raises(ValueError, match="1 shapes are given for 2 dtypes"):
        wf.py_function(lambda: (1, 2), [], [wf.float32, wf.float32], [()])
    with pytest.raises(ValueError, match="func must be a function"):
        wf.py_function(3, [], wf.float32)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="is not a shape"):
        wf.py_function(lambda: 1, [], wf.float32, (-2,))


def test_a_graph_must_know_shapes() -> None:
    with pytest.raises(ValueError, match=r"(?s)the shape of result 0.*must be known.*shapes="):
        graph_of(lambda x: wf.py_function(lambda t: t, [x], wf.float32))


def test_compiled_functions_call_it_where_it_stands() -> None:
    f = wf.compile(lambda x: wf.py_function(lambda t: t * 2, [x + 1], wf.float32, (3,)) + 1)
    for _ in range(3):  # the third call is native
        assert f(np.arange(3, dtype="f4")).numpy().tolist() == [3, 5, 7]


def test_loops_and_branches_of_functions_call_it_each_time() -> None:
    seen: list[float] = []

    def step(i: Any, v: Any) -> Any:
        return wf.py_function(lambda t: seen.append(float(t[0])) or t + 1, [v], wf.float32, (3,))

    for call in (
        wf.compile(lambda x: wf.fori_loop(0, 3, step, x)),
        lambda x: wf.fori_loop(0, 3, step, x),
    ):
        seen.clear()
        assert call(wf.zeros([3])).numpy().tolist() == [3, 3, 3]
        assert seen == [0, 1, 2]
    assert step_once(step, wf.zeros([3])).numpy().tolist() == [1, 1, 1]


def step_once(step: Any, x: Any) -> Any:
    return wf.cond(True, lambda: step(0, x), lambda: x)


def test_once_in_each_iteration_of_a_graph() -> None:
    seen: list[float] = []

    def step(i: Any, v: Any) -> Any:
        return wf.py_function(lambda t: seen.append(float(t[0])) or t + 1, [v], wf.float32, (3,))

    graph, x, y = graph_of(lambda x: wf.fori_loop(0, 3, step, x))
    with wf.Session(graph=graph) as session:
        assert session.run(y, {x: np.zeros(3, np.float32)}).tolist() == [3, 3, 3]
    assert seen == [0, 1, 2]


def cube(x: Any) -> Any:
    @wf.custom_gradient
    def call(x: Any) -> Any:
        y = wf.py_function(lambda t: np.asarray(t) ** 3, [x], wf.float32, (3,))

        def gradient(dy: Any) -> Any:
            slope = wf.py_function(lambda t: 3 * np.asarray(t) ** 2, [x], wf.float32, (3,))
            return dy * slope

        return y, gradient

    return call(x)


def test_differentiable_with_custom_gradient_only() -> None:
    x = np.array([1, -2, 3], np.float32)
    with pytest.raises(wf.errors.GradientError, match=r"(?s)has no gradient.*wf.custom_gradient"):
        wf.grad(lambda v: wf.sum(wf.py_function(lambda t: t, [v], wf.float32, (3,))))(wf.asarray(x))
    got = wf.grad(lambda v: wf.sum(cube(v)))(wf.asarray(x))
    np.testing.assert_array_equal(got.numpy(), 3 * x**2)
    graph, p, g = graph_of(lambda v: wf.gradients(wf.sum(cube(v)), [v])[0])
    with wf.Session(graph=graph) as session:
        np.testing.assert_array_equal(session.run(g, {p: x}), 3 * x**2)


def test_as_text_it_is_a_name() -> None:
    graph, _, y = graph_of(
        lambda x: wf.py_function(np.sort, [x], wf.float32, (3,), name="in_order")
    )
    made = graph._trace.graph([y._value])
    text = print_graph(made)
    attrs = 'function="in_order", parts=["f32[3]"], listed=false, sizes=[]'
    assert f"py_function(%x) {{{attrs}}} : f32[3]" in text
    given = np.array([3, 1, 2], np.float32)
    assert interpret(made, [given])[0].tolist() == [1, 2, 3]
    again = parse_graph(text)
    assert again == made
    with pytest.raises(wf.errors.FailedPreconditionError, match="registered as 'in_order'"):
        interpret(again, [given])
