"""The synchronous null step of the paper (section 6.2, figure 6) with processes of this machine:
weft, raw ZeroMQ messages as the floor, TensorFlow's gRPC runtime; interleaved rounds.

    python benchmarks/null_step.py [--tensorflow PYTHON] [--json FILE] [--quick]
                                   [--only KIND:PS:WORKERS ...]
"""

from __future__ import annotations

import json
import socket
import statistics
import subprocess
import sys
from argparse import ArgumentParser, Namespace
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness import machine
from rich.console import Console
from rich.table import Table

WORKER = Path(__file__).with_name("null_step_worker.py")
#: kind, MB in all, parameter servers, workers, steps of a round, rounds
CASES: tuple[tuple[str, int, int, int, int, int], ...] = (
    *(("scalar", 0, ps, workers, 40, 8) for ps in (4, 16) for workers in (1, 2, 4, 8)),
    *(("dense", 100, 4, workers, 2, 5) for workers in (1, 2)),
    *(("sparse", mb, 4, workers, 20, 8) for mb, workers in ((64, 1), (1024, 1), (1024, 2))),
)


@dataclass
class Contestant:
    """The processes of one system."""

    system: str
    python: str
    ps: list[subprocess.Popen[str]] = field(default_factory=list)
    workers: list[subprocess.Popen[str]] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    def start(self, kind: str, megabytes: int, ps: int, workers: int) -> None:
        """Start all processes and wait until they are ready."""
        ports = iter(free_ports(ps + workers))
        cluster = {
            "ps": [f"127.0.0.1:{next(ports)}" for _ in range(ps)],
            "worker": [f"127.0.0.1:{next(ports)}" for _ in range(workers)],
        }
        for job, count, held in (("ps", ps, self.ps), ("worker", workers, self.workers)):
            for index in range(count):
                command = [self.python, "-P", str(WORKER), self.system, job, str(index), kind,
                           str(megabytes), json.dumps(cluster)]  # fmt: skip
                held.append(
                    subprocess.Popen(
                        command,
                        stdin=subprocess.PIPE,
                        stdout=subprocess.PIPE,
                        stderr=subprocess.DEVNULL if self.system == "tensorflow" else None,
                        text=True,
                    )
                )
        for process in (*self.ps, *self.workers):
            assert process.stdout is not None
            if process.stdout.readline() != "ready\n":
                raise RuntimeError(f"a process of {self.system} did not start")

    def round(self, steps: int) -> list[float]:
        """The seconds of each step of each worker, all workers at once."""
        for process in self.workers:
            assert process.stdin is not None
            process.stdin.write(f"{steps}\n")
            process.stdin.flush()
        out: list[float] = []
        for process in self.workers:
            assert process.stdout is not None
            out += json.loads(process.stdout.readline())
        return out

    def end(self) -> None:
        """Kill all processes."""
        for process in (*self.workers, *self.ps):
            process.kill()
            process.wait()


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens at now."""
    probes = [socket.socket() for _ in range(count)]
    for probe in probes:
        probe.bind(("127.0.0.1", 0))
    found = [int(probe.getsockname()[1]) for probe in probes]
    for probe in probes:
        probe.close()
    return found


def measure(case: tuple[str, int, int, int, int, int], pythons: dict[str, str]) -> dict[str, Any]:
    """One row: minimum and median of the steps of each system."""
    kind, megabytes, ps, workers, steps, rounds = case
    contestants = [Contestant(system, python) for system, python in pythons.items()]
    try:
        for one in contestants:
            one.start(kind, megabytes, ps, workers)
            one.round(3)  # compiles, connects
        for _ in range(rounds):
            for one in contestants:
                one.seconds += one.round(steps)
    finally:
        for one in contestants:
            one.end()
    return {
        "kind": kind, "megabytes": megabytes, "ps": ps, "workers": workers,
        "seconds": {
            one.system: {"minimum": min(one.seconds), "median": statistics.median(one.seconds)}
            for one in contestants
        },
    }  # fmt: skip


def show(rows: list[dict[str, Any]]) -> None:
    """The table: medians, with minima behind them."""
    table = Table(title="null step, ms: median (minimum)")
    for column in ("step", "PS", "workers", "weft", "ZeroMQ", "TensorFlow", "/ ZeroMQ", "TF /"):
        table.add_column(column, justify="left" if column == "step" else "right")
    for row in rows:
        found = row["seconds"]
        cells = [
            f"{found[s]['median'] * 1e3:.2f} ({found[s]['minimum'] * 1e3:.2f})"
            if s in found
            else "-"
            for s in ("weft", "zmq", "tensorflow")
        ]
        mine = found["weft"]["median"]
        floor = f"{mine / found['zmq']['median']:.2f}" if "zmq" in found else "-"
        peer = f"{found['tensorflow']['median'] / mine:.2f}" if "tensorflow" in found else "-"
        size = f" {row['megabytes']} MB" if row["megabytes"] else ""
        table.add_row(
            f"{row['kind']}{size}", str(row["ps"]), str(row["workers"]), *cells, floor, peer
        )
    Console(width=120).print(table)


def arguments() -> Namespace:
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--tensorflow", metavar="PYTHON", help="a Python that has TensorFlow")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument("--only", nargs="*", metavar="KIND:PS:WORKERS")
    return parser.parse_args()


def main() -> None:
    args = arguments()
    pythons = {"zmq": sys.executable, "weft": sys.executable}
    if args.tensorflow:
        pythons["tensorflow"] = args.tensorflow
    rows = []
    for case in CASES:
        if args.only and f"{case[0]}:{case[2]}:{case[3]}" not in args.only:
            continue
        rows.append(measure((*case[:5], 2) if args.quick else case, pythons))
        show(rows[-1:])
    show(rows)
    if args.json:
        text = json.dumps({"title": "null step", "machine": machine(), "rows": rows}, indent=1)
        Path(args.json).write_text(text + "\n")


if __name__ == "__main__":
    main()
