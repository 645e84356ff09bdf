"""`weft bench`: time the kernels of a suite, of a function or of a dumped graph; with `--device`,
the costs of its launches on a GPU: registers, shared memory, spills and times.

All of these but the times are read from machine code, so they need no GPU."""

from __future__ import annotations

import copy
import json
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from rich.table import Table

from weft.codegen.cuda.cubins.cache import architecture
from weft.codegen.llvm.target import checked_isa, isa, using
from weft.frontend.compile.cost import name_text, number, si, source_text, timing_text
from weft.frontend.compile.gpu import gpu_number
from weft.frontend.compile.threads import checked
from weft.frontend.tools import bench_report
from weft.frontend.tools import run as cli_run
from weft.frontend.tools.bench_report import Options, Target, checked_peers, measure_all, targets
from weft.frontend.tools.bench_workloads import DEFAULT, PEERS, machine
from weft.frontend.tools.compile import check_targets, targets_of
from weft.frontend.tools.run import write_text
from weft.ir.cost.work import Work, work
from weft.ir.dataclass import dataclass
from weft.ir.errors import (
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    UnsupportedError,
    suggest,
)
from weft.ir.graph import Graph
from weft.runtime.trace.replay import Timing

if TYPE_CHECKING:
    from weft.codegen.cuda.cubins.cache import KernelReport, Occupancy
    from weft.runtime.device.execution.executable import DeviceExecutable
    from weft.runtime.device.plan import PlannedLaunch


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


#: Of the JSON; grows with every change that a reader must know of.
SCHEMA = 1
ROUNDS = 20


@dataclass(frozen=True)
class LaunchCost:
    """One launch of a step. number: from 1, in the order of the step. runs: how often one call of
    the function made it; None without a device. times: seconds on the device of one run; None
    without a device that tells. work: of the op, whose launches share it; None after the first.
    report: what the kernel takes. occupancy: None for an architecture that weft has no table of.
    lines: "file:line" of the user's code."""

    number: int
    name: str
    blocks: int
    threads: int
    runs: int | None
    times: Timing | None
    work: Work | None
    report: KernelReport
    occupancy: Occupancy | None
    lines: tuple[str, ...]
    key: str

    @property
    def bytes(self) -> int:
        """Bytes that the op reads and writes in one run; 0 if they count with another launch."""
        return 0 if self.work is None else self.work.bytes_read + self.work.bytes_written


@dataclass(frozen=True)
class GpuCost:
    """A step on a GPU. device: in words. architecture: "sm_90". nbytes: of one call at a time.
    step: seconds on the device of all its launches. host: seconds of the host to ask for them."""

    name: str
    device: str
    architecture: str
    nbytes: int
    step: Timing | None
    host: Timing | None
    rows: tuple[LaunchCost, ...]


@dataclass
class GpuReport:
    """The measurements of a GPU; `to_json` has times in seconds and sizes in bytes."""

    costs: list[GpuCost] = field(default_factory=list)

    def to_json(self, indent: int | None = 1) -> str:
        """Everything as JSON."""
        held = {"schema": SCHEMA, "machine": machine(), "steps": [asdict(c) for c in self.costs]}
        return json.dumps(held, indent=indent)


def measure_on_gpu(
    targets: Iterable[Target],
    kernel: str | None,
    rounds: int | None,
    cc: tuple[int, int] | None,
    show: Callable[[Any], None],
) -> GpuReport:
    """A table for each target. kernel: only launches with this in the kernel's name, or of this
    number. cc: for this architecture, and nothing is run. NotFoundError if no launch is the one
    that is asked for; else errors as those of a call, and ToolchainError."""
    report, names = GpuReport(), []
    for target in targets:
        cost = _cost(target, rounds or ROUNDS, cc)
        names += [row.name for row in cost.rows]
        wanted = [row for row in cost.rows if _is_wanted(row, kernel)]
        if kernel is not None and not wanted:
            continue
        report.costs.append(cost)
        show("")
        show(gpu_table(cost, wanted))
    if kernel is not None and not report.costs:
        raise NotFoundError(
            f"there is no kernel '{kernel}'{suggest(kernel, names)}",
            hint=f"there are: {', '.join(dict.fromkeys(names)) or 'none'}",
        )
    return report


def _is_wanted(row: LaunchCost, kernel: str | None) -> bool:
    if kernel is None or kernel == str(row.number):
        return True
    return not kernel.isdigit() and kernel in row.name


def _cost(target: Target, rounds: int, cc: tuple[int, int] | None) -> GpuCost:
    if target.executable.kind != "gpu":
        raise InternalError("a target for a GPU was compiled for the CPU")
    step = cast("DeviceExecutable", target.executable)
    if cc is None:
        # the caller's variables stay as they are
        step = step.with_variables({n: copy.copy(v) for n, v in target.variables.items()})
        device = step.device()
        rows, whole, host = _timed(step, target, rounds)
        return GpuCost(
            target.name, f"{device.name}: {device.description}", architecture(device.cc),
            step.nbytes, whole, host, tuple(rows),
        )  # fmt: skip
    rows = _rows(step, cc, [], target)
    return GpuCost(
        target.name, "compiled, not run", architecture(cc), step.nbytes, None, None, tuple(rows)
    )


def _timed(
    step: DeviceExecutable, target: Target, rounds: int
) -> tuple[list[LaunchCost], Timing | None, Timing | None]:
    """Rows with times, and those of the whole step; without where the device is emulated."""
    device, inputs = step.device(), list(target.inputs)
    try:
        times = step.launch_times(inputs, rounds)
        whole = step.measure(inputs, rounds)
    except UnsupportedError:
        return _rows(step, device.cc, [], target), None, None
    rows = _rows(step, device.cc, times, target, rounds)
    return rows, Timing.of(whole.device), Timing.of(whole.host)


def _rows(
    step: DeviceExecutable,
    cc: tuple[int, int],
    times: Sequence[Sequence[float]],
    target: Target,
    rounds: int = 1,
) -> list[LaunchCost]:
    """times: of each launch in the plan's order, the seconds of its runs in all rounds; empty:
    there are none."""
    from weft.codegen.cuda.cubins.cache import occupancy
    from weft.codegen.cuda.cubins.compile import compile_kernel

    rows, counted = [], set()
    for i, planned in enumerate(step.told().launches()):
        launch, op = planned.launch, planned.op
        report = compile_kernel(launch.kernel, cc).report
        first = op is not None and op not in counted
        counted.add(op)
        runs = list(times[i]) if times else []
        rows.append(
            LaunchCost(
                i + 1,
                launch.kernel.name,
                launch.blocks,
                launch.block_threads,
                len(runs) // rounds if times else None,
                Timing.of(runs) if runs else None,
                _work(planned) if first else None,
                report,
                occupancy(report, launch.block_threads, cc),
                target.lines or _lines(planned),
                launch.kernel.key,
            )
        )
    return rows


def _work(planned: PlannedLaunch) -> Work | None:
    return None if planned.op is None else work(planned.op, bool(planned.writes))


def _lines(planned: PlannedLaunch) -> tuple[str, ...]:
    found = () if planned.op is None else planned.op.locations
    return tuple(dict.fromkeys(f"{at.file}:{at.line}" for at in found))


# ------------------------------------------------------------------------------------------- table


def gpu_table(cost: GpuCost, rows: Sequence[LaunchCost]) -> Table:
    """One row per launch, by `LaunchCost`."""
    table = Table(title=_title(cost), title_justify="left", box=None, pad_edge=False)
    table.add_column("#", justify="right")
    table.add_column("kernel", no_wrap=True)
    headings = (
        "blocks", "threads", "runs", "us", "bytes*", "flops*", "GB/s", "registers", "shared",
        "stack", "spills", "blocks/SM", "warps", "bound by",
    )  # fmt: skip
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("source", no_wrap=True)
    for row in rows:
        table.add_row(*_cells(row))
    table.caption = "* of an op's launches together, by the IR"
    table.caption_justify = "left"
    return table


def _title(cost: GpuCost) -> str:
    count = len(cost.rows)
    text = f"{cost.name}: {count} launch{'es' * (count != 1)}, for {cost.architecture}"
    if cost.step is not None and cost.host is not None:
        text += (
            f", {timing_text(cost.step)} us on the device, {timing_text(cost.host)} us of the host"
        )
        return f"{text} (min / median)\n{cost.device}"
    return f"{text}\nno times: {cost.device}"


def _cells(row: LaunchCost) -> list[str]:
    report, held = row.report, row.occupancy
    flops = None if row.work is None else row.work.flops
    rate = "-"
    if row.times is not None and row.bytes:
        rate = number(row.bytes / row.times.minimum / 1e9)
    return [
        str(row.number), name_text(row.name), f"{row.blocks:,}", str(row.threads),
        "-" if row.runs is None else str(row.runs), timing_text(row.times),
        si(row.bytes) if row.bytes else "-", "-" if flops is None else si(flops), rate,
        str(report.registers), si(report.shared), str(report.stack), str(report.spills),
        "?" if held is None else str(held.blocks), "?" if held is None else f"{held.share:.0%}",
        "?" if held is None else held.bound, source_text(row.lines),
    ]  # fmt: skip
