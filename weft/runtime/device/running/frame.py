"""One step's memory on a device, and its launches with their arguments: what one call runs on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from weft.runtime.device.array import DeviceValue
from weft.runtime.device.planning.layout import ALIGNMENT, Layout
from weft.runtime.device.planning.plan import DevicePlan
from weft.runtime.device.protocol import Array, Device, Mark, Memory, bytes_of
from weft.runtime.device.running.fault_words import FaultFound, FaultWords
from weft.runtime.device.running.loops import Launches
from weft.runtime.device.running.pieces import Base

#: Small inputs and results of so many bytes together, and large ones of so many each, go through
#: memory that copies are fast for; others go from where they are.
STAGED = 64 << 20


class Frame:
    """Memory and launches for one call at a time of a plan on a device. A call may be asked for
    while the device is at the one before.

    constants: their addresses. Errors as `Device.allocate` and `Device.prepare`.
    """

    def __init__(
        self, name: str, plan: DevicePlan, layout: Layout, device: Device, constants: Sequence[int]
    ) -> None:
        self.name, self.plan, self.layout, self.device = name, plan, layout, device
        self.memory = device.allocate(layout.nbytes, f"a step of '{name}'")
        start = self.memory.address
        known: dict[Base, int] = {
            ("arena", 0): start + layout.arena, ("scratch", 0): start + layout.scratch,
            ("fault", 0): start + layout.faults,
        }  # fmt: skip
        for i, offset in layout.inputs.items():
            known["input", i] = start + offset
        for i, offset in layout.results.items():
            known["result", i] = start + offset
        for i, address in enumerate(constants):
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
        self._unstaged = False  # whether the last call's inputs are read from where they are
        self.launches = Launches(name, plan, device, known, self._faults)
        self._done = device.mark()  # of the last call that nobody has waited for

    # -- running ----------------------------------------------------------------------------------

    def run(
        self, inputs: Sequence[Array | DeviceValue], variables: Mapping[str, int]
    ) -> list[Array | None]:
        """One step: inputs as the plan wants them, the addresses of the variables -> the results.
        Raises FaultFound."""
        self.send(inputs, variables)
        self.work()
        made = self._fetch()
        self._sent = None
        return made

    def start(
        self, inputs: Sequence[Array | DeviceValue], variables: Mapping[str, int]
    ) -> list[DeviceValue | None]:
        """As `run`, with results that stay on the device, in memory that is theirs. Waits for the
        device only if ops check indices, or the host has to decide something."""
        device, layout, types = self.device, self.layout, self.plan.results
        what = f"results of '{self.name}'"
        large = {i: device.allocate(t.nbytes, what) for i, t in enumerate(types)
                 if t is not None and i not in layout.results}  # fmt: skip
        small = layout.faults - layout.input_end
        block = device.allocate(small, what) if layout.results else None
        self._send(inputs, variables, {("result", i): m.address for i, m in large.items()})
        self.work()
        if block is not None:
            device.copy(block.address, self.memory.address + layout.input_end, small)
        self._done = device.mark()
        self._faults.look()
        if self._sent is not None and self._unstaged:
            self._sent.wait()  # the caller's arrays may change from now on
        made: list[DeviceValue | None] = []
        for i, t in enumerate(types):
            memory = large.get(i, block)
            if t is None or memory is None:
                made.append(None)
                continue
            offset = 0 if i in large else layout.results[i] - layout.input_end
            address = memory.address + offset
            dtype, shape = t.dtype.numpy, t.static_shape
            made.append(DeviceValue(device, memory, dtype, shape, address, self._done))
        return made

    def send(self, inputs: Sequence[Array | DeviceValue], variables: Mapping[str, int]) -> None:
        """The first part of `run`: what the launches read, and where results go that do not stay
        on the device."""
        homes: dict[Base, int] = {
            ("result", i): self._home("result", i, t.nbytes)
            for i, t in enumerate(self.plan.results)
            if t is not None and i not in self.layout.results
        }
        self._send(inputs, variables, homes)

    def work(self) -> None:
        """The second part of `run`: the launches."""
        self.device.begin()
        self._faults.clear()
        self.launches.carry_out()

    # -- inputs -----------------------------------------------------------------------------------

    def _send(
        self,
        inputs: Sequence[Array | DeviceValue],
        variables: Mapping[str, int],
        results: Mapping[Base, int],
    ) -> None:
        places: dict[Base, int] = {("variable", n): at for n, at in variables.items()} | {**results}
        if self._sent is not None:
            self._sent.wait()  # the pinned memory may be written to
            self._sent = None
        self._unstaged = False
        self._send_small(inputs)
        for i, value in enumerate(inputs):
            if i not in self.layout.inputs:
                places["input", i] = self._large(i, value)
        if any(not isinstance(v, DeviceValue) for v in inputs):
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
                self.device.upload(start + offset, value, self._done)
                self._unstaged = True
            else:
                of_host = True
                host[offset : offset + value.nbytes] = bytes_of(value)
        if of_host and host is not None:  # with what is copied over below
            self.device.upload(start, host[: self.layout.input_end], self._done)
        self.device.begin()
        for i, offset in self.layout.inputs.items():
            value = inputs[i]
            if isinstance(value, DeviceValue):
                self.device.copy(start + offset, value.address, value.nbytes)

    def _large(self, i: int, value: Array | DeviceValue) -> int:
        """Where a large input is."""
        if isinstance(value, DeviceValue):
            if value.address % ALIGNMENT == 0:
                return value.address
            address = self._home("input", i, value.nbytes)  # others' memory, which kernels refuse
            self.device.copy(address, value.address, value.nbytes)
            return address
        address = self._home("input", i, value.nbytes)
        source = value
        if value.nbytes <= STAGED:
            source = self._staging("input", i, value.nbytes)
            source[:] = bytes_of(value)
        else:
            self._unstaged = True
        self.device.upload(address, source, self._done)
        return address

    def _home(self, kind: str, i: int, nbytes: int) -> int:
        held = self._homes.get((kind, i))
        if held is None:
            held = self._homes[kind, i] = self.device.allocate(nbytes, f"a step of '{self.name}'")
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
        address = self._homes["result", i].address
        if target.nbytes > STAGED:
            self.device.download(target, address)
            return
        staging = self._staging("result", i, target.nbytes)
        self.device.download(staging, address)
        bytes_of(target)[:] = staging


__all__ = ["FaultFound", "Frame"]
