"""The paper's Figure 2 as one graph: reading, preprocessing, a shuffle queue, training and periodic
checkpoints are steps of one session, all at once.

    names -> queue -> reader -> parse, decode -> shuffle queue -> training step -> variables
                                                                                    |   ^
                                                        a save step, every so often v   | restore
                                                                                  checkpoints

The data are scikit-learn's 8x8 digits, written as PNG images into TFRecord files. Queue runners
drive the reader and the preprocessing, a LooperThread the checkpoints; one Coordinator stops them.
A second run in the same folder goes on from the last checkpoint.

    python examples/figure2.py [--folder DIR] [--steps 600] [--batch 64] [--seconds 1.0]
"""

from __future__ import annotations

import argparse
import io
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import weft as wf

CLASSES, SIDE = 10, 8
FEATURES = {
    "image": wf.data.FixedLenFeature([], wf.string),
    "label": wf.data.FixedLenFeature([], wf.int64),
}


@dataclass(frozen=True)
class Result:
    """The step at which this run began, its losses, the step it ended at, the last checkpoint,
    and a line on what a step runs."""

    first: int
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
        part = folder / f"{path.name}.part"  # a killed run leaves no half of a file
        with wf.data.TFRecordWriter(part, "GZIP") as writer:
            rows = zip(digits.images[i::shards], digits.target[i::shards], strict=True)
            for pixels, label in rows:
                png = io.BytesIO()
                Image.fromarray((pixels * 15).astype(np.uint8)).save(png, "PNG")
                features = {"image": png.getvalue(), "label": label}
                writer.write(wf.data.encode_example(features))
        part.rename(path)
    return paths


def read_batches(paths: list[Path], batch: int) -> list[wf.Tensor]:
    """Images f32[batch, 64] in 0..1 and one-hot labels, in random order, without end."""
    names = wf.train.string_input_producer(paths)
    _, record = wf.TFRecordReader(options="GZIP").read(names)
    found = wf.tf1.parse_single_example(record, FEATURES)
    image = wf.tf1.decode_png(found["image"], channels=1, shape=(SIDE, SIDE, 1))
    pixels = wf.astype(wf.reshape(image, [SIDE * SIDE]), wf.float32) / 240
    label = wf.one_hot(found["label"], CLASSES)
    batches: list[wf.Tensor] = wf.train.shuffle_batch(
        [pixels, label], batch, capacity=20 * batch, min_after_dequeue=5 * batch, num_threads=2
    )
    return batches


def build_training(x: wf.Tensor, y: wf.Tensor, step: wf.Variable) -> tuple[wf.Tensor, wf.Effect]:
    """The loss of a softmax classifier with one hidden layer, and the effect that trains it."""
    rng = np.random.default_rng(1)

    def weights(*shape: int) -> wf.Variable:
        return wf.Variable(rng.uniform(-0.1, 0.1, shape).astype(np.float32), name="w")

    w1, b1 = weights(SIDE * SIDE, 100), wf.Variable(wf.zeros([100]), name="b")
    w2, b2 = weights(100, CLASSES), wf.Variable(wf.zeros([CLASSES]), name="b")
    logits = wf.matmul(wf.nn.relu(wf.matmul(x, w1) + b1), w2) + b2
    loss = wf.mean(wf.nn.softmax_cross_entropy_with_logits(labels=y, logits=logits))
    return loss, wf.train.Adam(0.003).minimize(loss, global_step=step)


def train(folder: Path, paths: list[Path], steps: int, batch: int, seconds: float) -> Result:
    """Train up to `steps` steps, from the folder's last checkpoint on if there is one, with a
    checkpoint every `seconds` and one at the end."""
    with wf.Graph().as_default(), wf.Session() as session:
        x, y = read_batches(paths, batch)
        step = wf.Variable(0, name="step", trainable=False)
        loss, update = build_training(x, y, step)
        init = wf.global_variables_initializer()
        # the name of a checkpoint has the step in it, read with everything else
        name = wf.tf1.string_join([f"{folder}/model-", wf.tf1.as_string(step.read())])
        saver = wf.train.Saver(max_to_keep=3)
        ops = saver.build(name)
        session.run(init)
        saver.restore_or_initialize(session, folder)
        first = int(session.run(step))
        coordinator = wf.train.Coordinator()
        threads = wf.train.start_queue_runners(session, coordinator)
        wf.train.LooperThread.loop(coordinator, seconds, session.run, [ops.save])
        losses = []
        try:
            for _ in wf.data.progress(range(first, steps), "training"):
                if coordinator.should_stop():  # a reader has failed: join says why
                    break
                losses.append(float(session.run([loss, update])[0]))
        except (wf.errors.OutOfRangeError, wf.errors.CancelledError) as end:
            coordinator.request_stop(end)
        finally:
            coordinator.request_stop()
            coordinator.join(threads)
        session.run(ops.save)
        last, latest = int(session.run(step)), wf.train.latest_checkpoint(folder)
        return Result(first, losses, last, latest, session.summary([loss, update]))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--folder", type=Path, default=None)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=1.0, help="between checkpoints")
    options = parser.parse_args()
    with ExitStack() as stack:
        folder = options.folder
        if folder is None:  # nothing of it stays
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="weft-figure2-")))
        folder.mkdir(parents=True, exist_ok=True)
        paths = sorted(folder.glob("*.tfrecord")) or write_files(folder)
        began = time.perf_counter()
        result = train(folder, paths, options.steps, options.batch, options.seconds)
        seconds = time.perf_counter() - began
    last = f"{result.losses[-1]:.4f}" if result.losses else "none, all steps were done before"
    print(f"from step {result.first} to {result.step} in {seconds:.1f} s, last loss {last}")
    if result.losses:
        each = seconds / len(result.losses) * 1e6
        print(f"{each:.0f} us a step, with the start, reading and checkpoints; {result.summary}")
    kept = "--folder DIR keeps it" if options.folder is None else "the next run goes on from there"
    print(f"checkpoint {result.checkpoint} ({kept})")


if __name__ == "__main__":
    main()
