"""Threads of several blocks, carried out together: what they are, and how they meet."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from weft.codegen.cuda.emulator.masks import Mask, Value
from weft.codegen.cuda.emulator.memory import Elements, Lane, Locals
from weft.codegen.cuda.emulator.mma import multiply_add
from weft.codegen.cuda.emulator.races import Shadow
from weft.codegen.cuda.reading.faults import EmulationError
from weft.codegen.cuda.reading.kinds import poison
from weft.codegen.cuda.reading.program import Program

_FULL = 0xFFFFFFFF
_WARP = np.arange(32)


class Lanes:
    """Blocks `first` to `first + number` of a grid of `blocks`, each of `threads`.

    A block has `width` lanes, a multiple of 32; those above `threads` are never there."""

    def __init__(
        self, program: Program, first: int, number: int, blocks: int, threads: int, check: bool
    ) -> None:
        self.program, self.first, self.check = program, first, check
        self.width = -(-threads // 32) * 32
        self.number = number
        self.count = number * self.width
        self.all: Lane = np.arange(self.count)
        inside = self.all % self.width
        self.thread = inside.astype(np.int32)
        self.lane = self.thread & np.int32(31)
        self.block: Value = np.int32(first)
        if number > 1:
            self.block = (first + self.all // self.width).astype(np.int32)
        self.threads, self.blocks = np.int32(threads), np.int32(blocks)
        self.alive: Mask = True if threads == self.width else np.asarray(inside < threads)
        self.barriers = np.zeros(number, np.int64)
        self.meetings = np.zeros(self.count // 32, np.int64)
        self.arrays: dict[int, Elements] = {}

    def fault(self, what: str, line: int, lane: int) -> EmulationError:
        """An error of one thread."""
        block, thread = divmod(lane, self.width)
        return self.program.fault(what, line, self.first + block, thread)

    def present(self, mask: Mask) -> Lane:
        """The threads of `mask`, which has some."""
        return self.all if mask is True else np.flatnonzero(mask)

    def array(self, mask: Mask) -> npt.NDArray[np.bool_]:
        """`mask` as an array."""
        return np.full(self.count, mask) if isinstance(mask, bool) else np.asarray(mask)

    def shared(self, line: int, dtype: str, size: int) -> Elements:
        """The shared array of a line, one in each block."""
        if line not in self.arrays:
            data = np.full(self.number * size, poison(dtype))
            starts = self.all // self.width * size
            shadow = Shadow(data.size, bare=True) if self.check else None
            self.arrays[line] = Elements(self, "a shared array", data, size, starts, shadow)
        return self.arrays[line]

    def local(self, line: int, dtype: str, size: int) -> Locals:
        """An array of each thread."""
        return Locals(self, line, dtype, size)

    def amount(self, by: Value, mask: Mask, line: int) -> Value:
        """By how much is shifted: 0 to 63, as all is of 64 bits on the way."""
        if self.check:
            self._refuse(by, (by < 0) | (by > 63), mask, line, "a shift by {}")
        return by

    def divisor(self, by: Value, mask: Mask, line: int) -> Value:
        """By what is divided without a look at it."""
        if self.check:
            self._refuse(by, by == 0, mask, line, "a division by {}")
        return by

    def _refuse(self, values: Value, bad: Value, mask: Mask, line: int, what: str) -> None:
        there = np.broadcast_to(bad, self.count) & self.array(mask)
        if there.any():
            lane = int(np.flatnonzero(there)[0])
            raise self.fault(what.format(np.broadcast_to(values, self.count)[lane]), line, lane)

    def whole(self, x: Value, dtype: np.dtype[Any], mask: Mask, line: int) -> Value:
        """The float as an integer, towards zero: within the dtype, or it means nothing."""
        if self.check:
            info = np.iinfo(dtype)
            low, high = float(info.min), float(info.max + 1)
            inside = ((x > low - 1) | (x == low)) & (x < high)
            self._refuse(x, np.logical_not(inside), mask, line, f"{{}} as {dtype}: out of range")
        return x.astype(dtype)

    # ------------------------------------------------------------------------------ meeting others

    def _missing(self, what: str, line: int, missing: npt.NDArray[np.bool_]) -> None:
        if missing.any():
            lane = int(np.flatnonzero(missing)[0])
            raise self.fault(f"{what}, but this thread is elsewhere", line, lane)

    def syncthreads(self, mask: Mask, line: int, name: str = "syncthreads") -> None:
        """A barrier: all threads of a block that have not left are there, or none."""
        if mask is not True:
            here = self.array(mask).reshape(self.number, -1)
            there = np.logical_or.reduce(here, axis=1)
            missing = self.array(self.alive).reshape(self.number, -1) & ~here & there[:, None]
            self._missing(f"others of its block are at {name}", line, missing.ravel())
            self.barriers += there
        else:
            self.barriers += 1

    def syncthreads_or(self, condition: Value, mask: Mask, line: int) -> Value:
        """Whether the condition holds for any thread of the block, after a barrier."""
        self.syncthreads(mask, line, "syncthreads_or")
        holds = np.broadcast_to(condition, self.count) & self.array(mask)
        result = holds.reshape(self.number, -1).any(axis=1)
        return np.repeat(result, self.width)

    def syncwarp(self, members: Value, mask: Mask, line: int) -> None:
        """The threads of a warp that `members` has a bit for meet."""
        self.members("syncwarp", members, mask, line)
        self.meetings += self.array(mask).reshape(-1, 32).any(axis=1)

    def members(self, name: str, members: Value, mask: Mask, line: int) -> None:
        """Looks whether all of `members` who have not left are there, and name the same."""
        full = not isinstance(members, np.ndarray) and int(members) & _FULL == _FULL
        if full and mask is True:
            return
        here, alive = self.array(mask), self.array(self.alive)
        bits = np.broadcast_to(members, self.count).astype(np.int64)
        named = (bits[:, None] >> _WARP & 1).astype(np.bool_)  # [thread, lane of its warp]
        own = named[self.all, self.lane]
        if (here & ~own).any():
            lane = int(np.flatnonzero(here & ~own)[0])
            raise self.fault(f"{name}: its mask has no bit for the thread itself", line, lane)
        warps = here.reshape(-1, 32)
        wanted = (named & here[:, None]).reshape(-1, 32, 32).any(axis=1)
        missing = wanted & alive.reshape(-1, 32) & ~warps
        self._missing(f"others of its warp wait for it in {name}", line, missing.ravel())
        low = (bits & _FULL).reshape(-1, 32)
        same = low[:, :, None] == low[:, None, :]
        pairs = named.reshape(-1, 32, 32) & warps[:, :, None] & warps[:, None, :]
        if (pairs & ~same).any():
            lane = int(np.flatnonzero((pairs & ~same).any(axis=2).ravel())[0])
            raise self.fault(f"{name}: threads of one warp name different masks", line, lane)

    def shuffle(
        self, name: str, members: Value, value: Value, by: Value, mask: Mask, line: int
    ) -> Value:
        """The value of another thread of the warp."""
        self.members(name, members, mask, line)
        by = np.broadcast_to(by, self.count).astype(np.int64)
        lane = self.lane.astype(np.int64)
        match name:
            case "shfl_sync":
                source = by & 31
            case "shfl_xor_sync":
                source = lane ^ by
            case "shfl_up_sync":
                source = np.where(by <= lane, lane - by, lane)
            case _:
                source = np.where(lane + by < 32, lane + by, lane)
        place = self.all - lane + (source & 31)
        if not (mask is True and not isinstance(members, np.ndarray)):
            self.sources(name, members, source, place, mask, line)
        return np.broadcast_to(value, self.count)[place]

    def mma(self, name: str, values: tuple[Value, ...], mask: Mask, line: int) -> tuple[Value, ...]:
        """A product of whole warps."""
        here = self.array(mask).reshape(-1, 32)
        missing = here.any(axis=1, keepdims=True) & ~here
        self._missing(
            f"others of its warp are at {name}, which takes all 32", line, missing.ravel()
        )
        words = [np.broadcast_to(v, self.count).reshape(-1, 32) for v in values]
        return tuple(c.ravel() for c in multiply_add(name, words))

    def sources(
        self, name: str, members: Value, source: Lane, place: Lane, mask: Mask, line: int
    ) -> None:
        """Looks whether those who are read from take part."""
        here = self.array(mask)
        bits = np.broadcast_to(members, self.count).astype(np.int64)
        bad = here & (~here[place] | ((bits >> (source & 31) & 1) == 0))
        if bad.any():
            first = int(np.flatnonzero(bad)[0])
            what = f"{name} reads lane {source[first] & 31}, which takes no part"
            raise self.fault(what, line, first)

    def vote(self, name: str, members: Value, condition: Value, mask: Mask, line: int) -> Value:
        """What the warp's threads say together."""
        self.members(name, members, mask, line)
        bits = np.broadcast_to(members, self.count).astype(np.int64).reshape(-1, 32)
        holds = np.broadcast_to(condition, self.count) & self.array(mask)
        ballots = (holds.reshape(-1, 32) << _WARP).sum(axis=1)[:, None] & bits
        there = (self.array(mask).reshape(-1, 32) << _WARP).sum(axis=1)[:, None] & bits
        match name:
            case "ballot_sync":
                return ballots.astype(np.uint32).ravel()
            case "any_sync":
                return (ballots != 0).ravel()
            case _:
                return (ballots == there).ravel()
