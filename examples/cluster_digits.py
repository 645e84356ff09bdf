"""The digits of Figure 1 trained by two parameter servers and three workers: processes of this
machine, one command, three schemes (the paper, section 4.4).

    python examples/cluster_digits.py [--scheme async,sync,backup] [--steps 300] [--kill worker:1]

async:  each worker applies its gradients as they come, computed with parameters that may be stale.
sync:   a step takes the gradients of all three workers; every run has the same bits.
backup: a step takes those of the first two; the third is dropped.

--kill ends a process with SIGKILL halfway; it is started again, as a cluster manager would, and
the training goes on from the last checkpoint.

An engine may start the five processes in place of this program, on one machine or on several that
see one folder for the checkpoints (docs/guide/engines.md):

    srun -n 5 --kill-on-bad-exit=1 python examples/cluster_digits.py --scheme sync --here FOLDER
    mpirun -np 5 python examples/cluster_digits.py --scheme sync --here FOLDER
    torchrun --nproc-per-node 5 examples/cluster_digits.py --scheme sync --here FOLDER
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import digits
import numpy as np

import weft as wf

PS, WORKERS, BATCH, LEARNING_RATE = 2, 3, 64, 0.05
SCHEMES, CHIEF = ("async", "sync", "backup"), ("worker", 0)
LONGEST = 300.0  # seconds that one scheme may take


# ------------------------------------------------------------------------------ what a worker runs
@dataclass(frozen=True)
class Model:
    """The classifier, its loss and its parameters, which lie on the parameter servers."""

    x: wf.Tensor
    y: wf.Tensor
    loss: wf.Tensor
    logits: wf.Tensor


def build_model(start: digits.Weights) -> Model:
    """Figure 1."""
    x = wf.placeholder(wf.float32, [None, 64], name="x")
    y = wf.placeholder(wf.float32, [None, digits.CLASSES], name="y")
    w1, b1 = wf.Variable(start.w1, name="W_1"), wf.Variable(start.b1, name="b_1")
    w2, b2 = wf.Variable(start.w2, name="W_2"), wf.Variable(start.b2, name="b_2")
    logits = wf.matmul(wf.nn.relu(wf.matmul(x, w1) + b1), w2) + b2
    loss = wf.mean(wf.nn.softmax_cross_entropy_with_logits(labels=y, logits=logits))
    return Model(x, y, loss, logits)


def train_op(scheme: str, loss: wf.Tensor, worker: int) -> tuple[wf.Variable, Any, Any]:
    """The global step, what a worker runs for each step, and what it runs first."""
    step = wf.train.get_or_create_global_step()
    optimizer = wf.train.Adagrad(LEARNING_RATE)
    if scheme == "async":
        return step, optimizer.minimize(loss, global_step=step), None
    needed = WORKERS if scheme == "sync" else WORKERS - 1
    replicas = wf.train.SyncReplicas(optimizer, needed, WORKERS)
    train = replicas.minimize(loss, step, worker=worker)
    if worker:
        return step, train, replicas.local_step_init_op
    wf.train.add_queue_runner(replicas.get_chief_queue_runner())
    with wf.control_dependencies([replicas.chief_init_op]):
        return step, train, replicas.local_step_init_op


def batches(data: digits.Digits, worker: int) -> Callable[[int], tuple[Any, Any]]:
    """The worker's batch for each global step: the same whenever that step is done."""

    def batch(step: int) -> tuple[Any, Any]:
        rows = np.random.default_rng((step, worker)).integers(0, len(data.train_x), BATCH)
        return data.train_x[rows], data.train_y[rows]

    return batch


def run_worker(options: argparse.Namespace) -> None:
    """A task of the cluster and its training program, in one process."""
    cluster = wf.train.ClusterSpec.load(options.cluster)
    server = wf.train.Server(cluster, "worker", options.worker)
    train_on(server, options, options.worker, options.folder)
    server.stop()


def train_on(
    server: wf.train.Server, options: argparse.Namespace, worker: int, folder: str
) -> None:
    """The training program of a worker, whose task is in this process."""
    batch = batches(digits.load_digits(), worker)
    graph = wf.Graph("digits")
    place = wf.train.replica_device_setter(
        cluster=server.cluster, worker_device=f"/job:worker/task:{worker}"
    )
    with graph.as_default(), wf.device(place):
        model = build_model(digits.initial_weights())
        _, train, begin = train_op(options.scheme, model.loss, worker)
        session = wf.train.MonitoredTrainingSession(
            server.target,
            is_chief=worker == 0,
            checkpoint_dir=folder,
            scaffold=wf.train.Scaffold(local_init_op=begin),
            hooks=[wf.train.StopAtStepHook(last_step=options.steps)],
            save_checkpoint_steps=max(1, options.steps // 10),
            stop_grace_period_secs=5,
        )
    with session:
        while not session.should_stop():
            session.run(train, lambda step: dict(zip((model.x, model.y), batch(step), strict=True)))


# ----------------------------------------------------------------- where an engine has started them
def end_of(job: str, task: int) -> wf.tf1.FIFOQueue:
    """The queue of a task that the chief puts something into when the training is done."""
    with wf.device(f"/job:{job}/task:{task}"):
        return wf.tf1.FIFOQueue(1, wf.int64, (), shared_name=f"end_{job}_{task}")


def wait_for_end(server: wf.train.Server) -> None:
    """Return when the chief is done."""
    graph = wf.Graph("end")
    with graph.as_default():
        ended = end_of(server.job_name, server.task_index).dequeue()
        with wf.Session(server.target) as session:
            session.run(ended)


def leave_at_end(server: wf.train.Server) -> None:
    """End the process when the chief is done: what it still does is of no use."""
    wait_for_end(server)
    os._exit(0)


def tell_end(server: wf.train.Server) -> None:
    """Let all other tasks end; one that is gone at once may not have answered."""
    graph = wf.Graph("ends")
    with graph.as_default():
        others = [(job, task) for job, task in server.cluster.tasks() if (job, task) != CHIEF]
        puts = [end_of(job, task).enqueue(1) for job, task in others]
        with wf.Session(server.target) as session:
            for put in puts:
                with contextlib.suppress(wf.errors.UnavailableError, wf.errors.AbortedError):
                    session.run(put)


def run_here(options: argparse.Namespace) -> None:
    """The task that the environment says this process is."""
    here = wf.train.cluster_from_environment({"ps": PS, "worker": WORKERS})
    begun = time.monotonic()
    files = [options.here]  # what sessions without a key may have tasks write to
    with wf.train.Server(here.cluster, here.job, here.task, allow_files=files) as server:
        if here.job == "ps":
            wait_for_end(server)
            return
        if (here.job, here.task) != CHIEF:
            threading.Thread(target=leave_at_end, args=(server,), daemon=True).start()
        train_on(server, options, here.task, options.here)
        if (here.job, here.task) != CHIEF:
            server.join()  # `leave_at_end` ends the process
        tell_end(server)
    print(text_of(result_of(options.scheme, Path(options.here), begun, here.restarts)), flush=True)


# --------------------------------------------------------------------------------- who starts them
@dataclass
class Processes:
    """The processes of a cluster, by task; started again when they are lost."""

    commands: dict[str, list[str]]
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    restarts: int = 0

    def start(self, task: str) -> None:
        self.running[task] = subprocess.Popen(self.commands[task], stdin=subprocess.DEVNULL)

    def watch(self) -> bool:
        """Start again what has ended by a signal or an error; False when the chief is done."""
        if self.running["worker:0"].poll() == 0:  # what the others still do is of no use
            return False
        for task, process in list(self.running.items()):
            if process.poll() not in (None, 0):
                self.restarts += 1
                self.start(task)
        return True

    def end(self) -> None:
        for process in self.running.values():
            process.terminate()
        for process in self.running.values():
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@contextlib.contextmanager
def cluster(options: argparse.Namespace, scheme: str, folder: Path) -> Iterator[Processes]:
    """The tasks of one scheme, as processes."""
    file = folder / "cluster.json"
    jobs = {"ps": PS, "worker": WORKERS}
    spec = {job: [f"ipc://{folder}/{job}{i}" for i in range(n)] for job, n in jobs.items()}
    file.write_text(wf.train.ClusterSpec(spec).to_json())
    python, common = sys.executable, ["--cluster", str(file)]
    commands = {
        f"ps:{i}": [python, "-m", "weft", "worker", *common, "--job", "ps", "--task", str(i)]
        for i in range(PS)
    }
    own = [__file__, "--steps", str(options.steps), "--folder", str(folder / "checkpoints")]
    commands |= {
        f"worker:{i}": [python, *own, *common, "--scheme", scheme, "--worker", str(i)]
        for i in range(WORKERS)
    }
    processes = Processes(commands)
    try:
        for task in commands:
            processes.start(task)
        yield processes
    finally:
        processes.end()


def steps_done(folder: Path) -> int:
    """The step of the latest checkpoint."""
    latest = wf.train.latest_checkpoint(folder)
    return 0 if latest is None else int(Path(latest).stem.rpartition("-")[2])


def run_scheme(options: argparse.Namespace, scheme: str) -> dict[str, Any]:
    """Train by one scheme; how that went."""
    with tempfile.TemporaryDirectory(prefix="digits") as name:
        folder, begun = Path(name), time.monotonic()
        saved = folder / "checkpoints"
        to_kill = options.kill
        with cluster(options, scheme, folder) as processes:
            while processes.watch():
                time.sleep(0.05)
                if to_kill and steps_done(saved) >= options.steps // 2:
                    print(f"  killing {to_kill} after step {steps_done(saved)}")
                    os.kill(processes.running[to_kill].pid, signal.SIGKILL)
                    to_kill = None
                if time.monotonic() - begun > LONGEST:
                    raise SystemExit(f"{scheme} has not ended within {LONGEST:g} s")
        return result_of(scheme, saved, begun, processes.restarts)


def result_of(scheme: str, saved: Path, begun: float, restarts: int) -> dict[str, Any]:
    """What the last checkpoint has, and how long it took."""
    latest = wf.train.latest_checkpoint(saved)
    assert latest is not None
    parameters = {n: wf.train.load_variable(latest, n) for n in ("W_1", "b_1", "W_2", "b_2")}
    return {
        "scheme": scheme,
        "steps": steps_done(saved),
        "seconds": round(time.monotonic() - begun, 2),
        "restarts": restarts,
        "accuracy": held_out(parameters),
        "bits": digest(parameters),
    }


def text_of(result: dict[str, Any]) -> str:
    """A line for people."""
    each = result["seconds"] / max(1, result["steps"]) * 1e3
    return (
        "{scheme:6} {steps} steps in {seconds} s ({each:.1f} ms a step, with the start of "
        "{tasks} processes), {restarts} restarts, held-out accuracy {accuracy:.2%}, "
        "parameters {bits}"
    ).format(**result, each=each, tasks=PS + WORKERS)


def held_out(parameters: dict[str, Any]) -> float:
    """The share of held-out digits that these parameters get right."""
    data, p = digits.load_digits(), parameters
    logits = np.maximum(data.test_x @ p["W_1"] + p["b_1"], 0) @ p["W_2"] + p["b_2"]
    return digits.accuracy(logits, data.test_y)


def digest(parameters: dict[str, Any]) -> str:
    """A few digits that differ where a bit of the parameters does."""
    import hashlib

    return hashlib.sha256(b"".join(p.tobytes() for p in parameters.values())).hexdigest()[:12]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--scheme", default=",".join(SCHEMES))
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--kill", help="worker:N or ps:N", choices=[
        *(f"worker:{i}" for i in range(WORKERS)), *(f"ps:{i}" for i in range(PS))
    ])  # fmt: skip
    parser.add_argument("--out", help="write the results as JSON")
    parser.add_argument("--here", metavar="FOLDER", help="be the task that an engine has started")
    for name in ("--cluster", "--folder"):  # of the processes that this one starts
        parser.add_argument(name, help=argparse.SUPPRESS)
    parser.add_argument("--worker", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker is not None:
        run_worker(options)
        return
    if options.here is not None:
        run_here(options)
        return
    results = []
    for scheme in options.scheme.split(","):
        if scheme not in SCHEMES:
            parser.error(f"--scheme is of {', '.join(SCHEMES)}, not {scheme}")
        results.append(run_scheme(options, scheme))
        print(text_of(results[-1]))
    if options.out:
        Path(options.out).write_text(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
