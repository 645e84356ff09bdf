"""What is done about each incoming message: hand-shakes, incarnations and sequences, tensors and
control messages. Runs in the inbox's thread, and blocks nowhere.

A message counts only if it comes from the incarnation that a link was made to, is addressed to this
one, and has the next sequence number of its lane. An earlier number is a repetition and refused; a
later one says that frames were lost, and ends the link.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from weft.comm import compress, wire
from weft.comm.errors import (
    BadFrameError,
    CommError,
    DuplicateKeyError,
    LimitError,
    PeerLostError,
    StepOverError,
)
from weft.comm.inbox import Incoming
from weft.comm.limits import CHUNK_BYTES
from weft.comm.link import INLINE_BYTES, MAX_REASON, Link
from weft.comm.rendezvous import DEAD
from weft.comm.wire import Array, Header, TensorMeta

if TYPE_CHECKING:
    from weft.comm.endpoint import Endpoint

_log = logging.getLogger("weft.comm")
MAX_NAME = 256

#: Makes the array that a tensor is received into: shape, dtype.
Allocate = Callable[[tuple[int, ...], np.dtype[Any]], Array]


@dataclass(frozen=True, slots=True)
class Message:
    """A control message. `kind` and `meta` are the sender's; `buffers` are arrays of their own."""

    peer: str
    incarnation: int
    kind: int
    step: int
    meta: Any
    buffers: tuple[Array, ...] = ()


class Greeting(NamedTuple):
    """What the first message of a link says: who its sender is and where, the token of the link
    that it answers (0: none), and how its memory can be read (shared.py)."""

    name: str
    incarnation: int
    address: str
    answers: int
    memory: list[int]


_GREETING = (str, int, str, int, list)


class Protocol:
    """The handlers of one endpoint."""

    def __init__(self, endpoint: Endpoint, on_message: Callable[[Message], None]) -> None:
        self._endpoint = endpoint
        self._on_message = on_message
        self._greeted: dict[int, None] = {}  # sources that were seen, oldest first
        transfers = endpoint.transfers
        self._handlers: dict[int, Callable[[Link, Incoming], None]] = {
            wire.HELLO_ACK: self._on_ack,
            wire.BYE: self._on_bye,
            wire.PING: self._on_ping,
            wire.TENSOR: self._on_tensor,
            wire.OFFER: transfers.on_offer,
            wire.GRANT: transfers.on_grant,
            wire.CHUNK: transfers.on_chunk,
            wire.CANCEL: transfers.on_cancel,
            wire.RELEASE: transfers.on_release,
        }

    def handle(self, message: Incoming) -> None:
        """One message, whatever is in it. BadFrameError for what is counted and dropped."""
        header = message.header
        link = self._endpoint.peers.of_source(header.source)
        if link is None:
            self._greet(message)
            return
        if header.destination != self._endpoint.incarnation:
            raise BadFrameError("for another incarnation")
        expected = link.expected[header.lane]
        if header.sequence != expected:
            self._out_of_order(link, header.sequence, expected)
            return
        link.expected[header.lane] = (expected + 1) & 0xFFFFFFFF
        link.heard += 1
        try:
            self._dispatch(link, message)
        except BadFrameError:
            link.expected[header.lane] = expected  # it was not the peer's: its own is still to come
            raise

    def _out_of_order(self, link: Link, sequence: int, expected: int) -> None:
        if (sequence - expected) & 0xFFFFFFFF >= 1 << 31:
            raise BadFrameError("replayed")
        error = PeerLostError(
            f"{(sequence - expected) & 0xFFFFFFFF} messages of {link.name} were lost"
        )
        self._endpoint.peers.lose(link, error)

    def _dispatch(self, link: Link, message: Incoming) -> None:
        kind = message.header.kind
        handler = self._on_control if kind >= wire.USER else self._handlers.get(kind)
        if handler is None:
            raise BadFrameError("unknown kind")
        try:
            handler(link, message)
        except BadFrameError:
            raise
        except StepOverError:
            self._endpoint.rejections.count("late", expected=True)
        except DuplicateKeyError as error:
            raise BadFrameError("duplicate key") from error
        except (LimitError, MemoryError) as error:
            self._over_limit(link, message.header, error)
        except Exception as error:
            if self._endpoint.peers.closed is not None:
                return  # sockets go away under it
            # The message is lost for whoever waits for its effect; they must hear of it.
            _log.exception("a message of %s could not be handled", link.name)
            lost = PeerLostError(f"a message of {link.name} could not be handled: {error!r}")
            self._endpoint.peers.lose(link, lost)

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

    def _on_ping(self, link: Link, message: Incoming) -> None:
        message.verify()

    # ---- tensors and control messages

    def _on_tensor(self, link: Link, message: Incoming) -> None:
        header = message.header
        if header.flags & wire.DEAD_FLAG:
            message.verify()
            iterations = wire.unpack_tensor_meta(bytes(message.meta)).iterations
            self._endpoint.rendezvous.put(header.step, (header.key, iterations), DEAD)
            return
        meta = wire.unpack_tensor_meta(bytes(message.meta))
        compressed = compress.check(meta, header.flags)
        size = meta.nbytes // 2 if compressed else meta.nbytes
        if size > CHUNK_BYTES:  # is offered
            raise BadFrameError("payload size")
        if size > INLINE_BYTES:
            array = self._read_tensor(message, meta, size, compressed)
        else:
            array = self._inline_tensor(message, meta, size, compressed)
        if not self._endpoint.rendezvous.put(
            header.step, (header.key, meta.iterations), array, size=meta.nbytes
        ):
            self._endpoint.rejections.count("late", expected=True)

    def _inline_tensor(
        self, message: Incoming, meta: TensorMeta, size: int, compressed: bool
    ) -> Array:
        payload = message.inline
        if len(payload) != size:
            raise BadFrameError("payload size")
        message.verify()
        if not compressed:
            return copy_out(payload, meta, self._endpoint.allocate)
        array = self._endpoint.allocate(meta.shape, np.dtype(np.float32))
        compress.expand(np.frombuffer(payload, np.uint8), array.reshape(-1).view(np.uint8))
        return array

    def _read_tensor(
        self, message: Incoming, meta: TensorMeta, size: int, compressed: bool
    ) -> Array:
        """The payload is a frame of its own: it is read into the array itself."""
        if compressed or meta.dtype is None:
            raw = np.empty(size, np.uint8)
            message.read_into(raw)
            message.verify(raw)
            if meta.dtype is None:
                return wire.unpack_strings(raw, meta.shape)
            array = self._endpoint.allocate(meta.shape, meta.dtype)
            compress.expand(raw, array.reshape(-1).view(np.uint8))
            return array
        array = self._endpoint.allocate(meta.shape, meta.dtype)
        data = array.reshape(-1).view(np.uint8)
        message.read_into(data)
        message.verify(data)
        return array

    def _on_control(self, link: Link, message: Incoming) -> None:
        header = message.header
        if not header.flags & wire.BUFFERS_FLAG:
            message.verify()
            if len(message.inline):
                raise BadFrameError("payload size")
            meta = wire.unpack_meta(message.meta)
            buffers: tuple[Array, ...] = ()
        else:
            meta, buffers = self._read_buffers(message)
        kind = header.kind - wire.USER
        self._on_message(Message(link.name, link.incarnation, kind, header.step, meta, buffers))

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
