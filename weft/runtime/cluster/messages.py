"""Messages between master and tasks: their kinds and parts, errors in them, peers in one process.

A RUN with nothing but the part's handle, the step up to which all are over and small feeds, and a
DONE with nothing but the handle, are signals: `key` is the handle, `offset` that step, and `meta`
is None.

What is larger than `SMALL_MESSAGE_BYTES` does not go in a message but as a tensor of the step,
under a key from `FEED` on; the keys of the graph's own messages are below.

Errors are sent as plain data (`ir.error_data`). Sessions and tasks of one process find each other
in a table here: what they say to each other needs no transport."""

from __future__ import annotations

import json
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from weft.comm.rendezvous import Rendezvous
from weft.ir.cost.thresholds import SMALL_MESSAGE_BYTES
from weft.ir.error_data import error_data, error_of
from weft.ir.errors import WeftError

#: Differs where either side would not understand the other.
PROTOCOL = 6

HELLO, WELCOME = 1, 2
REGISTER, REGISTERED, RUN, DONE, ABORT = 16, 17, 18, 19, 20
STATUS, STATUS_OF, RESET, RESET_DONE, GOODBYE, STATS, STATS_OF = 21, 22, 23, 24, 25, 26, 27
DROP, LOG, LOG_OF, KERNELS, KERNELS_OF = 28, 29, 30, 31, 32

#: After so many steps those that are over are forgotten.
FORGET_EVERY = 32

#: How names of sessions begin, and the name under which all of them are counted.
CLIENT, SESSIONS = "/client/", "(sessions)"
FEED, CONSTANT, FETCH = 1 << 30, 3 << 29, 1 << 31


#: A message holds so many arrays, and so many bytes of them, at most.
MOST_ARRAYS, MOST_BYTES = 1000, 8 << 20


def split(arrays: Sequence[Any]) -> tuple[list[Any], dict[int, Any]]:
    """The arrays that go in a message, in order, and by their places those that go by
    themselves."""
    small: list[Any] = []
    large: dict[int, Any] = {}
    left = MOST_BYTES
    for place, array in enumerate(arrays):
        if array.nbytes > min(SMALL_MESSAGE_BYTES, left) or len(small) >= MOST_ARRAYS:
            large[place] = array
        else:
            left -= array.nbytes
            small.append(array)
    return small, large


def to_array(data: Any) -> Any:
    """Plain data as an array of bytes: what may be more than the meta data of a message holds."""
    return np.frombuffer(json.dumps(data).encode(), np.uint8)


def from_array(array: Any) -> Any:
    """The inverse of `to_array`. ValueError for what is no JSON."""
    return json.loads(array.tobytes())


def keys_of(base: int, handle: int) -> int:
    """The key of the first of the tensors that one part of a step is fed, or gives."""
    return base + (handle % (1 << 13) << 16)


class Received(Protocol):
    """A message that came: `weft.comm.endpoint.Message`."""

    @property
    def peer(self) -> str: ...
    @property
    def incarnation(self) -> int: ...
    @property
    def kind(self) -> int: ...
    @property
    def step(self) -> int: ...
    @property
    def meta(self) -> Any: ...
    @property
    def buffers(self) -> Sequence[Any]: ...
    @property
    def key(self) -> int: ...
    @property
    def offset(self) -> int: ...


class Peer(Protocol):
    """Who is at the other end of a link: `weft.comm.link.Peer`."""

    @property
    def name(self) -> str: ...
    @property
    def incarnation(self) -> int: ...


class Carrier(Protocol):
    """What moves the tensors of a step."""

    @property
    def rendezvous(self) -> Rendezvous: ...
    def send_tensor(
        self,
        peer: str,
        step: int,
        key: int,
        iterations: tuple[int, ...],
        value: Any,
        *,
        lend: bool = False,
    ) -> Any: ...
    def room(self, peer: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any: ...


class Wire(Carrier, Protocol):
    """What moves messages: `weft.comm.endpoint.Endpoint`."""

    @property
    def address(self) -> str: ...
    @property
    def incarnation(self) -> int: ...
    def connect(
        self, peer: str, address: str, incarnation: int = 0, timeout: float | None = None
    ) -> Peer: ...
    def disconnect(self, peer: str) -> Any: ...
    def send(
        self, peer: str, kind: int, step: int, meta: dict[Any, Any], buffers: Sequence[Any] = ()
    ) -> Any: ...
    def signal(
        self,
        peer: str,
        kind: int,
        step: int,
        key: int,
        offset: int = 0,
        buffers: Sequence[Any] = (),
    ) -> Any: ...
    def abort(self, step: int, error: BaseException) -> Any: ...
    def forget(self, low_water: int) -> Any: ...
    def close(self) -> Any: ...


Json = dict[str, Any]


class Derived:
    """How far an error is from what went wrong first: the smaller number wins."""

    ROOT, LOST_LINK, LOST, ABORTED = 0, 1, 2, 3


def to_wire(error: BaseException, derived: int = Derived.ROOT) -> Json:
    """`error` as plain data (`ir.error_data`), and how derived it is."""
    return {**error_data(error), "derived": derived}


def from_wire(data: object) -> tuple[WeftError, int]:
    """The error, and how derived it is; of data that is not well formed an UnknownError."""
    derived = data.get("derived") if isinstance(data, Mapping) else 0
    return error_of(data), derived if type(derived) is int else Derived.ROOT


Deliver = Callable[[Received], None]


class Direct(NamedTuple):
    """A message within the process; its arrays are the sender's own, and nobody writes to them."""

    peer: str
    incarnation: int
    kind: int
    step: int
    meta: Any
    buffers: tuple[Any, ...]
    key: int = 0
    offset: int = 0


_lock = threading.Lock()
_known: dict[int | str, weakref.WeakMethod[Deliver]] = {}


def announce(who: int | str, deliver: Deliver) -> None:
    """`who`, a task's incarnation or a session's name, takes messages by that method."""
    with _lock:
        _known[who] = weakref.WeakMethod(deliver)


def withdraw(who: int | str) -> None:
    """It takes no more."""
    with _lock:
        _known.pop(who, None)


def find(who: int | str) -> Deliver | None:
    """How to hand it messages; None if it is not in this process."""
    with _lock:
        found = _known.get(who)
    return None if found is None else found()
