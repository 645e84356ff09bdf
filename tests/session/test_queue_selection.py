"""`QueueBase.from_list`: one of several queues, chosen by a number or by a step."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import weft as wf

E = wf.errors


@pytest.fixture
def graph() -> Iterator[wf.Graph]:
    with wf.Graph().as_default() as made:
        yield made


def queues(count: int = 3) -> list[Any]:
    return [wf.FIFOQueue(5, [wf.float32, wf.int64], [[2], []], name=f"q{i}") for i in range(count)]


def test_eagerly_it_is_that_queue() -> None:
    given = queues()
    assert wf.QueueBase.from_list(1, given) is given[1]
    assert wf.QueueBase.from_list(wf.constant(2), given) is given[2]


def test_a_step_chooses(graph: wf.Graph) -> None:
    given = queues()
    i = wf.placeholder(wf.int32, [])
    chosen = wf.QueueBase.from_list(i, given)
    put = chosen.enqueue([[1.0, 2.0], wf.astype(i, wf.int64)])
    x, number = chosen.dequeue()
    size, closed = chosen.size(), chosen.is_closed()
    put_many = chosen.enqueue_many([np.zeros((2, 2), np.float32), np.array([7, 8])])
    many = chosen.dequeue_many(2)
    with wf.Session() as session:
        for k, times in ((0, 1), (1, 2), (2, 3)):
            for _ in range(times):
                session.run(put, {i: k})
        assert [q._queue.size() for q in given] == [1, 2, 3]
        assert [int(session.run(size, {i: k})) for k in range(3)] == [1, 2, 3]
        assert int(session.run(number, {i: 2})) == 2
        value, number_1 = session.run([x + 1, number], {i: 1})
        assert (value.tolist(), int(number_1)) == ([2, 3], 1)
        assert [q._queue.size() for q in given] == [1, 1, 2]
        session.run(put_many, {i: 0})
        assert session.run(many, {i: 0})[1].tolist() == [0, 7]
        session.run(chosen.close(), {i: 1})
        assert [bool(session.run(closed, {i: k})) for k in range(3)] == [False, True, False]
        # an empty queue that was not chosen is not waited for
        assert int(session.run(number, {i: 1})) == 1
        assert int(session.run(number, {i: 2})) == 2
        with pytest.raises(E.OutOfRangeError, match="'q1' is closed"):
            session.run(number, {i: 1})


@pytest.mark.parametrize("k", [-1, 3])
def test_an_index_out_of_range_touches_no_queue(graph: wf.Graph, k: int) -> None:
    given = queues()
    i = wf.placeholder(wf.int64, [])
    chosen = wf.QueueBase.from_list(i, given)
    put = chosen.enqueue([[1.0, 2.0], 3])
    with (
        wf.Session() as session,
        pytest.raises(E.InvalidArgumentError, match="'q0', 'q1', 'q2'"),
    ):
        session.run(put, {i: k})
    assert [q._queue.size() for q in given] == [0, 0, 0]


def test_refusals(graph: wf.Graph) -> None:
    i = wf.placeholder(wf.int32, [])
    from_list = wf.QueueBase.from_list
    other = wf.FIFOQueue(5, wf.float32, [[2]])
    for call, text in (
        (lambda: from_list(i, []), "no list of queues"),
        (lambda: from_list(i, [1, 2]), "no list of queues"),  # type: ignore[list-item]
        (lambda: from_list(i, [*queues(1), other]), "have other components"),
        (lambda: from_list(3, queues()), "there are 3 queues, index is 3"),
        (lambda: from_list(0.5, queues()), "no integer"),
    ):
        with pytest.raises(E.InvalidArgumentError, match=text) as error:
            call()
        assert __file__ in str(error.value)
    chosen = from_list(i, queues())
    assert "one of 3 queues" in repr(chosen)
    with pytest.raises(E.UnsupportedError, match="of one of 3 queues"):
        chosen.state_dict()
    with pytest.raises(E.InvalidArgumentError, match="got 1 values for 2 components"):
        chosen.enqueue([1])


def test_a_runner_needs_to_know_what_to_close(graph: wf.Graph) -> None:
    given = [wf.FIFOQueue(2, wf.int64, [[]], name=f"q{i}") for i in range(2)]
    numbers = wf.FIFOQueue(-1, wf.int64, [[]])
    number = numbers.dequeue()
    chosen = wf.QueueBase.from_list(number % 2, given)
    put = [chosen.enqueue(number)]
    with pytest.raises(E.InvalidArgumentError, match="close_op=") as error:
        wf.train.QueueRunner(chosen, put)
    assert __file__ in str(error.value)

    def close() -> None:
        for q in given:
            q.close(cancel_pending_enqueues=True)

    runner = wf.train.QueueRunner(chosen, put, close, close)
    with wf.Session() as session:
        session.run(numbers.enqueue_many(np.arange(6)))
        coordinator = wf.train.Coordinator()
        threads = runner.create_threads(session, coordinator, start=True)
        while numbers._queue.size() > 1:  # the fifth waits for room
            time.sleep(0.001)
        coordinator.request_stop()
        coordinator.join(threads, stop_grace_period_secs=10)
    assert [(q._queue.size(), q._queue.is_closed) for q in given] == [(2, True), (2, True)]


def test_sizes_of_batches_are_numbers_of_python(graph: wf.Graph) -> None:
    n = wf.placeholder(wf.int32, [])
    for call in (given.dequeue_many for given in queues(1)):
        with pytest.raises(E.InvalidArgumentError, match=r"n is i32\[\] .*no Python integer"):
            call(n)
        with pytest.raises(E.InvalidArgumentError, match=r"must be less than 2\*\*63"):
            call(2**63)
