"""What recording and verifying a step cost: a training step as it runs, recorded by `wf.record`
(in memory, and written before each step), and held against the interpreter (WEFT_VERIFY=native).

Each has a function of its own, so that all run in turns in one process; "weft" is the step that
nobody watches. Recording is on for the calls of its own function alone: entering and leaving its
block is not timed.

python benchmarks/recording.py [--json benchmarks/recording.json] [--rounds 30]
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

import numpy as np
from harness import Comparison, compare, report

import weft as wf

SIZES = {"MLP, 16 rows, 4 kB of variables": (16, 16, 32), "MLP, 64 rows, 4 MB": (64, 256, 2048)}


def training_step(rows: int, inputs: int, hidden: int) -> Callable[[], Any]:
    """A step of gradient descent on variables of its own."""
    random = np.random.default_rng(0)
    x = random.normal(size=(rows, inputs)).astype(np.float32)
    y = random.normal(size=(rows, inputs)).astype(np.float32)
    scale = np.float32(0.1)
    first = wf.Variable(random.normal(size=(inputs, hidden)).astype(np.float32) * scale)
    second = wf.Variable(random.normal(size=(hidden, inputs)).astype(np.float32) * scale)

    @wf.compile
    def step(x: Any, y: Any) -> Any:
        def loss(v: Any, w: Any) -> Any:
            return wf.mean(wf.square(wf.matmul(wf.tanh(wf.matmul(x, v)), w) - y))

        value, (v, w) = wf.value_and_grad(loss, argnums=(0, 1))(first, second)
        first.assign_sub(v * 1e-3)
        second.assign_sub(w * 1e-3)
        return value

    step(x, y)
    return lambda: step(x, y)


@contextmanager
def _verified() -> Any:
    os.environ["WEFT_VERIFY"] = "native"
    try:
        yield
    finally:
        del os.environ["WEFT_VERIFY"]


def watched(sizes: tuple[int, int, int], folder: str) -> dict[str, Callable[[], Any]]:
    """The contestants by name. A function keeps the watchers that there were when it was compiled,
    so each is compiled within what watches it."""
    held: dict[str, Callable[[], Any]] = {"weft": training_step(*sizes)}
    for name, options in {"recorded": {}, "recorded, sync": {"sync": True}}.items():
        os.environ["WEFT_RECORD"] = os.path.join(folder, name)
        os.environ["WEFT_RECORD_SYNC"] = "1" if options else "0"
        held[name] = training_step(*sizes)
        del os.environ["WEFT_RECORD"], os.environ["WEFT_RECORD_SYNC"]
    with _verified():
        held["verified"] = training_step(*sizes)
    return held


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json")
    parser.add_argument("--rounds", type=int, default=30)
    args = parser.parse_args()
    found: list[Comparison] = []
    with tempfile.TemporaryDirectory() as folder:
        for name, sizes in SIZES.items():
            found.append(compare(name, watched(sizes, folder), rounds=args.rounds))
    report("A training step, watched (ratios: the plain step's time by it)", found, args.json)


if __name__ == "__main__":
    main()
