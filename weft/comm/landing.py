"""Where large tensors land: the arrays that chunks are received into, and the room for them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from weft.comm import wire
from weft.comm.entries import Key
from weft.comm.errors import DuplicateKeyError, LimitError, WrongSenderError
from weft.comm.limits import CHUNK_BYTES
from weft.comm.link import Link
from weft.comm.wire import Array, TensorMeta

if TYPE_CHECKING:
    from weft.comm.endpoint import Endpoint


class Landing:
    """A tensor that a peer has offered; its array is made when it is granted."""

    __slots__ = (
        "_array", "_bytes", "key", "link", "meta", "number", "received", "reserved", "step",
    )  # fmt: skip

    def __init__(self, link: Link, number: int, step: int, key: int, meta: TensorMeta) -> None:
        self.link = link
        self.number = number  # the sender's, of the transfer
        self.step = step
        self.key: Key = (key, meta.iterations)
        self.meta = meta
        self.received = 0
        self.reserved = False  # whether it counts against the room
        self._array: Array | None = None
        self._bytes: Array | None = None

    def make(self, allocate: Callable[[tuple[int, ...], np.dtype[np.generic]], Array]) -> None:
        """Make the array."""
        if self.meta.dtype is None:
            self._array = self._bytes = np.empty(self.meta.nbytes, np.uint8)
        else:
            self._array = allocate(self.meta.shape, self.meta.dtype)
            self._bytes = self._array.reshape(-1).view(np.uint8)

    def part(self) -> Array:
        """Where the next chunk is read into: bytes of the array itself."""
        assert self._bytes is not None
        return self._bytes[self.received : self.received + CHUNK_BYTES]

    def advance(self, part: Array) -> bool:
        """`part` has been read; True if it was the last one."""
        self.received += part.nbytes
        return self.received == self.meta.nbytes

    def tensor(self) -> Array:
        """All of it, once it is there. BadFrameError for strings that are not well formed."""
        assert self._array is not None
        if self.meta.dtype is None:
            return wire.unpack_strings(self._array, self.meta.shape)
        return self._array


class Landings:
    """The offers and landings of one endpoint. Thread-safe: readers grant from their threads."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._lock = threading.Lock()
        self._granted: dict[tuple[int, int], Landing] = {}  # by the link's token and the number
        self._deferred: dict[tuple[int, int], Landing] = {}  # offered; oldest first
        self._room = endpoint.limits.landing_bytes

    @property
    def count(self) -> int:
        return len(self._granted) + len(self._deferred)

    def find(self, link: Link, number: int) -> Landing | None:
        """The landing that a chunk belongs to."""
        return self._granted.get((link.token, number))

    def offer(self, landing: Landing) -> None:
        """Grant now if somebody waits or there is room, else when either is so."""
        place = (landing.link.token, landing.number)
        with self._lock:
            if place in self._granted or place in self._deferred:
                raise DuplicateKeyError(f"transfer {landing.number} was offered already")
            self._deferred[place] = landing
        try:
            waited = self._endpoint.rendezvous.offer(
                landing.step, landing.key, lambda: self._grant(landing), landing.link.name
            )
        except BaseException:
            with self._lock:
                self._deferred.pop(place, None)
            raise
        if not waited:
            self._grant_early()

    def _grant_early(self) -> None:
        """Grant offers that nobody has asked for, oldest first, while there is room."""
        while True:
            with self._lock:
                fitting = (g for g in self._deferred.values() if g.meta.nbytes <= self._room)
                landing = next(fitting, None)
                if landing is None:
                    return
                del self._deferred[landing.link.token, landing.number]
                self._room -= landing.meta.nbytes
            if self._endpoint.rendezvous.withdraw(landing.step, landing.key, landing.link.name):
                landing.reserved = True
                self._grant(landing)
            else:  # a reader was first, and has granted it, or the step is over
                self._free(landing.meta.nbytes)

    def _grant(self, landing: Landing) -> None:
        place = (landing.link.token, landing.number)
        try:
            landing.make(self._endpoint.allocate)
        except MemoryError as error:
            if landing.reserved:
                self._free(landing.meta.nbytes)
            self._endpoint.abort(landing.step, error)
            return
        with self._lock:
            self._deferred.pop(place, None)
            if not landing.link.alive:
                self._room += landing.meta.nbytes if landing.reserved else 0
                return
            self._granted[place] = landing
        flags = 0 if landing.link.memory is None else wire.SHARED_FLAG
        frame = (wire.GRANT, flags, landing.step, 0, landing.number, b"", ())
        self._endpoint.connections.tell(landing.link, frame)

    def land(self, landing: Landing) -> None:
        """All chunks are there: give the tensor to its reader."""
        with self._lock:
            if self._granted.pop((landing.link.token, landing.number), None) is None:
                return  # dropped just now, and its room given back
        size = landing.meta.nbytes
        free = (lambda: self._taken(size)) if landing.reserved else None
        try:
            tensor = landing.tensor()
            self._endpoint.rendezvous.put(
                landing.step,
                landing.key,
                tensor,
                size=size,
                on_taken=free,
                source=landing.link.name,
            )
        except BaseException as error:
            if free is not None:
                free()
            if isinstance(error, WrongSenderError):  # nobody waits for this one
                raise
            self._endpoint.abort(landing.step, error)  # who waits for it must hear of that
            if not isinstance(error, (LimitError, MemoryError)):
                raise
            self._endpoint.rejections.count("over a limit", f": {error}")

    def _free(self, size: int) -> None:
        with self._lock:
            self._room += size

    def _taken(self, size: int) -> None:
        self._free(size)
        self._grant_early()

    def drop(self, over: Callable[[Landing], bool]) -> list[Landing]:
        """Forget the landings that are over; those whose senders do not know it yet."""
        with self._lock:
            dropped = []
            for table in (self._granted, self._deferred):
                ended = [(place, g) for place, g in table.items() if over(g)]
                for place, landing in ended:
                    del table[place]
                    if landing.reserved:
                        self._room += landing.meta.nbytes
                dropped += [landing for _, landing in ended]
        if dropped:
            self._grant_early()
        return dropped
