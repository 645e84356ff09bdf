"""The paper's Figure 2: reading, preprocessing, a shuffle queue, training and periodic checkpoints,
all at once.

    files -> reader threads: records -> decode, scale -> RandomShuffleQueue -> training step
                                                                        variables -> checkpoints

The data are scikit-learn's 8x8 digits, written as PNG images into TFRecord files. Readers run under
a Coordinator, each on its own share of the records; the training step is one compiled function;
checkpoints are written beside it. A second run in the same folder goes on from the last one.

    python examples/input_pipeline.py [--folder DIR] [--steps 600] [--batch 64] [--readers 2]
"""

from __future__ import annotations

import argparse
import io
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import weft as wf

CLASSES, PIXELS = 10, 64
FEATURES = {
    "image": wf.data.FixedLenFeature([], wf.string),
    "label": wf.data.FixedLenFeature([], wf.int64),
}


@dataclass(frozen=True)
class Result:
    """The losses of the steps of this run, the step it ended at, the last checkpoint, and a line on
    what a step runs."""

    losses: list[float]
    step: int
    checkpoint: str | None
    summary: str


def write_files(folder: Path, shards: int = 4) -> list[Path]:
    """The digits as TFRecord files of tf.train.Examples: a PNG image and a label each."""
    from PIL import Image
    from sklearn.datasets import load_digits

    digits = load_digits()
    paths = [folder / f"digits-{i}-of-{shards}.tfrecord" for i in range(shards)]
    for i, path in enumerate(paths):
        with wf.data.TFRecordWriter(path, "GZIP") as writer:
            for pixels, label in zip(
                digits.images[i::shards], digits.target[i::shards], strict=True
            ):
                png = io.BytesIO()
                Image.fromarray((pixels * 15).astype(np.uint8)).save(png, "PNG")
                features = {"image": png.getvalue(), "label": label}
                writer.write(wf.data.encode_example(features))
    return paths


def preprocess(record: bytes) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """A serialized Example as 64 floats in 0..1 and a one-hot label."""
    found = wf.data.parse_single_example(record, FEATURES)
    image = wf.data.decode_image(found["image"].item(), channels=1)
    label = np.zeros(CLASSES, np.float32)
    label[int(found["label"])] = 1
    return (image.reshape(PIXELS) / np.float32(240)).astype(np.float32), label


def reader(
    paths: list[Path], index: int, count: int, queue: wf.RandomShuffleQueue
) -> Callable[[], None]:
    """What one reader thread does again and again: enqueue the next of its share of the records."""
    records = wf.data.Dataset.from_files(paths, lambda p: wf.data.read_tfrecords(p, "GZIP"))
    elements = iter(records.shard(index, count).repeat().map(preprocess))
    return lambda: queue.enqueue(list(next(elements)))


class Model:
    """A softmax classifier with one hidden layer, its optimizer, and the step they have done."""

    def __init__(self, seed: int = 1) -> None:
        rng = np.random.default_rng(seed)
        w1 = rng.uniform(-0.1, 0.1, (PIXELS, 100)).astype(np.float32)
        w2 = rng.uniform(-0.1, 0.1, (100, CLASSES)).astype(np.float32)
        self.weights = {
            "w1": wf.Variable(w1), "b1": wf.Variable(np.zeros(100, np.float32)),
            "w2": wf.Variable(w2), "b2": wf.Variable(np.zeros(CLASSES, np.float32)),
        }  # fmt: skip
        self.step = wf.Variable(0, name="step")
        self.optimizer = wf.train.Adam(0.003)
        self.train = wf.compile(self._train)

    def _train(self, x: wf.Tensor, y: wf.Tensor) -> wf.Tensor:
        w = self.weights
        logits = wf.matmul(wf.nn.relu(wf.matmul(x, w["w1"]) + w["b1"]), w["w2"]) + w["b2"]
        loss = wf.mean(wf.nn.softmax_cross_entropy_with_logits(labels=y, logits=logits))
        self.optimizer.minimize(loss, list(w.values()), global_step=self.step)
        return loss

    def saver(self, every_n_steps: int) -> wf.train.Saver:
        """What saves all of it, at multiples of `every_n_steps`."""
        everything = {**self.weights, "step": self.step, "optimizer": self.optimizer}
        return wf.train.Saver(everything, max_to_keep=3, every_n_steps=every_n_steps)


def train(
    paths: list[Path], folder: Path, steps: int, batch: int = 64, readers: int = 2,
    every: int = 100, **bar: Any,
) -> Result:  # fmt: skip
    """Train up to `steps` steps, from the folder's last checkpoint on if there is one."""
    model = Model()
    saver = model.saver(every)
    saver.restore_or_initialize(None, folder)
    queue = wf.RandomShuffleQueue(
        20 * batch, 5 * batch, [wf.float32, wf.float32], shapes=[[PIXELS], [CLASSES]], seed=0
    )
    coordinator = wf.train.Coordinator()
    enqueue = [reader(paths, i, readers, queue) for i in range(readers)]
    threads = wf.train.QueueRunner(queue, enqueue).create_threads(coord=coordinator, start=True)
    losses: list[float] = []
    todo = range(int(model.step.numpy()), steps)
    try:
        for _ in wf.data.progress(todo, "training", **bar):
            if coordinator.should_stop():  # a reader has failed: join says why
                break
            x, y = queue.dequeue_many(batch)
            losses.append(float(model.train(x, y)))
            saver.save_if_due(None, folder / "model", model.step, wait=False)
    except (wf.errors.OutOfRangeError, wf.errors.CancelledError) as end:
        coordinator.request_stop(end)
    finally:
        coordinator.request_stop()
        coordinator.join(threads)
        saver.wait()
    summary = model.train.summary(x, y) if losses else ""
    return Result(losses, int(model.step.numpy()), wf.train.latest_checkpoint(folder), summary)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--folder", type=Path, default=None)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--readers", type=int, default=2)
    options = parser.parse_args()
    with ExitStack() as stack:
        folder = options.folder
        if folder is None:  # nothing of it stays
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="weft-digits-")))
        folder.mkdir(parents=True, exist_ok=True)
        paths = sorted(folder.glob("*.tfrecord")) or write_files(folder)
        began = time.perf_counter()
        result = train(paths, folder, options.steps, options.batch, options.readers)
        seconds = time.perf_counter() - began
    last = f"{result.losses[-1]:.4f}" if result.losses else "none, all steps were done before"
    print(f"step {result.step} after {seconds:.1f} s, last loss {last}")
    if result.losses:
        each = seconds / len(result.losses) * 1e6
        print(f"{each:.0f} us a step, with the start, reading and checkpoints; {result.summary}")
    kept = "--folder DIR keeps it" if options.folder is None else "the next run goes on from there"
    print(f"checkpoint {result.checkpoint} ({kept})")


if __name__ == "__main__":
    main()
