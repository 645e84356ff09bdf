"""`Post`: the endpoint of this process at an address, for all its groups and meetings there.

What comes for a group is put into a box by the endpoint's threads, and the caller waits at the
boxes. What comes for a meeting is given to it at once, under the lock."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from typing import Final

from weft.comm.addresses import Secret
from weft.comm.endpoint import Endpoint
from weft.comm.errors import CommError
from weft.comm.members import FAREWELL
from weft.comm.protocol import Message as Letter

#: Control messages of endpoints that are of a group, and of a meeting; both have its name in front,
#: and then the kind of the message there.
GROUP, MEETING = 1, 2
#: Letters of a member to a group that this process has not opened yet, at most.
_MOST_EARLY: Final = 64


class Post:
    """An endpoint whose name is its address. `changed` is told of all that comes, and guards what
    is here."""

    def __init__(self, address: str, secret: Secret | None) -> None:
        self.users = 0
        self.open: set[str] = set()  # names of groups
        self.changed = threading.Condition()
        self.boxes: dict[tuple[str, str], deque[Letter]] = {}  # by group and address of the sender
        self.lost: dict[str, str] = {}  # by address: why
        self.meetings: dict[str, Callable[[Letter], None]] = {}
        self.endpoint = Endpoint(
            address, address, secret, on_message=self._put, on_link_lost=self._lose,
            advertise=address, shared=False,
        )  # fmt: skip

    def forget(self, run: str) -> None:
        """Drop what has come for groups of an elastic run that are not open."""
        with self.changed:
            for key in [k for k in self.boxes if k[0].rpartition("-")[0] == run]:
                if key[0] not in self.open:
                    del self.boxes[key]

    def _put(self, letter: Letter) -> None:
        if not isinstance(letter.meta, list) or len(letter.meta) < 2:
            return
        name = str(letter.meta[0])
        with self.changed:
            self.lost.pop(letter.peer, None)
            if letter.kind == MEETING and name in self.meetings:
                self.meetings[name](letter)
            elif letter.kind == GROUP:
                self._keep(name, letter)
            self.changed.notify_all()

    def _keep(self, group: str, letter: Letter) -> None:
        box = self.boxes.get((group, letter.peer), deque())
        early = group not in self.open
        if early and (len(box) >= _MOST_EARLY or (not box and letter.meta[1] == FAREWELL)):
            return  # of a group that is over, or none
        self.boxes[group, letter.peer] = box
        box.append(letter)

    def _lose(self, peer: str, error: CommError) -> None:
        with self.changed:
            self.lost[peer] = str(error)
            self.changed.notify_all()


_posts: dict[str, Post] = {}
_lock = threading.Lock()


def post_at(address: str, secret: Secret | None) -> Post:
    """The post there, made when it is asked for first. AddressError where another process or a
    server has the address."""
    with _lock:
        found = _posts.get(address)
        if found is None:
            found = _posts[address] = Post(address, secret)
        found.users += 1
        return found


def leave_post(address: str) -> None:
    """What `post_at` gave is used no more."""
    with _lock:
        found = _posts.get(address)
        if found is None:
            return
        found.users -= 1
        if found.users:
            return
        del _posts[address]
    found.endpoint.close()


def _abandon_all() -> None:
    """In a child of a fork: the endpoints are the parent's."""
    global _lock
    _lock = threading.Lock()
    _posts.clear()


os.register_at_fork(after_in_child=_abandon_all)
