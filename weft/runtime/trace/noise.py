"""How much longer one measurement is than another, as an interval, and whether that is more than
noise.

The estimate is the Hodges-Lehmann one: of all quotients of a new sample by an old one the median.
Its interval holds the quotients that a two-sided Mann-Whitney test does not reject (Moses). It
takes no distribution for granted, minds no outliers, draws no random numbers, and says by itself
when there are too few samples: then no two quotients are far enough apart.

Hodges and Lehmann, Estimates of location based on rank tests (Annals of Mathematical Statistics
34, 1963); Hollander, Wolfe and Chicken, Nonparametric Statistical Methods (3rd edition, 2013),
sections 4.2 and 4.3. Both take samples to be independent. Those of one run are not: a neighbour is
busy for seconds, and another process has its memory elsewhere (Kalibera and Jones, Rigorous
benchmarking in reasonable time, ISMM 2013). So of several runs each is compared with each, and the
interval spans all of theirs; a run alone is cut into parts, in the order of time, which count as
runs. And a change counts only if a peer, timed in the same rounds, does not show it too
(`judge`)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import StrEnum
from functools import lru_cache
from itertools import pairwise, product
from statistics import NormalDist

import numpy as np

from weft.ir.dataclass import dataclass

#: That an interval holds the truth: with 25 workloads, one in four comparisons of equal programs
#: has an interval that does not.
CONFIDENCE = 0.99
#: A change that matters, as a share.
THRESHOLD = 0.05
#: Samples in a part, by the number of parts. The interval spans those of all pairs of parts, so
#: short parts hide changes: of 24 samples with a noise of 10 % three parts miss every fourth change
#: of 30 %, two none. With one part 10 samples would find nearly all of them, and mark a quarter of
#: equal programs too where noise lasts for some samples, as it does; two parts mark one in fifty.
LEAST_PART = {3: 15, 2: 5}
#: Of more samples, so many are used, evenly spread: their quotients are sorted.
MOST_SAMPLES = 400
#: Up to so many quotients the distribution of the test is counted, else it is taken as normal.
_MOST_EXACT = 2500


class Verdict(StrEnum):
    """Of a comparison. SAME: a change that matters is ruled out. CANNOT_TELL: neither that nor
    a change is shown."""

    SLOWER = "slower"
    FASTER = "faster"
    SAME = "same"
    CANNOT_TELL = "cannot tell"


@dataclass(frozen=True, slots=True)
class Interval:
    """New by old, so more than 1 is slower. low, high: 0 and infinity for too few samples."""

    ratio: float
    low: float
    high: float

    @property
    def is_known(self) -> bool:
        """Whether there are enough samples for an interval."""
        return self.low > 0

    @property
    def inverse(self) -> Interval:
        """Old by new."""
        low, high = (1 / self.high, 1 / self.low) if self.is_known else (0.0, math.inf)
        return Interval(1 / self.ratio, low, high)

    def verdict(self, threshold: float = THRESHOLD) -> Verdict:
        """Slower or faster: by `threshold` or more, and the interval does not hold 1."""
        if self.low > 1 and self.ratio >= 1 + threshold:
            return Verdict.SLOWER
        if self.high < 1 and self.ratio <= 1 / (1 + threshold):
            return Verdict.FASTER
        if self.low >= 1 / (1 + threshold) and self.high <= 1 + threshold:
            return Verdict.SAME
        return Verdict.CANNOT_TELL

    def text(self) -> str:
        """`1.21x [1.15, 1.28]`."""
        span = f" [{self.low:.2f}, {self.high:.2f}]" if self.is_known else ""
        return f"{self.ratio:.2f}x{span}"


def interval(
    old: Sequence[float], new: Sequence[float], confidence: float = CONFIDENCE
) -> Interval:
    """How many times as long `new` is as `old`. Both are samples, positive and not empty."""
    a, b = (np.log(_thinned(samples)) for samples in (old, new))
    quotients = np.sort(np.subtract.outer(b, a), axis=None)
    ratio = math.exp(float(np.median(quotients)))
    first = rank(len(a), len(b), confidence)
    if first == 0:
        return Interval(ratio, 0.0, math.inf)
    low, high = quotients[first - 1], quotients[-first]
    return Interval(ratio, math.exp(float(low)), math.exp(float(high)))


def interval_of_runs(
    old: Sequence[Sequence[float]], new: Sequence[Sequence[float]], confidence: float = CONFIDENCE
) -> Interval:
    """Of several runs, each with its samples in the order of time: the interval spans those of all
    pairs of runs, or of parts of a run that is alone."""
    pairs = [interval(a, b, confidence) for a, b in product(_groups(old), _groups(new))]
    ratio = math.exp(float(np.median([math.log(p.ratio) for p in pairs])))
    return Interval(ratio, min(p.low for p in pairs), max(p.high for p in pairs))


def _groups(runs: Sequence[Sequence[float]]) -> list[Sequence[float]]:
    """The runs; of one alone its parts: three, or fewer if they had too few samples."""
    if len(runs) > 1:
        return list(runs)
    samples = list(runs[0])
    count = next((n for n in (3, 2) if len(samples) >= LEAST_PART[n] * n), 1)
    ends = [len(samples) * i // count for i in range(count + 1)]
    return [samples[a:b] for a, b in pairwise(ends)]


def _thinned(samples: Sequence[float]) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    held = np.asarray(samples, np.float64)
    if len(held) <= MOST_SAMPLES:
        return held
    return held[np.linspace(0, len(held) - 1, MOST_SAMPLES).astype(np.int64)]


@lru_cache(maxsize=256)
def rank(m: int, n: int, confidence: float) -> int:
    """The place, from 1, of the quotient that begins the interval, of the m n in order (the one
    that ends it has the same place from the other end). 0: there are too few."""
    tail = (1 - confidence) / 2
    if m * n > _MOST_EXACT:
        deviation = math.sqrt(m * n * (m + n + 1) / 12)
        return max(0, math.floor(m * n / 2 + NormalDist().inv_cdf(tail) * deviation))
    most = tail * math.comb(m + n, n)
    below = first = 0
    for count in _orders(m, n):
        below += count
        if below > most:
            break
        first += 1
    return first


def _orders(m: int, n: int) -> list[int]:
    """How many orders of m and n samples have u pairs with the new one below, for each u: the
    coefficients of the Gaussian binomial, the product of (1 - q^(m+i)) / (1 - q^i)."""
    found = [1] + [0] * (m * n)
    for i in range(1, n + 1):
        for u in range(m * n, m + i - 1, -1):
            found[u] -= found[u - m - i]
        for u in range(i, m * n + 1):
            found[u] += found[u - i]
    return found


def judge(
    time: Interval, control: Interval | None, threshold: float = THRESHOLD, peer: str = "the peer"
) -> tuple[Verdict, str]:
    """A verdict, and why it is none. control: of the same runs, the time divided by that of a
    `peer` which itself is the same program; a change of the machine is not in it. None: there is
    no peer."""
    if not time.is_known:
        return Verdict.CANNOT_TELL, "too few samples"
    found = time.verdict(threshold)
    unclear = f"{100 * threshold:g} % is neither shown nor ruled out"
    if control is None or not control.is_known:
        return found, unclear if found is Verdict.CANNOT_TELL else ""
    seen = control.verdict(threshold)
    if seen is Verdict.SAME:
        return seen, "" if found is seen else f"{peer} changed as much: the machine"
    if found is Verdict.CANNOT_TELL:
        return found, unclear
    if seen is found or (found is Verdict.SAME and seen is Verdict.CANNOT_TELL):
        return found, ""
    if seen is Verdict.CANNOT_TELL:
        return seen, f"not seen against {peer}"
    return Verdict.CANNOT_TELL, f"{peer} does not agree: the machine changed"
