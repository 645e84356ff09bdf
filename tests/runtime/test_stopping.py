"""Native loops that are stopped: by Ctrl-C, by a deadline, by a step that fails elsewhere."""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import weft as wf
from weft.codegen.faults import STOPPED, FaultWords
from weft.codegen.loops.interrupt import API
from weft.runtime.native.activation import _api

#: Loops that do not end: of single values and of small arrays (one kernel each), of kernels, with a
#: loop inside, and of kernels that are cut over threads.
LOOPS: dict[str, tuple[Callable[..., Any], Any]] = {
    "single value": (lambda x: wf.while_loop(lambda x: x > -1, lambda x: x * 0.5 + 1, x), 1.0),
    "small array": (
        lambda x: wf.while_loop(lambda x: wf.sum(x) > -1, lambda x: x * 0.5 + 1, x), np.ones(3),
    ),
    "kernels": (
        lambda x: wf.while_loop(lambda x: x[0, 0] > -2, lambda x: wf.tanh(x @ x), x),
        np.ones((24, 24)),
    ),
    "short loops inside": (
        lambda x: wf.while_loop(
            lambda x: x > -1,
            lambda x: wf.while_loop(lambda i, y: i < 5, lambda i, y: (i + 1, y * 0.5), (0, x))[1],
            x,
        ),
        1.0,
    ),
    "wide kernels": (
        lambda x: wf.while_loop(lambda x: x[0] > -2, lambda x: wf.sin(x) + 1.5, x),
        np.ones(1 << 18, np.float32),
    ),
}  # fmt: skip
NAMES = list(LOOPS)
#: A loop is to end so soon after it is told to; a processor may be busy with other things.
SOON = 3.0


@pytest.fixture(autouse=True)
def python_hears_of_ctrl_c() -> Iterator[None]:
    """Also where the tests are a background job of a shell, which lets those ignore SIGINT."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@contextmanager
def in_time(first: float) -> Iterator[None]:
    begun = time.monotonic()
    yield
    passed = time.monotonic() - begun
    assert first <= passed < first + SOON


@contextmanager
def interrupted_after(seconds: float, number: int = signal.SIGINT) -> Iterator[None]:
    timer = threading.Timer(seconds, os.kill, (os.getpid(), number))
    timer.start()
    try:
        yield
    finally:
        timer.join()


@pytest.mark.share(5)
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", NAMES)
def test_ctrl_c_in_a_compiled_function(name: str, threads: int) -> None:
    loop, x = LOOPS[name]
    step = wf.compile(loop, threads=threads)
    for _ in range(3):  # through Python, and by the native call path
        with in_time(0.2), interrupted_after(0.2), pytest.raises(KeyboardInterrupt):
            step(x)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_deadlines_and_ctrl_c_in_a_session(name: str) -> None:
    loop, x = LOOPS[name]
    x = np.asarray(x)
    for shape in (list(x.shape), [None] * x.ndim):
        with wf.Graph().as_default(), wf.Session() as session:
            given = wf.placeholder(x.dtype.name, shape)
            y = loop(given)
            for _ in range(2):
                with in_time(0.2), pytest.raises(wf.errors.DeadlineExceededError):
                    session.run(y, {given: x}, options=wf.RunOptions(timeout=0.2))
            with in_time(0.2), interrupted_after(0.2), pytest.raises(KeyboardInterrupt):
                session.run(y, {given: x})
            assert session.run(given + 1, {given: x}).shape == x.shape


def test_a_deadline_that_is_not_reached() -> None:
    with wf.Graph().as_default(), wf.Session() as session:
        n = wf.placeholder(wf.int64, [])
        y = wf.while_loop(lambda i, x: i < n, lambda i, x: (i + 1, x * 0.5 + 1.0), (0, 0.0))[1]
        for options in (None, wf.RunOptions(timeout=60)):
            assert session.run(y, {n: 100_000}, options=options) == 2.0


def test_a_step_on_another_thread_goes_on() -> None:
    """Ctrl-C is the main thread's; others hear of it from whoever stops them."""
    step = wf.compile(
        lambda n: wf.while_loop(lambda i, x: i < n, lambda i, x: (i + 1, x + 1), (0, 0))[1]
    )
    assert int(step(10)) == 10
    found: list[int] = []
    count = 300_000_000
    thread = threading.Thread(target=lambda: found.append(int(step(count))))
    thread.start()
    with interrupted_after(0.1), pytest.raises(KeyboardInterrupt):
        time.sleep(5)
    thread.join()
    assert found == [count]


@pytest.mark.skipif(wf.get_num_threads() < 2, reason="on one thread the loop comes first")
def test_a_branch_that_fails_ends_the_loop_beside_it() -> None:
    """A session waits for what it has begun on other threads: that must end."""
    with wf.Graph().as_default(), wf.Session() as session:
        x = wf.placeholder(wf.float32, [64, 64])
        forever = wf.while_loop(lambda x: x[0, 0] > -2, lambda x: wf.tanh(x @ x), x)
        slow = wf.py_function(lambda: time.sleep(0.1) or 1 / 0, [], wf.float32, shapes=[])
        with in_time(0.1), pytest.raises(wf.errors.UnknownError, match="ZeroDivision"):
            session.run([forever, slow], {x: np.ones((64, 64), np.float32)})


def test_other_signals_have_their_say() -> None:
    """A handler that returns lets the loop go on; what one raises ends it."""
    heard: list[int] = []

    def handler(number: int, frame: object) -> None:
        heard.append(number)
        if len(heard) == 2:
            raise ValueError("enough")

    loop, x = LOOPS["single value"]
    step = wf.compile(loop)
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        with (
            interrupted_after(0.1, signal.SIGUSR1),
            interrupted_after(0.4, signal.SIGUSR1),
            in_time(0.4),
            pytest.raises(ValueError, match="enough"),
        ):
            step(x)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert heard == [signal.SIGUSR1] * 2


def test_state_is_whole_and_free_after_it() -> None:
    """What the step assigned before is there, as after any step that fails; locks are free, and
    nothing is kept of it."""
    v, w = wf.Variable(1.0), wf.Variable(0.0)

    @wf.compile
    def step(x: Any) -> Any:
        v.assign_add(1.0)
        y = wf.while_loop(lambda x: x > -1, lambda x: x * 0.5 + 1, x)
        w.assign(y)
        return y

    with interrupted_after(0.2), pytest.raises(KeyboardInterrupt) as caught:
        step(1.0)
    assert (float(v), float(w)) == (2.0, 0.0)
    v.assign(5.0)
    add = wf.compile(lambda: v.assign_add(1.0) is None or 0.0)
    add()
    assert float(v) == 6.0
    error = caught.value
    del caught
    gc.collect()
    assert sys.getrefcount(error) <= 3


@pytest.mark.share(2)
@pytest.mark.parametrize("threads", [1, 2])
def test_a_loop_in_parts(threads: int) -> None:
    """Rows that go through all iterations by themselves, on several threads; a minute's work."""

    def rnn(w: Any, h: Any) -> Any:
        return wf.scan(lambda h, _: (wf.tanh(h @ w), ()), h, length=1_000_000)[0]

    step = wf.compile(rnn, threads=threads)
    given = np.eye(64, dtype=np.float32), np.ones((512, 64), np.float32)
    assert "in 16 parts of 32 rows" in str(step.explain(*given))
    with in_time(0.5), interrupted_after(0.5), pytest.raises(KeyboardInterrupt):
        step(*given)


def test_results_have_the_same_bits() -> None:
    """Looking changes nothing: loops shorter and longer than the time between two looks."""
    body = wf.compile(
        lambda n, x: wf.while_loop(
            lambda i, x: i < n, lambda i, x: (i + 1, x * 0.9993 + 0.1), (0, x)
        )[1]
    )
    for n in (0, 1, 4095, 4096, 4097, 20_000):
        x = 0.25
        for _ in range(n):
            x = x * 0.9993 + 0.1
        np.testing.assert_allclose(float(body(n, 0.25)), x, rtol=1e-12)


def test_the_words_are_as_native_code_reads_them() -> None:
    assert FaultWords.value.offset == 0
    assert STOPPED < 0
    assert all((ctypes.c_int64 * len(API)).from_address(_api()))
