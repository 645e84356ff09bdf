"""Measuring targets one after another, and what came of it."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, field, replace
from pathlib import Path
from typing import Any

from weft.frontend.bench import picture
from weft.frontend.bench.cost import Cost
from weft.frontend.bench.measure import QUICK, Effort, measure, peaks_now
from weft.frontend.bench.peers import DEFAULT, PEERS, contest, missing
from weft.frontend.bench.table import WIDTH, cost_table, peaks_lines
from weft.frontend.bench.targets import Target
from weft.frontend.bench.timing import Comparison, machine
from weft.ir.dataclass import dataclass
from weft.ir.errors import InvalidArgumentError, NotFoundError, suggest
from weft.runtime.native.pool import POOL
from weft.runtime.trace.peaks import Peaks
from weft.runtime.trace.replay import Piece, pieces_of

#: Of the JSON; grows with every change that a reader must know of.
SCHEMA = 1
_PEER_ROUNDS = 30


@dataclass
class Report:
    """What was measured: costs, comparisons by the name of the cost, and what else to say.

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
        picture.check_installed()
        left_out = picture.draw_roofline(self.costs, Path(path))
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
    """kernel: only kernels with this in their names, or of this number. threads: at most so many.
    peers: whom to compare suites with. rounds: of each timing. quick: small arrays, few rounds.
    asked: whether the peers were named, so that it is worth saying why there are none."""

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
