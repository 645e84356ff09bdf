"""The receiving half of a task: one socket for all peers, read by one thread that never blocks
elsewhere. A large payload goes straight into the array that was made for it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from types import MethodType

import zmq

from weft.comm import wire
from weft.comm.errors import BadFrameError
from weft.comm.limits import CHUNK_BYTES
from weft.comm.rejections import Rejections
from weft.comm.sockets import Socket
from weft.comm.wire import Array, Header

_log = logging.getLogger("weft.comm")


class Incoming:
    """A message while it is read: its first frame, and, until the handler returns, those that
    follow."""

    __slots__ = ("_check", "_socket", "frame", "header")

    def __init__(self, socket: Socket, frame: bytes, header: Header) -> None:
        self.header = header
        self._socket = socket
        self._check = 0
        if header.flags & wire.CHECKSUM_FLAG:
            self._check = 4
            if len(frame) < wire.HEADER.size + header.meta_bytes + 4:
                raise BadFrameError("truncated checksum")
        self.frame = memoryview(frame)

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
            if not self._socket.get(zmq.RCVMORE) or self._socket.recv_into(part) != part.nbytes:
                raise BadFrameError("payload size")

    def verify(self, *payload: Array) -> None:
        """Compare the checksum, if there is one, of the header's frame and `payload`."""
        if not self._check:
            return
        body = self.frame[: len(self.frame) - 4]
        if wire.checksum(body, *(part.data for part in payload)) != self.frame[-4:]:
            raise BadFrameError("wrong checksum")


class Inbox:
    """The thread that reads `socket` until its context is terminated. `take` gets each message
    first, and says whether it was one of the kinds that most are, in one frame; the others go to
    `handle` if their header is well formed, and what it does not read is dropped. `on_crash` is
    called if the thread ends by an error."""

    def __init__(
        self,
        socket: Socket,
        name: str,
        take: Callable[[bytes], bool],
        handle: Callable[[Incoming], None],
        rejections: Rejections,
        on_crash: Callable[[BaseException], None],
    ) -> None:
        self._socket = socket
        self._take, self._handle = take, handle
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
        socket, take, handle = self._socket, self._take, self._handle
        # What `socket.recv` comes to. To copy a small frame takes a quarter of the time of making
        # an object of it that shows it where libzmq has it.
        receive = MethodType(zmq.backend.Socket.recv, socket)
        while True:
            frame = receive()
            try:
                if take(frame):
                    # Asking for RCVMORE takes four times as long as reading. A frame behind this
                    # one, which no weft sends, is taken as if it had been sent by itself.
                    continue
                handle(Incoming(socket, frame, wire.unpack_header(frame, len(frame))))
            except BadFrameError as error:
                self._rejections.count(str(error))
            while socket.get(zmq.RCVMORE):  # leave it where a message begins
                socket.recv_into(bytearray())
