"""Feeding edges inside the pipeline: what a fed value came from does not happen, the rest does."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import weft as wf

MODES = ["auto", "dataflow"]


@pytest.fixture
def graph() -> Iterator[Any]:
    with wf.Graph("g").as_default() as g:
        yield g


def _session(mode: str) -> wf.Session:
    session = wf.Session(control_flow=mode)
    session.run(wf.global_variables_initializer())
    return session


@pytest.mark.parametrize("mode", MODES)
def test_an_update_that_is_fed_does_not_happen(graph: Any, mode: str) -> None:
    v = wf.Variable([1.0, 2.0], name="v")
    new = v.assign_add([10.0, 10.0])
    with wf.control_dependencies([new]):
        late = v.read() * 1.0
    out = new * 2
    session = _session(mode)
    assert session.run([out, late], {new: [5, 6]})[0].tolist() == [10, 12]
    assert session.run(late, {new: [5, 6]}).tolist() == [1, 2]  # what is fed orders nothing
    assert v.numpy().tolist() == [1, 2]
    assert session.run([out, late])[1].tolist() == [11, 12]


@pytest.mark.parametrize("mode", MODES)
def test_control_dependencies_of_a_fed_tensor_do_not_run(graph: Any, mode: str) -> None:
    count = wf.Variable(0, name="count")
    x = wf.placeholder(wf.float32, [], name="x")
    with wf.control_dependencies([count.assign_add(1)]):
        y = x * 2
    z = y + 1
    with wf.control_dependencies([y]):
        done = wf.group(count.assign_add(100))
    session = _session(mode)
    assert session.run(z, {y: 7}) == 8
    assert count.numpy() == 0
    session.run(done, {y: 7})
    assert count.numpy() == 100
    assert session.run([z, done], {x: 1})[0] == 3
    assert count.numpy() == 201


@pytest.mark.parametrize("mode", MODES)
def test_one_of_two_results_of_an_effect(graph: Any, mode: str) -> None:
    q = wf.FIFOQueue(5, [wf.float32, wf.int32], [[], []], name="q")
    value, number = q.dequeue()
    out = [value * 2, number + 1]
    session = _session(mode)
    session.run(q.enqueue_many([[1.0, 2.0], [10, 20]]))
    assert session.run(out, {value: 50}) == [100, 11]  # taken once, one component replaced
    assert session.run(q.size()) == 1
    assert session.run(out, {value: 50, number: 7}) == [100, 8]
    assert session.run(q.size()) == 1
    assert session.run(out) == [4, 21]


@pytest.mark.parametrize("mode", MODES)
def test_edges_into_branches_and_loops(graph: Any, mode: str) -> None:
    x = wf.placeholder(wf.float32, [3], name="x")
    calls: list[int] = []

    def note(a: Any) -> Any:
        calls.append(1)
        return a

    captured = wf.py_function(note, [x * 2], wf.float32, shapes=[3])
    looped = wf.fori_loop(0, 3, lambda i, a: a + captured, x * 0)
    out = wf.cond(wf.sum(looped) > 0, lambda: looped + captured, lambda: captured)
    session = _session(mode)
    assert session.run(out, {x: [1, 1, 1]}).tolist() == [8, 8, 8]
    assert len(calls) == 1
    assert session.run(out, {x: [1, 1, 1], captured: [1, 2, 3]}).tolist() == [4, 8, 12]
    assert session.run(out, {looped: [-9, 0, 0], captured: [1, 2, 3]}).tolist() == [1, 2, 3]
    assert len(calls) == 1


def test_an_empty_list_is_of_any_dtype(graph: Any) -> None:
    n = wf.placeholder(wf.int32, [None], name="n")
    s = wf.placeholder(wf.string, [None], name="s")
    session = wf.Session()
    found = session.run(n * 2, {n: []})
    assert found.dtype == np.int32
    assert found.shape == (0,)
    assert session.run(s, {s: []}).shape == (0,)
    with pytest.raises(wf.errors.InvalidArgumentError, match=r"does not fit int32: 1.5"):
        session.run(n * 2, {n: [1.5]})


@pytest.mark.filterwarnings("ignore::weft.GraphGrowthWarning")
def test_other_threads_may_build_while_steps_run(graph: Any) -> None:
    x = wf.placeholder(wf.float32, [], name="x")
    v = wf.Variable(1.0, name="v")
    pieces = [x * float(i) + v for i in range(60)]
    session = wf.Session()
    session.run(wf.global_variables_initializer())
    wrong: list[object] = []
    stop = threading.Event()

    def build() -> None:
        with graph.as_default():
            while not stop.is_set():
                y = wf.placeholder(wf.float32, [None])
                wf.group(wf.Variable(2.0).assign_add(wf.sum(y)))
                time.sleep(0.0005)

    def work(k: int) -> None:
        for i in range(k, 60, 3):
            try:
                if session.run(pieces[i], {x: 2}) != 2 * i + 1:
                    wrong.append(i)
            except Exception as error:
                wrong.append(error)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(3)]
    builders = [threading.Thread(target=build) for _ in range(2)]
    for t in (*builders, *threads):
        t.start()
    for t in threads:
        t.join(60)
    stop.set()
    for t in builders:
        t.join(10)
    assert not wrong
