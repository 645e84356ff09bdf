"""GPU regions of a graph on the dataflow executor: each is a plan for its GPU."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

from weft.codegen.stacks import leaves_stacks
from weft.ir.device import DeviceSpec
from weft.ir.dtypes import MathMode
from weft.ir.errors import WeftError
from weft.ir.graph import Graph
from weft.passes.manager import Pass, PassOptions
from weft.passes.pipelines import GPU
from weft.passes.sizes import is_symbolic
from weft.runtime.dataflow.host_dispatch import Start
from weft.runtime.dataflow.host_ops.row import Array, Done
from weft.runtime.device.array import DeviceValue
from weft.runtime.device.backends.registry import gpu
from weft.runtime.device.execution.activation import KeptActivations
from weft.runtime.device.execution.executable import DeviceExecutable
from weft.runtime.device.execution.size_plan import DeviceMaker, DeviceSizedStep
from weft.runtime.device.protocol import Device
from weft.runtime.recorder import AnyRecorder
from weft.runtime.resources.attempts import CancelToken
from weft.runtime.resources.variables import VariableState
from weft.runtime.sized_step import SizedGraph, SizedStep
from weft.runtime.step import StepSummary


class OnGpu:
    """The regions of one part of a step on a GPU (`dataflow.regions.RegionDevice`).

    find: the device, asked for at once; its errors are raised here. passes: of the regions.
    results_stay: as of `RegionDevice`.
    """

    def __init__(
        self,
        name: str,
        find: Callable[[], Device],
        passes: Sequence[Pass] = GPU,
        math_mode: MathMode = "ieee",
        *,
        results_stay: bool = False,
    ) -> None:
        self.results_stay = results_stay
        self._name, self._find, self._passes, self._math_mode = name, find, passes, math_mode
        self.device = find()

    def region(
        self,
        graph: Graph,
        variables: Mapping[str, VariableState],
        back: Sequence[int],
        options: PassOptions,
        donated: Sequence[int] = (),
    ) -> GpuRegion:
        """As of `RegionDevice`. Errors as `compile_for_device`."""
        maker = DeviceMaker(
            SizedGraph.of(graph, self._name),
            variables,
            self._find,
            self._passes,
            self._math_mode,
            options,
            donated,
        )
        if is_symbolic(graph.block):
            return GpuRegion(graph, SizedStep(maker), back, donated)
        made = maker.compiled(graph)
        return GpuRegion(graph, made, back, made.plan.donated.values())

    def bring(self, array: Array | DeviceValue, what: str) -> DeviceValue:
        """Copy an array of the host or of another GPU to the device; ResourceExhaustedError."""
        if isinstance(array, DeviceValue):
            return array.on(self.device, what)
        return DeviceValue.of(array, self.device, f"values of '{self._name}'", what)

    def settle(self) -> None:
        """Wait until the device has done all that it was asked for. Its faults are raised here."""
        self.device.synchronize()


class GpuRegion:
    """A region on a GPU. step: its plan, or what makes plans for the sizes that come. taken: as of
    `RemoteRegion`. Any number of threads may begin it at once."""

    def __init__(
        self,
        graph: Graph,
        step: DeviceExecutable | DeviceSizedStep,
        back: Sequence[int],
        taken: Collection[int],
    ) -> None:
        self.graph, self.step, self._back = graph, step, tuple(back)
        self.taken = frozenset(taken)
        self._keeps = leaves_stacks(graph.block)

    def recorded(self, recorder: AnyRecorder) -> Start:
        """`start`, with a recorder of its launches."""
        return partial(self.start, recorder=recorder)

    # one function: the frames of an error's traceback hold the locals of those that called them
    def start(
        self,
        arrays: list[Any],
        done: Done,
        cancel: CancelToken,
        recorder: AnyRecorder | None = None,
    ) -> None:
        """Ask the device for it; what must be read back is waited for. With a recorder of its
        launches each of them is."""
        step = self.step
        try:
            if step.kind == "sized":
                shapes = tuple([tuple(a.shape) for a in arrays])
                step = step.at(shapes) if recorder is None else step.for_trace(shapes)
            # the elements of stacks that another region goes on with live as long as the step
            keep = _kept(cancel) if self._keeps else None
            made: Any
            if recorder is None:
                made = step.call(arrays, keep, cancel)
            else:
                assert isinstance(step, DeviceExecutable)
                made = step.call_traced(arrays, recorder, keep, cancel)
            for i in self._back:
                made[i] = made[i].numpy()
        except WeftError as error:
            made = error
        done(made)

    def summary(self) -> StepSummary:
        """How many launches it makes; none where only the sizes that come decide."""
        step = self.step
        return StepSummary(0 if step.kind == "sized" else len(step.plan.launches()))

    def describe(self) -> str:
        """How many launches it makes, for people."""
        step = self.step
        if step.kind == "sized":
            return "launches planned for the sizes that come"
        count, kernels = len(step.plan.launches()), len(step.plan.kernels())
        return f"{count} launches of {kernels} kernels, {step.nbytes:,} bytes on the device"


def _kept(cancel: CancelToken) -> KeptActivations:
    """What the step of the token keeps on the device."""
    found = cancel.kept(KeptActivations)
    if found is None:
        found = KeptActivations()
        cancel.keep(found)
    return found


def on_gpu(
    device: str,
    name: str,
    passes: Sequence[Pass] = GPU,
    math_mode: MathMode = "ieee",
    *,
    results_stay: bool = False,
) -> OnGpu | None:
    """For the part of a step on `device` (a full name): where its regions run; None for a cpu.
    results_stay: as of `OnGpu`. Errors as `registry.gpu`."""
    spec = DeviceSpec.parse(device)
    if spec.kind != "gpu":
        return None
    number = spec.index or 0
    return OnGpu(name, lambda: gpu(number), passes, math_mode, results_stay=results_stay)
