"""Variables whose newest value is on a device."""

from __future__ import annotations

from weft.runtime.device.protocol import Array, Device, Memory
from weft.runtime.variables import VariableState


class OnDevice:
    """A variable's value in memory of a device: `VariableState.resident`."""

    __slots__ = ("device", "memory", "state")

    def __init__(self, device: Device, memory: Memory, state: VariableState) -> None:
        self.device, self.memory, self.state = device, memory, state

    def fetch(self, target: Array) -> None:
        """Copy the value to an array of the host."""
        self.device.download(target, self.memory.address)


def on_device(state: VariableState, device: Device) -> OnDevice:
    """A variable's value on `device`, moved there if it is not, from another device directly. Its
    lock is held. A variable without a value gets memory that holds nothing yet, and still has no
    value."""
    held = state.resident
    if isinstance(held, OnDevice) and held.device is device:
        return held
    nbytes = state.dtype.itemsize
    for size in state.shape:
        nbytes *= size
    made = OnDevice(device, device.allocate(nbytes, f"variable '{state.name}'"), state)
    if isinstance(held, OnDevice):
        device.copy_from(held.device, made.memory.address, held.memory.address, nbytes)
        state.move(made)
        return made
    array = state.array
    if array is not None:
        device.upload(made.memory.address, array)
        device.synchronize()  # the array may change or go as soon as the value is resident
        state.move(made)
    return made
