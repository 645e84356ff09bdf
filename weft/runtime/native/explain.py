"""Explanation of a plan as text: passes, kernels, what was not fused and by which rule, memory.

What was not fused is derived from the groups that `fuse` makes of the same graph. What costs
nothing is left out: variables are read and written where they are, views and index maps are read
through."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from weft.codegen.call import Pool
from weft.codegen.kernels.user_kernels import choose_kernel
from weft.codegen.llvm.jit import kept_limit
from weft.codegen.llvm.scalar_texts import statement_name
from weft.codegen.numba.replacements import replacement, replacements
from weft.codegen.scalar.user_functions import how_it_runs
from weft.codegen.tiles.panels import origin_of
from weft.ir.analysis.index_maps import is_index_map
from weft.ir.cost.work import nanoseconds
from weft.ir.dataclass import dataclass
from weft.ir.dtypes import as_dtype
from weft.ir.errors import UnsupportedError
from weft.ir.graph import Graph, Operation, Value
from weft.ir.ops import REGISTERED
from weft.ir.ops.control_flow import CONTROL
from weft.ir.ops.io import PYTHON_CALLS
from weft.ir.types import TensorType
from weft.passes.fusion.attention import attention_reasons
from weft.passes.fusion.epilogues import epilogue_reasons, is_product, product_reasons
from weft.passes.fusion.fuse import Group, Grouping
from weft.passes.fusion.horizontal import small_siblings
from weft.passes.fusion.product_operands import copy_reasons, copy_reasons_on_gpu, narrow_reasons
from weft.passes.fusion.prologues import prologue_reasons
from weft.passes.fusion.recompute import recompute_reasons, rematerialization_reasons
from weft.passes.manager import PassReport
from weft.passes.memory.schedule import order_reasons
from weft.passes.rewriting.rewrite import is_view
from weft.passes.simplify.sparse_updates import sparse_reasons
from weft.runtime.native.step_plan import CompileReport


def explain_native(report: CompileReport) -> Iterator[str]:
    """A native plan: in short, then by sections."""
    apart = _not_fused(report.passes)
    yield from ("in short", *_in_short(report, apart))
    yield from ("", "passes", *pass_table(report.passes))
    effort = (
        f"{report.kernels_compiled} compiled for it, {report.kernels_loaded} loaded from disk, "
        f"{'plan from disk, ' if report.plan_loaded else ''}{report.seconds * 1e3:.0f} ms in all"
    )
    yield from ("", f"one call runs {len(report.calls)} native kernels ({effort})")
    yield f"  compiled for {report.isa}"
    yield from (f"  {line}" for line in report.describe_program())
    yield from _section("replaced kernels", _replaced(report))
    yield from ("", "not fused")
    yield from apart or ["  nothing: every edge that could be is"]
    yield from _section("read once by nests of several", _read_once(report.passes))
    yield from _section("products", product_lines(report.passes))
    yield from _section("constants packed when planned", _packed(report))
    yield from _section("registered ops", _registered(report.passes))
    yield from _section("scalar functions", _scalar_functions(report.passes))
    yield from _section("gradients of looked-up rows", _tables(report.passes))
    yield from _section("what nests hand to each other", _computed_again(report.passes))
    yield from ("", "memory", *_order(report.passes))
    yield from (f"  {line}" for line in report.memory.describe().splitlines())
    yield (
        f"  machine code: kept while a step runs it, then among the last {kept_limit()} kernels "
        "used (WEFT_KERNELS)"
    )


def _replaced(report: CompileReport) -> Iterator[str]:
    """The kernels that files of the user's replace, by what is replaced now."""
    if not replacements():
        return
    # who replaces nothing does not wait for what prints kernels
    from weft.runtime.native.kernels import printed_kernels

    for call in report.calls:
        if call.op is None or not call.call.kernel.key.startswith("numba-"):
            continue
        for source in printed_kernels(call.op, () if call.nest is None else call.nest.in_place):
            held = replacement(source.key)
            if held is not None and source.name == call.call.kernel.name:
                yield f"  {source.name} ({source.key}): {held[1]}, by `weft kernel use`"


def _section(title: str, lines: Iterable[str]) -> Iterator[str]:
    """A section; equal lines are one, with their number."""
    counts = Counter(lines)
    if counts:
        yield from ("", title)
        for line, count in counts.items():
            yield line if count == 1 else f"{line} ({count} times)"


#: So many kinds, lines and reasons are named in short.
_NAMED = 4


def _in_short(report: CompileReport, apart: Sequence[str]) -> Iterator[str]:
    """What runs, what takes the time by the table of costs (`weft/ir/cost`), memory, what is
    not fused."""
    kinds = Counter(_kind(call.call.kernel.key) for call in report.calls)
    yield f"  {len(report.calls)} kernel calls: {_counted(kinds)}"
    ops = report.passes[-1].graph.ops
    by_line: dict[str, float] = {}
    unknown = dict.fromkeys(op.name for op in ops if op.name in REGISTERED)
    for op in ops:
        if op.name in unknown:
            continue
        place = op.locations[0] if op.locations else None
        where = f"{os.path.basename(place.file)}:{place.line}" if place else "?"
        by_line[where] = by_line.get(where, 0.0) + nanoseconds([op])
    total = sum(by_line.values())
    if total > 0:
        most = sorted(by_line.items(), key=lambda row: -row[1])[:_NAMED]
        shares = [f"{where} {ns / total:.0%}" for where, ns in most if ns > 0]
        left = f"; not estimated: {', '.join(unknown)}" if unknown else ""
        yield f"  expected: {total / 1e3:,.0f} us on one core; of it {', '.join(shares)}{left}"
    python = [c.op for c in report.calls if c.op is not None and c.op.name in PYTHON_CALLS]
    if python:
        named = [f"{op.name}{_at(op)}" for op in python[:_NAMED]]
        more = f" and {len(python) - _NAMED} more" if len(python) > _NAMED else ""
        yield f"  calls Python, under the GIL: {', '.join(named)}{more}"
    memory = report.memory
    yield (
        f"  memory: {memory.arena_bytes:,} bytes for values in between (without reuse "
        f"{memory.unshared_bytes:,}), {memory.result_bytes:,} for results"
    )
    if apart:
        reasons = Counter(re.sub(r"'\w+'", "one", line.rpartition("): ")[2]) for line in apart)
        told: Counter[str] = Counter()
        for why, count in reasons.items():
            told[f"because {why.partition(':')[0]}"] += count
        yield f"  not fused: {len(apart)} pairs: {_counted(told)}"


def _at(op: Operation) -> str:
    place = op.locations[0] if op.locations else None
    return f" at {os.path.basename(place.file)}:{place.line}" if place else ""


def _counted(counts: Counter[str]) -> str:
    named = [f"{count} {what}" for what, count in counts.most_common(_NAMED)]
    others = sum(counts.values()) - sum(count for _, count in counts.most_common(_NAMED))
    return ", ".join([*named, f"{others} others"] if others else named)


def _kind(key: str) -> str:
    """The kind of a kernel, by its key."""
    for prefix, kind in (("nest-", "loop nests"), ("rows-", "row kernels")):
        if key.startswith(prefix):
            return kind
    return key.partition("-")[0]


def product_lines(reports: Sequence[PassReport]) -> list[str]:
    """Of each matrix product, whether the nest that follows it is part of its kernel; of nests and
    copies that products read, or that read nothing else, whether products do their work.
    """
    lines = []
    for name, reasons, what in (
        ("fuse_attention", attention_reasons, "softmax"),
        ("fuse_matmul", product_reasons, ""),
        ("fuse_epilogues", epilogue_reasons, ""),
        ("stride_products", copy_reasons, "copy"),
        ("stride_all_products", copy_reasons_on_gpu, "copy"),
        ("narrow_products", narrow_reasons, ""),
        ("fuse_prologues", prologue_reasons, "operand"),
    ):
        before = _before(reports, name)
        for op, why in reasons(before) if before else ():
            where = f" ({op.locations[0]})" if op.locations else ""
            lines.append(f"  {what or op.name} {op.result.type}{where}: {why}")
    return lines


def _packed(report: CompileReport) -> Iterator[str]:
    """Operands of products that no call packs, as they are constants."""
    for number, planned in enumerate(report.calls, 1):
        arrays = {
            id(a.array.array): a.array.array for a in planned.call.args if isinstance(a, Pool)
        }
        for array in arrays.values():
            found = origin_of(array)
            if found is not None:
                source, panels = found
                kind = TensorType(as_dtype(source.dtype), source.shape)
                width = f"panels of {panels.columns} columns, {array.nbytes:,} bytes"
                yield f"  kernel {number}: {kind} as {width}"


def _read_once(reports: Sequence[PassReport]) -> list[str]:
    """Pairs of ops that share a nest since both read the same, though nothing of each other."""
    before = _before(reports, "fuse")
    lines = []
    for first, second, nbytes in shared_reads(before) if before else ():
        where = f" ({second.locations[0]})" if second.locations else ""
        lines.append(f"  {first.name} beside {second.name}{where}: {nbytes} bytes less to read")
    return lines


def _registered(reports: Sequence[PassReport]) -> list[str]:
    """Of each op that the user registered, which kernel runs, by what is registered now."""
    lines = []
    for op in reports[-1].graph.walk():
        if op.name in REGISTERED:
            where = f" ({op.locations[0]})" if op.locations else ""
            types = ", ".join(str(v.type) for v in op.operands)
            try:
                why = choose_kernel(op)[1]
            except UnsupportedError:
                why = "its kernel was replaced since"
            lines.append(f"  {op.name} ({types}){where}: {why}")
    return lines


def _scalar_functions(reports: Sequence[PassReport]) -> list[str]:
    """Of each scalar function that Numba compiled, in which dtype and how it runs."""
    found: dict[str, None] = {}
    for op in reports[-1].graph.walk():
        if op.name == "scalar_function":
            where = f" ({op.locations[0]})" if op.locations else ""
            found[f"  {op.attrs['function']}{where}: {how_it_runs(*statement_name(op))}"] = None
    return list(found)


def _tables(reports: Sequence[PassReport]) -> list[str]:
    """Of each gradient that is made of looked-up rows, what of its table is updated."""
    before = _before(reports, "sparse_updates")
    lines = []
    for op, how in sparse_reasons(before) if before else ():
        where = f" ({op.locations[0]})" if op.locations else ""
        lines.append(f"  table {op.result.type}{where}: {how}")
    return lines


def _before(reports: Sequence[PassReport], name: str) -> Graph | None:
    """The graph that the first run of a pass was given, if it is in the pipeline."""
    position = next((i for i, r in enumerate(reports) if r.name == name), None)
    return reports[position - 1].graph if position else None


def _computed_again(reports: Sequence[PassReport]) -> list[str]:
    """Of large results that nests alone read, whether they are stored or computed again."""
    before = _before(reports, "recompute")
    lines = []
    for value, why in recompute_reasons(before) if before else ():
        op = value.op
        where = f" ({op.locations[0]})" if op is not None and op.locations else ""
        lines.append(f"  {value.type}{where}: {why}")
    return lines


def _order(reports: Sequence[PassReport]) -> list[str]:
    """What became of the order of the ops, and what is computed twice to save memory."""
    before = _before(reports, "schedule")
    lines = [f"  order: {why}" for why in order_reasons(before)] if before else []
    before = _before(reports, "rematerialize")
    return lines + [f"  {why}" for why in (rematerialization_reasons(before) if before else ())]


def pass_table(reports: Sequence[PassReport]) -> Iterator[str]:
    """What each pass did, as lines; those that changed nothing in one."""
    yield f"  {'pass':<18}{'ms':>8}{'ops':>8}{'kernels':>9}{'bytes':>12}{'peak':>12}"
    for r in reports:
        if r.changed or r.name == "traced":
            moved, peak = _number(r.bytes), _number(r.peak_bytes)
            counts = f"{r.seconds * 1e3:>8.2f}{r.ops_after:>8}{r.kernels:>9}{moved:>12}{peak:>12}"
            yield f"  {r.name:<18}{counts}"
    idle = [r for r in reports if not r.changed and r.name != "traced"]
    if idle:
        names = ", ".join(dict.fromkeys(r.name for r in idle))
        yield f"  unchanged, {sum(r.seconds for r in idle) * 1e3:.2f} ms: {names}"


def _number(value: int | None) -> str:
    return "?" if value is None else f"{value:,}"


def _not_fused(reports: Sequence[PassReport]) -> list[str]:
    """The edges between kernels, by the graph that `fuse` was given, each with the rule that keeps
    it; those that products have taken over since are left out.
    """
    before = _before(reports, "fuse")
    if before is None:
        return ["  the pipeline has no pass 'fuse'"]
    taken = _inside_products(reports[-1].graph)
    lines = []
    for edge in fusion_reasons(before):
        first, second = edge.producer, edge.consumer
        moved = {_key(op) for op in (first, second) if is_index_map(op)}
        if any({_key(first), _key(second)} <= held or moved & held for held in taken):
            continue
        where = f" ({second.locations[0]})" if second.locations else ""
        between = "beside" if edge.siblings else "->"
        lines.append(f"  {first.name} {between} {second.name}{where}: {edge.why}")
    if any(op.name in CONTROL for op in before.ops):
        lines.append("  (the bodies of loops and branches are not looked into)")
    return list(dict.fromkeys(lines))


def _key(op: Operation) -> tuple[object, ...]:
    """What is known of an op in every graph that holds it: passes copy ops."""
    return op.name, op.locations, *(str(v.type) for v in op.results)


def _inside_products(graph: Graph) -> list[set[tuple[object, ...]]]:
    """Of each product that has taken something over, the ops that its kernel does."""
    fused = [op.regions[0] for op in graph.ops if op.name == "fused"]
    return [{_key(op) for op in region.ops} for region in fused if any(map(is_product, region.ops))]


#: Ops that compute nothing: their results are in memory before the step, or written where they are.
STORAGE = frozenset({"variable", "read", "constant", "assign"})


@dataclass(frozen=True, slots=True)
class Apart:
    """Two ops in different kernels: `consumer` reads what `producer` makes, or, if `siblings`, both
    read the same. why: the rule that keeps them apart.
    """

    producer: Operation
    consumer: Operation
    why: str
    siblings: bool = False


def fusion_reasons(graph: Graph) -> list[Apart]:
    """The ops of an unfused graph that `fuse` leaves in different kernels though one reads what the
    other makes, or both read the same value over the same loops. Bodies of loops and branches are
    graphs of their own: nothing is said of them.
    """
    grouping = Grouping(graph)
    out: dict[tuple[Operation, Operation], Apart] = {}
    for group in dict.fromkeys(grouping.group.values()):
        for consumer in group.ops:
            if consumer.name in STORAGE or is_view(consumer):
                continue
            for value in dict.fromkeys(consumer.operands):
                for producer in _makers(grouping, group, value):
                    if grouping.group[producer] is not group:
                        why = _why(grouping, producer, consumer)
                        out.setdefault((producer, consumer), Apart(producer, consumer, why))
    return [*out.values(), *_siblings(grouping)]


def shared_reads(graph: Graph) -> list[tuple[Operation, Operation, int]]:
    """Of an unfused graph, pairs of ops that share a nest only since both read the same, and how
    many bytes the second does not read again.
    """
    return [(a, b, nbytes) for (a, b), nbytes in Grouping(graph).siblings.joined.items()]


def _makers(grouping: Grouping, reader: Group, value: Value) -> Iterator[Operation]:
    """The ops in groups that compute what `reader` reads as `value`, through all that moves no
    data: views, and, for a nest, index maps and gathers.
    """
    op = value.op
    if op is None or op.name in STORAGE:
        return
    inside = op not in grouping.group or (reader.space is not None and is_index_map(op))
    if inside or (is_view(op) and grouping.group[op].space is None):
        for operand in op.operands:
            yield from _makers(grouping, reader, operand)
    else:
        yield op


def _why(grouping: Grouping, producer: Operation, consumer: Operation) -> str:
    """The first rule that keeps the groups of two ops apart."""
    a, b = grouping.group[producer], grouping.group[consumer]
    if is_index_map(consumer):
        return f"what '{consumer.name}' makes is needed in memory: it is copied there"
    for op, group in ((producer, a), (consumer, b)):
        if op in grouping.gathers.stored:
            return f"'{op.name}' is stored: {grouping.gathers.stored[op]}"
        if op.name in CONTROL:
            kind = "branch" if op.name == "cond" else "loop"
            return f"'{op.name}' is a {kind}: what it reads and gives is stored"
        if group.space is None:
            return f"'{op.name}' is no loop nest: it is done by itself"
    return grouping.why_apart(a, b) or "they fit only since other ops have joined one of them"


def _siblings(grouping: Grouping) -> Iterator[Apart]:
    """Nests that read the same value over the same loops, but nothing of each other."""
    for (first, second), why in grouping.siblings.apart.items():
        if grouping.group[first] is not grouping.group[second]:
            yield Apart(first, second, why, True)
    for first, second, why in small_siblings(grouping):
        yield Apart(first, second, why, True)
