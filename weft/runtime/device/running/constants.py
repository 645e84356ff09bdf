"""The constants of a plan on devices: there as long as a frame that uses them is."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence

from weft.ir.process import ForkLock
from weft.runtime.device.planning.layout import offsets_of
from weft.runtime.device.protocol import Array, Device
from weft.runtime.device.running.short import allocate_for


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
    """Where plans with the same constants find those of a device: idle frames are given up where
    memory is short, and constants that no frame uses go with them."""

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


__all__ = ["Constants", "Shelf"]
