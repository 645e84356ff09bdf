"""Null steps in processes of this machine, and the simulator's predictions of them (`scaling.py`).

What more processes than cores cost each other is taken from the transport alone: the same messages
without a session (`scaling_transport.py`), of one worker and of the most. The null steps of *one*
worker give the rest, and those of all others are predicted.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from weft.comm.limits import Limits
from weft.passes.placement import Links
from weft.passes.placement.simulate import Cluster, Workload, simulate

HERE = Path(__file__).parent


@contextmanager
def processes(
    servers: int, workers: int, elements: int, bare: bool
) -> Iterator[tuple[list[Any], list[Any]]]:
    """Tasks of a cluster as processes, killed at the end: (servers, workers). bare: only what sends
    and receives."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "cluster.json"
        jobs = {"ps": servers, "worker": workers}
        path.write_text(json.dumps(
            {job: [f"ipc://{folder}/{job}{i}" for i in range(n)] for job, n in jobs.items()}
        ))  # fmt: skip
        made: list[subprocess.Popen[str]] = []

        def start(*argv: object) -> subprocess.Popen[str]:
            made.append(subprocess.Popen(
                [sys.executable, *map(str, argv)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                text=True,
            ))  # fmt: skip
            return made[-1]

        try:
            command = ("-m", "weft", "worker", "--cluster", path, "--job", "ps", "--task")
            alone = HERE / "scaling_transport.py"
            tasks = [
                start(alone, "server", i, folder) if bare else start(*command, i)
                for i in range(servers)
            ]
            for task in tasks:
                heard(task)
            script = HERE / "scaling_worker.py"
            clients = [
                start(alone, "worker", i, folder, servers, elements)
                if bare
                else start(script, path, i, elements)
                for i in range(workers)
            ]
            for client in clients:
                heard(client)
            yield tasks, clients
        finally:
            for process in made:
                process.kill()
            for process in made:
                process.communicate()


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


def cpu_seconds(process: subprocess.Popen[str]) -> float:
    """Of the processor, so far."""
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(
    servers: int, workers: int, elements: int, seconds: float, bare: bool = False
) -> dict[str, float]:
    """Null steps for so long, or (bare) only their messages: the median step, and the processor's
    seconds for each."""
    with processes(servers, workers, elements, bare) as (tasks, clients):
        tell(clients, "warm up")
        for client in clients:
            heard(client)
        before = sum(map(cpu_seconds, tasks))
        tell(clients, str(seconds))
        rows = [json.loads(heard(client)) for client in clients]
        after = sum(map(cpu_seconds, tasks))
        tell(clients, "end")
    times = np.concatenate([r["times"] for r in rows])
    cpu = after - before + sum(r["cpu"] for r in rows)
    return {
        "servers": servers, "workers": workers, "bytes": 4 * elements * servers,
        "median": float(np.median(times)), "cpu": cpu / len(times), "steps": len(times),
    }  # fmt: skip


def crowding(bare: Sequence[dict[str, float]], offers: float) -> tuple[float, float]:
    """(message_crowd, byte_crowd) of this machine, from the transport's small and large trips of
    one worker and of the most: small, large, small, large."""
    more = [max(0, int(row["servers"] + row["workers"]) - cores()) for row in bare[::2]]
    messages = [row["cpu"] for row in bare[::2]]
    nbytes = [
        large["cpu"] - small["cpu"] * offers
        for small, large in zip(bare[::2], bare[1::2], strict=True)
    ]

    def part(first: float, last: float) -> float:
        """So that 1 + more * part grows as what was measured does."""
        grows = last / first
        if grows <= 1:
            return 0.0
        if grows * more[0] >= more[1]:
            raise RuntimeError(
                f"a message takes {grows:.1f} times as long: the machine is not quiet"
            )
        return (grows - 1) / (more[1] - grows * more[0])

    return part(*messages), part(*nbytes)


def cores() -> int:
    """Of this machine, as far as this process may use them."""
    return len(os.sched_getaffinity(0))


#: Small messages of a trip for each server; an offered tensor takes two more.
MESSAGES, OFFERED = 4, 2


def fitted(
    first: dict[str, float], large: dict[str, float], bare: Sequence[dict[str, float]]
) -> Cluster:
    """This machine, from the null steps of one worker with small and with large parameters, and
    from the transport's trips (`crowding`).

    The processor's time is given: that of the small step by message, that of the bytes of the
    large one by byte. What the small step takes beyond what is busy are latencies.
    """
    servers = int(first["servers"])
    offers = (MESSAGES + OFFERED) / MESSAGES
    messages, nbytes = crowding(bare, offers)
    more = max(0, servers + 1 - cores())
    message_s = first["cpu"] / (2 * MESSAGES * servers) / (1 + more * messages)
    byte_s = max(0.0, large["cpu"] - first["cpu"] * offers) / (2 * large["bytes"])
    links = Links(latency_s=0.0, message_s=message_s)
    cluster = Cluster(
        links, cores(), byte_s / (1 + more * nbytes), one_machine=True, message_crowd=messages,
        byte_crowd=nbytes, offer_bytes=Limits().eager_bytes,
    )  # fmt: skip
    load = Workload.even(servers, first["bytes"], 4.0 * servers, 0.0)
    low, high = 0.0, first["median"]
    for _ in range(30):
        latency = (low + high) / 2
        cluster = replace(cluster, links=replace(links, latency_s=latency))
        got = simulate(load, 1, cluster, synchronous=False, steps=3).median
        low, high = (latency, high) if got < first["median"] else (low, latency)
    return cluster


SMALL, LARGE = 1, 1_000_000


def compare(servers: int, seconds: float, most: int) -> dict[str, Any]:
    """Measured and predicted steps for 1 to `most` workers, small and large parameters; and what
    the predictions are made from."""
    counts = [n for n in (1, 2, 3, 4, 6, 8) if n <= most]
    found = {}
    for size in (SMALL, LARGE):
        measure(servers, 1, size, 1.0)  # what is compiled is in the cache afterwards
        found[size] = [measure(servers, n, size, seconds) for n in counts]
    bare = [
        measure(servers, n, size, seconds, bare=True)
        for n in (1, counts[-1])
        for size in (SMALL, LARGE)
    ]
    cluster = fitted(found[SMALL][0], found[LARGE][0], bare)
    rows = []
    for row in (r for group in found.values() for r in group):
        load = Workload.even(servers, row["bytes"], 4.0 * servers, 0.0)
        run = simulate(load, int(row["workers"]), cluster, synchronous=False, steps=10)
        rows.append({**row, "predicted": run.median, "ratio": run.median / row["median"]})
    fit = {
        "message_s": cluster.links.message_s, "latency_s": cluster.links.latency_s,
        "byte_s": cluster.byte_s, "message_crowd": cluster.message_crowd,
        "byte_crowd": cluster.byte_crowd,
    }  # fmt: skip
    return {"measured": rows, "transport": bare, "machine_fit": fit}
