"""Synchronous data-parallel training: two processes halve each batch, their gradients are averaged.

    batch -> half to worker 0, half to worker 1 -> a gradient of each -> their mean -> one update

The synchronous replication of the TensorFlow paper (2016, section 4.4) with one client: this
process builds a graph with the model once for each worker (a "tower"), runs it step by step, and
the workers compute. They are `weft worker` processes of this machine, on ipc sockets, which end
with the program; on others only the addresses differ. The parameters lie on worker 0.

The same graph with one tower trains on the whole batches in this process. Both have the same
parameters afterwards, but for rounding, which the program checks.

    python examples/data_parallel.py [--steps 300] [--batch 256] [--workers 2] [--seed 0]
"""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import weft as wf

Floats = NDArray[np.float32]
Ids = NDArray[np.int64]
HIDDEN, CLASSES, LEARNING_RATE, MOMENTUM = 256, 10, 0.1, 0.9
TOLERANCE = 1e-3  # of the largest parameter: rounding differs, and training makes it more


# ------------------------------------------------------------------------------------- the model
class Replicated:
    """A classifier of two layers in a graph: a tower for each device, all with one set of
    parameters."""

    def __init__(self, devices: Sequence[str], seed: int) -> None:
        self.graph = wf.Graph("data_parallel")
        with self.graph.as_default():
            with wf.device(devices[0]):
                self.parameters = self.initial(seed)
            optimizer = wf.train.Momentum(LEARNING_RATE, MOMENTUM)
            self.feeds, losses, gradients = [], [], []
            for device in devices:
                with wf.device(device):
                    x = wf.placeholder(wf.float32, [None, 64])
                    y = wf.placeholder(wf.int64, [None])
                    each = wf.nn.sparse_softmax_cross_entropy_with_logits(
                        labels=y, logits=self.logits(x)
                    )
                    losses.append(wf.mean(each))
                    gradients.append(optimizer.compute_gradients(losses[-1], self.parameters))
                    self.feeds += [x, y]
            with wf.device(devices[0]):
                self.loss = wf.mean(wf.stack(losses))
                self.train = optimizer.apply_gradients(wf.train.mean_gradients(gradients))
                self.x = wf.placeholder(wf.float32, [None, 64])
                self.predicted = wf.argmax(self.logits(self.x), axis=1)
            self.init = wf.global_variables_initializer()

    def initial(self, seed: int) -> list[wf.Variable]:
        rng = np.random.default_rng(seed)
        w1 = rng.normal(scale=0.125, size=(64, HIDDEN)).astype(np.float32)
        w2 = rng.normal(scale=0.06, size=(HIDDEN, CLASSES)).astype(np.float32)
        b1, b2 = np.zeros(HIDDEN, np.float32), np.zeros(CLASSES, np.float32)
        return [wf.Variable(value) for value in (w1, b1, w2, b2)]

    def logits(self, x: wf.Tensor) -> wf.Tensor:
        w1, b1, w2, b2 = self.parameters
        return wf.matmul(wf.nn.relu(wf.matmul(x, w1) + b1), w2) + b2


# ----------------------------------------------------------------------------------- the workers
@contextlib.contextmanager
def worker_processes(count: int) -> Iterator[wf.train.ClusterSpec]:
    """Processes that compute what sessions send them; they end with the block."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "cluster.json"
        spec = wf.train.ClusterSpec({"worker": [f"ipc://{folder}/{k}" for k in range(count)]})
        file.write_text(spec.to_json())
        command = [sys.executable, "-m", "weft", "worker", "--cluster", str(file)]
        command += ["--job", "worker", "--task"]
        processes = [
            subprocess.Popen([*command, str(k)], stdout=subprocess.DEVNULL) for k in range(count)
        ]
        try:
            yield spec
        finally:
            for process in processes:
                with process:  # waits for its end
                    process.terminate()


# ------------------------------------------------------------------------------------- the program
@dataclass(frozen=True)
class Digits:
    """scikit-learn's bundled 8x8 digits: rows of 64 floats in 0..1 and labels, in two parts."""

    train_x: Floats
    train_y: Ids
    test_x: Floats
    test_y: Ids

    @staticmethod
    def load() -> Digits:
        from sklearn.datasets import load_digits
        from sklearn.model_selection import train_test_split

        data = load_digits()
        x = (data.data / 16).astype(np.float32)
        train_x, test_x, train_y, test_y = train_test_split(
            x, data.target, test_size=0.2, random_state=0, stratify=data.target
        )
        return Digits(train_x, train_y, test_x, test_y)


@dataclass(frozen=True)
class Result:
    """losses: of each step; parameters: after the last one; accuracy: on the held-out images."""

    losses: list[float]
    seconds: list[float]
    parameters: list[Floats]
    accuracy: float
    compiled: int

    def describe(self) -> str:
        return (
            f"{len(self.losses)} steps, the first {self.seconds[0]:.2f} s, "
            f"then {np.median(self.seconds[1:] or self.seconds) * 1e6:.0f} us a step; "
            f"held-out accuracy {self.accuracy:.2%}; {self.compiled} steps of the graph compiled"
        )


def train(data: Digits, model: Replicated, target: str, options: argparse.Namespace) -> Result:
    """Train by a session on `target`. The batches are the same ones for any number of towers."""
    rng, losses, seconds = np.random.default_rng(options.seed), [], []
    towers = len(model.feeds) // 2
    with wf.Session(target, graph=model.graph) as session:
        session.run(model.init)
        for _ in wf.data.progress(range(options.steps), f"towers: {towers}"):
            rows = rng.integers(0, len(data.train_x), (towers, options.batch // towers))
            parts = [part for r in rows for part in (data.train_x[r], data.train_y[r])]
            began = time.perf_counter()
            _, loss = session.run(
                [model.train, model.loss], dict(zip(model.feeds, parts, strict=True))
            )
            seconds.append(time.perf_counter() - began)
            losses.append(float(loss))
        predicted = session.run(model.predicted, {model.x: data.test_x})
        accuracy = float(np.mean(predicted == data.test_y))
        found = session.run(model.parameters)
        return Result(losses, seconds, found, accuracy, session.cache_info().made)


def largest_difference(a: Result, b: Result) -> float:
    """Of a parameter, as a share of the largest parameter."""
    scale = max(np.max(np.abs(p)) for p in a.parameters)
    pairs = zip(a.parameters, b.parameters, strict=True)
    return float(max(np.max(np.abs(p - q)) for p, q in pairs) / scale)


def main(argv: Sequence[str] | None = None) -> tuple[Result, Result]:
    """The command line; the results of many processes and of one."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch", type=int, default=256, help="rows of all workers together")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(argv)
    if options.batch % options.workers:
        parser.error(f"--batch {options.batch} is not divisible by --workers {options.workers}")
    data = Digits.load()
    with worker_processes(options.workers) as spec:
        devices = [f"/job:worker/task:{k}" for k in range(options.workers)]
        model = Replicated(devices, options.seed)
        many = train(data, model, spec.address("worker", 0), options)
    alone = train(data, Replicated(["cpu"], options.seed), "", options)
    print(f"{options.workers} processes: {many.describe()}")
    print(f"one process: {alone.describe()}")
    print(f"cpu, at most {wf.get_num_threads()} threads in each process")
    difference = largest_difference(alone, many)
    print(f"largest difference of a parameter: {difference:.1e} of the largest parameter")
    if difference > TOLERANCE:
        raise SystemExit(f"that is more than rounding, {TOLERANCE:g}")
    return many, alone


if __name__ == "__main__":
    main()
