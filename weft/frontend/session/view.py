"""`Session.view`: a step of a session as a page - its passes, the kernels of whatever runs it, and
the timeline of a run.

A native plan and a plan for a GPU are run, on copies of the variables, for their times. A step that
acts on queues, other devices or tasks is not run: of its regions the kernels are listed, and its
times are those of a run that was traced."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from weft.frontend.compile.view import (
    MOST_KERNELS,
    NO_KERNELS,
    RECORDED,
    gpu_plan,
    kernels_of,
    measured,
    passes_of,
)
from weft.frontend.core.tensor import Array
from weft.frontend.session.compiling import StepDefinition
from weft.frontend.session.reports import step_summary
from weft.frontend.session.run import RunMetadata
from weft.frontend.viewer.document import Document
from weft.frontend.viewer.facts import KernelFacts, Memory, PlanFacts, events_of, events_of_tasks
from weft.frontend.viewer.page import View
from weft.ir.errors import InvalidArgumentError, TypeRuleError, WeftError
from weft.ir.locations import caller_location
from weft.passes.manager import PassReport
from weft.runtime.device.execution.step import DeviceStep
from weft.runtime.native.executable import Executable
from weft.runtime.step import Step

_UNTIMED = (
    "The kernels have no times: the step is not run for this page, as it acts on more than "
    "variables. A traced run (run_metadata=) has the times of regions, in the timeline."
)
_ON_TASKS = (
    "The kernels are not in this page: each task of the cluster compiles those of its part. "
    "WEFT_DUMP, set where a task runs, writes them there; a traced run (run_metadata=) has the "
    "times of regions, in the timeline."
)


def view_step(
    name: str,
    reports: list[PassReport],
    explained: str,
    step: StepDefinition,
    arrays: Sequence[Any],
    metadata: RunMetadata | None,
) -> View:
    """The page. A native step is measured, on copies of its variables, with these feeds.
    TypeRuleError for metadata that is none, InvalidArgumentError for that of a run that was not
    traced, or of another step."""
    if metadata is not None and not isinstance(metadata, RunMetadata):
        raise TypeRuleError(
            f"session.view: run_metadata is a wf.RunMetadata, got {metadata!r}",
            location=caller_location(),
        )
    if metadata is not None and not metadata.traced:
        raise InvalidArgumentError(
            "session.view: run_metadata is of a run without a trace",
            hint="run with options=wf.RunOptions(trace_level=wf.RunOptions.FULL_TRACE)",
            location=caller_location(),
        )
    if metadata is not None and not metadata.is_of(step):
        raise InvalidArgumentError(
            "session.view: run_metadata is of a run of other fetches or feeds",
            hint="run what is viewed: session.run(fetches, feeds, options, run_metadata)",
            location=caller_location(),
        )
    plan = _plan(step.executable, arrays, name)
    if metadata is not None and metadata.timeline is not None:
        plan = replace(plan, events=events_of_tasks(metadata.timeline), recorded="")
    elif metadata is not None:
        recorded = RECORDED if metadata.executor == "native" else ""
        plan = replace(plan, events=events_of(metadata.events), recorded=recorded)
    return View(Document(name, passes_of(reports), step_summary(step), explained, plan))


def _plan(step: Step, arrays: Sequence[Any], name: str) -> PlanFacts:
    """What is to be said of a step of any kind."""
    if step.kind == "cluster":
        return PlanFacts(missing=(_ON_TASKS,))
    if isinstance(step, Executable | DeviceStep):
        inputs = [a if isinstance(a, np.ndarray) else a.numpy() for a in arrays]
        return _native(step, inputs, name) if step.kind == "native" else gpu_plan(step, inputs)
    listed = _Kernels()
    if step.kind == "dataflow":
        listed.of_regions(step, "")
    elif step.kind == "devices":
        listed.of_devices(step)
    missing = [_UNTIMED, *listed.missing] if listed.found else listed.missing or [NO_KERNELS]
    return PlanFacts(listed.found, missing=missing)


def _native(step: Executable, inputs: Sequence[Array], name: str) -> PlanFacts:
    """What is to be said of a native step; where it cannot run as it is now, without times."""
    try:
        return measured(step, inputs, step.states(), name)[0]
    except WeftError as error:
        missing = (f"The kernels have no times, as the step fails: {error.what}",)
        memory = Memory.of(step.report.memory)
        return PlanFacts(kernels_of(step), memory, missing=missing)


class _Kernels:
    """The kernels of a step on the dataflow executor or on several devices. missing: lines on the
    plans that have none to show."""

    def __init__(self) -> None:
        self.found: list[KernelFacts] = []
        self.missing: list[str] = []

    def of_devices(self, step: Step) -> None:
        """Add those of each device's part."""
        from weft.runtime.cluster.multi_device import DevicesStep  # only such steps need it

        assert isinstance(step, DevicesStep)
        for part in step.parts:
            if part.step.kind == "dataflow":
                self.of_regions(part.step, part.device)
            else:
                self.of_plan(part.step, part.device, "", f"the part of {part.name}")

    def of_regions(self, step: Step, device: str) -> None:
        """Add those of the compiled regions, in order. device: whose part it is, if it is one."""
        from weft.runtime.dataflow.executor import DataflowStep  # only such steps need it

        assert isinstance(step, DataflowStep)
        for number, made in enumerate(step.built.compiled, 1):
            what = f"region {number}"
            self.of_plan(getattr(made, "step", made), device, what, what)

    def of_plan(self, made: Any, device: str, region: str, what: str) -> None:
        """Add those of a plan. what: the plan, for people."""
        room = max(0, MOST_KERNELS - len(self.found))
        if isinstance(made, Executable):
            found = kernels_of(made, most=room)
        elif made.kind == "gpu":
            from weft.frontend.compile.view_gpu import launches_of  # only such steps need it

            found = launches_of(made, most=room)
        else:
            self.missing.append(f"The sizes of {what} depend on values: its kernels are compiled "
                                "for the sizes that come.")  # fmt: skip
            return
        for kernel in found:
            number = len(self.found) + 1
            self.found.append(replace(kernel, number=number, device=device, region=region))
