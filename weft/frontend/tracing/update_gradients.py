"""Gradients with respect to a variable that go through updates of it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from weft.frontend.ops.dispatch import apply
from weft.frontend.session.subgraph import needed_ops
from weft.frontend.tensor import Tensor
from weft.frontend.tracing.trace import Trace
from weft.frontend.variable import Variable
from weft.ir.analysis.effects import accesses
from weft.ir.errors import GradientError
from weft.ir.graph import Operation, Value


def of_value_before(source: Tensor, g: Tensor) -> Tensor:
    """The gradient with respect to a variable's value, from that of `source`: a read, or what an
    update gives, which holds the value before it but for the rows that it replaced."""
    op = None if source._value is None else source._value.op
    if op is None or op.name != "scatter_update" or source._trace is None:
        return g
    indices, rows = (source._trace.tensor(v) for v in op.operands[1:])
    zeros = apply("broadcast_to", Tensor(np.zeros((), rows.dtype.numpy)), shape=rows.shape)
    columns = apply("reshape", indices, shape=(*indices.shape, 1))
    return apply("scatter_nd_update", g, columns, zeros)


def refuse_live(trace: Trace, xs: Sequence[object], ys: Sequence[Tensor]) -> None:
    """GradientError for a variable of `xs` that changes within a branch or loop on the way to `ys`:
    what it was at each moment is not kept."""
    root = trace.root()
    holding: dict[Value, list[Operation]] = {}
    for op in root.builder.ops:
        for value in op.operands if op.regions else ():
            holding.setdefault(value, []).append(op)
    for x in xs:
        if not isinstance(x, Variable) or trace is not root or x.state is None:
            continue
        ref = root.effects.refs.get(root.effects.first(x))
        holders = set(holding.get(ref, ())) if ref is not None else set()
        if not holders:
            continue
        ops, _ = needed_ops(root.builder.ops, [root.lift(y) for y in ys])
        for op in ops:
            if op in holders and any(access.writes for access in accesses(op)):
                raise GradientError(
                    f"the gradient with respect to variable '{x.name}' leads through op "
                    f"'{op.name}', in which it changes, and what it was is not kept",
                    hint="give the gradient a tensor: read the variable before the loop or branch",
                    location=op.locations,
                )
