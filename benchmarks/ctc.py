"""CTC loss with its gradient, and without, on one thread, against PyTorch's own code for it.

PYTHONPATH=.:benchmarks python benchmarks/ctc.py [--json benchmarks/ctc.json] [--rounds 30]
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import torch
from harness import Comparison, compare, report

import weft as wf

#: Batch, time, most labels, classes.
SIZES = ((32, 150, 30, 40), (8, 600, 120, 40), (16, 200, 40, 1000), (128, 40, 10, 30))


def contest(size: tuple[int, int, int, int], gradient: bool, rounds: int) -> Comparison:
    """The sum of the losses of logits, the softmax included, in both."""
    batch, time, most, classes = size
    rng = np.random.default_rng(0)
    logits = rng.standard_normal((time, batch, classes)).astype(np.float32)
    labels = rng.integers(1, classes, (batch, most))
    n, m = rng.integers(most // 2, most + 1, batch), rng.integers(2 * time // 3, time + 1, batch)

    def loss(x: Any, labels: Any, n: Any, m: Any) -> Any:
        return wf.sum(wf.nn.ctc_loss(labels, x, n, m, time_major=True))

    f = wf.compile(wf.value_and_grad(loss) if gradient else loss, threads=1)
    mine = [wf.asarray(a) for a in (logits, labels, n, m)]
    x = torch.tensor(logits, requires_grad=gradient)
    others = [torch.tensor(a) for a in (labels, m, n)]

    def peer() -> tuple[Any, Any]:
        x.grad = None
        logs = torch.log_softmax(x, -1)
        total = torch.nn.functional.ctc_loss(logs, *others, reduction="sum")
        if gradient:
            total.backward()
        return total, x.grad

    got, truth = f(*mine), peer()
    if gradient:
        np.testing.assert_allclose(got[1], truth[1], atol=1e-3)
        got = got[0]
    np.testing.assert_allclose(float(got), truth[0].item(), rtol=1e-5)
    title = f"batch {batch}, time {time}, {most} labels, {classes} classes"
    title += ", with gradient" if gradient else ""
    return compare(title, {"weft": lambda: f(*mine), "torch": peer}, rounds=rounds, inner=2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json")
    parser.add_argument("--rounds", type=int, default=30)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = [contest(s, gradient, options.rounds) for gradient in (True, False) for s in SIZES]
    report("CTC loss, one thread", rows, options.json)


if __name__ == "__main__":
    main()
