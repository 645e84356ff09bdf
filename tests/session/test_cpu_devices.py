"""Several CPU devices of one process (TensorFlow's ConfigProto(device_count={"CPU": 2})): a step
over them does what it does on one, in parts that run beside each other."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import weft as wf

E = wf.errors


@pytest.fixture
def graph() -> Iterator[Any]:
    with wf.Graph("g").as_default() as g:
        yield g


def program() -> tuple[dict[str, Any], list[Any]]:
    """Placeholders by name, and fetches whose ops are on both devices."""
    x = wf.placeholder(wf.float32, [None], name="x")
    with wf.device("/cpu:0"):
        a = wf.sin(x)
    with wf.device("/cpu:1"):
        v = wf.Variable(np.float32(2.0), name="v")
        b = wf.exp(x) * v
    total = wf.sum(a * b)
    (slope,) = wf.gradients(total, x)
    train = wf.train.Momentum(0.5, 0.5).minimize(total, [v])
    return {"x": x}, [total, slope, train, v]


@pytest.mark.parametrize("reproducible", [False, True])
def test_the_same_steps_as_on_one_device(reproducible: bool) -> None:
    wanted = on_one(reproducible)
    for cpus in (2, 3):
        with wf.Graph().as_default():
            named, fetches = program()
            session = wf.Session(cpu_devices=cpus, reproducible=reproducible)
            session.run(wf.global_variables_initializer())
            found = steps(session, named["x"], fetches)
        for got, value in zip(found, wanted, strict=True):
            if reproducible:
                np.testing.assert_array_equal(got, value)
            else:
                np.testing.assert_allclose(got, value, rtol=1e-5)


def steps(session: wf.Session, x: Any, fetches: list[Any]) -> list[Any]:
    made: list[Any] = []
    for n in (3, 5, 3, 4):
        total, slope, _, _ = session.run(fetches, {x: np.linspace(-1, 1, n, dtype=np.float32)})
        made += [total, slope, session.run(fetches[3])]
    return made


def on_one(reproducible: bool) -> list[Any]:
    with wf.Graph().as_default(), wf.Session(reproducible=reproducible) as session:
        x = wf.placeholder(wf.float32, [None], name="x")
        v = wf.Variable(np.float32(2.0), name="v")
        total = wf.sum(wf.sin(x) * (wf.exp(x) * v))
        (slope,) = wf.gradients(total, x)
        train = wf.train.Momentum(0.5, 0.5).minimize(total, [v])
        session.run(wf.global_variables_initializer())
        return steps(session, x, [total, slope, train, v])


def test_what_a_step_says(graph: Any) -> None:
    named, fetches = program()
    with wf.Session(cpu_devices=2) as session:
        session.run(wf.global_variables_initializer())
        feeds = {named["x"]: np.ones(4, np.float32)}
        text = session.explain(fetches[:2], feeds)
        assert "runs in 2 parts, on /cpu:0 and /cpu:1: op 'variable' is on /cpu:1" in text
        report = wf.RunMetadata()
        session.run(fetches[:2], feeds, run_metadata=report)
        assert (report.executor, report.devices) == ("devices", ("/cpu:0", "/cpu:1"))
        assert report.copies > 0
        assert session.ir(fetches[:2], feeds).count("part ") == 2
        x = named["x"]
        assert "one native plan" in session.explain(wf.cos(x), feeds)  # names no other device


def test_parts_run_beside_each_other(graph: Any) -> None:
    """Each waits in Python for the other: on one thread the step would not end."""
    meet = threading.Barrier(2, timeout=30)

    def there(t: Any) -> Any:
        meet.wait()
        return t

    made = []
    for device in ("/cpu:0", "/cpu:1"):
        with wf.device(device):
            made.append(wf.py_function(there, [wf.ones([2])], wf.float32, shapes=[2]))
    assert wf.Session(cpu_devices=2).run(made[0] + made[1]).tolist() == [2, 2]


def test_branches_loops_and_queues(graph: Any) -> None:
    n, p = wf.placeholder(wf.int64, []), wf.placeholder(wf.bool, [])
    queue = wf.tf1.FIFOQueue(10, wf.int64, shapes=[[]])
    with wf.device("/cpu:1"):
        power = wf.while_loop(lambda i, k: i < n, lambda i, k: (i + 1, k * 3), (0, 1))[1]
        no, yes = wf.tf1.switch(power, p)
    with wf.device("/cpu:0"):
        low = no + 1
    with wf.device("/cpu:1"):
        merged, _ = wf.tf1.merge([low, yes * 10])
        put = queue.enqueue(merged)
    with wf.Session(cpu_devices=2) as session:
        for pred, wanted in ((False, 82), (True, 810)):
            assert session.run([merged, put], {n: 4, p: pred})[0] == wanted
            assert session.run(queue.dequeue()) == wanted
        with pytest.raises(E.InvalidArgumentError, match="is dead in this run"):
            session.run(low, {n: 4, p: True})
        assert session.run(low, {n: 1, p: False}) == 4


def test_an_error_of_one_part_ends_the_step(graph: Any) -> None:
    x, i = wf.placeholder(wf.float32, [3]), wf.placeholder(wf.int64, [])
    with wf.device("/cpu:1"):
        taken = wf.take(x, i, axis=0)
    with wf.device("/cpu:0"):
        y = taken + wf.sum(x)
    with wf.Session(cpu_devices=2) as session:
        assert session.run(y, {x: [1, 2, 3], i: 2}) == 9
        with pytest.raises(E.InvalidArgumentError, match=r"test_cpu_devices\.py"):
            session.run(y, {x: [1, 2, 3], i: 3})
        assert session.run(y, {x: [1, 2, 3], i: 0}) == 7


def test_parts_of_steps_and_own_values(graph: Any) -> None:
    a, b = wf.placeholder(wf.float32, []), wf.placeholder(wf.float32, [])
    with wf.device("/cpu:1"):
        v = wf.Variable(1.0)
        grown = v.assign_add(a)
    later = grown * b
    init = wf.global_variables_initializer()
    one, two = (wf.Session(cpu_devices=2, own_variables=True) for _ in range(2))
    for session in (one, two):
        session.run(init)
    handle = one.partial_run_setup([grown, later], [a, b])
    assert one.partial_run(handle, grown, {a: 2}) == 3
    assert one.partial_run(handle, later, {b: 5}) == 15
    assert [one.run(v), two.run(v)] == [3, 1]


def test_errors(graph: Any) -> None:
    x = wf.placeholder(wf.float32, [])
    with wf.device("/cpu:2"):
        y = wf.exp(x)
    with pytest.raises(E.InvalidArgumentError, match=r"(?s)no such device.*/cpu:2.*cpu:0, .*cpu:1"):
        wf.Session(cpu_devices=2).run(y, {x: 1})
    assert wf.Session(cpu_devices=2, soft_placement=True).run(y, {x: 0}) == 1
    with pytest.raises(E.InvalidArgumentError, match="there is no device '/cpu:2' here"):
        wf.Session().run(y, {x: 1})
    with pytest.raises(E.UnsupportedError, match=r"'exp' is on /cpu:2, and .*'native'"):
        wf.Session(cpu_devices=3, control_flow="native").run(y, {x: 1})
    for bad in (0, -1, 2.0, True, np.float32(2), np.bool_(True), np.array([2, 2]), "2", None):
        with pytest.raises(
            E.InvalidArgumentError,
            match=r"Session: cpu_devices must be (an integer|at least 1), got",
        ):
            wf.Session(cpu_devices=bad)  # type: ignore[arg-type]
    for count in (np.int64(3), np.uint8(3)):
        session = wf.Session(cpu_devices=count)  # type: ignore[arg-type]
        assert session.run(y, {x: 1}) == wf.Session(cpu_devices=3).run(y, {x: 1})
    with pytest.raises(E.UnsupportedError, match="a task of a cluster has one"):
        wf.Session("tcp://127.0.0.1:1", cpu_devices=2)
