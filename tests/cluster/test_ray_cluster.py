"""RayCluster: arguments anywhere; tasks, restarts and recovery where Ray is installed."""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft as wf
from weft.comm.addresses import Secret

train = wf.train
HAS_RAY = importlib.util.find_spec("ray") is not None
needs_ray = pytest.mark.skipif(not HAS_RAY, reason="Ray is not installed: pip install weft[ray]")


@pytest.mark.parametrize(
    ("jobs", "options", "says"),
    [
        ({}, {}, "needs a number of tasks"),
        ({"ps": 0}, {}, "needs a number of tasks"),
        ({"ps": True}, {}, "needs a number of tasks"),
        ({"p s": 1}, {}, "cannot be the name of a job"),
        ({"ps": 1}, {"resources": {"worker": {"num_gpus": 1}}}, "worker, which is no job"),
        ({"ps": 1}, {"strategy": "ANYWHERE"}, "strategy='ANYWHERE'"),
    ],
)
def test_arguments(jobs: dict[str, int], options: dict[str, Any], says: str) -> None:
    with pytest.raises(wf.errors.InvalidArgumentError, match=says):
        train.RayCluster(jobs, **options)


def test_without_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(wf.errors.UnsupportedError, match="pip install 'weft"):
        train.RayCluster({"ps": 1})


@pytest.fixture(scope="module")
def cluster() -> Iterator[train.RayCluster]:
    options = {"object_store_memory": 100 << 20, "num_gpus": 2}
    resources = {"ps": {"num_cpus": 0}, "worker": {"num_gpus": 1}}
    with train.RayCluster({"ps": 2, "worker": 2}, resources=resources, ray_options=options) as made:
        yield made


def wait_for_restart(cluster: train.RayCluster, old: int, index: int) -> float:
    begun = time.monotonic()
    while cluster.status()[index].incarnation == old:
        time.sleep(0.05)
    return time.monotonic() - begun


@pytest.mark.ray
@needs_ray
def test_tasks_and_restart(cluster: train.RayCluster) -> None:
    found = cluster.status()
    assert [(s.job, s.task) for s in found] == [("ps", 0), ("ps", 1), ("worker", 0), ("worker", 1)]
    assert len({s.pid for s in found}) == len({s.address for s in found}) == 4
    assert {s.gpus for s in found[2:]} == {"0", "1"}
    assert cluster.cluster_spec().job_tasks("ps") == tuple(s.address for s in found[:2])
    assert cluster.target == found[2].address
    os.kill(found[1].pid, signal.SIGKILL)
    wait_for_restart(cluster, found[1].incarnation, 1)
    after = cluster.status()
    assert after[1].pid != found[1].pid
    assert [s.pid for s in after if s.task != 1] == [s.pid for s in found if s.task != 1]
    assert cluster.cluster_spec().address("ps", 1) == after[1].address


@pytest.mark.ray
@needs_ray
@pytest.mark.parametrize("lost", [0, 2])
def test_a_session_recovers_by_itself(cluster: train.RayCluster, tmp_path: Path, lost: int) -> None:
    graph = wf.Graph(f"on Ray {lost}")
    with graph.as_default():
        with wf.device("/job:ps/task:0"):
            w = wf.Variable(np.ones(4, np.float32), name=f"w{lost}")
            step = train.get_or_create_global_step()
        with wf.device("/job:worker/task:1"):
            x = wf.placeholder(wf.float32, [4])
            loss = wf.sum((w - x) ** 2)
        update = train.SGD(0.1).minimize(loss, global_step=step)
        session = train.MonitoredTrainingSession(
            cluster, True, tmp_path, hooks=[train.StopAtStepHook(last_step=30)],
            save_checkpoint_steps=10,
        )  # fmt: skip
    value = np.ones(4, np.float32)
    for number in range(30):
        value -= np.float32(0.1) * (np.float32(2.0) * (value - np.float32(number)))
    killed = False
    with session:
        while not session.should_stop():
            if not killed and train.global_step(session.session, step) == 17:
                os.kill(cluster.status()[lost].pid, signal.SIGKILL)
                killed = True
            session.run(update, lambda number: {x: np.full(4, number, np.float32)})
        end = session.session.run(w)
    np.testing.assert_allclose(end, value, rtol=1e-5)
    assert killed
    # a task without values may come back before a step misses it
    assert session.recoveries >= (1 if lost == 0 else 0)


@pytest.mark.ray
@needs_ray
def test_the_secret_is_needed(cluster: train.RayCluster) -> None:
    with pytest.raises((wf.errors.UnavailableError, wf.errors.FailedPreconditionError)):
        wf.Session(
            "", wf.Graph("none"), cluster=wf.train.Cluster(cluster.target, connect_timeout=1.0)
        )
    other = Secret.generate()
    with pytest.raises((wf.errors.UnavailableError, wf.errors.FailedPreconditionError)):
        wf.Session(
            "",
            wf.Graph("none"),
            cluster=wf.train.Cluster(cluster.target, connect_timeout=1.0, secret=other),
        )
    with wf.Session(graph=wf.Graph("some"), cluster=cluster.cluster):
        pass


@pytest.mark.ray
@needs_ray
def test_close_ends_the_tasks() -> None:
    import ray

    joined = ray.is_initialized()
    options = None if joined else {"object_store_memory": 100 << 20}
    own = train.RayCluster({"ps": 1}, resources={"ps": {"num_cpus": 0}}, ray_options=options)
    pid = own.status()[0].pid
    assert "hex" not in repr(own.cluster.secret)
    own.close()
    own.close()
    until = time.monotonic() + 10
    while Path(f"/proc/{pid}/status").exists() and time.monotonic() < until:
        time.sleep(0.05)
    assert not Path(f"/proc/{pid}").exists()
    assert ray.is_initialized() == joined
    with pytest.raises(wf.errors.FailedPreconditionError, match="closed"):
        own.status()


@pytest.mark.ray
@needs_ray
def test_a_mesh_of_tasks(cluster: train.RayCluster) -> None:
    def program(task: train.ClusterTask) -> list[float]:
        host = task.address.rpartition(":")[0]
        with (
            wf.train.Server({"own": [f"{host}:0"]}),  # which others reach: it needs the secret
            wf.Mesh({"data": 2}, task=task) as mesh,
        ):
            spec = wf.PartitionSpec("data")
            total = wf.shard_map(
                lambda x: wf.collectives.psum(x, "data"), mesh, (spec,), wf.PartitionSpec()
            )
            return [*total(np.arange(4.0)).numpy().tolist(), task.task]

    assert cluster.run(program) == [[2, 4, 0], [2, 4, 1]]
    with pytest.raises(wf.errors.NotFoundError, match="it has no job 'wroker'"):
        cluster.run(program, "wroker")
    with pytest.raises(ZeroDivisionError):
        cluster.run(lambda task: 1 // (1 - task.task))


@pytest.mark.ray
@needs_ray
def test_an_elastic_run_loses_a_task(cluster: train.RayCluster, tmp_path: Path) -> None:
    """Ray starts it anew, and it joins: the losses are those of one process."""
    name = f"ray-{os.getpid()}-{time.monotonic_ns()}"

    def program(task: train.ClusterTask | None, most: int = 10_000) -> Any:
        w, losses = wf.Variable(np.zeros(3, np.float32)), {}

        def loss(x: Any, y: Any) -> Any:
            return wf.mean((wf.matmul(x, w) - y) ** 2)

        size = None if task else 1
        with train.Elastic(loss, train.SGD(0.1), [w], name=name, size=size, task=task) as run:
            over = False
            while run.step < most and not over:
                step = run.step
                x = np.random.default_rng(step).normal(size=(8, 3)).astype(np.float32)
                losses[step] = float(run(x, x[:, 0]))
                over = run.step >= 300 and run.step % 100 == 0 and run.size == 2
                if task:
                    time.sleep(0.005)
                    (tmp_path / f"{os.getpid()}").touch()
            return losses, list(run.changes)

    with ThreadPoolExecutor(1) as thread:
        victim = cluster.status()[2].pid
        running = thread.submit(cluster.run, program)
        until = time.monotonic() + 30
        while not (tmp_path / f"{victim}").exists() and time.monotonic() < until:
            time.sleep(0.01)
        os.kill(victim, signal.SIGKILL)
        (newcomer, _), (losses, changes) = running.result(120)
    alone, _ = program(None, max(losses) + 1)
    assert losses == alone
    assert newcomer == {step: alone[step] for step in newcomer}
    assert any(f"process {victim}) is lost" in text for text in changes)
    assert any("has come" in text for text in changes)
