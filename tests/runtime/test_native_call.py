"""The native call path: what it takes and what it leaves to Python, references, activations,
memory."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest

import weft as wf
from weft.frontend.compile.function import CompiledFunction
from weft.frontend.core import pytree
from weft.frontend.core.tensor import as_tensor
from weft.runtime.native import api as native
from weft.runtime.native import layout as at
from weft.runtime.native.api import NativeApi, native_api
from weft.runtime.native.step import size_class


@pytest.fixture
def api() -> NativeApi:
    found = native_api()
    assert found is not None, "this machine has no native call path"
    return found


@pytest.fixture
def in_python(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """The calls that came to the `__call__` that is written in Python."""
    seen: list[Any] = []
    original = CompiledFunction.__call__

    def counting(self: Any, *args: Any, **kwargs: Any) -> Any:
        seen.append(args)
        return original(self, *args, **kwargs)

    monkeypatch.setattr(CompiledFunction, "__call__", counting)
    return seen


class Pair(NamedTuple):
    a: Any
    b: Any


X = np.arange(4, dtype=np.float32)

# what is called, the arguments of a call that the native entry takes
TAKEN = {
    "array": (lambda x: x + 1, (X,), {}),
    "tensor": (lambda x: x + 1, (wf.asarray(X),), {}),
    "two": (lambda x, y: x * y, (X, X), {}),
    "0-d": (lambda x: x + 1, (np.array(3.0),), {}),
    "empty": (lambda x: x + 1, (np.zeros((0, 3)),), {}),
    "float": (lambda x, k: x * k, (X, 2.5), {}),
    "int": (lambda x, k: x * k, (X, -3), {}),
    "bool": (lambda x, k: wf.where(k, x, -x), (X, False), {}),
    "int at the limit": (lambda k: k + 0, (-(2**63),), {}),
    "nested": (lambda p, x: p["w"] * x + p["b"][0], ({"w": X, "b": [X, (X, None)]}, X), {}),
    "no arguments": (lambda: wf.arange(3) * 2, (), {}),
    "keyword": (lambda x, k: x * k, (X,), {"k": X}),
    "keywords out of order": (lambda x, k, m: x * k - m, (X,), {"m": X, "k": 2 * X}),
    "bf16": (lambda x: x + x, (wf.asarray(X, dtype=wf.bfloat16),), {}),
    "tuple result": (lambda x: (x + 1, [x * 2, {"a": x, "b": None}], ()), (X,), {}),
    "named result": (lambda x: Pair(x + 1, x * 2), (X,), {}),
    "any number": (lambda *xs: xs[0] + xs[1] * xs[2], (X, X, 2.0), {}),
    "weak result": (lambda x: x * 2, (3.0,), {}),
    "reduction": (lambda x: wf.sum(x), (X,), {}),
}


@pytest.mark.parametrize("name", TAKEN)
def test_taken(name: str, in_python: list[Any]) -> None:
    fn, args, kwargs = TAKEN[name]
    f = wf.compile(fn)
    first = f(*args, **kwargs)
    in_python.clear()
    again = f(*args, **kwargs)
    assert not in_python
    args, kwargs = pytree.tree_map(as_tensor, (args, kwargs))
    wanted = fn(*args, **kwargs)
    for result in (first, again):
        got, structure = pytree.flatten(result)
        want, other = pytree.flatten(wanted)
        assert structure == other
        for g, w in zip(got, want, strict=True):
            assert g.dtype == w.dtype
            assert g.weak == w.weak
            np.testing.assert_array_equal(np.asarray(g), np.asarray(w))


def test_numpy_scalars(in_python: list[Any]) -> None:
    f = wf.compile(lambda x: x * 2)
    for value in (np.float32(1.5), np.int8(-3), np.float64(2.5), np.uint64(2**62)):
        f(value)
        in_python.clear()
        result = f(value)
        assert not in_python, type(value)
        assert result.dtype.name == value.dtype.name
        assert result.numpy() == value * value.dtype.type(2)


class Sub(np.ndarray[Any, Any]):
    pass


LEFT = {
    "another dtype": X.astype(np.float64),
    "another shape": np.zeros(5, np.float32),
    "another rank": np.zeros((1, 4), np.float32),
    "strided": np.arange(8, dtype=np.float32)[::2],
    "byte order": X.astype(">f4"),
    "misaligned": np.frombuffer(bytearray(17), np.uint8)[1:].view(np.float32),
    "subclass": X.view(Sub),
    "list": [0.0, 1.0, 2.0, 3.0],
    "read": wf.Variable(X),
}


@pytest.mark.parametrize("name", [n for n in LEFT if n != "list"])
def test_left_to_python(name: str, in_python: list[Any]) -> None:
    given = LEFT[name]
    f = wf.compile(lambda x: x + 1)
    f(X)
    in_python.clear()
    result = f(given)
    assert in_python
    np.testing.assert_array_equal(np.asarray(result), np.asarray(given) + 1)


def test_read_only_arrays_are_taken(in_python: list[Any]) -> None:
    f = wf.compile(lambda x: x + 1)
    f(X)
    frozen = X.copy()
    frozen.setflags(write=False)
    in_python.clear()
    np.testing.assert_array_equal(f(frozen).numpy(), X + 1)
    assert not in_python


def test_static_arguments(in_python: list[Any]) -> None:
    f = wf.compile(static_argnames=("k", "on"))(lambda x, k, on=True: x * k if on else x)
    for _ in range(2):
        in_python.clear()
        assert f(X, 3).numpy()[1] == 3
        assert f(X, 3, on=False).numpy()[1] == 1
        assert f(X, k=2.0).numpy()[1] == 2
        assert f(X, k=1).numpy()[1] == 1
        assert f(X, k=True).numpy()[1] == 1
    assert not [a for a in in_python if len(a) == 2]


def test_too_large_an_integer_still_raises() -> None:
    f = wf.compile(lambda k: k + 1)
    assert int(f(1)) == 2
    assert int(f(2)) == 3
    with pytest.raises(wf.errors.InvalidArgumentError):
        f(2**63)


def test_wrong_calls_raise_as_before() -> None:
    f = wf.compile(lambda x: x + 1)
    f(X)
    with pytest.raises(TypeError, match="cannot be called like this"):
        f(X, X)
    with pytest.raises(TypeError, match="not a tensor"):
        f(object())


def test_in_a_trace_the_function_joins_it() -> None:
    inner = wf.compile(lambda x: x + 1)
    inner(X)
    inner(X)
    outer = wf.compile(lambda x: inner(x) * inner(X))
    np.testing.assert_array_equal(outer(X).numpy(), (X + 1) ** 2)
    with wf.Graph().as_default():
        assert isinstance(inner(X), wf.Tensor)


def test_more_signatures_than_are_tried() -> None:
    f = wf.compile(lambda x: x + 1)
    for _ in range(2):
        for n in range(1, 13):
            np.testing.assert_array_equal(f(np.zeros(n)).numpy(), np.ones(n))


def test_methods_and_lifetime() -> None:
    class Model:
        def __init__(self) -> None:
            self.k = 3.0

        @wf.compile
        def call(self, x: Any) -> Any:
            return x * self.k

    model = Model()
    for _ in range(3):
        assert model.call(X).numpy()[2] == 6
    f = wf.compile(lambda x: x - 1)
    f(X), f(X)
    gone = weakref.ref(f)
    step = weakref.ref(next(iter(f._specializations.entries.values())).on_cpu("a test"))
    del f
    gc.collect()
    assert gone() is None
    assert step() is None


def test_references_are_counted() -> None:
    x, t = X.copy(), wf.asarray(X)
    data = t._data
    tree = {"w": x, "b": [t, 2.5, 3]}
    f = wf.compile(lambda p, k: {"y": p["w"] * k, "z": (p["b"][0], p["b"][1] * p["b"][2])})
    f(tree, 1.5)
    objects = [x, t, data, tree, tree["b"], x.dtype, f, wf.Tensor, None, 2.5]
    before = [sys.getrefcount(o) for o in objects]
    for _ in range(1000):
        f(tree, 1.5)
    after = [sys.getrefcount(o) for o in objects]
    # types are referred to by their instances; other threads of the suite touch None
    assert [b - a for a, b in zip(after, before, strict=True)][:7] == [0] * 7
    assert abs(after[8] - before[8]) < 100 or sys.version_info >= (3, 12)


def test_results_die_with_their_last_reference(api: NativeApi) -> None:
    f = wf.compile(lambda x: x + 1)
    f(X)
    result = f(X)
    gone = weakref.ref(result._data)
    del result
    assert gone() is None


def test_failing_step_raises_and_the_next_runs(api: NativeApi) -> None:
    f = wf.compile(lambda x, i: wf.take(x, i))
    assert f(X, np.array([1])).numpy() == 1
    for _ in range(3):
        with pytest.raises(wf.errors.InvalidArgumentError, match="out of bounds"):
            f(X, np.array([4]))
        assert f(X, np.array([2])).numpy() == 2


def test_failing_step_with_state_writes_once() -> None:
    v = wf.Variable(np.float32(0))

    @wf.compile
    def f(i: Any) -> Any:
        v.assign_add(1.0)
        return wf.take(wf.asarray(X), i)

    f(np.array([0]))
    before = float(v)
    with pytest.raises(wf.errors.InvalidArgumentError, match="out of bounds"):
        f(np.array([9]))
    f(np.array([1]))
    assert float(v) in (before + 1, before + 2)


def test_uninitialised_variables_raise(in_python: list[Any]) -> None:
    v = wf.Variable(X)
    f = wf.compile(lambda x: x + v)
    f(X), f(X)
    array, v.state.array = v.state.array, None
    with pytest.raises(wf.errors.FailedPreconditionError, match="not initialised"):
        f(X)
    v.state.array = array
    np.testing.assert_array_equal(f(X).numpy(), 2 * X)


# ----------------------------------------------------------------------------------------- memory
@pytest.mark.parametrize("shape", [(1,), (15,), (16,), (17,), (1000,), (33, 65), (2**21,)])
def test_results_are_aligned_and_reused(shape: tuple[int, ...], api: NativeApi) -> None:
    f = wf.compile(lambda x: x + 1)
    x = np.zeros(shape, np.float32)
    f(x)
    seen = set()
    for _ in range(4):
        result = f(x)
        address = np.asarray(result).ctypes.data
        assert address % 64 == 0
        seen.add(address)
        assert np.asarray(result).min() == 1
        del result
    assert len(seen) == 1


def test_memory_that_someone_sees_is_not_handed_out(api: NativeApi) -> None:
    f = wf.compile(lambda x, k: x + k)
    x = np.zeros(5000, np.float32)
    views = []
    for k in range(20):
        result = f(x, float(k))
        view = {0: result.numpy()[3:9], 1: np.asarray(result), 2: memoryview(result.numpy())}[k % 3]
        views.append(view)
    for k, view in enumerate(views):
        np.testing.assert_array_equal(np.asarray(view), k)


def test_kept_memory_is_bounded(api: NativeApi) -> None:
    f = wf.compile(lambda x: x + 1)
    x = np.zeros(2**18, np.float32)
    try:
        api.limit_pool(3 << 20)
        results = [f(x) for _ in range(8)]
        del results
        assert 0 < api.kept_bytes() <= 3 << 20
        api.limit_pool(0)
        f(x)
        assert api.kept_bytes() == 0
    finally:
        api.limit_pool(256 << 20)


def test_arrays_of_the_pool_can_be_resized(api: NativeApi) -> None:
    """A result that a session gives to the user is an ordinary array that owns its memory."""
    with wf.Graph().as_default() as graph:
        p = wf.placeholder(wf.float32, [4])
        y = p + 1
        with wf.Session(graph=graph) as session:
            session.run(y, {p: X})
            array = session.run(y, {p: X})
    assert array.flags.owndata
    assert array.flags.writeable
    array.resize(1000, refcheck=False)
    np.testing.assert_array_equal(array[:4], X + 1)
    assert not array[4:].any()
    array.resize(2, refcheck=False)
    np.testing.assert_array_equal(array, (X + 1)[:2])


@pytest.mark.parametrize("nbytes", [0, 1, 64, 65, 80, 81, 4096, 10**6, 2**31])
def test_size_classes(nbytes: int) -> None:
    def capacity(number: int) -> int:
        return ((4 + (number & 3)) << (number >> 2)) << 4

    number = size_class(nbytes)
    assert capacity(number) >= nbytes
    assert number == 0 or capacity(number - 1) < nbytes
    assert number < at.POOL_CLASSES
    assert capacity(number) <= max(64, 1.26 * nbytes)


@pytest.mark.parametrize("rows", [2**40, 2**49])  # of a size class, beyond the largest
def test_no_memory_is_an_error(api: NativeApi, rows: int) -> None:
    f = wf.compile(lambda x: wf.broadcast_to(x, (rows, 2**10)) + 1)
    with pytest.raises(wf.errors.ResourceExhaustedError):
        f(np.float32(1))
    with pytest.raises(wf.errors.ResourceExhaustedError):
        f(np.float32(1))


# ---------------------------------------------------------------------------------------- threads
def test_threads_get_activations_of_their_own(api: NativeApi) -> None:
    f = wf.compile(lambda x, k: wf.sum(x * k + wf.sin(x)) - k)
    x = np.linspace(0, 1, 200_000)
    f(x, 1.0)
    wanted = {float(k): float(f(x, float(k))) for k in range(8)}
    wrong: list[float] = []

    def work(k: float) -> None:
        for _ in range(20):
            if float(f(x, k)) != wanted[k]:
                wrong.append(k)

    threads = [threading.Thread(target=work, args=(float(k % 8),)) for k in range(16)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
    assert not wrong
    step = next(iter(f._specializations.entries.values())).on_cpu("a test")
    assert 1 <= step.idle_activations() <= 8


def test_signatures_change_while_others_call() -> None:
    f = wf.compile(lambda x: x + 1)
    stop = threading.Event()
    wrong: list[int] = []

    def work(n: int) -> None:
        x = np.zeros(n)
        while not stop.is_set():
            if f(x).shape != (n,):
                wrong.append(n)

    threads = [threading.Thread(target=work, args=(n,)) for n in (1, 2, 3)]
    for t in threads:
        t.start()
    f._specializations.limit = 6
    for n in range(4, 24):
        f(np.zeros(n))
    stop.set()
    for t in threads:
        t.join(60)
    assert not wrong


def test_without_the_native_path() -> None:
    """WEFT_NATIVE_CALLS=0: the same results through Python, and the log says so."""
    code = """
import logging, numpy as np, weft as wf
logging.basicConfig(level=logging.INFO)
from weft.runtime.native.api import native_api
x, v = np.arange(4, dtype=np.float32), wf.Variable(np.float32(1))
f = wf.compile(lambda x, k: ({"y": x * k}, v.assign_add(1.0) * 1))
for i in range(3):
    y, state = f(x, 2.0)
    assert (y["y"].numpy() == 2 * x).all() and float(state) == 2 + i, state
g = wf.compile(donate="x")(lambda x: x + 1)
t = wf.asarray(x)
where = t._data.ctypes.data
assert g(t)._data.ctypes.data == where
assert native_api() is None
"""
    environment = {**os.environ, "WEFT_NATIVE_CALLS": "0"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    assert "calls go through Python: WEFT_NATIVE_CALLS=0" in done.stderr


def test_state_is_taken(in_python: list[Any]) -> None:
    v = wf.Variable(X)

    @wf.compile
    def f(x: Any) -> Any:
        v.assign_add(x)
        return wf.sum(v)

    f(X)
    in_python.clear()
    for k in range(2, 5):
        f(X)
        np.testing.assert_array_equal(v.numpy(), X * (k + 1))
    assert not in_python


@pytest.mark.slow
@pytest.mark.alone
def test_a_million_calls_leak_nothing() -> None:
    resident = Resident()
    tree = {"w": X, "b": [wf.asarray(X), 2.5, 3]}
    f = wf.compile(lambda p, k: {"y": p["w"] * k, "z": (p["b"][0], p["b"][1] * p["b"][2])})
    for _ in range(50_000):
        f(tree, 1.5)
    before = resident.bytes()
    for _ in range(1_000_000):
        f(tree, 1.5)
    assert resident.bytes() - before < 1 << 20


class Resident:
    """Memory of this process that is in RAM."""

    def bytes(self) -> int:
        gc.collect()
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * 4096


def test_calls_do_not_wait(
    api: NativeApi, monkeypatch: pytest.MonkeyPatch, in_python: list[Any]
) -> None:
    """Calls go through Python until the native path is compiled, which the second call begins."""
    begun: list[str] = []
    with monkeypatch.context() as patch:
        patch.setattr(native, "_made", [])
        patch.setattr(native, "_begun", [])
        patch.setattr(native.jit, "is_done", lambda kernel: False)
        patch.setattr(native.jit, "start_compiling", lambda ks: begun.extend(k.name for k in ks))
        v = wf.Variable(np.float32(0))
        f = wf.compile(lambda x, k: (x * k, v.assign_add(1.0) * 1))
        for turn in range(4):
            y, state = f(X, 2.0)
            np.testing.assert_array_equal(y.numpy(), 2 * X)
            assert float(state) == turn + 1
            assert begun == (["native_calls"] if turn else [])
        assert len(in_python) == 4
        (compiled,) = f._specializations.entries.values()
        step = compiled.on_cpu("a test")
        assert step.native is None
        assert step.idle_activations() == 1
    y, state = f(X, 2.0)  # finds that it is there now
    assert float(state) == 5
    assert step.native is not None
    assert step.idle_activations() == 1, "the activations of calls through Python are gone"
    in_python.clear()
    assert float(f(X, 2.0)[1]) == 6
    assert not in_python


def test_the_native_path_comes_by_itself() -> None:
    """In a process of its own, without a wait; f's results are the same before and after."""
    code = """
import time, numpy as np, weft as wf
from weft.runtime.native.api import is_native_api_known
x = np.arange(4, dtype=np.float32)
f = wf.compile(lambda x: x * 3)
f(x)
assert not is_native_api_known()
end = time.monotonic() + 60
while not is_native_api_known():
    assert (f(x).numpy() == x * 3).all()
    assert time.monotonic() < end
(compiled,) = f._specializations.entries.values()
assert compiled.native is not None
compiled.take_used()
assert (f(x).numpy() == x * 3).all()
assert compiled.native.take_used()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
