"""Endpoints that hand messages to each other within one process: what master and workers do is
tested without a transport."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

from weft.comm.errors import PeerLostError, UnreachableError
from weft.comm.rendezvous import Rendezvous


@dataclass(frozen=True)
class LocalMessage:
    peer: str
    incarnation: int
    kind: int
    step: int
    meta: Any
    buffers: tuple[Any, ...]
    key: int = 0
    offset: int = 0


@dataclass(frozen=True)
class LocalPeer:
    name: str
    address: str
    incarnation: int


class Network:
    """Endpoints by address."""

    def __init__(self) -> None:
        self.endpoints: dict[str, LocalEndpoint] = {}
        self.numbers = itertools.count(1)


class LocalEndpoint:
    """As `weft.comm.endpoint.Endpoint`, in one process."""

    def __init__(
        self,
        network: Network,
        name: str,
        address: str,
        on_message: Callable[[LocalMessage], None],
        on_link_lost: Callable[[str, str], None],
    ) -> None:
        self.network, self.name, self.address = network, name, address
        self.incarnation = next(network.numbers)
        self.rendezvous = Rendezvous()
        self.links: dict[str, LocalEndpoint] = {}
        self.sent: list[tuple[str, int]] = []
        self._on_message, self._on_link_lost = on_message, on_link_lost
        self._inbox: SimpleQueue[Any] = SimpleQueue()
        network.endpoints[address] = self
        threading.Thread(target=self._serve, daemon=True).start()

    def connect(
        self, peer: str, address: str, incarnation: int = 0, timeout: float | None = None
    ) -> LocalPeer:
        other = self.network.endpoints.get(address)
        if other is None or incarnation not in (0, other.incarnation):
            raise UnreachableError(f"nobody is at {address}")
        self.links[other.name] = other
        other.links[self.name] = self
        return LocalPeer(other.name, address, other.incarnation)

    def disconnect(self, peer: str) -> None:
        other = self.links.pop(peer, None)
        if other is not None and other.links.pop(self.name, None) is not None:
            other._inbox.put(lambda: other._on_link_lost(self.name, "disconnected"))

    def _link(self, peer: str) -> LocalEndpoint:
        if peer not in self.links:
            raise PeerLostError(f"there is no link to {peer}")
        return self.links[peer]

    def send(self, peer: str, kind: int, step: int, meta: Any, buffers: Any = ()) -> None:
        self.sent.append((peer, kind))
        message = LocalMessage(self.name, self.incarnation, kind, step, meta, tuple(buffers))
        self._link(peer)._inbox.put(message)

    def signal(
        self, peer: str, kind: int, step: int, key: int, offset: int = 0, buffers: Any = ()
    ) -> None:
        self.sent.append((peer, kind))
        who = self.name, self.incarnation
        self._link(peer)._inbox.put(
            LocalMessage(*who, kind, step, None, tuple(buffers), key, offset)
        )

    def room(self, peer: str, shape: Any, dtype: Any) -> None:
        """There is no other process."""

    def send_tensor(
        self, peer: str, step: int, key: int, iterations: Any, value: Any, *, lend: bool = False
    ) -> None:
        other = self._link(peer)
        place, who = (key, iterations), self.name
        other._inbox.put(lambda: other.rendezvous.put(step, place, value, source=who))

    def abort(self, step: int, error: BaseException) -> None:
        self.rendezvous.abort(step, error)

    def forget(self, low_water: int) -> None:
        self.rendezvous.forget(low_water)

    def die(self) -> None:
        """As a process that is killed: all links are lost."""
        del self.network.endpoints[self.address]
        for other in list(self.links.values()):
            other.links.pop(self.name, None)
            other._inbox.put(lambda other=other: other._on_link_lost(self.name, "killed"))
        self.links.clear()
        self._inbox.put(None)

    def close(self) -> None:
        if self.network.endpoints.get(self.address) is self:
            self.die()

    def _serve(self) -> None:
        while (item := self._inbox.get()) is not None:
            if isinstance(item, LocalMessage):
                self._on_message(item)
            else:
                item()
