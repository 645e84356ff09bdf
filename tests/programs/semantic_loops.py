"""Small programs that pin down what loops and scans mean (see `semantic_programs`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from semantic_programs import Case, after, eager_variable, feed, noted, queue

import weft as wf

PROGRAMS: dict[str, Callable[[], Case]] = {}


def program(build: Callable[[], Case]) -> Callable[[], Case]:
    """Register a program by its name."""
    PROGRAMS[build.__name__] = build
    return build


def real(i: Any) -> Any:
    """An integer as what queues hold."""
    return wf.astype(i, "float32")


def counted(n: Any, body: Callable[[Any], Any], **options: Any) -> Any:
    """A loop over i below n, of which `body` makes an effect."""

    def step(i: Any) -> Any:
        with after(body(i)):
            return i + 1

    return wf.while_loop(lambda i: i < n, step, [wf.constant(0, dtype="int64")], **options)


# ------------------------------------------------------------------------------------------- while
@program
def a_body_acts_once_in_each_iteration() -> Case:
    n, q = feed("n", "int64"), queue("q")
    return Case(counted(n, lambda i: q.enqueue(real(i))), [4], {n: 4}, {q: [0, 1, 2, 3]})


@program
def a_loop_that_does_not_run_does_nothing() -> Case:
    n, q = feed("n", "int64"), queue("q")
    return Case(counted(n, lambda i: q.enqueue(1)), [0], {n: 0}, {q: []})


@program
def a_loop_of_effects_alone() -> Case:
    q = queue("q", 5)
    return Case(
        wf.while_loop(lambda: q.size() < 4, lambda: q.enqueue(7), []), [], {}, {q: [5, *[7] * 3]}
    )


@program
def a_loop_of_effects_with_a_bound() -> Case:
    q = queue("q")
    made = wf.while_loop(lambda: True, lambda: q.enqueue(7), [], maximum_iterations=3)
    return Case(made, [], {}, {q: [7, 7, 7]})


@program
def a_loop_takes_until_the_sum_is_reached() -> Case:
    limit, q = feed("limit"), queue("q", 1, 2, 3, 4, 5)
    made = wf.while_loop(lambda s: s < limit, lambda s: s + q.dequeue(), [wf.constant(0.0)])
    return Case(made, [6], {limit: 5}, {q: [4, 5]})


@program
def the_test_may_act() -> Case:
    q = queue("q", 1, 2, -1, 4)
    made = wf.while_loop(
        lambda n: q.dequeue() > 0, lambda n: n + 1, [wf.constant(0, dtype="int64")]
    )
    return Case(made, [2], {}, {q: [4]})


@program
def test_and_body_act_on_one_object_in_turn() -> Case:
    q = queue("q")

    def test(i: Any) -> Any:
        with after(q.enqueue(real(i))):
            return i < 2

    def body(i: Any) -> Any:
        q.enqueue(real(i) + 10)
        return i + 1

    made = wf.while_loop(test, body, [wf.constant(0, dtype="int64")])
    return Case(made, [2], {}, {q: [0, 10, 1, 11, 2]})


@program
def at_the_limit_the_test_does_not_run() -> Case:
    q = queue("q", 1, 2, 3, 4)
    made = wf.while_loop(
        lambda n: q.dequeue() > 0, lambda n: n + 1, [wf.constant(0, dtype="int64")],
        maximum_iterations=2,
    )  # fmt: skip
    return Case(made, [2], {}, {q: [3, 4]})


@program
def loops_nest() -> Case:
    n, q = feed("n", "int64"), queue("q")

    def row(i: Any) -> Any:
        return counted(i + 1, lambda j: q.enqueue(real(10 * i + j)))

    return Case(counted(n, row), [3], {n: 3}, {q: [0, 10, 11, 20, 21, 22]})


@program
def a_branch_in_a_loop() -> Case:
    n, even, odd = feed("n", "int64"), queue("even"), queue("odd")

    def body(i: Any) -> Any:
        put = [lambda: even.enqueue(real(i)), lambda: odd.enqueue(real(i))]
        return wf.cond(i % 2 == 0, *put)

    return Case(counted(n, body), [5], {n: 5}, {even: [0, 2, 4], odd: [1, 3]})


@program
def a_loop_in_a_branch() -> Case:
    n, q = feed("n", "int64"), queue("q", 9)
    made = wf.cond(
        n > 2, lambda: counted(n, lambda i: q.enqueue(real(i))), lambda: [wf.constant(0, "int64")]
    )
    return Case(made, [3], {n: 3}, {q: [9, 0, 1, 2]})


@program
def what_comes_before_a_loop_comes_before_all_of_it() -> Case:
    n, q = feed("n", "int64"), queue("q")
    with after(q.enqueue(100)):
        made = counted(n, lambda i: q.enqueue(real(i)))
    return Case(made, [2], {n: 2}, {q: [100, 0, 1]})


@program
def an_op_in_a_loop_may_come_after_one_outside() -> Case:
    n, q = feed("n", "int64"), queue("q")
    first = q.enqueue(100)

    def body(i: Any) -> Any:
        with after(first):
            return q.enqueue(real(i))

    return Case(counted(n, body), [2], {n: 2}, {q: [100, 0, 1]})


@program
def what_comes_after_a_loop_comes_after_all_of_it() -> Case:
    n, q, r = feed("n", "int64"), queue("q"), queue("r")
    made = counted(n, lambda i: [q.enqueue(real(i)), r.enqueue(1)])
    with after(made):
        last = [q.enqueue(100), r.enqueue(100)]
    return Case(last, [], {n: 2}, {q: [0, 1, 100], r: [1, 1, 100]})


@program
def one_iteration_after_another() -> Case:
    n, q, r = feed("n", "int64"), queue("q", 1, 2, 3), queue("r")
    made = counted(n, lambda i: r.enqueue(q.dequeue() * 2), parallel_iterations=1)
    return Case(made, [3], {n: 3}, {q: [], r: [2, 4, 6]})


@program
def what_goes_in_comes_out_in_the_same_iteration() -> Case:
    n, q = feed("n", "int64"), queue("q", capacity=1)

    def body(i: Any, total: Any) -> Any:
        with after(q.enqueue(real(i))):
            return i + 1, total + q.dequeue() * 10

    start = (wf.constant(0, dtype="int64"), wf.constant(0.0))
    return Case(wf.while_loop(lambda i, _: i < n, body, start)[1], [60], {n: 4}, {q: []})


@program
def an_edge_that_a_loop_captures_can_be_fed() -> Case:
    n, x = feed("n", "int64"), feed("x")
    y = wf.exp(x)
    made = wf.fori_loop(0, n, lambda i, s: s + y, wf.constant(0.0))
    return Case(made, [6], {n: 3, y: 2})


@program
def loops_carry_variables() -> Case:
    n, v = feed("n", "int64"), eager_variable(1)
    made = counted(n, lambda i: v.assign(v * 2))
    return Case(made, [3], {n: 3}, variables={v: 8})


@program
def loops_that_act_update_variables_where_they_stand() -> Case:
    n, q, v = feed("n", "int64"), queue("q", 1, 2, 3), eager_variable(0)
    made = counted(n, lambda i: v.assign_add(q.dequeue()))
    return Case(made, [3], {n: 3}, {q: []}, {v: 6})


@program
def a_live_variable_is_read_anew() -> Case:
    n, q, r, v = feed("n", "int64"), queue("q", 1, 2, 3), queue("r"), eager_variable(0)

    def body(i: Any) -> Any:
        v.assign_add(q.dequeue())
        wf.cond(v > 2, lambda: v.assign_sub(1), lambda: v.assign_add(10))
        return r.enqueue(v)

    return Case(counted(n, body), [3], {n: 3}, {q: [], r: [11, 12, 14]}, {v: 14})


@program
def python_functions_in_a_loop() -> Case:
    n = feed("n", "int64")
    seen: list[Any] = []
    made = wf.fori_loop(0, n, lambda i, x: noted(seen, x) * 2, wf.constant(1.0))
    return Case(made, [8], {n: 3}, seen=(seen, [1, 2, 4]))


@program
def a_loop_ends_when_its_queue_is_closed() -> Case:
    q = queue("q")

    def body(i: Any) -> Any:
        q.enqueue(real(i))
        wf.cond(i >= 2, q.close, wf.no_op)
        return i + 1

    start = [wf.constant(0, dtype="int64")]
    made = wf.while_loop(lambda i: wf.logical_not(q.is_closed()), body, start)
    return Case(made, [3], {}, {q: [0, 1, 2]})


@program
def a_closed_queue_ends_the_step() -> Case:
    n, q, r = feed("n", "int64"), queue("q", 1, 2, closed=True), queue("r")
    made = counted(n, lambda i: r.enqueue(q.dequeue()))
    return Case(made, feed={n: 3}, queues={q: [], r: [1, 2]}, error=("OutOfRangeError", "closed"))


@program
def a_queue_closed_in_a_loop_accepts_no_more() -> Case:
    n, q = feed("n", "int64"), queue("q")

    def body(i: Any) -> Any:
        q.enqueue(real(i))
        return wf.cond(i >= 1, q.close, wf.no_op)

    made = counted(n, body)
    return Case(made, feed={n: 5}, queues={q: [0, 1]}, error=("CancelledError", "closed"))


@program
def batches_in_a_loop() -> Case:
    n, q, r = feed("n", "int64"), queue("q", *range(6)), queue("r")
    made = counted(n, lambda i: r.enqueue_many([q.dequeue_many(2) * 2]))
    return Case(made, [2], {n: 2}, {q: [4, 5], r: [0, 2, 4, 6]})


# ------------------------------------------------------------------------------------------- scans
ROWS = np.array([1, 2, 3], np.float32)


@program
def a_scan_acts_row_by_row() -> Case:
    q = queue("q")

    def step(c: Any, x: Any) -> Any:
        q.enqueue(c)
        return c + x, c * 10

    return Case(wf.scan(step, wf.constant(0.0), ROWS), [6, [0, 10, 30]], {}, {q: [0, 1, 3]})


@program
def a_scan_from_the_last_row() -> Case:
    q = queue("q")

    def step(c: Any, x: Any) -> Any:
        q.enqueue(x)
        return c + x, c

    made = wf.scan(step, wf.constant(0.0), ROWS, reverse=True)
    return Case(made, [6, [5, 3, 0]], {}, {q: [3, 2, 1]})


@program
def a_scan_of_no_rows() -> Case:
    q = queue("q")

    def step(c: Any, x: Any) -> Any:
        q.enqueue(x)
        return c + x, c

    return Case(wf.scan(step, wf.constant(7.0), ROWS[:0]), [7, []], {}, {q: []})


@program
def a_map_of_effects() -> Case:
    q = queue("q")
    return Case(wf.map_fn(lambda x: q.enqueue(x * x), ROWS), [], {}, {q: [1, 4, 9]})


@program
def a_map_of_what_is_dequeued() -> Case:
    q = queue("q", 10, 20, 30, 40)
    return Case(wf.map_fn(lambda x: q.dequeue() + x, ROWS), [[11, 22, 33]], {}, {q: [40]})


@program
def folds_act_in_their_order() -> Case:
    q, r = queue("q"), queue("r")

    def step(put: Any, a: Any, x: Any) -> Any:
        with after(put.enqueue(x)):
            return a * 2 + x

    left = wf.foldl(lambda a, x: step(q, a, x), ROWS, wf.constant(0.0))
    right = wf.foldr(lambda a, x: step(r, a, x), ROWS, wf.constant(0.0))
    return Case([left, right], [11, 17], {}, {q: [1, 2, 3], r: [3, 2, 1]})


@program
def a_scan_in_a_loop() -> Case:
    n, q = feed("n", "int64"), queue("q")
    made = counted(n, lambda i: wf.map_fn(lambda x: q.enqueue(x + 10 * real(i)), ROWS))
    return Case(made, [2], {n: 2}, {q: [1, 2, 3, 11, 12, 13]})


@program
def a_counted_loop_acts() -> Case:
    q = queue("q", 1)

    def body(i: Any, x: Any) -> Any:
        y = q.dequeue() + x
        q.enqueue(y)
        return y

    return Case(wf.fori_loop(0, 4, body, wf.constant(1.0)), [16], {}, {q: [16]})
