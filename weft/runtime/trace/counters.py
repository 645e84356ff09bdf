"""Counters of a running task: what `weft top` and `Session.task_stats` show."""

from __future__ import annotations

import os
import platform
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from weft.runtime.recorder import TraceEvent
from weft.runtime.resources.queue import Queue
from weft.runtime.trace.prometheus import SECONDS, Histogram
from weft.runtime.trace.timeline import is_communication

Stats = dict[str, Any]
#: Edges that are counted one by one; what is sent on further ones is counted as one.
MOST_EDGES = 4096
#: Likewise names of graphs of which it runs parts.
MOST_PARTS = 1024
OTHERS = "(others)"
#: Recvs that are named in a snapshot: those that have waited longest.
MOST_WAITS = 8
#: Ops that are timed one by one, and how many of them are in a snapshot, those that took longest.
MOST_OPS, SHOWN_OPS = 4096, 64
#: While somebody looks at ops, one part in so many seconds is timed.
SAMPLE_SECONDS = 0.1
#: Ops that take no time in a kernel, and are not named among others.
_FREE = frozenset({"broadcast_to", "constant", "identity", "reshape"})


class Counters:
    """Steps and messages of one task; what it counts since it was made only grows, so that two
    snapshots and their times give rates. begun: parts of steps that have begun; it is changed, and
    `ended` called, under the task's lock, the others by any thread. is_watched: whether anybody has
    ever looked at the times of ops."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._since = time.monotonic()
        self.begun = self._done = self._failed = 0
        self._steps = Histogram(SECONDS)
        self._waited = 0.0
        self._parts: dict[str, list[float]] = {}
        self._edges: dict[tuple[str, str], list[int]] = {}
        self.is_watched = False
        self._watched_until = self._next_sample = 0.0
        self._timed = 0
        self._ops: dict[tuple[str, str], list[float]] = {}

    def watch(self, seconds: float) -> None:
        """For so long somebody looks at the times of ops."""
        self.is_watched = True
        self._watched_until = time.monotonic() + seconds

    def samples(self) -> bool:
        """Whether the part that begins is to be timed op by op."""
        if not self.is_watched:
            return False
        now = time.monotonic()
        if not self._next_sample <= now < self._watched_until:
            return False
        with self._lock:
            self._next_sample = now + SAMPLE_SECONDS
        return True

    def timed(self, events: Iterable[TraceEvent]) -> None:
        """What a part that was timed has recorded."""
        with self._lock:
            self._timed += 1
            for event in events:
                if not event.ops or event.dead or event.waits or is_communication(event):
                    continue
                kinds = list(dict.fromkeys(event.ops))
                kinds = [kind for kind in kinds if kind not in _FREE] or kinds
                name = "+".join(kinds[:4]) + ("+..." if len(kinds) > 4 else "")
                where = event.locations[0] if event.locations else None
                key = name, "" if where is None else f"{where.file}:{where.line}"
                if key not in self._ops and len(self._ops) >= MOST_OPS:
                    key = OTHERS, ""
                row = self._ops.setdefault(key, [0, 0.0])
                row[0] += 1
                row[1] += (event.end_ns - event.begin_ns) / 1e9

    def ended(self, seconds: float, failed: bool, waited: float = 0.0, part: str = "") -> None:
        """A part of a step has ended after so many seconds, in `waited` of which nothing of
        it was under way but messages. part: the name of its graph."""
        if failed:
            self._failed += 1
        else:
            self._done += 1
        self._steps.add(seconds)
        self._waited += waited
        row = self._parts.get(part) or self._new_part(part)
        row[0] += 1
        row[1] += seconds
        row[2] += waited

    def ended_natively(
        self, part: str, runs: int, seconds: float, waited: float, buckets: Sequence[int]
    ) -> None:
        """As `ended`, of many that have begun and ended without Python. buckets: how many took as
        long as `SECONDS` says."""
        self.begun += runs
        self._done += runs
        self._steps.sum += seconds
        for i, count in enumerate(buckets):
            self._steps.counts[i] += count
        self._waited += waited
        row = self._parts.get(part) or self._new_part(part)
        row[0] += runs
        row[1] += seconds
        row[2] += waited

    def _new_part(self, part: str) -> list[float]:
        known = len(self._parts) < MOST_PARTS
        return self._parts.setdefault(part if known else OTHERS, [0, 0.0, 0.0])

    def sent(self, target: str, tensor: str, nbytes: int, times: int = 1) -> None:
        """A tensor was handed over to go to `target`, so many times."""
        with self._lock:
            row = self._edges.get((target, tensor)) or self._new_edge(target, tensor)
            row[0] += times
            row[1] += times * nbytes

    def _new_edge(self, target: str, tensor: str) -> list[int]:
        """Under the lock."""
        known = len(self._edges) < MOST_EDGES
        return self._edges.setdefault((target, tensor) if known else (OTHERS, OTHERS), [0, 0])

    def snapshot(self) -> Stats:
        """seconds: since when is counted; steps: {begun, done, failed}; step_seconds: of all parts
        together, in wait_seconds of which a part only waited for messages; step_buckets:
        how many parts took as long as `SECONDS` says; parts: rows [name of the graph, runs,
        seconds, those that it waited]; edges: rows [task, tensor, messages, bytes]; timed: parts
        that were timed op by op; ops: rows [ops, place, runs, seconds] of these, and op_seconds of
        all of them."""
        with self._lock:
            edges = [[*key, *row] for key, row in self._edges.items()]
            rows = sorted(self._ops.items(), key=lambda item: -item[1][1])
            return {
                "seconds": time.monotonic() - self._since,
                "steps": {"begun": self.begun, "done": self._done, "failed": self._failed},
                "step_seconds": self._steps.sum,
                "wait_seconds": self._waited,
                "step_buckets": list(self._steps.counts),
                "parts": [[name, *row] for name, row in list(self._parts.items())],
                "edges": edges,
                "timed": self._timed,
                "ops": [[*key, *row] for key, row in rows[:SHOWN_OPS]],
                "op_seconds": sum(seconds for _, (_, seconds) in rows),
            }


def task_stats(
    counters: Counters,
    variables: Iterable[Any],
    resources: Mapping[str, Any],
    waits: Sequence[Sequence[Any]],
    rejected: Mapping[str, int],
    gpus: Iterable[Sequence[Any]] = (),
    links: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
    exchanges: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
) -> Stats:
    """All that a task says of itself, as plain data. variables: states; resources: by name; waits:
    rows of `waits_of`; rejected: frames that were refused, by reason; gpus: rows [name,
    what it is, bytes in use, what they are for] of those in use; links: by peer, as
    `weft.comm.traffic.Traffic.told`; exchanges: likewise what meshes and elastic runs of the
    process exchange, by member."""
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
        "cpu_seconds": time.process_time(),
        "links": {peer: dict(counts) for peer, counts in links.items()},
        "exchanges": {member: dict(counts) for member, counts in exchanges.items()},
        "gpus": [list(row) for row in gpus],
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
