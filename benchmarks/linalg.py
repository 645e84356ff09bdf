"""Linear algebra, against JAX, PyTorch and NumPy: batches of small matrices and single larger ones,
compiled, on tensors.

python benchmarks/linalg.py [--json benchmarks/linalg.json] [--rounds 20] [--only solve]
    [--batches] [--processor-time]

With --processor-time the least time that the process had the processor for, where other jobs take
turns with it: pin it to one (taskset -c 0), or waiting threads count, too.
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


def of(name: str, space: Any, other: str = "") -> Callable[..., Any]:
    """The function of a library's linalg."""
    found: Callable[..., Any] = getattr(space, other or name)
    if name == "solve":
        return lambda a: found(a, a[..., :1])
    return found


def contestants(name: str, shape: tuple[int, int]) -> tuple[str, dict[str, Callable[[], Any]]]:
    """One function on float32 matrices, symmetric and positive definite: title, calls."""
    import jax
    import torch

    count, n = shape
    rng = np.random.default_rng(0)
    half = rng.standard_normal((count, n, n)) / np.sqrt(n)
    a = (half @ half.swapaxes(1, 2) + np.eye(n)).astype(np.float32)
    a = a[0] if count == 1 else a
    mine = wf.compile(of(name, wf.linalg))
    given, on_device, tensor = wf.asarray(a), jax.numpy.asarray(a), torch.from_numpy(a)
    own = "svd" if name == "svdvals" else name
    theirs = of(name, jax.numpy.linalg, own)
    if name == "svdvals":
        theirs = lambda x: jax.numpy.linalg.svd(x, compute_uv=False)  # noqa: E731
    jitted = jax.jit(theirs)
    torch_function = of(name, torch.linalg)
    numpy = of(name, np.linalg, own)
    if name == "svdvals":
        numpy = lambda x: np.linalg.svd(x, compute_uv=False)  # noqa: E731
    calls = {
        "weft": lambda: mine(given),
        "jax": lambda: jax.block_until_ready(jitted(on_device)),
        "torch": lambda: torch_function(tensor),
        "numpy": lambda: numpy(a),
    }
    what = f"{count} x " if count > 1 else ""
    return f"{name}, {what}{n} x {n} f32", calls


def contest(name: str, shape: tuple[int, int], rounds: int) -> Comparison:
    """By the clock."""
    title, calls = contestants(name, shape)
    return compare(title, calls, rounds=rounds, inner=1)


def by_processor_time(name: str, shape: tuple[int, int], rounds: int) -> None:
    """Print microseconds of weft's, and how many times that the others take."""
    title, calls = contestants(name, shape)
    least = dict.fromkeys(calls, float("inf"))
    for _ in range(rounds):
        for key, call in calls.items():
            time.sleep(0.02)  # others' threads look for work for some time after their last call
            call()
            start = time.process_time()
            call()
            least[key] = min(least[key], time.process_time() - start)
    own = least["weft"]
    ratios = ", ".join(f"{key} {t / own:.2f}x" for key, t in least.items() if key != "weft")
    print(f"{title}: weft {own * 1e6:.0f} us, {ratios}", flush=True)


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--only", default="")
    parser.add_argument("--batches", action="store_true", help="no single matrices")
    parser.add_argument("--processor-time", action="store_true")
    options = parser.parse_args()
    names = [n for n in NAMES if options.only in ("", n)]
    if options.processor_time:
        for shape in BATCHES if options.batches else (*BATCHES, *SINGLE):
            for name in names:
                by_processor_time(name, shape, options.rounds)
        return
    rows = [contest(n, s, options.rounds) for n in names for s in BATCHES]
    report("Batches of matrices", rows, options.json)
    if options.batches:
        return
    rows = [contest(n, s, max(options.rounds // 4, 3)) for n in names for s in SINGLE]
    report("One matrix", rows, options.json and options.json.replace(".json", ".single.json"))


if __name__ == "__main__":
    main()
