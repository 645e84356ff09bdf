"""wf.print, wf.check, wf.debug_callback and the assertions: what they say, in each way to run."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft as wf
from weft.ir.dtypes import as_dtype

Run = Callable[[Callable[..., Any], Any], Any]


def eager(f: Callable[..., Any], x: Any) -> Any:
    return f(wf.asarray(x))


def compiled(f: Callable[..., Any], x: Any) -> Any:
    return wf.compile(f)(wf.asarray(x))


def session(f: Callable[..., Any], x: Any, **how: Any) -> Any:
    with wf.Graph().as_default() as graph:
        given = wf.placeholder(as_dtype(np.asarray(x).dtype), np.shape(x), "x")
        made = f(given)
    with wf.Session(graph=graph, **how) as running:
        return running.run(made, {given: x})


def dataflow(f: Callable[..., Any], x: Any) -> Any:
    return session(f, x, control_flow="dataflow")


WAYS = [eager, compiled, session, dataflow]


@pytest.mark.parametrize("run", WAYS)
def test_formats(run: Run, capfd: pytest.CaptureFixture[str]) -> None:
    def f(x: Any) -> Any:
        return wf.print(
            "{} {x:.2f} {x.shape} {1} {{}} {n:>4} {m!s}", x[0], "text {}", x=x, n=7, m=wf.sum(x)
        )

    run(f, np.arange(4, dtype=np.float32))
    assert capfd.readouterr().err == "0.0 [0.00 1.00 2.00 3.00] (4,) text {} {}    7 6.0\n"


def test_arrays_in_short(capfd: pytest.CaptureFixture[str]) -> None:
    x = np.arange(20)
    wf.print("{}", x, file=sys.stdout)
    wf.print("{}", x, summarize=1, file=sys.stdout)
    wf.print("{}", x, summarize=-1, file=sys.stdout)
    wf.print("{} {}", wf.asarray("é"), wf.asarray(["a", "b"]), file=sys.stdout)
    wf.print("{}", wf.asarray([1.5], dtype=wf.bfloat16), file=sys.stdout)
    wf.print("", file=sys.stdout)
    whole = " ".join(f"{i:2d}" for i in range(20))
    assert capfd.readouterr().out.splitlines() == [
        "[ 0  1  2 ... 17 18 19]", "[ 0 ... 19]", f"[{whole}]", "é [a b]", "[1.5]", "",
    ]  # fmt: skip


def test_lines_are_added_to_files(tmp_path: Path) -> None:
    name = tmp_path / "log"
    f = wf.compile(lambda x: (wf.print("x = {}", x, file=name), x)[1])
    f(1)
    f(2)
    assert name.read_text() == "x = 1\nx = 2\n"
    with pytest.raises(wf.errors.InvalidArgumentError, match=r"StringIO.*\n.*\n.*debug_callback"):
        wf.print("x", file=io.StringIO())
    missing = tmp_path / "none" / "log"
    with pytest.raises(wf.errors.FailedPreconditionError, match="No such file"):
        wf.print("x", file=missing)


@pytest.mark.parametrize(
    ("call", "why"),
    [
        (lambda x: wf.print("{} {}", x), "more than 1 arg"),
        (lambda x: wf.print("{y}", x), "'y'"),
        (lambda x: wf.print("{", x), "'{'"),
        (lambda x: wf.print("{:d}", x), "'d'"),
        (lambda x: wf.print("x", x), "names argument 0"),
        (lambda x: wf.print("x", y=x), "names argument y"),
        (lambda x: wf.print(x), "must be a str, got Tensor"),
        (lambda x: wf.print("{}", x, summarize=-2), "summarize=-2"),
        (lambda x: wf.check(x, "no"), "not a bool"),
        (lambda x: wf.debug_callback(3, x), "is a int"),
    ],
)
def test_mistakes_are_found_where_they_are_made(call: Any, why: str) -> None:
    for run in (lambda: call(wf.asarray(1.5)), lambda: wf.compile(lambda x: call(x))(1.5)):
        with pytest.raises(wf.errors.InvalidArgumentError, match=f"(?s){why}.*test_debug.py"):
            run()


@pytest.mark.parametrize("run", WAYS)
def test_bodies(run: Run, capfd: pytest.CaptureFixture[str]) -> None:
    def f(x: Any) -> Any:
        def body(carry: Any, row: Any) -> Any:
            wf.print("row {}", row)
            wf.cond(carry > 1, lambda: wf.print("large {}", carry), lambda: wf.print("small"))
            return carry + row, row

        total, _ = wf.scan(body, wf.zeros((), dtype=x.dtype), x)
        return wf.while_loop(lambda i: i > 5, lambda i: (wf.print("i = {}", i), i - 1)[1], total)

    assert float(run(f, np.array([1, 2, 3], np.float32))) == 5
    assert capfd.readouterr().err.splitlines() == [
        "row 1.0", "small", "row 2.0", "small", "row 3.0", "large 3.0", "i = 6.0",
    ]  # fmt: skip


@pytest.mark.parametrize("run", WAYS)
def test_checks(run: Run) -> None:
    def f(x: Any) -> Any:
        done = wf.check(x >= 0, "{} has a {what}", x, what="negative element")
        with wf.control_dependencies([done]) if run in (session, dataflow) else _nothing():
            return wf.sqrt(x)

    assert np.asarray(run(f, np.array([4.0]))).tolist() == [2]
    with pytest.raises(wf.errors.InvalidArgumentError) as caught:
        run(f, np.array([4.0, -1.0]))
    text = str(caught.value)
    assert "[ 4. -1.] has a negative element\n" in text
    assert "done = wf.check(x >= 0" in text


class _nothing:
    def __enter__(self) -> None: ...
    def __exit__(self, *error: object) -> None: ...


@pytest.mark.parametrize(
    ("call", "why"),
    [
        (lambda x: wf.assert_equal(x, [1, 2, 4]), "x == y does not hold: 1 of 3 elements, first "
         r"element \[2\]: 3 not == 4"),
        (lambda x: wf.assert_not_equal(x, 2), r"1 of 3 elements, first element \[1\]: 2 not != 2"),
        (lambda x: wf.assert_less(x, 3), r"element \[2\]: 3 not < 3"),
        (lambda x: wf.assert_less_equal(x, 2), r"element \[2\]: 3 not <= 2"),
        (lambda x: wf.assert_greater(x, 1), r"element \[0\]: 1 not > 1"),
        (lambda x: wf.assert_greater_equal(x, 2), r"element \[0\]: 1 not >= 2"),
        (lambda x: wf.assert_positive(x - 1), r"element \[0\]: 0 not > 0"),
        (lambda x: wf.assert_non_negative(x - 2), r"element \[0\]: -1 not >= 0"),
        (lambda x: wf.assert_all_close(x, [1, 2, 3.1], message="m {}"), r"m {}: 1 of 3"),
        (lambda x: wf.assert_finite(x / [1, 0, 1]), r"not finite: 1 of 3 elements, first element "
         r"\[1\]: inf"),
    ],
)  # fmt: skip
def test_assertions(call: Any, why: str) -> None:
    x = np.array([1.0, 2.0, 3.0])
    for run in (eager, compiled, session):
        with pytest.raises(wf.errors.InvalidArgumentError, match=why):
            run(call, x)
    scalar = wf.asarray(0.0)
    with pytest.raises(wf.errors.InvalidArgumentError, match=r"elements, first 0 not > 0"):
        wf.assert_positive(scalar)


def test_assertions_that_hold_and_shapes() -> None:
    x = wf.asarray([1.0, 2.0])

    @wf.compile
    def f(x: Any) -> Any:
        wf.assert_finite(x)
        wf.assert_all_close(x, x + 1e-9)
        wf.assert_shape(x, (None,))
        wf.assert_less(x, 3)
        return x

    assert f(x).numpy().tolist() == [1, 2]
    with pytest.raises(wf.errors.ShapeError, match=r"shape \(2,\), not \(3,\)\n.*test_debug"):
        wf.assert_shape(x, (3,))
    with pytest.raises(wf.errors.ShapeError, match="mine"):
        wf.assert_shape(x, (None, None), "mine")
    with wf.Graph().as_default(), wf.Session() as session:
        given = wf.placeholder(wf.float32, [None, 2])
        done = wf.assert_shape(given, (3, 2))
        session.run(done, {given: np.ones((3, 2))})
        with pytest.raises(
            wf.errors.InvalidArgumentError, match=r"x has shape \(.*, 2\), not \(3, 2"
        ):
            session.run(done, {given: np.ones((4, 2))})


@pytest.mark.parametrize("run", WAYS)
def test_callbacks(run: Run) -> None:
    seen: list[Any] = []

    def note(x: Any, more: Any, key: Any = None) -> None:
        seen.append((x.numpy().tolist(), more, key))

    run(lambda x: wf.debug_callback(note, x, {"a": [x + 1, "text"]}, key=3), np.array([1.0]))
    ((x, more, key),) = seen
    assert (x, key) == ([1.0], 3)
    assert more["a"][0].numpy().tolist() == [2.0]
    assert more["a"][1] == "text"


def test_gradients_are_those_without() -> None:
    lines: list[float] = []

    def f(x: Any, looked: bool) -> Any:
        y = wf.sin(x)
        if looked:
            wf.debug_callback(lambda t: lines.append(float(t)), y)
            wf.assert_finite(y)
        return y * y

    for grad in (
        wf.grad,
        lambda f: wf.compile(wf.grad(f)),
        lambda f: lambda x: wf.vjp(f, x)[1](1.0),
    ):
        assert grad(lambda x: f(x, True))(0.5) == grad(lambda x: f(x, False))(0.5)
    assert lines == [np.sin(0.5)] * 3
    wf.jvp(lambda x: f(x, True), (0.5,), (1.0,))
    assert len(lines) == 4
