"""Liveness of a grouping: the order in which groups run, and what is in memory meanwhile.

Order (`in_order`, `bytes_at_once`); aliasing, that is whose memory a value is in and which ops may
write there, which an order must respect if nothing is to be copied (`root_of`, `Writers`,
`makers_of`); and how both would change if two groups ran as one (`Timeline`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from copy import copy
from typing import TYPE_CHECKING

from weft.ir.analysis.index_maps import contiguous_strides, is_fold, is_index_map, read_of, shape_of
from weft.ir.graph import Graph, Operation, Value, stable_order
from weft.ir.ops import lookup
from weft.ir.ops.control_flow import CONTROL
from weft.ir.sizes import hint, largest
from weft.ir.types import TensorType
from weft.passes.fusion.epilogues import variable_of
from weft.passes.fusion.rules import static
from weft.passes.in_place import UPDATES
from weft.passes.memory.block import aligned
from weft.passes.rewriting.rewrite import behind_views

if TYPE_CHECKING:
    from weft.passes.fusion.fuse import Group, Grouping


def in_order(before: Mapping[Group, Set[Group]], rank: Mapping[Group, int]) -> list[Group]:
    """The groups after all that must run before them, else by their ranks, which are distinct."""
    order = stable_order(sorted(before, key=rank.__getitem__), before.__getitem__)
    assert len(order) == len(before), "fusion made a cycle"
    return order


def bytes_at_once(
    order: Sequence[Group],
    makes: Mapping[Group, Sequence[Value]],
    readers: Mapping[Value, Set[Group]],
    nbytes: Mapping[Value, int],
    mapped: Set[Value],
) -> int:
    """The most bytes that what the groups make for each other holds at a time. Nothing is written
    in the place of values that are `mapped`, which are read at other elements.
    """
    place = {g: k for k, g in enumerate(order)}
    dying: dict[int, list[Value]] = {}
    for made in makes.values():
        for value in made:
            dying.setdefault(max(place[g] for g in readers[value]), []).append(value)
    most = held = 0
    for k, group in enumerate(order):
        new, old = makes.get(group, ()), dying.get(k, ())
        held += sum(nbytes[v] for v in new)
        free = [v for v in old if v not in mapped] if group.space is not None else []
        most = largest(most, held - _in_place(new, free))
        held -= sum(nbytes[v] for v in old)
    return most


def _in_place(new: Sequence[Value], old: Sequence[Value]) -> int:
    """Bytes that a nest writes over what it is the last to read: element by element, not folds."""
    free = [v.type for v in old if isinstance(v.type, TensorType)]
    total = 0
    for value in new:
        held = value.type
        if not isinstance(held, TensorType) or value.op is None or is_fold(value.op):
            continue
        alike = [t for t in free if (t.shape, t.dtype.bits) == (held.shape, held.dtype.bits)]
        if alike and held.is_static:
            free.remove(alike[0])
            total += aligned(held.nbytes)
    return total


def root_of(value: Value) -> Value:
    """The value in whose memory `value` is, seen through views and index maps."""
    while value.op is not None and value.op.operands:
        if "view" not in lookup(value.op.name).traits and not is_index_map(value.op):
            break
        value = value.op.operands[0]
    return value


class Writers:
    """The ops of a graph that may write into the buffer of a value."""

    def __init__(self, graph: Graph) -> None:
        self._of: dict[Value, list[Operation]] = {}
        self._assigns: dict[str, list[Operation]] = {}
        for op in graph.ops:
            if op.name in UPDATES or op.name in CONTROL:
                given = op.operands[:1] if op.name in UPDATES else op.operands
                for root in dict.fromkeys(root_of(v) for v in given):
                    self._of.setdefault(root, []).append(op)
            name = variable_of(op.operands[0]) if op.name == "assign" else None
            if name is not None:
                self._assigns.setdefault(name, []).append(op)

    def of(self, root: Value) -> Iterator[Operation]:
        """What may write where `root` is."""
        yield from self._of.get(root, ())
        name = variable_of(root)
        for op in self._assigns.get(name, ()) if name is not None else ():
            yield op
            yield from makers_of(op.operands[1])


def makers_of(value: Value) -> Iterator[Operation]:
    """What computes a value, an update of another one together with that."""
    op = behind_views(value).op
    if op is not None and op.name != "read":
        yield op
        if op.name in UPDATES:
            yield from makers_of(op.operands[0])


#: Values that are in memory before the step.
_HELD = frozenset({"variable", "read", "constant"})


class Timeline:
    """The order in which the groups of a grouping run, and what is in memory meanwhile."""

    def __init__(self, grouping: Grouping) -> None:
        self.grouping, self.graph, self.group = grouping, grouping.graph, grouping.group
        groups = list(dict.fromkeys(self.group.values()))
        self.rank = {g: max(grouping.position[op] for op in g.ops) for g in groups}
        self.before = {g: grouping.needed_groups(g) for g in groups}
        self.readers: dict[Value, set[Group]] = {}
        self.mapped: set[Value] = set()  # read through index maps or views
        for group in groups:
            for value in (v for op in group.ops for v in op.operands):
                root = root_of(value)
                self.readers.setdefault(root, set()).add(group)
                if root is not value:
                    self.mapped.add(root)
        kept = {root_of(v) for v in self.graph.results}  # in memory that the step does not share
        self.makes: dict[Group, list[Value]] = {}
        self.nbytes: dict[Value, int] = {}
        for value in self.readers:
            if value.op is None or value.op not in self.group or value.op.name in _HELD:
                continue
            made = self.group[value.op]
            if value not in kept and self.readers[value] != {made}:
                self.nbytes[value] = _size(value)
                self.makes.setdefault(made, []).append(value)
        self.place: dict[Group, int] = {}
        self.peak = 0
        self.look()
        place = self.place
        self.held = [(r, w, v) for r, w, v in self._readers_and_writers() if place[r] < place[w]]
        self.next: Timeline | None = None

    def look(self) -> None:
        """Find the order, and the memory that it needs."""
        order = in_order(self.before, self.rank)
        self.place = {g: k for k, g in enumerate(order)}
        self.peak = bytes_at_once(order, self.makes, self.readers, self.nbytes, self.mapped)

    def _readers_and_writers(self) -> Iterator[tuple[Group, Group, Value]]:
        """Groups that read a value, others that may write into its buffer, and that value."""
        results: dict[object, list[Value]] = {}
        for value in self.graph.results:
            results.setdefault(value.type, []).append(value)
        writers = Writers(self.graph)
        for root, readers in self.readers.items():
            ops = list(writers.of(root))
            if root.op is None:  # a carry of a loop, or what is donated
                ops += [op for v in results.get(root.type, ()) for op in makers_of(v)]
            for writer in {self.group[op] for op in ops if op in self.group}:
                yield from ((reader, writer, root) for reader in readers if reader is not writer)

    def why_not(self, a: Group, b: Group, spared: int) -> str | None:
        """Why the two should not run as one, for which so many bytes of memory may be spent; if
        nothing is said, `commit` makes them one.
        """
        whole = self.grouping.larger(a, b)

        def one(group: Group) -> Group:
            return whole if group in (a, b) else group

        then = copy(self)
        then.rank = {**self.rank, whole: max(self.rank[a], self.rank[b])}
        then.before = {}
        for group, held in self.before.items():
            then.before.setdefault(one(group), set()).update(map(one, held))
        then.before[whole].discard(whole)
        then.readers = {v: set(map(one, held)) for v, held in self.readers.items()}
        then.makes = {}
        for group, made in self.makes.items():
            then.makes.setdefault(one(group), []).extend(made)
        then.look()
        place = then.place
        for reader, writer, root in self.held:
            late = place[one(reader)] - place[one(writer)]
            if late > 0 or (late == 0 and not _reads_own_elements(reader, root)):
                return "what is written in place would be read later, and must be copied"
        if then.peak > self.peak + spared:
            return f"together they need {hint(then.peak - self.peak)} bytes more at a time"
        held_yet = ((one(reader), one(writer), root) for reader, writer, root in self.held)
        then.held = [row for row in held_yet if row[0] is not row[1]]
        self.next = then
        return None

    def commit(self) -> None:
        """The two that `why_not` has looked at last have been joined."""
        assert self.next is not None
        for name in ("rank", "before", "readers", "makes", "held", "place", "peak"):
            setattr(self, name, getattr(self.next, name))
        self.next = None


def _reads_own_elements(group: Group, root: Value) -> bool:
    """Whether a nest reads of `root` only the element that it may be writing in its place."""
    for op in group.ops:
        for value in op.operands:
            if root_of(value) is not root:
                continue
            shape = static(shape_of(value))
            if shape is None or shape != group.space:
                return False
            read = read_of(value)
            if read.source is not root or read.offset or read.strides != contiguous_strides(shape):
                return False
    return True


def _size(value: Value) -> int:
    held = value.type
    return aligned(held.nbytes) if isinstance(held, TensorType) and held.is_static else 0
