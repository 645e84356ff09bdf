"""The words of the device in which launches tell of indices out of bounds."""

from __future__ import annotations

import numpy as np

from weft.runtime.device.protocol import Array, Device


class FaultFound(Exception):
    """An op met an index out of bounds: which fault words, and what is in them."""

    def __init__(self, number: int, words: Array) -> None:
        super().__init__(number)
        self.number, self.words = number, words


class FaultWords:
    """`nbytes` bytes at `address`, the words of `count` launches. Raises FaultFound."""

    def __init__(self, device: Device, address: int, nbytes: int, count: int) -> None:
        self._device, self._address = device, address
        self._nbytes, self._count = nbytes, count

    def clear(self) -> None:
        """Nothing has happened yet."""
        if self._count:
            self._device.clear(self._address, self._nbytes)

    def look(self) -> None:
        """Wait for what was asked for, and look whether something has happened."""
        words = np.zeros(self._nbytes, np.uint8)
        if len(words):
            self._device.download(words, self._address)
        self.check(words)

    def check(self, raw: Array) -> None:
        """The same of a copy of the words."""
        if not self._count:
            return
        rows = raw.view(np.int64).reshape(self._count, -1)
        failed = np.flatnonzero(rows[:, 0])
        if len(failed):
            raise FaultFound(int(failed[0]), rows[failed[0]].copy())
