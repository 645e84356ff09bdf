"""Parameters over tasks: device setters, tables and losses in parts, sharded checkpoints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft as wf

Array = np.ndarray[Any, Any]


def _devices(graph: wf.Graph, *names: str) -> dict[str, str]:
    return {
        str(op.attrs.get("name", op.name)): op.device
        for op in graph.ir().ops
        if op.name in ("variable", *names)
    }


# ------------------------------------------------------------------------------- device setters
def test_variables_take_turns() -> None:
    cluster = {"ps": ["a:1", "b:1"], "worker": ["c:1"]}
    for arguments in ({"ps_tasks": 2}, {"cluster": cluster}):
        setter = wf.train.replica_device_setter(worker_device="/job:worker/task:7", **arguments)  # type: ignore[arg-type]
        with wf.Graph().as_default() as g, wf.device(setter):
            for i in range(3):
                v = wf.Variable(np.zeros(2, np.float32), name=f"v{i}")
            wf.exp(v)
        assert _devices(g, "exp") == {
            "v0": "/job:ps/task:0", "v1": "/job:ps/task:1", "v2": "/job:ps/task:0",
            "exp": "/job:worker/task:7",
        }  # fmt: skip


def test_setters_and_scopes() -> None:
    """As TensorFlow 1's `replica_device_setter` with `tf.device` scopes in it."""

    def devices(within: Any, **arguments: Any) -> tuple[str, str]:
        setter = wf.train.replica_device_setter(ps_tasks=2, **arguments)
        with wf.Graph().as_default() as g, wf.device(setter), wf.device(within):
            wf.exp(wf.Variable(np.zeros(2, np.float32), name="v"))
        found = _devices(g, "exp")
        return found["v"], found["exp"]

    assert devices("/cpu:0") == ("/job:ps/task:0/cpu:0", "/job:worker/cpu:0")
    assert devices("/job:ps/task:1") == ("/job:ps/task:1", "/job:ps/task:1")
    assert devices("/job:chief") == ("/job:chief", "/job:chief")
    assert devices("/job:chief", merge_devices=False) == ("/job:chief", "/job:chief")
    assert devices("/gpu:0", merge_devices=False) == ("/gpu:0", "/gpu:0")
    assert devices("", ps_device="/job:p/cpu:0", worker_device="/job:w/gpu:1") == (
        "/job:p/task:0/cpu:0", "/job:w/gpu:1"
    )  # fmt: skip
    assert devices("", ps_ops=["exp"]) == ("/job:worker", "/job:ps/task:0")
    assert wf.train.replica_device_setter() is None


def test_balance_by_bytes() -> None:
    strategy = wf.train.GreedyLoadBalancingStrategy(3, wf.train.byte_size_load_fn)
    setter = wf.train.replica_device_setter(ps_tasks=3, ps_strategy=strategy)
    sizes = {"a": 100, "b": 10, "c": 20, "d": 5, "e": 30, "f": 100}
    with wf.Graph().as_default() as g, wf.device(setter):
        for name, size in sizes.items():
            wf.Variable(np.zeros(size, np.float32), name=name)
    tasks = {name: device[-1] for name, device in _devices(g).items()}
    assert tasks == {"a": "0", "b": "1", "c": "2", "d": "1", "e": "1", "f": "2"}
    assert strategy.loads == (400, 180, 480)


def test_what_setters_refuse() -> None:
    with pytest.raises(wf.errors.NotFoundError, match="no job 'ps'"):
        wf.train.replica_device_setter(cluster={"worker": ["a:1"]})
    with pytest.raises(wf.errors.InvalidArgumentError, match="at least 1, got 0"):
        wf.train.GreedyLoadBalancingStrategy(0, wf.train.byte_size_load_fn)
    with pytest.raises(wf.errors.InvalidArgumentError, match="at least 1, got -1"):
        wf.train.replica_device_setter(ps_tasks=-1)
    bad = wf.train.GreedyLoadBalancingStrategy(2, lambda op: -1)
    with wf.Graph().as_default():
        setter = wf.train.replica_device_setter(ps_tasks=2, ps_strategy=bad)
        with wf.device(setter), pytest.raises(wf.errors.InvalidArgumentError, match="is -1"):
            wf.Variable(np.zeros(2, np.float32))


# --------------------------------------------------------------------------------------- parts
def _table(rows: int = 11, columns: int = 3) -> Array:
    return np.random.default_rng(0).normal(size=(rows, columns)).astype(np.float32)


def test_parts_of_a_table() -> None:
    table = _table()
    for slicing, axis in (([4, 1], 0), ([1, 2], 1), ([1, 1], 0)):
        for initializer in (table, lambda shape: wf.zeros(shape)):
            with wf.Graph().as_default():
                parts = wf.create_partitioned_variables([11, 3], slicing, initializer, name="t")
                assert [p.name for p in parts] == [f"t/part_{i}" for i in range(len(parts))]
                assert wf.trainable_variables() == parts
                session = wf.Session()
                session.run(wf.global_variables_initializer())
                whole = np.concatenate(session.run(parts), axis=axis)
            np.testing.assert_array_equal(whole, table if initializer is table else 0 * table)
    (scalar,) = wf.create_partitioned_variables([], [], 3.0, name="s", dtype=wf.float64)
    assert (scalar.dtype, float(scalar)) == (wf.float64, 3)
    sizes = wf.create_partitioned_variables([5], [2], lambda s, dtype: wf.ones(s, dtype=dtype),
                                            dtype=wf.int32, trainable=False)  # fmt: skip
    assert [(v.shape, v.dtype, v.trainable) for v in sizes] == [
        ((3,), wf.int32, False), ((2,), wf.int32, False)
    ]  # fmt: skip


def test_what_minimize_sends_are_rows() -> None:
    """Not a gradient as large as the table, whose parts lie on other tasks."""
    servers = wf.train.Server.create_local_cluster({"ps": 2, "worker": 1})
    place = wf.train.replica_device_setter(ps_tasks=2, worker_device="/job:worker/task:0")
    with wf.Graph().as_default(), wf.device(place):
        ids = wf.placeholder(wf.int64, [None], name="ids")
        parts = wf.create_partitioned_variables(
            [10_000, 16], [2, 1], np.zeros((10_000, 16), np.float32), name="table"
        )
        loss = wf.sum(wf.square(wf.nn.embedding_lookup(parts, ids) - 1))
        train = wf.train.Adagrad(0.1).minimize(loss)
        begin = wf.global_variables_initializer()
        with wf.Session(servers[2].target) as session:
            session.run(begin)
            session.run(train, {ids: np.arange(100)})
            text = session.explain(train, {ids: np.arange(100)})
    for server in servers:
        server.stop()
    (sent,) = (line for line in text.splitlines() if " messages, " in line)
    rows = 2 * 100 * (8 + 2 * 16 * 4)  # in each part all ids are asked for, rows come and go
    assert 0 < int(sent.split()[2].replace(",", "")) <= rows


def test_what_cannot_be_cut() -> None:
    make = wf.create_partitioned_variables
    for shape, slicing in (([4, 4], [2, 2]), ([4], [5]), ([4], [0]), ([4, 4], [2]), ([4.0], [2])):
        with pytest.raises(wf.errors.InvalidArgumentError, match="slicing="):
            make(shape, slicing, np.zeros(4))  # type: ignore[arg-type]
    with pytest.raises(wf.errors.ShapeError, match="an initializer of shape"):
        make([4], [2], np.zeros(5))
    with wf.Graph().as_default():
        make([4], [2], np.zeros(4, np.float32), name="t")
        with pytest.raises(wf.errors.InvalidArgumentError, match="'t/part_0' already"):
            make([4], [2], np.zeros(4, np.float32), name="t")


@pytest.mark.parametrize("strategy", ["mod", "div"])
@pytest.mark.parametrize("count", [1, 3])
def test_rows_are_taken_and_changed_where_they_are(strategy: str, count: int) -> None:
    """The paper's section 4.2: the worker sends ids and gets rows, the update is sparse and on the
    part; and it trains as one table does."""
    table = _table()
    ids = np.array([0, 4, 4, 10, 7])
    setter = wf.train.replica_device_setter(ps_tasks=count)
    with wf.Graph().as_default() as g, wf.device(setter):
        parts = wf.create_partitioned_variables([11, 3], [count, 1], table, name="t")
        rows = wf.nn.embedding_lookup(parts, ids, partition_strategy=strategy)
        opt = wf.train.Adagrad(0.1)
        pairs = opt.compute_gradients(wf.sum(wf.square(rows)), parts)
        assert all(isinstance(grad, wf.IndexedSlices) for grad, _ in pairs)
        opt.apply_gradients(pairs)
    ops = g.ir().ops
    owners = {v: op for op in ops if op.name == "variable" for v in op.results}
    for op in ops:
        reads = [v.op for v in op.operands if v.op is not None and v.op.name == "read"]
        if op.name == "take" and reads:
            (read,) = reads
            assert op.device == owners[read.operands[0]].device != ""
            assert op.group in (read.group, owners[read.operands[0]].group)
        if op.name in ("assign", "assign_sub"):
            made = op.operands[1].op
            assert made is not None
            assert made.device == owners[op.operands[0]].device != ""
    assert {op.device for op in ops if op.name in ("dynamic_stitch", "square")} >= {"/job:worker"}


@pytest.mark.parametrize("strategy", ["mod", "div"])
def test_training_on_parts_is_training_on_the_table(strategy: str) -> None:
    table, ids = _table(), np.array([0, 4, 4, 10, 7])
    found = []
    for count in (1, 2, 4):
        with wf.Graph().as_default():
            order = np.arange(11)
            if strategy == "mod":
                order = np.concatenate([np.arange(11)[i::count] for i in range(count)])
            parts = wf.create_partitioned_variables([11, 3], [count, 1], table[order], name="t")
            rows = wf.nn.embedding_lookup(parts, ids, partition_strategy=strategy)
            train = wf.train.Adagrad(0.1).minimize(wf.sum(wf.square(rows)), parts)
            session = wf.Session()
            session.run(wf.global_variables_initializer())
            for _ in range(3):
                session.run(train)
            whole = np.empty_like(table)
            whole[order] = np.concatenate(session.run(parts))
        found.append(whole)
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[0], found[2])
    assert not np.array_equal(found[0], table)


# --------------------------------------------------------------------------------- sharded softmax
@pytest.mark.parametrize("strategy", ["mod", "div"])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_softmax_over_parts(strategy: str, count: int) -> None:
    w, b = _table(), _table()[:, 0]
    x = _table(6)
    labels = np.array([0, 10, 3, 7, 7, 5])

    def cut(t: Array) -> list[Array]:
        if strategy == "div":
            return np.array_split(t, count)
        return [t[i::count] for i in range(count)]

    def loss(weights: Any, biases: Any, inputs: Any) -> Any:
        return wf.nn.sharded_softmax_cross_entropy(weights, biases, labels, inputs, strategy)

    def whole(weights: Any, biases: Any, inputs: Any) -> Any:
        logits = wf.matmul(inputs, weights, transpose_b=True) + biases
        return wf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)

    given = ([wf.asarray(t) for t in cut(w)], [wf.asarray(t) for t in cut(b)], wf.asarray(x))
    np.testing.assert_allclose(loss(*given), whole(w, b, x), rtol=1e-5, atol=1e-6)
    gw, gb, gx = wf.grad(lambda *a: wf.sum(loss(*a) ** 2), (0, 1, 2))(*given)
    fw, fb, fx = wf.grad(lambda *a: wf.sum(whole(*a) ** 2), (0, 1, 2))(*map(wf.asarray, (w, b, x)))
    for parts, full in ((gw, fw), (gb, fb)):
        for part, want in zip(parts, cut(full.numpy()), strict=True):
            np.testing.assert_allclose(part, want, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(gx, fx, rtol=1e-4, atol=1e-5)
    no_bias = wf.nn.sharded_softmax_cross_entropy(given[0], None, labels, x, strategy)
    np.testing.assert_allclose(no_bias, whole(w, np.float32(0), x), rtol=1e-5, atol=1e-6)


def test_products_of_parts_are_where_the_parts_are() -> None:
    setter = wf.train.replica_device_setter(ps_tasks=2)
    with wf.Graph().as_default() as g, wf.device(setter):
        parts = wf.create_partitioned_variables([11, 3], [2, 1], _table(), name="w")
        x = wf.placeholder(wf.float32, [4, 3])
        losses = wf.nn.sharded_softmax_cross_entropy(parts, None, np.arange(4), x)
        wf.train.SGD(0.1).minimize(wf.sum(losses), parts, colocate_gradients_with_ops=True)
    products = [op.device for op in g.ir().ops if op.name == "matmul"]
    assert sorted(set(products)) == ["/job:ps/task:0", "/job:ps/task:1"]
    assert len(products) == 4  # of each part, and its gradient


def test_labels_that_are_no_class_are_errors() -> None:
    parts = [wf.asarray(_table()[i::2]) for i in range(2)]
    for label in (11, -1, 12):
        with pytest.raises((IndexError, wf.errors.InvalidArgumentError)):
            wf.nn.sharded_softmax_cross_entropy(parts, None, [label], _table(1))
    with pytest.raises(wf.errors.ShapeError, match="as many parts"):
        wf.nn.sharded_softmax_cross_entropy(parts, [np.zeros(6)], [1], _table(1))
    with pytest.raises(wf.errors.ShapeError, match="not parts of"):
        wf.nn.sharded_softmax_cross_entropy(parts, None, [[1]], _table(1))


# ----------------------------------------------------------------------------- sharded checkpoints
def _model(devices: list[str]) -> tuple[wf.Graph, list[wf.Variable], wf.train.ShardedSaver]:
    with wf.Graph().as_default() as graph:
        made = []
        for i, name in enumerate(devices):
            with wf.device(name):
                made.append(wf.Variable(np.full(i + 1, i, np.float32), name=f"v{i}"))
        saver = wf.train.ShardedSaver()
    return graph, made, saver


HERE, ANY = "/job:localhost/task:0", "/job:localhost"


def test_each_task_has_a_file(tmp_path: Path) -> None:
    graph, made, saver = _model([HERE, ANY, HERE, ""])
    assert saver.tasks == ("", ANY, HERE)
    with graph.as_default(), wf.Session(graph=graph) as session:
        session.run(wf.global_variables_initializer())
        path = saver.save(session, str(tmp_path / "m"), 7)
        assert path == str(tmp_path / "m-7")
        manifest = json.loads((tmp_path / "m-7.manifest.json").read_text(encoding="utf-8"))
        names = [f"m-7-{manifest['mark']:016x}-0000{i}-of-00003.safetensors" for i in range(3)]
        found = sorted(p.name for p in tmp_path.iterdir())
        assert found == sorted([*names, "m-7.manifest.json", "checkpoint"])
        assert manifest["notes"]["step"] == 7
        assert [s["tensors"] for s in manifest["shards"]] == [["v3"], ["v1"], ["v0", "v2"]]
        session.run([v.assign(v - 5) for v in made])
        saver.restore(session, path)
        for i, v in enumerate(made):
            np.testing.assert_array_equal(session.run(v), np.full(i + 1, i))


def test_other_tasks_read_it(tmp_path: Path) -> None:
    graph, made, saver = _model([HERE, ANY, HERE])
    with graph.as_default(), wf.Session(graph=graph) as session:
        session.run(wf.global_variables_initializer())
        session.run([v.assign(v + 10) for v in made])
        path = saver.save(session, str(tmp_path / "m"))
    graph, made, saver = _model(["", HERE, ""])
    with wf.Session(graph=graph) as session:
        for _ in range(2):
            saver.restore(session, path)
        size = len(graph.ir().ops)
        saver.restore(session, path)
        assert len(graph.ir().ops) == size
        for i, v in enumerate(made):
            np.testing.assert_array_equal(session.run(v), np.full(i + 1, i + 10))


def test_parts_of_two_saves_are_no_checkpoint(tmp_path: Path) -> None:
    graph, made, saver = _model([HERE, ANY])
    with graph.as_default(), wf.Session(graph=graph) as session:
        session.run(wf.global_variables_initializer())
        path = saver.save(session, str(tmp_path / "m"))
        (first,) = tmp_path.glob("m-*-00000-of-00002.safetensors")
        old = first.read_bytes()
        session.run([v.assign(v + 1) for v in made])
        saver.save(session, str(tmp_path / "m"))
        (second,) = tmp_path.glob("m-*-00000-of-00002.safetensors")
        assert second != first
        second.write_bytes(old)  # exchanged for that of the first save
        session.run([v.assign(v * 0 - 3) for v in made])
        with pytest.raises(wf.errors.DataLossError, match="of another save"):
            saver.restore(session, path)
        second.unlink()
        with pytest.raises(wf.errors.DataLossError, match="which is not there"):
            saver.restore(session, path)
        for i, v in enumerate(made):  # nothing is changed
            np.testing.assert_array_equal(session.run(v), np.full(i + 1, -3))
        (tmp_path / "m.manifest.json").write_text("{}", encoding="utf-8")
        with pytest.raises(wf.errors.DataLossError, match="no manifest"):
            saver.restore(session, path)
        with pytest.raises(wf.errors.NotFoundError):
            saver.restore(session, str(tmp_path / "other"))


def test_what_it_does_not_save(tmp_path: Path) -> None:
    with pytest.raises(wf.errors.FailedPreconditionError, match="none is being built"):
        wf.train.ShardedSaver()
    with wf.Graph().as_default():
        with pytest.raises(wf.errors.FailedPreconditionError, match="no variables"):
            wf.train.ShardedSaver()
        v = wf.Variable(np.zeros(2, np.float32), name="v")
        queue = wf.FIFOQueue(3, wf.float32, [[]])
        with pytest.raises(wf.errors.UnsupportedError, match="variables only"):
            wf.train.ShardedSaver({"v": v, "q": queue})
        saver = wf.train.ShardedSaver([v])
        more = wf.Variable(np.zeros(2, np.float32), name="more")
        both = wf.train.ShardedSaver([v, more], name="both")
        with wf.Session() as session:
            session.run(wf.global_variables_initializer())
            path = saver.save(session, str(tmp_path / "m"))
            with pytest.raises(wf.errors.NotFoundError, match="more is not in the file"):
                both.restore(session, path)
    with wf.Graph().as_default(), pytest.raises(wf.errors.TypeRuleError, match="a session of"):
        saver.save(wf.Session(), path)
