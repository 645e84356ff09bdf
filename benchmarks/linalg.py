"""Linear algebra, against JAX, PyTorch and NumPy: batches of small matrices and single larger ones,
compiled, on tensors.

python benchmarks/linalg.py [--json benchmarks/linalg.json] [--rounds 20] [--only solve]
    [--batches]
"""

from __future__ import annotations

import argparse
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


def contest(name: str, shape: tuple[int, int], rounds: int) -> Comparison:
    """One function on float32 matrices, symmetric and positive definite."""
    import jax
    import torch

    count, n = shape
    rng = np.random.default_rng(0)
    half = rng.standard_normal((count, n, n)).astype(np.float32) / np.sqrt(n)
    a = half @ half.swapaxes(1, 2) + np.eye(n, dtype=np.float32)
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
    contestants = {
        "weft": lambda: mine(given),
        "jax": lambda: jax.block_until_ready(jitted(on_device)),
        "torch": lambda: torch_function(tensor),
        "numpy": lambda: numpy(a),
    }
    what = f"{count} x " if count > 1 else ""
    return compare(f"{name}, {what}{n} x {n} f32", contestants, rounds=rounds, inner=1)


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--only", default="")
    parser.add_argument("--batches", action="store_true", help="no single matrices")
    options = parser.parse_args()
    names = [n for n in NAMES if options.only in ("", n)]
    rows = [contest(n, s, options.rounds) for n in names for s in BATCHES]
    report("Batches of matrices", rows, options.json)
    if options.batches:
        return
    rows = [contest(n, s, max(options.rounds // 4, 3)) for n in names for s in SINGLE]
    report("One matrix", rows, options.json and options.json.replace(".json", ".single.json"))


if __name__ == "__main__":
    main()
