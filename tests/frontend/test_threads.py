"""Many threads at once: one trace per signature, right results, atomic updates, no deadlock."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import weft as wf
from weft.frontend.compile import specializations
from weft.frontend.core.trace import current_trace, suspend_trace

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


def ends(work: Callable[[], Any]) -> Any:
    """What `work` gives, in a thread that must end."""
    out: list[Any] = []
    thread = threading.Thread(target=lambda: out.append(work()), daemon=True)
    thread.start()
    thread.join(20)
    assert not thread.is_alive(), "deadlock"
    return out[0]


def by_thread(call: Callable[[], Any]) -> Any:
    """The error or the value of `call`, run in a thread of its own that is joined."""
    out: list[Any] = []

    def run() -> None:
        try:
            out.append(call())
        except Exception as error:
            out.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join()
    return out[0]


def by_executor(call: Callable[[], Any]) -> Any:
    with ThreadPoolExecutor(1) as executor:
        return executor.submit(call).result()


@pytest.mark.parametrize("outside", [by_thread, by_executor])
def test_the_first_trace_may_wait_for_a_thread_that_calls_the_function(outside: Any) -> None:
    @wf.compile
    def f(x: Any) -> Any:
        if x.shape == (1,):
            # two threads deep: the first one waits for the one that calls
            return x + outside(lambda: outside(lambda: f(np.ones(2)))).numpy().sum()
        return x + 1

    assert ends(lambda: f(np.ones(1)).tolist()) == [5]


def test_a_trace_that_waits_for_itself_says_so() -> None:
    @wf.compile
    def f(x: Any) -> Any:
        found = by_thread(lambda: f(np.ones(1)))
        if isinstance(found, Exception):
            raise found
        return x

    def call() -> str:
        with pytest.raises(wf.errors.FailedPreconditionError) as caught:
            f(np.ones(1))
        return str(caught.value)

    assert "by a thread that the trace waits for" in ends(call)


def test_only_the_tracing_thread_makes_variables() -> None:
    @wf.compile
    def f(x: Any) -> Any:
        if x.shape == (1,):
            found = by_thread(lambda: f(np.ones(2)))
            assert isinstance(found, wf.errors.UnsupportedError)
            assert "variable 'w' is created again" in str(found)
        return x + wf.Variable(1.0, name="w")

    assert ends(lambda: f(np.ones(1)).tolist()) == [2]


def test_two_functions_whose_first_traces_call_each_other() -> None:
    both = threading.Barrier(2)

    def pair(me: int) -> Any:
        @wf.compile
        def f(x: Any) -> Any:
            if x.shape == (1,):
                both.wait(10)
                with suspend_trace():
                    other = functions[1 - me](np.ones(2)).numpy()
                return x + other.sum()
            return x

        return f

    functions = [pair(0), pair(1)]
    assert together(lambda i: functions[i](np.ones(1)).tolist(), 2) == [[3], [3]]


def test_a_wait_that_cannot_be_told_ends_with_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(specializations, "PATIENCE", 0.3)
    done = threading.Event()
    errors: list[str] = []

    def second() -> None:
        try:
            f(np.ones(2))
        except wf.errors.FailedPreconditionError as error:
            errors.append(str(error))
        done.set()

    @wf.compile
    def f(x: Any) -> Any:
        if x.shape == (1,):
            threading.Thread(target=second, daemon=True).start()
            done.wait()
        return x + 1

    assert ends(lambda: f(np.ones(1)).tolist()) == [2]
    assert "'f' is being traced by another thread" in errors[0]
    assert "call the function once before threads are started" in errors[0]
