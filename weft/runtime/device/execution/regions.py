"""GPU regions of a graph on the dataflow executor: each is a plan for its GPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from weft.codegen.stacks import leaves_stacks
from weft.ir.device import DeviceSpec
from weft.ir.dtypes import MathMode
from weft.ir.errors import WeftError
from weft.ir.graph import Graph
from weft.ir.process import ForkLock
from weft.passes.manager import Pass
from weft.passes.pipelines import GPU
from weft.passes.sizes.specialize import is_symbolic, specialize_inputs
from weft.runtime.dataflow.host_ops.row import Array, Done
from weft.runtime.device.array import DeviceValue
from weft.runtime.device.backends.registry import gpu
from weft.runtime.device.execution.activation import KeptActivations
from weft.runtime.device.execution.executable import DeviceExecutable, compile_for_device
from weft.runtime.device.execution.size_plan import DeviceSizePlans
from weft.runtime.device.protocol import Device
from weft.runtime.native.size_plan import SizedGraph
from weft.runtime.resources.cancel import CancelToken
from weft.runtime.resources.variables import VariableState
from weft.runtime.step import StepSummary

Shapes = tuple[tuple[int, ...], ...]
#: For so many sets of sizes a region keeps its plan; then it begins anew.
MOST_SIZES = 64


class OnGpu:
    """The regions of one part of a step on a GPU (`dataflow.regions.RegionDevice`).

    find: the device, asked for at once; its errors are raised here. passes: of the regions.
    """

    def __init__(
        self,
        name: str,
        find: Callable[[], Device],
        passes: Sequence[Pass] = GPU,
        math_mode: MathMode = "ieee",
    ) -> None:
        self._name, self._find, self._passes, self._math_mode = name, find, passes, math_mode
        self.device = find()

    def region(
        self, graph: Graph, variables: Mapping[str, VariableState], back: Sequence[int]
    ) -> GpuRegion:
        """A region; its results `back` are to be on the host. Errors as `compile_for_device`."""

        def compiled(own: Graph) -> DeviceExecutable:
            return compile_for_device(
                own,
                variables,
                find=self._find,
                name=self._name,
                passes=self._passes,
                math_mode=self._math_mode,
            )

        types = tuple([a.type for a in graph.args])
        sized = SizedGraph(self._name, types, partial(specialize_inputs, graph))
        plans = DeviceSizePlans(sized, variables, self._find, self._passes, self._math_mode)
        return GpuRegion(graph, compiled, back, plans)

    def bring(self, array: Array | DeviceValue, what: str) -> DeviceValue:
        """Copy an array of the host or of another GPU to the device; ResourceExhaustedError."""
        if isinstance(array, DeviceValue):
            return array.on(self.device, what)
        return DeviceValue.of(array, self.device, f"values of '{self._name}'", what)

    def settle(self) -> None:
        """Wait until the device has done all that it was asked for. Its faults are raised here."""
        self.device.synchronize()


class GpuRegion:
    """A region on a GPU. compiled: makes a plan of a graph whose sizes are known; plans: for many
    sizes, from the second set of them on. Any number of threads may begin it at once."""

    def __init__(
        self,
        graph: Graph,
        compiled: Callable[[Graph], DeviceExecutable],
        back: Sequence[int],
        plans: DeviceSizePlans,
    ) -> None:
        self.graph, self._sizes = graph, plans
        self._compiled, self._back = compiled, tuple(back)
        self._keeps = leaves_stacks(graph.block)
        self._lock = ForkLock()
        self._plans: dict[Shapes, DeviceExecutable] = {}
        self._own = None if is_symbolic(graph.block) else compiled(graph)

    def start(self, arrays: list[Any], done: Done, cancel: CancelToken) -> None:
        """Ask the device for it; what must be read back is waited for."""
        try:
            # the elements of stacks that another region goes on with live as long as the step
            keep = _kept(cancel) if self._keeps else None
            made: Any = self._plan(arrays).call(arrays, keep, cancel)
            for i in self._back:
                made[i] = made[i].numpy()
        except WeftError as error:
            made = error
        done(made)

    def summary(self) -> StepSummary:
        """How many launches it makes; none where only the sizes that come decide."""
        return StepSummary(0 if self._own is None else len(self._own.plan.launches()))

    def describe(self) -> str:
        """How many launches it makes, for people."""
        own = self._own
        if own is None:
            return "launches planned for the sizes that come"
        count, kernels = len(own.plan.launches()), len(own.plan.kernels())
        return f"{count} launches of {kernels} kernels, {own.nbytes:,} bytes on the device"

    def _plan(self, arrays: Sequence[Any]) -> DeviceExecutable:
        if self._own is not None:
            return self._own
        shapes = tuple([tuple(a.shape) for a in arrays])
        found = self._plans.get(shapes)
        if found is None:
            made = self._new(shapes)
            with self._lock:
                if len(self._plans) >= MOST_SIZES:
                    self._plans.clear()
                found = self._plans.setdefault(shapes, made)
        return found

    def _new(self, shapes: Shapes) -> DeviceExecutable:
        made = (self._sizes.find(shapes) or self._sizes.make(shapes)) if self._plans else None
        return made or self._compiled(specialize_inputs(self.graph, shapes))


def _kept(cancel: CancelToken) -> KeptActivations:
    """What the step of the token keeps on the device."""
    found = cancel.kept(KeptActivations)
    if found is None:
        found = KeptActivations()
        cancel.keep(found)
    return found


def on_gpu(
    device: str, name: str, passes: Sequence[Pass] = GPU, math_mode: MathMode = "ieee"
) -> OnGpu | None:
    """For the part of a step on `device` (a full name): where its regions run; None for a cpu.
    Errors as `registry.gpu`."""
    spec = DeviceSpec.parse(device)
    if spec.kind != "gpu":
        return None
    number = spec.index or 0
    return OnGpu(name, lambda: gpu(number), passes, math_mode)
