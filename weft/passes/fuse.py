"""Fusion: group elementwise ops, reads through index maps and reductions into loop nests.

Before::

    %2 = multiply(%x, %w) : f32[32,100]
    %3 = exp(%2) : f32[32,100]
    %4 = sum(%3) {axes=[0]} : f32[100]

After: one ``fused`` op whose region holds the three. The rules:

* ops join only if they share the iteration space (the shape that the loop nest runs over);
* a reduction ends a nest: its result is an output, never used inside (nothing is recomputed);
* all reductions of a nest fold the same axes;
* ``broadcast_to``, ``permute_dims``, ``slice``, ``iota`` and reshapes that only add or drop
  dimensions of size 1 are index maps: they cost no memory traffic and are repeated in every nest
  that reads through them;
* two groups are not joined if a path between them leads through an op outside (that would be a
  cycle).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from weft.ir.attributes import ConstArray
from weft.ir.builder import Builder
from weft.ir.dims import Shape
from weft.ir.graph import Graph, Operation, Value
from weft.ir.ops import lookup
from weft.ir.source import merge_locations
from weft.ir.types import TensorType

REDUCTIONS = frozenset({"sum", "prod", "max", "min", "all", "any"})
INDEX_MAPS = frozenset({"broadcast_to", "permute_dims", "slice", "iota"})


def fuse(graph: Graph) -> Graph:
    """Group the ops of `graph` into ``fused`` ops (see the module's rules)."""
    return _Fusion(graph).run()


def shape_of(value: Value) -> Shape:
    """The shape of a tensor value; () for anything else."""
    return value.type.shape if isinstance(value.type, TensorType) else ()


def is_scalar_constant(op: Operation | None) -> bool:
    """A constant of rank 0 that is not a string: it lives inside the kernels that use it."""
    if op is None or op.name != "constant":
        return False
    value = op.attrs["value"]
    return isinstance(value, ConstArray) and value.array.ndim == 0 and value.dtype.kind != "string"


def is_index_map(op: Operation | None) -> bool:
    """Whether `op` only says where an element is read from."""
    if op is None:
        return False
    if op.name == "reshape":
        source, target = shape_of(op.operands[0]), shape_of(op.result)
        return [d for d in source if d != 1] == [d for d in target if d != 1]
    return op.name in INDEX_MAPS or is_scalar_constant(op)


def iteration_space(op: Operation) -> Shape | None:
    """The shape that the op's loop nest runs over; None if the op is not of the loop-nest kind."""
    if op.name in REDUCTIONS:
        return shape_of(op.operands[0])
    if "elementwise" in lookup(op.name).traits and op.results:
        return None if _has_strings(op) else shape_of(op.result)
    return None


def _has_strings(op: Operation) -> bool:
    types = [v.type for v in (*op.operands, *op.results)]
    return any(isinstance(t, TensorType) and t.dtype.kind == "string" for t in types)


def why_not_fused(producer: Operation, consumer: Operation) -> str:
    """For two ops of an unfused graph joined by an edge, the first rule that keeps them apart."""
    if is_index_map(producer):
        return "not kept apart: an index map is repeated in every nest that reads through it"
    for op in (producer, consumer):
        if iteration_space(op) is None and not is_index_map(op):
            return f"'{op.name}' has a kernel of its own"
    if producer.name in REDUCTIONS:
        return f"the result of the reduction '{producer.name}' is complete only after its nest"
    if is_index_map(consumer):
        return f"'{consumer.name}' reads other elements than '{producer.name}' is writing"
    if iteration_space(producer) != iteration_space(consumer):
        return "their iteration spaces differ"
    if consumer.name in REDUCTIONS:
        return "another reduction of the nest folds other axes, or joining would make a cycle"
    return "joining would make a cycle through an op outside the nest"


def _ops(values: Iterable[Value]) -> Iterable[Operation]:
    return (v.op for v in values if v.op is not None)


@dataclass(slots=True, eq=False)
class _Group:
    """Ops that become one kernel: a loop nest (`space` is set) or a single other op.

    The masks are sets of ops as the bits of ints (bit k: op k of the graph): the members, the
    reductions among them, the ops that they read element by element, the ops that must be complete
    before them (read through an index map, or control), and all ops of all groups that must run
    before this group.
    """

    space: Shape | None
    ops: list[Operation]
    axes: object = None  # of the reductions in it
    members: int = 0
    totals: int = 0
    reads: int = 0
    waits: int = 0
    above: int = 0


class _Fusion:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.position = {op: i for i, op in enumerate(graph.ops)}
        self.group: dict[Operation, _Group] = {}
        self.live: dict[_Group, None] = {}  # the groups so far, in order
        self.consumers: dict[Value, list[_Group | None]] = {}

    def run(self) -> Graph:
        for op in self.graph.ops:
            space = iteration_space(op)
            if space is None and is_index_map(op):
                continue  # grouped below if it must be materialised
            group = self.group[op] = self._new_group(op, space)
            self.live[group] = None
            if space is not None:
                for operand in op.operands:
                    self._try_join(operand.op, op)
        self._materialise_index_maps()
        return self._emit()

    # -- grouping ---------------------------------------------------------------------------------

    def _new_group(self, op: Operation, space: Shape | None) -> _Group:
        bit = 1 << self.position[op]
        group = _Group(space, [op], members=bit)
        if op.name in REDUCTIONS:
            group.axes, group.totals = op.attrs["axes"], bit
        for value, direct in [(v, True) for v in op.operands] + [(v, False) for v in op.control]:
            source = self._source(value)
            if source.op is None or source.op not in self.group:
                continue
            if direct and source is value:
                group.reads |= 1 << self.position[source.op]
            else:
                group.waits |= 1 << self.position[source.op]
            made = self.group[source.op]
            group.above |= made.above | made.members
        return group

    def _try_join(self, producer: Operation | None, consumer: Operation) -> None:
        if producer is None or producer not in self.group or producer.name in REDUCTIONS:
            return
        a, b = self.group[producer], self.group[consumer]
        if a is b or a.space is None or a.space != b.space:
            return
        if a.axes is not None and b.axes is not None and a.axes != b.axes:
            return
        if (a.reads | a.waits) & b.totals or (b.reads | b.waits) & a.totals:
            return  # a reduction is complete only after its nest
        if self._path_outside(a, b) or self._path_outside(b, a):
            return
        self._join(a, b)

    def _path_outside(self, a: _Group, b: _Group) -> bool:
        """Is there a path from `a` to `b` that leaves both, or that goes through an index map?"""
        if b.waits & a.members:
            return True
        rest = (b.reads | b.waits) & ~(a.members | b.members)
        while rest:
            group = self.group[self.graph.ops[rest.bit_length() - 1]]
            if group.above & a.members:
                return True
            rest &= ~group.members
        return False

    def _join(self, a: _Group, b: _Group) -> None:
        small, large = sorted((a, b), key=lambda g: len(g.ops))
        large.ops += small.ops
        large.axes = a.axes if a.axes is not None else b.axes
        for op in small.ops:
            self.group[op] = large
        del self.live[small]
        for mask in ("members", "totals", "reads", "waits", "above"):
            setattr(large, mask, getattr(a, mask) | getattr(b, mask))
        large.above &= ~large.members
        # a group runs as a whole: what came after one part of it now comes after all of it
        for group in self.live:
            if group.above & large.members and group is not large:
                group.above |= large.above | large.members

    def _inputs(self, group: _Group) -> set[Value]:
        """Values that the group reads, seen through index maps."""
        return {self._source(v) for op in group.ops for v in op.operands}

    def _source(self, value: Value) -> Value:
        while value.op is not None and value.op not in self.group and value.op.operands:
            value = value.op.operands[0]
        return value

    @staticmethod
    def _predecessors(op: Operation) -> Iterable[Operation]:
        return _ops((*op.operands, *op.control))

    def _materialise_index_maps(self) -> None:
        """Index maps whose result itself is needed become copy kernels (reshape: a view)."""
        needed = {v.op for v in self.graph.results}
        for op, group in self.group.items():
            needed.update(self._predecessors(op) if group.space is None else _ops(op.control))
        for op in reversed(self.graph.ops):
            if op in needed and op not in self.group and is_index_map(op):
                view = op.name in ("reshape", "constant")
                space = None if view else shape_of(op.result)
                self.group[op] = _Group(space, [op])
                if view:
                    needed.update(self._predecessors(op))

    # -- emission ---------------------------------------------------------------------------------

    def _emit(self) -> Graph:
        builder = Builder([a.type for a in self.graph.args])
        mapping: dict[Value, Value] = dict(zip(self.graph.args, builder.args, strict=True))
        self.consumers = self._consumers()
        for group in self._schedule():
            if group.space is None:
                (op,) = group.ops
                mapping.update(zip(op.results, builder.clone(op, mapping), strict=True))
            else:
                self._emit_nest(builder, group, mapping)
        results = [mapping[v] for v in self.graph.results]
        return builder.graph(self.graph.name, self.graph.arg_names, results, "fused")

    def _consumers(self) -> dict[Value, list[_Group | None]]:
        """Which groups need each value in memory; None stands for the graph's results."""
        out: dict[Value, list[_Group | None]] = {}
        for group in dict.fromkeys(self.group.values()):
            for value in (
                self._inputs(group) if group.space is not None else self._raw_inputs(group)
            ):
                out.setdefault(value, []).append(group)
            for op in group.ops:
                for value in op.control:
                    out.setdefault(value, []).append(group)
        for value in self.graph.results:
            out.setdefault(value, []).append(None)
        return out

    @staticmethod
    def _raw_inputs(group: _Group) -> list[Value]:
        return [v for op in group.ops for v in op.operands]

    def _schedule(self) -> list[_Group]:
        """Groups in an order that respects data and control edges, else by last position."""
        groups = list(dict.fromkeys(self.group.values()))
        rank = {g: max(self.position[op] for op in g.ops) for g in groups}
        before: dict[_Group, set[_Group]] = {g: set() for g in groups}
        after: dict[_Group, set[_Group]] = {g: set() for g in groups}
        for g in groups:
            values = self._inputs(g) if g.space is not None else set(self._raw_inputs(g))
            values |= {v for op in g.ops for v in op.control}
            for value in values:
                source = self.group.get(value.op) if value.op is not None else None
                if source is not None and source is not g:
                    before[g].add(source)
                    after[source].add(g)
        ready = [(rank[g], g) for g in groups if not before[g]]  # ranks are distinct
        heapq.heapify(ready)
        order: list[_Group] = []
        while ready:
            group = heapq.heappop(ready)[1]
            order.append(group)
            for follower in after[group]:
                before[follower].discard(group)
                if not before[follower]:
                    heapq.heappush(ready, (rank[follower], follower))
        assert len(order) == len(groups), "fusion made a cycle"
        return order

    def _emit_nest(self, builder: Builder, group: _Group, mapping: dict[Value, Value]) -> None:
        group.ops.sort(key=lambda op: self.position[op])
        members = set(group.ops)
        inner = Builder()
        operands: list[Value] = []
        local: dict[Value, Value] = {}

        def bring(value: Value) -> Value:
            if value in local:
                return local[value]
            op = value.op
            if op is not None and op not in members and is_index_map(op):
                for operand in op.operands:
                    bring(operand)
                copy(op)
            elif op is None or op not in members:
                operands.append(value)
                local[value] = inner.add_arg(value.type)
            return local[value]

        def copy(op: Operation) -> None:
            # control operands stay outside: regions are isolated
            types = [r.type for r in op.results]
            given = [local[v] for v in op.operands]
            made = Operation(op.name, given, op.attrs, types, op.regions, (), op.locations)
            inner.ops.append(made)
            local.update(zip(op.results, made.results, strict=True))

        outputs: list[Value] = []
        for op in group.ops:
            for operand in op.operands:
                bring(operand)
            copy(op)
            outputs += [
                v for v in op.results if any(g is not group for g in self.consumers.get(v, ()))
            ]
        if not outputs:
            return
        places = merge_locations(*(op.locations for op in (*inner.ops, *group.ops)))
        control = [mapping[v] for op in group.ops for v in op.control]
        results = builder.emit(
            "fused",
            [mapping[v] for v in operands],
            {"kind": nest_name(group.ops)},
            regions=[inner.block([local[v] for v in outputs])],
            control=tuple(dict.fromkeys(control)),
            locations=places,
        )
        mapping.update(zip(outputs, results, strict=True))


def nest_name(ops: Sequence[Operation]) -> str:
    """A readable name from the ops of a nest: `multiply_add_tanh`, at most five of them."""
    names = [op.name for op in ops]
    head = "_".join(names[:5])
    return head if len(names) <= 5 else f"{head}_and_{len(names) - 5}_more"
