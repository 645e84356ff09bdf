"""Both forms of branches and loops give the same bits: native plans, and Switch and Merge on the
dataflow executor, values and gradients, whatever the compiler fuses, keeps or overwrites."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from example_counts import examples
from hypothesis import given, settings
from hypothesis import strategies as st

import weft as wf
from weft.ir.graph import Graph
from weft.ir.interpreter.evaluate import interpret
from weft.passes.control.lower_control_flow import unroll
from weft.passes.manager import run_passes
from weft.passes.pipelines import STANDARD
from weft.runtime.dataflow.executor import dataflow_step
from weft.runtime.native.executable import compile_graph

Layer = Callable[[Any, Any], Any]


def normal(x: Any, w: Any) -> Any:
    centred = x - wf.mean(x, axis=1, keepdims=True)
    return centred * wf.rsqrt(wf.mean(centred * centred, axis=1, keepdims=True) + 1e-3)


LAYERS: dict[str, Layer] = {
    "dense": lambda x, w: wf.tanh(x @ w) * 0.5 + x,
    "normal": normal,
    "softmax": lambda x, w: wf.nn.softmax(x * 1.5 - 0.25),
    "gate": lambda x, w: wf.sigmoid(x) * x + wf.sum(w) * 0.01,
    "columns": lambda x, w: x - 0.5 * wf.mean(x, axis=0),
    "norm": lambda x, w: x / (1 + wf.sqrt(wf.sum(wf.square(x)))),
    "logsumexp": lambda x, w: x - wf.logsumexp(x, axis=1, keepdims=True) * 0.1,
    "poly": lambda x, w: ((0.1 * x + 0.3) * x - 0.2) * x + 0.9 * x - x * x * 0.1,
    "transpose": lambda x, w: (w.T @ x.T).T * 0.5,
}
FRAMES = ("while", "until", "cond", "scan", "plain")


@st.composite
def programs(draw: st.DrawFn) -> tuple[Callable[..., Any], list[np.ndarray], str]:
    """A function of x and w, arguments, and what it is made of."""
    frames = draw(st.lists(st.sampled_from(FRAMES), min_size=1, max_size=2))
    names = draw(st.lists(st.sampled_from(sorted(LAYERS)), min_size=1, max_size=3))
    trips = draw(st.integers(0, 3))
    rows, columns = draw(st.sampled_from([(1, 1), (2, 3), (4, 7), (5, 16), (9, 33), (33, 70)]))
    dtype = draw(st.sampled_from([np.float32, np.float64]))
    rng = np.random.default_rng(draw(st.integers(0, 9)))
    x = rng.normal(size=(rows, columns)).astype(dtype)
    w = (rng.normal(size=(columns, columns)) / np.sqrt(columns)).astype(dtype)

    def layers(x: Any, w: Any) -> Any:
        for name in names:
            x = LAYERS[name](x, w)
        return x

    def around(frame: str, body: Layer) -> Layer:
        if frame == "while":
            return lambda x, w: wf.while_loop(
                lambda i, x: i < trips, lambda i, x: (i + 1, body(x, w)), (0, x)
            )[1]
        if frame == "until":
            return lambda x, w: wf.while_loop(
                lambda i, x: wf.logical_and(i < 4, wf.sum(x * x) < 40),
                lambda i, x: (i + 1, body(x, w)),
                (0, x),
            )[1]
        if frame == "cond":
            return lambda x, w: wf.cond(wf.sum(x) > 0, lambda: body(x, w), lambda: body(-x, w))
        if frame == "scan":

            def step(carry: Any, row: Any) -> tuple[Any, Any]:
                made = body(carry + row * 0.1, w)
                return made, wf.sum(made * row)

            def scanned(x: Any, w: Any) -> Any:
                last, sums = wf.scan(step, init=x, xs=x[:trips] if trips else x[:1])
                return last + wf.sum(sums)

            return scanned
        return body

    function = layers
    for frame in frames:
        function = around(frame, function)
    described = f"{frames} of {names}, {trips} times, {dtype.__name__}[{rows},{columns}]"
    return function, [x, w], described


def check(graph: Graph, args: list[np.ndarray], what: str) -> None:
    native = compile_graph(graph, {})(args)
    executed = dataflow_step(graph, {}, {}, "dataflow")(args)
    for k, (got, wanted) in enumerate(zip(executed, native, strict=True)):
        assert got is not None
        assert got.dtype == wanted.dtype
        assert got.tobytes() == wanted.tobytes(), f"result {k} of {what}"


def check_program(program: tuple[Callable[..., Any], list[np.ndarray], str], slopes: bool) -> None:
    function, args, what = program
    if slopes:
        loss = lambda x, w: wf.sum(function(x, w) * x)  # noqa: E731
        traced = wf.compile(wf.value_and_grad(loss, argnums=(0, 1)))
    else:
        traced = wf.compile(function)
    check(traced.trace(*args), args, what)


@given(programs(), st.booleans())
@examples(12)
def test_random_programs(program: Any, slopes: bool) -> None:
    check_program(program, slopes)


@pytest.mark.slow
@given(programs(), st.booleans())
@settings(max_examples=400, deadline=None)
def test_many_random_programs(program: Any, slopes: bool) -> None:
    check_program(program, slopes)


def small(x: Any) -> Any:
    w = wf.reshape(x[:9], (3, 3))
    return wf.while_loop(
        lambda i, v: wf.logical_and(i < 20, wf.sum(v * v) < 50),
        lambda i, v: (i + 1, wf.tanh(w @ v) + wf.sum(v * v) * 0.1),
        (0, x[9:12]),
    )[1]


def test_sums_of_a_loop_in_registers_stay_there() -> None:
    x = np.random.default_rng(0).normal(size=12).astype(np.float32)
    graph = wf.compile(small).trace(x)
    fused, _ = run_passes(graph, STANDARD)
    new = unroll(fused, lambda op: True)
    names = [op.name for op in new.walk()]
    assert names.count("unrolled") >= 2
    assert unroll(fused, lambda op: False) is fused
    for got, wanted in zip(interpret(new, [x]), interpret(fused, [x]), strict=True):
        assert got.tobytes() == wanted.tobytes()
    check(graph, [x], "small")


def test_sessions_of_both_kinds() -> None:
    with wf.Graph().as_default() as graph:
        x = wf.placeholder(wf.float32, (6, 40), "x")
        w = wf.Variable(np.random.default_rng(1).normal(size=(40, 40)).astype(np.float32) / 7)
        y = wf.while_loop(
            lambda i, y: wf.sum(y * y) > 1,
            lambda i, y: (i + 1, normal(wf.tanh(y @ w), w) * 0.5 ** wf.astype(i, wf.float32)),
            (1, x),
        )[1]
        loss = wf.sum(y * x)
        slope = wf.gradients(loss, [w, x])
        fed = {x: np.random.default_rng(2).normal(size=(6, 40)).astype(np.float32)}
        found = []
        for kind in ("native", "dataflow", "auto"):
            with wf.Session(graph=graph, control_flow=kind) as session:
                session.run(wf.global_variables_initializer())
                found.append([np.asarray(v).tobytes() for v in session.run([y, loss, *slope], fed)])
        assert found[0] == found[1] == found[2]
