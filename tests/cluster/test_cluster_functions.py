"""Compiled functions on a cluster: `wf.compile(cluster=)`. The truth is the same function here."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import weft as wf
from weft.ir.errors import FailedPreconditionError, InvalidArgumentError, UnsupportedError

F32 = np.float32


@pytest.fixture(name="servers")
def _servers() -> Iterator[list[wf.train.Server]]:
    made = wf.train.Server.create_local_cluster({"ps": 1, "worker": 2})
    yield made
    for server in made:
        server.stop()


def _data() -> tuple[Any, Any]:
    x = np.random.default_rng(0).normal(size=(40, 3)).astype(F32)
    return x, x @ np.array([1, -2, 0.5], F32)


def _trained(cluster: str | None) -> list[float]:
    """Losses of a regression whose weights are on the parameter server."""
    w = wf.Variable(np.zeros(3, F32), name="w")
    device = "/job:ps/task:0" if cluster else "/cpu:0"

    def loss(x: wf.Tensor, y: wf.Tensor) -> wf.Tensor:
        return wf.mean((wf.matmul(x, w) - y) ** 2)

    @wf.compile(cluster=cluster)
    def step(x: wf.Tensor, y: wf.Tensor) -> wf.Tensor:
        with wf.device(device):
            value = w.read() * 1.0

        def error(v: wf.Tensor) -> wf.Tensor:
            return wf.mean((wf.matmul(x, v) - y) ** 2)

        found, slope = wf.value_and_grad(error)(value)
        w.assign_sub(0.3 * slope)
        return found

    losses = [float(step(*_data())) for _ in range(30)]
    read = wf.compile(lambda: w.read(), cluster=cluster)
    np.testing.assert_allclose(read().numpy(), [1, -2, 0.5], atol=0.05)
    return losses


def test_training_is_that_of_one_process(servers: list[wf.train.Server]) -> None:
    np.testing.assert_allclose(_trained(servers[1].target), _trained(None), rtol=1e-4, atol=1e-6)


def test_effects_are_in_order_and_ops_where_they_are_asked_for(
    servers: list[wf.train.Server],
) -> None:
    target = servers[1].target
    queue, v = wf.tf1.FIFOQueue(9, [wf.float32], [(3,)]), wf.Variable(np.ones(3, F32))

    @wf.compile(cluster=target)
    def f(x: wf.Tensor) -> Any:
        with wf.device("/job:worker/task:1"):
            y = wf.exp(x)
        queue.enqueue(y)
        v.assign_add(y)
        queue.enqueue(v.read())
        return queue.dequeue(), queue.dequeue(), queue.size()

    for k in range(1, 4):
        first, second, left = f(np.zeros(3, F32))
        assert first.numpy().tolist() == [1, 1, 1]
        assert second.numpy().tolist() == [1 + k] * 3
        assert int(left) == 0
    assert v.numpy().tolist() == [1, 1, 1]  # the value is on the task
    text = f.explain(np.zeros(3, F32))
    assert f"runs on the cluster of {target}" in text
    assert "/job:worker/task:1/cpu:0: 1 ops" in text
    assert "2 messages" in text
    assert "parts on" in f.summary(np.zeros(3, F32))
    with pytest.raises(wf.errors.UnsupportedError, match=r"op 'exp' at .* /job:worker/task:1"):
        f.asm(np.zeros(3, F32))


def test_functions_share_variables_and_programs_those_with_a_shared_name(
    servers: list[wf.train.Server],
) -> None:
    target = servers[0].target
    own, other = wf.Variable(F32(1)), wf.Variable(F32(2))
    shared = wf.Variable(F32(3), shared_name="shared_by_programs")

    @wf.compile(cluster=target)
    def add(x: wf.Tensor) -> None:
        for v in (own, other, shared):
            v.assign_add(x)

    add(F32(10))
    read = wf.compile(lambda: (own.read(), other.read(), shared.read()), cluster=target)
    assert [float(t) for t in read()] == [11, 12, 13]
    with wf.Graph().as_default():  # another client
        there = wf.Variable(0.0, shared_name="shared_by_programs", name="elsewhere")
        with wf.Session(target) as session:
            assert session.run(there) == 13.0


def test_a_value_that_is_there_is_kept(servers: list[wf.train.Server]) -> None:
    target = servers[0].target
    with wf.Graph().as_default():
        wf.Variable(5.0, shared_name="kept_there")
        with wf.Session(target) as session:
            session.run(wf.global_variables_initializer())
    v = wf.Variable(F32(1), shared_name="kept_there")
    assert float(wf.compile(lambda: v.read(), cluster=target)()) == 5.0


def test_a_variable_that_gets_its_value_after_a_call(servers: list[wf.train.Server]) -> None:
    """The first call was to be the one that sends values, with or without them."""
    with wf.Graph().as_default() as graph:
        v = wf.Variable(2.0)
    read = wf.compile(lambda: v.read() + 1.0, cluster=servers[0].target)
    with pytest.raises(FailedPreconditionError, match="is not initialised"):
        read()
    with graph.as_default(), wf.Session() as session:
        session.run(wf.global_variables_initializer())
    assert float(read()) == 3.0
    v.assign(7.0)
    assert float(read()) == 3.0  # it is the task's now


def test_errors_have_the_names_of_the_program(servers: list[wf.train.Server]) -> None:
    """They named variables `weights#3`, as the tasks did."""
    some = []
    for _ in range(3):
        with wf.Graph().as_default():
            some.append(wf.Variable(np.ones(3, F32), name="weights"))
    for v in some[:2]:
        v.current_state.write(np.full(3, 2, F32))
    target = servers[1].target
    both = wf.compile(lambda: some[0].read() + some[1].read(), cluster=target)
    assert both().tolist() == [4, 4, 4]
    for function in (lambda: some[2].read() + 1.0, lambda: some[1].read() + some[2].read()):
        with pytest.raises(FailedPreconditionError) as caught:
            wf.compile(function, cluster=target)()
        assert "variable 'weights' is not initialised" in str(caught.value)
        assert "#" not in str(caught.value).replace(str(__file__), "")
    some[2].current_state.write(np.full(3, 5, F32))
    change = wf.compile(lambda: [v.assign_add(v.read() * k) for k, v in enumerate(some)],
                        cluster=target)  # fmt: skip
    change()
    assert both().tolist() == [6, 6, 6]  # 2 and 4
    third = wf.compile(lambda: some[2].read() * 1.0, cluster=target)
    assert third().tolist() == [15, 15, 15]
    assert "#" not in third.explain()
    queue = wf.tf1.FIFOQueue(2, [wf.float32], [()], name="work")
    closes = wf.compile(lambda: queue.close(), cluster=target)
    closes()
    with pytest.raises(wf.errors.OutOfRangeError, match="FIFOQueue 'work' is closed"):
        wf.compile(lambda: queue.dequeue(), cluster=target)()


@pytest.mark.slow
def test_what_no_function_uses_any_more_is_cleared(servers: list[wf.train.Server]) -> None:
    target = servers[0].target
    v, w = (wf.Variable(np.zeros(1000, F32), name="v") for _ in range(2))

    def held() -> int:
        with wf.Graph().as_default(), wf.Session(target) as session:
            return sum(task["variables"][0] for task in session.task_stats().values())

    f = wf.compile(lambda: wf.sum(v.read() + w.read()), cluster=target)
    assert float(f()) == 0.0
    assert held() == 2
    del f
    gc.collect()
    assert held() == 0
    f = wf.compile(lambda: wf.sum(v.read()), cluster=target)
    assert float(f()) == 0.0  # sent anew


def test_sizes(servers: list[wf.train.Server]) -> None:
    @wf.compile(cluster=servers[1].target, input_signature=[wf.TensorType(wf.float32, (None,))])
    def f(x: wf.Tensor) -> Any:
        with wf.device("/job:worker/task:1"):
            total = wf.sum(x)
        return total, x[x > 1.0]

    for x in ([1, 2, 3], [5], [0, 0]):
        total, kept = f(np.array(x, F32))
        assert float(total) == sum(x)
        assert kept.numpy().tolist() == [n for n in x if n > 1]


def test_loops_and_branches(servers: list[wf.train.Server]) -> None:
    def f(x: wf.Tensor) -> Any:
        y = wf.fori_loop(0, 5, lambda i, t: t * 1.5, x)
        return wf.cond(wf.sum(y) > 3.0, lambda: y, lambda: -y)

    there = wf.compile(f, cluster=servers[1].target)
    for x in (np.ones(3, F32), -np.ones(3, F32)):
        np.testing.assert_array_equal(there(x).numpy(), wf.compile(f)(x).numpy())


def test_calls_are_recorded_and_replayed(servers: list[wf.train.Server], tmp_path: Any) -> None:
    v = wf.Variable(np.ones(3, F32))

    @wf.compile(cluster=servers[1].target)
    def f(x: wf.Tensor) -> Any:
        with wf.device("/job:worker/task:1"):
            y = wf.exp(x)
        v.assign_add(y)
        return y * v.read()

    with wf.record(str(tmp_path), steps=10) as files:
        f(np.zeros(3, F32))
    assert not wf.replay(files[0]).differences("recorded")


def test_a_record_of_open_sizes_is_of_the_parts_that_ran(
    servers: list[wf.train.Server], tmp_path: Any
) -> None:
    """Each set of sizes has parts of its own, which round in their way."""

    @wf.compile(cluster=servers[1].target, input_signature=[wf.TensorType(wf.float32, (None, 12))])
    def f(x: wf.Tensor) -> Any:
        with wf.device("/job:ps/task:0"):
            y = 0.1 * x
        y = (y + 0.3) * x - 0.2
        with wf.device("/job:worker/task:0"):
            z = y * x
        return z + 0.9 * x - x * x * 0.1

    sizes = (3, 40, 0, 1, 16)
    with wf.record(str(tmp_path), steps=10) as files:
        for n in sizes:
            f(np.linspace(-1, 1, n * 12, dtype=F32).reshape(n, 12))
    records: list[Any] = [wf.replay(file) for file in files]
    assert [r.graph.args[0].type.shape for r in records] == [(n, 12) for n in sizes]
    for record in records:
        assert "ran as 'cluster'" in repr(record)
        assert record.differences() == []


def test_what_is_refused(servers: list[wf.train.Server]) -> None:
    target = servers[0].target
    for options in (
        {"threads": 1}, {"donate": "x"}, {"device": "gpu:0"}, {"math": "tf32"},
        {"target": "x86-64-v2"}, {"engine": "llvm"},
    ):  # fmt: skip
        (name,) = options
        with pytest.raises(wf.errors.UnsupportedError, match=f"{name}= is for functions that run"):
            wf.compile(lambda x: x, cluster=target, **options)  # type: ignore[call-overload]
    with pytest.raises(wf.errors.UnsupportedError, match="tasks know pipelines by name"):
        wf.compile(lambda x: x, cluster=target, passes=[lambda g: g, "fuse"])(F32(1))
    with pytest.raises(wf.errors.TypeRuleError, match=r"takes a wf\.train\.Cluster or"):
        wf.compile(lambda x: x, cluster=3)  # type: ignore[call-overload]
    lost = wf.train.Cluster("tcp://127.0.0.1:1", connect_timeout=0.2)
    with pytest.raises(wf.errors.UnavailableError, match=r"tcp://127\.0\.0\.1:1 did not answer"):
        wf.compile(lambda x: x, cluster=lost)(F32(1))


@pytest.mark.slow
def test_a_lost_task_is_named() -> None:
    servers = wf.train.Server.create_local_cluster({"worker": 2})

    @wf.compile(cluster=servers[0].target)
    def f(x: wf.Tensor) -> Any:
        with wf.device("/job:worker/task:1"):
            return wf.exp(x)

    assert float(f(F32(0))) == 1.0
    servers[1].stop()
    with pytest.raises(wf.errors.UnavailableError, match="/job:worker/task:1"):
        f(F32(0))
    servers[0].stop()


def test_a_part_of_what_runs_here_is_refused(servers: list[wf.train.Server]) -> None:
    """It ran here, on the variables of this process."""
    target = servers[1].target
    v = wf.Variable(F32(1))

    @wf.compile(cluster=target)
    def set_to(x: wf.Tensor) -> wf.Tensor:
        v.assign(x)
        return x * 2.0

    for outer in (
        wf.compile(lambda x: set_to(x)), wf.grad(set_to), wf.compile(wf.grad(set_to)),
    ):  # fmt: skip
        with pytest.raises(UnsupportedError, match="'set_to' is compiled with cluster=") as caught:
            outer(wf.asarray(F32(5)))
        assert caught.value.locations[0].file == __file__
    assert float(v) == 1.0
    slope = wf.compile(wf.grad(set_to), cluster=target)
    assert float(slope(F32(5))) == 2.0
    assert float(wf.compile(lambda: v.read(), cluster=target)()) == 5.0
    assert float(v) == 1.0


def test_what_is_no_address_is_named_as_it_was_given() -> None:
    with pytest.raises(InvalidArgumentError, match=r"wf.compile\(cluster='nonsense'\)"):
        wf.compile(lambda x: x, cluster="nonsense")(F32(1))
