"""The endpoint of a task: sends and receives control messages over all its links, and moves tensors
to and from its rendezvous."""

from __future__ import annotations

import atexit
import logging
import os
import secrets
import struct
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Self

import numpy as np
import zmq

from weft.comm import addresses, wire
from weft.comm.addresses import Address, Secret, check_free, check_reach, parse_address
from weft.comm.bulk import Transfers
from weft.comm.connections import Connections, Service
from weft.comm.errors import (
    AddressError,
    BackpressureError,
    CommError,
    EndpointClosedError,
    MessageTooLargeError,
    PeerLostError,
    UnreachableError,
    UnsendableError,
)
from weft.comm.lane import Door, Lanes
from weft.comm.limits import STRAY, Limits, Rejections
from weft.comm.link import Frame, Gate, Keys, Link, LinkWords, Peer, inbox, make_context
from weft.comm.protocol import (
    MAX_NAME,
    Allocate,
    Inbox,
    Message,
    Protocol,
    TakePacket,
    own_message,
)
from weft.comm.rendezvous import DEAD, Key, Rendezvous
from weft.comm.wire import Array

_log = logging.getLogger("weft.comm")
_CODE_OF = wire.CODES.get
_endpoints: weakref.WeakSet[Endpoint] = weakref.WeakSet()


class Endpoint:
    """Control messages and tensors to and from named peers.

    `name`: this task's, unique in the cluster. `bind`: where it listens; port 0 is any free one.
    `secret`: of the cluster; without it only this machine can be reached (`allow_plain` lifts
    that). `on_message(Message)` and `on_link_lost(peer, error)` are called in the endpoint's own
    threads and must not block; `on_link_lost` is not called for `disconnect` and `close`.
    `advertise`: the address that peers shall connect to, where that is not `bind`. `allocate(shape,
    dtype)` makes the arrays of received tensors. `checksums`: send CRC-32s (for debugging).
    `shared`: pass large tensors to processes of this host through shared memory, and small messages
    over sockets of the host (lane.py), where that works. `counted_as`: the name under which the
    traffic with a peer is counted.

    Raises AddressError, InsecureAddressError.
    """

    def __init__(
        self,
        name: str,
        bind: str = "tcp://127.0.0.1:0",
        secret: Secret | None = None,
        limits: Limits | None = None,
        on_message: Callable[[Message], None] | None = None,
        on_link_lost: Callable[[str, CommError], None] | None = None,
        *,
        advertise: str | None = None,
        allow_plain: bool = False,
        allocate: Allocate = np.empty,
        checksums: bool = False,
        shared: bool = True,
        counted_as: Callable[[str], str] = str,
    ) -> None:
        if not (0 < len(name) <= MAX_NAME and name.isprintable()):
            raise AddressError(f"{name!r} is no name for a task")
        where = parse_address(bind)
        check_reach(where, secret is not None, allow_plain)
        check_free(where)
        self.name = name
        self.limits = limits or Limits()
        self.incarnation = secrets.randbits(62) | 1
        self.allocate = allocate
        self.rejections = Rejections(name)
        self.rendezvous = Rendezvous(self.limits, partial(self.rejections.count, STRAY))
        self._on_message = on_message or (lambda message: None)
        self._on_link_lost = on_link_lost or (lambda peer, error: None)
        self._closing = threading.Lock()
        self._file: tuple[str, int] | None = None  # the socket's, and its inode
        self.service = Service(name, self._crashed)
        self._context = make_context(self.limits.peers)
        keys = Keys(secret) if secret is not None else None
        self.connections = Connections(
            self._context,
            self.service,
            self.limits,
            keys,
            allow_plain,
            checksums,
            shared,
            self._gone,
            counted_as,
        )
        self.peers = self.connections.peers
        self.transfers = Transfers(self)
        self._door: Door | None = None
        self._lanes = Lanes(self.incarnation)
        self._protocol = Protocol(self, self._on_message, self._lanes)
        self._listen(where, keys, advertise, lanes=not checksums)

    def _listen(
        self, where: Address, keys: Keys | None, advertise: str | None, lanes: bool
    ) -> None:
        if keys is not None:  # before anybody can connect
            gate = Gate(self._context, keys, self.rejections)
            self.service.watch(gate.socket, gate.answer, close=True)
        socket = inbox(self._context, self.limits, keys)
        self._inbox = Inbox(
            socket, self.name, self._protocol, self._lanes, self.rejections, self._crashed
        )
        try:
            socket.bind(str(where))
            bound = parse_address(socket.get_string(zmq.LAST_ENDPOINT).rstrip("\0"))
            self.address = addresses.advertised(self.name, bound, advertise)
        except (zmq.ZMQError, AddressError) as error:
            self.connections.close(EndpointClosedError(f"{self.name} never listened"))
            self.service.discard()
            self._context.destroy(0)
            if isinstance(error, AddressError):
                raise
            raise AddressError(f"{self.name} cannot listen at {where}: {error}") from None
        self._file = addresses.socket_file(bound)
        self.connections.me = Peer(self.name, self.address, self.incarnation)
        self.service.every(self.limits.heartbeat_s, self.connections.look_after)
        if self.connections.shares and lanes:
            self._open_door()
        self.service.start()
        self._inbox.start()
        _endpoints.add(self)

    def _open_door(self) -> None:
        service = self.service
        try:
            self._door = Door(self.incarnation, self.peers, service.watch, service.unwatch)
        except OSError as error:  # a sandbox without Unix sockets, say
            _log.warning("no lanes, messages go over connections: %s", error)

    def __repr__(self) -> str:
        return f"Endpoint({self.name!r}, {self.address!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    # ---- links

    def connect(
        self, peer: str, address: str, incarnation: int = 0, timeout: float | None = None
    ) -> Peer:
        """Make a link to `peer`, and wait until it has answered; the one that there is, if it fits.

        `peer` "", or the address again: whoever is there. `incarnation` 0: any. `timeout`: seconds
        (default `Limits.connect_s`). Not to be called from the callbacks. Raises UnreachableError,
        StaleIncarnationError, AuthenticationError, AddressError and InsecureAddressError.
        """
        peer = "" if peer == address else peer
        if peer == self.name or address == self.address:
            return Peer(self.name, self.address, self.incarnation)
        link = self.connections.link_to(peer, address, incarnation)
        seconds = self.limits.connect_s if timeout is None else timeout
        if not link.up.wait(seconds):
            who = f"{peer} at {address}" if peer else address
            error = UnreachableError(f"{who} did not answer within {seconds:.3g} s")
            self.peers.lose(link, error, tell=False)
            raise error
        if not link.alive:
            raise link.lost()
        return Peer(link.name, link.address, link.incarnation)

    def invite(self, address: str) -> Link:
        """Begin a link to the peer whose name is its address, if there is none, and do not wait:
        `connected` shows when it is up. Errors as of `connect` that are known at once."""
        return self.connections.link_to(address, address, 0)

    def disconnect(self, peer: str) -> None:
        """End the link to `peer`, if there is one; it is told."""
        link = self.peers.find(peer)
        if link is not None:
            error = PeerLostError(f"{self.name} disconnected from {peer}")
            self.peers.lose(link, error, tell=False)

    def connected(self) -> list[Peer]:
        """The peers that there are links to."""
        return [Peer(x.name, x.address, x.incarnation) for x in self.peers.links() if x.source]

    def traffic(self) -> dict[str, dict[str, Any]]:
        """Counts of messages, bytes and round trips by peer (`traffic.Traffic.told`), of all links
        since the endpoint was made."""
        return self.peers.traffic()

    # ---- native code

    def words_of(self, peer: str) -> LinkWords | None:
        """For native code: what is of the link to a peer; None where packets do not go both
        ways."""
        link = self.peers.find(peer)
        if link is None or not (link.source and link.has_lane and link.inward is not None):
            return None
        return link.words()

    def take_packets(self, take: TakePacket) -> None:
        """Have packets of lanes read by `take` from now on, in the thread that reads messages."""
        self._inbox.take_packets(take)

    # ---- sending

    def send(
        self,
        peer: str,
        kind: int,
        step: int = 0,
        meta: Any = None,
        buffers: Sequence[object] = (),
    ) -> None:
        """Send a control message: `kind` 0..127, `meta` plain data (60 KB at most), arrays that
        are copied or held until they are sent. Messages to one peer arrive in order, or the link
        is lost. Raises PeerLostError, BackpressureError, MessageTooLargeError, UnsendableError."""
        if not 0 <= kind < 256 - wire.USER:
            raise UnsendableError(f"{kind} is no kind of message; they are 0 to 127")
        packed = self._packed(buffers)
        flags = wire.BUFFERS_FLAG if packed else 0
        head = wire.pack_buffers(meta, packed) if packed else wire.pack_meta(meta)
        if peer == self.name:
            self._give_self(own_message(peer, self.incarnation, kind, step, head, packed))
            return
        data = [data for _, _, data in packed]
        self.deliver(self.peers.named(peer), (kind + wire.USER, flags, step, 0, 0, head, data))

    def _packed(self, buffers: Sequence[object]) -> list[tuple[int, tuple[int, ...], Array]]:
        packed = [wire.as_sendable(buffer) for buffer in buffers]
        total = sum(data.nbytes for _, _, data in packed)
        if total > self.limits.control_bytes:
            raise MessageTooLargeError(
                f"{total} bytes in a control message; at most {self.limits.control_bytes} "
                "(Limits.control_bytes): send them as tensors"
            )
        return packed

    def signal(
        self,
        peer: str,
        kind: int,
        step: int,
        key: int,
        offset: int = 0,
        buffers: Sequence[object] = (),
    ) -> None:
        """Send a control message whose meta data is None and which has two numbers: `key`, of 32
        bits, and `offset`, of 64. Cheaper than `send`, which it is like in all else."""
        if buffers:
            self._signal_with(peer, kind, step, key, offset, buffers)
            return
        number = kind + wire.USER
        if peer != self.name and 0 <= kind <= wire.MOST_USER:
            try:
                if self.peers.named(peer).try_push(number, step, key, offset, b"", b""):
                    return
            except struct.error:  # what is too large is looked for below
                pass
        if not (0 <= kind <= wire.MOST_USER and 0 <= key < 1 << 32 and 0 <= offset < 1 << 64):
            raise UnsendableError(f"kind {kind}, key {key} or offset {offset} cannot be sent")
        if peer == self.name:
            self._give_self(Message(peer, self.incarnation, kind, step, None, (), key, offset))
        else:
            self.deliver(self.peers.named(peer), (number, 0, step, key, offset, b"", b""))

    def _signal_with(
        self, peer: str, kind: int, step: int, key: int, offset: int, buffers: Sequence[object]
    ) -> None:
        """A signal with arrays."""
        if not (0 <= kind <= wire.MOST_USER and 0 <= key < 1 << 32 and 0 <= offset < 1 << 64):
            raise UnsendableError(f"kind {kind}, key {key} or offset {offset} cannot be sent")
        packed, number = self._packed(buffers), kind + wire.USER
        head, parts = wire.pack_buffers(None, packed), [data for _, _, data in packed]
        if peer == self.name:
            made = own_message(peer, self.incarnation, kind, step, head, packed)
            self._give_self(made._replace(key=key, offset=offset))
            return
        link = self.peers.named(peer)
        if sum(data.nbytes for data in parts) <= wire.INLINE_BYTES:
            raw = b"".join([data.tobytes() for data in parts])
            if link.try_push(number, step, key, offset, head, raw, wire.BUFFERS_FLAG):
                return
        self.deliver(link, (number, wire.BUFFERS_FLAG, step, key, offset, head, parts))

    def send_tensor(
        self,
        peer: str,
        step: int,
        key: int,
        iterations: Sequence[int],
        array: object,
        released: Callable[[], None] | None = None,
        *,
        lend: bool = False,
    ) -> None:
        """Send an array, or DEAD, to the rendezvous of `peer`.

        Up to `Limits.eager_bytes` it is copied before this returns. A larger one is read until the
        peer has it, and must not be written until then: `released` is called once when nothing
        reads it any more (also if the step ends or the link is lost). To the task itself the array
        is passed as it is (copied if `released` is given). `lend`: a peer of this host may
        get a large one as a read-only view of this process's memory: of the array itself if that is
        of `room`, else of a copy.
        Raises as `send` does.
        """
        place: Key = (key, tuple(iterations))
        if peer == self.name:
            self._put_here(step, place, array, released)
            return
        link, code = self.peers.named(peer), None
        if type(array) is np.ndarray and array.nbytes <= wire.INLINE_BYTES:
            code = _CODE_OF(array.dtype)
        if type(array) is np.ndarray and code is not None:  # most tensors
            raw = array.tobytes()
            meta = wire.pack_tensor_meta(code, array.shape, place[1], len(raw))
            if not link.try_push(wire.TENSOR, step, key, 0, meta, raw):
                self.deliver(link, (wire.TENSOR, 0, step, key, 0, meta, raw))
            if released is not None:
                released()
            return
        if array is DEAD:
            meta = wire.pack_tensor_meta(0, (0,), place[1], 0)
            self.deliver(link, (wire.TENSOR, wire.DEAD_FLAG, step, key, 0, meta, ()))
            return
        code, shape, data = wire.as_sendable(array)
        if data.nbytes > self.limits.eager_bytes:
            self.transfers.offer(link, step, place, code, shape, data, released, lend)
            return
        meta = wire.pack_tensor_meta(code, shape, place[1], data.nbytes)
        self.deliver(link, (wire.TENSOR, 0, step, key, 0, meta, (data,)))
        if released is not None:
            released()

    def room(self, peer: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
        """See `Lending.room`."""
        return self.transfers.lending.room(self.peers.named(peer), shape, dtype)

    def _put_here(
        self, step: int, key: Key, array: object, released: Callable[[], None] | None
    ) -> None:
        size = 0
        if array is not DEAD:
            array = np.asarray(array) if released is None else np.array(array)
            size = array.nbytes
        self.rendezvous.put(step, key, array, size=size, source=self.name)
        if released is not None:
            released()

    def _give_self(self, message: Message) -> None:
        """Through the service thread, so that it looks like any other message."""

        def give() -> None:
            try:
                self._on_message(message)
            except Exception as error:
                _log.exception("a message of %s to itself could not be handled", self.name)
                self._tell_lost(self.name, PeerLostError(f"{self.name} failed: {error!r}"))

        if self.peers.closed is not None:
            raise self.peers.closed
        self.service.post(give)

    def deliver(self, link: Link, frame: Frame) -> None:
        """Send a frame; wait while the link is full, unless this is a thread that must not."""
        if link.try_send(frame):
            return
        if threading.current_thread() in (self._inbox.thread, self.service.thread):
            held = frame[-1]
            if not isinstance(held, bytes):
                held = [part.copy() for part in held]
            self.connections.tell(link, (*frame[:-1], held))
            return
        deadline, pause = time.monotonic() + self.limits.send_s, 5e-5
        while not link.try_send(frame):
            if time.monotonic() > deadline:
                raise BackpressureError(
                    f"{link.name} took no message for {self.limits.send_s:g} s (Limits.send_s)"
                )
            time.sleep(pause)
            pause = min(2 * pause, 2e-3)

    # ---- steps

    def abort(self, step: int, error: BaseException) -> None:
        """End a step here: who waits in the rendezvous gets `error`, large tensors that are being
        sent or received for it are let go."""
        self.rendezvous.abort(step, error)
        self.transfers.abort(step)

    def forget(self, low_water: int) -> None:
        """Forget all steps of a master up to `low_water` (see `Rendezvous.forget`)."""
        self.rendezvous.forget(low_water)
        self.transfers.forget(low_water)

    def _gone(self, link: Link, error: CommError, tell: bool) -> None:
        self.transfers.lose(link)
        if tell and self.peers.closed is None:
            self._tell_lost(link.name, error)

    def _tell_lost(self, peer: str, error: CommError) -> None:
        try:
            self._on_link_lost(peer, error)
        except Exception:
            _log.exception("on_link_lost of %s failed", self.name)

    def _crashed(self, error: BaseException) -> None:
        """A thread of the endpoint is dead: nothing goes on, and everybody who waits must know."""
        broken = EndpointClosedError(f"the endpoint of {self.name} broke: {error!r}")
        links = self.peers.links()
        self.connections.close(broken)
        for link in links:
            self._tell_lost(link.name, broken)
        self.rendezvous.abort_all(broken)

    # ---- the end

    def close(self) -> None:
        """Tell the peers, end the threads, and give all sockets back. Who waits in the rendezvous
        gets EndpointClosedError. A second call does nothing. In a callback it does not wait."""
        if not self._closing.acquire(blocking=False):
            return
        _endpoints.discard(self)
        closed = EndpointClosedError(f"the endpoint of {self.name} is closed")
        self.connections.close(closed)
        self.rendezvous.abort_all(closed)
        self.service.stop()
        if self._door is not None:
            self._door.close()
        if threading.current_thread() in (self._inbox.thread, self.service.thread):
            threading.Thread(target=self._terminate, name=f"weft-close-{self.name}").start()
        else:
            self._terminate()

    def abandon_door(self) -> None:
        """In the child of a fork: the door is the parent's."""
        if self._door is not None:
            self._door.close()

    def _terminate(self) -> None:
        """Ends the inbox thread, and waits until the peers have the last words or are too slow."""
        self._context.term()
        self._inbox.thread.join()
        self.transfers.lending.close()
        if self._file is not None:
            addresses.remove_socket_file(*self._file)


@atexit.register
def _close_all() -> None:
    for endpoint in list(_endpoints):
        endpoint.close()


def _abandon_all() -> None:
    """ZeroMQ's sockets and threads do not survive a fork: in the child, endpoints are closed."""
    for endpoint in list(_endpoints):
        error = EndpointClosedError(f"{endpoint.name} was made before the fork of this process")
        endpoint.peers.abandon(error)
        endpoint.abandon_door()
    _endpoints.clear()


os.register_at_fork(after_in_child=_abandon_all)
