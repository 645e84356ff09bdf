"""Placement of a step's ops on the CPU and the GPUs of this process.

The rule for ops that name no device: in a step that names a GPU they go with it (the first that is
named), else they stay on the CPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from weft.codegen.cuda.lowerings import GPU_DTYPES, gpu_ops
from weft.ir.device import LOCAL_DEVICES, LOCAL_TASK, DeviceSpec, local_gpu
from weft.ir.errors import WeftError
from weft.ir.graph import Graph, Operation
from weft.passes.placement import CostModel, Device, Placement, Rates, place
from weft.runtime.device.backends.info import DeviceInfo
from weft.runtime.device.backends.local import not_here
from weft.runtime.device.backends.registry import gpus

_STAYS = (
    "ops that nothing binds stay where they are: CPU devices of one process share its threads, and "
    "the prices of ops on GPUs were never compared with a GPU"
)


def gpu_device(name: str, info: DeviceInfo | None = None) -> Device:
    """A GPU as placement sees it: what there are kernels for, and its rates. info: what it is; None
    for one that is not here, which is taken for an H100."""
    rates = Rates()
    if info is not None and info.flops and info.bandwidth:
        rates = Rates(flops=info.flops, bytes_per_s=info.bandwidth)
    memory = None if info is None else info.memory
    return Device(name, memory=memory, kernels=gpu_ops(), dtypes=GPU_DTYPES, rates=rates)


def place_step(
    graph: Graph,
    *,
    named: tuple[int, Operation] | None = None,
    soft: bool = False,
    follow: bool = True,
    spread: bool = False,
    costs: CostModel | None = None,
    cpus: int = 1,
) -> Placement:
    """A device of this process for each op of a step, in full; `place` says how and what it raises.

    named: the number of the GPU that the step goes with, and the op that says so, where passes may
    have taken that away; by default the first that an op names. follow: whether ops that name no
    device go with it; else they are on the CPU. soft: what cannot be where it was
    asked for, or with the GPU that the step names, goes to the CPU, and `Placement.fallbacks`
    tells. spread: ops that name no device are where the simulation is fastest. cpus: how many
    CPU devices the process has; ops that name none go with the first, unless they go with a GPU.
    InvalidArgumentError, which says why, for a GPU that is not here.
    """
    named = named or _first_gpu(graph)
    devices = [Device(f"{LOCAL_TASK}/cpu:{i}") for i in range(cpus)]
    if named is not None or spread:
        devices += _gpus(None if named is None or soft else named[1])
    default = LOCAL_DEVICES[0] if cpus > 1 and not spread else None
    if named is not None and follow and not spread:
        default = next((d.name for d in devices if local_gpu(d.spec) == named[0]), None)
    placed = place(graph, devices, soft=soft, costs=costs, default=default)
    return placed if spread or len(devices) == 1 else replace(placed, note=_STAYS)


def _first_gpu(graph: Graph) -> tuple[int, Operation] | None:
    """The number of the GPU that is named first, and the op that does."""
    for op in graph.walk():
        number = local_gpu(DeviceSpec.parse(op.device)) if op.device else None
        if number is not None:
            return number, op
    return None


def _gpus(needs: Operation | None) -> Sequence[Device]:
    """The GPUs of this process. If there are none: the error, at the op that needs one; none where
    nothing needs any."""
    try:
        return [gpu_device(info.name, info) for info in gpus()]
    except WeftError as error:
        if needs is None:
            return []
        raise not_here(needs, error) from None
