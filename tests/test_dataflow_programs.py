"""Random structured programs: the dataflow executor gives what the interpreter gives of the
structured form, bit by bit, values and variables."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from structured_programs import Program, programs

from weft.ir.dtypes import as_dtype
from weft.ir.interpreter import DictState, interpret
from weft.passes.control.lower_control_flow import lower_control_flow
from weft.runtime.dataflow.executor import DataflowStep
from weft.runtime.executable import compile_graph
from weft.runtime.variables import VariableState

MOST = settings(max_examples=30, deadline=None)


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
    for i, (got, w) in enumerate(zip(step(arrays), wanted, strict=True)):
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
    native = compile_graph(program.graph, states(program))(arrays)
    lowered = lower_control_flow(program.graph, parallel_iterations=parallel)
    executed = DataflowStep(lowered, states(program))(arrays)
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
