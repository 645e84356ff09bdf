"""`RemoteMembers`: the other members of a group whose processes are on several hosts.

Messages go by an endpoint (`endpoint.py`) at the address of this process's task, with its keys,
limits and signs of life. All groups of a process share it (`post.py`), and each message names its
group. A member that is late to join finds what others have sent it in the meantime."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from weft.comm.errors import (
    AddressError,
    BackpressureError,
    CommError,
    EndpointClosedError,
    GroupEndedError,
    PeerLostError,
    UnreachableError,
)
from weft.comm.limits import CHUNK_BYTES
from weft.comm.members import (
    FAREWELL,
    MOST_TEXT,
    Data,
    Message,
    Remote,
    late_error,
    missing_error,
)
from weft.comm.post import GROUP, Post, leave_post, post_at
from weft.comm.protocol import Message as Letter
from weft.comm.traffic import Traffic
from weft.comm.wire import Array

_HELLO: Final = 0
#: For so long one connection is tried.
_TRY_S: Final = 1.0
#: How long a wait goes on until it looks whether somebody else was lost: who has left may have all,
#: and what another one sent at the same time may still be on its way.
_SLICE_S: Final = 0.25
#: How long one that leaves stays for the others at most.
_LINGER_S: Final = 1.0


class RemoteMembers:
    """Links to the other members of a group, at `remote.addresses`. is_there: whether the process
    that has a rank is there. Errors as those of `Group`; AuthenticationError where keys differ,
    InsecureAddressError without one."""

    def __init__(
        self,
        name: str,
        rank: int,
        timeout: float,
        connect_timeout: float,
        is_there: Callable[[int], bool],
        remote: Remote,
    ) -> None:
        if len(set(remote.addresses)) < len(remote.addresses):
            raise AddressError(f"two members of the group '{name}' have one address")
        self.memory: list[Array] = []
        self.doing, self.stop = "the meeting of the group", ""
        self._number = 0  # of the call
        self._is_there = is_there
        self.name, self.rank, self.timeout = name, rank, timeout
        self._addresses = remote.addresses
        self.traffic = {k: Traffic() for k in range(len(remote.addresses)) if k != rank}
        self._others = list(self.traffic)
        self._met: set[int] = set()
        self._post: Post | None = post_at(remote.addresses[rank], remote.secret)
        self._post.open.add(name)
        try:
            self._meet(time.monotonic() + connect_timeout)
        except BaseException as error:
            self.end(Message(FAREWELL, str(error) or type(error).__name__, 0, 0))
            raise

    @property
    def _here(self) -> Post:
        if self._post is None:
            raise EndpointClosedError(f"the group '{self.name}' has ended")
        return self._post

    # ------------------------------------------------------------------------------------ meeting

    def _meet(self, deadline: float) -> None:
        """Connect to all of a lower rank, wait for the others, and greet each other."""
        for rank in self._others:
            if rank < self.rank:
                self._connect(rank, deadline)
                self._greet(rank)
        for rank in self._others:
            letter = self._letter(rank, deadline)
            if letter is None:
                raise missing_error(self._missing(), self.name)
            self._check_greeting(rank, letter)
            self._met.add(rank)
            if rank > self.rank:
                self._greet(rank)

    def _connect(self, rank: int, deadline: float) -> None:
        address = self._addresses[rank]
        while True:
            left = deadline - time.monotonic()
            self._check_missing()
            if left <= 0:
                raise missing_error(self._missing(), self.name)
            try:
                self._here.endpoint.connect("", address, timeout=min(left, _TRY_S))
                return
            except UnreachableError:
                continue  # it does not listen yet

    def _missing(self) -> list[int]:
        return [r for r in self._others if r not in self._met]

    def _check_missing(self) -> None:
        """UnreachableError for members that have not come, and cannot come."""
        gone = [r for r in self._missing() if not self._is_there(r)]
        if gone:
            raise missing_error(gone, self.name)

    def _greet(self, rank: int) -> None:
        self._send(rank, [self.name, _HELLO, 0, 0, f"{self.rank} of {len(self._addresses)}"], [])

    def _check_greeting(self, rank: int, letter: Letter) -> None:
        """AddressError for who takes itself for another member, or one of another group."""
        _, kind, number, _, text = letter.meta
        if kind == FAREWELL:
            raise PeerLostError(f"rank {rank} has left, in {self.doing}: {text}")
        if kind != _HELLO or text != f"{rank} of {len(self._addresses)}" or number:
            raise AddressError(
                f"{self._addresses[rank]} is rank {text} in the group '{self.name}', and rank "
                f"{rank} of {len(self._addresses)} here"
            )

    # ----------------------------------------------------------------------------------- messages

    def tell(self, message: Message, data: Data | None) -> None:
        """Send a message to everybody, in the order of ranks, with a copy of its data."""
        self._number = message.number
        meta = [self.name, message.kind, message.number, message.digest, message.text]
        copies: dict[tuple[int, int], list[Array]] = {}  # of what is the same for all, as most is
        for rank in self._others:
            parts: list[Array] = []
            if data is not None:
                raw = np.frombuffer(memoryview(data(rank)).cast("B"), np.uint8)
                place = int(raw.ctypes.data), raw.nbytes  # what is empty is where the next begins
                if place not in copies:
                    cuts = range(0, raw.nbytes, CHUNK_BYTES)
                    copies[place] = [raw[a : a + CHUNK_BYTES].copy() for a in cuts]
                parts = copies[place]
            self._send(rank, meta, parts)
            self.traffic[rank].message_sent(sum(part.nbytes for part in parts))

    def _send(self, rank: int, meta: list[Any], parts: list[Array]) -> None:
        address = self._addresses[rank]
        try:
            self._here.endpoint.send(address, GROUP, 0, meta, parts)
        except PeerLostError as error:
            raise self._lost(rank, str(error)) from None
        except BackpressureError:
            raise late_error([rank], self._here.endpoint.limits.send_s, self.doing) from None

    def read(self, rank: int) -> tuple[Message, bytearray | memoryview]:
        """The next message of a member, and its data."""
        letter = self._letter(rank, time.monotonic() + self.timeout)
        if letter is None:
            silent = [r for r in self._others if r == rank or (r > rank and not self._has(r))]
            raise late_error(silent, self.timeout, self.doing)
        _, kind, number, digest, text = letter.meta
        buffers = letter.buffers
        self.traffic[rank].message_came(sum(b.nbytes for b in buffers))
        raw = buffers[0] if len(buffers) == 1 else np.concatenate(buffers) if buffers else None
        return Message(kind, text, number, digest), bytearray() if raw is None else raw.data

    def _has(self, rank: int) -> bool:
        return bool(self._here.boxes.get((self.name, self._addresses[rank])))

    def _letter(self, rank: int, deadline: float) -> Letter | None:
        """The next letter of a member; None if none comes. PeerLostError if it, or another one, is
        lost, GroupEndedError if another thread ends the group."""
        post, address = self._here, self._addresses[rank]
        look = time.monotonic() + _SLICE_S
        with post.changed:
            while True:
                box = post.boxes.get((self.name, address))
                if box:
                    return box.popleft()
                if self.stop:
                    raise GroupEndedError(self.stop)
                now = time.monotonic()
                self._check_missing()
                for other in self._met if now > look else self._met & {rank}:
                    self._check_lost(other)
                if now > deadline:
                    return None
                post.changed.wait(min(deadline - now, _SLICE_S))

    def _check_lost(self, rank: int) -> None:
        """PeerLostError if a member is gone, or its last letter says so."""
        post, address = self._here, self._addresses[rank]
        box = post.boxes.get((self.name, address))
        left = box[-1].meta if box and box[-1].meta[1] == FAREWELL else None
        if left is not None and left[3] and left[2] >= self._number:
            return  # it has done this call, so all that it had to send is here
        if address in post.lost or left is not None or not self._is_there(rank):
            raise self._lost(rank, post.lost.get(address, ""))

    def _lost(self, rank: int, why: str) -> PeerLostError:
        """What is known of a member that is gone."""
        address = self._addresses[rank]
        box = self._here.boxes.get((self.name, address))
        if box and box[-1].meta[1] == FAREWELL:
            return PeerLostError(f"rank {rank} has left, in {self.doing}: {box[-1].meta[4]}")
        return PeerLostError(f"rank {rank} ({address}) is lost, in {self.doing}: {why}")

    # ------------------------------------------------------------------------------------ the end

    def end(self, farewell: Message) -> None:
        """Tell all why there is an end, and leave the endpoint."""
        post, self._post = self._post, None
        if post is None:
            return
        text = farewell.text[:MOST_TEXT]
        meta = [self.name, FAREWELL, farewell.number, farewell.digest, text]
        for rank in self._others:
            try:
                post.endpoint.send(self._addresses[rank], GROUP, 0, meta)
            except CommError:
                continue  # who is gone does not hear it
        if post.users == 1:
            self._linger(post)
        with post.changed:
            post.open.discard(self.name)
            for rank in self._others:
                post.boxes.pop((self.name, self._addresses[rank]), None)
        leave_post(self._addresses[self.rank])

    def _linger(self, post: Post) -> None:
        """Wait a moment for the others to leave, too: an endpoint that closes at once may take from
        them what they have not read yet."""
        deadline = time.monotonic() + _LINGER_S
        with post.changed:
            while any(not self._has_left(post, rank) for rank in self._met):
                left = deadline - time.monotonic()
                if left <= 0:
                    return
                post.changed.wait(left)

    def _has_left(self, post: Post, rank: int) -> bool:
        address = self._addresses[rank]
        box = post.boxes.get((self.name, address))
        return address in post.lost or bool(box and box[-1].meta[1] == FAREWELL)

    def abandon(self) -> None:
        """In a child of a fork: the endpoint is the parent's, and closed here."""
        self._post = None
