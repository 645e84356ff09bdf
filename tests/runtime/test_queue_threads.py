"""Queues with many threads: who waits is woken, in time and in order, and no element is lost."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft as wf
from weft.runtime.resources.attempts import Resource

E = wf.errors
SOON = 0.1  # seconds in which whoever waits must be woken


class Running:
    """A call in a thread of its own: its result or exception, and when it ended."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self.call = call
        self.result: Any = None
        self.ended = 0.0
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self) -> None:
        try:
            self.result = self.call()
        except Exception as error:
            self.result = error
        self.ended = time.monotonic()

    def get(self) -> Any:
        self.thread.join(10)
        assert not self.thread.is_alive(), "it hangs"
        return self.result


def waits(resource: Resource, count: int) -> None:
    """Until `count` attempts wait in the resource."""
    for _ in range(10000):
        if sum(map(len, resource._lines)) == count:
            return
        time.sleep(0.001)
    raise AssertionError(f"{resource._lines} do not wait")


def queue(capacity: int = 2) -> Any:
    return wf.FIFOQueue(capacity, wf.int64, [])


# ------------------------------------------------------------------------------------------- waking
def woken(count: int, start: Callable[[], Any], r: Resource, wake: Callable[[], Any]) -> list[Any]:
    """The results of `count` waiting calls that `wake` ends; the slowest wake-up of the best of
    three rounds is in time (a machine that is shared may stop us once)."""
    slowest = []
    for _ in range(3):
        running = [Running(start) for _ in range(count)]
        waits(r, count)
        at = time.monotonic()
        wake()
        results = [x.get() for x in running]
        slowest.append(max(x.ended - at for x in running))
        if slowest[-1] < SOON:
            return results
    raise AssertionError(f"woken after {slowest} s")


def test_close_wakes_every_dequeue() -> None:
    def again() -> None:
        q.close()
        waits(q._queue, 0)

    q = queue()
    results = woken(8, q.dequeue, q._queue, again)
    assert all(isinstance(x, E.OutOfRangeError) for x in results)


def test_close_cancels_every_enqueue() -> None:
    q = queue()
    q.enqueue_many([[1, 2]])
    results = woken(8, lambda: q.enqueue(3), q._queue, lambda: q.close(True))
    assert all(isinstance(x, E.CancelledError) for x in results)
    assert "cancel_pending_enqueues" in str(results[0])
    assert q.dequeue_many(2).tolist() == [1, 2]


def test_close_lets_waiting_enqueues_finish() -> None:
    q = queue()
    q.enqueue_many([[1, 2]])
    late = Running(lambda: q.enqueue_many([[3, 4, 5]]))
    waits(q._queue, 1)
    q.close()
    assert isinstance(Running(lambda: q.enqueue(9)).get(), E.CancelledError)
    taken = Running(lambda: q.dequeue_many(5).tolist())
    assert taken.get() == [1, 2, 3, 4, 5]
    assert late.get() is None
    assert isinstance(Running(q.dequeue).get(), E.OutOfRangeError)


def test_a_token_wakes_whoever_has_it() -> None:
    q = queue()
    tokens = [wf.CancelToken() for _ in range(3)]
    q.enqueue_many([[1, 2]])
    puts = [Running(lambda t=t: q.enqueue(3, cancel=t)) for t in tokens]  # type: ignore[misc]
    waits(q._queue, 3)
    at = time.monotonic()
    tokens[1].cancel()
    assert isinstance(puts[1].get(), E.CancelledError)
    assert puts[1].ended - at < 1
    waits(q._queue, 2)
    assert q.dequeue_many(4).tolist() == [1, 2, 3, 3]
    assert [p.get() for p in puts][::2] == [None, None]
    assert not tokens[0]._callbacks  # what is over is no longer registered


def test_what_is_over_before_it_is_registered_is_registered_no_more() -> None:
    q = queue()

    class Slow(wf.CancelToken):
        def register(self, callback: Callable[[], object]) -> Callable[[], None]:
            undo = super().register(callback)
            q.enqueue(1)  # what another thread may do here
            return undo

    token = Slow()
    assert q.dequeue(cancel=token, timeout=5).item() == 1
    assert not token._callbacks


def test_many_tokens_wake_in_time() -> None:
    q = queue()
    token = [wf.CancelToken()]

    def cancel() -> None:
        old, token[0] = token[0], wf.CancelToken()
        old.cancel()

    results = woken(8, lambda: q.dequeue(cancel=token[0]), q._queue, cancel)
    assert all(isinstance(x, E.CancelledError) for x in results)


def test_an_element_wakes_a_dequeue_and_room_an_enqueue() -> None:
    q = queue(1)
    assert woken(1, lambda: q.dequeue().item(), q._queue, lambda: q.enqueue(5)) == [5]
    q.enqueue(6)
    assert woken(1, lambda: q.enqueue(7), q._queue, q.dequeue) == [None]


def test_a_timeout_ends_in_time() -> None:
    q = queue()
    at = time.monotonic()
    with pytest.raises(E.DeadlineExceededError):
        q.dequeue(timeout=0.05)
    assert 0.05 <= time.monotonic() - at < 4
    waits(q._queue, 0)


# ------------------------------------------------------------------------------------------ order
def test_waiting_dequeues_are_served_in_order() -> None:
    q = queue(100)
    running = []
    for i in range(6):
        running.append(Running(lambda: q.dequeue_many(3).tolist()))
        waits(q._queue, i + 1)
    for i in range(18):
        q.enqueue(i)
    assert [r.get() for r in running] == [[3 * i, 3 * i + 1, 3 * i + 2] for i in range(6)]


def test_a_failed_dequeue_many_gives_back_in_order() -> None:
    q = queue(100)
    with_token = wf.CancelToken()
    first = Running(lambda: q.dequeue_many(5, cancel=with_token))
    waits(q._queue, 1)
    second = Running(lambda: q.dequeue_many(2).tolist())
    waits(q._queue, 2)
    q.enqueue_many([[1, 2, 3]])
    assert q.size().item() == 0  # the first has them
    assert q.state_dict()["components"][0].tolist() == [1, 2, 3]
    with_token.cancel()
    assert isinstance(first.get(), E.CancelledError)
    assert second.get() == [1, 2]
    assert q.dequeue().item() == 3


def test_elements_given_back_may_exceed_the_capacity_for_a_while() -> None:
    q = queue(2)
    token = wf.CancelToken()
    first = Running(lambda: q.dequeue_many(5, cancel=token))
    waits(q._queue, 1)
    late = Running(lambda: q.enqueue_many([[1, 2, 3, 4, 5, 6, 7]], timeout=5))
    assert late.get() is None
    assert first.get().tolist() == [1, 2, 3, 4, 5]
    token = wf.CancelToken()
    first = Running(lambda: q.dequeue_many(8, cancel=token))
    waits(q._queue, 1)
    q.enqueue(8)  # the first has 6, 7, 8
    q.enqueue_many([[9, 10]])
    token.cancel()
    assert isinstance(first.get(), E.CancelledError)
    assert q.size().item() == 5
    with pytest.raises(E.DeadlineExceededError, match=r"0 of its 3 .*holds 5 of 2"):
        q.enqueue_many([[11, 12, 13]], timeout=0.01)
    assert q.dequeue_many(5).tolist() == [6, 7, 8, 9, 10]
    assert q.size().item() == 0


def test_loading_a_state_serves_who_waits() -> None:
    q = queue(100)
    waiting = Running(lambda: q.dequeue_many(3).tolist())
    waits(q._queue, 1)
    q.enqueue(9)  # taken by the waiting one; the state replaces it
    other = queue(100)
    other.enqueue_many([[1, 2, 3, 4]])
    q.load_state_dict(other.state_dict())
    assert waiting.get() == [1, 2, 3]
    assert q.size().item() == 1


# -------------------------------------------------------------------------------------- callbacks
def test_callbacks_run_outside_the_lock() -> None:
    core = queue()._queue
    seen: list[Any] = []

    def done(elements: Any) -> None:
        # another thread needs the lock; this one may use the queue, too
        assert Running(core.size).get() == 0
        core.enqueue([(np.array(8),)])
        seen.append(int(elements[0][0]))

    core.start_dequeue(1, done)
    core.enqueue([(np.array(7),)])
    assert seen == [7]
    assert core.size() == 1


def test_a_callback_that_fails_harms_nobody(caplog: pytest.LogCaptureFixture) -> None:
    core = queue()._queue
    core.start_dequeue(1, lambda _: 1 / 0)
    core.enqueue([(np.array(7),)])
    core.enqueue([(np.array(8),)])
    assert int(core.dequeue(1)[0][0]) == 8
    assert "the callback of dequeue failed" in caplog.text


def test_a_signal_handler_may_close_the_queue_it_interrupts() -> None:
    q = queue()
    q.enqueue(1)
    core = q._queue
    pop = core._pop

    def interrupted() -> Any:  # the handler runs in the middle of a change
        os.kill(os.getpid(), signal.SIGUSR1)
        return pop()

    core._pop = interrupted
    before = signal.signal(signal.SIGUSR1, lambda *_: q.close())
    try:
        assert q.dequeue().item() == 1
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert q.is_closed()
    with pytest.raises(E.OutOfRangeError):
        q.dequeue(timeout=5)


def test_control_c_ends_a_wait_and_loses_nothing() -> None:
    q = queue(100)

    def interrupt() -> None:
        waits(q._queue, 1)
        q.enqueue_many([[1, 2]])
        os.kill(os.getpid(), signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    helper = Running(interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            q.dequeue_many(3)
    finally:
        signal.signal(signal.SIGINT, before)
    assert helper.get() is None
    assert q.dequeue_many(2, timeout=0).tolist() == [1, 2]


def test_a_dequeue_that_is_interrupted_after_its_success_gives_back() -> None:
    q = queue()
    q.enqueue_many([[1, 2]])
    attempt = q._queue.start_dequeue(1, lambda _: None)
    assert attempt.is_over()
    q._queue._change(lambda: q._queue._drop(attempt))
    assert q.dequeue_many(2).tolist() == [1, 2]


FORK = """
import os, signal, threading, time
import weft as wf
q = wf.FIFOQueue(1000, wf.int64, [])
held = wf.FIFOQueue(10, wf.int64, [])
threading.Thread(target=lambda: held.dequeue_many(3), daemon=True).start()
held.enqueue_many([[1, 2]])
stop = False
def busy():
    while not stop:
        q.enqueue_many([[1, 2, 3]])
        q.dequeue_many(3)
threads = [threading.Thread(target=busy) for _ in range(3)]
[t.start() for t in threads]
signal.alarm(60)
for _ in range(30):
    child = os.fork()
    if not child:
        signal.alarm(10)
        n = int(q.size())
        assert n % 3 == 0 or n > 0
        q.enqueue(5)
        q.dequeue_many(n + 1, timeout=0)
        assert held.dequeue_many(2, timeout=0).tolist() == [1, 2]
        wf.FIFOQueue(1, wf.int64).close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
stop = True
[t.join() for t in threads]
assert int(held.size()) == 0
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="fork")
def test_a_child_has_the_elements_and_not_the_waiting_threads() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORK], capture_output=True, text=True, timeout=90
    )
    assert done.returncode == 0, done.stderr


def test_accumulated_gradients_add_up() -> None:
    a = wf.ConditionalAccumulator(wf.float64, [], reduction_type="SUM")
    taken: list[float] = []
    workers = [
        Running(lambda i=i: [a.apply_grad(float(i), 10**9) for _ in range(200)])  # type: ignore[misc]
        for i in range(1, 7)
    ]
    takers = [
        Running(lambda: [taken.append(a.take_grad(7).item()) for _ in range(20)]) for _ in range(4)
    ]
    assert all(isinstance(w.get(), list) for w in workers)
    while sum(t.thread.is_alive() for t in takers):  # each take needs 7 more
        a.apply_grad(0.0, 10**9)
    assert all(isinstance(t.get(), list) for t in takers)
    if a.num_accumulated().item():
        taken.append(a.take_grad(1).item())
    assert sum(taken) == 200 * (1 + 2 + 3 + 4 + 5 + 6)


def test_a_barrier_joins_what_threads_bring() -> None:
    b = wf.Barrier([wf.int64, wf.int64], [[], []])

    def bring(component: int, seed: int) -> None:
        keys = list(range(seed, 300, 3))
        random.Random(seed + component).shuffle(keys)
        for i in range(0, len(keys), 7):
            chunk = keys[i : i + 7]
            b.insert_many(component, [str(k) for k in chunk], [k + component for k in chunk])

    got: list[tuple[bytes, int, int]] = []

    def take() -> None:
        while True:
            try:
                _, keys, (one, two) = b.take_many(8, allow_small_batch=True)
            except E.OutOfRangeError:
                return
            got.extend(zip(keys.tolist(), one.tolist(), two.tolist(), strict=True))

    takers = [Running(take) for _ in range(3)]
    makers = [Running(lambda c=c, s=s: bring(c, s)) for c in (0, 1) for s in range(3)]  # type: ignore[misc]
    assert [m.get() for m in makers] == [None] * 6
    b.close()
    assert [t.get() for t in takers] == [None] * 3
    assert sorted(got) == sorted((str(k).encode(), k, k + 1) for k in range(300))


# ----------------------------------------------------------------------------------------- stress
def stress(seconds: float, make: Callable[[], Any]) -> None:
    """Rounds of 16 threads that enqueue, dequeue, time out, are cancelled; then the queue is
    closed, half of the time with cancelled enqueues. What went in is what came out."""
    end = time.monotonic() + seconds
    rounds = 0
    while time.monotonic() < end or not rounds:
        rounds += 1
        one_round(make(), rounds, min(1.0, seconds))


def one_round(q: Any, seed: int, seconds: float) -> None:
    counter = iter(range(10**9))
    lock = threading.Lock()
    entered: list[list[int]] = [[] for _ in range(8)]
    left: list[list[int]] = [[] for _ in range(8)]
    failures: list[BaseException] = []
    stop = time.monotonic() + seconds

    def numbers(n: int) -> list[int]:
        with lock:
            return [next(counter) for _ in range(n)]

    def produce(me: int) -> None:
        rng = random.Random(f"{seed} {me}")
        while time.monotonic() < stop:
            values = numbers(rng.randint(1, 6))
            token = wf.CancelToken()
            if rng.random() < 0.3:
                threading.Timer(rng.random() * 0.01, token.cancel).start()
            timeout = rng.choice([None, 0, 0.001, 0.02])
            try:
                q.enqueue_many([values], timeout=timeout, cancel=token)
            except (E.DeadlineExceededError, E.CancelledError) as error:
                values = values[: partly(error)]
            entered[me] += values

    def consume(me: int) -> None:
        rng = random.Random(f"{seed} {-me}")
        while True:
            token = wf.CancelToken()
            if rng.random() < 0.3:
                threading.Timer(rng.random() * 0.01, token.cancel).start()
            take = rng.choice([q.dequeue_many, q.dequeue_up_to])
            try:
                got = take(rng.randint(1, 9), timeout=rng.choice([None, 0, 0.02]), cancel=token)
                left[me] += got.tolist()
            except (E.DeadlineExceededError, E.CancelledError):
                pass
            except E.OutOfRangeError:
                if take == q.dequeue_up_to:  # nothing is left
                    return

    def guarded(work: Callable[[int], None], me: int) -> None:
        try:
            work(me)
        except BaseException as error:
            failures.append(error)

    threads = [
        threading.Thread(target=guarded, args=(work, i), daemon=True)
        for i in range(8)
        for work in (produce, consume)
    ]
    for t in threads:
        t.start()
    time.sleep(seconds / 2)
    q.close(cancel_pending_enqueues=seed % 2 == 0)
    for t in threads:
        t.join(30)
    assert not failures, failures
    assert not any(t.is_alive() for t in threads), f"deadlock: {q}"
    out = [x for part in left for x in part]
    assert len(out) == len(set(out)), "doubled"
    assert sorted(out) == sorted(x for part in entered for x in part), "lost"
    assert len(out) > 10


def partly(error: Exception) -> int:
    """How many elements the error says are in the queue."""
    text = str(error)
    return int(text.split("(")[1].split(" of its")[0]) if " of its " in text else 0


MAKERS: list[Callable[[], Any]] = [
    lambda: wf.FIFOQueue(7, wf.int64, []),
    lambda: wf.RandomShuffleQueue(20, 4, wf.int64, [], seed=1),
]


@pytest.mark.slow
@pytest.mark.parametrize("make", MAKERS)
def test_no_element_is_lost_or_doubled(make: Callable[[], Any]) -> None:
    stress(2.5, make)


@pytest.mark.slow
@pytest.mark.parametrize("make", MAKERS)
def test_no_element_is_lost_or_doubled_in_a_minute(make: Callable[[], Any]) -> None:
    stress(30, make)
