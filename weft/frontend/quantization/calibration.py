"""Ranges of activations from batches: how many of the numbers that a layer takes are to be clipped.

`minmax`: none. `percentile`: all but so many percent are in range. `entropy`: the range whose 8-bit
histogram has the least Kullback-Leibler divergence from that of the numbers (S. Migacz, "8-bit
inference with TensorRT", GTC 2017)."""

from __future__ import annotations

import math
from typing import Any, Literal, get_args

import numpy as np

from weft.ir.errors import InvalidArgumentError, suggest
from weft.ir.locations import caller_location

Array = np.ndarray[Any, Any]
Method = Literal["minmax", "percentile", "entropy"]
METHODS: tuple[Method, ...] = get_args(Method)
#: Bins of a histogram.
BINS = 2048


def checked_method(method: object) -> Method:
    """InvalidArgumentError for one that is none."""
    for known in METHODS:
        if method == known:
            return known
    raise InvalidArgumentError(
        f"wf.quantization.quantize: there is no method {method!r:.40}"
        f"{suggest(str(method), METHODS)}",
        hint=f"the methods are: {', '.join(METHODS)}",
        location=caller_location(),
    )


class Observer:
    """What is known of the numbers that one layer takes: first their range, then, with that known,
    a histogram. Of numbers that are not finite nothing is noted."""

    def __init__(self) -> None:
        self.low, self.high = math.inf, -math.inf
        self.counts = np.zeros(BINS, np.int64)

    def see(self, x: Array) -> None:
        """Widen the range by a batch."""
        held = x[np.isfinite(x)]
        if held.size:
            self.low = min(self.low, float(held.min()))
            self.high = max(self.high, float(held.max()))

    def count(self, x: Array) -> None:
        """Count a batch that was seen."""
        held = x[np.isfinite(x)]
        if held.size and self.high > self.low:
            self.counts += np.histogram(held, BINS, (self.low, self.high))[0]

    def range(self, method: Method, percentile: float) -> tuple[float, float]:
        """The range that is to be kept; (0, 0) if there were no numbers."""
        if self.low > self.high:
            return 0.0, 0.0
        if method == "minmax" or self.high == self.low:
            return self.low, self.high
        edges = np.linspace(self.low, self.high, BINS + 1)
        if method == "percentile":
            return _percentile(self.counts, edges, percentile)
        levels = 128 if self.low < 0.0 < self.high else 256  # of absolute values
        most = _least_divergence(*_of_sizes(self.counts, edges), levels)
        return max(self.low, -most), min(self.high, most)


def _percentile(counts: Array, edges: Array, percentile: float) -> tuple[float, float]:
    """Half of what is left out on each side, to whole bins."""
    below = np.concatenate([[0], np.cumsum(counts)]) / max(int(counts.sum()), 1)
    out = (100.0 - percentile) / 200.0
    first = int(np.searchsorted(below, out, "right")) - 1
    last = int(np.searchsorted(below, 1.0 - out, "left"))
    first, last = max(first, 0), min(last, BINS)
    return float(edges[first]), float(edges[max(last, first + 1)])


def _of_sizes(counts: Array, edges: Array) -> tuple[Array, float]:
    """The histogram of absolute values, by the middles of the bins, and their largest."""
    middles = np.abs((edges[1:] + edges[:-1]) / 2)
    most = max(abs(float(edges[0])), abs(float(edges[-1])))
    made = np.histogram(middles, BINS, (0.0, most), weights=counts)[0]
    made[0] = made[1]  # zeros, of ReLU or padding, are exact in any range
    return made, most


def _least_divergence(counts: Array, most: float, levels: int) -> float:
    """The largest absolute value that is to be in range."""
    best, least = BINS, math.inf
    for kept in range(levels, BINS + 1, 16):
        found = _divergence(counts, kept, levels)
        if found < least:
            best, least = kept, found
    return most * best / BINS


def _divergence(counts: Array, kept: int, levels: int) -> float:
    """Of a histogram whose tail is clipped into its last bin, and the same in so many steps."""
    clipped = counts[:kept].astype(np.float64)
    held = clipped.copy()
    clipped[-1] += counts[kept:].sum()
    step = np.arange(kept) * levels // kept
    there = (held > 0).astype(np.float64)
    sums, numbers = np.bincount(step, held, levels), np.bincount(step, there, levels)
    spread = np.divide(sums, numbers, out=np.zeros(levels), where=numbers > 0)[step] * there
    if not clipped.sum() or not spread.sum():
        return math.inf
    p, q = clipped / clipped.sum(), spread / spread.sum()
    some = p > 0
    return float(np.sum(p[some] * np.log(p[some] / np.maximum(q[some], 1e-12))))


def scale_and_zero(low: float, high: float) -> tuple[float, int]:
    """The scale and zero point of int8 for a range, which is widened to hold 0."""
    low, high = min(low, 0.0), max(high, 0.0)
    scale = (high - low) / 255.0
    if not scale > 0.0 or not math.isfinite(scale):
        return 1.0, 0
    return scale, max(-128, min(127, round(-128 - low / scale)))
