"""`wf.train.SyncReplicas`: synchronous training over slots and queues, with backup workers."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import pytest
from at_once import at_once

import weft as wf

Array = np.ndarray[Any, Any]
ROWS, COLUMNS = 8, 4


class Cluster:
    """A chief and `total` workers in one graph; `shards` have the rows of each worker's step."""

    def __init__(
        self,
        total: int,
        needed: int | None = None,
        optimizer: Callable[[], wf.train.Optimizer] = lambda: wf.train.SGD(0.125),
        exact: bool = False,
    ) -> None:
        self.total = total
        self.graph = wf.Graph()
        with self.graph.as_default():
            self.step = wf.train.get_or_create_global_step()
            self.w, self.b, loss = model(exact)
            self.sync = wf.train.SyncReplicas(optimizer(), needed or total, total)
            self.feeds, self.train, self.grads = [], [], []
            for worker in range(total):
                x = wf.placeholder(wf.float32, [ROWS, COLUMNS])
                y = wf.placeholder(wf.float32, [ROWS])
                pairs = self.sync.compute_gradients(loss(x, y), [self.w, self.b])
                self.feeds.append((x, y))
                self.grads.append([g for g, _ in pairs])
                self.train.append(self.sync.apply_gradients(pairs, self.step, worker=worker))
            self.chief = self.sync.chief_step
            self.begin = self.sync.local_step_init_op
            init = wf.global_variables_initializer()
        self.session = wf.Session(graph=self.graph)
        self.session.run(init)
        self.limit = wf.RunOptions(timeout=20)

    def work(self, worker: int, data: tuple[Array, Array]) -> None:
        feeds = dict(zip(self.feeds[worker], data, strict=True))
        with contextlib.suppress(wf.errors.CancelledError):  # the session is closed
            self.session.run(self.train[worker], feeds, options=self.limit)

    def aggregate(self) -> None:
        self.session.run(self.chief, options=self.limit)

    def state(self) -> list[Array]:
        return self.session.run([self.w, self.b, self.step])


def model(exact: bool) -> tuple[wf.Variable, wf.Variable, Callable[[Any, Any], Any]]:
    """A small network; exact: one whose sums have no rounding for small integers."""
    start = np.arange(COLUMNS, dtype=np.float32) - 1
    w = wf.Variable(start if exact else start * np.float32(0.37), name="w")
    b = wf.Variable(np.float32(0), name="b")

    def loss(x: Any, y: Any) -> Any:
        out = wf.matmul(x, w) + b
        return wf.mean(wf.square((out if exact else wf.tanh(out)) - y))

    return w, b, loss


def batches(seed: int, count: int, exact: bool = False) -> list[tuple[Array, Array]]:
    rng = np.random.default_rng(seed)
    if exact:
        return [
            (rng.integers(-2, 3, (ROWS, COLUMNS)).astype(np.float32),
             rng.integers(-2, 3, ROWS).astype(np.float32))
            for _ in range(count)
        ]  # fmt: skip
    return [
        (rng.normal(size=(ROWS, COLUMNS)).astype(np.float32),
         rng.normal(size=ROWS).astype(np.float32))
        for _ in range(count)
    ]  # fmt: skip


def train(cluster: Cluster, steps: list[list[tuple[Array, Array]]]) -> None:
    def worker(k: int) -> Callable[[], None]:
        return lambda: [cluster.work(k, step[k]) for step in steps] and None

    def chief() -> None:
        for _ in steps:
            cluster.aggregate()

    at_once([*(worker(k) for k in range(cluster.total)), chief])


# ------------------------------------------------------------------------------ all the workers
@pytest.mark.share(3)
@pytest.mark.parametrize(
    "optimizer", [lambda: wf.train.SGD(0.1), lambda: wf.train.Adam(0.1),
                  lambda: wf.train.Momentum(0.1, 0.9)]
)  # fmt: skip
@pytest.mark.parametrize("total", [1, 2, 3])
def test_workers_together_are_one_process(
    total: int, optimizer: Callable[[], wf.train.Optimizer]
) -> None:
    """Bit for bit: the gradients of the slices, added in the order of the workers, and one
    update."""
    steps = [batches(7 * t, total) for t in range(4)]
    cluster = Cluster(total, optimizer=optimizer)
    train(cluster, steps)
    got = cluster.state()

    with wf.Graph().as_default() as alone:
        w, b, loss = model(False)
        x, y = wf.placeholder(wf.float32, [ROWS, COLUMNS]), wf.placeholder(wf.float32, [ROWS])
        opt = optimizer()
        grads = [g for g, _ in opt.compute_gradients(loss(x, y), [w, b])]
        given = [[wf.placeholder(g.dtype, g.shape) for g in grads] for _ in range(total)]
        means = wf.train.mean_gradients([list(zip(row, [w, b], strict=True)) for row in given])
        update = opt.apply_gradients(means)
        init = wf.global_variables_initializer()
    session = wf.Session(graph=alone)
    session.run(init)
    for step in steps:
        found = [session.run(grads, {x: xs, y: ys}) for xs, ys in step]
        flat = zip(chain.from_iterable(given), chain.from_iterable(found), strict=True)
        session.run(update, dict(flat))
    want = session.run([w, b])
    assert [a.tobytes() for a in got[:2]] == [np.asarray(a).tobytes() for a in want]
    assert got[2] == len(steps)


@pytest.mark.parametrize("total", [2, 4])
def test_workers_together_are_the_concatenated_batch(total: int) -> None:
    """Bit for bit where sums have no rounding: so nothing is lost, left out or taken twice."""
    steps = [batches(t, total, exact=True) for t in range(3)]
    cluster = Cluster(total, exact=True)
    train(cluster, steps)
    with wf.Graph().as_default() as alone:
        w, b, loss = model(True)
        x = wf.placeholder(wf.float32, [total * ROWS, COLUMNS])
        y = wf.placeholder(wf.float32, [total * ROWS])
        update = wf.train.SGD(0.125).minimize(loss(x, y), [w, b])
        init = wf.global_variables_initializer()
    session = wf.Session(graph=alone)
    session.run(init)
    for step in steps:
        xs, ys = (np.concatenate(part) for part in zip(*step, strict=True))
        session.run(update, {x: xs, y: ys})
    want = session.run([w, b])
    for a, c in zip(cluster.state()[:2], want, strict=True):
        assert np.any(a != 0)
        np.testing.assert_array_equal(a, c)


@pytest.mark.slow
def test_the_order_of_arrival_does_not_count() -> None:
    results = set()
    data = batches(3, 3)
    for order in itertools.permutations(range(3)):
        cluster = Cluster(3)
        session = cluster.session
        for worker in order[:-1]:  # hand in one after the other: each waits for its token
            thread = threading.Thread(target=cluster.work, args=(worker, data[worker]))
            thread.start()
            count = arrivals(cluster).size
            for _ in range(2000):
                if count() >= order.index(worker) + 1:
                    break
                thread.join(0.005)
            assert count() == order.index(worker) + 1
        last = order[-1]
        at_once([partial(cluster.work, last, data[last]), cluster.aggregate])
        results.add(b"".join(np.asarray(a).tobytes() for a in cluster.state()))
        assert session.run(cluster.step) == 1
    assert len(results) == 1


# ------------------------------------------------------------------------------- backup workers
def arrivals(cluster: Cluster) -> Any:
    assert cluster.sync._shared is not None
    return cluster.sync._shared.arrivals._queue


def hand_in(cluster: Cluster, worker: int, data: tuple[Array, Array]) -> threading.Thread:
    thread = threading.Thread(target=cluster.work, args=(worker, data), daemon=True)
    queue = arrivals(cluster)
    before = queue.size()
    thread.start()
    for _ in range(2000):
        if queue.size() > before:
            return thread
        thread.join(0.005)
    raise AssertionError("the gradient did not arrive")


def test_the_first_of_them_are_taken_and_the_late_are_dropped() -> None:
    cluster = Cluster(3, needed=2)
    steps = [batches(11 * t, 3) for t in range(3)]
    gradients: list[list[list[Array]]] = []

    def note(taken: Sequence[int], of: Sequence[tuple[Array, Array]]) -> None:
        gradients.append([
            cluster.session.run(
                cluster.grads[k], dict(zip(cluster.feeds[k], of[k], strict=True))
            )
            for k in sorted(taken)
        ])  # fmt: skip

    state = cluster.state()
    want = [np.array(a) for a in state[:2]]

    def check() -> None:
        first, second = gradients[-1]
        for i in (0, 1):
            want[i] = want[i] - (first[i] + second[i]) / np.float32(2) * np.float32(0.125)
        for a, c in zip(cluster.state()[:2], want, strict=True):
            np.testing.assert_allclose(a, c, rtol=1e-6)

    # worker 0 is late: 2 and 1 make the step
    note([2, 1], steps[0])
    threads = [hand_in(cluster, k, steps[0][k]) for k in (2, 1)]
    cluster.aggregate()
    for thread in threads:
        thread.join(20)
    check()
    # its gradient comes for a step that is made: dropped, and it goes on with the next
    late = hand_in(cluster, 0, steps[0][0])
    note([0, 1], steps[1])
    threads = [hand_in(cluster, 1, steps[1][1])]
    chief = threading.Thread(target=cluster.aggregate)
    chief.start()
    late.join(20)
    assert not late.is_alive()
    threads.append(threading.Thread(target=cluster.work, args=(0, steps[1][0])))
    threads[-1].start()
    for thread in (*threads, chief):
        thread.join(20)
        assert not thread.is_alive()
    check()
    assert cluster.session.run(cluster.step) == 2


def test_stragglers_do_not_hold_up_the_others() -> None:
    """Two of four never come; the others make every step."""
    cluster = Cluster(4, needed=2)
    steps = [batches(t, 4) for t in range(5)]

    def worker(k: int) -> Callable[[], None]:
        return lambda: [cluster.work(k, step[k]) for step in steps] and None

    at_once([worker(1), worker(3), lambda: [cluster.aggregate() for _ in steps] and None])
    assert cluster.session.run(cluster.step) == 5


def test_a_worker_counts_once() -> None:
    """One that hands in twice for a step, as after a restart, is not two."""
    cluster = Cluster(2)
    data = batches(5, 2)
    again = [hand_in(cluster, 0, data[0]) for _ in range(2)]
    chief = threading.Thread(target=cluster.aggregate)
    chief.start()
    chief.join(0.2)
    assert chief.is_alive()
    other = threading.Thread(target=cluster.work, args=(1, data[1]))
    other.start()
    for thread in (chief, other):
        thread.join(20)
        assert not thread.is_alive()
    assert cluster.session.run(cluster.step) == 1
    again[0].join(0.2)
    again[1].join(0.2)
    assert [thread.is_alive() for thread in again].count(True) == 1  # there was one token for it
    cluster.session.close()
    for thread in again:
        thread.join(20)


# ------------------------------------------------------------------- processes that start again
def test_a_new_chief_finds_the_workers_waiting() -> None:
    """The old one had taken their arrivals off the queue, and was gone before it made the step."""
    cluster = Cluster(3)
    data = batches(2, 3)
    threads = [hand_in(cluster, k, data[k]) for k in (0, 1)]
    assert cluster.sync._shared is not None
    for _ in threads:
        cluster.sync._shared.arrivals.dequeue(timeout=5)  # what the old chief did last
    with cluster.graph.as_default():
        begin = cluster.sync.chief_init_op
    cluster.session.run(begin)
    for thread in threads:  # they have a token, and begin the step anew
        thread.join(20)
        assert not thread.is_alive()
    cluster.session.run(cluster.begin)  # worker 2 starts only now
    train(cluster, [data])
    other = Cluster(3)
    train(other, [data])
    for a, b in zip(cluster.state(), other.state(), strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_step_of_the_old_chief_is_dropped() -> None:
    """A gradient for an earlier epoch is not taken, though its step has the same number."""
    cluster = Cluster(2)
    old, new = batches(1, 2), batches(2, 2)
    with cluster.graph.as_default():
        begin = cluster.sync.chief_init_op
    late = [hand_in(cluster, k, old[k]) for k in (0, 1)]
    cluster.session.run(begin)
    for thread in late:
        thread.join(20)
        assert not thread.is_alive()
    train(cluster, [new])
    other = Cluster(2)
    train(other, [new])
    for a, b in zip(cluster.state(), other.state(), strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_new_worker_leaves_no_token_over() -> None:
    """It would run ahead with it, and hand in again while its slot is read: it discards what is
    not later than where it is."""
    cluster = Cluster(2)
    steps = [batches(t, 2) for t in range(4)]
    train(cluster, steps[:1])
    shared = cluster.sync._shared
    assert shared is not None
    for _ in range(3):  # what workers that ended left behind
        shared.tokens[0].enqueue([0, 1])
        shared.tokens[0].enqueue([0, 0])
    cluster.session.run(cluster.begin)
    train(cluster, steps[1:])
    assert shared.tokens[0]._queue.size() == shared.tokens[1]._queue.size() == 0
    other = Cluster(2)
    train(other, steps)
    for a, b in zip(cluster.state(), other.state(), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.share(3)
@pytest.mark.parametrize("seed", range(6))
def test_any_of_them_may_start_again(seed: int) -> None:
    """Workers and the chief end at random places and start again, without a checkpoint: each step
    is made once, of the gradients of its own batch."""
    rng = np.random.default_rng(seed)
    cluster = Cluster(2)
    count = 6
    steps = [batches(100 + t, 2) for t in range(count)]
    with cluster.graph.as_default():
        init = cluster.sync.chief_init_op
        local = [v.read() for v in cluster.sync._local_steps.values()]
        restart = [v.assign(cluster.sync._shared.now())  # type: ignore[union-attr]
                   for v in cluster.sync._local_steps.values()]  # fmt: skip
    short = wf.RunOptions(timeout=int(rng.integers(30, 120)) / 1e3)

    def attempt(op: Any, feeds: Any, start: Any) -> None:
        try:
            cluster.session.run(op, feeds, options=short)
        except wf.errors.DeadlineExceededError:  # it ended in the middle, and starts again
            cluster.session.run(start)

    def work(k: int) -> None:
        for _ in range(400):
            if cluster.session.run(cluster.step) == count:
                return
            step = int(cluster.session.run(local[k])[1])
            if step == count:
                return
            attempt(cluster.train[k], dict(zip(cluster.feeds[k], steps[step][k], strict=True)),
                    restart[k])  # fmt: skip

    def chief() -> None:
        cluster.session.run(init)
        for _ in range(400):
            if cluster.session.run(cluster.step) == count:
                return
            attempt(cluster.chief, {}, init)

    at_once([partial(work, 0), partial(work, 1), chief])
    other = Cluster(2)
    train(other, steps)
    for a, b in zip(cluster.state(), other.state(), strict=True):
        np.testing.assert_array_equal(a, b)


# --------------------------------------------------------------------------------------- others
def test_restored_workers_begin_at_the_global_step() -> None:
    cluster = Cluster(2)
    with cluster.graph.as_default():
        cluster.session.run(cluster.step.assign(np.int64(41)))
    cluster.session.run(cluster.begin)
    train(cluster, [batches(0, 2)])
    assert cluster.session.run(cluster.step) == 42


def test_chief_in_a_queue_runner() -> None:
    cluster = Cluster(2)
    with cluster.graph.as_default():
        runner = cluster.sync.get_chief_queue_runner()
    stop = wf.train.Coordinator()
    threads = runner.create_threads(cluster.session, stop, start=True)
    data = batches(1, 2)
    at_once([lambda k=k: cluster.work(k, data[k]) for k in (0, 1)])  # type: ignore[misc]
    for _ in range(2000):
        if cluster.session.run(cluster.step) == 1:
            break
        stop.wait_for_stop(0.005)
    assert cluster.session.run(cluster.step) == 1
    stop.request_stop()
    stop.join(threads, stop_grace_period_secs=20)


def test_hook_of_a_monitored_session() -> None:
    with wf.Graph().as_default():
        step = wf.train.get_or_create_global_step()
        w = wf.Variable(np.float32(1), name="w")
        sync = wf.train.SyncReplicas(wf.train.SGD(0.25), 1)
        op = sync.minimize(w * w, step, [w])
        hooks = [sync.make_session_run_hook(True), wf.train.StopAtStepHook(last_step=5)]
        with wf.train.MonitoredTrainingSession(hooks=hooks, stop_grace_period_secs=20) as session:
            while not session.should_stop():
                session.run(op)
    assert float(w.numpy()) == 0.5**5
    assert int(step.numpy()) == 5


def test_graphs_of_their_own_share_by_name() -> None:
    """Between-graph replication: a graph and a session for each worker."""
    made: list[dict[str, Any]] = []
    for worker in range(2):
        with wf.Graph().as_default() as graph:
            step = wf.Variable(np.int64(0), trainable=False, shared_name="own/step")
            w = wf.Variable(np.ones(COLUMNS, np.float32), shared_name="own/w")
            x = wf.placeholder(wf.float32, [ROWS, COLUMNS])
            sync = wf.train.SyncReplicas(wf.train.SGD(0.5), 2, shared_name="own/sync")
            op = sync.minimize(wf.mean(wf.matmul(x, w)), step, [w], worker=worker)
            made.append({"session": wf.Session(graph=graph), "x": x, "op": op, "w": w,
                         "chief": sync.chief_step, "step": step})  # fmt: skip
            made[-1]["session"].run(wf.global_variables_initializer())
    data = batches(9, 2)
    at_once([
        *(lambda m=m, d=d: m["session"].run(m["op"], {m["x"]: d[0]})  # type: ignore[misc]
          for m, d in zip(made, data, strict=True)),
        lambda: made[0]["session"].run(made[0]["chief"]),
    ])  # fmt: skip
    want = 1 - 0.5 * np.mean([d[0].mean(axis=0) for d in data], axis=0)
    for m in made:
        np.testing.assert_allclose(m["session"].run(m["w"]), want, rtol=1e-5)
        assert m["session"].run(m["step"]) == 1


def test_sparse_gradients() -> None:
    """Rows that several workers touch, added in their order; others stay as they are."""
    rng = np.random.default_rng(0)
    start = rng.normal(size=(50, 3)).astype(np.float32)
    ids = [np.array([3, 7, 3]), np.array([7, 9, 49])]
    with wf.Graph().as_default() as graph:
        step = wf.train.get_or_create_global_step()
        table = wf.Variable(start, name="table")
        sync = wf.train.SyncReplicas(wf.train.SGD(0.5), 2)
        workers = []
        for k in range(2):
            loss = wf.sum(wf.square(wf.nn.embedding_lookup(table, ids[k])))
            pairs = sync.compute_gradients(loss, [table])
            assert isinstance(pairs[0][0], wf.IndexedSlices)
            workers.append(sync.apply_gradients(pairs, step, worker=k))
        chief = sync.chief_step
        init = wf.global_variables_initializer()
    session = wf.Session(graph=graph)
    session.run(init)
    limit = wf.RunOptions(timeout=20)
    at_once([
        *(lambda w=w: session.run(w, options=limit) for w in workers),  # type: ignore[misc]
        lambda: session.run(chief, options=limit),
    ])  # fmt: skip
    want = start.astype(np.float64)
    for rows in ids:
        np.subtract.at(want, rows, 0.5 * start[rows].astype(np.float64) * 2 / 2)
    got = session.run(table)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    untouched = np.setdiff1d(np.arange(50), np.concatenate(ids))
    np.testing.assert_array_equal(got[untouched], start[untouched])


def test_sparse_gradients_with_backup_workers() -> None:
    """Each step has the rows of the workers that were taken, and of no other; what late ones handed
    in does not stay."""
    rng = np.random.default_rng(4)
    start = rng.normal(size=(20, 2)).astype(np.float32)
    with wf.Graph().as_default() as graph:
        step = wf.train.get_or_create_global_step()
        table = wf.Variable(start, name="table")
        sync = wf.train.SyncReplicas(wf.train.SGD(1.0), 2, 3)
        given = [wf.placeholder(wf.int64, [None], name=f"ids{k}") for k in range(3)]
        ops = []
        for k, ids in enumerate(given):
            loss = wf.sum(wf.nn.embedding_lookup(table, ids))
            ops.append(sync.apply_gradients(sync.compute_gradients(loss, [table]), step, worker=k))
        chief = sync.chief_step
        init = wf.global_variables_initializer()
    session = wf.Session(graph=graph)
    session.run(init)
    limit = wf.RunOptions(timeout=20)
    shared = sync._shared
    assert shared is not None

    def begin(k: int) -> tuple[threading.Thread, Array]:
        rows = rng.integers(0, 20, rng.integers(1, 5))
        run = partial(session.run, ops[k], {given[k]: rows}, options=limit)
        thread = threading.Thread(target=run)
        thread.start()
        return thread, rows

    def end(threads: Sequence[threading.Thread]) -> None:
        for thread in threads:
            thread.join(20)
            assert not thread.is_alive()

    def check(*taken: Array) -> None:
        for rows in taken:
            np.subtract.at(want, rows, 0.5)
        np.testing.assert_allclose(session.run(table), want, rtol=1e-5, atol=1e-5)
        assert [q._queue.size() for q in shared._slots[0]] == [0, 0, 0]  # type: ignore[union-attr]

    want = start.astype(np.float64)
    one, two = begin(1), begin(2)
    session.run(chief, options=limit)
    end([one[0], two[0]])
    check(one[1], two[1])
    leader = threading.Thread(target=partial(session.run, chief, options=limit))
    leader.start()
    late = begin(0)  # for the step before: it gets a token, and is in time then
    end([late[0]])
    zero, one = begin(0), begin(1)
    end([leader, zero[0], one[0]])
    check(zero[1], one[1])
    late = begin(2)
    for _ in range(2000):
        if shared.arrivals._queue.size():
            break
        late[0].join(0.005)
    zero, one = begin(0), begin(1)
    session.run(chief, options=limit)
    end([late[0], zero[0], one[0]])
    check(zero[1], one[1])
    assert session.run(step) == 3


def test_slots_are_beside_the_parameters() -> None:
    ps = [f"/job:ps/task:{i}" for i in range(2)]
    with wf.Graph().as_default() as graph:
        setter = wf.train.replica_device_setter(ps_tasks=2, worker_device="/job:worker/task:0")
        with wf.device(setter):
            step = wf.train.get_or_create_global_step()
            w = wf.Variable(np.ones(3, np.float32), name="w")
            sync = wf.train.SyncReplicas(wf.train.Adagrad(0.1), 2)
            for k in range(2):
                with wf.device(f"/job:worker/task:{k}"):
                    sync.minimize(wf.sum(w * w), step, [w], worker=k)
            _ = sync.chief_step
    on = {
        str(op.attrs["name"]): op.device
        for op in graph.ir().ops if op.name in ("variable", "queue", "table")
    }  # fmt: skip
    assert on == {
        "global_step": ps[0], "sync_replicas/epoch": ps[0],
        "w": ps[1], "w/gradient_0": ps[1], "w/gradient_1": ps[1],
        "w/Adagrad/accumulator": ps[1], "sync_replicas/arrivals": ps[0],
        "sync_replicas/tokens_0": ps[0], "sync_replicas/tokens_1": ps[0],
        "sync_replicas/local_step_0": "/job:worker/task:0",
        "sync_replicas/local_step_1": "/job:worker/task:1",
    }  # fmt: skip


def test_mean_gradients() -> None:
    v, u = wf.Variable(np.zeros(2, np.float32)), wf.Variable(np.zeros((4, 1), np.float32))
    g = [wf.asarray(np.array(x, np.float32)) for x in ([1, 2], [3, 5])]
    rows = [wf.IndexedSlices(np.ones((1, 1), np.float32), [k], [4, 1]) for k in (1, 3)]
    (first, _), (second, _), (third, _) = wf.train.mean_gradients(
        [[(g[0], v), (rows[0], u), (None, v)], [(g[1], v), (rows[1], u), (None, v)]]
    )
    assert first is not None
    assert np.asarray(first).tolist() == [2, 3.5]
    assert isinstance(second, wf.IndexedSlices)
    assert second.to_dense().tolist() == [[0], [0.5], [0], [0.5]]
    assert third is None
    with pytest.raises(wf.errors.InvalidArgumentError, match="different variables"):
        wf.train.mean_gradients([[(g[0], v)], [(rows[0], u)]])
    with pytest.raises(wf.errors.InvalidArgumentError, match="only some replicas"):
        wf.train.mean_gradients([[(g[0], v)], [(None, v)]])


def test_what_is_refused() -> None:
    make = wf.train.SyncReplicas
    for counts in ((0,), (3, 2), (True,), (2, 2.0)):
        with pytest.raises(wf.errors.InvalidArgumentError, match="1 <= m <= n"):
            make(wf.train.SGD(), *counts)  # type: ignore[arg-type]
    with pytest.raises(wf.errors.TypeRuleError, match=r"takes a wf\.train\.Optimizer"):
        make("sgd", 2)  # type: ignore[arg-type]
    sync = make(wf.train.SGD(), 1, 2)
    with pytest.raises(wf.errors.FailedPreconditionError, match="no worker has been built"):
        _ = sync.chief_step
    v = wf.Variable(np.zeros(2, np.float32))
    with pytest.raises(wf.errors.FailedPreconditionError, match="in a graph"):
        sync.apply_gradients([(wf.zeros(2), v)], v)
    with wf.Graph().as_default():
        step = wf.train.get_or_create_global_step()
        w = wf.Variable(np.zeros((3, 2), np.float32))
        g = wf.ones((3, 2))
        with pytest.raises(wf.errors.InvalidArgumentError, match="counts the steps"):
            sync.apply_gradients([(g, w)])
        with pytest.raises(wf.errors.GradientError, match="none of the variables"):
            sync.apply_gradients([(None, w)], step)
        with pytest.raises(wf.errors.InvalidArgumentError, match="no worker 2, only 0 to 1"):
            sync.apply_gradients([(g, w)], step, worker=2)
        sync.apply_gradients([(g, w)], step)
        other = wf.Variable(np.zeros(2, np.float32))
        with pytest.raises(wf.errors.InvalidArgumentError, match="different variables"):
            sync.apply_gradients([(wf.ones(2), other)], step, worker=1)
    with wf.Graph().as_default():
        step = wf.train.get_or_create_global_step()
        with pytest.raises(wf.errors.InvalidArgumentError, match="one graph"):
            sync.apply_gradients([(g, v)], step, worker=1)
        with pytest.raises(wf.errors.FailedPreconditionError, match="graph of the workers"):
            _ = sync.chief_step
