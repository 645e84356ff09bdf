"""Several CPU devices of one process, as TensorFlow's `ConfigProto(device_count={"CPU": n})`.

A step that names `/cpu:1` has a part for each device that it uses, each on the dataflow executor in
a thread of its own, as a step over several GPUs has (`runtime/cluster/multi_device.py`). Tensors go
between them as the arrays that they are. The devices share the processor's cores: they say what
runs beside what, and try out programs for several devices, but make nothing faster by
themselves."""

from __future__ import annotations

from collections.abc import Mapping

from weft.frontend.ops.promotion import check_positive
from weft.ir.device import LOCAL_JOB, DeviceSpec
from weft.ir.errors import UnsupportedError
from weft.ir.graph import Graph, Operation
from weft.ir.locations import caller_location
from weft.runtime.compile_step import CompileOptions
from weft.runtime.dataflow.host_dispatch import Resources
from weft.runtime.local_devices import CutStep, GpuUse
from weft.runtime.resources.variables import VariableState
from weft.runtime.step import Step


def checked_count(given: object, on_cluster: bool) -> int:
    """How many CPU devices a session has. InvalidArgumentError for no count from 1 on,
    UnsupportedError for several on a cluster."""
    count = check_positive("Session", given, "cpu_devices")
    if count > 1 and on_cluster:
        raise UnsupportedError(
            "wf.Session: cpu_devices is for a session on this process: a task of a cluster has one",
            hint="start more tasks, which may be on one machine",
            location=caller_location(),
        )
    return count


def other_cpu(step: Graph) -> Operation | None:
    """The first op that names a CPU beyond the first; None if there is none."""
    for op in step.walk():
        spec = DeviceSpec.parse(op.device) if op.device else None
        if spec is not None and spec.kind == "cpu" and spec.index and spec.job in (None, LOCAL_JOB):
            return op
    return None


def compile_on_cpus(
    step: Graph,
    op: Operation,
    cpus: int,
    gpu: GpuUse | None,
    states: Mapping[str, VariableState],
    resources: Resources,
    how: CompileOptions,
    soft: bool,
) -> Step:
    """The step with a part for each device that it uses. op: one that names another CPU than the
    first; cpus: how many there are; gpu: the step's use of a GPU; soft: what cannot be where it was
    asked for goes to another device.

    UnsupportedError for a session that lowers nothing, PlacementError and InvalidArgumentError for
    ops that cannot be where they are wanted.
    """
    if how.control_flow == "native":
        raise UnsupportedError(
            f"op '{op.name}' is on {op.device}, and the session was made with "
            "control_flow='native'",
            hint="a step over several devices has parts on the dataflow executor: make the "
            "session with control_flow='auto'",
            location=op.locations,
        )
    return CutStep(step, gpu, how, soft=soft, cpus=cpus).compiled(states, resources)
