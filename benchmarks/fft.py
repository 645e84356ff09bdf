"""Fourier transforms on one thread, against NumPy and SciPy: `wf.fft` compiled, on tensors.

NumPy computes `fft` and `rfft` of 32 bits in 64, as weft does, and the inverse ones in 32; SciPy
all in 32.

python benchmarks/fft.py [--json benchmarks/fft.json] [--rounds 30] [--errors]

With --errors no times, but relative errors on white noise, in the Euclidean norm and in the maximum
norm.
"""

from __future__ import annotations

import argparse

import numpy as np
import scipy.fft
from harness import Comparison, compare, report

import weft as wf

#: (lines, points), the axis. Powers of two, of five and three, a prime, odd lengths; few and many
#: lines.
SHAPES = (
    ((1, 64), 1), ((1000, 16), 1), ((1000, 64), 1), ((1, 1024), 1), ((64, 1024), 1),
    ((64, 1000), 1), ((64, 729), 1), ((64, 1009), 1), ((1, 2**16), 1), ((1, 2**20), 1),
    ((1000, 64), 0), ((1024, 1024), 0), ((64, 625), 1), ((1, 19683), 1), ((729, 64), 0),
    ((1, 99999), 1),
)  # fmt: skip
#: Powers of two, three and five, products, primes (13: a stage; others: a convolution).
LENGTHS = (
    16, 64, 1024, 2**16, 27, 729, 3**9, 125, 625, 5**6, 360, 1000, 1155, 10**6, 13, 67, 1009, 10007,
    99999,
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


def errors(name: str, n: int) -> None:
    """Print those of all three, in both precisions."""
    x = np.random.default_rng(0).standard_normal((2, n // 2 + 1 if name == "irfft" else n))
    how = {"n": n} if name == "irfft" else {}
    cells = []
    for narrow in (True, False):
        dtype = {
            (True, True): "f4",
            (True, False): "f8",
            (False, True): "c8",
            (False, False): "c16",
        }
        given = (x[0] if name == "rfft" else x[0] + 1j * x[1]).astype(dtype[name == "rfft", narrow])
        wide = given.astype(np.longdouble if name == "rfft" else np.clongdouble)
        truth = getattr(np.fft, name)(wide, **how)
        for space in (wf.fft, np.fft, scipy.fft):
            if space is wf.fft:
                compiled = wf.compile(lambda x: getattr(wf.fft, name)(x, **how))
                apart = np.abs(compiled(given).numpy() - truth)
            else:
                apart = np.abs(getattr(space, name)(given, **how) - truth)
            size = np.abs(truth)
            two = np.sqrt(np.sum(apart**2) / np.sum(size**2))
            cells.append(f"{two:.1e} {apart.max() / size.max():.1e}")
    print(f"{name:6}{n:8}  " + "  |  ".join(cells))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--errors", action="store_true")
    options = parser.parse_args()
    if options.errors:
        print("weft, NumPy, SciPy in float32, then in float64: Euclidean norm, maximum norm")
        for name in ("fft", "ifft", "rfft", "irfft"):
            for n in LENGTHS:
                errors(name, n)
        return
    rows = [
        contest(name, dtype, shape, axis, options.rounds)
        for name, dtypes in (("fft", ("complex64", "complex128")), ("rfft", ("float32", "float64")))
        for dtype in dtypes
        for shape, axis in SHAPES
    ]
    report("Fourier transforms, one thread", rows, options.json)


if __name__ == "__main__":
    main()
