"""Gather fusion: looked-up rows are read where they are by the nests, not stored first.

Before::

    %1 = take(%table, %ids) {axis=0} : f32[512,256]
    %2 = fused(%1, %b) { add; tanh } : f32[512,256]

After: ``%2 = fused(%table, %ids, %b) { take; add; tanh }``, whose loads go through the index. The
indices are checked before the nest by a kernel of their own. The rules:

* only nests read the result, none of them takes a product over (`weft.passes.fusion.epilogues`);
* they read it along its rows, not across;
* its table is not itself read through another gather;
* an index moves a cache line at least (a loop with a gather of single elements in it vectorises
  badly); how many indices there are does not matter, or another batch size would compile anew;
* what changes the table or the indices in place can wait for those nests (or it would need a copy).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import field
from math import prod
from typing import TYPE_CHECKING

from weft.ir.analysis.index_maps import is_gather, is_index_map, read_of, shape_of
from weft.ir.dataclass import dataclass
from weft.ir.graph import Operation, Value
from weft.ir.sizes import hint
from weft.ir.type_rules import int_attr
from weft.ir.types import TensorType
from weft.passes.fusion.liveness import Writers, makers_of, root_of

if TYPE_CHECKING:
    from weft.passes.fusion.fuse import Group, Grouping

#: Bytes next to each other that an index moves, at least.
CACHE_LINE = 64
PRODUCTS = frozenset({"matmul", "conv", "conv_input"})


@dataclass(slots=True)
class Gathers:
    """The decisions on gathers. inside: the gathers that nests read through. stored: why others are
    not. order: (before, after) pairs of groups: a nest that reads a table, and what changes that.
    """

    inside: set[Operation] = field(default_factory=set)
    stored: dict[Operation, str] = field(default_factory=dict)
    order: list[tuple[Group, Group]] = field(default_factory=list)


def move_gathers(grouping: Grouping) -> Gathers:
    """Decide for each gather of a finished grouping; those inside lose their groups."""
    gathers = Gathers()
    candidates = [op for op in grouping.graph.ops if is_gather(op) and _is_alone(grouping, op)]
    mover = _Mover(grouping, gathers) if candidates else None
    for op in candidates:
        assert mover is not None
        why = mover.move(op)
        if why:
            gathers.stored[op] = why
    return gathers


def _is_alone(grouping: Grouping, op: Operation) -> bool:
    return op in grouping.group and grouping.group[op].space is None


class _Mover:
    def __init__(self, grouping: Grouping, gathers: Gathers) -> None:
        self.grouping, self.gathers = grouping, gathers
        self.graph = grouping.graph
        self.writers = Writers(self.graph)
        self.users: dict[Value, list[Operation]] = {}
        for op in self.graph.ops:
            for value in dict.fromkeys((*op.operands, *op.control)):
                self.users.setdefault(value, []).append(op)
        self.before = {g: grouping.needed_groups(g) for g in set(grouping.group.values())}

    def move(self, op: Operation) -> str:
        """Let the nests that read the gather `op` read through it, or say why they do not."""
        why = "it has its place in the order of effects" if op.control else _why_not(op)
        if why:
            return why
        behind = read_of(op.operands[0]).source.op
        if behind is not None and behind in self.gathers.inside:
            return f"its table is what '{behind.name}' picks in a nest"
        readers: dict[Group, None] = {}
        for reader, value in self._reads(op.result):
            group = self.grouping.group.get(reader)
            if group is None or group.space is None or value not in reader.operands:
                return f"'{reader.name}' needs it in memory"
            if _crosses(value):
                return f"'{reader.name}' reads it across its rows"
            readers[group] = None
        if not readers or self._is_result(op.result):
            return "the caller needs it in memory"
        return self._why_readers(op, list(readers)) or self._place(op, list(readers))

    def _reads(self, value: Value) -> Iterator[tuple[Operation, Value]]:
        """The ops that read `value`, through index maps too, and what each of them reads."""
        for op in self.users.get(value, ()):
            if is_index_map(op) and op not in self.grouping.group:
                yield from self._reads(op.result)
            else:
                yield op, value

    def _is_result(self, value: Value) -> bool:
        return value in self.graph.results

    def _why_readers(self, op: Operation, readers: list[Group]) -> str:
        for group in readers:
            products = [v for v in self.grouping.inputs(group) if _is_product(v)]
            alone = [v for v in products if len(self.users[v]) == 1]
            if alone and group.row_space is None:
                assert alone[0].op is not None
                return f"its reader is applied to the blocks of '{alone[0].op.name}' in the cache"
        return ""

    # -- order ------------------------------------------------------------------------------------

    def _place(self, op: Operation, readers: list[Group]) -> str:
        """Put the readers before whatever changes the operands in place."""
        roots = [root_of(v) for v in op.operands]
        must = self._groups(writer for root in roots for writer in self.writers.of(root))
        ancestors = self._ancestors(readers)
        if must & ancestors:
            return "what it reads from has been changed in place by then"
        # a carry of a loop, or what is donated: else a second buffer is needed
        given = {root.type for root in roots if root.op is None}
        results = [v for v in self.graph.results if v.type in given]
        may = self._groups(maker for v in results for maker in makers_of(v))
        writers = must | (may - ancestors)
        for after in writers:
            self.before[after].update(readers)
            self.gathers.order += [(before, after) for before in readers]
        self.gathers.inside.add(op)
        self.grouping.live.pop(self.grouping.group.pop(op), None)
        return ""

    def _groups(self, ops: Iterable[Operation]) -> set[Group]:
        return {self.grouping.group[op] for op in ops if op in self.grouping.group}

    def _ancestors(self, groups: list[Group]) -> set[Group]:
        """The groups, and all that must run before one of them."""
        todo, seen = list(groups), set(groups)
        while todo:
            more = self.before[todo.pop()] - seen
            seen |= more
            todo += more
        return seen


def _is_product(value: Value) -> bool:
    return value.op is not None and value.op.name in PRODUCTS


def _sizes(value: Value) -> tuple[int, ...]:
    assert isinstance(value.type, TensorType)
    return value.type.static_shape


def _run_bytes(op: Operation) -> int:
    """How many bytes next to each other one index stands for."""
    table = op.operands[0]
    assert isinstance(table.type, TensorType)
    first = int_attr(op.attrs, "axis") + 1 if op.name == "take" else _sizes(op.operands[1])[-1]
    return prod(_sizes(table)[first:]) * table.type.dtype.itemsize


def _why_not(op: Operation) -> str:
    held = op.result.type
    types = [v.type for v in (*op.operands, op.result)]
    if not all(isinstance(t, TensorType) and t.is_static for t in types):
        return "its sizes are not known"
    assert isinstance(held, TensorType)
    if _run_bytes(op) < CACHE_LINE:
        return f"an index moves {hint(_run_bytes(op))} bytes only"
    if held.dtype.kind == "string":
        return "strings are objects"
    return ""


def _crosses(value: Value) -> bool:
    """Does a nest that reads `value` move through a gather's result by other than its last axis?"""
    wide = [k for k, d in enumerate(shape_of(value)) if d != 1]
    return bool(wide) and read_of(value).strides[wide[-1]] not in (0, 1)
