"""One worker of figure 7: training steps of Inception-v3 over parameter servers, as `windows.py`
says, on one batch of synthetic images.

    python figure7_worker.py INDEX FOLDER SETTINGS

It is task INDEX of the job `worker` of FOLDER/cluster.json. SETTINGS: JSON (`Settings`).
Asynchronously the seconds are those of the worker's own steps. Synchronously all workers train
until they are killed, each step waits for all their gradients (`wf.train.SyncReplicas`), and the
first worker, which is the chief, too, says how long steps take; while it makes none, all wait.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import inception
from table1_nets import loss_of, problem
from table1_steps import Weft
from windows import obey

import weft as wf

RATE = 1e-3
WARM_SECONDS = 6.0  # threads still compile what may be used


@dataclass(frozen=True)
class Settings:
    """width: of the channels, as a part of the net's. workers: how many synchronous steps wait for;
    0: asynchronous steps."""

    width: float
    classes: int
    image: int
    batch: int
    workers: int


class Replica:
    """A worker's graph. feeds: the batch. train: a step; begin: what it runs first, if anything.
    chief: what the chief runs for each synchronous step; init: first values, and its beginning."""

    def __init__(self, given: Settings, index: int, cluster: dict[str, list[str]]) -> None:
        net = inception.net(given.width, given.classes)
        task = problem(net, given.batch, given.image)
        place = wf.train.replica_device_setter(
            cluster=cluster, worker_device=f"/job:worker/task:{index}"
        )
        self.values = (task.x, task.labels)
        self.graph = wf.Graph("inception")
        with self.graph.as_default(), wf.device(place):
            params = [wf.Variable(p, name=f"p{k}") for k, p in enumerate(task.params)]
            x = wf.placeholder(wf.float32, task.x.shape)
            labels = wf.placeholder(wf.int64, task.labels.shape)
            self.feeds = [x, labels]
            loss = loss_of(Weft, net)(params, x, labels)
            count = wf.train.get_or_create_global_step()
            optimizer = wf.train.SGD(RATE)
            self.begin = self.chief = None
            if not given.workers:
                self.train = optimizer.minimize(loss, global_step=count)
                self.init = [wf.global_variables_initializer()]
                return
            together = wf.train.SyncReplicas(optimizer, given.workers)
            self.train = together.minimize(loss, count, worker=index)
            self.begin, self.chief = together.local_step_init_op, together.chief_step
            self.init = [wf.global_variables_initializer(), together.chief_init_op]

    def step(self, session: wf.Session) -> Callable[[], object]:
        """A training step of this worker."""
        call: Any = session.make_callable(self.train, self.feeds)
        return lambda: call(*self.values)


def train_on(replica: Replica, session: wf.Session) -> None:
    """Synchronous steps of a worker until the process is killed."""
    step = replica.step(session)
    session.run(replica.begin)
    while True:
        step()


def work(given: Settings, index: int, session: wf.Session, replica: Replica) -> None:
    """What is asked for on stdin."""
    if index == 0:
        for op in replica.init:
            session.run(op)
    if not given.workers:
        obey(replica.step(session), WARM_SECONDS)
    elif index == 0:
        threading.Thread(target=train_on, args=(replica, session), daemon=True).start()
        # the first step of a window has its gradients before it begins
        obey(session.make_callable(replica.chief), WARM_SECONDS, skip=1)
    else:
        print("ready", flush=True)
        sys.stdin.readline()
        print("warm", flush=True)
        train_on(replica, session)


def main() -> None:
    """See the module's text."""
    index, folder, given = int(sys.argv[1]), sys.argv[2], Settings(**json.loads(sys.argv[3]))
    cluster = json.loads(Path(folder, "cluster.json").read_text())
    server = wf.train.Server(cluster, "worker", index)
    replica = Replica(given, index, cluster)
    with wf.Session(server.target, graph=replica.graph) as session:
        work(given, index, session, replica)
    server.stop()


if __name__ == "__main__":
    main()
