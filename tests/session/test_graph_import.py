"""`wf.import_graph_def` and `Session.extend`: one graph as part of another."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft as wf
from weft.ir.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    OutOfRangeError,
    ParseError,
    ShapeError,
    TypeRuleError,
)


def layer() -> wf.Graph:
    """A layer with a weight, a counter made outside, a queue and a loop."""
    calls = wf.Variable(7, trainable=False, name="calls")
    with wf.Graph("layer").as_default() as graph:
        x = wf.placeholder(wf.float32, [None, 2], name="x")
        scale = wf.placeholder(wf.float32, [], name="scale")
        w = wf.Variable(np.eye(2, dtype=np.float32) * 3, name="w")
        wf.name_tensor(wf.fori_loop(0, 2, lambda i, a: a @ w, x) * scale, "y")
        wf.name_tensor(calls.assign_add(1), "calls_now")
        q = wf.FIFOQueue(3, wf.float32, [[]], name="q")
        q.enqueue(scale, name="put")
        wf.name_tensor(q.dequeue(), "got")
        wf.global_variables_initializer()
    return graph


def test_an_imported_graph_runs_under_its_prefix() -> None:
    text = layer().as_text()
    with wf.Graph("whole").as_default() as graph:
        rows = wf.placeholder(wf.float32, ["rows", 2], name="rows")
        (y, init) = wf.import_graph_def(
            text, {"x": rows * 2, "scale": 0.5}, ["y:0", "init"], name="one"
        )
        assert y.shape == rows.shape
        (z,) = wf.import_graph_def(text, {"x:0": y}, ["y"], name="two")
        names = sorted(v.name for v in graph.variables)
        assert names == ["one/calls", "one/w", "two/calls", "two/w"]
        assert [v.name for v in graph.trainable_variables] == ["one/w", "two/w"]
        assert repr(init) == "<Effect one/init>"
        with wf.Session() as session:
            session.run([init, "two/init"])
            assert session.run(y, {rows: [[1, 2]]}).tolist() == [[9, 18]]
            assert session.run(z, {"rows": [[1, 2]], "two/scale": 1}).tolist() == [[81, 162]]
            assert session.run(["one/calls_now", "two/calls_now"]) == [8, 8]
            session.run("two/put", {"two/scale": 4})
            assert session.run("two/got") == 4
            loss = wf.sum(z)
            train = wf.train.SGD(0.01).minimize(loss)
            feeds = {rows: np.ones((3, 2)), "two/scale": 1}
            before = session.run(loss, feeds)
            session.run(train, feeds)
            assert session.run(loss, feeds) < before
        again = wf.Graph.from_text(graph.as_text())
    with wf.Session(graph=again) as session:
        session.run(["one/init", "two/init"])
        assert session.run("one/y", {"rows": [[1, 2]]}).tolist() == [[9, 18]]


def test_sizes_of_two_graphs_stay_apart() -> None:
    with wf.Graph().as_default() as part:
        x = wf.placeholder(wf.float32, [None], name="x")
        wf.name_tensor(wf.reshape(x, (x.shape[0], 1)) * wf.ones((x.shape[0], 2)), "y")
    with wf.Graph().as_default():
        x = wf.placeholder(wf.float32, [None], name="x")
        wf.import_graph_def(part, name="p")
        with wf.Session() as session:
            assert session.run([x, "p/y"], {x: [1, 2, 3], "p/x": [4]})[1].tolist() == [[4, 4]]
            assert session.run("p/y", {"p/x": [4, 5]}).shape == (2, 2)


def test_hand_made_loops_keep_apart() -> None:
    with wf.Graph().as_default() as part:
        x = wf.placeholder(wf.float32, [], name="x")
        no, yes = wf.switch(x, x > 0)
        wf.name_tensor(wf.merge([no * -1, yes])[0], "abs")
    with wf.Graph().as_default() as whole:
        x = wf.placeholder(wf.float32, [], name="x")
        (one,) = wf.import_graph_def(part, {"x": x}, ["abs"], name="a")
        (two,) = wf.import_graph_def(part.as_text(), {"x": one - 5}, ["abs"], name="b")
        with wf.Session(graph=whole) as session:
            assert session.run([one, two], {x: -3}) == [3, 2]


def test_what_cannot_be_imported() -> None:
    graph = layer()
    with wf.Graph("whole").as_default() as whole:
        wf.import_graph_def(graph)
        size = len(whole._trace.builder.ops)

        def refuses(kind: type[Exception], match: str, *args: Any, **kwargs: Any) -> None:
            with pytest.raises(kind, match=match) as caught:
                wf.import_graph_def(*args, **kwargs)
            assert "test_graph_import.py" in str(caught.value) or kind is ParseError
            assert len(whole._trace.builder.ops) <= size

        refuses(InvalidArgumentError, "has a .* named 'import/.*' already", graph)
        refuses(NotFoundError, "no tensor named 'z'", graph, {"z": 1.0}, name="b")
        refuses(TypeRuleError, "'scale' is .* was given", graph, {"scale": np.int32(1)}, name="c")
        refuses(ShapeError, "'x' is .* was given", graph, {"x": np.zeros(3, np.float32)}, name="d")
        refuses(TypeRuleError, "a int is neither", 3)
        refuses(ParseError, "expected 'graph'", "graf")
        with pytest.raises(NotFoundError, match="no tensor or effect named 'nothing'"):
            wf.import_graph_def(graph, return_elements=["nothing"], name="e")
        whole.finalize()
        with pytest.raises(FailedPreconditionError, match="which is finalized"):
            wf.import_graph_def(graph, name="f")


def _shared_counter() -> wf.Graph:
    with wf.Graph("part").as_default() as graph:
        v = wf.Variable(1.0, name="v", shared_name="import counter")
        wf.name_tensor(v.read(), "now")
        wf.name_tensor(v.assign_add(1.0), "more")
        wf.name_tensor(wf.fori_loop(0, 2, lambda i, a: a + v.assign_add(1.0), 0.0), "loop")
        wf.global_variables_initializer()
    return graph


@pytest.mark.parametrize("mode", ["auto", "dataflow"])
def test_variables_that_share_a_name_are_one_variable(mode: str) -> None:
    part = _shared_counter()
    with wf.Graph().as_default() as graph:
        v = wf.Variable(1.0, name="mine", shared_name="import counter")
        more = v.assign_add(10.0)
        wf.import_graph_def(part, name="p")
        wf.import_graph_def(part.as_text(), name="q")
        start = wf.global_variables_initializer()
        loaded = wf.Graph.from_text(graph.as_text())
    assert graph.variables == [v]
    assert not [n for n in graph._named if n.endswith("initial_value")]
    for g in (graph, loaded):
        assert len(g.variables) == 1
    with wf.Session(graph=graph, control_flow=mode) as session:
        session.run(start)
        # reads come first, then what writes, as it was made
        found = session.run(["q/now", "p/now", more, "p/more", "q/more"])
        assert found == [1, 1, 11, 12, 13]
        assert session.run(["q/loop", v]) == [29, 13]
        assert v.numpy() == 15


def test_a_failed_import_changes_nothing() -> None:
    with wf.Graph().as_default() as part:
        x = wf.placeholder(wf.float32, [], name="x")
        wf.name_tensor(x * wf.Variable(1.0, name="v"), "y")
        q = wf.FIFOQueue(3, wf.float32, [[]], name="q", shared_name="import queue")
        q.enqueue(x, name="put")
    text = part.as_text().replace('"queue<f32[]> of capacity 3"', '"queue<f32[]> of capacity 4"')
    with wf.Graph().as_default() as graph:
        for _ in range(2):
            with pytest.raises(InvalidArgumentError, match="shared_name='import queue'"):
                wf.import_graph_def(text)
            with pytest.raises(NotFoundError, match="no tensor or effect named 'z'"):
                wf.import_graph_def(part, return_elements=["z"])
            with pytest.raises(TypeRuleError, match="'y', not a list of names"):
                wf.import_graph_def(part, return_elements="y")
            with pytest.raises(TypeRuleError, match="input_map is a list, not a dict"):
                wf.import_graph_def(part, ["x"])  # type: ignore[arg-type]
        trace = graph._trace
        assert (trace.builder.ops, trace.builder.args, trace.variables) == ([], [], {})
        assert (graph._named, graph.resources) == ({}, {})
        (y,) = wf.import_graph_def(part, return_elements=["y"])
        assert y is graph.tensor("import/y")


def test_what_is_given_may_have_the_name() -> None:
    with wf.Graph().as_default() as part:
        x = wf.placeholder(wf.float32, [None], name="my x")
        wf.name_tensor(x * 2, "y")
    with wf.Graph().as_default():
        x = wf.placeholder(wf.float32, [None], name="my x")
        session = wf.Session()
        with pytest.raises(NotFoundError, match="named 'my_x'; did you mean 'my x'"):
            session.extend(part, {"my_x": x})
        session.extend(part, {"my x": x})
        assert session.run("y", {x: [1, 2]}).tolist() == [2, 4]


def test_control_dependencies_come_before_an_import() -> None:
    looped = """graph @part(%n: i32[]) -> (out: i32[]) stage=dataflow {
      %0 = constant() {value=i32[] 0} : i32[]
      %1 = enter(%0) {frame="f", constant=false, parallel_iterations=1} : i32[]
      %2, %3 = merge(%1) {loop=true} : i32[], i32[]
      %4 = enter(%n) {frame="f", constant=true, parallel_iterations=1} : i32[]
      %5 = less(%2, %4) : bool[]
      %6 = loop_cond(%5) : bool[]
      %7, %8 = switch(%2, %6) : i32[], i32[]
      %9 = constant() {value=i32[] 2} : i32[]
      %10 = enter(%9) {frame="f", constant=true, parallel_iterations=1} : i32[]
      %11 = add(%8, %10) : i32[]
      %12 = next_iteration(%11, %2) : token
      %13 = exit(%7) : i32[]
      return %13
    }"""
    with wf.Graph("part").as_default() as part:
        n = wf.placeholder(wf.int32, [], name="n")
        wf.name_tensor(wf.while_loop(lambda i: i < n, lambda i: i + 2, np.int32(0)), "out")
    with wf.Graph().as_default():
        count = wf.Variable(0, name="count")
        with wf.control_dependencies([count.assign_add(1)]):
            wf.import_graph_def(part, name="a")
            wf.import_graph_def(looped, name="b")
        wf.import_graph_def(looped, name="c")
        with wf.Session() as session:
            session.run(count.initializer)
            assert session.run("a/out", {"a/n": 3}) == 4
            assert count.numpy() == 1
            assert session.run("b/out", {"b/n": 5}) == 6
            assert count.numpy() == 2
            assert session.run("c/out", {"c/n": 7}) == 8
            assert count.numpy() == 2
            handle = session.partial_run_setup(["b/out", "c/out"], ["b/n", "c/n"])
            assert session.partial_run(handle, "c/out", {"c/n": 1}) == 2
            assert session.partial_run(handle, "b/out", {"b/n": 1}) == 2


def test_one_of_many_threads_imports() -> None:
    text, graph = layer().as_text(), wf.Graph()
    session = wf.Session(graph=graph)
    refused: list[str] = []

    def work() -> None:
        try:
            session.extend(text)
        except InvalidArgumentError as error:
            refused.append(str(error))

    threads = [threading.Thread(target=work) for _ in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(20)
    assert len(refused) == 5
    assert len(graph._trace.builder.args) == 2
    assert wf.Graph.from_text(graph.as_text()).as_text() == graph.as_text()


# -------------------------------------------------------------------------------- text and files
def test_text_does_not_grow() -> None:
    outside = wf.Variable(np.arange(3.0), name="outside")
    with wf.Graph().as_default() as graph:
        wf.name_tensor(outside + 1, "y")
        wf.global_variables_initializer()
    text = graph.as_text()
    for _ in range(3):
        loaded = wf.Graph.from_text(text)
        assert loaded.as_text() == text
        with wf.Session(graph=loaded) as session:
            assert session.run("y").tolist() == [1, 2, 3]


def test_what_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "g.weft"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InvalidArgumentError, match=r"g\.weft is not the text of a graph"):
        wf.Graph.load(path)
    with pytest.raises(TypeRuleError, match="a bytes is not the text of a graph"):
        wf.Graph.from_text(b"graph")  # type: ignore[arg-type]


def test_local_variables_stay_local() -> None:
    with wf.Graph().as_default() as graph:
        wf.name_tensor(wf.train.limit_epochs(wf.constant(7.0), 1, name="l"), "x")
    loaded = wf.Graph.from_text(graph.as_text())
    assert [v.name for v in loaded.local_variables] == ["l/epochs"]
    with loaded.as_default(), wf.Session() as session:
        again = wf.local_variables_initializer()
        assert session.run("x") == 7
        with pytest.raises(OutOfRangeError):
            session.run("x")
        session.run(again)
        assert session.run("x") == 7


def test_many_threads_save_to_one_file(tmp_path: Path) -> None:
    graph, path = layer(), tmp_path / "g.weft"
    failed: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(10):
                graph.save(path)
        except OSError as error:
            failed.append(error)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(20)
    assert not failed
    assert [p.name for p in tmp_path.iterdir()] == ["g.weft"]
    assert wf.Graph.load(path).as_text() == graph.as_text()


def test_sessions_are_extended() -> None:
    graph = layer()
    with wf.Graph("whole").as_default():
        start = wf.Variable(1.0, name="start")
        session = wf.Session()
        session.run(start.initializer)
    assert session.extend(graph.as_text()) is None
    session.run("init")
    assert session.run("y", {"x": [[1, 1]], "scale": 1}).tolist() == [[9, 9]]
    made = session.extend(graph, {"scale": 2.0}, ["y"], name="more")
    session.run("more/init")
    assert session.run(made, {"more/x": [[1, 1]]})[0].tolist() == [[18, 18]]
    assert session.run(start) == 1
    with pytest.raises(InvalidArgumentError, match="named 'x' already"):
        session.extend(graph)
    session.close()
    with pytest.raises(FailedPreconditionError, match="session is closed"):
        session.extend(graph, name="late")


# ------------------------------------------------------------------- no building in running steps
def test_host_functions_cannot_build_the_graph_they_run_in() -> None:
    raised: list[str] = []

    def build(x: Any) -> Any:
        def attempt() -> None:
            try:
                with graph.as_default():
                    y + 1
            except FailedPreconditionError as error:
                raised.append(str(error))

        attempt()
        return x

    for mode in ("auto", "dataflow"):
        with wf.Graph("g").as_default() as graph:
            x = wf.placeholder(wf.float32, [3])
            y = wf.py_function(build, [x], wf.float32, shapes=[3])
            size = len(graph._trace.builder.ops)
            with wf.Session(control_flow=mode) as session:
                threads = [
                    threading.Thread(target=session.run, args=(y, {x: np.ones(3)}))
                    for _ in range(4)
                ]
                for t in threads:
                    t.start()
                for t in threads:
                    t.join(20)
            assert len(graph._trace.builder.ops) == size
            z = y * 2  # after the step it goes on
            assert z.shape == (3,)
    assert len(raised) == 8
    assert all("while a step of it is running" in text for text in raised)


def test_host_functions_fetch_variables() -> None:
    def add(x: Any) -> Any:
        return x.numpy() + session.run(v)

    for mode in ("auto", "dataflow"):
        with wf.Graph().as_default():
            v = wf.Variable(3.0)
            a = wf.placeholder(wf.float32, [])
            out = wf.py_function(add, [a], wf.float32, shapes=[])
            session = wf.Session(control_flow=mode)
            session.run(v.initializer)
            assert session.run(out, {a: 1}) == 4


def test_a_step_in_a_step_does_not_open_the_graph() -> None:
    raised: list[str] = []

    def nested(x: Any) -> Any:
        inner = session.run(double, {a: x.numpy() + 1})
        try:
            with graph.as_default():
                double + 1
        except FailedPreconditionError as error:
            raised.append(str(error))
        return inner

    with wf.Graph("g").as_default() as graph:
        a = wf.placeholder(wf.float32, [])
        double = a * 2
        out = wf.py_function(nested, [a], wf.float32, shapes=[])
        session = wf.Session()
        assert session.run(out, {a: 1}) == 4
    assert len(raised) == 1
