"""`f.explain` and `f.ir`: the report on a compiled function, and its graph after a pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft.frontend.core.float64 import WIDE, wide_ops
from weft.ir.errors import PassError, suggest
from weft.ir.graph import Graph
from weft.ir.locations import Locations, caller_location
from weft.ir.program import Program
from weft.ir.types import TensorType
from weft.passes.manager import PassReport
from weft.runtime.step import Step


def program_after(reports: Sequence[PassReport], after: str | None) -> Program:
    """The program after the last run of the pass `after`; None: the final one. PassError if there
    is none."""
    if after is None:
        return reports[-1].program
    for report in reversed(reports):
        if report.name == after:
            return report.program
    names = list(dict.fromkeys(r.name for r in reports))
    raise PassError(
        f"the pipeline has no pass '{after}'{suggest(after, names)}",
        hint=f"it is: {', '.join(names)}",
        location=caller_location(),
    )


def heading(
    title: str, fields: Mapping[str, str], reasons: Sequence[str], location: Locations
) -> list[str]:
    """What a report begins with: the signature, why it was compiled, and where it was called."""
    lines = [title, "", "signature"]
    width = max((len(name) for name in fields), default=0)
    lines += [f"  {name:<{width}}  {what}" for name, what in fields.items()] or ["  no arguments"]
    lines += ["", "compiled because", *(f"  {reason}" for reason in reasons)]
    return lines + [f"  called at {place.describe()}" for place in location[:1]]


def float64_lines(graph: Graph) -> list[str]:
    """How much of a function computes in float64, if float32 takes part, too, and where it
    begins."""
    floats, wide, first = wide_ops(graph)
    types = [v.type.dtype for v in graph.args if isinstance(v.type, TensorType)]
    narrow = floats > wide or any(t.is_inexact and t not in WIDE for t in types)
    if not (wide and narrow):
        return []
    where = f", the first at {first[0].describe()}" if first else ""
    return ["", f"float64: {wide} of {floats} arrays of floats{where}"]


def explain(
    title: str,
    fields: Mapping[str, str],
    reasons: Sequence[str],
    location: Locations,
    step: Step,
    graph: Graph,
) -> str:
    """The whole report as text. graph: as it was traced."""
    begin = [*heading(title, fields, reasons, location), *float64_lines(graph)]
    return "\n".join([*begin, "", *step.explain()])
