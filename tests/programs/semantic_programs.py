"""Small programs that pin down what branches, loops, dead values and effects mean.

Each function builds a program in the current `wf.Graph` and says what one step of it gives and
leaves behind. `test_ways.py` runs all of them in every way there is; the texts before and
after lowering are in tests/cases/semantics.weft. This file: dead values and branches; then come
`semantic_loops.py` and `semantic_gradients.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import weft as wf
from weft.frontend.core.trace import suspend_trace


@dataclass(frozen=True)
class Case:
    """What to fetch and feed; `want`: the value of each tensor fetched. queues, variables: what
    they hold afterwards. seen: a list that Python functions fill, and what is in it then. error:
    the name of its class and a pattern in its message."""

    fetch: Any
    want: Sequence[Any] = ()
    feed: Mapping[Any, Any] = field(default_factory=dict)
    queues: Mapping[Any, Sequence[float]] = field(default_factory=dict)
    variables: Mapping[Any, Any] = field(default_factory=dict)
    seen: tuple[list[Any], list[Any]] = ([], [])
    error: tuple[str, str] | None = None


PROGRAMS: dict[str, Callable[[], Case]] = {}


def program(build: Callable[[], Case]) -> Callable[[], Case]:
    """Register a program by its name."""
    PROGRAMS[build.__name__] = build
    return build


def queue(name: str, *elements: float, capacity: int = 100, closed: bool = False) -> Any:
    """A queue of float32 that holds `elements` already."""
    q = wf.FIFOQueue(capacity, wf.float32, [[]], name=name)
    for x in elements:
        q._queue.enqueue([(np.asarray(x, np.float32),)])
    if closed:
        q._queue.close(False)
    return q


def feed(name: str, dtype: str = "float32", shape: Sequence[int] = ()) -> Any:
    """A placeholder."""
    return wf.placeholder(dtype, list(shape), name)


def after(*first: Any) -> Any:
    """What comes after these."""
    return wf.control_dependencies(list(first))


# ---------------------------------------------------------------------------------------- deadness
@program
def a_merge_takes_the_live_side() -> Case:
    x, p = feed("x"), feed("p", "bool")
    below, above = wf.switch(x, p)
    y, index = wf.merge([below * 2, above + 1])
    return Case([y, index], [4, 1], {x: 3, p: True})


@program
def ops_with_a_dead_operand_do_not_run() -> Case:
    x, p, q = feed("x"), feed("p", "bool"), queue("q")
    below, above = wf.switch(x, p)
    return Case([q.enqueue(below), q.enqueue(above + 10)], [], {x: 3, p: True}, {q: [13]})


@program
def ops_after_a_dead_value_do_not_run() -> Case:
    x, p, q = feed("x"), feed("p", "bool"), queue("q")
    below, above = wf.switch(x, p)
    with after(below):
        dead = q.enqueue(1)
    with after(above):
        live = q.enqueue(2)
    return Case([dead, live], [], {x: 3, p: True}, {q: [2]})


@program
def deadness_goes_through_effects() -> Case:
    x, p, q = feed("x"), feed("p", "bool"), queue("q")
    below, _ = wf.switch(x, p)
    with after(q.enqueue(below)):
        second = q.enqueue(2)
    return Case(second, [], {x: 3, p: True}, {q: []})


@program
def switches_nest() -> Case:
    x, p, r = feed("x"), feed("p", "bool"), feed("r", "bool")
    low, high = wf.switch(x, p)
    first, second = wf.switch(high, r)
    inner, _ = wf.merge([first - 1, second + 1])
    y, index = wf.merge([low, inner])
    return Case([y, index], [4, 1], {x: 5, p: True, r: False})


@program
def dead_python_functions_are_not_called() -> Case:
    x, p = feed("x"), feed("p", "bool")
    seen: list[Any] = []
    sides = wf.switch(x, p)
    made = [noted(seen, side) for side in sides]
    return Case(wf.merge(made)[0], [2], {x: 2, p: False}, seen=(seen, [2]))


def noted(seen: list[Any], x: Any) -> Any:
    """`x`, by way of a Python function that notes it."""

    def note(t: Any) -> Any:
        seen.append(float(t))
        return t

    return wf.py_function(note, [x], wf.float32, (), name="note")


@program
def a_fetch_of_the_side_that_is_not_taken_is_an_error() -> Case:
    x, p = feed("x"), feed("p", "bool")
    below, _ = wf.switch(x, p)
    why = "(?s)is dead in this run.*switch.*semantic_programs.py"
    return Case(below * 2, feed={x: 1, p: True}, error=("InvalidArgumentError", why))


@program
def a_fetch_of_the_side_that_is_taken() -> Case:
    x, p = feed("x"), feed("p", "bool")
    below, _ = wf.switch(x, p)
    return Case(below * 2, [2], {x: 1, p: False})


@program
def two_live_operands_of_a_merge_are_an_error() -> Case:
    x, y = feed("x"), feed("y")
    p, r = feed("p", "bool"), feed("r", "bool")
    made, _ = wf.merge([*wf.switch(x, p), wf.switch(y, r)[1]])
    return Case(made, feed={x: 1, y: 2, p: True, r: True}, error=("InvalidArgumentError", "live"))


# ---------------------------------------------------------------------------------------- branches
@program
def only_the_chosen_branch_acts() -> Case:
    p, q = feed("p", "bool"), queue("q")
    made = wf.cond(p, lambda: q.enqueue(1), lambda: q.enqueue(2))
    return Case(made, [], {p: False}, {q: [2]})


@program
def a_branch_that_does_nothing() -> Case:
    p, q = feed("p", "bool"), queue("q")
    return Case(wf.cond(p, lambda: q.enqueue(1), wf.no_op), [], {p: False}, {q: []})


@program
def a_branch_gives_a_value_and_acts() -> Case:
    x, q = feed("x"), queue("q")
    y = wf.cond(x > 0, lambda: (wf.sqrt(x), q.enqueue(x)), lambda: (-x, wf.no_op()))
    return Case(y[0], [3], {x: 9}, {q: [9]})


@program
def a_branch_acts_in_the_order_of_the_program() -> Case:
    p, q = feed("p", "bool"), queue("q")

    def several() -> Any:
        for i in range(5):
            q.enqueue(i)

    return Case(wf.cond(p, several, wf.no_op), [], {p: True}, {q: [0, 1, 2, 3, 4]})


@program
def a_branch_waits_for_what_its_ops_come_after() -> Case:
    p, q, r = feed("p", "bool"), queue("q"), queue("r")
    first = q.enqueue(1)

    def second() -> Any:
        with after(first):
            return r.enqueue(wf.astype(q.size(), "float32") + 10)

    return Case(wf.cond(p, second, wf.no_op), [], {p: True}, {q: [1], r: [11]})


@program
def what_comes_after_a_branch_comes_after_its_effects() -> Case:
    p, q = feed("p", "bool"), queue("q")
    with after(wf.cond(p, lambda: q.enqueue(1), wf.no_op)):
        second = q.enqueue(2)
    return Case(second, [], {p: True}, {q: [1, 2]})


@program
def branches_nest() -> Case:
    x, q = feed("x"), queue("q")
    made = wf.cond(
        x > 0,
        lambda: wf.cond(x > 10, lambda: q.enqueue(2), lambda: q.enqueue(1)),
        lambda: q.enqueue(0),
    )
    return Case(made, [], {x: 5}, {q: [1]})


@program
def case_takes_the_first_that_is_true() -> Case:
    x, q = feed("x"), queue("q")
    pairs = [(x > 8, lambda: q.enqueue(8)), (x > 4, lambda: q.enqueue(4))]
    made = wf.case([*pairs, (x > 2, lambda: q.enqueue(2))], default=lambda: q.enqueue(0))
    return Case(made, [], {x: 5}, {q: [4]})


@program
def switch_case_takes_one() -> Case:
    n, queues = feed("n", "int64"), [queue(f"q{i}", i) for i in range(4)]
    y = wf.switch_case(n, [q.dequeue for q in queues])
    left = {q: [i] for i, q in enumerate(queues) if i != 2}
    return Case(y, [2], {n: 2}, {**left, queues[2]: []})


@program
def the_predicate_may_come_from_a_queue() -> Case:
    q, r = queue("q", 3, 4), queue("r")
    made = wf.cond(q.dequeue() > 2, lambda: r.enqueue(q.dequeue()), wf.no_op)
    return Case(made, [], {}, {q: [], r: [4]})


@program
def an_edge_that_a_branch_captures_can_be_fed() -> Case:
    x, p = feed("x"), feed("p", "bool")
    y = wf.exp(x) * 2
    return Case(wf.cond(p, lambda: y + 1, lambda: y - 1), [11], {y: 10, p: True})


@program
def branches_carry_variables() -> Case:
    p, v = feed("p", "bool"), eager_variable(5.0)
    made = wf.cond(p, lambda: v.assign_add(1), lambda: v.assign(0))
    return Case(made, [6], {p: True}, variables={v: 6})


def eager_variable(value: Any) -> Any:
    """A variable that has a value before the step."""
    with suspend_trace():
        return wf.Variable(np.float32(value), name="v")


@program
def branches_that_act_update_variables_where_they_stand() -> Case:
    p, q, v = feed("p", "bool"), queue("q", 2, 3), eager_variable(1)

    def both() -> Any:
        v.assign_add(q.dequeue())
        q.enqueue(v.read())
        return v.assign_add(q.dequeue())

    made = wf.cond(p, both, lambda: v.assign(0))
    return Case(made, [6], {p: True}, {q: [3]}, {v: 6})


@program
def nothing_that_is_not_fetched_happens() -> Case:
    x, p, q = feed("x"), feed("p", "bool"), queue("q")
    wf.cond(p, lambda: q.enqueue(1), wf.no_op)
    return Case(x + 1, [2], {x: 1, p: True}, {q: []})


@program
def a_branch_is_done_once_for_all_that_read_it() -> Case:
    p, q = feed("p", "bool"), queue("q", 1, 2, 3)
    y = wf.cond(p, q.dequeue, lambda: wf.constant(0.0))
    return Case([y, y * 2, y + y], [1, 2, 2], {p: True}, {q: [2, 3]})


@program
def python_functions_are_called_in_order() -> Case:
    x, p = feed("x"), feed("p", "bool")
    seen: list[Any] = []

    def branch() -> Any:
        noted(seen, x)
        noted(seen, x * 2)
        return noted(seen, x * 3)

    return Case(wf.cond(p, branch, lambda: x), [6], {x: 2, p: True}, seen=(seen, [2, 4, 6]))
