"""`weft bench`: time the kernels of a suite, of a function or of a dumped graph, keep that as a
history and compare its runs; with `--device`, the costs of its launches on a GPU: registers, shared
memory, spills and times.

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
from weft.frontend.tools.bench_compare import (
    compare,
    comparison_table,
    lines_above,
    lines_below,
    pair_up,
)
from weft.frontend.tools.bench_history import (
    DEFAULT_FOLDER,
    SCHEMA,
    History,
    add_run,
    check_folder,
    names_file,
    run_facts,
)
from weft.frontend.tools.bench_page import history_page
from weft.frontend.tools.bench_report import (
    Options,
    Report,
    Target,
    checked_peers,
    measure_all,
    targets,
)
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
from weft.runtime.trace.noise import THRESHOLD, Verdict
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
    _add_history_arguments(parser)


def _add_history_arguments(parser: ArgumentParser) -> None:
    group = parser.add_argument_group("histories and comparisons")
    group.add_argument(
        "--history",
        metavar="DIR",
        help="add this run to the history in the folder DIR; with --compare: the history that it "
        f"is about (default: {DEFAULT_FOLDER})",
    )
    group.add_argument(
        "--save", action="store_true", help=f"add this run to the history in {DEFAULT_FOLDER}"
    )
    group.add_argument(
        "--repeat",
        type=int,
        metavar="N",
        help="with --history or --save: measure everything N times, as N runs, one after another",
    )
    group.add_argument(
        "--machine",
        metavar="NAME",
        help="what this machine is called in the history (default: its processor); with --compare: "
        "only runs on it",
    )
    group.add_argument(
        "--compare",
        nargs=2,
        metavar=("OLD", "NEW"),
        help="measure nothing, compare two commits (or beginnings of them), files or machines",
    )
    group.add_argument(
        "--threshold",
        metavar="PERCENT",
        help=f"a change that matters (default: {100 * THRESHOLD:g} percent)",
    )
    group.add_argument(
        "--fail-on-regression",
        action="store_true",
        help="with --compare: exit status 1 if something is slower",
    )
    group.add_argument("--html", metavar="FILE", help="write a page on the history to FILE")


def run_bench(args: Namespace, read_graph: Callable[[str], Graph]) -> bool:
    """Measure and print tables, each as soon as it is there; write the files. Or compare what was
    measured. False if something became slower and that is to fail. Errors as `targets`, as those
    of the functions that run, and as `run_compare`."""
    _check_options(args)
    if args.compare is not None:
        return not (run_compare(args, _shown(args)) and args.fail_on_regression)
    folder = _folder_of(args)
    if args.html is not None and folder is not None and any(Path(folder).glob("*.json")):
        History.read(folder)  # what is wrong with it is told now, not after minutes
    with using(isa() if args.isa is None else checked_isa(args.isa, "--isa")):
        for _ in range(1 if args.repeat is None else args.repeat):
            _bench(args, read_graph)
    if args.html is not None and folder is not None:
        history = History.read(folder)
        history_page(history).save(args.html)
        if history.note:
            _shown(args)(f"- {history.note}")
    return True


def _bench(args: Namespace, read_graph: Callable[[str], Graph]) -> None:
    if args.png is not None:
        bench_report.check_installed()
    folder = _folder_of(args)
    if folder is not None:
        check_folder(folder)
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
    show = _shown(args)
    report = measure_all(targets(args, read_graph), options, show)
    report.machine_name = args.machine or ""
    if args.png is not None:
        report.png(args.png)
    _write(args, report, show)
    for note in dict.fromkeys(report.footnotes):
        show(f"- {note}")


def _write(args: Namespace, report: Report | GpuReport, show: Callable[[Any], None]) -> None:
    """The JSON, and the run in the history."""
    if args.json == "-":
        sys.stdout.write(report.to_json() + "\n")
    elif args.json is not None:
        write_text(args.json, report.to_json() + "\n")
    folder = _folder_of(args)
    if folder is None:
        return
    path = add_run(folder, report.to_json(indent=None) + "\n")
    show(f"- added to the history: {path}")


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
    show = _shown(args)
    made = targets(args, read_graph, device)
    report = measure_on_gpu(made, args.kernel, args.rounds, cc, show)
    report.machine_name = args.machine or ""
    _write(args, report, show)


# ------------------------------------------------------------------------------------- comparisons


def parse_threshold(text: str | None) -> float:
    """`5` or `5%` as 0.05. InvalidArgumentError for others."""
    if text is None:
        return THRESHOLD
    try:
        percent = float(text.strip().removesuffix("%"))
    except ValueError:
        percent = -1.0
    if not 0 <= percent <= 1000:
        raise InvalidArgumentError(f"--threshold {text}: it is a percentage", hint="for example 5")
    return percent / 100


_OF_MEASURING = (
    "kernel", "device", "target", "isa", "threads", "against", "png", "rounds", "repeat",
)  # fmt: skip


def _check_options(args: Namespace) -> None:
    """InvalidArgumentError for options that do not go together."""
    for given in (args.json, args.png, args.html):  # not after minutes of measuring
        if given not in (None, "-") and not Path(given).absolute().parent.is_dir():
            raise NotFoundError(f"there is no folder {Path(given).parent} for {given}")
    if args.compare is None:
        for name in ("threshold", "fail_on_regression"):
            if getattr(args, name):
                option = "--" + name.replace("_", "-")
                raise InvalidArgumentError(
                    f"{option} is for comparisons", hint="add --compare OLD NEW"
                )
        if args.repeat is not None and _folder_of(args) is None:
            raise InvalidArgumentError("--repeat is for histories", hint="add --history DIR")
        if args.repeat is not None and args.repeat < 1:
            raise InvalidArgumentError(f"--repeat {args.repeat}: it must be 1 or more")
        if args.target is not None and _folder_of(args) is not None:
            raise InvalidArgumentError("--target runs nothing: there are no times for a history")
        if args.html is not None and _folder_of(args) is None:
            raise InvalidArgumentError(
                "--html shows a history", hint="add --history DIR, or --compare OLD NEW"
            )
        return
    if args.save:
        raise InvalidArgumentError("--save is for measuring, --compare compares what is saved")
    for name in _OF_MEASURING:
        if getattr(args, name) is not None:
            raise InvalidArgumentError(f"--{name} is for measuring, --compare measures nothing")
    if args.quick:
        raise InvalidArgumentError("--quick is for measuring, --compare measures nothing")


def _folder_of(args: Namespace) -> str | None:
    """The folder that a run is added to; None: it is not kept."""
    if args.history is not None:
        return str(args.history)
    return DEFAULT_FOLDER if args.save else None


def run_compare(args: Namespace, show: Callable[[Any], None]) -> bool:
    """Print the comparisons and write the files; whether something is slower. Errors as
    `History.find` and `compare`."""
    threshold = parse_threshold(args.threshold)
    history = _history(args)
    found = [history.find(name) for name in args.compare]
    pairs = pair_up(found[0], found[1])
    pairs = [(a, b) for a, b in pairs if a.files != b.files]
    if not pairs:
        raise InvalidArgumentError(
            f"'{args.compare[0]}' and '{args.compare[1]}' are the same runs",
            hint="weft view DIR --html FILE shows all of a history",
        )
    made = [compare(a, b, threshold, args.what) for a, b in pairs]
    if args.json is not None:
        held = {"schema": COMPARISON_SCHEMA, "comparisons": [one.to_dict() for one in made]}
        text = json.dumps(held, indent=1, allow_nan=False) + "\n"
        if args.json == "-":
            sys.stdout.write(text)
        else:
            write_text(args.json, text)
    for one in made:
        for part in (*lines_above(one), comparison_table(one), *lines_below(one)):
            show(part)
    if args.html is not None:
        history_page(history, threshold, pairs[-1]).save(args.html)
    if history.note:
        show(f"- {history.note}")
    return any(one.count(Verdict.SLOWER) for one in made)


def _history(args: Namespace) -> History:
    """What names are looked up in: only files need none."""
    place = Path(args.history or DEFAULT_FOLDER)
    if args.history is None and all(map(names_file, args.compare)):
        history = History(str(place), ())
    else:
        history = History.read(place)
    return history if args.machine is None or not history.runs else history.on(args.machine)


def _shown(args: Namespace) -> Callable[[Any], None]:
    """What prints; nothing where JSON is printed."""

    def nothing(what: Any) -> None:
        pass

    return nothing if args.json == "-" else _print


def _print(what: Any) -> None:
    from rich.console import Console

    from weft.frontend.compile.cost import WIDTH

    console = Console(highlight=False)
    console.width = max(console.width, WIDTH)  # a table that is cut is no table
    if isinstance(what, str):
        console.print(what, markup=False, soft_wrap=True)
    else:
        console.print(what)


ROUNDS = 20
#: Of the JSON of comparisons.
COMPARISON_SCHEMA = 1


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
    run: dict[str, Any] = field(default_factory=run_facts)
    machine_name: str = ""

    def to_json(self, indent: int | None = 1) -> str:
        """Everything as JSON."""
        steps = [asdict(c) for c in self.costs]
        place = {**machine(), "name": self.machine_name}
        held = {"schema": SCHEMA, "run": self.run, "machine": place, "steps": steps}
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
