"""The words of the device in which launches tell of indices out of bounds."""

from __future__ import annotations

import numpy as np

from weft.codegen.cuda.source.kernel import fault_of
from weft.codegen.faults import describe_fault
from weft.ir.errors import InvalidArgumentError
from weft.runtime.device.planning.plan import DevicePlan
from weft.runtime.device.protocol import Array, Device, Mark


class FaultFound(Exception):
    """An op met an index out of bounds: which fault words, and what is in them."""

    def __init__(self, number: int, words: Array) -> None:
        super().__init__(number)
        self.number, self.words = number, words

    def error(self, plan: DevicePlan) -> InvalidArgumentError:
        """The same for people. plan: with its ops (`DeviceExecutable.told`)."""
        number, position, index = fault_of(int(self.words[0]), int(self.words[1]))
        op = plan.faults[self.number][number]
        types = ", ".join(str(v.type) for v in op.operands)
        return InvalidArgumentError(
            f"op '{op.name}' ({types}): {describe_fault(op, position, index, cut=True)}",
            hint="indices must be in -n .. n-1 for an axis of size n; "
            "clip them with wf.clip if that is meant",
            location=op.locations,
        )


class FaultWords:
    """`nbytes` bytes at `address`, the words of `count` launches. Raises FaultFound."""

    def __init__(self, device: Device, address: int, nbytes: int, count: int) -> None:
        self._device, self._address = device, address
        self._nbytes, self._count = nbytes, count
        self._unseen = False  # whether launches that check were asked for since the last look
        self._done: Mark | None = None  # where the device is when it has done them

    def clear(self) -> None:
        """Nothing has happened yet."""
        self._unseen, self._done = False, None
        if self._count:
            self._device.clear(self._address, self._nbytes)

    def asked(self) -> None:
        """Launches that check have been asked for."""
        self._unseen, self._done = True, None

    def mark(self) -> None:
        """The next look need not wait for what is asked for from now on."""
        if self._unseen and self._done is None:
            self._done = self._device.mark()

    def look(self) -> None:
        """Wait for the launches that check, and look whether something has happened since the last
        look."""
        if self._unseen:
            words = np.empty(self._nbytes, np.uint8)
            self._device.download(words, self._address, self._done)
            self._unseen, self._done = False, None
            self.check(words)

    def check(self, raw: Array) -> None:
        """The same of a copy of the words."""
        if not self._count:
            return
        rows = raw.view(np.int64).reshape(self._count, -1)
        failed = np.flatnonzero(rows[:, 0])
        if len(failed):
            raise FaultFound(int(failed[0]), rows[failed[0]].copy())
