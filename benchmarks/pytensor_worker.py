"""PyTensor's side of figure1.py, in a process and a virtual environment of its own.

Its Numba pin differs from weft's, so the two cannot share an environment:

    python -m venv /tmp/pytensor && /tmp/pytensor/bin/pip install "pytensor>=3,<4"

Reads one line per request, `<batch> <inner>`, makes that many steps and answers `<seconds> <loss>`
for one step. Runs with the same weights and batches as figure1.py, handed over in an .npz file.
"""

from __future__ import annotations

import sys
import time

import numpy as np
import pytensor
import pytensor.tensor as pt

LEARNING_RATE = 0.01


def make_step(start):
    """The Figure 1 step with Adagrad (accumulators start at 0.1) on shared variables."""
    x, y = pt.matrix("x", dtype="float32"), pt.matrix("y", dtype="float32")
    names = ("w1", "b1", "w2", "b2")
    p = {k: pytensor.shared(start[k], k) for k in names}
    acc = {k: pytensor.shared(np.full_like(start[k], 0.1)) for k in names}
    hidden = pt.maximum(x @ p["w1"] + p["b1"], np.float32(0))
    logits = hidden @ p["w2"] + p["b2"]
    loss = -(y * pt.special.log_softmax(logits, axis=-1)).sum(axis=-1).mean()
    updates = {}
    for k, g in zip(names, pt.grad(loss, [p[k] for k in names]), strict=True):
        total = acc[k] + g * g
        updates[acc[k]] = total
        updates[p[k]] = p[k] - np.float32(LEARNING_RATE) * g / pt.sqrt(total)
    return pytensor.function([x, y], loss, updates=updates, mode="NUMBA")


def main():
    start = dict(np.load(sys.argv[1]))
    steps = {}
    for line in sys.stdin:
        batch, inner = (int(word) for word in line.split())
        if batch not in steps:
            steps[batch] = make_step(start)
        step, x, y = steps[batch], start[f"x{batch}"], start[f"y{batch}"]
        loss = 0.0
        started = time.perf_counter()
        for _ in range(inner):
            loss = step(x, y)
        print((time.perf_counter() - started) / inner, float(loss), flush=True)


if __name__ == "__main__":
    main()
