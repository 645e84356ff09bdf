"""How arguments of the host reach a device that is still at the call before."""

from __future__ import annotations

from weft.ir.errors import ResourceExhaustedError
from weft.runtime.device.protocol import Array, Device, Mark, Memory

#: Larger ones wait for the call before: memory for them twice is dear.
MOST = 64 << 20


class Landing:
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


__all__ = ["Landing"]
