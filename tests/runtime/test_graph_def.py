"""Graphs and traced steps as TensorBoard's graph tab takes them: names, edges, groups, times."""

from __future__ import annotations

import contextlib
import re
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import event_files
import numpy as np
import pytest
from clusters import local_cluster
from event_files import Node
from golden_cases import read_cases
from paths import ROOT

import weft as wf
from weft.ir.graph import Graph, Operation
from weft.ir.locations import Location
from weft.ir.text.parser import parse_graph
from weft.runtime.recorder import Output, TraceEvent
from weft.runtime.trace.graph_def import (
    NodeTime,
    by_kernel,
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
    assert nodes["layer0/matmul"].inputs == ["x", "layer0/w/read"]
    assert nodes["layer1/matmul"].inputs == ["layer0/tanh", "layer1/w/read"]
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


def op(name: str, *where: Location, shape: tuple[int | None, ...] | None = None) -> Operation:
    types = () if shape is None else (wf.TensorType(wf.float32, shape),)
    return Operation(name, (), {}, types, locations=where)


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


def gave(name: str, where: Location, shape: tuple[int, ...], nbytes: int) -> Output:
    return Output(name, (where,), "float32", shape, nbytes)


def test_memory_of_nodes() -> None:
    """Of the node that makes a value, in the run that took most; nothing for what has none."""
    nodes = {
        op("exp", A, shape=(None, 4)): "exp", op("matmul", A, shape=(2, 2)): "product",
        op("matmul", A, shape=(None, 4)): "gradients/product", op("cos", B, shape=(3,)): "cos",
    }  # fmt: skip
    both = ("exp", "matmul")
    events = [
        replace(ran(both, (A,), 0, 9), outputs=(gave("matmul", A, (4, 4), 64),)),
        replace(ran(both, (A,), 9, 20), outputs=(gave("matmul", A, (8, 4), 128),)),
        replace(ran(("exp",), (A,), 20, 30), outputs=(gave("exp", A, (2, 4), 0),)),  # in place
        # what a pass has made of others
        replace(ran(("fma",), (B,), 20, 30), outputs=(gave("fma", B, (3,), 64),)),
        replace(ran(("fma",), (B,), 20, 30), outputs=(gave("fma", B, (7,), 64),)),  # whose is it?
    ]
    times = node_times(nodes, [*events, ran(both, (A,), 30, 40)])
    found = {n: (t.nbytes, [o.shape for o in t.outputs]) for n, t in times.items() if t.outputs}
    assert found == {
        "gradients/product": (128, [(8, 4)]), "exp": (0, [(2, 4)]), "cos": (64, [(3,)])
    }  # fmt: skip
    assert event_files.node_memory(step_stats({"/cpu:0": times})) == {
        "gradients/product": (128, [(1, [8, 4], 128)]), "exp": (0, [(1, [2, 4], 0)]),
        "cos": (64, [(1, [3], 64)]),
    }  # fmt: skip


def test_kernels_stand_for_their_regions() -> None:
    region = replace(ran(("exp", "sin"), (A, B), 0, 100), kind="plan", device="/cpu:0")
    other = replace(region, begin_ns=200, end_ns=300)
    host = replace(ran(("enqueue",), (B,), 100, 150), kind="host", device="/cpu:0")
    kernel = replace(ran(("exp",), (A,), 10, 50), device="/cpu:0", region=1)
    elsewhere = replace(kernel, device="/gpu:0", begin_ns=210, end_ns=220)
    assert by_kernel([region, host, other], [kernel, elsewhere]) == [
        host, other, kernel, elsewhere
    ]  # fmt: skip
    assert by_kernel([region, host], []) == [region, host]


def memory_of(folder: Path, graph: wf.Graph, report: wf.RunMetadata) -> dict[str, Any]:
    """What a writer writes of the memory of a step."""
    with wf.summary.FileWriter(folder, graph) as writer:
        writer.add_run_metadata(report, "one")
    (event,) = [e for e in event_files.events(folder) if e.tag]
    return event_files.node_memory(event.run_metadata)


TRACE = wf.RunOptions(trace_level=wf.RunOptions.FULL_TRACE)


def test_memory_of_a_native_step(tmp_path: Path) -> None:
    """What the plan takes for each kernel's results: ranges of its arena, and arrays of results."""
    with wf.Graph("g").as_default() as graph:
        x = wf.placeholder(wf.float32, [30, 50], name="x")
        with wf.name_scope("a"):
            h = wf.matmul(x, wf.tanh(wf.transpose(x)))
        with wf.name_scope("b"):
            y = wf.name_tensor(wf.sum(wf.exp(h), axis=0), "y")
    report = wf.RunMetadata()
    with wf.Session(graph=graph) as session:
        session.run(y, {x: np.ones((30, 50))}, TRACE, report)
    assert report.executor == "native"
    memory = memory_of(tmp_path, graph, report)
    in_arena = -(-50 * 30 * 4 // 64) * 64  # whole cache lines
    assert memory == {
        "a/tanh": (in_arena, [(1, [50, 30], in_arena)]),
        "b/y": (120, [(1, [30], 120)]),
    }  # the product and exp are in the loop of the sum, in registers
    assert report.arena_bytes == in_arena
    assert report.result_bytes == 120


def test_memory_and_kernels_of_a_step_on_the_executor(tmp_path: Path) -> None:
    """Of ops of the host what they gave; of regions their kernels, one by one."""
    with wf.Graph("g").as_default() as graph:
        queue = wf.PaddingFIFOQueue(9, wf.float32, shapes=[[None, 8]], name="queue")
        put = queue.enqueue(np.ones((5, 8), np.float32))
        with wf.name_scope("a"):
            taken = queue.dequeue()
        with wf.name_scope("b"):
            y = wf.name_tensor(wf.sum(wf.matmul(taken, np.ones((8, 3), np.float32))), "y")
    report = wf.RunMetadata()
    with wf.Session(graph=graph) as session:
        session.run(put)
        session.run(y, {}, TRACE, report)
    assert report.executor == "dataflow"
    memory = memory_of(tmp_path, graph, report)
    assert memory["a/dequeue"] == (160, [(1, [5, 8], 160)])
    assert memory["b/y"] == (4, [(1, [], 4)])
    (event,) = [e for e in event_files.events(tmp_path) if e.tag]
    (micros,) = event_files.node_micros(event.run_metadata).values()
    assert {"a/dequeue", "b/matmul", "b/y"} <= micros.keys()
    regions = [e for e in report.events if e.kind == "plan"]
    whole = sum(e.end_ns - e.begin_ns for e in regions) / 1e3
    spent = sum(e.end_ns - e.begin_ns for e in report.kernel_events) / 1e3
    inside = sum(took for name, took in micros.items() if name.startswith("b/"))
    assert inside == pytest.approx(spent, abs=len(micros))  # not what Python took in between
    assert spent < whole


def test_memory_of_a_step_on_tasks(tmp_path: Path) -> None:
    with local_cluster({"ps": 1, "worker": 1}) as servers, wf.Graph("g").as_default() as graph:
        x = wf.placeholder(wf.float32, [4, 64], name="x")
        with wf.device("/job:worker/task:0"):
            y = wf.name_tensor(wf.matmul(wf.exp(x), wf.transpose(x)), "y")
        with wf.device("/job:ps/task:0"):
            z = wf.name_tensor(wf.sum(wf.sin(y), axis=0), "z")
        report = wf.RunMetadata()
        with wf.Session(servers[0].target) as session:
            session.run(z, {x: np.ones((4, 64))}, TRACE, report)
    memory = memory_of(tmp_path, graph, report)
    assert memory["y"] == (64, [(1, [4, 4], 64)])
    assert memory["z"] == (16, [(1, [4], 16)])


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
