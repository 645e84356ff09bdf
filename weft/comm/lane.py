"""Lanes: small messages between processes of one host and user, over sockets of the host.

A packet is a frame as it would go over ZeroMQ's connection. There it would pass through a thread of
ZeroMQ's at each end; here the sender's system call wakes who reads it.

Who receives on a link connects to who sends on it, once both know each other: so the first packet
never comes before the link is known. Until then, and for frames above `LANE_BYTES`, ZeroMQ's
connection is used. Sequence numbers are the link's, whichever way a frame goes, so frames arrive in
the order in which they were sent.

Names are abstract addresses of Unix sockets: nothing is left in any folder. The kernel says of both
ends which process and user they are; and whoever connects has to know the link's number."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import logging
import os
import select
import socket
import struct
from collections.abc import Callable
from typing import Any, Final

from weft.comm.link import Link, Peers
from weft.comm.shared_memory import credentials

_log = logging.getLogger("weft.comm")

#: The largest packet: what is read takes so much memory, for a moment, whatever comes.
LANE_BYTES: Final = 24 << 10
_HELLO: Final = struct.Struct("<4sQQ")  # magic, the link's token, the receiver's incarnation
_MAGIC: Final = b"WFL1"
_MOST_UNKNOWN: Final = 64  # connections that have not said yet what they are for
_BUFFER_BYTES: Final = 1 << 20  # of packets that are sent and not read


def address_of(incarnation: int) -> str:
    """Where the process of that incarnation listens."""
    digest = hashlib.blake2b(incarnation.to_bytes(8, "little"), digest_size=16, person=b"weft-lane")
    return f"\0weft-lane-{digest.hexdigest()}"


def _socket() -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    made.setblocking(False)
    return made


class Door:
    """Where those connect who receive from this process: the lane is their link's then. For the
    service thread. watch, unwatch: a descriptor that can be read has the call made."""

    def __init__(
        self,
        incarnation: int,
        peers: Peers,
        watch: Callable[[int, Callable[[], None]], None],
        unwatch: Callable[[int], None],
    ) -> None:
        self._peers, self._watch, self._unwatch = peers, watch, unwatch
        self._unknown: dict[int, socket.socket] = {}  # oldest first
        self._socket = _socket()
        try:
            self._socket.bind(address_of(incarnation))
            self._socket.listen(socket.SOMAXCONN)
        except BaseException:
            self._socket.close()
            raise
        watch(self._socket.fileno(), self._admit)

    def _admit(self) -> None:
        try:
            one, _ = self._socket.accept()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):  # it would be asked again and again
                _log.warning("no more lanes, messages go over connections: %s", error)
                self._unwatch(self._socket.fileno())
                self._socket.close()
            return
        one.setblocking(False)
        if credentials(one)[1] != os.geteuid():
            one.close()
            return
        if len(self._unknown) >= _MOST_UNKNOWN:
            self._leave(next(iter(self._unknown))).close()
        self._unknown[one.fileno()] = one
        self._watch(one.fileno(), lambda: self._hear(one))

    def _leave(self, descriptor: int) -> socket.socket:
        self._unwatch(descriptor)
        return self._unknown.pop(descriptor)

    def _hear(self, one: socket.socket) -> None:
        """Which link it is for."""
        self._leave(one.fileno())
        link: Link | None = None
        with contextlib.suppress(OSError, struct.error):
            magic, token, incarnation = _HELLO.unpack(one.recv(_HELLO.size))
            one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)
            found = self._peers.of_token(token) if magic == _MAGIC else None
            if found is not None and found.incarnation in (0, incarnation):
                link = found
        if link is None or not link.open_lane(one, LANE_BYTES):
            one.close()

    def close(self) -> None:
        """Nobody connects any more."""
        for one in (self._socket, *self._unknown.values()):
            one.close()


class Lanes:
    """What one process receives by lanes; for the thread that reads its inbox. reads: by
    descriptor."""

    def __init__(self, incarnation: int) -> None:
        self._incarnation = incarnation
        self._poll: Any = None
        self._links: dict[int, Link] = {}
        self.reads: dict[int, Callable[[int], bytes]] = {}

    def open(self, link: Link) -> None:
        """Have the peer send by a lane, if it is a process of this host with a door."""
        if link.memory is None or link.inward is not None:
            return
        try:
            one = _socket()
        except OSError as error:  # no descriptor is left
            _log.debug("no lane from %s: %s", link.name, error)
            return
        try:
            one.connect(address_of(link.incarnation))
            if credentials(one) != (link.memory.pid, os.geteuid()):
                raise PermissionError("another process is there")
            one.send(_HELLO.pack(_MAGIC, link.source, self._incarnation))
            if self._poll is None:
                self._poll = select.epoll()
            self._poll.register(one.fileno(), select.EPOLLIN)
        except OSError as error:  # it has no door, or is in another namespace of networks
            _log.debug("no lane from %s: %s", link.name, error)
            one.close()
            return
        self._links[one.fileno()], self.reads[one.fileno()] = link, one.recv
        link.keep_inward(one)

    def watch(self, descriptor: int) -> Callable[..., list[tuple[int, int]]]:
        """What waits until a lane or the descriptor can be read, or so many seconds."""
        with contextlib.suppress(FileExistsError):
            self._poll.register(descriptor, select.EPOLLIN)
        wait: Callable[..., list[tuple[int, int]]] = self._poll.poll
        return wait

    def end(self, descriptor: int) -> None:
        """Nothing comes by a lane any more."""
        self.reads.pop(descriptor)
        self._poll.unregister(descriptor)
        self._links.pop(descriptor).end_inward()

    def close(self) -> None:
        for descriptor in list(self.reads):
            self.end(descriptor)
        if self._poll is not None:
            self._poll.close()
