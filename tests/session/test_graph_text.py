"""A `wf.Graph` as text: the same names, the same bits, in another process."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from example_counts import examples
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from paths import SUPPORT

import weft as wf
from weft.ir.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    ParseError,
    UnsupportedError,
)
from weft.ir.text.parser import parse_graph
from weft.ir.text.printer import print_graph

WORKER = SUPPORT / "graph_text_worker.py"
Elsewhere = Callable[[wf.Graph, list[list[str]], dict[str, Any]], list[list[Any]]]


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Elsewhere]:
    """Runs fetches by name in a graph that another process has read from text."""
    folder = tmp_path_factory.mktemp("graphs")
    worker = subprocess.Popen(
        [sys.executable, str(WORKER)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert worker.stdin is not None
    assert worker.stdout is not None
    stdin, stdout = worker.stdin, worker.stdout

    def run(graph: wf.Graph, runs: list[list[str]], feeds: dict[str, Any]) -> list[list[Any]]:
        graph.save(folder / "graph.weft")
        np.savez(folder / "feeds.npz", **feeds)
        job = {"runs": runs} | {
            k: str(folder / v)
            for k, v in {"graph": "graph.weft", "feeds": "feeds.npz", "out": "out.npz"}.items()
        }
        print(json.dumps(job), file=stdin, flush=True)
        answer = stdout.readline().strip()
        if answer != "done":
            raise RuntimeError(answer)
        found = dict(np.load(folder / "out.npz"))
        return [[found.get(f"{i}_{k}") for k in range(len(r))] for i, r in enumerate(runs)]

    yield run
    stdin.close()
    worker.wait(20)


def here(graph: wf.Graph, runs: list[list[str]], feeds: dict[str, Any]) -> list[list[Any]]:
    with wf.Session(graph=graph) as session:
        return [session.run(fetches, feeds) for fetches in runs]


def assert_same(one: list[list[Any]], two: list[list[Any]]) -> None:
    for a, b in zip(one, two, strict=True):
        for x, y in zip(a, b, strict=True):
            assert (x is None) == (y is None)
            if x is not None:
                assert (x.dtype, x.shape, x.tobytes()) == (y.dtype, y.shape, y.tobytes())


def _classifier() -> wf.Graph:
    """The paper's Figure 1."""
    rng = np.random.default_rng(0)
    with wf.Graph("digits").as_default() as graph:
        x = wf.placeholder(wf.float32, ["batch", 64], name="x")
        y = wf.placeholder(wf.float32, ["batch", 10], name="labels")
        w1 = wf.Variable(rng.uniform(-0.1, 0.1, (64, 20)).astype(np.float32), name="w1")
        b1 = wf.Variable(wf.zeros([20]), name="b1")
        w2 = wf.Variable(rng.uniform(-0.1, 0.1, (20, 10)).astype(np.float32), name="w2")
        step = wf.Variable(0, trainable=False, name="global_step")
        logits = wf.nn.relu(x @ w1 + b1) @ w2
        loss = wf.mean(-wf.sum(y * wf.nn.log_softmax(logits), axis=1))
        wf.name_tensor(loss, "loss")
        wf.name_tensor(w1.read(), "w1_now")
        wf.train.Adagrad(0.05).minimize(loss, global_step=step, name="train")
        wf.global_variables_initializer()
    return graph


@pytest.mark.slow
def test_the_digits_program_trains_alike(elsewhere: Elsewhere) -> None:
    rng = np.random.default_rng(1)
    feeds = {
        "x": rng.random((16, 64), np.float32),
        "labels": np.eye(10, dtype=np.float32)[rng.integers(0, 10, 16)],
    }
    graph = _classifier()
    runs = [["init"]] + [["train", "loss"]] * 5 + [["w1_now"]]
    expected = here(graph, runs, feeds)
    assert expected[1][1] > expected[5][1]
    assert_same(elsewhere(graph, runs, feeds), expected)


def test_a_queue_program_runs_alike(elsewhere: Elsewhere) -> None:
    with wf.Graph("queues").as_default() as graph:
        x = wf.placeholder(wf.int32, [None], name="x")
        q = wf.RandomShuffleQueue(50, 2, wf.int32, [[]], seed=7, name="shuffle")
        q.enqueue_many([x], name="put")
        wf.name_tensor(q.dequeue_many(4), "batch")
        wf.name_tensor(q.size(), "size")
        q.close(name="close")
        wf.FIFOQueue(3, [wf.float32, wf.int32], [[2], []], name="pairs").size()
    runs = [["put"], ["batch"], ["batch"], ["size"], ["close"], ["batch"]]
    feeds = {"x": np.arange(12, dtype=np.int32)}
    expected = here(wf.Graph.from_text(graph.as_text()), runs, feeds)
    assert sorted(np.concatenate([expected[i][0] for i in (1, 2, 5)])) == list(range(12))
    assert_same(elsewhere(graph, runs, feeds), expected)
    assert_same(here(graph, runs, feeds), expected)


def test_other_resources_run_alike(elsewhere: Elsewhere) -> None:
    with wf.Graph("resources").as_default() as graph:
        k = wf.placeholder(wf.int64, [2], name="k")
        x = wf.placeholder(wf.float32, [2], name="x")
        table = wf.MutableHashTable(wf.int64, wf.float32, -1.0, name="table")
        wf.group(table.insert(k, x), name="insert")
        wf.name_tensor(table.lookup(k + 1), "found")
        gathered = wf.ConditionalAccumulator(wf.float32, [2], name="gathered")
        wf.group(gathered.apply_grad(x, 0), name="apply")
        wf.name_tensor(gathered.take_grad(1), "mean")
        texts = wf.FIFOQueue(5, wf.string, [[]], name="texts")
        texts.enqueue(wf.constant('\u00e4 "b"'), name="write")
        wf.name_tensor(wf.string_length(texts.dequeue()), "length")
    runs = [["insert"], ["found"], ["apply"], ["apply"], ["mean"], ["write"], ["length"]]
    feeds = {"k": np.array([4, 5]), "x": np.array([1, 2], np.float32)}
    expected = here(wf.Graph.from_text(graph.as_text()), runs, feeds)
    assert expected[1][0].tolist() == [2, -1]
    assert expected[4][0].tolist() == [1, 2]
    assert expected[6][0] == 6
    assert_same(elsewhere(graph, runs, feeds), expected)


def test_control_flow_and_random_numbers_run_alike(elsewhere: Elsewhere) -> None:
    with wf.Graph().as_default() as graph:
        n = wf.placeholder(wf.int32, [], name="n")
        noise = wf.random_normal([4], seed=3)
        out = wf.fori_loop(0, n, lambda i, a: wf.cond(i > 2, lambda: a * 0.5, lambda: a + 1), noise)
        wf.name_tensor(out, "out")
        no, yes = wf.switch(wf.sum(noise), n > 3)
        wf.name_tensor(wf.merge([no, yes * 2])[0], "merged")
    runs = [["out", "merged"]] * 3
    expected = here(wf.Graph.from_text(graph.as_text()), runs, {"n": np.int32(5)})
    assert expected[0][0].tobytes() != expected[1][0].tobytes()  # the state of the numbers moves on
    assert_same(elsewhere(graph, runs, {"n": np.int32(5)}), expected)


@examples(25, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_random_graphs_run_alike(elsewhere: Elsewhere, data: st.DataObject) -> None:
    dtype = data.draw(st.sampled_from([wf.float32, wf.float64, wf.int64]))
    with wf.Graph("g.1 x").as_default() as graph:
        x = wf.placeholder(dtype, [None, 3], name="x")
        y = wf.placeholder(dtype, [3], name="scope/y \"'z")
        v = wf.Variable(wf.ones([3], dtype=dtype), name="v")
        pool: list[Any] = [x, y, v.read()]
        makers: list[Callable[[Any, Any], Any]] = [
            lambda a, b: a * 0 + wf.sum(b),
            lambda a, b: wf.maximum(a, y),
            lambda a, b: a - y * 2,
            lambda a, b: wf.where(a > 1, a, y),
            lambda a, b: wf.fori_loop(0, 3, lambda i, c: c + y, a + y),
            lambda a, b: v.assign_add(y),
            lambda a, b: a[..., ::-1] + wf.constant(np.arange(3), dtype=dtype),
        ]
        for _ in range(data.draw(st.integers(1, 8))):
            make = data.draw(st.sampled_from(makers))
            pool.append(make(data.draw(st.sampled_from(pool)), data.draw(st.sampled_from(pool))))
        names = [f"out {i}" for i in range(len(pool))]
        for name, t in zip(names, pool, strict=True):
            wf.name_tensor(t, name)
        wf.global_variables_initializer()
    text = graph.as_text()
    assert wf.Graph.from_text(text).as_text() == text
    assert print_graph(parse_graph(text)) == text
    feeds = {"x": np.arange(6).reshape(2, 3), "scope/y \"'z": np.array([3, -1, 2])}
    feeds = {k: a.astype(dtype.numpy) for k, a in feeds.items()}
    runs = [["init"], names, names]
    assert_same(elsewhere(graph, runs, feeds), here(graph, runs, feeds))


NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)


@examples(100)
@given(
    st.lists(NAMES | st.just(""), max_size=4).filter(lambda ns: len({*ns}) == len(ns)),
    st.dictionaries(NAMES, st.lists(NAMES, max_size=3).map(tuple), max_size=3),
)
def test_any_names_survive_the_text(names: list[str], collections: dict[str, Any]) -> None:
    ir = parse_graph("graph @g(%x: f32[], %y: f32[2]) -> () stage=traced { return }")
    block = replace(ir.block, results=tuple(ir.args[i % 2] for i in range(len(names))))
    named = tuple(names) if any(names) else ()
    made = replace(ir, block=block, result_names=named, collections=tuple(collections.items()))
    parsed = parse_graph(print_graph(made))
    assert parsed == made
    assert (parsed.result_names, parsed.collections) == (made.result_names, made.collections)
    assert made != replace(made, collections=(("another", ()),))


def test_names_after_loading() -> None:
    graph = wf.Graph.from_text(_classifier().as_text())
    assert graph.get_tensor_by_name("loss:0").shape == ()
    assert repr(graph.get_operation_by_name("train")) == "<Effect train>"
    assert [v.name for v in graph.variables][:4] == ["w1", "b1", "w2", "global_step"]
    assert [v.name for v in graph.trainable_variables] == ["w1", "b1", "w2"]
    assert graph.get_collection("trainable_variables") == graph.trainable_variables
    assert graph.get_collection("losses") == []
    with pytest.raises(NotFoundError, match="'train' is an effect"):
        graph.get_tensor_by_name("train")
    loss = graph.get_operation_by_name("loss")
    assert (loss.name, loss.outputs[0].name) == ("loss", "loss:0")
    with pytest.raises(NotFoundError, match="did you mean 'train'"):
        graph.get_operation_by_name("tran")
    with graph.as_default():
        more = wf.placeholder(wf.float32, [None], name="x")  # building goes on, with new names
        wf.name_tensor(more, "more")
        again = wf.group(name="train")
        train = wf.train.SGD(0.1).minimize(graph.tensor("loss"))
        start = wf.global_variables_initializer()
    assert again.name == "train_1"
    feeds = {"x": np.ones((2, 64)), "labels": np.ones((2, 10))}
    with wf.Session(graph=graph) as session:
        session.run(start)
        first = session.run(["loss", train], feeds)[0]
        assert session.run("loss", feeds) < first
        assert session.run("more", {"x_1": [1, 2]}).tolist() == [1, 2]


def test_values_come_from_a_checkpoint(tmp_path: Path) -> None:
    graph = _classifier()
    text = graph.as_text()
    feeds = {"x": np.ones((2, 64)), "labels": np.ones((2, 10))}
    with wf.Session(graph=graph) as session:
        session.run("init")
        session.run("train", feeds)
        expected = session.run("loss", feeds)
        with graph.as_default():
            path = wf.train.Saver().save(session, str(tmp_path / "model"))
    other = wf.Graph.from_text(text)
    with wf.Session(graph=other) as session:
        with pytest.raises(FailedPreconditionError, match=r"'[wb][12]' is not initialised"):
            session.run("loss", feeds)
        wf.train.Saver().restore(session, path)
        assert session.run("loss", feeds) == expected


def test_finalized_graphs_are_saved_and_trained(tmp_path: Path) -> None:
    graph = _classifier()
    with graph.as_default():
        saver = wf.train.Saver()
    graph.finalize()
    feeds = {"x": np.ones((2, 64)), "labels": np.ones((2, 10))}
    with wf.Session(graph=graph) as session:
        session.run("init")
        path = saver.save(session, str(tmp_path / "model"))
        first = session.run("loss", feeds)
        session.run("train", feeds)
        assert session.run("loss", feeds) != first
        saver.restore(session, path)
        assert session.run("loss", feeds) == first
        assert session.run(graph.variables[0]).shape == (64, 20)


def test_variables_made_outside_have_their_value() -> None:
    outside = wf.Variable([1.0, 2.0], name="outside")
    with wf.Graph().as_default() as graph:
        inside = wf.Variable([3.0, 4.0], name="inside")
        wf.name_tensor(outside + inside, "sum")
        wf.name_tensor(outside.read(), "outside_now")
    outside.assign([5.0, 6.0])
    loaded = wf.Graph.from_text(graph.as_text())
    with wf.Session(graph=loaded) as session:
        assert session.run("outside_now").tolist() == [1, 2]  # as when the graph first used it
        with pytest.raises(FailedPreconditionError, match="'inside' is not initialised"):
            session.run("sum")
        session.run(wf.global_variables_initializer())
        assert session.run("sum").tolist() == [4, 6]
    assert outside.numpy().tolist() == [5, 6]


def test_shared_names_are_in_the_text() -> None:
    with wf.Graph().as_default() as graph:
        v = wf.Variable(1.0, name="v", shared_name="the variable")
        wf.name_tensor(v.assign_add(1.0), "more")
        q = wf.FIFOQueue(3, wf.float32, [[]], shared_name="the queue")
        q.enqueue(v.read(), name="put")
        wf.global_variables_initializer()
    with wf.container("elsewhere"):
        loaded = wf.Graph.from_text(graph.as_text())
    with wf.Session(graph=graph) as one, wf.Session(graph=loaded) as two:
        one.run("init")
        assert two.run("more") == 2
        assert one.run("more") == 3
        two.run("put")
        assert q._queue.size() == 1
    other = graph.as_text().replace('"queue<f32[]> of capacity 3"', '"queue<f32[]> of capacity 4"')
    with pytest.raises(InvalidArgumentError, match="shared_name='the queue' is that of"):
        wf.Graph.from_text(other)


def test_python_functions_are_not_in_the_text() -> None:
    with wf.Graph().as_default() as graph:
        x = wf.placeholder(wf.float32, [], name="x")
        wf.name_tensor(wf.py_function(lambda a: a, [x], wf.float32, shapes=[]), "y")
    loaded = wf.Graph.from_text(graph.as_text())
    with pytest.raises(FailedPreconditionError, match="no Python function is registered as"):
        wf.Session(graph=loaded).run("y", {"x": 1.0})


def test_bad_texts(tmp_path: Path) -> None:
    with pytest.raises(ParseError, match="expected 'graph'"):
        wf.Graph.from_text("hello")
    good = _classifier().as_text()
    with pytest.raises(ParseError, match="two results are called 'loss'"):
        wf.Graph.from_text(good.replace("w1_now: ", "loss: ", 1))
    with pytest.raises(ParseError, match="the collection 'c' is given twice"):
        wf.Graph.from_text(good + 'collection c ["a"]\ncollection c []\n')
    with pytest.raises(ParseError, match="unexpected"):
        wf.Graph.from_text(good + "graph @g() -> () stage=traced { return }")
    with pytest.raises(UnsupportedError, match="passes have changed it"):
        wf.Graph.from_text(good.replace("stage=traced", "stage=fused", 1))
    with pytest.raises(InvalidArgumentError, match=r"two ops 'variable' .* have the name 'w1'"):
        wf.Graph.from_text(good.replace('name="w2"', 'name="w1"', 1))
    again = '%900 = variable() {name="w1", dtype=f32, shape=[64, 20]} : ref<f32[64,20]>\n  return'
    assert len(wf.Graph.from_text(good.replace("return", again, 1)).variables) == 7
    (tmp_path / "g.weft").write_text(good[: len(good) // 2])
    with pytest.raises(ParseError, match=r"g\.weft:"):
        wf.Graph.load(tmp_path / "g.weft")
    with wf.Graph().as_default() as graph:
        w = wf.Variable(1.0, name="w")
        wf.name_tensor(w.read(), "w/initial_value")
    with pytest.raises(InvalidArgumentError, match="'w/initial_value' is that of the initial"):
        graph.as_text()


def test_finalized_graphs_take_no_ops() -> None:
    with wf.Graph("done").as_default() as graph:
        x = wf.placeholder(wf.float32, [], name="x")
        v = wf.Variable(1.0, name="v")
        y = x + v
        start = wf.global_variables_initializer()
        graph.finalize()
        graph.finalize()
        assert graph.finalized
        assert "finalized" in repr(graph)
        for build in (
            lambda: y + 1,
            lambda: wf.placeholder(wf.float32, []),
            lambda: wf.constant(1.0) * x,
            lambda: wf.group(),
            lambda: wf.Variable(2.0),
            lambda: v.assign(2.0),
            lambda: wf.name_tensor(y, "late"),
        ):
            with pytest.raises(FailedPreconditionError, match="'done', which is finalized") as got:
                build()
            assert "test_graph_text.py" in str(got.value)
        with wf.Session() as session:
            session.run(start)
            assert session.run([y, v], {x: 2}) == [3, 1]
    assert wf.Graph.from_text(graph.as_text()).finalized is False
