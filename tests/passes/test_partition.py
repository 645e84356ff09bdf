"""Partitioned programs mean what whole ones do: values, variables, gradients, bit for bit.

Programs and their devices are random; the parts run in one process (`ir.interpreter_tasks`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from example_counts import examples
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from placed_programs import place_at_random
from structured_programs import PAIR, Program, programs

import weft as wf
from weft.ir.analysis.verify import verify
from weft.ir.graph import Graph
from weft.ir.interpreter.evaluate import interpret
from weft.ir.interpreter.partitioned import interpret_parts
from weft.ir.interpreter.state import DictState
from weft.ir.program import Program as Partitioned
from weft.ir.text.parser import parse_graph
from weft.ir.text.printer import print_graph
from weft.passes.autodiff.reverse_mode import differentiate
from weft.passes.control.lower_control_flow import lower_control_flow
from weft.passes.partition.partition import partition
from weft.passes.rewriting.rewrite import extend
from weft.runtime.dataflow.host_dispatch import HostObjects

SEEDS = st.integers(0, 2**32)
SCHEDULES = st.lists(st.integers(0, 2**32), min_size=2, max_size=2)


def same(expected: list[Any], found: list[Any]) -> None:
    """The same arrays, bit for bit."""
    assert len(expected) == len(found)
    for a, b in zip(expected, found, strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            assert a.dtype == b.dtype
            assert a.shape == b.shape
            assert a.tobytes() == b.tobytes()


def run_whole(graph: Graph, program: Program) -> list[Any]:
    state = DictState(program.state)
    found = interpret(graph, program.inputs, state)
    return [*found, *(state.values[name] for name in sorted(state.values))]


def run_parts(made: Partitioned, program: Program, schedule: int | None = None) -> list[Any]:
    state = DictState(program.state)
    found = interpret_parts(made.parts, program.inputs, state, schedule=schedule)
    return [*found, *(state.values[name] for name in sorted(state.values))]


def check(graph: Graph, program: Program, seed: int, count: int, schedules: list[int]) -> None:
    placed = place_at_random(graph, seed, count, stay=(seed % 4) / 4)
    verify(placed)
    expected = run_whole(graph, program)
    made = partition(placed)
    for part in made.parts:
        verify(part.graph)
        assert parse_graph(print_graph(part.graph)) == part.graph
        assert not any(op.device or op.group for op in part.graph.walk())
    for schedule in (None, *schedules):
        same(expected, run_parts(made, program, schedule))


@given(programs(), SEEDS, st.integers(1, 3), SCHEDULES)
@examples(50)
def test_values(program: Program, seed: int, count: int, schedules: list[int]) -> None:
    check(program.graph, program, seed, count, schedules)


@given(programs(effects=True), SEEDS, st.integers(1, 3), SCHEDULES)
@examples(50)
def test_effects(program: Program, seed: int, count: int, schedules: list[int]) -> None:
    check(program.graph, program, seed, count, schedules)


@given(programs(effects=True), SEEDS, st.integers(2, 3), SCHEDULES)
@examples(30)
def test_switch_and_merge(program: Program, seed: int, count: int, schedules: list[int]) -> None:
    """Switches, merges and frames that were placed one by one, as users may write them."""
    check(lower_control_flow(program.graph), program, seed, count, schedules)


def with_gradient(program: Program) -> Graph:
    """The sum of the squares of all results that are pairs, with its gradient by the input x; its
    backward loops pop what the forward ones push."""
    graph = program.graph
    builder = extend(graph.block)
    builder.ops += graph.ops
    found = [v for v in graph.results if v.type == PAIR]
    assume(found)
    where = graph.ops[0].locations
    squares = [builder.emit("multiply", [v, v], locations=where)[0] for v in found]
    total = squares[0]
    for square in squares[1:]:
        (total,) = builder.emit("add", [total, square], locations=where)
    (loss,) = builder.emit("sum", [total], {"axes": (0,), "keepdims": False}, locations=where)
    return differentiate(builder.graph("loss", graph.arg_names, [loss]), [2])


@given(programs(), SEEDS, st.integers(2, 3), SCHEDULES)
@examples(30)
def test_gradients(program: Program, seed: int, count: int, schedules: list[int]) -> None:
    check(with_gradient(program), program, seed, count, schedules)


@given(programs(hosts=True, effects=True), SEEDS, st.integers(2, 3), SCHEDULES)
@examples(40)
def test_queues(program: Program, seed: int, count: int, schedules: list[int]) -> None:
    """Queues on their devices: the same elements are left in them."""
    made = partition(place_at_random(program.graph, seed, count, stay=(seed % 4) / 4))

    def outcome(run: Callable[[DictState, HostObjects], list[Any]]) -> list[Any]:
        queues = {name: wf.FIFOQueue(1 << 20, wf.int64, [[]])._queue for name in program.queues}
        state = DictState(program.state)
        found = run(state, HostObjects(queues, timeout=1.0))
        left = [np.array([int(x) for (x,) in q._elements]) for q in queues.values()]
        return [*found, *left, *(state.values[name] for name in sorted(state.values))]

    inputs = program.inputs
    expected = outcome(lambda held, host: interpret(program.graph, inputs, held, host=host))
    for schedule in (None, *schedules):

        def parts(held: Any, host: Any, order: int | None = schedule) -> Any:
            return interpret_parts(made.parts, inputs, held, schedule=order, host=host)

        found = outcome(parts)
        same(expected, found)


@pytest.mark.slow
@given(programs(effects=True), SEEDS, st.integers(1, 3), SCHEDULES)
@settings(max_examples=1000, deadline=None)
def test_many(program: Program, seed: int, count: int, schedules: list[int]) -> None:
    check(program.graph, program, seed, count, schedules)


@pytest.mark.slow
@given(programs(), SEEDS, st.integers(2, 3), SCHEDULES)
@settings(max_examples=300, deadline=None)
def test_gradients_of_many(program: Program, seed: int, count: int, schedules: list[int]) -> None:
    check(with_gradient(program), program, seed, count, schedules)
