"""WEFT_VERIFY=native: a wrong kernel whose result goes only into queues, prints, files, tables or
Python functions is found there, whichever way the step runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from clusters import local_cluster
from wrong_kernels import almost_tanh, named_record, tanh_by

import weft as wf
from weft.runtime.record.step_record import load_record
from weft.runtime.run_log import HostKey, RunLog

VerifyError = wf.errors.VerifyError


def f32(*values: float) -> Any:
    return np.array(values, np.float32)


@pytest.fixture(autouse=True)
def verify(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("WEFT_VERIFY", "native")
    monkeypatch.setenv("WEFT_DUMP", str(tmp_path))


@pytest.fixture
def wrong_tanh() -> Iterator[None]:
    """tanh has a kernel that is wrong from 1 on."""
    with tanh_by(almost_tanh):
        yield


def tells(function: Any, *args: Any) -> VerifyError:
    """The error of a call, whose small program is one tanh."""
    with pytest.raises(VerifyError) as caught:
        function(*args)
    small = load_record(named_record(caught.value))
    assert [op.name for op in small.graph.ops] == ["tanh"], caught.value
    return caught.value


# ---------------------------------------------------------------------------- compiled functions
TELL: dict[str, Any] = {
    "py_function": lambda y: wf.py_function(lambda v: np.float32(0), [y], wf.float32, shapes=[]),
    "debug_callback": lambda y: wf.debug_callback(lambda v: None, y),
    "print": lambda y: wf.print("y is {}", y),
    "assert": lambda y: wf.check(wf.max(y) < 0.1, "y is {}", y),
}


@pytest.mark.share(2)
@pytest.mark.usefixtures("wrong_tanh")
@pytest.mark.parametrize("name", TELL)
def test_in_a_compiled_function(name: str) -> None:
    @wf.compile
    def f(x: Any) -> Any:
        TELL[name](wf.tanh(x * 2))
        return wf.sum(x)

    f(f32(0.01, 0.02))  # where it is right
    error = tells(f, f32(0.1, 2))
    number = int(name == "assert")
    start = f"WEFT_VERIFY=native: operand {number} of op '{name}' ({__file__}:"
    assert error.what.startswith(start), error.what
    assert "at [1] is np.float32(4.0) instead of np.float32(0.9993" in error.what
    assert "in 'f', says the reference interpreter; a program of 1 ops" in error.what
    assert error.locations[0].file == __file__


@pytest.mark.usefixtures("wrong_tanh")
@pytest.mark.parametrize("name", TELL)
def test_on_an_emulated_gpu(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_EMULATE_GPU", "1")

    @wf.compile(device="gpu:0")
    def f(x: Any) -> Any:
        TELL[name](wf.tanh(x * 2))
        return wf.sum(x)

    f(f32(0.01, 0.02))
    assert f"of op '{name}'" in tells(f, f32(0.1, 2)).what


@pytest.mark.usefixtures("wrong_tanh")
def test_in_an_iteration_of_a_native_loop() -> None:
    """With the values of that iteration."""

    @wf.compile
    def f(x: Any) -> Any:
        def body(total: Any, row: Any) -> Any:
            wf.debug_callback(lambda v: None, row)
            wf.debug_callback(lambda v: None, wf.tanh(row) * 2)
            return total + row, total

        return wf.scan(body, 0.0, x)

    f(f32(0.1, 0.2, 0.3))
    error = tells(f, f32(0.1, 0.2, 3, 4))
    assert ", iteration 2) at [0] is np.float32(6.0) instead of" in error.what
    assert load_record(named_record(error)).inputs[0].tolist() == 3


@pytest.mark.usefixtures("wrong_tanh")
def test_what_an_iteration_before_has_made() -> None:
    """It goes to the host one iteration later, from the carry."""

    @wf.compile
    def f(x: Any) -> Any:
        def body(c: Any, row: Any) -> Any:
            wf.debug_callback(lambda v: None, c)
            return wf.tanh(row), row

        return wf.scan(body, 0.0, x)[1]

    error = tells(f, f32(0.1, 3, 0.2))
    assert ", iteration 2)" in error.what
    assert load_record(named_record(error)).inputs[0].tolist() == 3


@pytest.mark.usefixtures("wrong_tanh")
def test_what_a_python_function_refused() -> None:
    """The function raises of what a wrong kernel has given to it; and so it does for the
    interpreter, which is told what the function did."""

    def small(v: Any) -> Any:
        assert float(v) < 1
        return v

    @wf.compile
    def f(x: Any) -> Any:
        return wf.py_function(small, [wf.tanh(x)], wf.float32, shapes=[])

    f(np.float32(0.5))
    assert "operand 0 of op 'py_function'" in tells(f, np.float32(3)).what


@pytest.mark.usefixtures("wrong_tanh")
def test_donated_arguments_are_copied() -> None:
    """The result is written where the operand was."""

    @wf.compile(donate=["x"])
    def f(x: Any) -> Any:
        wf.debug_callback(lambda v: None, x)
        return x * 2 + 1

    for _ in range(3):
        assert f(wf.asarray(f32(1, 2))).numpy().tolist() == [3, 5]


def test_who_writes_to_what_it_was_given() -> None:
    def spoil(v: Any) -> Any:
        v = v.numpy()
        v.flags.writeable = True
        v[:] = 0
        return v

    with wf.Graph().as_default(), wf.Session() as session:
        x = wf.placeholder(wf.float32, [2])
        y = wf.py_function(spoil, [x + 1], wf.float32, shapes=[2])
        assert session.run(y, {x: [1, 2]}).tolist() == [0, 0]


# ------------------------------------------------------------------------------------- sessions
@pytest.mark.usefixtures("wrong_tanh")
@pytest.mark.parametrize("how", [{}, {"control_flow": "dataflow"}, {"reproducible": True}])
def test_in_what_is_enqueued(how: Any) -> None:
    with wf.Graph().as_default() as graph:
        q = wf.FIFOQueue(9, wf.float32, shapes=[[2]], name="q")
        x = wf.placeholder(wf.float32, [2])
        put = q.enqueue(wf.tanh(x) * 2)
    with wf.Session(graph=graph, **how) as session:
        session.run(put, {x: [0.1, 0.2]})
        error = tells(lambda: session.run(put, {x: [0.1, 3]}))
    assert "operand 1 of op 'enqueue'" in error.what


@pytest.mark.usefixtures("wrong_tanh")
@pytest.mark.parametrize("how", [{}, {"control_flow": "dataflow"}, {"reproducible": True}])
def test_in_an_iteration_of_a_loop_on_the_executor(how: Any) -> None:
    with wf.Graph().as_default() as graph:
        q = wf.FIFOQueue(9, wf.float32, shapes=[[]], name="q")
        x = wf.placeholder(wf.float32, [])

        def body(i: Any, c: Any) -> Any:
            put = q.enqueue(wf.tanh(c))
            with wf.control_dependencies([put]):
                return i + 1, c + 0.7

        last = wf.while_loop(lambda i, c: i < 4, body, [0, x])
    with wf.Session(graph=graph, **how) as session:
        session.run(last, {x: -3})
        error = tells(lambda: session.run(last, {x: -0.5}))
    assert ", iteration 3)" in error.what
    np.testing.assert_allclose(load_record(named_record(error)).inputs[0], 1.6, rtol=1e-6)


@pytest.mark.usefixtures("wrong_tanh")
def test_in_tables_files_and_summaries(tmp_path: Path) -> None:
    with wf.Graph().as_default() as graph:
        x = wf.placeholder(wf.float32, [])
        table = wf.tf1.MutableHashTable(wf.string, wf.float32, 0.0)
        put = table.insert(["a"], wf.reshape(wf.tanh(x), [1]))
        read = table.lookup(["a"])
        text = wf.tf1.as_string(wf.tanh(x))
        write = wf.tf1.write_file(str(tmp_path / "text"), text)
        merged = [wf.summary.scalar(tag, wf.tanh(x + k)) for k, tag in enumerate("ab")]
        summaries = wf.summary.merge(merged)
    with wf.Session(graph=graph) as session:
        for fetch, value in ((put, 0.5), (write, 0.5), (summaries, -0.5)):
            session.run(fetch, {x: value})
        assert "of op 'table_insert'" in tells(lambda: session.run(put, {x: 2})).what
        assert session.run(read).tolist() == [2]
        for fetch, op in ((write, "as_string"), (summaries, "summary")):
            assert f"operand 0 of op '{op}'" in tells(lambda f=fetch: session.run(f, {x: 2})).what


@pytest.mark.usefixtures("wrong_tanh")
def test_how_often_it_ran() -> None:
    """A wrong predicate: nothing but the enqueue shows it."""
    with wf.Graph().as_default() as graph:
        q = wf.FIFOQueue(9, wf.float32, shapes=[[]], name="q")
        x = wf.placeholder(wf.float32, [])
        y = wf.cond(wf.tanh(x) > 1.5, lambda: put(q, x), lambda: x)
    with wf.Session(graph=graph) as session:
        assert session.run(y, {x: 0.5}) == 0.5
        error = tells(lambda: session.run(y, {x: 3}))
    assert "op 'enqueue'" in error.what
    assert "ran 1 times instead of 0" in error.what


def put(q: Any, x: Any) -> Any:
    with wf.control_dependencies([q.enqueue(x)]):
        return x + 0


@pytest.mark.usefixtures("wrong_tanh")
def test_on_several_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_EMULATE_GPU", "1")
    with wf.Graph().as_default() as graph:
        with wf.device("/gpu:0"):
            x = wf.placeholder(wf.float32, [2])
            y = wf.tanh(wf.exp(x))
        with wf.device("/cpu:0"):
            q = wf.FIFOQueue(9, wf.float32, shapes=[[2]], name="q")
            done = q.enqueue(y)
    with wf.Session(graph=graph) as session:
        session.run(done, {x: [-3, -2]})
        error = tells(lambda: session.run(done, {x: [-1, 1]}))
    assert "operand 1 of op 'enqueue'" in error.what
    assert "/cpu:0)" in error.what


@pytest.mark.usefixtures("wrong_tanh")
def test_on_a_cluster() -> None:
    with wf.Graph().as_default() as graph:
        x = wf.placeholder(wf.float32, [2])
        with wf.device("/job:ps/task:0"):
            w = wf.Variable(f32(2, 3), name="w")
        puts = []
        for task in range(2):
            with wf.device(f"/job:worker/task:{task}"):
                q = wf.FIFOQueue(9, wf.float32, shapes=[[2]], name=f"q{task}")
                puts.append(q.enqueue(wf.tanh(x * w) if task else x * w))
        init = wf.global_variables_initializer()
    with (
        local_cluster({"ps": 1, "worker": 2}) as servers,
        wf.Session(servers[1].target, graph=graph) as session,
    ):
        session.run(init)
        session.run(puts, {x: [0.1, 0.1]})
        error = tells(lambda: session.run(puts, {x: [1, 1]}))
    assert "operand 1 of op 'enqueue'" in error.what
    assert "on /job:worker/task:1/cpu:0)" in error.what


# ------------------------------------------------------------------------------ what is no fault
def test_a_check_that_fails_is_the_error() -> None:
    @wf.compile
    def f(x: Any) -> Any:
        wf.check(wf.max(x) < 3, "x is {}", x)
        return wf.sum(x)

    f(f32(1, 2))
    with pytest.raises(wf.errors.InvalidArgumentError, match=r"x is \[1. 4.\]"):
        f(f32(1, 4))


def test_rounding_is_no_fault(capsys: pytest.CaptureFixture[str]) -> None:
    @wf.compile
    def f(x: Any) -> Any:
        near = wf.exp(wf.log(x))
        wf.print("{}", near > x)
        wf.debug_callback(lambda *v: None, near - x, wf.sum(near) - wf.sum(x), wf.floor(near))
        wf.cond(wf.sum(near) > wf.sum(x), lambda: told(x), lambda: x)
        return wf.sum(x)

    def told(x: Any) -> Any:
        wf.debug_callback(lambda v: None, x)
        return x

    f(np.linspace(1, 50, 1000, dtype=np.float32))
    assert capsys.readouterr().err.count("\n") == 1  # the interpreter prints nothing
    with wf.Graph().as_default(), wf.Session() as session:
        x = wf.placeholder(wf.float32, [1000])
        q = wf.FIFOQueue(9, [wf.float32, wf.string], shapes=[[1000], []], name="q")
        near = wf.exp(wf.log(x))
        put = q.enqueue([near - x, wf.tf1.as_string(wf.sum(near))])
        session.run(put, {x: np.linspace(1, 50, 1000, dtype=np.float32)})


@pytest.mark.parametrize("how", [{}, {"control_flow": "dataflow"}])
def test_a_callback_that_raises_is_the_error(how: Any) -> None:
    def refuse(v: Any) -> None:
        raise ValueError("no more")

    def step(x: Any) -> Any:
        return wf.debug_callback(refuse, x * 2)

    with pytest.raises(wf.errors.WeftError, match="no more") as caught:
        wf.compile(step)(f32(1, 2))
    with wf.Graph().as_default(), wf.Session(**how) as session:
        done = step(wf.constant(f32(1, 2)))
        with pytest.raises(wf.errors.WeftError, match="no more"):
            session.run(done)
    assert not isinstance(caught.value, VerifyError)


def test_branches_and_functions_that_share_a_line() -> None:
    @wf.compile
    def f(x: Any, p: Any) -> Any:
        def tell(y: Any) -> Any:
            wf.debug_callback(lambda v: None, y)
            wf.print("{}", y)
            return y

        y = wf.cond(p, lambda: tell(x), lambda: tell(x * 2))
        tell(x + 3)
        return wf.cond(p, lambda: tell(y), lambda: tell(y + 1))

    for p in (True, False):
        f(f32(1, 2), p)
    with wf.Graph().as_default(), wf.Session(control_flow="dataflow") as session:
        x, chosen = wf.placeholder(wf.float32, [2]), wf.placeholder(wf.bool, [])
        y = f.__wrapped__(x, chosen)
        for side in (True, False):
            session.run(y, {x: [1, 2], chosen: side})


def test_callbacks_without_an_order() -> None:
    @wf.compile
    def f(x: Any) -> Any:
        def look(v: Any) -> None:
            pass

        for k in range(4):
            wf.debug_callback(look, wf.exp(x[k:]) * k, ordered=False)
        return wf.sum(x)

    f(f32(1, 2, 3, 4, 5))


def test_nobody_keeps_operands_without_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Not where steps are recorded, either."""
    monkeypatch.delenv("WEFT_VERIFY")
    kept: list[RunLog] = []

    def keep(log: RunLog) -> RunLog:
        kept.append(log)
        return log

    monkeypatch.setattr(RunLog, "keep_operands", keep)
    with wf.record(tmp_path):
        wf.compile(lambda x: wf.py_function(lambda v: v, [x], wf.float32, shapes=[2]))(f32(1, 2))
    assert kept == []
    log = RunLog()
    log.note_operands(HostKey("print ", -1), (), [f32(1)])
    assert log.operands is None


def test_operands_go_between_processes() -> None:
    log = RunLog("/job:worker/task:1/cpu:0").keep_operands()
    row = f32(1, 2)
    log.note_operands(HostKey("enqueue q ", 0), (2, 1), [row, np.array(b"text", object)])
    row[:] = 0
    again = RunLog.unpacked(log.packed())
    assert again.operands is not None
    ((key, (held,)),) = again.operands.items()
    assert (key, held.iterations) == (HostKey("enqueue q ", 0), (2, 1))
    assert held.operands[0].tolist() == [1, 2]
    assert held.operands[1].item() == b"text"
    assert log.nbytes >= 8
    assert RunLog.unpacked(RunLog().packed()).operands is None
