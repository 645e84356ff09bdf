"""Gradients of the ops that branches and loops become, for graphs written with `wf.tf1.switch` and
`wf.tf1.merge`."""

from __future__ import annotations

from collections.abc import Sequence

from weft.ir.errors import GradientError
from weft.ir.ops.control_flow import DATAFLOW
from weft.passes.autodiff.rule import Rule, Site
from weft.passes.rewriting.expression import Expr


def _of_loop(s: Site) -> GradientError:
    return GradientError(
        f"op '{s.op.name}' of a loop by hand has no gradient: gradients are taken of wf.while_loop",
        hint="write the loop with wf.while_loop, wf.fori_loop or wf.scan",
        location=s.op.locations,
    )


def _of_frame(s: Site) -> Sequence[Expr | None]:
    raise _of_loop(s)


def _switch(s: Site) -> Sequence[Expr | None]:
    """Merge the cotangents of the two sides, each switched by the same predicate: one that does not
    come from its side is live on both (TensorFlow's _SwitchGrad)."""
    data, pred = s.operands
    if pred.value.op is not None and pred.value.op.name == "loop_cond":
        raise _of_loop(s)
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
        raise _of_loop(s)
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


#: Of the ops that branches and loops become. Those of frames have no gradient.
DATAFLOW_GRADIENTS: dict[str, Rule] = {
    **dict.fromkeys(sorted(DATAFLOW), _of_frame),
    "switch": _switch,
    "merge": _merge,
}
