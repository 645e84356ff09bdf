"""How a session carries out a step, whichever way it runs, and what records it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from weft.frontend.arrays import Array
from weft.frontend.device_array import DeviceArray
from weft.frontend.session.compiling import Step
from weft.frontend.session.options import RunOptions
from weft.frontend.session.transfers import placed
from weft.frontend.transfers import guarded
from weft.runtime.dataflow.executor import DataflowStep
from weft.runtime.dataflow.run import end_if_over
from weft.runtime.dataflow.trace import TraceRecorder
from weft.runtime.device.execution.step import DeviceStep, StepOnDevices
from weft.runtime.native.executable import Executable
from weft.runtime.native.size_plan import Filled
from weft.runtime.resources.cancel import CancelToken
from weft.runtime.trace.kernel_times import run_traced

if TYPE_CHECKING:
    from weft.runtime.trace.task_trace import StepTrace

    Recorder = TraceRecorder | StepTrace | None


def execute(
    step: Step,
    arrays: list[Array],
    options: RunOptions | None,
    cancel: CancelToken,
    recorder: Recorder,
) -> list[Any]:
    """One run: its results, None for a token. recorder: as `new_recorder` gave it."""
    executable = step.executable
    if DeviceArray in map(type, arrays) or (not isinstance(executable, Executable) and guarded()):
        arrays = placed(step, arrays)
    limit = None if options is None else options.seconds
    if isinstance(executable, Executable) and isinstance(recorder, TraceRecorder):
        return run_traced(executable, arrays, recorder)
    if isinstance(executable, (Executable, Filled)):
        if limit is None:
            return executable(arrays)
        with cancel.within(limit) as own:
            return executable.run_watched(arrays, lambda: end_if_over(own))
    if isinstance(executable, DeviceStep):
        with cancel.within(limit) as own:
            if isinstance(recorder, TraceRecorder):
                return executable.run_traced(arrays, recorder, own)
            return executable(arrays, own)
    if isinstance(executable, (DataflowStep, StepOnDevices)):
        nodes = recorder if isinstance(recorder, TraceRecorder) else None
        return executable(arrays, timeout=limit, cancel=cancel, trace=nodes)
    parts = None if isinstance(recorder, TraceRecorder) else recorder
    return executable(arrays, timeout=limit, cancel=cancel, trace=parts)


def new_recorder(step: Step, options: RunOptions | None) -> Recorder:
    """What records a run of the step; None if the options do not ask for that."""
    if options is None or not options.traces:
        return None
    of_here = (Executable, Filled, DataflowStep, DeviceStep, StepOnDevices)
    if isinstance(step.executable, of_here):
        return TraceRecorder()
    return step.executable.new_trace()
