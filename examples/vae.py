"""A variational autoencoder of handwritten digits: it learns, without labels, which are likely.

    image -> encoder -> mean, log variance -> a random code -> decoder -> logits of the pixels

Kingma and Welling, "Auto-encoding variational Bayes" (2013). A code is drawn as mean + deviation *
noise, so that the gradient passes on to the encoder (the reparameterisation). What is maximised is
a lower bound of log p(image), the ELBO: minus the binary cross-entropy of the pixels, each grey
value taken as a probability of black, minus the KL divergence of the code's distribution from a
normal one. The images are scikit-learn's 8x8 digits, of which a fifth is held out.

    python examples/vae.py [--steps 5000] [--batch 64] [--units 256] [--code 8] [--seed 0]
                           [--picture FILE]

`--picture` writes held-out images, what the model makes of them, and images that it makes up.
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

Floats = NDArray[np.float32]
Layer = dict[str, wf.Variable]
Parameters = dict[str, Layer]
PIXELS, RATE = 64, 0.001


def load_digits() -> list[Floats]:
    """Images to learn from, and others to test with: rows of 64 pixels in 0..1, 1 is black."""
    from sklearn.datasets import load_digits as bundled
    from sklearn.model_selection import train_test_split

    images, labels = bundled(return_X_y=True)
    x = (images / 16).astype(np.float32)
    return list(train_test_split(x, test_size=0.2, random_state=0, stratify=labels))


# ----------------------------------------------------------------------------------- the model
def parameters(units: int, code: int, seed: int) -> Parameters:
    """Weights by He et al. (2015), biases of 0."""
    rng = wf.random.Generator(seed)

    def layer(come: int, go: int) -> Layer:
        weights = rng.normal((come, go), stddev=(2 / come) ** 0.5)
        return {"weights": wf.Variable(weights), "bias": wf.Variable(wf.zeros([go]))}

    return {
        "read": layer(PIXELS, units), "code": layer(units, 2 * code),
        "write": layer(code, units), "pixels": layer(units, PIXELS),
    }  # fmt: skip


def dense(p: Layer, x: Any) -> wf.Tensor:
    return wf.matmul(x, p["weights"]) + p["bias"]


def encode(p: Parameters, images: Any) -> tuple[wf.Tensor, wf.Tensor]:
    """Mean and log variance of each image's code."""
    both = dense(p["code"], wf.nn.relu(dense(p["read"], images)))
    mean, log_variance = wf.split(both, 2, axis=1)
    return mean, log_variance


def decode(p: Parameters, codes: Any) -> wf.Tensor:
    """The logits of the pixels."""
    return dense(p["pixels"], wf.nn.relu(dense(p["write"], codes)))


def bound(p: Parameters, images: Any, key: wf.Tensor) -> tuple[wf.Tensor, wf.Tensor]:
    """ELBO and KL divergence, a number for each image, in nats."""
    mean, log_variance = encode(p, images)
    codes = mean + wf.exp(log_variance / 2) * wf.random.normal(key, mean.shape)
    entropies = wf.nn.sigmoid_cross_entropy_with_logits(labels=images, logits=decode(p, codes))
    divergence = wf.sum(mean**2 + wf.exp(log_variance) - 1 - log_variance, axis=1) / 2
    return -wf.sum(entropies, axis=1) - divergence, divergence


def independent(learn: Floats, images: Floats) -> float:
    """To compare with: the log likelihood of `images` if each pixel had its mean in `learn`."""
    black = np.clip(learn.mean(axis=0), 1e-4, 1 - 1e-4)
    pixels = images * np.log(black) + (1 - images) * np.log(1 - black)
    return float(np.mean(np.sum(pixels, axis=1)))


# ------------------------------------------------------------------------------------ training
def trainer(p: Parameters, seed: int) -> wf.CompiledFunction[..., wf.Tensor]:
    """One step of Adam; it returns the mean ELBO of the batch."""
    optimizer = wf.train.Adam(RATE)
    count = wf.Variable(0)  # of steps done: each draws other codes

    @wf.compile
    def step(images: wf.Tensor) -> wf.Tensor:
        elbo, _ = bound(p, images, wf.random.fold_in(wf.random.key(seed), count))
        optimizer.minimize(-wf.mean(elbo), global_step=count)
        return wf.mean(elbo)

    return step


def save_picture(p: Parameters, images: Floats, seed: int, path: str) -> None:
    """Three rows: images, the same by way of their codes, images of random codes."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    count, code = len(images), p["write"]["weights"].shape[0]
    mean, _ = encode(p, images)
    drawn = wf.random.normal(wf.random.key(seed), (count, code))
    rows = (images, wf.sigmoid(decode(p, mean)), wf.sigmoid(decode(p, drawn)))
    figure, axes = pyplot.subplots(3, count, figsize=(count * 0.6, 2))
    for line, row in zip(axes, rows, strict=True):
        for axis, image in zip(line, np.asarray(row), strict=True):
            axis.imshow(image.reshape(8, 8), cmap="gray_r", vmin=0, vmax=1)
            axis.axis("off")
    figure.savefig(path, dpi=120)


@dataclass(frozen=True)
class Result:
    """elbos: of the batch of each step; elbo, divergence: of images that were held out;
    independent: their log likelihood by a model without codes. All are means, in nats an image."""

    elbos: list[float]
    elbo: float
    divergence: float
    independent: float


def train(steps: int, batch: int, units: int, code: int, seed: int, picture: str | None) -> Result:
    learn, held_out = load_digits()
    p = parameters(units, code, seed)
    step = trainer(p, seed)
    rows = wf.data.Dataset.from_arrays(learn).shuffle(len(learn), seed=seed)
    batches = islice(rows.repeat().batch(batch), steps)
    elbos, seconds = [], []
    for images in wf.data.progress(batches, "training", total=steps):
        began = time.perf_counter()
        elbos.append(float(step(images)))
        seconds.append(time.perf_counter() - began)
    usual = np.median(seconds[1:] or seconds) * 1e6
    print(f"{steps} steps: first {seconds[0]:.2f} s, then {usual:.0f} us a step")
    print(step.summary(images))
    measure = wf.compile(lambda images, key: [wf.mean(x) for x in bound(p, images, key)])
    elbo, divergence = measure(held_out, wf.random.key(seed))
    if picture is not None:
        save_picture(p, held_out[:16], seed, picture)
    return Result(elbos, float(elbo), float(divergence), independent(learn, held_out))


def main(argv: list[str] | None = None) -> Result:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    for name, value in (("steps", 5000), ("batch", 64), ("units", 256), ("code", 8), ("seed", 0)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--picture", metavar="FILE")
    options = parser.parse_args(argv)
    result = train(**vars(options))
    print(f"held-out ELBO {result.elbo:.2f} nats an image, KL divergence {result.divergence:.2f}")
    print(f"independent pixels: {result.independent:.2f} nats an image")
    if options.picture:
        print(f"picture: {options.picture}")
    return result


if __name__ == "__main__":
    main()
