"""The receiving half of an endpoint: its inbox and thread, and what each incoming message does.

One socket serves all peers; its thread never blocks elsewhere. A large payload goes straight into
the array that was made for it.

Messages are hand-shakes, tensors and control messages. One counts only if it comes from the
incarnation that a link was made to, is addressed to this one, and has the next sequence number of
its lane. An earlier number is a repetition and refused; a later one says that frames were lost, and
ends the link."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Sequence
from types import MethodType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import zmq

from weft.comm import wire
from weft.comm.errors import (
    BadFrameError,
    CommError,
    DuplicateKeyError,
    LimitError,
    PeerLostError,
    StepOverError,
    WrongSenderError,
)
from weft.comm.lane import LANE_BYTES, Lanes
from weft.comm.limits import CHUNK_BYTES, STRAY, Rejections
from weft.comm.link import MAX_REASON, Link, Socket
from weft.comm.rendezvous import DEAD
from weft.comm.traffic import CAME, CAME_BYTES
from weft.comm.wire import INLINE_BYTES, Array, Header, TensorMeta

if TYPE_CHECKING:
    from weft.comm.endpoint import Endpoint


_inbox_log = logging.getLogger("weft.comm")


class Incoming:
    """A message while it is read: its first frame, and, until the handler returns, those that
    follow."""

    __slots__ = ("_check", "_socket", "frame", "header", "nbytes")

    def __init__(self, socket: Socket | None, frame: bytes, header: Header) -> None:
        self.header = header
        self._socket = socket  # None: it came by a lane
        self._check = 0
        if header.flags & wire.CHECKSUM_FLAG:
            self._check = 4
            if len(frame) < wire.HEADER.size + header.meta_bytes + 4:
                raise BadFrameError("truncated checksum")
        self.frame = memoryview(frame)
        self.nbytes = len(frame)  # that were read

    @property
    def by_lane(self) -> bool:
        return self._socket is None

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
        view, socket = target.data, self._socket
        for start in range(0, target.nbytes, CHUNK_BYTES):
            part = view[start : start + CHUNK_BYTES]
            if socket is None or not socket.get(zmq.RCVMORE):
                raise BadFrameError("payload size")
            if socket.recv_into(part) != part.nbytes:
                raise BadFrameError("payload size")
        self.nbytes += target.nbytes

    def verify(self, *payload: Array) -> None:
        """Compare the checksum, if there is one, of the header's frame and `payload`."""
        if not self._check:
            return
        body = self.frame[: len(self.frame) - 4]
        if wire.checksum(body, *(part.data for part in payload)) != self.frame[-4:]:
            raise BadFrameError("wrong checksum")


#: Reads a packet of a lane, by its descriptor: None where there is none, True if all is done that
#: it asks for, else its bytes (b"": nothing comes any more).
TakePacket = Callable[[int], "bytes | Literal[True] | None"]


def _read(read: Callable[[int], bytes]) -> bytes | None:
    try:
        return read(LANE_BYTES)
    except BlockingIOError:
        return None
    except OSError:
        return b""


class Inbox:
    """The thread that reads `socket`, and `lanes` where there are some, until the context is
    terminated. `on_crash` is called if the thread ends by an error."""

    def __init__(
        self,
        socket: Socket,
        name: str,
        protocol: Protocol,
        lanes: Lanes,
        rejections: Rejections,
        on_crash: Callable[[BaseException], None],
    ) -> None:
        self._socket = socket
        self._protocol, self._lanes = protocol, lanes
        self._rejections = rejections
        self._on_crash = on_crash
        # What `socket.recv` comes to. To copy a small frame takes a quarter of the time of making
        # an object of it that shows it where libzmq has it.
        self._receive = MethodType(zmq.backend.Socket.recv, socket)
        self._take_packet: TakePacket | None = None
        self.thread = threading.Thread(target=self._run, name=f"weft-inbox-{name}", daemon=True)

    def start(self) -> None:
        self.thread.start()

    def take_packets(self, take: TakePacket) -> None:
        """Have packets read by `take`."""
        self._take_packet = take

    def _run(self) -> None:
        try:
            while True:
                if self._lanes.reads:
                    self._read_all()
                else:
                    self._take(self._receive())
        except zmq.ContextTerminated:
            pass
        except BaseException as error:
            _inbox_log.exception("the inbox thread ended by an error")
            self._on_crash(error)
        finally:
            self._lanes.close()
            self._socket.close(0)

    def _take(self, frame: bytes) -> None:
        """A message that came over ZeroMQ, by its first frame."""
        protocol, socket = self._protocol, self._socket
        try:
            if protocol.take(frame):
                # Asking for RCVMORE takes four times as long as reading. A frame behind this one,
                # which no weft sends, is taken as if it had been sent by itself.
                if protocol.early:
                    protocol.take_early()
                return
            protocol.handle(Incoming(socket, frame, wire.unpack_header(frame, len(frame))))
        except BadFrameError as error:
            self._rejections.count(str(error))
        while socket.get(zmq.RCVMORE):  # leave it where a message begins
            socket.recv_into(bytearray())
        if protocol.early:
            protocol.take_early()

    def _read_queue(self) -> bool:
        """Some messages that have come over ZeroMQ; whether there may be more."""
        with contextlib.suppress(zmq.Again):
            for _ in range(_IN_TURN):
                self._take(self._receive(_DONTWAIT))
            return True
        return False

    def _read_all(self) -> None:
        """As long as there are lanes, in turns with what came over ZeroMQ."""
        lanes, queue, reads = self._lanes, int(self._socket.get(zmq.FD)), self._lanes.reads
        wait, protocol = lanes.watch(queue), self._protocol
        more = self._read_queue()  # libzmq says once that there is something
        while reads:
            found = wait(0) if more else wait()
            for descriptor, _ in found:
                if descriptor == queue:
                    more = True
            if more:
                more = self._read_queue()
            most = _IN_TURN if more else 1
            for descriptor, _ in found:
                if descriptor != queue:
                    self._read_lane(descriptor, most)
            if protocol.early and not more:
                more = self._read_queue()
                if not more:
                    protocol.end_early()

    def _read_lane(self, descriptor: int, most: int) -> None:
        """So many packets of a lane, or all that are there."""
        for _ in range(most):
            read = self._lanes.reads.get(descriptor)
            if read is None:
                return
            if self._take_packet is not None:
                frame = self._take_packet(descriptor)
            else:
                frame = _read(read)
            if frame is None:
                return
            if frame is True:
                continue
            if not frame:
                self._lanes.end(descriptor)
                return
            self._protocol.packet(frame)


#: Messages that are read of one source before others have their turn.
_IN_TURN = 8
#: Packets that are kept take no more bytes for a link.
_EARLY_BYTES = 64 << 20
_DONTWAIT = int(zmq.DONTWAIT)
_log = logging.getLogger("weft.comm")
MAX_NAME = 256
_HEADER_BYTES, _FIELDS = wire.HEADER.size, wire.SHORT_HEADER.unpack_from
_TENSOR = wire.word_of(wire.TENSOR)
_BUFFERS = wire.BUFFERS_FLAG << 8  # as the short header has lane and flags
_SIGNALS = {wire.word_of(kind): kind - wire.USER for kind in range(wire.USER, 256)}

#: Makes the array that a tensor is received into: shape, dtype.
Allocate = Callable[[tuple[int, ...], np.dtype[Any]], Array]


class Message(NamedTuple):
    """A control message. `kind` and `meta` are the sender's; `buffers` are arrays of their own;
    `key` and `offset` are of a `signal`, whose `meta` is None."""

    peer: str
    incarnation: int
    kind: int
    step: int
    meta: Any
    buffers: tuple[Array, ...] = ()
    key: int = 0
    offset: int = 0


class Greeting(NamedTuple):
    """The first message of a link: who its sender is and where, the token of the link that it
    answers (0: none), and how its memory can be read (shared_memory.py)."""

    name: str
    incarnation: int
    address: str
    answers: int
    memory: list[int]


_GREETING = (str, int, str, int, list)


class Protocol:
    """The handlers of one endpoint."""

    def __init__(
        self, endpoint: Endpoint, on_message: Callable[[Message], None], lanes: Lanes
    ) -> None:
        self._endpoint, self._lanes = endpoint, lanes
        self._on_message = on_message
        self._incarnation, self._links = endpoint.incarnation, endpoint.peers.by_source
        self._put, self._allocate = endpoint.rendezvous.put, endpoint.allocate
        self._greeted: dict[int, None] = {}  # sources that were seen, oldest first
        #: Packets of lanes that came before what was sent before them over ZeroMQ, by link and
        #: sequence number.
        self.early: dict[Link, dict[int, Incoming]] = {}
        transfers = endpoint.transfers
        self._handlers: dict[int, Callable[[Link, Incoming], None]] = {
            wire.HELLO_ACK: self._on_ack,
            wire.BYE: self._on_bye,
            wire.PING: transfers.lending.on_ping,
            wire.TENSOR: self._on_tensor,
            wire.OFFER: transfers.on_offer,
            wire.GRANT: transfers.on_grant,
            wire.CHUNK: transfers.on_chunk,
            wire.CANCEL: transfers.on_cancel,
            wire.RELEASE: transfers.on_release,
        }

    def take(self, frame: bytes) -> bool:
        """A signal, or a tensor without flags, that is all in this frame, as most messages are.
        False for anything else, which `handle` gets: also for what is wrong with it."""
        size = len(frame)
        if size < _HEADER_BYTES:
            return False
        word, meta_bytes, lane_flags, source, destination, step, key, sequence, offset = _FIELDS(
            frame
        )
        link = self._links.get(source)
        if link is None or destination != self._incarnation:
            return False
        expected = link.expected
        if sequence != expected[0]:
            return False
        start, dtype = _HEADER_BYTES + meta_bytes, None
        buffers: tuple[Array, ...] | None = ()
        if lane_flags:
            kind = _SIGNALS.get(word)
            buffers = _buffers_in(frame, start) if lane_flags == _BUFFERS else None
            if kind is None or buffers is None:
                return False
        elif word == _TENSOR:
            try:
                meta = wire.unpack_tensor_meta(frame[_HEADER_BYTES:start])
            except BadFrameError:
                return False
            dtype = meta.dtype
            if dtype is None or not meta.nbytes == size - start <= INLINE_BYTES:
                return False
        else:
            kind = _SIGNALS.get(word)
            if kind is None or meta_bytes or size != _HEADER_BYTES:
                return False
        expected[0] = (sequence + 1) & 0xFFFFFFFF
        counts = link.traffic.counts
        counts[CAME] += 1
        counts[CAME_BYTES] += size
        try:
            if dtype is None:
                told = link.name, link.incarnation, kind, step, None, buffers, key, offset
                self._on_message(tuple.__new__(Message, told))  # what `Message` does, in time
                return True
            array = self._allocate(meta.shape, dtype)
            if meta.nbytes:
                array[...] = np.ndarray(meta.shape, dtype, frame, start)
            place = key, meta.iterations
            if not self._put(step, place, array, size=meta.nbytes, source=link.name):
                self._endpoint.rejections.count("late", expected=True)
        except Exception as error:
            self._not_handled(link, wire.unpack_header(frame, size), error)
        return True

    def handle(self, message: Incoming) -> None:
        """One message, whatever is in it. BadFrameError for what is counted and dropped."""
        header, link = message.header, self._endpoint.peers.of_source(message.header.source)
        kind, lane, sequence = header.kind, header.lane, header.sequence
        if link is None:
            self._greet(message)
            return
        if header.destination != self._incarnation:
            raise BadFrameError("for another incarnation")
        expected = link.expected[lane]
        if sequence != expected and lane == wire.CTL and link.inward is not None:
            if message.by_lane:
                self._keep_early(link, message)
                return
            self._catch_up(link, sequence)
            expected = link.expected[lane]
        if sequence != expected:
            self._out_of_order(link, sequence, expected)
            return
        link.expected[lane] = (expected + 1) & 0xFFFFFFFF
        link.traffic.counts[CAME] += 1
        try:
            if kind >= wire.USER:
                self._on_control(link, message)
            elif kind in self._handlers:
                self._handlers[kind](link, message)
            else:
                raise BadFrameError("unknown kind")
        except Exception as error:
            self._not_handled(link, header, error)
        finally:
            link.traffic.counts[CAME_BYTES] += message.nbytes

    # ---- lanes

    def packet(self, frame: bytes) -> None:
        """What came by a lane."""
        try:
            if not self.take(frame):
                self.handle(Incoming(None, frame, wire.unpack_header(frame, len(frame))))
        except BadFrameError as error:
            self._endpoint.rejections.count(str(error))

    def _catch_up(self, link: Link, sequence: int) -> None:
        """Take the packets that were sent before a message: they are there."""
        inward = link.inward
        while inward is not None and link.alive and link.expected[wire.CTL] != sequence:
            try:
                frame = inward.recv(LANE_BYTES)
            except OSError:
                return
            if not frame:  # this end is found again
                return
            self.packet(frame)

    def _keep_early(self, link: Link, message: Incoming) -> None:
        """A packet before which something is to come over ZeroMQ."""
        sequence, expected = message.header.sequence, link.expected[wire.CTL]
        if (sequence - expected) & 0xFFFFFFFF >= 1 << 31:
            raise BadFrameError("replayed")
        if link not in self.early:
            self.early[link], link.waits_since = {}, time.monotonic()
        kept = self.early[link]
        kept[sequence] = message
        full = len(kept) > self._endpoint.limits.backlog or (
            len(kept) % 256 == 0 and sum(m.nbytes for m in kept.values()) > _EARLY_BYTES
        )
        if full or expected == link.refused:  # which does not come again
            self._lose_early(link)

    def end_early(self) -> None:
        """End the links whose packets wait for what does not come: it is not in ZeroMQ's queue,
        which is empty."""
        latest = time.monotonic() - self._endpoint.limits.heartbeat_timeout_s
        for link in [link for link in self.early if link.waits_since < latest]:
            self._lose_early(link)

    def _lose_early(self, link: Link) -> None:
        expected = link.expected[wire.CTL]
        first = min(self.early.pop(link), key=lambda s: (s - expected) & 0xFFFFFFFF)
        with contextlib.suppress(BadFrameError):
            self._out_of_order(link, first, expected)

    def take_early(self) -> None:
        """Take the packets before which nothing is to come any more."""
        for link, kept in list(self.early.items()):
            while link.alive and (found := kept.pop(link.expected[wire.CTL], None)) is not None:
                link.waits_since = time.monotonic()
                try:
                    self.handle(found)
                except BadFrameError as error:
                    self._endpoint.rejections.count(str(error))
            if not kept or not link.alive:
                del self.early[link]

    def _not_handled(self, link: Link, header: Header, error: Exception) -> None:
        """After an error of handling a message. BadFrameError if it is not the peer's."""
        refused = self._failed(link, header, error)
        if refused is None:
            return
        link.expected[header.lane] = header.sequence  # the peer's own is still to come
        if header.lane == wire.CTL:
            link.refused = header.sequence
        if refused is error:
            raise error
        raise refused from error

    def _out_of_order(self, link: Link, sequence: int, expected: int) -> None:
        if (sequence - expected) & 0xFFFFFFFF >= 1 << 31:
            raise BadFrameError("replayed")
        error = PeerLostError(
            f"{(sequence - expected) & 0xFFFFFFFF} messages of {link.name} were lost"
        )
        self._endpoint.peers.lose(link, error)

    def _failed(self, link: Link, header: Header, error: Exception) -> BadFrameError | None:
        """A message was not handled: what it is refused with, if it is not the peer's."""
        if isinstance(error, BadFrameError):
            return error
        if isinstance(error, DuplicateKeyError):
            return BadFrameError("duplicate key")
        if isinstance(error, WrongSenderError):
            self._endpoint.rejections.count(STRAY, f": {error}")
        elif isinstance(error, StepOverError):
            self._endpoint.rejections.count("late", expected=True)
        elif isinstance(error, (LimitError, MemoryError)):
            self._over_limit(link, header, error)
        elif self._endpoint.peers.closed is None:  # else sockets go away under it
            # The message is lost for whoever waits for its effect; they must hear of it.
            _log.error("a message of %s could not be handled", link.name, exc_info=error)
            lost = PeerLostError(f"a message of {link.name} could not be handled: {error!r}")
            self._endpoint.peers.lose(link, lost)
        return None

    def _over_limit(self, link: Link, header: Header, error: Exception) -> None:
        """The message is dropped: its step ends, or, where that reaches nobody, the link."""
        self._endpoint.rejections.count("over a limit", f": {error}")
        if header.kind in (wire.TENSOR, wire.OFFER):
            self._endpoint.abort(header.step, error)
            if self._endpoint.rendezvous.is_over(header.step):
                return
        lost = PeerLostError(f"a message of {link.name} is over a limit: {error}")
        self._endpoint.peers.lose(link, lost)

    # ---- hand-shakes

    def _greet(self, message: Incoming) -> None:
        """The first message of a link must be a HELLO, or the answer to ours."""
        header = message.header
        if header.kind not in (wire.HELLO, wire.HELLO_ACK):
            if header.source not in self._greeted:
                raise BadFrameError("unknown link")
            self._endpoint.rejections.count("late", expected=True)  # of a link that was lost
            return
        if header.sequence or header.lane != wire.CTL or not header.source:
            raise BadFrameError("malformed greeting")
        greeting = self._greeting(message)
        if header.source in self._greeted:
            raise BadFrameError("replayed")
        try:
            if header.kind == wire.HELLO:
                link = self._endpoint.connections.answer(greeting, header.source)
            else:
                link = self._answered(message, greeting)
        except CommError as error:
            raise BadFrameError(f"greeting refused: {type(error).__name__}") from error
        self._greeted[header.source] = None
        if len(self._greeted) > 4 * self._endpoint.limits.peers:
            del self._greeted[next(iter(self._greeted))]
        link.expected[wire.CTL] = 1
        link.traffic.counts[CAME] += 1
        link.traffic.counts[CAME_BYTES] += message.nbytes
        self._lanes.open(link)

    def _greeting(self, message: Incoming) -> Greeting:
        message.verify()
        meta = wire.unpack_meta(message.meta)
        if not isinstance(meta, list) or len(meta) != len(_GREETING):
            raise BadFrameError("malformed greeting")
        if not all(type(x) is kind for x, kind in zip(meta, _GREETING, strict=True)):
            raise BadFrameError("malformed greeting")
        greeting = Greeting(*meta)
        if not (0 < len(greeting.name) <= MAX_NAME and greeting.name.isprintable()):
            raise BadFrameError("malformed greeting")
        if not 0 < greeting.incarnation < 1 << 63:
            raise BadFrameError("malformed greeting")
        if greeting.incarnation == self._endpoint.incarnation:
            raise BadFrameError("own greeting")
        return greeting

    def _answered(self, message: Incoming, greeting: Greeting) -> Link:
        if message.header.destination != self._endpoint.incarnation:
            raise BadFrameError("for another incarnation")
        return self._endpoint.connections.answered(greeting, message.header.source)

    def _on_ack(self, link: Link, message: Incoming) -> None:
        self._answered(message, self._greeting(message))

    def _on_bye(self, link: Link, message: Incoming) -> None:
        message.verify()
        reason = wire.unpack_meta(message.meta)
        if not isinstance(reason, str) or len(reason) > MAX_REASON:
            raise BadFrameError("malformed farewell")
        error = PeerLostError(f"{link.name} closed the connection: {reason}")
        self._endpoint.peers.lose(link, error)

    # ---- tensors and control messages

    def _on_tensor(self, link: Link, message: Incoming) -> None:
        header = message.header
        if header.flags & wire.DEAD_FLAG:
            message.verify()
            iterations = wire.unpack_tensor_meta(bytes(message.meta)).iterations
            self._put(header.step, (header.key, iterations), DEAD, source=link.name)
            return
        if header.flags & wire.SHARED_FLAG:
            self._endpoint.transfers.lending.on_lent(link, message)
            return
        meta = wire.unpack_tensor_meta(bytes(message.meta))
        array, key = self._payload(message, meta), (header.key, meta.iterations)
        if not self._put(header.step, key, array, size=meta.nbytes, source=link.name):
            self._endpoint.rejections.count("late", expected=True)

    def _payload(self, message: Incoming, meta: TensorMeta) -> Array:
        if meta.nbytes > CHUNK_BYTES:  # is offered
            raise BadFrameError("payload size")
        if meta.nbytes > INLINE_BYTES:
            return self._read_tensor(message, meta)
        payload = message.inline
        if len(payload) != meta.nbytes:
            raise BadFrameError("payload size")
        message.verify()
        return copy_out(payload, meta, self._endpoint.allocate)

    def _read_tensor(self, message: Incoming, meta: TensorMeta) -> Array:
        """The payload is a frame of its own: it is read into the array itself."""
        if meta.dtype is None:
            raw = np.empty(meta.nbytes, np.uint8)
            message.read_into(raw)
            message.verify(raw)
            return wire.unpack_strings(raw, meta.shape)
        array = self._endpoint.allocate(meta.shape, meta.dtype)
        data = array.reshape(-1).view(np.uint8)
        message.read_into(data)
        message.verify(data)
        return array

    def _on_control(self, link: Link, message: Incoming) -> None:
        header, kind = message.header, message.header.kind - wire.USER
        if not header.meta_bytes and not header.flags & wire.BUFFERS_FLAG:  # a signal
            message.verify()
            if len(message.inline):
                raise BadFrameError("payload size")
            step, key, offset = header.step, header.key, header.offset
            who = link.name, link.incarnation
            self._on_message(Message(*who, kind, step, None, (), key, offset))
            return
        if not header.flags & wire.BUFFERS_FLAG:
            message.verify()
            if len(message.inline):
                raise BadFrameError("payload size")
            meta = wire.unpack_meta(message.meta)
            buffers: tuple[Array, ...] = ()
        else:
            meta, buffers = self._read_buffers(message)
        who, numbers = (link.name, link.incarnation), (header.key, header.offset)
        self._on_message(Message(*who, kind, header.step, meta, buffers, *numbers))

    def _read_buffers(self, message: Incoming) -> tuple[Any, tuple[Array, ...]]:
        limit = self._endpoint.limits.control_bytes
        user, metas = wire.unpack_buffers(message.meta, limit)
        total = sum(meta.nbytes for meta in metas)
        if total <= INLINE_BYTES:
            message.verify()
            payload = message.inline
            if len(payload) != total:
                raise BadFrameError("payload size")
            buffers, start = [], 0
            for meta in metas:
                part = payload[start : start + meta.nbytes]
                buffers.append(copy_out(part, meta, np.empty))
                start += meta.nbytes
            return user, tuple(buffers)
        raw = [np.empty(meta.nbytes, np.uint8) for meta in metas]
        for data in raw:
            message.read_into(data)
        message.verify(*raw)
        return user, tuple(as_tensor(data, meta) for data, meta in zip(raw, metas, strict=True))


def _buffers_in(frame: bytes, start: int) -> tuple[Array, ...] | None:
    """The arrays of a signal, which begin there; None where `Protocol.handle` has to look."""
    try:
        total, metas = wire.unpack_buffer_metas(frame[_HEADER_BYTES:start])
    except BadFrameError:
        return None
    if start + total != len(frame):
        return None
    found = []
    for meta in metas:
        found.append(np.ndarray(meta.shape, meta.dtype, frame, start).copy())
        start += meta.nbytes
    return tuple(found)


def copy_out(payload: memoryview, meta: TensorMeta, allocate: Allocate) -> Array:
    """A tensor of its own, aligned memory, from a part of a frame."""
    if meta.dtype is None:
        return wire.unpack_strings(np.frombuffer(payload, np.uint8), meta.shape)
    array = allocate(meta.shape, meta.dtype)
    if meta.nbytes:
        array[...] = np.ndarray(meta.shape, meta.dtype, payload)
    return array


def as_tensor(data: Array, meta: TensorMeta) -> Array:
    """The tensor whose bytes `data` (uint8) is: the same memory, but for strings."""
    if meta.dtype is None:
        return wire.unpack_strings(data, meta.shape)
    return data.view(meta.dtype).reshape(meta.shape)


def own_message(
    name: str,
    incarnation: int,
    kind: int,
    step: int,
    head: bytes,
    buffers: Sequence[tuple[int, tuple[int, ...], Array]],
) -> Message:
    """What a task that sends itself a control message gets."""
    meta = wire.unpack_meta(head)
    arrays = []
    for code, shape, data in buffers:
        copied = TensorMeta(wire.dtype_of(code), shape, (), data.nbytes)
        arrays.append(as_tensor(data.copy(), copied))
    user = meta[0] if buffers else meta
    return Message(name, incarnation, kind, step, user, tuple(arrays))
