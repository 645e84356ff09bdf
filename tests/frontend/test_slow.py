"""Warnings of what takes more time than it needs."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import weft as wf
from weft.frontend.core import slow
from weft.frontend.eager import native
from weft.frontend.eager.numpy_calls import SWITCH
from weft.frontend.extend.ops import unregister_op

X = np.ones((200, 200), np.float32)


@pytest.fixture(autouse=True)
def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slow, "told", set())


@pytest.fixture
def halve() -> Iterator[Any]:
    """A registered elementwise op with a kernel."""
    op = wf.register_op("test_halve", reference=lambda x: x / 2, elementwise=True)

    @wf.register_kernel("test_halve")
    def kernel(x: Any) -> Any:
        return x / 2

    yield op
    unregister_op("test_halve")


def told(call: Callable[[], object]) -> list[Any]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    return [w for w in caught if w.category is wf.PerformanceWarning]


def test_a_kernel_beside_ops_that_fuse(halve: Any) -> None:
    f = wf.compile(lambda x: wf.exp(halve(x)))
    (one,) = told(lambda: f(X))
    assert one.filename == __file__
    assert one.lineno == f.__wrapped__.__code__.co_firstlineno
    assert str(one.message) == (
        "op 'test_halve' does not fuse with 'exp' beside it: its kernel reads and writes "
        "f32[200,200] in memory\n"
        "  hint: the same formula in wf functions becomes one loop with the ops around it"
    )
    assert told(lambda: wf.compile(lambda x: halve(wf.exp(x)))(X)) == []  # once for an op


def test_a_kernel_after_an_op_that_fuses_in_a_session(halve: Any) -> None:
    def run() -> None:
        with wf.Graph().as_default(), wf.Session() as session:
            session.run(halve(wf.exp(wf.placeholder(wf.float32, X.shape, name="x"))), {"x": X})

    (one,) = told(run)
    assert "does not fuse with 'exp'" in str(one.message)


def test_where_it_costs_nothing(halve: Any) -> None:
    assert told(lambda: wf.compile(lambda x: wf.exp(halve(x)))(X[:2])) == []
    assert told(lambda: wf.compile(lambda x: wf.sum(halve(x)))(X)) == []


def test_a_large_array_from_the_surroundings() -> None:
    table = np.ones((1024, 4096), np.float32)
    f = wf.compile(lambda x: table @ x)
    (one,) = told(lambda: f(table[0]))
    assert one.filename == __file__
    assert str(one.message) == (
        "'lambda' takes an array of 16 MB (f32[1024,4096]) from its surroundings: it is copied "
        "into the compiled code's constants, and what is changed in it later is not seen\n"
        "  hint: pass it as an argument, or make it a wf.Variable"
    )
    given = wf.compile(lambda table, x: table @ x)
    assert told(lambda: given(table, table[0])) == []
    # an eager gradient keeps nothing
    assert told(lambda: wf.grad(lambda x: wf.sum(wf.matmul(table, x)))(wf.ones(4096))) == []


def test_an_error_where_warnings_are(halve: Any) -> None:
    f = wf.compile(lambda x: wf.exp(halve(x)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            with pytest.raises(wf.PerformanceWarning):
                f(X)


def test_large_eager_calls_without_native_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slow, "SLOW_CALL", 0.0)
    monkeypatch.setattr(native.EagerCalls, "_find", lambda *_: None)
    monkeypatch.setattr(SWITCH, "on", True)
    # a shape that no other test has: its native code would be known already
    call = lambda: wf.exp(np.ones((211, 213), np.float32))  # noqa: E731
    (one,) = told(call)
    assert one.filename == __file__
    assert str(one.message).startswith("wf.exp ran op by op in the interpreter, which took ")
    assert told(call) == []


def test_the_others_are_such_warnings() -> None:
    for category in (wf.Float64Warning, wf.RecompileWarning, wf.GraphGrowthWarning):
        assert issubclass(category, wf.PerformanceWarning)
