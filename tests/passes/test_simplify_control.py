"""Loops: trip counts that can be proved, and products that are taken out. Golden cases are in
cases/simplify_control.weft."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from example_counts import examples
from hypothesis import given
from hypothesis import strategies as st

import weft as wf
from weft.ir.analysis.known_values import trip_count
from weft.ir.dtypes import DType, int8, int64, uint8
from weft.ir.graph import Graph, Operation
from weft.ir.interpreter.evaluate import interpret
from weft.ir.ops.builder import Builder
from weft.ir.types import tensor_type
from weft.passes.control.simplify import simplify_control
from weft.passes.pipelines import STANDARD
from weft.passes.rewriting.expression import Expr

COMPARISONS = ("less", "less_equal", "greater", "greater_equal", "not_equal")


def counting(
    start: int, bound: int, step: int, compare: str, *, swap: bool, limit: int, dtype: Any = int64
) -> tuple[Operation, Graph]:
    """`i, n = start, 0; while i COMPARE bound: i, n = i + step, n + 1`."""
    kind, count = tensor_type(dtype), tensor_type(int64)
    test = Builder([kind, count])
    i = Expr(test, test.args[0], ())
    end = i.scalar(bound)
    going = end.op(compare, i) if swap else i.op(compare, end)
    body = Builder([kind, count])
    i, n = (Expr(body, v, ()) for v in body.args)
    after = i - i.scalar(-step) if swap else i + step
    regions = (test.block([going.value]), body.block([after.value, (n + 1).value]))
    outer = Builder([kind, count])
    zero = Expr(outer, outer.args[0], ())
    operands = [zero.scalar(start).value, zero.scalar(0, int64).value]
    attrs = {"carries": 2, "limit": limit}
    values = outer.emit("while", operands, attrs, regions=regions)
    op = values[0].op
    assert op is not None
    return op, outer.graph("g", ("i", "n"), values)


@examples(300)
@given(
    start=st.integers(-6, 6),
    bound=st.integers(-6, 6),
    step=st.integers(-3, 3),
    compare=st.sampled_from(COMPARISONS),
    swap=st.booleans(),
    limit=st.sampled_from([-1, 0, 2, 30]),
)
def test_trip_counts_are_what_the_loop_does(
    start: int, bound: int, step: int, compare: str, swap: bool, limit: int
) -> None:
    op, _ = counting(start, bound, step, compare, swap=swap, limit=limit)
    found = trip_count(op)
    bounded, graph = counting(
        start, bound, step, compare, swap=swap, limit=40 if limit < 0 else limit
    )
    inputs = [np.array(0), np.array(0)]
    done = int(interpret(graph, inputs)[1])
    if found is not None:
        assert found == done
    elif limit < 0:
        assert done == 40 or step == 0  # it runs (almost) for ever
    simple = simplify_control(graph)
    for a, b in zip(interpret(graph, inputs), interpret(simple, inputs), strict=True):
        assert a == b
    assert trip_count(bounded) is None or not [o for o in simple.ops if o.name == "while"]


def test_a_counter_that_wraps_around_is_not_counted() -> None:
    op, _ = counting(0, 127, 50, "less", swap=False, limit=-1, dtype=int8)
    assert trip_count(op) is None  # 0, 50, 100, -106, ...
    op, _ = counting(0, 100, 50, "less", swap=False, limit=-1, dtype=int8)
    assert trip_count(op) == 2


@examples(300)
@given(
    dtype=st.sampled_from([int8, uint8]),
    start=st.integers(0, 127),
    bound=st.integers(0, 127),
    step=st.integers(-60, 60),
    compare=st.sampled_from(COMPARISONS),
)
def test_counters_of_eight_bits_count_as_they_wrap(
    dtype: DType, start: int, bound: int, step: int, compare: str
) -> None:
    """8 unsigned bits go down by 3 as 5, 2, 255, 252, ..."""
    held = np.iinfo(dtype.numpy)
    scale = held.max // 127
    start, bound, down = scale * start, scale * bound, step < 0  # what is below 0 is subtracted
    op, _ = counting(start, bound, step, compare, swap=down, limit=-1, dtype=dtype)
    _, graph = counting(start, bound, step, compare, swap=down, limit=300, dtype=dtype)
    done = int(interpret(graph, [np.array(0, dtype.numpy), np.array(0)])[1])  # 300: for ever
    found = trip_count(op)
    assert found in (None, done)
    without_wrapping = held.min <= start + done * step <= held.max
    assert found == done or step == 0 or not without_wrapping


def simplified(f: Any, *args: Any) -> Graph:
    graph: Graph = wf.compile(f).trace(*args)
    for run in STANDARD[: STANDARD.index(simplify_control) + 1]:
        graph = run(graph)
    return graph


@pytest.mark.parametrize("reverse", [False, True])
def test_weight_gradients_are_one_product(reverse: bool) -> None:
    """An LSTM: one product with x, one for each weight's gradient, and two in the loops."""
    rng = np.random.default_rng(1)
    size, batch, steps = 4, 3, 5
    shapes = [(2, 4 * size), (size, 4 * size), (4 * size,), (steps, batch, 2)]
    args = [rng.normal(size=s).astype(np.float32) for s in shapes]

    def loss(wx: Any, wh: Any, b: Any, xs: Any) -> Any:
        def step(state: Any, x: Any) -> Any:
            h, c = state
            i, f, g, o = wf.split(x @ wx + h @ wh + b, 4, axis=1)
            c = wf.sigmoid(f) * c + wf.sigmoid(i) * wf.tanh(g)
            h = wf.sigmoid(o) * wf.tanh(c)
            return (h, c), h

        start = (wf.zeros((batch, size)), wf.zeros((batch, size)))
        return wf.sum(wf.scan(step, start, xs, reverse=reverse)[1] ** 2)

    f = wf.value_and_grad(loss, (0, 1, 2))
    graph = simplified(f, *args)
    scans = [op for op in graph.ops if op.name == "scan"]
    assert [op.attrs["carries"] for op in scans] == [2, 2]
    inside = [sum(o.name == "matmul" for o in op.regions[0].ops) for op in scans]
    assert inside == [1, 1]
    assert sum(op.name == "matmul" for op in graph.ops) == 3
    value, grads = f(*map(wf.asarray, args))
    found = interpret(graph, args)
    for a, b in zip((value, *grads), found, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-5)


def test_what_a_graph_without_loops_costs() -> None:
    graph = simplified(lambda x: wf.sin(x) + 1, np.float32(1))
    assert simplify_control(graph) is graph


def test_compiled_and_in_a_session_with_a_symbolic_size() -> None:
    graph = wf.Graph()
    with graph.as_default():
        x = wf.placeholder(wf.float32, [None, 2], name="x")
        v = wf.Variable(np.zeros(2, np.float32))
        total = wf.foldl(lambda a, r: a + v.assign_add(r), wf.map_fn(lambda r: r * 2, x))
        (slope,) = wf.gradients(wf.sum(total), [x])
        start = wf.global_variables_initializer()
    with wf.Session(graph=graph) as session:
        session.run(start)
        for rows in (3, 4):
            data = np.arange(2 * rows, dtype=np.float32).reshape(rows, 2)
            session.run(start)
            found, grad = session.run([total, slope], {x: data})
            sums = np.cumsum(data[1:] * 2, axis=0)
            np.testing.assert_allclose(found, data[0] * 2 + sums.sum(axis=0))
            np.testing.assert_allclose(session.run(v), sums[-1])
            np.testing.assert_allclose(grad[:, 0], [2.0 * n for n in (1, *range(rows - 1, 0, -1))])
