"""Drawings of graphs: the layout keeps its promises for any graph, the boxes hold every op once."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import weft as wf
from weft.ir.drawing.boxes import Box, boxes_of
from weft.ir.drawing.layout import GAP, lay_out
from weft.ir.drawing.notebook import MOST_BYTES, graph_html
from weft.ir.drawing.svg import MOST_DRAWN, draw
from weft.ir.graph import Graph, Operation
from weft.ir.program import Program
from weft.ir.text.parser import parse_graph
from weft.ir.text.printer import print_graph, print_lines, print_program
from weft.ir.text.views import name_programs
from weft.passes.manager import run_passes
from weft.passes.pipelines import PIPELINES

SIZES = st.lists(
    st.tuples(st.floats(5, 300), st.floats(5, 60)).map(lambda s: (s[0], s[1])), max_size=40
)


@given(SIZES, st.data())
@settings(max_examples=150, deadline=None)
def test_a_layout_of_any_graph(sizes: list[tuple[float, float]], data: st.DataObject) -> None:
    count = len(sizes)
    pairs = st.tuples(st.integers(0, count - 1), st.integers(0, count - 1))
    drawn = data.draw(st.lists(pairs, max_size=80)) if count else []
    edges = sorted({(a, b) for a, b in drawn if a < b})
    found = lay_out(sizes, edges)
    for a, b in edges:
        assert found.layers[a] < found.layers[b]
    for (a, b), points in zip(edges, found.edges, strict=True):
        assert points[0][1] == pytest.approx(found.boxes[a][1] + sizes[a][1])
        assert points[-1][1] == pytest.approx(found.boxes[b][1])
        assert all(one[1] < other[1] for one, other in pairwise(points))
    rows: dict[int, list[tuple[float, float]]] = {}
    for i, (x, y) in enumerate(found.boxes):
        w, h = sizes[i]
        assert 0 <= x <= found.width - w + 0.1
        assert 0 <= y <= found.height - h + 0.1
        rows.setdefault(found.layers[i], []).append((x, x + w))
    for row in rows.values():  # boxes of a layer stand apart
        assert all(right + GAP <= left + 0.21 for (_, right), (left, _) in pairwise(sorted(row)))


def model() -> Graph:
    w = wf.Variable(np.ones((3, 4), np.float32), name="w")

    @wf.compile
    def step(x):  # type: ignore[no-untyped-def]
        with wf.name_scope("layer"):
            h = wf.nn.relu(x @ w)
        loss = wf.mean(wf.nn.log_softmax(h) * wf.while_loop(lambda i: i < 3, lambda i: i + 1, 0.0))
        w.assign(w - wf.grad(lambda v: wf.mean(wf.nn.relu(x @ v)))(w))
        return loss

    return step.trace(np.ones((2, 3), np.float32))


def ops_of(box: Box) -> list[Operation]:
    return [b.op for b in box.walk() if b.op is not None]


@pytest.mark.parametrize("pipeline", ["", "standard"])
def test_boxes_hold_every_op_once(pipeline: str) -> None:
    graph = model()
    if pipeline:
        graph, _ = run_passes(graph, PIPELINES[pipeline])
    root = boxes_of(graph)
    drawn = ops_of(root)
    assert len(drawn) == len(set(drawn))
    left = [op for op in graph.walk() if op not in set(drawn)]
    assert all(op.name in ("constant", "broadcast_to", "reshape", "astype") for op in left)
    ids = [box.id for box in root.walk()]
    assert len(ids) == len(set(ids))
    for box in root.walk():
        assert all(0 <= a < b < len(box.boxes) for a, b, _ in box.edges)


def test_scopes_are_boxes() -> None:
    root = boxes_of(model())
    layer = next(b for b in root.boxes if b.kind == "scope" and b.label.startswith("layer"))
    assert "relu" in {b.label for b in layer.walk()} | {layer.label}
    labels = {b.label for b in root.walk() if b.kind == "scope"}
    assert {"log_softmax", "mean"} <= labels
    assert any(label.endswith("grad") for label in labels)
    where = next(b for b in root.walk() if b.op is not None and b.op.name == "less_equal")
    assert where.label == "less_equal 0.0"  # a number is no box


def test_a_scope_that_would_make_a_cycle_is_two_boxes() -> None:
    @wf.compile
    def f(x):  # type: ignore[no-untyped-def]
        with wf.name_scope("a"):
            y = wf.sin(x) + 1
        z = wf.cos(y)
        with wf.name_scope("a"):
            return wf.exp(z) * y

    root = boxes_of(f.trace(np.ones(3, np.float32)))
    assert [b.label for b in root.boxes if b.kind == "scope"] == ["a", "a"]


def test_scopes_in_the_text() -> None:
    graph = model()
    text = print_graph(graph)
    assert '"layer/relu"' in text
    assert '"layer/relu/grad"' not in text  # the gradient was taken outside of the scope
    assert '"relu/grad"' in text
    again = parse_graph(text)
    scopes = [at.scope for op in graph.walk() for at in op.locations]
    assert [at.scope for op in again.walk() for at in op.locations] == scopes
    assert print_graph(again) == text


def test_an_op_is_no_scope_of_its_own_and_operators_are_none() -> None:
    @wf.compile
    def f(x):  # type: ignore[no-untyped-def]
        return wf.exp(x) + x

    graph = f.trace(np.ones(3, np.float32))
    assert [at.scope for op in graph.walk() for at in op.locations] == ["", ""]


def test_a_value_has_one_name_in_all_graphs() -> None:
    _, reports = run_passes(model(), PIPELINES["standard"])
    names = name_programs([r.program for r in reports])
    before, after = (r.graph for r in (reports[0], reports[-1]))

    def made(graph: Graph) -> dict[str, str]:
        bodies = [op.regions[0].ops for op in graph.ops if op.name == "fused"]
        found = {names[r]: op.name for ops in bodies for op in ops for r in op.results}
        return found | {names[r]: op.name for op in graph.ops for r in op.results}

    old, new = made(before), made(after)
    shared = {name for name in set(old) & set(new) if new[name] != "fused"}
    assert len(shared) > 5
    assert all(old[name] == new[name] for name in shared)
    for report in reports:
        lines = [line for line, _ in print_lines(report.program, names)]
        assert "\n".join(lines) + "\n" == print_program(report.program, False, names)


def test_lines_name_their_ops() -> None:
    graph = model()
    found = list(print_lines(Program.of(graph), {}))
    for line, op in found:
        if " = " in line and op is not None:
            assert f" {op.name}(" in line
    assert {op for _, op in found if op is not None} == set(graph.walk())


def big(count: int) -> Graph:
    @wf.compile
    def f(x):  # type: ignore[no-untyped-def]
        for _ in range(count):
            x = wf.sin(x)
        return x

    return f.trace(np.ones(3, np.float32))


def test_static_drawings_are_small_and_have_no_script() -> None:
    for graph in (model(), big(4000)):
        drawing = draw(graph)
        ElementTree.fromstring(drawing)
        html = graph_html(graph)
        assert len(html.encode()) < MOST_BYTES
        assert "<script" not in html
        assert graph._repr_html_() == html
    assert "cut; print it" in graph_html(big(4000))
    frame = model().show(300)
    assert "<iframe srcdoc=" in frame._repr_html_()


def test_a_level_of_many_boxes_is_parted() -> None:
    root = boxes_of(big(2000))
    assert len(root.boxes) < MOST_DRAWN
    assert len(ops_of(root)) == 2000
