"""Null steps in processes of this machine, and the simulator's predictions of them (`figure6.py`).

The simulator is told what the steps of *one* worker take of the processors, by who takes it:
workers and servers, threads that handle messages and that carry them. What bytes take, and how much
longer all that takes among more processes (caches are cold), is measured of the transport alone
(`figure6_transport.py`): the same messages without a session, of one worker and of the most. How
long a processor that has nothing to do takes to begin is measured of two processes and two pipes.
No time of any step is fitted, not even that of one worker. A step is the mean, as what it takes of
the processors is, of windows of which the median counts.
"""

from __future__ import annotations

import gzip
import os
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from windows import Figure, cores, in_turns, parameter_server, processes

from weft.ir.cost.thresholds import LENT_BYTES
from weft.passes.placement.simulate import Cluster, Ends, Machine, Workload, simulate

#: Messages of a null step, or of a trip, for each server.
MESSAGES = 4
#: Of what a server has, in float32: scalars, and tensors of 4 MB.
SMALL, LARGE = 1, 1_000_000
HERE = Path(__file__).parent
#: A window's seconds; of how many steps, and seeds (where threads ran last), a prediction is made.
WINDOW_S, STEPS, SEEDS = 0.5, 30, 12

Row = dict[str, Any]


def wake_seconds(trips: int = 4000) -> float:
    """From a byte in a pipe to the process that waits for it, on a processor that has nothing else
    to do; what the two processes work is taken off."""
    there, back = os.pipe(), os.pipe()
    child = os.fork()
    if not child:
        try:
            while os.read(there[0], 1) == b"x":
                os.write(back[1], b"x")
        finally:
            os._exit(0)
    try:
        clock = ~child << 3 | 2  # Linux: of a process
        for count in (trips // 4, trips):  # the first ones warm up
            begin, own, other = time.perf_counter(), time.process_time(), time.clock_gettime(clock)
            for _ in range(count):
                os.write(there[1], b"x")
                os.read(back[0], 1)
            wall = time.perf_counter() - begin
            work = time.process_time() - own + time.clock_gettime(clock) - other
        return max(0.0, wall - work) / (2 * trips)
    finally:
        os.write(there[1], b"e")
        os.waitpid(child, 0)
        for end in (*there, *back):
            os.close(end)


def crowding(first: float, last: float, more: int) -> float:
    """So that 1 + more * crowding is how what was measured grows among `more` tasks."""
    return (last / first - 1) / more if more and first > 0 else 0.0


def ends(role: str, null: Sequence[Row], bare: Sequence[Row]) -> Ends:
    """What a message costs at the role's end. null: small and large steps of one worker; bare:
    small and large trips of one worker, then of the most."""
    servers = int(null[0]["servers"])
    more = int(bare[2]["workers"] - bare[0]["workers"])
    app, carrier = f"{role}_app", f"{role}_io"

    def larger(small: Row, large: Row) -> float:
        return float(sum(large[key] - small[key] for key in (app, carrier)))

    trip, crowded = max(0.0, larger(*bare[:2])), max(0.0, larger(*bare[2:]))
    by_app, by_carrier = (crowding(bare[0][key], bare[2][key], more) for key in (app, carrier))
    return Ends(
        null[0][app] / (MESSAGES * servers), null[0][carrier] / (MESSAGES * servers),
        max(0.0, larger(*null) - trip) / (2 * servers), trip / (2 * bare[1]["bytes"]),
        by_app, by_carrier, crowding(trip, crowded, more),
    )  # fmt: skip


def predicted(machine: Machine, row: Row) -> float:
    """The mean step."""
    load = Workload.even(int(row["servers"]), row["bytes"], row["bytes"], 0.0)
    runs = [
        simulate(
            load, int(row["workers"]), Cluster(machine=machine), synchronous=False, steps=STEPS,
            seed=seed,
        )
        for seed in range(SEEDS)
    ]  # fmt: skip
    return float(np.mean([np.mean(run.steps) for run in runs]))


def tick_seconds() -> float:
    """1 / CONFIG_HZ, as far as the kernel says it; 4 ms otherwise."""
    for place in (Path("/proc/config.gz"), Path(f"/boot/config-{os.uname().release}")):
        if place.exists():
            data = place.read_bytes()
            text = (gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data).decode()
            for line in text.splitlines():
                if line.startswith("CONFIG_HZ="):
                    return 1 / int(line.partition("=")[2])
    return 4e-3


def compare(servers: int, seconds: float, most: int) -> dict[str, Any]:
    """Measured and predicted steps for 1 to `most` workers, small and large parameters; and what
    the predictions are made from."""
    counts = [n for n in (1, 2, 3, 4, 6, 8) if n <= most]
    wake_s = float(np.median([wake_seconds() for _ in range(5)]))
    with ExitStack() as stack:

        def tasks(elements: int, bare: bool) -> Any:
            kind, megabytes = ("dense", 4 * servers) if elements == LARGE else ("scalar", 0)
            alone, worker = HERE / "figure6_transport.py", HERE / "figure6_worker.py"

            def work(index: int, folder: str) -> list[object]:
                if bare:
                    return [alone, "worker", index, folder, servers, elements]
                return [worker, index, folder, kind, megabytes]

            serve = (lambda i, folder: [alone, "server", i, folder]) if bare else parameter_server
            nbytes = 4 * elements * servers
            return stack.enter_context(processes(servers, most, nbytes, serve, work))

        figures = []
        for name, numbers in (("null", counts), ("bare", (1, counts[-1]))):
            group = [tasks(size, name == "bare") for size in (SMALL, LARGE)]
            figures += [Figure(name, made, n) for n in numbers for made in group]
        log: list[Row] = []
        rows = in_turns(figures, max(1, round(seconds / WINDOW_S)), WINDOW_S, log)
    return concluded(rows, wake_s)


def concluded(rows: Sequence[Row], wake_s: float) -> dict[str, Any]:
    """The machine that these figures say, and its predictions of the null steps."""
    null = [row for row in rows if row["name"] == "null"]
    bare = [row for row in rows if row["name"] == "bare"]
    machine = Machine(
        cores(), ends("worker", null[:2], bare), ends("server", null[:2], bare),
        int(null[0]["servers"]) + 1, LENT_BYTES, wake_s, balance_s=tick_seconds(),
    )  # fmt: skip
    for row in null:
        row["predicted"] = predicted(machine, row)
        row["ratio"] = row["predicted"] / row["mean"]
    null.sort(key=lambda row: row["bytes"])
    return {"measured": null, "transport": bare, "machine_fit": asdict(machine)}
