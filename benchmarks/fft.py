"""Fourier transforms on one thread, against NumPy and SciPy: `wf.fft` compiled, on tensors.

NumPy computes complex64 in 64 bits; SciPy in 32, as weft does.

python benchmarks/fft.py [--json benchmarks/fft.json] [--rounds 30]
"""

from __future__ import annotations

import argparse

import numpy as np
import scipy.fft
from harness import Comparison, compare, report

import weft as wf

#: (lines, points), the axis. Powers of two, of five and three, a prime; few and many lines.
SHAPES = (
    ((1, 64), 1), ((1000, 16), 1), ((1000, 64), 1), ((1, 1024), 1), ((64, 1024), 1),
    ((64, 1000), 1), ((64, 729), 1), ((64, 1009), 1), ((1, 2**16), 1), ((1, 2**20), 1),
    ((1000, 64), 0), ((1024, 1024), 0),
)  # fmt: skip


def contest(name: str, dtype: str, shape: tuple[int, int], axis: int, rounds: int) -> Comparison:
    """The same transform in all three."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal(shape) + 1j * rng.standard_normal(shape)
    x = np.ascontiguousarray(x.astype(dtype) if name == "fft" else x.real.astype(dtype))
    f = wf.compile(lambda x: getattr(wf.fft, name)(x, axis=axis), threads=1)
    mine = wf.asarray(x)
    contestants = {
        "weft": lambda: f(mine),
        "numpy": lambda: getattr(np.fft, name)(x, axis=axis),
        "scipy": lambda: getattr(scipy.fft, name)(x, axis=axis),
    }
    inner = max(1, 20000 // x.size)
    title = f"{name} {dtype} {shape[0]}x{shape[1]}, axis {axis}"
    return compare(title, contestants, rounds=rounds, inner=inner)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json")
    parser.add_argument("--rounds", type=int, default=30)
    options = parser.parse_args()
    rows = [
        contest(name, dtype, shape, axis, options.rounds)
        for name, dtypes in (("fft", ("complex64", "complex128")), ("rfft", ("float32", "float64")))
        for dtype in dtypes
        for shape, axis in SHAPES
    ]
    report("Fourier transforms, one thread", rows, options.json)


if __name__ == "__main__":
    main()
