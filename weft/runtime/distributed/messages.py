"""What master and tasks say to each other: the kinds of messages and where their parts are.

A RUN with nothing but the part's handle and the step up to which all are over, and a DONE with
nothing but the handle, are signals: `key` is the handle, `offset` that step, and `meta` is None.

What is larger than `SMALL` bytes does not go in a message but as a tensor of the
step, under a key from `FEED` on; the keys of the graph's own messages are below.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from weft.comm.rendezvous import Rendezvous

#: Differs where either side would not understand the other.
PROTOCOL = 2

HELLO, WELCOME = 1, 2
REGISTER, REGISTERED, RUN, DONE, ABORT = 16, 17, 18, 19, 20
STATUS, STATUS_OF, RESET, RESET_DONE, GOODBYE, STATS, STATS_OF = 21, 22, 23, 24, 25, 26, 27
DROP = 28

#: How names of sessions begin.
CLIENT = "/client/"
SMALL = 64 << 10
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
        if array.nbytes > min(SMALL, left) or len(small) >= MOST_ARRAYS:
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
    def signal(self, peer: str, kind: int, step: int, key: int, offset: int = 0) -> Any: ...
    def abort(self, step: int, error: BaseException) -> Any: ...
    def forget(self, low_water: int) -> Any: ...
    def close(self) -> Any: ...
