"""Interleaved timing: every contestant runs in every round, so that a noisy machine disturbs all
alike.

A figure is a ratio against a peer measured in the same run, from minima and from medians; the
absolute times are there to show the scale.
"""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table


@dataclass(frozen=True)
class Timing:
    """Seconds per call: minimum and median over the rounds."""

    minimum: float
    median: float


@dataclass(frozen=True)
class Comparison:
    """One workload: the timing of each contestant by name ("weft" among them)."""

    workload: str
    timings: dict[str, Timing]

    def ratio(self, peer: str) -> tuple[float, float]:
        """How many times faster weft is than `peer`, by minima and by medians."""
        mine, other = self.timings["weft"], self.timings[peer]
        return other.minimum / mine.minimum, other.median / mine.median


def compare(
    workload: str,
    contestants: Mapping[str, Callable[[], object]],
    *,
    rounds: int = 200,
    inner: int = 1,
    elsewhere: Mapping[str, Callable[[int], float]] | None = None,
) -> Comparison:
    """Time `inner` calls of each contestant in turn, `rounds` times, after a warm-up.

    A contestant must finish its work before it returns (block until ready). Those `elsewhere` run
    in another process: given `inner`, they return the seconds of one call.
    """
    elsewhere = elsewhere or {}
    for run in contestants.values():
        for _ in range(max(3, rounds // 20)):
            run()
    for time_there in elsewhere.values():
        time_there(max(3, rounds // 20))
    seconds: dict[str, list[float]] = {name: [] for name in (*contestants, *elsewhere)}
    for _ in range(rounds):
        for name, run in contestants.items():
            started = time.perf_counter()
            for _ in range(inner):
                run()
            seconds[name].append((time.perf_counter() - started) / inner)
        for name, time_there in elsewhere.items():
            seconds[name].append(time_there(inner))
    timings = {n: Timing(min(s), float(np.median(s))) for n, s in seconds.items()}
    return Comparison(workload, timings)


def report(title: str, comparisons: list[Comparison], path: str | None) -> None:
    """Print the table; write it with the machine's description as JSON if `path` is given."""
    peers = [n for n in comparisons[0].timings if n != "weft"]
    table = Table(title=title)
    for column in (
        "workload",
        "weft us (min / median)",
        *(f"vs {p} (min / median)" for p in peers),
    ):
        table.add_column(column, justify="left" if column == "workload" else "right")
    for c in comparisons:
        mine = c.timings["weft"]
        cells = [f"{a:.2f}x / {b:.2f}x" for a, b in map(c.ratio, peers)]
        table.add_row(c.workload, f"{mine.minimum * 1e6:.1f} / {mine.median * 1e6:.1f}", *cells)
    Console(width=140).print(table)
    if path:
        rows = [
            {"workload": c.workload, "seconds": {n: asdict(t) for n, t in c.timings.items()}}
            for c in comparisons
        ]
        Path(path).write_text(
            json.dumps({"title": title, "machine": machine(), "rows": rows}, indent=1) + "\n"
        )


def machine() -> dict[str, object]:
    """What a reader must know of the machine and the peers' versions."""
    versions = {}
    for package in ("numpy", "numba", "llvmlite", "scipy", "jax", "torch"):
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    model = next(
        (line.split(":", 1)[1].strip() for line in _cpuinfo() if line.startswith("model name")),
        platform.processor(),
    )
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "versions": versions,
    }


def _cpuinfo() -> list[str]:
    path = Path("/proc/cpuinfo")
    return path.read_text().splitlines() if path.exists() else []
