"""A convolutional network with batch norm and dropout that classifies handwritten digits.

    8x8 image -> 2 x (conv 3x3, batch norm, relu) -> max pool -> dropout -> logits of 10 classes

Convolutions as in LeCun et al., "Gradient-based learning applied to document recognition" (1998),
batch normalisation by Ioffe and Szegedy (2015), dropout by Srivastava et al. (2014). In training a
batch norm uses the mean and the variance of the batch, and moves those that are used afterwards a
little towards them. The images are scikit-learn's 8x8 digits, of which a fifth is held out.

    python examples/convnet.py [--steps 1500] [--batch 64] [--channels 16] [--seed 0]
"""

from __future__ import annotations

import argparse
import math
import time
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

import weft as wf

Parameters = dict[str, Any]  # of variables; "layers" is a list of such dicts
CLASSES, RATE, DROPOUT, MOVE = 10, 0.002, 0.3, 0.05


def load_digits() -> list[Any]:
    """Images to learn from, others to test with, (image, 8, 8, 1) in 0..1; the digits of both."""
    from sklearn.datasets import load_digits as bundled
    from sklearn.model_selection import train_test_split

    images, labels = bundled(return_X_y=True)
    x = (images / 16).astype(np.float32).reshape(-1, 8, 8, 1)
    return list(train_test_split(x, labels, test_size=0.2, random_state=0, stratify=labels))


# ----------------------------------------------------------------------------------- the model
def parameters(channels: int, seed: int) -> Parameters:
    """Weights by He et al. (2015); moving means and variances are not for the optimizer."""
    rng = wf.random.Generator(seed)

    def weights(*shape: int) -> wf.Variable:
        return wf.Variable(rng.normal(shape, stddev=math.sqrt(2 / math.prod(shape[:-1]))))

    def layer(come: int, go: int) -> Parameters:
        return {
            "kernel": weights(3, 3, come, go),
            "scale": wf.Variable(wf.ones([go])),
            "offset": wf.Variable(wf.zeros([go])),
            "mean": wf.Variable(wf.zeros([go]), trainable=False),
            "variance": wf.Variable(wf.ones([go]), trainable=False),
        }

    return {
        "layers": [layer(1, channels), layer(channels, 2 * channels)],
        "out": weights(4 * 4 * 2 * channels, CLASSES),
        "bias": wf.Variable(wf.zeros([CLASSES])),
    }


def batch_norm(p: Parameters, x: wf.Tensor, training: bool) -> wf.Tensor:
    """Each channel of x with mean 0 and variance 1, then scaled and shifted."""
    if not training:
        return wf.nn.batch_norm(x, p["mean"], p["variance"], p["offset"], p["scale"])
    mean, variance = wf.nn.moments(x, axes=[0, 1, 2])
    p["mean"].assign_add(MOVE * (mean - p["mean"]))
    p["variance"].assign_add(MOVE * (variance - p["variance"]))
    return wf.nn.batch_norm(x, mean, variance, p["offset"], p["scale"])


def logits(p: Parameters, x: wf.Tensor, key: wf.Tensor | None = None) -> wf.Tensor:
    """x: (batch, 8, 8, 1). A key, for dropout, is given in training and not otherwise."""
    for layer in p["layers"]:
        x = wf.nn.conv2d(x, layer["kernel"], padding="SAME")
        x = wf.nn.relu(batch_norm(layer, x, training=key is not None))
    x = wf.nn.max_pool2d(x, 2)
    x = wf.reshape(x, (x.shape[0], -1))
    if key is not None:
        x = wf.nn.dropout(x, rate=DROPOUT, key=key)
    scores: wf.Tensor = wf.matmul(x, p["out"]) + p["bias"]
    return scores


# ------------------------------------------------------------------------------------ training
def trainer(p: Parameters, seed: int) -> wf.CompiledFunction[..., wf.Tensor]:
    """One step of Adam, which also moves the means and variances; it returns the loss."""
    optimizer = wf.train.Adam(RATE)
    count = wf.Variable(0)  # of steps done: each drops out other elements

    @wf.compile
    def step(x: wf.Tensor, y: wf.Tensor) -> wf.Tensor:
        key = wf.random.fold_in(wf.random.key(seed), count)
        losses = wf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits(p, x, key))
        loss = wf.mean(losses)
        optimizer.minimize(loss, global_step=count)
        return loss

    return step


@dataclass(frozen=True)
class Result:
    """The loss of every step, and the accuracy on the images that were held out, 0..1."""

    losses: list[float]
    accuracy: float


def train(steps: int, batch: int, channels: int, seed: int) -> Result:
    train_x, test_x, train_y, test_y = load_digits()
    p = parameters(channels, seed)
    step = trainer(p, seed)
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
    for name, value in (("steps", 1500), ("batch", 64), ("channels", 16), ("seed", 0)):
        parser.add_argument(f"--{name}", type=int, default=value)
    result = train(**vars(parser.parse_args(argv)))
    print(f"last loss {result.losses[-1]:.4f}, held-out accuracy {result.accuracy:.2%}")
    return result


if __name__ == "__main__":
    main()
