"""Counters of a running task: what `weft top` and `Session.task_stats` show."""

from __future__ import annotations

import os
import platform
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from weft.runtime.resources.queue import Queue

Stats = dict[str, Any]
#: Edges that are counted one by one; what is sent on further ones is counted as one.
MOST_EDGES = 4096
OTHERS = "(others)"
#: Recvs that are named in a snapshot: those that have waited longest.
MOST_WAITS = 8


class Counters:
    """Steps and messages of one task; what it counts since it was made only grows, so that two
    snapshots and their times give rates. `begun` and `ended` are called under the task's lock, the
    others by any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._since = time.monotonic()
        self._begun = self._done = self._failed = 0
        self._step_seconds = 0.0
        self._edges: dict[tuple[str, str], list[int]] = {}

    def begun(self) -> None:
        """A part of a step begins."""
        self._begun += 1

    def ended(self, seconds: float, failed: bool) -> None:
        """A part of a step has ended after so many seconds."""
        if failed:
            self._failed += 1
        else:
            self._done += 1
        self._step_seconds += seconds

    def sent(self, target: str, tensor: str, nbytes: int) -> None:
        """A tensor was handed over to go to `target`."""
        with self._lock:
            row = self._edges.get((target, tensor)) or self._new_edge(target, tensor)
            row[0] += 1
            row[1] += nbytes

    def _new_edge(self, target: str, tensor: str) -> list[int]:
        """Under the lock."""
        known = len(self._edges) < MOST_EDGES
        return self._edges.setdefault((target, tensor) if known else (OTHERS, OTHERS), [0, 0])

    def snapshot(self) -> Stats:
        """seconds: since when is counted; steps: {begun, done, failed}; step_seconds: of all parts
        together; edges: rows [task, tensor, messages, bytes]."""
        with self._lock:
            edges = [[*key, *row] for key, row in self._edges.items()]
            return {
                "seconds": time.monotonic() - self._since,
                "steps": {"begun": self._begun, "done": self._done, "failed": self._failed},
                "step_seconds": self._step_seconds,
                "edges": edges,
            }


def task_stats(
    counters: Counters,
    variables: Iterable[Any],
    resources: Mapping[str, Any],
    waits: Sequence[Sequence[Any]],
    rejected: Mapping[str, int],
) -> Stats:
    """All that a task says of itself, as plain data. variables: states; resources: by name; waits:
    rows of `StepExchange.waits`; rejected: frames that were refused, by reason."""
    held = [v.array.nbytes for v in variables if v.array is not None]
    longest = sorted(waits, key=lambda row: -row[3])[:MOST_WAITS]
    return {
        **counters.snapshot(),
        "waits": [list(row) for row in longest],
        "waiting": len(waits),
        "queues": [
            [name, q.size(), -1 if q.capacity is None else q.capacity]
            for name, q in resources.items()
            if isinstance(q, Queue)
        ],
        "variables": [len(held), sum(held)],
        "memory": resident_bytes(),
        "rejected": dict(rejected),
        "pid": os.getpid(),
        "host": platform.node(),
    }


def resident_bytes() -> int:
    """The memory that the process holds; 0 where the system does not say."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0
