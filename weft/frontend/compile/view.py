"""`f.view`: the page that shows a compiled function - its passes, kernels with times and code,
memory, and the timeline of one run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from weft.frontend.compile.cost import Cost, Effort, KernelCost, measure
from weft.frontend.viewer.document import Document, PassFacts
from weft.frontend.viewer.facts import Event, Memory, PlanFacts, events_of
from weft.frontend.viewer.page import View
from weft.ir.errors import WeftError
from weft.ir.graph import Graph
from weft.ir.ops.io import PYTHON_CALLS, SILENT_CALLS, muted
from weft.passes.manager import PassReport
from weft.runtime.device.execution.step import DeviceStep
from weft.runtime.native.executable import Executable
from weft.runtime.recorder import TraceRecorder
from weft.runtime.resources.variables import VariableState
from weft.runtime.step import RunContext, Step
from weft.runtime.step_kernels import StepKernels, list_kernels
from weft.runtime.trace.kernel_facts import MOST_KERNELS, KernelFacts, native_kernels
from weft.runtime.trace.replay import Replay

Array = np.ndarray[Any, Any]
#: What is to be known of the timeline of a native plan.
RECORDED = (
    "Recorded kernel by kernel: Python starts each and notes its time, so the gaps are the "
    "recording's; the calls of a step follow each other without any. All threads that share a "
    "kernel are one bar."
)
NO_KERNELS = "The step has no kernels: there is nothing that a kernel would compute."
#: Where measuring would call the user's functions a thousand times, each with whatever it does.
CALLS_PYTHON = (
    "The kernels have no times: the step calls Python functions of yours (wf.py_function), which "
    "measuring would do a thousand times. It was run once, on copies of the variables."
)
NOT_RUN = (
    "The kernels have no times: the step is not run for this page, as it acts on more than "
    "variables. A session gives them those of a traced run (run_metadata=)."
)
#: What measuring may take: less than for `cost`, whose figures are compared.
EFFORT = Effort(5, 0.5)


def view_of(
    step: Step,
    inputs: Sequence[Array],
    variables: Mapping[str, VariableState],
    name: str,
    explained: str,
) -> View:
    """The page of a compiled function's step."""
    if isinstance(step, Executable):
        return view_native(step, inputs, variables, name, explained)
    if isinstance(step, DeviceStep):
        return view_on_gpu(step, inputs, name, explained)
    kernels, missing = listed_kernels(step)
    plan = plan_listed(untimed(kernels), missing, NOT_RUN)
    return View(Document(name, passes_of(step.passes()), way_of(step), explained, plan))


def view_native(
    step: Executable,
    inputs: Sequence[Array],
    variables: Mapping[str, VariableState],
    name: str,
    explained: str,
) -> View:
    """The page of a native step. It is measured and run, on copies of the variables; just run, and
    that once, if it calls functions of the user's."""
    plan, cost = measured(step, inputs, variables, name)
    passes = passes_of(step.report.passes)
    return View(Document(name, passes, subtitle_of(step, cost), explained, plan))


def view_on_gpu(step: DeviceStep, inputs: Sequence[Array], name: str, explained: str) -> View:
    """The page of a plan for a GPU, of which some runs on copies of the variables are traced."""
    count = step.summary().kernels
    calls = "1 launch" if count == 1 else f"{count} launches"
    subtitle = f"{calls} · {step.describe_device()}"
    plan, passes = gpu_plan(step, inputs), passes_of(step.passes())
    return View(Document(name, passes, subtitle, explained, plan))


def gpu_plan(step: DeviceStep, inputs: Sequence[Array]) -> PlanFacts:
    """The launches of a plan for a GPU with their times, its memory, and a timeline."""
    # whoever has no GPU does not wait for these modules
    from weft.frontend.compile.view_gpu import plan_on_gpu
    from weft.runtime.device.execution.executable import DeviceExecutable

    assert isinstance(step, DeviceExecutable)
    return plan_on_gpu(step, inputs)


def listed_kernels(step: Step) -> tuple[list[KernelFacts], list[str]]:
    """The kernels of a step that is not one plan, and lines on those that are not listed."""
    found = _listed(step)
    kernels = [kernel for one in found for kernel in one.kernels]
    return kernels, [line for one in found for line in one.missing]


def untimed(kernels: Sequence[KernelFacts]) -> list[KernelFacts]:
    """Kernels of which those without a time say so."""
    return [
        replace(k, runs=None, untimed="not timed") if k.microseconds is None else k for k in kernels
    ]


def plan_listed(kernels: Sequence[KernelFacts], missing: Sequence[str], told: str) -> PlanFacts:
    """What is to be said of a step that is not one plan. told: of the kernels' times."""
    if not kernels:
        return PlanFacts(missing=list(missing) or [NO_KERNELS])
    numbered = [replace(k, number=n) for n, k in enumerate(kernels, 1)]
    return PlanFacts(numbered, missing=[told, *dict.fromkeys(missing)])


def _listed(step: Step) -> list[StepKernels]:
    """The kernels of a step that is not one plan: of its regions, of each device's part, or of each
    task's, as the tasks say them."""
    if step.kind == "dataflow":
        return [list_kernels(step, "", "the step")]
    # only steps in parts need these modules
    if step.kind == "devices":
        from weft.runtime.cluster.multi_device import DevicesStep

        assert isinstance(step, DevicesStep)
        return _of_devices([(p.step, p.device, p.name) for p in step.parts])
    from weft.runtime.cluster.definition import TaskStep

    assert isinstance(step, TaskStep)
    try:
        return step.kernels()
    except WeftError as error:  # a task is lost
        return [StepKernels(missing=[f"The tasks cannot be asked for kernels: {error.what}"])]


def _of_devices(parts: Sequence[tuple[Any, str, str]]) -> list[StepKernels]:
    """Those of parts of this process, each with its device and its name."""
    found: list[StepKernels] = []
    for step, device, name in parts:
        room = max(0, MOST_KERNELS - sum(len(one.kernels) for one in found))
        found.append(list_kernels(step, device, f"the part of {name}", room))
    return found


def measured(
    step: Executable, inputs: Sequence[Array], variables: Mapping[str, VariableState], name: str
) -> tuple[PlanFacts, Cost | None]:
    """The kernels of a native step with their times, its memory, and the timeline of a run, all of
    runs on copies of the variables; and what it costs, None if it calls functions of the user's.
    Errors as those of a call."""
    memory = Memory.of(step.report.memory)
    if not step.report.calls:
        return PlanFacts((), memory, missing=(NO_KERNELS,)), None
    if calls_user(step.graph):
        events = timeline(step, inputs, variables, runs=1)
        missing = (CALLS_PYTHON,)
        return PlanFacts(native_kernels(step), memory, events, RECORDED, missing), None
    cost = measure(step, inputs, variables, name, EFFORT, assembly=False)
    events = timeline(step, inputs, variables)
    return PlanFacts(kernels_of(step, cost), memory, events, RECORDED), cost


def calls_user(graph: Graph) -> bool:
    """Whether running a graph calls functions of the user's that are not silent when muted."""
    return any(op.name in PYTHON_CALLS - SILENT_CALLS for op in graph.walk())


def way_of(step: Step) -> str:
    """What runs a step that is not one plan, and how much of it there is."""
    made = step.summary()
    if made.devices:
        return f"parts on {' and '.join(made.devices)}"
    return f"cpu, the dataflow executor: {made.nodes} nodes, {made.host_ops} ops of the host"


def passes_of(reports: Sequence[PassReport]) -> list[PassFacts]:
    """The passes that a page lists."""
    return [PassFacts.of(report) for report in reports]


def subtitle_of(step: Executable, cost: Cost | None) -> str:
    """What a call costs, in a line."""
    count = step.summary().kernels if cost is None else cost.kernels
    told = ["1 kernel call" if count == 1 else f"{count} kernel calls"]
    if cost is not None and cost.step is not None:
        told.append(f"{cost.step.minimum * 1e6:,.1f} us a call")
    told.append(step.report.isa)
    return " · ".join(told if cost is None else [*told, cost.peaks.cpu])


def kernels_of(step: Executable, cost: Cost) -> list[KernelFacts]:
    """The kernels of a native step, with what was measured of them."""
    rows = {row.number: row for row in cost.rows}
    ranked = sorted(rows.values(), key=lambda row: -row.seconds)
    shown = {row.number for row in ranked[:MOST_KERNELS]}
    found = native_kernels(step, shown, "that take most")
    return [_measured(kernel, rows[kernel.number], cost) for kernel in found]


def _measured(kernel: KernelFacts, row: KernelCost, cost: Cost) -> KernelFacts:
    rates = row.rates(cost.peaks)
    return replace(
        kernel,
        name=row.name,
        runs=row.runs,
        microseconds=None if row.one is None else row.one.minimum * 1e6,
        many=None if row.all is None else row.all.minimum * 1e6,
        bytes=row.bytes,
        flops=row.work.flops,
        percent=None if rates is None else rates.percent_of_peak,
        bound="" if rates is None else rates.bound,
        notes=row.notes,
        untimed="" if row.one is not None else "not timed",
    )


def timeline(
    step: Executable,
    inputs: Sequence[Array],
    variables: Mapping[str, VariableState],
    runs: int = 2,
) -> list[Event]:
    """The events of the last of some runs on copies of the variables. Of one alone they are longer:
    it meets code and memory for the first time."""
    replay = Replay(step, inputs, variables)
    recorder = TraceRecorder()
    for _ in range(runs):
        recorder = TraceRecorder()
        replay.restore()
        with muted():
            replay.step.run(list(replay.inputs), RunContext(recorder=recorder))
    return events_of(recorder.events())
