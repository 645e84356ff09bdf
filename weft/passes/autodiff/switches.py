"""Gradients of the ops that branches and loops become, for graphs written with `wf.tf1.switch` and
`wf.tf1.merge`. Loops of them are differentiated as `while` ops (`raised_loops`)."""

from __future__ import annotations

from collections.abc import Sequence

from weft.ir.errors import GradientError
from weft.ir.ops.control_flow import DATAFLOW
from weft.passes.autodiff.rule import Rule, Site
from weft.passes.rewriting.expression import Expr


def _of_frame(s: Site) -> Sequence[Expr | None]:
    """Loops whose exits are differentiated are raised before (`raised_loops`), so what is
    differentiated here is in the loop."""
    raise GradientError(
        f"the gradient of a value in a loop by hand leads through op '{s.op.name}' out of its "
        "iteration",
        hint="take the gradient of what comes out by wf.tf1.exit, or with respect to values of the "
        "same iteration",
        location=s.op.locations,
    )


def _switch(s: Site) -> Sequence[Expr | None]:
    """Merge the cotangents of the two sides, each switched by the same predicate: one that does not
    come from its side is live on both (TensorFlow's _SwitchGrad)."""
    data, pred = s.operands
    sides = [data.full(0) if g is None else g for g in s.cotangents]
    switched = [
        data.builder.emit("switch", (g.value, pred.value), locations=data.locations)[i]
        for i, g in enumerate(sides)
    ]
    merged = data.builder.emit("merge", switched, {"loop": False}, locations=data.locations)
    return [data.wrap(merged[0]), None]


def _merge(s: Site) -> Sequence[Expr | None]:
    """Each operand gets the cotangent where it was the one that was live (TensorFlow's
    _MergeGrad)."""
    if s.attrs["loop"]:
        return _of_frame(s)
    g, index = s.cotangents[0], s.results[1]
    if g is None:
        return [None] * len(s.operands)
    found: list[Expr | None] = []
    for i, needed in enumerate(s.needed):
        given = (g.value, index.equals(i).value)
        found.append(
            g.wrap(g.builder.emit("switch", given, locations=g.locations)[1]) if needed else None
        )
    return found


#: Of the ops that branches and loops become.
DATAFLOW_GRADIENTS: dict[str, Rule] = {
    **dict.fromkeys(sorted(DATAFLOW), _of_frame),
    "switch": _switch,
    "merge": _merge,
}
