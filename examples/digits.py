"""The paper's Figure 1: a classifier of handwritten digits, written twice.

`train_compiled` decorates the training step with `@wf.compile`; `train_session` builds the graph
first and runs it with a `wf.Session`, as the paper writes it. Both start from the same weights,
see the same batches and print the accuracy on a held-out split; the loss curves go to a PNG.

    python examples/digits.py [--steps 2000] [--batch 128] [--device cpu] [--out digits.png]

`--device gpu:0` trains on a GPU; with WEFT_EMULATE_GPU=1 on one that is emulated (some steps: it is
slow).
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

import weft as wf

Floats = NDArray[np.float32]
HIDDEN, CLASSES, LEARNING_RATE = 100, 10, 0.05


@dataclass(frozen=True)
class Digits:
    """Images as rows of 64 floats in 0..1 and labels as one-hot rows, split into two parts."""

    train_x: Floats
    train_y: Floats
    test_x: Floats
    test_y: Floats

    def batches(self, steps: int, size: int, seed: int = 0) -> Iterator[tuple[Floats, Floats]]:
        """`steps` random batches, the same ones for the same seed."""
        rng = np.random.default_rng(seed)
        for _ in range(steps):
            rows = rng.integers(0, len(self.train_x), size)
            yield self.train_x[rows], self.train_y[rows]


@dataclass(frozen=True)
class Weights:
    """Initial values of the two layers."""

    w1: Floats
    b1: Floats
    w2: Floats
    b2: Floats


@dataclass(frozen=True)
class Run:
    """The loss of every step and the accuracy on the held-out images, 0..1."""

    losses: list[float]
    accuracy: float


def load_digits() -> Digits:
    """scikit-learn's bundled 8x8 digits: 1437 images to train on, 360 held out."""
    from sklearn.datasets import load_digits as bundled
    from sklearn.model_selection import train_test_split

    data = bundled()
    x = (data.data / 16).astype(np.float32)
    y = np.eye(CLASSES, dtype=np.float32)[data.target]
    split = train_test_split(x, y, test_size=0.2, random_state=0, stratify=data.target)
    return Digits(split[0], split[2], split[1], split[3])


def initial_weights(features: int = 64, seed: int = 1) -> Weights:
    """Uniform in -0.1..0.1 (the paper's 0..1 saturates), biases zero."""
    rng = np.random.default_rng(seed)
    w1 = rng.uniform(-0.1, 0.1, (features, HIDDEN)).astype(np.float32)
    w2 = rng.uniform(-0.1, 0.1, (HIDDEN, CLASSES)).astype(np.float32)
    return Weights(w1, np.zeros(HIDDEN, np.float32), w2, np.zeros(CLASSES, np.float32))


def accuracy(logits: Any, labels: Floats) -> float:
    """The share of rows whose largest logit is at the label."""
    return float(np.mean(np.argmax(np.asarray(logits), axis=1) == np.argmax(labels, axis=1)))


def train_compiled(
    data: Digits, start: Weights, steps: int, batch: int, progress: Progress, device: str = "cpu"
) -> Run:
    """The step is a decorated function; its variables are updated in place by one native call."""
    W_1, b_1 = wf.Variable(start.w1, name="W_1"), wf.Variable(start.b1, name="b_1")
    W_2, b_2 = wf.Variable(start.w2, name="W_2"), wf.Variable(start.b2, name="b_2")
    optimizer = wf.train.Adagrad(LEARNING_RATE)

    def model(x: wf.Tensor) -> wf.Tensor:
        layer_1 = wf.nn.relu(wf.matmul(x, W_1) + b_1)
        return wf.matmul(layer_1, W_2) + b_2

    @wf.compile(device=device)
    def step(x: wf.Tensor, y: wf.Tensor) -> wf.Tensor:
        loss = wf.mean(wf.nn.softmax_cross_entropy_with_logits(labels=y, logits=model(x)))
        optimizer.minimize(loss)
        return loss

    predict = wf.compile(device=device)(model)
    losses = []
    task = progress.add_task("@wf.compile", total=steps)
    for x, y in data.batches(steps, batch):
        losses.append(float(step(x, y)))
        progress.advance(task)
    return Run(losses, accuracy(predict(data.test_x), data.test_y))


def train_session(
    data: Digits, start: Weights, steps: int, batch: int, progress: Progress, device: str = "cpu"
) -> Run:
    """The program of Figure 1: placeholders, variables, an optimizer's op, a session."""
    with wf.Graph().as_default(), wf.device(device):
        # 1. Construct a graph representing the model.
        x = wf.placeholder(wf.float32, [None, 64], name="x")
        y = wf.placeholder(wf.float32, [None, CLASSES], name="y")
        W_1, b_1 = wf.Variable(start.w1), wf.Variable(start.b1)
        layer_1 = wf.nn.relu(wf.matmul(x, W_1) + b_1)
        W_2, b_2 = wf.Variable(start.w2), wf.Variable(start.b2)
        layer_2 = wf.matmul(layer_1, W_2) + b_2
        # 2. Add nodes that represent the optimization algorithm.
        loss = wf.mean(wf.nn.softmax_cross_entropy_with_logits(labels=y, logits=layer_2))
        train_op = wf.train.Adagrad(LEARNING_RATE).minimize(loss)
        # 3. Execute the graph on batches of input data.
        losses = []
        task = progress.add_task("wf.Session", total=steps)
        with wf.Session() as sess:
            sess.run(wf.global_variables_initializer())
            for x_data, y_data in data.batches(steps, batch):
                _, value = sess.run([train_op, loss], {x: x_data, y: y_data})
                losses.append(float(value))
                progress.advance(task)
            logits = sess.run(layer_2, {x: data.test_x})
    return Run(losses, accuracy(logits, data.test_y))


def save_curves(runs: dict[str, Run], path: str) -> None:
    """Both loss curves as a PNG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4))
    for style, (name, run) in zip(("-", "--"), runs.items(), strict=True):
        axes.plot(run.losses, style, label=f"{name}: {run.accuracy:.1%} held out")
    axes.set(xlabel="step", ylabel="cross entropy (nats)", yscale="log", title="Figure 1 on digits")
    axes.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", default="digits.png")
    options = parser.parse_args()
    data, start = load_digits(), initial_weights()
    columns = (
        TextColumn("{task.description:12}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    runs: dict[str, Run] = {}
    with Progress(*columns) as progress:
        for name, train in (("@wf.compile", train_compiled), ("wf.Session", train_session)):
            runs[name] = train(data, start, options.steps, options.batch, progress, options.device)
    for name, run in runs.items():
        print(f"{name:12} last loss {run.losses[-1]:.4f}, held-out accuracy {run.accuracy:.2%}")
    save_curves(runs, options.out)
    print(f"loss curves: {options.out}")


if __name__ == "__main__":
    main()
