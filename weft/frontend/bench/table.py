"""Costs as tables for a terminal."""

from __future__ import annotations

import os
from collections.abc import Sequence

from rich.table import Table

from weft.frontend.bench.cost import Cost, KernelCost
from weft.runtime.trace.peaks import MEMORY, Peaks
from weft.runtime.trace.replay import Timing

_NAME, _SOURCE = 28, 24
#: Columns that no table needs more of; in fewer, numbers would be cut.
WIDTH = 175


def peaks_lines(peaks: Peaks) -> list[str]:
    """What the percentages are percentages of, measured just now."""
    guessed = " (guessed: the system does not tell)" if peaks.caches_assumed else ""
    sizes = ", ".join(f"{name} {size >> 10} KiB" for name, size in sorted(peaks.caches.items()))
    used = f"1 / {peaks.threads} threads" if peaks.threads > 1 else "1 thread"
    lines = [
        f"{peaks.cpu}, {peaks.threads} thread{'s' * (peaks.threads != 1)}; {sizes}{guessed}",
        f"peak GFLOP/s, multiply-add of {peaks.vector_bits}-bit vectors, {used}: "
        + ", ".join(f"{d} {_pair(p)}" for d, p in peaks.flops.items()),
    ]
    for level, rates in peaks.bandwidth.items():
        where = "memory" if level == MEMORY else f"in {level}"
        cells = (f"{n.replace('_', ' ')} {_pair(p)}" for n, p in rates.items())
        lines.append(f"peak GB/s {where}, {used}: " + ", ".join(cells))
    return lines


def cost_table(cost: Cost) -> Table:
    """One row per kernel, by `KernelCost` and `Rates`."""
    n = cost.peaks.threads
    table = Table(title=_title(cost), title_justify="left", box=None, pad_edge=False)
    table.add_column("#", justify="right")
    table.add_column("kernel", no_wrap=True)
    many = (f"us, {n} threads",) if n > 1 else ()
    headings = (
        "runs", "us, 1 thread", *many, "bytes", "flops", "calls*", "GB/s", "GFLOP/s",
        "in", "of peak", "vector", "spills",
    )  # fmt: skip
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("source", no_wrap=True)
    for row in cost.rows:
        table.add_row(*_cells(row, cost.peaks))
    notes = list(dict.fromkeys(f"{r.number}: {note}" for r in cost.rows for note in r.notes))
    unknown = [f"{r.number}: no flops: {r.work.unknown}" for r in cost.rows if r.work.unknown]
    if any(r.work.transcendentals for r in cost.rows):
        notes.append("* calls of exp, log, tanh, ..., which are not among the flops")
    table.caption = "\n".join([*notes, *unknown]) or None
    table.caption_justify = "left"
    return table


def _title(cost: Cost) -> str:
    text = f"{cost.name}: {cost.kernels} kernel call{'s' * (cost.kernels != 1)}"
    if cost.step is not None:
        text += f", a step takes {timing_text(cost.step)} us (min / median)"
    return text


def _cells(row: KernelCost, peaks: Peaks) -> Sequence[str]:
    work, rates = row.work, row.rates(peaks)
    many = [timing_text(row.all) if row.all or row.one is None else "not cut"]
    many = many if peaks.threads > 1 else []
    cells = [
        str(row.number), name_text(row.name), "?" if row.runs is None else str(row.runs),
        timing_text(row.one), *many,
        si(row.bytes), "?" if work.flops is None else si(work.flops),
        "?" if work.transcendentals is None else si(work.transcendentals),
    ]  # fmt: skip
    if rates is None:
        cells += ["-"] * 4
    else:
        flops = rates.flops_per_second
        percent = rates.percent_of_peak
        cells += [
            number(rates.bytes_per_second / 1e9),
            "?" if flops is None else number(flops / 1e9),
            rates.level,
            "-" if percent is None else f"{_percent(percent)} {rates.bound}",
        ]
    return [*cells, *_assembly(row), source_text(row.lines)]


def _assembly(row: KernelCost) -> tuple[str, str]:
    asm = row.asm
    if not asm.vector_bits:
        outside = [c for c in asm.calls if c in ("memcpy", "memset", "memmove")]
        return (outside[0] if outside and not asm.instructions else "scalar"), str(asm.spills)
    return str(asm.vector_bits), str(asm.spills)


def name_text(name: str) -> str:
    """A kernel's name, so short that the numbers beside it are whole."""
    return name if len(name) <= _NAME else name[: _NAME - 2] + ".."


def source_text(lines: Sequence[str]) -> str:
    """`model.py:3,4 other.py:7`."""
    by_file: dict[str, list[str]] = {}
    for line in lines:
        file, _, number = line.rpartition(":")
        by_file.setdefault(os.path.basename(file), []).append(number)
    text = " ".join(f"{file}:{','.join(numbers)}" for file, numbers in by_file.items())
    return text if len(text) <= _SOURCE else text[: _SOURCE - 2] + ".."


def _percent(value: float) -> str:
    return f"{value:.0f} %" if value >= 9.95 else f"{value:.1f} %"


def timing_text(timing: Timing | None) -> str:
    if timing is None:
        return "-"
    return f"{number(timing.minimum * 1e6)} / {number(timing.median * 1e6)}"


def _pair(pair: tuple[float, float]) -> str:
    if pair[0] == pair[1]:
        return f"{pair[0] / 1e9:.0f}"
    return f"{pair[0] / 1e9:.0f} / {pair[1] / 1e9:.0f}"


def number(value: float) -> str:
    """Three digits."""
    if value >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}" if value >= 0.1 else f"{value:.3f}"


def si(value: float) -> str:
    """`1.57 M`: three digits and k, M, G or T (powers of 1000)."""
    for unit in ("", "k", "M", "G", "T"):
        if value < 999.5 or unit == "T":
            digits = 0 if not unit or value >= 99.95 else 1 if value >= 9.995 else 2
            return f"{value:.{digits}f} {unit}".rstrip()
        value /= 1000
    raise AssertionError("unreachable")
