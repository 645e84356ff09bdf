"""What the static analysis says of random switches and merges is what happens, both ways."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
from example_counts import examples
from hypothesis import assume, given
from hypothesis import strategies as st
from paths import ROOT

import weft as wf
from weft.ir.analysis.deadness import FALSE, TRUE, Conditions, Deadness, check_dataflow
from weft.ir.analysis.frames import find_frames
from weft.ir.analysis.verify import verify
from weft.ir.dtypes import bool_, int64
from weft.ir.errors import InvalidArgumentError
from weft.ir.graph import Graph, Value
from weft.ir.interpreter.evaluate import interpret
from weft.ir.ops.builder import Builder
from weft.ir.text.parser import parse_graph
from weft.ir.text.printer import print_graph
from weft.ir.types import tensor_type

Draw = Callable[[st.SearchStrategy[Any]], Any]
PREDICATES = 3


@st.composite
def wirings(draw: Draw) -> Graph:
    """Switches by independent predicates, ops and merges, wired at random; one result."""
    builder = Builder([tensor_type(bool_)] * PREDICATES + [tensor_type(int64)])
    *predicates, x = builder.args
    pool = [x]

    def some() -> Value:
        return pool[-1 - draw(st.integers(0, min(5, len(pool) - 1)))]

    for _ in range(draw(st.integers(1, 14))):
        match draw(st.integers(0, 4)):
            case 0 | 1:
                pred = predicates[draw(st.integers(0, PREDICATES - 1))]
                pool += builder.emit("switch", [some(), pred])
            case 2:
                control = [v for v in [some()] if v.op is not None and draw(st.booleans())]
                pool += builder.emit("negative", [some()], control=control)
            case 3:
                pool += builder.emit("add", [some(), some()])
            case 4:
                count = draw(st.integers(1, 3))
                pool.append(builder.emit("merge", [some() for _ in range(count)])[0])
    names = [f"p{i}" for i in range(PREDICATES)]
    return builder.graph("wiring", [*names, "x"], [some()], "dataflow")


def outcomes(graph: Graph) -> set[str]:
    """What happens for any values of the predicates: ok, dead, or two live operands."""
    found: set[str] = set()
    for given_ in itertools.product((False, True), repeat=PREDICATES):
        try:
            interpret(graph, [*map(np.array, given_), np.array(1)])
            found.add("ok")
        except InvalidArgumentError as error:
            found.add("two" if "two live" in error.what else "dead")
    return found


@given(wirings())
@examples(300)
def test_a_result_may_be_dead_if_and_only_if_it_can_be(graph: Graph) -> None:
    happens = outcomes(graph)
    assume("two" not in happens)
    frames = find_frames(graph.block)
    assert not frames.faults
    assert Deadness(frames).always_live(graph.results[0]) == (happens == {"ok"})


@given(wirings())
@examples(200)
def test_what_passes_the_check_runs(graph: Graph) -> None:
    """Merges that get two values are refused where that is certain; the rest shows when it runs."""
    refused = ""
    try:
        check_dataflow(graph)
    except InvalidArgumentError as error:
        refused = error.what
    happens = outcomes(graph)
    if refused:
        assert happens != {"ok"} or "live together" in refused
    else:
        assert happens & {"ok", "two"}


@given(st.data())
def test_conditions_are_truth_tables(data: Any) -> None:
    """Decision diagrams of random formulas: equal numbers if and only if equal truth tables."""
    conditions = Conditions()
    rows = list(itertools.product((False, True), repeat=4))
    known = {FALSE: (False,) * 16, TRUE: (True,) * 16}

    def pairs(a: int, b: int) -> Any:
        return zip(known[a], known[b], strict=True)

    for i in range(4):
        known[conditions.fresh()] = tuple(row[i] for row in rows)
    for _ in range(data.draw(st.integers(1, 25))):
        a, b = (data.draw(st.sampled_from(list(known))) for _ in range(2))
        made, table = {
            0: lambda a, b: (conditions.both(a, b), [x and y for x, y in pairs(a, b)]),
            1: lambda a, b: (conditions.either(a, b), [x or y for x, y in pairs(a, b)]),
            2: lambda a, b: (conditions.negate(a), [not x for x in known[a]]),
        }[data.draw(st.integers(0, 2))](a, b)
        assert known.setdefault(made, tuple(table)) == tuple(table)
        assert len(set(known.values())) == len(known)
        if made != TRUE:
            row = conditions.counterexample(made)
            assert not any(t for r, t in zip(rows, table, strict=True) if fits(r, row))


def fits(row: tuple[bool, ...], values: dict[int, bool]) -> bool:
    return all(row[i] == v for i, v in values.items())


def test_a_thousand_switches_in_a_row() -> None:
    """Deeper than Python's stack allows a diagram to be: nothing is known then."""
    builder = Builder([tensor_type(bool_), tensor_type(int64)])
    pred, x = builder.args
    for _ in range(1500):
        pred = builder.emit1("logical_not", pred)
        _, x = builder.emit("switch", [x, pred])
    graph = builder.graph("deep", ["p", "x"], [x], "dataflow")
    frames = find_frames(graph.block)
    assert not Deadness(frames).always_live(x)
    check_dataflow(graph)


def test_the_example_in_the_docs() -> None:
    page = (ROOT / "docs" / "internals" / "switch-merge.md").read_text(encoding="utf-8")
    text = "graph @sum(" + page.partition("graph @sum(")[2].partition("```")[0]
    graph = parse_graph(text)
    verify(graph)
    assert print_graph(graph) == text
    assert interpret(graph, [np.array(5)], schedule=7)[0] == 10


def test_the_example_of_switch_in_the_docs() -> None:
    page = (ROOT / "docs" / "internals" / "switch-merge.md").read_text(encoding="utf-8")
    code = "graph = wf.Graph()" + page.partition("graph = wf.Graph()")[2].partition("```")[0]
    shown: list[Any] = []
    exec(compile(code, "switch-merge.md", "exec"), {"wf": wf, "print": shown.append})
    ((y, index),) = shown
    np.testing.assert_array_equal(y, [2.0, 3.0, 4.0])
    assert index == 1
