"""Interleaved timing: every contestant runs in every round, so that a noisy machine disturbs all
alike.

A figure is a ratio against a peer measured in the same run, from minima and from medians; the
absolute times are there to show the scale.

Some libraries' threads look for work for milliseconds after a call (GNU OpenMP's, which PyTorch
uses, for about 10 ms) and would take a processor from whoever is next. So each turn begins with a
pause, and then with calls that are not timed: threads that have slept may share one processor for
the first milliseconds (JAX's did, 2.7 ms for a step of 1.9). What is timed is the steady state.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Mapping
from functools import partial
from importlib import metadata

from weft.codegen.llvm.target import isa_line
from weft.ir.dataclass import dataclass
from weft.runtime.native.machine import cpu_name
from weft.runtime.trace.replay import Timing

#: Before each turn, longer than OpenMP's idle threads spin; where OpenBLAS has several threads, in
#: another process say, they spin for longer (up to 100 ms).
PAUSE_SECONDS, LONG_PAUSE_SECONDS = 0.02, 0.15
#: Untimed calls at the beginning of each turn: at least one, and for so long.
WARM_SECONDS = 0.03


@dataclass(frozen=True)
class Comparison:
    """One workload: the timing of each contestant by name ("weft" among them)."""

    workload: str
    timings: dict[str, Timing]

    def ratio(self, peer: str) -> tuple[float, float]:
        """How many times faster weft is than `peer`, by minima and by medians."""
        mine, other = self.timings["weft"], self.timings[peer]
        return other.minimum / mine.minimum, other.median / mine.median


def compare(
    workload: str,
    contestants: Mapping[str, Callable[[], object]],
    *,
    rounds: int = 200,
    inner: int = 1,
    elsewhere: Mapping[str, Callable[[int], float]] | None = None,
    pause: float = PAUSE_SECONDS,
) -> Comparison:
    """Time `inner` calls of each contestant in turn, `rounds` times, after a warm-up.

    A contestant must finish its work before it returns (block until ready). Those `elsewhere` run
    in another process: given `inner`, they return the seconds of one call. Each turn begins with
    a pause, of so many seconds, and with calls that are not timed.
    """
    elsewhere = elsewhere or {}
    for run in contestants.values():
        for _ in range(max(3, rounds // 20)):
            run()
    for time_there in elsewhere.values():
        time_there(max(3, rounds // 20))
    seconds: dict[str, list[float]] = {name: [] for name in (*contestants, *elsewhere)}
    for _ in range(rounds):
        for name, run in contestants.items():
            _settle(run, pause)
            started = time.perf_counter()
            for _ in range(inner):
                run()
            seconds[name].append((time.perf_counter() - started) / inner)
        for name, time_there in elsewhere.items():
            _settle(partial(time_there, 1), pause)
            seconds[name].append(time_there(inner))
            time.sleep(LONG_PAUSE_SECONDS)
    return Comparison(workload, {n: Timing.of(s) for n, s in seconds.items()})


def _settle(run: Callable[[], object], pause: float) -> None:
    time.sleep(pause)
    until = time.perf_counter() + WARM_SECONDS
    run()
    while time.perf_counter() < until:
        run()


def machine() -> dict[str, object]:
    """What a reader must know of the machine and the peers' versions."""
    versions = {}
    for package in ("numpy", "numba", "llvmlite", "scipy", "jax", "torch"):
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return {
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "isa": isa_line(),
        "python": platform.python_version(),
        "versions": versions,
    }
