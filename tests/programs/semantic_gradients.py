"""Small programs that pin down what gradients of branches and loops are (see
`semantic_programs`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from semantic_programs import Case, after, eager_variable, feed, queue

import weft as wf

PROGRAMS: dict[str, Callable[[], Case]] = {}
ROWS = np.array([1, 2, 3], np.float32)


def program(build: Callable[[], Case]) -> Callable[[], Case]:
    """Register a program by its name."""
    PROGRAMS[build.__name__] = build
    return build


@program
def the_second_gradient_of_a_while() -> Case:
    x = feed("x")
    y = wf.while_loop(lambda v: v < 100, lambda v: v * v, [x], maximum_iterations=8)
    first = wf.gradients(y, [x])[0]
    return Case([y, first, wf.gradients(first, [x])[0]], [256, 256, 192], {x: 4})


@program
def the_gradient_of_a_branch_in_a_while() -> Case:
    x = feed("x")

    def body(i: Any, v: Any) -> Any:
        return i + 1, wf.cond(i % 2 == 0, lambda: v * x, lambda: v + x)

    start = (wf.constant(0, dtype="int64"), wf.constant(1.0))
    _, y = wf.while_loop(lambda i, _: i < 4, body, start)  # ((x) + x) x + x = 2 x^2 + x
    first = wf.gradients(y, [x])[0]
    return Case([y, first, wf.gradients(first, [x])[0]], [21, 13, 4], {x: 3})


@program
def the_gradient_of_a_loop_with_respect_to_a_variable() -> Case:
    n, v = feed("n", "int64"), eager_variable(2)
    y = wf.fori_loop(0, n, lambda i, a: a * v, wf.constant(1.0), maximum_iterations=8)
    return Case([y, wf.gradients(y, [v])[0]], [8, 12], {n: 3}, variables={v: 2})


@program
def the_gradient_of_nested_loops() -> Case:
    x = feed("x")

    def row(a: Any, b: Any) -> Any:
        return wf.fori_loop(0, 2, lambda i, c: c * x + b, a)

    y = wf.foldl(row, ROWS[:2], wf.constant(1.0))
    return Case([y, wf.gradients(y, [x])[0]], [34, 50], {x: 2})


@program
def a_gradient_repeats_no_effect() -> Case:
    x, q = feed("x"), queue("q")

    def body(i: Any, v: Any) -> Any:
        with after(q.enqueue(v)):
            return v * x

    y = wf.fori_loop(0, 3, body, wf.constant(1.0))
    return Case([y, wf.gradients(y, [x])[0]], [8, 12], {x: 2}, {q: [1, 2, 4]})


@program
def a_gradient_of_a_branch_repeats_no_effect() -> Case:
    x, q = feed("x"), queue("q")
    y = wf.cond(x > 0, lambda: (x * x, q.enqueue(x)), lambda: (-x, wf.no_op()))[0]
    return Case([y, wf.gradients(y, [x])[0]], [9, 6], {x: 3}, {q: [3]})


@program
def a_gradient_uses_what_a_scan_dequeued() -> Case:
    x, q = feed("x"), queue("q", 2, 3, 4)

    def step(c: Any, _: None) -> Any:
        d = q.dequeue()
        return c * x * d, d

    y, taken = wf.scan(step, wf.constant(1.0), length=3)
    first = wf.gradients(y, [x])[0]
    second = wf.gradients(first, [x])[0]
    return Case([y, taken, first, second], [192, [2, 3, 4], 288, 288], {x: 2}, {q: []})


@program
def a_gradient_uses_what_a_branch_dequeued() -> Case:
    x, q = feed("x"), queue("q", 5, 6)

    def branch() -> Any:
        d = q.dequeue()
        return x * x * d, d

    y, _ = wf.cond(x > 0, branch, lambda: (x, 0.0))
    first = wf.gradients(y, [x])[0]
    return Case([y, first, wf.gradients(first, [x])[0]], [45, 30, 10], {x: 3}, {q: [6]})


@program
def a_gradient_through_a_branch_that_dequeues_in_a_scan() -> Case:
    x, q = feed("x"), queue("q", 10, 20, 30)

    def step(c: Any, row: Any) -> Any:
        def take() -> Any:
            d = q.dequeue()
            return c + x * d, d

        c, d = wf.cond(row > 1, take, lambda: (c * x, 0.0))
        return c, d

    y, taken = wf.scan(step, wf.constant(1.0), ROWS)  # (x + 10 x) + 20 x
    return Case([y, taken, wf.gradients(y, [x])[0]], [62, [0, 10, 20], 31], {x: 2}, {q: [30]})


@program
def the_gradient_of_switch_and_merge_by_hand() -> Case:
    x, p, q = feed("x"), feed("p", "bool"), feed("q", "bool")
    no, yes = wf.switch(x, p)
    y, _ = wf.merge([no * no, yes * 5])
    low, high = wf.switch(y, q)
    z, _ = wf.merge([low * 2, high * high])
    first = wf.gradients(z, [x])[0]
    return Case([z, first, wf.gradients(first, [x])[0]], [81, 108, 108], {x: 3, p: False, q: True})


@program
def the_gradient_of_a_side_that_is_not_taken_is_zero() -> Case:
    x, p = feed("x"), feed("p", "bool")
    _, yes = wf.switch(x, p)
    return Case(wf.gradients(yes * 3, [x])[0], [0], {x: 3, p: False})
