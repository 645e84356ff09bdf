"""The memory plan of one block: its slots and copies, the planner that makes it, and the arena of a
step, byte ranges that are needed for a time.

A block is the graph itself, or a region of a loop or branch in it. All blocks share one arena. A
region's values are in it for the duration of their op, in which what is alive around the op stays
where it is. Where the region's arguments and results are is decided by whoever plans the op
(`place_control`)."""

from __future__ import annotations

import heapq
import math
import sys
from bisect import bisect_left, insort
from collections.abc import Callable, Sequence
from dataclasses import field, replace
from typing import Any, Literal

import numpy as np

from weft.ir.dataclass import dataclass
from weft.ir.graph import Block, Operation, Value
from weft.ir.ops.collectives import is_exchange, member_starts, member_types
from weft.ir.sizes import at_most, hint, is_traced
from weft.ir.spec import ConstArray, int_attr
from weft.ir.types import TensorType
from weft.passes.in_place import in_place_operands, writes_in_place
from weft.passes.rewriting.rewrite import is_view

ALIGNMENT = 64  # bytes: a cache line, and the widest vector register


@dataclass(slots=True)
class _Range:
    """Bytes of the arena that are needed from one event until before another."""

    size: int
    start: int
    end: int = sys.maxsize

    def meets(self, other: _Range) -> bool:
        """Are both needed at some time?"""
        return self.start < other.end and other.start < self.end


class Arena:
    """Byte ranges, taken and released in the order of the ops; `pack` places them when all are
    known. Until then a range is known by a number instead of its offset.
    """

    def __init__(self) -> None:
        self.ranges: dict[int, _Range] = {}
        self.events = 0
        self.free = 0  # the next range's name

    def take(self, size: int) -> int:
        """A new range of `size` bytes."""
        name, size = self.free, aligned(size)
        self.ranges[name] = _Range(size, self._event())
        self.free += 1
        return name

    def release(self, name: int) -> None:
        """The range is not needed from now on."""
        self.ranges[name].end = self._event()

    def pack(self) -> tuple[dict[int, int], int]:
        """The offset of each range, and the bytes of all; ranges that meet do not overlap.

        In the order in which they were taken, at the lowest offset, memory is used again soon after
        it was written. The longest-lived and largest first, into the smallest gap, comes close to
        what is needed at once; it is taken if it saves a thirty-second (Pisarchyk and Lee,
        "Efficient Memory Management for Deep Neural Net Inference", 2020, compare such orders).
        """
        ranges = list(self.ranges.values())
        if any(is_traced(r.size) for r in ranges):
            return self._pack_alike()
        best, peak = _lowest(ranges)
        if self._at_once() < peak - peak // 32:  # else nothing can save as much
            orders = (
                sorted(ranges, key=lambda r: -r.size),
                sorted(ranges, key=lambda r: -r.size * (min(r.end, self.events) - r.start)),
            )
            for order in orders:
                offsets, bytes_of_all = _closest(order)
                if bytes_of_all < peak - peak // 32:
                    best, peak = offsets, bytes_of_all
        return {name: best[id(r)] for name, r in self.ranges.items()}, peak

    def _at_once(self) -> int:
        """The most bytes that are needed at a time: no order takes less."""
        changes = sorted(
            [(r.end, -r.size) for r in self.ranges.values()]
            + [(r.start, r.size) for r in self.ranges.values()]
        )
        most = held = 0
        for _, size in changes:
            held += size
            most = max(most, held)
        return most

    def _pack_alike(self) -> tuple[dict[int, int], int]:
        """As `pack`, where some sizes are to be others later: a range takes the place of one
        that is at least as large, whatever the sizes will be."""
        fixed = {n: r for n, r in self.ranges.items() if not is_traced(r.size)}
        best, peak = _lowest(list(fixed.values()))
        offsets = {name: best[id(r)] for name, r in fixed.items()}
        places: list[tuple[int, int, list[_Range]]] = []  # offset, size, what is there
        for name, one in sorted(self.ranges.items(), key=lambda row: -hint(row[1].size)):
            if name in fixed:
                continue
            place = next((p for p in places if _has_room(p, one)), (peak, one.size, list[_Range]()))
            if not place[2]:
                places.append(place)
                peak += one.size
            place[2].append(one)
            offsets[name] = place[0]
        return offsets, peak

    def _event(self) -> int:
        self.events += 1
        return self.events


def _has_room(place: tuple[int, int, list[_Range]], one: _Range) -> bool:
    _, size, held = place
    return at_most(one.size, size) and not any(one.meets(other) for other in held)


def _lowest(ranges: Sequence[_Range]) -> tuple[dict[int, int], int]:
    """Offsets by id, and the end of all: each range, in the order of their starts, in the lowest
    gap between those that are needed then."""
    held: list[tuple[int, int]] = []  # (end in time, offset) of those needed now: a heap
    sizes: dict[int, int] = {}  # of those, by offset
    gaps: list[tuple[int, int]] = [(0, sys.maxsize)]  # offset and end of what is free; sorted
    offsets, peak = {}, 0
    for one in ranges:
        while held and held[0][0] <= one.start:
            offset = heapq.heappop(held)[1]
            _free(gaps, offset, offset + sizes.pop(offset))
        k = next(i for i, (start, end) in enumerate(gaps) if end - start >= one.size)
        offset, end = gaps[k]
        gaps[k : k + 1] = [(offset + one.size, end)] if end - offset > one.size else []
        offsets[id(one)] = offset
        peak = max(peak, offset + one.size)
        heapq.heappush(held, (one.end, offset))
        sizes[offset] = one.size
    return offsets, peak


def _free(gaps: list[tuple[int, int]], start: int, end: int) -> None:
    """Add what is free now to the gaps, and join it with its neighbours."""
    k = bisect_left(gaps, (start, end))
    after = k < len(gaps) and gaps[k][0] == end
    before = k > 0 and gaps[k - 1][1] == start
    first = gaps[k - 1][0] if before else start
    last = gaps[k][1] if after else end
    gaps[k - before : k + after] = [(first, last)]


#: Ranges of which the few that meet another are found one by one, more of them all at once.
_FEW = 64


def _closest(order: Sequence[_Range]) -> tuple[dict[int, int], int]:
    """Offsets by id, and the end of all: each range where none that it meets is, in the gap that it
    fills best (the lowest of these)."""
    columns = np.empty((4, len(order)), np.int64)  # start, end in time; offset, end in the arena
    few: list[tuple[int, int, _Range]] = []  # offset, end, range; by offset
    offsets, peak = {}, 0
    for count, one in enumerate(order):
        if count <= _FEW:
            at = _best_gap([(a, b) for a, b, other in few if one.meets(other)], one.size)
            insort(few, (at, at + one.size, one), key=lambda row: row[:2])
        else:
            at = _best_gap_of(columns[:, :count], one)
        columns[:, count] = one.start, one.end, at, at + one.size
        offsets[id(one)] = at
        peak = max(peak, at + one.size)
    return offsets, peak


def _best_gap(taken: Sequence[tuple[int, int]], size: int) -> int:
    """The offset of the smallest gap for `size` bytes between what is taken, or the end of all."""
    offset, gap = 0, sys.maxsize
    found: int | None = None
    for start, end in taken:
        if size <= start - offset < gap:
            found, gap = offset, start - offset
        offset = max(offset, end)
    return offset if found is None else found


def _best_gap_of(columns: np.ndarray[tuple[int, int], np.dtype[np.int64]], one: _Range) -> int:
    """`_best_gap` between the ranges in these columns that `one` meets."""
    starts, ends, offsets, tops = columns
    (near,) = np.nonzero((starts < one.end) & (ends > one.start))
    if not near.size:
        return 0
    near = near[np.argsort(offsets[near], kind="stable")]
    below = np.empty(near.size + 1, np.int64)  # up to where all is taken before each of them
    below[0] = 0
    np.maximum.accumulate(tops[near], out=below[1:])
    gaps = offsets[near] - below[:-1]
    gaps[gaps < one.size] = sys.maxsize
    best = int(np.argmin(gaps))
    return int(below[-1] if gaps[best] == sys.maxsize else below[best])


def aligned(size: int) -> int:
    """`size` rounded up to whole cache lines; at least one."""
    return max(size + ALIGNMENT - 1, ALIGNMENT) // ALIGNMENT * ALIGNMENT


SlotKind = Literal["input", "variable", "constant", "result", "arena", "moving"]


@dataclass(frozen=True, slots=True)
class Slot:
    """`kind` and which one: input/result/constant number, variable name, byte offset in the arena,
    or number of a `Moving`. offset: within a range of the arena that is not placed yet.
    """

    kind: SlotKind
    which: int | str
    offset: int = 0

    def __str__(self) -> str:
        return f"arena+{self.which}" if self.kind == "arena" else f"{self.kind} {self.which}"


@dataclass(frozen=True, slots=True)
class Moving:
    """A place that follows the iterations of a loop: in iteration i, counted from 0, it is
    `offset + i * stride` bytes after the start of `even` or, for odd i, of `odd`.
    """

    loop: Operation
    even: Slot
    odd: Slot
    offset: int = 0
    stride: int = 0


@dataclass(frozen=True, slots=True)
class Copy:
    """A copy that the step makes after the op at `position` of `block` (-1: before all ops).

    block: a region of a loop or branch; None for the graph itself.
    """

    position: int
    source: Slot
    target: Slot
    nbytes: int
    why: str
    block: Block | None = None


@dataclass(frozen=True, slots=True)
class ArenaRange:
    """Bytes of the arena that values share, in turn or in place of each other: they are taken at
    the event `start` and given back at `end`, of the plan's events in the order of the ops."""

    offset: int
    size: int
    start: int
    end: int
    values: tuple[Value, ...]


@dataclass(slots=True)
class MemoryPlan:
    """The memory plan of a graph. slots: where each tensor value is, those of loop bodies included.
    copies: those that remain. arena_bytes: the step's scratch. registers: control flow that is one
    kernel, whose regions have no slots. in_parts: loops that run in parts. donated: the results
    that are computed in an input's buffer, and which. scratch: of ops that need much of it for
    themselves. ranges, events: what of the arena is taken when, and how many events there are.
    """

    slots: dict[Value, Slot] = field(default_factory=dict)
    copies: list[Copy] = field(default_factory=list)
    constants: list[Operation] = field(default_factory=list)
    moving: list[Moving] = field(default_factory=list)
    registers: set[Operation] = field(default_factory=set)
    in_parts: set[Operation] = field(default_factory=set)
    donated: dict[int, int] = field(default_factory=dict)
    scratch: dict[Operation, Slot] = field(default_factory=dict)
    ranges: list[ArenaRange] = field(default_factory=list)
    events: int = 0
    arena_bytes: int = 0
    result_bytes: int = 0
    unshared_bytes: int = 0
    in_place: int = 0

    @property
    def peak_bytes(self) -> int:
        """Bytes that a step adds to what its inputs and variables hold: arena and results."""
        return self.arena_bytes + self.result_bytes

    def copies_by_place(self) -> dict[tuple[Block | None, int], list[Copy]]:
        """The copies of any bytes, by block (None: the graph itself) and the position of the op
        that they follow."""
        found: dict[tuple[Block | None, int], list[Copy]] = {}
        for copy in self.copies:
            if copy.nbytes:
                found.setdefault((copy.block, copy.position), []).append(copy)
        return found

    def constant_arrays(self) -> list[np.ndarray[Any, Any]]:
        """What the constants hold, by their numbers."""
        found = []
        for op in self.constants:
            held = op.attrs["value"]
            assert isinstance(held, ConstArray)
            found.append(held.array)
        return found

    def place_arena(self, arena: Arena) -> None:
        """Put every range of the arena where it is to be."""
        offsets, self.arena_bytes = arena.pack()
        held: dict[int | str, list[Value]] = {}
        for value, slot in self.slots.items():
            if slot.kind == "arena":
                held.setdefault(slot.which, []).append(value)
        self.events = arena.events
        self.ranges = [
            ArenaRange(offsets[n], r.size, r.start, min(r.end, self.events), tuple(held.get(n, ())))
            for n, r in arena.ranges.items()
        ]

        def placed(slot: Slot) -> Slot:
            if slot.kind != "arena":
                return slot
            assert isinstance(slot.which, int)
            return Slot("arena", offsets[slot.which] + slot.offset)

        self.slots = {value: placed(slot) for value, slot in self.slots.items()}
        self.copies = [
            replace(c, source=placed(c.source), target=placed(c.target)) for c in self.copies
        ]
        self.moving = [replace(m, even=placed(m.even), odd=placed(m.odd)) for m in self.moving]
        self.scratch = {op: placed(slot) for op, slot in self.scratch.items()}

    def describe(self) -> str:
        """One paragraph for people."""
        return (
            f"peak {self.peak_bytes} bytes: arena {self.arena_bytes} (without reuse "
            f"{self.unshared_bytes}), results {self.result_bytes}; {self.in_place} values in "
            f"place, {len(self.copies)} copies"
            + "".join(
                f"\n  copy {c.nbytes} bytes {c.source} -> {c.target}: {c.why}" for c in self.copies
            )
            + "".join(f"\n  moving {k}: {_moves(m)}" for k, m in enumerate(self.moving))
        )


def _moves(m: Moving) -> str:
    if m.even != m.odd:
        return f"{m.even} and {m.odd} in turn in a {m.loop.name}"
    start = f"{m.even} + {m.offset}" if m.offset else str(m.even)
    return f"{start} {'-' if m.stride < 0 else '+'} i * {abs(m.stride)} in a {m.loop.name}"


@dataclass(slots=True)
class Shared:
    """The state that the planners of all blocks share. place_control: plans an op with regions,
    unless in_registers says that it is one kernel (with values of at most so many elements in
    registers); in_parts: whether it is a loop that runs in parts. scratch_of: bytes that an op
    needs for itself and that shall be in the arena.
    """

    place_control: Callable[[BlockPlanner, int, Operation], None]
    in_registers: Callable[[Operation], int]
    in_parts: Callable[[Operation], bool]
    scratch_of: Callable[[Operation], int]
    plan: MemoryPlan = field(default_factory=MemoryPlan)
    arena: Arena = field(default_factory=Arena)


class BlockPlanner:
    """Places the values of one block. Set the slots of its arguments, and `targets`, first."""

    def __init__(self, shared: Shared, block: Block, where: Block | None) -> None:
        self.shared = shared
        self.block = block
        self.where = where  # of the copies: `block`, or None at the top
        self.plan = shared.plan
        self.arena = shared.arena
        self.root: dict[Value, Value] = {}  # value -> the value whose buffer it shares
        self.last_use: dict[Value, int] = {}  # of root values, as op positions
        self.made_at = {r: i for i, op in enumerate(block.ops) for r in op.results}
        self.targets: dict[Value, Slot] = {}  # root values that are computed straight into a slot
        self.live: dict[int, int] = {}  # arena offset -> last position at which it is needed
        self.ends: list[tuple[int, int]] = []  # a heap of these by position, and of outdated ones
        self.keeps = False  # whether ranges of the arena are the block's until its end
        self._find_views_and_uses()

    def run(self) -> None:
        """Place all values, in the order of the ops."""
        for position, op in enumerate(self.block.ops):
            self._place(position, op)

    def release_all(self) -> None:
        """Give the block's ranges of the arena back."""
        for offset in self.live:
            self.arena.release(offset)
        self.live.clear()

    # -- analysis ---------------------------------------------------------------------------------

    def _find_views_and_uses(self) -> None:
        for position, op in enumerate(self.block.ops):
            for value in op.operands:
                self.last_use[self.root_of(value)] = position
            if is_view(op):
                self.root[op.result] = self.root_of(op.operands[0])
        for value in self.block.results:
            self.last_use[self.root_of(value)] = len(self.block.ops)

    def root_of(self, value: Value) -> Value:
        """The value whose buffer `value` shares."""
        return self.root.get(value, value)

    def is_free(self, value: Value) -> bool:
        """Is `value` made by a kernel that no target claims yet, so that it may go anywhere?"""
        held = ("read", "constant", "variable")
        return value.op is not None and value.op.name not in held and value not in self.targets

    def may_replace(self, new: Value, old: Value) -> bool:
        """May `new` be computed in the buffer of `old`: is `old` not needed then?"""
        last, made = self.last_use.get(old, -1), self.made_at[new]
        return last < made or (last == made and self.reads_in_place(new, old))

    def reads_in_place(self, written: Value, read: Value) -> bool:
        """Does the op that makes `written` bear it to be in the buffer of its operand `read`?"""
        op = written.op
        if op is None or not _alike(written, read):
            return False
        if op.regions and op.name != "fused":
            return self._carries_in_place(op, written.index, read)
        if not writes_in_place(written):
            return False
        safe = in_place_operands(op)
        return all(i in safe for i, v in enumerate(op.operands) if self.root_of(v) is read)

    def _carries_in_place(self, op: Operation, k: int, read: Value) -> bool:
        """Can result `k` of a loop or branch be where `read` is, which it starts from? Not if it
        is a stack: its rows are written while any row of `read` may still be read.
        """
        numbers = [i for i, v in enumerate(op.operands) if self.root_of(v) is read]
        if op.name == "unrolled":
            return False
        if op.name != "cond":
            starts = k < int_attr(op.attrs, "carries") and numbers == [k]
            return starts and not _fits(read, self.shared.in_registers(op))
        if len(numbers) != 1 or numbers == [0] or self.shared.in_registers(op):
            return False
        return all(self._updates(region, k, numbers[0] - 1) for region in op.regions)

    def _updates(self, region: Block, k: int, number: int) -> bool:
        """Is result `k` of a branch its argument `number`, or can it be computed there?"""
        inner = BlockPlanner(self.shared, region, region)
        root, arg = inner.root_of(region.results[k]), region.args[number]
        return root is arg or (inner.is_free(root) and inner.may_replace(root, arg))

    # -- placement --------------------------------------------------------------------------------

    def _place(self, position: int, op: Operation) -> None:
        if self.place_state(position, op):
            pass
        elif op.name == "constant":
            self.plan.slots[op.result] = Slot("constant", len(self.plan.constants))
            self.plan.constants.append(op)
        elif is_view(op):
            self.plan.slots[op.result] = self.plan.slots[op.operands[0]]
        elif op.regions and op.name != "fused" and not self.shared.in_registers(op):
            self.shared.place_control(self, position, op)
        else:
            if op.regions and op.name != "fused":
                self.plan.registers.add(op)
                self._take_over_arrays(position, op)
            if is_exchange(op, "done") and self.plan.slots[op.operands[0]].kind == "arena":
                self._place_members(position, op)
            self._place_kernel(position, op)
            self._place_scratch(op)
        if not self.keeps:
            self._release_until(position)

    def _release_until(self, position: int) -> None:
        """Give back the ranges that nobody needs after this position, in the order of taking."""
        over: set[int] = set()
        while self.ends and self.ends[0][0] <= position:
            last, offset = heapq.heappop(self.ends)
            if self.live.get(offset) == last:
                over.add(offset)
        for offset in sorted(over):
            del self.live[offset]
            self.arena.release(offset)

    def _keep_until(self, offset: int, last: int) -> None:
        if last > self.live.get(offset, -1):  # of a bucket others may be needed for longer
            self.live[offset] = last
            heapq.heappush(self.ends, (last, offset))

    def place_state(self, position: int, op: Operation) -> bool:
        """Place the results of an op on variables; False for other ops. Regions have none."""
        return False

    def _place_kernel(self, position: int, op: Operation) -> None:
        reusable = self._dying_operands(position, op)
        for value in op.results:
            if value in self.plan.slots:
                continue
            if value in self.targets:
                self.plan.slots[value] = self.targets[value]
                if self.targets[value].kind == "variable":
                    self.plan.in_place += 1
            elif not (writes_in_place(value) and self._reuse(value, reusable, position)):
                self.allocate(value, position)

    def _place_members(self, position: int, op: Operation) -> None:
        """What is taken out of a bucket stays where it is."""
        (bucket,) = op.operands
        slot = self.plan.slots[bucket]
        assert isinstance(slot.which, int)
        types = member_types(op)
        for value, start, held in zip(op.results, member_starts(types)[0], types, strict=True):
            if value not in self.targets:
                offset = slot.offset + start * held.dtype.itemsize
                self.plan.slots[value] = Slot("arena", slot.which, offset)
                self.plan.in_place += 1
                self._keep_until(slot.which, self.last_use.get(value, position))

    def _place_scratch(self, op: Operation) -> None:
        """What an op of the graph itself needs while it runs, if that is much."""
        nbytes = self.shared.scratch_of(op) if self.where is None else 0
        if nbytes:
            name = self.arena.take(nbytes)
            self.arena.release(name)
            self.plan.scratch[op] = Slot("arena", name)

    def _take_over_arrays(self, position: int, op: Operation) -> None:
        """Arrays that a loop in one kernel changes stay where they are, if they die here."""
        limit = self.shared.in_registers(op)
        for k in range(int_attr(op.attrs, "carries") if "carries" in op.attrs else 0):
            if not _fits(op.operands[k], limit):
                self.take_over_carry(position, op, k)

    def take_over_carry(self, position: int, op: Operation, k: int) -> bool:
        """Put result `k` of a loop where carry `k` starts, if nothing else is to be there."""
        value, root = op.results[k], self.root_of(op.operands[k])
        once = sum(self.root_of(v) is root for v in op.operands) == 1
        fits = once and value not in self.targets and self.is_dying(root, position)
        if fits:
            self.take_over(value, root, position)
        return fits

    def _dying_operands(self, position: int, op: Operation) -> list[Value]:
        safe = in_place_operands(op)
        out = []
        for i in safe:
            value = self.root_of(op.operands[i])
            unsafe = any(
                self.root_of(v) is value for j, v in enumerate(op.operands) if j not in safe
            )
            if self.is_dying(value, position) and not unsafe and value not in out:
                out.append(value)
        return out

    def is_dying(self, value: Value, position: int) -> bool:
        """Is the root `value` a range of the arena that this block owns and needs no longer after
        `position`?
        """
        return (
            self.plan.slots[value].kind == "arena"
            and value in self.made_at
            and value not in self.targets
            and self.last_use[value] == position
        )

    def _reuse(self, value: Value, candidates: list[Value], position: int) -> bool:
        for candidate in candidates:
            if _alike(value, candidate):
                candidates.remove(candidate)
                self.take_over(value, candidate, position)
                return True
        return False

    def take_over(self, value: Value, dying: Value, position: int) -> Slot:
        """Put `value` where `dying` is."""
        assert isinstance(value.type, TensorType)
        slot = self.plan.slots[value] = self.plan.slots[dying]
        self.plan.in_place += 1
        self.plan.unshared_bytes += aligned(value.type.nbytes)
        assert isinstance(slot.which, int)
        self._keep_until(slot.which, self.last_use.get(value, position))
        return slot

    def allocate(self, value: Value, position: int) -> None:
        """Put `value` into the arena."""
        if isinstance(value.type, TensorType):
            last = self.last_use.get(value, position)
            self.plan.slots[value] = self.scratch(value.type.nbytes, last)

    def scratch(self, nbytes: int, last: int) -> Slot:
        """A range of the arena that is needed until the op at position `last`."""
        offset = self.arena.take(nbytes)
        self.plan.unshared_bytes += aligned(nbytes)
        self._keep_until(offset, last)
        return Slot("arena", offset)

    def copy(self, position: int, source: Slot, target: Slot, value: Value, why: str) -> None:
        """Copy what is needed of `value` after the op at `position`; nothing if it is there."""
        assert isinstance(value.type, TensorType)
        if source != target:
            copy = Copy(position, source, target, value.type.nbytes, why, self.where)
            self.plan.copies.append(copy)


def _alike(a: Value, b: Value) -> bool:
    """Do the two have the same shape and element size?"""
    if not isinstance(a.type, TensorType) or not isinstance(b.type, TensorType):
        return False
    return a.type.shape == b.type.shape and a.type.dtype.itemsize == b.type.dtype.itemsize


def _fits(value: Value, limit: int) -> bool:
    """Has `value` at most `limit` elements?"""
    return isinstance(value.type, TensorType) and math.prod(value.type.static_shape) <= limit
