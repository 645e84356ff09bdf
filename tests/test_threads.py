"""Many threads at once: one trace per signature, right results, atomic updates, no deadlock."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft as wf
from weft.frontend.trace import current_trace

THREADS = 32


def together(work: Callable[[int], Any], count: int = THREADS) -> list[Any]:
    """`work(i)` on `count` threads that start at the same moment; the results, or the first
    error."""
    barrier = threading.Barrier(count)
    results: list[Any] = [None] * count
    errors: list[BaseException] = []

    def run(i: int) -> None:
        try:
            barrier.wait(30)
            results[i] = work(i)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(i,), daemon=True) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not any(thread.is_alive() for thread in threads), "deadlock"
    if errors:
        raise errors[0]
    return results


def test_one_trace_when_all_compile_the_same_thing() -> None:
    traces: list[int] = []

    @wf.compile
    def f(x: Any) -> Any:
        traces.append(threading.get_ident())
        return wf.sum(x * 2)

    results = together(lambda i: float(f(np.full(8, i, np.float32))))
    assert results == [16.0 * i for i in range(THREADS)]
    assert len(traces) == 1


def test_each_signature_is_traced_once() -> None:
    traces: list[tuple[Any, ...]] = []

    @wf.compile
    def f(x: Any) -> Any:
        traces.append(x.shape)
        return wf.sum(x) + 1

    results = together(lambda i: [float(f(np.ones(1 + (i + k) % 8))) for k in range(8)])
    assert results == [[2.0 + (i + k) % 8 for k in range(8)] for i in range(THREADS)]
    assert sorted(traces) == [(n,) for n in range(1, 9)]


def test_many_threads_call_one_function() -> None:
    f = wf.compile(lambda x, k: wf.exp(x) * k + wf.sum(x))
    x = np.linspace(0, 1, 64)
    f(x, 1.0)

    def work(i: int) -> bool:
        wanted = np.exp(x) * i + x.sum()
        return all(np.allclose(f(x, float(i)).numpy(), wanted, rtol=1e-6) for _ in range(50))

    assert all(together(work))


def test_variables_of_the_first_trace_are_made_once() -> None:
    made: list[Any] = []

    @wf.compile
    def f(x: Any) -> Any:
        if not made:
            made.append(wf.Variable(0.0))
        return made[0].assign_add(wf.sum(x))

    together(lambda i: f(np.ones(1 + i % 4, np.float32)))
    assert len(made) == 1
    assert float(made[0]) == sum(1 + i % 4 for i in range(THREADS))


def test_updates_are_atomic() -> None:
    v = wf.Variable(np.zeros(100, np.float32))
    f = wf.compile(lambda x: v.assign_add(x))
    f(np.zeros(100, np.float32))

    def work(i: int) -> None:
        for _ in range(25):
            f(np.ones(100, np.float32))
            v.assign_add(np.ones(100, np.float32))  # eagerly, on the same state

    together(work)
    assert v.numpy().tolist() == [THREADS * 50] * 100


def test_two_variables_taken_in_either_order_do_not_deadlock() -> None:
    a, b = wf.Variable(0.0), wf.Variable(0.0)  # of one name: the second used gets a new one
    forward = wf.compile(lambda: (a.assign_add(1.0), b.assign_add(1.0)))
    backward = wf.compile(lambda: (b.assign_add(1.0), a.assign_add(1.0)))
    gradient = wf.grad(lambda x: x * a * b)

    def work(i: int) -> None:
        for _ in range(20):
            (forward, backward)[i % 2]()
            gradient(2.0)

    together(work)
    assert (float(a), float(b)) == (THREADS * 20, THREADS * 20)


def test_traces_of_different_threads_do_not_mix() -> None:
    def work(i: int) -> list[float]:
        f = wf.compile(lambda x: x * float(i) + wf.grad(lambda y: wf.sum(y * y))(x))
        return list(f(np.ones(2, np.float32)).tolist())

    assert together(work) == [[i + 2.0] * 2 for i in range(THREADS)]
    assert current_trace() is None


def test_sessions_run_concurrently() -> None:
    with wf.Graph().as_default() as graph:
        x = wf.placeholder(wf.float32, [None], name="x")
        y = wf.sum(x * 2.0)
        count = wf.Variable(0.0)
        bump = count.assign_add(1.0)
        init = wf.global_variables_initializer()
    with wf.Session(graph=graph) as session:
        session.run(init)
        results = together(lambda i: session.run([y, bump], {x: np.ones(1 + i % 4)})[0])
        assert results == [2.0 * (1 + i % 4) for i in range(THREADS)]
        assert session.run(count) == THREADS
        assert session.cache_info().made == 6  # init, four shapes, the count


def test_an_error_in_one_thread_is_an_error_in_each() -> None:
    @wf.compile
    def f(x: Any) -> Any:
        raise ValueError("mine")

    def work(i: int) -> str:
        with pytest.raises(ValueError, match="mine"):
            f(np.ones(2))
        return "raised"

    assert together(work) == ["raised"] * THREADS
