"""word2vec on text that ships with Python: a sharded embedding and a sampled softmax.

    words -> (centre, context) pairs -> embedding_lookup(table, centre) -> sampled_softmax_loss

The skip-gram model of Mikolov et al. (2013), as the paper's section 4.2 places it: the tables, of
[words, dim] each, may be in parts, which `replica_device_setter` puts on the tasks of the job "ps".
Rows travel, not tables, and the updates are sparse, on the part. The loss looks at 64 words of the
vocabulary besides the true one. The text is the language reference in `pydoc_data.topics` and the
docstrings of the standard library.

In one process parts gain nothing (a step of `--shards 2` takes 0.6 ms, of one part 0.15):
`--shards 2` is to see that it is the same model.

    python examples/skipgram.py [--steps 10000] [--batch 256] [--dim 64] [--shards 1]

Printed are the time of a step, the loss over all words on pairs of a part of the text that was not
trained on, before and after, and the words whose embeddings are nearest to some.
"""

from __future__ import annotations

import argparse
import ast
import pydoc_data.topics
import re
import sysconfig
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import weft as wf

Ids = NDArray[np.int64]
WINDOW = 4
SHOWN = ("list", "string", "import", "error", "float", "thread", "socket", "exception")


# ------------------------------------------------------------------------------------ the text
def read_words() -> list[str]:
    """The words of the text, in order, in small letters."""
    pieces = [str(text) for text in pydoc_data.topics.topics.values()]
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        try:
            tree = ast.parse(path.read_bytes())
        except (SyntaxError, ValueError):
            continue
        nodes = (ast.Module, ast.ClassDef, ast.FunctionDef)
        pieces += [ast.get_docstring(n) or "" for n in ast.walk(tree) if isinstance(n, nodes)]
    return [word for piece in pieces for word in re.findall(r"[a-z]+", piece.lower())]


@dataclass(frozen=True)
class Text:
    """names: the vocabulary, frequent words first; ids: the text as numbers of words in it."""

    names: list[str]
    ids: Ids

    @staticmethod
    def of(words: list[str], least: int = 5, threshold: float = 1e-3, seed: int = 0) -> Text:
        """Words that occur at least so often, and of the most frequent ones only a part: each
        occurrence stays with probability sqrt(threshold / frequency) (Mikolov et al., section
        2.3)."""
        counts = Counter(words)
        names = [word for word, n in counts.most_common() if n >= least]
        number = {word: i for i, word in enumerate(names)}
        ids = np.array([number[w] for w in words if w in number], np.int64)
        share = np.bincount(ids, minlength=len(names)) / len(ids)
        keep = np.minimum(1, np.sqrt(threshold / share))[ids]
        return Text(names, ids[np.random.default_rng(seed).random(len(ids)) < keep])


def pairs(text: Text, batch: int, seed: int) -> Iterator[tuple[Ids, Ids]]:
    """Batches of words and one neighbour of each, at most `WINDOW` words away."""
    rng = np.random.default_rng(seed)
    distances = np.concatenate([np.arange(-WINDOW, 0), np.arange(1, WINDOW + 1)])
    while True:
        at = rng.integers(WINDOW, len(text.ids) - WINDOW, batch)
        yield text.ids[at], text.ids[at + rng.choice(distances, batch)]


# ----------------------------------------------------------------------------------- the model
class SkipGram:
    """The graph. losses: of a batch, sampled; full: over all words; table: the embeddings."""

    def __init__(
        self, words: int, dim: int, shards: int, sampled: int, batch: int, ps: int
    ) -> None:
        self.graph = wf.Graph("skipgram")
        setter = wf.train.replica_device_setter(ps_tasks=ps)
        with self.graph.as_default(), wf.device(setter):
            self.centre = wf.placeholder(wf.int64, [batch], name="centre")
            self.context = wf.placeholder(wf.int64, [batch], name="context")

            def start(shape: Any) -> Any:
                return wf.random.default_generator().uniform(shape, -0.5 / dim, 0.5 / dim)

            cut = [shards, 1]
            table = wf.create_partitioned_variables([words, dim], cut, start, name="embedding")
            weights = wf.create_partitioned_variables([words, dim], cut, wf.zeros, name="softmax")
            biases = wf.create_partitioned_variables([words], [shards], wf.zeros, name="bias")
            rows = wf.nn.embedding_lookup(table, self.centre)
            losses = wf.nn.sampled_softmax_loss(
                weights, biases, self.context[:, None], rows, sampled, words
            )
            self.loss = wf.mean(losses)
            optimizer = wf.train.Adagrad(1.0)
            grads = optimizer.compute_gradients(self.loss, [*table, *weights, *biases])
            self.train = optimizer.apply_gradients(grads)
            self.full = wf.mean(
                wf.nn.sharded_softmax_cross_entropy(weights, biases, self.context, rows)
            )
            self.table = table
            self.init = wf.global_variables_initializer()


@dataclass(frozen=True)
class Result:
    """losses: over all words, on pairs that were not trained on, before and after. table: the
    embeddings, a row for each name. seconds: of each step. compiled: how many steps of the graph
    were: initializing, training, measuring, fetching the table."""

    names: list[str]
    losses: tuple[float, float]
    table: NDArray[np.float32]
    seconds: list[float]
    compiled: int

    def nearest(self, word: str, count: int = 6) -> list[str]:
        """The words whose embeddings have the smallest angle to that of `word`."""
        unit = self.table / np.linalg.norm(self.table, axis=1, keepdims=True)
        order = np.argsort(-unit @ unit[self.names.index(word)], kind="stable")
        return [self.names[i] for i in order if self.names[i] != word][:count]


def train(
    text: Text, steps: int, *, shards: int = 1, batch: int = 256, dim: int = 64, sampled: int = 64,
    ps: int = 0, target: str = "", quiet: bool = False,
) -> Result:  # fmt: skip
    """Train on all but a tenth of the text, pieces of 200 words, and measure on that."""
    held = np.arange(len(text.ids)) // 200 % 10 == 9
    learn, rest = Text(text.names, text.ids[~held]), Text(text.names, text.ids[held])
    wf.random.set_random_seed(1)
    model = SkipGram(len(text.names), dim, shards, sampled, batch, ps)
    held_out = pairs(rest, batch, seed=2)
    test = [next(held_out) for _ in range(20)]
    with wf.Session(target, graph=model.graph) as session:
        session.run(model.init)

        def measured() -> float:
            found = [session.run(model.full, {model.centre: c, model.context: n}) for c, n in test]
            return float(np.mean(found))

        before, seconds = measured(), []
        batches = islice(pairs(learn, batch, seed=3), steps)
        for centre, context in wf.data.progress(batches, "training", total=steps, disable=quiet):
            began = time.perf_counter()
            session.run(model.train, {model.centre: centre, model.context: context})
            seconds.append(time.perf_counter() - began)
        after = measured()
        parts = session.run(model.table)
        compiled = session.cache_info().made
    table = np.empty((len(text.names), dim), np.float32)
    for number, part in enumerate(parts):  # row i is row i // shards of part i % shards
        table[number::shards] = part
    return Result(text.names, (before, after), table, seconds, compiled)


def main(argv: Sequence[str] | None = None) -> Result:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--shards", type=int, default=1, help="parts of each table")
    parser.add_argument("--steps", type=int, default=10000)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--sampled", type=int, default=64, help="words that a loss looks at")
    parser.add_argument("--ps", type=int, default=0, help="tasks of the job 'ps' of --target")
    parser.add_argument("--target", default="", help="a task of a cluster, such as tcp://host:port")
    options = vars(parser.parse_args(argv))
    text = Text.of(read_words())
    print(f"{len(text.ids)} words of text, {len(text.names)} different ones")
    result = train(text, **options)
    first, usual = result.seconds[0], np.median(result.seconds[1:] or result.seconds) * 1e6
    print(f"{result.compiled} steps of the graph compiled; first {first:.2f} s, ", end="")
    print(f"then {usual:.0f} us a step; cpu, at most {wf.get_num_threads()} threads")
    before, after = result.losses
    print(f"held-out loss over all words: {before:.3f} before, {after:.3f} after")
    for word in SHOWN:
        if word in result.names:
            print(f"{word:>10}: {', '.join(result.nearest(word))}")
    return result


if __name__ == "__main__":
    main()
