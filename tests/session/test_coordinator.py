"""Coordinator, QueueRunner and LooperThread: threads that stop together."""

from __future__ import annotations

import sys
import threading
import time
from typing import Any

import pytest

import weft as wf

E = wf.errors


def started(*targets: Any) -> list[threading.Thread]:
    threads = [threading.Thread(target=t, daemon=True) for t in targets]
    for t in threads:
        t.start()
    return threads


def test_stop_ends_loops_and_join_returns() -> None:
    coord = wf.train.Coordinator()
    rounds = [0, 0]

    def loop(i: int) -> None:
        while not coord.should_stop():
            rounds[i] += 1
            time.sleep(0.001)
            if rounds[i] == 5:
                coord.request_stop()

    threads = started(lambda: loop(0), lambda: loop(1))
    assert not coord.joined
    coord.join(threads)
    assert coord.joined
    assert 5 in rounds
    coord.clear_stop()
    assert not coord.should_stop()
    assert not coord.joined


def test_join_returns_when_all_have_ended_without_a_stop() -> None:
    coord = wf.train.Coordinator()
    for t in started(lambda: time.sleep(0.02), lambda: None):
        coord.register_thread(t)
    coord.register_thread(threading.Thread())  # never started
    at = time.monotonic()
    coord.join()
    assert time.monotonic() - at < 5
    assert not coord.should_stop()


def test_the_first_exception_is_raised_in_join() -> None:
    coord = wf.train.Coordinator()
    first = threading.Event()

    def fail() -> None:
        with coord.stop_on_exception():
            raise ValueError("first")

    def later() -> None:
        with coord.stop_on_exception():
            coord.wait_for_stop()
            first.set()
            raise KeyError("second")

    threads = started(later, fail)
    with pytest.raises(ValueError, match="first") as error:
        coord.join(threads)
    assert first.is_set()
    assert "fail" in [f.name for f in error.traceback]  # where it was raised
    with pytest.raises(ValueError, match="late"):
        coord.request_stop(ValueError("late"))
    coord.request_stop()
    coord.clear_stop()
    coord.raise_requested_exception()


def test_a_clean_stop_raises_nothing() -> None:
    coord = wf.train.Coordinator()
    coord.request_stop(E.OutOfRangeError("the end"))
    coord.join([])
    strict = wf.train.Coordinator(clean_stop_exception_types=())
    strict.request_stop(E.OutOfRangeError("the end"))
    with pytest.raises(E.OutOfRangeError):
        strict.join([])
    mine = wf.train.Coordinator(clean_stop_exception_types=[KeyError])
    try:
        raise KeyError("x")
    except KeyError:
        mine.request_stop(sys.exc_info())
    mine.join([])


def test_exc_info_and_wrong_arguments() -> None:
    coord = wf.train.Coordinator()
    with pytest.raises(E.InvalidArgumentError, match="takes an exception") as error:
        coord.request_stop("no")  # type: ignore[arg-type]
    assert __file__ in str(error.value)
    try:
        raise ValueError("x")
    except ValueError:
        coord.request_stop(sys.exc_info())
    with pytest.raises(ValueError, match="x"):
        coord.join([])
    with pytest.raises(E.InvalidArgumentError, match="for itself"):
        coord.join([threading.current_thread()])


def test_threads_that_do_not_stop_are_named() -> None:
    coord = wf.train.Coordinator()
    go = threading.Event()
    (thread,) = started(lambda: go.wait(30))
    thread.name = "stubborn"
    coord.request_stop()
    for _ in range(2):
        with pytest.raises(RuntimeError, match="stubborn") as error:
            coord.join([thread], stop_grace_period_secs=0.05)
    assert isinstance(error.value, E.DeadlineExceededError)
    coord.join([thread], stop_grace_period_secs=0, ignore_live_threads=True)
    go.set()
    coord.join([thread])


def test_waiting_for_a_stop() -> None:
    coord = wf.train.Coordinator()
    at = time.monotonic()
    assert not coord.wait_for_stop(0.03)
    assert 0.03 <= time.monotonic() - at < 5
    woken: list[float] = []
    threads = started(*[lambda: woken.append(time.monotonic() if coord.wait_for_stop() else 0)] * 5)
    while len(coord._conditions) < 5:
        time.sleep(0.001)
    at = time.monotonic()
    coord.request_stop()
    for t in threads:
        t.join(10)
    assert len(woken) == 5
    assert 0 <= max(woken) - at < 0.5
    assert coord.wait_for_stop(0)


# ------------------------------------------------------------------------------------------ runners
def test_a_runner_fills_a_queue_to_the_end_of_the_input() -> None:
    q = wf.FIFOQueue(3, wf.int64, [])
    values = iter(range(40))
    lock = threading.Lock()

    def read() -> None:
        with lock:
            value = next(values, None)
        if value is None:
            raise E.OutOfRangeError("the input has ended")
        q.enqueue(value)

    coord = wf.train.Coordinator()
    runner = wf.train.QueueRunner(q, [read] * 4)
    threads = runner.create_threads(None, coord, start=True)
    assert len(threads) == 5
    assert runner.create_threads(None, coord) == []  # those run
    got = [q.dequeue().item() for _ in range(40)]
    assert sorted(got) == list(range(40))
    with pytest.raises(E.OutOfRangeError):
        q.dequeue()
    coord.request_stop()
    coord.join(threads, stop_grace_period_secs=10)


def test_the_queue_is_closed_by_the_last_thread_to_end() -> None:
    q = wf.FIFOQueue(9, wf.int64, [])
    gone = threading.Event()
    values = iter([1, 2])

    def short() -> None:
        raise E.OutOfRangeError("nothing here")

    def long() -> None:
        assert gone.wait(10)
        value = next(values, None)
        if value is None:
            raise E.OutOfRangeError("the end")
        q.enqueue(value)

    runner = wf.train.QueueRunner(q, [short, long])
    first, last = runner.create_threads(start=True)
    first.join(10)
    assert not q.is_closed()
    gone.set()
    last.join(10)
    assert q.dequeue_many(2).tolist() == [1, 2]
    assert q.is_closed()


def test_a_stop_wakes_a_runner_that_waits_for_room() -> None:
    q = wf.FIFOQueue(3, wf.int64, [])
    coord = wf.train.Coordinator()
    runner = wf.train.QueueRunner(q, [lambda: q.enqueue(1)] * 2)
    threads = runner.create_threads(coord=coord, start=True)
    while len(q._queue._putting) < 2:
        time.sleep(0.001)
    at = time.monotonic()
    coord.request_stop()
    coord.join(threads, stop_grace_period_secs=10)
    assert time.monotonic() - at < 4
    assert q.is_closed()


def test_a_runner_that_fails_stops_all() -> None:
    q = wf.FIFOQueue(3, wf.int64, [])
    coord = wf.train.Coordinator()

    def fail() -> None:
        raise KeyError("broken")

    runner = wf.train.QueueRunner(q, [lambda: q.enqueue(1), fail])
    threads = runner.create_threads(coord=coord, start=True)
    with pytest.raises(KeyError, match="broken"):
        coord.join(threads, stop_grace_period_secs=10)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_runner_without_a_coordinator_keeps_the_exception() -> None:
    q = wf.FIFOQueue(3, wf.int64, [])
    runner = wf.train.QueueRunner(q, [lambda: q.enqueue("x")])
    (thread,) = runner.create_threads(start=True)
    thread.join(10)
    assert [type(e) for e in runner.exceptions_raised] == [E.TypeRuleError]
    again = runner.create_threads()
    assert len(again) == 1  # the old ones have ended


def test_own_ends_and_close_ops() -> None:
    q = wf.FIFOQueue(3, wf.int64, [])
    closed: list[str] = []
    runner = wf.train.QueueRunner(
        q, [lambda: next(iter(()))], close_op=lambda: closed.append("end"),
        queue_closed_exception_types=[StopIteration],
    )  # fmt: skip
    (thread,) = runner.create_threads(start=True)
    thread.join(10)
    assert closed == ["end"]
    assert not q.is_closed()


def test_runners_refuse_what_they_cannot_run() -> None:
    q = wf.FIFOQueue(3, wf.int64, [])
    with pytest.raises(E.InvalidArgumentError, match="enqueue_ops has a Tensor"):
        wf.train.QueueRunner(q, [wf.ones(3)])  # type: ignore[list-item]
    with pytest.raises(E.InvalidArgumentError, match="needs a queue"):
        wf.train.QueueRunner()
    with wf.Graph().as_default():
        put = wf.FIFOQueue(3, wf.int64, [[]]).enqueue(1)
    runner = wf.train.QueueRunner(q, [put])
    with pytest.raises(E.InvalidArgumentError, match="needs a session"):
        runner.create_threads()


# ------------------------------------------------------------------------------------------ loopers
def test_a_looper_runs_every_so_often() -> None:
    coord = wf.train.Coordinator()
    calls: list[Any] = []
    enough = threading.Event()

    def tick(a: int, b: int) -> None:
        calls.append((a, b))
        if len(calls) == 4:
            enough.set()

    at = time.monotonic()
    wf.train.LooperThread.loop(coord, 0.02, tick, (1,), {"b": 2})
    assert enough.wait(10)
    assert time.monotonic() - at >= 0.06
    coord.request_stop()
    coord.join()  # the looper is registered
    assert calls[0] == (1, 2)
    with pytest.raises(E.InvalidArgumentError, match="for a target"):
        wf.train.LooperThread(coord, 1, None, args=(1,))


def test_a_looper_class_and_its_failure() -> None:
    coord = wf.train.Coordinator()
    order: list[str] = []

    class Mine(wf.train.LooperThread):
        def start_loop(self) -> None:
            order.append("start")

        def run_loop(self) -> None:
            order.append("run")
            if len(order) == 3:
                coord.request_stop()
            assert len(order) < 9

        def stop_loop(self) -> None:
            order.append("stop")
            raise ValueError("at the end")

    Mine(coord, None).start()
    coord.join()  # the stop was asked for before it failed, so its exception comes too late
    assert order == ["start", "run", "run", "stop"]
    coord.clear_stop()
    wf.train.LooperThread.loop(coord, 0, lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        coord.join()
