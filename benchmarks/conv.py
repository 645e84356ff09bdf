"""Convolutions against PyTorch (oneDNN), forward, channels last on both sides.

    python benchmarks/conv.py [--json benchmarks/conv.json] [--rounds 20] [--threads 1]

PyTorch runs with its weights in the order that its kernels like best (channels_last), and with
arrays of NCHW ("nchw"); both without gradients. The results agree before anything is timed.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any

import numpy as np
from harness import Comparison, compare, report

import weft as wf


@dataclass(frozen=True)
class Case:
    """A square image of `size`, `inside` to `outside` channels, a square window."""

    name: str
    batch: int
    size: int
    inside: int
    outside: int
    window: int
    stride: int = 1
    depthwise: bool = False


CASES = (
    Case("3x3, 64 to 64, 56^2, batch 8", 8, 56, 64, 64, 3),
    Case("3x3, 256 to 256, 14^2, batch 8", 8, 14, 256, 256, 3),
    Case("3x3 stride 2, 64 to 128, 56^2, batch 8", 8, 56, 64, 128, 3, 2),
    Case("1x1, 64 to 64, 56^2, batch 8", 8, 56, 64, 64, 1),
    Case("1x1, 64 to 256, 56^2, batch 8", 8, 56, 64, 256, 1),
    Case("1x1, 256 to 64, 56^2, batch 8", 8, 56, 256, 64, 1),
    Case("7x7 stride 2, 3 to 64, 224^2, batch 2", 2, 224, 3, 64, 7, 2),
    Case("depthwise 3x3, 64, 56^2, batch 8", 8, 56, 64, 64, 3, 1, True),
    Case("depthwise 3x3 stride 2, 64, 56^2, batch 8", 8, 56, 64, 64, 3, 2, True),
)


def contest(case: Case, rounds: int, threads: int) -> tuple[Comparison, float]:
    """The comparison, and floating-point operations of one run."""
    import torch

    rng = np.random.default_rng(0)
    x = rng.standard_normal((case.batch, case.size, case.size, case.inside), dtype=np.float32)
    each = (case.inside, 1) if case.depthwise else (case.inside, case.outside)
    w = rng.standard_normal((case.window, case.window, *each), dtype=np.float32)
    pad, groups = case.window // 2, case.inside if case.depthwise else 1
    function = wf.nn.depthwise_conv2d if case.depthwise else wf.nn.conv2d

    def convolve(x: Any, w: Any) -> Any:
        return function(x, w, case.stride, pad)

    mine = wf.compile(convolve, threads=threads)
    order = (2, 3, 0, 1) if case.depthwise else (3, 2, 0, 1)
    nchw = torch.from_numpy(x.transpose(0, 3, 1, 2).copy())
    kernel = torch.from_numpy(w.transpose(order).copy())
    last = [t.contiguous(memory_format=torch.channels_last) for t in (nchw, kernel)]

    def theirs(x: Any, w: Any) -> Any:
        with torch.no_grad():
            return torch.nn.functional.conv2d(x, w, None, case.stride, pad, 1, groups)

    wanted = theirs(nchw, kernel).permute(0, 2, 3, 1).numpy()
    np.testing.assert_allclose(mine(x, w), wanted, rtol=1e-3, atol=1e-2)
    contestants = {
        "weft": lambda: mine(x, w),
        "torch": lambda: theirs(*last),
        "torch nchw": lambda: theirs(nchw, kernel),
    }
    work = 2.0 * wanted.size * case.window**2 * (1 if case.depthwise else case.inside)
    return compare(case.name, contestants, rounds=rounds, inner=1), work


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    import torch

    torch.set_num_threads(options.threads)
    rows = []
    for case in CASES:
        row, work = contest(case, options.rounds, options.threads)
        rows.append(row)
        rates = ", ".join(f"{n} {work / t.minimum / 1e9:.0f}" for n, t in row.timings.items())
        print(f"{row.workload}: GFLOP/s {rates}", flush=True)
    report(f"Convolutions, threads: {options.threads}", rows, options.json)


if __name__ == "__main__":
    main()
