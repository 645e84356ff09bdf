"""A network for handwritten digits in float32, with weights of 8 and 4 bits, and in 8 bits.

    64 pixels -> 1024 -> 1024 -> 10 classes, trained in float32 by Adam

The trained network is quantised by `wf.quantization.quantize` in four ways: weights of 8 bits, of 4
bits in blocks, activations of 8 bits by the rows of each batch, and by ranges that some training
images gave. For each the program prints how many of the held-out digits are right, the size of its
bundle on disk, and what one image and a batch of 256 take, beside float32. The images are
scikit-learn's 8x8 digits, of which a fifth is held out.

    python examples/int8.py [--steps 600] [--batch 64] [--units 1024] [--seed 0]
"""

from __future__ import annotations

import argparse
import math
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import Any

import numpy as np

import weft as wf

CLASSES, RATE, TURNS = 10, 0.002, 30

#: How each is quantised; calibration is added where it is needed.
WAYS: dict[str, dict[str, Any]] = {
    "weights int8": {},
    "weights int4": {"weights": "int4"},
    "dynamic int8": {"activations": "dynamic"},
    "static int8": {"activations": "static", "method": "percentile"},
}


def load_digits() -> list[Any]:
    """Images to learn from, others to test with, (image, 64) in 0..1; the digits of both."""
    from sklearn.datasets import load_digits as bundled
    from sklearn.model_selection import train_test_split

    images, labels = bundled(return_X_y=True)
    x = (images / 16).astype(np.float32)
    return list(train_test_split(x, labels, test_size=0.2, random_state=0, stratify=labels))


class Network(wf.nn.Module):
    """Two layers of ReLUs, and scores of the classes."""

    def __init__(self, units: int, seed: int) -> None:
        super().__init__()
        rng = wf.random.Generator(seed)
        sizes = [64, units, units, CLASSES]
        self.weights = [
            wf.Variable(rng.normal((a, b), stddev=math.sqrt(2 / a)), name=f"weights_{i}")
            for i, (a, b) in enumerate(pairwise(sizes))
        ]
        self.biases = [wf.Variable(wf.zeros([b]), name=f"bias_{b}") for b in sizes[1:]]

    def __call__(self, x: wf.Tensor) -> wf.Tensor:
        last = len(self.weights) - 1
        for i, (w, b) in enumerate(zip(self.weights, self.biases, strict=True)):
            x = x @ w + b
            x = wf.nn.relu(x) if i < last else x
        return x


def trained(steps: int, batch: int, units: int, seed: int, data: list[Any]) -> Network:
    """The network after so many steps of Adam."""
    network, optimizer = Network(units, seed), wf.train.Adam(RATE)

    @wf.compile
    def step(x: wf.Tensor, y: wf.Tensor) -> wf.Tensor:
        scores = network(x)
        losses = wf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=scores)
        loss = wf.mean(losses)
        optimizer.minimize(loss)
        return loss

    rows = wf.data.Dataset.from_arrays((data[0], data[2])).shuffle(len(data[0]), seed=seed)
    for x, y in islice(rows.repeat().batch(batch), steps):
        step(x, y)
    return network


@dataclass(frozen=True)
class Row:
    """What one form of the network gives: accuracy in 0..1, bytes of its bundle, seconds of a call
    on one image and on 256."""

    accuracy: float
    nbytes: int
    one: float
    many: float


def measured(run: Callable[..., Any], exported: Any, kind: wf.TensorType, data: list[Any]) -> Row:
    """A form of the network: what runs, and what `wf.export` takes."""
    images, labels = data[1], data[3]
    accuracy = float(np.mean(np.argmax(run(images).numpy(), axis=1) == labels))
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "model")
        wf.export(exported, path, example=kind)
        nbytes = sum(entry.stat().st_size for entry in os.scandir(path))
    return Row(accuracy, nbytes, _seconds(run, images[:1]), _seconds(run, images[:256]))


def _seconds(run: Callable[..., Any], x: Any) -> float:
    """The least of some calls."""
    given = wf.asarray(np.ascontiguousarray(x))
    run(given)
    times = []
    for _ in range(TURNS):
        began = time.perf_counter()
        run(given)
        times.append(time.perf_counter() - began)
    return min(times)


def compared(steps: int, batch: int, units: int, seed: int) -> dict[str, Row]:
    """All forms by name, the first one in float32."""
    data = load_digits()
    network, kind = trained(steps, batch, units, seed, data), wf.TensorType(wf.float32, (None, 64))
    plain = wf.compile(network.__call__, input_signature=[kind])
    rows = {"float32": measured(plain, network, kind, data)}
    for name, how in WAYS.items():
        batches = [data[0][i : i + 256] for i in range(0, 1024, 256)]
        more: dict[str, Any] = {"calibration": batches} if "method" in how else {}
        small = wf.quantization.quantize(network, kind, **how, **more)
        rows[name] = measured(small, small.function, kind, data)
        if name == "static int8":
            print(small.report(data[1]), end="\n\n")
    return rows


def main(argv: list[str] | None = None) -> dict[str, Row]:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    for name, value in (("steps", 600), ("batch", 64), ("units", 1024), ("seed", 0)):
        parser.add_argument(f"--{name}", type=int, default=value)
    rows = compared(**vars(parser.parse_args(argv)))
    first = rows["float32"]
    for name, row in rows.items():
        print(
            f"{name:13} accuracy {row.accuracy:7.2%}  bundle {row.nbytes / 1024:7.0f} KB  "
            f"one image {row.one * 1e6:7.1f} us ({first.one / row.one:.2f}x)  "
            f"256 images {row.many * 1e6:7.1f} us ({first.many / row.many:.2f}x)"
        )
    return rows


if __name__ == "__main__":
    main()
