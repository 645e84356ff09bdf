"""A sparse update of a table by optimizers that change all rows, and with `lazy=True`.

    python benchmarks/lazy_updates.py [--rounds 60]

100000 x 64 f32, 1024 ids; a compiled step of `apply_gradients` alone, both ways in turn; minimum
and median in us.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np

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
    parser.add_argument("--rounds", type=int, default=60)
    rounds = parser.parse_args().rounds
    for name, made in OPTIMIZERS.items():
        steps = {"all rows": update(made(0.1)), "lazy": update(made(0.1, lazy=True))}
        took: dict[str, list[float]] = {way: [] for way in steps}
        for _ in range(rounds):
            for way, step in steps.items():
                begun = time.perf_counter()
                step()
                took[way].append((time.perf_counter() - begun) * 1e6)
        shown = [f"{way} {min(t):.0f} / {np.median(t):.0f}" for way, t in took.items()]
        print(f"{name}: {', '.join(shown)} us")


if __name__ == "__main__":
    main()
