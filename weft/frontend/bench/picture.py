"""The roofline picture (Williams, Waterman and Patterson 2009): operations per second over
operations per byte, under the machine's measured roofs."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from weft.frontend.bench.cost import Cost
from weft.ir.errors import UnsupportedError
from weft.runtime.trace.peaks import MEMORY, Peaks

#: Inches and dots per inch: 1600 x 1000 pixels.
SIZE, DPI = (10.0, 6.25), 160
_LABEL = 44


def check_installed() -> None:
    """UnsupportedError, saying what to install, without matplotlib."""
    if importlib.util.find_spec("matplotlib") is None:
        raise UnsupportedError(
            "--png draws with matplotlib, which is not installed",
            hint="pip install 'matplotlib>=3.10,<4' (in weft's extra 'examples')",
        )


def draw_roofline(costs: Sequence[Cost], path: Path) -> int:
    """Write the picture as PNG; one point for each kernel that has flops. How many were left out
    because they have none, or were not reached."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    peaks = costs[0].peaks
    points, left_out = _points(costs)
    figure = Figure(figsize=SIZE, dpi=DPI, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    low = min([0.05, *(0.7 * x for x, _, _, _ in points)])
    high = max([100.0, *(1.4 * x for x, _, _, _ in points)])
    _roofs(axes, peaks, low, high)
    for number, (x, y, level, name) in enumerate(points, 1):
        axes.plot([x], [y], "o", color=_colour(level), markersize=6)
        axes.annotate(str(number), (x, y), textcoords="offset points", xytext=(5, 4), fontsize=8)
        axes.plot([], [], "o", color=_colour(level), label=f"{number} {_short(name)} ({level})")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(low, high)
    axes.set_xlabel("operations per byte")
    axes.set_ylabel("GFLOP/s")
    axes.set_title(f"{peaks.cpu}, {peaks.threads} threads", fontsize=10)
    axes.grid(True, which="major", linewidth=0.4)
    if points:
        axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), fontsize=7, frameon=False)
    figure.savefig(path, format="png")
    return left_out


def _points(costs: Sequence[Cost]) -> tuple[list[tuple[float, float, str, str]], int]:
    """(operations per byte, GFLOP/s, level, name) of each kernel; how many have none."""
    out, left_out = [], 0
    for cost in costs:
        for row in cost.rows:
            rates = row.rates(cost.peaks)
            if rates is None or not row.work.flops or not row.bytes:
                left_out += 1
                continue
            assert rates.flops_per_second is not None
            name = cost.name if len(cost.rows) == 1 else f"{cost.name} {row.number} {row.name}"
            intensity = row.work.flops / row.bytes
            out.append((intensity, rates.flops_per_second / 1e9, rates.level, name))
    return out, left_out


def _roofs(axes: Any, peaks: Peaks, low: float, high: float) -> None:
    top = peaks.flops_per_second("f32", peaks.threads) / 1e9
    xs = np.geomspace(low, high, 200)
    for level in peaks.bandwidth:
        slope = peaks.bytes_per_second(level, peaks.threads) / 1e9
        name = "memory" if level == MEMORY else level
        axes.plot(xs, np.minimum(slope * xs, top), color=_colour(level), linewidth=1.2)
        axes.annotate(
            f"{name} {slope:.0f} GB/s", (low, slope * low), textcoords="offset points",
            xytext=(4, 5), fontsize=7, color=_colour(level),
        )  # fmt: skip
    axes.annotate(
        f"multiply-add f32 {top:.0f} GFLOP/s", (high, top), textcoords="offset points",
        xytext=(-4, 4), ha="right", fontsize=7,
    )  # fmt: skip


def _short(text: str) -> str:
    return text if len(text) <= _LABEL else text[: _LABEL - 2] + ".."


def _colour(level: str) -> str:
    return {"L1": "tab:purple", "L2": "tab:blue", "L3": "tab:green"}.get(level, "tab:red")
