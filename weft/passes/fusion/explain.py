"""Fusion explained: which ops that could have shared a kernel do not, and by which rule.

Everything is derived from the groups that `fuse` makes of the same graph. What costs nothing is
left out: variables are read and written where they are, views and index maps are read through."""

from __future__ import annotations

from collections.abc import Iterator

from weft.ir.analysis.index_maps import is_index_map
from weft.ir.dataclass import dataclass
from weft.ir.graph import Graph, Operation, Value
from weft.ir.ops.control_flow import CONTROL
from weft.passes.fusion.fuse import Group, Grouping
from weft.passes.fusion.horizontal import small_siblings
from weft.passes.rewriting.rewrite import is_view

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
