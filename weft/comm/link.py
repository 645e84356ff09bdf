"""Links: the sending half of a connection to one incarnation of a peer, the table of links, and
their ZeroMQ sockets.

A link is never used for another incarnation. `Peers` finds it by the peer's name, by the link
number in the peer's frames, and by the token of our end.

The sockets have bounded queues and frames, heartbeats, CURVE keys and authentication. Two CURVE key
pairs are derived from the cluster's secret (BLAKE2b, one person string each): every inbox proves
that it has the server's, and admits only who has the client's. CURVE without such a list (ZAP,
ZeroMQ RFC 27) would admit anybody who knows the server's public key."""

from __future__ import annotations

import contextlib
import hmac
import resource
import socket
import sys
import threading
import time
from array import array
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MethodType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import zmq
from zmq.utils import z85

from weft.comm import wire
from weft.comm.addresses import Secret
from weft.comm.errors import (
    AddressError,
    AuthenticationError,
    BackpressureError,
    CommError,
    LimitError,
    PeerLostError,
    UnknownPeerError,
)
from weft.comm.limits import CHUNK_BYTES, FRAME_BYTES, Limits, Rejections
from weft.comm.shared_memory import Arena, PeerMemory, Ring
from weft.comm.traffic import SENT, SENT_BYTES, Traffic, TrafficTable
from weft.comm.wire import INLINE_BYTES

if TYPE_CHECKING:
    from weft.comm.wire import Array


_DOMAIN: Final = b"weft"


class Keys:
    """The CURVE key pairs of a secret, in z85."""

    __slots__ = ("_client", "_client_public", "_server", "_server_public")

    def __init__(self, secret: Secret) -> None:
        if not zmq.has("curve"):
            raise AuthenticationError("this libzmq was built without CURVE")
        self._server = z85.encode(secret.derive(b"weft-server"))
        self._client = z85.encode(secret.derive(b"weft-client"))
        self._server_public = zmq.curve_public(self._server)
        self._client_public = zmq.curve_public(self._client)

    def serve(self, socket: zmq.Socket[bytes]) -> None:
        """Make `socket` an inbox that only holders of the secret can write to."""
        socket.set(zmq.CURVE_SERVER, 1)
        socket.set(zmq.CURVE_SECRETKEY, self._server)
        socket.set(zmq.CURVE_PUBLICKEY, self._server_public)
        socket.set(zmq.ZAP_DOMAIN, _DOMAIN)

    def call(self, socket: zmq.Socket[bytes]) -> None:
        """Make `socket` talk to inboxes of holders of the secret only."""
        socket.set(zmq.CURVE_SERVERKEY, self._server_public)
        socket.set(zmq.CURVE_SECRETKEY, self._client)
        socket.set(zmq.CURVE_PUBLICKEY, self._client_public)

    def admits(self, domain: bytes, mechanism: bytes, credentials: list[bytes]) -> bool:
        """Whether a handshake's client is one of ours (ZeroMQ RFC 27; its key is 32 bytes)."""
        return (
            domain == _DOMAIN
            and mechanism == b"CURVE"
            and len(credentials) == 1
            and len(credentials[0]) == 32
            and hmac.compare_digest(z85.encode(credentials[0]), self._client_public)
        )


INBOX_HWM = 16  # messages of one connection that wait for the inbox; a chunk of 1 MB is one
CTL_HWM = 256  # messages that wait for one peer's connection; tensors among them up to 256 KB
BULK_HWM = 4

Socket = zmq.Socket[bytes]
Context = zmq.Context[Socket]


def _common(socket: Socket, limits: Limits) -> Socket:
    beat = int(limits.heartbeat_s * 1000)
    timeout = int(limits.heartbeat_timeout_s * 1000)
    socket.set(zmq.LINGER, 0)
    socket.set(zmq.MAXMSGSIZE, FRAME_BYTES)
    socket.set(zmq.HEARTBEAT_IVL, beat)
    socket.set(zmq.HEARTBEAT_TIMEOUT, timeout)
    socket.set(zmq.HEARTBEAT_TTL, timeout)
    socket.set(zmq.HANDSHAKE_IVL, int(limits.connect_s * 1000))
    return socket


def inbox(context: Context, limits: Limits, keys: Keys | None) -> Socket:
    """The inbox of a task, not bound yet. A DEALER, which shows the messages of all who connect as
    a ROUTER does, but without a frame before each that says by which connection it came: frames
    say that themselves."""
    socket = _common(context.socket(zmq.DEALER), limits)
    socket.set(zmq.RCVHWM, INBOX_HWM)
    if keys is not None:
        keys.serve(socket)
    return socket


def dealer(context: Context, limits: Limits, keys: Keys | None, hwm: int) -> Socket:
    """One lane to a peer, not connected yet. IMMEDIATE: nothing is queued for a peer that is not
    there, so a process that is restarted at its address never gets what was meant for the old."""
    socket = _common(context.socket(zmq.DEALER), limits)
    socket.set(zmq.IMMEDIATE, 1)
    socket.set(zmq.SNDHWM, hwm)
    socket.set(zmq.RCVHWM, 1)  # nothing is ever sent back on it
    socket.set(zmq.RECONNECT_IVL, 20)
    socket.set(zmq.RECONNECT_IVL_MAX, 500)
    if keys is not None:
        keys.call(socket)
    return socket


def make_context(peers: int) -> Context:
    """A context for links to so many peers: with sockets, and descriptors, for all of them (libzmq
    ends the process where some of its calls find none left)."""
    context: Context = zmq.Context()
    context.set(zmq.MAX_SOCKETS, 6 * peers + 64)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 10 * peers + 256
    if soft != resource.RLIM_INFINITY and soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))
    return context


ZAP_ADDRESS = "inproc://zeromq.zap.01"


class Gate:
    """The handler of one context; `answer` is called when its socket is readable."""

    def __init__(self, context: Context, keys: Keys, rejections: Rejections) -> None:
        self._keys = keys
        self._rejections = rejections
        self.socket: Socket = context.socket(zmq.REP)
        self.socket.set(zmq.LINGER, 0)
        self.socket.bind(ZAP_ADDRESS)

    def answer(self) -> None:
        """Answer one request. Its form is libzmq's own, so a wrong one is an error of this code."""
        version, request, domain, address, _, mechanism, *credentials = self.socket.recv_multipart()
        admitted = version == b"1.0" and self._keys.admits(domain, mechanism, credentials)
        if not admitted:
            self._rejections.count("unknown key", f" from {address.decode('ascii', 'replace')}")
        status = [b"200", b"OK", b"member"] if admitted else [b"400", b"unknown key", b""]
        self.socket.send_multipart([b"1.0", request, *status, b""])


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
#: Of packets: not to wait; and no signal, but an error, where nobody reads any more.
_PACKET = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL if sys.platform == "linux" else 0
_PACK = wire.SHORT_HEADER.pack
_WORDS = tuple([wire.word_of(kind) for kind in range(256)])


class LinkWords(NamedTuple):
    """What native code that sends and takes packets reads and writes, with the GIL held all the
    time. It sends only while `lock` is free and the first number of `state`, the lane's
    descriptor, is not -1; it takes only while the second one is not 0. sequence, expected: the
    numbers of the next frames to and from the peer. counts: of `Traffic`."""

    link: Link
    lock: threading.Lock
    state: array[int]
    sequence: array[int]
    expected: array[int]
    counts: array[int]


class Link:
    """The sending half of a connection. Its lane `ctl` may be used by any thread, under its lock;
    the lane `bulk`, opened when the first large tensor is granted, and the monitor belong to the
    service thread."""

    def __init__(self, name: str, address: str, incarnation: int, token: int, ctl: Socket) -> None:
        self.name = name
        self.address = address
        self.incarnation = incarnation  # of the peer; 0: not known yet
        self.token = token  # the source in frames to the peer
        self.source = 0  # the source in frames from the peer; 0: not known yet
        # Sequence numbers of the next frames from the peer, by lane.
        self.expected = array("Q", [0, 0])
        self.waits_since = 0.0  # of packets for what was sent before them: since when
        self.refused = -1  # the number of the last frame that was refused
        self.traffic = Traffic()
        self.alive = True
        self.connected = False  # the hand-shake of ZeroMQ is done
        self.since = time.monotonic()  # made, then last heard of
        self.counted = 0  # frames from the peer by that time
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
        self._lane: socket.socket | None = None  # in place of `ctl`, for frames up to
        # For native code (`words`): the lane's descriptor while it may send there, else -1;
        # whether the link is there.
        self._state = array("q", [-1, 1])
        self._packet_bytes = -1
        self.put: Callable[[bytes, int], int] = _no_lane  # what sends a packet there
        self.inward: socket.socket | None = None  # the peer's lane; the inbox thread's
        self._lock = threading.Lock()
        self._sequence = array("Q", [0, 0])
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
        self, kind: int, step: int, key: int, offset: int, meta: bytes, data: bytes, flags: int = 0
    ) -> bool:
        """As `try_send`, of a frame whose payload is bytes: most messages."""
        with self._lock:
            if not self.alive:
                raise self.lost()
            if self._backlog:
                return False
            if self.checksums:
                return self._send((kind, flags, step, key, offset, meta, data))
            count = self._sequence[0]  # of the lane CTL
            head = _PACK(
                _WORDS[kind], len(meta), flags << 8, self.token, self.incarnation, step, key, count,
                offset,
            )  # fmt: skip
            # Before: Ctrl-C mostly comes after a call, and what goes next would be taken for a
            # repetition. If it kept this one from being sent, the gap ends the link, with an error.
            self._sequence[0] = (count + 1) & 0xFFFFFFFF
            frame = head + meta + data if meta else head
            try:
                if len(frame) <= self._packet_bytes:
                    self.put(frame, _PACKET)
                else:
                    self._push(frame, _DONTWAIT)
            except (zmq.Again, BlockingIOError):
                self._sequence[0] = count
                return False
            except zmq.ZMQError as error:
                self._sequence[0] = count
                raise PeerLostError(f"the link to {self.name} broke: {error}") from None
            except OSError:
                self._sequence[0] = count
                self._close_lane()
                return False
            counts = self.traffic.counts
            counts[SENT] += 1
            counts[SENT_BYTES] += len(frame)
            return True

    def open_lane(self, one: socket.socket, most: int) -> bool:
        """Send packets of up to so many bytes there from now on. False if it is not needed."""
        with self._lock:
            if not self.alive or self.checksums or self._lane is not None:
                return False
            self._lane, self.put, self._packet_bytes = one, one.send, most
            if not self._backlog:
                self._state[0] = one.fileno()
            return True

    @property
    def has_lane(self) -> bool:
        """Whether packets go to the peer by a lane."""
        return self._lane is not None

    def _close_lane(self) -> None:
        """Under the lock. Whoever read it is gone, or the link is: `ctl` will show it."""
        self._state[0] = -1
        lane, self._lane, self.put, self._packet_bytes = self._lane, None, _no_lane, -1
        if lane is not None:
            lane.close()

    def words(self) -> LinkWords:
        """For native code that sends and receives packets."""
        return LinkWords(
            self, self._lock, self._state, self._sequence, self.expected, self.traffic.counts
        )

    def gone(self, cause: CommError) -> None:
        """It is lost: nothing is sent or accepted any more."""
        self.alive, self.cause = False, cause
        self._state[1] = 0

    def keep_inward(self, one: socket.socket) -> None:
        """The peer sends there, too."""
        with self._lock:
            self.inward = one
            if not self.alive:
                self._stop_inward()

    def end_inward(self) -> None:
        """The peer sends nothing there any more."""
        with self._lock:
            one, self.inward = self.inward, None
        if one is not None:
            one.close()

    def _stop_inward(self) -> None:
        """Under the lock: who reads it finds its end."""
        if self.inward is not None:
            with contextlib.suppress(OSError):
                self.inward.shutdown(socket.SHUT_RDWR)

    def abandon(self) -> None:
        """In the child of a fork: give the descriptors back; the sockets are the parent's."""
        self._state[:] = array("q", [-1, 0])
        for one in (self._lane, self.inward):
            if one is not None:
                one.close()

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
            self._state[0] = -1  # nothing overtakes it
            self._backlog.append(frame)
            return False

    def flush(self) -> bool:
        """Send what is queued; True if nothing is left (or the link is lost)."""
        with self._lock:
            while self.alive and self._backlog:
                if not self._send(self._backlog[0]):
                    return False
                self._backlog.popleft()
            if self._lane is not None:
                self._state[0] = self._lane.fileno()
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
            frames: list[Any] = [b"".join([head, meta, *parts, *check])]
            if len(frames[0]) <= self._packet_bytes:
                return self._send_packet(frames[0])
        else:
            chunks = [
                p[i : i + CHUNK_BYTES] for p in parts for i in range(0, p.nbytes, CHUNK_BYTES)
            ]
            frames = [b"".join([head, meta, *check]), *chunks]
        size = len(frames[0]) + sum(chunk.nbytes for chunk in frames[1:])
        try:
            self._send_whole(frames)
        except zmq.Again:
            return False
        except zmq.ZMQError as error:
            raise PeerLostError(f"the link to {self.name} broke: {error}") from None
        self.traffic.counts[SENT] += 1
        self.traffic.counts[SENT_BYTES] += size
        return True

    def _send_packet(self, frame: bytes) -> bool:
        """As `_send`, by the lane."""
        count = self._sequence[0]
        self._sequence[0] = (count + 1) & 0xFFFFFFFF  # before: see `try_push`
        try:
            self.put(frame, _PACKET)
        except OSError as error:
            self._sequence[0] = count
            if not isinstance(error, BlockingIOError):
                self._close_lane()
            return False
        self.traffic.counts[SENT] += 1
        self.traffic.counts[SENT_BYTES] += len(frame)
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
            self._stop_inward()
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
        self._close_lane()
        with contextlib.suppress(zmq.ContextTerminated):  # the endpoint is being closed
            self._ctl.disable_monitor()
        self._ctl.close(self._linger_ms)


def _no_lane(frame: bytes, flags: int) -> int:
    raise BrokenPipeError


LINGER_MS = 200  # for the last words to a peer that is slow


@dataclass(frozen=True, slots=True)
class Peer:
    """The peer at the other end of a link."""

    name: str
    address: str
    incarnation: int


class Peers:
    """The table of links. Thread-safe. `on_gone(link, error, told)` is called once for each link
    that is lost, outside of the lock; `told`: the endpoint's owner is to hear of it."""

    def __init__(
        self,
        most: int,
        on_gone: Callable[[Link, CommError, bool], None],
        counted_as: Callable[[str], str] = str,
    ) -> None:
        self._most = most
        self._on_gone = on_gone
        self._traffic = TrafficTable(counted_as)
        self._lock = threading.Lock()
        self._all: set[Link] = set()
        self._by_name: dict[str, Link] = {}
        self._by_source: dict[int, Link] = {}
        self._by_token: dict[int, Link] = {}
        self.closed: CommError | None = None

    def check_room(self) -> None:
        """LimitError if no further link may be made; the closing error if none is."""
        if self.closed is not None:
            raise self.closed
        if len(self._all) >= self._most:
            raise LimitError(f"{len(self._all)} links already (Limits.peers)")

    def add(self, link: Link) -> None:
        """A new link, whose peer may not be known yet."""
        with self._lock:
            self._all.add(link)
            self._by_token[link.token] = link
            if link.name:
                self._by_name[link.name] = link

    def know(self, link: Link, name: str, incarnation: int, source: int) -> None:
        """The peer has said who it is, and what its frames carry. The link is up."""
        with self._lock:
            if not link.alive:
                return
            if self._by_name.get(link.name) is link:
                del self._by_name[link.name]
            link.name, link.incarnation, link.source = name, incarnation, source
            self._by_name[name] = link
            self._by_source[source] = link
        link.up.set()

    def named(self, name: str) -> Link:
        """UnknownPeerError if there is none that is up, or the closing error."""
        link = self._by_name.get(name)
        if link is None or not link.source:
            raise self.closed or UnknownPeerError(f"there is no link to {name!r}")
        return link

    def find(self, name: str) -> Link | None:
        return self._by_name.get(name)

    def name_at(self, address: str) -> str:
        """The name of the peer that is known to be at the address, or ""."""
        return next((x.name for x in self.links() if x.source and x.address == address), "")

    @property
    def by_source(self) -> Mapping[int, Link]:
        """The links by what the frames of their peers carry."""
        return self._by_source

    def of_source(self, source: int) -> Link | None:
        return self._by_source.get(source)

    def of_token(self, token: int) -> Link | None:
        return self._by_token.get(token)

    def links(self) -> list[Link]:
        with self._lock:
            return list(self._all)

    def traffic(self) -> dict[str, dict[str, Any]]:
        """Counts by peer, of all links to it so far (`Traffic.told`)."""
        with self._lock:
            return self._traffic.told([(x.name, x.traffic) for x in self._all if x.name])

    def abandon(self, error: CommError) -> None:
        """In the child of a fork: the links are the parent's. No lock, whose holder is not here."""
        self.closed = error
        for link in self._all:
            link.abandon()
        self._all, self._by_name, self._by_source, self._by_token = set(), {}, {}, {}

    def lose(self, link: Link, error: CommError, *, tell: bool = True) -> bool:
        """End a link: nothing is sent or accepted on it any more, and the peer is told if it can
        be. False if the link was lost before."""
        with self._lock:
            if not link.alive:
                return False
            link.gone(error)
            self._all.discard(link)
            del self._by_token[link.token]
            if self._by_name.get(link.name) is link:
                del self._by_name[link.name]
            self._by_source.pop(link.source, None)
            if link.name:
                self._traffic.gone(link.name, link.traffic)
        link.close(str(error), LINGER_MS)
        self._on_gone(link, error, tell and link.up.is_set())
        link.up.set()
        return True
