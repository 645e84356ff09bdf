"""Memory of a sender that one peer reads where it lies: blocks of a memfd, lent until they are
given back.

The memfd is as large as it may become; pages are taken when they are first written, and given back
to the system when a time has passed in which fewer were needed.
"""

from __future__ import annotations

import mmap
import os
import threading
import time
from collections import deque
from typing import Any, Final

import numpy as np

from weft.comm.shared import Region
from weft.comm.wire import Array

#: Where arrays begin that a peer takes: multiples of this.
ALIGNMENT: Final = 64
_PAGE: Final = mmap.PAGESIZE
#: For so many seconds pages are kept that nobody needs: taking them anew costs 0.25 s per GB.
KEPT_S: Final = 5.0


class Block:
    """A piece of an arena, free again when nobody knows it any more: the arrays over it, and who it
    is lent to, do. It is finalised anywhere, so that takes no lock."""

    __slots__ = ("__array_interface__", "_freed", "_size", "arena", "start")

    def __init__(self, arena: Arena, start: int, size: int, freed: deque[tuple[int, int]]) -> None:
        self.arena, self.start, self._size, self._freed = arena, start, size, freed
        self.__array_interface__ = {
            "data": (arena.address + start, False),
            "shape": (size,),
            "typestr": "|u1",
            "version": 3,
        }

    def __del__(self) -> None:
        self._freed.append((self.start, self._size))

    def array(self, shape: tuple[int, ...], dtype: np.dtype[Any], nbytes: int) -> Array:
        """The block's first `nbytes` bytes as an array, which keeps it."""
        made: Array = np.asarray(self)[:nbytes].view(dtype).reshape(shape)
        return made


class Arena(Region):
    """What is lent to one peer, `size` bytes at most. Thread-safe.

    Nothing of it is used for anything else once the link is lost, as the peer may still read it.
    """

    def __init__(self, size: int) -> None:
        size = (size + _PAGE - 1) & -_PAGE
        super().__init__(size)
        self.address = int(self.bytes.ctypes.data)
        self._lock = threading.Lock()
        self._free: list[tuple[int, int]] = [(0, size)]  # (start, size), by start, never adjacent
        self._freed: deque[tuple[int, int]] = deque()  # what blocks left, not in `_free` yet
        self._held: dict[int, int] = {}  # where blocks begin and end
        self._touched = 0  # no page from here on was ever written, or is any more
        self._needed = 0  # the same of the time since `_since`
        self._since = time.monotonic()

    @property
    def held_bytes(self) -> int:
        """Bytes of the blocks that somebody knows."""
        with self._lock:
            self._reclaim()
            return sum(end - start for start, end in self._held.items())

    def take(self, size: int) -> Block | None:
        """A block of at least `size` bytes, the first that is free; None if there is none."""
        size = (max(size, 1) + _PAGE - 1) & -_PAGE
        with self._lock:
            self._reclaim()
            for i, (start, room) in enumerate(self._free):
                if room >= size:
                    rest = [(start + size, room - size)] if room > size else []
                    self._free[i : i + 1] = rest
                    self._held[start] = start + size
                    self._needed = max(self._needed, start + size)
                    self._touched = max(self._touched, start + size)
                    return Block(self, start, size, self._freed)
        return None

    def block_of(self, data: Array) -> Block | None:
        """The block that an array lies in, if that is one of this arena, and begins where a peer
        takes arrays from."""
        held: Any = data
        while isinstance(held, np.ndarray):
            held = held.base
        if not isinstance(held, Block) or held.arena is not self or data.ctypes.data % ALIGNMENT:
            return None
        return held

    def trim(self, now: float) -> None:
        """Give pages back that were not needed for KEPT_S."""
        with self._lock:
            if now - self._since < KEPT_S:
                return
            self._reclaim()
            if self._needed < self._touched:
                self._map.madvise(mmap.MADV_REMOVE, self._needed, self._touched - self._needed)
                self._touched = self._needed
            self._needed = max(self._held.values(), default=0)
            self._since = now

    def close(self) -> None:
        """Lend nothing more. The memory stays as long as a block of it."""
        with self._lock:
            self._free = []
            if self.descriptor >= 0:
                os.close(self.descriptor)
                self.descriptor = -1

    def _reclaim(self) -> None:
        """Under the lock. A block that is finalised meanwhile is for the next call."""
        if not self._freed:
            return
        while self._freed:
            start, size = self._freed.popleft()
            del self._held[start]
            if self.descriptor >= 0:
                self._free.append((start, size))
        self._free.sort()
        joined: list[tuple[int, int]] = []
        for start, size in self._free:
            if joined and sum(joined[-1]) == start:
                joined[-1] = joined[-1][0], joined[-1][1] + size
            else:
                joined.append((start, size))
        self._free = joined
