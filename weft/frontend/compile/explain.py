"""`f.explain` and `f.ir`: the report on a compiled function, and its graph after a pass; sections
of the one, and scopes of the other, may be folded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

from weft.frontend.core.float64 import WIDE, wide_ops
from weft.ir.errors import InvalidArgumentError, PassError, TypeRuleError, suggest
from weft.ir.graph import Graph
from weft.ir.locations import Locations, caller_location
from weft.ir.program import Program
from weft.ir.text.printer import print_program
from weft.ir.types import TensorType
from weft.passes.manager import PassReport
from weft.runtime.step import Step

#: Which sections of a report are open: all, one, or several, by what their headings begin with.
Sections: TypeAlias = "str | Sequence[str] | None"


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


def ir_text(program: Program, loc: bool, fold: int | None) -> str:
    """What `ir` gives of a program. TypeRuleError for a `fold` that is no whole number,
    InvalidArgumentError for a negative one."""
    if fold is None:
        return print_program(program, loc)
    if isinstance(fold, bool) or not hasattr(fold, "__index__"):
        raise TypeRuleError(f"fold is a whole number, got {fold!r}", location=caller_location())
    if fold < 0:
        raise InvalidArgumentError(
            f"a text cannot be folded with {fold} names of scopes open",
            hint="0 has a line for each scope, 1 for each scope in another",
            location=caller_location(),
        )
    from weft.ir.text.folded import print_folded

    return print_folded(program, fold, loc)


def in_sections(report: str, sections: object) -> str:
    """A report in which the sections are open that are named, by what their headings begin with;
    of the others there is a line each. None: all are open. TypeRuleError for what is no text,
    InvalidArgumentError for a name that no heading begins with."""
    if sections is None:
        return report
    wanted = [sections] if isinstance(sections, str) else sections
    if not isinstance(wanted, Sequence) or not all(isinstance(name, str) for name in wanted):
        raise TypeRuleError(
            f"explain: sections are beginnings of headings, got {sections!r}",
            location=caller_location(),
        )
    parts: list[list[str]] = []
    for line in report.splitlines():
        if line.startswith(" ") and parts:
            parts[-1].append(line)
        elif line:
            parts.append([line])
    headings = [part[0] for part in parts if len(part) > 1]
    for name in wanted:
        if not name or not any(heading.startswith(name) for heading in headings):
            raise InvalidArgumentError(
                f"explain: no section begins with {name!r}{suggest(name, headings)}",
                hint=f"there are: {', '.join(repr(heading) for heading in headings)}",
                location=caller_location(),
            )
    lines: list[str] = []
    for heading, *inside in parts:
        is_open = any(heading.startswith(name) for name in wanted)
        count = "1 line" if len(inside) == 1 else f"{len(inside)} lines"
        lines += ["", heading, *inside, ""] if inside and is_open else []
        lines += [] if inside and is_open else [f"{heading} ... {count}" if inside else heading]
    return "\n".join(_one_empty(lines))


def _one_empty(lines: Sequence[str]) -> Iterator[str]:
    """Without an empty line at an end or after another."""
    last = ""
    for k, line in enumerate(lines):
        if line or (last and any(lines[k:])):
            yield line
        last = line


def explain(
    title: str,
    fields: Mapping[str, str],
    reasons: Sequence[str],
    location: Locations,
    step: Step,
    graph: Graph,
    way: Sequence[str] = (),
) -> str:
    """The whole report as text. graph: as it was traced. way: lines on how it is run, if that is
    not as one plan."""
    begin = [*heading(title, fields, reasons, location), *float64_lines(graph)]
    begin += ["", *way] if way else []
    return "\n".join([*begin, "", *step.explain()])
