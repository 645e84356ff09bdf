"""A sparse update of a table by optimizers that change all rows, and with `lazy=True`.

python benchmarks/lazy_updates.py [--json benchmarks/lazy_updates.json] [--rounds 60]

100000 x 64 f32, 1024 ids; a compiled step of `apply_gradients` alone, both ways in turn.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import numpy as np
from harness import compare, report

import weft as wf

ROWS, WIDTH, IDS = 100_000, 64, 1024
OPTIMIZERS: dict[str, Callable[..., Any]] = {
    "Momentum": wf.train.Momentum,
    "RMSProp": wf.train.RMSProp,
    "Adadelta": wf.train.Adadelta,
    "Adam": wf.train.Adam,
    "Ftrl": wf.train.Ftrl,
}


def update(optimizer: Any) -> Callable[[], Any]:
    """One step of it on a table of its own."""
    table = wf.Variable(np.zeros((ROWS, WIDTH), np.float32))
    random = np.random.default_rng(0)
    ids = random.integers(0, ROWS, IDS)
    rows = random.normal(size=(IDS, WIDTH)).astype(np.float32)

    @wf.compile
    def step(ids: Any, rows: Any) -> None:
        optimizer.apply_gradients([(wf.IndexedSlices(rows, ids, (ROWS, WIDTH)), table)])

    step(ids, rows)
    return lambda: step(ids, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json")
    parser.add_argument("--rounds", type=int, default=60)
    options = parser.parse_args()
    rows = []
    for name, made in OPTIMIZERS.items():
        ways = {"weft": update(made(0.1, lazy=True)), "all rows": update(made(0.1))}
        rows.append(compare(f"{name}, lazy", ways, rounds=options.rounds))
    report("Sparse updates", rows, options.json)


if __name__ == "__main__":
    main()
