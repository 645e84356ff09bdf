"""MonitoredTrainingSession on tasks that are lost and come back: servers in this process."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft as wf

train = wf.train
STEPS = 12


class Model:
    """Two variables on two tasks, trained by a third; each step depends on all before it."""

    def __init__(self, placed: bool = True) -> None:
        def on(task: str) -> AbstractContextManager[Any]:
            return wf.device(task) if placed else contextlib.nullcontext()

        self.graph = wf.Graph("on tasks")
        with self.graph.as_default():
            with on("/job:ps/task:0"):
                self.a = wf.Variable(np.ones(3, np.float32), name="a")
                self.step = train.get_or_create_global_step()
            with on("/job:ps/task:1"):
                self.b = wf.Variable(np.float32(0.5), name="b")
            with on("/job:worker/task:0"):
                self.x = wf.placeholder(wf.float32, [3], name="x")
                loss = wf.sum((self.a * self.x - self.b) ** 2)
            optimizer = train.Momentum(0.05, 0.9)
            self.train = optimizer.minimize(loss, global_step=self.step)

    @staticmethod
    def feed(step: int) -> np.ndarray[Any, Any]:
        return np.random.default_rng(step).normal(size=3).astype(np.float32)


class Tasks:
    """Servers in this process that can be stopped and begun again at the same address."""

    def __init__(self, jobs: dict[str, int]) -> None:
        self.servers = {s.name: s for s in train.Server.create_local_cluster(jobs)}

    def restart(self, name: str) -> None:
        old = self.servers[name]
        old.stop()
        self.servers[name] = train.Server(old.cluster, old.job_name, old.task_index)

    def close(self) -> None:
        for server in self.servers.values():
            server.stop()


@pytest.fixture
def tasks() -> Iterator[Tasks]:
    with contextlib.closing(Tasks({"ps": 2, "worker": 1})) as made:
        yield made


class Faults(train.SessionRunHook):
    """Calls a function before some of the steps, each once."""

    def __init__(self, at: dict[int, Any]) -> None:
        self.at = at

    def begin(self) -> None:
        self.step = train.get_global_step()

    def before_run(self, run_context: train.SessionRunContext) -> None:
        assert self.step is not None
        fault = self.at.pop(train.global_step(run_context.session, self.step), None)
        if fault is not None:
            fault()


def trained(target: str, folder: Path, faults: dict[int, Any]) -> tuple[list[Any], int]:
    """The variables at the end, and how often the session was replaced."""
    model = Model()
    hooks = [train.StopAtStepHook(last_step=STEPS), Faults(faults)]
    with model.graph.as_default():
        session = train.MonitoredTrainingSession(
            target, True, folder, hooks=hooks, save_checkpoint_steps=5, recovery_wait_secs=20
        )
    with session:
        while not session.should_stop():
            session.run(model.train, lambda step: {model.x: model.feed(step)})
        end = session.session.run([model.a, model.b, model.step])
    return [np.asarray(v).tolist() for v in end], session.recoveries


def in_one_process() -> list[Any]:
    """The same without a cluster."""
    model = Model(placed=False)
    with wf.Session(graph=model.graph) as session:
        session.run(wf.global_variables_initializer())
        for step in range(STEPS):
            session.run(model.train, {model.x: model.feed(step)})
        return [np.asarray(v).tolist() for v in session.run([model.a, model.b, model.step])]


def test_without_faults(tasks: Tasks, tmp_path: Path) -> None:
    target = tasks.servers["/job:worker/task:0"].target
    values, recoveries = trained(target, tmp_path, {})
    assert recoveries == 0
    for found, near in zip(values, in_one_process(), strict=True):
        np.testing.assert_allclose(found, near, rtol=1e-5)
    latest = train.latest_checkpoint(tmp_path)
    assert latest is not None
    assert latest.endswith("model-12")


@pytest.mark.share(3)
@pytest.mark.parametrize("lost", ["/job:ps/task:0", "/job:ps/task:1", "/job:worker/task:0"])
def test_a_task_that_comes_back_empty(tasks: Tasks, tmp_path: Path, lost: str) -> None:
    target = tasks.servers["/job:worker/task:0"].target
    faults = {3: lambda: tasks.restart(lost), 8: lambda: tasks.restart(lost)}
    undisturbed, _ = trained(target, tmp_path / "undisturbed", {})
    values, recoveries = trained(target, tmp_path / "with faults", faults)
    assert values == undisturbed
    # a worker without state may come back unseen
    assert recoveries == 2 or (recoveries < 2 and "worker" in lost)


@pytest.mark.slow
def test_a_task_that_stays_away(tasks: Tasks, tmp_path: Path) -> None:
    model = Model()
    with model.graph.as_default():
        session = train.MonitoredTrainingSession(
            train.Cluster(tasks.servers["/job:worker/task:0"].target, connect_timeout=0.5),
            True, tmp_path, recovery_wait_secs=0.5,
        )  # fmt: skip
    session.run(model.train, {model.x: model.feed(0)})
    tasks.servers["/job:ps/task:1"].stop()
    with pytest.raises(wf.errors.UnavailableError, match="/job:ps/task:1"):
        session.run(model.train, {model.x: model.feed(1)})
    with contextlib.suppress(wf.errors.UnavailableError):
        session.close()
    assert session.should_stop()


def test_others_wait_for_the_chief_and_see_it_come_back(tasks: Tasks, tmp_path: Path) -> None:
    target = tasks.servers["/job:worker/task:0"].target
    chief, other = Model(), Model()
    not_initialised = pytest.raises(wf.errors.DeadlineExceededError, match="initialised")
    with other.graph.as_default(), not_initialised:
        train.MonitoredTrainingSession(target, False, max_wait_secs=0.2)
    with chief.graph.as_default():
        first = train.MonitoredTrainingSession(target, True, tmp_path, save_checkpoint_steps=1)
    with other.graph.as_default():
        second = train.MonitoredTrainingSession(target, False)
    with first, second:
        for step in range(3):
            one = (first, chief) if step % 2 else (second, other)
            one[0].run(one[1].train, {one[1].x: Model.feed(step)})
        assert second.run(other.step) == 3
        first.run(chief.step)  # saves
        tasks.restart("/job:ps/task:0")
        assert first.run(chief.step) == 3
        assert second.run(other.step) == 3
    assert first.recoveries == 1


def test_a_saver_refuses_variables_that_are_elsewhere(tasks: Tasks, tmp_path: Path) -> None:
    """It would save what this process has of them."""
    here = wf.Variable(5.0, name="here")
    with wf.Graph("elsewhere").as_default() as graph:
        init, up = wf.variables_initializer([here]), here.assign_add(1.0)
        ops = train.Saver([here]).build()
    saver = train.Saver([here])
    with wf.Session(tasks.servers["/job:ps/task:0"].target, graph) as session:
        session.run(init)
        session.run(up)
        for call in (saver.save, saver.restore, saver.restore_or_initialize):
            with pytest.raises(wf.errors.UnsupportedError, match="on other tasks"):
                call(session, str(tmp_path / "model"))
        session.run(ops.save, {ops.filename: str(tmp_path / "model")})
    assert train.load_variable(tmp_path / "model", "here") == 6.0
    assert here.numpy() == 5.0
