"""`DeviceExecutable`: a traced graph compiled for a device - passes, memory plan, launches, calls.

`TimedDevice` times launches one by one, by the device's own clock. `Watch` traces one run, with the
time of each launch and copy: each is waited for, so it takes as long as it does by itself, by the
device's own clock, or by the host's where the device is emulated. Nothing is recorded then, nothing
overlaps."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from weft.codegen.cuda.cubins.compile import describe_kernels, emit_ptx
from weft.codegen.cuda.numba_cuda.text import check_compilable
from weft.codegen.cuda.source.kernel import Launch
from weft.codegen.engines import engine
from weft.ir.dataclass import dataclass
from weft.ir.dtypes import MathMode
from weft.ir.errors import ResourceExhaustedError, WeftError
from weft.ir.graph import Graph, Operation
from weft.ir.process import ForkLock
from weft.passes.manager import Pass, PassOptions
from weft.passes.memory.block import MemoryPlan
from weft.passes.memory.plan_memory import variable_name
from weft.passes.pipelines import GPU
from weft.runtime.device.array import DeviceValue, OnDevice, check_there, give_back, on_device
from weft.runtime.device.execution.activation import Activation, Activations, KeptActivations, Shelf
from weft.runtime.device.execution.launches import FaultFound
from weft.runtime.device.execution.out_of_memory import AllocationError, let_go, named
from weft.runtime.device.execution.segments import Base
from weft.runtime.device.execution.step import DeviceStep
from weft.runtime.device.libraries.choice import OwnKernels
from weft.runtime.device.plan import DevicePlan, PlannedCopy, PlannedLaunch, describe_plan
from weft.runtime.device.planning.stored_plan import DeviceDetails, DeviceReport, Wanted
from weft.runtime.device.protocol import Array, Device, Prepared
from weft.runtime.native.kernel_times import (
    moved_bytes,
    outputs_of,
    taken_bytes,
    traced_names,
)
from weft.runtime.native.python_calls import logged
from weft.runtime.recorder import AnyRecorder, TraceEvent, TraceRecorder, clock
from weft.runtime.resources.attempts import CancelToken
from weft.runtime.resources.variables import VariableState, check_variables, in_order
from weft.runtime.step import PLAIN, RunContext

if TYPE_CHECKING:
    from weft.runtime.device.protocol import LibraryCall


class TimedDevice:
    """A device that notes how long each launch takes. seconds: for each launch that was prepared,
    in that order, those of its runs. All else is as on the device itself."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self.libraries = OwnKernels("launches are timed one by one")
        self._numbers: dict[int, int] = {}
        self._prepared: list[Prepared] = []  # so that no id is used again
        self.seconds: list[list[float]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._device, name)

    def prepare(self, launch: Launch, spans: Sequence[int]) -> Prepared:
        """As `Device.prepare`."""
        made = self._device.prepare(launch, spans)
        self._numbers[id(made)] = len(self.seconds)
        self._prepared.append(made)
        self.seconds.append([])
        return made

    def launch(self, prepared: Prepared) -> None:
        """As `Device.launch`, and waits. UnsupportedError if the device has no clock."""
        took = self._device.timed(partial(self._device.launch, prepared))
        self.seconds[self._numbers[id(prepared)]].append(took)


#: Of so many loops around a launch, the innermost, the iteration is told.
MOST_LOOPS = 4


class Watch:
    """Notes what a plan asks a device for in one run. told: the plan with its ops; memory: how its
    values are laid out."""

    def __init__(
        self, device: Device, recorder: AnyRecorder, told: DevicePlan, memory: MemoryPlan
    ) -> None:
        self._device, self._step, self._recorder = device, recorder.next_step(), recorder
        self._numbers = {id(launch): n for n, launch in enumerate(told.launches(), 1)}
        self._taken = taken_bytes(memory)
        self.rows: list[TraceEvent] = []
        #: What each event is of.
        self.nodes: list[PlannedLaunch | PlannedCopy | LibraryCall] = []

    def events(self) -> list[TraceEvent]:
        """What was noted."""
        return self.rows

    def __call__(
        self,
        node: PlannedLaunch | PlannedCopy | LibraryCall,
        loops: list[tuple[Operation, int]],
        work: Callable[[], None],
    ) -> None:
        """Do the work of a node, in iterations of loops, outermost first, and wait for it."""
        begin = clock()
        if self._device.emulated:
            work()
            end = clock()
        else:
            took = self._device.timed(work)
            end = clock()
            begin = max(begin, end - round(took * 1e9))
        op = None if isinstance(node, PlannedCopy) else node.op
        self.nodes.append(node)
        self.rows.append(
            TraceEvent(
                name=_name(node),
                kind="kernel",
                ops=() if op is None else traced_names(op),
                locations=() if op is None else op.locations,
                frame="/".join(loop.name for loop, _ in loops),
                iteration=tuple([i for _, i in loops])[-MOST_LOOPS:],
                begin_ns=begin,
                end_ns=end,
                thread=threading.get_ident(),
                dead=False,
                waits=False,
                step=self._step,
                nbytes=2 * node.source.nbytes if isinstance(node, PlannedCopy) else _bytes(op),
                outputs=() if op is None else tuple(outputs_of(op, self._taken)),
                device=self._recorder.device,
                region=self._recorder.region,
                kernels=(self._numbers[id(node)],) if id(node) in self._numbers else (),
            )
        )


def _name(node: PlannedLaunch | PlannedCopy | LibraryCall) -> str:
    if isinstance(node, PlannedLaunch):
        return node.launch.kernel.name
    return "copy" if isinstance(node, PlannedCopy) else f"{node.op.name} by a library"


def _bytes(op: Operation | None) -> int:
    return 0 if op is None else moved_bytes(op)


_log = logging.getLogger("weft.compile")
#: Seconds between two looks at what may end a step that waits for another.
LOOK = 0.05


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Times of a step, seconds of each repeat: of the launches by the device's clock, of asking for
    them by the host's; and how many launches there are."""

    device: tuple[float, ...]
    host: tuple[float, ...]
    launches: int


class DeviceExecutable(DeviceStep):
    """A plan for a device: run it with C-contiguous NumPy arrays and arrays on devices, get the
    list of NumPy results; or those on the device, by `call`.

    Variables stay on the device from one call to the next. The locks of the variables that it uses
    make a call's effect on them atomic; those that it only reads, on the device, other calls may
    read meanwhile. A call that meets an index out of bounds raises before it
    writes any variable that it would write after that.

    find: the device, asked for when the first call needs it; its errors are the call's. details:
    made when they are asked for.
    """

    def __init__(
        self,
        name: str,
        plan: DevicePlan,
        variables: Mapping[str, VariableState],
        find: Callable[[], Device],
        details: Callable[[], DeviceDetails],
        shelf: Shelf | None = None,
    ) -> None:
        self.name, self.plan = name, plan
        self._find, self._details = find, details
        self.activations = Activations(name, plan, shelf or Shelf())
        self._states: dict[Base, VariableState] = {
            ("variable", n): variables[n] for n in plan.variables
        }
        written = {variables[n] for n in plan.written}
        self._uses = in_order(self._states.values(), written)
        self._lock = ForkLock()
        self._device: Device | None = None

    def with_variables(self, variables: Mapping[str, VariableState]) -> DeviceExecutable:
        """The same step on other variables."""
        return DeviceExecutable(self.name, self.plan, variables, self._find, self._details)

    def states(self) -> Mapping[str, VariableState]:
        """The variables that it reads or writes, by name."""
        return {str(name): state for (_, name), state in self._states.items()}

    @property
    def graph(self) -> Graph:
        return self._details().graph

    @property
    def report(self) -> DeviceReport:
        return self._details().report

    def exact(self) -> DeviceDetails:
        """How the plan was made, for its own sizes; for people and errors."""
        return self._details()

    def told(self) -> DevicePlan:
        """The plan for people and errors, with its ops, which one from disk has not."""
        return self.exact().plan

    def device(self) -> Device:
        """The device; errors of finding it."""
        with self._lock:
            if self._device is None:
                self._device = self._find()
            return self._device

    @property
    def nbytes(self) -> int:
        """Bytes of the device that one call at a time takes, beside variables and constants."""
        small, inputs, count = self.activations.layout, len(self.plan.inputs), 0
        types = (*enumerate(self.plan.inputs), *enumerate(self.plan.results))
        for k, (i, t) in enumerate(types):
            held = small.inputs if k < inputs else {**small.results, **self.plan.donated}
            count += 0 if t is None or i in held else t.nbytes
        return small.nbytes + count

    def describe_device(self) -> str:
        """The device, or why there is none, in words."""
        try:
            found = self.device()
        except WeftError as error:
            return f"none: {error.what}"
        return f"{found.name}: {found.description}"

    def describe_program(self) -> str:
        """The launches in order, for people; then which library does which product."""
        plan = self.told()
        lines = [describe_plan(plan)]
        with suppress(WeftError):  # `describe_device` says why there is none
            lines += self.device().libraries.describe(plan.products())
        return "\n".join(lines)

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

    def run(self, inputs: list[Any], context: RunContext = PLAIN) -> list[Any]:
        """As of `Step`; the context ends a step where the host leads a loop or branch."""
        with context.token().within(context.timeout) as own, logged(context.log):
            if context.recorder is not None:
                return self._run_traced(inputs, context.recorder, own)
            return self._called(inputs, Activation.run, None, own)

    def call(
        self,
        inputs: Sequence[Array | DeviceValue],
        keep: KeptActivations | None = None,
        cancel: CancelToken | None = None,
    ) -> list[DeviceValue | None]:
        """Run one step whose results stay on the device. Returns before the device is done if no op
        checks indices and no loop or branch is the host's to lead; a kernel that fails then is told
        of by whoever next waits for the device, or asks it for something. The memory of arrays on
        the device that are inputs of `plan.donated` is the results' then: nobody else may use it,
        and `DeviceValue.taken` says whether it came to that. keep: is given what must
        live as long as the stacks among the results do; other calls with it, one at a time, go on
        there."""
        return self._called(inputs, Activation.start, keep, cancel)

    def run_noted(
        self, inputs: list[Any], recorder: TraceRecorder
    ) -> list[PlannedLaunch | PlannedCopy | LibraryCall]:
        """A traced run; the nodes of the plan (`told`) that its events are of, in order."""
        watch = self._watch(recorder)
        self._run_watched(inputs, watch, recorder, CancelToken())
        return watch.nodes

    def call_traced(
        self,
        inputs: Sequence[Array | DeviceValue],
        recorder: AnyRecorder,
        keep: KeptActivations | None = None,
        cancel: CancelToken | None = None,
    ) -> list[DeviceValue | None]:
        """As `call`, and note what took how long; all of it is waited for."""
        watch = self._watch(recorder)
        return self._run_watched(inputs, watch, recorder, cancel, keep, Activation.start)

    def _watch(self, recorder: AnyRecorder) -> Watch:
        return Watch(self.device(), recorder, self.told(), self.report.memory)

    def _run_traced(
        self, inputs: list[Array], recorder: TraceRecorder, cancel: CancelToken
    ) -> list[Any]:
        """Run one step, and note what took how long."""
        return self._run_watched(inputs, self._watch(recorder), recorder, cancel)

    def _run_watched(
        self,
        inputs: Sequence[Any],
        watch: Watch,
        recorder: AnyRecorder,
        cancel: CancelToken | None,
        keep: KeptActivations | None = None,
        how: Callable[[Activation, list[Any], dict[Base, int]], list[Any]] = Activation.run,
    ) -> list[Any]:
        keep = KeptActivations() if keep is None else keep
        if self not in keep:  # an activation of its own, whose launches know their ops
            keep[self] = self.activations.make(self.device(), self.told())

        def run(activation: Activation, given: list[Any], variables: dict[Base, int]) -> list[Any]:
            activation.launches.watch = watch
            return how(activation, given, variables)

        try:
            made = self._called(inputs, run, keep, cancel)
            self.device().synchronize()  # the activation may go now
            return made
        finally:
            recorder.add(watch)

    def _called(
        self,
        inputs: Sequence[Array | DeviceValue],
        run: Callable[[Activation, list[Any], dict[Base, int]], list[Any]],
        keep: KeptActivations | None,
        cancel: CancelToken | None,
    ) -> list[Any]:
        activation, there = None, list(inputs)
        try:
            device = self.device()
            there = [v.on(device) if isinstance(v, DeviceValue) else v for v in inputs]
            activation = self._activation(device, keep)
            activation.launches.cancel = cancel
            results = self._run(device, activation, there, run)
        except BaseException as error:
            give_back(there)
            if isinstance(error, FaultFound) and keep is None and activation is not None:
                self.activations.give(activation)
            activation, there, inputs = None, [], ()
            let_go(error)  # or whoever holds the error, a prompt for one, would hold the memory
            if isinstance(error, FaultFound):
                raise error.error(self.told()) from None
            if isinstance(error, AllocationError):
                raise named(error, self.exact) from None
            raise
        give_back(there)
        check_there(there, self.plan.donated.values())
        if keep is None:
            self.activations.give(activation)
        return results

    def _activation(self, device: Device, keep: KeptActivations | None) -> Activation:
        return (
            self.activations.take(device)
            if keep is None
            else self.activations.kept(device, keep, self)
        )

    def measure(self, inputs: list[Array], repeats: int = 20, *, records: bool = True) -> StepTimes:
        """Time the launches of a step, without its copies from and to the host. Variables change as
        in so many calls, and so do copies of donated inputs. records: as one recording; else launch
        by launch. UnsupportedError on an emulated device."""
        device = self.device()
        activation = self.activations.take(device)
        activation.launches.records = records
        with self._held_variables(device) as held:
            activation.send(inputs, _addresses(held))
            for _ in range(3):  # launched, recorded, replayed
                activation.work()
            device.synchronize()
            on_device, on_host = [], []
            for _ in range(repeats):
                began = time.perf_counter()
                activation.work()
                on_host.append(time.perf_counter() - began)
                device.synchronize()
                on_device.append(device.timed(activation.work))
        return StepTimes(tuple(on_device), tuple(on_host), len(self.plan.launches()))

    def launch_times(self, inputs: list[Array], rounds: int = 20) -> list[list[float]]:
        """For each launch of the plan, in order, the seconds on the device of its runs in so many
        calls, each waited for. Else as `measure`."""
        device = self.device()
        timed = TimedDevice(device)
        layout, constants = self.activations.layout, self.activations.constants(device)
        activation = Activation(self.name, self.plan, layout, cast(Device, timed), constants)
        activation.launches.records = False
        with self._held_variables(device) as held:
            activation.send(inputs, _addresses(held))
            activation.work()  # what is loaded when it first runs
            for seconds in timed.seconds:
                seconds.clear()
            for _ in range(rounds):
                activation.work()
            device.synchronize()
        return timed.seconds

    def _run(
        self,
        device: Device,
        activation: Activation,
        inputs: list[Any],
        run: Callable[[Activation, list[Any], dict[Base, int]], list[Any]],
    ) -> list[Any]:
        with self._held_variables(device, activation.launches.cancel) as held:
            results = run(activation, inputs, _addresses(held))
            for one in held.values():
                if one.state.resident is not one:
                    one.state.move(one)  # it has a value now
        return results

    @contextmanager
    def _held_variables(
        self, device: Device, cancel: CancelToken | None = None
    ) -> Iterator[dict[Base, OnDevice]]:
        """The variables, on the device and locked. There may be hundreds, in each call: plain
        loops take half of the time that an `ExitStack` and a function for each do."""
        taken: list[Callable[[], None]] = []
        try:
            for state, writes in self._uses:
                release = _acquire(state, writes, cancel)
                if not writes and not _is_on(state, device):  # only a writer may move it
                    release()
                    release = _acquire(state, True, cancel)
                taken.append(release)
            held = {}
            for base, state in self._states.items():
                one = state.resident
                if not (isinstance(one, OnDevice) and one.device is device):
                    one = self._moved(state, str(base[1]), device)
                held[base] = one
            yield held
        finally:
            for release in reversed(taken):
                release()

    def _moved(self, state: VariableState, name: str, device: Device) -> OnDevice:
        """Where a variable is on the device, from now on."""
        _, read = self.plan.variables[name]
        if read and not state.initialized:
            reads = (op for op in self.graph.ops if op.name == "read")
            own = (op for op in reads if variable_name(op.operands[0]) == name)
            try:
                state.buffer()  # raises
            except WeftError as error:
                raise error.at(next((op.locations for op in own), ())) from None
        try:
            return on_device(state, device)
        except ResourceExhaustedError as error:
            raise AllocationError(error, ("variable", name)) from None


def _acquire(state: VariableState, writes: bool, cancel: CancelToken | None) -> Callable[[], None]:
    """Take the lock, which another step may hold for long; what gives it back. Raises what ends the
    step meanwhile."""
    acquire, release = state.lock.ways(writes)
    while not acquire(timeout=-1 if cancel is None else LOOK):
        if cancel is not None and cancel.is_over:
            raise cancel.error(f"it waited for another step that uses variable '{state.name}'")
    return release


def _is_on(state: VariableState, device: Device) -> bool:
    held = state.resident
    return isinstance(held, OnDevice) and held.device is device


def _addresses(held: Mapping[Base, OnDevice]) -> dict[Base, int]:
    return {base: one.memory.address for base, one in held.items()}


def compile_for_device(
    graph: Graph,
    variables: Mapping[str, VariableState] | None = None,
    *,
    find: Callable[[], Device],
    name: str = "",
    passes: Sequence[Pass] = GPU,
    math_mode: MathMode = "ieee",
    ahead: bool = False,
    donated: Sequence[int] = (),
    kept: bool = True,
    options: PassOptions | None = None,
) -> DeviceExecutable:
    """Plan a traced graph of static shapes for the device that `find` gives when it is needed.
    math_mode: how libraries may compute products of f32. ahead: for another machine, which may have
    libraries that are not here. donated: inputs whose memory results may take (`DevicePlan`).
    kept: whether its plan is kept on disk. options: of the passes, the environment's if None.

    Needs no device itself. Raises UnsupportedError for an op or dtype without a GPU kernel, and
    what `check_variables` raises.
    """
    started, variables = time.perf_counter(), variables or {}
    check_variables(graph, variables)
    options = PassOptions.of_step(options, graph.name)
    label = name or graph.name
    wanted = Wanted(graph, passes, math_mode, donated, ahead)
    key = wanted.key(options, find) if kept else None
    found = None if key is None else wanted.load(key)
    if found is not None:
        _log.info("loaded the plan of %s for a GPU: %d launches, %.1f ms", label,
                  len(found[0].launches()), (time.perf_counter() - started) * 1e3)  # fmt: skip
        return DeviceExecutable(label, found[0], variables, find, found[1])
    made = wanted.details(options)
    plan = made.plan
    if engine() == "numba":
        for kernel in plan.kernels():
            check_compilable(kernel)
    _log.info("planned %s for a GPU: %d launches, %d kernels, %.1f ms; %s", label,
              len(plan.launches()), len(plan.kernels()), made.report.seconds * 1e3,
              made.report.memory.describe())  # fmt: skip
    if key is not None:
        wanted.store(key, label, plan)
    step = DeviceExecutable(label, plan, variables, find, lambda: made)
    if options.dumps is not None:
        from weft.runtime.device.execution.dumps import dump_launches  # for who dumps alone

        options.write_plan(step.describe_program)
        options.write_kernels(lambda folder: dump_launches(made, folder))
    return step
