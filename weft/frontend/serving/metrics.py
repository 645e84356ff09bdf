"""Numbers about a server as the text that Prometheus reads: counters and histograms.

The format is "text-based format", version 0.0.4, of prometheus.io/docs/instrumenting."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence

#: Upper bounds of the buckets of seconds, and of numbers of rows.
SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)


class _Histogram:
    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def lines(self, name: str, labels: str) -> Iterator[str]:
        total = 0
        for bound, count in zip((*self.bounds, "+Inf"), self.counts, strict=True):
            total += count
            yield f'{name}_bucket{{{labels},le="{bound}"}} {total}'
        yield f"{name}_sum{{{labels}}} {self.sum:.9g}"
        yield f"{name}_count{{{labels}}} {total}"


class Metrics:
    """What a server has done. Threads may add to it at once.

    requests: by model and HTTP status; queue_seconds, compute_seconds and batch_rows: by model, of
    requests that ran, and of calls. Models are those that are loaded, and "" for requests that name
    none of them."""

    def __init__(self, waiting: Callable[[], int] = lambda: 0) -> None:
        self.waiting = waiting
        self._lock = threading.Lock()
        self._requests: dict[tuple[str, int], int] = {}
        self._histograms: dict[tuple[str, str], _Histogram] = {}

    def request(self, model: str, status: int) -> None:
        """Count a request that was answered."""
        with self._lock:
            self._requests[model, status] = self._requests.get((model, status), 0) + 1

    def call(self, model: str, waits: Sequence[float], seconds: float, rows: int) -> None:
        """Count a call of a signature. waits: seconds that each of its requests was queued."""
        with self._lock:
            for wait in waits:
                self._add("queue_seconds", model, SECONDS, wait)
            self._add("compute_seconds", model, SECONDS, seconds)
            self._add("batch_rows", model, ROWS, rows)

    def _add(self, name: str, model: str, bounds: Sequence[float], value: float) -> None:
        if (name, model) not in self._histograms:
            self._histograms[name, model] = _Histogram(bounds)
        self._histograms[name, model].add(value)

    def text(self) -> str:
        """All of it, as Prometheus reads it."""
        with self._lock:
            lines = list(self._lines())
        return "\n".join(lines) + "\n"

    def _lines(self) -> Iterator[str]:
        yield "# HELP weft_requests_total Requests that were answered, by HTTP status."
        yield "# TYPE weft_requests_total counter"
        for (model, status), count in sorted(self._requests.items()):
            yield f'weft_requests_total{{model="{model}",status="{status}"}} {count}'
        yield "# HELP weft_waiting_requests Requests in the queue now."
        yield "# TYPE weft_waiting_requests gauge"
        yield f"weft_waiting_requests {self.waiting()}"
        for name, told in _TOLD.items():
            yield f"# HELP weft_{name} {told}"
            yield f"# TYPE weft_{name} histogram"
            for (kind, model), histogram in sorted(self._histograms.items(), key=lambda i: i[0]):
                if kind == name:
                    yield from histogram.lines(f"weft_{name}", f'model="{model}"')


_TOLD = {
    "queue_seconds": "How long requests were queued.",
    "compute_seconds": "How long calls of signatures took.",
    "batch_rows": "How many rows calls had; 1 for those that are not batched.",
}
