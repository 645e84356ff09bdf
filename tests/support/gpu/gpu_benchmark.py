"""benchmarks/gpu.py for tests: the module, a folder for its files, a small run, NumPy as a peer."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from paths import ROOT

BENCHMARKS = ROOT / "benchmarks"


@pytest.fixture
def gpu_py(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import gpu

    yield gpu
    for name in ("gpu", "gpu_cases", "gpu_peers", "figure1", "harness"):
        sys.modules.pop(name, None)


@pytest.fixture
def into(gpu_py: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Where the files go that the command writes if it is told of none. The model of the paper is a
    small one."""
    import gpu_cases

    monkeypatch.setattr(gpu_py, "HERE", tmp_path)
    for module in (gpu_py, gpu_cases):
        monkeypatch.setattr(module, "start", small_start)
        monkeypatch.setattr(module, "batch_of", small_batch)
    return tmp_path


def small_start(rng: np.random.Generator) -> dict[str, Any]:
    shapes = {"w1": (6, 5), "b1": (5,), "w2": (5, 3), "b2": (3,)}
    return {k: rng.uniform(-0.5, 0.5, s).astype(np.float32) for k, s in shapes.items()}


def small_batch(rng: np.random.Generator, n: int) -> tuple[Any, Any]:
    x = rng.standard_normal((n, 6)).astype(np.float32)
    return x, np.eye(3, dtype=np.float32)[rng.integers(0, 3, n)]


def ran(gpu_py: Any, *given: str) -> tuple[list[Any], str, int]:
    """The rows and the page that the command writes by itself, and its status."""
    status = 0
    try:
        gpu_py.main(["--small", "--rounds", "1", *given])
    except SystemExit as ended:
        status = int(str(ended.code))
    rows = json.loads((gpu_py.HERE / "gpu.json").read_text())["rows"]
    return rows, (gpu_py.HERE / "RESULTS-gpu.md").read_text(), status


def peer(function: Callable[..., Any], gpu_py: Any) -> Any:
    """NumPy as a peer: a function of arrays in f64."""

    def make(args: Any, mode: str) -> Callable[[], Any]:
        given = [np.asarray(a).astype(np.float64) for a in args]
        return lambda: function(*given)

    def timed(run: Callable[[], Any], rounds: int) -> list[float]:
        run()
        return [1.0] * rounds

    return gpu_py.Peer(make, lambda made: [made], timed)
