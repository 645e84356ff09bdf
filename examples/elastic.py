"""Training that survives: processes share each batch; one is killed, another one comes.

    step k:  the batch of k -> 8 microbatches -> shared out over who is there -> one sum -> update

This process starts the others, kills one in the midst of a step (kill -9), and starts one more. The
survivors notice, share the microbatches anew, and do the step again; the newcomer gets their
parameters. Gradients are added in a tree over the microbatches, whoever computes which, so all
losses are bit for bit those of one process that nothing happens to: the program trains that way,
too, and compares.

    python examples/elastic.py [--steps 600] [--batch 256] [--processes 3] [--seed 0]

On a cluster whose engine starts processes anew each of them is this program with --worker."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import weft as wf

Floats = NDArray[np.float32]
HIDDEN, CLASSES = 256, 10


# ------------------------------------------------------------------------------------ the training
class Classifier:
    """Two layers, for scikit-learn's bundled 8x8 digits."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        w1 = rng.normal(scale=0.125, size=(64, HIDDEN)).astype(np.float32)
        w2 = rng.normal(scale=0.06, size=(HIDDEN, CLASSES)).astype(np.float32)
        b1, b2 = np.zeros(HIDDEN, np.float32), np.zeros(CLASSES, np.float32)
        self.variables = [wf.Variable(value) for value in (w1, b1, w2, b2)]

    def loss(self, x: wf.Tensor, y: wf.Tensor) -> wf.Tensor:
        w1, b1, w2, b2 = self.variables
        logits = wf.matmul(wf.nn.relu(wf.matmul(x, w1) + b1), w2) + b2
        return wf.mean(wf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits))


class Batches:
    """The batch of a step: it follows from the step alone, so all processes have the same."""

    def __init__(self, batch: int, seed: int) -> None:
        from sklearn.datasets import load_digits

        data = load_digits()
        self.x: Floats = (data.data / 16).astype(np.float32)
        self.y: NDArray[np.int64] = data.target
        self.batch, self.seed = batch, seed

    def __getitem__(self, step: int) -> tuple[Floats, NDArray[np.int64]]:
        rows = np.random.default_rng((self.seed, step)).integers(0, len(self.x), self.batch)
        return self.x[rows], self.y[rows]


def work(options: argparse.Namespace) -> None:
    """Take part in the run from when a line comes: write a line after a third of the steps, and at
    the end one with the losses and with what has happened."""
    model, batches = Classifier(options.seed), Batches(options.batch, options.seed)
    optimizer = wf.train.Adam(0.001)
    print("ready", flush=True)
    sys.stdin.readline()
    losses = {}
    with wf.train.Elastic(
        model.loss, optimizer, model.variables, name=options.run, size=options.processes
    ) as train:
        while train.step < options.steps:
            step = train.step
            losses[step] = float(train(*batches[step]))
            if step == options.steps // 3:
                print("a third", flush=True)
        print(json.dumps([list(losses.items()), train.changes]), flush=True)


# ---------------------------------------------------------------------------- the other processes
class Worker:
    """A process of a run."""

    def __init__(self, options: argparse.Namespace, run: str, processes: int) -> None:
        given = ["--steps", str(options.steps), "--batch", str(options.batch)]
        given += ["--seed", str(options.seed), "--processes", str(processes), "--run", run]
        self.process = subprocess.Popen(
            [sys.executable, Path(__file__), "--worker", *given],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def says(self, line: str) -> None:
        """Wait for a line."""
        assert self.process.stdout is not None
        found = self.process.stdout.readline()
        if found != f"{line}\n":
            raise SystemExit(f"a worker says {found!r}")

    def joins(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def result(self) -> tuple[dict[int, float], list[str]]:
        """The losses of the steps that it took part in, and what has happened."""
        assert self.process.stdout is not None
        lines = self.process.stdout.read().splitlines()
        if self.process.wait():
            raise SystemExit("a worker has failed")
        losses, changes = json.loads(lines[-1])
        return dict(losses), changes

    def kill(self) -> None:
        with self.process as process:  # waits for its end
            process.kill()


def disturbed(options: argparse.Namespace) -> tuple[dict[int, float], list[str]]:
    """The run that loses a process and gets another one: the losses of all that reach its end."""
    run = f"{os.getpid()}-{time.monotonic_ns()}"
    workers = [Worker(options, run, options.processes) for _ in range(options.processes + 1)]
    try:
        for worker in workers:
            worker.says("ready")
        *first, newcomer = workers
        for worker in first:
            worker.joins()
        first[0].says("a third")
        newcomer.joins()
        first[0].kill()
        losses: dict[int, float] = {}
        changes: list[str] = []
        for worker in workers[1:]:
            theirs, said = worker.result()
            losses |= theirs
            changes = changes or said
        return losses, changes
    finally:
        for worker in workers:
            worker.kill()


def undisturbed(options: argparse.Namespace) -> dict[int, float]:
    """The losses of one process that nothing happens to."""
    worker = Worker(options, f"{os.getpid()}-alone", 1)
    try:
        worker.joins()
        return worker.result()[0]
    finally:
        worker.kill()


def main(argv: Sequence[str] | None = None) -> tuple[dict[int, float], list[str]]:
    """The command line; the losses of the disturbed run, and what happened to it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--batch", type=int, default=256, help="rows of all processes together")
    parser.add_argument("--processes", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--worker", action="store_true", help="take part in the run --run")
    parser.add_argument("--run", default="digits", help="its name")
    options = parser.parse_args(argv)
    if options.worker:
        work(options)
        return {}, []
    losses, changes = disturbed(options)
    alone = undisturbed(options)
    for text in changes:
        print(text)
    print(f"{len(losses)} steps, the last loss {losses[options.steps - 1]:.6f}")
    if losses != alone:
        raise SystemExit("the losses are not those of the run that nothing happened to")
    print("each loss is bit for bit that of one process that nothing happened to")
    return losses, changes


if __name__ == "__main__":
    main()
