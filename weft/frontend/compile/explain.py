"""`f.explain` and `f.ir`: the report on a compiled function, and its graph after a pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft.ir.errors import PassError, suggest
from weft.ir.locations import Locations, caller_location
from weft.ir.program import Program
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


def explain(
    title: str, fields: Mapping[str, str], reasons: Sequence[str], location: Locations, step: Step
) -> str:
    """The whole report as text."""
    return "\n".join([*heading(title, fields, reasons, location), "", *step.explain()])
