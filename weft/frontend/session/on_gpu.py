"""Steps of a session that run on a GPU of this process: those whose ops name it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft.frontend.calls.on_gpu import compile_for_gpu
from weft.ir.device import LOCAL_DEVICES, LOCAL_JOB, DeviceSpec, local_gpu
from weft.ir.errors import InvalidArgumentError, UnsupportedError, WeftError
from weft.ir.graph import Graph as IRGraph
from weft.ir.graph import Operation
from weft.passes.manager import Pass
from weft.passes.pipelines import GPU, STANDARD
from weft.runtime.dataflow.lowered import executor_op, holds_strings
from weft.runtime.device.step import DeviceStep
from weft.runtime.local_graph import on_local_device
from weft.runtime.variables import VariableState


def gpu_of(step: IRGraph) -> tuple[int, Operation] | None:
    """The number of the GPU that a step runs on, and the first op that names it; ops that name
    nothing go with them. None if no op names one.

    UnsupportedError, with the line, where one step names several devices.
    """
    named = [(DeviceSpec.parse(op.device), op) for op in step.walk() if op.device]
    found = next(((n, op) for s, op in named if (n := local_gpu(s)) is not None), None)
    if found is None:
        return None
    number, first = found
    for spec, op in named:
        if not spec.matches(DeviceSpec(LOCAL_JOB, 0, "gpu", number)):
            raise UnsupportedError(
                f"one step holds '{first.name}' on {first.device} and '{op.name}' on {spec}: the "
                "ops of a step are on one device of a process",
                hint="fetch what runs on another device in a step of its own",
                location=op.locations,
            )
    return found


def compile_gpu_step(
    step: IRGraph,
    gpu: tuple[int, Operation],
    states: Mapping[str, VariableState],
    control_flow: str,
    passes: Sequence[Pass],
) -> DeviceStep:
    """The step as a plan for a GPU, as `gpu_of` gives it. UnsupportedError for what a GPU does not
    do: host ops, strings, the dataflow executor, the reproducible pipeline; InvalidArgumentError,
    which says why, where there is no such GPU."""
    found = executor_op(step)
    if found is not None:
        raise _not_there(f"op '{found.name}' runs on the dataflow executor of the CPU", found)
    if holds_strings(step):
        raise _not_there("strings go in or out", None)
    if control_flow == "dataflow":
        raise _not_there("the session was made with control_flow='dataflow'", None)
    if tuple(passes) != STANDARD:
        raise _not_there("the session was made with reproducible=True", None)
    number, first = gpu
    made = compile_for_gpu(on_local_device(step, number), states, number, GPU)
    try:
        made.device()
    except WeftError as error:
        raise InvalidArgumentError(
            f"there is no device '{first.device}' here; the devices are: "
            f"{', '.join(LOCAL_DEVICES)}: {error.what}",
            hint=error.hint,
            location=first.locations,
        ) from None
    return made


def _not_there(why: str, op: Operation | None) -> UnsupportedError:
    return UnsupportedError(
        f"a step is to run on a GPU, but {why}",
        hint="take the wf.device away from what the step needs, or fetch it in a step of its own",
        location=op.locations if op is not None else (),
    )
