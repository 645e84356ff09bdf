"""The table of links of an endpoint: by name, by what
their frames carry, and by what ours do."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from weft.comm.errors import CommError, LimitError, UnknownPeerError
from weft.comm.link import Link

LINGER_MS = 200  # for the last words to a peer that is slow


@dataclass(frozen=True, slots=True)
class Peer:
    """Who is at the other end of a link."""

    name: str
    address: str
    incarnation: int


class Peers:
    """Thread-safe. `on_gone(link, error, told)` is called once for each link that is lost, outside
    of the lock; `told`: somebody wants to hear of it."""

    def __init__(self, most: int, on_gone: Callable[[Link, CommError, bool], None]) -> None:
        self._most = most
        self._on_gone = on_gone
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

    def abandon(self, error: CommError) -> None:
        """In the child of a fork: the links are the parent's. No lock, whose holder is not here."""
        self.closed = error
        self._all, self._by_name, self._by_source, self._by_token = set(), {}, {}, {}

    def lose(self, link: Link, error: CommError, *, tell: bool = True) -> bool:
        """End a link: nothing is sent or accepted on it any more, and the peer is told if it can
        be. False if the link was lost before."""
        with self._lock:
            if not link.alive:
                return False
            link.alive = False
            link.cause = error
            self._all.discard(link)
            del self._by_token[link.token]
            if self._by_name.get(link.name) is link:
                del self._by_name[link.name]
            self._by_source.pop(link.source, None)
        link.close(str(error), LINGER_MS)
        self._on_gone(link, error, tell and link.up.is_set())
        link.up.set()
        return True
