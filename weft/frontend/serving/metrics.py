"""Numbers about a server: what Prometheus reads, and Triton's statistics."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from weft.runtime.trace.prometheus import SECONDS, Histogram, family, histograms

#: Upper bounds of the buckets of numbers of rows.
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)

#: How many numbers of rows statistics tell apart; requests choose them.
_MOST_BATCHES = 256


class _Times:
    """How often something was, and how long it took in all."""

    def __init__(self) -> None:
        self.count, self.seconds = 0, 0.0

    def add(self, seconds: float, count: int = 1) -> None:
        self.count += count
        self.seconds += seconds

    def told(self) -> dict[str, int]:
        return {"count": self.count, "ns": round(self.seconds * 1e9)}


class _Statistics:
    """Of a version of a model, for Triton's statistics extension."""

    def __init__(self) -> None:
        self.times = {name: _Times() for name in ("success", "fail", "queue", "compute_infer")}
        self.rows, self.calls, self.last = 0, 0, 0.0
        self.batches: dict[int, _Times] = {}

    def told(self, model: str, number: int) -> dict[str, Any]:
        none = _Times().told()
        times = {name: t.told() for name, t in self.times.items()}
        batches = [
            {"batch_size": rows, "compute_input": none, "compute_infer": t.told(),
             "compute_output": none}
            for rows, t in sorted(self.batches.items())
        ]  # fmt: skip
        return {
            "name": model, "version": str(number), "last_inference": round(self.last * 1e3),
            "inference_count": self.rows, "execution_count": self.calls,
            "inference_stats": {
                **times, "compute_input": none, "compute_output": none, "cache_hit": none,
                "cache_miss": none,
            },
            "batch_stats": batches,
        }  # fmt: skip


class Metrics:
    """What a server has done. Threads may add to it at once.

    requests: by model and status of HTTP or gRPC; queue_seconds, compute_seconds and batch_rows: by
    model, of requests that ran, and of calls. Models are those that are loaded, and "" for requests
    that name none of them. `statistics` are by version."""

    def __init__(self, waiting: Callable[[], int] = lambda: 0) -> None:
        self.waiting = waiting
        self._lock = threading.Lock()
        self._requests: dict[tuple[str, str], int] = {}
        self._histograms: dict[tuple[str, str], Histogram] = {}
        self._statistics: dict[tuple[str, int], _Statistics] = {}

    def request(self, model: str, status: int | str) -> None:
        """Count a request that was answered. status: of HTTP, or the name of one of gRPC."""
        key = (model, str(status))
        with self._lock:
            self._requests[key] = self._requests.get(key, 0) + 1

    def call(
        self, version: tuple[str, int], waits: Sequence[float], seconds: float, rows: int
    ) -> None:
        """Count a call of a signature. version: name of the model and number; waits: seconds that
        each of its requests was queued."""
        model = version[0]
        with self._lock:
            for wait in waits:
                self._add("queue_seconds", model, SECONDS, wait)
            self._add("compute_seconds", model, SECONDS, seconds)
            self._add("batch_rows", model, ROWS, rows)
            of = self._statistics.setdefault(version, _Statistics())
            of.rows += rows
            of.calls += 1
            of.last = time.time()
            of.times["success"].add(sum(waits) + seconds * len(waits), len(waits))
            of.times["queue"].add(sum(waits), len(waits))
            of.times["compute_infer"].add(seconds * len(waits), len(waits))
            if rows in of.batches or len(of.batches) < _MOST_BATCHES:
                of.batches.setdefault(rows, _Times()).add(seconds)

    def failed(self, version: tuple[str, int], seconds: float) -> None:
        """Count a request for a version that came to no result in so many seconds."""
        with self._lock:
            self._statistics.setdefault(version, _Statistics()).times["fail"].add(seconds)

    def statistics(self, model: str, number: int) -> dict[str, Any]:
        """Of a version, as Triton's statistics extension has it."""
        with self._lock:
            found = self._statistics.get((model, number)) or _Statistics()
            return found.told(model, number)

    def forget(self, model: str, number: int) -> None:
        """Drop the statistics of a version that is gone; the counters of its model stay."""
        with self._lock:
            self._statistics.pop((model, number), None)

    def _add(self, name: str, model: str, bounds: Sequence[float], value: float) -> None:
        if (name, model) not in self._histograms:
            self._histograms[name, model] = Histogram(bounds)
        self._histograms[name, model].add(value)

    def text(self) -> str:
        """All of it, as Prometheus reads it."""
        with self._lock:
            lines = list(self._lines())
        return "\n".join(lines) + "\n"

    def _lines(self) -> Iterator[str]:
        requests = sorted(self._requests.items())
        yield from family(
            "weft_requests_total", "counter",
            "Requests that were answered, by status of HTTP or gRPC.",
            [({"model": model, "status": status}, n) for (model, status), n in requests],
        )  # fmt: skip
        waiting: list[tuple[dict[str, str], float]] = [({}, self.waiting())]
        yield from family("weft_waiting_requests", "gauge", "Requests in the queue now.", waiting)
        held = sorted(self._histograms.items(), key=lambda item: item[0])
        for name, told in _TOLD.items():
            rows = [({"model": model}, h) for (kind, model), h in held if kind == name]
            yield from histograms(f"weft_{name}", told, rows)


_TOLD = {
    "queue_seconds": "How long requests were queued.",
    "compute_seconds": "How long calls of signatures took.",
    "batch_rows": "How many rows calls had; 1 for those that are not batched.",
}
