"""What `lower_control_flow` leaves. That programs mean the same in every order in which ready ops
may run is in `test_ways.py`, the golden texts in tests/cases/lower_control_flow.weft."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from corpus import SMALL, small
from example_counts import examples
from graphs import Case
from hypothesis import given, settings
from hypothesis import strategies as st
from structured_programs import programs

import weft as wf
from weft.ir.analysis.deadness import Deadness
from weft.ir.analysis.frames import find_frames
from weft.ir.graph import Block
from weft.ir.interpreter.evaluate import interpret
from weft.passes.control.lower_control_flow import lower_control_flow, unroll
from weft.passes.manager import run_passes
from weft.passes.pipelines import STANDARD

SCHEDULES = st.lists(st.integers(0, 2**32), min_size=3, max_size=3)


@given(programs())
@settings(max_examples=30)
def test_it_is_whole(program: Case) -> None:
    """Nothing structured is left, every op knows its line, twice is once."""
    lowered = lower_control_flow(program.graph)
    assert not {op.name for op in lowered.ops} & {"cond", "while", "scan"}
    assert all(op.locations for op in lowered.walk())
    assert lower_control_flow(lowered) is lowered


@given(programs(), st.integers(1, 4), SCHEDULES)
@examples(60)
def test_what_is_said_to_be_live_is(program: Case, parallel: int, schedules: list[int]) -> None:
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


def test_sums_of_a_loop_in_registers_stay_there() -> None:
    (x,) = SMALL
    graph = wf.compile(small).trace(x)
    fused, _ = run_passes(graph, STANDARD)
    new = unroll(fused, lambda op: True)
    names = [op.name for op in new.walk()]
    assert names.count("unrolled") >= 2
    assert unroll(fused, lambda op: False) is fused
    for got, wanted in zip(interpret(new, [x]), interpret(fused, [x]), strict=True):
        assert got.tobytes() == wanted.tobytes()
