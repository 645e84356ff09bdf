"""Counts of what goes over a link: messages and bytes in both directions, and round trips.

Members of groups (`group.py`) count the bytes of arrays alone, without headers. All groups of this
process that have a label are in `EXCHANGES`.

A sign of life (PING, one in `Limits.heartbeat_s`) carries the time of its sender, and the peer's
thread that reads messages sends it back: so a round trip has the way there and back, and what both
threads wait for their turns, as any small message has. All counts only grow."""

from __future__ import annotations

import os
import threading
import time
from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

#: Upper bounds of the buckets of round trips, in seconds.
TRIP_SECONDS: Final = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0,
)  # fmt: skip
#: Quantiles are of so many of the last round trips.
LAST_TRIPS: Final = 128
#: Peers that are counted one by one after their links are gone; further ones are counted as one.
MOST_PEERS: Final = 4096
OTHERS: Final = "(others)"
#: Places in `Traffic.counts`.
SENT, SENT_BYTES, CAME, CAME_BYTES = range(4)


class Traffic:
    """Counts of one link. Each field is written by one thread at a time.

    counts: of frames and bytes; what is sent under the link's lock, what came by the thread that
    reads messages; native code counts there, too (`packets.py`). bulk, bulk_bytes, ring_bytes: by
    the service thread; lent_bytes: under the lock of loans; shared_bytes and round trips: by the
    thread that reads messages. Bytes are of frames; `ring_bytes`, `lent_bytes` and `shared_bytes`
    lay in shared memory, and only their place was in a frame. (Of members of groups all is
    counted by the caller.)
    """

    __slots__ = (
        "_asked", "bulk", "bulk_bytes", "buckets", "counts", "lent_bytes", "ring_bytes",
        "shared_bytes", "trip_seconds", "trips",
    )  # fmt: skip

    def __init__(self) -> None:
        self.counts = array("q", [0, 0, 0, 0])
        self.bulk = self.bulk_bytes = self.ring_bytes = self.lent_bytes = 0
        self.shared_bytes = 0
        self.buckets = [0] * (len(TRIP_SECONDS) + 1)
        self.trip_seconds = 0.0
        self.trips: deque[float] = deque(maxlen=LAST_TRIPS)
        self._asked = 0

    @property
    def came(self) -> int:
        """Frames from the peer."""
        return self.counts[CAME]

    def message_sent(self, nbytes: int) -> None:
        """A message was sent."""
        self.counts[SENT] += 1
        self.counts[SENT_BYTES] += nbytes

    def message_came(self, nbytes: int) -> None:
        """A message came."""
        self.counts[CAME] += 1
        self.counts[CAME_BYTES] += nbytes

    def chunk(self, head: int, nbytes: int, *, shared: bool) -> None:
        """A chunk of a large tensor was sent, or lies in shared memory. head: bytes of its frame's
        header."""
        self.bulk += 1
        self.bulk_bytes += head if shared else head + nbytes
        if shared:
            self.ring_bytes += nbytes

    def ask(self) -> int:
        """The time to be sent with a sign of life; 0: one that was sent has not come back."""
        if self._asked:
            return 0
        self._asked = time.monotonic_ns()
        return self._asked

    def unsent(self) -> None:
        """What `ask` gave was not sent."""
        self._asked = 0

    def answered(self, asked: int) -> None:
        """A time has come back; one that was not asked for is no round trip."""
        if asked != self._asked or not asked:
            return
        self._asked = 0
        seconds = (time.monotonic_ns() - asked) / 1e9
        self.trips.append(seconds)
        self.buckets[bisect_left(TRIP_SECONDS, seconds)] += 1
        self.trip_seconds += seconds

    def add(self, other: Traffic) -> None:
        """Count what another link has counted."""
        for name in (
            "bulk", "bulk_bytes", "ring_bytes", "lent_bytes", "shared_bytes", "trip_seconds",
        ):  # fmt: skip
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for place, count in enumerate(other.counts):
            self.counts[place] += count
        self.buckets = [a + b for a, b in zip(self.buckets, other.buckets, strict=True)]
        self.trips.extend(other.trips)

    def told(self) -> dict[str, Any]:
        """Plain data: messages and bytes by direction, of the bytes those in shared memory; the
        count, sum, buckets and quantiles of round trips in seconds, None before the first."""
        trips = sorted(self.trips.copy())
        sent, sent_bytes, came, came_bytes = self.counts
        lent = self.ring_bytes + self.lent_bytes
        return {
            "sent": sent + self.bulk,
            "sent_bytes": sent_bytes + self.bulk_bytes + lent,
            "sent_shared": lent,
            "came": came,
            "came_bytes": came_bytes + self.shared_bytes,
            "came_shared": self.shared_bytes,
            "trips": sum(self.buckets),
            "trip_seconds": self.trip_seconds,
            "trip_buckets": list(self.buckets),
            "trip_p50": _quantile(trips, 0.5),
            "trip_p99": _quantile(trips, 0.99),
        }


def _quantile(ordered: list[float], share: float) -> float | None:
    """The least of the values that so large a share of them does not exceed."""
    if not ordered:
        return None
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)]


class TrafficTable:
    """What has gone to and from each peer of an endpoint over all links to it, those that are gone,
    too. counted_as: the name under which a peer is counted. `gone` is called under a lock."""

    def __init__(self, counted_as: Callable[[str], str] = str) -> None:
        self._counted_as = counted_as
        self._gone: dict[str, Traffic] = {}

    def gone(self, peer: str, traffic: Traffic) -> None:
        """A link is over."""
        _count(self._gone, self._counted_as(peer), traffic)

    def told(self, links: Iterable[tuple[str, Traffic]]) -> dict[str, dict[str, Any]]:
        """`Traffic.told` by peer, with what these links have counted so far."""
        found: dict[str, Traffic] = {}
        for peer, traffic in list(self._gone.items()):
            _count(found, peer, traffic)
        for peer, traffic in links:
            _count(found, self._counted_as(peer), traffic)
        return {peer: traffic.told() for peer, traffic in found.items()}


def _count(table: dict[str, Traffic], name: str, traffic: Traffic) -> None:
    known = name in table or len(table) < MOST_PEERS
    table.setdefault(name if known else OTHERS, Traffic()).add(traffic)


class Exchanges:
    """What groups have sent and received: those that are there, and those that are gone. A member
    is counted as `label:rank`. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._gone = TrafficTable()
        self._open: dict[int, list[tuple[str, Traffic]]] = {}

    def add(self, label: str, traffic: Mapping[int, Traffic]) -> int:
        """A group begins: its number for `end`."""
        rows = [(f"{label}:{rank}", counts) for rank, counts in traffic.items()]
        with self._lock:
            self._open[id(rows)] = rows
        return id(rows)

    def end(self, number: int) -> None:
        """A group has ended."""
        with self._lock:
            for member, counts in self._open.pop(number, []):
                self._gone.gone(member, counts)

    def told(self) -> dict[str, dict[str, Any]]:
        """`Traffic.told` by member."""
        with self._lock:
            return self._gone.told([row for rows in self._open.values() for row in rows])

    def abandon(self) -> None:
        """In a child of a fork: the groups are the parent's."""
        self._lock, self._gone, self._open = threading.Lock(), TrafficTable(), {}


EXCHANGES: Final = Exchanges()
os.register_at_fork(after_in_child=EXCHANGES.abandon)
