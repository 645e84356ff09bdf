"""Benchmark reports: targets measured one after another, tables, and the roofline picture
(Williams, Waterman and Patterson 2009): operations per second over operations per byte, under
the machine's measured roofs. `wf.bench` does from Python what `weft bench` does."""

from __future__ import annotations

import importlib.util
import io
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from weft.frontend.compile.cost import (
    QUICK,
    WIDTH,
    Cost,
    Effort,
    cost_table,
    measure,
    peaks_lines,
    peaks_now,
)
from weft.frontend.compile.threads import checked
from weft.frontend.tools.bench_targets import Target
from weft.frontend.tools.bench_workloads import (
    DEFAULT,
    PEERS,
    Comparison,
    contest,
    machine,
    missing,
)
from weft.ir.dataclass import dataclass
from weft.ir.errors import InvalidArgumentError, NotFoundError, UnsupportedError, suggest
from weft.runtime.native.pool import POOL
from weft.runtime.trace.peaks import MEMORY, Peaks
from weft.runtime.trace.replay import Piece, pieces_of

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


#: Of the JSON; grows with every change that a reader must know of.
SCHEMA = 1
_PEER_ROUNDS = 30


@dataclass
class Report:
    """The report of a benchmark: costs, comparisons by the name of the cost, and what else to say.

    `str(report)` is what `weft bench` prints.
    """

    costs: list[Cost] = field(default_factory=list)
    comparisons: dict[str, Comparison] = field(default_factory=dict)
    footnotes: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """Values that JSON has: times in seconds, sizes in bytes, rates per second."""
        workloads = []
        for cost in self.costs:
            held = cost.to_dict()
            comparison = self.comparisons.get(cost.name)
            if comparison is not None:
                held["against"] = {
                    peer: {**asdict(timing), "ratio": comparison.ratio(peer)}
                    for peer, timing in comparison.timings.items()
                }
            workloads.append(held)
        return {
            "schema": SCHEMA,
            "machine": machine(),
            "peaks": asdict(self.costs[0].peaks) if self.costs else None,
            "workloads": workloads,
            "footnotes": list(dict.fromkeys(self.footnotes)),
        }

    def to_json(self, indent: int | None = 1) -> str:
        """`to_dict` as JSON."""
        return json.dumps(self.to_dict(), indent=indent)

    def png(self, path: str | Path) -> None:
        """Draw the roofline into the file `path`. UnsupportedError without matplotlib."""
        check_installed()
        left_out = draw_roofline(self.costs, Path(path))
        if left_out:
            self.footnotes.append(f"{path}: {left_out} kernels without flops are not in it")

    def parts(self) -> list[Any]:
        """Lines, and tables of rich, in order."""
        shown: list[Any] = peaks_lines(self.costs[0].peaks) if self.costs else []
        for cost in self.costs:
            shown += ["", cost_table(cost)]
            if cost.name in self.comparisons:
                shown.append(against_line(self.comparisons[cost.name]))
        return [*shown, *(f"- {note}" for note in dict.fromkeys(self.footnotes))]

    def __str__(self) -> str:
        from rich.console import Console

        console = Console(file=io.StringIO(), width=WIDTH, color_system=None, highlight=False)
        for part in self.parts():
            console.print(part, markup=False, soft_wrap=isinstance(part, str))
        assert isinstance(console.file, io.StringIO)
        return console.file.getvalue()


@dataclass(frozen=True)
class Options:
    """Options of a benchmark. kernel: only kernels with this in their names, or of this number.
    threads: at most so many. peers: whom to compare suites with. rounds: of each timing. quick:
    small arrays, few rounds. asked: whether the peers were named, so that it is worth saying why
    there are none."""

    kernel: str | None = None
    threads: int | None = None
    peers: Sequence[str] = DEFAULT
    rounds: int | None = None
    quick: bool = False
    asked: bool = False


def checked_peers(names: Iterable[str]) -> list[str]:
    """The peers among `names`, of which "none" is none. NotFoundError for others."""
    peers = [name.strip() for name in names if name.strip() not in ("", "none")]
    for name in peers:
        if name not in PEERS:
            raise NotFoundError(
                f"--against: there is no '{name}'{suggest(name, list(PEERS))}",
                hint=f"it takes {', '.join(PEERS)}",
            )
    return peers


def measure_all(
    targets: Iterable[Target], options: Options, show: Callable[[Any], None] = lambda part: None
) -> Report:
    """Measure each target; `show` gets each line and table as soon as it is there (without the
    footnotes). NotFoundError if no kernel is the one that is asked for."""
    if options.rounds is not None and options.rounds < 1:
        raise InvalidArgumentError(f"--rounds {options.rounds}: it must be 1 or more")
    before = POOL.limit
    try:
        if options.threads is not None:
            POOL.set_limit(options.threads)
        return _measure_all(targets, options, show)
    finally:
        if options.threads is not None:
            POOL.set_limit(before)


def _measure_all(
    targets: Iterable[Target], options: Options, show: Callable[[Any], None]
) -> Report:
    report = Report()
    names: list[str] = []
    effort = QUICK if options.quick else Effort()
    if options.rounds is not None:
        effort = Effort(options.rounds, effort.seconds * options.rounds / effort.rounds)
    peaks: Peaks | None = None
    wanted = _chooser(options.kernel)
    for target in targets:
        pieces = pieces_of(target.on_cpu)
        names += [c.call.kernel.name for p in pieces for c in p.calls]
        if options.kernel is not None and not any(wanted(n, p) for n, p in enumerate(pieces, 1)):
            continue
        if peaks is None:
            peaks = peaks_now(quick=options.quick)
            for line in peaks_lines(peaks):
                show(line)
        cost = measure(
            target.on_cpu, target.inputs, target.variables, target.name, effort, wanted, peaks
        )
        if target.lines:
            cost = replace(cost, rows=tuple(replace(r, lines=target.lines) for r in cost.rows))
        report.costs.append(cost)
        show("")
        show(cost_table(cost))
        _compare(report, target, options, show)
    if peaks is None:
        raise NotFoundError(
            f"there is no kernel '{options.kernel}'{suggest(str(options.kernel), names)}",
            hint=f"there are: {', '.join(dict.fromkeys(names)) or 'none'}",
        )
    return report


def _chooser(kernel: str | None) -> Callable[[int, Piece], bool]:
    def wanted(number: int, piece: Piece) -> bool:
        if kernel is None or kernel == str(number):
            return True
        return not kernel.isdigit() and any(kernel in c.call.kernel.name for c in piece.calls)

    return wanted


def _compare(report: Report, target: Target, options: Options, show: Callable[[Any], None]) -> None:
    """Whole calls against the peers, unless only some kernels are asked for."""
    if options.kernel is not None or not options.peers:
        return
    if target.workload is None:
        if options.asked:
            report.footnotes.append("--against is for the built-in suites: nobody else has this")
        return
    absent = missing(options.peers)
    if absent:
        report.footnotes.append(f"not installed, so not compared with: {', '.join(absent)}")
    here = [p for p in options.peers if p not in absent]
    if here:
        comparison = _contest(report, target, here, options)
        report.comparisons[report.costs[-1].name] = comparison
        show(against_line(comparison))


def _contest(report: Report, target: Target, peers: Sequence[str], options: Options) -> Comparison:
    assert target.workload is not None
    assert target.function is not None
    rounds = options.rounds or (3 if options.quick else _PEER_ROUNDS)
    seconds = report.costs[-1].step
    if seconds is not None and seconds.minimum > 2e-3 and options.rounds is None:
        rounds = min(rounds, 10)  # a peer may take fifty times as long
    comparison, notes = contest(target.workload, target.function, target.inputs, peers, rounds)
    report.footnotes += notes
    return comparison


def against_line(comparison: Comparison) -> str:
    """Microseconds of a call, and how many times as long the peers take."""
    cells = [f"weft {_timing(comparison, 'weft')}"]
    for peer in comparison.timings:
        if peer != "weft":
            least, median = comparison.ratio(peer)
            cells.append(f"{peer} {_timing(comparison, peer)}, {least:.2f}x / {median:.2f}x")
    return "calls in us (min / median): " + "; ".join(cells)


def _timing(comparison: Comparison, name: str) -> str:
    timing = comparison.timings[name]
    return f"{timing.minimum * 1e6:.1f} / {timing.median * 1e6:.1f}"


def bench(
    what: str | Path | Callable[..., Any] = "all",
    /,
    *args: Any,
    kernel: str | int | None = None,
    against: str | Sequence[str] = (),
    threads: int | None = None,
    rounds: int | None = None,
    quick: bool = False,
    **kwargs: Any,
) -> Report:
    """Time kernels (docs/bench.md): of a built-in suite ("chains", "rows", "matmul", "reductions",
    "copies", "conv", "all"), of a function called with args and kwargs, or of a dumped graph.

    A function is compiled if it is not yet; `TensorType`s in place of tensors get random values. Of
    a dump, "FILE.weft", kwargs are the inputs by name; those that are not given are random.
    kernel: only those with this in their names, or of this number. against: who else computes the
    suites, of "numpy", "jax", "torch", "torch.compile". threads: at most so many. rounds: how often
    each thing is timed. quick: small arrays, few rounds.

    `print` the report for the tables; it has `to_json()`, `png(path)` and `costs`. NotFoundError
    and InvalidArgumentError for what is not there and arguments that do not fit.
    """
    # who does not measure does not wait for these modules when weft is imported
    from weft.frontend.tools.bench_targets import named_targets

    options = Options(
        None if kernel is None else str(kernel),
        None if threads is None else checked(threads, "wf.bench(threads=)"),
        checked_peers([against] if isinstance(against, str) else against),
        rounds,
        quick,
        asked=True,
    )
    return measure_all(named_targets(what, args, kwargs, quick), options)
