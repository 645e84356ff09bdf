"""`weft bench`: time the kernels of a suite, of a function or of a dumped graph."""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from weft.frontend.bench import picture
from weft.frontend.bench.cost import Cost
from weft.frontend.bench.measure import QUICK, Effort, measure, peaks_now
from weft.frontend.bench.peers import DEFAULT, PEERS, contest, missing
from weft.frontend.bench.table import cost_table, peaks_lines
from weft.frontend.bench.targets import Target, targets
from weft.frontend.bench.timing import Comparison, machine
from weft.frontend.calls.threads import checked
from weft.frontend.cli import run as cli_run
from weft.ir.errors import InvalidArgumentError, NotFoundError, suggest
from weft.ir.graph import Graph
from weft.runtime.peaks import Peaks
from weft.runtime.pool.pool import POOL
from weft.runtime.replay import Piece, pieces_of

#: Of the JSON that `--json` writes; grows with every change that a reader must know of.
SCHEMA = 1
_PEER_ROUNDS = 30


def add_arguments(parser: ArgumentParser) -> None:
    """The options of `weft bench`."""
    parser.add_argument(
        "what",
        nargs="?",
        default="all",
        metavar="WHAT",
        help="a suite (chains, rows, matmul, reductions, copies, conv; default: all), "
        "FILE.py:FUNCTION, MODULE:FUNCTION, or a dumped graph FILE.weft",
    )
    parser.add_argument(
        "--kernel",
        metavar="NAME",
        help="only kernels with NAME in their name, or the one with this number",
    )
    parser.add_argument("--threads", type=int, metavar="N", help="use up to N threads")
    parser.add_argument(
        "--against",
        metavar="A,B,...",
        help=f"for the suites: compare with {', '.join(PEERS)} (default: {','.join(DEFAULT)}); "
        "'none' for nobody",
    )
    parser.add_argument("--json", metavar="FILE", help="write everything to FILE")
    parser.add_argument("--png", metavar="FILE", help="draw the roofline to FILE")
    parser.add_argument("--rounds", type=int, metavar="N", help="time each thing N times")
    parser.add_argument("--quick", action="store_true", help="small arrays, few rounds: a try")
    parser.add_argument(
        "--example",
        metavar="NAME",
        help="for a function: a tuple or dict of its arguments in its module, or a function that "
        "makes one",
    )
    cli_run.add_array_arguments(parser)


@dataclass
class Report:
    """What was measured: costs, comparisons by the name of the cost, and what else to say."""

    costs: list[Cost] = field(default_factory=list)
    comparisons: dict[str, Comparison] = field(default_factory=dict)
    footnotes: list[str] = field(default_factory=list)


def run_bench(args: Namespace, read_graph: Callable[[str], Graph]) -> None:
    """Measure and print tables, each as soon as it is there; write the files. Errors as `targets`,
    and those of the functions that run."""
    if args.png is not None:
        picture.check_installed()
    for given in (args.json, args.png):  # not after minutes of measuring
        if given is not None and not Path(given).absolute().parent.is_dir():
            raise NotFoundError(f"there is no folder {Path(given).parent} for {given}")
    if args.rounds is not None and args.rounds < 1:
        raise InvalidArgumentError(f"--rounds {args.rounds}: it must be 1 or more")
    peers = _peers(args)
    threads = None if args.threads is None else checked(args.threads, "--threads")
    before = POOL.limit
    try:
        if threads is not None:
            POOL.set_limit(threads)
        report = _measure_all(args, peers, read_graph)
    finally:
        if threads is not None:
            POOL.set_limit(before)
    if args.json is not None:
        text = json.dumps(as_dict(report), indent=1) + "\n"
        Path(args.json).write_text(text, encoding="utf-8")
    if args.png is not None:
        left_out = picture.draw_roofline(report.costs, Path(args.png))
        if left_out:
            report.footnotes.append(f"{args.png}: {left_out} kernels without flops are not in it")
    for note in dict.fromkeys(report.footnotes):
        _print(f"- {note}")


def _peers(args: Namespace) -> list[str]:
    named = DEFAULT if args.against is None else args.against.split(",")
    peers = [name.strip() for name in named if name.strip() not in ("", "none")]
    for name in peers:
        if name not in PEERS:
            raise NotFoundError(
                f"--against: there is no '{name}'{suggest(name, list(PEERS))}",
                hint=f"it takes {', '.join(PEERS)}",
            )
    return peers


def _measure_all(args: Namespace, peers: list[str], read_graph: Callable[[str], Graph]) -> Report:
    report = Report()
    names: list[str] = []
    effort = QUICK if args.quick else Effort()
    if args.rounds is not None:
        effort = Effort(args.rounds, effort.seconds * args.rounds / effort.rounds)
    peaks: Peaks | None = None
    for target in targets(args, read_graph):
        pieces = pieces_of(target.executable)
        names += [c.call.kernel.name for p in pieces for c in p.calls]
        wanted = _chooser(args.kernel)
        if args.kernel is not None and not any(wanted(n, p) for n, p in enumerate(pieces, 1)):
            continue
        if peaks is None:
            peaks = peaks_now(quick=args.quick)
            for line in peaks_lines(peaks):
                _print(line)
        cost = measure(
            target.executable, target.inputs, target.variables, target.name, effort, wanted, peaks
        )
        if target.lines:
            cost = replace(cost, rows=tuple(replace(r, lines=target.lines) for r in cost.rows))
        report.costs.append(cost)
        _print("")
        _print(cost_table(cost))
        _compare(report, target, peers, args)
    if peaks is None:
        raise NotFoundError(
            f"there is no kernel '{args.kernel}'{suggest(str(args.kernel), names)}",
            hint=f"there are: {', '.join(dict.fromkeys(names)) or 'none'}",
        )
    return report


def _compare(report: Report, target: Target, peers: Sequence[str], args: Namespace) -> None:
    """Whole calls against the peers, unless only some kernels are asked for."""
    if args.kernel is not None or not peers:
        return
    if target.workload is None:
        if args.against is not None:
            report.footnotes.append("--against is for the built-in suites: nobody else has this")
        return
    absent = missing(peers)
    if absent:
        report.footnotes.append(f"not installed, so not compared with: {', '.join(absent)}")
    here = [p for p in peers if p not in absent]
    if here:
        _against(report, target, here, args)


def _chooser(kernel: str | None) -> Callable[[int, Piece], bool]:
    def wanted(number: int, piece: Piece) -> bool:
        if kernel is None or kernel == str(number):
            return True
        return not kernel.isdigit() and any(kernel in c.call.kernel.name for c in piece.calls)

    return wanted


def _against(report: Report, target: Target, peers: Sequence[str], args: Namespace) -> None:
    assert target.workload is not None
    assert target.function is not None
    rounds = args.rounds or (3 if args.quick else _PEER_ROUNDS)
    seconds = report.costs[-1].step
    if seconds is not None and seconds.minimum > 2e-3 and args.rounds is None:
        rounds = min(rounds, 10)  # a peer may take fifty times as long
    comparison, notes = contest(target.workload, target.function, target.inputs, peers, rounds)
    report.comparisons[report.costs[-1].name] = comparison
    report.footnotes += notes
    cells = [f"weft {_timing(comparison, 'weft')}"]
    for peer in comparison.timings:
        if peer != "weft":
            least, median = comparison.ratio(peer)
            cells.append(f"{peer} {_timing(comparison, peer)}, {least:.2f}x / {median:.2f}x")
    _print("calls in us (min / median): " + "; ".join(cells))


def _timing(comparison: Comparison, name: str) -> str:
    timing = comparison.timings[name]
    return f"{timing.minimum * 1e6:.1f} / {timing.median * 1e6:.1f}"


def as_dict(report: Report) -> dict[str, Any]:
    """The report as values that JSON has: times in seconds, sizes in bytes, rates per second."""
    workloads = []
    for cost in report.costs:
        held = cost.to_dict()
        comparison = report.comparisons.get(cost.name)
        if comparison is not None:
            held["against"] = {
                peer: {**asdict(timing), "ratio": comparison.ratio(peer)}
                for peer, timing in comparison.timings.items()
            }
        workloads.append(held)
    peaks = asdict(report.costs[0].peaks) if report.costs else None
    return {
        "schema": SCHEMA,
        "machine": machine(),
        "peaks": peaks,
        "workloads": workloads,
        "footnotes": list(dict.fromkeys(report.footnotes)),
    }


def _print(what: Any) -> None:
    from rich.console import Console

    console = Console(highlight=False)
    console.width = max(console.width, 165)  # a table that is cut in a narrow terminal is no table
    if isinstance(what, str):
        console.print(what, markup=False, soft_wrap=True)
    else:
        console.print(what)
