"""Random structured programs: the dataflow executor gives what the interpreter gives of the
structured form, bit by bit, values and variables."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from example_counts import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from structured_programs import Program, programs

import weft as wf
from weft.ir.dtypes import as_dtype
from weft.ir.interpreter.evaluate import interpret
from weft.ir.interpreter.state import DictState
from weft.passes.control.lower_control_flow import lower_control_flow
from weft.runtime.dataflow.executor import DataflowStep
from weft.runtime.native.executable import compile_graph
from weft.runtime.resources.variables import VariableState

MOST = examples(30)


def states(program: Program) -> dict[str, VariableState]:
    found = {}
    for name, value in program.state.items():
        array = np.asarray(value)
        found[name] = VariableState(name, as_dtype(array.dtype), array.shape, array)
    return found


def agree(program: Program, parallel: int) -> None:
    held = DictState(program.state)
    wanted = interpret(program.graph, program.inputs, held)
    lowered = lower_control_flow(program.graph, parallel_iterations=parallel)
    variables = states(program)
    step = DataflowStep(lowered, variables)
    arrays = [np.ascontiguousarray(x) for x in program.inputs]
    for i, (got, w) in enumerate(zip(step.run(arrays), wanted, strict=True)):
        same(got, w, f"result {i}")
    for name, state in variables.items():
        same(state.read(), held.values[name], name)


def same(got: Any, wanted: Any, what: str) -> None:
    if wanted is None:
        assert got is None
        return
    assert got.dtype == wanted.dtype
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6, err_msg=what)


@given(programs(), st.integers(1, 4))
@MOST
def test_values(program: Program, parallel: int) -> None:
    agree(program, parallel)


@given(programs(), st.integers(1, 4))
@MOST
def test_the_native_plan_gives_the_same_bits(program: Program, parallel: int) -> None:
    arrays = [np.ascontiguousarray(x) for x in program.inputs]
    native = compile_graph(program.graph, states(program)).run(arrays)
    lowered = lower_control_flow(program.graph, parallel_iterations=parallel)
    executed = DataflowStep(lowered, states(program)).run(arrays)
    for got, wanted in zip(executed, native, strict=True):
        assert (got is None) == (wanted is None)
        assert got is None or got.tobytes() == wanted.tobytes()


@given(programs(effects=True), st.integers(1, 4))
@MOST
def test_effects(program: Program, parallel: int) -> None:
    agree(program, parallel)


@pytest.mark.slow
@given(programs(effects=True), st.integers(1, 4))
@settings(max_examples=80, deadline=None)
def test_effects_of_many(program: Program, parallel: int) -> None:
    agree(program, parallel)


def test_every_graph_on_the_way_is_legal(monkeypatch: pytest.MonkeyPatch) -> None:
    """The regions that the executor compiles hold what passes have made before."""
    monkeypatch.setenv("WEFT_VERIFY", "ir")
    graph = wf.Graph()
    with graph.as_default():
        x = wf.placeholder(wf.float32, [4])
        v = wf.Variable(np.arange(4.0, dtype=np.float32), name="v")
        y = wf.cond(wf.sum(x) > 0.0, lambda: v.read() * 2.0 + x, lambda: wf.identity(x))
        z = wf.while_loop(lambda s: wf.sum(s) < 100.0, lambda s: s * 2.0 + 1.0, [y])[0]
    with wf.Session(graph=graph, control_flow="dataflow") as session:
        session.run(v.initializer)
        plus = session.run([y, z], {x: np.ones(4, np.float32)})
        minus = session.run(y, {x: -np.ones(4, np.float32)})
    assert plus[0].tolist() == [1.0, 3.0, 5.0, 7.0]
    assert plus[1].tolist() == [15.0, 31.0, 47.0, 63.0]
    assert minus.tolist() == [-1.0] * 4
