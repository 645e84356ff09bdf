"""Graphs and traced steps as TensorBoard's graph tab takes them: names, edges, groups, times."""

from __future__ import annotations

import contextlib
import re
import tempfile
from pathlib import Path
from typing import Any

import event_files
import numpy as np
import pytest
from event_files import Node
from golden_cases import read_cases
from paths import ROOT

import weft as wf
from weft.ir.graph import Graph, Operation
from weft.ir.locations import Location
from weft.ir.text.parser import parse_graph
from weft.runtime.recorder import TraceEvent
from weft.runtime.trace.graph_def import (
    NodeTime,
    graph_def,
    node_times,
    step_stats,
    tensorflow_device,
)

NAME = re.compile(r"[A-Za-z0-9.][A-Za-z0-9_.\\/-]*")


def written(graph: wf.Graph) -> bytes:
    """What a writer writes of a graph."""
    with tempfile.TemporaryDirectory() as folder:
        wf.summary.FileWriter(folder, graph).close()
        return event_files.events(Path(folder))[-1].graph


def drawn(graph: wf.Graph | Graph) -> dict[str, Node]:
    """The nodes by name, of a graph that TensorBoard can read: names differ, inputs are there."""
    data = graph_def(graph).data if isinstance(graph, Graph) else written(graph)
    nodes = event_files.nodes(data)
    made = {n.name: n for n in nodes}
    assert len(made) == len(nodes)
    for node in nodes:
        assert NAME.fullmatch(node.name), node.name
        assert node.op
        for given in node.inputs:
            source, _, number = given.removeprefix("^").partition(":")
            assert source in made, given
            assert number in ("", *map(str, range(1, 100)))
        assert len(set(node.inputs)) == len(node.inputs)
        for attr in node.attrs.values():
            assert len(attr) == 1
    return made


def layers(loops: bool = True) -> wf.Graph:
    with wf.Graph("g").as_default() as graph:
        x = wf.placeholder(wf.float32, [None, 3], name="x")
        h: Any = x
        for i in range(2):
            with wf.name_scope(f"layer{i}"):
                w = wf.Variable(np.ones((3, 3), np.float32), name="w")
                h = wf.tanh(wf.matmul(h, w))
        if loops:
            with wf.name_scope("loop"):
                h = wf.while_loop(lambda i, c: i < 3, lambda i, c: (i + 1, c * 2.0), (0, h))[1]
                h = wf.cond(wf.sum(h) > 0, lambda: h + 1.0, lambda: h)
        with wf.device("/job:ps/task:1/gpu:2"):
            loss = wf.name_tensor(wf.sum(h**2), "loss")
        wf.train.SGD(0.1).minimize(loss)
    return graph


def test_names_and_edges() -> None:
    nodes = drawn(layers())
    assert nodes["x"].op == "Placeholder"
    assert nodes["layer0/w"].op == "variable"
    assert nodes["layer0/matmul"].inputs == ["x", "layer0/read"]
    assert nodes["layer1/matmul"].inputs == ["layer0/tanh", "layer1/read"]
    assert nodes["loss"].op == "sum"  # the op that makes it has its name
    assert nodes["loss"].device == "/job:ps/task:1/device:GPU:2"
    assert nodes["gradients/layer0/matmul"].op == "matmul"
    assert any(n.startswith("minimize/assign_sub") for n in nodes)
    source = nodes["layer0/matmul"].attrs["source"][2][0].decode()
    assert re.fullmatch(r".*test_graph_def\.py:\d+", source)
    assert all(n.op == "Const" for n in nodes.values() if "constant" in n.name)


def test_bodies_are_groups() -> None:
    nodes = drawn(layers())
    (loop,) = [n for n in nodes.values() if n.op == "while"]
    inside = [n for n in nodes if n.startswith(f"{loop.name}/")]
    assert loop.name == "loop/while_loop/while"
    assert {n.split("/")[3] for n in inside} == {"test", "body"}
    arguments = [n for n in inside if n.startswith(f"{loop.name}/body/argument_")]
    assert [nodes[n].inputs for n in arguments[:2]] == [[i] for i in loop.inputs[:2]]
    assert any(i.startswith(f"{loop.name}/body/") for i in loop.inputs)
    (cond,) = [n for n in nodes.values() if n.op == "cond" and n.name.startswith("loop/")]
    inside = [n for n in nodes if n.startswith(f"{cond.name}/")]
    assert {n.split("/")[2] for n in inside} == {"then", "orelse"}


def test_shapes_on_edges() -> None:
    node = drawn(layers(False))["layer0/tanh"]
    assert node.attrs["dtype"] == {6: [1]}
    (listed,) = node.attrs["_output_shapes"][1]
    (shape,) = event_files.parsed(listed)[7]
    sizes = [event_files.parsed(dim)[1][0] for dim in event_files.parsed(shape)[2]]
    assert sizes == [-1, 3]


def test_the_same_graph_has_the_same_bytes() -> None:
    graph = layers()
    assert written(graph) == written(graph)
    assert [n.name for n in drawn(layers()).values()] == [n.name for n in drawn(graph).values()]


def test_names_that_are_taken_or_strange() -> None:
    with wf.Graph().as_default() as graph:
        a = wf.placeholder(wf.float32, [], name="exp")
        b = wf.exp(a)  # would be "exp"
        wf.name_tensor(wf.exp(b), "an op: ^strange:1")
        wf.name_tensor(wf.exp(b), "/")
    assert list(drawn(graph)) == ["exp", "exp_1", "an_op___strange_1", "node"]


FILES = sorted((ROOT / "tests" / "cases").glob("*.weft"))


def parsed(text: str) -> Any:
    with contextlib.suppress(wf.errors.WeftError):  # cases of errors, and of several parts
        return parse_graph(text, "case")
    return None


def test_graphs_of_all_stages() -> None:
    """What the golden cases of the passes have and give is readable for TensorBoard: 300 graphs
    with all kinds of control flow, calls and values."""
    cases = [case for file in FILES for case in read_cases(file.read_text("utf-8"))[1]]
    graphs = [g for case in cases for t in (case.source, case.expected) if (g := parsed(t))]
    assert len(graphs) > 300
    for graph in graphs:
        nodes = drawn(graph)
        assert len(nodes) >= len(list(graph.walk())) + len(graph.args)


def test_compiled_functions(tmp_path: Path) -> None:
    @wf.compile
    def f(x: Any) -> Any:
        with wf.name_scope("outer"):
            with wf.name_scope("inner"):
                y = wf.exp(x)
            return inner(y)

    @wf.compile
    def inner(x: Any) -> Any:
        with wf.name_scope("of_inner"):
            return wf.sin(x)

    nodes = drawn(f.trace(np.ones(3)))
    assert list(nodes) == ["x", "outer/inner/exp", "outer/of_inner/sin"]
    with pytest.raises(wf.errors.TypeRuleError, match=r"f\.trace"):
        wf.summary.FileWriter(tmp_path, f)  # type: ignore[arg-type]
    wf.summary.FileWriter(tmp_path).close()  # the folder is free


def test_scopes_change_nothing_else() -> None:
    """In the text they stand with the locations alone."""

    def build(scope: bool) -> wf.Graph:
        with wf.Graph("g").as_default() as graph:
            x = wf.placeholder(wf.float32, [2], name="x")
            with wf.name_scope("a") if scope else wf.control_dependencies(None):
                wf.exp(x)
        return graph

    texts = [re.sub(r" loc\(.*\)", "", build(scope).as_text()) for scope in (True, False)]
    assert texts[0] == texts[1]


# -------------------------------------------------------------------------------------- step stats
A, B = Location("a.py", 1), Location("a.py", 2)


def op(name: str, *where: Location) -> Operation:
    return Operation(name, (), {}, (), locations=where)


def ran(ops: tuple[str, ...], where: tuple[Location, ...], begin: int, end: int) -> TraceEvent:
    return TraceEvent("k", "kernel", ops, where, "", (), begin, end, 5, False, False, 0)


def test_times_of_nodes() -> None:
    nodes = {op("exp", A): "exp", op("sin", B): "sin", op("cos", B): "cos"}
    events = [
        ran(("exp", "sin"), (A, B), 1000, 5000),
        ran(("exp",), (A,), 6000, 7000),
        ran(("fma",), (B,), 0, 100),  # a pass has put it in the place of others
        ran(("exp",), (), 0, 10**9),  # nobody knows whose it is
    ]
    times = node_times(nodes, events)
    assert {n: (t.begin_ns, t.ns) for n, t in times.items()} == {
        "exp": (1000, 3000), "sin": (0, 2050), "cos": (0, 50)
    }  # fmt: skip


def test_times_of_nodes_that_are_alike() -> None:
    """A forward and a backward product of one line: each has its own event, if there are two."""
    nodes = {op("matmul", A): "matmul", op("matmul", A): "gradients/matmul"}
    two = [ran(("matmul",), (A,), 0, 10), ran(("matmul",), (A,), 10, 40)]
    assert {n: t.ns for n, t in node_times(nodes, two).items()} == {
        "matmul": 10, "gradients/matmul": 30
    }  # fmt: skip
    assert {n: t.ns for n, t in node_times(nodes, two[:1]).items()} == {
        "matmul": 5, "gradients/matmul": 5
    }  # fmt: skip


def test_the_time_of_a_group_is_the_sum_of_its_nodes() -> None:
    """As the tab computes it: from the first begin to the last end."""
    took = {
        "b": 7000,
        "a/x": 1500,
        "c/d/f": 2000,
        "a": 4000,
        "a/y/z": 300,
        "c/d/e": 400,
        "a-b": 9e5,
    }
    rows = {name: NodeTime(1000 * i, ns, 1) for i, (name, ns) in enumerate(took.items())}
    (spans,) = event_files.node_spans(step_stats({"/cpu:0": rows})).values()
    assert spans.keys() == took.keys()
    for group in ("a", "c", "c/d"):
        inside = [n for n in took if n == group or n.startswith(f"{group}/")]
        span = max(spans[n][1] for n in inside) - min(spans[n][0] for n in inside)
        assert span == pytest.approx(sum(took[n] for n in inside) / 1000, abs=1)
    assert {n: end - begin for n, (begin, end) in spans.items()} == {
        n: pytest.approx(max(1, ns / 1000), abs=1) for n, ns in took.items()
    }


def test_step_stats(tmp_path: Path) -> None:
    """Nodes of the graph, all of the measured time, and no more."""
    graph = layers(False)
    with graph.as_default():
        start = wf.global_variables_initializer()
    report = wf.RunMetadata()
    options = wf.RunOptions(trace_level=wf.RunOptions.FULL_TRACE)
    with wf.Session(graph=graph) as session, wf.summary.FileWriter(tmp_path, graph) as writer:
        session.run(start)
        session.run("SGD", {"x": np.ones((300, 3))}, options, report)
        writer.add_run_metadata(report, "one", 7)
        with pytest.raises(wf.errors.InvalidArgumentError, match="'one' is used"):
            writer.add_run_metadata(report, "one")
    (event,) = [e for e in event_files.events(tmp_path) if e.tag]
    assert (event.tag, event.step) == ("one", 7)
    ((device, micros),) = event_files.node_micros(event.run_metadata).items()
    assert device == "/job:localhost/task:0/device:CPU:0"
    known = drawn(graph)
    assert {"layer0/matmul", "layer1/matmul", "gradients/layer1/matmul"} <= micros.keys()
    assert micros.keys() <= known.keys()
    nodes = graph_def(graph.ir()).nodes
    total = sum(t.ns for t in node_times(nodes, report.events).values())
    measured = [e for e in report.events if e.ops and e.locations]
    assert total == pytest.approx(sum(e.end_ns - e.begin_ns for e in measured))


def test_what_step_stats_need(tmp_path: Path) -> None:
    graph = layers(False)
    with wf.summary.FileWriter(tmp_path) as writer:
        with pytest.raises(wf.errors.FailedPreconditionError, match="has no graph"):
            writer.add_run_metadata(wf.RunMetadata(), "a")
        writer.add_graph(graph)
        with pytest.raises(wf.errors.FailedPreconditionError, match="was not traced"):
            writer.add_run_metadata(wf.RunMetadata(), "a")
        with pytest.raises(wf.errors.FailedPreconditionError, match="has a graph already"):
            writer.add_graph(graph)


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ("/cpu:0", "/device:CPU:0"),
        ("/gpu:1", "/device:GPU:1"),
        ("/job:ps", "/job:ps"),
        ("/job:ps/task:3/cpu:0", "/job:ps/task:3/device:CPU:0"),
    ],
)
def test_devices(given: str, wanted: str) -> None:
    assert tensorflow_device(given) == wanted


def test_an_ir_graph_by_itself() -> None:
    made = graph_def(wf.compile(lambda x: x + 1).trace(1.0))
    assert list(made.nodes.values())[-1] == "add"
