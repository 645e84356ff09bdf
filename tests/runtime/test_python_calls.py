"""Calls of Python from native steps: order, loops, branches, gradients, errors, plans on disk."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft as wf


def test_calls_keep_the_programs_order_in_loops_and_branches() -> None:
    seen: list[Any] = []

    def note(tag: str, x: Any) -> None:
        wf.debug_callback(lambda tag, t: seen.append((tag, float(t))), tag, x)

    @wf.compile
    def f(x: Any) -> Any:
        note("start", wf.sum(x))

        def body(carry: Any, row: Any) -> Any:
            note("row", row)

            def left() -> Any:
                note("left", carry)
                return carry + row

            def right() -> Any:
                note("right", carry)
                return carry - row

            return wf.cond(row > 1, left, right), wf.sin(row)

        total, _ = wf.scan(body, 0.0, x)
        note("total", total)
        return wf.while_loop(lambda i: i < 2, lambda i: [note("while", i), i + 1][1], total * 0)

    expected = [
        ("start", 6.0), ("row", 1.0), ("right", 0.0), ("row", 2.0), ("left", -1.0), ("row", 3.0),
        ("left", 1.0), ("total", 4.0), ("while", 0.0), ("while", 1.0),
    ]  # fmt: skip
    for _ in range(4):  # from the third on by the native entry
        seen.clear()
        assert float(f(np.array([1.0, 2.0, 3.0]))) == 2.0
        assert seen == expected


def test_a_branch_without_results_is_kept_and_in_order() -> None:
    seen: list[str] = []

    @wf.compile
    def f(x: Any) -> Any:
        wf.debug_callback(lambda: seen.append("before"))
        wf.cond(x > 0, lambda: wf.debug_callback(lambda: seen.append("in")), lambda: None)
        wf.debug_callback(lambda: seen.append("after"))
        return x + 1

    f(1.0)
    f(-1.0)
    assert seen == ["before", "in", "after", "before", "after"]


def test_gradients_print_once_and_are_the_same() -> None:
    seen: list[float] = []

    def loss(w: Any, looked: bool) -> Any:
        def body(c: Any, _: Any) -> Any:
            if looked:
                wf.debug_callback(lambda t: seen.append(float(t)), c)
            return c * w, None

        c, _ = wf.scan(body, w, None, length=3)
        return wf.square(c)

    plain = wf.compile(wf.grad(lambda w: loss(w, False)))(2.0)
    for grad in (wf.compile(wf.grad(lambda w: loss(w, True))), wf.grad(lambda w: loss(w, True))):
        seen.clear()
        assert float(grad(2.0)) == float(plain)
        assert seen == [2.0, 4.0, 8.0]


def test_what_failing_calls_leave_behind() -> None:
    v = wf.Variable(np.float32(0))

    @wf.compile
    def f(x: Any) -> Any:
        v.assign(x)
        wf.check(x < 2, "x is {}", x)
        v.assign(x + 10)
        return x

    f(np.float32(1))
    assert float(v) == 11
    for _ in range(3):
        with pytest.raises(wf.errors.InvalidArgumentError, match=r"x is 3.0\n.*wf.check\(x < 2"):
            f(np.float32(3))
        assert float(v) == 3  # what was stored before the check
    f(np.float32(0))
    assert float(v) == 10


def test_errors_come_with_their_traceback() -> None:
    def fail(t: Any) -> None:
        raise KeyError("nope")

    @wf.compile
    def f(x: Any) -> Any:
        wf.debug_callback(fail, x)
        return x

    for _ in range(3):
        with pytest.raises(wf.errors.NotFoundError, match="'nope'") as caught:
            f(1.0)
        cause = caught.value.__cause__
        assert isinstance(cause, KeyError)
        traceback: Any = cause.__traceback__
        while traceback.tb_next is not None:
            traceback = traceback.tb_next
        assert traceback.tb_frame.f_code.co_name == "fail"


def test_a_call_may_call_compiled_functions() -> None:
    double = wf.compile(lambda x: wf.sort(x) * 2)
    seen: list[Any] = []

    @wf.compile
    def f(x: Any) -> Any:
        wf.debug_callback(lambda t: seen.append(double(t).numpy().tolist()), x)
        return wf.sum(x)

    for _ in range(4):
        f(np.array([2.0, 1.0]))
    assert seen == [[2.0, 4.0]] * 4


def test_operands_of_any_dtype_and_no_elements() -> None:
    seen: list[Any] = []
    arrays = [
        wf.asarray([1.5], dtype=wf.bfloat16), wf.asarray([True, False]), wf.zeros((0, 3)),
        wf.asarray(1 + 2j), wf.asarray([[1, 2], [3, 4]], dtype=wf.uint8),
    ]  # fmt: skip

    @wf.compile
    def f(*given: Any) -> Any:
        wf.debug_callback(
            lambda *ts: seen.extend(ts), *[wf.concat([x, x]) if x.ndim else x for x in given]
        )
        return given[0]

    f(*arrays)
    for x, t in zip(arrays, seen, strict=True):
        expected = np.concatenate([x.numpy()] * 2) if x.ndim else x.numpy()
        assert t.dtype is x.dtype
        assert np.array_equal(t.numpy(), expected)


PROGRAM = """
import sys, numpy as np, weft as wf
@wf.compile
def f(x):
    wf.print("x {} {:.2f}", x, wf.sum(x), file=sys.stdout)
    wf.check(wf.all(x < 10), "large")
    return x * 2
f(np.ones(3, np.float32))
try:
    f(np.full(3, 11, np.float32))
except wf.errors.InvalidArgumentError as error:
    print(error)
"""


def test_plans_with_prints_are_kept_on_disk(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    said = []
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, str(tmp_path / "program.py")], capture_output=True, text=True,
            env={**os.environ, "WEFT_CACHE": "1", "WEFT_CACHE_DIR": str(tmp_path),
                 "WEFT_LOG": "compile"},
            timeout=60, check=True,
        )  # fmt: skip
        said.append(done)
    for done in said:
        assert done.stdout.startswith("x [1. 1. 1.] 3.00\nx [11. 11. 11.] 33.00\nlarge\n  at ")
        assert "wf.check(wf.all(x < 10)" in done.stdout
    assert "loaded the plan of f" in said[1].stderr


@pytest.mark.parametrize("kind", ["1", "check"])
def test_order_on_emulated_gpus(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_EMULATE_GPU", kind)
    seen: list[Any] = []
    v = wf.Variable(np.float32(0))

    @wf.compile(device="gpu:0")
    def f(x: Any, i: Any) -> Any:
        def body(carry: Any, row: Any) -> Any:
            wf.debug_callback(lambda a, b: seen.append((float(a), float(b))), carry, row)
            return carry + row, row

        total, _ = wf.scan(body, wf.sum(x) * 0, x)
        v.assign(total)
        wf.check(total < 10, "total {}", total)
        v.assign(total + 1)
        picked = wf.take(x, i)
        wf.debug_callback(lambda a: seen.append(float(a)), picked)
        return wf.py_function(lambda t: t * 2, [picked], wf.float32, ()) + 1

    for _ in range(3):  # launched, recorded, replayed
        seen.clear()
        assert float(f(np.array([1, 2, 3], np.float32), 1).numpy()) == 5
        assert seen == [(0, 1), (1, 2), (3, 3), 2]
        assert float(v) == 7
    seen.clear()
    with pytest.raises(wf.errors.InvalidArgumentError, match=r"total 60.0\n.*wf.check\(total"):
        f(np.array([10, 20, 30], np.float32), 1)
    assert (float(v), len(seen)) == (60, 3)
    seen.clear()
    with pytest.raises(wf.errors.InvalidArgumentError, match="out of bounds"):
        f(np.array([1, 2, 3], np.float32), 7)
    assert len(seen) == 3  # what comes after the op that failed is not called


def test_open_sizes() -> None:
    seen: list[int] = []

    def f(x: Any) -> Any:
        wf.debug_callback(lambda t: seen.append(t.shape[0]), x)
        wf.check(wf.sum(x) < 100, "sum {:.1f}", wf.sum(x))
        return wf.sin(x)

    g = wf.compile(f, input_signature=[wf.TensorType(wf.float32, ("n",))])
    sizes = [3, 5, 2, 70, 9]  # the first has a plan of its own, later ones share one
    for n in sizes:
        assert np.allclose(g(np.ones(n, np.float32)).numpy(), np.sin(1))
        with pytest.raises(wf.errors.InvalidArgumentError, match=rf"sum {n * 200}\.0\n.*wf.check"):
            g(np.full(n, 200, np.float32))
    assert seen == [n for n in sizes for _ in range(2)]


def test_reports_say_it_and_are_silent(capfd: pytest.CaptureFixture[str]) -> None:
    @wf.compile
    def f(x: Any) -> Any:
        wf.print("x {}", wf.sum(x))
        wf.check(wf.all(x > 0))
        return x + 1

    x = np.ones(100, np.float32)
    explained = f.explain(x)
    where = f"{Path(__file__).name}:{f.__wrapped__.__code__.co_firstlineno + 2}"
    assert f"calls Python, under the GIL: print at {where}, assert at" in explained
    f.values(x)
    assert capfd.readouterr().err == ""


@pytest.mark.slow
def test_measuring_is_silent() -> None:
    seen: list[int] = []

    @wf.compile
    def f(x: Any) -> Any:
        wf.debug_callback(lambda: seen.append(1))
        return x + 1

    f.cost(np.ones(100, np.float32))
    assert seen == []


def test_interrupts_come_out_as_they_are() -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    @wf.compile
    def f(x: Any) -> Any:
        wf.debug_callback(interrupt)
        return x

    with pytest.raises(KeyboardInterrupt):
        f(1.0)


def test_steps_of_sessions_with_checks_are_native(capfd: pytest.CaptureFixture[str]) -> None:
    with wf.Graph().as_default() as graph:
        x = wf.placeholder(wf.float32, [None], "x")
        with wf.control_dependencies([wf.print("x {}", x)]):
            y = wf.scan(lambda c, r: ([wf.check(r < 9, "large"), c + r][1], c), 0.0, x)[0]
    with wf.Session(graph=graph) as session:
        assert session.run(y, {x: [1, 2]}) == 3
        assert capfd.readouterr().err == "x [1. 2.]\n"
        assert "one native plan" in session.explain(y, {x: [1, 2]})
        with pytest.raises(wf.errors.InvalidArgumentError, match="large"):
            session.run(y, {x: [1, 9]})


@pytest.mark.parametrize("device", ["cpu:0", "gpu:0"])
def test_a_variable_changes_where_it_is_assigned_to(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEFT_EMULATE_GPU", "1")
    v = wf.Variable(np.ones(5, np.float32))
    seen: list[float] = []

    @wf.compile(device=device)
    def f(x: Any) -> Any:
        new = v * 3 + x
        wf.debug_callback(lambda _: seen.append(float(v.numpy()[0])), new)
        wf.check(wf.sum(new) < 100, "too much")
        v.assign(new)

    @wf.compile(device=device)
    def g(x: Any) -> Any:
        def body(carry: Any, row: Any) -> Any:
            v.assign(v + 1)
            wf.check(row < 3, "row {}", row)
            v.assign(v * 2)
            return carry + row, None

        return wf.scan(body, 0.0, x)[0]

    f(np.float32(1))
    assert (seen, v.numpy()[0]) == ([1.0], 4)
    for _ in range(3):
        for call, x in ((f, np.float32(90)), (g, np.array([1, 2, 3], np.float32))):
            with pytest.raises(wf.errors.InvalidArgumentError):
                call(x)
            assert v.numpy().tolist() == [4] * 5


def test_a_call_may_take_the_value_of_a_variable_away() -> None:
    taken: list[Any] = []
    with wf.Graph().as_default() as graph, wf.container("taken_away"):
        v = wf.Variable(np.ones(100_000, np.float32), name="v")
        x = wf.placeholder(wf.float32, [])

        def take(_: Any) -> None:
            wf.Session.reset("", ["taken_away"])
            taken.append(np.zeros(100_000, np.float32))

        with wf.control_dependencies([wf.debug_callback(take, x)]):
            up = v.assign(v + x)
    with wf.Session(graph=graph) as session:
        for _ in range(4):
            session.run(wf.variables_initializer([v]))
            session.run(up, {x: 3.0})
    assert all(not t.any() for t in taken)


def test_what_an_error_keeps_is_no_memory_of_the_step() -> None:
    @wf.compile
    def f(x: Any) -> Any:
        wf.debug_callback(lambda t: 1 / 0, wf.sort(x))
        return x

    with pytest.raises(wf.errors.UnknownError) as caught:
        f(np.ones(1000, np.float32))
    error: BaseException | None = caught.value
    kept: list[Any] = []
    while error is not None:
        for frame, _ in traceback.walk_tb(error.__traceback__):
            for value in frame.f_locals.values():
                kept += value if isinstance(value, list | tuple) else [value]
        error = error.__cause__
    arrays = [x for x in kept if isinstance(x, np.ndarray)]
    assert not [x for x in arrays if isinstance(x.base, ctypes.Array)]


def test_effects_of_a_custom_gradient_are_its_gradients() -> None:
    """A step that takes no gradient does not have them, one that does has them once."""
    seen: list[float] = []

    @wf.custom_gradient
    def same(x: Any) -> Any:
        def gradient(g: Any) -> Any:
            wf.debug_callback(lambda t: seen.append(float(t)), g)
            return g

        return x * 1.0, gradient

    assert float(wf.compile(lambda x: same(x) + 1)(2.0)) == 3
    assert seen == []
    assert float(wf.compile(wf.grad(lambda x: same(x) * 5))(2.0)) == 5
    assert seen == [5.0]
