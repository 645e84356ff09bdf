"""Readers-writer locks of variables: readers are at once, a writer is alone and comes in time."""

from __future__ import annotations

import ctypes
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import weft as wf
from weft.ir.errors import BoundsError, FailedPreconditionError
from weft.runtime.native import layout as at
from weft.runtime.native.api import native_api
from weft.runtime.resources.variable_lock import CELLS, VariableLock

WAIT = 30.0
SOON = 0.05  # what a thread that is not stopped has done long since


@contextmanager
def started(*work: Callable[[], object]) -> Iterator[list[BaseException]]:
    """Threads that are done at the block's end; their errors."""
    errors: list[BaseException] = []

    def run(one: Callable[[], object]) -> None:
        try:
            one()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(one,), daemon=True) for one in work]
    for thread in threads:
        thread.start()
    yield errors
    for thread in threads:
        thread.join(WAIT)
    assert not any(thread.is_alive() for thread in threads), "deadlock"


def together(*work: Callable[[], object]) -> None:
    with started(*work) as errors:
        pass
    if errors:
        raise errors[0]


class Holding:
    """A compiled function that reads `v`, and while it does calls `inside`."""

    def __init__(self, v: Any, device: str = "cpu:0") -> None:
        self.inside: Callable[[], object] = lambda: None
        self.run = wf.compile(self.traced(v), device=device)
        for _ in range(3):  # the native call path from here on
            self.run(1.0)

    def traced(self, v: Any) -> Callable[[Any], Any]:
        def f(x: Any) -> Any:
            y = v * x
            wf.debug_callback(lambda _: self.inside(), y)
            return y + v

        return f


@pytest.fixture(autouse=True, params=["native", "python"])
def _way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps as the native call path runs them, and as Python does."""
    native_api()
    if request.param == "python":
        from weft.runtime.native import executable

        monkeypatch.setattr(executable, "native_api_or_none", lambda: None)


def test_native_code_knows_the_words() -> None:
    assert at.CELLS_END == 8 * (1 + CELLS) == ctypes.sizeof(VariableLock().words)


@pytest.mark.parametrize("count", [2, CELLS + 3])
def test_readers_are_in_the_middle_of_their_steps_at_once(count: int) -> None:
    f = Holding(wf.Variable(2.0))
    barrier = threading.Barrier(count, timeout=WAIT)
    f.inside = barrier.wait
    results: list[float] = []
    together(*[lambda: results.append(float(f.run(3.0)))] * count)
    assert results == [8.0] * count


def test_steps_on_a_gpu_read_at_once_what_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_EMULATE_GPU", "1")
    v = wf.Variable(2.0)
    f = Holding(v, "gpu:0")
    barrier = threading.Barrier(2, timeout=WAIT)
    f.inside = barrier.wait
    together(*[lambda: f.run(3.0)] * 2)
    add = wf.compile(lambda: v.assign_add(1.0), device="gpu:0")
    over = threading.Event()

    def look() -> None:
        while not over.is_set():
            assert float(f.run(1.0)) % 2 == 0

    def change() -> None:
        for _ in range(20):
            add()
            v.assign(v + 1.0)  # on the host: it comes back, and goes again
        over.set()

    f.inside = lambda: None
    together(look, look, change)
    assert float(v) == 42.0


def test_eager_reads_and_checkpoints_are_beside_a_step_that_reads(tmp_path: Any) -> None:
    v = wf.Variable(2.0)
    f = Holding(v)
    saver = wf.train.Saver({"v": v})
    inside, over = threading.Event(), threading.Event()
    f.inside = lambda: (inside.set(), over.wait(WAIT))

    def look() -> None:
        assert inside.wait(WAIT)
        assert float(v) == float(v.numpy()) == 2.0
        assert "2" in repr(v)
        saver.save(None, str(tmp_path / "m"))
        assert float(wf.grad(lambda x: x * v)(1.0)) == 2.0
        over.set()

    together(lambda: f.run(1.0), look)


def test_steps_of_sessions_that_read_are_at_once() -> None:
    barrier = threading.Barrier(2, timeout=WAIT)
    meet: list[Callable[[], object]] = [lambda: None]
    with wf.Graph().as_default():
        v = wf.Variable([1.0, 2.0])
        y = v * 2.0
        noted = wf.debug_callback(lambda _: meet[0](), y)
        with wf.Session() as session:
            session.run(wf.global_variables_initializer())
            session.run([y, noted])
            meet[0] = barrier.wait
            together(*[lambda: session.run([y, noted])] * 2)


@pytest.mark.parametrize("kind", ["compiled", "eager"])
def test_a_writer_waits_for_readers_and_readers_for_it(kind: str) -> None:
    v = wf.Variable(1.0)
    f = Holding(v)
    add = wf.compile(lambda: v.assign_add(1.0)) if kind == "compiled" else lambda: v.assign_add(1.0)
    add()
    inside, over, written = threading.Event(), threading.Event(), threading.Event()
    f.inside = lambda: (inside.set(), over.wait(WAIT))
    results: list[float] = []

    def write() -> None:
        assert inside.wait(WAIT)
        add()
        written.set()

    def read_later() -> None:
        assert inside.wait(WAIT)
        while not v.state.lock.words[0]:  # the writer waits
            time.sleep(0.001)
        results.append(float(v.numpy()))

    with started(lambda: f.run(1.0), write, read_later) as errors:
        assert inside.wait(WAIT)
        assert not written.wait(SOON)
        assert not results
        over.set()
    assert not errors
    assert results == [3.0]  # behind the writer, which came first


def test_a_step_that_writes_is_alone() -> None:
    v = wf.Variable(0.0)
    at_once, most = [], []

    def note() -> None:
        at_once.append(1)
        most.append(len(at_once))
        time.sleep(0.001)
        at_once.pop()

    @wf.compile
    def f(x: Any) -> Any:
        y = v + x
        wf.debug_callback(lambda _: note(), y)
        return v.assign(y)

    f(0.0)
    together(*[lambda: [f(1.0) for _ in range(20)]] * 3)
    assert float(v) == 60.0
    assert set(most) == {1}


def test_readers_that_never_pause_do_not_starve_a_writer() -> None:
    v = wf.Variable(0.0)
    f = Holding(v)
    f.inside = lambda: time.sleep(0.003)
    add = wf.compile(lambda: v.assign_add(1.0))
    add()
    over = threading.Event()

    def read() -> None:
        while not over.is_set():
            f.run(1.0)

    with started(*[read] * 3) as errors:
        for _ in range(50):
            add()
        over.set()
    assert not errors
    assert float(v) == 51.0


def test_values_are_never_torn() -> None:
    size = 1 << 15
    v, w = wf.Variable(wf.zeros([size])), wf.Variable(wf.zeros([size]))

    @wf.compile(threads=1)
    def write(x: Any) -> None:
        v.assign_add(wf.tanh(x) * 0 + 1)
        w.assign(v * 2.0)

    @wf.compile(threads=1)
    def read(x: Any) -> Any:
        return v + x, w + x

    x = np.zeros(size, np.float32)
    for _ in range(3):
        write(x), read(x)
    over = threading.Event()

    def look() -> None:
        while not over.is_set():
            a, b = (t.numpy() for t in read(x))
            assert a[0] * 2 == b[0]
            assert (a == a[0]).all()
            assert (b == b[0]).all()

    def look_eagerly() -> None:
        while not over.is_set():
            a = v.numpy()
            assert (a == a[0]).all()

    def change() -> None:
        for _ in range(300):
            write(x)
        over.set()

    together(change, look, look, look_eagerly)
    assert v.numpy()[0] == 303.0


def test_who_reads_may_read_again_while_a_writer_waits() -> None:
    v = wf.Variable(1.0)
    f, other = Holding(v), wf.compile(lambda: v * 5.0)
    other()
    add = wf.compile(lambda: v.assign_add(1.0))
    add()
    inside = threading.Event()
    seen: list[float] = []

    def look() -> None:
        inside.set()
        while not v.state.lock.words[0]:
            time.sleep(0.001)
        seen.extend([float(v.numpy()), float(other()), float(v)])

    f.inside = look
    together(lambda: f.run(1.0), lambda: inside.wait(WAIT) and add())
    assert seen == [2.0, 10.0, 2.0]
    assert float(v) == 3.0


def test_who_reads_may_write_if_nobody_else_wants_that() -> None:
    v = wf.Variable(1.0)
    f, add = Holding(v), wf.compile(lambda: v.assign_add(1.0))
    f.inside = lambda: v.assign_add(1.0)
    f.run(1.0)
    f.inside = add
    f.run(1.0)
    assert float(v) == 3.0
    barrier = threading.Barrier(2, timeout=WAIT)
    f.inside = lambda: (barrier.wait(), v.assign_add(1.0))
    with started(*[lambda: f.run(1.0)] * 2) as errors:
        pass
    (error,) = errors
    causes = [error, error.__cause__]
    assert any(isinstance(e, FailedPreconditionError) for e in causes)
    assert "reads it" in "".join(map(str, causes))
    assert float(v) == 4.0


def test_a_step_that_fails_gives_its_locks_back() -> None:
    v = wf.Variable([1.0, 2.0])
    pick = wf.compile(lambda i: v[i])
    for _ in range(3):
        pick(np.int32(1))
    for _ in range(2 * CELLS):
        with pytest.raises(BoundsError):
            pick(np.int32(7))
    f = Holding(v)
    f.inside = lambda: 1 / 0
    for _ in range(2 * CELLS):
        with pytest.raises(wf.errors.WeftError) as found:
            f.run(1.0)
        assert isinstance(found.value.__cause__, ZeroDivisionError)
    assert not any(v.state.lock.words)
    together(lambda: v.assign([3.0, 4.0]))
    assert v.numpy().tolist() == [3.0, 4.0]


def test_a_value_that_is_missing_gives_the_locks_back() -> None:
    with wf.Graph().as_default():
        a, b = wf.Variable(1.0), wf.Variable(2.0)
        total = a + b
        with wf.Session() as session:
            for _ in range(3):
                with pytest.raises(FailedPreconditionError):
                    session.run(total)
            session.run(wf.global_variables_initializer())
            together(lambda: session.run(a.assign(4.0)))
            assert session.run(total) == 6.0


def test_a_time_limit() -> None:
    lock = VariableLock()
    inside, over = threading.Event(), threading.Event()

    def read() -> None:
        with lock.shared():
            inside.set()
            over.wait(WAIT)

    with started(read) as errors:
        inside.wait(WAIT)
        assert not lock.acquire(timeout=0.02)
        assert lock.acquire_shared(timeout=0.02)
        lock.release_shared()
        over.set()
    assert not errors
    assert lock.acquire(timeout=1)
    together(lambda: lock.acquire_shared(timeout=0.02) and pytest.fail("beside a writer"))
    with lock.shared():  # its own thread may
        pass
    lock.release()


def test_a_signal_handler_uses_the_variable_that_its_thread_waits_for() -> None:
    v = wf.Variable(1.0)
    f, add = Holding(v), wf.compile(lambda: v.assign_add(1.0))
    add()
    inside, over = threading.Event(), threading.Event()
    f.inside = lambda: (inside.set(), over.wait(WAIT))
    seen: list[float] = []

    def handle(*_: object) -> None:
        seen.append(float(v.numpy()))
        over.set()

    before = signal.signal(signal.SIGALRM, handle)
    try:
        with started(lambda: f.run(1.0)) as errors:
            inside.wait(WAIT)
            signal.setitimer(signal.ITIMER_REAL, SOON)
            add()
    finally:
        signal.signal(signal.SIGALRM, before)
    assert not errors
    assert seen == [2.0]
    assert float(v) == 3.0
