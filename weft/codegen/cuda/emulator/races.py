"""Who touched which word of memory since when: races, and reads of what was never written.

Two accesses to a word race unless both read, or both are atomic, or one thread does both, or a
barrier of the block stands between them, or a `syncwarp` between two of one warp. Blocks meet in no
way. The last access of each sort is noted for each word, with how far apart the threads are that
did it: a superset of the threads is remembered, never fewer, so no race of accesses that were
carried out is missed, in whatever order a GPU would do them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from weft.codegen.cuda.emulator.lanes import Lanes
    from weft.codegen.cuda.emulator.memory import Elements

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
    """The threads that do something, and how often they have met others."""

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
    """What is known of `words` words of memory; `bare`: nothing is in them until it is written."""

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
