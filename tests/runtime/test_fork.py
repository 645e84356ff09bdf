"""A forked child of a process whose other threads hold locks."""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest

import weft as wf
from weft.codegen.llvm import link
from weft.frontend.compile import specializations
from weft.frontend.compile.specializations import TraceLock
from weft.frontend.random import generator
from weft.frontend.session import graph
from weft.ir import process
from weft.ir.process import ForkLock
from weft.passes import manager

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
X = np.ones(3, np.float32)


@contextmanager
def elsewhere(*locks: ForkLock) -> Iterator[None]:
    """Another thread holds `locks`."""
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        for lock in locks:
            lock.acquire()
        held.set()
        done.wait()
        for lock in reversed(locks):
            lock.release()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    try:
        yield
    finally:
        done.set()
        thread.join()


def in_child(work: Callable[[], bool], seconds: float = 20.0) -> bool:
    """What `work` returns in a forked child; False where it raises or takes too long."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            code = 0 if work() else 2
        finally:
            os._exit(code)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return status == 0
        time.sleep(0.01)
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    return False


def test_a_child_finds_the_lock_of_a_lost_thread_free() -> None:
    lock = ForkLock()
    with elsewhere(lock):
        assert not lock.acquire(blocking=False)
        assert in_child(lambda: lock.acquire(timeout=5) and lock.owner == threading.get_ident())
        assert not lock.acquire(blocking=False), "the parent's is held as before"
    assert lock.acquire(blocking=False)
    lock.release()
    assert lock.owner is None


def test_a_child_still_holds_what_its_thread_held() -> None:
    lock = ForkLock()

    def release() -> bool:
        held = lock.owner == threading.get_ident()
        lock.release()
        lock.release()  # raises if it was not held twice
        return held and lock.owner is None

    with lock, lock:
        assert in_child(release)


def test_trace_lock_of_a_lost_thread() -> None:
    lock = TraceLock()
    with elsewhere(lock._lock, lock._lock):
        assert in_child(lambda: lock.acquire("f") and lock.owner == threading.get_ident())
    assert lock.acquire("f")
    lock.release()


def test_compiled_functions_in_a_child() -> None:
    """Locks of a function, of its specialisations, and of modules, all held by another thread."""
    f = wf.compile(lambda x: wf.sum(x * 2))
    f(X)
    entry = f._specialized((X,), {})
    modules = [
        specializations._lock,
        graph._default_lock,
        generator._lock,
        manager._lock,
        process._lock,
    ]
    locks = [f._specializations._lock, f._first_trace._lock, entry._lock, *modules]

    class Model:
        @wf.compile
        def __call__(self, x: wf.Tensor) -> wf.Tensor:
            return x + 1

    def work() -> bool:
        entry.executable()
        wf.random_uniform([2])
        wf.get_default_graph()
        return (
            float(f(X)) == 6.0
            and float(f(X[:2])) == 4.0
            and float(wf.compile(lambda x: wf.sum(x) + 1)(X)) == 4.0
            and float(Model()(X)[0]) == 2.0
        )

    with elsewhere(*locks):
        assert in_child(work)


def test_optimizer_in_a_child() -> None:
    optimizer = wf.train.MomentumOptimizer(0.5, 0.9)  # makes a slot under its lock
    v = wf.Variable(np.ones(2, np.float32))

    def work() -> bool:
        optimizer.minimize(lambda: wf.sum(v * 2))
        return v.numpy().tolist() == [0.0, 0.0]

    with elsewhere(optimizer._lock):
        assert in_child(work)


def test_fork_while_a_function_is_traced() -> None:
    """In the middle of a trace, by the thread that traces, and by another one."""
    inside, go_on = threading.Event(), threading.Event()

    @wf.compile
    def f(x: wf.Tensor) -> wf.Tensor:
        if threading.current_thread() is not threading.main_thread():
            inside.set()
            go_on.wait(20)
        return x * 2

    thread = threading.Thread(target=lambda: f(X))
    thread.start()
    inside.wait()
    assert in_child(lambda: f(X).numpy().tolist() == [2, 2, 2])
    go_on.set()
    thread.join()
    assert f(X).numpy().tolist() == [2, 2, 2]


def test_a_fork_waits_while_openblas_is_told_its_threads() -> None:
    """OpenBLAS's functions stand in. A child would find its lock held, for ever."""
    words = (ctypes.c_int64 * link.THREADS_WORDS).from_address(
        link.routine_address(link.BLAS_THREADS)
    )
    if not words[link.THREADS_SET]:
        pytest.skip("SciPy's BLAS is not OpenBLAS")
    inside, told = threading.Event(), []
    held = words[link.THREADS_GET], words[link.THREADS_SET]

    @ctypes.CFUNCTYPE(ctypes.c_int)
    def get() -> int:
        return 7

    @ctypes.CFUNCTYPE(None, ctypes.c_int)
    def change(count: int) -> None:
        inside.set()
        time.sleep(0.3)
        told.append(count)

    x, det = np.ones((2, 3, 3), np.float32), wf.compile(wf.linalg.det)
    det(x)
    try:
        for word, stand_in in ((link.THREADS_GET, get), (link.THREADS_SET, change)):
            words[word] = ctypes.cast(stand_in, ctypes.c_void_p).value or 0
        thread = threading.Thread(target=det, args=(x,))
        thread.start()
        assert inside.wait(60)
        assert in_child(lambda: told[:1] == [1] and words[link.THREADS_CALLS] == 0)
        thread.join()
    finally:
        words[link.THREADS_GET], words[link.THREADS_SET] = held
    assert told == [1, 7]
    assert words[link.THREADS_CALLS] == 0


@pytest.mark.parametrize("way", ["waits", "reads"])
def test_a_fork_while_others_use_a_variable(way: str) -> None:
    """In a step that reads it while a writer waits; and beside a step that reads it, for which a
    fork does not wait. A child has no other readers and writers."""
    v = wf.Variable(1.0)
    inside, over = threading.Event(), threading.Event()
    good: list[bool] = []

    def work() -> bool:
        before = float(v)
        v.assign_add(1.0)
        add()
        return (before, float(v)) == (2.0, 4.0)

    def callback(_: object) -> None:
        inside.set()
        if way == "reads":
            assert over.wait(20)
            return
        while not v.state.lock.words[0]:  # the writer waits
            time.sleep(0.001)
        good.append(in_child(work))

    @wf.compile
    def read() -> None:
        wf.debug_callback(callback, v * 2.0)

    add = wf.compile(lambda: v.assign_add(1.0))
    add()
    thread = threading.Thread(target=read)
    thread.start()
    assert inside.wait(20)
    if way == "reads":
        good.append(in_child(work))
        over.set()
    else:
        add()
    thread.join(20)
    assert good == [True]
    assert float(v) == (2.0 if way == "reads" else 3.0)
