"""Functions traced, and graphs run as native code on variables of their own."""

from __future__ import annotations

from typing import Any

import numpy as np
from graphs import Case

import weft as wf
from weft.codegen.tiles.panels import origin_of
from weft.ir.graph import Graph
from weft.passes.sizes import specialize_inputs
from weft.runtime.native.executable import Executable, compile_graph
from weft.runtime.resources.variables import VariableState


def traced(f: Any, *arguments: Any) -> Graph:
    return wf.compile(f).trace(*arguments)


def compiled(f: Any, *arguments: Any) -> Executable:
    """The step of a function traced for these arguments."""
    return compile_graph(traced(f, *arguments))


def compiled_for(graph: Graph, *shapes: tuple[int, ...]) -> list[Executable]:
    """The steps of a graph of one input with open sizes, for each of these shapes."""
    return [compile_graph(specialize_inputs(graph, [shape])) for shape in shapes]


def packed_in(step: Executable) -> list[Any]:
    """The packed constants of a step's plan."""
    return [a for a in step.plan.table.arrays if origin_of(a) is not None]


def states(case: Case) -> dict[str, VariableState]:
    made = {}
    for op in case.graph.ops:
        if op.name == "variable":
            name, ref = str(op.attrs["name"]), op.result.type
            state = VariableState(name, ref.tensor.dtype, ref.tensor.static_shape)  # type: ignore[union-attr]
            state.array = case.state[name].copy()
            made[name] = state
    return made


def run(step: Executable, variables: dict[str, VariableState], case: Case) -> list[Any]:
    """The results, then the variables; the variables are set back to what they were before."""
    results = step.run([np.array(x, order="C") for x in case.inputs])
    for name, state in variables.items():
        assert state.array is not None
        results.append(state.array)
        state.array = case.state[name].copy()
    return results
