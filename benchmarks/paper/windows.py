"""Steps of processes on this machine, in short windows taken in turns (figures 6 and 7).

All processes of a cluster are there all the time; in a window some of its workers take steps, and
the others sleep. Windows of all figures take turns, so what the machine does from minute to minute
happens to all of them, and turns in which other programs used the machine most do not count.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[2]
#: A task's arguments, of its number and a folder.
Command = Callable[[int, str], Sequence[object]]
#: Of the steps of a window: how long those of each twentieth take, from the least to the longest.
QUANTILES = tuple(range(0, 101, 5))
#: What a window says.
KEYS = (
    "mean", "median", "cpu", "server_app", "server_io", "worker_app", "worker_io", "own", "others",
)  # fmt: skip
_TICK = os.sysconf("SC_CLK_TCK")


def cores() -> int:
    """Of this machine, as far as this process may use them."""
    return len(os.sched_getaffinity(0))


@dataclass(frozen=True)
class Tasks:
    """The processes of a cluster, and the bytes of its parameters in all."""

    servers: list[subprocess.Popen[str]]
    workers: list[subprocess.Popen[str]]
    nbytes: int


@contextmanager
def processes(
    servers: int,
    workers: int,
    nbytes: int,
    serve: Command,
    work: Command,
    *,
    threads: int | None = None,
    together: bool = False,
) -> Iterator[Tasks]:
    """Tasks of a cluster as processes, killed at the end. serve, work: what is given to Python for
    a task, of its number and the folder with cluster.json. nbytes: of the parameters in all.
    threads: of each process, if not the usual ones. together: workers wait for each other, so none
    warms up alone; otherwise the first does, which fills the cache of compiled code.
    """
    with tempfile.TemporaryDirectory() as folder:
        jobs = {"ps": servers, "worker": workers}
        Path(folder, "cluster.json").write_text(json.dumps(
            {job: [f"ipc://{folder}/{job}{i}" for i in range(n)] for job, n in jobs.items()}
        ))  # fmt: skip
        made: list[subprocess.Popen[str]] = []
        environ = dict(os.environ, PYTHONPATH=str(ROOT))
        if threads is not None:
            environ["WEFT_NUM_THREADS"] = str(threads)

        def start(argv: Sequence[object]) -> subprocess.Popen[str]:
            made.append(subprocess.Popen(
                [sys.executable, *map(str, argv)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                text=True, env=environ,
            ))  # fmt: skip
            return made[-1]

        try:
            tasks = [start(serve(i, folder)) for i in range(servers)]
            for task in tasks:
                heard(task)
            clients = [start(work(i, folder)) for i in range(workers)]
            for client in clients:
                heard(client)
            for group in (clients,) if together else (clients[:1], clients[1:]):
                tell(group, "warm up")
                for client in group:
                    heard(client)
            yield Tasks(tasks, clients, nbytes)
        finally:
            for process in made:
                process.kill()
            for process in made:
                process.communicate()


def parameter_server(index: int, folder: str) -> list[object]:
    """The command of a task that computes what sessions send it."""
    where = Path(folder) / "cluster.json"
    return ["-m", "weft", "worker", "--cluster", where, "--job", "ps", "--task", index]


# ------------------------------------------------------------------------- in the worker's process
def obey(run: Callable[[], object], warm_seconds: float, skip: int = 0) -> None:
    """Run again and again, as the lines on stdin say, and answer on stdout: "ready", "warm", and
    for each number of seconds JSON with those of each step, until a line says "end". skip: how many
    steps at the beginning of a window do not count."""
    print("ready", flush=True)
    sys.stdin.readline()
    repeat(run, warm_seconds)
    print("warm", flush=True)
    while (line := sys.stdin.readline().strip()) not in ("end", ""):
        times = repeat(run, float(line))
        print(json.dumps(times[skip:] or times), flush=True)


def repeat(run: Callable[[], object], seconds: float) -> list[float]:
    """Run for so long, at least once: the seconds of each run."""
    times: list[float] = []
    begin = time.perf_counter()
    while not times or time.perf_counter() - begin < seconds:
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return times


# ------------------------------------------------------------------------ in the program's process
def heard(process: subprocess.Popen[str]) -> str:
    """The next line of a process; an error if it has ended."""
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise RuntimeError(f"a task ended with status {process.wait()}")
    return line


def tell(clients: Sequence[subprocess.Popen[str]], line: str) -> None:
    """Say something to all clients."""
    for client in clients:
        assert client.stdin is not None
        client.stdin.write(line + "\n")
        client.stdin.flush()


def cpu_seconds(group: Sequence[subprocess.Popen[str]]) -> tuple[float, float]:
    """Of the processors, so far: of ZeroMQ's threads, and of all others, those that ended too."""
    carrying = total = 0.0
    for process in group:
        total += time.clock_gettime(~process.pid << 3 | 2)  # Linux: the clock of a process
        for thread in Path(f"/proc/{process.pid}/task").glob("*/comm"):
            if thread.read_text().startswith("ZMQ"):
                carrying += int(thread.with_name("schedstat").read_text().split()[0]) / 1e9
    return carrying, total - carrying


def idle_seconds() -> float:
    """Of all processors, so far."""
    first = Path("/proc/stat").read_text().split("\n", 1)[0].split()
    return (int(first[4]) + int(first[5])) / _TICK


def window(tasks: Tasks, workers: int, seconds: float) -> dict[str, Any]:
    """Steps of so many workers for so long: the mean and median step, seconds of the processors for
    each by who used them, and which part of the processors these processes had (`own`) and others.
    """
    active = tasks.workers[:workers]
    groups = {"server": tasks.servers, "worker": tasks.workers}
    before = {name: cpu_seconds(group) for name, group in groups.items()}
    idle, begin = idle_seconds(), time.perf_counter()
    tell(active, str(seconds))
    times = np.concatenate([json.loads(heard(client)) for client in active])
    idle, wall = idle_seconds() - idle, time.perf_counter() - begin
    used = {}
    for name, group in groups.items():
        for kind, a, b in zip(("io", "app"), before[name], cpu_seconds(group), strict=True):
            used[f"{name}_{kind}"] = (b - a) / len(times)
    cpu = sum(used.values())
    own = cpu * len(times) / (wall * cores())
    return {
        "mean": float(times.mean()), "median": float(np.median(times)), "steps": len(times),
        "quantiles": np.percentile(times, QUANTILES).tolist(),
        "cpu": cpu, **used, "own": own, "others": 1 - idle / (wall * cores()) - own,
    }  # fmt: skip


@dataclass(frozen=True)
class Figure:
    """What is measured in windows: of these tasks, so many workers at once."""

    name: str
    tasks: Tasks
    workers: int


def in_turns(
    figures: Sequence[Figure], rounds: int, seconds: float, log: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """A window of each figure in twice so many turns, which go into `log` as they are; the half of
    the turns counts in which others used the machine least. For each figure the medians over its
    windows, and between which parts of it the middle eight tenths of the mean steps lie (`spread`).
    """
    begin = len(log)
    turns = range(2 * rounds)
    for turn in turns:
        for i, figure in enumerate(figures):
            row = window(figure.tasks, figure.workers, seconds)
            log.append({"figure": i, "name": figure.name, "turn": turn, **row})
    log = log[begin:]
    disturbed = [sum(row["others"] for row in log if row["turn"] == turn) for turn in turns]
    best = sorted(turns, key=disturbed.__getitem__)[:rounds]
    out = []
    for i, figure in enumerate(figures):
        rows = [row for row in log if row["figure"] == i and row["turn"] in best]
        medians = {key: float(np.median([row[key] for row in rows])) for key in KEYS}
        spread = np.percentile([row["mean"] for row in rows], (10, 90)) / medians["mean"]
        out.append({
            "name": figure.name, "servers": len(figure.tasks.servers), "workers": figure.workers,
            "bytes": figure.tasks.nbytes, **medians, "spread": spread.tolist(),
            "quantiles": np.median([row["quantiles"] for row in rows], axis=0).tolist(),
        })  # fmt: skip
    return out
