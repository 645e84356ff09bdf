"""Compiled functions on a GPU: `wf.compile(device="gpu:0")`. They are one plan for it (`GpuCall`),
or, with ops of the host, a part for it and one for the processor (`PartsCall`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.frontend.core.device_array import (
    DeviceArray,
    check_copies,
    guarded,
    host_array,
    made_at,
    transfer,
)
from weft.frontend.core.tensor import Tensor, contiguous
from weft.ir.analysis.effects import is_string
from weft.ir.device import is_local, local_gpu, named_device
from weft.ir.errors import UnsupportedError, WeftError
from weft.ir.graph import Graph
from weft.ir.locations import caller_location
from weft.runtime.device.execution.step import DeviceStep
from weft.runtime.native.python_calls import logged
from weft.runtime.step import PLAIN, RunContext, Step

if TYPE_CHECKING:
    from weft.runtime.device.execution.size_plan import DeviceSizedStep
    from weft.runtime.device.protocol import Device
    from weft.runtime.sized_step import SizedStep


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


def result_kinds(graph: Graph) -> list[type[Tensor | DeviceArray]]:
    """What the results of a function for a GPU are: arrays there, but strings, which are on the
    host."""
    return [Tensor if is_string(v.type) else DeviceArray for v in graph.results]


class GpuCall:
    """Calls of a plan, or of plans for the sizes that come, whose results stay on the GPU. Host
    arrays among the inputs, and arrays of another GPU, are transfers that `wf.transfer_guard` may
    disallow."""

    def __init__(self, step: DeviceStep | DeviceSizedStep, graph: Graph) -> None:
        self._step, self._graph = step, graph

    def __call__(self, arrays: list[Any], context: RunContext = PLAIN) -> list[Any]:
        """The results. Arrays of the device say themselves whether they were taken."""
        step = self._step
        try:
            if step.kind == "sized":
                step = step.at(tuple([tuple(a.shape) for a in arrays]))
            if guarded():
                device = step.device()
                _check_inputs(self._graph, device, arrays, [True] * len(arrays))
            with logged(context.log):
                return step.call(arrays)
        except WeftError as error:  # of the device, such as too little memory
            raise error.at(caller_location()) from None


class PartsCall:
    """Calls of a step with a part on a GPU and one on the processor. Arrays of the GPU go as they
    are to what reads them there, and results are arrays there, but strings; what else is copied
    between the two `wf.transfer_guard` may disallow. find: the GPU."""

    def __init__(
        self, step: Step | SizedStep[Any], graph: Graph, find: Callable[[], Device]
    ) -> None:
        self._step, self._graph, self._find = step, graph, find

    def __call__(self, arrays: list[Any], context: RunContext = PLAIN) -> list[Any]:
        step: Any = self._step
        given: list[Any] = []
        try:
            device = self._find()
            if step.kind == "sized":
                step = step.at(tuple([tuple(a.shape) for a in arrays]))
            there = [bool(gpus) for gpus in step.feeds_on_gpus(len(arrays))]
            if guarded():
                _check_inputs(self._graph, device, arrays, there)
                check_copies(step)
                self._check_results(step, device)
            given += [
                a if far and not isinstance(a, np.ndarray) else host_array(a)
                for a, far in zip(arrays, there, strict=True)
            ]
            made = step.run(given, context)
            return [self._result(r, given, device, i) for i, r in enumerate(made)]
        except WeftError as error:
            raise error.at(caller_location()) from None
        finally:
            given.clear()  # whoever holds an error holds this list, and donated arrays with it

    def _check_results(self, step: Step, device: Device) -> None:
        """FailedPreconditionError for a result that the host makes, where none must be copied."""
        graph, there = self._graph, {i for i, _ in step.results_on_gpus()}
        for i, value in enumerate(graph.results):
            if i in there or is_string(value.type):
                continue
            op = value.op
            transfer(
                f"result {i} of '{graph.name}', {value.type}"
                f"{made_at(op.locations) if op is not None else ''}, is made on the host and "
                f"copied to {device.name.lstrip('/')}",
                'make it on the GPU, or run it in `with wf.transfer_guard("allow"):`',
            )

    def _result(self, made: Any, given: Sequence[Any], device: Device, number: int) -> Any:
        """A result as an array of the device, where it is unless the host made it, that shares no
        memory with an argument; strings stay on the host."""
        if not isinstance(made, np.ndarray):
            return made.copy() if any(made is a for a in given) else made.on(device)
        if made.dtype.hasobject:
            return made.copy() if any(made is a for a in given) else made
        # who runs whole plans alone does not wait for this module
        from weft.runtime.device.array import DeviceValue

        what = f"results of '{self._graph.name}'"
        return DeviceValue.of(contiguous(made), device, what, f"result {number}")


def _check_inputs(
    graph: Graph, device: Device, arrays: Sequence[Any], there: Sequence[bool]
) -> None:
    """FailedPreconditionError for an argument of a call that is copied, where none must be. there:
    whether the function reads it on `device`, or on the host."""
    gpu = device.name.lstrip("/")
    rows = zip(graph.arg_names, graph.args, arrays, there, strict=True)
    for name, arg, given, far in rows:
        if isinstance(given, np.ndarray):
            if not far:
                continue
            where = "a host array or number"
        elif far and given.device is device:
            continue
        else:
            where = f"an array of {given.device.name.lstrip('/')}"
        transfer(
            f"argument {name} of '{graph.name}', {arg.type}, is {where} that is copied "
            f"to {gpu if far else 'the host'}",
            f'wf.to_device(x, "{gpu}") copies it there, and may be used where transfers are '
            "disallowed"
            if far
            else "x.numpy() copies it to the host, and may be used where transfers are disallowed",
        )
