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
from layer_programs import normal, programs

import weft as wf
from weft.ir.graph import Graph
from weft.ir.interpreter.evaluate import interpret
from weft.passes.control.lower_control_flow import unroll
from weft.passes.manager import run_passes
from weft.passes.pipelines import STANDARD
from weft.runtime.dataflow.executor import dataflow_step
from weft.runtime.native.executable import compile_graph


def check(graph: Graph, args: list[np.ndarray], what: str) -> None:
    native = compile_graph(graph, {}).run(args)
    executed = dataflow_step(graph, {}, {}, "dataflow").run(args)
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
