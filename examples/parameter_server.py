"""Asynchronous training with a parameter server: one process holds the variables, two train them.

Asynchronous SGD as in Dean et al., "Large scale distributed deep networks" (2012), and in the
TensorFlow paper (2016, section 4.4). Each worker is a process with a graph and batches of its own.
It reads the parameters of the moment, computes a gradient and applies it; nobody waits for anybody.
`replica_device_setter` puts the variables on the task "ps" and all other ops on the worker. The
chief, worker 0, saves checkpoints. When a task is lost, `MonitoredTrainingSession` goes on from the
last one. The process that starts the three reads the checkpoints and measures.

    python examples/parameter_server.py [--steps 4000] [--kill worker:1]

--kill ends a task (worker:0, worker:1 or ps:0) by SIGKILL halfway; it is started again. On several
machines start each task by itself, with a folder that all of them see and that has what `prepare`
puts there: cluster.json, with the addresses, and the rows of each worker.

    python examples/parameter_server.py --folder DIR --task worker:1
"""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

import weft as wf

TASKS = ("ps:0", "worker:0", "worker:1")
HIDDEN, CLASSES, BATCH, LEARNING_RATE = 100, 10, 64, 0.05
CHECKPOINTS = 20  # of a run
LONGEST, RESTARTS = 300.0, 5  # seconds, and starts of lost tasks, after which it gives up


# -------------------------------------------------------------------------------- what a task runs
@dataclass(frozen=True)
class Model:
    """A classifier of two layers in the graph that is being built."""

    x: wf.Tensor
    y: wf.Tensor
    loss: wf.Tensor


def build() -> Model:
    """The same in every process: variables of one name are one variable, on the server."""
    rng = np.random.default_rng(1)

    def variable(name: str, *shape: int) -> wf.Variable:
        return wf.Variable(rng.uniform(-0.1, 0.1, shape).astype(np.float32), name=name)

    x = wf.placeholder(wf.float32, [None, 64], name="x")
    y = wf.placeholder(wf.int64, [None], name="y")
    hidden = wf.nn.relu(wf.matmul(x, variable("w1", 64, HIDDEN)) + variable("b1", HIDDEN))
    logits = wf.matmul(hidden, variable("w2", HIDDEN, CLASSES)) + variable("b2", CLASSES)
    loss = wf.mean(wf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits))
    return Model(x, y, loss)


def run_worker(server: wf.train.Server, task: int, steps: int, folder: Path) -> None:
    """Train until the global step, which all workers count, is at `steps`."""
    with np.load(folder / f"worker{task}.npz") as data:
        images, labels = data["images"], data["labels"]
    rng = np.random.default_rng(task)
    place = wf.train.replica_device_setter(
        cluster=server.cluster, worker_device=f"/job:worker/task:{task}"
    )
    with wf.Graph().as_default(), wf.device(place):
        model = build()
        step = wf.train.get_or_create_global_step()
        train = wf.train.Adagrad(LEARNING_RATE).minimize(model.loss, global_step=step)
        session = wf.train.MonitoredTrainingSession(
            server.target,
            is_chief=task == 0,
            checkpoint_dir=folder,
            hooks=[wf.train.StopAtStepHook(last_step=steps)],
            save_checkpoint_steps=max(1, steps // CHECKPOINTS),
        )
    seconds = []
    with session:
        while not session.should_stop():
            rows = rng.integers(0, len(images), BATCH)
            began = time.perf_counter()
            session.run(train, {model.x: images[rows], model.y: labels[rows]})
            seconds.append(time.perf_counter() - began)
    print(
        f"worker {task}: {len(seconds)} steps, the first {seconds[0]:.2f} s, "
        f"then {np.median(seconds[1:] or seconds) * 1e6:.0f} us a step"
    )


def run_task(name: str, steps: int, folder: Path) -> None:
    """A task of the cluster in this process."""
    job, _, index = name.partition(":")
    cluster = wf.train.ClusterSpec.load(folder / "cluster.json")
    with wf.train.Server(cluster, job, int(index)) as server:
        if job == "ps":
            server.join()  # until it is killed
        else:
            run_worker(server, int(index), steps, folder)


# --------------------------------------------------------------------------------- who starts them
def prepare(folder: Path) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Write where the tasks are, and half of scikit-learn's digits for each worker. A fifth of the
    images is held out: rows of 64 floats in 0..1, and labels."""
    from sklearn.datasets import load_digits

    ps, *workers = (f"ipc://{folder}/{task.replace(':', '')}" for task in TASKS)
    spec = wf.train.ClusterSpec({"ps": [ps], "worker": workers})
    (folder / "cluster.json").write_text(spec.to_json())
    data = load_digits()
    order = np.random.default_rng(0).permutation(len(data.target))
    images, labels = (data.data / 16).astype(np.float32)[order], data.target[order]
    held_out = len(labels) // 5
    for task in range(len(workers)):
        rows = slice(held_out + task, None, len(workers))
        np.savez(folder / f"worker{task}.npz", images=images[rows], labels=labels[rows])
    return images[:held_out], labels[:held_out]


class Processes:
    """The tasks as processes of this machine; one that is lost is started again."""

    def __init__(self, folder: Path, steps: int) -> None:
        self.command = [sys.executable, __file__, "--steps", str(steps), "--folder", str(folder)]
        self.running: dict[str, subprocess.Popen[str]] = {}
        self.restarts = 0

    def start(self, task: str) -> None:
        self.running[task] = subprocess.Popen(
            [*self.command, "--task", task], stdout=subprocess.PIPE, text=True
        )

    def watch(self) -> bool:
        """Start again what has failed; whether a worker still trains."""
        for task, process in self.running.items():
            if process.poll() not in (None, 0):
                process.communicate()
                self.restarts += 1
                if self.restarts > RESTARTS:
                    raise SystemExit(f"{task} fails again and again")
                self.start(task)
        return any(self.running[task].poll() is None for task in TASKS[1:])

    def end(self) -> None:
        for process in self.running.values():
            with process:  # waits, and closes its pipe
                process.kill()


@contextlib.contextmanager
def cluster(folder: Path, steps: int) -> Iterator[Processes]:
    """The three tasks, which end with the block."""
    processes = Processes(folder, steps)
    try:
        for task in TASKS:
            processes.start(task)
        yield processes
    finally:
        processes.end()


def checkpoint(folder: Path) -> tuple[int, dict[str, Any]]:
    """The latest one: its step, and its variables by name."""
    path = wf.train.latest_checkpoint(folder)
    if path is None:
        return 0, {}
    values = {n: wf.train.load_variable(path, n) for n in ("w1", "b1", "w2", "b2", "global_step")}
    return int(values.pop("global_step")), values


@wf.compile
def predict(p: dict[str, wf.Tensor], x: wf.Tensor) -> wf.Tensor:
    hidden = wf.nn.relu(wf.matmul(x, p["w1"]) + p["b1"])
    return wf.argmax(wf.matmul(hidden, p["w2"]) + p["b2"], axis=1)


def run(steps: int, kill: str | None, folder: Path, progress: Progress) -> str:
    """Train with the three processes, and watch them; a report."""
    images, labels = prepare(folder)
    task, began, accuracy = progress.add_task("starting", total=steps), time.monotonic(), 0.0
    with cluster(folder, steps) as processes:
        done, first, training = 0, began, True
        while training:
            training = processes.watch()
            latest, parameters = checkpoint(folder)
            if latest > done:
                first, done = (first if done else time.monotonic()), latest
                accuracy = float(np.mean(predict(parameters, images).numpy() == labels))
                text = f"held-out accuracy {accuracy:.1%}"
                progress.update(task, completed=min(done, steps), description=text)
            if kill and done >= steps // 2:
                processes.running[kill].kill()
                kill = None
            if time.monotonic() - began > LONGEST:
                raise SystemExit(f"the training has not ended within {LONGEST:g} s")
            time.sleep(0.02)
        said = "".join(processes.running[task].communicate()[0] for task in TASKS[1:])
        return (
            f"{said}{predict.summary(parameters, images)}\n"
            f"{done} steps in {time.monotonic() - began:.1f} s, {processes.restarts} restarts\n"
            f"held-out accuracy {accuracy:.2%}\n"
        )


def main(argv: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--kill", choices=TASKS)
    parser.add_argument("--task", choices=TASKS, help="run this task only")
    parser.add_argument(
        "--folder", type=Path, help="of --task: where `prepare` and checkpoints write"
    )
    options = parser.parse_args(argv)
    if options.task:
        run_task(options.task, options.steps, options.folder)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with tempfile.TemporaryDirectory() as name, Progress(*columns) as progress:
        report = run(options.steps, options.kill, Path(name), progress)
    print(report, end="")


if __name__ == "__main__":
    main()
