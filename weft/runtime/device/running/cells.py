"""What loops keep of their iterations for gradients, on a device: the elements of stacks.

A stack is the address of its top element, or 0: a header of `HEADER` bytes, the first eight of
which are the address of the element below, then the value. The host takes them one by one from
chunks, all of which are free again when the next step begins.
"""

from __future__ import annotations

from weft.ir.errors import ResourceExhaustedError
from weft.ir.graph import Operation
from weft.runtime.device.protocol import Device, Memory

HEADER = 16
_FIRST = 1 << 20
_ALIGNMENT = 16


class Cells:
    """The elements of the stacks of one step at a time. used: their bytes so far."""

    def __init__(self, name: str, device: Device) -> None:
        self._name, self._device = name, device
        self._chunks: list[Memory] = []
        self._free: list[Memory] = []
        self._next = self._end = 0
        self.used = 0

    def begin(self) -> None:
        """All elements are free."""
        self._free += self._chunks
        self._chunks = []
        self._next = self._end = self.used = 0

    def take(self, nbytes: int, op: Operation) -> int:
        """The address of an element with a value of `nbytes`, which `op` keeps.
        ResourceExhaustedError."""
        size = HEADER + (nbytes + _ALIGNMENT - 1) // _ALIGNMENT * _ALIGNMENT
        if self._next + size > self._end:
            try:
                self._grow(size)
            except ResourceExhaustedError as error:
                value = f"{op.operands[-1].type}, " if op.operands else ""
                raise ResourceExhaustedError(
                    f"{error.what}; an iteration keeps {value}{nbytes:,} bytes for the gradient "
                    f"of op '{op.name}', all before it {self.used:,} bytes",
                    hint=error.hint,
                    location=op.locations,
                ) from None
        place, self._next = self._next, self._next + size
        self.used += size
        return place

    def _grow(self, size: int) -> None:
        fits = next((k for k, chunk in enumerate(self._free) if chunk.nbytes >= size), None)
        if fits is None:
            wanted = max(_FIRST, size, self.used)
            what = f"what loops of '{self._name}' keep for gradients"
            chunk = self._device.allocate(wanted, what)
        else:
            chunk = self._free.pop(fits)
        self._chunks.append(chunk)
        self._next, self._end = chunk.address, chunk.address + chunk.nbytes
