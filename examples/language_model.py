"""An LSTM language model with a large vocabulary: full or sampled softmax, on one process, with the
tables on parameter servers, or data-parallel on several processes.

    words -> embedding_lookup -> LSTM with a projection, over time -> softmax over all words

The model of the TensorFlow paper's section 6.4 (2016), after Jozefowicz et al., "Exploring the
limits of language modeling" (2016): LSTM-512-512 has 512 cells and a projection to 512 numbers, and
its softmax looks at the 40,000 most frequent words, of which `--softmax sampled` takes the true
ones and 512 drawn ones (Jean et al. 2014). The text is the source of Python's standard library, its
words and signs; every tenth file is held out. Adagrad, the LSTM's gradients clipped by their norm.
States go on from one piece of text to the next (truncated backpropagation through time).

    python examples/language_model.py [--softmax full|sampled] [--ps 0 [--workers 1]]
        [--processes 1] [--steps 2000] [--quick] [--checkpoint DIR] [--until STEP] [--logdir DIR]
        [--vocabulary 40000] [--units 512] ...

With `--ps 2` two processes hold the embedding, the softmax and all other variables in parts, and
`--workers` more train, each on its part of the text and none waiting for another: a full softmax is
multiplied where its parts are. With `--processes 2` each of two has all of the model and computes
half of the streams of each batch; the losses are those of one process, but for rounding.
torchrun, mpirun and srun can start them, too. `--checkpoint` saves every 200
steps and at the end, and goes on from there the next time, bit by bit; `--logdir` writes losses for
TensorBoard. `--quick` takes a tenth of the text and a small model. Printed are words per second
and the perplexity on the held-out text, before and after.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import re
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

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


class Net:
    """The parameters, in the graph that is being built or as variables of this process, and what is
    computed with them. Their first values depend on the seed and on the number of parts alone."""

    def __init__(self, sizes: Sizes, seed: int) -> None:
        self.sizes, self._seed, self._drawn = sizes, seed, 0
        rows, cut = [sizes.vocabulary, sizes.projection], sizes.parts
        make, start = wf.create_partitioned_variables, cast(Any, self._start)
        self.table = make(rows, [cut, 1], start, name="embedding")
        self.weights = make(rows, [cut, 1], start, name="softmax")
        self.biases = make([sizes.vocabulary], [cut], wf.zeros, name="bias")
        self.cell = wf.nn.LSTMCell(
            sizes.units,
            num_proj=sizes.projection,
            initializer=start,
            input_size=sizes.projection,
        )
        self.optimizer = wf.train.Adagrad(RATE, initial_accumulator_value=0.1)

    def _start(self, shape: Sequence[int], dtype: Any = None) -> wf.Tensor:
        """The first values of the next variable."""
        self._drawn += 1
        wide, key = self.sizes.projection**-0.5, wf.random.key(self._seed)
        start = wf.initializers.uniform(-wide, wide)
        return start(shape, dtype, key=wf.random.fold_in(key, self._drawn))

    def state(self, trainable: bool = False) -> list[wf.Variable]:
        """Variables for the state between two pieces: of cells and of outputs."""
        sizes, names = self.sizes, ("cell_state", "output_state")
        return [
            wf.Variable(wf.zeros([sizes.batch, n]), trainable=trainable, name=name)
            for n, name in zip((sizes.units, sizes.projection), names, strict=True)
        ]

    def drawing(self, count: Any) -> wf.Tensor | None:
        """The key of a step's draws: each step draws other words; None for the full softmax."""
        key = wf.random.key(self._seed)
        return wf.random.fold_in(key, count) if self.sizes.sampled else None

    def loss(
        self, ids: wf.Tensor, state: Sequence[Any], key: wf.Tensor | None
    ) -> tuple[wf.Tensor, Any]:
        """The mean loss over the words of a piece, and the state after it."""
        outputs, after = self._outputs(ids, state)
        return wf.mean(self._losses(ids, outputs, key)), after

    def _outputs(self, ids: wf.Tensor, state: Sequence[Any]) -> tuple[wf.Tensor, Any]:
        """What the LSTM says after each word but the last, [time * batch, projection]; its state
        then."""
        words = wf.permute_dims(ids, (1, 0))[:-1]  # time first
        rows = wf.nn.embedding_lookup(self.table, words)
        begin = wf.nn.LSTMState(*state)
        outputs, after = wf.nn.dynamic_rnn(self.cell, rows, None, begin, time_major=True)
        return wf.reshape(outputs, (-1, self.sizes.projection)), after

    def _losses(self, ids: wf.Tensor, outputs: wf.Tensor, key: wf.Tensor | None) -> wf.Tensor:
        """-log(probability) of each next word; with a key the sampled softmax's, for training."""
        sizes = self.sizes
        labels = wf.reshape(wf.permute_dims(ids, (1, 0))[1:], (-1,))
        if key is None:
            return wf.nn.sharded_softmax_cross_entropy(self.weights, self.biases, labels, outputs)
        return wf.nn.sampled_softmax_loss(
            self.weights, self.biases, labels[:, None], outputs, sizes.sampled, sizes.vocabulary,
            key=key,
        )  # fmt: skip

    def update(self, loss: wf.Tensor, count: wf.Variable | None = None) -> Any:
        """One step down the loss. In a data-parallel step the gradients are means over the shards
        as soon as they are computed, so what is clipped is their mean, too."""
        inner, tables = self.cell.variables(), [*self.table, *self.weights, *self.biases]
        found = self.optimizer.compute_gradients(
            loss, [*inner, *tables], colocate_gradients_with_ops=True
        )
        clipped, _ = wf.train.clip_by_global_norm([g for g, _ in found[: len(inner)]], CLIP)
        pairs = [*zip(clipped, inner, strict=True), *found[len(inner) :]]
        return self.optimizer.apply_gradients(pairs, global_step=count)


class Model:
    """The graph of one worker. train: one step; loss: its loss; count: of steps done; init: the
    first values. measure: the loss over all words of `ids`, from the state `before`, and the state
    after it. Workers share what is on parameter servers; the state is a worker's own."""

    def __init__(self, sizes: Sizes, ps: int, seed: int, worker: int = 0) -> None:
        self.sizes, self.graph = sizes, wf.Graph("language_model")
        here = f"/job:worker/task:{worker}"
        setter = wf.train.replica_device_setter(ps_tasks=ps, worker_device=here)
        with self.graph.as_default(), wf.device(setter):
            self.net = Net(sizes, seed)
            self.ids = wf.placeholder(wf.int32, [sizes.batch, sizes.length + 1], name="ids")
            self.count = wf.train.get_or_create_global_step()
            with wf.device(here if ps else None):  # it changes in each step
                state = self.net.state()
            key = self.net.drawing(self.count)
            self.loss, after = self.net.loss(self.ids, [s.read() for s in state], key)
            keep = [s.assign(new) for s, new in zip(state, after, strict=True)]
            self.train = wf.group(self.net.update(self.loss, self.count), *keep)
            self.before = [wf.placeholder(wf.float32, s.shape) for s in state]
            loss, after = self.net.loss(self.ids, self.before, None)
            self.measure = [loss, *after]
            self.begin = wf.variables_initializer(state)
            self.init = wf.global_variables_initializer()


# ------------------------------------------------------------------------------------ processes
@contextlib.contextmanager
def tasks(ps: int, workers: int = 1) -> Iterator[list[str]]:
    """Workers and `ps` parameter servers as processes of this machine, which end with the block;
    the workers' addresses. Without servers there are none: "", this process."""
    if not ps:
        yield [""]
        return
    names = [("ps", k) for k in range(ps)] + [("worker", k) for k in range(workers)]
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
            yield jobs["worker"]
        finally:
            for process in running:
                process.kill()
            for process in running:
                process.wait()


@contextlib.contextmanager
def shards(count: int, argv: Sequence[str]) -> Iterator[tuple[wf.Mesh | None, int]]:
    """The mesh of `count` processes and the number of this one; no mesh for one process. What
    torchrun, mpirun or srun has started is one of them; else this process is the first, and starts
    the others, which run this program with the same arguments and end with the block."""
    if count == 1:
        yield None, 0
        return
    started: list[subprocess.Popen[bytes]] = []
    with tempfile.TemporaryDirectory() as folder:
        try:
            task = wf.train.cluster_from_environment()
        except wf.errors.NotFoundError:
            jobs = {"worker": [f"ipc://{folder}/{k}" for k in range(count)]}
            for k in range(1, count):
                place = {"cluster": jobs, "task": {"type": "worker", "index": k}}
                environ = {**os.environ, "WEFT_CONFIG": json.dumps(place)}
                command = [sys.executable, str(Path(__file__).resolve()), *argv]
                started.append(subprocess.Popen(command, env=environ))
            task = wf.train.ClusterTask(wf.train.ClusterSpec(jobs), "worker", 0)
        before = wf.get_num_threads()
        if "WEFT_NUM_THREADS" not in os.environ:  # of the host, which they share
            wf.set_num_threads(max(1, before // count))
        try:
            with wf.Mesh({"data": count}, task=task) as mesh:
                yield mesh, task.task
                for process in started:
                    process.wait(60)
        finally:
            wf.set_num_threads(before)
            for process in started:
                process.kill()
                process.wait()


# ------------------------------------------------------------------------------------ training
class OnSession:
    """A worker that runs a graph: this process, or a task of a cluster with parameter servers."""

    def __init__(self, sizes: Sizes, ps: int, seed: int, worker: int, target: str) -> None:
        self.model = Model(sizes, ps, seed, worker)
        self.session = wf.Session(target, graph=self.model.graph)
        with self.model.graph.as_default():
            self.saver = (wf.train.ShardedSaver if ps else wf.train.Saver)(every_n_steps=200)
        self.session.run(self.model.begin if worker else self.model.init)

    def count(self) -> int:
        """Steps that were done, by all workers."""
        return int(self.session.run(self.model.count))

    def step(self, ids: Ids) -> float:
        """One step; its loss."""
        model = self.model
        return float(self.session.run([model.loss, model.train], {model.ids: ids})[0])

    def restore(self, folder: Path) -> None:
        """From the last checkpoint there, if there is one."""
        self.saver.restore_or_initialize(self.session, folder)

    def save(self, folder: Path, step: int, always: bool) -> None:
        """A checkpoint, at the end of a run or if one is due."""
        save = self.saver.save if always else self.saver.save_if_due
        save(self.session, folder / "model", step)

    def measure(self, ids: Ids, state: Sequence[Any]) -> Any:
        """The loss over all words, and the state after them."""
        model = self.model
        feeds = {model.ids: ids, **dict(zip(model.before, state, strict=True))}
        return self.session.run(model.measure, feeds)


class OnMesh:
    """All processes of a mesh, each of which computes its part of the streams of a batch. They
    exchange the mean of the gradients, of the tables' looked-up rows these rows alone, and the
    states, which all of them have whole: so each could write the same checkpoint."""

    def __init__(self, sizes: Sizes, seed: int, mesh: wf.Mesh) -> None:
        net = Net(sizes, seed)
        state = net.state()
        done = wf.Variable(np.int64(0), trainable=False, name="global_step")
        streams = wf.PartitionSpec(mesh.axis_names)
        self._done = done
        held = [*net.cell.variables(), *net.table, *net.weights, *net.biases, *state, done]
        named = {f"{v.name}_{k}": v for k, v in enumerate(held)}
        self.saver = wf.train.Saver({**named, "adagrad": net.optimizer}, every_n_steps=200)

        def shard(count: wf.Tensor, ids: wf.Tensor, *state: wf.Tensor) -> Any:
            loss, after = net.loss(ids, state, net.drawing(count))  # all draw the same words
            net.update(loss)
            return loss, *after

        def measured(ids: wf.Tensor, *state: wf.Tensor) -> Any:
            loss, after = net.loss(ids, state, None)
            return loss, *after

        specs = (None, streams, streams)
        parallel = wf.data_parallel(shard, mesh, specs)

        @wf.compile
        def step(ids: wf.Tensor) -> Any:
            loss, *after = parallel(done.read(), ids, *[s.read() for s in state])
            for variable, new in zip(state, after, strict=True):
                variable.assign(new)
            done.assign_add(1)
            return loss

        self._step = step
        self._measure = wf.compile(wf.data_parallel(measured, mesh, specs))

    def count(self) -> int:
        """Steps that were done."""
        return int(self._done.numpy())

    def step(self, ids: Ids) -> float:
        """One step; its loss."""
        return float(self._step(ids))

    def restore(self, folder: Path) -> None:
        """From the last checkpoint there, if there is one: all processes do."""
        self.saver.restore_or_initialize(None, folder)

    def save(self, folder: Path, step: int, always: bool) -> None:
        """A checkpoint, at the end of a run or if one is due: one process does."""
        save = self.saver.save if always else self.saver.save_if_due
        save(None, folder / "model", step)

    def measure(self, ids: Ids, state: Sequence[Any]) -> Any:
        """The loss over all words, and the state after them."""
        return self._measure(ids, *state)


Runner = OnSession | OnMesh


def perplexity(runner: Runner, sizes: Sizes, held_out: list[Ids]) -> float:
    """e to the mean loss over all words of the held-out text, read from the beginning."""
    losses = []
    state: Any = [np.zeros((sizes.batch, n), np.float32) for n in (sizes.units, sizes.projection)]
    for ids in held_out:
        loss, *state = runner.measure(ids, state)
        losses.append(float(loss))
    return math.exp(float(np.mean(losses)))


@dataclass(frozen=True)
class Result:
    """first: the steps that were done before; losses: of this run's steps, in the order in which
    they ended; seconds: of each. perplexities: on held-out text, before and after this run."""

    first: int
    losses: list[float]
    seconds: list[float]
    perplexities: tuple[float, float]


@dataclass(frozen=True)
class Plan:
    """What is asked for. ps, workers: tasks; workers share the steps, each on its part of the text.
    quiet: no progress bar; keeps: whether this process writes the checkpoints and the log."""

    steps: int
    until: int | None = None
    ps: int = 0
    workers: int = 1
    seed: int = 0
    checkpoint: Path | None = None
    logdir: Path | None = None
    quiet: bool = False
    keeps: bool = True


def train(text: Text, sizes: Sizes, plan: Plan, mesh: wf.Mesh | None = None) -> Result:
    """Train from the last checkpoint on, if there is one."""
    held_out = list(pieces(text.held_out, sizes.batch, sizes.length).take(TESTS))
    with contextlib.ExitStack() as stack:
        runners: list[Runner] = []
        if mesh is not None:
            runners.append(OnMesh(sizes, plan.seed, mesh))
        else:
            for k, target in enumerate(stack.enter_context(tasks(plan.ps, plan.workers))):
                runners.append(runner := OnSession(sizes, plan.ps, plan.seed, k, target))
                stack.enter_context(runner.session)
        one = runners[0]
        if plan.checkpoint is not None:
            one.restore(plan.checkpoint)
        first = one.count()
        before = perplexity(one, sizes, held_out)
        writer = None
        if plan.logdir is not None and plan.keeps:
            writer = stack.enter_context(wf.summary.FileWriter(str(plan.logdir)))
            if isinstance(one, OnSession):
                writer.add_graph(one.model.graph)
            writer.scalar("perplexity", before, first)
        log = steps_of(runners, text.learn, sizes, plan, first, writer)
        after, last = perplexity(one, sizes, held_out), first + len(log)
        if writer:
            writer.scalar("perplexity", after, last)
        if plan.checkpoint is not None and plan.keeps and log:
            one.save(plan.checkpoint, last, always=True)
    losses, seconds = ([row[k] for row in log] for k in (0, 1))
    return Result(first, losses, seconds, (before, after))


def steps_of(
    runners: Sequence[Runner], ids: Ids, sizes: Sizes, plan: Plan, first: int, writer: Any
) -> list[tuple[float, float]]:
    """The loss and the seconds of each step, of all workers."""
    last = plan.steps if plan.until is None else min(plan.until, plan.steps)
    numbers, log = iter(range(first, last)), []
    lock = threading.Lock()
    shown = wf.data.progress(range(first, last), "training", disable=plan.quiet)
    bar = iter(shown)

    def work(runner: Runner, own: Ids) -> None:
        batches = pieces(own, sizes.batch, sizes.length).repeat().skip(first // len(runners))
        for batch in batches.prefetch(2):
            with lock:
                if next(numbers, None) is None:
                    return
            began = time.perf_counter()
            loss = runner.step(batch)
            with lock:  # in the order in which steps end
                log.append((loss, time.perf_counter() - began))
                next(bar, None)
                if writer:
                    writer.scalar("loss", loss, first + len(log) - 1)
                if plan.checkpoint is not None and plan.keeps and runner is runners[0]:
                    runner.save(plan.checkpoint, first + len(log), always=False)

    if len(runners) == 1:
        work(runners[0], ids)
    else:
        with ThreadPoolExecutor(len(runners)) as pool:
            list(pool.map(work, runners, np.array_split(ids, len(runners))))
    next(bar, None)
    return log


def sizes_of(o: argparse.Namespace, names: int) -> Sizes:
    """As the command line says."""
    sampled = chosen(o, "sampled") if o.softmax == "sampled" else 0
    units, projection, batch, length = (
        chosen(o, name) for name in ("units", "projection", "batch", "length")
    )
    return Sizes(names, units, projection, batch, length, max(o.ps, 1), sampled)


def chosen(o: argparse.Namespace, name: str) -> int:
    """A number that was given, or its default."""
    given: int | None = getattr(o, name)
    value: int = getattr(o, f"{name}_")[o.quick] if given is None else given
    return value


def report(result: Result, sizes: Sizes, workers: int) -> None:
    """How fast it went, and how well."""
    if result.losses:
        usual = float(np.median(result.seconds[workers:] or result.seconds))
        first, last = result.first, result.first + len(result.losses)
        print(f"steps {first + 1} to {last}: first {result.seconds[0]:.2f} s, ", end="")
        words = workers * sizes.batch * sizes.length / usual
        print(f"then {usual * 1e3:.1f} ms a step, {words:.0f} words/s")
    before, after = result.perplexities
    print(f"held-out perplexity: {before:.1f} before, {after:.1f} after")


def main(argv: Sequence[str] | None = None) -> Result:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--softmax", choices=("full", "sampled"), default="sampled")
    parser.add_argument("--quick", action="store_true", help="a tenth of the text, a small model")
    parser.add_argument("--ps", type=int, default=0, help="parameter servers, 0: one process")
    parser.add_argument("--workers", type=int, default=1, help="that train, with --ps")
    parser.add_argument("--processes", type=int, default=1, help="that share each batch")
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
    if o.workers > 1 and not o.ps:
        parser.error("--workers: several share parameter servers, --ps")
    if o.processes > 1 and (o.ps or chosen(o, "batch") % o.processes):
        parser.error("--processes: without --ps, and a number that divides --batch")
    text = Text.of(read_files(10 if o.quick else 1), chosen(o, "vocabulary"))
    sizes = sizes_of(o, len(text.names))
    with shards(o.processes, sys.argv[1:] if argv is None else argv) as (mesh, rank):
        plan = Plan(chosen(o, "steps"), o.until, o.ps, o.workers, o.seed, o.checkpoint, o.logdir,
                    quiet=rank > 0, keeps=rank == 0)  # fmt: skip
        if not rank:
            learn, held = len(text.learn), len(text.held_out)
            print(f"{learn} words of text, {held} held out, {len(text.names)} different ones")
        result = train(text, sizes, plan, mesh)
        if not rank:
            report(result, sizes, o.workers)
    return result


if __name__ == "__main__":
    main()
