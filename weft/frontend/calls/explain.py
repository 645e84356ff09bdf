"""What a compiled function tells about itself: passes, kernels, what was not fused, memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from weft.ir.errors import PassError, suggest
from weft.ir.graph import Graph
from weft.ir.source import Locations, caller_location
from weft.passes.fusion.fuse import fusion_reasons
from weft.passes.fusion.matmul import product_reasons
from weft.passes.manager import PassReport
from weft.passes.sparse_updates import sparse_reasons
from weft.runtime.executable import Executable


def graph_after(reports: Sequence[PassReport], after: str | None) -> Graph:
    """The graph after the last run of the pass `after`; None: the final one. PassError if there is
    none."""
    if after is None:
        return reports[-1].graph
    for report in reversed(reports):
        if report.name == after:
            return report.graph
    names = list(dict.fromkeys(r.name for r in reports))
    raise PassError(
        f"the pipeline has no pass '{after}'{suggest(after, names)}",
        hint=f"it is: {', '.join(names)}",
        location=caller_location(),
    )


def explain(
    title: str,
    fields: Mapping[str, str],
    reasons: Sequence[str],
    location: Locations,
    executable: Executable,
) -> str:
    """The whole report as text."""
    report = executable.report
    lines = [title, "", "signature"]
    width = max((len(name) for name in fields), default=0)
    lines += [f"  {name:<{width}}  {what}" for name, what in fields.items()] or ["  no arguments"]
    lines += ["", "compiled because", *(f"  {reason}" for reason in reasons)]
    if location:
        lines.append(f"  called at {location[0].describe()}")
    lines += ["", "passes", *_pass_table(report.passes)]
    effort = (
        f"{report.kernels_compiled} compiled for it, {report.kernels_loaded} loaded from disk, "
        f"{report.seconds * 1e3:.0f} ms in all"
    )
    lines += ["", f"one call runs {len(report.calls)} native kernels ({effort})"]
    lines += [f"  {line}" for line in report.describe_program()]
    lines += [
        "",
        "not fused",
        *(_not_fused(report.passes) or ["  nothing: every edge that could be is"]),
    ]
    products = _products(report.passes)
    lines += ["", "products", *products] if products else []
    tables = _tables(report.passes)
    lines += ["", "gradients of looked-up rows", *tables] if tables else []
    lines += ["", "memory", *(f"  {line}" for line in report.memory.describe().splitlines())]
    return "\n".join(lines)


def _products(reports: Sequence[PassReport]) -> list[str]:
    """Of each matrix product, whether the nest that follows it is part of its kernel."""
    position = next((i for i, r in enumerate(reports) if r.name == "fuse_matmul"), None)
    lines = []
    for op, why in product_reasons(reports[position - 1].graph) if position else ():
        where = f" ({op.locations[0]})" if op.locations else ""
        lines.append(f"  matmul {op.result.type}{where}: {why}")
    return lines


def _tables(reports: Sequence[PassReport]) -> list[str]:
    """Of each gradient that is made of looked-up rows, what of its table is updated."""
    position = next((i for i, r in enumerate(reports) if r.name == "sparse_updates"), None)
    lines = []
    for op, how in sparse_reasons(reports[position - 1].graph) if position else ():
        where = f" ({op.locations[0]})" if op.locations else ""
        lines.append(f"  table {op.result.type}{where}: {how}")
    return lines


def _pass_table(reports: Sequence[PassReport]) -> Iterator[str]:
    yield f"  {'pass':<18}{'ms':>8}{'ops':>8}{'kernels':>9}{'bytes':>12}{'peak':>12}"
    for r in reports:
        unchanged = "" if r.changed or r.name == "traced" else "  unchanged"
        moved, peak = _number(r.bytes), _number(r.peak_bytes)
        counts = f"{r.seconds * 1e3:>8.2f}{r.ops_after:>8}{r.kernels:>9}{moved:>12}{peak:>12}"
        yield f"  {r.name:<18}{counts}{unchanged}"


def _number(value: int | None) -> str:
    return "?" if value is None else f"{value:,}"


def _not_fused(reports: Sequence[PassReport]) -> list[str]:
    """The edges between kernels, by the graph that `fuse` was given, each with the rule that keeps
    it."""
    position = next((i for i, r in enumerate(reports) if r.name == "fuse"), None)
    if position is None:
        return ["  the pipeline has no pass 'fuse'"]
    group: dict[object, set[int]] = {}
    for op in reports[position].graph.ops:
        for inner in op.regions[0].ops if op.name == "fused" else (op,):
            group.setdefault((inner.name, inner.locations), set()).add(id(op))
    lines = []
    reasons = fusion_reasons(reports[position - 1].graph)
    for consumer in reports[position - 1].graph.ops:
        for value in consumer.operands:
            producer = value.op
            if producer is None or producer.name in ("constant", "variable"):
                continue
            mine = group.get((consumer.name, consumer.locations), set())
            if mine & group.get((producer.name, producer.locations), set()):
                continue
            where = f" ({consumer.locations[0]})" if consumer.locations else ""
            why = reasons(producer, consumer)
            lines.append(f"  {producer.name} -> {consumer.name}{where}: {why}")
    return list(dict.fromkeys(lines))
