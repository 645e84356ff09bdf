"""`weft bench`: time the kernels of a suite, of a function or of a dumped graph."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

from weft.codegen.llvm.target import checked_isa, isa, using
from weft.frontend.compile.gpu import gpu_number
from weft.frontend.compile.threads import checked
from weft.frontend.tools import bench_report
from weft.frontend.tools import run as cli_run
from weft.frontend.tools.bench_gpu import measure_on_gpu
from weft.frontend.tools.bench_peers import DEFAULT, PEERS
from weft.frontend.tools.bench_report import Options, checked_peers, measure_all
from weft.frontend.tools.bench_targets import targets
from weft.frontend.tools.compile import check_targets, targets_of
from weft.frontend.tools.run import write_text
from weft.ir.errors import InvalidArgumentError, NotFoundError
from weft.ir.graph import Graph


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
    parser.add_argument(
        "--device",
        metavar="gpu:0",
        help="on this GPU: what each launch takes of it, and how long it takes",
    )
    parser.add_argument(
        "--target",
        metavar="sm_90",
        help="for a GPU of this architecture, which need not be here: what each launch takes of it",
    )
    parser.add_argument(
        "--isa",
        metavar="x86-64-v3",
        help="compile the CPU's kernels for this instruction set, of those that the machine has "
        "(as WEFT_TARGET does)",
    )
    parser.add_argument("--threads", type=int, metavar="N", help="use up to N threads")
    parser.add_argument(
        "--against",
        metavar="A,B,...",
        help=f"for the suites: compare with {', '.join(PEERS)} (default: {','.join(DEFAULT)}); "
        "'none' for nobody",
    )
    parser.add_argument(
        "--json", metavar="FILE", help="write everything to FILE; - prints it, and nothing else"
    )
    parser.add_argument("--png", metavar="FILE", help="draw the roofline to FILE")
    parser.add_argument("--rounds", type=int, metavar="N", help="time each thing N times")
    parser.add_argument("--quick", action="store_true", help="small arrays, few rounds: a try")
    parser.add_argument(
        "--example",
        metavar="NAME",
        help="for a function: a tuple or dict of its arguments in its module, or a function that "
        "makes one",
    )
    cli_run.add_array_arguments(parser, types=True)


def run_bench(args: Namespace, read_graph: Callable[[str], Graph]) -> None:
    """Measure and print tables, each as soon as it is there; write the files. Errors as `targets`,
    and those of the functions that run."""
    with using(isa() if args.isa is None else checked_isa(args.isa, "--isa")):
        _bench(args, read_graph)


def _bench(args: Namespace, read_graph: Callable[[str], Graph]) -> None:
    if args.png is not None:
        bench_report.check_installed()
    for given in (args.json, args.png):  # not after minutes of measuring
        if given is not None and not Path(given).absolute().parent.is_dir():
            raise NotFoundError(f"there is no folder {Path(given).parent} for {given}")
    if args.device is not None or args.target is not None:
        _bench_on_gpu(args, read_graph)
        return
    options = Options(
        args.kernel,
        None if args.threads is None else checked(args.threads, "--threads"),
        checked_peers(DEFAULT if args.against is None else args.against.split(",")),
        args.rounds,
        args.quick,
        asked=args.against is not None,
    )
    is_piped = args.json == "-"
    show = (lambda part: None) if is_piped else _print
    report = measure_all(targets(args, read_graph), options, show)
    if args.png is not None:
        report.png(args.png)
    if is_piped:
        sys.stdout.write(report.to_json() + "\n")
        return
    if args.json is not None:
        write_text(args.json, report.to_json() + "\n")
    for note in dict.fromkeys(report.footnotes):
        _print(f"- {note}")


def _bench_on_gpu(args: Namespace, read_graph: Callable[[str], Graph]) -> None:
    for name in ("threads", "against", "png", "isa"):
        if getattr(args, name) is not None:
            raise InvalidArgumentError(
                f"--{name} is for the CPU",
                hint="benchmarks/gpu.py compares with PyTorch and JAX on a GPU",
            )
    targets_here = [] if args.target is None else targets_of([args.target])
    if len(targets_here) > 1 or (targets_here and args.device is not None):
        raise InvalidArgumentError("give one --target, or --device")
    cc = targets_here[0] if targets_here else None
    check_targets(targets_here)
    device = args.device or "gpu:0"
    if gpu_number(device) is None:
        raise InvalidArgumentError(
            f"--device {device}: it names a GPU", hint="without --device it is the CPU"
        )
    is_piped = args.json == "-"
    show = (lambda part: None) if is_piped else _print
    made = targets(args, read_graph, device)
    report = measure_on_gpu(made, args.kernel, args.rounds, cc, show)
    if is_piped:
        sys.stdout.write(report.to_json() + "\n")
    elif args.json is not None:
        write_text(args.json, report.to_json() + "\n")


def _print(what: Any) -> None:
    from rich.console import Console

    from weft.frontend.compile.cost import WIDTH

    console = Console(highlight=False)
    console.width = max(console.width, WIDTH)  # a table that is cut is no table
    if isinstance(what, str):
        console.print(what, markup=False, soft_wrap=True)
    else:
        console.print(what)
