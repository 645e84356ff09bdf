"""Functions that run on a GPU: `wf.compile(device="gpu:0")`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from weft.ir.device import is_local, local_gpu, named_device
from weft.ir.errors import UnsupportedError, WeftError
from weft.ir.graph import Graph
from weft.ir.source import caller_location
from weft.passes.manager import Pass
from weft.runtime.variables import VariableState

if TYPE_CHECKING:
    from weft.runtime.device.executable import DeviceExecutable
    from weft.runtime.device.protocol import Device


def gpu_number(device: str, donate: object) -> int | None:
    """The number of the GPU that `wf.compile(device=)` names, None for the CPU.

    UnsupportedError for a device of another task, and for `donate` with a GPU.
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
    if found is not None and donate not in ((), []):
        raise UnsupportedError(
            "wf.compile(donate=) is for the CPU: arrays of the host give a GPU no memory",
            hint="leave donate out; variables are updated in place on the GPU",
            location=caller_location(),
        )
    return found


def not_on_gpu(what: str) -> UnsupportedError:
    """The error for a question that only native code of the CPU answers."""
    return UnsupportedError(
        f".{what}() tells of native code, this function runs on a GPU",
        hint=".explain() shows its launches, .asm() their PTX; benchmarks/gpu.py measures",
        location=caller_location(),
    )


def compile_for_gpu(
    graph: Graph, variables: Mapping[str, VariableState], number: int, passes: Sequence[Pass]
) -> DeviceExecutable:
    """`graph` as a plan for GPU `number`, which is looked for when the plan is first called.
    Errors as `runtime.device.compile_for_device`."""
    # whoever has no GPU does not wait for these modules when weft is imported
    from weft.runtime.device.executable import compile_for_device
    from weft.runtime.device.registry import gpu

    def find() -> Device:
        try:
            return gpu(number)
        except WeftError as error:
            raise error.at(caller_location()) from None

    return compile_for_device(graph, variables, find=find, name=graph.name, passes=passes)
