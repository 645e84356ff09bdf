"""What a device does for a step: memory, copies, launches, a recording of launches.

Addresses are integers. Work is done in the order in which it was asked for; `synchronize` and
`download` wait for it, all else need not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from weft.codegen.cuda.kernel import Launch
from weft.runtime.device.blocks import Resident

Array = np.ndarray[Any, Any]


class Memory(Protocol):
    """`nbytes` bytes of a device at `address`, which is a multiple of 256. They are given back when
    the object dies."""

    @property
    def address(self) -> int: ...
    @property
    def nbytes(self) -> int: ...


class Prepared:
    """A launch that is ready but for its arguments: `words` has an i64 for each parameter. handle:
    the device's own."""

    __slots__ = ("handle", "words")

    def __init__(self, parameters: int) -> None:
        self.words = np.zeros(max(parameters, 1), np.int64)
        self.handle: Any = None


class Device(Protocol):
    """A device. name: "/gpu:0". description: what it is, for people. emulated: whether there is
    no such machine. cc: the compute capability that kernels are compiled for. resident: what has
    memory of it.

    Any thread may call any of these.
    """

    name: str
    description: str
    emulated: bool
    cc: tuple[int, int]
    resident: Resident

    def begin(self) -> None:
        """This thread is to ask for launches, copies on the device and the like, one after another:
        call this first, and again after anything else that may be about a device."""

    def allocate(self, nbytes: int, what: str) -> Memory:
        """Memory that is not cleared. ResourceExhaustedError, which says what for and what else is
        there, if there is not so much."""

    def host(self, nbytes: int) -> Array:
        """u8 memory of the host that copies to and from the device are fast for."""

    def upload(self, address: int, source: Array) -> None:
        """Copy a C-contiguous array of the host to the device. It must not change before the next
        `synchronize` or `download`, if it is memory that `host` gave."""

    def download(self, target: Array, address: int) -> None:
        """Wait for all that was asked for, and copy to a C-contiguous array of the host."""

    def copy(self, target: int, source: int, nbytes: int) -> None:
        """Copy on the device; what overlaps is the same place."""

    def clear(self, address: int, nbytes: int) -> None:
        """Set bytes to zero."""

    def put(self, address: int, value: int) -> None:
        """Store an i64."""

    def prepare(self, launch: Launch, spans: Sequence[int]) -> Prepared:
        """Make a launch ready, compile its kernel if that is not done. spans: for each parameter
        how many bytes the kernel may touch from its address on (0 for integers)."""

    def launch(self, prepared: Prepared) -> None:
        """Launch with the words as they are now."""

    def capture(self, work: Callable[[], None]) -> Callable[[], None] | None:
        """What does again all that `work` asks the device for, with the words as they are now, in
        one go; None if this device has nothing for that. `work` itself is not carried out."""

    def timed(self, work: Callable[[], None]) -> float:
        """The seconds for which the device does what `work` asks for, by its own clock.
        UnsupportedError if it has none."""

    def synchronize(self) -> None:
        """Wait for all that was asked for. Errors of kernels come out here."""
