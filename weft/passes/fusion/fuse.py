"""Fusion: group elementwise ops, reads through index maps and reductions into loop nests.

Before::

    %2 = multiply(%x, %w) : f32[32,100]
    %3 = exp(%2) : f32[32,100]
    %4 = sum(%3) {axes=[0]} : f32[100]

After: one ``fused`` op whose region holds the three. There are two kinds of groups.

A *plain nest*: all ops share the iteration space (the shape that the loops run over), and all
reductions fold the same axes; what they give is an output, never used inside.

A *row kernel*: reductions over the inner axes give one number for each row, and those may be used
inside, by ops on such row values and by ops on the whole space (softmax, layer norm and their
gradients are one kernel each). There is more than one row. If the innermost axis is not in the row,
rows are columns side by side, a block of which is done at once: where that stays in a cache, and
after everything that fits kernels over other rows has joined them. Besides, a row kernel may fold
all rows into one (gradients of scale and bias; columns not) or everything into a number (losses);
those results are outputs only. It reads (`take_along_axis`) and changes (`scatter_along_axis_add`)
one element of each row: cross entropy with labels is one kernel.

For both:

* ``broadcast_to``, ``permute_dims``, ``slice``, ``iota`` and reshapes that only add or drop
  dimensions of size 1 are index maps: they cost no memory traffic and are repeated in every nest
  that reads through them;
* an op reads what another op of its nest makes at its own element or row only;
* no reduction is computed twice, and nothing that was read or written once is read or written twice
  for the sake of a join;
* a gather that only nests read is read through by them (`weft.passes.fusion.gathers`);
* a nest has at most `MOST_INSTRUCTIONS` (`weft.ir.cost`): what a compiler takes grows faster
  than the code, and a nest so long gains nothing by more;
* two groups are not joined if a path between them leads through an op outside (that would be a
  cycle);
* when no more can join along what one makes and the other reads, those join that read the same
  (`weft.passes.fusion.horizontal`).

`Grouping` grows the groups edge by edge, `emit_groups` writes the fused graph."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import field

from weft.ir.analysis.index_maps import (
    Read,
    RowSpace,
    folded,
    indexed_axis,
    is_fold,
    is_index_map,
    read_of,
    shape_of,
)
from weft.ir.cost.rates import OF_A_LOAD, instructions
from weft.ir.cost.thresholds import MOST_INSTRUCTIONS
from weft.ir.dataclass import dataclass
from weft.ir.dims import Shape
from weft.ir.graph import Graph, Operation, Value
from weft.ir.locations import merge_locations
from weft.ir.ops.builder import Builder
from weft.ir.types import TensorType
from weft.passes.fusion.gathers import Gathers, move_gathers
from weft.passes.fusion.horizontal import HorizontalJoins, join_horizontally
from weft.passes.fusion.liveness import in_order
from weft.passes.fusion.rules import (
    ELEMENTWISE,
    EVERYTHING,
    FOLDS,
    REDUCTIONS,
    SPACES_DIFFER,
    Edge,
    Scope,
    choose_row_space,
    edge_fits,
    fits_row_space,
    iteration_space,
    nest_name,
)
from weft.passes.rewriting.rewrite import in_regions

#: Groups are offered to each other again until nothing changes, at most so often: a row space that
#: was found late may let in row values that came early.
SWEEPS = 3


@dataclass(slots=True, eq=False)
class Group:
    """Ops that become one kernel: a loop nest (`space` is set) or a single other op.

    row_space: set for row kernels. folds: the reductions among the ops. edges: what its ops read of
    other ops of the graph. size: instructions of its code. reads: the ops whose results the ops
    read; waits: those that they wait for without reading (control). users: the ops that read or
    wait for one of its ops. rank: groups are numbered in order; bit: that number as a mask; above:
    a mask of all groups that must run before this one. A group that joined another keeps its bit
    where that of the other is, too.
    """

    space: Shape | None
    ops: list[Operation]
    rank: int = -1
    row_space: RowSpace | None = None
    folds: list[Operation] = field(default_factory=list)
    edges: list[Edge] = field(default_factory=list)
    size: int = 0
    reads: set[Operation] = field(default_factory=set)
    waits: set[Operation] = field(default_factory=set)
    users: list[Operation] = field(default_factory=list)
    above: int = 0

    @property
    def bit(self) -> int:
        return 1 << self.rank


class Grouping:
    """The groups of a graph: `group` maps each op that is computed somewhere to its group."""

    def __init__(self, graph: Graph, scope: Scope = EVERYTHING) -> None:
        self.graph = graph
        self.position = {op: i for i, op in enumerate(graph.ops)}
        self.group: dict[Operation, Group] = {}
        self.live: dict[Group, None] = {}  # the groups so far, in order
        self.gathers = Gathers()
        self.columns = False  # what has rows goes with them: columns take what is left
        self.apart: set[Group] = set()  # the groups that join nothing
        for op in graph.ops:
            folds = op.name in REDUCTIONS
            space = iteration_space(op) if scope.folds or not folds else None
            if space is None and is_index_map(op):
                continue  # grouped below if it must be materialised
            group = self.group[op] = self._new_group(op, space)
            if space is not None and scope.apart(op):
                self.apart.add(group)
            self.live[group] = None
            for edge in group.edges[:]:
                self._try_join(edge)
        self._sweep_and_adopt()
        self.columns = True
        self._sweep_and_adopt()
        self.siblings = HorizontalJoins()
        if join_horizontally(self):
            self._sweep()
        self._materialise_index_maps()
        if scope.moves:
            self.gathers = move_gathers(self)

    def _sweep_and_adopt(self) -> None:
        self._sweep()
        apart = [op for op in self.graph.ops if indexed_axis(op) is not None]
        if sum(self._adopt(op) for op in apart if self.group[op].space is None):
            self._sweep()

    def _adopt(self, op: Operation) -> bool:
        """Let a row kernel do an op that reads or changes one element of each of its rows."""
        group = self.group[op]
        makers = [self.group[e.source] for e in group.edges]
        readers = [g for g in map(self.group.__getitem__, group.users) if op in g.reads]
        readers.sort(key=lambda g: g.rank)
        for host in dict.fromkeys([*makers, *readers]):
            row_space = host.row_space
            if row_space is None or row_space.inner != (indexed_axis(op),):
                continue
            if shape_of(op.operands[0]) != row_space.space:
                continue
            group.space = row_space.space
            group.folds = [op] if is_fold(op) else []
            merged = self.merged_space(group, host)
            if not isinstance(merged, str) and self.obstacle(group, host, *merged) is None:
                self.join(group, host, *merged)
                return True
            group.space, group.folds = None, []
        return False

    def _sweep(self) -> None:
        for _ in range(SWEEPS):
            edges = [e for g in self.live for e in g.edges if g.space is not None]
            edges = [e for e in edges if self.group[e.source] is not self.group[e.consumer]]
            edges.sort(key=lambda e: (self.position[e.consumer], self.position[e.source]))
            if not sum(self._try_join(edge) for edge in edges):
                return

    # -- growing ----------------------------------------------------------------------------------

    def _new_group(self, op: Operation, space: Shape | None) -> Group:
        group = Group(space, [op], len(self.group))
        if op.name in REDUCTIONS and space is not None:
            group.folds.append(op)
        for value in dict.fromkeys(op.operands):
            source = self.source(value)
            if source.op is None or source.op not in self.group:
                group.size += OF_A_LOAD
                continue
            group.reads.add(source.op)
            direct = source is value
            group.edges.append(Edge(source.op, op, direct, shape_of(value), _read(value)))
        for value in op.control:
            held = self.source(value).op
            if held is not None and held in self.group:
                group.waits.add(held)
        for source_op in group.reads | group.waits:
            made = self.group[source_op]
            made.users.append(op)
            group.above |= made.above | made.bit
        if space is not None:
            group.size += _instructions(op)
        return group

    def _try_join(self, edge: Edge) -> bool:
        a, b = self.group[edge.source], self.group[edge.consumer]
        if a is b or a.space is None or b.space is None:
            return False
        merged = self.merged_space(a, b)
        if isinstance(merged, str) or self.obstacle(a, b, *merged) is not None:
            return False
        self.join(a, b, *merged)
        return True

    def merged_space(self, a: Group, b: Group) -> tuple[Shape, RowSpace | None] | str:
        """The space and row space that the two would have as one group, or why they do not fit."""
        assert a.space is not None
        assert b.space is not None
        if a in self.apart or b in self.apart:
            return "one of them is to be a kernel of its own"
        if a.size + b.size > MOST_INSTRUCTIONS:
            return f"together they are about {a.size + b.size} instructions: slow to compile"
        if a.row_space is not None or b.row_space is not None:
            return self._into_row_space(a, b)
        space = (
            a.space if a.space == b.space or _elements(a.space) >= _elements(b.space) else b.space
        )
        folds = a.folds + b.folds
        used = [f for f in folds if self._is_read_by(f, a) or self._is_read_by(f, b)]
        if not used and a.space == b.space and len({folded(f) for f in folds}) <= 1:
            return space, None
        found = choose_row_space(space, folds, used, self.columns)
        if isinstance(found, str):
            return found
        for other in (a.space, b.space):
            if other != space and not found.is_row_shape(other):
                return SPACES_DIFFER
        return space, found

    @staticmethod
    def _into_row_space(a: Group, b: Group) -> tuple[Shape, RowSpace | None] | str:
        """At least one is a row kernel: the other must fit its row space."""
        assert a.space is not None
        assert b.space is not None
        row_space = a.row_space or b.row_space
        assert row_space is not None
        if a.row_space and b.row_space and a.row_space != b.row_space:
            return "both are row kernels, of different rows"
        for group in (a, b):
            if group.row_space is not None:
                continue
            if group.space != row_space.space and not row_space.is_row_shape(group.space or ()):
                return SPACES_DIFFER
            if not all(fits_row_space(f, row_space) for f in group.folds):
                return "the reductions of the two fold axes that make no rows in common"
        return row_space.space, row_space

    def _is_read_by(self, fold: Operation, group: Group) -> bool:
        return fold in group.reads

    def obstacle(self, a: Group, b: Group, space: Shape, row_space: RowSpace | None) -> str | None:
        """Why two groups that share a row space must stay apart all the same; None if they need
        not."""
        for one, other in ((a, b), (b, a)):
            if not one.above & other.bit:
                continue  # it reads nothing of the other, nor waits for it
            if any(self.group[op] is other for op in one.waits):
                return "the one must be complete before the other begins"
            for edge in one.edges:
                if self.group[edge.source] is other and not edge_fits(edge, space, row_space):
                    return _unfit(edge)
        if self._path_outside(a, b) or self._path_outside(b, a):
            return "joining would make a cycle through an op outside the nest"
        return None

    def _path_outside(self, a: Group, b: Group) -> bool:
        """Is there a path from `a` to `b` that leaves both?"""
        if not b.above & a.bit:
            return False
        before = {self.group[op] for op in (*b.reads, *b.waits)} - {a, b}
        return any(group.above & a.bit for group in before)

    @staticmethod
    def larger(a: Group, b: Group) -> Group:
        """The one that takes the other's ops when they join."""
        return a if len(a.ops) > len(b.ops) else b

    def join(self, a: Group, b: Group, space: Shape, row_space: RowSpace | None) -> None:
        """Make one group of the two, over this space: the `larger` one."""
        large = self.larger(a, b)
        small = a if large is b else b
        large.space, large.row_space = space, row_space
        large.ops += small.ops
        large.folds += small.folds
        large.edges += small.edges
        for op in small.ops:
            self.group[op] = large
        self.live.pop(small)
        self._order_as_one(large, small)
        large.size += small.size
        for held, more in ((large.reads, small.reads), (large.waits, small.waits)):
            held |= more
        large.users += small.users

    def _order_as_one(self, large: Group, small: Group) -> None:
        """A group runs as a whole: what came after one part of it now comes after all of it."""
        before = (large.above | small.above) & ~(large.bit | small.bit)
        both = before | large.bit
        rest = [
            self.group[op]
            for group in (large, small)
            if both & ~(group.above | group.bit)  # what its users do not come after yet
            for op in group.users
        ]
        large.above = before
        while rest:
            group = rest.pop()
            if group is not large and both & ~group.above:
                group.above |= both
                rest += [self.group[op] for op in group.users]

    # -- looking ----------------------------------------------------------------------------------

    def source(self, value: Value) -> Value:
        """The value behind index maps: nests read through them, those that exist in memory too."""
        while value.op is not None and is_index_map(value.op) and value.op.operands:
            value = value.op.operands[0]
        return value

    def inputs(self, group: Group) -> set[Value]:
        """Values that the group reads, seen through index maps, and gathers that are inside."""
        out: set[Value] = set()
        for value in (v for op in group.ops for v in op.operands):
            source = self.source(value)
            if source.op is not None and source.op in self.gathers.inside:
                out.update((self.source(source.op.operands[0]), source.op.operands[1]))
            else:
                out.add(source)
        return out

    def needed_groups(self, group: Group) -> set[Group]:
        """The groups that must run before `group`."""
        values = [v for op in group.ops for v in op.control]
        if group.space is not None:
            values += self.inputs(group)
        else:
            values += [v for op in group.ops for v in op.operands]
        found = {self.group[v.op] for v in values if v.op is not None and v.op in self.group}
        return found - {group}

    def why_apart(self, a: Group, b: Group) -> str | None:
        """The first rule that keeps two nests apart; None if there is none."""
        merged = self.merged_space(a, b)
        return merged if isinstance(merged, str) else self.obstacle(a, b, *merged)

    def _materialise_index_maps(self) -> None:
        """Index maps whose result itself is needed become copy kernels (reshape: a view)."""
        needed = {v.op for v in self.graph.results}
        for op, group in self.group.items():
            needed.update(predecessors(op) if group.space is None else _ops(op.control))
        for op in reversed(self.graph.ops):
            if op in needed and op not in self.group and is_index_map(op):
                view = op.name in ("reshape", "constant")
                space = None if view else shape_of(op.result)
                self.group[op] = Group(space, [op])
                if view:
                    needed.update(predecessors(op))


def _read(value: Value) -> Read | None:
    held: Value | None = value
    while held is not None:
        if not (isinstance(held.type, TensorType) and held.type.is_static):
            return None
        op = held.op
        held = op.operands[0] if op is not None and op.operands and is_index_map(op) else None
    return read_of(value)


def _instructions(op: Operation) -> int:
    held = op.operands[-1].type if op.operands else None
    return instructions(op.name, held.dtype.short) if isinstance(held, TensorType) else 0


def _elements(shape: Shape) -> int:
    """For comparing two spaces: an unknown dimension counts as one element."""
    total = 1
    for d in shape:
        total *= d if isinstance(d, int) else 1
    return total


def _unfit(edge: Edge) -> str:
    source, consumer = edge.source, edge.consumer
    if is_fold(source):
        return f"the result of the reduction '{source.name}' is complete only after its nest"
    return f"'{consumer.name}' reads other elements than '{source.name}' is writing"


def predecessors(op: Operation) -> Iterable[Operation]:
    """The ops that must run before `op`."""
    return _ops((*op.operands, *op.control))


def _ops(values: Iterable[Value]) -> Iterable[Operation]:
    return (v.op for v in values if v.op is not None)


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


def fuse(graph: Graph) -> Graph:
    """Group the ops of `graph`, those of regions too, into ``fused`` ops (see the rules above)."""
    return emit_groups(Grouping(in_regions(graph, fuse)))


def fuse_elementwise(graph: Graph) -> Graph:
    """`fuse` for elementwise ops without 16-bit floats; these are nests by themselves, and
    reductions stay: no bit of a result depends on what is fused."""
    return emit_groups(Grouping(in_regions(graph, fuse_elementwise), ELEMENTWISE))


def fuse_folds(graph: Graph) -> Graph:
    """Each reduction that `fuse_elementwise` has left as a nest by itself: in which order it adds
    up follows from its shape."""
    return emit_groups(Grouping(in_regions(graph, fuse_folds), FOLDS))
