"""The fused graph from the groups of `weft.passes.fusion.groups`: schedule, regions, outputs."""

from __future__ import annotations

from collections.abc import Sequence

from weft.ir.builder import Builder
from weft.ir.graph import Graph, Operation, Value
from weft.ir.index_maps import is_index_map
from weft.ir.source import merge_locations
from weft.passes.fusion.groups import Group, Grouping
from weft.passes.fusion.order import in_order


def emit_groups(grouping: Grouping) -> Graph:
    """The graph with one ``fused`` op for each group that is a loop nest."""
    return _Emission(grouping).run()


class _Emission:
    def __init__(self, grouping: Grouping) -> None:
        self.grouping = grouping
        self.graph = grouping.graph
        self.position = grouping.position
        self.consumers = self._consumers()

    def run(self) -> Graph:
        builder = Builder([a.type for a in self.graph.args])
        mapping: dict[Value, Value] = dict(zip(self.graph.args, builder.args, strict=True))
        for group in self._schedule():
            if group.space is None:
                (op,) = group.ops
                mapping.update(zip(op.results, builder.clone(op, mapping), strict=True))
            else:
                self._emit_nest(builder, group, mapping)
        results = [mapping[v] for v in self.graph.results]
        return builder.graph(self.graph.name, self.graph.arg_names, results, "fused")

    def _consumers(self) -> dict[Value, list[Group | None]]:
        """Which groups need each value in memory; None stands for the graph's results."""
        out: dict[Value, list[Group | None]] = {}
        for group in dict.fromkeys(self.grouping.group.values()):
            for value in self._read_by(group):
                out.setdefault(value, []).append(group)
            for op in group.ops:
                for value in op.control:
                    out.setdefault(value, []).append(group)
        for value in self.graph.results:
            out.setdefault(value, []).append(None)
        return out

    def _read_by(self, group: Group) -> set[Value]:
        if group.space is not None:
            return self.grouping.inputs(group)
        return {v for op in group.ops for v in op.operands}

    def _schedule(self) -> list[Group]:
        """Groups in an order that respects data and control edges, else by last position."""
        groups = list(dict.fromkeys(self.grouping.group.values()))
        rank = {g: max(self.position[op] for op in g.ops) for g in groups}
        before = {g: self.grouping.needed_groups(g) for g in groups}
        for first, second in self.grouping.gathers.order:
            before[second].add(first)
        return in_order(before, rank)

    def _emit_nest(self, builder: Builder, group: Group, mapping: dict[Value, Value]) -> None:
        group.ops.sort(key=lambda op: self.position[op])
        region = _Region(set(group.ops), self.grouping.gathers.inside)
        outputs: list[Value] = []
        for op in group.ops:
            for operand in op.operands:
                region.bring(operand)
            region.copy(op)
            outputs += [
                v for v in op.results if any(g is not group for g in self.consumers.get(v, ()))
            ]
        if not outputs:
            return
        control = [mapping[v] for op in group.ops for v in op.control]
        results = builder.emit(
            "fused",
            [mapping[v] for v in region.operands],
            {"kind": nest_name(group.ops)},
            regions=[region.inner.block([region.local[v] for v in outputs])],
            control=tuple(dict.fromkeys(control)),
            locations=merge_locations(*(op.locations for op in (*region.inner.ops, *group.ops))),
        )
        mapping.update(zip(outputs, results, strict=True))


class _Region:
    """The region of one ``fused`` op under construction."""

    def __init__(self, members: set[Operation], gathers: set[Operation]) -> None:
        self.members = members
        self.gathers = gathers
        self.inner = Builder()
        self.operands: list[Value] = []
        self.local: dict[Value, Value] = {}

    def bring(self, value: Value) -> None:
        """Make a value of the graph available: an operand, or an index map or gather repeated
        inside.
        """
        op = value.op
        if value in self.local:
            return
        if op is not None and op in self.gathers:
            self.bring(op.operands[0])
            self.take(op.operands[1])
            self.copy(op)
        elif op is not None and op not in self.members and is_index_map(op):
            for operand in op.operands:
                self.bring(operand)
            self.copy(op)
        elif op is None or op not in self.members:
            self.take(value)

    def take(self, value: Value) -> None:
        """Make a value that is in memory an operand."""
        if value not in self.local:
            self.operands.append(value)
            self.local[value] = self.inner.add_arg(value.type)

    def copy(self, op: Operation) -> None:
        """Append the op; control operands stay outside: regions are isolated."""
        types = [r.type for r in op.results]
        given = [self.local[v] for v in op.operands]
        made = Operation(op.name, given, op.attrs, types, op.regions, (), op.locations)
        self.inner.ops.append(made)
        self.local.update(zip(op.results, made.results, strict=True))


def nest_name(ops: Sequence[Operation]) -> str:
    """A readable name from the ops of a nest: `multiply_add_tanh`, at most five of them."""
    names = [op.name for op in ops]
    head = "_".join(names[:5])
    return head if len(names) <= 5 else f"{head}_and_{len(names) - 5}_more"
