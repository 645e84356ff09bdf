"""Memory of the array emulator: pointers that look at every index, masks of threads, and the race
detector.

Two accesses to a word race unless both read, or both are atomic, or one thread does both, or a
barrier of the block stands between them, or a `syncwarp` between two of one warp. Blocks meet in no
way. The last access of each sort is noted for each word, with how far apart the threads are that
did it: a superset of the threads is remembered, never fewer, so no race of accesses that were
carried out is missed, in whatever order a GPU would do them. Reads of words that were never written
are found by the same notes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from weft.codegen.cuda.source.kernel import NUMPY, poison

if TYPE_CHECKING:
    from weft.codegen.cuda.emulator.lanes import Lanes


Mask = Literal[True, False] | npt.NDArray[np.bool_]
Value = Any

__all__ = [
    "both",
    "choose",
    "count",
    "counted",
    "minus",
    "select",
    "select_all",
    "split",
    "union",
    "within",
]


def split(mask: Mask, condition: Value) -> tuple[Mask, Mask]:
    """Those of `mask` for whom the condition holds, and the others."""
    if not isinstance(condition, np.ndarray):
        return (mask, False) if condition else (False, mask)
    then = condition if mask is True else condition & mask
    taken = np.count_nonzero(then)
    if not taken:
        return False, mask
    if mask is True:
        return (True, False) if taken == then.size else (then, ~condition)
    other = mask & ~condition
    return (then, other) if other.any() else (mask, False)


def union(a: Mask, b: Mask) -> Mask:
    """Those of either."""
    if a is True or b is True:
        return True
    if a is False or b is False:
        return b if a is False else a
    joined: npt.NDArray[np.bool_] = a | b
    return True if joined.all() else joined


def both(a: Mask, b: Mask) -> Mask:
    """Those of both."""
    if a is True or b is True:
        return b if a is True else a
    if a is False or b is False:
        return False
    joined: npt.NDArray[np.bool_] = a & b
    return joined if joined.any() else False


def minus(a: Mask, b: Mask) -> Mask:
    """Those of `a` who are not of `b`."""
    if b is True or a is False:
        return False
    if b is False:
        return a
    left: npt.NDArray[np.bool_] = ~b if a is True else a & ~b
    return left if left.any() else False


def select(mask: Mask, new: Value, old: Value) -> Value:
    """`new` for those of `mask`, `old` (None: there is none yet) for the others."""
    if mask is True or old is None:
        return new
    return np.where(mask, new, old)


def select_all(mask: Mask, new: tuple[Value, ...], old: tuple[Value, ...] | None) -> Value:
    """`select` of each of several values."""
    if old is None:
        return new
    return tuple(select(mask, n, o) for n, o in zip(new, old, strict=True))


def choose(condition: Value, then: Value, other: Value) -> Value:
    """A conditional expression without effects."""
    if isinstance(condition, np.ndarray):
        return np.where(condition, then, other)
    return then if condition else other


def count(first: Value, last: Value, step: Value, mask: Mask) -> tuple[Value, int]:
    """How often `range` goes round for each thread, and for the one of `mask` that does most."""
    if not any(isinstance(v, np.ndarray) for v in (first, last, step)):
        trips = len(range(int(first), int(last), int(step)))
        return trips, trips
    span = np.asarray(last, np.int64) - first
    trips = np.maximum((span + step - np.sign(step)) // step, 0)
    return trips, int(trips.max() if mask is True else trips[mask].max())


def counted(first: Value, k: int, step: Value, dtype: np.dtype[Any]) -> Value:
    """What a loop's variable is the k-th time."""
    value = first + k * step
    return value.astype(dtype) if isinstance(value, np.ndarray) else dtype.type(value)


def within(mask: Mask, k: int, trips: Value) -> Mask:
    """Those who go round for the k-th time."""
    return split(mask, k < trips)[0] if isinstance(trips, np.ndarray) else mask


Numbers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

#: How far apart the threads of an access are: one thread, of one warp, of one block, of several.
ONE, WARP, BLOCK, GRID = 0, 1, 2, 3


class _Record:
    """The last accesses of one sort: by whom (-1: by none), after how many barriers of its block
    and meetings of its warp, and how far apart those are who did it."""

    def __init__(self, words: int) -> None:
        self.size = words
        self.who = np.full(0, -1, np.int64)

    def touched(self) -> bool:
        """Whether there was any access; before that no room is taken."""
        return self.who.size > 0

    def has(self, words: Numbers) -> Flags:
        """Which words were accessed."""
        if not self.touched():
            return np.zeros(words.size, np.bool_)
        accessed: Flags = self.who[words] >= 0
        return accessed

    def _make_room(self) -> None:
        if not self.touched():
            self.who = np.full(self.size, -1, np.int64)
            self.barriers = np.zeros(self.size, np.int64)
            self.meetings = np.zeros(self.size, np.int64)
            self.apart = np.zeros(self.size, np.int8)

    def conflicts(self, words: Numbers, now: _Now) -> Flags:
        """Which accesses of now race with those of the record."""
        if not self.touched():
            return np.zeros(words.size, np.bool_)
        who, apart = self.who[words], self.apart[words]
        distance = np.maximum(now.distance(who), apart)
        after_barrier = (distance <= BLOCK) & (self.barriers[words] < now.barriers)
        after_meeting = (distance <= WARP) & (self.meetings[words] < now.meetings)
        conflicts: Flags = (who >= 0) & (distance > ONE) & ~after_barrier & ~after_meeting
        return conflicts

    def add(self, words: Numbers, now: _Now) -> Flags:
        """Notes accesses; returns which words several threads of now touch (a thread of each)."""
        self._make_room()
        # An access that is before all of now by a barrier needs no mention any more: whatever races
        # with it races with those of now, too.
        distance = np.maximum(now.distance(self.who[words]), self.apart[words])
        apart = np.where(self.conflicts(words, now), distance, ONE)
        self.who[words] = now.who
        self.barriers[words] = now.barriers
        self.meetings[words] = now.meetings
        self.apart[words] = ONE
        shared: Flags = self.who[words] != now.who
        apart = np.maximum(apart, np.where(shared, now.distance(self.who[words]), ONE))
        np.maximum.at(self.apart, words, apart.astype(np.int8))
        return shared


class _Now:
    """The threads that access memory now, and how many barriers they have passed."""

    def __init__(self, k: Lanes, lanes: npt.NDArray[np.intp]) -> None:
        self.who: Numbers = k.first * k.width + lanes
        self.width = k.width
        self.barriers: Numbers = k.barriers[lanes // k.width]
        self.meetings: Numbers = k.meetings[lanes // 32]

    def distance(self, other: Numbers) -> npt.NDArray[np.int64]:
        """How far each thread is from another."""
        block = np.where(self.who // self.width == other // self.width, BLOCK, GRID)
        warp = np.where(self.who // 32 == other // 32, WARP, block)
        return np.where(self.who == other, ONE, warp)


class Shadow:
    """Shadow memory: the last accesses to each of `words` words; `bare`: nothing is in them until
    it is written."""

    def __init__(self, words: int, bare: bool = False) -> None:
        self.reads, self.writes, self.atomics = _Record(words), _Record(words), _Record(words)
        self.bare = bare

    def read(
        self, k: Lanes, places: Numbers, lanes: npt.NDArray[np.intp], at: Elements, line: int
    ) -> None:
        """Threads `lanes` read the elements at `places`."""
        words, lanes = at.words(places, lanes)
        now = _Now(k, lanes)
        if self.bare:
            unset = ~(self.writes.has(words) | self.atomics.has(words))
            if unset.any():
                i = int(np.flatnonzero(unset)[0])
                what = f"{at.element(int(words[i]))} is read before anything is written there"
                raise k.fault(what, line, int(lanes[i]))
        for record in (self.writes, self.atomics):
            self.refuse(k, record, words, lanes, now, at, line, "reads what", "writes")
        self.reads.add(words, now)

    def write(
        self, k: Lanes, places: Numbers, lanes: npt.NDArray[np.intp], at: Elements, line: int
    ) -> None:
        """Threads `lanes` write the elements at `places`."""
        words, lanes = at.words(places, lanes)
        now = _Now(k, lanes)
        self.refuse(k, self.reads, words, lanes, now, at, line, "writes what", "reads")
        for record in (self.writes, self.atomics):
            self.refuse(k, record, words, lanes, now, at, line, "writes what", "writes")
        several = self.writes.add(words, now)
        if several.any():
            i = int(np.flatnonzero(several)[0])
            other = int(self.writes.who[words[i]])
            self.race(k, words[i], lanes[i], other, at, line, "writes what", "writes")

    def atomic(
        self, k: Lanes, places: Numbers, lanes: npt.NDArray[np.intp], at: Elements, line: int
    ) -> None:
        """Threads `lanes` change the elements at `places`, each at once."""
        words, lanes = at.words(places, lanes)
        now = _Now(k, lanes)
        self.refuse(k, self.reads, words, lanes, now, at, line, "writes what", "reads")
        self.refuse(k, self.writes, words, lanes, now, at, line, "writes what", "writes")
        self.atomics.add(words, now)

    def refuse(
        self,
        k: Lanes,
        record: _Record,
        words: Numbers,
        lanes: npt.NDArray[np.intp],
        now: _Now,
        at: Elements,
        line: int,
        does: str,
        did: str,
    ) -> None:
        bad = record.conflicts(words, now)
        if bad.any():
            i = int(np.flatnonzero(bad)[0])
            self.race(k, words[i], lanes[i], int(record.who[words[i]]), at, line, does, did)

    def race(
        self,
        k: Lanes,
        word: np.int64,
        lane: np.intp,
        other: int,
        at: Elements,
        line: int,
        does: str,
        did: str,
    ) -> None:
        block, thread = divmod(other, k.width)
        what = f"a race: {does} block {block}, thread {thread} {did}: {at.element(int(word))}"
        raise k.fault(what, line, int(lane))


Lane = npt.NDArray[np.intp]
_UNSIGNED = {size: np.dtype(f"u{size}") for size in (1, 2, 4, 8)}


class Elements:
    """Elements in global memory, or in the shared memory of each block.

    `size`: elements that an index may name; `starts`: where each thread's lie in `data` (None:
    all have the same); `shadow`: who touched which (None: not looked at), where the elements are
    `each` words from `base` on."""

    def __init__(
        self,
        k: Lanes,
        name: str,
        data: npt.NDArray[Any],
        size: int,
        starts: Lane | None = None,
        shadow: Shadow | None = None,
        base: int = 0,
        each: int = 1,
    ) -> None:
        self.k, self.name, self.data, self.size = k, name, data, size
        self.starts, self.shadow, self.base, self.each = starts, shadow, base, each

    def words(self, places: Lane, lanes: Lane) -> tuple[Lane, Lane]:
        """The words of the shadow that elements at `places` have, and the threads again."""
        if self.each == 1:
            return places + self.base, lanes
        words = (places * self.each + self.base)[:, None] + np.arange(self.each)
        return words.ravel(), np.repeat(lanes, self.each)

    def element(self, word: int) -> str:
        """What a word of the shadow is called."""
        return f"{self.name}[{(word - self.base) // self.each % self.size}]"

    def load(self, index: Value, mask: Mask, line: int) -> Value:
        """The elements that the threads of `mask` name; others get any value."""
        if self.starts is None and not isinstance(index, np.ndarray):
            self.check(index, mask, line)
            if self.shadow is not None:
                lanes = self.k.present(mask)
                self.shadow.read(self.k, np.full(lanes.size, int(index)), lanes, self, line)
            return self.data[int(index)]
        places = self.places(index, mask, line)
        if self.shadow is not None:
            lanes = self.k.present(mask)
            self.shadow.read(self.k, places[lanes], lanes, self, line)
        return self.data.take(places)

    def store(self, index: Value, value: Value, mask: Mask, line: int) -> None:
        """Stores the value of each thread of `mask`."""
        places = self.places(index, mask, line)
        if mask is not True or self.shadow is not None:
            lanes = self.k.present(mask)
            places = places[lanes]
            if isinstance(value, np.ndarray):
                value = value[lanes]
            if self.shadow is not None:
                self.shadow.write(self.k, places, lanes, self, line)
        self.data[places] = value

    def atomic(self, name: str, index: Value, value: Value, mask: Mask, line: int) -> Value:
        """One thread after the other: what was there before."""
        lanes = self.k.present(mask)
        places = self.places(index, mask, line)[lanes]
        values = np.broadcast_to(value, self.k.count)[lanes]
        if self.shadow is not None:
            self.shadow.atomic(self.k, places, lanes, self, line)
        before = np.zeros(self.k.count, self.data.dtype)
        order = np.argsort(places, kind="stable")
        if (np.diff(places[order]) != 0).all():  # no two at one element: all at once
            before[lanes] = old = self.data[places]
            self.data[places] = _COMBINE[name](old, values)
            return before
        for lane, place, new in zip(lanes, places, values, strict=True):
            before[lane] = self.data[place]
            self.data[place] = _COMBINE[name](self.data[place], new)
        return before

    def load_wide(self, index: Value, count: int, mask: Mask, line: int) -> tuple[Value, ...]:
        """`count` elements from each index on, which lies at a multiple of 16 bytes."""
        places = self.wide(index, count, mask, line)
        if self.shadow is not None:
            lanes = self.k.present(mask)
            for i in range(count):
                self.shadow.read(self.k, places[lanes] + i, lanes, self, line)
        return tuple(self.data.take(places + i) for i in range(count))

    def store_wide(self, index: Value, values: tuple[Value, ...], mask: Mask, line: int) -> None:
        """Stores each thread's elements from its index on."""
        lanes = self.k.present(mask)
        places = self.wide(index, len(values), mask, line)[lanes]
        for i, value in enumerate(values):
            if self.shadow is not None:
                self.shadow.write(self.k, places + i, lanes, self, line)
            self.data[places + i] = value[lanes] if isinstance(value, np.ndarray) else value

    def wide(self, index: Value, count: int, mask: Mask, line: int) -> Lane:
        last = np.asarray(index).astype(np.int64) + (count - 1)
        self.check(last, mask, line)
        places = self.places(index, mask, line)
        off = (self.data.ctypes.data + places * self.data.itemsize) % 16 != 0
        if mask is not True:
            off &= mask
        if off.any():
            lane = int(np.flatnonzero(off)[0])
            what = f"128 bits at {self.name}[{_at(index, lane)}], no multiple of 16 bytes"
            raise self.k.fault(what, line, lane)
        return places

    def places(self, index: Value, mask: Mask, line: int) -> Lane:
        """Where in `data` each thread's element lies; 0 for threads that are not there."""
        self.check(index, mask, line)
        if not isinstance(index, np.ndarray):
            index = np.full(self.k.count, int(index))
        elif mask is not True:
            index = np.where(mask, index, 0)
        places: Lane = index.astype(np.intp, copy=False)
        return places if self.starts is None else places + self.starts

    def check(self, index: Value, mask: Mask, line: int) -> None:
        """Looks whether the indices of `mask` are within bounds."""
        if not isinstance(index, np.ndarray):
            bad = not 0 <= int(index) < self.size
        else:
            seen = index if mask is True else index[mask]
            bad = bool(seen.size and seen.view(_UNSIGNED[seen.itemsize]).max() >= self.size)
        if bad:
            lanes = self.k.present(mask)
            numbers = np.broadcast_to(index, self.k.count)[lanes]
            first = int(np.flatnonzero((numbers < 0) | (numbers >= self.size))[0])
            what = f"{self.name}[{numbers[first]}] of {self.size} elements"
            raise self.k.fault(what, line, int(lanes[first]))


_COMBINE = {"add": np.add, "max": np.maximum, "min": np.minimum}


def _at(index: Value, lane: int) -> int:
    return int(index[lane]) if isinstance(index, np.ndarray) else int(index)


class Locals:
    """An array of each thread."""

    def __init__(self, k: Lanes, line: int, dtype: str, size: int) -> None:
        self.k, self.dtype, self.size = k, dtype, size
        self.rows: list[Value] = [poison(dtype)] * size
        self.written: list[Mask] = [False] * size

    def load(self, index: Value, mask: Mask, line: int) -> Value:
        """The elements that the threads of `mask` name."""
        if isinstance(index, np.ndarray):
            value: Value = NUMPY[self.dtype].type(0)
            for row, who in self.by_row(index, mask, line):
                value = select(who, self.load(np.int64(row), who, line), value)
            return value
        self.bound(int(index), mask, line)
        if self.k.check:
            written = self.written[int(index)]
            missing = (
                np.zeros(self.k.count, np.bool_) if written is True else ~self.k.array(written)
            )
            lanes = np.flatnonzero(missing & self.k.array(mask))
            if lanes.size:
                raise self.k.fault(f"[{index}] of a local array is not set", line, int(lanes[0]))
        return self.rows[int(index)]

    def store(self, index: Value, value: Value, mask: Mask, line: int) -> None:
        """Stores the value of each thread of `mask`."""
        if isinstance(index, np.ndarray):
            for row, who in self.by_row(index, mask, line):
                self.store(np.int64(row), value, who, line)
            return
        i = int(index)
        self.bound(i, mask, line)
        self.rows[i] = select(mask, value, self.rows[i])
        if self.k.check:
            before = self.written[i]
            known = mask is True or before is True
            self.written[i] = True if known else self.k.array(mask) | self.k.array(before)

    def by_row(self, index: Value, mask: Mask, line: int) -> list[tuple[int, Mask]]:
        lanes = self.k.present(mask)
        for lane in lanes[(index[lanes] < 0) | (index[lanes] >= self.size)]:
            self.bound(int(index[lane]), mask, line, int(lane))
        rows = np.unique(index[lanes])
        there = self.k.array(mask)
        return [(int(row), there & (index == row)) for row in rows]

    def bound(self, index: int, mask: Mask, line: int, lane: int = -1) -> None:
        if not 0 <= index < self.size:
            lane = int(self.k.present(mask)[0]) if lane < 0 else lane
            raise self.k.fault(f"[{index}] of a local array of {self.size}", line, lane)
