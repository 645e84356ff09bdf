"""Transfers of large tensors: the sender offers, the receiver grants, then the bytes come in chunks
straight into the array that they are for; or, between processes of one host, in zero-copy loans.

An offer is granted when somebody asks for the tensor, whatever else has been received; or earlier,
while `Limits.landing_bytes` has room. So a reader never waits for memory that other tensors hold,
and the rest stays with its senders. Chunks go over a lane of their own, so that no control message
waits behind them.

A loan is a tensor that its sender keeps in shared memory, and the receiver reads where it lies. It
is one message that says where it is; its array is read-only, and when the last array over it is
gone the receiver says so, by and by. Until then the sender uses that memory for nothing else, also
if the link is lost. If a peer holds so much that there is no room, tensors go the other ways, so
whoever keeps arrays for ever holds nobody up."""

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
import zmq

from weft.comm import wire
from weft.comm.errors import (
    BadFrameError,
    CommError,
    DuplicateKeyError,
    LimitError,
    StepOverError,
    WrongSenderError,
)
from weft.comm.limits import CHUNK_BYTES
from weft.comm.link import Link, Socket
from weft.comm.protocol import Incoming
from weft.comm.rendezvous import MASTER_SHIFT, Key
from weft.comm.shared_memory import ALIGNMENT, AVAILABLE, Arena, Block, Ring
from weft.comm.wire import Array, TensorMeta

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
        with self._lock:
            link.traffic.lent_bytes += data.nbytes

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
        header = message.header
        if header.key == wire.ECHO:
            link.traffic.answered(header.offset)
            return
        if header.offset:
            answer = (wire.PING, 0, 0, wire.ECHO, header.offset, b"", ())
            self._endpoint.connections.tell(link, answer)
        if header.flags & wire.SHARED_FLAG and not link.lends:
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
        link.traffic.shared_bytes += meta.nbytes
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


class ReceiveBuffer:
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


class ReceiveBuffers:
    """The offers to one endpoint and its receive buffers. Thread-safe: readers grant from their
    threads."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._lock = threading.Lock()
        self._granted: dict[
            tuple[int, int], ReceiveBuffer
        ] = {}  # by the link's token and the number
        self._deferred: dict[tuple[int, int], ReceiveBuffer] = {}  # offered; oldest first
        self._room = endpoint.limits.landing_bytes

    @property
    def count(self) -> int:
        return len(self._granted) + len(self._deferred)

    def find(self, link: Link, number: int) -> ReceiveBuffer | None:
        """The landing that a chunk belongs to."""
        return self._granted.get((link.token, number))

    def offer(self, landing: ReceiveBuffer) -> None:
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

    def _grant(self, landing: ReceiveBuffer) -> None:
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

    def land(self, landing: ReceiveBuffer) -> None:
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

    def drop(self, over: Callable[[ReceiveBuffer], bool]) -> list[ReceiveBuffer]:
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


THEIRS, MINE = 0, 1  # whose transfer a CANCEL names, seen from its sender


class Outgoing:
    """A tensor that is offered, or on its way. `data` is read until `end`, and not copied."""

    __slots__ = ("_released", "data", "link", "number", "sent", "shared", "step")

    def __init__(
        self,
        link: Link,
        number: int,
        step: int,
        data: Array,
        released: Callable[[], None] | None,
    ) -> None:
        self.link = link
        self.number = number
        self.step = step
        self.data = data
        self.sent = 0
        self.shared = False  # whether the peer reads it from shared memory
        self._released = released

    @property
    def tracked(self) -> bool:
        return self._released is not None

    def end(self) -> None:
        """Nothing reads `data` any more."""
        if self._released is not None:
            self._released()


class Transfers:
    """The large tensors of one endpoint, both ways."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._outgoing: dict[int, Outgoing] = {}
        self._queues: dict[Link, deque[Outgoing]] = {}  # granted; of the service thread
        self._landings = ReceiveBuffers(endpoint)
        self.lending = Lending(endpoint)

    @property
    def outgoing(self) -> int:
        """Tensors that are offered or on their way to peers."""
        return len(self._outgoing)

    @property
    def incoming(self) -> int:
        """Tensors that are on their way to this task."""
        return self._landings.count

    # ---- sending

    def offer(
        self,
        link: Link,
        step: int,
        key: Key,
        code: int,
        shape: tuple[int, ...],
        data: Array,
        released: Callable[[], None] | None,
        lend: bool,
    ) -> None:
        """Lend `data`, if that is allowed and possible, else offer it: it is read until the peer
        has it, the step ends or the link is lost."""
        if lend and self.lending.lend(link, step, key, code, shape, data, released):
            return
        number = next(self._numbers)
        outgoing = Outgoing(link, number, step, data, released)
        with self._lock:
            self._outgoing[number] = outgoing
        meta = wire.pack_tensor_meta(code, shape, key[1], data.nbytes)
        try:
            self._endpoint.deliver(link, (wire.OFFER, 0, step, key[0], number, meta, ()))
        except CommError:
            self._end(outgoing)
            raise

    def _end(self, outgoing: Outgoing) -> None:
        with self._lock:
            known = self._outgoing.pop(outgoing.number, None)
        if known is not None:
            outgoing.end()

    def on_grant(self, link: Link, message: Incoming) -> None:
        message.verify()
        outgoing = self._outgoing.get(message.header.offset)
        if outgoing is None or outgoing.link is not link:
            self._endpoint.rejections.count("late", expected=True)
            return
        outgoing.shared = bool(message.header.flags & wire.SHARED_FLAG)
        self._endpoint.service.post(lambda: self._start(outgoing))

    def _start(self, outgoing: Outgoing) -> None:
        """In the service thread, as all that follows up to `_finish`."""
        link = outgoing.link
        if not link.alive:
            return
        if link.bulk is None:
            self._endpoint.connections.open_bulk(link)
        if outgoing.shared and link.ring is None:
            try:
                link.ring = Ring(self._endpoint.limits.shared_bytes)
            except OSError as error:
                _log.warning("no shared memory, tensors go over the connection: %s", error)
        self._queues.setdefault(link, deque()).append(outgoing)
        self._pump(link)

    def _pump(self, link: Link) -> None:
        """Send chunks until the lane is full; then again when it has room."""
        queue, bulk = self._queues.get(link), link.bulk
        if not queue or bulk is None or not link.alive:
            return
        while queue:
            outgoing = queue[0]
            if outgoing.number not in self._outgoing:  # ended meanwhile
                queue.popleft()
            elif not self._send_next(link, bulk, outgoing):
                return
            elif outgoing.sent == outgoing.data.nbytes:
                queue.popleft()
        self._endpoint.service.unwatch(bulk)

    def _send_next(self, link: Link, bulk: Socket, outgoing: Outgoing) -> bool:
        """Send one chunk, or say when to go on: when the lane has room, or (`on_release`) the peer
        has read what is in shared memory."""
        ring = link.ring
        if not outgoing.shared or ring is None:
            sent = self._send_chunk(link, bulk, outgoing, b"")
        else:
            slot = ring.take()
            if slot is None:
                self._endpoint.service.unwatch(bulk)
                return False
            ring.write(slot, outgoing.data[outgoing.sent : outgoing.sent + CHUNK_BYTES])
            sent = self._send_chunk(link, bulk, outgoing, wire.pack_meta([ring.descriptor, slot]))
            if not sent:
                ring.give_back(slot)
        if not sent:
            self._endpoint.service.watch(bulk, lambda: self._pump(link), zmq.POLLOUT)
        return sent

    def _send_chunk(self, link: Link, bulk: Socket, outgoing: Outgoing, place: bytes) -> bool:
        """Send the next chunk, or where it is in shared memory. False if the lane is full."""
        start = outgoing.sent
        chunk = outgoing.data.data[start : start + CHUNK_BYTES]
        last = start + chunk.nbytes == outgoing.data.nbytes
        flags = wire.CHECKSUM_FLAG if link.checksums else 0
        flags |= wire.SHARED_FLAG if place else 0
        number = outgoing.number
        head = link.header(wire.BULK, wire.CHUNK, flags, number, 0, start, len(place)) + place
        if link.checksums:
            head += wire.checksum(head, chunk)
        tracker = None
        try:
            bulk.send(head, zmq.DONTWAIT if place else zmq.DONTWAIT | zmq.SNDMORE)
        except zmq.Again:
            return False
        if not place:
            tracker = bulk.send(chunk, copy=False, track=last and outgoing.tracked)
        link.count(wire.BULK)
        link.traffic.chunk(len(head), chunk.nbytes, shared=bool(place))
        outgoing.sent += chunk.nbytes
        if last:
            self._finish(outgoing, tracker)
        return True

    def _finish(self, outgoing: Outgoing, tracker: zmq.MessageTracker | None) -> None:
        """libzmq reads the array until its last chunk is written to the connection."""
        if tracker is None or not outgoing.tracked:
            self._end(outgoing)
            return

        def done() -> bool:
            if not tracker.done and outgoing.number in self._outgoing:
                return False
            self._end(outgoing)
            return True

        self._endpoint.service.retry(done)

    # ---- receiving

    def on_offer(self, link: Link, message: Incoming) -> None:
        header = message.header
        message.verify()
        meta = wire.unpack_tensor_meta(bytes(message.meta))
        if meta.nbytes > self._endpoint.limits.tensor_bytes:
            raise BadFrameError("tensor larger than the limit")
        landing = ReceiveBuffer(link, header.offset, header.step, header.key, meta)
        try:
            self._landings.offer(landing)
        except (StepOverError, LimitError, WrongSenderError):
            self._cancel(link, THEIRS, header.offset)
            raise

    def on_chunk(self, link: Link, message: Incoming) -> None:
        header = message.header
        shared = bool(header.flags & wire.SHARED_FLAG)
        ring, slot = self._place(message) if shared else (-1, -1)
        landing = self._landings.find(link, header.step)
        if landing is None:  # its step has ended; the sender needs the slot for others
            self._endpoint.rejections.count("late", expected=True)
            if shared:
                self._release(link, slot)
            return
        if header.offset != landing.received:
            raise BadFrameError("offset")
        part = landing.part()
        if not shared:
            message.read_into(part)
        elif link.memory is None:
            raise BadFrameError("shared memory")
        else:
            link.memory.read(ring, slot, part)
            link.traffic.shared_bytes += part.nbytes
        message.verify(part)
        if shared:
            self._release(link, slot)
        if landing.advance(part):
            self._landings.land(landing)

    def _release(self, link: Link, slot: int) -> None:
        self._endpoint.connections.tell(link, (wire.RELEASE, 0, 0, SLOT, slot, b"", ()))

    def on_cancel(self, link: Link, message: Incoming) -> None:
        message.verify()
        header = message.header
        if header.key == THEIRS:
            outgoing = self._outgoing.get(header.offset)
            if outgoing is not None and outgoing.link is link:
                self._end(outgoing)
        else:
            self._landings.drop(lambda g: g.link is link and g.number == header.offset)

    def _place(self, message: Incoming) -> tuple[int, int]:
        """The ring that a chunk is in, and the slot."""
        place = wire.unpack_meta(message.meta)
        if not isinstance(place, list) or len(place) != 2:
            raise BadFrameError("shared memory")
        descriptor, slot = place
        if not all(type(x) is int and 0 <= x < 1 << 32 for x in place):
            raise BadFrameError("shared memory")
        return descriptor, slot

    def on_release(self, link: Link, message: Incoming) -> None:
        """The peer has read a slot of the ring, or does not need what it was lent any more."""
        message.verify()
        if message.header.key == LENT:
            self.lending.on_release(link, message)
            return
        slot = message.header.offset

        def free() -> None:
            if link.ring is not None and link.ring.give_back(slot):
                self._pump(link)

        self._endpoint.service.post(free)

    # ---- ends

    def _cancel(self, link: Link, whose: int, number: int) -> None:
        """Tell the peer that a transfer is over; if the link is gone it knows."""
        self._endpoint.connections.tell(link, (wire.CANCEL, 0, 0, whose, number, b"", ()))

    def abort(self, step: int) -> None:
        """Let go of the step's tensors; the peers are told."""
        self._drop(lambda s: s == step, tell=True)

    def forget(self, low_water: int) -> None:
        """Let go of what belongs to that master's steps up to `low_water`."""
        master = low_water >> MASTER_SHIFT
        self._drop(lambda s: s <= low_water and s >> MASTER_SHIFT == master, tell=True)

    def _drop(self, over: Callable[[int], bool], *, tell: bool) -> None:
        with self._lock:
            ended = [o for o in self._outgoing.values() if over(o.step)]
        for outgoing in ended:
            self._end(outgoing)
            self._cancel(outgoing.link, MINE, outgoing.number)
        for landing in self._landings.drop(lambda g: over(g.step)):
            self._cancel(landing.link, THEIRS, landing.number)

    def lose(self, link: Link) -> None:
        """The link is gone: nothing of it will come, nothing is sent."""
        with self._lock:
            ended = [o for o in self._outgoing.values() if o.link is link]
        for outgoing in ended:
            self._end(outgoing)
        self._landings.drop(lambda g: g.link is link)
        self.lending.lose(link)
        self._endpoint.service.post(lambda: self._forget_queue(link))

    def _forget_queue(self, link: Link) -> None:
        self._queues.pop(link, None)
