"""Files of benchmark runs as `weft bench --json` writes them, with times that are drawn."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np

#: Workload -> microseconds of weft and of numpy.
TIMES = {
    "rows: softmax": (410.0, 2600.0),
    "matmul: 512 x 512 x 512": (1900.0, 1850.0),
    "reductions: sum 2^22": (96.0, 580.0),
    "copies: scale 2^24": (5200.0, 9100.0),
}
FIRST = datetime(2025, 3, 3, 9, tzinfo=UTC)


def run_of(
    day: float = 0,
    commit: str | None = "a" * 40,
    *,
    dirty: bool = False,
    slow: Mapping[str, float] | None = None,
    load: float = 1.0,
    cpu: str = "AMD EPYC 9R14",
    name: str = "",
    threads: int = 2,
    numpy: str = "2.4.1",
    peers: bool = True,
    count: int = 30,
    noise: float = 0.015,
    seed: int = 0,
) -> dict[str, Any]:
    """A run. slow: of workloads, how many times as long weft takes. load: how many times as long
    everything takes on this machine. noise: of a sample, as a share, above its least."""
    rng = np.random.default_rng([seed, int(day * 1000)])

    def timing(us: float) -> dict[str, Any]:
        samples = us * 1e-6 * load * (1 + rng.gamma(2, noise / 2, count))
        return {
            "minimum": float(samples.min()),
            "median": float(np.median(samples)),
            "samples": samples.tolist(),
        }

    workloads = []
    for workload, (mine, theirs) in TIMES.items():
        whole = mine * (slow or {}).get(workload, 1.0)
        row: dict[str, Any] = {"name": workload, "step": timing(0.98 * whole), "rows": []}
        if peers:
            row["against"] = {"weft": timing(whole), "numpy": timing(theirs)}
        workloads.append(row)
    date = (FIRST + timedelta(days=day)).isoformat(timespec="seconds")
    return {
        "schema": 2,
        "run": {"date": date, "commit": commit, "dirty": dirty},
        "machine": {
            "cpu": cpu, "cores": 2, "isa": "x86-64-v4", "python": "3.11.9", "name": name,
            "threads": threads, "versions": {"weft": "0.1.0", "numpy": numpy, "llvmlite": "0.50.0"},
        },
        "peaks": None, "workloads": workloads, "footnotes": [],
    }  # fmt: skip


def write_run(folder: Path, **options: Any) -> Path:
    """A file of `run_of` in the folder, which is made."""
    folder.mkdir(exist_ok=True)
    path = folder / f"{len(list(folder.iterdir())):03}.json"
    path.write_text(json.dumps(run_of(**options)), encoding="utf-8")
    return path


def commit_of(number: int) -> str:
    """Commits that do not begin alike."""
    return f"{(number + 1) * 2654435761 % (1 << 32):08x}" + f"{number:032x}"
