"""Arrays on a device: what steps there take and give without a copy to the host.

Also the state of a variable whose newest value is on a device."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from contextlib import suppress
from typing import Any
from weakref import WeakSet

import numpy as np

from weft.ir.dtypes import as_dtype
from weft.ir.errors import FailedPreconditionError, ResourceExhaustedError, WeftError
from weft.ir.types import TensorType
from weft.runtime.device.protocol import Array, Device, Mark, Memory
from weft.runtime.resources.variables import VariableState


class Borrowed:
    """Memory of another library. owner: what holds it. stream: where the other uses it, by its
    handle."""

    __slots__ = ("address", "nbytes", "owner", "stream")

    def __init__(self, address: int, nbytes: int, owner: object, stream: int) -> None:
        self.address, self.nbytes, self.owner, self.stream = address, nbytes, owner, stream


class DeviceValue:
    """An array of NumPy's `dtype` and `shape`, C-contiguous at `address` of `memory`, which nobody
    writes to.

    ready: the point in the device's work at which it is there (None: all asked for so far). It is
    known before that: a step may take it, and waits for nothing. shown: whether others were told
    its address; shared: those that hold it for others (DLPack). taken: whether a step has written a
    result there (`DevicePlan.donated`): then it is no more.
    """

    __slots__ = (
        "__weakref__", "address", "device", "dtype", "memory", "nbytes", "ready", "shape", "shared",
        "shown", "taken",
    )  # fmt: skip

    def __init__(
        self,
        device: Device,
        memory: Memory,
        dtype: np.dtype[Any],
        shape: tuple[int, ...],
        address: int | None = None,
        ready: Mark | None = None,
    ) -> None:
        self.device, self.memory, self.dtype, self.shape = device, memory, dtype, shape
        self.address = memory.address if address is None else address
        self.ready, self.shown, self.taken = ready, False, False
        self.shared: WeakSet[object] | None = None
        nbytes = dtype.itemsize
        for size in shape:
            nbytes *= size
        self.nbytes = nbytes

    @classmethod
    def of(cls, array: Array, device: Device, what: str, which: str = "") -> DeviceValue:
        """A copy of a C-contiguous array of the host, which may change afterwards. what, which:
        what it is for, in case there is no memory (ResourceExhaustedError), and which of these."""
        memory = _allocated(device, what, array, which, early=True)
        device.upload(memory.address, array, device.sent())
        sent = device.sent()
        sent.wait()
        return cls(device, memory, array.dtype, array.shape, ready=sent)

    @property
    def type(self) -> TensorType:
        """`f32[2,3]`."""
        return TensorType(as_dtype(self.dtype), self.shape)

    def numpy(self) -> Array:
        """A copy on the host. Waits for the step that makes it, whose errors come out here."""
        made = np.empty(self.shape, self.dtype)
        self.device.download(made, self.address, self.ready)
        self.check()
        return made

    def check(self) -> None:
        """FailedPreconditionError if a call in another thread has taken it: what was read here may
        be anything."""
        if self.taken:
            raise FailedPreconditionError(
                f"an array {self.type} on {self.device.name.lstrip('/')} was donated to a call in "
                "another thread while it was read",
                hint="donate it when all that read it have returned",
            )

    def wait(self) -> None:
        """Wait until it is there. Errors as `numpy`."""
        if self.ready is not None:
            self.ready.wait()
        else:
            self.device.synchronize()

    def copy(self) -> DeviceValue:
        """The same in memory of its own."""
        device = self.device
        memory = _allocated(device, "copies of arrays", self)
        device.begin()
        device.copy(memory.address, self.address, self.nbytes)
        self.check()
        self.been_read()
        return DeviceValue(device, memory, self.dtype, self.shape, ready=device.mark())

    def on(self, device: Device, which: str = "") -> DeviceValue:
        """This array if it is on `device`, else a copy there; not by way of the host if the devices
        reach each other. which: as of `of`."""
        if device is self.device:
            return self
        memory = _allocated(device, f"an array from {self.device.name}", self, which)
        device.copy_from(self.device, memory.address, self.address, self.nbytes)
        self.check()
        self.been_read()
        return DeviceValue(device, memory, self.dtype, self.shape, ready=device.mark())

    def been_read(self) -> None:
        """Others may write to their memory, or use it for something else, when its device has done
        what it was asked for. Weft's own is given back in that order anyway."""
        if isinstance(self.memory, Borrowed):
            self.device.precede(self.memory.stream)
            self.device.keep(self)


def _allocated(
    device: Device, what: str, array: Array | DeviceValue, which: str = "", *, early: bool = False
) -> Memory:
    """Memory for an array; the error names its type."""
    try:
        return device.allocate(array.nbytes, what, early)
    except ResourceExhaustedError as error:
        made = TensorType(as_dtype(array.dtype), array.shape)
        raise ResourceExhaustedError(
            f"{error.what}; it is {f'{which}, ' if which else ''}{made}: {array.nbytes:,} bytes",
            hint=error.hint,
        ) from None


def give_back(inputs: Iterable[Array | DeviceValue]) -> None:
    """`DeviceValue.been_read` of the inputs of a step."""
    for value in inputs:
        if isinstance(value, DeviceValue):
            with suppress(WeftError):  # the step's own error says more
                value.been_read()


def check_there(inputs: Iterable[Array | DeviceValue], donated: Collection[int]) -> None:
    """`DeviceValue.check` of the inputs of a step, but for those that are donated to it."""
    for i, value in enumerate(inputs):
        if isinstance(value, DeviceValue) and value.taken and i not in donated:
            value.check()


__all__ = ["Borrowed", "DeviceValue", "check_there", "give_back"]


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
