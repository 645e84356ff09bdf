"""`wf.train.microbatch_gradients`: k workers have the bits of one process on all their rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from at_once import at_once
from shares import every

import weft as wf

Array = np.ndarray[Any, Any]
ROWS, WORDS, WIDTH, CLASSES, STEPS = 48, 11, 5, 3, 4
OPTIMIZERS = [lambda: wf.train.Momentum(0.3, 0.9), lambda: wf.train.Adam(0.05)]


class Network:
    """Two layers; with words, the first of them looks up rows of a table."""

    def __init__(self, words: bool, on_servers: bool) -> None:
        rng = np.random.default_rng(3)
        first = (WORDS, WIDTH) if words else (7, WIDTH)
        place = [f"/job:ps/task:{i}" for i in range(2)] if on_servers else ["", ""]
        with wf.device(place[0]):
            self.step = wf.train.get_or_create_global_step()
            self.w = wf.Variable(
                rng.normal(size=first).astype(np.float32), name="words" if words else "w"
            )
            self.b = wf.Variable(np.zeros(WIDTH, np.float32), name="b")
        with wf.device(place[1]):
            self.v = wf.Variable(rng.normal(size=(WIDTH, CLASSES)).astype(np.float32), name="v")
        self.words = words

    def loss(self, x: Any, y: Any) -> Any:
        rows = wf.nn.embedding_lookup(self.w, x) if self.words else wf.matmul(x, self.w)
        logits = wf.matmul(wf.tanh(rows + self.b), self.v)
        return wf.mean(wf.nn.softmax_cross_entropy_with_logits(labels=y, logits=logits))

    def inputs(self, rows: int) -> tuple[Any, Any]:
        x = (wf.int64, [rows]) if self.words else (wf.float32, [rows, 7])
        return wf.placeholder(*x), wf.placeholder(wf.float32, [rows, CLASSES])

    def data(self, step: int) -> tuple[Array, Array]:
        rng = np.random.default_rng(step)
        x = rng.normal(size=(ROWS, 7)).astype(np.float32)
        labels = np.eye(CLASSES, dtype=np.float32)[rng.integers(0, CLASSES, ROWS)]
        return (rng.integers(0, WORDS, ROWS) if self.words else x), labels

    def values(self, session: wf.Session) -> list[bytes]:
        return [np.asarray(a).tobytes() for a in session.run([self.w, self.b, self.v])]


def in_one_process(
    words: bool, optimizer: Callable[[], Any], count: int, reproducible: bool = False
) -> tuple[Any, list[Any]]:
    """The variables after some steps on the whole batch, and the losses."""
    with wf.Graph().as_default():
        net = Network(words, False)
        x, y = net.inputs(ROWS)
        opt = optimizer()
        loss, pairs = wf.train.microbatch_gradients(opt, net.loss, (x, y), count)
        train = opt.apply_gradients(pairs, global_step=net.step)
        init = wf.global_variables_initializer()
        with wf.Session(reproducible=reproducible) as session:
            session.run(init)
            losses = []
            for step in range(STEPS):
                data = dict(zip((x, y), net.data(step), strict=True))
                losses.append(session.run([loss, train], data)[0])
            return net.values(session), losses


def by_workers(
    words: bool, optimizer: Callable[[], Any], workers: int, each: int, target: str = ""
) -> tuple[Any, list[Any]]:
    """The same by synchronous workers, `each` with so many microbatches. One alone is no loop: in
    a session that is not reproducible its sums may be fused otherwise."""
    with wf.Graph().as_default() as graph:
        net = Network(words, bool(target))
        sync = wf.train.SyncReplicas(optimizer(), workers)
        tasks = []
        for k in range(workers):
            with wf.device(f"/job:worker/task:{k}" if target else ""):
                x, y = net.inputs(ROWS // workers)
                loss, pairs = wf.train.microbatch_gradients(sync, net.loss, (x, y), each)
                tasks.append((x, y, loss, sync.apply_gradients(pairs, net.step, worker=k)))
        chief, begin = sync.chief_step, sync.local_step_init_op
        init = wf.global_variables_initializer()
    losses: dict[tuple[int, int], Any] = {}
    with wf.Session(target, graph=graph, reproducible=each == 1) as session:
        session.run(init)
        session.run(begin)
        limit = wf.RunOptions(timeout=20)

        def work(k: int) -> None:
            x, y, loss, train = tasks[k]
            for step in range(STEPS):
                a, b = (np.split(part, workers)[k] for part in net.data(step))
                losses[step, k] = session.run([loss, train], {x: a, y: b}, limit)[0]

        def lead() -> None:
            for _ in range(STEPS):
                session.run(chief, options=limit)

        at_once([*(lambda k=k: work(k) for k in range(workers)), lead])
        values = net.values(session)
    return values, [[losses[step, k] for k in range(workers)] for step in range(STEPS)]


def mean_in_pairs(parts: list[Any]) -> Any:
    level = list(parts)
    while len(level) > 1:
        level = [sum(level[i + 1 : i + 2], level[i]) for i in range(0, len(level), 2)]
    return level[0] / np.float32(len(parts))


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize(("workers", "each"), every(2, [(2, 2), (1, 4), (3, 4), (4, 1), (6, 2)]))
@pytest.mark.parametrize("words", [False, True])
def test_workers_are_one_process_on_the_concatenated_batch(
    words: bool, workers: int, each: int, optimizer: Callable[[], Any]
) -> None:
    values, losses = by_workers(words, optimizer, workers, each)
    alone, whole = in_one_process(words, optimizer, workers * each, each == 1)
    assert values == alone
    assert [mean_in_pairs(parts).tobytes() for parts in losses] == [a.tobytes() for a in whole]


@pytest.fixture(scope="module")
def target() -> Iterator[str]:
    servers = wf.train.Server.create_local_cluster({"ps": 2, "worker": 3})
    yield servers[2].target
    for server in servers:
        server.stop()


@pytest.mark.share(4)
@pytest.mark.parametrize("each", [1, 2])
@pytest.mark.parametrize("words", [False, True])
def test_on_a_cluster(target: str, words: bool, each: int) -> None:
    wf.Session.reset(target)
    values, _ = by_workers(words, OPTIMIZERS[0], 3, each, target)
    assert values == in_one_process(words, OPTIMIZERS[0], 3 * each, each == 1)[0]


def test_single_microbatches_in_reproducible_sessions() -> None:
    """Otherwise the gradient of `b` here is summed up in other lanes where there is no loop."""
    rng = np.random.default_rng(1)
    x, w = (rng.normal(size=s).astype(np.float32) for s in ((256, 784), (784, 300)))

    def gradient(rows: Array, count: int) -> Array:
        with wf.Graph().as_default():
            b = wf.Variable(np.zeros(300, np.float32), name="b")

            def loss(given: Any) -> Any:
                return wf.mean(wf.square(wf.nn.relu(wf.matmul(given, w * np.float32(0.05)) + b)))

            _, [(found, _)] = wf.train.microbatch_gradients(wf.train.SGD(1.0), loss, rows, count)
            init = wf.global_variables_initializer()
            with wf.Session(reproducible=True) as session:
                session.run(init)
                return np.asarray(session.run(found))

    parts = [gradient(rows, 1) for rows in np.split(x, 4)]
    assert mean_in_pairs(parts).tobytes() == gradient(x, 4).tobytes()


def test_they_are_the_gradients_of_the_batch() -> None:
    with wf.Graph().as_default():
        net = Network(False, False)
        x, y = net.inputs(ROWS)
        opt = wf.train.SGD(1.0)
        loss, pairs = wf.train.microbatch_gradients(opt, net.loss, [x, y], 8, [net.v, net.w])
        plain = net.loss(x, y)
        want = [g for g, _ in opt.compute_gradients(plain, [net.v, net.w])]
        init = wf.global_variables_initializer()
        assert [v for _, v in pairs] == [net.v, net.w]
        with wf.Session() as session:
            session.run(init)
            data = dict(zip((x, y), net.data(0), strict=True))
            found = session.run([loss, *(g for g, _ in pairs), plain, *want], data)
    for a, b in zip(found[:3], found[3:], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7)


def test_in_a_compiled_function() -> None:
    w = wf.Variable(np.float32([1, 2]), name="w")
    other = wf.Variable(np.float32(0), name="other")
    opt = wf.train.SGD(0.5)

    @wf.compile
    def train(x: Any) -> Any:
        loss, pairs = wf.train.microbatch_gradients(
            opt, lambda rows: wf.mean(wf.sum(rows * w, axis=1)), x, 2, [w, other]
        )
        assert pairs[1][0] is None  # the loss does not depend on it
        opt.apply_gradients(pairs)
        return loss

    assert train(np.float32([[1, 0], [2, 0], [3, 0], [6, 4]])) == 5
    assert w.numpy().tolist() == [-0.5, 1.5]


def test_what_it_does_not_take() -> None:
    opt = wf.train.SGD(0.1)
    w = wf.Variable(np.float32(1), name="w")
    call = wf.train.microbatch_gradients
    with pytest.raises(wf.errors.FailedPreconditionError, match="graphs and compiled"):
        call(opt, lambda x: wf.mean(x * w), np.zeros(4, np.float32), 2)
    with wf.Graph().as_default():
        for rows, count in ((None, 2), (4, 3), (0, 1)):
            x = wf.placeholder(wf.float32, [rows])
            with pytest.raises(wf.errors.ShapeError, match="cannot be cut"):
                call(opt, lambda x: wf.mean(x * w), x, count)
        x = wf.placeholder(wf.float32, [4])
        with pytest.raises(wf.errors.InvalidArgumentError, match="at least 1"):
            call(opt, lambda x: wf.mean(x * w), x, 0)
        with pytest.raises(wf.errors.TypeRuleError, match="a function that computes"):
            call(opt, wf.mean(x * w), x, 2)
