"""What `Session.run` tells about a run: step reports, traces, `explain`, graphs that grow."""

from __future__ import annotations

import json
import threading
import warnings
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from trace_format import read_trace

import weft as wf
from weft.ir.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    TypeRuleError,
)

FULL = wf.RunOptions(trace_level=wf.RunOptions.FULL_TRACE)


class Model:
    """Products, a row kernel, a loop, a branch and a variable."""

    def __init__(self) -> None:
        with wf.Graph("model").as_default() as self.graph:
            self.x = wf.placeholder(wf.float32, [None, 8], name="x")
            self.n = wf.placeholder(wf.int32, [], name="n")
            w = wf.Variable(np.eye(8, dtype=np.float32) * 2, name="w")
            self.count = wf.Variable(0, name="count")
            h = wf.nn.softmax(self.x @ w)
            h = wf.while_loop(
                lambda i, a: i < self.n, lambda i, a: (i + 1, wf.sort(a) * 0.5 + h), (0, h)
            )[1]
            self.out = wf.cond(self.n > 2, lambda: wf.transpose(h @ w), lambda: wf.transpose(h))
            self.counted = self.count.assign_add(1)
            self.start = wf.global_variables_initializer()
        self.fetches = [self.out, self.counted]

    def feeds(self, n: int, rows: int = 5) -> dict[Any, Any]:
        x = np.random.default_rng(0).normal(size=(rows, 8)).astype(np.float32)
        return {self.x: x, self.n: n}


@pytest.mark.parametrize("mode", ["native", "dataflow"])
@pytest.mark.parametrize("n", [0, 2, 5])
def test_a_traced_run_is_the_same_run(mode: str, n: int) -> None:
    model = Model()
    with wf.Session(graph=model.graph, control_flow=mode) as session:
        session.run(model.start)
        expected, one = session.run(model.fetches, model.feeds(n))
        metadata = wf.RunMetadata()
        found, two = session.run(model.fetches, model.feeds(n), FULL, metadata)
        assert found.tobytes() == expected.tobytes()
        assert (one, two, model.count.numpy()) == (1, 2, 2)
        assert metadata.executor == mode
        assert metadata.events
        assert metadata.cached
        again = session.run(model.fetches, model.feeds(n))
        assert again[0].tobytes() == expected.tobytes()
        assert again[1] == 3


@pytest.mark.parametrize("mode", ["native", "dataflow"])
def test_traced_and_other_runs_at_once(mode: str) -> None:
    model = Model()
    wrong: list[Any] = []
    with wf.Session(graph=model.graph, control_flow=mode) as session:
        session.run(model.start)
        expected = session.run(model.out, model.feeds(3))

        def work(k: int) -> None:
            for i in range(10):
                metadata = wf.RunMetadata()
                traced = {"options": FULL, "run_metadata": metadata} if (i + k) % 2 else {}
                found, _ = session.run(model.fetches, model.feeds(3), **traced)
                if found.tobytes() != expected.tobytes() or (traced and not metadata.events):
                    wrong.append((k, i))

        threads = [threading.Thread(target=work, args=(k,)) for k in range(6)]
        for t in threads:
            t.start()
        for t in threads:
            t.join(60)
    assert not wrong
    assert model.count.numpy() == 60


def test_events_of_a_native_plan() -> None:
    model = Model()
    with wf.Session(graph=model.graph, control_flow="native") as session:
        session.run(model.start)
        metadata = wf.RunMetadata()
        session.run(model.fetches, model.feeds(3), FULL, metadata)
    kinds = {e.kind for e in metadata.events}
    assert kinds == {"kernel", "control"}
    product = next(e for e in metadata.events if "matmul" in e.ops and e.kind == "kernel")
    assert any("test_session_trace.py" in str(at) for at in product.locations)
    assert product.nbytes >= 4 * (5 * 8 + 8 * 8 + 5 * 8)
    ends = [(e.begin_ns, e.end_ns) for e in metadata.events]
    assert all(a <= b for a, b in ends)
    assert all(a[1] <= b[0] for a, b in pairwise(ends))  # one after the other


def test_an_error_in_a_traced_run_is_the_same_error() -> None:
    with wf.Graph().as_default():
        x = wf.placeholder(wf.float32, [4])
        i = wf.placeholder(wf.int32, [2])
        v = wf.Variable(wf.zeros([4]))
        out = wf.take(wf.sort(x), i) + 1
        session = wf.Session()
        session.run(wf.global_variables_initializer())
        metadata = wf.RunMetadata()
        feeds = {x: np.ones(4), i: [0, 9]}
        texts = []
        for given in ({}, {"options": FULL, "run_metadata": metadata}):
            with pytest.raises(
                InvalidArgumentError, match=r"index 9 .* is out of bounds"
            ) as caught:
                session.run([out, v.assign(x)], feeds, **given)
            texts.append(str(caught.value).split("\n")[:1])
        assert texts[0] == texts[1]
        assert metadata.events  # of what ran before it


def test_chrome_traces(tmp_path: Path) -> None:
    with wf.Graph("queues").as_default():
        q = wf.FIFOQueue(3, wf.float32, [[2]], name="q")
        x = wf.placeholder(wf.float32, [2], name="x")
        put, got = q.enqueue(x * 2), wf.while_loop(lambda i: i < 3, lambda i: i + 1, 0)
        value = q.dequeue() + 1
        with wf.Session(control_flow="dataflow") as session:
            metadata = wf.RunMetadata()
            session.run([put, got], {x: [1, 2]}, FULL, metadata)
            session.run(value, options=FULL, run_metadata=metadata)
            metadata.save(tmp_path / "one.json")
            assert sum(e.nbytes for e in metadata.events if "dequeue" in e.ops) == 8
            assert sum(e.nbytes for e in metadata.events if "add" in e.ops) == 16
            session.run(got, options=FULL, run_metadata=metadata)
            metadata.save(str(tmp_path / "two.json"))
    seen: set[str] = set()
    for name in ("one", "two"):
        made = read_trace((tmp_path / f"{name}.json").read_text())
        assert made.other["graph"] == "queues"
        for event in [*made.waits, *(s for track in made.slices.values() for s in track)]:
            seen.update(event.args["ops"])
    assert {"dequeue", "add", "next_iteration", "switch"} <= seen


def test_several_runs_are_one_trace() -> None:
    with wf.Graph("g").as_default():
        x = wf.placeholder(wf.float32, [2], name="x")
        y = wf.exp(x) @ x
        with wf.Session() as session:
            runs = [wf.RunMetadata() for _ in range(3)]
            for run in runs:
                session.run(y, {x: [1, 2]}, FULL, run)
            plain = wf.RunMetadata()
            session.run(y, {x: [1, 2]}, run_metadata=plain)
    trace = read_trace(wf.chrome_trace(runs))
    found = [s for track in trace.slices.values() for s in track]
    assert len(found) == 3 * len(runs[0].events)
    assert found[-1].begin > found[0].end
    with pytest.raises(wf.errors.FailedPreconditionError, match="not traced"):
        wf.chrome_trace([*runs, plain])
    with pytest.raises(wf.errors.InvalidArgumentError, match="all on a cluster or all"):
        wf.chrome_trace([])


def test_a_traced_run_of_nothing() -> None:
    with wf.Graph().as_default():
        metadata = wf.RunMetadata()
        wf.Session().run([], None, FULL, metadata)
        assert json.loads(metadata.chrome_trace())["traceEvents"] == []


def test_deterministic_sessions() -> None:
    with wf.Graph().as_default():
        q = wf.FIFOQueue(20, wf.int32, [[]])
        puts = [q.enqueue(i) for i in range(8)]
        got = q.dequeue_many(8)
        orders = set()
        for _ in range(4):
            session = wf.Session(deterministic=True)
            session.run(puts)
            orders.add(tuple(session.run(got)))
        assert len(orders) == 1
        assert sorted(orders.pop()) == list(range(8))


def test_step_reports() -> None:
    model = Model()
    with wf.Session(graph=model.graph) as session:
        session.run(model.start)
        metadata = wf.RunMetadata()
        session.run(model.out, model.feeds(1), run_metadata=metadata)
        assert (metadata.cached, metadata.executor, metadata.events) == (False, "native", ())
        assert 0 < metadata.step_ops < metadata.graph_ops
        assert metadata.graph_variables == 2
        assert metadata.kernels > 0
        assert metadata.result_bytes == 5 * 8 * 4
        assert metadata.compile_seconds > 0
        assert "compiled in" in str(metadata)
        session.run(model.out, model.feeds(2), run_metadata=metadata)
        assert metadata.cached
        assert metadata.compile_seconds == 0
        assert "one native plan" in str(metadata)
        with pytest.raises(FailedPreconditionError, match="was not traced"):
            metadata.chrome_trace()
    with pytest.raises(FailedPreconditionError, match="is empty"):
        wf.RunMetadata().chrome_trace()
    with wf.Session(graph=model.graph, control_flow="dataflow") as session:
        session.run(model.fetches, model.feeds(1), run_metadata=metadata)
        assert metadata.executor == "dataflow"
        assert metadata.nodes > metadata.regions > 0
        assert "dataflow executor" in str(metadata)
        with pytest.raises(TypeRuleError, match=r"run_metadata must be wf\.RunMetadata"):
            session.run(model.out, model.feeds(1), run_metadata={})
    with pytest.raises(InvalidArgumentError, match="trace_level=7 is no level"):
        wf.RunOptions(trace_level=7)


def test_a_report_is_of_the_last_run() -> None:
    with wf.Graph().as_default():
        x = wf.placeholder(wf.float32, [])
        session, metadata = wf.Session(), wf.RunMetadata()
        session.run(x + 1, {x: 1}, FULL, metadata)
        assert metadata.events
        with pytest.raises(InvalidArgumentError, match="must be fed"):
            session.run(x + 2, {}, FULL, metadata)
        assert metadata == wf.RunMetadata()


def test_explain_says_what_runs_where() -> None:
    with wf.Graph("g").as_default():
        x = wf.placeholder(wf.float32, [None, 3], name="x")
        q = wf.FIFOQueue(5, wf.float32, [[3]])
        looped = wf.fori_loop(0, 3, lambda i, a: wf.sort(a) + 1, x)
        pure, queued = wf.sum(looped), wf.sum(looped) + wf.sum(q.dequeue())
        session = wf.Session()
        text = session.explain(pure, {x: np.ones((2, 3))})
        assert "runs as one native plan: no op needs the dataflow executor" in text
        assert "native, the whole step is native" in text
        assert "x  f32[2,3]" in text
        assert "native kernels" in text
        assert "these fetches, feeds and sizes are new" in text
        assert "it was compiled before" in session.explain(pure, {x: np.ones((2, 3))})
        text = session.explain(queued, {x: np.ones((2, 3))})
        assert "runs as the dataflow executor: op 'dequeue' at " in text
        assert "nothing in it needs the executor, and native code is faster" in text
        assert "1 ops of the host\n    dequeue at " in text
        assert q.size().eval(session=session) == 0  # nothing ran
        text = wf.Session(control_flow="dataflow").explain(pure, {x: np.ones((2, 3))})
        assert "the session was made with control_flow='dataflow'" in text
        assert "Switch and Merge, control_flow='dataflow'" in text
        assert "next_iteration" in text
        with pytest.raises(InvalidArgumentError, match="must be fed"):
            session.explain(pure)


def test_a_graph_that_grows_between_runs_is_noticed() -> None:
    with wf.Graph("train").as_default() as graph:
        x = wf.placeholder(wf.float32, [], name="x")
        session = wf.Session()

        def grow() -> None:
            for i in range(12):
                loss = x * 2.0 + float(i)
                session.run(loss, {x: 1})

        with pytest.warns(wf.GraphGrowthWarning, match=r"graph 'train' has grown .* 9 times") as w:
            grow()
        (warning,) = w
        assert warning.filename == __file__
        line = Path(__file__).read_text().splitlines()[warning.lineno - 1]
        assert "loss = x * 2.0" in line
        assert "finalize" in str(warning.message)
        assert f"{len(graph._trace.builder.ops)} ops" in repr(graph)


def test_a_graph_that_is_built_once_is_not() -> None:
    with wf.Graph().as_default(), warnings.catch_warnings():
        warnings.simplefilter("error")
        x = wf.placeholder(wf.float32, [None], name="x")
        pieces = [x * float(i) for i in range(30)]
        session = wf.Session()
        for i, piece in enumerate(pieces):
            session.run(piece, {x: np.ones(i)})


# ------------------------------------------------------------------------------- default sessions
def test_eval_and_run() -> None:
    with wf.Graph().as_default():
        x = wf.placeholder(wf.float32, [], name="x")
        v = wf.Variable(3.0, name="v")
        start, put = wf.global_variables_initializer(), wf.group(v.assign_add(x))
        with pytest.raises(FailedPreconditionError, match="there is no default session"):
            (x + 1).eval({x: 1})
        assert wf.get_default_session() is None
        with wf.Session() as session:
            assert wf.get_default_session() is session
            start.run()
            assert (x + v).eval({x: 1}) == 4
            assert v.eval() == 3
            put.run({x: 2})
            with wf.Session(control_flow="dataflow") as other:
                assert wf.get_default_session() is other
                assert v.eval() == 5
            assert wf.get_default_session() is session
            assert v.eval(session=session) == 5
        assert wf.get_default_session() is None
        session = wf.Session()
        with session.as_default():
            assert v.eval() == 5
        assert session.run(v) == 5  # still open
    assert (wf.constant(1.0) + 1).eval() == 2  # what has a value needs no session
    wf.group().run()  # nor what is done at once


def test_interactive_sessions() -> None:
    graph = wf.Graph("shell")
    session = wf.InteractiveSession(graph=graph)
    try:
        a = wf.placeholder(wf.float32, [2], name="a")
        b = a * 2
        assert wf.get_default_graph() is graph
        assert b.eval({a: [1, 2]}).tolist() == [2, 4]
        v = wf.Variable([1.0, 1.0])
        v.initializer.run()
        v.assign_add(a).eval(feed_dict={a: [1, 2]})
        assert v.eval().tolist() == [2, 3]
    finally:
        session.close()
    assert wf.get_default_session() is None
    assert isinstance((wf.constant(1.0) + 1).numpy(), np.ndarray)  # ops run at once again
    with pytest.raises(FailedPreconditionError, match="session is closed"):
        session.run(b, {a: [1, 2]})


def test_interactive_sessions_close_in_any_order() -> None:
    one, two, last = wf.Graph("one"), wf.Graph("two"), wf.Graph("last")
    first, second = wf.InteractiveSession(graph=one), wf.InteractiveSession(graph=two)
    again = wf.InteractiveSession(graph=two)
    first.close()
    again.close()
    assert wf.get_default_graph() is two
    assert wf.get_default_session() is second
    second.close()
    assert isinstance((wf.constant(1.0) + 1).numpy(), np.ndarray)  # no graph is current
    with wf.InteractiveSession(graph=last) as session:
        second.close()
        assert wf.get_default_graph() is last
        assert wf.placeholder(wf.float32, []).eval({"placeholder": 2}) == 2
    assert wf.get_default_session() is None
    with pytest.raises(TypeRuleError, match=r"session= is a int, not a wf\.Session"):
        wf.Variable(1.0).eval(session=3)
    session.close()


def test_unknown_names() -> None:
    with wf.Graph().as_default():
        wf.group(name="train")
        session = wf.Session()
        assert session.run("train") is None
        with pytest.raises(NotFoundError, match="did you mean 'train'"):
            session.run("trian")
        with pytest.raises(NotFoundError, match="'train' is an effect"):
            session.run([], {"train": 1})
