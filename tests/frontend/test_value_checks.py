"""WEFT_CHECK names the op that made a NaN, an infinity or a wrapped integer; `f.values` and
`session.values` give any value of a run."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import weft as wf

HERE = "test_value_checks.py"
InvalidArgument = wf.errors.InvalidArgumentError


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_CHECK", "nan, inf,overflow,bounds")


def f32(*values: float) -> Any:
    return np.array(values, np.float32)


def roots(x: Any) -> Any:
    def body(left: Any, part: Any) -> Any:
        left = left - part
        return left, wf.sqrt(left)

    return wf.scan(body, wf.sum(x) * 0 + 2, x)


@pytest.mark.usefixtures("checks")
def test_the_first_op_its_iteration_and_line_are_named() -> None:
    f = wf.compile(lambda x: roots(x)[1] * 2)
    assert f(f32(1, 0.5)).numpy()[0] == 2
    for _ in range(3):  # the third call would be native
        with pytest.raises(InvalidArgument) as caught:
            f(f32(1, 0.5, 1, 1))
        text = str(caught.value)
        assert text.startswith("WEFT_CHECK=nan: op 'sqrt' (f32[]) in 'lambda' made a NaN, in iter")
        assert f"in iteration 2 of op 'scan' at {__file__}" in text
        assert "nan of -0.5\n" in text
        assert "return left, wf.sqrt(left)" in text


@pytest.mark.usefixtures("checks")
@pytest.mark.parametrize("how", [{}, {"control_flow": "dataflow"}, {"reproducible": True}])
def test_in_sessions(how: Any) -> None:
    with wf.Graph().as_default() as graph:
        x = wf.placeholder(wf.float32, [None], "x")
        w = wf.Variable(f32(1, 1), name="w")
        left, ys = roots(x)
        update = w.assign(w / left)
        start = wf.global_variables_initializer()
    with wf.Session(graph=graph, **how) as session:
        session.run(start)
        assert session.run([ys, update], {x: [1, 0.5]})[1].tolist() == [2, 2]
        with pytest.raises(InvalidArgument, match=r"(?s)'sqrt'.*iteration 1 of.*wf.sqrt\(left\)"):
            session.run(ys, {x: [1, 2]})
        with pytest.raises(InvalidArgument, match=r"(?s)'divide' .*an infinity.*inf of 2.0, 0.0"):
            session.run(update, {x: [1, 1]})
        with pytest.raises(InvalidArgument, match=r"before the call variable 'w' .* an infinity"):
            session.run(update, {x: [1, 0.5]})


@pytest.mark.usefixtures("checks")
def test_on_an_emulated_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_EMULATE_GPU", "1")
    f = wf.compile(lambda x: wf.log(x) * 2, device="gpu:0")
    assert f(f32(1, 1)).numpy().tolist() == [0, 0]
    with pytest.raises(InvalidArgument, match=rf"(?s)'log' .*\[1\]: nan of -1.0.*{HERE}"):
        f(f32(1, -1))


@pytest.mark.usefixtures("checks")
def test_what_comes_from_outside_is_named() -> None:
    f = wf.compile(lambda x: x + 1)
    with pytest.raises(InvalidArgument, match="argument 'x' of 'lambda' has a NaN"):
        f(f32(1, np.nan))
    with pytest.raises(InvalidArgument, match="argument 'x' of 'lambda' has an infinity"):
        f(f32(1, np.inf))


@pytest.mark.usefixtures("checks")
def test_donated_arguments_and_variables_are_as_they_were() -> None:
    v = wf.Variable(f32(4, 4))

    def f(x: Any) -> Any:
        v.assign(v - 8)
        return wf.sqrt(x) + v

    g = wf.compile(f, donate=("x",))
    assert g(wf.asarray(f32(1, 4))).numpy().tolist() == [-3, -2]
    with pytest.raises(InvalidArgument, match=r"\[0\]: nan of -9.0"):
        g(wf.asarray(f32(-9, 4)))
    assert v.numpy().tolist() == [-12, -12]  # the step itself has run


@pytest.mark.usefixtures("checks")
@pytest.mark.parametrize(
    ("function", "args", "what"),
    [
        (lambda x: x * 2, (np.array([1, 100], np.int8),), r"'multiply'.*\[1\]: -56 of 100, 2"),
        (lambda x: wf.sum(x), (np.array([2**31 - 1, 1], np.int32) + 0,), "'sum'"),
        (lambda x: x + x, (np.array([2**62, 3]),), r"'add'.*\[0\]"),
        (lambda x: wf.astype(x, wf.uint8), (np.array([-1, 3]),), "'astype'.*255"),
        (lambda x: wf.astype(x, wf.int32), (np.array([1e10]),), "'astype'"),
    ],
)
def test_integers_that_do_not_fit(function: Any, args: Any, what: str) -> None:
    if what == "'sum'":
        function = lambda x: wf.sum(x, dtype=wf.int32)  # noqa: E731
    with pytest.raises(wf.errors.OutOfRangeError, match=f"(?s)WEFT_CHECK=overflow: op {what}"):
        wf.compile(function)(*args)
    fine = wf.compile(lambda x: wf.cumulative_sum(x * 2) - 1)
    assert fine(np.array([1, 2], np.int8)).numpy().tolist() == [1, 5]


@pytest.mark.usefixtures("checks")
def test_the_iteration_of_an_index_out_of_bounds() -> None:
    f = wf.compile(lambda x, i: wf.scan(lambda c, k: (c, wf.take(x, k)), 0.0, i)[1])
    with pytest.raises(InvalidArgument, match=r"index 5 is out of bounds .* in iteration 2 of op"):
        f(f32(1, 2), np.array([0, 1, 5]))


@pytest.mark.usefixtures("checks")
def test_prints_are_not_repeated(capfd: pytest.CaptureFixture[str]) -> None:
    @wf.compile
    def f(x: Any) -> Any:
        wf.print("x {}", x)
        return wf.log(x)

    with pytest.raises(InvalidArgument, match="made a NaN"):
        f(f32(-1))
    assert capfd.readouterr().err == "x [-1.]\n"


def test_what_queues_gave_is_what_the_second_run_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_CHECK", "nan,inf")
    with wf.Graph().as_default() as graph:
        q = wf.FIFOQueue(9, wf.float32, [])
        put, y = q.enqueue(-1.0), wf.log(q.dequeue())
    with wf.Session(graph=graph) as session:
        session.run(put)
        session.run(put)
        with pytest.raises(InvalidArgument, match=r"op 'log' .* made a NaN: .*: nan of -1.0"):
            session.run(y)
        assert session.run(q.size()) == 1
    monkeypatch.setenv("WEFT_CHECK", "overflow")
    with wf.Session(graph=graph) as session:
        session.run(put)
        assert session.run(q.size()) == 2


def test_python_functions_are_called_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_CHECK", "nan")
    given = iter((-1.0, 4.0))

    @wf.compile
    def f(x: Any) -> Any:
        return wf.sqrt(x + wf.py_function(lambda: next(given), [], wf.float32, ()))

    with pytest.raises(InvalidArgument, match=r"op 'sqrt' .* made a NaN: .*: nan of -1.0"):
        f(np.float32(0))
    with pytest.raises(wf.errors.UnsupportedError, match="for a look"):
        f.values(np.float32(0))
    assert next(given) == 4


def test_on_a_cluster_op_and_task_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_CHECK", "nan,inf")
    server = wf.train.Server.create_local_server()
    with wf.Graph().as_default() as graph:
        x = wf.placeholder(wf.float32, [2], "x")
        y = wf.log(x)
    with wf.Session(server.target, graph=graph) as session:
        assert session.run(y, {x: [1, 1]}).tolist() == [0, 0]
        with pytest.raises(InvalidArgument, match=r"'log' .* \[1\]: nan of -1.0, on /job:local/t"):
            session.run(y, {x: [1, -1]})
        with pytest.raises(wf.errors.UnsupportedError, match="on other tasks"):
            session.values(y, {x: [1, 1]})


def test_what_a_cluster_writes_to_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing that is fetched shows it."""
    monkeypatch.setenv("WEFT_CHECK", "nan")
    server = wf.train.Server.create_local_server()
    with wf.Graph().as_default() as graph:
        x = wf.placeholder(wf.float32, [2], "x")
        v = wf.Variable(f32(0, 0), name="v")
        update = wf.group(v.assign(wf.log(x)))
        init = wf.global_variables_initializer()
    with wf.Session(server.target, graph=graph) as session:
        session.run(init)
        session.run(update, {x: [1, 1]})
        with pytest.raises(InvalidArgument, match=r"'log' .* \[1\]: nan of -1.0"):
            session.run(update, {x: [1, -1]})


def test_unknown_kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_CHECK", "nans")
    with pytest.raises(InvalidArgument, match=r"'nans', which does not exist; did you mean 'nan'"):
        wf.compile(lambda x: x)(1.0)
    with pytest.raises(InvalidArgument, match="'nans'"):
        wf.Session(graph=wf.Graph())


# ----------------------------------------------------------------------------------- inner values
def model(x: Any, w: Any) -> Any:
    hidden = wf.tap("hidden", x @ w)
    total, _ = wf.scan(lambda c, r: (wf.tap("carry", c + wf.sum(r)), None), 0.0, hidden)
    return wf.tap("out", wf.exp(hidden * 0) + total)


def test_values_by_name_op_line_and_function() -> None:
    f = wf.compile(model)
    x, w = np.ones((3, 2), np.float32), wf.Variable(np.ones((2, 2), np.float32))
    line = model.__code__.co_firstlineno + 1
    expected = np.full((3, 2), 2)
    for where in ("hidden", f"{HERE}:{line}", line, lambda v: v.name == "hidden"):
        found = f.values(x, w, where=where)
        assert np.array_equal(found[-1].value.numpy(), expected)
        assert (found[-1].op, found[-1].location.line) == ("tap", line)
    carries = f.values(x, w, where="carry")
    assert [(v.iterations, float(v.value)) for v in carries] == [((0,), 4), ((1,), 8), ((2,), 12)]
    assert repr(carries[1]).startswith("<carry in iteration 1 at test_value_checks.py:")
    assert {v.op for v in f.values(x, w)} >= {"matmul", "tap", "sum", "exp"}


def test_values_after_a_pass() -> None:
    f = wf.compile(model)
    x, w = np.ones((3, 2), np.float32), np.ones((2, 2), np.float32)
    for after in ("cse", "fuse", "schedule"):
        (out,) = f.values(x, w, after=after, where="out")
        assert np.array_equal(out.value.numpy(), np.full((3, 2), 13))
    with pytest.raises(wf.errors.NotFoundError, match=r"no value of 'model'.*'carry'"):
        f.values(x, w, after="fuse", where="carry")
    with pytest.raises(wf.errors.PassError, match="no pass 'fusion'"):
        f.values(x, w, after="fusion")


def test_values_of_sessions_change_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    with wf.Graph().as_default() as graph:
        x = wf.placeholder(wf.float32, [None])
        v = wf.Variable(f32(1, 2))
        start = wf.global_variables_initializer()
        with wf.control_dependencies([wf.print("x {}", x)]):
            y = v.assign_add(wf.tap("half", x / 2))
    with wf.Session(graph=graph) as session:
        session.run(start)
        (half,) = session.values(y, {x: [2, 4]}, where="half")
        assert half.value.numpy().tolist() == [1, 2]
        (added,) = session.values(y, {x: [2, 4]}, after="fuse", where="add")
        assert added.value.numpy().tolist() == [2, 4]
        assert session.run(v).tolist() == [1, 2]
        assert capfd.readouterr().err == ""
        assert session.run(y, {x: [2, 4]}).tolist() == [2, 4]
        with pytest.raises(InvalidArgument, match=r"where is 2\.5"):
            session.values(y, {x: [2, 4]}, where=2.5)


def test_a_tap_changes_nothing() -> None:
    def f(x: Any, named: bool) -> Any:
        y = wf.sin(x)
        return (wf.tap("y", y) if named else y) * 2

    x = f32(1, 2)
    compiled = wf.compile(f, static_argnames="named")
    assert compiled.ir(x, True, loc=False) == compiled.ir(x, False, loc=False)
    assert wf.grad(lambda x: wf.sum(f(x, True)))(x).numpy().tolist() == (2 * np.cos(x)).tolist()
    weak = wf.tap("a", wf.asarray(3.0))
    assert float(weak) == 3
    for name in ("", 3):
        with pytest.raises(InvalidArgument, match="takes a name first"):
            wf.tap(name, 1.0)  # type: ignore[arg-type]
