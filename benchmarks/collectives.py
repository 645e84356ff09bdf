"""Sums over 2, 4 and 8 processes of one host, beside torch.distributed's gloo in the same run.

    python benchmarks/collectives.py [--torch PYTHON] [--json collectives.json] [--quick]

PYTHON: one that has torch (`python -m venv /tmp/torch && /tmp/torch/bin/pip install torch`). Rounds
go in turn over the ways, so a noisy machine disturbs all alike; while one is measured the processes
of the others wait. `weft`, `tcp` and `gloo` add in place; `tcp` is weft's group of several hosts,
here by loopback, as gloo's is; `compiled` is a function of wf.compile whose result is a new array.
Seconds are those of rank 0."""

from __future__ import annotations

import argparse
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from harness import Comparison, Timing, write
from rich.console import Console
from rich.table import Table

WORKER = Path(__file__).with_name("collectives_worker.py")
#: Elements of float32, rounds, and calls in a round.
SIZES = {"1 KB": (256, 40, 50), "1 MB": (250_000, 40, 5), "100 MB": (25_000_000, 7, 1)}


def free_ports(count: int) -> list[str]:
    """Ports of loopback that nobody has just now."""
    with ExitStack() as stack:
        held = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in held:
            one.bind(("127.0.0.1", 0))
        return [str(one.getsockname()[1]) for one in held]


@contextmanager
def members(kind: str, python: str, size: int) -> Iterator[Callable[[int, int], float]]:
    """Processes that make a call together; gives the seconds of one."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        made, ports = [], free_ports(size) if kind == "tcp" else []
        for rank in range(size):
            given = [python, str(WORKER), kind, folder, str(rank), str(size), *ports]
            process = subprocess.Popen(
                given, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=folder
            )
            stack.enter_context(process)
            stack.callback(process.kill)
            made.append(process)
        for process in made:
            assert process.stdout is not None
            assert process.stdout.readline() == "here\n"

        def run(count: int, times: int) -> float:
            for process in made:
                assert process.stdin is not None
                process.stdin.write(f"{count} {times}\n")
                process.stdin.flush()
            seconds = []
            for process in made:
                assert process.stdout is not None
                seconds.append(float(process.stdout.readline()))
            return seconds[0]

        yield run


def measured(size: int, torch: str | None, quick: bool) -> list[Comparison]:
    """The rows of so many processes."""
    ways = dict.fromkeys(("weft", "tcp", "compiled"), sys.executable)
    if torch is not None:
        ways["gloo"] = torch
    found = []
    with ExitStack() as stack:
        runs = {k: stack.enter_context(members(k, python, size)) for k, python in ways.items()}
        for name, (count, rounds, times) in SIZES.items():
            seconds: dict[str, list[float]] = {kind: [] for kind in runs}
            for _ in range(3 if quick else rounds):
                for kind, run in runs.items():
                    seconds[kind].append(run(count, times))
            timings = {kind: Timing.of(held) for kind, held in seconds.items()}
            found.append(Comparison(f"{name}, {size} processes", timings))
    return found


def report(rows: list[Comparison]) -> None:
    table = Table(title="all_reduce of float32: us, min / median (times as fast as gloo)")
    table.add_column("workload")
    kinds = list(rows[0].timings)
    for kind in kinds:
        table.add_column(kind, justify="right")
    for row in rows:
        cells = [row.workload]
        for kind in kinds:
            t = row.timings[kind]
            text = f"{t.minimum * 1e6:.0f} / {t.median * 1e6:.0f}"
            if "gloo" in kinds and kind != "gloo":
                peer = row.timings["gloo"]
                text += f" ({peer.minimum / t.minimum:.2f} / {peer.median / t.median:.2f})"
            cells.append(text)
        table.add_row(*cells)
    Console(width=140).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--torch", metavar="PYTHON", help="a Python that has torch")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--quick", action="store_true", help="a few rounds")
    args = parser.parse_args()
    rows = [row for size in (2, 4, 8) for row in measured(size, args.torch, args.quick)]
    report(rows)
    if args.json:
        write("collectives", rows, args.json)


if __name__ == "__main__":
    main()
