"""Row kernels over 4096 x 1024 f32, and batch norm, against JAX and torch.compile, forward and
backward.

    python benchmarks/rows.py [--json benchmarks/rows.json] [--rounds 40]

Needs the `bench` extra; torch.compile needs a C++ compiler.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import numpy as np
from harness import Comparison, compare, report

from weft.frontend.tools.bench_workloads import (
    Contestant,
    Workload,
    compiled,
    cross_entropy,
    jax_contestant,
    layer_norm,
    softmax,
    torch_contestant,
)

ROWS, COLUMNS = 4096, 1024
Array = np.ndarray[Any, Any]


def batch_norm(axes: tuple[int, ...]) -> Callable[..., Any]:
    """sum(batch_norm(x) * seen) with statistics over `axes`."""

    def f(m: Any, x: Any, gamma: Any, beta: Any, seen: Any) -> Any:
        centred = x - x.mean(axes, keepdims=True)
        variance = (centred * centred).mean(axes, keepdims=True)
        return m.sum((centred / (variance + 1e-5) ** 0.5 * gamma + beta) * seen)

    return f


def weft_contestant(f: Callable[..., Any], arrays: list[Array], wrt: tuple[int, ...]) -> Contestant:
    """weft, of f(vocabulary, *arrays)."""
    step = compiled(Workload("", f.__name__, f, lambda quick: [], wrt))

    def flat() -> list[Any]:
        out = step(*arrays)
        return [out[0], *out[1]] if wrt else [out]

    return (lambda: step(*arrays)), flat


def contest(
    name: str, f: Callable[..., Any], arrays: list[Array], wrt: tuple[int, ...], rounds: int
) -> Comparison:
    """Time f (wrt empty), or its value and gradients with respect to the arguments `wrt`."""
    runs = {
        "weft": weft_contestant(f, arrays, wrt),
        "jax": jax_contestant(f, arrays, wrt),
        "torch.compile": torch_contestant(f, arrays, wrt),
    }
    expected = runs["jax"][1]()
    for other in ("weft", "torch.compile"):
        for a, b in zip(runs[other][1](), expected, strict=True):
            largest = float(np.abs(np.asarray(b)).max())  # sums of many numbers that cancel
            atol = max(1e-4, 1e-5 * largest)
            np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-3, atol=atol)
    return compare(name, {n: run for n, (run, _) in runs.items()}, rounds=rounds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json")
    parser.add_argument("--rounds", type=int, default=40)
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    x, seen = (rng.standard_normal((ROWS, COLUMNS), dtype=np.float32) for _ in range(2))
    gamma, beta = (rng.standard_normal(COLUMNS, dtype=np.float32) for _ in range(2))
    labels = rng.integers(0, COLUMNS, ROWS)
    rows = [
        contest("softmax", softmax, [x], (), options.rounds),
        contest(
            "layer norm, forward + backward",
            layer_norm,
            [x.copy(), gamma, beta, seen],
            (0, 1, 2),
            options.rounds,
        ),
        contest(
            "cross entropy, forward + backward",
            cross_entropy,
            [x.copy(), labels],
            (0,),
            options.rounds,
        ),
    ]
    for shape, axes in (
        ((32, 32, 32, 64), (0, 1, 2)),
        ((32, 64, 32, 32), (0, 2, 3)),
        ((256, 512), (0,)),
    ):
        kept = [1 if k in axes else d for k, d in enumerate(shape)]
        x, seen = (rng.standard_normal(shape, dtype=np.float32) for _ in range(2))
        gamma, beta = (rng.standard_normal(kept, dtype=np.float32) for _ in range(2))
        name = f"batch norm {list(shape)}, forward + backward"
        arrays = [x, gamma, beta, seen]
        rows.append(contest(name, batch_norm(axes), arrays, (0, 1, 2), options.rounds))
    report(f"Row kernels over {ROWS} x {COLUMNS} f32", rows, options.json)


if __name__ == "__main__":
    main()
