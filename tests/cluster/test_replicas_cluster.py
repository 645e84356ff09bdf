"""Training at scale on a cluster of tasks in this process, over ZeroMQ on loopback: against one
session without a cluster."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from at_once import at_once

import weft as wf

Array = np.ndarray[Any, Any]
ROWS, COLUMNS = 8, 4
LIMIT = wf.RunOptions(timeout=30)


@pytest.fixture(scope="module")
def servers() -> Iterator[list[wf.train.Server]]:
    made = wf.train.Server.create_local_cluster({"ps": 2, "worker": 2})
    yield made
    for server in made:
        server.stop()


@pytest.fixture
def target(servers: list[wf.train.Server]) -> Iterator[str]:
    """The address of /job:worker/task:0; containers are cleared afterwards."""
    yield servers[2].target
    wf.Session.reset(servers[2].target)


def sync_training(target: str, steps: int) -> list[Array]:
    """Two workers and a chief, for so many steps; the variables then."""
    rng = np.random.default_rng(1)
    data = rng.normal(size=(2, steps, ROWS, COLUMNS)).astype(np.float32)
    setter = wf.train.replica_device_setter(ps_tasks=2) if target else ""
    with wf.Graph().as_default() as graph, wf.device(setter):
        step = wf.train.get_or_create_global_step()
        w = wf.Variable(rng.normal(size=COLUMNS).astype(np.float32), name="w")
        b = wf.Variable(np.float32(0.25), name="b")
        sync = wf.train.SyncReplicas(wf.train.Adam(0.1), 2)
        feeds, ops = [], []
        for k in range(2):
            with wf.device(f"/job:worker/task:{k}" if target else ""):
                x = wf.placeholder(wf.float32, [ROWS, COLUMNS], name=f"x{k}")
                loss = wf.mean(wf.square(wf.tanh(wf.matmul(x, w) + b) - 0.5))
                feeds.append(x)
                ops.append(sync.minimize(loss, step, [w, b], worker=k))
        chief, begin = sync.chief_step, [sync.chief_init_op, sync.local_step_init_op]
        init = wf.global_variables_initializer()
    with wf.Session(target, graph=graph) as session:
        session.run(init)
        for op in begin:
            session.run(op)

        def work(k: int) -> None:
            for t in range(steps):
                session.run(ops[k], {feeds[k]: data[k, t]}, options=LIMIT)

        def lead() -> None:
            for _ in range(steps):
                session.run(chief, options=LIMIT)

        at_once([partial(work, 0), partial(work, 1), lead])
        return [np.asarray(a) for a in session.run([w, b, step])]


def test_synchronous_training_is_that_of_one_process(target: str) -> None:
    alone, cluster = sync_training("", 4), sync_training(target, 4)
    assert alone[2] == cluster[2] == 4
    assert [a.tobytes() for a in alone] == [a.tobytes() for a in cluster]


def test_synchronous_training_has_the_same_bits_in_each_run(target: str) -> None:
    first = [a.tobytes() for a in sync_training(target, 3)]
    wf.Session.reset(target)
    assert [a.tobytes() for a in sync_training(target, 3)] == first


def test_asynchronous_training_converges(target: str) -> None:
    rng = np.random.default_rng(0)
    want = np.array([1, -2, 0.5], np.float32)
    setter = wf.train.replica_device_setter(ps_tasks=2)
    with wf.Graph().as_default() as graph, wf.device(setter):
        step = wf.train.get_or_create_global_step()
        w = wf.Variable(np.zeros(3, np.float32), name="w")
        feeds, ops = [], []
        for k in range(2):
            with wf.device(f"/job:worker/task:{k}"):
                x = wf.placeholder(wf.float32, [16, 3], name=f"x{k}")
                y = wf.placeholder(wf.float32, [16], name=f"y{k}")
                loss = wf.mean(wf.square(wf.matmul(x, w) - y))
                feeds.append((x, y))
                ops.append(wf.train.SGD(0.05).minimize(loss, [w], global_step=step))
        init = wf.global_variables_initializer()
    with wf.Session(target, graph=graph) as session:
        session.run(init)
        rows = [rng.normal(size=(60, 16, 3)).astype(np.float32) for _ in range(2)]

        def work(k: int) -> None:
            x, y = feeds[k]
            for given in rows[k]:
                session.run(ops[k], {x: given, y: given @ want}, options=LIMIT)

        at_once([partial(work, 0), partial(work, 1)])
        assert session.run(step) == 120
        np.testing.assert_allclose(session.run(w), want, atol=0.02)


def embedding_training(target: str, shards: int) -> list[Array]:
    """Steps of a sampled softmax over tables in parts; the losses and the tables."""
    setter = wf.train.replica_device_setter(ps_tasks=2) if target else ""
    table = np.random.default_rng(0).normal(size=(23, 4)).astype(np.float32)
    order = np.concatenate([np.arange(23)[i::shards] for i in range(shards)])
    with wf.Graph().as_default() as graph, wf.device(setter):
        make = wf.create_partitioned_variables
        parts = make([23, 4], [shards, 1], table[order], name="in")
        weights = make([23, 4], [shards, 1], table[order] / 2, name="out")
        biases = make([23], [shards], np.zeros(23, np.float32), name="bias")
        ids = wf.placeholder(wf.int64, [6], name="ids")
        with wf.device("/job:worker/task:1" if target else ""):
            rows = wf.nn.embedding_lookup(parts, ids)
            drawn = wf.nn.log_uniform_candidate_sampler(
                ids[:, None], 1, 5, True, 23, key=wf.random.key(3)
            )
            losses = wf.nn.sampled_softmax_loss(
                weights, biases, ids[:, None], rows, 5, 23, 1, drawn
            )
            loss = wf.sum(losses)
            full = wf.sum(wf.nn.sharded_softmax_cross_entropy(weights, biases, ids, rows))
            opt = wf.train.Adagrad(0.1)
            every = [*parts, *weights, *biases]
            train = opt.apply_gradients(opt.compute_gradients(loss, every))
        init = wf.global_variables_initializer()
    with wf.Session(target, graph=graph) as session:
        session.run(init)
        found = []
        for t in range(3):
            given = {ids: np.array([0, 3, 3, 22, 7, t])}
            found += session.run([loss, full], given, options=LIMIT)
            session.run(train, given, options=LIMIT)
        tables = session.run([parts, weights, biases])
    whole = []
    for cut in tables:
        joined = np.concatenate(cut)
        back = np.empty_like(joined)
        back[order] = joined
        whole.append(back)
    return [np.asarray(found), *whole]


@pytest.mark.slow
def test_sharded_embeddings_are_one_table(target: str) -> None:
    alone, cluster = embedding_training("", 1), embedding_training(target, 2)
    for a, b in zip(alone, cluster, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-6)


def test_sharded_checkpoints(target: str, tmp_path: Path) -> None:
    setter = wf.train.replica_device_setter(ps_tasks=2)
    with wf.Graph().as_default() as graph, wf.device(setter):
        made = [wf.Variable(np.full(3, k, np.float32), name=f"v{k}") for k in range(3)]
        change = [v.assign_add(10) for v in made]
        saver = wf.train.ShardedSaver()
        init = wf.global_variables_initializer()
    assert saver.tasks == ("/job:ps/task:0", "/job:ps/task:1")
    with wf.Session(target, graph=graph) as session:
        session.run(init)
        path = saver.save(session, str(tmp_path / "model"), 5)
        assert len(list(tmp_path.iterdir())) == 4
        session.run(change)
        assert [int(a[0]) for a in session.run(made)] == [10, 11, 12]
        saver.restore(session, path)
        assert [int(a[0]) for a in session.run(made)] == [0, 1, 2]
    with wf.Graph().as_default() as one:  # and without a cluster
        made = [wf.Variable(np.zeros(3, np.float32), name=f"v{k}") for k in range(3)]
        saver = wf.train.ShardedSaver()
    with wf.Session(graph=one) as session:
        saver.restore(session, path)
        assert [int(a[0]) for a in session.run(made)] == [0, 1, 2]


def test_which_variables_have_a_value(target: str) -> None:
    setter = wf.train.replica_device_setter(ps_tasks=2)
    with wf.Graph().as_default() as graph, wf.device(setter):
        made = [wf.Variable(np.float32(k), name=f"v{k}") for k in range(3)]
        names, check = wf.report_uninitialized_variables(), wf.assert_variables_initialized()
        one = made[1].assign(4.0)
        init = wf.global_variables_initializer()
    with wf.Session(target, graph=graph) as session:
        assert sorted(session.run(names)) == [b"v0", b"v1", b"v2"]
        session.run(one)
        assert sorted(session.run(names)) == [b"v0", b"v2"]
        with pytest.raises(wf.errors.FailedPreconditionError, match="'v0'"):
            session.run(check)
        session.run(init)
        assert session.run(names).size == 0
        session.run(check)


def test_random_initial_values_are_those_of_one_process(target: str) -> None:
    """Their states are initialized by the same step, each on its own task; and draws go on."""
    setter = wf.train.replica_device_setter(ps_tasks=2)

    def values(address: str) -> list[bytes]:
        wf.set_random_seed(11)
        with wf.Graph().as_default() as graph, wf.device(setter if address else ""):
            parts = wf.create_partitioned_variables([9, 2], [2, 1], wf.random_uniform, name="t")
            twice = wf.Variable(parts[0].initialized_value() * 2, name="twice")
            drawn = wf.random_normal([4])
            init = wf.global_variables_initializer()
        with wf.Session(address, graph=graph) as session:
            found: list[Any] = []
            for _ in range(2):  # the second time, too
                session.run(init)
                found += session.run([*parts, twice])
                found += [session.run(drawn), session.run(drawn)]
        assert not np.array_equal(found[3], found[4])
        np.testing.assert_array_equal(found[2], found[0] * 2)
        return [np.asarray(a).tobytes() for a in found]

    alone = values("")
    assert alone[:5] == alone[5:]
    assert values(target) == alone
