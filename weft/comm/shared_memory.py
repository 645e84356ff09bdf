"""Shared memory of processes on one host: rings for chunks, and arenas whose blocks are lent.

The sender writes a chunk into a slot of a ring (a memfd, of one link) and says so on the lane for
large tensors; the receiver copies it out and gives the slot back. A memfd has no name in any
folder, so nothing is left when a process is killed. The receiver opens it as
/proc/<pid>/fd/<number>, which the kernel allows to processes of the same user that see each other,
and first makes sure with a small one, whose contents the greeting tells, that it is the peer's.

An arena is memory of a sender that one peer reads where it lies: blocks of a memfd, lent until they
are given back. The memfd is as large as it may become; pages are taken when they are first written,
and given back to the system when a time has passed in which fewer were needed."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import secrets
import socket
import struct
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from weft.comm.errors import BadFrameError, LimitError
from weft.comm.limits import CHUNK_BYTES
from weft.comm.wire import Array

_NAME: Final = "weft-ring"
_LINK: Final = f"/memfd:{_NAME}"
_NONCE_BYTES: Final = 16
_SHORT: Final = (errno.ENOMEM, errno.EMFILE, errno.ENFILE)
_CREDENTIALS: Final = struct.Struct("3i")
_MOST_MAPPED: Final = 2  # a ring and an arena
AVAILABLE: Final = (
    sys.platform == "linux" and hasattr(os, "memfd_create") and hasattr(os, "eventfd")
)


def credentials(one: socket.socket) -> tuple[int, int]:
    """Process and user at the other end of a Unix socket."""
    found = one.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, user, _ = _CREDENTIALS.unpack(found)
    return pid, user


def _memfd(size: int) -> int:
    """A memfd of a size that nobody can change: a smaller one would be a SIGBUS for who maps it."""
    descriptor = os.memfd_create(_NAME, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, size)
    seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    return descriptor


class Region:
    """A memfd of this process, mapped. `close` gives both back."""

    def __init__(self, size: int) -> None:
        self.descriptor = _memfd(size)
        try:
            self._map = mmap.mmap(self.descriptor, size)
        except BaseException:
            os.close(self.descriptor)
            raise
        self.bytes: Array = np.frombuffer(self._map, np.uint8)

    def close(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1
            self.bytes = np.empty(0, np.uint8)
            self._map.close()


class Proof(Region):
    """A small memfd that a greeting names: a peer that can read it shares memory with us."""

    def __init__(self) -> None:
        super().__init__(_NONCE_BYTES)
        nonce = secrets.token_bytes(_NONCE_BYTES)
        self.bytes[:] = np.frombuffer(nonce, np.uint8)
        halves = (nonce[:8], nonce[8:])
        numbers = [int.from_bytes(half, "little") for half in halves]
        self.told: list[int] = [os.getpid(), self.descriptor, *numbers]


class Ring(Region):
    """The sender's end of a ring: slots of one chunk each. For the service thread alone."""

    def __init__(self, size: int) -> None:
        super().__init__(max(1, size // CHUNK_BYTES) * CHUNK_BYTES)
        self._free = list(range(self.bytes.nbytes // CHUNK_BYTES))
        self._taken: set[int] = set()

    def take(self) -> int | None:
        """A free slot, or None."""
        if not self._free:
            return None
        slot = self._free.pop()
        self._taken.add(slot)
        return slot

    def write(self, slot: int, chunk: Array) -> None:
        start = slot * CHUNK_BYTES
        np.copyto(self.bytes[start : start + chunk.nbytes], chunk)

    def give_back(self, slot: int) -> bool:
        """False for a slot that is not taken."""
        if slot not in self._taken:
            return False
        self._taken.remove(slot)
        self._free.append(slot)
        return True


class PeerMemory:
    """The receiver's end: the memory of one peer, mapped when it is first named."""

    def __init__(self, pid: int, limit: int) -> None:
        self.pid = pid
        self._limit = limit
        self._mapped: dict[int, Array] = {}  # by descriptor

    @staticmethod
    def of(told: Sequence[object], limit: int) -> PeerMemory | None:
        """The memory of the process whose greeting `told` this; None if it cannot be read here,
        or it is not that process's."""
        if not AVAILABLE or len(told) != 4 or not all(type(x) is int and x >= 0 for x in told):
            return None
        pid, descriptor, low, high = (int(x) for x in told if isinstance(x, int))
        if max(low, high) >= 1 << 64:
            return None
        try:
            mapped = _open(pid, descriptor, _NONCE_BYTES)
        except (OSError, ValueError):
            return None
        with mapped:
            nonce = low.to_bytes(8, "little") + high.to_bytes(8, "little")
            return PeerMemory(pid, limit) if mapped[:] == nonce else None

    def read(self, descriptor: int, slot: int, target: Array) -> None:
        """Copy a chunk out. BadFrameError for memory that is not a ring's."""
        data = self.memory(descriptor)
        start = slot * CHUNK_BYTES
        if start + target.nbytes > data.nbytes:
            raise BadFrameError("shared memory")
        np.copyto(target, data[start : start + target.nbytes])

    def memory(self, descriptor: int) -> Array:
        """All of a memfd of the peer's, to read; mapped as long as arrays over it are there.
        BadFrameError if it is none, LimitError if the system maps no more."""
        found = self._mapped.get(descriptor)
        if found is not None:
            return found
        try:
            mapped = _open(self.pid, descriptor, None, self._limit)
        except (OSError, ValueError) as error:
            if isinstance(error, OSError) and error.errno in _SHORT:
                raise LimitError(f"a peer's memory cannot be mapped: {error}") from None
            raise BadFrameError("shared memory") from error
        if len(self._mapped) >= _MOST_MAPPED:
            self._mapped.clear()
        made: Array = np.frombuffer(mapped, np.uint8)
        self._mapped[descriptor] = made
        return made

    def close(self) -> None:
        self._mapped.clear()


def _open(pid: int, descriptor: int, size: int | None, limit: int = 0) -> mmap.mmap:
    """Map a memfd of another process, to read. OSError or ValueError if it is anything else, can
    shrink, or is larger than `limit`."""
    path = f"/proc/{pid}/fd/{descriptor}"
    if not os.readlink(path).startswith(_LINK):  # opening a pipe or device may block, or act
        raise ValueError("not a ring")
    mine = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not fcntl.fcntl(mine, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK:
            raise ValueError("it can shrink")
        found = os.fstat(mine).st_size
        if found != size if size is not None else not 0 < found <= limit:
            raise ValueError("size")
        return mmap.mmap(mine, found, prot=mmap.PROT_READ)
    finally:
        os.close(mine)


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
    """Memory for what is lent to one peer, `size` bytes at most. Thread-safe.

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
