"""The sending half of a connection to one incarnation of a peer. Never used for another one."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Sequence
from types import MethodType
from typing import TYPE_CHECKING, Any

import zmq

from weft.comm import wire
from weft.comm.arena import Arena
from weft.comm.errors import AddressError, BackpressureError, CommError, PeerLostError
from weft.comm.limits import CHUNK_BYTES
from weft.comm.shared import PeerMemory, Ring
from weft.comm.sockets import Socket
from weft.comm.wire import INLINE_BYTES

if TYPE_CHECKING:
    from weft.comm.wire import Array

MAX_REASON = 500
_EVENTS = (
    zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_DISCONNECTED
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
)

#: A frame that is not sent yet: kind, flags, step, key, offset, meta data, payload: arrays, or
#: bytes that travel in the header's frame.
Frame = tuple[int, int, int, int, int, bytes, "Sequence[Array] | bytes"]
_DONTWAIT, _SNDMORE = int(zmq.DONTWAIT), int(zmq.SNDMORE)
_PACK = wire.SHORT_HEADER.pack
_WORDS = tuple([wire.word_of(kind) for kind in range(256)])


class Link:
    """Its lane `ctl` may be used by any thread, under its lock; the lane `bulk`, opened when the
    first large tensor is granted, and the monitor belong to the service thread."""

    def __init__(self, name: str, address: str, incarnation: int, token: int, ctl: Socket) -> None:
        self.name = name
        self.address = address
        self.incarnation = incarnation  # of the peer; 0: not known yet
        self.token = token  # the source in frames to the peer
        self.source = 0  # the source in frames from the peer; 0: not known yet
        self.expected = [0, 0]  # sequence numbers of the next frames from the peer, by lane
        self.heard = 0  # frames from the peer
        self.alive = True
        self.connected = False  # the hand-shake of ZeroMQ is done
        self.since = time.monotonic()  # made, then last heard of
        self.counted = 0  # `heard` at that time
        self.checksums = False
        self.cause: CommError | None = None
        self.up = threading.Event()  # the peer has answered, or the link is lost
        self.bulk: Socket | None = None
        self.bulk_monitor: Socket | None = None
        self.ring: Ring | None = None  # of this process, for the peer to read; the service thread's
        self.memory: PeerMemory | None = None  # the peer's, if it can be read; the inbox thread's
        self.lends = False  # whether the peer can read this process's
        self.arena: Arena | None = None  # what it reads
        self.monitor: Socket = ctl.get_monitor_socket(_EVENTS)
        self._ctl = ctl
        self._push = MethodType(zmq.backend.Socket.send, ctl)  # what `ctl.send` comes to
        self._lock = threading.Lock()
        self._sequence = [0, 0]
        self._backlog: deque[Frame] = deque()
        self._farewell = b""
        self._linger_ms = 0
        try:
            ctl.connect(address)
        except zmq.ZMQError as error:
            self._shut()
            self.monitor.close(0)
            raise AddressError(f"{address} cannot be connected to: {error}") from None

    def __repr__(self) -> str:
        state = "up" if self.alive and self.up.is_set() else "connecting" if self.alive else "lost"
        return f"Link({self.name!r}, {self.address!r}, {state})"

    def lost(self) -> CommError:
        """The error to raise for a use of it after it was lost."""
        return self.cause or PeerLostError(f"the link to {self.name} is gone")

    def try_send(self, frame: Frame) -> bool:
        """Send now, or return False: there is no connection yet, or it is full. Raises the cause
        if the link is lost."""
        with self._lock:
            if not self.alive:
                raise self.lost()
            return not self._backlog and self._send(frame)

    def try_push(
        self, kind: int, step: int, key: int, offset: int, meta: bytes, data: bytes
    ) -> bool:
        """As `try_send`, of a frame without flags whose payload is bytes: most messages."""
        with self._lock:
            if not self.alive:
                raise self.lost()
            if self._backlog:
                return False
            if self.checksums:
                return self._send((kind, 0, step, key, offset, meta, data))
            count = self._sequence[0]  # of the lane CTL
            head = _PACK(
                _WORDS[kind], len(meta), 0, self.token, self.incarnation, step, key, count, offset
            )
            # Before: Ctrl-C mostly comes after a call, and what goes next would be taken for a
            # repetition. If it kept this one from being sent, the gap ends the link, with an error.
            self._sequence[0] = (count + 1) & 0xFFFFFFFF
            try:
                self._push(head + meta + data if meta else head, _DONTWAIT)
            except zmq.Again:
                self._sequence[0] = count
                return False
            except zmq.ZMQError as error:
                self._sequence[0] = count
                raise PeerLostError(f"the link to {self.name} broke: {error}") from None
            return True

    def post(self, frame: Frame, limit: int) -> bool:
        """Send, or queue for the service thread to send in order: never blocks, for threads that
        must not. False if it was queued; BackpressureError where `limit` frames wait already."""
        with self._lock:
            if not self.alive:
                raise self.lost()
            if not self._backlog and self._send(frame):
                return True
            if len(self._backlog) >= limit:
                raise BackpressureError(f"{self.name} takes no messages; {limit} wait for it")
            self._backlog.append(frame)
            return False

    def flush(self) -> bool:
        """Send what is queued; True if nothing is left (or the link is lost)."""
        with self._lock:
            while self.alive and self._backlog:
                if not self._send(self._backlog[0]):
                    return False
                self._backlog.popleft()
        return True

    def header(
        self, lane: int, kind: int, flags: int, step: int, key: int, offset: int, size: int
    ) -> bytes:
        """The header of the lane's next frame; `count` when it was sent."""
        return wire.HEADER.pack(
            wire.MAGIC, wire.VERSION, kind, size, lane, flags,
            self.token, self.incarnation, step, key, self._sequence[lane], offset,
        )  # fmt: skip

    def count(self, lane: int) -> None:
        self._sequence[lane] = (self._sequence[lane] + 1) & 0xFFFFFFFF

    def _send(self, frame: Frame) -> bool:
        """Under the lock. A message is complete or not there: libzmq bounds whole messages."""
        kind, flags, step, key, offset, meta, payload = frame
        if self.checksums:
            flags |= wire.CHECKSUM_FLAG
        head = self.header(wire.CTL, kind, flags, step, key, offset, len(meta))
        if isinstance(payload, bytes):
            parts: list[Any] = [payload]
        else:
            parts = [p.data for p in payload if p.nbytes]
        check = [wire.checksum(head, meta, *parts)] if self.checksums else []
        if isinstance(payload, bytes) or sum(p.nbytes for p in parts) <= INLINE_BYTES:
            frames = [b"".join([head, meta, *parts, *check])]
        else:
            chunks = [
                p[i : i + CHUNK_BYTES] for p in parts for i in range(0, p.nbytes, CHUNK_BYTES)
            ]
            frames = [b"".join([head, meta, *check]), *chunks]
        try:
            self._send_whole(frames)
        except zmq.Again:
            return False
        except zmq.ZMQError as error:
            raise PeerLostError(f"the link to {self.name} broke: {error}") from None
        return True

    def _send_whole(self, frames: list[Any]) -> None:
        """Send and count one message, all of it: Ctrl-C, which comes after a call, waits for its
        end. zmq.Again if there is no room for it."""
        count, flags, interrupt = self._sequence[0], _DONTWAIT, None
        while frames:
            try:
                while frames:  # nothing is called between taking a frame and sending it
                    frame = frames[0]
                    del frames[0]
                    more = _SNDMORE if frames else 0
                    flags, now = 0, flags
                    self._sequence[0] = (count + 1) & 0xFFFFFFFF
                    self._push(frame, now | more)
            except KeyboardInterrupt as error:
                interrupt = error
            except zmq.ZMQError:
                self._sequence[0] = count
                raise
        if interrupt is not None:
            raise interrupt

    def close(self, reason: str, linger_ms: int) -> None:
        """Say why, and close the lane `ctl`; the caller has set `alive` to False. What never was
        connected cannot be told yet and stays open: `part`. The monitor and the lane `bulk` stay
        for the service thread to close."""
        with self._lock:
            self._backlog.clear()
            self._farewell = wire.pack_meta(reason[:MAX_REASON])
            self._linger_ms = linger_ms
            if self._say_farewell() or self.connected:
                self._shut()

    def part(self, last: bool) -> bool:
        """Say farewell if it can be said by now; True if it was, or will not be (`last`)."""
        with self._lock:
            if not self._ctl.closed and (self._say_farewell() or last):
                self._shut()
            return bool(self._ctl.closed)

    def _say_farewell(self) -> bool:
        try:
            return self._send((wire.BYE, 0, 0, 0, 0, self._farewell, ()))
        except PeerLostError:
            return False

    def _shut(self) -> None:
        with contextlib.suppress(zmq.ContextTerminated):  # the endpoint is being closed
            self._ctl.disable_monitor()
        self._ctl.close(self._linger_ms)
