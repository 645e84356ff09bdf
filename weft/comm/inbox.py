"""The receiving half of a task: one socket for all peers, read by one thread that never blocks
elsewhere. A small frame is read where libzmq has it; a large payload goes straight into the array
that was made for it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

import zmq

from weft.comm import wire
from weft.comm.errors import BadFrameError
from weft.comm.limits import CHUNK_BYTES
from weft.comm.rejections import Rejections
from weft.comm.sockets import Socket
from weft.comm.wire import Array, Header

_log = logging.getLogger("weft.comm")


class Incoming:
    """A message while it is read. Valid until the handler returns. more: whether further frames
    follow."""

    __slots__ = ("_check", "_socket", "frame", "header", "more")

    def __init__(self, socket: Socket, frame: memoryview, header: Header, more: bool) -> None:
        self.header = header
        self.more = more
        self._socket = socket
        self._check = 0
        if header.flags & wire.CHECKSUM_FLAG:
            self._check = 4
            if len(frame) < wire.HEADER.size + header.meta_bytes + 4:
                raise BadFrameError("truncated checksum")
        self.frame = frame

    @property
    def meta(self) -> memoryview:
        return self.frame[wire.HEADER.size : wire.HEADER.size + self.header.meta_bytes]

    @property
    def inline(self) -> memoryview:
        """What follows the meta data in the header's frame."""
        start = wire.HEADER.size + self.header.meta_bytes
        return self.frame[start : len(self.frame) - self._check]

    def read_into(self, target: Array) -> None:
        """Read following frames into `target` (uint8), which they fill exactly, in chunks of
        CHUNK_BYTES. BadFrameError if they do not."""
        view = target.data
        for start in range(0, target.nbytes, CHUNK_BYTES):
            part = view[start : start + CHUNK_BYTES]
            if not self.more or self._next(part) != part.nbytes:
                raise BadFrameError("payload size")

    def _next(self, part: memoryview) -> int:
        size = self._socket.recv_into(part)
        self.more = bool(self._socket.get(zmq.RCVMORE))
        return size

    def verify(self, *payload: Array) -> None:
        """Compare the checksum, if there is one, of the header's frame and `payload`."""
        if not self._check:
            return
        body = self.frame[: len(self.frame) - 4]
        if wire.checksum(body, *(part.data for part in payload)) != self.frame[-4:]:
            raise BadFrameError("wrong checksum")


class Inbox:
    """The thread that reads `socket` until its context is terminated. `handle` gets each message
    whose header is well formed; what it does not read is dropped. `on_crash` is called if the
    thread ends by an error."""

    def __init__(
        self,
        socket: Socket,
        name: str,
        handle: Callable[[Incoming], None],
        rejections: Rejections,
        on_crash: Callable[[BaseException], None],
    ) -> None:
        self._socket = socket
        self._handle = handle
        self._rejections = rejections
        self._on_crash = on_crash
        self.thread = threading.Thread(target=self._run, name=f"weft-inbox-{name}", daemon=True)

    def start(self) -> None:
        self.thread.start()

    def _run(self) -> None:
        try:
            self._read()
        except zmq.ContextTerminated:
            pass
        except BaseException as error:
            _log.exception("the inbox thread ended by an error")
            self._on_crash(error)
        finally:
            self._socket.close(0)

    def _read(self) -> None:
        socket, handle = self._socket, self._handle
        while True:
            held = socket.recv(0, copy=False)  # asking the socket for RCVMORE takes longer
            more = held.more
            try:
                frame = held.buffer
                message = Incoming(socket, frame, wire.unpack_header(frame, len(frame)), more)
                try:
                    handle(message)
                finally:
                    more = message.more
            except BadFrameError as error:
                self._rejections.count(str(error))
            while more:  # leave it where a message begins
                socket.recv_into(bytearray())
                more = bool(socket.get(zmq.RCVMORE))
