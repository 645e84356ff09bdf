"""`lower_control_flow` keeps what programs mean, for every order in which ready ops may run.

The golden texts are in tests/cases/lower_control_flow.weft.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from example_counts import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from structured_programs import Program, programs

from weft.ir.analysis.deadness import Deadness
from weft.ir.analysis.frames import find_frames
from weft.ir.analysis.verify import verify
from weft.ir.graph import Block, Graph
from weft.ir.interpreter.evaluate import interpret
from weft.ir.interpreter.state import DictState
from weft.ir.text.parser import parse_graph
from weft.ir.text.printer import print_graph
from weft.passes.control.lower_control_flow import lower_control_flow
from weft.passes.simplify.cse_dce import dce


def run(graph: Graph, program: Program, schedule: int | None = None) -> list[Any]:
    """The results, and the variables afterwards."""
    state = DictState(program.state)
    found = interpret(graph, program.inputs, state, schedule=schedule)
    return [*found, *(state.values[name] for name in sorted(state.values))]


def check(program: Program, parallel: int, schedules: list[int]) -> None:
    verify(program.graph)
    expected = run(program.graph, program)
    lowered = lower_control_flow(program.graph, parallel_iterations=parallel)
    verify(lowered)
    assert parse_graph(print_graph(lowered)) == lowered
    smaller = dce(lowered)
    verify(smaller)
    cases: list[tuple[Graph, int | None]] = [(lowered, None), (smaller, None)]
    cases += [(graph, s) for s in schedules for graph in (lowered, smaller)]
    for graph, schedule in cases:
        for a, b in zip(expected, run(graph, program, schedule), strict=True):
            assert a.dtype == b.dtype
            assert a.shape == b.shape
            assert a.tobytes() == b.tobytes()


SCHEDULES = st.lists(st.integers(0, 2**32), min_size=3, max_size=3)


@given(programs(), st.integers(1, 4), SCHEDULES)
@examples(150)
def test_values(program: Program, parallel: int, schedules: list[int]) -> None:
    check(program, parallel, schedules)


@given(programs(effects=True), st.integers(1, 4), SCHEDULES)
@examples(150)
def test_effects(program: Program, parallel: int, schedules: list[int]) -> None:
    check(program, parallel, schedules)


@given(programs())
@settings(max_examples=30)
def test_it_is_whole(program: Program) -> None:
    """Nothing structured is left, every op knows its line, twice is once."""
    lowered = lower_control_flow(program.graph)
    assert not {op.name for op in lowered.ops} & {"cond", "while", "scan"}
    assert all(op.locations for op in lowered.walk())
    assert lower_control_flow(lowered) is lowered


@given(programs(), st.integers(1, 4), SCHEDULES)
@examples(60)
def test_what_is_said_to_be_live_is(program: Program, parallel: int, schedules: list[int]) -> None:
    """Every value outside of frames that the analysis takes for live has one in each run."""
    lowered = lower_control_flow(program.graph, parallel_iterations=parallel)
    frames = find_frames(lowered.block)
    deadness = Deadness(frames)
    live = [
        value
        for op in lowered.ops
        for value in op.results
        if frames.of_value[value] is frames.root and deadness.always_live(value)
    ]
    block = Block(lowered.block.args, lowered.block.ops, (*lowered.block.results, *live))
    graph = replace(lowered, block=block)
    for pred in (True, False):
        inputs = [np.array(pred), *program.inputs[1:]]
        for schedule in schedules:
            assert all(r is not None for r in interpret(graph, inputs, schedule=schedule))
