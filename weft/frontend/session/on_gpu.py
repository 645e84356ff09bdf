"""Steps of a session that name a GPU of this process: one plan for it, or a part for each
device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from weft.frontend.calls.on_gpu import compile_for_gpu
from weft.ir.dataclass import dataclass
from weft.ir.device import LOCAL_DEVICES, LOCAL_JOB, DeviceSpec, local_gpu
from weft.ir.dtypes import MathMode
from weft.ir.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    UnsupportedError,
    WeftError,
)
from weft.ir.graph import Graph as IRGraph
from weft.ir.graph import Operation
from weft.passes.manager import Pass
from weft.runtime.dataflow.executor import executor_op, holds_strings
from weft.runtime.dataflow.host_dispatch import Resources
from weft.runtime.device.backends.local import not_here, on_local_device
from weft.runtime.device.execution.step import DeviceStep, StepOnDevices
from weft.runtime.plan.planning import gpu_passes
from weft.runtime.resources.variables import VariableState


@dataclass(frozen=True, slots=True)
class GpuUse:
    """That a step uses a GPU. number: of the first that an op names; op: that one. why: what one
    plan for it cannot hold, so that the step has a part for each device; empty if it can."""

    number: int
    op: Operation
    why: str


def gpu_use(step: IRGraph, control_flow: str) -> GpuUse | None:
    """Whether a step uses a GPU of this process: whether an op names one. Ops that name nothing go
    with it."""
    named = [(DeviceSpec.parse(op.device), op) for op in step.walk() if op.device]
    found = next(((n, op) for s, op in named if (n := local_gpu(s)) is not None), None)
    if found is None:
        return None
    number, first = found
    there = DeviceSpec(LOCAL_JOB, 0, "gpu", number)
    other = next((op for spec, op in named if not spec.matches(there)), None)
    host = executor_op(step)
    why = ""
    if other is not None:
        why = f"op '{other.name}' is on {other.device}"
    elif host is not None:
        why = f"op '{host.name}' runs on the dataflow executor only"
    elif holds_strings(step):
        why = "strings go in or out"
    elif control_flow == "dataflow":
        why = "the session was made with control_flow='dataflow'"
    return GpuUse(number, first, why)


def compile_gpu_step(
    step: IRGraph,
    use: GpuUse,
    states: Mapping[str, VariableState],
    resources: Resources,
    control_flow: str,
    passes: Sequence[Pass],
    *,
    deterministic: bool = False,
    soft: bool = False,
    math_mode: MathMode = "ieee",
) -> DeviceStep | StepOnDevices:
    """The step as a plan for a GPU, or as a part for each of its devices. soft: ops without a
    kernel for the GPU may go to the processor.

    UnsupportedError for what a GPU does not do, PlacementError for an op that cannot be where it is
    wanted, InvalidArgumentError, which says why, where there is no such GPU.
    """
    if not use.why and not soft:
        return _whole(step, use, states, gpu_passes(passes), math_mode)
    native = control_flow == "native"
    if use.why and native:
        raise _not_there(f"{use.why}, and the session was made with control_flow='native'", use.op)
    # whoever uses one device does not wait for these modules
    from weft.passes.partition.partition import partition
    from weft.runtime.cluster.multi_device import PartedStep, dump_parts
    from weft.runtime.device.backends.placement import place_step
    from weft.runtime.device.execution.regions import on_gpu

    placed = place_step(step, soft=soft)
    made = partition(placed.graph, LOCAL_DEVICES[0])
    if not use.why and not placed.fallbacks and len(made.parts) == 1:
        return _whole(step, use, states, gpu_passes(passes), math_mode)
    if native:
        why = f"the session was made with control_flow='native', and {placed.fallbacks[0]}"
        raise _not_there(why, use.op)
    dump_parts(step.name, str(made))
    return PartedStep(
        step.name, made, len(step.results), states, resources,
        partial(on_gpu, passes=gpu_passes(passes), math_mode=math_mode), control_flow,
        deterministic=deterministic, passes=passes, placement=placed,
    )  # fmt: skip


def _whole(
    step: IRGraph,
    use: GpuUse,
    states: Mapping[str, VariableState],
    passes: Sequence[Pass],
    math_mode: MathMode,
) -> DeviceStep:
    """One plan for one GPU."""
    made = compile_for_gpu(on_local_device(step, use.number), states, use.number, passes, math_mode)
    try:
        made.device()
    except (FailedPreconditionError, InvalidArgumentError) as error:  # there is none
        raise not_here(use.op, error) from None
    except WeftError as error:
        raise error.at(use.op.locations) from None
    return made


def _not_there(why: str, op: Operation) -> UnsupportedError:
    return UnsupportedError(
        f"a step is to run on a GPU, but {why}",
        hint="make the session without that, or fetch what is on the GPU in a session of its own",
        location=op.locations,
    )
