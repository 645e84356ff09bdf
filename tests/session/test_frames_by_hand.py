"""Loops of wf.enter, wf.merge, wf.switch ... that use variables, queues, constants and what is done
outside."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

import weft as wf
from weft.ir.errors import InvalidArgumentError


@pytest.fixture
def graph() -> Iterator[wf.Graph]:
    with wf.Graph().as_default() as made:
        yield made


def loop(name: str, n: Any, start: Any, body: Callable[[Any], Sequence[Any]]) -> Any:
    """i = start; while i < n: body(i); i += 1, written out; the last i."""
    merged, _ = wf.merge([wf.enter(start, name)], loop=True)
    stop, on = wf.switch(merged, wf.loop_cond(merged < wf.enter(n, name, is_constant=True)))
    with wf.control_dependencies(body(on)):
        wf.next_iteration(on + 1, merged)
    return wf.exit(stop)


@pytest.mark.parametrize("n", [0, 1, 4])
@pytest.mark.parametrize("deterministic", [False, True])
def test_variables_and_queues(graph: wf.Graph, n: int, deterministic: bool) -> None:
    v, queue = wf.Variable(np.int64(100)), wf.FIFOQueue(9, wf.int64, [[]])
    made = loop("l", wf.constant(n), wf.constant(0), lambda i: [v.assign_add(i), queue.enqueue(i)])
    before = v.read()
    with wf.Session(deterministic=deterministic) as session:
        session.run(v.initializer)
        assert session.run([made, before]) == [n, 100]
        assert v.numpy() == 100 + sum(range(n))
        assert session.run(queue.dequeue_up_to(4) if n == 4 else queue.size()).tolist() == (
            [0, 1, 2, 3] if n == 4 else n
        )


def test_nested(graph: wf.Graph) -> None:
    v, n = wf.Variable(np.int64(0)), wf.placeholder(wf.int64, [])

    def body(i: Any) -> list[Any]:
        tens = wf.enter(10 * i, "inner", is_constant=True)
        return [loop("inner", i, i * 0, lambda j: [v.assign_add(tens + j)])]

    made = loop("outer", n, wf.constant(0), body)
    with wf.Session() as session:
        session.run(v.initializer)
        assert session.run(made, {n: 4}) == 4
    assert v.numpy() == sum(10 * i + j for i in range(4) for j in range(i))


def test_each_iteration_comes_after_what_is_outside(graph: wf.Graph) -> None:
    seen: list[int] = []

    def note(x: Any) -> np.int64:
        seen.append(int(x))
        return np.int64(0)

    def noted(x: Any) -> Any:
        return wf.py_function(note, [x], wf.int64, shapes=())

    first = noted(wf.constant(-1))

    def body(i: Any) -> list[Any]:
        with wf.control_dependencies([first]):
            return [noted(i)]

    with wf.Session() as session:
        assert session.run(loop("l", wf.constant(3), wf.constant(0), body)) == 3
    assert seen == [-1, 0, 1, 2]


def test_what_is_computed_outside_is_not_brought_in(graph: wf.Graph) -> None:
    x = wf.placeholder(wf.int64, [])
    made = loop("l", wf.constant(3), wf.constant(0), lambda i: [i + x])
    with (
        wf.Session() as session,
        pytest.raises(InvalidArgumentError, match=r"bring it in by enter"),
    ):
        session.run(made, {x: 1})


def test_what_is_computed_of_constants_alone_is_brought_in(graph: wf.Graph) -> None:
    """The number in an expression, repeated to the shape of a vector, through two frames."""
    x = wf.placeholder(wf.float64, [3])

    def double(name: str, value: Any, body: Callable[[Any], Any]) -> Any:
        merged, _ = wf.merge([wf.enter(value, name)], loop=True)
        stop, on = wf.switch(merged, wf.loop_cond(wf.sum(merged) < 20.0))
        wf.next_iteration(body(on), merged)
        return wf.exit(stop)

    def body(on: Any) -> Any:
        return double("inner", on + wf.asarray([1.0, 2.0, 3.0]), lambda v: 2.0 * v + wf.iota(3))

    made = double("outer", x, body)
    with wf.Session() as session:
        assert session.run(made, {x: [0.0, 0.0, 0.0]}).tolist() == [4, 11, 18]


def test_frames_of_one_name_are_told_apart(graph: wf.Graph) -> None:
    """Frames have a name within the frame around them."""
    zero = wf.constant(0)
    made = loop("o", wf.constant(2), zero, lambda i: [loop("i", i, zero, lambda j: [])])
    message = r"'i' in no other, but .* 'i' in frame 'o'"
    with wf.Session() as session, pytest.raises(InvalidArgumentError, match=message):
        session.run(made)
