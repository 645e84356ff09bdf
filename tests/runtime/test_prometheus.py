"""Metrics as text: what Prometheus' own client reads out of it."""

from __future__ import annotations

import pytest
from prometheus_text import at, parsed

from weft.runtime.trace.prometheus import SECONDS, Histogram, family, histograms


def test_the_text_is_what_prometheus_reads() -> None:
    counts = Histogram(SECONDS)
    for seconds in (0.0001, 0.0005, 0.3, 99.0):
        counts.add(seconds)
    odd = 'a\\b"c\nd'
    lines = [
        *family("weft_a_total", "counter", "Something.", [({"x": odd}, 2), ({"x": ""}, 1.5e9)]),
        *histograms("weft_b_seconds", "Something.", [({"x": odd}, counts)]),
    ]
    samples = parsed("\n".join(lines) + "\n")
    assert at(samples, "weft_a_total", x=odd) == 2
    assert at(samples, "weft_a_total", x="") == 1.5e9
    assert at(samples, "weft_b_seconds_bucket", x=odd, le="0.0005") == 2
    assert at(samples, "weft_b_seconds_bucket", x=odd, le="0.5") == 3
    assert at(samples, "weft_b_seconds_bucket", x=odd, le="+Inf") == 4
    assert at(samples, "weft_b_seconds_count", x=odd) == 4
    assert at(samples, "weft_b_seconds_sum", x=odd) == pytest.approx(99.3006)
