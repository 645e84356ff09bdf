"""Horizontal fusion: merge independent loop nests that read the same inputs.

What both read is read once. Before::

    %1 = fused(%x) { sum } : f32[]
    %2 = fused(%x) { multiply; sum } : f32[]

After: ``%1, %2 = fused(%x) { sum; multiply; sum }``. The rules, besides those that hold for every
join (`weft.passes.fusion.fuse`):

* both read at least `LEAST_SHARED` bytes of one value, at the same elements: less stays in the
  first-level cache between the two;
* the nest has at most `MOST_STREAMS` arrays and, if both have any, `MOST_EXPENSIVE` functions of
  many instructions; those bound its time, so it moves `LEAST_EXPENSIVE` bytes then;
* its loops serve both: reductions fold the same, or some fold rows, so that a row kernel does all,
  or the other has none and the loops that are left are long; they are enough to share among
  threads, and nothing is read across the rows;
* neither is better off with a product: applied to its blocks, or computed by it;
* the memory that is needed at once does not grow (by more than a part in `SPARED` of what is not
  read again), and nothing is written in place before its last reader: the earlier one waits for the
  later one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import field
from itertools import islice
from math import prod
from typing import TYPE_CHECKING

from weft.ir.analysis.index_maps import (
    RowSpace,
    contiguous_strides,
    is_fold,
    is_gather,
    is_index_map,
    read_of,
    shape_of,
    wide_axes,
)
from weft.ir.cost import arithmetic
from weft.ir.dataclass import dataclass
from weft.ir.dims import Shape
from weft.ir.graph import Operation, Value
from weft.ir.sizes import hint
from weft.ir.types import TensorType
from weft.passes.fusion.gathers import PRODUCTS
from weft.passes.fusion.liveness import Timeline
from weft.passes.fusion.prologues import LEAST_BYTES
from weft.passes.fusion.rules import static

if TYPE_CHECKING:
    from weft.passes.fusion.fuse import Group, Grouping

#: Bytes that both read, at least: those of a first-level cache.
LEAST_SHARED = 1 << 15
#: Arrays of a nest, read and written: caches of 8 ways hold a line of each, however they lie.
MOST_STREAMS = 8
#: Functions of many instructions: the constants of more leave no registers; and what is read and
#: written where both have some, at least: less is there sooner than they are done.
MOST_EXPENSIVE, LEAST_EXPENSIVE = 4, 1 << 25
#: Price of such a function, at least; instructions that have it too.
EXPENSIVE_NS, INSTRUCTIONS = 0.06, frozenset({"divide", "sqrt", "reciprocal"})
#: The innermost loop that nests of different loops have as one, where it is folded too; and rows.
LEAST_RUN, LEAST_FOLDED, LEAST_ROWS = 16, 64, 64
#: Of so many bytes that are not read again, one more may be needed in memory.
SPARED = 64
#: With how many others that read the same a nest is tried at most.
MOST_TRIED = 8
#: What a join does to the order and to memory takes time for each kernel of the graph: so often it
#: is found out at most (and so many kernels more may be looked at, for small graphs).
MOST_ORDERS, FREE_ORDERS = 20, 100_000

Space = tuple[int, ...]
#: Where an operand is read: in which value, from where, by which strides over the nest's space.
Key = tuple[Value, int, tuple[int, ...], Space]


@dataclass(slots=True)
class HorizontalJoins:
    """The decisions on pairs of nests, by the first op in each that reads what both read: `why`
    they are `apart`; those `joined`, and the bytes that are not read again.
    """

    apart: dict[tuple[Operation, Operation], str] = field(default_factory=dict)
    joined: dict[tuple[Operation, Operation], int] = field(default_factory=dict)


def join_horizontally(grouping: Grouping) -> bool:
    """Join what the module's rules allow, and note in `grouping.siblings` what was decided; whether
    anything was joined.
    """
    return _Joiner(grouping).run()


def small_siblings(grouping: Grouping) -> list[tuple[Operation, Operation, str]]:
    """For people: pairs that would fit one nest but read too little of the same to matter."""
    return _Joiner(grouping).small()


@dataclass(frozen=True, slots=True)
class _Loops:
    """The loops of a group over its space. keys: operands and where they are read. walks: strides
    of all that moves. outputs: values of the space's size that others need.
    """

    keys: dict[Key, Operation]
    walks: frozenset[tuple[int, ...]]
    outputs: tuple[Value, ...]
    folds: frozenset[int] | None
    dear: int


class _Joiner:
    def __init__(self, grouping: Grouping) -> None:
        self.grouping = grouping
        self.graph = grouping.graph
        self.loops: dict[Group, _Loops] = {}
        self.readers: dict[Value, set[Operation | None]] = {v: {None} for v in self.graph.results}
        for op in self.graph.ops:
            for value in (*op.operands, *op.control):
                self.readers.setdefault(value, set()).add(op)
        self.timeline: Timeline | None = None
        self.orders = MOST_ORDERS * len(self.grouping.live) + FREE_ORDERS

    def run(self) -> bool:
        found = self.grouping.siblings
        before = len(found.joined)
        for key, groups in self._shared_keys():
            for a, b in self._pairs(key, groups):
                self._decide(a, b, key)
                if self.orders < 0:
                    return True  # the graph is large, and enough of it has been looked at
        return len(found.joined) > before

    def small(self) -> list[tuple[Operation, Operation, str]]:
        """Pairs that `run` has not looked at."""
        out: dict[tuple[Operation, Operation], str] = {}
        for key, groups in self._shared_keys(large=False):
            for a, b in self._pairs(key, groups):
                needed = a.above & b.bit or b.above & a.bit
                if a.space != b.space or needed or self.grouping.why_apart(a, b):
                    continue
                pair = self._loops(a).keys[key], self._loops(b).keys[key]
                nbytes = hint(_bytes(key))
                why = f"both read the same {nbytes} bytes, which stay in the first-level cache"
                out.setdefault(pair, why)
        return [(*pair, why) for pair, why in out.items()]

    def _pairs(self, key: Key, groups: Sequence[Group]) -> Iterator[tuple[Group, Group]]:
        """Two at a time of those that read the key and are groups yet when their turn comes; each
        with at most `MOST_TRIED` later ones."""
        live = self.grouping.live
        now = {self.grouping.group[g.ops[0]] for g in groups}  # what those that joined became
        groups = sorted((g for g in now if key in self._loops(g).keys), key=lambda g: g.rank)
        for k, a in enumerate(groups):
            tried = 0
            for b in islice(groups, k + 1, None):
                if a not in live or tried == MOST_TRIED:
                    break
                if b in live:
                    tried += 1
                    yield a, b
                    tried -= a not in live or b not in live  # they were joined

    def _shared_keys(self, large: bool = True) -> list[tuple[Key, list[Group]]]:
        """What more than one nest reads, if that is enough to join them (else what is not); the
        largest first; and these nests.
        """
        groups: dict[Key, list[Group]] = {}
        for group in self.grouping.live:
            for key in self._loops(group).keys:
                groups.setdefault(key, []).append(group)
        rows = [
            (k, held)
            for k, held in groups.items()
            if len(held) > 1 and (_bytes(k) >= LEAST_SHARED) is large
        ]
        rows = [row for row in rows if large or _moves(row[0])]
        return sorted(rows, key=lambda row: _bytes(row[0]), reverse=True)

    def _decide(self, a: Group, b: Group, key: Key) -> None:
        if a.above & b.bit or b.above & a.bit:
            return  # the one needs the other
        found, one, other = self.grouping.siblings, self._loops(a), self._loops(b)
        pair = one.keys[key], other.keys[key]
        if pair in found.apart:
            return
        merged = self.grouping.merged_space(a, b)
        why = merged if isinstance(merged, str) else self._why_not(a, b, merged)
        if isinstance(merged, str) or why is not None:
            found.apart[pair] = str(why)
            return
        found.joined[pair] = _common(one, other)
        self.grouping.join(a, b, *merged)
        for group in (a, b):
            self.loops.pop(group)
        assert self.timeline is not None
        self.timeline.commit()

    # -- loops ------------------------------------------------------------------------------------

    def _loops(self, group: Group) -> _Loops:
        """What the group makes of its space; nothing for groups that are no nests of known size."""
        if group not in self.loops:
            space = static(group.space) if group.space is not None else None
            nothing = _Loops({}, frozenset(), (), None, 0)
            self.loops[group] = nothing if space is None else self._look(group, space)
        return self.loops[group]

    def _look(self, group: Group, space: Space) -> _Loops:
        keys: dict[Key, Operation] = {}
        walks: set[tuple[int, ...]] = set()
        outputs: list[Value] = []
        inside = set(group.ops)
        for op in group.ops:
            if (shape_of(op.operands[0]) if is_fold(op) else shape_of(op.result)) != space:
                continue
            for value in dict.fromkeys(op.operands):
                if shape_of(value) != space or self.grouping.source(value).op in inside:
                    continue
                read = read_of(value)
                walks.add(read.strides)
                keys.setdefault((read.source, read.offset, read.strides, space), op)
            if not is_fold(op) and any(r not in inside for r in self._users(op.result)):
                walks.add(contiguous_strides(space))
                outputs.append(op.result)
        folded = [f for f in group.folds if shape_of(f.operands[0]) == space]
        axes = {a for f in folded for a in _axes(f, space)} if folded else None
        dear = sum(map(_is_dear, group.ops))
        folds = None if axes is None else frozenset(axes)
        return _Loops(keys, frozenset(walks), tuple(outputs), folds, dear)

    def _users(self, value: Value) -> Iterator[Operation | None]:
        """Who needs a value, index maps seen through."""
        for op in self.readers.get(value, ()):
            if op is None or op in self.grouping.group:
                yield op
            else:
                yield from self._users(op.result)

    def _why_not(self, a: Group, b: Group, merged: tuple[Shape, RowSpace | None]) -> str | None:
        """Why the two should not be one nest with this space and row space."""
        return (
            self.grouping.obstacle(a, b, *merged)
            or self._why_size(a, b)
            or self._why_loops(a, b, merged[1])
            or self._why_product(a, b)
            or self._why_order(a, b)
        )

    def _why_size(self, a: Group, b: Group) -> str | None:
        one, other = self._loops(a), self._loops(b)
        arrays = {k for k in (*one.keys, *other.keys) if _bytes(k) >= LEAST_SHARED}
        streams = len(arrays) + len(one.outputs) + len(other.outputs)
        if streams > MOST_STREAMS:
            return f"together they read and write {streams} arrays: more than caches hold in step"
        if not one.dear or not other.dear:
            return None
        if one.dear + other.dear > MOST_EXPENSIVE:
            return f"together they have {one.dear + other.dear} functions: too few registers"
        moved = sum(map(_bytes, arrays)) + sum(_size(v) for v in (*one.outputs, *other.outputs))
        if moved < LEAST_EXPENSIVE:
            return f"both compute longer than the {hint(moved)} bytes take that they move"
        return None

    def _why_loops(self, a: Group, b: Group, row_space: RowSpace | None) -> str | None:
        space = static(a.space or ())
        if space is None or a.space != b.space:
            return "their iteration spaces differ"
        one, other = self._loops(a), self._loops(b)
        if any(_across(w, space) for w in one.walks | other.walks):
            return "one reads an array across its rows, in tiles"
        if row_space is not None:
            return None if a.row_space == b.row_space == row_space else _why_row_space(row_space)
        folds = other.folds if one.folds is None else one.folds
        run = _run(one.walks | other.walks, folds, space)
        before = max(_run(g.walks, g.folds, space) for g in (one, other))
        wide = [k for k in range(len(space)) if space[k] != 1]
        within = folds is not None and bool(wide) and wide[-1] in folds
        if run < min(before, LEAST_FOLDED if within else LEAST_RUN):
            return f"together their innermost loop is of {hint(run)} elements only"
        if one.folds == other.folds or not folds or wide[0] in folds:
            return None
        rows = prod(space[: min(folds)])
        return None if rows >= LEAST_ROWS else f"one is cut into {hint(rows)} rows only"

    def _why_product(self, a: Group, b: Group) -> str | None:
        one, other = (self.grouping.inputs(g) for g in (a, b))
        if any(v.op is not None and is_gather(v.op) for v in one | other):
            return "one may read rows through indices, which is decided later"
        for value in one ^ other:
            alone = len(set(self._users(value))) == 1
            if value.op is not None and value.op.name in PRODUCTS and alone:
                return f"one is applied to the blocks of '{value.op.name}' in the cache"
        for group in (a, b):
            for value in self._loops(group).outputs:
                users = list(self._users(value))
                if len(users) == 1 and users[0] is not None and users[0].name == "matmul":
                    held = value.type
                    if isinstance(held, TensorType) and held.nbytes >= LEAST_BYTES:
                        return "a product may compute what one of them makes"
        return None

    # -- order ------------------------------------------------------------------------------------

    def _why_order(self, a: Group, b: Group) -> str | None:
        if self.timeline is None:
            self.timeline = Timeline(self.grouping)
        self.orders -= len(self.grouping.live)
        one, other = self._loops(a), self._loops(b)
        return self.timeline.why_not(a, b, _common(one, other) // SPARED)


def _why_row_space(row_space: RowSpace) -> str | None:
    """Why a row kernel should not do what is none by itself."""
    if row_space.by_columns:
        return "one does blocks of columns, whose arrays have just the room in a cache"
    rows = prod(row_space.space[k] for k in row_space.outer)
    return None if rows >= LEAST_ROWS else f"one is cut into {hint(rows)} rows only"


def _common(one: _Loops, other: _Loops) -> int:
    """The bytes that both read."""
    return sum(_bytes(k) for k in one.keys.keys() & other.keys.keys())


def _is_dear(op: Operation) -> bool:
    """Whether an op of a nest is a function of many instructions."""
    held = op.operands[-1].type if op.operands else None
    if is_fold(op) or op.name in INSTRUCTIONS or not isinstance(held, TensorType):
        return False
    return arithmetic([(op.name, held.dtype.short)]) >= EXPENSIVE_NS


def _size(value: Value) -> int:
    return value.type.nbytes if isinstance(value.type, TensorType) else 0


def _axes(fold: Operation, space: Space) -> set[int]:
    """The axes of the space that a reduction folds."""
    axes = fold.attrs.get("axes", ())
    assert isinstance(axes, tuple)
    return (
        {int(a) for a in axes} & wide_axes(space) if shape_of(fold.operands[0]) == space else set()
    )


def _bytes(key: Key) -> int:
    """The bytes of an operand that are read; 0 for what is in no memory."""
    value, _, strides, space = key
    held = value.type
    if not isinstance(held, TensorType) or is_index_map(value.op):
        return 0
    read = prod(d for d, s in zip(space, strides, strict=True) if s)
    return read * held.dtype.itemsize


def _moves(key: Key) -> bool:
    """Whether every element of the space reads another one."""
    _, _, strides, space = key
    return bool(_bytes(key)) and all(s for d, s in zip(space, strides, strict=True) if d != 1)


def _across(strides: tuple[int, ...], space: Space) -> bool:
    """Whether an array is read by other steps than its rows have."""
    wide = [k for k in range(len(space)) if space[k] != 1]
    return bool(wide) and strides[wide[-1]] not in (0, 1)


def _run(walks: frozenset[tuple[int, ...]], folds: frozenset[int] | None, space: Space) -> int:
    """The extent of the innermost loop when neighbours that all walk alike are merged."""
    wide = [k for k in range(len(space)) if space[k] != 1]
    run, reduced = 1, folds or frozenset()
    for n, k in enumerate(reversed(wide)):
        if n:
            inner = wide[len(wide) - n]
            alike = all(w[k] == w[inner] * space[inner] for w in walks)
            if not alike or (k in reduced) != (inner in reduced):
                break
        run *= space[k]
    return run
