"""Limits and timeouts of an endpoint, and counters of the messages it refused."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from dataclasses import dataclass

from weft.comm.errors import LimitError

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30

#: Payload of one chunk of a large tensor: below it throughput falls, above it memory grows for
#: nothing (measured in docs/internals/comm-measured.md).
CHUNK_BYTES = MIB
#: Larger frames end the connection before libzmq allocates for them (ZMQ_MAXMSGSIZE).
FRAME_BYTES = CHUNK_BYTES + 128 * KIB


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds and times of one endpoint; the defaults fit tasks of a few GB.

    `eager_bytes`: tensors up to this size are pushed in one frame, larger ones are offered.
    `tensor_bytes`: the largest tensor that is accepted. `control_bytes`: all buffers of a control
    message. `landing_bytes`: large tensors that are received before anybody asks for them; what
    somebody waits for is received beyond it. `held_bytes`: tensors of all kinds that wait in the
    rendezvous; a step that would exceed it is aborted. `steps`: steps with something in the
    rendezvous. `keys`: keys of one step. `peers`: links. `backlog`: control messages of the
    endpoint's own threads that wait for one peer. `shared_bytes`: the ring of a peer of this host.
    `lent_bytes`: tensors that such a peer reads in this process's memory and has not given back.

    Seconds: `heartbeat_s` between signs of life, `heartbeat_timeout_s` without one until the
    connection is lost; `silence_s` without any message from a peer's Python threads until the link
    is (a call that holds the GIL that long looks like it); `connect_s` for a connection to be made,
    `send_s` for a peer to take a message.
    """

    eager_bytes: int = 256 * KIB  # a push of 256 KB takes 0.6 of an offer's time, one of 512 KB 1.2
    tensor_bytes: int = 64 * GIB
    control_bytes: int = 64 * MIB
    landing_bytes: int = 256 * MIB
    held_bytes: int = 4 * GIB
    steps: int = 4096
    keys: int = 1 << 20
    peers: int = 1000
    backlog: int = 1 << 16
    shared_bytes: int = 8 * MIB
    lent_bytes: int = GIB
    heartbeat_s: float = 1.0
    heartbeat_timeout_s: float = 3.0
    silence_s: float = 30.0
    connect_s: float = 10.0
    send_s: float = 10.0

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if getattr(self, name) <= 0:
                raise LimitError(f"{name} is {getattr(self, name)}; it must be positive")
        if self.eager_bytes > CHUNK_BYTES:
            raise LimitError(f"eager_bytes is {self.eager_bytes}; a frame holds {CHUNK_BYTES}")


_log = logging.getLogger("weft.comm")
#: A tensor under a key that another task's send owns.
STRAY = "wrong sender"


class Rejections:
    """Counts of one endpoint. Thread-safe; flooding it does not flood the log."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()

    def count(self, reason: str, detail: str = "", *, expected: bool = False) -> None:
        """`expected`: honest peers cause it too (what was on its way when a step ended)."""
        with self._lock:
            self._counts[reason] += 1
            times = self._counts[reason]
        if times & (times - 1) == 0:
            level = logging.DEBUG if expected else logging.WARNING
            _log.log(level, "%s refused: %s%s (%d so far)", self._name, reason, detail, times)

    def counts(self) -> dict[str, int]:
        """Reason -> how often."""
        with self._lock:
            return dict(self._counts)

    @property
    def total(self) -> int:
        with self._lock:
            return self._counts.total()
