"""The arena of a step: byte ranges that are needed for a time, and where each of them is put."""

from __future__ import annotations

import heapq
import sys
from bisect import bisect_left, insort
from collections.abc import Sequence

import numpy as np

from weft.ir.dataclass import dataclass
from weft.ir.sizes import at_most, hint, is_traced

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
