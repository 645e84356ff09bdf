"""`Activation`: one step's memory on a device, and its launches with their arguments.

With it: staging buffers, in which arguments of the host arrive while the device is still at the
call before; the constants of a plan, there as long as an activation that uses them is; and the
activations of a plan, those that calls run on and those that wait for the next one."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress

import numpy as np

from weft.ir.errors import ResourceExhaustedError
from weft.ir.process import ForkLock
from weft.runtime.device.array import DeviceValue
from weft.runtime.device.execution.launches import FaultWords, Launches
from weft.runtime.device.execution.out_of_memory import allocate_for
from weft.runtime.device.execution.segments import Base
from weft.runtime.device.plan import ALIGNMENT, DevicePlan, Layout, layout_of, offsets_of
from weft.runtime.device.protocol import Array, Device, Mark, Memory, bytes_of

#: Larger ones wait for the call before: memory for them twice is dear.
MOST = 64 << 20


class StagingBuffer:
    """Memory in which arguments arrive while kernels read those of the call before; from there
    copies on the device bring them to where kernels find them. what: whose, for errors."""

    def __init__(self, device: Device, what: str) -> None:
        self._device, self._what = device, what
        # of each argument, with where the device is when it has copied the last one from there
        self._held: dict[int, tuple[Memory, Mark]] = {}

    def upload(self, key: int, address: int, source: Array) -> bool:
        """Copy an array of the host to the device, as `Device.upload` does, without waiting for
        what that was asked for. key: which argument it is, always of one size. False: there is no
        memory for that."""
        device = self._device
        if key in self._held:
            memory, left = self._held[key]
        elif source.nbytes > MOST:
            return False
        else:
            try:
                memory = device.allocate(source.nbytes, self._what, early=True, spare=True)
            except ResourceExhaustedError:  # the call is only slower without it
                return False
            left = device.sent()
        device.upload(memory.address, source, left)
        device.begin()
        device.copy(address, memory.address, source.nbytes)
        self._held[key] = memory, device.mark()
        return True

    def clear(self) -> None:
        """Give the memory up."""
        self._held.clear()


class Constants:
    """`arrays` on a device. addresses: where each is. Errors as `allocate_for`."""

    def __init__(self, name: str, arrays: Sequence[Array], device: Device) -> None:
        self.addresses: list[int] = []
        if not arrays:
            return
        offsets, end = offsets_of([array.nbytes for array in arrays])
        base = "constant", 0
        self._memory = allocate_for(device, end, f"constants of '{name}'", base)
        for offset, array in zip(offsets, arrays, strict=True):
            self.addresses.append(self._memory.address + offset)
            device.upload(self.addresses[-1], array)
        device.synchronize()


class Shelf:
    """Where plans with the same constants find those of a device: idle activations are given up
    where memory is short, and constants that no activation uses go with them."""

    def __init__(self) -> None:
        self._lock = ForkLock()
        self._there: weakref.WeakKeyDictionary[Device, weakref.ref[Constants]]
        self._there = weakref.WeakKeyDictionary()

    def on(self, device: Device, make: Callable[[], Constants]) -> Constants:
        """Those on the device; `make` brings them there if they are not."""
        with self._lock:
            held = self._there.get(device)
            found = None if held is None else held()
            if found is None:
                found = make()
                self._there[device] = weakref.ref(found)
            return found


#: Small inputs and results of so many bytes together, and large ones of so many each, go through
#: memory that copies are fast for; others go from where they are.
STAGED = 64 << 20


class Activation:
    """Memory and launches for one call at a time of a plan on a device. A call may be asked for
    while the device is at the one before.

    constants: there as long as this. Errors as `allocate_for` and `Device.prepare`.
    """

    def __init__(
        self, name: str, plan: DevicePlan, layout: Layout, device: Device, constants: Constants
    ) -> None:
        self.name, self.plan, self.layout, self.device = name, plan, layout, device
        self._constants = constants
        self.memory = allocate_for(device, layout.nbytes, f"a step of '{name}'", ("arena", 0))
        start = self.memory.address
        known: dict[Base, int] = {
            ("arena", 0): start + layout.arena, ("scratch", 0): start + layout.scratch,
            ("fault", 0): start + layout.faults,
        }  # fmt: skip
        for i, offset in layout.inputs.items():
            known["input", i] = start + offset
        for i, offset in layout.results.items():
            known["result", i] = start + offset
        for i, address in enumerate(constants.addresses):
            known["constant", i] = address
        self._faults = FaultWords(
            device, start + layout.faults, layout.result_end - layout.faults, len(plan.faults)
        )
        staged = layout.result_end <= STAGED
        self._host = device.host(layout.result_end) if staged else None
        # of large inputs from the host and results that go there, kept from call to call
        self._homes: dict[Base, Memory] = {}
        self._pinned: dict[Base, Array] = {}
        self._sent: Mark | None = None
        self.staging = StagingBuffer(device, f"arguments of '{name}'")
        self.launches = Launches(name, plan, device, known, self._faults)
        self._done = device.mark()  # of the last call that nobody has waited for
        self._over: Mark | None = None  # the same, if there was one
        self._ahead = False  # whether the device is still at that

    # -- running ----------------------------------------------------------------------------------

    def run(
        self, inputs: Sequence[Array | DeviceValue], variables: Mapping[Base, int]
    ) -> list[Array | None]:
        """One step: inputs as the plan wants them, the addresses of the variables -> the results.
        Raises FaultFound."""
        self.send(inputs, variables)
        self.work()
        made = self._fetch()
        self._sent = None
        return made

    def start(
        self, inputs: Sequence[Array | DeviceValue], variables: Mapping[Base, int]
    ) -> list[DeviceValue | None]:
        """As `run`, with results that stay on the device, in memory that is theirs, or that was a
        donated input's. Waits for the device only if ops check indices, or the host has to decide
        something."""
        device, layout, types = self.device, self.layout, self.plan.results
        what, taken = f"results of '{self.name}'", self._taken(inputs)
        homes: dict[int, tuple[Memory, int]] = {}
        for i, t in enumerate(types):
            if i in self.plan.donated:
                held = taken[self.plan.donated[i]]
                homes[i] = held.memory, held.address
            elif t is not None and i not in layout.results:
                memory = allocate_for(device, t.nbytes, what, ("result", i))
                homes[i] = memory, memory.address
        small = layout.faults - layout.input_end
        block = None
        if layout.results:
            block = allocate_for(device, small, what, ("results", 0))
        given = [taken.get(i, value) for i, value in enumerate(inputs)]
        self._send(given, variables, {("result", i): at for i, (_, at) in homes.items()})
        for value in taken.values():
            value.taken = True
        self.work()
        if block is not None:
            device.copy(block.address, self.memory.address + layout.input_end, small)
            for i, offset in layout.results.items():
                homes[i] = block, block.address + offset - layout.input_end
        self._done = self._over = device.mark()
        self._faults.look()
        made: list[DeviceValue | None] = []
        for i, t in enumerate(types):
            if t is None:
                made.append(None)
                continue
            memory, at = homes[i]
            made.append(DeviceValue(device, memory, t.dtype.numpy, t.static_shape, at, self._done))
        return made

    def send(self, inputs: Sequence[Array | DeviceValue], variables: Mapping[Base, int]) -> None:
        """The first part of `run`: what the launches read, and where results go that do not stay
        on the device. Of donated inputs there are copies."""
        donated = self.plan.donated
        homes: dict[Base, int] = {
            ("result", i): self._home("result", i, t.nbytes)
            for i, t in enumerate(self.plan.results)
            if t is not None and i not in self.layout.results and i not in donated
        }
        self._send(inputs, variables, homes, frozenset(donated.values()))

    def work(self) -> None:
        """The second part of `run`: the launches."""
        self.device.begin()
        self._faults.clear()
        self.launches.carry_out()

    # -- inputs -----------------------------------------------------------------------------------

    def _send(
        self,
        inputs: Sequence[Array | DeviceValue],
        variables: Mapping[Base, int],
        results: Mapping[Base, int],
        copied: Collection[int] = (),
    ) -> None:
        places: dict[Base, int] = {**variables, **results}
        if self._sent is not None:
            self._sent.wait()  # the pinned memory may be written to
            self._sent = None
        from_host = any(not isinstance(v, DeviceValue) for v in inputs)
        self._ahead = from_host and self._over is not None and not self._over.done()
        self._send_small(inputs)
        for i, value in enumerate(inputs):
            if i not in self.layout.inputs:
                places["input", i] = self._large(i, value, i in copied)
        if from_host:
            self._sent = self.device.sent()
        self.launches.point(places)

    def _send_small(self, inputs: Sequence[Array | DeviceValue]) -> None:
        start, host = self.memory.address, self._host
        of_host = False
        for i, offset in self.layout.inputs.items():
            value = inputs[i]
            if isinstance(value, DeviceValue):
                continue
            if host is None:
                self._upload(i, start + offset, value)
            else:
                of_host = True
                host[offset : offset + value.nbytes] = bytes_of(value)
        if of_host and host is not None:  # with what is copied over below
            self._upload(-1, start, host[: self.layout.input_end])
        self.device.begin()
        for i, offset in self.layout.inputs.items():
            value = inputs[i]
            if isinstance(value, DeviceValue):
                self.device.copy(start + offset, value.address, value.nbytes)

    def _taken(self, inputs: Sequence[Array | DeviceValue]) -> dict[int, DeviceValue]:
        """The donated inputs, whose memory results take, by number; those of the host copied."""
        held = {i: inputs[i] for i in self.plan.donated.values()}
        # others, who have let go of such memory, may be reading it yet
        free = not held or self.device.reclaim()
        what, taken = f"donated to '{self.name}'", {}
        for i, value in held.items():
            if isinstance(value, DeviceValue):
                taken[i] = value if free else value.copy()
            else:
                taken[i] = DeviceValue.of(value, self.device, what)
        return taken

    def _large(self, i: int, value: Array | DeviceValue, copied: bool) -> int:
        """Where a large input is. copied: not where others have it."""
        if isinstance(value, DeviceValue):
            if value.address % ALIGNMENT == 0 and not copied:
                return value.address
            address = self._home("input", i, value.nbytes)  # others' memory, which kernels refuse
            self.device.copy(address, value.address, value.nbytes)
            return address
        address = self._home("input", i, value.nbytes)
        source = value
        if value.nbytes <= STAGED:
            source = self._staging("input", i, value.nbytes)
            source[:] = bytes_of(value)
        self._upload(i, address, source)
        return address

    def _upload(self, key: int, address: int, source: Array) -> None:
        if not (self._ahead and self.staging.upload(key, address, source)):
            self.device.upload(address, source, self._done)

    def _home(self, kind: str, i: int, nbytes: int) -> int:
        held = self._homes.get((kind, i))
        if held is None:
            held = allocate_for(self.device, nbytes, f"a step of '{self.name}'", (kind, i))
            self._homes[kind, i] = held
            self._done = self.device.mark()  # copies to it come after that
        return held.address

    def _staging(self, kind: str, i: int, nbytes: int) -> Array:
        held = self._pinned.get((kind, i))
        if held is None:
            held = self._pinned[kind, i] = self.device.host(nbytes)
        return held

    # -- results ----------------------------------------------------------------------------------

    def _fetch(self) -> list[Array | None]:
        layout, start, host = self.layout, self.memory.address, self._host
        types = self.plan.results
        made = [None if t is None else np.empty(t.static_shape, t.dtype.numpy) for t in types]
        if host is not None:
            self.device.download(host[layout.input_end : layout.result_end],
                                 start + layout.input_end)  # fmt: skip
            self._faults.check(host[layout.faults : layout.result_end])
        else:
            self._faults.look()
            self.device.synchronize()  # nothing above waits where nothing comes back
        for i, array in enumerate(made):
            if array is None:
                continue
            if i not in layout.results:
                self._fetch_large(i, array)
            elif host is None:
                self.device.download(array, start + layout.results[i])
            else:
                offset = layout.results[i]
                bytes_of(array)[:] = host[offset : offset + array.nbytes]
        return made

    def _fetch_large(self, i: int, target: Array) -> None:
        donated = self.plan.donated
        address = self._homes[("input", donated[i]) if i in donated else ("result", i)].address
        if target.nbytes > STAGED:
            self.device.download(target, address)
            return
        staging = self._staging("result", i, target.nbytes)
        self.device.download(staging, address)
        bytes_of(target)[:] = staging


MOST_IDLE_ACTIVATIONS = 2


class KeptActivations(dict[object, Activation]):
    """What plans that are called several times in a step keep until it ends, by plan."""


class Activations:
    """The activations of a plan. shelf: where its constants are. A device asks it to let go what is
    idle (`blocks.Holder`). Any thread may call any of these."""

    def __init__(self, name: str, plan: DevicePlan, shelf: Shelf) -> None:
        self.layout = layout_of(plan)
        self._name, self._plan, self._shelf = name, plan, shelf
        self.idle: list[Activation] = []

    def make(self, device: Device, plan: DevicePlan | None = None) -> Activation:
        """One more. plan: the same, with what people are told."""
        constants = self.constants(device)
        return Activation(self._name, plan or self._plan, self.layout, device, constants)

    def constants(self, device: Device) -> Constants:
        """The plan's, on the device."""
        arrays = self._plan.constants
        return self._shelf.on(device, lambda: Constants(self._name, arrays, device))

    def take(self, device: Device) -> Activation:
        """An idle one, or one more."""
        with suppress(IndexError):
            return self.idle.pop()
        device.resident.may_ask(self)
        return self.make(device)

    def give(self, activation: Activation) -> None:
        """It is idle now."""
        if len(self.idle) < MOST_IDLE_ACTIVATIONS:
            self.idle.append(activation)

    def kept(self, device: Device, keep: KeptActivations, key: object) -> Activation:
        """That of a step that goes on where the plan was left."""
        activation = keep.get(key)
        if activation is None:
            activation = keep[key] = self.make(device)
            activation.launches.goes_on = True
        return activation

    def drop_spare(self) -> None:
        """Give up where arguments of idle activations arrive."""
        for activation in self.idle.copy():
            activation.staging.clear()

    def drop_idle(self) -> None:
        """Give up what only waits for the next call: activations with what is recorded of them, and
        the constants that no other activation uses."""
        self.idle.clear()
