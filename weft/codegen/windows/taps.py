"""Taps of a window: which source positions a result sees, and what they fold to, tap by tap.

Along one axis a table has, for each position and tap, the position on the other side or -1 (worked
out here, so that kernels divide nothing). At a position of three axes the kernel lists what is
there: pairs (offset of the source in elements, number of the tap), in row-major order of taps.

Folds - sums, products, maxima and their places - are in registers, vectors of channels at a time:
`walk_entries` folds the listed entries of some positions, `walk_shared` does products of
neighbouring positions, whose taps meet the same source."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
from llvmlite import ir

from weft.codegen.call import Arg, Pool
from weft.codegen.llvm.elements import COMPLEXES, HALVES, UNSIGNED, register_type, width_bits
from weft.codegen.llvm.emitter import I64, Emitter
from weft.codegen.llvm.target import target_vector_bits
from weft.codegen.scalar.element_access import constant, load_element, store_element
from weft.codegen.scalar.elementwise import emit_scalar
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


@dataclass(frozen=True, slots=True)
class Lanes:
    """Elements of one dtype, `width` at a time: vectors, or scalars for width 1."""

    e: Emitter
    dtype: str
    width: int

    @property
    def kind(self) -> ir.Type:
        """LLVM type of a value in registers."""
        one = register_type(self.dtype)
        return one if self.width == 1 else ir.VectorType(one, self.width)

    def load(self, place: ir.Value) -> ir.Value:
        """The elements at a pointer."""
        if self.width == 1:
            return load_element(self.e, place, self.dtype)
        b = self.e.builder
        align = width_bits(self.dtype) // 8
        return b.load(b.bitcast(place, self.kind.as_pointer()), align=align)

    def store(self, value: ir.Value, place: ir.Value) -> None:
        """Write elements to a pointer."""
        if self.width == 1:
            store_element(self.e, value, place, self.dtype)
            return
        b = self.e.builder
        align = width_bits(self.dtype) // 8
        b.store(value, b.bitcast(place, self.kind.as_pointer()), align=align)

    def constant(self, number: int | float) -> ir.Value:
        """All lanes `number`."""
        one = constant(self.dtype, number)
        return one if self.width == 1 else ir.Constant(self.kind, [one.constant] * self.width)

    def add(self, x: ir.Value, y: ir.Value) -> ir.Value:
        """x + y; integers wrap."""
        if self.width == 1:
            return emit_scalar(self.e, "add", self.dtype, [x, y], {})
        b = self.e.builder
        return b.fadd(x, y) if self.dtype[0] == "f" else b.add(x, y)

    def multiply_add(self, x: ir.Value, y: ir.Value, z: ir.Value) -> ir.Value:
        """x * y + z."""
        if self.width == 1:
            product = emit_scalar(self.e, "multiply", self.dtype, [x, y], {})
            return emit_scalar(self.e, "add", self.dtype, [product, z], {})
        b = self.e.builder
        if self.dtype[0] != "f":
            return b.add(b.mul(x, y), z)
        return b.fadd(b.fmul(x, y, flags=["contract"]), z, flags=["contract"])

    def better(self, x: ir.Value, held: ir.Value) -> ir.Value:
        """Whether x is larger, or the first NaN."""
        b = self.e.builder
        if self.dtype in UNSIGNED:
            return b.icmp_unsigned(">", x, held)
        if self.dtype[0] == "i":
            return b.icmp_signed(">", x, held)
        return b.and_(b.fcmp_unordered(">", x, held), b.fcmp_ordered("ord", held, held))


def widths_of(dtype: str) -> tuple[int, ...]:
    """How many elements of `dtype` go at a time, widest first."""
    if dtype in HALVES or dtype in COMPLEXES:
        return (1,)
    lanes = max(2, target_vector_bits() // width_bits(dtype))
    return 4 * lanes, lanes, 1  # four sums side by side hide the latency of one


@dataclass(frozen=True, slots=True)
class Fold:
    """A fold of entries to one value. state: the first values; the last one is the result."""

    lanes: Lanes
    channels: ir.Value
    x: ir.Value
    other: ir.Value

    def at(self, base: ir.Value, offset: ir.Value) -> ir.Value:
        """The channels at an offset."""
        return self.lanes.load(self.lanes.e.at(base, offset))

    def start(self) -> list[ir.Value]:
        """The state before the first entry."""
        return [self.lanes.constant(0)]

    def step(
        self, state: list[ir.Value], offset: ir.Value, tap: ir.Value, first: ir.Value
    ) -> list[ir.Value]:
        """The state after one more."""
        return [self.lanes.add(state[0], self.at(self.x, offset))]


class _Product(Fold):
    def step(
        self, state: list[ir.Value], offset: ir.Value, tap: ir.Value, first: ir.Value
    ) -> list[ir.Value]:
        weight = self.lanes.e.builder.mul(tap, self.channels)
        x, w = self.at(self.x, offset), self.at(self.other, weight)
        return [self.lanes.multiply_add(x, w, state[0])]


class _Max(Fold):
    def start(self) -> list[ir.Value]:
        return [self.lanes.constant(_lowest(self.lanes.dtype))]

    def step(
        self, state: list[ir.Value], offset: ir.Value, tap: ir.Value, first: ir.Value
    ) -> list[ir.Value]:
        x, b = self.at(self.x, offset), self.lanes.e.builder
        return [b.select(self.lanes.better(x, state[0]), x, state[0])]


class _Pick(Fold):
    def start(self) -> list[ir.Value]:
        return [self.lanes.constant(_lowest(self.lanes.dtype)), self.lanes.constant(0)]

    def step(
        self, state: list[ir.Value], offset: ir.Value, tap: ir.Value, first: ir.Value
    ) -> list[ir.Value]:
        x, t, b = self.at(self.x, offset), self.at(self.other, offset), self.lanes.e.builder
        wins = or_first(self.lanes, self.lanes.better(x, state[0]), first)
        return [b.select(wins, x, state[0]), b.select(wins, t, state[1])]


FOLDS = {"sum": Fold, "product": _Product, "max": _Max, "pick": _Pick}


def _lowest(dtype: str) -> int | float:
    if dtype[0] == "i":
        return -(1 << (width_bits(dtype) - 1))
    return 0 if dtype in UNSIGNED else -math.inf


def or_first(lanes: Lanes, flags: ir.Value, first: ir.Value) -> ir.Value:
    """`flags`, or all lanes if `first` (i1)."""
    b = lanes.e.builder
    if lanes.width == 1:
        return b.or_(flags, first)
    every = ir.Constant(flags.type, [1] * lanes.width)
    return b.select(first, every, flags)


def walk_entries(
    lanes: Lanes, entries: ir.Value, count: ir.Value, folds: Sequence[Fold]
) -> list[ir.Value]:
    """Fold the listed entries in order: the result of each fold."""
    e, b = lanes.e, lanes.e.builder
    before = b.block
    head, body, after = (b.append_basic_block(n) for n in ("entry", "entry.body", "entries.done"))
    starts = [fold.start() for fold in folds]
    b.branch(head)
    b.position_at_end(head)
    i = b.phi(count.type)
    states = [[b.phi(v.type) for v in start] for start in starts]
    b.cbranch(b.icmp_signed("<", i, count), body, after)
    b.position_at_end(body)
    place = e.at(entries, b.mul(i, e.index(2)))
    offset, tap = b.load(place), b.load(e.at(place, e.index(1)))
    is_first = b.icmp_signed("==", i, e.index(0))
    following = [
        fold.step(state, offset, tap, is_first) for fold, state in zip(folds, states, strict=True)
    ]
    i.add_incoming(e.index(0), before)
    i.add_incoming(b.add(i, e.index(1)), b.block)
    for state, start, values in zip(states, starts, following, strict=True):
        for phi, initial, value in zip(state, start, values, strict=True):
            phi.add_incoming(initial, before)
            phi.add_incoming(value, b.block)
    b.branch(head)
    b.position_at_end(after)
    return [state[-1] for state in states]


@dataclass(frozen=True, slots=True)
class SharedTaps:
    """A window along C whose taps meet, for results side by side, the same source positions.

    Result k sees through tap t the source position `k * step + t * tap` after result 0's tap 0.
    """

    window: int
    step: int
    tap: int

    def at(self, results: int) -> dict[int, list[tuple[int, int]]]:
        """Source position -> (result, tap) that meet there, such that each result's taps ascend."""
        met: dict[int, list[tuple[int, int]]] = {}
        for k in range(results):
            for t in range(self.window):
                met.setdefault(k * self.step + t * self.tap, []).append((k, t))
        return {position: met[position] for position in sorted(met, reverse=self.tap < 0)}


def walk_shared(
    lanes: Lanes, entries: ir.Value, count: ir.Value, folds: Sequence[Fold], shared: SharedTaps
) -> list[ir.Value]:
    """Products over listed entries, a row of taps at a time: the results of neighbouring `folds`.

    Every row is listed whole (the results see something through every tap along C), so what its
    taps meet is loaded once for all results, and so are its weights.
    """
    e, b = lanes.e, lanes.e.builder
    channels, window = folds[0].channels, e.index(shared.window)
    sums = [e.alloca(lanes.kind) for _ in folds]
    for place in sums:
        b.store(lanes.constant(0), place)
    with e.for_range(e.index(0), count, window) as i:
        place = e.at(entries, b.mul(i, e.index(2)))
        offset, tap = b.load(place), b.load(e.at(place, e.index(1)))
        x = e.at(folds[0].x, offset)
        weights = e.at(folds[0].other, b.mul(tap, channels))
        held = [
            lanes.load(e.at(weights, b.mul(e.index(t), channels))) for t in range(shared.window)
        ]
        for position, meets in shared.at(len(folds)).items():
            seen = lanes.load(e.at(x, b.mul(e.index(position), channels)))
            for k, t in meets:
                b.store(lanes.multiply_add(seen, held[t], b.load(sums[k])), sums[k])
    return [b.load(place) for place in sums]
