"""Random dataflow graphs on the executor against the interpreter: values, effects, errors."""

from __future__ import annotations

import ctypes
import random
from typing import Any

import numpy as np
from dataflow_nets import UNSET, Net, make_net

from weft.ir.errors import InvalidArgumentError
from weft.ir.interpreter.evaluate import interpret
from weft.ir.interpreter.state import DictState
from weft.runtime.dataflow import layout as at
from weft.runtime.dataflow.executor import DataflowStep
from weft.runtime.dataflow.state import State
from weft.runtime.resources.variables import VariableState
from weft.runtime.step import RunContext

Array = np.ndarray[Any, Any]
#: Results and variables afterwards; None: InvalidArgumentError.
Outcome = tuple[list[Any], dict[str, Array]] | None


def before(net: Net) -> dict[str, Array]:
    return {
        name: np.full(t.static_shape, 0 if t.dtype.kind == "bool" else UNSET, t.dtype.numpy)
        for name, t in net.variables.items()
    }


def interpreted(net: Net, schedule: int | None) -> Outcome:
    held = DictState(before(net))
    try:
        results = interpret(net.graph, net.inputs, held, schedule=schedule)
    except InvalidArgumentError:
        return None
    return results, held.values


def same(a: Outcome, b: Outcome) -> bool:
    if a is None or b is None:
        return a is b
    first, second = ([*results, *held.values()] for results, held in (a, b))
    return len(first) == len(second) and all(map(_equal, first, second))


def _equal(a: Any, b: Any) -> bool:
    if a is None or b is None:
        return a is b
    return (
        a.dtype == b.dtype
        and a.shape == b.shape
        and np.array_equal(a, b, equal_nan=a.dtype.kind == "f")
    )


def oracle(net: Net) -> tuple[Outcome, bool]:
    """What the interpreter gives, and whether it gives that in several orders."""
    found = [interpreted(net, schedule) for schedule in (None, 1, 2)]
    return found[0], all(same(found[0], other) for other in found[1:])


def variables_of(net: Net) -> dict[str, VariableState]:
    return {
        name: VariableState(name, net.variables[name].dtype, value.shape, value)
        for name, value in before(net).items()
    }


def agree(net: Net) -> str:
    """Compares; what kind of net it was."""
    wanted, ordered = oracle(net)
    if not ordered:
        return "effects without an order"
    held = variables_of(net)
    step = DataflowStep(net.graph, held)
    for _ in range(2):  # the second time on used memory
        for name, value in before(net).items():
            held[name].write(value)
        found: Outcome = None
        try:
            results = step.run(
                [np.ascontiguousarray(x) for x in net.inputs], RunContext(timeout=20)
            )
            found = results, {name: state.read() for name, state in held.items()}
        except InvalidArgumentError:
            pass
        assert same(found, wanted), f"got {found}, wanted {wanted}"
    return "error" if wanted is None else "values"


def seeded(seed: int, size: int) -> Net | None:
    return make_net(random.Random(seed).randint, size)


# ------------------------------------------------------------------------------------------ memory
def held(state: State) -> tuple[int, int, int]:
    """How many cells and blocks a state has, and how many of the cells are in use."""
    cells = blocks = used = 0
    cell, raw = state.word(at.S_ALL_CELLS), state.word(at.S_ALL_BLOCKS)
    while cell:
        words = (ctypes.c_int64 * (at.CELL_HEADER // 8)).from_address(cell)
        cells, used = cells + 1, used + (words[at.C_COUNT // 8] != 0)
        cell = words[at.C_ALL // 8]
    while raw:
        blocks, raw = blocks + 1, (ctypes.c_int64 * 2).from_address(raw)[1]
    return cells, blocks, used
