"""Queues inside `wf.Graph`s: ops that a step carries out, waits for and shares with others."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import weft as wf
from weft.ir.text.parser import parse_graph


@pytest.fixture
def graph() -> Iterator[wf.Graph]:
    with wf.Graph().as_default() as made:
        yield made


def test_what_goes_in_comes_out(graph: wf.Graph) -> None:
    q = wf.FIFOQueue(10, [wf.float32, wf.int64], [[2], []], name="q")
    x = wf.placeholder(wf.float32, [2])
    put = q.enqueue([x * 2, 7])
    a, b = q.dequeue()
    with wf.Session() as session:
        session.run(put, {x: [1, 2]})
        session.run(put, {x: [3, 4]})
        assert session.run(q.size()) == 2
        value, number = session.run([a + 1, b])
        np.testing.assert_array_equal(value, [3, 5])
        assert number == 7
        assert session.run(q.size()) == 1
    text = str(graph.ir([a]))
    assert 'queue() {name="q", kind="fifo", capacity=10' in text
    assert str(parse_graph(text)) == text


def test_a_step_takes_only_what_it_fetches(graph: wf.Graph) -> None:
    q = wf.FIFOQueue(10, wf.int32, [[]])
    one, two = q.dequeue(), q.dequeue()
    with wf.Session() as session:
        session.run(q.enqueue_many([np.arange(6, dtype=np.int32)]))
        assert session.run(one) == 0
        assert session.run([one, one + 10]) == [1, 11]  # one op, once
        assert sorted(session.run([one, two])) == [2, 3]
        assert session.run(q.size()) == 2


def test_named_components_and_batches(graph: wf.Graph) -> None:
    q = wf.FIFOQueue(10, [wf.float32, wf.int32], [[], []], names=["x", "y"])
    got = q.dequeue_many(3)
    with wf.Session() as session:
        session.run(q.enqueue_many({"x": [1.0, 2.0, 3.0, 4.0], "y": [1, 2, 3, 4]}))
        found = session.run(got)
    assert found["x"].tolist() == [1, 2, 3]
    assert found["y"].dtype == np.int32


def test_a_step_waits_for_another(graph: wf.Graph) -> None:
    q = wf.FIFOQueue(2, wf.float32, [[]])
    x = wf.placeholder(wf.float32, [])
    put, got = q.enqueue(x), q.dequeue() * 2
    found: list[Any] = []
    with wf.Session() as session:
        consumer = threading.Thread(
            target=lambda: found.extend(float(session.run(got)) for _ in range(20))
        )
        consumer.start()
        for i in range(20):
            session.run(put, {x: i})
        consumer.join(10)
    assert found == [2.0 * i for i in range(20)]


def test_timeout_and_what_it_says(graph: wf.Graph) -> None:
    q = wf.FIFOQueue(2, wf.float32, [[]], name="empty")
    got = q.dequeue()
    with wf.Session() as session:
        started = time.monotonic()
        with pytest.raises(wf.errors.DeadlineExceededError, match="dequeue"):
            session.run(got, options=wf.RunOptions(timeout=0.05))
        assert time.monotonic() - started < 5
        session.run(q.enqueue(3.0))
        assert session.run(got) == 3  # the step that gave up took nothing


def test_closing_a_session_ends_what_waits(graph: wf.Graph) -> None:
    q = wf.FIFOQueue(2, wf.float32, [[]])
    got = q.dequeue()
    session = wf.Session()
    raised: list[BaseException] = []

    def wait() -> None:
        try:
            session.run(got)
        except wf.errors.CancelledError as error:
            raised.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    time.sleep(0.05)
    started = time.monotonic()
    session.close()
    waiting.join(5)
    assert raised
    assert time.monotonic() - started < 4


def test_closed_queues(graph: wf.Graph) -> None:
    q = wf.FIFOQueue(5, wf.int32, [[]])
    put, got, closed = q.enqueue(1), q.dequeue(), q.is_closed()
    with wf.Session() as session:
        session.run(put)
        assert not session.run(closed)
        session.run(q.close())
        assert session.run(closed)
        assert session.run(got) == 1
        with pytest.raises(wf.errors.OutOfRangeError, match="closed") as caught:
            session.run(got)
        assert "test_queue_graphs.py" in str(caught.value)
        with pytest.raises(wf.errors.CancelledError, match="closed"):
            session.run(put)


def test_an_error_ends_the_step_and_cancels_what_waits(graph: wf.Graph) -> None:
    full, empty = wf.FIFOQueue(1, wf.int32, [[]]), wf.FIFOQueue(1, wf.int32, [[]])
    with wf.Session() as session:
        session.run(empty.close())
        with pytest.raises(wf.errors.OutOfRangeError):
            session.run([full.dequeue(), empty.dequeue()])
        session.run(full.enqueue(5))  # nobody waits there any more
        assert session.run(full.dequeue()) == 5


def test_control_dependencies_order_queue_ops(graph: wf.Graph) -> None:
    q = wf.FIFOQueue(5, wf.int32, [[]])
    first = q.enqueue(1)
    with wf.control_dependencies([first]):
        second = q.enqueue(2)
    with wf.control_dependencies([second]):
        got = q.dequeue_many(2)
    with wf.Session() as session:
        for _ in range(20):
            assert session.run(got).tolist() == [1, 2]


def test_queues_with_variables_in_one_step(graph: wf.Graph) -> None:
    q = wf.FIFOQueue(100, wf.float32, [[3]])
    w = wf.Variable(np.zeros(3, np.float32))
    batch = q.dequeue_many(4)
    train = w.assign_add(wf.sum(batch, axis=0))
    with wf.Session() as session:
        session.run(wf.global_variables_initializer())
        for i in range(8):
            session.run(q.enqueue(np.full(3, float(i), np.float32)))
        session.run(train)
        session.run(train)
    assert w.numpy().tolist() == [28, 28, 28]


@pytest.mark.parametrize("threads", [1, 3])
def test_queue_runners_fill_and_end(graph: wf.Graph, threads: int) -> None:
    numbers = wf.FIFOQueue(1000, wf.int64, [[]])
    squares = wf.FIFOQueue(3, wf.int64, [[]])
    got = numbers.dequeue()
    runner = wf.train.QueueRunner(squares, [squares.enqueue(got * got)] * threads)
    wf.train.add_queue_runner(runner)
    result = squares.dequeue()
    with wf.Session() as session:
        session.run(numbers.enqueue_many(np.arange(50)))
        session.run(numbers.close())
        coord = wf.train.Coordinator()
        started = wf.train.start_queue_runners(session, coord)
        found = []
        found.extend(int(session.run(result)) for _ in range(50))
        with pytest.raises(wf.errors.OutOfRangeError):
            session.run(result)
        coord.request_stop()
        coord.join(started, stop_grace_period_secs=10)
    assert sorted(found) == [i * i for i in range(50)]


def test_many_steps_lose_and_double_nothing(graph: wf.Graph) -> None:
    q = wf.FIFOQueue(4, wf.int64, [[]])
    x = wf.placeholder(wf.int64, [])
    put, got = q.enqueue(x), q.dequeue()
    count = wf.Variable(np.int64(0))
    counted = count.assign_add(got * 0 + 1)
    found: list[int] = []
    with wf.Session() as session:
        session.run(wf.global_variables_initializer())

        def produce(first: int) -> None:
            for i in range(first, first + 100):
                session.run(put, {x: i})

        def consume() -> None:
            for _ in range(100):
                found.append(int(session.run([got, counted])[0]))

        threads = [threading.Thread(target=produce, args=(1000 * k,)) for k in range(4)]
        threads += [threading.Thread(target=consume) for _ in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join(60)
    assert sorted(found) == [1000 * k + i for k in range(4) for i in range(100)]
    assert count.numpy() == 400


def test_shuffled_and_prioritised(graph: wf.Graph) -> None:
    shuffled = wf.RandomShuffleQueue(100, 10, wf.int64, [[]], seed=3)
    first = wf.PriorityQueue(10, wf.float32, [[]])
    with wf.Session() as session:
        session.run(shuffled.enqueue_many(np.arange(50)))
        found = session.run(shuffled.dequeue_many(40)).tolist()
        assert len(set(found)) == 40
        assert found != sorted(found)
        session.run(first.enqueue([3, 0.3]))
        session.run(first.enqueue([1, 0.1]))
        priority, value = session.run(first.dequeue())
    assert priority == 1
    assert value == np.float32(0.1)


def test_refused_when_the_graph_is_built(graph: wf.Graph) -> None:
    q = wf.FIFOQueue(5, [wf.float32, wf.int32], [[2], []], name="pair")
    x = wf.placeholder(wf.float32, [3])
    with pytest.raises(wf.errors.InvalidArgumentError, match="got 1 values for 2 components"):
        q.enqueue([x])
    with pytest.raises(wf.errors.ShapeError, match="component 0"):
        q.enqueue([x, 1])
    with pytest.raises(wf.errors.TypeRuleError, match="component 1"):
        q.enqueue([x[:2], x[0]])
    with pytest.raises(wf.errors.TypeRuleError, match="component 1"):  # as eagerly, not cut to 1
        q.enqueue([x[:2], 1.5])
    with pytest.raises(wf.errors.InvalidArgumentError, match="RunOptions"):
        q.dequeue(timeout=1)
    anything = wf.FIFOQueue(5, wf.float32)
    with pytest.raises(wf.errors.UnsupportedError, match=r"(?s)any shape.*put in first"):
        anything.dequeue()
    anything.enqueue(x)
    with pytest.raises(wf.errors.ShapeError, match=r"component 0 is f32\[\?\], got f32\[\]"):
        anything.enqueue(x[0])


@pytest.mark.parametrize("kind", ["fifo", "shuffle", "priority"])
def test_elements_whose_shapes_a_run_decides(graph: wf.Graph, kind: str) -> None:
    """Without shapes the first enqueue says how many axes the elements have."""
    dtypes = [wf.float32, wf.string]
    made: dict[str, Any] = {
        "fifo": lambda: wf.FIFOQueue(10, dtypes, names=["x", "words"]),
        "shuffle": lambda: wf.RandomShuffleQueue(10, 0, dtypes, names=["x", "words"]),
        "priority": lambda: wf.PriorityQueue(10, dtypes, names=["first", "x", "words"]),
    }
    q = made[kind]()
    x, words = wf.placeholder(wf.float32, [None, 2]), wf.placeholder(wf.string, [None])
    element = {"x": x, "words": words} | ({"first": 1} if kind == "priority" else {})
    put, got = q.enqueue(element), q.dequeue()
    assert (got["x"].ndim, got["words"].ndim) == (2, 1)
    total = wf.sum(got["x"] * wf.ones(wf.shape(got["x"])), axis=0) + got["x"].shape[0]
    with wf.Session() as session:
        for rows in (2, 0, 3):
            session.run(put, {x: np.ones((rows, 2)), words: ["a"] * (rows + 1)})
            found, text = session.run([total, got["words"]])
            np.testing.assert_array_equal(found, [2 * rows] * 2)
            assert text.tolist() == [b"a"] * (rows + 1)
    loaded = wf.Graph.from_text(graph.as_text())  # has a queue of that rank, too
    assert '"f32[...2]", "string[...1]"]' in loaded.as_text()


def test_elements_that_are_there_say_how_many_axes() -> None:
    mixed = wf.FIFOQueue(10, wf.float32)
    mixed.enqueue(np.ones((2, 3)))
    mixed.enqueue(np.float32(1))
    with wf.Graph().as_default(), wf.Session() as session:
        got = mixed.dequeue()
        assert got.ndim == 2
        assert session.run(wf.sum(got)) == 6
        with pytest.raises(wf.errors.ShapeError, match=r"(?s)f32\[\], not of 2 axes.*again"):
            session.run(got)
        assert session.run(mixed.size()) == 1  # it is in the queue again
    mixed.enqueue(np.ones((1, 4)))
    with wf.Graph().as_default(), wf.Session() as session:  # another graph, another number of axes
        got = mixed.dequeue()
        assert got.ndim == 0
        assert session.run(got) == 1
    assert mixed.dequeue().shape == (1, 4)


@pytest.mark.parametrize("kind", ["fifo", "shuffle", "priority"])
def test_batches_of_elements_of_open_sizes(graph: wf.Graph, kind: str) -> None:
    first: list[Any] = [0] if kind == "priority" else []
    made: dict[str, Any] = {
        "fifo": lambda: wf.FIFOQueue(10, wf.float32, [[None, 2]]),
        "shuffle": lambda: wf.RandomShuffleQueue(10, 0, wf.float32, [[None, 2]]),
        "priority": lambda: wf.PriorityQueue(10, wf.float32, [[None, 2]]),
    }
    q = made[kind]()
    x = wf.placeholder(wf.float32, [None, 2])
    put, batch, rest = q.enqueue([*first, x]), q.dequeue_many(2), q.dequeue_up_to(3)
    if first:
        batch, rest = batch[1], rest[1]
    with wf.Session() as session:
        for rows in (2, 0, 3):
            for _ in range(2):
                session.run(put, {x: np.ones((rows, 2))})
            assert session.run(batch).shape == (2, rows, 2)
        for rows in (1, 2):
            session.run(put, {x: np.ones((rows, 2))})
        with pytest.raises(wf.errors.ShapeError, match=r"(?s)make no batch.*PaddingFIFOQueue"):
            session.run(batch)
        one = q.dequeue()
        left = [session.run(one[1] if first else one).shape for _ in range(2)]  # nothing is lost
        assert sorted(left) == [(1, 2), (2, 2)]
        session.run(put, {x: np.ones((4, 2))})
        session.run(q.close())
        assert session.run(rest).shape == (1, 4, 2)
    if not first:
        with pytest.raises(wf.errors.ShapeError, match=r"takes \[\?,2\]"):
            q.enqueue(np.ones((2, 3)))


@pytest.mark.parametrize("make", [wf.FIFOQueue, wf.tf1.Stack])
def test_elements_of_any_shape_in_compiled_functions(make: Any) -> None:
    """Each trace has its own number of axes, and each call its own sizes."""
    held = make(10, wf.float32) if make is wf.FIFOQueue else make(wf.float32)
    put = held.enqueue if make is wf.FIFOQueue else held.push
    take = held.dequeue if make is wf.FIFOQueue else held.pop

    @wf.compile
    def through(x: wf.Tensor) -> tuple[wf.Tensor, wf.Tensor]:
        put(x * 2.0)
        y = take()
        return y, wf.sum(y * y)

    @wf.compile
    def taken() -> wf.Tensor:
        return wf.astype(take(), wf.float64)

    for shape in ((3,), (2, 2), (5,), (), (0, 2), (2, 2)):
        x = np.arange(np.prod(shape, dtype=int), dtype=np.float32).reshape(shape) + 1
        y, total = through(x)
        np.testing.assert_array_equal(y, 2 * x)
        np.testing.assert_allclose(total, np.sum(4 * x * x))
    for rows in (1, 4, 0):  # two axes, as what was put in last
        put(np.ones((rows, 3), np.float32))
        assert taken().shape == (rows, 3)
    put(np.ones(3, np.float32))
    with pytest.raises(wf.errors.ShapeError, match="2 axes"):
        taken()
    assert take().shape == (3,)
    fresh = wf.FIFOQueue(1, wf.float32)
    with pytest.raises(wf.errors.UnsupportedError, match=r"(?s)any shape.*put in first"):
        wf.compile(lambda: fresh.dequeue())()


def test_one_of_several_queues_without_shapes(graph: wf.Graph) -> None:
    queues = [wf.FIFOQueue(5, wf.float32) for _ in range(2)]
    which, x = wf.placeholder(wf.int32, []), wf.placeholder(wf.float32, [None])
    chosen = wf.tf1.QueueBase.from_list(which, queues)
    put, got = chosen.enqueue(x), chosen.dequeue()
    with wf.Session() as session:
        for i, size in ((0, 2), (1, 0), (1, 3)):
            session.run(put, {which: i, x: np.arange(size)})
        for i, size in ((1, 0), (0, 2), (1, 3)):
            np.testing.assert_array_equal(session.run(got, {which: i}), np.arange(size))


def test_very_many_ops_of_the_host_in_one_step(graph: wf.Graph) -> None:
    """The native loop comes back for each 64 of them."""
    q = wf.FIFOQueue(5, wf.float32, [[]])
    sizes = [q.size() for _ in range(6000)]
    with wf.Session() as session:
        assert session.run(sizes, options=wf.RunOptions(timeout=20)) == [0] * 6000


def test_strings(graph: wf.Graph) -> None:
    words = wf.FIFOQueue(5, [wf.string, wf.int64], [[2], []])
    x = wf.placeholder(wf.string, [2])
    put, got, many = words.enqueue([x, 3]), words.dequeue(), words.dequeue_many(2)
    with wf.Session() as session:
        for i in range(100):
            session.run(put, {x: np.array([f"a{i}" * 50, "b"], object)})
            found, number = session.run(got)
            assert found.tolist() == [f"a{i}".encode() * 50, b"b"]
            assert number == 3
        for i in range(2):
            session.run(put, {x: np.array([f"c{i}", "d"], object)})
        found, _ = session.run(many)
        assert found.tolist() == [[b"c0", b"d"], [b"c1", b"d"]]


def test_native_control_flow_refuses_host_ops(graph: wf.Graph) -> None:
    q = wf.FIFOQueue(5, wf.float32, [[]])
    session = wf.Session(control_flow="native")
    with pytest.raises(wf.errors.UnsupportedError, match="dequeue"):
        session.run(q.dequeue())
