"""What the cost model of threads believes against the clock: one call of each kind of kernel.

    python benchmarks/prices.py [--elements 1e5] [--only REGEX]

Per kernel: its estimate (`codegen/cost.py`), the time on one thread, estimate / time, and how many
times as fast it is on two threads with the worker awake (again and again) and asleep (150 us of
nothing before each run). Every call is cut here, however small, so that it shows where that pays.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

os.environ["WEFT_CACHE"] = "0"  # a plan from disk has no estimates

import weft as wf
from weft.codegen import cost
from weft.runtime.native.pool import POOL
from weft.runtime.trace.replay import Repeat, Replay

Array = np.ndarray[Any, Any]
Case = tuple[Callable[..., Any], tuple[Any, ...]]
RNG = np.random.default_rng(0)
_split = cost.split
_estimates: dict[tuple[int, float], None] = {}  # a call may be lowered twice


def _cut_always(units: int, nanoseconds_per_unit: float) -> int:
    total = units * nanoseconds_per_unit
    _estimates[units, total] = None
    chunks = max(2, min(cost.MOST_CHUNKS, units, int(total // cost.CHUNK_NS)))
    chunk = -(-units // chunks)
    return chunk if 0 < chunk < units else 0


def patch() -> None:
    """Every call is cut from now on, and its estimate noted."""
    for module in list(sys.modules.values()):
        inside = getattr(module, "__name__", "").startswith("weft.codegen")
        if inside and getattr(module, "split", None) is _split:
            module.split = _cut_always  # type: ignore[attr-defined]


def normal(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float32)


def elementwise(n: int) -> dict[str, Case]:
    x, y = normal(n), normal(n)
    rows = normal(max(2, n // 128), 128)
    return {
        "add": (wf.add, (x, y)),
        "exp": (wf.exp, (x,)),
        "chain": (lambda x: wf.tanh(wf.exp(-x * x) * wf.sin(x)), (x,)),
        "atan": (wf.atan, (x,)),
        "lgamma": (wf.lgamma, (np.abs(x) + 0.1,)),
        "power": (lambda x: x**1.7, (np.abs(x) + 0.1,)),
        "remainder": (wf.remainder, (x, y)),
        "divide": (wf.divide, (x, y)),
        "divide f64": (wf.divide, (x.astype(np.float64), y.astype(np.float64))),
        "sum": (wf.sum, (x,)),
        "sum of rows": (lambda x: wf.sum(x, axis=1), (rows,)),
        "sum of columns": (lambda x: wf.sum(x, axis=0), (rows,)),
        "transpose": (lambda x: wf.transpose(x) + 0, (rows,)),
        "softmax": (lambda x: wf.nn.softmax(x, axis=1), (rows,)),
        "concat": (lambda x, y: wf.concat([x, y], axis=0), (x, y)),
    }


def along_axes(n: int) -> dict[str, Case]:
    rows, columns, x = normal(max(2, n // 128), 128), normal(128, max(2, n // 128)), normal(n)
    return {
        "cumulative sum of rows": (lambda x: wf.cumulative_sum(x, axis=1), (rows,)),
        "cumulative sum of columns": (lambda x: wf.cumulative_sum(x, axis=0), (columns,)),
        "cumulative max of columns": (lambda x: wf.cumulative_max(x, axis=0), (columns,)),
        "cumulative sum, one row": (lambda x: wf.cumulative_sum(x, axis=0), (x,)),
        "argmax of rows": (lambda x: wf.argmax(x, axis=1), (rows,)),
        "argmax of columns": (lambda x: wf.argmax(x, axis=0), (columns,)),
        "argmax, one row": (wf.argmax, (x,)),
        "sort of rows": (lambda x: wf.sort(x, axis=1), (rows,)),
        "sort, one row": (wf.sort, (x,)),
        "argsort f64": (lambda x: wf.argsort(x, axis=1), (rows.astype(np.float64),)),
        "searchsorted": (wf.searchsorted, (np.sort(normal(1000)), x)),
    }


def by_index(n: int) -> dict[str, Case]:
    count = max(2, n // 128)
    rows, picks = normal(count, 128), RNG.integers(0, count, count)
    return {
        "take rows": (lambda x, i: wf.take(x, i, axis=0), (rows, picks)),
        "take elements": (wf.take, (normal(n), RNG.integers(0, n, n))),
        "take along": (
            lambda x, i: wf.take_along_axis(x, i, axis=1),
            (rows, RNG.integers(0, 128, (count, 128))),
        ),
        "scatter rows": (lambda x, i: wf.tf1.scatter_nd_add(x, i[:, None], x), (rows, picks)),
        "random bits": (lambda k: wf.random.bits(k, (n,)), (np.array([1, 2], np.uint32),)),
    }


def products(n: int) -> dict[str, Case]:
    side = max(4, int((n / 64) ** 0.5))
    x, w, taps = normal(1, side, side, 16), normal(3, 3, 16, 32), normal(3, 3, 64, 1)
    wide = normal(1, side, side, 64)

    def conv(x: Any, w: Any) -> Any:
        return wf.nn.conv2d(x, w, padding="SAME")

    def depthwise(x: Any, w: Any) -> Any:
        return wf.nn.depthwise_conv2d(x, w, 1, "SAME")

    return {
        "matmul": (wf.matmul, (normal(max(2, n // 64), 64), normal(64, 64))),
        "conv": (conv, (x, w)),
        "conv, kernel's gradient": (wf.grad(lambda w, x: wf.sum(conv(x, w) ** 2)), (w, x)),
        "depthwise": (depthwise, (wide, taps)),
        "depthwise, kernel's gradient": (
            wf.grad(lambda w, x: wf.sum(depthwise(x, w) ** 2)),
            (taps, wide),
        ),
        "max pool": (lambda x: wf.nn.max_pool(x, 2), (wide,)),
        "max pool, gradient": (wf.grad(lambda x: wf.sum(wf.nn.max_pool(x, 3, 2))), (wide,)),
        "average pool": (lambda x: wf.nn.avg_pool(x, 2), (wide,)),
    }


def measure(f: Callable[..., Any], args: tuple[Any, ...]) -> tuple[float, float, float, float]:
    """(estimate, seconds on one thread, gain awake, gain asleep) of a step."""
    _estimates.clear()
    made = wf.compile(f)._specialized(args, {})  # type: ignore[attr-defined]
    executable = made.executable()
    estimate = sum(total for _, total in _estimates) * 1e-9
    replay = Replay(executable, list(args), made.traced.variables)
    replay._run(replay._rows, 0)
    words, status = replay._activation.words, replay._activation.status
    one = Repeat(words, replay._rows, 0, 1, status)
    two = Repeat(words, replay._rows, POOL.enter(None, 0)[0], 2, status)
    count = max(1, int(1e-3 / max(one.seconds(3), 1e-9)))
    awake: tuple[list[float], list[float]] = ([], [])
    asleep: tuple[list[float], list[float]] = ([], [])
    for _ in range(12):
        for k, run in enumerate((one, two)):
            awake[k].append(run.seconds(count))
    for _ in range(30):
        for k, run in enumerate((one, two)):
            until = time.perf_counter() + 150e-6
            while time.perf_counter() < until:
                pass
            asleep[k].append(run.seconds(1))
    slept = [float(np.median(t)) for t in asleep]
    return estimate, min(awake[0]), min(awake[0]) / min(awake[1]), slept[0] / slept[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--elements", type=float, default=1e5)
    parser.add_argument("--only", default="")
    given = parser.parse_args()
    n = int(given.elements)
    patch()
    print(f"{'':30} estimate us  time us   ratio  awake  asleep")
    for group in (elementwise, along_axes, by_index, products):
        for name, (f, args) in group(n).items():
            if re.search(given.only, name):
                estimate, seconds, awake, asleep = measure(f, args)
                figures = f"{estimate * 1e6:11.1f} {seconds * 1e6:8.1f} {estimate / seconds:7.2f}"
                print(f"{name:30} {figures} {awake:6.2f} {asleep:7.2f}", flush=True)


if __name__ == "__main__":
    main()
