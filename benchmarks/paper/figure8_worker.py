"""One process of figure8.py: the chief, which steps and times, or a worker, which
computes (it sleeps as long as that takes) and hands in a gradient.

    python figure8_worker.py CLUSTER.json INDEX

INDEX 0 is the chief. Lines on stdin are JSON: which run comes next (`Run`). A process prints
"ready" when it could begin; the chief then the seconds of each step, and what was dropped.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

import weft as wf

SIZE = 256  # floats of the parameters
_ENDS = (wf.errors.CancelledError, wf.errors.OutOfRangeError)


@dataclass(frozen=True)
class Run:
    """`workers` + `backups` workers, of which each step takes the first `workers`.

    A worker computes for compute_s * exp(spread * normal) seconds, and with the likelihood
    `straggle` for longer, on average `factor` times as long: as in `passes/placement/simulate.py`.
    """

    number: int
    workers: int
    backups: int
    steps: int
    compute_s: float
    spread: float
    straggle: float
    factor: float
    seed: int

    def seconds(self, worker: int, step: int) -> float:
        """How long a worker computes."""
        random = np.random.default_rng((self.seed, self.backups, worker, step))
        seconds = self.compute_s * float(np.exp(self.spread * random.normal()))
        slow, extra = random.random() < self.straggle, float(random.exponential())
        return seconds * (1 + (self.factor - 1) * extra) if slow else seconds


def build(run: Run, worker: int) -> tuple[wf.Graph, wf.train.SyncReplicas, Any, Any, wf.Variable]:
    """The graph of one worker: w goes to 1, gradient w - 1. Also its step and the global step."""
    with wf.Graph(f"run {run.number}").as_default() as graph:
        with wf.device("/job:ps/task:0"):
            step = wf.Variable(np.int64(0), trainable=False, name=f"step_{run.number}")
            w = wf.Variable(np.zeros(SIZE, np.float32), name=f"w_{run.number}")
        sync = wf.train.SyncReplicas(
            wf.train.SGD(0.1), run.workers, run.workers + run.backups,
            name=f"sync_{run.number}",
        )  # fmt: skip
        with wf.device(f"/job:worker/task:{worker}"):
            gradient = w.read() - 1.0
            train = sync.apply_gradients([(gradient, w)], step, worker=max(0, worker - 1))
        return graph, sync, train, wf.global_variables_initializer(), step


def work(run: Run, server: wf.train.Server, index: int) -> None:
    """A worker: until the chief has closed the queues."""
    graph, sync, train, _, _ = build(run, index)
    with graph.as_default():
        begin = sync.local_step_init_op
    with wf.Session(server.target, graph=graph) as session:
        call = session.make_callable(train)
        print("ready", flush=True)
        sys.stdin.readline()
        session.run(begin)
        count = 0
        try:
            while True:
                time.sleep(run.seconds(index, count))
                call()
                count += 1
        except _ENDS:
            print(json.dumps(count), flush=True)


def lead(run: Run, server: wf.train.Server) -> None:
    """The chief: the seconds of each step."""
    graph, sync, _, init, step = build(run, 0)
    with graph.as_default():
        chief, begin = sync.chief_step, sync.chief_init_op
        runner = sync.get_chief_queue_runner()
    with wf.Session(server.target, graph=graph) as session:
        session.run(init)
        session.run(begin)
        print("ready", flush=True)
        sys.stdin.readline()
        times, call = [], session.make_callable(chief)
        for _ in range(run.steps):
            start = time.perf_counter()
            call()
            times.append(time.perf_counter() - start)
        assert session.run(step) == run.steps
        stop = wf.train.Coordinator()
        runner.create_threads(session, stop, daemon=True, start=True)
        stop.request_stop()  # closes the queues
        stop.join(stop_grace_period_secs=10)
        print(json.dumps(times), flush=True)
        sys.stdin.readline()  # until the workers have seen that


def main() -> None:
    """See the module's text."""
    path, index = sys.argv[1], int(sys.argv[2])
    with open(path, encoding="utf-8") as file:
        server = wf.train.Server(json.load(file), "worker", index)
    print("ready", flush=True)
    for line in sys.stdin:
        run = Run(**json.loads(line))
        lead(run, server) if index == 0 else work(run, server, index)
    server.stop()


if __name__ == "__main__":
    main()
