"""GPU costs of a step's launches: registers, shared memory, spills and times (`weft bench
--device`).

Registers, shared memory and spills are read from machine code, so they need no GPU; times do."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, field
from typing import TYPE_CHECKING, Any, cast

from rich.table import Table

from weft.codegen.cuda.cubins.cache import architecture
from weft.frontend.compile.cost import name_text, number, si, source_text, timing_text
from weft.frontend.tools.bench_peers import machine
from weft.frontend.tools.bench_targets import Target
from weft.ir.cost.work import Work, work
from weft.ir.dataclass import dataclass
from weft.ir.errors import InternalError, NotFoundError, UnsupportedError, suggest
from weft.runtime.trace.replay import Timing

if TYPE_CHECKING:
    from weft.codegen.cuda.cubins.resources import KernelReport, Occupancy
    from weft.runtime.device.execution.executable import DeviceExecutable
    from weft.runtime.device.plan import PlannedLaunch

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
    """What was measured; `to_json` has times in seconds and sizes in bytes."""

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
    from weft.codegen.cuda.cubins.compile import compile_kernel
    from weft.codegen.cuda.cubins.resources import occupancy

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
