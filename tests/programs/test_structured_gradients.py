"""Gradients of random structured programs, with loops of unknown length: the interpreter, native
plans and the dataflow executor agree."""

from __future__ import annotations

import numpy as np
import pytest
from example_counts import examples
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from structured_programs import PAIR, Program, programs

from weft.ir.graph import Graph
from weft.ir.interpreter.evaluate import interpret
from weft.passes.autodiff.reverse_mode import differentiate
from weft.passes.control.lower_control_flow import lower_control_flow
from weft.passes.manager import run_passes
from weft.passes.pipelines import STANDARD
from weft.passes.rewriting.rewrite import extend
from weft.runtime.dataflow.executor import DataflowStep
from weft.runtime.native.executable import compile_graph


def loss_and_gradient(program: Program) -> Graph:
    """The sum of all pairs that the program gives, and its gradient with respect to x."""
    graph = program.graph
    pairs = [v for v in graph.results if v.type == PAIR]
    assume(pairs)
    builder = extend(graph.block)
    builder.ops = list(graph.ops)
    total = pairs[0]
    for pair in pairs[1:]:
        total = builder.emit("add", [total, pair])[0]
    loss = builder.emit("sum", [total], {"axes": (0,), "keepdims": False})[0]
    return differentiate(builder.graph("loss", graph.arg_names, [loss]), [2])


def check(program: Program, parallel: int) -> None:
    graph = loss_and_gradient(program)
    with np.errstate(all="ignore"):
        wanted = interpret(graph, program.inputs)
    assume(all(np.all(np.abs(w) < 1e6) for w in wanted))
    arrays = [np.ascontiguousarray(x) for x in program.inputs]
    native = compile_graph(graph, {}).run(arrays)
    optimised = compile_graph(run_passes(graph, STANDARD)[0], {}).run(arrays)
    executed = DataflowStep(lower_control_flow(graph, parallel_iterations=parallel)).run(arrays)
    for got in (native, optimised, executed):
        for g, w in zip(got, wanted, strict=True):
            assert g is not None
            np.testing.assert_allclose(g, w, rtol=1e-4, atol=1e-4)


@given(programs(), st.integers(1, 4))
@examples(10, deadline=None)
def test_gradients(program: Program, parallel: int) -> None:
    check(program, parallel)


@pytest.mark.slow
@given(programs(), st.integers(1, 4))
@settings(max_examples=250, deadline=None)
def test_gradients_of_many(program: Program, parallel: int) -> None:
    check(program, parallel)
