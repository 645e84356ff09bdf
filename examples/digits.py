"""The paper's Figure 1: a classifier of handwritten digits, written twice.

`train_compiled` decorates the training step with `@wf.compile`; `train_session` builds the graph
first and runs it with a `wf.Session`, as the paper writes it. Both start from the same weights and
see the same batches; printed are what was compiled, the time of a step and the accuracy on a
held-out split. Loss and accuracy go to a PNG.

    python examples/digits.py [--steps 2000] [--batch 128] [--device cpu] [--out digits.png]

`--device gpu:0` trains on a GPU; with WEFT_EMULATE_GPU=1 on one that is emulated (some steps: it is
slow).
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

import weft as wf

Floats = NDArray[np.float32]
HIDDEN, CLASSES, LEARNING_RATE = 100, 10, 0.05
POINTS = 40  # of the curve of held-out accuracy


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


@dataclass
class Run:
    """The loss of every step, and how long each took (seconds); the accuracy on the held-out
    images, 0..1, after some of the steps. compiled: what was, for people."""

    losses: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    held_out: dict[int, float] = field(default_factory=dict)
    compiled: str = ""

    @property
    def accuracy(self) -> float:
        """After the last step."""
        return self.held_out[len(self.losses)]

    def describe(self) -> str:
        """Three lines."""
        step = np.median(self.seconds[1:] or self.seconds) * 1e6
        return (
            f"last loss {self.losses[-1]:.4f}, held-out accuracy {self.accuracy:.2%}\n"
            f"{'':12} first step {self.seconds[0]:.2f} s, then {step:.0f} us a step\n"
            f"{'':12} {self.compiled}"
        )


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


def train(
    data: Digits,
    steps: int,
    batch: int,
    progress: tuple[Progress, str],
    step: Callable[[Floats, Floats], float],
    predict: Callable[[Floats], Any],
) -> Run:
    """The loop around one training step: times it, and now and then asks for the accuracy."""
    run, (bar, name) = Run(), progress
    task = bar.add_task(name, total=steps)
    for number, (x, y) in enumerate(data.batches(steps, batch), 1):
        began = time.perf_counter()
        run.losses.append(step(x, y))
        run.seconds.append(time.perf_counter() - began)
        if number % max(1, steps // POINTS) == 0 or number == steps:
            run.held_out[number] = accuracy(predict(data.test_x), data.test_y)
        bar.advance(task)
    return run


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
    bar = (progress, "@wf.compile")
    run = train(data, steps, batch, bar, lambda x, y: float(step(x, y)), predict)
    run.compiled = step.summary(data.train_x[:batch], data.train_y[:batch])
    return run


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
        with wf.Session() as sess:
            sess.run(wf.global_variables_initializer())

            def step(x_data: Floats, y_data: Floats) -> float:
                _, value = sess.run([train_op, loss], {x: x_data, y: y_data})
                return float(value)

            def predict(x_data: Floats) -> Any:
                return sess.run(layer_2, {x: x_data})

            run = train(data, steps, batch, (progress, "wf.Session"), step, predict)
            info = sess.cache_info()
            run.compiled = f"{info.made} steps of the graph compiled"
    return run


def save_curves(runs: dict[str, Run], path: str) -> None:
    """Loss (the mean of 50 steps) and held-out accuracy of both as a PNG. They lie on each other:
    the first is drawn broad."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 4))
    styles: tuple[dict[str, Any], ...]
    styles = ({"linewidth": 5, "alpha": 0.35}, {"linewidth": 1.2, "color": "black"})
    for style, (name, run) in zip(styles, runs.items(), strict=True):
        width = min(50, len(run.losses))
        smooth = np.convolve(run.losses, np.full(width, 1 / width), "valid")
        left.plot(np.arange(width, width + len(smooth)), smooth, label=name, **style)
        right.plot(
            [*run.held_out], [*run.held_out.values()], label=f"{name}: {run.accuracy:.1%}", **style
        )
    left.set(xlabel="step", ylabel="cross entropy (nats)", yscale="log", title="training loss")
    right.set(xlabel="step", ylabel="accuracy", title="held-out images")
    left.legend()
    right.legend()
    figure.suptitle("Figure 1 on digits")
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
        for name, way in (("@wf.compile", train_compiled), ("wf.Session", train_session)):
            runs[name] = way(data, start, options.steps, options.batch, progress, options.device)
    for name, run in runs.items():
        print(f"{name:12} {run.describe()}")
    save_curves(runs, options.out)
    print(f"curves: {options.out}")


if __name__ == "__main__":
    main()
