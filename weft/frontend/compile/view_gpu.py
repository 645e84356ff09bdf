"""What a page says of a plan for a GPU: each launch with its grid, work, code and times.

Times are those of a traced run on copies of the variables: of the device's own clock, or of the
host's where the device is emulated. Nothing of it needs a GPU or a toolchain; what is missing for
that reason is said in words."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from weft.frontend.compile.view import calls_user
from weft.frontend.viewer.facts import Memory, PlanFacts, events_of
from weft.ir.dataclass import dataclass
from weft.ir.errors import WeftError
from weft.ir.ops.io import muted
from weft.runtime.device.execution.executable import DeviceExecutable
from weft.runtime.device.execution.launch_facts import (
    EMULATED,
    MOST_LAUNCHES,
    NOT_REACHED,
    launches_of,
)
from weft.runtime.recorder import TraceEvent, TraceRecorder
from weft.runtime.trace.kernel_facts import KernelFacts

Array = np.ndarray[Any, Any]
#: Runs that are traced: of each launch the least time is shown, after a first run.
RUNS = 3
RECORDED = (
    "Recorded launch by launch: each is waited for, so nothing overlaps and the gaps are the "
    "recording's. All is by the device's own clock but the gaps."
)
RUN_ONCE = (
    "Times are those of a first run, which is slow: the step calls Python functions of yours "
    "(wf.py_function), so it was run once."
)
NO_PEAKS = "Percents of the roofline are not shown: weft does not measure the peaks of a GPU."


@dataclass(frozen=True)
class Traced:
    """A traced run. events: as recorded. seconds: of each node the times of its runs in a call, the
    least of several calls each, in order; by its identity."""

    events: Sequence[TraceEvent]
    seconds: Mapping[int, Sequence[float]]


def plan_on_gpu(step: DeviceExecutable, inputs: Sequence[Array]) -> PlanFacts:
    """The launches of a plan, its memory, and the timeline of a run on copies of the variables.
    Where it cannot run, it has no times, and says why."""
    memory = Memory.of(step.report.memory)
    try:
        traced, emulated = _traced(step, inputs), step.device().emulated
    except WeftError as error:
        told = f"The launches have no times: {error.what}"
        return PlanFacts(launches_of(step), memory, missing=(told,))
    missing = [EMULATED if emulated else NO_PEAKS]
    missing += [RUN_ONCE] if calls_user(step.graph) else []
    recorded = EMULATED if emulated else RECORDED
    return PlanFacts(_timed(step, traced), memory, events_of(traced.events), recorded, missing)


def _traced(step: DeviceExecutable, inputs: Sequence[Array]) -> Traced:
    """Run the step some times; once if it calls functions of the user's. Errors as those of a
    call."""
    seconds: dict[int, list[float]] = {}
    recorder = TraceRecorder()
    runs = 1 if calls_user(step.graph) else RUNS + 1
    for number in range(runs):  # the first run is slow: it compiles and loads the kernels
        recorder = TraceRecorder()
        own = step.with_variables({name: copy.copy(state) for name, state in step.states().items()})
        with muted():
            nodes = own.run_noted(list(inputs), recorder)
        met: dict[int, int] = {}
        for node, event in zip(nodes, recorder.events(), strict=True):
            known, k = seconds.setdefault(id(node), []), met.get(id(node), 0)
            met[id(node)] = k + 1
            took = (event.end_ns - event.begin_ns) / 1e9
            if k < len(known) and number > 1:
                known[k] = min(known[k], took)
            elif k < len(known):
                known[k] = took
            else:
                known.append(took)
    return Traced(recorder.events(), seconds)


def _timed(step: DeviceExecutable, traced: Traced) -> list[KernelFacts]:
    """The launches of a plan in order, with what was traced of them."""
    times = {
        number: traced.seconds.get(id(launch), ())
        for number, launch in enumerate(step.told().launches(), 1)
    }
    ranked = sorted(times, key=lambda number: -sum(times[number]))
    found = launches_of(step, ranked[:MOST_LAUNCHES], "that take most")
    return [_with(kernel, times[kernel.number]) for kernel in found]


def _with(kernel: KernelFacts, took: Sequence[float]) -> KernelFacts:
    """A launch whose runs took so many seconds each."""
    if not took:
        notes = (*kernel.notes, NOT_REACHED)
        return replace(kernel, runs=0, notes=notes, untimed="did not run")
    return replace(kernel, runs=len(took), microseconds=min(took) * 1e6)
