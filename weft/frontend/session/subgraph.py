"""The part of a trace that some values need."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from typing import Any

import numpy as np

from weft.frontend.tensor import Tensor
from weft.ir.graph import Operation, Value
from weft.ir.interpreter.evaluate import interpret
from weft.ir.ops import lookup
from weft.ir.ops.builder import Builder
from weft.passes.sizes.tie_sizes import needed_sizes, size_givers

_STATE = frozenset({"reads_state", "writes_state"})


def needed_ops(
    ops: Sequence[Operation], values: Iterable[Value], given: Container[Value] = ()
) -> tuple[list[Operation], set[Value]]:
    """The ops, in order, that compute or order `values`, or make sizes that these need, and every
    value met on the way.

    The search stops at the values that are `given`. A merge of a loop needs its next_iteration.
    """
    turns = {op.operands[1]: op.result for op in ops if op.name == "next_iteration"}
    wanted = set(values)
    while True:
        kept, met = _reached(ops, wanted, given)
        more = {turn for merged, turn in turns.items() if merged in met and merged not in given}
        if more <= met:
            return kept, met
        wanted |= more


def _reached(
    ops: Sequence[Operation], values: Iterable[Value], given: Container[Value]
) -> tuple[list[Operation], set[Value]]:
    met = set(values)
    sizes, whole = size_givers(ops, given)
    kept: list[Operation] = []
    for op in reversed(ops):
        if any(r in met and r not in given for r in op.results):
            kept.append(op)
            met.update(op.operands)
            met.update(op.control)
            if sizes:
                met.update(sizes[s] for s in needed_sizes(op, whole) if s in sizes)
    return kept[::-1], met


def constant_value(t: Tensor) -> np.ndarray[Any, Any] | None:
    """The value of a tensor if it depends on no input and no state, even while it is symbolic."""
    if t._data is not None:
        return t._data
    assert t._value is not None
    assert t._trace is not None
    ops, met = needed_ops(t._trace.builder.ops, [t._value])
    if any(v.op is None for v in met) or any(lookup(op.name).traits & _STATE for op in ops):
        return None
    builder = Builder()
    mapping: dict[Value, Value] = {}
    for op in ops:
        mapping.update(zip(op.results, builder.clone(op, mapping), strict=True))
    (array,) = interpret(builder.graph("constant_value", (), [mapping[t._value]]), [])
    return np.asarray(array)
