"""What the interpreter gives of a graph, and of which results the bits are defined."""

from __future__ import annotations

from typing import Any

import numpy as np
from graphs import Case

from weft.ir.graph import Graph
from weft.ir.interpreter.evaluate import interpret
from weft.ir.interpreter.state import DictState
from weft.ir.types import TensorType


def results(graph: Graph, case: Case) -> list[Any]:
    """The graph's results and then the variables' values."""
    state = DictState(case.state)
    found = interpret(graph, case.inputs, state)
    return [*found, *(state.values[k] for k in sorted(state.values))]


def exactly(a: Any, b: Any) -> bool:
    """Equal to the bit, but for which NaN it is."""
    if a is None or b is None or a.dtype == object:
        return bool(np.all(a == b))
    if a.dtype.kind == "c":
        return exactly(a.real, b.real) and exactly(a.imag, b.imag)
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    nan = a != a
    same = (a == b) & (np.signbit(a) == np.signbit(b)) if a.dtype.kind in "fV" else a == b
    return bool(np.all(same | (nan & (b != b))))


def bits_are_defined(graph: Graph) -> bool:
    """Whether the interpreter gives the same bits for the same meaning: NumPy's floating sums
    depend on strides, and x ** 3 is simplified to two products."""
    inexact = ("sum", "prod", "matmul", "power")
    return not any(
        op.name in inexact
        and isinstance(t := op.operands[0].type, TensorType)
        and t.dtype.is_inexact
        for op in graph.walk()
    )
