"""Linear algebra, against JAX, PyTorch and NumPy: batches of small matrices and single larger ones,
compiled, on tensors.

python benchmarks/linalg.py [--json benchmarks/linalg.json] [--rounds 20] [--only solve]
    [--batches | --single] [--processor-time]

With --processor-time what counts is the time that the process had the processor for, where other
jobs take turns with it: pin it to one (taskset -c 0), or waiting threads count, too.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from harness import Comparison, compare, report

import weft as wf

#: (matrices, rows)
BATCHES = ((1000, 8), (1000, 16), (1000, 32), (200, 64))
SINGLE = ((1, 256), (1, 1000))
NAMES = ("cholesky", "solve", "inv", "eigh", "svdvals", "svd", "qr")


def of(name: str, space: Any) -> Callable[..., Any]:
    """The function of a library's linalg."""
    found: Callable[..., Any] = getattr(space, name)
    if name == "solve":
        return lambda a: found(a, a[..., :1])
    return found


def contest(
    name: str, shape: tuple[int, int], rounds: int, clock: Callable[[], float]
) -> Comparison:
    """One function on float32 matrices, symmetric and positive definite."""
    import jax
    import torch

    count, n = shape
    half = np.random.default_rng(0).standard_normal((count, n, n)) / n**0.5
    a = (half @ half.swapaxes(1, 2) + np.eye(n)).astype(np.float32)
    a = a[0] if count == 1 else a
    mine, jitted = wf.compile(of(name, wf.linalg)), jax.jit(of(name, jax.numpy.linalg))
    given, on_device, tensor = wf.asarray(a), jax.numpy.asarray(a), torch.from_numpy(a)
    torch_function, numpy = of(name, torch.linalg), of(name, np.linalg)
    calls = {
        "weft": lambda: mine(given),
        "jax": lambda: jax.block_until_ready(jitted(on_device)),
        "torch": lambda: torch_function(tensor),
        "numpy": lambda: numpy(a),
    }
    for key, call in calls.items():  # one that widens what it is given would do another's work
        made: Any = call()
        first = made[0] if isinstance(made, tuple) else made
        assert np.asarray(first).dtype == np.float32, key
    what = f"{count} x " if count > 1 else ""
    return compare(f"{name}, {what}{n} x {n} f32", calls, rounds=rounds, clock=clock)


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--only", default="")
    parser.add_argument("--batches", action="store_true", help="no single matrices")
    parser.add_argument("--single", action="store_true", help="no batches")
    parser.add_argument("--processor-time", action="store_true")
    options = parser.parse_args()
    clock = time.process_time if options.processor_time else time.perf_counter
    names = [n for n in NAMES if options.only in ("", n)]
    if not options.single:
        rows = [contest(n, s, options.rounds, clock) for n in names for s in BATCHES]
        report("Batches of matrices", rows, options.json)
    if options.batches:
        return
    rows = [contest(n, s, max(options.rounds // 4, 3), clock) for n in names for s in SINGLE]
    report("One matrix", rows, options.json and options.json.replace(".json", ".single.json"))


if __name__ == "__main__":
    main()
