"""What comes after what in a step: control dependencies on values that cost no op, reads among
writes, and effects of bodies that return nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import weft as wf
from weft.frontend.core.trace import Effect

WAYS = ("auto", "dataflow")


@pytest.fixture
def graph() -> Iterator[wf.Graph]:
    with wf.Graph().as_default() as made:
        yield made


def counter(seen: list[str], name: str) -> Any:
    """A tensor of a Python function that notes that it was called."""

    def note() -> np.float32:
        seen.append(name)
        return np.float32(0)

    return wf.py_function(note, [], wf.float32, shapes=())


#: Functions that give what they take, or what is known beforehand: they need no op for it.
FREE: dict[str, Callable[[Any], Any]] = {
    "constant": lambda x: wf.constant([1.0, 2.0]),
    "constant_of_dtype": lambda x: wf.constant(True),
    "astype": lambda x: wf.astype(x, "float32"),
    "reshape": lambda x: wf.reshape(x, (2, 1)),
    "squeeze": lambda x: wf.squeeze(x, []),
    "expand_dims": lambda x: wf.expand_dims(x, []),
    "transpose": lambda x: wf.transpose(x, [0, 1]),
    "broadcast_to": lambda x: wf.broadcast_to(x, (2, 1)),
    "ensure_shape": lambda x: wf.ensure_shape(x, (2, 1)),
    "flip": lambda x: wf.flip(x, axis=()),
    "pad": lambda x: wf.pad(x, 0),
    "positive": lambda x: +x,
    "shape": wf.shape,
    "size": wf.size,
    "rank": wf.rank,
    "identity": wf.identity,
}


@pytest.mark.parametrize("name", FREE)
def test_what_needs_no_op_keeps_its_dependencies(graph: wf.Graph, name: str) -> None:
    seen: list[str] = []
    x = wf.placeholder(wf.float32, [2, 1])
    with wf.control_dependencies([counter(seen, "first")]):
        y = FREE[name](x)
    with wf.Session() as session:
        session.run(y, {x: np.ones((2, 1))})
    assert seen == ["first"]


def test_a_variable_read_in_a_body_keeps_its_dependencies(graph: wf.Graph) -> None:
    """The body only reads the variable, so no op of it does."""
    v, queue = wf.Variable(1.0), wf.FIFOQueue(10, wf.float32, [[]])
    sizes: list[int] = []

    def body(i: Any) -> Any:
        with wf.control_dependencies([queue.enqueue(1.0)]):
            x = v.read()

        def note(x: Any) -> np.int64:
            sizes.append(len(queue._queue._elements))
            return np.int64(0)

        return i + wf.py_function(note, [x], wf.int64, shapes=()) + 1

    loop = wf.while_loop(lambda i: i < 3, body, [wf.constant(0)], parallel_iterations=1)
    with wf.Session() as session:
        session.run(v.initializer)
        session.run(loop)
    assert sizes == [1, 2, 3]


@pytest.mark.parametrize("way", WAYS)
def test_what_comes_after_an_assignment_in_a_body_sees_it(graph: wf.Graph, way: str) -> None:
    v, x, seen = wf.Variable(5.0), wf.placeholder(wf.float32, []), []

    def body(i: Any) -> Any:
        def note() -> np.int64:
            seen.append(float(v.numpy()))
            return np.int64(1)

        with wf.control_dependencies([v.assign(x + wf.astype(i, "float32"))]):
            return i + wf.py_function(note, [], wf.int64, shapes=())

    loop = wf.while_loop(lambda i: i < 3, body, [wf.constant(0)], parallel_iterations=1)
    with wf.Session(control_flow=way) as session:
        session.run(v.initializer)
        session.run(loop, {x: 10.0})
    assert seen == [10, 11, 12]


# ----------------------------------------------------------------------------- constants as tensors
@pytest.mark.parametrize("value", [3.0, [1.0, 2.0], np.arange(3), True, np.float64(2)])
def test_a_constant_is_a_tensor_of_the_graph(graph: wf.Graph, value: Any) -> None:
    c = wf.constant(value)
    with wf.Session() as session:
        np.testing.assert_array_equal(session.run(c), value)
        np.testing.assert_array_equal(session.run(c, {c: np.zeros_like(value)}), 0)


def test_what_a_loop_captures_of_a_constant_is_fed(graph: wf.Graph) -> None:
    n = wf.constant(2, dtype="int32")
    loop = wf.while_loop(lambda i: i < n, lambda i: i + 1, [wf.constant(0, dtype="int32")])
    with wf.Session() as session:
        assert session.run(loop) == [2]
        assert session.run(loop, {n: 5}) == [5]


def test_a_tensor_made_outside_is_fetched(graph: wf.Graph) -> None:
    outside = wf.asarray(np.arange(3.0))
    with wf.Session() as session:
        assert session.run(outside).tolist() == [0, 1, 2]
        with pytest.raises(wf.errors.InvalidArgumentError, match="a concrete tensor is not in"):
            session.run(outside, {outside: [1.0]})


# --------------------------------------------------------------------------------- reads and writes
@pytest.mark.parametrize("way", ["native", *WAYS])
def test_a_read_after_a_write_comes_after_those_before_it(graph: wf.Graph, way: str) -> None:
    """It must not come before the first write, at the cost of turning the two round."""
    v = wf.Variable(100.0)
    first, second = v.assign(1.0), v.assign_add(10.0)
    with wf.control_dependencies([second]):
        read = v.read()
    with wf.Session(control_flow=way) as session:
        session.run(v.initializer)
        assert session.run([first, second, read]) == [1, 11, 11]
    assert v.numpy() == 11


@pytest.mark.parametrize("way", ["native", *WAYS])
def test_a_loop_takes_what_was_read_for_it_before(graph: wf.Graph, way: str) -> None:
    """Only what it carries of the variable is one access with its update."""
    v = wf.Variable(10.0)
    before = v.read()
    doubled = v.assign_add(10.0)

    def body(i: Any) -> Any:
        v.assign(v + before)
        return i + 1

    loop = wf.while_loop(lambda i: i < 2, body, [wf.constant(0)])
    with wf.Session(control_flow=way) as session:
        session.run(v.initializer)
        assert session.run([before, doubled, loop]) == [10, 20, [2]]
    assert v.numpy() == 40


# -------------------------------------------------------------------------------- bodies of effects
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("nothing", [list, tuple, dict])
def test_branches_that_return_nothing_are_an_effect(
    graph: wf.Graph, way: str, nothing: Callable[[], Any]
) -> None:
    queue, p = wf.FIFOQueue(10, wf.float32, [[]]), wf.placeholder(wf.bool, [])

    def put(x: float) -> Any:
        queue.enqueue(x)
        return nothing()

    effect = wf.cond(p, lambda: put(1.0), lambda: put(2.0))
    assert isinstance(effect, Effect)
    with wf.Session(control_flow=way) as session:
        for value in (True, False):
            session.run(effect, {p: value})
        assert session.run(queue.dequeue_many(2)).tolist() == [1, 2]


@pytest.mark.parametrize("way", WAYS)
def test_branches_of_nothing_in_a_body_that_acts(graph: wf.Graph, way: str) -> None:
    queue = wf.FIFOQueue(10, wf.int64, [[]])

    def body(i: Any) -> Any:
        queue.enqueue(i)
        assert wf.cond(i > 1, list, list) == []
        return i + 1

    loop = wf.while_loop(lambda i: i < 3, body, [wf.constant(0)])
    with wf.Session(control_flow=way) as session:
        assert session.run(loop) == [3]
        assert session.run(queue.size()) == 3


# ------------------------------------------------------------------------------- loops' signatures
def test_functions_that_take_any_number_after_the_first(graph: wf.Graph) -> None:
    one = wf.while_loop(lambda i, *_: i < 3, lambda i, x: (i + 1, x * 2), [0, 1.0])
    two = wf.while_loop(lambda i, *_: i < 3, lambda i, *xs: [i + 1, *xs], (0, 5.0))
    whole = wf.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, s[1] * 2), (0, 1.0))
    with wf.Session() as session:
        assert session.run([one, two, whole]) == [[3, 8], (3, 5), (3, 8)]
