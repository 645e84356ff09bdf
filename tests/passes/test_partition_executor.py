"""Parts on the dataflow executor give what the interpreter gives of the whole."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from placed_programs import place_at_random
from structured_programs import Program, programs
from tasks_here import run_steps

from weft.ir.dtypes import as_dtype
from weft.ir.interpreter.evaluate import interpret
from weft.ir.interpreter.state import DictState
from weft.passes.partition.partition import partition
from weft.runtime.dataflow.executor import dataflow_step
from weft.runtime.resources.variables import VariableState


def equal(a: Any, b: Any) -> bool:
    """Integers and bools bit for bit, floats up to how often kernels round."""
    if a.dtype.kind == "f":
        return bool(np.allclose(a, b, rtol=1e-5, equal_nan=True))
    return a.dtype == b.dtype and a.shape == b.shape and bool(np.array_equal(a, b))


def check(program: Program, seed: int, count: int) -> None:
    placed = place_at_random(program.graph, seed, count, stay=(seed % 4) / 4)
    state = DictState(program.state)
    expected = interpret(program.graph, program.inputs, state)
    made = partition(placed)
    held = {
        name: VariableState(name, as_dtype(value.dtype), value.shape, value.copy())
        for name, value in program.state.items()
    }
    steps = [dataflow_step(part.graph, held, {}, "auto") for part in made.parts]
    found, exchange = run_steps(made.parts, steps, program.inputs, 4.0)
    assert not exchange.left()
    assert all(map(equal, expected, found))
    for name, value in state.values.items():
        assert equal(value, held[name].read())


SEEDS = st.integers(0, 2**32)


@given(programs(), SEEDS, st.integers(2, 3))
@settings(max_examples=6, phases=(Phase.generate,))
def test_values(program: Program, seed: int, count: int) -> None:
    check(program, seed, count)


@given(programs(effects=True), SEEDS, st.integers(2, 3))
@settings(max_examples=6, phases=(Phase.generate,))
def test_effects(program: Program, seed: int, count: int) -> None:
    check(program, seed, count)
