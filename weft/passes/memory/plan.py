"""What a memory plan is: slots, copies, moving slots; and the arena that the planner packs."""

from __future__ import annotations

import bisect
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from weft.ir.graph import Block, Operation, Value
from weft.ir.sizes import at_most, hint, is_traced

ALIGNMENT = 64  # bytes: a cache line, and the widest vector register
SlotKind = Literal["input", "variable", "constant", "result", "arena", "moving"]


@dataclass(frozen=True, slots=True)
class Slot:
    """`kind` and which one: input/result/constant number, variable name, byte offset in the arena,
    or number of a `Moving`.
    """

    kind: SlotKind
    which: int | str

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


@dataclass(slots=True)
class _Range:
    """Bytes of the arena that are needed from one event until before another."""

    size: int
    start: int
    end: int = sys.maxsize

    def meets(self, other: _Range) -> bool:
        """Are both needed at some time?"""
        return self.start < other.end and other.start < self.end


@dataclass(slots=True)
class MemoryPlan:
    """slots: where each tensor value is, those of loop bodies included. copies: those that remain.
    arena_bytes: the step's scratch. registers: control flow that is one kernel, whose regions have
    no slots. in_parts: loops that run in parts. donated: the results that are computed in an
    input's buffer, and which. scratch: of ops that need much of it for themselves.
    """

    slots: dict[Value, Slot] = field(default_factory=dict)
    copies: list[Copy] = field(default_factory=list)
    constants: list[Operation] = field(default_factory=list)
    moving: list[Moving] = field(default_factory=list)
    registers: set[Operation] = field(default_factory=set)
    in_parts: set[Operation] = field(default_factory=set)
    donated: dict[int, int] = field(default_factory=dict)
    scratch: dict[Operation, Slot] = field(default_factory=dict)
    arena_bytes: int = 0
    result_bytes: int = 0
    unshared_bytes: int = 0
    in_place: int = 0

    @property
    def peak_bytes(self) -> int:
        """Bytes that a step adds to what its inputs and variables hold: arena and results."""
        return self.arena_bytes + self.result_bytes

    def place_arena(self, arena: Arena) -> None:
        """Put every range of the arena where it is to be."""
        offsets, self.arena_bytes = arena.pack()

        def placed(slot: Slot) -> Slot:
            if slot.kind != "arena":
                return slot
            assert isinstance(slot.which, int)
            return Slot("arena", offsets[slot.which])

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
        best, peak = _place(ranges, closest=False)
        orders = (
            sorted(ranges, key=lambda r: -r.size),
            sorted(ranges, key=lambda r: -r.size * (min(r.end, self.events) - r.start)),
        )
        for order in orders:
            offsets, bytes_of_all = _place(order, closest=True)
            if bytes_of_all < peak - peak // 32:
                best, peak = offsets, bytes_of_all
        return {name: best[id(r)] for name, r in self.ranges.items()}, peak

    def _pack_alike(self) -> tuple[dict[int, int], int]:
        """As `pack`, where some sizes are to be others later: a range takes the place of one
        that is at least as large, whatever the sizes will be."""
        fixed = {n: r for n, r in self.ranges.items() if not is_traced(r.size)}
        best, peak = _place(list(fixed.values()), closest=False)
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


def _place(order: Sequence[_Range], closest: bool) -> tuple[dict[int, int], int]:
    """Offsets by id, and the end of all: each range where none that it meets is, in the lowest gap
    or in the one that it fills best.
    """
    placed: list[tuple[int, int, _Range]] = []  # offset, end; sorted
    offsets, peak = {}, 0
    for one in order:
        offset, gap = 0, sys.maxsize
        found: int | None = None
        for start, end, other in placed:
            if one.meets(other):
                if one.size <= start - offset < gap:
                    found, gap = offset, start - offset if closest else 0
                offset = max(offset, end)
        at = offset if found is None else found
        bisect.insort(placed, (at, at + one.size, one), key=lambda row: row[:2])
        offsets[id(one)] = at
        peak = max(peak, at + one.size)
    return offsets, peak


def aligned(size: int) -> int:
    """`size` rounded up to whole cache lines; at least one."""
    return max(size + ALIGNMENT - 1, ALIGNMENT) // ALIGNMENT * ALIGNMENT
