"""`LocalMembers`: the other members of a group, on one host: sockets between all, and memory that
all read.

Names are abstract addresses of Unix sockets, so nothing is left in any folder; whoever connects has
to be of the same user, for which the kernel vouches. Each member has a memfd that the others map,
with places for pieces of arrays. There is no thread: the caller's sends and waits."""

from __future__ import annotations

import array
import contextlib
import fcntl
import hashlib
import mmap
import os
import select
import socket
import struct
import sys
import time
from collections.abc import Callable
from typing import Final, NoReturn

import numpy as np

from weft.comm.errors import (
    AddressError,
    CommError,
    GroupEndedError,
    PeerLostError,
)
from weft.comm.members import FAREWELL, Data, Message, late_error, missing_error
from weft.comm.shared_memory import AVAILABLE, Region, credentials
from weft.comm.traffic import Traffic
from weft.comm.wire import Array

_HEAD: Final = struct.Struct("<4sBxHIQQ")  # magic, kind, bytes of text, of data, number, hash
_HELLO: Final = struct.Struct("<4sIIQ")  # magic, rank, size, bytes of the memfd
_MAGIC: Final = b"WFG1"
#: How long a wait goes on until it looks whether somebody else was lost, and the deadline.
_SLICE_S: Final = 0.25


class LocalMembers:
    """The sockets to the other members, and the memory of all: `places` pieces of `piece` bytes of
    each. is_there: whether the process that has a rank is there. Errors as those of `Group`."""

    def __init__(
        self,
        name: str,
        rank: int,
        size: int,
        timeout: float,
        connect_timeout: float,
        is_there: Callable[[int], bool],
        places: int,
        piece: int,
    ) -> None:
        if not AVAILABLE:
            raise AddressError(f"no shared memory between processes on {sys.platform}")
        self.name, self.rank, self.size, self.timeout = name, rank, size, timeout
        self.doing, self.stop = "the meeting of the group", ""
        self._number = 0  # of the call
        self._is_there, self._count = is_there, places * piece
        self.traffic = {k: Traffic() for k in range(size) if k != rank}
        self._sockets: dict[int, socket.socket] = {}
        self._pids: dict[int, int] = {}
        self.memory: list[Array] = [np.empty(0, np.uint8)] * size
        self._region: Region | None = Region(self._count)
        self.memory[rank] = self._region.bytes
        try:
            self._meet(time.monotonic() + connect_timeout)
        except BaseException as error:
            self.end(Message(FAREWELL, str(error) or type(error).__name__, 0, 0))
            raise

    # ------------------------------------------------------------------------------------ meeting

    def _meet(self, deadline: float) -> None:
        """Connect to all of a lower rank, and be connected to by the others."""
        with socket.socket(socket.AF_UNIX) as inbox:
            try:
                inbox.bind(address_of(self.name, self.rank))
            except OSError:
                raise AddressError(
                    f"another process has rank {self.rank} of the group '{self.name}'"
                ) from None
            inbox.listen(self.size)
            for rank in range(self.rank):
                self._sockets[rank] = self._connected(rank, deadline)
            while len(self._sockets) < self.size - 1:
                inbox.settimeout(min(_SLICE_S, self._left(deadline)))
                with contextlib.suppress(TimeoutError):
                    self._admit(inbox.accept()[0])
        seconds = struct.pack("ll", int(_SLICE_S), int(_SLICE_S % 1 * 1e6))
        for one in self._sockets.values():
            one.settimeout(None)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, seconds)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, seconds)

    def _left(self, deadline: float) -> float:
        """Seconds until the deadline. UnreachableError if there are none."""
        self._look(float("inf"), self.rank)
        left = deadline - time.monotonic()
        missing = [r for r in range(self.size) if r != self.rank and r not in self._sockets]
        gone = [r for r in missing if not self._is_there(r)]
        if gone or left <= 0:
            raise missing_error(gone or missing, self.name)
        return left

    def _connected(self, rank: int, deadline: float) -> socket.socket:
        pause = 1e-3
        while True:
            one = socket.socket(socket.AF_UNIX)
            try:
                one.settimeout(min(_SLICE_S, self._left(deadline)))
                one.connect(address_of(self.name, rank))
                self._greet(one)
                if self._answer(one, deadline) == rank:
                    return one
            except BaseException as error:
                one.close()
                # Else it does not listen yet, or has left. Errors of a group are OSErrors, too.
                if isinstance(error, CommError) or not isinstance(error, OSError | _StrangerError):
                    raise
            one.close()
            time.sleep(min(pause, self._left(deadline)))
            pause = min(2 * pause, 0.05)

    def _answer(self, one: socket.socket, deadline: float) -> int:
        """As `_hello`, of one that may be stopped: meanwhile others may leave."""
        while True:
            try:
                return self._hello(one)
            except TimeoutError:
                self._left(deadline)

    def _admit(self, one: socket.socket) -> None:
        """Take a connection of somebody who belongs here; all others are closed."""
        try:
            one.settimeout(5.0)
            rank = self._hello(one)
            if rank in self._sockets or rank <= self.rank:
                raise _StrangerError
            self._greet(one)
            self._sockets[rank] = one
        except (OSError, _StrangerError):
            one.close()

    def _greet(self, one: socket.socket) -> None:
        assert self._region is not None
        hello = _HELLO.pack(_MAGIC, self.rank, self.size, self._region.bytes.nbytes)
        socket.send_fds(one, [hello], [self._region.descriptor])

    def _hello(self, one: socket.socket) -> int:
        """The rank of who is at the other end, whose memory is mapped then. _StrangerError, OSError
        for anybody else; AddressError for a member of a group of another size."""
        pid, user = credentials(one)
        if user != os.geteuid():
            raise _StrangerError
        space = socket.CMSG_SPACE(array.array("i").itemsize)
        data, found, _, _ = one.recvmsg(_HELLO.size, space, socket.MSG_CMSG_CLOEXEC)
        descriptors = [d for _, _, raw in found for d in array.array("i", raw)]
        try:
            if len(data) != _HELLO.size or len(descriptors) != 1:
                raise _StrangerError
            magic, rank, size, count = _HELLO.unpack(data)
            if magic != _MAGIC or rank >= size:
                raise _StrangerError
            if size != self.size or count != self._count:
                raise AddressError(
                    f"rank {rank} (process {pid}) says that the group '{self.name}' has {size} "
                    f"members, rank {self.rank} says {self.size}"
                )
            self.memory[rank] = _mapped(descriptors[0], count)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        self._pids[rank] = pid
        return int(rank)

    # ------------------------------------------------------------------------------------ the end

    def end(self, farewell: Message) -> None:
        """Tell all why there is an end, and give sockets and memory back."""
        text = farewell.text.encode(errors="replace")
        head = _HEAD.pack(_MAGIC, FAREWELL, len(text), 0, farewell.number, farewell.digest)
        for one in self._sockets.values():
            with contextlib.suppress(OSError):
                one.send(head + text, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
            one.close()
        self.memory = [np.empty(0, np.uint8)] * self.size
        if self._region is not None:
            with contextlib.suppress(BufferError):  # the error's frames have views of it
                self._region.close()
            self._region = None

    def abandon(self) -> None:
        """In a child of a fork: the sockets are the parent's."""
        for one in self._sockets.values():
            one.close()
        self._sockets = {}

    # ----------------------------------------------------------------------------------- messages

    def tell(self, message: Message, data: Data | None) -> None:
        """Send a message to everybody."""
        kind, said, number, digest = message
        self._number = number
        text = said.encode()
        for rank, one in self._sockets.items():
            raw = memoryview(data(rank)).cast("B") if data is not None else b""
            head = _HEAD.pack(_MAGIC, kind, len(text), len(raw), number, digest)
            left = len(head) + len(text) + len(raw)
            self.traffic[rank].message_sent(len(raw))
            try:
                left -= one.sendmsg([head, text, raw], [], socket.MSG_NOSIGNAL)
                if left:
                    self._send_rest(rank, (head + text + bytes(raw))[-left:])
            except BlockingIOError:
                self._send_rest(rank, head + text + bytes(raw))
            except OSError:
                self._last_words(rank)

    def _send_rest(self, rank: int, data: bytes) -> None:
        """What did not go at once, as the member is far behind."""
        deadline = time.monotonic() + self.timeout
        while data:
            try:
                data = data[self._sockets[rank].send(data, socket.MSG_NOSIGNAL) :]
            except BlockingIOError:
                self._look(deadline, rank)
            except OSError:
                self._last_words(rank)

    def read(self, rank: int) -> tuple[Message, bytearray]:
        """The next message of a member, and its data."""
        head = self._bytes(rank, _HEAD.size)
        magic, kind, length, count, number, digest = _HEAD.unpack(head)
        text = self._bytes(rank, length).decode(errors="replace") if length else ""
        if magic != _MAGIC:
            raise PeerLostError(f"rank {rank} sends what is no message")
        data = self._bytes(rank, count) if count else bytearray()
        self.traffic[rank].message_came(count)
        return Message(kind, text, number, digest), data

    def _bytes(self, rank: int, count: int) -> bytearray:
        """So many bytes of a member. PeerLostError, DeadlineError."""
        made = bytearray(count)
        view, one = memoryview(made), self._sockets[rank]
        deadline = 0.0
        while view:
            try:
                got = one.recv_into(view)
            except BlockingIOError:
                deadline = deadline or time.monotonic() + self.timeout - _SLICE_S
                self._look(deadline, rank)
                continue
            except OSError:
                got = 0
            if not got:
                raise self._lost(rank)
            view = view[got:]
        return made

    def _lost(self, rank: int) -> PeerLostError:
        return PeerLostError(f"rank {rank} (process {self._pids[rank]}) is lost, in {self.doing}")

    def _look(self, deadline: float, waits_for: int) -> None:
        """PeerLostError if somebody is gone, DeadlineError after the deadline; GroupEndedError if
        another thread ends the group."""
        if self.stop:
            raise GroupEndedError(self.stop)
        poll = select.poll()
        ranks = {one.fileno(): rank for rank, one in self._sockets.items()}
        for descriptor in ranks:
            poll.register(descriptor, select.POLLIN | select.POLLRDHUP)
        found = {ranks[descriptor]: events for descriptor, events in poll.poll(0)}
        if not found.get(waits_for, 0) & select.POLLIN:  # else it has come; others may be through
            for rank, events in found.items():
                gone = events & (select.POLLRDHUP | select.POLLHUP) and rank != waits_for
                if gone and not self._is_through(rank):
                    self._last_words(rank)
        if time.monotonic() > deadline:
            silent = {r for r in ranks.values() if not found.get(r, 0) & select.POLLIN}
            late = [r for r in ranks.values() if r == waits_for or (r > waits_for and r in silent)]
            raise late_error(late, self.timeout, self.doing)

    def _is_through(self, rank: int) -> bool:
        """Whether a member that is gone has done this call: all that it had to send is here."""
        said = b""
        with contextlib.suppress(OSError):
            said = self._sockets[rank].recv(1 << 20, socket.MSG_DONTWAIT | socket.MSG_PEEK)
        at = said.rfind(_MAGIC + bytes([FAREWELL]))
        if at < 0 or len(said) < at + _HEAD.size:
            return False
        *_, number, by_itself = _HEAD.unpack_from(said, at)
        return bool(by_itself) and number >= self._number

    def _last_words(self, rank: int) -> NoReturn:
        """Raise what a member that is gone has said last: a farewell, or nothing."""
        one = self._sockets[rank]
        said = b""
        with contextlib.suppress(OSError):
            while more := one.recv(1 << 16, socket.MSG_DONTWAIT):
                said += more
        at = said.rfind(_MAGIC + bytes([FAREWELL]))
        if at < 0:
            raise self._lost(rank)
        text = said[at + _HEAD.size :].decode(errors="replace")
        raise PeerLostError(f"rank {rank} has left, in {self.doing}: {text}")


def address_of(name: str, rank: int) -> str:
    """Where a member of a group listens while it meets the others."""
    digest = hashlib.blake2b(name.encode(), digest_size=20).hexdigest()
    return f"\0weft-group-{digest}-{rank}"


class _StrangerError(Exception):
    """Who connects does not belong here."""


def _mapped(descriptor: int, count: int) -> Array:
    """The memory of another member, to be read. _StrangerError if its size may change: reading what
    is gone would end this process."""
    sealed = fcntl.F_SEAL_SHRINK
    if os.fstat(descriptor).st_size != count:
        raise _StrangerError
    if fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & sealed != sealed:
        raise _StrangerError
    return np.frombuffer(mmap.mmap(descriptor, count, prot=mmap.PROT_READ), np.uint8)
