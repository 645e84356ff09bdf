"""Zero-copy loans of large tensors: the sender keeps them in shared memory, and the receiver, a
process of the same host, reads them where they lie.

A tensor is one message that says where it is; its array is read-only, and when the last array over
it is gone the receiver gives it back a little later. Until then the sender uses that memory for
nothing else, also if the link is lost. If a peer holds so much that there is no room, tensors go
the other ways, so a receiver that keeps its arrays delays nobody."""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import struct
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from weft.comm import wire
from weft.comm.errors import BadFrameError, CommError, LimitError
from weft.comm.link import Link
from weft.comm.protocol import Incoming
from weft.comm.rendezvous import Key
from weft.comm.shared_memory import ALIGNMENT, AVAILABLE, Arena, Block
from weft.comm.wire import Array

if TYPE_CHECKING:
    from weft.comm.endpoint import Endpoint

_log = logging.getLogger("weft.comm")
#: What a message says of where its tensor is: the place, the descriptor, the bytes' CRC-32.
_PLACE: Final = struct.Struct("<QII")
#: So many numbers fit into the meta data of one message.
_MOST_NUMBERS: Final = 5000
#: What a RELEASE gives back: a slot of a ring, or what was lent.
SLOT, LENT = 0, 1


class Returns:
    """Loans to give back, as the last array over them is gone: their links and numbers. Objects are
    finalised in any thread, in the middle of anything: so this takes no lock."""

    def __init__(self) -> None:
        self.descriptor = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._gone: deque[tuple[Link, int]] = deque()

    def __del__(self) -> None:
        os.close(self.descriptor)  # not before the last lease: its number may be another file's

    def give(self, link: Link, number: int) -> None:
        first = not self._gone
        self._gone.append((link, number))
        if first:
            os.eventfd_write(self.descriptor, 1)

    def take(self) -> dict[Link, list[int]]:
        """All that there are; in any thread."""
        found: dict[Link, list[int]] = {}
        with contextlib.suppress(IndexError):
            while self._gone:
                link, number = self._gone.popleft()
                found.setdefault(link, []).append(number)
        return found

    def rest(self) -> None:
        """Do not wake the service thread until there is more."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self.descriptor)


class Lease:
    """The owner of a received array that lies in a peer's memory, which it keeps mapped."""

    __slots__ = ("__array_interface__", "_link", "_memory", "_number", "_returns")

    def __init__(
        self, memory: Array, start: int, size: int, returns: Returns, link: Link, number: int
    ) -> None:
        self._memory, self._returns, self._link, self._number = memory, returns, link, number
        self.__array_interface__ = {
            "data": (int(memory.ctypes.data) + start, True),
            "shape": (size,),
            "typestr": "|u1",
            "version": 3,
        }

    def __del__(self) -> None:
        self._returns.give(self._link, self._number)


class Lending:
    """The loans of one endpoint to its peers, and of them to it. Thread-safe."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._lent: dict[Link, dict[int, tuple[Block, Callable[[], None] | None]]] = {}
        self._returns = Returns() if AVAILABLE else None
        if self._returns is not None:
            endpoint.service.watch(self._returns.descriptor, self._woken)
            endpoint.service.every(endpoint.limits.heartbeat_s, self._look_after)

    @property
    def lent(self) -> int:
        """Tensors that peers have and have not given back."""
        return sum(map(len, list(self._lent.values())))

    # ---- the sender

    def room(self, link: Link, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array | None:
        """An array that the peer will read where it lies, if it is sent; None if that is not
        possible, or not worth it."""
        nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        if dtype.hasobject or nbytes <= self._endpoint.limits.eager_bytes:
            return None
        block = self._take(link, nbytes)
        return None if block is None else block.array(shape, dtype, nbytes)

    def lend(
        self,
        link: Link,
        step: int,
        key: Key,
        code: int,
        shape: tuple[int, ...],
        data: Array,
        released: Callable[[], None] | None,
    ) -> bool:
        """Send a tensor by saying where it is: where it lies in `room`, else in a copy. False if
        the peer cannot read it here, or has too much that it has not given back."""
        if not link.lends or code == wire.STRINGS:
            return False
        self._send_returns()
        arena = link.arena
        block = None if arena is None else arena.block_of(data)
        if block is not None:
            self._tell(link, step, key, (code, shape, data), block, released)
            return True
        block = self._take(link, data.nbytes)
        if block is None:
            return False
        copy = block.array(data.shape, data.dtype, data.nbytes)
        np.copyto(copy, data)
        self._tell(link, step, key, (code, shape, copy), block, None)
        if released is not None:
            released()
        return True

    def _tell(
        self,
        link: Link,
        step: int,
        key: Key,
        tensor: tuple[int, tuple[int, ...], Array],
        block: Block,
        released: Callable[[], None] | None,
    ) -> None:
        code, shape, data = tensor
        start = int(data.ctypes.data) - block.arena.address
        number = next(self._numbers)
        with self._lock:
            if not link.alive:
                raise link.lost()
            self._lent.setdefault(link, {})[number] = block, released
            descriptor = block.arena.descriptor  # there is none once the link is lost
        check = int.from_bytes(wire.checksum(data.data), "little") if link.checksums else 0
        place = np.frombuffer(_PLACE.pack(start, descriptor, check), np.uint8)
        meta = wire.pack_tensor_meta(code, shape, key[1], data.nbytes)
        frame = (wire.TENSOR, wire.SHARED_FLAG, step, key[0], number, meta, (place,))
        try:
            self._endpoint.deliver(link, frame)
        except CommError:
            with self._lock:
                self._lent.get(link, {}).pop(number, None)
            raise

    def _take(self, link: Link, nbytes: int) -> Block | None:
        if not link.lends or nbytes > self._endpoint.limits.lent_bytes:
            return None
        arena = link.arena
        if arena is None:
            with self._lock:
                if link.arena is None and link.alive:
                    try:
                        link.arena = Arena(self._endpoint.limits.lent_bytes)
                    except OSError as error:
                        _log.warning("no shared memory, tensors are copied: %s", error)
                        link.lends = False
                arena = link.arena
        return None if arena is None else arena.take(nbytes)

    def on_release(self, link: Link, message: Incoming) -> None:
        """The peer gives back what was lent."""
        numbers = wire.unpack_meta(message.meta)
        if not isinstance(numbers, list) or not all(type(x) is int for x in numbers):
            raise BadFrameError("release")
        with self._lock:
            held = self._lent.get(link, {})
            ended = [held.pop(number) for number in numbers if number in held]
        for _, released in ended:
            if released is not None:
                released()

    def on_ping(self, link: Link, message: Incoming) -> None:
        """The peer lives; it may say that it can read this process's memory."""
        message.verify()
        if message.header.flags & wire.SHARED_FLAG and not link.lends:
            link.lends = self._returns is not None
            if link.memory is not None:  # so that it knows at once, too
                self._endpoint.connections.sign(link)

    def close(self) -> None:
        """The endpoint's threads have ended: the last lease, or this, gives the descriptor back."""
        self._returns = None

    def lose(self, link: Link) -> None:
        """The link is gone. What is lent is not used for anything else."""
        with self._lock:
            ended = self._lent.pop(link, {})
            arena, link.arena = link.arena, None
        if arena is not None:
            arena.close()
        for _, released in ended.values():
            if released is not None:
                released()

    def _look_after(self) -> None:
        self._send_returns()
        now = time.monotonic()
        for link in self._endpoint.peers.links():
            if link.arena is not None:
                link.arena.trim(now)

    # ---- the receiver

    def on_lent(self, link: Link, message: Incoming) -> None:
        """A tensor that lies in the peer's memory."""
        self._send_returns()
        header = message.header
        message.verify()
        meta = wire.unpack_tensor_meta(bytes(message.meta))
        if meta.dtype is None or len(message.inline) != _PLACE.size or link.memory is None:
            raise BadFrameError("shared memory")
        start, descriptor, check = _PLACE.unpack(message.inline)
        if meta.nbytes > self._endpoint.limits.tensor_bytes:
            raise BadFrameError("tensor larger than the limit")
        assert self._returns is not None
        try:
            memory = link.memory.memory(descriptor)
        except LimitError:  # its step ends, and the sender may have its memory
            self._returns.give(link, header.offset)
            raise
        if start + meta.nbytes > memory.nbytes or start % ALIGNMENT:
            raise BadFrameError("shared memory")
        part = memory[start : start + meta.nbytes]
        if header.flags & wire.CHECKSUM_FLAG and wire.checksum(part.data) != check.to_bytes(
            4, "little"
        ):
            raise BadFrameError("wrong checksum")
        lease = Lease(memory, start, meta.nbytes, self._returns, link, header.offset)
        array = np.asarray(lease).view(meta.dtype).reshape(meta.shape)
        del lease
        key = header.key, meta.iterations
        if not self._endpoint.rendezvous.put(header.step, key, array, source=link.name):
            self._endpoint.rejections.count("late", expected=True)

    def _woken(self) -> None:
        assert self._returns is not None
        self._returns.rest()
        self._send_returns()

    def _send_returns(self) -> None:
        """Tell the peers what is free again. Where large tensors come and go it is not left to the
        service thread, which may have to wait for its turn while memory is taken."""
        returns = self._returns
        if returns is None:
            return
        for link, numbers in returns.take().items():
            for i in range(0, len(numbers), _MOST_NUMBERS):
                meta = wire.pack_meta(numbers[i : i + _MOST_NUMBERS])
                self._endpoint.connections.tell(link, (wire.RELEASE, 0, 0, LENT, 0, meta, ()))
