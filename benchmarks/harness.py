"""Interleaved timing: every contestant runs in every round, so that a noisy machine disturbs all
alike.

A figure is a ratio against a peer measured in the same run, from minima and from medians; the
absolute times are there to show the scale.
"""

from __future__ import annotations

import json
from pathlib import Path

from rich.console import Console
from rich.table import Table

from weft.frontend.tools.bench_workloads import Comparison, compare, machine
from weft.runtime.trace.replay import Timing

__all__ = ["Comparison", "Timing", "compare", "least_and_median", "machine", "report", "write"]


def _us(seconds: float) -> str:
    """Microseconds, of small ones three digits."""
    us = seconds * 1e6
    return f"{us:.1f}" if us >= 1 else f"{us:.3g}"


def least_and_median(timing: Timing) -> dict[str, float]:
    """What the files of this folder keep of a timing."""
    return {"minimum": timing.minimum, "median": timing.median}


def report(
    title: str, comparisons: list[Comparison], path: str | None, above: str | None = None
) -> None:
    """Print the table; write it with the machine's description as JSON if `path` is given. above: a
    peer, of whose minimum a column says by how many us weft's is longer."""
    peers = list(dict.fromkeys(n for c in comparisons for n in c.timings if n != "weft"))
    table = Table(title=title)
    for column in (
        "workload",
        "weft us (min / median)",
        *(f"vs {p} (min / median)" for p in peers),
        *([f"us above {above}"] if above else []),
    ):
        table.add_column(column, justify="left" if column == "workload" else "right")
    for c in comparisons:
        mine = c.timings["weft"]
        ratios = [c.ratio(p) if p in c.timings else None for p in peers]
        cells = [f"{r[0]:.2f}x / {r[1]:.2f}x" if r else "-" for r in ratios]
        if above:
            cells.append(f"{(mine.minimum - c.timings[above].minimum) * 1e6:+.2f}")
        table.add_row(c.workload, f"{_us(mine.minimum)} / {_us(mine.median)}", *cells)
    Console(width=140).print(table)
    if path:
        write(title, comparisons, path)


def write(title: str, comparisons: list[Comparison], path: str) -> None:
    """Write comparisons with the machine's description as JSON."""
    rows = [
        {"workload": c.workload, "seconds": {n: least_and_median(t) for n, t in c.timings.items()}}
        for c in comparisons
    ]
    text = {"title": title, "machine": machine(), "rows": rows}
    Path(path).write_text(json.dumps(text, indent=1) + "\n")
