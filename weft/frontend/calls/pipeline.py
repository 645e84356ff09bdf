"""The `passes=` of `wf.compile`: names and functions as a pipeline."""

from __future__ import annotations

from collections.abc import Sequence

from weft.ir.errors import PassError, suggest
from weft.ir.locations import caller_location
from weft.passes.manager import STANDARD, Pass


def pipeline_of(passes: str | Sequence[Pass | str] | None) -> Sequence[Pass]:
    """The passes in order; None: the standard ones. PassError for what is no pass.

    A name may be that of a pipeline, "standard" or "reproducible", and a string may hold several
    with commas, as for `weft opt --passes`.
    """
    if passes is None:
        return STANDARD
    given = passes.split(",") if isinstance(passes, str) else passes
    if callable(given):
        given = [given]
    return tuple(run for item in given for run in _named(item))


def _named(given: Pass | str) -> Sequence[Pass]:
    # who names none does not wait for these modules, unless a step has to be planned
    from weft.passes.pipelines import PASSES, PIPELINES

    if isinstance(given, str):
        name = given.strip()
        if name in PIPELINES:
            return PIPELINES[name]
        if name not in PASSES:
            raise PassError(
                f"there is no pass '{name}'{suggest(name, list(PASSES))}",
                hint=f"the passes are: {', '.join(PASSES)}; pipelines: {', '.join(PIPELINES)}",
                location=caller_location(),
            )
        return (PASSES[name],)
    if not callable(given):
        raise PassError(
            f"wf.compile: {given!r:.60} in passes= is no pass",
            hint="a pass is a name, or a function from graph to graph",
            location=caller_location(),
        )
    return (given,)
