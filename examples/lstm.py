"""An LSTM that reads an image row by row, as a sequence, and says which digit it is.

    8 rows of 8 pixels -> wf.scan of an LSTM cell -> its last output -> logits of 10 classes

The cell is that of Hochreiter and Schmidhuber, "Long short-term memory" (1997), with the forget
gate of Gers, Schmidhuber and Cummins, "Learning to forget" (2000). `wf.scan` is the loop over time;
it has a gradient, so nothing is unrolled. The images are scikit-learn's 8x8 digits, of which a
fifth is held out.

    python examples/lstm.py [--steps 1500] [--batch 64] [--units 64] [--pixels 8] [--seed 0]

`--pixels` is how many pixels the model sees at a time: with `--pixels 1` an image is a sequence of
64, which is harder, and a step takes about ten times as long.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

import weft as wf

Floats, Labels = NDArray[np.float32], NDArray[np.int64]
Parameters = dict[str, wf.Variable]
State = tuple[wf.Tensor, wf.Tensor]  # what a cell gives out, and its memory
CLASSES, RATE, CLIP = 10, 0.005, 1.0


def load_digits(pixels: int) -> list[Any]:
    """Sequences to learn from, others to test with, (image, time, pixel) in 0..1; the digits of
    both."""
    from sklearn.datasets import load_digits as bundled
    from sklearn.model_selection import train_test_split

    images, labels = bundled(return_X_y=True)
    x = (images / 16).astype(np.float32).reshape(len(images), -1, pixels)
    return list(train_test_split(x, labels, test_size=0.2, random_state=0, stratify=labels))


# ----------------------------------------------------------------------------------- the model
def parameters(pixels: int, units: int, seed: int) -> Parameters:
    """The weights of the four gates are side by side: enter, keep, show, new."""
    rng = wf.random.Generator(seed)

    def weights(rows: int, columns: int) -> wf.Variable:
        return wf.Variable(rng.normal((rows, columns), stddev=rows**-0.5))

    bias = np.zeros(4 * units, np.float32)
    bias[units : 2 * units] = 1  # at first the cell keeps most of its memory (Gers et al.)
    return {
        "in": weights(pixels, 4 * units),
        "state": weights(units, 4 * units),
        "bias": wf.Variable(bias),
        "out": weights(units, CLASSES),
        "out_bias": wf.Variable(wf.zeros([CLASSES])),
    }


def cell(p: Parameters, state: State, x: wf.Tensor) -> State:
    """One step in time: x is (batch, pixels), output and memory are (batch, units)."""
    output, memory = state
    gates = wf.matmul(x, p["in"]) + wf.matmul(output, p["state"]) + p["bias"]
    enter, keep, show, new = wf.split(gates, 4, axis=1)
    memory = wf.sigmoid(keep) * memory + wf.sigmoid(enter) * wf.tanh(new)
    return wf.sigmoid(show) * wf.tanh(memory), memory


def logits(p: Parameters, x: wf.Tensor) -> wf.Tensor:
    """x: (batch, time, pixels)."""

    def step(state: State, row: wf.Tensor) -> tuple[State, None]:
        return cell(p, state, row), None  # nothing is stacked: only the last state counts

    zeros = wf.zeros((x.shape[0], p["state"].shape[0]))
    (output, _), _ = wf.scan(step, (zeros, zeros), wf.moveaxis(x, 1, 0))  # time first
    return wf.matmul(output, p["out"]) + p["out_bias"]


# ------------------------------------------------------------------------------------ training
def trainer(p: Parameters) -> wf.CompiledFunction[..., wf.Tensor]:
    """One step of Adam, with the gradients clipped by their global norm; it returns the loss."""
    optimizer = wf.train.Adam(RATE)

    @wf.compile
    def step(x: wf.Tensor, y: wf.Tensor) -> wf.Tensor:
        losses = wf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits(p, x))
        loss = wf.mean(losses)
        gradients, variables = zip(*optimizer.compute_gradients(loss), strict=True)
        clipped, _ = wf.train.clip_by_global_norm(gradients, CLIP)
        optimizer.apply_gradients(list(zip(clipped, variables, strict=True)))
        return loss

    return step


@dataclass(frozen=True)
class Result:
    """The loss of every step, and the accuracy on the images that were held out, 0..1."""

    losses: list[float]
    accuracy: float


def train(steps: int, batch: int, units: int, pixels: int, seed: int) -> Result:
    train_x, test_x, train_y, test_y = load_digits(pixels)
    p = parameters(pixels, units, seed)
    step = trainer(p)
    rows = wf.data.Dataset.from_arrays((train_x, train_y)).shuffle(len(train_x), seed=seed)
    batches = islice(rows.repeat().batch(batch), steps)
    losses, seconds = [], []
    for x, y in wf.data.progress(batches, "training", total=steps):
        began = time.perf_counter()
        losses.append(float(step(x, y)))
        seconds.append(time.perf_counter() - began)
    usual = np.median(seconds[1:] or seconds) * 1e6
    print(f"{steps} steps: first {seconds[0]:.2f} s, then {usual:.0f} us a step")
    print(step.summary(x, y))
    predict = wf.compile(lambda x: wf.argmax(logits(p, x), axis=1))
    return Result(losses, float(np.mean(predict(test_x).numpy() == test_y)))


def main(argv: list[str] | None = None) -> Result:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    for name, value in (("steps", 1500), ("batch", 64), ("units", 64), ("pixels", 8), ("seed", 0)):
        parser.add_argument(f"--{name}", type=int, default=value)
    result = train(**vars(parser.parse_args(argv)))
    print(f"last loss {result.losses[-1]:.4f}, held-out accuracy {result.accuracy:.2%}")
    return result


if __name__ == "__main__":
    main()
