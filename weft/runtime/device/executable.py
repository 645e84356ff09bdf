"""From a traced graph to something that runs on a device: passes, memory plan, launches, calls."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, NoReturn

from weft.codegen.cuda.compile import describe_kernels, emit_ptx
from weft.codegen.cuda.faults import fault_of
from weft.codegen.cuda.lowerings import check_launches, fused_launches, launches_of
from weft.codegen.faults import describe_fault
from weft.codegen.steps.plan import check_supported
from weft.ir.errors import InvalidArgumentError, WeftError
from weft.ir.fork import ForkLock
from weft.ir.graph import Graph
from weft.passes.manager import Pass, PassOptions, PassReport, configure_logging, run_passes
from weft.passes.memory.plan_memory import MemoryPlan, plan_memory, variable_name
from weft.passes.pipelines import GPU
from weft.runtime.collector import collector_paused
from weft.runtime.device.describe import describe_plan
from weft.runtime.device.frame import FaultFound, Frame
from weft.runtime.device.layout import layout_of
from weft.runtime.device.plan import DevicePlan
from weft.runtime.device.planner import Lowering, device_plan
from weft.runtime.device.protocol import Array, Device, Memory
from weft.runtime.device.state import OnDevice, on_device
from weft.runtime.device.step import DeviceStep
from weft.runtime.variables import VariableState, check_variables

_log = logging.getLogger("weft.compile")
MOST_IDLE_FRAMES = 2
_LOWERING = Lowering(fused_launches, launches_of, check_launches)


@dataclass(frozen=True, slots=True)
class DeviceReport:
    """What planning did: the passes, where values are, and how long it took."""

    passes: tuple[PassReport, ...]
    memory: MemoryPlan
    seconds: float


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Seconds of each repeat: of the launches by the device's clock, of asking for them by the
    host's; and how many launches there are."""

    device: tuple[float, ...]
    host: tuple[float, ...]
    launches: int


class DeviceExecutable(DeviceStep):
    """A plan for a device: call it with C-contiguous NumPy arrays, get the list of NumPy results.

    Results that are tokens are None. Variables stay on the device from one call to the next. Safe
    to call from any number of threads at once; the locks of the variables that it uses make a
    call's effect on them atomic. A call that meets an index out of bounds raises before it writes
    any variable that it would write after that.

    find: the device, asked for when the first call needs it; its errors are the call's.
    """

    def __init__(
        self,
        name: str,
        graph: Graph,
        plan: DevicePlan,
        variables: Mapping[str, VariableState],
        find: Callable[[], Device],
        report: DeviceReport,
    ) -> None:
        self.name, self.graph, self.plan, self.report = name, graph, plan, report
        self._find = find
        self._layout = layout_of(plan)
        self._states = {n: variables[n] for n in plan.variables}
        # one order of locks for all steps, or two could wait for each other
        self._ordered = sorted(self._states.values(), key=id)
        self._lock = ForkLock()
        self._device: Device | None = None
        self._constants: Memory | None = None
        self._addresses: list[int] = []
        self._frames: list[Frame] = []

    def with_variables(self, variables: Mapping[str, VariableState]) -> DeviceExecutable:
        """The same step on other variables."""
        return DeviceExecutable(
            self.name, self.graph, self.plan, variables, self._find, self.report
        )

    def device(self) -> Device:
        """The device, with the plan's constants on it."""
        with self._lock:
            if self._device is None:
                found = self._find()
                self._constants, self._addresses = _constants(self.name, self.plan, found)
                self._device = found
                found.resident.may_ask(self)
            return self._device

    def drop_idle(self) -> None:
        """Give the memory back that only waits for the next call."""
        self._frames.clear()

    @property
    def nbytes(self) -> int:
        """Bytes of the device that one call at a time takes, beside variables and constants."""
        return self._layout.nbytes

    def describe_device(self) -> str:
        """The device, or why there is none, in words."""
        try:
            found = self.device()
        except WeftError as error:
            return f"none: {error.what}"
        return f"{found.name}: {found.description}"

    def describe_program(self) -> str:
        """The launches in order, for people."""
        return describe_plan(self.plan)

    def describe_kernels(self) -> list[str]:
        """What each kernel takes of the device, of those that are compiled already."""
        cc = self._cc()
        return [f"kernels, for sm_{cc[0]}{cc[1]}", *describe_kernels(self.plan.kernels(), cc)]

    def _cc(self) -> tuple[int, int]:
        """The device's compute capability; that of sm_90 if there is none here."""
        try:
            return self.device().cc
        except WeftError:
            return 9, 0

    def asm(self) -> str:
        """PTX of every kernel, each once, for the device; for sm_90 if there is none here."""
        cc, kernels = self._cc(), self.plan.kernels()
        return "\n".join(f"// {k.name}  {k.key}\n{emit_ptx(k, cc)}" for k in kernels)

    def __call__(self, inputs: list[Array]) -> list[Any]:
        """Run one step. `inputs` have exactly the types of the graph's (the caller checks)."""
        device = self.device()
        frame = self._take_frame(device)
        try:
            results = self._run(device, frame, inputs)
        except FaultFound as found:
            self._give_frame(frame)
            self._raise_fault(found)
        self._give_frame(frame)
        return results

    def measure(self, inputs: list[Array], repeats: int = 20, *, records: bool = True) -> StepTimes:
        """Time the launches of a step, without its copies from and to the host. Variables change as
        in so many calls. records: as one recording; else launch by launch. UnsupportedError on
        an emulated device."""
        device = self.device()
        frame = self._take_frame(device)
        frame.records = records
        with ExitStack() as stack:
            for state in self._ordered:
                stack.enter_context(state.lock)
            held = {name: self._held(name, device) for name in self._states}
            frame.send(inputs, {n: h.memory.address for n, h in held.items()})
            for _ in range(3):  # launched, recorded, replayed
                frame.work()
            device.synchronize()
            on_device, on_host = [], []
            for _ in range(repeats):
                began = time.perf_counter()
                frame.work()
                on_host.append(time.perf_counter() - began)
                device.synchronize()
                on_device.append(device.timed(frame.work))
        return StepTimes(tuple(on_device), tuple(on_host), len(self.plan.launches()))

    def _take_frame(self, device: Device) -> Frame:
        try:
            return self._frames.pop()
        except IndexError:
            return Frame(self.name, self.plan, self._layout, device, self._addresses)

    def _give_frame(self, frame: Frame) -> None:
        if len(self._frames) < MOST_IDLE_FRAMES:
            self._frames.append(frame)

    def _run(self, device: Device, frame: Frame, inputs: list[Array]) -> list[Any]:
        with ExitStack() as stack:
            for state in self._ordered:
                stack.enter_context(state.lock)
            held = {name: self._held(name, device) for name in self._states}
            results = frame.run(inputs, {n: h.memory.address for n, h in held.items()})
            for one in held.values():
                if one.state.resident is not one:
                    one.state.move(one)  # it has a value now
        return results

    def _held(self, name: str, device: Device) -> OnDevice:
        """Where a variable is on the device."""
        state, (_, read) = self._states[name], self.plan.variables[name]
        if read and not state.initialized:
            reads = (op for op in self.graph.ops if op.name == "read")
            own = (op for op in reads if variable_name(op.operands[0]) == name)
            try:
                state.buffer()  # raises
            except WeftError as error:
                raise error.at(next((op.locations for op in own), ())) from None
        return on_device(state, device)

    def _raise_fault(self, found: FaultFound) -> NoReturn:
        number, position, index = fault_of(int(found.words[0]), int(found.words[1]))
        op = self.plan.faults[found.number][number]
        types = ", ".join(str(v.type) for v in op.operands)
        raise InvalidArgumentError(
            f"op '{op.name}' ({types}): {describe_fault(op, position, index)}",
            hint="indices must be in -n .. n-1 for an axis of size n; "
            "clip them with wf.clip if that is meant",
            location=op.locations,
        )


def _constants(name: str, plan: DevicePlan, device: Device) -> tuple[Memory, list[int]]:
    """The plan's constants on the device, and where each is."""
    offsets, end = [], 0
    for array in plan.constants:
        offsets.append(end)
        end += math.ceil(array.nbytes / 256) * 256
    memory = device.allocate(end, f"constants of '{name}'")
    for offset, array in zip(offsets, plan.constants, strict=True):
        device.upload(memory.address + offset, array)
    device.synchronize()
    return memory, [memory.address + offset for offset in offsets]


def compile_for_device(
    graph: Graph,
    variables: Mapping[str, VariableState] | None = None,
    *,
    find: Callable[[], Device],
    name: str = "",
    passes: Sequence[Pass] = GPU,
) -> DeviceExecutable:
    """Plan a traced graph of static shapes for the device that `find` gives when it is needed.

    Needs no device itself. Raises UnsupportedError for an op or dtype without a GPU kernel, and
    what `check_variables` raises.
    """
    started, variables = time.perf_counter(), variables or {}
    check_variables(graph, variables)
    options = PassOptions.from_environment()
    configure_logging(options.log)
    with collector_paused():
        fused, reports = run_passes(graph, passes, options=options)
        check_supported(fused)
        memory = plan_memory(fused)
        plan = device_plan(fused, memory, _LOWERING)
    report = DeviceReport(tuple(reports), memory, time.perf_counter() - started)
    _log.info("planned %s for a GPU: %d launches, %d kernels, %.1f ms; %s", name or graph.name,
              len(plan.launches()), len(plan.kernels()), report.seconds * 1e3,
              memory.describe())  # fmt: skip
    return DeviceExecutable(name or graph.name, fused, plan, variables, find, report)
