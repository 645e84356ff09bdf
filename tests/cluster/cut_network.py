"""A network between members that can be cut: a proxy before each, which knows who calls."""

from __future__ import annotations

import contextlib
import re
import socket
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from group_members import free_addresses

_LISTENS, _PAUSE_S = "0A", 0.02


class Network:
    """`addresses`, of which each is that of a proxy, and `binds`, at which members listen really. A
    proxy listens as long as its member does, so that an address without one refuses connections."""

    def __init__(self, count: int) -> None:
        found = free_addresses(2 * count)
        self.addresses, self.binds = found[:count], found[count:]
        self._place = {port(a): k for k, a in enumerate(self.addresses)}
        self._cut: set[frozenset[int]] = set()
        self._open: dict[int, socket.socket] = {}
        self._ways: list[_Way] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def cut(self, one: Iterable[int], others: Iterable[int]) -> None:
        """From now on nothing goes between these members, and nobody is told."""
        others = list(others)
        self._cut = {frozenset((a, b)) for a in one for b in others}

    def heal(self) -> None:
        self._cut = set()

    def drop(self, one: int) -> None:
        """End all connections of a member; new ones can be made."""
        for way in [w for w in self._ways if one in (w.source, w.target)]:
            way.end()

    def close(self) -> None:
        self._over.set()
        self._thread.join()
        for way in self._ways:
            way.end()

    def is_cut(self, one: int | None, other: int) -> bool:
        return one is not None and frozenset((one, other)) in self._cut

    def who(self, said: bytes) -> int | None:
        """Who calls, as its greeting says."""
        ports = [int(found) for found in re.findall(rb"tcp://127\.0\.0\.1:(\d+)", said)]
        return next((self._place[p] for p in ports if p in self._place), None)

    @property
    def is_over(self) -> bool:
        return self._over.is_set()

    def _watch(self) -> None:
        """Listen for each member that does, and let in who calls."""
        while not self._over.wait(_PAUSE_S):
            rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
            ports = {int(row[1].split(":")[1], 16) for row in rows if row[3] == _LISTENS}
            for k, address in enumerate(self.addresses):
                if port(self.binds[k]) not in ports:
                    if k in self._open:
                        self._open.pop(k).close()
                elif k not in self._open:
                    self._open[k] = socket.create_server(("127.0.0.1", port(address)))
                    self._open[k].setblocking(False)
            for k, inbox in self._open.items():
                with contextlib.suppress(BlockingIOError):
                    while True:
                        self._admit(k, inbox.accept()[0])
        for inbox in self._open.values():
            inbox.close()

    def _admit(self, k: int, caller: socket.socket) -> None:
        caller.setblocking(True)
        try:
            called = socket.create_connection(("127.0.0.1", port(self.binds[k])), 5)
        except OSError:
            caller.close()
            return
        called.settimeout(None)
        self._ways.append(_Way(self, caller, called, k))


class _Way:
    """A connection to the member `target`; source: whose it is, once that is known."""

    def __init__(
        self, network: Network, caller: socket.socket, called: socket.socket, target: int
    ) -> None:
        self._network, self._ends, self.target = network, (caller, called), target
        self.source: int | None = None
        for pair in ((caller, called), (called, caller)):
            threading.Thread(target=self._carry, args=pair, daemon=True).start()

    def end(self) -> None:
        for one in self._ends:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def _carry(self, one: socket.socket, other: socket.socket) -> None:
        said = b""
        try:
            while data := one.recv(1 << 16):
                if self.source is None and one is self._ends[0] and len(said) < 1 << 12:
                    said += data
                    self.source = self._network.who(said)
                while self._network.is_cut(self.source, self.target):
                    if self._network.is_over:
                        return
                    time.sleep(_PAUSE_S)
                other.sendall(data)
        except OSError:
            pass
        finally:
            while self._network.is_cut(self.source, self.target) and not self._network.is_over:
                time.sleep(_PAUSE_S)  # nor is the end of a connection told
            self.end()
            one.close()


def port(address: str) -> int:
    return int(address.rpartition(":")[2])


@contextmanager
def network(count: int) -> Iterator[Network]:
    made = Network(count)
    try:
        yield made
    finally:
        made.close()
