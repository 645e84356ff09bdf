"""An LSTM language model with a large vocabulary: full or sampled softmax, on one process or with
the tables on parameter servers.

    words -> embedding_lookup -> LSTM with a projection, over time -> softmax over all words

The model of the TensorFlow paper's section 6.4 (2016), after Jozefowicz et al., "Exploring the
limits of language modeling" (2016): LSTM-512-512 has 512 cells and a projection to 512 numbers, and
its softmax looks at the 40,000 most frequent words, of which `--softmax sampled` takes the true
ones and 512 drawn ones (Jean et al. 2014). The text is the source of Python's standard library, its
words and signs; every tenth file is held out. Adagrad, the LSTM's gradients clipped by their norm.
States go on from one piece of text to the next (truncated backpropagation through time).

    python examples/language_model.py [--softmax full|sampled] [--ps 0] [--steps 2000] [--quick]
        [--checkpoint DIR] [--until STEP] [--logdir DIR] [--vocabulary 40000] [--units 512] ...

With `--ps 2` two processes hold the embedding, the softmax and all other variables in parts, and
one more trains: a full softmax is multiplied where its parts are. `--checkpoint` saves every 200
steps and at the end, and goes on from there the next time, bit by bit; `--logdir` writes losses for
TensorBoard. `--quick` takes a tenth of the text and a small model. Printed are words per second
and the perplexity on the held-out text, before and after.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import re
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import weft as wf

Ids = NDArray[np.int32]
RATE, CLIP, TESTS = 0.2, 1.0, 20  # learning rate, norm, pieces of held-out text
UNKNOWN, LEFT_OUT = "<unknown>", {"site-packages", "test", "tests", "idlelib", "lib2to3"}


# ------------------------------------------------------------------------------------ the text
def read_files(every: int = 1) -> list[list[str]]:
    """The words and signs of the files of the standard library, in order; of every how manyth."""
    root = Path(sysconfig.get_paths()["stdlib"])
    paths = [p for p in sorted(root.rglob("*.py")) if not LEFT_OUT & set(p.relative_to(root).parts)]
    texts = (path.read_text(errors="ignore") for path in paths[::every])
    return [re.findall(r"[A-Za-z_]\w*|[^\w\s]", text) for text in texts]


@dataclass(frozen=True)
class Text:
    """names: the vocabulary, frequent words first, after them UNKNOWN; learn, held_out: the text as
    numbers of words in it."""

    names: list[str]
    learn: Ids
    held_out: Ids

    @staticmethod
    def of(files: list[list[str]], vocabulary: int) -> Text:
        counts = Counter(word for words in files for word in words)
        names = [word for word, _ in counts.most_common(vocabulary - 1)]
        number, unknown = {word: i for i, word in enumerate(names)}, len(names)

        def ids(chosen: list[list[str]]) -> Ids:
            return np.array([number.get(w, unknown) for words in chosen for w in words], np.int32)

        held_out = [words for i, words in enumerate(files) if i % 10 == 9]
        learn = [words for i, words in enumerate(files) if i % 10 != 9]
        return Text([*names, UNKNOWN], ids(learn), ids(held_out))


def pieces(ids: Ids, batch: int, length: int) -> wf.data.Dataset:
    """The text as `batch` streams, cut into pieces: [batch, length + 1], the last word of each is
    the first of the next."""
    size = (len(ids) - 1) // batch
    starts = np.arange(batch) * size
    count = (size - 1) // length
    if count < 1:
        raise SystemExit(f"{len(ids)} words are too few for {batch} streams of {length + 1}")
    places = starts[:, None] + np.arange(length + 1)
    return wf.data.Dataset.range(count).map(lambda i: ids[places + int(i) * length])


# ----------------------------------------------------------------------------------- the model
@dataclass(frozen=True)
class Sizes:
    """Of the model and a batch. parts: of each table; sampled: words that a sampled softmax draws,
    0 for the full one."""

    vocabulary: int
    units: int
    projection: int
    batch: int
    length: int
    parts: int
    sampled: int


class Model:
    """The graph. train: one step; loss: its loss; count: of steps done; init: the first values.
    measure: the loss over all words of `ids`, from the state `before`, and the state after it."""

    def __init__(self, sizes: Sizes, ps: int, seed: int) -> None:
        wf.random.set_random_seed(seed)
        self.sizes, self.graph = sizes, wf.Graph("language_model")
        setter = wf.train.replica_device_setter(ps_tasks=ps, worker_device="/job:worker/task:0")
        with self.graph.as_default(), wf.device(setter):
            self._variables()
            self.ids = wf.placeholder(wf.int32, [sizes.batch, sizes.length + 1], name="ids")
            self.count = wf.train.get_or_create_global_step()
            with wf.device("/job:worker/task:0" if ps else None):  # it changes in each step
                shapes = (sizes.units, sizes.projection)
                state = [
                    wf.Variable(wf.zeros([sizes.batch, n]), trainable=False, name=name)
                    for n, name in zip(shapes, ("cell_state", "output_state"), strict=True)
                ]
            key = wf.random.fold_in(wf.random.key(seed), self.count)  # each step draws others
            outputs, after = self._outputs([s.read() for s in state])
            self.loss = wf.mean(self._losses(outputs, key if sizes.sampled else None))
            keep = [s.assign(new) for s, new in zip(state, after, strict=True)]
            self.train = wf.group(self._update(), *keep)
            self.before = [wf.placeholder(wf.float32, s.shape) for s in state]
            outputs, after = self._outputs(self.before)
            self.measure = [wf.mean(self._losses(outputs, None)), *after]
            self.init = wf.global_variables_initializer()

    def _variables(self) -> None:
        sizes, wide = self.sizes, self.sizes.projection**-0.5
        rows = [sizes.vocabulary, sizes.projection]
        start = wf.initializers.uniform(-wide, wide)
        cut, make = sizes.parts, wf.create_partitioned_variables
        self.table = make(rows, [cut, 1], start, name="embedding")
        self.weights = make(rows, [cut, 1], start, name="softmax")
        self.biases = make([sizes.vocabulary], [cut], wf.zeros, name="bias")
        self.cell = wf.nn.LSTMCell(
            sizes.units,
            num_proj=sizes.projection,
            initializer=start,
            input_size=sizes.projection,
        )

    def _outputs(self, state: Sequence[Any]) -> tuple[wf.Tensor, Any]:
        """What the LSTM says after each word but the last, [time * batch, projection]; its state
        then."""
        words = wf.permute_dims(self.ids, (1, 0))[:-1]  # time first
        rows = wf.nn.embedding_lookup(self.table, words)
        begin = wf.nn.LSTMState(*state)
        outputs, after = wf.nn.dynamic_rnn(self.cell, rows, None, begin, time_major=True)
        return wf.reshape(outputs, (-1, self.sizes.projection)), after

    def _losses(self, outputs: wf.Tensor, key: wf.Tensor | None) -> wf.Tensor:
        """-log(probability) of each next word; with a key the sampled softmax's, for training."""
        sizes = self.sizes
        labels = wf.reshape(wf.permute_dims(self.ids, (1, 0))[1:], (-1,))
        if key is None:
            return wf.nn.sharded_softmax_cross_entropy(self.weights, self.biases, labels, outputs)
        return wf.nn.sampled_softmax_loss(
            self.weights, self.biases, labels[:, None], outputs, sizes.sampled, sizes.vocabulary,
            key=key,
        )  # fmt: skip

    def _update(self) -> Any:
        optimizer = wf.train.Adagrad(RATE, initial_accumulator_value=0.1)
        inner, tables = self.cell.variables(), [*self.table, *self.weights, *self.biases]
        found = optimizer.compute_gradients(
            self.loss, [*inner, *tables], colocate_gradients_with_ops=True
        )
        clipped, _ = wf.train.clip_by_global_norm([g for g, _ in found[: len(inner)]], CLIP)
        pairs = [*zip(clipped, inner, strict=True), *found[len(inner) :]]
        return optimizer.apply_gradients(pairs, global_step=self.count)


# ------------------------------------------------------------------------------------ training
@contextlib.contextmanager
def tasks(ps: int) -> Iterator[str]:
    """A worker and `ps` parameter servers as processes of this machine, which end with the block;
    the worker's address. Without servers there are none: "", this process."""
    if not ps:
        yield ""
        return
    names = [("ps", k) for k in range(ps)] + [("worker", 0)]
    with tempfile.TemporaryDirectory() as folder:
        where = {name: f"ipc://{folder}/{name[0]}{name[1]}" for name in names}
        spec = Path(folder) / "cluster.json"
        jobs = {job: [where[n] for n in names if n[0] == job] for job in ("ps", "worker")}
        spec.write_text(json.dumps(jobs))
        command = [sys.executable, "-m", "weft", "worker", "--cluster", str(spec)]
        running = []
        try:
            for job, k in names:
                running.append(subprocess.Popen([*command, "--job", job, "--task", str(k)]))
            yield where["worker", 0]
        finally:
            for process in running:
                process.kill()
            for process in running:
                process.wait()


def perplexity(session: wf.Session, model: Model, held_out: list[Ids]) -> float:
    """e to the mean loss over all words of the held-out text, read from the beginning."""
    sizes, losses = model.sizes, []
    state = [np.zeros((sizes.batch, n), np.float32) for n in (sizes.units, sizes.projection)]
    for ids in held_out:
        loss, *state = session.run(
            model.measure, {model.ids: ids, **dict(zip(model.before, state, strict=True))}
        )
        losses.append(loss)
    return math.exp(float(np.mean(losses)))


@dataclass(frozen=True)
class Result:
    """first: the steps that were done before; losses: of this run's steps; seconds: of each.
    perplexities: on held-out text, before and after this run."""

    first: int
    losses: list[float]
    seconds: list[float]
    perplexities: tuple[float, float]


def train(
    text: Text, sizes: Sizes, *, steps: int, until: int | None = None, ps: int = 0, seed: int = 0,
    checkpoint: Path | None = None, logdir: Path | None = None, quiet: bool = False,
) -> Result:  # fmt: skip
    """Train from the last checkpoint on, if there is one."""
    model = Model(sizes, ps, seed)
    held_out = list(pieces(text.held_out, sizes.batch, sizes.length).take(TESTS))
    batches = pieces(text.learn, sizes.batch, sizes.length).repeat()
    losses: list[float] = []
    seconds: list[float] = []
    writer = wf.summary.FileWriter(str(logdir)) if logdir else None
    with (
        tasks(ps) as target,
        wf.Session(target, graph=model.graph) as session,
        writer or contextlib.nullcontext(),
    ):
        with model.graph.as_default():
            saver = (wf.train.ShardedSaver if ps else wf.train.Saver)(every_n_steps=200)
        session.run(model.init)
        if checkpoint is not None:
            saver.restore_or_initialize(session, checkpoint)
        first, last = int(session.run(model.count)), steps if until is None else min(until, steps)
        before = perplexity(session, model, held_out)
        if writer:
            writer.add_graph(model.graph)
            writer.scalar("perplexity", before, first)
        rows = batches.skip(first).take(max(0, last - first)).prefetch(2)
        shown = wf.data.progress(rows, "training", disable=quiet)
        for number, ids in enumerate(shown, first):
            began = time.perf_counter()
            loss, _ = session.run([model.loss, model.train], {model.ids: ids})
            seconds.append(time.perf_counter() - began)
            losses.append(float(loss))
            if writer:
                writer.scalar("loss", losses[-1], number)
            if checkpoint is not None:
                saver.save_if_due(session, checkpoint / "model", number + 1)
        after = perplexity(session, model, held_out)
        if writer:
            writer.scalar("perplexity", after, last)
        if checkpoint is not None and losses:
            saver.save(session, checkpoint / "model", last)
    return Result(first, losses, seconds, (before, after))


def main(argv: Sequence[str] | None = None) -> Result:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--softmax", choices=("full", "sampled"), default="sampled")
    parser.add_argument("--quick", action="store_true", help="a tenth of the text, a small model")
    parser.add_argument("--ps", type=int, default=0, help="parameter servers, 0: one process")
    for name, value, quick in (("vocabulary", 40000, 2000), ("units", 512, 32),
                               ("projection", 512, 32), ("sampled", 512, 64), ("batch", 16, 16),
                               ("length", 20, 10), ("steps", 2000, 300)):  # fmt: skip
        parser.add_argument(f"--{name}", type=int, help=f"{value}, with --quick {quick}")
        parser.set_defaults(**{f"{name}_": (value, quick)})
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--checkpoint", type=Path, help="a folder to save to and to go on from")
    parser.add_argument("--until", type=int, help="end this run after so many of the steps")
    parser.add_argument("--logdir", type=Path, help="a folder for TensorBoard")
    o = parser.parse_args(argv)

    def number(name: str) -> int:
        given: int | None = getattr(o, name)
        value: int = getattr(o, f"{name}_")[o.quick] if given is None else given
        return value

    text = Text.of(read_files(10 if o.quick else 1), number("vocabulary"))
    names = len(text.names)
    print(f"{len(text.learn)} words of text, {len(text.held_out)} held out, {names} different ones")
    sampled = number("sampled") if o.softmax == "sampled" else 0
    units, projection, batch, length = map(number, ("units", "projection", "batch", "length"))
    sizes = Sizes(names, units, projection, batch, length, max(o.ps, 1), sampled)
    result = train(text, sizes, steps=number("steps"), until=o.until, ps=o.ps, seed=o.seed,
                   checkpoint=o.checkpoint, logdir=o.logdir)  # fmt: skip
    if result.losses:
        usual = float(np.median(result.seconds[1:] or result.seconds))
        first, last = result.first, result.first + len(result.losses)
        print(f"steps {first + 1} to {last}: first {result.seconds[0]:.2f} s, ", end="")
        print(f"then {usual * 1e3:.1f} ms a step, {sizes.batch * sizes.length / usual:.0f} words/s")
    before, after = result.perplexities
    print(f"held-out perplexity: {before:.1f} before, {after:.1f} after")
    return result


if __name__ == "__main__":
    main()
