"""Which source positions a result sees through a window, for kernels that go tap by tap.

Along one axis a table has, for each position and tap, the position on the other side or -1 (worked
out here, so that kernels divide nothing). At a position of three axes the kernel lists what is
there: pairs (offset of the source in elements, number of the tap), in row-major order of taps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
from llvmlite import ir

from weft.codegen.call import Arg, Pool
from weft.codegen.emitter import I64, Emitter
from weft.codegen.windows.geometry import Table, Triple
from weft.ir.dataclass import dataclass
from weft.ir.spec import ConstArray

TABLE = I64.as_pointer()


@dataclass(frozen=True, slots=True)
class Reach:
    """One side of a sliding window. forward: results are the small side, the source the large."""

    result: Triple
    source: Triple
    window: Triple
    strides: Triple
    lo: Triple
    dilation: Triple
    forward: bool

    def axis(self, k: int) -> Table:
        """The table of one axis, [position, tap]."""
        at = np.arange(self.result[k], dtype=np.int64)[:, None]
        moved = np.arange(self.window[k], dtype=np.int64) * self.dilation[k] - self.lo[k]
        if self.forward:
            found = at * self.strides[k] + moved
            there = found >= 0
        else:
            found, rest = np.divmod(at - moved, self.strides[k])
            there = (found >= 0) & (rest == 0)
        there &= found < self.source[k]
        return np.where(there, found, -1)

    def words(self) -> tuple[Arg, ...]:
        """The arguments that `Taps` reads."""
        tables = [Pool(ConstArray(self.axis(k))) for k in range(3)]
        return (*tables, *self.window, *self.source, *self.result, *self.inside())

    def inside(self) -> Triple:
        """(first, end, step): positions along C that see something through every tap, each `step`
        source positions after the one before.
        """
        table = self.axis(2)
        (whole,) = np.nonzero((table >= 0).all(1))
        if not self.window[2] or not len(whole):
            return 0, 0, 1
        first, end = int(whole[0]), int(whole[-1]) + 1
        steps = np.diff(table[first:end, 0])
        if end - first != len(whole) or (steps != steps[:1]).any():
            return 0, 0, 1
        return first, end, int(steps[0]) if len(steps) else 1

    @property
    def taps(self) -> int:
        """Positions of the window."""
        return int(np.prod(self.window))


#: How many words `Reach.words` are.
REACH_WORDS = 15


@contextmanager
def listing_function(
    e: Emitter, name: str, dtype: str, numbers: int
) -> Iterator[tuple[Emitter, list[ir.Value], list[ir.Value], Taps]]:
    """A loop function of a kernel whose arguments are three arrays of `dtype`, scratch memory for
    `Taps.list_at` and its stride from worker to worker, so many numbers, and the words of a reach.

    Yields (emitter inside, the arrays and this worker's scratch, the numbers with lo and hi, taps).
    """
    pointers = [e.pointer_argument(k, dtype) for k in range(3)]
    entries = e.builder.add(e.argument(3), e.builder.mul(e.worker, e.argument(4)))
    pointers.append(e.builder.inttoptr(entries, TABLE))
    words = [e.argument(5 + k) for k in range(numbers + REACH_WORDS)]
    with e.loop_function(name, pointers, [*words, e.lo, e.hi]) as (f, places, values):
        reach = values[numbers : numbers + REACH_WORDS]
        yield f, places, values[:numbers] + values[-2:], Taps(f, reach)


class Taps:
    """The emitted side: `Reach.words` as parameters of a function."""

    def __init__(self, e: Emitter, words: Sequence[ir.Value]) -> None:
        self.e = e
        b = e.builder
        self.tables = [b.inttoptr(w, TABLE) for w in words[:3]]
        self.window, self.source = words[3:6], words[6:9]
        self.result, self.inside = words[9:12], words[12:15]
        self.count = e.alloca(I64)

    def list_at(
        self, position: Sequence[ir.Value], entries: ir.Value, channels: ir.Value
    ) -> ir.Value:
        """Write the pairs of what is seen at `position` to `entries`; how many there are."""
        e, b = self.e, self.e.builder
        b.store(e.index(0), self.count)
        with (
            self.seen(0, position[0]) as (tap_a, at_a),
            self.seen(1, position[1]) as (tap_b, at_b),
        ):
            tap = b.mul(b.add(b.mul(tap_a, self.window[1]), tap_b), self.window[2])
            row = b.mul(b.add(b.mul(at_a, self.source[1]), at_b), self.source[2])
            with self.seen(2, position[2]) as (tap_c, at_c):
                number = b.load(self.count)
                place = e.at(entries, b.mul(number, e.index(2)))
                b.store(b.mul(b.add(row, at_c), channels), place)
                b.store(b.add(tap, tap_c), e.at(place, e.index(1)))
                b.store(b.add(number, e.index(1)), self.count)
        return b.load(self.count)

    @contextmanager
    def seen(self, axis: int, position: ir.Value) -> Iterator[tuple[ir.Value, ir.Value]]:
        """For each tap of an axis that meets something: (tap, source position)."""
        e, b = self.e, self.e.builder
        row = e.at(self.tables[axis], b.mul(position, self.window[axis]))
        with e.for_range(e.index(0), self.window[axis]) as tap:
            at = b.load(e.at(row, tap))
            with b.if_then(b.icmp_signed(">=", at, e.index(0))):
                yield tap, at

    def size(self, side: Sequence[ir.Value]) -> ir.Value:
        """Positions of `self.source` or `self.result`."""
        b = self.e.builder
        return b.mul(b.mul(side[0], side[1]), side[2])

    @contextmanager
    def pixels(self, tap: ir.Value) -> Iterator[tuple[ir.Value, ir.Value]]:
        """For all positions that see something through `tap`: (position, source position), flat."""
        b = self.e.builder
        row, tap_c = b.sdiv(tap, self.window[2]), b.srem(tap, self.window[2])
        tap_a, tap_b = b.sdiv(row, self.window[1]), b.srem(row, self.window[1])
        with (
            self._meets(0, tap_a) as (i, at_a),
            self._meets(1, tap_b) as (j, at_b),
            self._meets(2, tap_c) as (k, at_c),
        ):
            here = b.add(b.mul(b.add(b.mul(i, self.result[1]), j), self.result[2]), k)
            there = b.add(b.mul(b.add(b.mul(at_a, self.source[1]), at_b), self.source[2]), at_c)
            yield here, there

    @contextmanager
    def _meets(self, axis: int, tap: ir.Value) -> Iterator[tuple[ir.Value, ir.Value]]:
        e, b = self.e, self.e.builder
        with e.for_range(e.index(0), self.result[axis]) as position:
            place = b.add(b.mul(position, self.window[axis]), tap)
            at = b.load(e.at(self.tables[axis], place))
            with b.if_then(b.icmp_signed(">=", at, e.index(0))):
                yield position, at
