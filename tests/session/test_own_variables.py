"""Sessions with values of their own: TensorFlow 1's rule, each Session of a process has its own
values of a graph's variables, which are initialised in each."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft as wf

FailedPreconditionError = wf.errors.FailedPreconditionError


@pytest.fixture
def graph() -> Iterator[Any]:
    with wf.Graph("g").as_default() as g:
        yield g


def own(**options: Any) -> wf.Session:
    return wf.Session(own_variables=True, **options)


@pytest.mark.parametrize("mode", ["auto", "dataflow"])
def test_each_session_initialises_and_changes_its_own(graph: Any, mode: str) -> None:
    v = wf.Variable(2.0, name="v")
    twice = wf.Variable(v.initialized_value() * 2.0)
    init, grow = wf.global_variables_initializer(), v.assign_add(1.0)
    one, two = own(control_flow=mode), own(control_flow=mode)
    one.run(init)
    with pytest.raises(FailedPreconditionError, match="'v' is not initialised"):
        two.run(v)
    two.run(init)
    assert [float(one.run(grow)) for _ in range(3)] == [3, 4, 5]
    assert two.run([v, twice]) == [2, 4]
    assert one.run([v, twice]) == [5, 4]
    with pytest.raises(FailedPreconditionError, match="not initialised"):
        wf.Session().run(v)  # one that shares, as all do without the option


def test_python_sees_those_of_the_default_session(graph: Any) -> None:
    v = wf.Variable(1, name="v")
    init = wf.global_variables_initializer()
    one, two = own(), own()
    for session, start in ((one, 10), (two, 20)):
        session.run(init)
        session.run(v.assign(start))
    with one.as_default():
        assert v.numpy() == v.eval() == v.eval(session=one) == 10
        assert repr(v) == "<Variable 'v' i64[]: 10>"
        with two.as_default():
            assert v.numpy() == 20
            assert v.eval(session=one) == 10
        assert v.numpy() == 10
    assert repr(v) == "<Variable 'v' i64[]: not initialised>"
    assert wf.tf1.report_uninitialized_variables().eval(session=one).tolist() == []
    assert wf.tf1.report_uninitialized_variables().eval(session=own()).tolist() == [b"v"]
    one.close()
    with one.as_default():
        assert "not initialised" in repr(v)
    assert two.run(v) == 20


def test_outside_of_the_graph_python_assigns_to_it() -> None:
    with wf.Graph().as_default():
        v = wf.Variable([1.0, 2.0])
        init = wf.global_variables_initializer()
        session = own()
    session.run(init)
    with session.as_default():
        v.assign([5.0, 6.0])
        v.scatter_add([0], [1.0])
        assert bool(v.is_initialized())
    assert session.run(v).tolist() == [6, 6]
    assert not bool(v.is_initialized())


def test_outside_of_the_graph_loops_and_gradients_see_it() -> None:
    """As `v.numpy()` does; a compiled function has the value of the sessions that share."""
    graph = wf.Graph()
    with graph.as_default():
        v = wf.Variable(2.0)
        init = wf.global_variables_initializer()
    wf.Session(graph=graph).run(v.assign(100.0))
    session = wf.Session(graph=graph, own_variables=True)
    session.run(init)
    double = wf.compile(lambda: v * 2)
    with session.as_default():
        assert wf.grad(lambda x: x * v)(1.0).numpy() == 2.0
        assert wf.cond(True, lambda: v.read(), lambda: 0.0).numpy() == 2.0
        wf.fori_loop(0, 3, lambda i, x: v.assign_add(1.0), 0.0)
        assert [v.numpy(), session.run(v)] == [5.0, 5.0]
        wf.train.SGD(0.1).minimize(lambda: v * v, [v])
        assert [v.numpy(), session.run(v)] == [4.0, 4.0]
        assert double().numpy() == 200.0
    assert v.numpy() == 100.0


def test_variables_of_the_program_stay_shared() -> None:
    outside = wf.Variable(1.0)
    with wf.Graph().as_default():
        grow = outside.assign_add(1.0)
        one, two = own(), own()
    assert [one.run(grow), two.run(grow), float(outside)] == [2, 3, 3]


@pytest.mark.parametrize("optimizer", [wf.train.Momentum(0.1), wf.train.Adam(0.1)])
def test_slots_and_counters_belong_to_the_session_too(graph: Any, optimizer: Any) -> None:
    """Two sessions that train in turn go the way that each goes alone."""
    w = wf.Variable([1.0, -2.0])
    x = wf.placeholder(wf.float32, [2])
    train = optimizer.minimize(wf.sum((w * x) ** 2))
    init = wf.global_variables_initializer()

    def trained(session: wf.Session, steps: int) -> list[list[float]]:
        return [
            (session.run([train, w], {x: [1, 2]}), session.run(w).tolist())[1] for _ in range(steps)
        ]

    alone = own()
    alone.run(init)
    wanted = trained(alone, 4)
    one, two = own(), own()
    one.run(init)
    found = trained(one, 2)
    two.run(init)
    other = trained(two, 2)
    assert found + trained(one, 2) == wanted
    assert other + trained(two, 2) == wanted


def test_random_numbers_begin_anew_in_each(graph: Any) -> None:
    x = wf.tf1.random_uniform([4], seed=3)
    one, two = own(), own()
    first = [one.run(x).tolist() for _ in range(2)]
    assert [two.run(x).tolist() for _ in range(2)] == first
    assert first[0] != first[1]


def test_feeds_of_any_size_and_parts_of_steps(graph: Any) -> None:
    """Plans that sizes are filled into, partial runs and values are the session's, too."""
    x = wf.placeholder(wf.float32, [None], name="x")
    v = wf.Variable(0.0)
    add = v.assign_add(wf.sum(x))
    after = add * 2
    init = wf.global_variables_initializer()
    one, two = own(), own()
    for session in (one, two):
        session.run(init)
    for n in (1, 2, 3, 4):
        one.run(add, {x: np.ones(n)})
    two.run(add, {x: np.ones(7)})
    assert (one.run(v), two.run(v)) == (10, 7)
    handle = two.partial_run_setup([add, after], [x])
    assert two.partial_run(handle, add, {x: [1.0]}) == 8
    assert two.partial_run(handle, after) == 16
    assert (one.run(v), two.run(v)) == (10, 8)
    assert float(two.values(v + 1, {}, where="add")[0].value) == 9


def test_savers_save_and_restore_those_of_the_session(graph: Any, tmp_path: Path) -> None:
    v = wf.Variable(0.0, name="v")
    step = wf.Variable(0, trainable=False, name="step")
    init, forward = (
        wf.global_variables_initializer(),
        wf.group(v.assign_add(1.5), step.assign_add(1)),
    )
    saver = wf.train.Saver()
    one, two = own(), own()
    one.run(init)
    for _ in range(2):
        one.run(forward)
    with pytest.raises(FailedPreconditionError, match="not initialised"):
        saver.save(two, str(tmp_path / "model"))
    path = saver.save(one, str(tmp_path / "model"), global_step=step)
    assert path.endswith("model-2.safetensors")
    saver.restore(two, path)
    assert two.run([v, step]) == [3, 2]
    one.run(forward)
    saver.restore_or_initialize(two, tmp_path, init)
    assert (two.run(v), one.run(v)) == (3, 4.5)
    assert not bool(wf.Session().run(v.is_initialized()))


def test_a_graph_from_text_and_shared_names() -> None:
    outside = wf.Variable([7.0], name="given")
    with wf.Graph().as_default() as graph:
        wf.Variable(1.0, name="v", shared_name="own_variables_test")
        wf.name_tensor(outside.assign_add([1.0]), "more")
        wf.global_variables_initializer()
    again = wf.Graph.from_text(graph.as_text())
    one, two = own(graph=again), own(graph=again)
    assert [one.run("more")[0], one.run("more")[0], two.run("more")[0]] == [8, 9, 8]
    one.run("init")
    assert one.run("v:0") == 1
    with pytest.raises(FailedPreconditionError):
        two.run("v:0")


def test_reset_clears_them(graph: Any) -> None:
    v = wf.Variable(1.0, container="own_variables_reset")
    session = own()
    session.run(wf.global_variables_initializer())
    wf.Session.reset("", ["own_variables_reset"])
    with pytest.raises(FailedPreconditionError, match="not initialised"):
        session.run(v)


def test_threads_make_each_state_once(graph: Any) -> None:
    v = wf.Variable(np.zeros(100, np.float32))
    init, grow = wf.global_variables_initializer(), v.assign_add(np.ones(100, np.float32))
    session = own()
    session.run(init)
    barrier = threading.Barrier(4)

    def work() -> None:
        barrier.wait()
        for _ in range(50):
            session.run(grow)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert session.run(v).tolist() == [200.0] * 100


def test_on_a_cluster_they_are_shared(graph: Any) -> None:
    """Said before any task is asked: there is none at this address."""
    with pytest.raises(wf.errors.UnsupportedError, match="belong to its tasks"):
        wf.Session("tcp://127.0.0.1:1", own_variables=True)
