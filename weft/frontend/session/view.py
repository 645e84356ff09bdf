"""`Session.view`: a step of a session as a page - its passes, the kernels of whatever runs it, and
the timeline of a run.

A native plan and a plan for a GPU are run, on copies of the variables, for their times. A step that
acts on queues, other devices or tasks is not run: the kernels of its regions and parts are listed,
on a cluster by the tasks, and their times are those of a run that was traced."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from weft.frontend.compile.view import (
    NOT_RUN,
    RECORDED,
    gpu_plan,
    listed_kernels,
    measured,
    passes_of,
    plan_listed,
    untimed,
)
from weft.frontend.core.tensor import Array
from weft.frontend.session.compiling import StepDefinition
from weft.frontend.session.reports import step_summary
from weft.frontend.session.run import RunMetadata
from weft.frontend.viewer.document import Document
from weft.frontend.viewer.facts import Memory, PlanFacts, events_of, events_of_tasks
from weft.frontend.viewer.page import View
from weft.ir.errors import InvalidArgumentError, TypeRuleError, WeftError
from weft.ir.locations import caller_location
from weft.passes.manager import PassReport
from weft.runtime.device.execution.step import DeviceStep
from weft.runtime.native.executable import Executable
from weft.runtime.step import Step
from weft.runtime.trace.kernel_facts import native_kernels, timed

_AS_RUN = (
    "Times are the means of the traced run, with as many threads as each kernel had there. "
    "Percents of the roofline are not shown: one run is too little for them."
)
_NODES_ALONE = (
    "The kernels have no times: the run was traced with trace_level=SOFTWARE_TRACE, which times "
    "regions as a whole; FULL_TRACE times their kernels."
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
    plan = _plan(step.executable, arrays, name, metadata)
    if metadata is not None and metadata.timeline is not None:
        plan = replace(plan, events=events_of_tasks(metadata.timeline), recorded="")
    elif metadata is not None:
        recorded = RECORDED if metadata.executor == "native" else ""
        plan = replace(plan, events=events_of(metadata.events), recorded=recorded)
    return View(Document(name, passes_of(reports), step_summary(step), explained, plan))


def _plan(step: Step, arrays: Sequence[Any], name: str, metadata: RunMetadata | None) -> PlanFacts:
    """What is to be said of a step of any kind."""
    if isinstance(step, Executable | DeviceStep):
        inputs = [a if isinstance(a, np.ndarray) else a.numpy() for a in arrays]
        return _native(step, inputs, name) if step.kind == "native" else gpu_plan(step, inputs)
    kernels, missing = listed_kernels(step)
    if metadata is None or not kernels:
        return plan_listed(untimed(kernels), missing, NOT_RUN)
    kernels = timed(kernels, [e for e in (*metadata.events, *metadata.kernel_events) if e.kernels])
    if metadata.has_every_kernel:
        return plan_listed(kernels, missing, _AS_RUN)
    return plan_listed(untimed(kernels), missing, _NODES_ALONE)


def _native(step: Executable, inputs: Sequence[Array], name: str) -> PlanFacts:
    """What is to be said of a native step; where it cannot run as it is now, without times."""
    try:
        return measured(step, inputs, step.states(), name)[0]
    except WeftError as error:
        missing = (f"The kernels have no times, as the step fails: {error.what}",)
        memory = Memory.of(step.report.memory)
        return PlanFacts(native_kernels(step), memory, missing=missing)
