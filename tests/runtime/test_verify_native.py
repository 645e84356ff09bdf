"""WEFT_VERIFY=native: a wrong kernel is found in the step that runs it, whichever way that is, and
the program is shrunk to it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from clusters import local_cluster
from wrong_kernels import almost_tanh, named_record, tanh_by

import weft as wf
from weft.runtime.record.agreement import disagreements
from weft.runtime.record.replay import run_again
from weft.runtime.record.shrink import shrink_record
from weft.runtime.record.step_record import load_record

VerifyError = wf.errors.VerifyError


def f32(*values: float) -> Any:
    return np.array(values, np.float32)


@pytest.fixture
def verify(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The folder for what is found."""
    monkeypatch.setenv("WEFT_VERIFY", "native")
    monkeypatch.setenv("WEFT_DUMP", str(tmp_path))
    return tmp_path


@pytest.fixture
def wrong_tanh() -> Iterator[None]:
    """tanh has a kernel that is wrong from 1 on."""
    with tanh_by(almost_tanh):
        yield


def model(x: Any, w: Any) -> Any:
    hidden = wf.exp(wf.matmul(x, w) * 0.1)
    return wf.sum(wf.tanh(hidden + 1) * 2, axis=0) + wf.sqrt(wf.sum(x * x))


ARGS = (np.ones((2, 3), np.float32), np.ones((3, 2), np.float32))


@pytest.mark.usefixtures("wrong_tanh")
def test_in_a_compiled_function(verify: Path) -> None:
    f = wf.compile(model)
    for _ in range(2):
        with pytest.raises(VerifyError) as caught:
            f(*ARGS)
    error = caught.value
    assert "WEFT_VERIFY=native: result 0 at [0] is" in error.what
    assert "in 'model', says the reference interpreter; a program of 1 ops shows it (tanh)" in str(
        error
    )
    assert error.locations[0].file == __file__
    small = load_record(named_record(error))
    assert [op.name for op in small.graph.ops] == ["tanh"]
    assert small.inputs[0].shape == (2, 2)  # with the values that it really had
    np.testing.assert_allclose(small.inputs[0], np.exp(0.3) + 1, rtol=1e-6)
    assert disagreements(small, run_again(small, "interpreter"), run_again(small, "native"))


@pytest.mark.usefixtures("wrong_tanh")
def test_in_an_iteration_of_a_loop(verify: Path) -> None:
    """The body on the values of the first iteration in which the kernel is wrong."""

    @wf.compile
    def f(x: Any) -> Any:
        def body(total: Any, row: Any) -> Any:
            return total + wf.sum(wf.tanh(row)), total

        return wf.scan(body, 0.0, x)

    f(np.full((4, 3), 0.001, np.float32))  # where it is right
    with pytest.raises(VerifyError) as caught:
        f(np.array([[0.001], [0.002], [2.0], [3.0]], np.float32))
    small = load_record(named_record(caught.value))
    assert [op.name for op in small.graph.ops] == ["tanh"]
    assert small.inputs[0].tolist() == [2.0]


@pytest.mark.usefixtures("verify", "wrong_tanh")
@pytest.mark.parametrize("how", [{}, {"control_flow": "dataflow"}, {"reproducible": True}])
def test_in_a_step_with_ops_of_the_host(how: Any) -> None:
    with wf.Graph().as_default() as graph:
        q = wf.FIFOQueue(9, wf.float32, shapes=[[2]])
        x = wf.placeholder(wf.float32, [2])
        put = q.enqueue(x)
        w = wf.Variable(f32(0, 0), name="w")
        row = wf.py_function(lambda r: r * 1, [q.dequeue()], wf.float32, shapes=[2])
        update = w.assign_add(wf.tanh(row) * 3)
        init = wf.global_variables_initializer()
    with wf.Session(graph=graph, **how) as session:
        session.run(init)
        for k in (0.001, 2):
            session.run(put, {x: [k, k]})
        session.run(update)
        with pytest.raises(VerifyError, match=r"a program of 1 ops shows it .tanh.") as caught:
            session.run(update)
    assert load_record(named_record(caught.value)).inputs[0].tolist() == [2, 2]


@pytest.mark.usefixtures("verify")
def test_rounding_in_a_step_with_ops_of_the_host() -> None:
    """What is decided by rounding is no fault beside queues, Python functions and updates, too."""
    with wf.Graph().as_default(), wf.Session() as session:
        x = wf.placeholder(wf.float32, [2000])
        v = wf.Variable(np.zeros(2000, np.float32), name="v")
        q = wf.FIFOQueue(9, wf.float32, shapes=[[2000]])
        put = q.enqueue(x)
        total = v.assign_add(x)
        near = wf.exp(wf.log(x + total * 0))  # x, but for the last bits
        row = wf.py_function(lambda a: a, [near], wf.float32, shapes=[2000])
        session.run(wf.global_variables_initializer())
        given = np.linspace(1, 50, 2000, dtype=np.float32)
        session.run(put, {x: given})
        got = session.run([wf.exp(wf.log(q.dequeue())) > x, row > x, total], {x: given})
    assert got[2].tolist() == given.tolist()


@pytest.mark.usefixtures("wrong_tanh")
def test_files_of_what_is_found_have_names_of_their_own(verify: Path) -> None:
    """Also of graphs whose names are no names of files."""
    with wf.Graph("a/b").as_default() as graph:
        x = wf.placeholder(wf.float32, [])
        y = wf.tanh(x)
    with wf.Session(graph=graph) as session:
        for _ in range(2):
            with pytest.raises(VerifyError, match="in 'a/b'") as caught:
                session.run(y, {x: 2})
            assert [op.name for op in load_record(named_record(caught.value)).graph.ops] == ["tanh"]
    assert (
        len([file for file in verify.iterdir() if file.name.startswith("verify-native-a_b-")]) == 2
    )


@pytest.mark.usefixtures("verify", "wrong_tanh")
def test_in_a_variable_alone() -> None:
    v = wf.Variable(f32(0, 0), name="v")

    @wf.compile
    def f(x: Any) -> Any:
        v.assign(wf.tanh(x))
        return wf.sum(x)

    with pytest.raises(VerifyError, match="variable 'v' at"):
        f(f32(2, 2))


@pytest.mark.usefixtures("verify", "wrong_tanh")
def test_on_an_emulated_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_EMULATE_GPU", "1")
    f = wf.compile(model, device="gpu:0")
    with pytest.raises(VerifyError, match=r"result 0 at .* in 'model'"):
        f(*ARGS)


@pytest.mark.usefixtures("verify", "wrong_tanh")
def test_on_several_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_EMULATE_GPU", "1")
    with wf.Graph().as_default() as graph:
        with wf.device("/cpu:0"):
            x = wf.placeholder(wf.float32, [2])
            y = wf.exp(x)
        with wf.device("/gpu:0"):
            z = wf.tanh(y)
    with wf.Session(graph=graph) as session, pytest.raises(VerifyError, match="result 0 at"):
        session.run(z, {x: [1, 2]})


@pytest.mark.usefixtures("verify", "wrong_tanh")
def test_on_a_cluster() -> None:
    with wf.Graph().as_default() as graph:
        with wf.device("/job:ps/task:0"):
            w = wf.Variable(f32(2, 3), name="w")
        with wf.device("/job:worker/task:0"):
            q = wf.FIFOQueue(9, wf.float32, shapes=[[2]])
            put = q.enqueue(f32(1, 1))
            y = wf.tanh(q.dequeue() * w)
        init = wf.global_variables_initializer()
    with (
        local_cluster({"ps": 1, "worker": 1}) as servers,
        wf.Session(servers[1].target, graph=graph) as session,
    ):
        session.run(init)
        session.run(put)
        with pytest.raises(VerifyError, match=r"a program of 1 ops shows it .tanh.") as caught:
            session.run(y)
    assert load_record(named_record(caught.value)).inputs[0].tolist() == [2, 3]


# --------------------------------------------------------------------------------- what is no fault
WEIGHTS = np.random.default_rng(1).normal(size=(30, 100)).astype(np.float32)
RIGHT: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    # a difference of near equals, of which no bit need be right
    "cancels": (
        lambda x: wf.sum(wf.exp(x) * 1.1, axis=0) - wf.sum(1.1 * wf.exp(x), axis=0),
        (np.linspace(0, 9, 3000, dtype=np.float32).reshape(1000, 3),),
    ),
    # which side is taken depends on rounding
    "compares": (
        lambda x: wf.where(wf.exp(wf.log(x)) > x, 1.0, -1.0),
        (np.linspace(1, 2, 100, dtype=np.float32),),
    ),
    # float16 in float32 within a kernel
    "overflows": (
        lambda x: wf.exp(x) - wf.exp(x) * 1,
        (np.array([1, 12, 20], np.float16),),
    ),
    "equal": (lambda x: wf.equal(wf.exp(wf.log(x)), x), (np.arange(1, 100, dtype=np.float32),)),
    "many compare": (
        lambda x: (wf.exp(wf.log(x)) > x, wf.floor(wf.exp(wf.log(x)))),
        (np.linspace(1, 50, 100_000, dtype=np.float32),),
    ),
    "relu's gradient": (
        lambda x: wf.grad(lambda x: wf.sum(wf.nn.relu(wf.matmul(x, WEIGHTS)) ** 2))(x),
        (np.random.default_rng(0).normal(size=(1000, 30)).astype(np.float32),),
    ),
    "does not fit": (
        lambda x: wf.astype(x * 3, wf.int32), (f32(1, 1e20, -1e20, np.nan, np.inf),)
    ),
    "a check at the edge": (
        lambda x: wf.where(wf.sum(wf.exp(x)) >= wf.sum(wf.exp(x[::-1])), 1, 0),
        (np.linspace(0, 9, 1001, dtype=np.float32),),
    ),
    "not finite": (lambda x: wf.log(x) / x, (f32(0, -1, np.inf, np.nan),)),
}  # fmt: skip


@pytest.mark.share(3)
@pytest.mark.usefixtures("verify")
@pytest.mark.parametrize("name", RIGHT)
def test_rounding_is_no_fault(name: str) -> None:
    function, args = RIGHT[name]
    wf.compile(function)(*args)


@pytest.mark.usefixtures("verify", "wrong_tanh")
def test_what_overflows_hides_nothing_else() -> None:
    f = wf.compile(lambda x: (wf.tanh(x), wf.exp(x * 100) - wf.exp(x * 100) * 1))
    with pytest.raises(VerifyError, match="result 0"):
        f(f32(0.5, 2))


@pytest.mark.usefixtures("verify")
def test_steps_beside_others_are_not_judged() -> None:
    v = wf.Variable(np.zeros(1000, np.float32), name="v")

    @wf.compile
    def add(x: Any) -> Any:
        return v.assign_add(x)

    wrong: list[BaseException] = []

    def many() -> None:
        try:
            for _ in range(40):
                add(np.ones(1000, np.float32))
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=many) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert v.numpy()[0] == 120


@pytest.mark.usefixtures("wrong_tanh")
def test_a_variable_of_another_task(verify: Path) -> None:
    with wf.Graph().as_default() as graph:
        with wf.device("/job:ps/task:0"):
            w = wf.Variable(f32(2, 3), name="w")
        with wf.device("/job:worker/task:0"):
            y = wf.tanh(w)
        with wf.device("/job:ps/task:0"):
            update = wf.group(w.assign(y))
        init = wf.global_variables_initializer()
    with (
        local_cluster({"ps": 1, "worker": 1}) as servers,
        wf.Session(servers[1].target, graph=graph) as session,
    ):
        session.run(init)
        with pytest.raises(VerifyError, match="variable 'w' at"):
            session.run(update)


@pytest.mark.usefixtures("verify")
def test_errors_stay_what_they_are() -> None:
    f = wf.compile(lambda x, k: wf.take(x, k))
    assert f(f32(1, 2), 1) == 2
    with pytest.raises(wf.errors.InvalidArgumentError, match="out of bounds"):
        f(f32(1, 2), 5)
    with wf.Graph().as_default(), wf.Session() as session:
        q = wf.FIFOQueue(9, wf.float32, shapes=[[]])
        y = wf.exp(q.dequeue())
        with pytest.raises(wf.errors.DeadlineExceededError):
            session.run(y, options=wf.RunOptions(timeout=0.1))
        session.run(q.close())
        with pytest.raises(wf.errors.OutOfRangeError):
            session.run(y)


@pytest.mark.usefixtures("wrong_tanh")
def test_nobody_is_held_without_it() -> None:
    assert wf.compile(wf.tanh)(f32(2)).numpy().tolist() == [2]


def test_nothing_is_shrunk_where_engines_agree(tmp_path: Path) -> None:
    f = wf.compile(model)
    with wf.record(tmp_path) as files:
        f(*ARGS)
    assert shrink_record(load_record(files[0])) is None
    assert wf.replay(files[0]).shrink() is None
