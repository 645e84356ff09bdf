"""Which ops become one kernel: groups that grow edge by edge (rules: `weft.passes.fusion.fuse`)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import field

from weft.ir.code_size import MOST_INSTRUCTIONS, OF_A_LOAD, instructions
from weft.ir.dataclass import dataclass
from weft.ir.dims import Shape
from weft.ir.graph import Graph, Operation, Value
from weft.ir.index_maps import (
    Frame,
    Read,
    folded,
    indexed_axis,
    is_fold,
    is_index_map,
    read_of,
    shape_of,
)
from weft.ir.types import TensorType
from weft.passes.fusion.gathers import Gathers, move_gathers
from weft.passes.fusion.rules import (
    EVERYTHING,
    REDUCTIONS,
    SPACES_DIFFER,
    Edge,
    Scope,
    choose_frame,
    edge_fits,
    fits_frame,
    iteration_space,
)
from weft.passes.fusion.siblings import Siblings, join_siblings

#: Groups are offered to each other again until nothing changes, at most so often: a frame that was
#: found late may let in row values that came early.
SWEEPS = 3


@dataclass(slots=True, eq=False)
class Group:
    """Ops that become one kernel: a loop nest (`space` is set) or a single other op.

    frame: set for row kernels. folds: the reductions among the ops. edges: what its ops read of
    other ops of the graph. size: instructions of its code. reads: the ops whose results the ops
    read; waits: those that they wait for without reading (control). users: the ops that read or
    wait for one of its ops. rank: groups are numbered in order; bit: that number as a mask; above:
    a mask of all groups that must run before this one. A group that joined another keeps its bit
    where that of the other is, too.
    """

    space: Shape | None
    ops: list[Operation]
    rank: int = -1
    frame: Frame | None = None
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
        self.siblings = Siblings()
        if join_siblings(self):
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
            frame = host.frame
            if frame is None or frame.inner != (indexed_axis(op),):
                continue
            if shape_of(op.operands[0]) != frame.space:
                continue
            group.space = frame.space
            group.folds = [op] if is_fold(op) else []
            merged = self.merged_frame(group, host)
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
        merged = self.merged_frame(a, b)
        if isinstance(merged, str) or self.obstacle(a, b, *merged) is not None:
            return False
        self.join(a, b, *merged)
        return True

    def merged_frame(self, a: Group, b: Group) -> tuple[Shape, Frame | None] | str:
        """The space and frame that the two would have as one group, or why they do not fit."""
        assert a.space is not None
        assert b.space is not None
        if a in self.apart or b in self.apart:
            return "one of them is to be a kernel of its own"
        if a.size + b.size > MOST_INSTRUCTIONS:
            return f"together they are about {a.size + b.size} instructions: slow to compile"
        if a.frame is not None or b.frame is not None:
            return self._into_frame(a, b)
        space = (
            a.space if a.space == b.space or _elements(a.space) >= _elements(b.space) else b.space
        )
        folds = a.folds + b.folds
        used = [f for f in folds if self._is_read_by(f, a) or self._is_read_by(f, b)]
        if not used and a.space == b.space and len({folded(f) for f in folds}) <= 1:
            return space, None
        found = choose_frame(space, folds, used, self.columns)
        if isinstance(found, str):
            return found
        for other in (a.space, b.space):
            if other != space and not found.is_row_shape(other):
                return SPACES_DIFFER
        return space, found

    @staticmethod
    def _into_frame(a: Group, b: Group) -> tuple[Shape, Frame | None] | str:
        """At least one is a row kernel: the other must fit its frame."""
        assert a.space is not None
        assert b.space is not None
        frame = a.frame or b.frame
        assert frame is not None
        if a.frame and b.frame and a.frame != b.frame:
            return "both are row kernels, of different rows"
        for group in (a, b):
            if group.frame is not None:
                continue
            if group.space != frame.space and not frame.is_row_shape(group.space or ()):
                return SPACES_DIFFER
            if not all(fits_frame(f, frame) for f in group.folds):
                return "the reductions of the two fold axes that make no rows in common"
        return frame.space, frame

    def _is_read_by(self, fold: Operation, group: Group) -> bool:
        return fold in group.reads

    def obstacle(self, a: Group, b: Group, space: Shape, frame: Frame | None) -> str | None:
        """Why two groups that share a frame must stay apart all the same; None if they need not."""
        for one, other in ((a, b), (b, a)):
            if not one.above & other.bit:
                continue  # it reads nothing of the other, nor waits for it
            if any(self.group[op] is other for op in one.waits):
                return "the one must be complete before the other begins"
            for edge in one.edges:
                if self.group[edge.source] is other and not edge_fits(edge, space, frame):
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

    def join(self, a: Group, b: Group, space: Shape, frame: Frame | None) -> None:
        """Make one group of the two, over this space: the `larger` one."""
        large = self.larger(a, b)
        small = a if large is b else b
        large.space, large.frame = space, frame
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
        merged = self.merged_frame(a, b)
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
