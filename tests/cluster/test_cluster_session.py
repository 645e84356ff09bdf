"""`wf.Session` on a cluster of tasks in this process, over ZeroMQ on loopback."""

import gc
import logging
import os
import re
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from clusters import local_cluster

import weft as wf
from weft.runtime.cluster import client, master
from weft.runtime.cluster import server as worker
from weft.runtime.cluster.master import Pending
from weft.runtime.cluster.server import Server
from weft.runtime.cluster.transport import ClientAddress

PS, WORKER = "/job:ps/task:0", "/job:worker/task:0"


@pytest.fixture(scope="module", params=["apart", "here"])
def servers(request: pytest.FixtureRequest) -> Iterator[list[Server]]:
    """apart: all messages over sockets, as between processes; here: by calls, but for tensors."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "apart":
            patch.setattr(master, "find", lambda who: None)
            patch.setattr(worker, "find", lambda who: None)
        yield from started()


def started() -> Iterator[list[Server]]:
    made = Server.create_local_cluster({"ps": 2, "worker": 2})
    yield made
    for server in made:
        server.stop()


@pytest.fixture
def target(servers: list[Server]) -> Iterator[str]:
    """The address of /job:worker/task:0; containers are cleared afterwards."""
    yield servers[2].target
    wf.Session.reset(servers[2].target)


@pytest.fixture
def graph() -> Iterator[wf.Graph]:
    with wf.Graph().as_default() as made:
        yield made


def linear() -> tuple[wf.Tensor, wf.Tensor, wf.Tensor]:
    """w * x + b: w and b on the two parameter servers, the rest on a worker."""
    x = wf.placeholder(wf.float32, [None], name="x")
    with wf.device(PS):
        w = wf.Variable(3.0, name="w")
    with wf.device("/job:ps/task:1"):
        b = wf.Variable([1.0, 2.0], name="b")
    with wf.device(WORKER):
        y = w.read() * x + b.read()
    return x, y, w.assign_add(1.0)


def test_step_over_three_tasks(graph: wf.Graph, target: str) -> None:
    x, y, up = linear()
    init = wf.global_variables_initializer()
    with wf.Session(target, graph=graph) as session:
        session.run(init)
        assert session.run(y, {x: [1, 2]}).tolist() == [4, 8]
        assert session.run(up) == 4
        assert session.run(y, {x: [1, 2]}).tolist() == [5, 10]
        assert session.cache_info().size == 3


def test_sessions_share_what_tasks_hold(target: str) -> None:
    with wf.Graph().as_default(), wf.Session(target) as first:
        x, y, up = linear()
        first.run(wf.global_variables_initializer())
        first.run(up)
        with wf.Graph().as_default(), wf.Session(target) as second:
            x2, y2, up2 = linear()
            assert second.run(y2, {x2: [1, 2]}).tolist() == [5, 10]
            second.run(up2)
        assert first.run(y, {x: [0, 1]}).tolist() == [1, 7]


def test_uninitialised_and_reset(graph: wf.Graph, target: str) -> None:
    x, y, _ = linear()
    init = wf.global_variables_initializer()
    with wf.Session(target, graph=graph) as session:
        with pytest.raises(wf.errors.FailedPreconditionError, match=r"'[wb]' is not initialised"):
            session.run(y, {x: [1, 2]})
        session.run(init)
        session.run(y, {x: [1, 2]})
    wf.Session.reset(target)
    with (
        wf.Session(target, graph=graph) as session,
        pytest.raises(wf.errors.FailedPreconditionError, match="is not initialised"),
    ):
        session.run(y, {x: [1, 2]})


def test_steps_from_before_a_reset_use_what_is_new(graph: wf.Graph, target: str) -> None:
    with wf.device(PS):
        v = wf.Variable(1.0, name="v")
    up, init, value = v.assign_add(1.0), wf.global_variables_initializer(), v.read() * 1.0
    with wf.Session(target, graph=graph) as session:
        session.run(init)
        assert session.run(up) == 2
        wf.Session.reset(target)
        session.run(init)
        assert session.run(value) == 1
        assert session.run(up) == 2
        assert session.run(value) == 2
        with wf.Session(target, graph=graph) as other:
            assert other.run(value) == 2


def test_variable_declared_otherwise(target: str) -> None:
    with wf.Graph().as_default(), wf.Session(target) as session:
        linear()
        session.run(wf.global_variables_initializer())
    with wf.Graph().as_default(), wf.Session(target) as session:
        with wf.device(PS):
            wf.Variable([1, 2], name="w")
        with pytest.raises(wf.errors.InvalidArgumentError, match=r"'w'.*declared otherwise"):
            session.run(wf.global_variables_initializer())


def test_large_feeds_constants_variables_and_fetches(graph: wf.Graph, target: str) -> None:
    table = np.arange(300_000, dtype=np.float32)
    x = wf.placeholder(wf.float32, [300_000])
    with wf.device(PS):
        held = wf.Variable(wf.zeros([300_000]), name="held")
        store = held.assign(x)
    with wf.device(WORKER):
        y = held.read() + table
    with wf.Session(target, graph=graph) as session:
        session.run(store, {x: table})
        assert np.array_equal(session.run(y), 2 * table)
        assert np.array_equal(session.run(x + 1.0, {x: table}), table + 1)


@pytest.mark.share(2)
@pytest.mark.parametrize("count", [3, 20_000])
def test_strings(graph: wf.Graph, target: str, count: int) -> None:
    given = np.array([f"number {i}" for i in range(count)], object)
    x = wf.placeholder(wf.string, [None])
    with wf.device(PS):
        a = wf.string_join([x, x], separator="-")
    with wf.device(WORKER):
        b = wf.string_join([a, a], separator="+")
    with wf.Session(target, graph=graph) as session:
        made = session.run(b, {x: given})
    assert made[2] == b"number 2-number 2+number 2-number 2"
    assert len(made) == count


def test_training_has_the_bits_of_one_process(target: str) -> None:
    data = np.random.default_rng(0).normal(size=(16, 4)).astype(np.float32)

    def train(session_target: str) -> list[np.ndarray]:
        with wf.Graph().as_default():
            x = wf.placeholder(wf.float32, [None, 4])
            on_cluster = bool(session_target)
            with wf.device("/job:ps/task:0" if on_cluster else "/cpu:0"):
                w = wf.Variable(wf.ones([4, 3]), name="w1")
            with wf.device("/job:ps/task:1" if on_cluster else "/cpu:0"):
                v = wf.Variable(wf.ones([3, 1]), name="w2")
            with wf.device(WORKER if on_cluster else "/cpu:0"):
                hidden = wf.tanh(wf.matmul(x, w.read()))
                loss = wf.mean((wf.matmul(hidden, v.read()) - 1.0) ** 2)
                step = wf.train.Momentum(0.1, 0.9).minimize(loss)
            init = wf.global_variables_initializer()
            with wf.Session(session_target) as session:
                session.run(init)
                for _ in range(5):
                    session.run(step, {x: data})
                return list(session.run([w, v, loss], {x: data}))

    for ours, theirs in zip(train(target), train(""), strict=True):
        assert ours.tobytes() == theirs.tobytes()


def test_queue_between_sessions(target: str) -> None:
    def built() -> tuple[Any, wf.Tensor, wf.Tensor]:
        x = wf.placeholder(wf.float32, [])
        with wf.device(PS):
            queue = wf.FIFOQueue(2, [wf.float32], [[]], name="q")
        return queue.enqueue([x]), queue.dequeue(), x

    got: list[float] = []
    with wf.Graph().as_default() as g1:
        put, _, x = built()
    with wf.Graph().as_default() as g2:
        _, take, _ = built()
    with wf.Session(target, graph=g1) as one, wf.Session(target, graph=g2) as two:
        thread = threading.Thread(target=lambda: got.extend(two.run(take) for _ in range(5)))
        thread.start()
        for i in range(5):
            one.run(put, {x: i})
        thread.join(20)
    assert got == [0, 1, 2, 3, 4]


def test_a_queue_of_any_shape_between_graphs_of_other_ranks(target: str) -> None:
    """How many axes its elements have is each graph's own affair."""

    def through(shape: list[None]) -> tuple[Any, Any, Any]:
        with wf.device(PS):
            queue = wf.FIFOQueue(2, [wf.float32], name="any")
        x = wf.placeholder(wf.float32, shape)
        return queue.enqueue([x]), queue.dequeue(), x

    for rank, value in ((1, np.arange(3)), (1, np.arange(0)), (2, np.ones((2, 4)))):
        with wf.Graph().as_default(), wf.Session(target) as session:
            put, got, x = through([None] * rank)
            session.run(put, {x: value})
            np.testing.assert_array_equal(session.run(got), value)
            if rank == 2:
                session.run(put, {x: value})  # for the next graph, which takes one axis
    with wf.Graph().as_default(), wf.Session(target) as session:
        put, got, x = through([None])
        with pytest.raises(wf.errors.ShapeError, match="not of 1 axes"):
            session.run(got)


def test_a_variable_whose_shape_changes(graph: wf.Graph, target: str) -> None:
    x = wf.placeholder(wf.float32, [None])
    with wf.device(PS):
        v = wf.Variable(x, validate_shape=False, name="changes")
    with wf.device(WORKER):
        total = wf.sum(v * 2.0)
    put, add = v.assign(x), v.assign_add(x)
    with wf.Session(target) as session:
        session.run(v.initializer, {x: [1, 2, 3]})
        assert session.run(total) == 12
        for given in ([1, 2], [], [4, 5, 6, 7]):
            session.run(put, {x: given})
            assert session.run(total) == 2 * sum(given)
            np.testing.assert_array_equal(session.run(add, {x: given}), 2 * np.array(given))
    with wf.Graph().as_default(), wf.Session(target) as session:
        with wf.device(PS):
            fixed = wf.Variable(np.ones(3, np.float32), name="changes")
        with pytest.raises(wf.errors.InvalidArgumentError, match=r"declared otherwise.*f32\[\?\]"):
            session.run(fixed)


def test_concurrent_steps(graph: wf.Graph, target: str) -> None:
    x, y, up = linear()
    init = wf.global_variables_initializer()
    with wf.Session(target, graph=graph) as session:
        session.run(init)
        session.run(y, {x: [1, 2]})
        threads = [
            threading.Thread(target=lambda: [session.run([up, y], {x: [1, 2]}) for _ in range(10)])
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert session.run(y, {x: [1, 0]}).tolist() == [44, 2]


def test_error_on_a_task_is_raised_with_its_place(graph: wf.Graph, target: str) -> None:
    x = wf.placeholder(wf.int32, [None])
    with wf.device(PS):
        table = wf.Variable([1.0, 2.0], name="w")
        rows = wf.gather(table.read(), x)
    with wf.device(WORKER):
        y = rows + 1.0
    with wf.Session(target, graph=graph) as session:
        session.run(table.initializer)
        assert session.run(y, {x: [1]}).tolist() == [3]
        with pytest.raises(wf.errors.InvalidArgumentError, match=r"test_cluster_session\.py"):
            session.run(y, {x: [7]})
        assert session.run(y, {x: [0]}).tolist() == [2]


def waiting(where: str = PS) -> wf.Tensor:
    """What waits for a queue on one task that nobody fills, used on another one."""
    with wf.device(where):
        taken = wf.FIFOQueue(1, [wf.float32], [[]], name="empty").dequeue()
    with wf.device(WORKER):
        return taken * 2.0


@pytest.mark.share(2)
def test_deadline_says_who_waits_for_whom(graph: wf.Graph, target: str) -> None:
    y = waiting()
    with wf.Session(target, graph=graph) as session:
        begun = time.monotonic()
        with pytest.raises(wf.errors.DeadlineExceededError) as caught:
            # compiling comes first and has to be over by then on a busy machine too
            session.run(y, options=wf.RunOptions(timeout=1.5))
        assert time.monotonic() - begun < 5
    text = str(caught.value)
    assert f"{WORKER} waits for 'dequeue" in text
    assert re.search(rf"from {PS} since (0\.\d|1\.[0-5]) s, at ", text)
    assert "test_cluster_session.py" in text
    assert f"{PS} waits in its own op dequeue at " in text


@pytest.mark.slow
@pytest.mark.share(2)
def test_a_step_that_has_failed_is_not_kept(graph: wf.Graph, target: str) -> None:
    """By what its tasks remember of it: its error has a traceback, and that the arrays."""
    y = waiting()
    before = sum(isinstance(o, Pending) for o in gc.get_objects())
    with wf.Session(target, graph=graph) as session:
        with pytest.raises(wf.errors.DeadlineExceededError) as caught:
            session.run(y, options=wf.RunOptions(timeout=1.5))
        del caught
        gc.collect()
        assert sum(isinstance(o, Pending) for o in gc.get_objects()) <= before


def test_deadline_of_a_recv(graph: wf.Graph, target: str) -> None:
    y = waiting()
    with (
        wf.Session(graph=graph, cluster=wf.train.Cluster(target, recv_timeout=0.2)) as session,
        pytest.raises(wf.errors.DeadlineExceededError, match=f"{WORKER} has waited 0.[23] s"),
    ):
        session.run(y)


def test_close_ends_steps(target: str) -> None:
    with wf.Graph().as_default() as graph:
        y = waiting()
    session = wf.Session(target, graph=graph)
    caught: list[BaseException] = []

    def run() -> None:
        try:
            session.run(y)
        except wf.errors.WeftError as error:
            caught.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    time.sleep(0.3)
    session.close()
    thread.join(10)
    assert isinstance(caught[0], wf.errors.CancelledError)
    with pytest.raises(wf.errors.FailedPreconditionError, match="closed"):
        session.run(y)


def test_python_functions_do_not_travel(graph: wf.Graph, target: str) -> None:
    x = wf.placeholder(wf.float32, [])
    y = wf.py_function(lambda a: a, [x], [wf.float32], shapes=[[]])
    with (
        wf.Session(target, graph=graph) as session,
        pytest.raises(wf.errors.UnsupportedError, match="functions are not sent to tasks"),
    ):
        session.run(y, {x: 1})


def repeated() -> tuple[wf.Tensor, wf.Tensor]:
    """The same of w twice on its task, read by a worker that needs half of it."""
    x = wf.placeholder(wf.float32, [4], name="x")
    with wf.device(PS):
        w = wf.Variable([1.0, 2.0, 3.0, 4.0], name="w")
        first, second = wf.exp(w) * 1.0, wf.exp(w) - 0.0
    with wf.device(WORKER):
        scale = wf.sqrt(wf.constant(np.full(5000, 4.0, np.float32)))  # 2, which both need
        y = (first[:4] + second) * x * scale[:4]
    with wf.device(PS):
        z = wf.sum(y * scale[:4]) + 0 * wf.sum(first)
    return x, z


def test_a_step_is_simplified_before_it_is_placed_and_cut(graph: wf.Graph, target: str) -> None:
    x, z = repeated()
    init = wf.global_variables_initializer()
    feeds = {x: [1.0, 2.0, 3.0, 4.0]}
    with wf.Session(target, graph=graph) as session:
        session.run(init)
        whole = session.ir(z, feeds, after="traced"), session.ir(z, feeds, after="cse")
        assert [text.count(" exp(") for text in whole] == [2, 1]
        cut = session.ir(z, feeds, after="partition")
        assert cut.count(" exp(") == 1
        assert "sqrt" not in cut  # folded, and made where it is needed
        assert cut.count(" send(") == 2  # exp(w) there, y back
        wanted = sum(2 * np.exp(k) * k * 4 for k in (1.0, 2.0, 3.0, 4.0))
        assert session.run(z, feeds) == pytest.approx(wanted, rel=1e-5)


def test_both_ways_to_run_a_reproducible_step_give_the_same_bits(target: str) -> None:
    found = []
    for where in ("", target):
        with wf.Graph().as_default() as graph:
            ends = ["", PS, "/job:worker/task:1"] if where else [""] * 3
            x = wf.placeholder(wf.float32, [3, 50], name="x")
            with wf.device(ends[1]):
                a = wf.tanh(x * 3 - 0) / wf.sum(x * 3, axis=1, keepdims=True) ** 3
            with wf.device(ends[2]):
                b = wf.sum(wf.exp(a) @ wf.transpose(wf.tanh(x * 3)), axis=0) * 1.0
        given = np.random.default_rng(0).uniform(1, 2, (3, 50)).astype(np.float32)
        with wf.Session(where, graph=graph, reproducible=True) as session:
            found.append([r.tobytes() for r in session.run([a, b], {x: given})])
            if where:
                text = session.ir(b, {x: given}, after="simplify_exactly")
                assert "part " not in text
    assert found[0] == found[1]


def test_explain_and_metadata(graph: wf.Graph, target: str) -> None:
    x, y, _ = linear()
    init = wf.global_variables_initializer()
    with wf.Session(target, graph=graph) as session:
        session.run(init)
        text = session.explain(y, {x: [1, 2]})
        assert "3 parts" in text
        assert "2 messages" in text
        assert "/job:ps/task:1/cpu:0 -> /job:worker/task:0/cpu:0" in text
        metadata = wf.RunMetadata()
        session.run(y, {x: [1, 2]}, run_metadata=metadata)
        assert metadata.executor == "cluster"
        assert "3 parts on the tasks" in str(metadata)


def test_partial_run(graph: wf.Graph, target: str) -> None:
    a, b = wf.placeholder(wf.float32, []), wf.placeholder(wf.float32, [])
    with wf.device(PS):
        total = a + 1.0
    with wf.device(WORKER):
        scaled = total * b
    with wf.Session(target, graph=graph) as session:
        handle = session.partial_run_setup([total, scaled], [a, b])
        first = session.partial_run(handle, total, {a: 1})
        assert session.partial_run(handle, scaled, {b: first}) == 4


def test_a_step_with_nothing_to_do(graph: wf.Graph, target: str) -> None:
    x = wf.placeholder(wf.float32, [2], name="x")
    init, nothing = wf.global_variables_initializer(), wf.no_op()
    with wf.Session(target, graph=graph) as session:
        assert session.run([]) == []
        assert session.run([init, nothing]) == [None, None]
        options = wf.RunOptions(timeout=5, trace_level=wf.RunOptions.FULL_TRACE)
        assert session.run(nothing, options=options, run_metadata=wf.RunMetadata()) is None
        assert session.run(x, {x: [1, 2]}).tolist() == [1, 2]


@pytest.mark.share(2)
@pytest.mark.parametrize("value", [-1.0, 1.0])
def test_a_fetch_of_one_side(graph: wf.Graph, target: str, value: float) -> None:
    """As in one process: an error where it is dead, else a value."""
    x = wf.placeholder(wf.float32, [], name="x")
    with wf.device(PS):
        below, _ = wf.switch(x, x > 0)
    with wf.device(WORKER):
        y = below + 1
    for where in (target, ""):
        if not where:
            with wf.Graph().as_default() as graph:
                x = wf.placeholder(wf.float32, [], name="x")
                y = wf.switch(x, x > 0)[0] + 1
        with wf.Session(where, graph=graph) as session:
            if value < 0:
                assert session.run(y, {x: value}) == value + 1
                continue
            with pytest.raises(wf.errors.InvalidArgumentError, match=r"is dead in this run: "):
                session.run(y, {x: value})


def test_the_log_says_which_task_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("weft.runtime.cluster.master.WAITING_SECONDS", 0.1)
    with (
        pytest.raises(wf.errors.UnavailableError),
        caplog.at_level(logging.WARNING, "weft.cluster"),
    ):
        wf.Session(cluster=wf.train.Cluster("tcp://127.0.0.1:9", connect_timeout=0.5))
    said = [r.getMessage() for r in caplog.records]
    assert len(said) >= 2
    assert said[0].startswith("waiting for the task at tcp://127.0.0.1:9 since 0 s, for at most ")


def test_what_is_refused(servers: list[Server]) -> None:
    with pytest.raises(wf.errors.UnsupportedError, match="deterministic"):
        wf.Session(servers[0].target, deterministic=True)
    with pytest.raises(wf.errors.InvalidArgumentError, match="address"):
        wf.Session("grpc://localhost:1")
    with pytest.raises(wf.errors.UnavailableError, match="cannot be reached"):
        wf.Session(cluster=wf.train.Cluster("tcp://127.0.0.1:9", connect_timeout=0.3))
    with pytest.raises(wf.errors.InvalidArgumentError, match="task_index=7"):
        Server({"ps": ["127.0.0.1:0"]}, "ps", 7)
    with pytest.raises(wf.errors.UnsupportedError, match="protocol='grpc'"):
        Server({"ps": ["127.0.0.1:0"]}, "ps", 0, protocol="grpc")


def test_device_that_the_cluster_does_not_have(graph: wf.Graph, target: str) -> None:
    with wf.device("/job:ps/task:9"):
        x = wf.constant(1.0) + 1.0
    with (
        wf.Session(target, graph=graph) as session,
        pytest.raises(wf.errors.InvalidArgumentError, match="/job:ps/task:9"),
    ):
        session.run(x)


def test_a_local_server_alone() -> None:
    with Server.create_local_server() as server, wf.Graph().as_default():
        v = wf.Variable(2.0, name="v")
        with wf.Session(server.target) as session:
            session.run(wf.global_variables_initializer())
            assert session.run(v * 3.0) == 6
        assert server.name == "/job:local/task:0"
    assert server.join(0)
    with pytest.raises(wf.errors.UnavailableError):
        wf.Session(cluster=wf.train.Cluster(server.target, connect_timeout=0.3))


def test_ipc(tmp_path: object) -> None:
    spec = {"ps": [f"ipc://{tmp_path}/ps"], "worker": [f"ipc://{tmp_path}/worker"]}
    with Server(spec, "ps", 0), Server(spec, "worker", 0) as worker, wf.Graph().as_default():
        with wf.device(PS):
            v = wf.Variable(2.0, name="v")
        with wf.device(WORKER):
            y = v * 3.0
        with wf.Session(worker.target) as session:
            session.run(wf.global_variables_initializer())
            assert session.run(y) == 6


def test_folders_of_dead_sessions_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    dead, alive = ClientAddress("ipc:///x"), ClientAddress("ipc:///x")
    folders = sorted(tmp_path.iterdir())
    assert len(folders) == 2
    os.close(dead._lock or -1)  # as the end of the process does
    for folder in folders:
        os.utime(folder, (0, 0))
    new = ClientAddress("ipc:///x")
    left = sorted(tmp_path.iterdir())
    assert len(left) == 2
    assert new._folder in left
    assert alive._folder in left
    for one in (new, alive):
        one.close()
        one.close()
    assert not list(tmp_path.iterdir())


def test_close_from_many_threads(target: str) -> None:
    with wf.Graph().as_default() as graph:
        x = wf.constant(1.0) + 1.0
    session = wf.Session(target, graph=graph)
    assert session.run(x) == 2
    threads = [threading.Thread(target=session.close) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()


def test_what_nothing_binds_stays_with_the_session(graph: wf.Graph, target: str) -> None:
    x = wf.ones([1024, 1024])
    left, right = ((x * k) @ x @ x @ x for k in (2.0, 3.0))
    y = wf.sum(left) + wf.sum(right)
    with wf.Session(target, graph=graph) as session:
        assert "on 1 of" in session.explain(y)
    with wf.Session(graph=graph, cluster=wf.train.Cluster(target, spread=True)) as session:
        text = session.explain(y)
        assert "on 1 of" not in text, text


def test_ops_leave_the_session_where_that_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    """As nobody says whether they may: to a server of one worker, not of two. The messages are
    those that were predicted, and the results those of one task."""
    monkeypatch.setattr(worker, "usable_processors", lambda: 8)  # for all tasks
    before = wf.get_num_threads()
    wf.set_num_threads(1)
    try:
        for workers in (1, 2):
            with local_cluster({"ps": 1, "worker": workers}) as servers:
                _check_leaving(servers[1].target, leaves=workers == 1)
    finally:
        wf.set_num_threads(before)


def _check_leaving(target: str, *, leaves: bool) -> None:
    rng = np.random.default_rng(0)
    one, other = (rng.normal(0, 0.03, (400, 400)).astype(np.float32) for _ in range(2))
    with wf.Graph().as_default() as graph:
        x = wf.placeholder(wf.float32, [400, 400])
        with wf.device("/job:ps"):
            w = wf.Variable(other)
        y, z = x, w.read()
        for _ in range(2):
            y, z = wf.tanh(y @ x), wf.tanh(z @ w.read())
        fetched = wf.sum(y) * wf.sum(z)
    found = []
    for spread in (None, False) if leaves else (None,):
        cluster = wf.train.Cluster(target, spread=spread)
        with wf.Session(graph=graph, cluster=cluster) as session:
            session.run(w.initializer)
            found.append(session.run(fetched, {x: one}))
            metadata = wf.RunMetadata()
            trace = wf.RunOptions(trace_level=wf.RunOptions.FULL_TRACE)
            session.run(fetched, {x: one}, trace, metadata)
            text = session.explain(fetched, {x: one})
        timeline, messages = metadata.timeline, re.search(r"\n(\d+) messages, ", text)
        assert timeline is not None
        assert messages is not None
        assert len(timeline.transfers) == int(messages[1]) == 1
        there = text.partition("\n/job:ps/task:0/cpu:0: ")[2].partition("\n\n")[0]
        assert there.count("\n  matmul at ") == (2 if leaves and spread is None else 0)
        said = "may leave" if leaves else "stay in"
        assert (f"ops that nothing binds {said} the session's task" in text) == (spread is None)
    np.testing.assert_allclose(found[0], found[-1], rtol=1e-5)


def test_a_task_says_whether_it_has_nothing_else_to_do() -> None:
    """While its program waits in `join`, and no session has it for its target."""
    with local_cluster({"worker": 2}) as servers, wf.Session(servers[0].target) as session:

        def serves() -> list[bool]:
            return [row["serves"] for row in session.task_stats().values()]

        def wait_for(expected: list[bool]) -> None:
            until = time.monotonic() + 20
            while serves() != expected:
                assert time.monotonic() < until, serves()
                time.sleep(0.01)

        assert serves() == [False, False]
        waiting = [threading.Thread(target=s.join, args=(60,), daemon=True) for s in servers]
        for thread in waiting:
            thread.start()
        wait_for([False, True])  # the first has this session
        with wf.Session(servers[1].target):
            wait_for([False, False])
        wait_for([False, True])


@pytest.mark.slow
def test_threads_agree_on_where_a_variable_is(monkeypatch: pytest.MonkeyPatch) -> None:
    place: Any = client.place_where_it_wins
    held: list[dict[str, str]] = []

    def slow(*args: Any, **options: Any) -> Any:
        held.append(dict(options["held"]))
        time.sleep(0.3)
        return place(*args, **options)

    monkeypatch.setattr(client, "place_where_it_wins", slow)
    w = wf.Variable(np.ones(3, np.float32), name="w")
    servers = wf.train.Server.create_local_cluster({"worker": 2})
    target = servers[0].target
    functions = [wf.compile(f, cluster=target) for f in (lambda: w + 1, lambda: w + 2)]
    with ThreadPoolExecutor(2) as threads:
        made = list(threads.map(lambda f: f().numpy().tolist(), functions))
    assert made == [[2, 2, 2], [3, 3, 3]]
    assert [len(h) for h in held[:2]] == [0, 1]
    for server in servers:
        server.stop()
