"""Machine code of functions that are gone: freed, unless it was used lately."""

from __future__ import annotations

import gc
import os
import threading
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from forgotten_kernels import forget_kernels_of, known_kernels

import weft as wf

X = np.linspace(-1, 1, 48, dtype=np.float32)
LINUX = pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="counts memory maps")


def made(number: int) -> Any:
    """A function with a kernel of its own."""
    return wf.compile(lambda x: wf.tanh(x * (1000.5 + number)) + number * 3)


def wanted(number: int) -> Any:
    return np.tanh(X * np.float32(1000.5 + number)) + np.float32(number * 3)


def maps() -> int:
    return len(Path("/proc/self/maps").read_text().splitlines())


def own_kernels() -> set[str]:
    return {k for k in known_kernels() if k.startswith("nest-")}


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_KERNELS", "3")


@pytest.mark.slow
@LINUX
def test_dropped_functions_take_their_code_with_them() -> None:
    def chain(number: int) -> Any:
        ops = [wf.sin, wf.cos, wf.tanh, wf.exp]

        def call(x: Any) -> Any:
            for k in range(3):
                x = ops[number >> (2 * k) & 3](x) + k
            return x

        return wf.compile(call)

    kept = chain(63)
    expected = np.asarray(kept(X))
    gc.collect()
    known, before, counted = own_kernels(), maps(), list[int]()
    for number in range(24):
        chain(number)(X)
        gc.collect()
        counted.append(maps())
        assert len(own_kernels() - known) <= 3
    assert max(counted[8:]) <= counted[7] + 2, (before, counted)
    np.testing.assert_array_equal(np.asarray(kept(X)), expected)


def test_code_that_is_in_use_stays() -> None:
    """However many other kernels come; in sessions and size plans, too."""
    functions = [made(k) for k in range(6)]
    results = [np.asarray(f(X)) for f in functions]
    for k in range(100, 110):
        made(k)(X)
    gc.collect()
    for f, result in zip(functions, results, strict=True):
        for _ in range(3):
            np.testing.assert_array_equal(np.asarray(f(X)), result)
    assert "define" in functions[0].llvm(X)
    with wf.Graph().as_default() as graph:
        x = wf.placeholder(wf.float32, [None])
        y = wf.tanh(x * 77.5)
    with wf.Session(graph=graph) as session:
        first = session.run(y, {x: X})
        for k in range(100, 110):
            made(k)(X)
        gc.collect()
        for size in (48, 47, 9):
            np.testing.assert_array_equal(session.run(y, {x: X[:size]}), first[:size])


def test_what_was_freed_is_made_again() -> None:
    for _ in range(2):
        for k in range(5):
            np.testing.assert_allclose(np.asarray(made(k)(X)), wanted(k), rtol=1e-4, atol=1e-4)
            gc.collect()


@pytest.mark.slow
def test_threads_drop_and_make_functions() -> None:
    """Code is never freed under a call that runs it."""
    failures: list[BaseException] = []
    rng = np.random.default_rng(0)
    orders = [rng.integers(0, 8, 60).tolist() for _ in range(4)]

    def work(order: list[int]) -> None:
        held: list[Any] = []
        try:
            for number in order:
                held = [*held[-2:], made(number)]
                for f in held[-2:]:
                    f(X)
                np.testing.assert_allclose(
                    np.asarray(held[-1](X)), wanted(number), rtol=1e-4, atol=1e-4
                )
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(order,)) for order in orders]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_the_bound_is_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_KERNELS", "many")
    forget_kernels_of(own_kernels())
    with pytest.raises(wf.errors.InvalidArgumentError, match="WEFT_KERNELS='many'"):
        made(0)(X)
    monkeypatch.delenv("WEFT_KERNELS")
    assert "among the last 2048 kernels used" in str(made(0).explain(X))
    assert os.environ.get("WEFT_KERNELS") is None


def test_explain_says_how_many_signatures_are_kept() -> None:
    f = made(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", wf.RecompileWarning)
        for n in range(2, 262):
            f(np.ones(n, np.float32))
    text = str(f.explain(np.ones(3, np.float32)))
    assert "256 kept of at most 256" in text
