"""Intervals of how much longer one measurement is than another: against counting, SciPy and drawn
samples whose truth is known."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest
from scipy import stats

from weft.runtime.trace.noise import (
    MOST_SAMPLES,
    Interval,
    Verdict,
    interval,
    interval_of_runs,
    judge,
    rank,
)

Samples = np.ndarray[tuple[int], np.dtype[np.float64]]


def drawn(rng: np.random.Generator, count: int, noise: float = 0.05) -> Samples:
    """Times have a least one and a tail."""
    return np.asarray(1 + rng.gamma(2, noise / 2, count))


def test_a_case_by_hand() -> None:
    """Of 5 and 5 samples one order in 252 has them all apart: the interval goes from the least
    quotient to the greatest."""
    found = interval([1, 2, 3, 4, 5], [10, 20, 30, 40, 50])
    assert found.ratio == pytest.approx(10)
    assert (found.low, found.high) == (pytest.approx(2), pytest.approx(50))
    assert found.text() == "10.00x [2.00, 50.00]"
    assert found.inverse.low == pytest.approx(1 / 50)
    assert found.inverse.ratio == pytest.approx(interval([10, 20, 30, 40, 50], range(1, 6)).ratio)


@pytest.mark.parametrize(("m", "n"), [(2, 3), (4, 4), (5, 5), (4, 7)])
@pytest.mark.parametrize("confidence", [0.8, 0.95, 0.99])
def test_ranks_are_those_of_counting_all_orders(m: int, n: int, confidence: float) -> None:
    below = [
        sum(place - i for i, place in enumerate(places)) for places in combinations(range(m + n), n)
    ]
    most = (1 - confidence) / 2 * len(below)
    first = 0
    while sum(u <= first for u in below) <= most:
        first += 1
    assert rank(m, n, confidence) == first


def test_ranks_of_many_are_close_to_the_exact_ones() -> None:
    """51 x 50 is taken as normal, 50 x 50 is counted."""
    assert rank(50, 50, 0.99) == pytest.approx(rank(51, 50, 0.99), rel=0.03)
    assert rank(10, 10, 0.95) == 24  # tables of the test: reject at U of 23 or less


def test_intervals_are_those_of_the_mann_whitney_test() -> None:
    rng = np.random.default_rng(0)
    for count in (6, 9, 20):
        for scale in (1.0, 1.02, 1.05, 1.1):
            a, b = drawn(rng, count), drawn(rng, count + 1) * scale
            found = interval(a.tolist(), b.tolist())
            p = stats.mannwhitneyu(a, b, method="exact").pvalue
            assert (p <= 0.01) == (not found.low < 1 < found.high)


@pytest.mark.parametrize("count", [9, 30])
def test_equal_programs_are_rarely_marked(count: int) -> None:
    rng = np.random.default_rng(1)
    tries, misses, marks = 2000, 0, 0
    for _ in range(tries):
        found = interval(drawn(rng, count, 0.2).tolist(), drawn(rng, count, 0.2).tolist())
        misses += not found.low <= 1 <= found.high
        marks += found.verdict() in (Verdict.SLOWER, Verdict.FASTER)
    assert misses / tries < 0.018  # one in a hundred, and three deviations of so many tries
    assert marks <= misses


def test_a_change_of_a_fifth_is_found_in_noise() -> None:
    rng = np.random.default_rng(2)
    for count, noise in ((9, 0.1), (30, 0.2)):
        found = [
            interval(drawn(rng, count, noise).tolist(), (1.2 * drawn(rng, count, noise)).tolist())
            for _ in range(300)
        ]
        assert sum(f.verdict() is Verdict.SLOWER for f in found) > 270
        assert sum(f.inverse.verdict() is Verdict.FASTER for f in found) > 270
        assert sum(f.low <= 1.2 <= f.high for f in found) > 285
        assert np.median([f.ratio for f in found]) == pytest.approx(1.2, rel=0.01)


def test_few_samples_cannot_tell() -> None:
    found = interval([1.0, 1.1, 1.2], [9.0, 9.1, 9.2])
    assert not found.is_known
    assert (found.low, found.high) == (0, math.inf)
    assert found.verdict() is Verdict.CANNOT_TELL
    assert judge(found, None) == (Verdict.CANNOT_TELL, "too few samples")
    assert found.text() == "8.27x"


def test_many_samples_are_thinned() -> None:
    rng = np.random.default_rng(3)
    found = interval(drawn(rng, 50 * MOST_SAMPLES).tolist(), drawn(rng, 3).tolist())
    assert found.is_known
    assert found.low < 1 < found.high


def test_drift_within_a_run_is_noise() -> None:
    """Neighbours come and go: noise of which seven tenths last from one sample to the next. Whole
    runs as they are would mark every fourth comparison of equal programs; parts do not."""
    rng = np.random.default_rng(5)

    def run() -> list[float]:
        found = [rng.normal(0, 0.1)]
        for _ in range(29):
            found.append(0.7 * found[-1] + rng.normal(0, 0.1 * math.sqrt(1 - 0.7**2)))
        return np.exp(found).tolist()

    def is_mark(found: Interval) -> bool:
        return found.verdict() in (Verdict.SLOWER, Verdict.FASTER)

    pairs = [(run(), run()) for _ in range(300)]
    assert sum(is_mark(interval(a, b)) for a, b in pairs) > 45
    assert sum(is_mark(interval_of_runs([a], [b])) for a, b in pairs) <= 6
    assert sum(is_mark(interval_of_runs([a], [[1.5 * s for s in b]])) for a, b in pairs) > 270


def test_runs_alone_find_a_change_of_a_fifth() -> None:
    """In noise of a tenth, of 30 samples; of 10 in noise of a twentieth."""
    rng = np.random.default_rng(6)
    for count, noise in ((30, 0.1), (10, 0.05), (9, 0.1)):
        found = [
            interval_of_runs([drawn(rng, count, noise)], [1.2 * drawn(rng, count, noise)])
            for _ in range(300)
        ]
        assert sum(f.verdict() is Verdict.SLOWER for f in found) > 280


@pytest.mark.parametrize("count", [20, 23, 24, 30, 44, 45, 60])
def test_more_samples_of_a_run_alone_do_not_hide_a_change(count: int) -> None:
    """Of 20 samples, the least that a suite takes by itself: in noise of a tenth 30 percent."""
    rng = np.random.default_rng(7)

    def run(scale: float) -> list[float]:
        return (scale * rng.lognormal(0, 0.1, count)).tolist()

    found = [interval_of_runs([run(1)], [run(1.3)]) for _ in range(200)]
    assert sum(f.verdict() is Verdict.SLOWER for f in found) > 180


def test_several_runs_span_what_they_say() -> None:
    """Two runs of one program that differ by 8 percent, as memory may have it: no change of
    4 percent is told between that program and one whose runs do the same."""
    rng = np.random.default_rng(4)
    old = [(drawn(rng, 30, 0.01) * s).tolist() for s in (1.0, 1.08)]
    new = [(drawn(rng, 30, 0.01) * s).tolist() for s in (1.04, 1.12)]
    assert interval(old[0], new[1]).verdict() is Verdict.SLOWER
    found = interval_of_runs(old, new)
    assert found.low < 0.97
    assert found.high > 1.11
    assert found.verdict() is Verdict.CANNOT_TELL
    slow = [[2 * s for s in run] for run in new]
    assert interval_of_runs(old, slow).verdict() is Verdict.SLOWER


SLOWER, FASTER = Interval(1.3, 1.2, 1.4), Interval(0.7, 0.6, 0.8)
SAME, UNCLEAR = Interval(1.0, 0.98, 1.02), Interval(1.1, 0.9, 1.4)


@pytest.mark.parametrize(
    ("time", "control", "verdict", "note"),
    [
        (SLOWER, None, Verdict.SLOWER, ""),
        (SLOWER, SLOWER, Verdict.SLOWER, ""),
        (FASTER, FASTER, Verdict.FASTER, ""),
        (SLOWER, SAME, Verdict.SAME, "numpy changed as much: the machine"),
        (SLOWER, UNCLEAR, Verdict.CANNOT_TELL, "not seen against numpy"),
        (SLOWER, FASTER, Verdict.CANNOT_TELL, "numpy does not agree: the machine changed"),
        (SAME, SAME, Verdict.SAME, ""),
        (SAME, UNCLEAR, Verdict.SAME, ""),
        (SAME, SLOWER, Verdict.CANNOT_TELL, "numpy does not agree: the machine changed"),
        (UNCLEAR, None, Verdict.CANNOT_TELL, "5 % is neither shown nor ruled out"),
        (UNCLEAR, SLOWER, Verdict.CANNOT_TELL, "5 % is neither shown nor ruled out"),
        (UNCLEAR, SAME, Verdict.SAME, "numpy changed as much: the machine"),
        (SLOWER, Interval(1.0, 0.0, math.inf), Verdict.SLOWER, ""),
    ],
)
def test_a_peer_is_the_control(
    time: Interval, control: Interval | None, verdict: Verdict, note: str
) -> None:
    assert judge(time, control, peer="numpy") == (verdict, note)


def test_thresholds() -> None:
    small = Interval(1.03, 1.02, 1.04)
    assert small.verdict() is Verdict.SAME
    assert small.verdict(0.02) is Verdict.SLOWER
    assert small.inverse.verdict(0.02) is Verdict.FASTER
    assert Interval(1.04, 1.01, 1.07).verdict() is Verdict.CANNOT_TELL
