"""Branches, loops and gradients over tasks, and keys: the parts of a session on a cluster that need
more than values sent once."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import weft as wf
from weft.comm.addresses import Secret
from weft.runtime.cluster.server import Server

P0, P1 = "/job:ps/task:0", "/job:ps/task:1"
W0, W1 = "/job:worker/task:0", "/job:worker/task:1"


@pytest.fixture(scope="module")
def target() -> Iterator[str]:
    made = Server.create_local_cluster({"ps": 2, "worker": 2})
    yield made[2].target
    for server in made:
        server.stop()


def test_branch_over_tasks(target: str) -> None:
    with wf.Graph().as_default():
        x = wf.placeholder(wf.float32, [])

        def double() -> wf.Tensor:
            with wf.device(W0):
                return x * 2.0

        def less() -> wf.Tensor:
            with wf.device(W1):
                return x - 1.0

        y = wf.cond(x > 1.0, double, less)
        with wf.Session(target) as session:
            assert [session.run(y, {x: value}) for value in (3.0, 0.5, 2.0)] == [6, -0.5, 4]


def test_loop_over_tasks_and_its_gradient(target: str) -> None:
    with wf.Graph().as_default():
        x, n = wf.placeholder(wf.float32, []), wf.placeholder(wf.int32, [])
        with wf.device(P0):
            v = wf.Variable(2.0, name="in_loop")

        def body(i: wf.Tensor, a: wf.Tensor) -> tuple[wf.Tensor, wf.Tensor]:
            with wf.device(W0):
                b = a * 1.5
            with wf.device(W1):
                return i + 1, b + v.read()

        with wf.device(W0):
            _, last = wf.while_loop(lambda i, a: i < n, body, [wf.constant(0), x])
        (slope,) = wf.gradients(last, [x])
        init = wf.global_variables_initializer()
        with wf.Session(target) as session:
            session.run(init)
            for turns in (0, 1, 5):
                expected = 1.0
                for _ in range(turns):
                    expected = expected * 1.5 + 2
                found = session.run([last, slope], {x: 1.0, n: turns})
                assert found == [expected, 1.5**turns]


def test_switch_and_merge_over_tasks(target: str) -> None:
    """What is not taken is sent as dead."""
    with wf.Graph().as_default():
        x, p = wf.placeholder(wf.float32, [1000]), wf.placeholder(wf.bool_, [])
        with wf.device(P0):
            no, yes = wf.switch(x, p)
        with wf.device(W0):
            left = no - 1.0
        with wf.device(W1):
            right = yes + 1.0
        with wf.device(P1):
            merged, _ = wf.merge([left, right])
        with wf.Session(target) as session:
            ones = np.ones(1000, np.float32)
            assert session.run(merged, {x: ones, p: True}).tolist() == [2.0] * 1000
            assert session.run(merged, {x: ones, p: False}).tolist() == [0.0] * 1000


@pytest.mark.parametrize("elsewhere", [P0, W0])
def test_what_comes_after_a_dead_value_does_not_run(target: str, elsewhere: str) -> None:
    """Though nothing else needs the value."""
    with wf.Graph().as_default():
        x, p = wf.placeholder(wf.float32, []), wf.placeholder(wf.bool_, [])
        with wf.device(elsewhere):
            no, yes = wf.switch(x, p)
        with wf.device(P0):
            queue = wf.FIFOQueue(9, wf.float32, shapes=[[]], name=f"after {elsewhere}")
            puts = []
            for value, number in ((no, 1), (yes, 2)):
                with wf.control_dependencies([value]):
                    puts.append(queue.enqueue(number))
            first, size = queue.dequeue(), queue.size()
        with wf.Session(target) as session:
            session.run(puts, {x: 3, p: True})
            assert session.run(size) == 1
            assert session.run(first) == 2


def test_deadline_in_a_loop(target: str) -> None:
    with wf.Graph().as_default():
        x = wf.placeholder(wf.float32, [])

        def body(a: wf.Tensor) -> wf.Tensor:
            with wf.device(W0):
                b = a * 0.5
            with wf.device(W1):
                return b * 2.0

        with wf.device(W0):
            (last,) = wf.while_loop(lambda a: a > 0.0, body, [x])
        with wf.Session(target) as session:
            assert session.run(last, {x: -1.0}) == -1
            begun = time.monotonic()
            with pytest.raises(wf.errors.DeadlineExceededError):
                session.run(last, {x: 1.0}, wf.RunOptions(timeout=0.3))
            assert time.monotonic() - begun < 20  # it is not the timing of a busy machine
            assert session.run(last, {x: -1.0}) == -1


def test_barrier_of_queues_over_sessions(target: str) -> None:
    """Two workers' steps wait for each other by queues on a third task (paper, section 4.4)."""
    graphs = []
    for worker in (W0, W1):
        with wf.Graph().as_default() as graph:
            with wf.device(P0):
                total = wf.Variable(0.0, name="total")
                mine = wf.FIFOQueue(4, [wf.float32], [[]], name=f"to_{worker[-1]}")
                other = wf.FIFOQueue(4, [wf.float32], [[]], name=f"to_{1 - int(worker[-1])}")
            with wf.device(worker):
                value = wf.constant(float(worker[-1])) + 1.0
            with wf.control_dependencies([other.enqueue([value])]):
                got = mine.dequeue()
            graphs.append((graph, total.assign_add(got), wf.global_variables_initializer()))
    with wf.Session(target, graph=graphs[0][0]) as session:
        session.run(graphs[0][2])

    def run(graph: wf.Graph, step: wf.Tensor) -> None:
        with wf.Session(target, graph=graph) as own:
            for _ in range(10):
                own.run(step)

    threads = [threading.Thread(target=run, args=g[:2]) for g in graphs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    with wf.Session(target, graph=graphs[0][0]) as session:
        assert session.run(session.graph.variables[0]) == 30


def test_keys(tmp_path: Path) -> None:
    right, wrong = tmp_path / "right", tmp_path / "wrong"
    for path in (right, wrong):
        Secret.generate().to_file(path)
    with Server({"local": ["127.0.0.1:0"]}, key_file=right) as server, wf.Graph().as_default():
        y = wf.constant(1.0) + 1.0
        with wf.Session(cluster=wf.train.Cluster(server.target, key_file=right)) as session:
            assert session.run(y) == 2
        with wf.Session(
            cluster=wf.train.Cluster(server.target, secret=Secret.from_file(right))
        ) as session:
            assert session.run(y) == 2
        for options in ({"key_file": wrong}, {}):
            errors = (wf.errors.FailedPreconditionError, wf.errors.UnavailableError)
            with pytest.raises(errors):
                wf.Session(cluster=wf.train.Cluster(server.target, connect_timeout=1, **options))
        right.chmod(0o644)
        with pytest.raises(wf.errors.FailedPreconditionError, match="others may read"):
            wf.Session(cluster=wf.train.Cluster(server.target, key_file=right))


def test_an_address_of_others_needs_a_key(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))  # no key of the user's own
    with pytest.raises(wf.errors.FailedPreconditionError, match="weft keygen"):
        Server({"local": ["0.0.0.0:0"]})
