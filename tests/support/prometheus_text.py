"""Metrics as Prometheus' own client reads them."""

from __future__ import annotations

import urllib.request
from typing import Any

import pytest

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def parsed(text: str) -> Samples:
    """Samples by name and labels; what is no metrics raises."""
    reader: Any = pytest.importorskip("prometheus_client.parser", reason="pip install weft[test]")
    found: Samples = {}
    for made in reader.text_string_to_metric_families(text):
        assert made.documentation
        for sample in made.samples:
            key = sample.name, frozenset(sample.labels.items())
            assert key not in found
            found[key] = sample.value
    return found


def at(samples: Samples, name: str, **labels: str) -> float:
    """The sample with exactly these labels."""
    return samples[name, frozenset(labels.items())]


def scraped(url: str) -> Samples:
    """What Prometheus gets there."""
    with urllib.request.urlopen(url, timeout=20) as answer:
        assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
        return parsed(answer.read().decode())
