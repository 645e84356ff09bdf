"""`wf.shard_map` and `wf.data_parallel` over the tasks of a cluster, from one program: compiled
functions, sessions, Ray. The truth is the mesh that is a batch in this process, and NumPy."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

import weft as wf
from weft import collectives as c

F32 = np.float32
WORKERS = ["/job:worker/task:0", "/job:worker/task:1"]
RING = [(0, 1), (1, 0)]


@pytest.fixture(name="servers", scope="module")
def _servers() -> Iterator[list[wf.train.Server]]:
    made = wf.train.Server.create_local_cluster({"ps": 1, "worker": 2})
    yield made
    for server in made:
        server.stop()


def every(x: Any) -> Any:
    """Each collective, on a shard of (rows, 2, columns)."""
    total, small = c.psum((x, wf.sum(x)), "d")
    ends = c.pmax(x, "d") - c.pmin(x, "d")
    others = c.ppermute(x, "d", RING) * c.axis_index("d")
    gathered = wf.sum(c.all_gather(x, "d"), axis=0)
    scattered = c.psum_scatter(x, "d", 1)[:, None]
    return total + ends + gathered, others + small, scattered + c.all_to_all(x, "d", 1, 1)


SPECS = "d", (None, "d", "d")


@pytest.mark.parametrize("columns", [3, pytest.param(3001, marks=pytest.mark.slow)])
def test_each_collective_and_its_gradient(servers: list[wf.train.Server], columns: int) -> None:
    """Small arrays, which each task adds, and large ones by slices."""
    x = np.random.default_rng(0).normal(size=(6, 2, columns))
    here = wf.shard_map(every, wf.Mesh({"d": 2}), *SPECS)
    there = wf.shard_map(every, wf.Mesh({"d": 2}, devices=WORKERS), *SPECS)

    def both(f: Any) -> Any:
        def loss(x: Any) -> Any:
            return sum(wf.sum(wf.sin(y)) for y in f(x))

        return lambda x: (f(x), wf.grad(loss)(x))

    run = wf.compile(both(there), cluster=servers[1].target)
    for got, wanted in zip(wf.tree_leaves(run(x)), wf.tree_leaves(wf.compile(both(here))(x)),
                           strict=True):  # fmt: skip
        np.testing.assert_allclose(got.numpy(), wanted.numpy(), rtol=1e-10, atol=1e-12)


def test_sums_are_in_the_order_of_ranks(servers: list[wf.train.Server]) -> None:
    """With the bits of NumPy, over three tasks; `explain` says what is sent."""
    rows = np.random.default_rng(2).normal(size=(3, 30_000)).astype(F32)
    mesh = wf.Mesh({"d": 3}, devices=[*WORKERS, "/job:ps/task:0"])
    run = wf.compile(
        wf.shard_map(lambda x: x + c.psum(x, "d"), mesh, "d", "d"), cluster=servers[1].target
    )
    total = (rows[0] + rows[1]) + rows[2]
    assert run(rows).numpy().tobytes() == (rows + total).tobytes()
    text = run.explain(rows)
    # the shards there, a slice of each to each other, the sums of slices to each other, the results
    count = 2 + 6 + 6 + 2
    size = 4 * (2 * 30_000 + 12 * 10_000 + 2 * 30_000)
    assert f"sent: {count} tensors, {size:,} bytes" in text
    assert "/job:worker/task:1/cpu:0 -> /job:ps/task:0/cpu:0: 2, 80,000 bytes" in text


class Model:
    """Two layers and a table, whose variables have names."""

    def __init__(self, name: str = "") -> None:
        rng = np.random.default_rng(3)
        self.table = wf.Variable(rng.normal(size=(40, 16)).astype(F32), name=f"table{name}")
        self.w = wf.Variable((rng.normal(size=(16, 300)) / 4).astype(F32), name=f"w{name}")
        self.v = wf.Variable((rng.normal(size=(300, 3)) / 16).astype(F32), name=f"v{name}")
        self.optimizer = wf.train.Adam(0.02, name=f"Adam{name}")

    def step(self, ids: Any, labels: Any) -> Any:
        rows = wf.nn.embedding_lookup(self.table, ids)
        logits = wf.matmul(wf.tanh(wf.matmul(rows, self.w)), self.v)
        losses = wf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
        loss = wf.mean(losses)
        self.optimizer.minimize(loss)
        return loss


def batches() -> list[Any]:
    rng = np.random.default_rng(4)
    return [(rng.integers(0, 40, 16), rng.integers(0, 3, 16)) for _ in range(4)]


def losses_here(devices: Any = None, passes: str = "standard") -> list[float]:
    parallel = wf.data_parallel(Model().step, wf.Mesh({"data": 2}, devices=devices))
    train = wf.compile(parallel, passes=passes)
    return [float(train(*batch)) for batch in batches()]


@pytest.mark.parametrize("said", ["around", "within", ""])
def test_data_parallel_training(servers: list[wf.train.Server], said: str) -> None:
    """The losses of the mesh in this process, with the bits of the same mesh on one device; one
    copy of variables and slots, where they are placed, and the arithmetic of updates there."""
    target = servers[1].target
    model = Model(f"_{said}")

    def step(*batch: Any) -> Any:
        with wf.device("/job:ps") if said == "within" else nullcontext():
            for variable in (model.table, model.w, model.v):
                variable.read()
        return model.step(*batch)

    parallel = wf.data_parallel(step, wf.Mesh({"data": 2}, devices=WORKERS))

    @wf.compile(cluster=target, passes="reproducible")
    def train(ids: Any, labels: Any) -> Any:
        with wf.device("/job:ps") if said == "around" else nullcontext():
            return parallel(ids, labels)

    losses = [float(train(*batch)) for batch in batches()]
    assert losses == losses_here(["/cpu:0", "/task:0/cpu:0"], "reproducible")
    np.testing.assert_allclose(losses, losses_here(), rtol=1e-5)
    text = train.explain(*batches()[0])
    sent = [line.strip() for line in text[text.index("sent:") :].splitlines()]
    weights, rows = 4 * (16 * 300 + 300 * 3), 4 * 8 * 16
    if not said:
        assert not any("/job:ps" in line for line in sent)
    for number, worker in enumerate(WORKERS if said else ()):
        # weights, rows of its examples; if the batch is on ps, its labels, also as int32, and ids
        count, given = (5, 8 * 8 + 4 * 8) if said == "around" else (3, 0)
        given += weights + rows
        assert f"/job:ps/task:0/cpu:0 -> {worker}/cpu:0: {count}, {given:,} bytes" in sent
        # half of the sums, gradients of the rows; the loss, or from the first worker all ids
        count, back = (3, 4) if said == "around" else (2, 0) if number else (4, 2 * 8 * 8)
        back += weights // 2 + rows
        assert f"{worker}/cpu:0 -> /job:ps/task:0/cpu:0: {count}, {back:,} bytes" in sent


def test_variables_of_one_name_are_where_each_was_put(servers: list[wf.train.Server]) -> None:
    """A function that says nothing of them finds both; they were one, by their name."""
    a, b = (wf.Variable(F32(k), name="one_name") for k in (1, 2))
    mesh, target = wf.Mesh({"d": 2}, devices=WORKERS), servers[1].target

    def adding(variable: wf.Variable, device: str) -> Any:
        def shard(x: Any) -> None:
            variable.assign_add(c.psum(wf.sum(x), "d"))

        @wf.compile(cluster=target)
        def add(x: Any) -> None:
            with wf.device(device):
                wf.shard_map(shard, mesh, "d", None)(x)

        return add

    both = adding(a, "/job:ps"), adding(b, "/job:worker/task:1")
    for add in both:
        add(np.ones(4, F32))
    read = wf.compile(lambda: (b.read(), a.read()), cluster=target)
    assert [*map(float, read())] == [6, 5]
    text = read.explain()
    assert "/job:ps/task:0/cpu:0: 2 ops" in text
    assert "/job:worker/task:1/cpu:0: 2 ops" in text


def test_a_session_on_the_cluster(servers: list[wf.train.Server]) -> None:
    with wf.Graph().as_default():
        ids, labels = (wf.placeholder(wf.int64, [16]) for _ in range(2))
        with wf.device("/job:ps"):
            model = Model()
        train = wf.data_parallel(model.step, wf.Mesh({"data": 2}, devices=WORKERS))(ids, labels)
        with wf.Session(servers[1].target) as session:
            session.run(wf.global_variables_initializer())
            found = [session.run(train, {ids: a, labels: b}) for a, b in batches()]
            text = session.explain(train, dict(zip((ids, labels), batches()[0], strict=True)))
    np.testing.assert_allclose(found, losses_here(), rtol=1e-5)
    assert re.search(r"/job:worker/task:1/cpu:0 -> /job:ps/task:0/cpu:0: \d+, ", text)


def test_a_loop_with_collectives(servers: list[wf.train.Server]) -> None:
    """All tasks go through it together; its length is found by a collective."""

    def until(x: Any) -> Any:
        return wf.while_loop(
            lambda y: c.pmax(wf.max(y), "d") < 20, lambda y: y * 1.5 + 0.1 * c.pmean(y, "d"), x
        )

    x = np.arange(8.0)
    run, wanted = (wf.shard_map(until, wf.Mesh({"d": 2}, devices=d), "d", "d")
                   for d in (WORKERS, None))  # fmt: skip
    made = wf.compile(run, cluster=servers[1].target)(x).numpy()
    np.testing.assert_allclose(made, wanted(x).numpy(), rtol=1e-12)


def test_a_task_that_is_not_there(servers: list[wf.train.Server]) -> None:
    mesh = wf.Mesh({"d": 2}, devices=["/job:worker/task:0", "/job:worker/task:7"])
    run = wf.compile(wf.shard_map(lambda x: x * 2, mesh, "d", "d"), cluster=servers[1].target)
    with pytest.raises(wf.errors.InvalidArgumentError, match="/job:worker/task:7") as error:
        run(np.ones(4))
    assert "test_shard_map_tasks.py:" in str(error.value)


@pytest.mark.ray
@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed")
def test_the_tasks_of_ray() -> None:
    options = {"object_store_memory": 100 << 20}
    free = {job: {"num_cpus": 0} for job in ("ps", "worker")}
    with wf.train.RayCluster(
        {"ps": 1, "worker": 2}, resources=free, ray_options=options
    ) as cluster:
        model = Model()
        parallel = wf.data_parallel(model.step, wf.Mesh({"data": 2}, devices=WORKERS))

        @wf.compile(cluster=cluster.cluster)
        def train(ids: Any, labels: Any) -> Any:
            with wf.device("/job:ps"):
                return parallel(ids, labels)

        losses = [float(train(*batch)) for batch in batches()]
    np.testing.assert_allclose(losses, losses_here(), rtol=1e-5)
