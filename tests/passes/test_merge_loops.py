"""Loops that repeat others: which become one, that results stay, and what the search costs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from example_counts import examples
from hypothesis import given
from hypothesis import strategies as st

import weft as wf
from weft.ir.analysis.verify import verify
from weft.ir.dtypes import float32
from weft.ir.graph import Graph, Value
from weft.ir.interpreter.evaluate import interpret
from weft.ir.ops.builder import Builder
from weft.ir.types import tensor_type
from weft.passes.control import simplify as merge
from weft.passes.control.simplify import merge_loops, simplify_control
from weft.passes.rewriting.expression import Expr
from weft.passes.rewriting.rewrite import with_block
from weft.passes.simplify.cse_dce import cse

LENGTH, ROW = 3, tensor_type(float32, 2)
ROWS = tensor_type(float32, LENGTH, 2)


def one_scan(
    builder: Builder, start: Value, rows: Value, bias: Value, form: int
) -> tuple[Value, ...]:
    """c = c + rows[i] * (1 or 2), or for odd forms c + bias; y = c or c * bias."""
    body = Builder([ROW, ROW, ROW])
    c, r, b = (Expr(body, v, ()) for v in body.args)
    added = b if form & 1 else (r + r if form & 2 else r)
    after = c + added
    y = after * b if form & 4 else c
    attrs: dict[str, Any] = {
        "carries": 1,
        "sequences": 1,
        "length": LENGTH,
        "reverse": bool(form & 8),
    }
    regions = (body.block([after.value, y.value]),)
    return builder.emit("scan", [start, rows, bias], attrs, regions=regions, locations=())


@st.composite
def programs(draw: st.DrawFn) -> Graph:
    """Scans that start from arguments, constants or what scans before them made."""
    builder = Builder([ROW, ROW, ROWS, ROWS])
    starts, rows = builder.args[:2], builder.args[2:]
    for _ in range(draw(st.integers(2, 9))):
        if draw(st.integers(0, 3)) == 0:
            value = builder.emit1(
                draw(st.sampled_from(["negative", "exp"])),
                draw(st.sampled_from(starts)),
                locations=(),
            )
            starts.append(value)
            continue
        form = draw(st.sampled_from([0, 1, 2, 4, 5, 8, 12]))
        start, row, bias = (draw(st.sampled_from(v)) for v in (starts, rows, starts))
        carry, ys = one_scan(builder, start, row, bias, form)
        starts.append(carry)
        rows.append(ys)
    return builder.graph("g", ("a", "b", "r", "s"), [*starts[2:], *rows[2:]])


@examples(1500)
@given(programs())
def test_merged_loops_compute_what_the_loops_did(graph: Graph) -> None:
    new = with_block(graph, merge_loops(graph.block))
    verify(new)
    rng = np.random.default_rng(1)
    shapes = [(2,), (2,), (LENGTH, 2), (LENGTH, 2)]
    inputs = [rng.standard_normal(shape, dtype=np.float32) * 0.1 for shape in shapes]
    with np.errstate(over="ignore", invalid="ignore"):
        for a, b in zip(interpret(graph, inputs), interpret(new, inputs), strict=True):
            np.testing.assert_array_equal(a, b)
    again = with_block(new, merge_loops(new.block))
    verify(again)


def repeated(count: int, times: int) -> Graph:
    """`times` the same chain of `count` loops; each gives rows of its own."""
    builder = Builder([ROW, ROWS, *[ROW] * times])
    results = []
    for bias in builder.args[2:]:
        value = builder.args[0]
        for _ in range(count):
            value, ys = one_scan(builder, value, builder.args[1], bias, 4)
            results.append(ys)
    names = tuple(f"x{i}" for i in range(len(builder.args)))
    return builder.graph("g", names, results)


def loops_of(graph: Graph) -> int:
    return sum(1 for op in graph.ops if op.name == "scan")


def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How often two loops were put into one to see whether they fit."""
    tries = [0]
    before = merge.merged

    def trying(first: Any, second: Any) -> Any:
        tries[0] += 1
        return before(first, second)

    monkeypatch.setattr(merge, "merged", trying)
    return tries


def test_chains_that_repeat_each_other_are_merged_in_one_sweep(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Loop 2 of the one chain is seen to repeat loop 2 of the other once the loops 1 are one."""
    tries = counted(monkeypatch)
    graph = repeated(30, 4)
    new = cse(with_block(graph, merge_loops(graph.block)))
    assert loops_of(graph) == 120
    assert loops_of(new) == 30
    assert tries[0] == 90


@pytest.mark.parametrize("kind", ["successive", "from one value", "one counter"])
def test_loops_that_do_not_repeat_each_other_are_not_tried(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries = counted(monkeypatch)
    builder = Builder([ROW, *[ROWS] * 50])
    values: list[Value] = []
    value, rows, zero = builder.args[0], builder.args[1], builder.args[0]
    for other in builder.args[1:]:
        if kind == "successive":
            value, _ = one_scan(builder, value, rows, zero, 0)
        elif kind == "from one value":
            value, _ = one_scan(builder, zero, other, zero, 0)
        else:  # they go on alike, but each needs the one before it
            value, rows = one_scan(builder, zero, rows, zero, 5)
        values.append(value)
    graph = builder.graph("g", tuple(f"x{i}" for i in range(51)), [*values, rows])
    assert merge_loops(graph.block) is graph.block
    assert tries[0] == 0


def test_many_loops_over_the_same_rows_become_one() -> None:
    """More than join one loop in a sweep: the sweeps that follow merge what these became."""
    graph = repeated(1, 3 * merge.MOST_JOINED + 2)
    assert loops_of(simplify_control(graph)) == 1


def test_the_gradient_of_a_chain_of_loops_runs_each_forward_loop_once() -> None:
    def chain(x: Any, w: Any) -> Any:
        for _ in range(4):
            x, _ = wf.scan(lambda c, r: (wf.tanh(c * w + r), None), init=x, xs=np.ones((5, 3), "f"))
        return wf.sum(x)

    step = wf.compile(wf.grad(chain, argnums=1))
    x, w = np.ones(3, np.float32), np.full(3, 0.5, np.float32)
    text = str(step.ir(x, w, after="simplify_control"))
    assert text.count(" = scan(") == 8
