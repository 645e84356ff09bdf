"""Copies between the memories of two devices."""

from __future__ import annotations

from typing import TypeVar

from weft.runtime.device.backends.recordings import Recordings
from weft.runtime.device.protocol import Device

D = TypeVar("D")


def in_order(a: D, b: D) -> tuple[D, D]:
    """Both, as everybody takes their locks: or two threads could wait for each other."""
    return (a, b) if id(a) <= id(b) else (b, a)


def through_host(to: Device, target: int, other: Device, source: int, nbytes: int) -> None:
    """`Device.copy_from` for devices that do not reach each other: by way of the host's memory,
    and the host waits for `other`. What `host` gave is not used again before it has been read."""
    held = to.host(nbytes)
    other.download(held, source)
    to.upload(target, held, to.mark())


class Peers(Recordings):
    """The part of `CudaDevice` that is about other GPUs of the machine."""

    def __init__(self) -> None:
        super().__init__()
        self._reached: dict[Peers, bool] = {}

    def copy_peer(self, other: Peers, target: int, source: int, nbytes: int) -> bool:
        """`Device.copy_from` without the host; False, and nothing is done, if that cannot be.

        The copy is work of this device, which waits for the other's so far; what the other is given
        from now on, memory that it gives back too, waits for the copy.
        """
        first, second = in_order(self, other)
        with first._lock, second._lock:
            if not self._reaches(other):
                return False
            before = other.mark()
            self._enter()
            self._after(self._work, before)
            if nbytes:
                places = target, self._context, source, other._context
                self._driver.call("cuMemcpyPeerAsync", *places, nbytes, self._work)
            copied = self.mark()
            other._enter()
            other._after(other._work, copied)
        return True

    def _reaches(self, other: Peers) -> bool:
        """Whether the device can read the other's memory. That of a pool is for another device to
        read once the pool says so."""
        if other not in self._reached:
            call, api = self._driver.call, self._driver.api
            reaches = bool(call("cuDeviceCanAccessPeer", self._device, other._device))
            if reaches and other._pool is not None:  # copies of other memory need no permission
                access = api.CUmemAccessDesc()
                access.location.type = api.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
                access.location.id = int(self._device)
                access.flags = api.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
                call("cuMemPoolSetAccess", other._pool, [access], 1)
            self._reached[other] = reaches
        return self._reached[other]
