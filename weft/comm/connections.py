"""Connections of an endpoint: greetings, heartbeats and ends of links, and the thread for them.

The `Service` thread is an endpoint's second one: it watches connections, answers authentication
requests, sends what others queued and the chunks of large tensors, and keeps the time. Sockets that
it watches are its own."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable

import zmq
from zmq.utils.monitor import recv_monitor_message

from weft.comm import wire
from weft.comm.addresses import Address, check_reach, parse_address
from weft.comm.errors import (
    AddressError,
    AuthenticationError,
    BackpressureError,
    CommError,
    LimitError,
    PeerLostError,
    StaleIncarnationError,
    UnreachableError,
)
from weft.comm.limits import Limits
from weft.comm.link import (
    BULK_HWM,
    CTL_HWM,
    Context,
    Frame,
    Keys,
    Link,
    Peer,
    Peers,
    Socket,
    dealer,
)
from weft.comm.protocol import Greeting
from weft.comm.shared_memory import AVAILABLE, PeerMemory, Proof

_service_log = logging.getLogger("weft.comm")


class Service:
    """The service thread: a loop over a poller, calls posted from other threads, and timers."""

    def __init__(self, name: str, on_crash: Callable[[BaseException], None]) -> None:
        self._poller = zmq.Poller()
        self._handlers: dict[object, Callable[[], None]] = {}
        self._calls: deque[Callable[[], None]] = deque()
        self._timers: list[tuple[float, float, Callable[[], None]]] = []  # due, period, call
        self._busy: list[Callable[[], bool]] = []
        self._on_crash = on_crash
        self._own: list[Socket] = []
        self._stopping = False
        self._wake_in, self._wake_out = os.pipe()
        os.set_blocking(self._wake_in, False)
        os.set_blocking(self._wake_out, False)
        self._poller.register(self._wake_in, zmq.POLLIN)
        self._woken = self._ended = False
        self._lock = threading.Lock()
        self.thread = threading.Thread(target=self._run, name=f"weft-service-{name}", daemon=True)

    def start(self) -> None:
        self.thread.start()

    def discard(self) -> None:
        """In place of `start`: give the descriptors back."""
        with self._lock:
            self._ended = True
            os.close(self._wake_in)
            os.close(self._wake_out)

    def post(self, call: Callable[[], None]) -> None:
        """Have the thread call it, after what was posted before. Once the thread has ended it is
        called at once: what is to be closed must be."""
        with self._lock:
            if not self._ended:
                self._calls.append(call)
                if not self._woken:
                    self._woken = True
                    os.write(self._wake_out, b"x")
                return
        call()

    # ---- for the service thread, and before it is started

    def watch(
        self,
        socket: Socket | int,
        handler: Callable[[], None],
        events: int = zmq.POLLIN,
        *,
        close: bool = False,
    ) -> None:
        """Call `handler` whenever `socket`, or a descriptor, is readable (or as `events` says).

        close: the thread closes it at its end. Not for a monitor, which has to outlive what it
        monitors: an I/O thread that tells a closed one waits for ever, and with it who asks next.
        """
        self._poller.register(socket, events)
        self._handlers[socket] = handler
        if close and isinstance(socket, zmq.Socket):
            self._own.append(socket)

    def unwatch(self, socket: Socket | int) -> None:
        if self._handlers.pop(socket, None) is not None:
            self._poller.unregister(socket)

    def every(self, seconds: float, call: Callable[[], None]) -> None:
        self._timers.append((time.monotonic() + seconds, seconds, call))

    def retry(self, call: Callable[[], bool]) -> None:
        """Call it about once a millisecond until it returns True, and once at the end."""
        if self._ended:
            call()
        else:
            self._busy.append(call)

    # ---- the loop

    def stop(self) -> None:
        """End the thread after what was posted, and wait for it unless it is the caller."""
        self.post(self._end)
        if threading.current_thread() is not self.thread:
            self.thread.join()

    def _end(self) -> None:
        self._stopping = True

    def _run(self) -> None:
        try:
            while not self._stopping:
                self._turn()
        except zmq.ContextTerminated:
            pass
        except BaseException as error:
            _service_log.exception("the service thread ended by an error")
            self._on_crash(error)
        finally:
            with self._lock:
                self._ended = True
                os.close(self._wake_in)
                os.close(self._wake_out)
            for call in [*self._calls, *self._busy]:
                call()
            for socket in self._own:
                socket.close(0)

    def _turn(self) -> None:
        for socket, _ in self._poller.poll(self._wait_ms()):
            handler = self._handlers.get(socket)  # one before it may have unwatched it
            if handler is not None:
                handler()
            elif socket == self._wake_in:
                with self._lock:
                    os.read(self._wake_in, 64)
                    self._woken = False
        while self._calls:
            self._calls.popleft()()
        if self._busy:
            busy, self._busy = self._busy, []
            self._busy += [call for call in busy if not call()]
        now = time.monotonic()
        for i, (due, period, call) in enumerate(self._timers):
            if now >= due:
                self._timers[i] = (now + period, period, call)
                call()

    def _wait_ms(self) -> int | None:
        if self._busy:
            return 1
        if not self._timers:
            return None
        due = min(timer[0] for timer in self._timers)
        return max(0, int((due - time.monotonic()) * 1000) + 1)


_log = logging.getLogger("weft.comm")
MOST_SHARED = 1 << 36  # bytes of a peer's memory that are mapped
PARTING_S = 2.0  # a peer that could not be told so far that the link is over is tried for so long


def _proof() -> Proof | None:
    try:
        return Proof()
    except OSError as error:  # a sandbox without memfd_create, say
        _log.warning("no shared memory, large tensors go over connections: %s", error)
        return None


class Connections:
    """The links of one endpoint. `me`: its name, address and incarnation. `on_gone`: see Peers."""

    def __init__(
        self,
        context: Context,
        service: Service,
        limits: Limits,
        keys: Keys | None,
        allow_plain: bool,
        checksums: bool,
        shared: bool,
        on_gone: Callable[[Link, CommError, bool], None],
        counted_as: Callable[[str], str],
    ) -> None:
        self.me = Peer("", "", 0)
        self._context = context
        self._service = service
        self._limits = limits
        self._keys = keys
        self._allow_plain = allow_plain
        self._checksums = checksums
        self._on_gone = on_gone
        self._proof = _proof() if shared and AVAILABLE else None
        self._making = threading.Lock()
        self.peers = Peers(limits.peers, self._gone, counted_as)

    @property
    def shares(self) -> bool:
        """Whether peers of this host may use its memory and sockets."""
        return self._proof is not None

    def link_to(self, peer: str, address: str, incarnation: int) -> Link:
        """The link to a peer ("": whoever is at the address) that there is, or a new one."""
        address = str(self._check_address(address))
        peer = peer or self.peers.name_at(address)

        def fits(link: Link) -> bool:
            if incarnation and link.incarnation:
                return link.incarnation == incarnation
            return link.address == address

        anew = PeerLostError(f"{peer} is connected to anew")
        return self._find_or_make(peer, address, incarnation, fits, anew, greets=True)

    def _check_address(self, address: str) -> Address:
        where = parse_address(address)
        check_reach(where, self._keys is not None, self._allow_plain)
        if where.is_wildcard or (where.scheme == "tcp" and where.port == 0):
            raise AddressError(f"{address} is no address to connect to")
        return where

    def _find_or_make(
        self,
        name: str,
        address: str,
        incarnation: int,
        fits: Callable[[Link], bool],
        otherwise: CommError,
        *,
        greets: bool = False,
    ) -> Link:
        """The link of that name if it fits, else a new one; one that does not fit is lost by the
        error `otherwise`. greets: whether a HELLO goes on a new one, before anybody finds it."""
        while True:
            with self._making:
                found = self.peers.find(name) if name else None
                if found is None:
                    made = self._make_link(name, address, incarnation)
                    if greets:
                        self._greet(made, 0)
                    return made
            if fits(found):
                return found
            self.peers.lose(found, otherwise)

    def _make_link(self, peer: str, address: str, incarnation: int) -> Link:
        self.peers.check_room()
        try:
            ctl = dealer(self._context, self._limits, self._keys, CTL_HWM)
        except zmq.ZMQError as error:  # no descriptors, say
            raise LimitError(f"no socket for a link to {address}: {error}") from None
        link = Link(peer, address, incarnation, secrets.randbits(62) | 1, ctl)
        link.checksums = self._checksums
        self.peers.add(link)
        self._service.post(lambda: self._watch(link))
        return link

    def _greet(self, link: Link, answers: int) -> None:
        """Say who this is; `answers` is the token of the greeting that is answered, or 0."""
        memory = [] if self._proof is None else self._proof.told
        me = self.me
        meta = wire.pack_meta([me.name, me.incarnation, me.address, answers, memory])
        kind = wire.HELLO_ACK if answers else wire.HELLO
        self.tell(link, (kind, 0, 0, 0, 0, meta, ()))

    def answer(self, greeting: Greeting, source: int) -> Link:
        """A peer's HELLO: connect back to it, or answer on the link that is being made to it."""
        self._check_address(greeting.address)
        name, incarnation = greeting.name, greeting.incarnation
        found = self.peers.find(name)
        again = found is not None and found.incarnation == incarnation
        link = self._find_or_make(
            name,
            greeting.address,
            incarnation,
            lambda link: not link.source and link.incarnation in (0, incarnation),
            PeerLostError(f"{name} {'connected anew' if again else 'was restarted'}"),
        )
        self._know(link, greeting, source)
        self._greet(link, source)
        return link

    def answered(self, greeting: Greeting, source: int) -> Link:
        """The answer to a HELLO of ours. Raises what is wrong with it, as `connect` does."""
        link = self.peers.of_token(greeting.answers)
        if link is None:
            raise UnreachableError("answer to no greeting")
        error: CommError | None = None
        if link.name and link.name != greeting.name:
            error = UnreachableError(f"{greeting.name} answers at {link.address}, not {link.name}")
        elif link.incarnation and link.incarnation != greeting.incarnation:
            error = StaleIncarnationError(f"{link.name} was restarted: another process answers")
        if error is not None:
            self.peers.lose(link, error, tell=False)
            raise error
        other = self.peers.find(greeting.name)
        if other is not None and other is not link:
            self.peers.lose(other, PeerLostError(f"{greeting.name} connected anew"))
        self._know(link, greeting, source)
        if link.memory is not None:
            self.sign(link)
        return link

    def _know(self, link: Link, greeting: Greeting, source: int) -> None:
        if link.memory is None and self._proof is not None:
            link.memory = PeerMemory.of(greeting.memory, MOST_SHARED)
        self.peers.know(link, greeting.name, greeting.incarnation, source)

    def tell(self, link: Link, frame: Frame) -> None:
        """Send a frame now or have the service thread send it: for threads that must not wait. A
        lost link is no error here."""
        try:
            if not link.post(frame, self._limits.backlog) and link.connected:
                self._service.post(lambda: self._service.retry(link.flush))
        except BackpressureError as error:
            self.peers.lose(link, PeerLostError(str(error)))
        except CommError:
            pass  # whoever needs to know hears of the loss

    # ---- the service thread

    def _watch(self, link: Link) -> None:
        if link.alive:  # else `_retire` closes it
            self._service.watch(link.monitor, lambda: self._monitored(link, link.monitor))

    def _monitored(self, link: Link, monitor: Socket) -> None:
        while link.alive:
            try:
                event = recv_monitor_message(monitor, zmq.DONTWAIT)["event"]
            except zmq.Again:
                return
            if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                if monitor is link.monitor:
                    link.connected = True
                    self._service.retry(link.flush)
            elif event == zmq.EVENT_DISCONNECTED:
                if link.connected:
                    error: CommError = PeerLostError(f"the connection to {link.name} was lost")
                    self.peers.lose(link, error)
            elif event != zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL or self._keys is not None:
                who = link.name or link.address
                mine = "this task's key" if self._keys else "this task, which has no key"
                error = AuthenticationError(f"{who} and {mine} do not go together")
                self.peers.lose(link, error)

    def open_bulk(self, link: Link) -> None:
        """Open the lane for large tensors; the link is lost where that is not possible."""
        try:
            bulk = dealer(self._context, self._limits, self._keys, BULK_HWM)
        except zmq.ZMQError as error:
            self.peers.lose(link, PeerLostError(f"no socket for {link.name}'s tensors: {error}"))
            return
        bulk.copy_threshold = 0  # a last chunk that is copied would be done before those before it
        monitor = bulk.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        bulk.connect(link.address)
        link.bulk, link.bulk_monitor = bulk, monitor
        self._service.watch(monitor, lambda: self._monitored(link, monitor))

    def _retire(self, link: Link) -> None:
        for socket in (link.monitor, link.bulk_monitor, link.bulk):
            if socket is not None:
                self._service.unwatch(socket)
        until = time.monotonic() + PARTING_S

        def parted() -> bool:
            if not link.part(time.monotonic() > until or self.peers.closed is not None):
                return False
            link.monitor.close(0)  # not before: who tells a monitor that is closed waits for ever
            return True

        self._service.retry(parted)
        if link.ring is not None:
            link.ring.close()
            link.ring = None
        if link.bulk is not None:
            link.bulk.disable_monitor()
            link.bulk.close(0)
        if link.bulk_monitor is not None:
            link.bulk_monitor.close(0)

    def look_after(self) -> None:
        """Signs of life, once per `Limits.heartbeat_s`."""
        now = time.monotonic()
        for link in self.peers.links():
            if not link.connected or not link.source:
                if now - link.since > self._limits.connect_s and link.source:
                    error: CommError = UnreachableError(
                        f"{link.name} cannot be reached at {link.address}"
                    )
                    self.peers.lose(link, error)
                continue
            if link.traffic.came != link.counted:
                link.counted, link.since = link.traffic.came, now
            elif now - link.since > self._limits.silence_s:
                seconds = f"{self._limits.silence_s:g} s"
                error = PeerLostError(f"{link.name} has said nothing for {seconds}")
                self.peers.lose(link, error)
                continue
            self.sign(link)

    def sign(self, link: Link) -> None:
        """A sign of life, if the link has room; it says whether the peer's memory can be read, and
        the time, which the peer sends back."""
        flags = 0 if link.memory is None else wire.SHARED_FLAG
        asked, sent = link.traffic.ask(), False
        with contextlib.suppress(CommError):
            sent = link.try_send((wire.PING, flags, 0, wire.ASKED, asked, b"", ()))
        if asked and not sent:
            link.traffic.unsent()

    def _gone(self, link: Link, error: CommError, tell: bool) -> None:
        self._service.post(lambda: self._retire(link))
        self._on_gone(link, error, tell)

    def close(self, error: CommError) -> None:
        """End all links, and make no more."""
        with self._making:
            self.peers.closed = self.peers.closed or error
        for link in self.peers.links():
            self.peers.lose(link, PeerLostError(f"{self.me.name} was closed"), tell=False)
        if self._proof is not None:
            self._proof.close()
