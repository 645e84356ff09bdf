"""A data-parallel step of two shards by the three kinds of a mesh: as a batch in one process, on
two tasks of one program, in two processes.

    python benchmarks/shards.py [--rounds 5] [--steps 20] [--quick]

Two layers of N x N, Adam, 64 examples; each process has one thread. They take turns. What is sent
in a step, least and median milliseconds of a step, and what a step takes of all processors: of the
client, the workers, or the members of the process mesh."""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import weft as wf

EXAMPLES = 64
Step = Callable[[], None]


def model(width: int) -> Callable[[Any, Any], Any]:
    """A training step."""
    rng = np.random.default_rng(0)
    scale = width**-0.5
    weights = [
        wf.Variable((rng.normal(size=(width, width)) * scale).astype(np.float32)) for _ in range(2)
    ]
    optimizer = wf.train.Adam(0.001)

    def step(x: Any, y: Any) -> Any:
        h = x
        for w in weights:
            h = wf.tanh(wf.matmul(h, w))
        loss = wf.mean((h - y) ** 2)
        optimizer.minimize(loss)
        return loss

    return step


def stepping(width: int, mesh: wf.Mesh, cluster: str | None = None) -> tuple[Step, str]:
    """What does a step, and what is sent in one between tasks."""
    rng = np.random.default_rng(1)
    x, y = (rng.normal(size=(EXAMPLES, width)).astype(np.float32) for _ in range(2))
    train = wf.compile(wf.data_parallel(model(width), mesh), cluster=cluster)
    for _ in range(3):
        train(x, y)
    found = re.search(r"sent: (.*) \(", train.explain(x, y)) if cluster else None

    def step() -> None:
        float(train(x, y))

    return step, found[1] if found else ""


def member(folder: str, rank: int, width: int) -> None:
    """A process of a mesh of two, or with rank -1 the one that does all of a batch."""
    task = None
    if rank >= 0:
        addresses = {"worker": [f"ipc://{folder}/{width}-{k}" for k in range(2)]}
        task = wf.train.ClusterTask(wf.train.ClusterSpec(addresses), "worker", rank)
    step, _ = stepping(width, wf.Mesh({"data": 2}, task=task))
    print("warm", flush=True)
    for line in sys.stdin:
        seconds = [timed(step) for _ in range(int(line))]
        print(*seconds, flush=True)


def timed(step: Step) -> float:
    began = time.perf_counter()
    step()
    return time.perf_counter() - began


def processor(pids: Sequence[int]) -> float:
    """Seconds that processes have taken of the processors."""
    found = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        found += int(fields[11]) + int(fields[12])
    return found / os.sysconf("SC_CLK_TCK")


@contextmanager
def started(*commands: Sequence[str]) -> Iterator[list[subprocess.Popen[str]]]:
    """Processes of one thread; killed at the end."""
    environ = dict(os.environ, WEFT_NUM_THREADS="1")
    with ExitStack() as stack:
        made = []
        for command in commands:
            process = subprocess.Popen(
                [sys.executable, *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                text=True, env=environ,
            )  # fmt: skip
            stack.enter_context(process)
            stack.callback(process.kill)
            made.append(process)
        yield made


@contextmanager
def members(folder: str, ranks: Sequence[int], width: int) -> Iterator[tuple[Any, list[int]]]:
    """What does so many steps in members of a mesh and gives their seconds, and the processes."""
    with started(*([__file__, "--member", folder, str(r), str(width)] for r in ranks)) as made:
        for process in made:
            assert process.stdout is not None
            assert process.stdout.readline() == "warm\n"

        def run(count: int) -> list[float]:
            for process in made:
                assert process.stdin is not None
                process.stdin.write(f"{count}\n")
                process.stdin.flush()
            lines = [process.stdout.readline() for process in made if process.stdout is not None]
            if not all(lines):
                raise RuntimeError("a process of the mesh has ended")
            return [float(word) for word in lines[0].split()]

        yield run, [process.pid for process in made]


@contextmanager
def tasks(folder: str) -> Iterator[tuple[str, list[int]]]:
    """Two tasks in processes of their own: the target of the first, and the processes."""
    spec = wf.train.ClusterSpec({"worker": [f"ipc://{folder}/task{k}" for k in range(2)]})
    path = Path(folder, "cluster.json")
    path.write_text(spec.to_json())
    given = ["-m", "weft", "worker", "--cluster", str(path), "--job", "worker", "--task"]
    with started(*([*given, str(k)] for k in range(2))) as made:
        yield spec.address("worker", 0), [os.getpid(), *(process.pid for process in made)]


def measured(width: int, rounds: int, steps: int) -> dict[str, tuple[str, list[float], float]]:
    """By kind of mesh: what is sent, seconds of steps, and least seconds of the processors."""
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        target, pids = stack.enter_context(tasks(folder))
        mesh = wf.Mesh({"data": 2}, devices=[f"/job:worker/task:{k}" for k in range(2)])
        step, sent = stepping(width, mesh, target)
        ways: dict[str, tuple[Callable[[int], list[float]], list[int]]] = {
            "batch": stack.enter_context(members(folder, [-1], width)),
            "devices": (lambda count: [timed(step) for _ in range(count)], pids),
            "processes": stack.enter_context(members(folder, [0, 1], width)),
        }
        seconds: dict[str, list[float]] = {way: [] for way in ways}
        taken: dict[str, list[float]] = {way: [] for way in ways}
        for _ in range(rounds):
            for way, (run, of) in ways.items():
                before = processor(of)
                seconds[way] += run(steps)
                taken[way].append((processor(of) - before) / steps)
    return {way: (sent if way == "devices" else "", seconds[way], min(taken[way])) for way in ways}


def main() -> None:
    """See the module's text."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=20, help="of a turn")
    parser.add_argument("--quick", action="store_true", help="the smallest width alone")
    options = parser.parse_args()
    table = Table("width", "mesh", "sent in a step", "ms: least / median", "processor ms")
    for width in (64,) if options.quick else (64, 512, 1024):
        for way, (sent, found, taken) in measured(width, options.rounds, options.steps).items():
            times = f"{min(found) * 1e3:.2f} / {statistics.median(found) * 1e3:.2f}"
            table.add_row(str(width), way, sent, times, f"{taken * 1e3:.2f}")
    Console(width=110).print(table)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--member"]:
        place, number, size = sys.argv[2:]
        member(place, int(number), int(size))
    else:
        main()
