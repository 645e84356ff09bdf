"""Random structured programs with queues in branches and loops: every effect once and in order.

The interpreter runs the structured form on real queues; the lowered form, in any order of what is
ready, the dataflow executor, with all or only the needed ops lowered, and every pass must leave the
same elements in the queues, the same values in the variables, and give the same results.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from example_counts import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from structured_programs import Program, programs

import weft as wf
from weft.ir.analysis.verify import verify
from weft.ir.dtypes import as_dtype
from weft.ir.graph import Graph
from weft.ir.interpreter.evaluate import interpret
from weft.ir.interpreter.state import DictState
from weft.passes.control.lower_control_flow import lower_control_flow
from weft.passes.pipelines import STANDARD
from weft.runtime.dataflow.executor import DataflowStep
from weft.runtime.dataflow.host_dispatch import HostObjects
from weft.runtime.resources.variables import VariableState
from weft.runtime.step import RunContext

#: Results, elements of the queues, values of the variables.
Outcome = tuple[list[Any], dict[str, list[int]], dict[str, int]]
Run = Callable[[Program, dict[str, Any], Any], list[Any]]


def outcome(program: Program, run: Callable[[dict[str, Any]], tuple[list[Any], Any]]) -> Outcome:
    """What one execution leaves behind, on queues of its own."""
    queues = {name: wf.FIFOQueue(1 << 20, wf.int64, [[]])._queue for name in program.queues}
    results, values = run(queues)
    left = {name: [int(x) for (x,) in q._elements] for name, q in queues.items()}
    return results, left, {name: int(values(name)) for name in program.state}


def interpreted(program: Program, schedule: int | None = None) -> Outcome:
    def run(queues: dict[str, Any]) -> tuple[list[Any], Any]:
        held = DictState(program.state)
        host = HostObjects(queues, timeout=1.0)
        found = interpret(program.graph, program.inputs, held, schedule=schedule, host=host)
        return found, held.values.__getitem__

    return outcome(program, run)


def executed(program: Program) -> Outcome:
    def run(queues: dict[str, Any]) -> tuple[list[Any], Any]:
        states = {}
        for name, value in program.state.items():
            array = np.asarray(value)
            states[name] = VariableState(name, as_dtype(array.dtype), array.shape, array)
        step = DataflowStep(program.graph, states, queues)
        found = step.run([np.ascontiguousarray(x) for x in program.inputs], RunContext(timeout=10))
        return found, lambda name: states[name].read()

    return outcome(program, run)


def with_graph(program: Program, graph: Graph) -> Program:
    verify(graph)
    return replace(program, graph=graph)


def same(found: Outcome, wanted: Outcome, what: str) -> None:
    assert found[1:] == wanted[1:], what
    for i, (a, b) in enumerate(zip(found[0], wanted[0], strict=True)):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6, err_msg=f"{what}: result {i}")


@given(programs(hosts=True), st.lists(st.integers(0, 1 << 30), min_size=2, max_size=2))
@examples(60)
def test_lowered_in_any_order(program: Program, schedules: list[int]) -> None:
    wanted = interpreted(program)
    for mode in ("dataflow", "auto"):
        lowered = with_graph(program, lower_control_flow(program.graph, mode=mode))
        for schedule in (None, *schedules):
            same(interpreted(lowered, schedule), wanted, f"{mode}, schedule {schedule}")


@given(programs(hosts=True), st.sampled_from(["auto", "dataflow"]), st.integers(1, 3))
@examples(30)
def test_on_the_executor(program: Program, mode: str, parallel: int) -> None:
    lowered = lower_control_flow(program.graph, mode=mode, parallel_iterations=parallel)
    same(executed(with_graph(program, lowered)), interpreted(program), mode)


@given(programs(hosts=True, effects=True))
@examples(30)
def test_with_variables(program: Program) -> None:
    wanted = interpreted(program)
    lowered = with_graph(program, lower_control_flow(program.graph, mode="auto"))
    same(interpreted(lowered, 7), wanted, "lowered")
    same(executed(lowered), wanted, "executed")


@given(programs(hosts=True), st.booleans())
@examples(60)
def test_passes_neither_drop_nor_repeat(program: Program, together: bool) -> None:
    """One pass after another, or each on the program as it was written."""
    wanted = interpreted(program)
    graph = program.graph
    for run in STANDARD:
        made = run(graph)
        same(interpreted(with_graph(program, made)), wanted, run.__name__)
        graph = made if together else graph


@pytest.mark.slow
@given(programs(hosts=True, effects=True), st.sampled_from(["auto", "dataflow"]))
@settings(max_examples=150, deadline=None)
def test_many(program: Program, mode: str) -> None:
    wanted = interpreted(program)
    lowered = with_graph(program, lower_control_flow(program.graph, mode=mode))
    same(interpreted(lowered, 3), wanted, "lowered")
    same(executed(lowered), wanted, "executed")
