"""Compiled functions on a GPU: `wf.compile(device="gpu:0")`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.frontend.core.device_array import guarded, transfer
from weft.ir.device import is_local, local_gpu, named_device
from weft.ir.errors import UnsupportedError, WeftError
from weft.ir.graph import Graph
from weft.ir.locations import caller_location
from weft.runtime.device.execution.step import DeviceStep

if TYPE_CHECKING:
    from weft.runtime.device.execution.size_plan import DeviceSizedStep
    from weft.runtime.device.protocol import Device


def gpu_number(device: str) -> int | None:
    """The number of the GPU that `wf.compile(device=)` names, None for the CPU.

    UnsupportedError for a device of another task.
    """
    spec = named_device(device)
    found = local_gpu(spec)
    if found is None and not is_local(spec):
        raise UnsupportedError(
            f"wf.compile(device={device!r}): a compiled function runs in this process, on its CPU "
            "or on one of its GPUs",
            hint='the CPU is "cpu", GPUs are "gpu:0", "gpu:1", ...; sessions run on other tasks',
            location=caller_location(),
        )
    return found


def not_on_gpu(what: str) -> UnsupportedError:
    """The error for a question that only native code of the CPU answers."""
    return UnsupportedError(
        f".{what}() tells of native code, this function runs on a GPU",
        hint=".explain() shows its launches, .asm() their PTX; `weft bench --device` times them",
        location=caller_location(),
    )


class GpuCall:
    """Calls of a plan, or of plans for the sizes that come, whose results stay on the GPU. Host
    arrays among the inputs, and arrays of another GPU, are transfers that `wf.transfer_guard` may
    disallow."""

    def __init__(self, step: DeviceStep | DeviceSizedStep, graph: Graph) -> None:
        self._step, self._graph = step, graph

    def __call__(self, arrays: list[Any]) -> list[Any]:
        step = self._step
        try:
            if step.kind == "sized":
                step = step.at(tuple([tuple(a.shape) for a in arrays]))
            if guarded():
                self._check(step.device(), arrays)
            return step.call(arrays)
        except WeftError as error:  # of the device, such as too little memory
            raise error.at(caller_location()) from None

    def _check(self, device: Device, arrays: Sequence[Any]) -> None:
        graph, gpu = self._graph, device.name.lstrip("/")
        for name, arg, given in zip(graph.arg_names, graph.args, arrays, strict=True):
            if isinstance(given, np.ndarray):
                where = "a host array or number"
            elif given.device is not device:
                where = f"an array of {given.device.name.lstrip('/')}"
            else:
                continue
            transfer(
                f"argument {name} of '{graph.name}', {arg.type}, is {where} that is copied "
                f"to {gpu}",
                f'wf.to_device(x, "{gpu}") copies it there, and may be used where transfers are '
                "disallowed",
            )
