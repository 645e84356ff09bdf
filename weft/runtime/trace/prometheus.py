"""Metrics as the text that Prometheus reads: families of counters, gauges and histograms.

The format is "text-based format", version 0.0.4, of prometheus.io/docs/instrumenting."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, Literal

#: The media type of the text.
CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
#: Upper bounds of the buckets of seconds that calls and steps take.
SECONDS: Final = (
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
)  # fmt: skip
Labels = Mapping[str, str]


class Histogram:
    """Counts of values by the least of the bounds that they do not exceed; `counts` has one more,
    for those above all bounds."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(
        self, bounds: Sequence[float], counts: Sequence[int] | None = None, total: float = 0.0
    ) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1) if counts is None else list(counts)
        self.sum = total

    def add(self, value: float) -> None:
        """Count a value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value


def family(
    name: str,
    kind: Literal["counter", "gauge"],
    told: str,
    rows: Iterable[tuple[Labels, float]],
) -> Iterator[str]:
    """The lines of a family of counters or gauges. told: what it counts."""
    yield from _head(name, kind, told)
    for labels, value in rows:
        yield f"{name}{_labels(labels)} {_number(value)}"


def histograms(name: str, told: str, rows: Iterable[tuple[Labels, Histogram]]) -> Iterator[str]:
    """The lines of a family of histograms."""
    yield from _head(name, "histogram", told)
    for labels, histogram in rows:
        total = 0
        for bound, count in zip((*histogram.bounds, "+Inf"), histogram.counts, strict=True):
            total += count
            yield f"{name}_bucket{_labels({**labels, 'le': str(bound)})} {total}"
        yield f"{name}_sum{_labels(labels)} {histogram.sum:.9g}"
        yield f"{name}_count{_labels(labels)} {total}"


def _head(name: str, kind: str, told: str) -> Iterator[str]:
    yield f"# HELP {name} {told}"
    yield f"# TYPE {name} {kind}"


def _labels(labels: Labels) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items()) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.9g}"
