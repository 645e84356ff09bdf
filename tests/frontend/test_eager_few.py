"""Eager calls that are NumPy's: sorts, running sums, and functions of several steps replayed."""

from __future__ import annotations

import math
import threading
import warnings
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np
import pytest
from eager_calls import calls_of, every_function, interpreted, outcome

import weft as wf
from weft.frontend.core.trace import at_once as at_once_here
from weft.frontend.core.trace import set_thread_default
from weft.frontend.eager import native, numpy_calls
from weft.frontend.eager.numpy_calls import LARGE, SWITCH
from weft.frontend.ops import promotion
from weft.ir.errors import InvalidArgumentError, ShapeError
from weft.ir.ops.elementwise import choose
from weft.ir.spec import QUIET
from weft.runtime.native import machine

Array = np.ndarray[Any, Any]
Call = Callable[..., Any]
RNG = np.random.default_rng(8)
HARD = np.array([0.0, -0.0, 1.0, -1.5, np.nan, np.inf, -np.inf, 1e-40, 88.0, -120.0, 3.0, -3.0])


@pytest.fixture
def on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SWITCH, "on", True)


@pytest.fixture
def at_once(on: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first call of a key makes its program."""
    monkeypatch.setattr(native, "OFTEN", 1)
    for calls in every_function():
        monkeypatch.setattr(calls, "replays", native.Replays(calls._scan, calls._as_graph))


def same(got: Any, wanted: Any) -> None:
    a, b = np.asarray(got), np.asarray(wanted)
    assert (a.dtype, a.shape, got.weak) == (b.dtype, b.shape, wanted.weak)
    if a.dtype.kind == "f":
        np.testing.assert_array_equal(np.isnan(a), np.isnan(b))
        a, b = (np.where(np.isnan(v), 0, v) for v in (a, b))
    assert a.tobytes() == b.tobytes()


def replayed(function: Any) -> int:
    """How many of its calls are programs now."""
    return sum(run is not None for run in calls_of(function).replays._known.values())


FUNCTIONS: dict[str, Call] = {
    "silu": wf.nn.silu,
    "gelu": wf.nn.gelu,
    "relu": wf.nn.relu,
    "elu": wf.nn.elu,
    "mish": wf.nn.mish,
    "leaky_relu": wf.nn.leaky_relu,
    "softmax": wf.nn.softmax,
    "log_softmax": wf.nn.log_softmax,
    "layer_norm": wf.nn.layer_norm,
    "logsumexp": wf.logsumexp,
    "var": wf.var,
    "clip": wf.clip,
}


@pytest.mark.share(6)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_replays_have_the_bits_of_the_interpreter(name: str, dtype: type, at_once: None) -> None:
    function = FUNCTIONS[name]
    extra = (-1, 1.5) if name == "clip" else ()
    for shape in ((12,), (3, 4), (4, 1, 3)):
        call = lambda x: function(x, *extra)  # noqa: E731
        call(wf.asarray(HARD.reshape(shape).astype(dtype)))
        before = replayed(function)
        assert before, "no program was made"
        for values in (HARD, RNG.normal(size=12), np.full(12, -0.0), np.full(12, np.nan)):
            x = wf.asarray(values.reshape(shape).astype(dtype))
            same(call(x), interpreted(lambda: call(x)))  # noqa: B023
        assert replayed(function) == before


def test_results_of_replays_are_nobody_elses(at_once: None) -> None:
    x = wf.asarray(np.arange(6, dtype=np.float32))
    for function in (wf.nn.relu, wf.nn.silu, lambda x: wf.clip(x, -1, 9)):
        first, second = function(x), function(x)
        third = function(x)
        arrays = [np.asarray(v) for v in (x, first, second, third)]
        for i, a in enumerate(arrays):
            assert not any(np.shares_memory(a, b) for b in arrays[:i])


def test_settings_dtypes_and_shapes_have_programs_of_their_own(at_once: None) -> None:
    x = wf.asarray(RNG.normal(size=(3, 4)).astype(np.float32))
    for axis in (0, 1, -1):
        for _ in range(3):
            same(wf.nn.softmax(x, axis=axis), interpreted(lambda: wf.nn.softmax(x, axis=axis)))  # noqa: B023
    for slope in (0.1, 1, 0.1, 0, -0.0, 0.0, True, 1.0):
        for _ in range(4):  # made, found by the long key, by the short one
            same(wf.nn.leaky_relu(x, slope), interpreted(lambda: wf.nn.leaky_relu(x, slope)))  # noqa: B023
    for value in (0.5, 3, True, wf.asarray(np.float16(2)), np.float64(1.5)):
        for _ in range(2):
            same(wf.nn.silu(value), interpreted(lambda: wf.nn.silu(value)))  # noqa: B023


def test_what_is_found_by_the_short_key_is_the_call(at_once: None) -> None:
    x = wf.asarray(RNG.normal(size=(3, 4)).astype(np.float32))
    y = wf.asarray(RNG.normal(size=(3, 4)).astype(np.float32))
    found = native.Replays.again
    calls: list[Call] = [
        lambda: wf.clip(x, -0.5, 0.5), lambda: wf.clip(x, -0.5, y), lambda: wf.clip(x, y, 0.5),
        lambda: wf.clip(x, 0.0, 1.0), lambda: wf.clip(x, -0.0, 1.0), lambda: wf.clip(x, 0, 1),
        lambda: wf.clip(x, max=0.5), lambda: wf.clip(x, min=0.5), lambda: wf.clip(0.25, x, y),
        lambda: wf.clip(x, None, y), lambda: wf.clip(x, y), lambda: wf.clip(y, x),
        lambda: wf.nn.softmax(x, 0), lambda: wf.nn.softmax(x, axis=0), lambda: wf.nn.softmax(x),
        lambda: wf.nn.mean_squared_error(x, y), lambda: wf.nn.mean_squared_error(y, x),
        lambda: wf.var(x, axis=(0, 1)), lambda: wf.var(x, axis=0, keepdims=True),
        lambda: wf.var(x, keepdims=True, axis=0), lambda: wf.nn.silu(np.asarray(x)),
    ]  # fmt: skip
    hits = 0

    def counted(*row: Any) -> Any:
        nonlocal hits
        run = found(*row)
        hits += run is not None
        return run

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native.Replays, "again", counted)
        for _ in range(4):
            for call in calls:
                same(call(), interpreted(call))
    assert hits > len(calls)


def test_calls_from_within_a_call_of_numpy(at_once: None) -> None:
    x = wf.asarray(HARD)
    for call in (lambda: wf.nn.silu(x), lambda: wf.exp(x), lambda: x / 0.0, lambda: wf.sort(x)):
        for _ in range(3):
            call()
        same(QUIET.run(call), interpreted(call))


def test_numbers_are_told_apart(on: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numpy_calls, "MOST_NUMBERS", 8)
    numbers = (0.0, -0.0, 0, 2, 2.0, True, 1, 1.0, 1e300, 2**53, 2**60, 2.0**60, np.nan, -1)
    for dtype in (np.float32, np.float64, np.int64, np.int32):
        x = wf.asarray(np.array([0, 1, 2], dtype))
        for n in (*numbers, *range(20), *numbers):
            for call in (
                lambda: x * n, lambda: n - x, lambda: x / n, lambda: wf.where(x > n, n, x),  # noqa: B023
                lambda: wf.copysign(x, n),  # noqa: B023
            ):  # fmt: skip
                with warnings.catch_warnings():
                    warnings.simplefilter("error")
                    got = outcome(call)
                assert got == interpreted(partial(outcome, call)), (dtype, n)
    assert all(
        len(known) <= 8 for kinds in numpy_calls._numbers.values() for known in kinds.values()
    )


def test_the_choice_has_the_bits_of_numpys() -> None:
    hard = HARD.astype(np.float32)
    many = np.tile(hard, 1000)
    for a, b in ((hard, hard[::-1].copy()), (hard[0], hard), (hard, hard[1]), (many, -many)):
        for shape in ((), (12,), (2, 6), (6, 2), (1, 12)):
            x = a.reshape(shape) if a.size == math.prod(shape) else a
            y = b.reshape(shape) if b.size == math.prod(shape) else b
            for condition in (np.asarray(y > 0), np.asarray(x > 0), np.array(True)):
                try:
                    wanted = np.where(condition, x, y)
                except ValueError:
                    continue
                got = choose(condition, np.asarray(x), np.asarray(y))
                assert got.dtype == wanted.dtype
                assert got.shape == wanted.shape
                assert got.tobytes() == wanted.tobytes()
                assert not np.may_share_memory(got, y)


def test_a_default_graph_is_current_in_its_thread_alone(on: None) -> None:
    x = wf.asarray(np.ones(3, np.float32))
    seen: list[Any] = []

    def work() -> None:
        set_thread_default(wf.Graph()._trace)
        seen.extend([at_once_here(), (x + 1.0)._data, wf.exp(x)._data, wf.where(x > 0, x, x)._data])
        set_thread_default(None)
        seen.append((x + 1.0)._data is not None)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [False, None, None, None, True]
    assert at_once_here()
    assert (x + 1.0)._data is not None


def test_errors_are_the_interpreters(at_once: None) -> None:
    x = wf.asarray(np.ones((2, 3), np.float32))
    for _ in range(3):
        with pytest.raises(InvalidArgumentError, match="axis"):
            wf.nn.softmax(x, axis=5)
        with pytest.raises(ShapeError):
            wf.nn.mean_squared_error(x, wf.asarray(np.ones((4, 5), np.float32)))


def test_only_what_comes_often_is_replayed(on: None, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = calls_of(wf.nn.silu)
    monkeypatch.setattr(calls, "replays", native.Replays(calls._scan, calls._as_graph))
    x = wf.asarray(np.ones(5, np.float32))
    for _ in range(native.OFTEN - 1):
        wf.nn.silu(x)
    assert replayed(wf.nn.silu) == 0
    wf.nn.silu(x)
    assert replayed(wf.nn.silu) == 1


def test_traces_see_every_step(at_once: None) -> None:
    x = np.arange(4, dtype=np.float32)
    for _ in range(3):
        wf.nn.silu(wf.asarray(x))
    f = wf.compile(wf.nn.silu)
    f(x)
    assert "sigmoid" in f.ir(x, after="dce") or "exp" in f.ir(x, after="dce")
    slope = wf.grad(lambda v: wf.sum(wf.nn.silu(v)))(wf.asarray(x))
    np.testing.assert_allclose(slope[0], 0.5)


@pytest.mark.share(2)
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64])
def test_large_calls_that_come_again(dtype: type, on: None) -> None:
    """Found by their short key: the same bits, settings and errors."""
    a = RNG.integers(-9, 9, (LARGE, 3)).astype(dtype)
    x, row = wf.asarray(a), wf.asarray(a[:1])
    calls: dict[str, Call] = {
        "add": lambda: x + x,
        "rows": lambda: x - row,
        "float": lambda: x * 2.5,
        "left": lambda: 2.5 - x,
        "int": lambda: x * 3,
        "sqrt": lambda: wf.sqrt(x),
        "less": lambda: x < row,
        "weak": lambda: x + wf.asarray(0.5),
    }
    known = calls_of(promotion._elementwise)._again
    for name, call in calls.items():
        for _ in range(3):
            got, wanted = call(), interpreted(call)
            if name == "sqrt":
                np.testing.assert_allclose(got, wanted, rtol=1e-6)
            else:
                same(got, wanted)
    assert any(run is not None for run in known.values())
    for _ in range(3):
        with pytest.raises(ShapeError, match="add"):
            wf.add(x, wf.asarray(a[:2]))


# ------------------------------------------------------------------------------ sorts, running sums


def rows(dtype: str, count: int, kind: str) -> Array:
    made = RNG.integers(-50, 50, count * 64).astype(np.float64).reshape(count, 64)
    if dtype.startswith("u"):
        return np.abs(made).astype(dtype)
    if dtype.startswith("float"):
        made = made / 7
        if kind in ("nan", "both"):
            made[RNG.random(made.shape) < 0.1] = np.nan
            made[:, 0] = np.inf
        zeros = RNG.random(made.shape) < 0.1
        made[zeros] = 0.0
        if kind in ("zeros", "both"):
            made[zeros & (RNG.random(made.shape) < 0.5)] = -0.0
    return made.astype(dtype)


@pytest.mark.share(9)
@pytest.mark.parametrize("kind", ["plain", "nan", "zeros", "both"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64", "uint32"])
@pytest.mark.parametrize("count", [2, 1 + LARGE // 64])
def test_sorts_are_stable(count: int, dtype: str, kind: str, on: None) -> None:
    x = wf.asarray(rows(dtype, count, kind))
    for descending in (False, True):
        for axis in (-1, 0):
            for function in (wf.sort, wf.argsort):
                call = lambda: function(x, axis=axis, descending=descending)  # noqa: B023, E731
                same(call(), interpreted(call))


def test_numpy_sorts_where_few_threads_could(on: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numpy_calls, "_in_vectors", lambda: True)
    x = wf.asarray(RNG.normal(size=(LARGE // 8, 16)).astype(np.float32))
    for threads, by_numpy in ((1, True), (numpy_calls.MOST_THREADS, True), (64, False)):
        monkeypatch.setattr(numpy_calls, "_threads", lambda threads=threads: threads)
        assert (numpy_calls.quick_sort(x, -1, False) is not None) == by_numpy
        assert numpy_calls.quick_sort(x, 0, False) is None  # NumPy copies each column
    monkeypatch.setattr(numpy_calls, "_threads", lambda: 1)
    zeros = np.asarray(x).copy()
    zeros[7, 7] = -0.0
    assert numpy_calls.quick_sort(wf.asarray(zeros), -1, False) is None
    monkeypatch.setattr(numpy_calls, "_in_vectors", lambda: False)
    assert numpy_calls.quick_sort(x, -1, False) is None


@pytest.mark.parametrize(
    ("features", "slow", "fast"),
    [
        ({"X86_V3": True, "X86_V4": True}, False, True),
        ({"X86_V3": True, "X86_V4": True}, True, False),
        ({"X86_V3": True, "X86_V4": False}, True, True),
        ({"ASIMD": True}, False, False),
    ],
)
def test_where_numpy_sorts_fast(
    features: dict[str, bool], slow: bool, fast: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    numpys = import_module("numpy._core._multiarray_umath")
    monkeypatch.setattr(numpys, "__cpu_features__", features)
    monkeypatch.setattr(machine, "compresses_slowly", lambda: slow)
    assert numpy_calls._in_vectors.__wrapped__() == fast


@pytest.mark.parametrize(
    ("vendor", "family", "slow"),
    [("AuthenticAMD", 25, True), ("AuthenticAMD", 26, False), ("GenuineIntel", 6, False)],
)
def test_processors_that_compress_slowly(
    vendor: str, family: int, slow: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = f"processor : 0\nvendor_id\t: {vendor}\ncpu family\t: {family}\nmodel name\t: A B\n"
    monkeypatch.setattr(machine, "_read", lambda path: text)
    assert machine.compresses_slowly() == slow
    assert machine.cpu_name() == "A B"


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "int8", "bool"])
@pytest.mark.parametrize("name", ["cumulative_sum", "cumulative_prod"])
def test_running_sums(name: str, dtype: str, on: None) -> None:
    function = getattr(wf, name)
    x = wf.asarray(RNG.integers(0, 4, (5, 3)).astype(dtype))
    for call in (
        lambda: function(x, axis=0), lambda: function(x, axis=-1), lambda: function(x[0]),
        lambda: function(x, axis=1, include_initial=True),
        lambda: function(x, axis=1, dtype=wf.float64),
    ):  # fmt: skip
        same(call(), interpreted(call))
    with pytest.raises(InvalidArgumentError, match="axis is needed"):
        function(x)
    with pytest.raises(InvalidArgumentError, match="axis"):
        function(x, axis=2)
