"""One worker of `scaling.py`: null steps over parameter servers (paper, section 6.2).

    python scaling_worker.py CLUSTER.json INDEX ELEMENTS

It is task INDEX of the job `worker`, and the session's master. Lines on stdin let it go on: warm
up; run for so many seconds (the line says them), again and again; end. Lines on stdout: "ready",
"warm", and each time JSON with the seconds of each step.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable

import numpy as np

import weft as wf

WARM_SECONDS = 3.0


def null_step(servers: int, worker: int, elements: int) -> tuple[wf.Graph, object, object]:
    """The graph, what initialises it, and the step: each server sends its f32[elements] parameters
    to the worker, which sends back one number that the server adds up."""
    with wf.Graph("null").as_default() as graph:
        updates = []
        for j in range(servers):
            with wf.device(f"/job:ps/task:{j}"):
                parameters = wf.Variable(np.zeros(elements, np.float32), name=f"parameters{j}")
                counter = wf.Variable(np.float32(0), name=f"counter{j}")
            with wf.device(f"/job:worker/task:{worker}"):
                gradient = parameters.read()[0] + 1.0
            updates.append(counter.assign_add(gradient))
        return graph, wf.global_variables_initializer(), wf.group(*updates)


def obey(run: Callable[[], object], warm_seconds: float) -> None:
    """Run again and again, as the lines on stdin say, and answer on stdout."""
    print("ready", flush=True)
    sys.stdin.readline()
    repeat(run, warm_seconds)
    print("warm", flush=True)
    while (line := sys.stdin.readline().strip()) != "end":
        print(json.dumps(repeat(run, float(line))), flush=True)


def repeat(run: Callable[[], object], seconds: float) -> list[float]:
    """Run for so long: the seconds of each run."""
    times = []
    begin = time.perf_counter()
    while time.perf_counter() - begin < seconds:
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return times


def main() -> None:
    """See the module's text."""
    cluster, index, elements = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    with open(cluster, encoding="utf-8") as file:
        jobs = json.load(file)
    server = wf.train.Server(jobs, "worker", index)
    graph, init, step = null_step(len(jobs["ps"]), index, elements)
    with wf.Session(server.target, graph=graph) as session:
        if index == 0:
            session.run(init)
        obey(lambda: session.run(step), WARM_SECONDS)  # threads still compile what may be used
    server.stop()


if __name__ == "__main__":
    main()
