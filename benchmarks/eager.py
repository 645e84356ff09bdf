"""Eager calls, outside of compiled functions: one public function on arrays of 10 to a million
floats.

Against the NumPy expression that does the same and PyTorch eager on as many threads as weft uses.
Contestants run in turns in one process. Which instruction set: weft's is `WEFT_TARGET`, PyTorch's
`ATEN_CPU_CAPABILITY`.

python benchmarks/eager.py [--json benchmarks/eager.json] [--rounds 60] [--sizes 10 1000000]
    [--ops add,gelu] [--threads 1]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import numpy as np
from harness import Comparison, compare, report

import weft as wf

Call = Callable[..., Any]
SIZES = (10, 1_000, 100_000, 1_000_000)


def _silu(x: Any) -> Any:
    return x / (1 + np.exp(-x))


def _gelu(x: Any) -> Any:
    import scipy.special

    return 0.5 * x * (1 + scipy.special.erf(x * np.float32(0.5**0.5)))


def _softmax(x: Any) -> Any:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def _layer_norm(x: Any) -> Any:
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred * centred).mean(-1, keepdims=True) + np.float32(1e-5))


def calls() -> dict[str, tuple[Call, Call, Call]]:
    """By name: weft's, NumPy's, PyTorch's. x and y are rows: as many as columns, or one of 10."""
    import torch

    functional: Any = torch.nn.functional
    return {
        "add": (wf.add, np.add, torch.add),
        "x * 2 + 1": (lambda x, y: x * 2.0 + 1.0,) * 3,
        "exp": (lambda x, y: wf.exp(x), lambda x, y: np.exp(x), lambda x, y: torch.exp(x)),
        "tanh": (lambda x, y: wf.tanh(x), lambda x, y: np.tanh(x), lambda x, y: torch.tanh(x)),
        "where": (
            lambda x, y: wf.where(x > 0, x, y),
            lambda x, y: np.where(x > 0, x, y),
            lambda x, y: torch.where(x > 0, x, y),
        ),
        "silu": (lambda x, y: wf.nn.silu(x), lambda x, y: _silu(x),
                 lambda x, y: functional.silu(x)),
        "gelu": (lambda x, y: wf.nn.gelu(x), lambda x, y: _gelu(x),
                 lambda x, y: functional.gelu(x)),
        "softmax": (lambda x, y: wf.nn.softmax(x), lambda x, y: _softmax(x),
                    lambda x, y: functional.softmax(x, -1)),
        "layer_norm": (lambda x, y: wf.nn.layer_norm(x), lambda x, y: _layer_norm(x),
                       lambda x, y: functional.layer_norm(x, x.shape[-1:])),
        "sum": (lambda x, y: wf.sum(x), lambda x, y: np.sum(x), lambda x, y: torch.sum(x)),
        "mean, axis 0": (lambda x, y: wf.mean(x, axis=0), lambda x, y: np.mean(x, axis=0),
                         lambda x, y: torch.mean(x, 0)),
        "max, axis 1": (lambda x, y: wf.max(x, axis=1), lambda x, y: np.max(x, axis=1),
                        lambda x, y: torch.amax(x, 1)),
        "argmax": (lambda x, y: wf.argmax(x, axis=1), lambda x, y: np.argmax(x, axis=1),
                   lambda x, y: torch.argmax(x, 1)),
        "cumsum": (lambda x, y: wf.cumulative_sum(x, axis=1), lambda x, y: np.cumsum(x, axis=1),
                   lambda x, y: torch.cumsum(x, 1)),
        "sort": (lambda x, y: wf.sort(x), lambda x, y: np.sort(x),
                 lambda x, y: torch.sort(x, -1)[0]),
    }  # fmt: skip


def contest(name: str, size: int, three: tuple[Call, Call, Call], rounds: int) -> Comparison:
    """One function on arrays of one size."""
    import torch

    rng = np.random.default_rng(size)
    rows = {10: 1, 1_000: 10, 100_000: 100, 1_000_000: 1000}.get(size, 1)
    a, b = rng.standard_normal((2, rows, size // rows), dtype=np.float32)
    ours, numpys, torchs = three
    x, y = wf.asarray(a), wf.asarray(b)
    t, u = torch.from_numpy(a), torch.from_numpy(b)
    np.testing.assert_allclose(ours(x, y), numpys(a, b), rtol=2e-4, atol=2e-4 * rows**0.5)
    contestants = {
        "weft": lambda: ours(x, y),
        "numpy": lambda: numpys(a, b),
        "torch": lambda: torchs(t, u),
    }
    inner = max(1, min(200, 200_000 // size))
    return compare(f"{name}, {size:,}", contestants, rounds=rounds, inner=inner)


def main() -> None:
    import torch

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--ops", default="")
    parser.add_argument("--threads", type=int)
    options = parser.parse_args()
    if options.threads:
        wf.set_num_threads(options.threads)
    torch.set_num_threads(wf.get_num_threads())
    asked = [name for name in options.ops.split(",") if name]
    rows = [
        contest(name, size, three, options.rounds)
        for name, three in calls().items()
        if not asked or name in asked
        for size in options.sizes
    ]
    title = (
        f"Eager calls on f32, {wf.get_num_threads()} threads; PyTorch "
        f"{torch.backends.cpu.get_cpu_capability()}"
    )
    report(title, rows, options.json, above="numpy")


if __name__ == "__main__":
    main()
