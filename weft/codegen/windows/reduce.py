"""Windowed reductions and their adjoint `window_place`, and depthwise convolutions, tap by tap:
which source positions a result sees, and what they fold to.

Channels are the lanes of vectors (16-bit floats and complex numbers go one by one). A unit is a row
of positions; what a position sees is listed once (`Taps`) and walked for each vector
of channels with the results in registers.

window_place: each element goes to the largest of its window. Where windows tile the source exactly
(the usual pooling) a unit is a row of windows and every element of the result is written once.
Otherwise a unit is an item of the batch (and a block of channels), which is set to zero and then
added to, window by window in row-major order.

For the taps of a window a table has, along one axis, for each position and tap, the position on the
other side or -1 (worked out here, so that kernels divide nothing). At a position of three axes the
kernel lists what is there: pairs (offset of the source in elements, number of the tap), in
row-major order of taps.

Folds are sums, products, maxima and their places. `walk_entries` folds the listed entries of some
positions, `walk_shared` does products of neighbouring positions, whose taps meet the same
source."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
from llvmlite import ir

from weft.codegen.call import Address, Arg, KernelCall, Pool, WorkerScratch, cut_call, worker_stride
from weft.codegen.llvm.emitter import (
    COMPLEXES,
    HALVES,
    I64,
    UNSIGNED,
    Emitter,
    register_type,
    width_bits,
)
from weft.codegen.llvm.jit import Kernel
from weft.codegen.llvm.target import narrower, target_vector_bits
from weft.codegen.scalar.element_access import constant, load_element, store_element
from weft.codegen.scalar.elementwise import emit_scalar
from weft.codegen.windows.geometry import Sizes, Table, Triple, triple
from weft.ir.cost.rates import NS_PER_BYTE_CACHED, NS_PER_WINDOW, NS_PER_WINDOW_BYTE
from weft.ir.dataclass import dataclass
from weft.ir.graph import Operation, Value
from weft.ir.spec import ConstArray, ints_attr
from weft.ir.types import TensorType

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


def _shape(value: Value) -> tuple[int, ...]:
    assert isinstance(value.type, TensorType)
    return value.type.static_shape


def _dtype(value: Value) -> str:
    assert isinstance(value.type, TensorType)
    return value.type.dtype.short


def reach_of(op: Operation, result: Triple, source: Triple, forward: bool) -> Reach:
    """The reach of a window op's attributes."""
    window, strides, dilation = (
        triple(ints_attr(op.attrs, name), 1) for name in ("window", "strides", "dilation")
    )
    lo = triple(ints_attr(op.attrs, "lo"), 0)
    return Reach(result, source, window, strides, lo, dilation, forward)


# ----------------------------------------------------------------------------------- the lowerings


def lower_window(op: Operation) -> list[KernelCall]:
    """window_sum, window_spread, window_max, window_pick."""
    result, source = (triple(_shape(v)[1:-1], 1) for v in (op.result, op.operands[0]))
    reach = reach_of(op, result, source, op.name != "window_spread")
    what = {"window_max": "max", "window_pick": "pick"}.get(op.name, "sum")
    return gather_call(what, reach, op.result, [*op.operands])


def lower_depthwise(op: Operation, s: Sizes) -> list[KernelCall]:
    """conv and conv_input of as many groups as channels."""
    forward = op.name == "conv"
    result, source = (s.small, s.large) if forward else (s.large, s.small)
    reach = Reach(result, source, s.window, s.strides, s.lo, s.dilation, forward)
    return gather_call("product", reach, op.result, [*op.operands])


def gather_call(what: str, reach: Reach, out: Value, given: list[Value]) -> list[KernelCall]:
    """args: out, source, other, scratch, its stride, channels, then the words of `reach`."""
    batch, channels, dtype = _shape(out)[0], _shape(out)[-1], _dtype(out)
    units = batch * reach.result[0] * reach.result[1]
    if not units or not channels or not reach.result[2]:
        return []
    nbytes = 16 * max(1, reach.taps)
    args: tuple[Arg, ...] = (
        Address(out), Address(given[0]), Address(given[-1]), WorkerScratch(nbytes),
        worker_stride(nbytes), channels, *reach.words(),
    )  # fmt: skip
    shared = shared_taps(reach) if what == "product" else None
    form = f"-{shared.window}.{shared.step}.{shared.tap}" if shared else ""
    kernel = Kernel(
        f"window-4-{what}-{dtype}-{target_vector_bits()}{form}",
        f"window_{what}_{dtype}",
        lambda e: _emit_gather(e, what, dtype, shared),
    )
    bytes_each = channels * width_bits(dtype) / 8 * NS_PER_BYTE_CACHED
    cost = reach.result[2] * (NS_PER_WINDOW + (reach.taps + 1) * bytes_each) * narrower()
    return [cut_call(kernel, args, units, cost)]


#: Results of a row that are worked out side by side.
SIDE_BY_SIDE = 4
#: Longer windows would hold more weights than there are registers.
LONGEST_SHARED = 7


def shared_taps(reach: Reach) -> SharedTaps | None:
    """How the taps along C are shared by results side by side; None where nothing is gained."""
    if not reach.forward and reach.strides[2] > 1:
        return None
    sign = 1 if reach.forward else -1
    shared = SharedTaps(reach.window[2], reach.strides[2], sign * reach.dilation[2])
    if not 1 < shared.window <= LONGEST_SHARED:
        return None
    gained = len(shared.at(SIDE_BY_SIDE)) < SIDE_BY_SIDE * shared.window
    return shared if gained else None


def _emit_gather(e: Emitter, what: str, dtype: str, shared: SharedTaps | None) -> None:
    with listing_function(e, "rows", dtype, 1) as (f, places, (channels, lo, hi), taps):
        out, source, other, entries = places
        b = f.builder
        rows = b.mul(taps.result[0], taps.result[1])
        image = b.mul(b.mul(b.mul(*taps.source[:2]), taps.source[2]), channels)
        with f.for_range(lo, hi) as unit:
            item, row = b.sdiv(unit, rows), b.srem(unit, rows)
            at = b.sdiv(row, taps.result[1]), b.srem(row, taps.result[1])
            x = f.at(source, b.mul(item, image))
            t = f.at(other, b.mul(item, image)) if what == "pick" else other
            to = f.at(out, b.mul(b.mul(unit, taps.result[2]), channels))
            _Row(f, what, dtype, shared, taps, channels, entries, at, x, t, to).write()


@dataclass(frozen=True, slots=True)
class _Row:
    """One row of results. Those inside, which see through every tap, go four at a time by one list
    of entries; each at the ends has its own.
    """

    e: Emitter
    what: str
    dtype: str
    shared: SharedTaps | None
    taps: Taps
    channels: ir.Value
    entries: ir.Value
    at: tuple[ir.Value, ir.Value]
    x: ir.Value
    other: ir.Value
    out: ir.Value

    def write(self) -> None:
        e, b, taps = self.e, self.e.builder, self.taps
        zero, four = e.index(0), e.index(SIDE_BY_SIDE)
        first, end, step = taps.inside
        stop = b.add(first, b.mul(b.sdiv(b.sub(end, first), four), four))
        with e.for_range(zero, e.index(2)) as side:  # before those inside, and after them
            left = b.icmp_signed("==", side, zero)
            begin, until = b.select(left, zero, stop), b.select(left, first, taps.result[2])
            with e.for_range(begin, until) as c:
                count = taps.list_at((*self.at, c), self.entries, self.channels)
                self._pixels(1, c, count, zero)
            with b.if_then(b.and_(left, b.icmp_signed("<", first, stop))):
                count = taps.list_at((*self.at, first), self.entries, self.channels)
                with e.for_range(first, stop, four) as c:
                    self._pixels(SIDE_BY_SIDE, c, count, b.mul(b.sub(c, first), step))

    def _pixels(self, count: int, c: ir.Value, entries: ir.Value, moved: ir.Value) -> None:
        """`count` results from position c on, `moved` source positions after those of the list."""
        e, b, channels = self.e, self.e.builder, self.channels
        to = e.at(self.out, b.mul(c, channels))
        steps = [b.add(moved, b.mul(e.index(k), self.taps.inside[2])) for k in range(count)]
        offsets = [b.mul(step, channels) for step in steps]
        start: ir.Value = e.index(0)
        shared = self.shared if count > 1 else None
        widths = widths_of(self.dtype)
        for width in widths:
            # registers hold the sums of all results, and what they share
            halved = count > 1 and (width > 32 or (shared is not None and width == widths[0] > 1))
            lanes = Lanes(e, self.dtype, width // 2 if halved else width)
            size = e.index(lanes.width)
            stop = b.sub(channels, b.srem(b.sub(channels, start), size))
            with e.for_range(start, stop, size) as j:
                folds = []
                for offset in offsets:
                    x, other = e.at(e.at(self.x, offset), j), e.at(self.other, j)
                    other = e.at(other, offset) if self.what == "pick" else other
                    folds.append(FOLDS[self.what](lanes, channels, x, other))
                if shared:
                    found = walk_shared(lanes, self.entries, entries, folds, shared)
                else:
                    found = walk_entries(lanes, self.entries, entries, folds)
                for k, value in enumerate(found):
                    place = e.at(to, b.add(j, b.mul(e.index(k), channels)))
                    lanes.store(value, place)
            start = stop


#: Channels of a unit where windows overlap.
CHANNELS = 64


def lower_window_place(op: Operation) -> list[KernelCall]:
    """args: out, x, g, scratch, its stride, channels, channels of a unit, words of the reach."""
    x, g = (v.type for v in op.operands)
    assert isinstance(x, TensorType)
    assert isinstance(g, TensorType)
    dtype, (batch, *_, channels) = x.dtype.short, x.static_shape
    large, small = triple(x.static_shape[1:-1], 1), triple(g.static_shape[1:-1], 1)
    if 0 in x.static_shape:
        return []
    reach = reach_of(op, small, large, True)
    exact = _tiles(reach)
    each = channels if exact else min(channels, CHANNELS)
    units = batch * (small[0] * small[1] if exact else -(-channels // each))
    nbytes = 16 * max(1, reach.taps)
    args: tuple[Arg, ...] = (
        Address(op.result), Address(op.operands[0]), Address(op.operands[1]),
        WorkerScratch(nbytes), worker_stride(nbytes), channels, each, *reach.words(),
    )  # fmt: skip
    kernel = Kernel(
        f"window-place-3-{dtype}-{exact}-{target_vector_bits()}",
        f"window_place_{dtype}",
        lambda e: _emit(e, dtype, exact),
    )
    windows = small[0] * small[1] * small[2] * batch / units
    one = each * width_bits(dtype) / 8 * NS_PER_WINDOW_BYTE * narrower()
    cost = windows * (NS_PER_WINDOW + reach.taps * one)
    return [cut_call(kernel, args, units, cost)]


def _tiles(r: Reach) -> bool:
    """Whether every element of the source is seen by exactly one window."""
    return all(
        t == k and lo == 0 and (d == 1 or k == 1) and big == k * n
        for t, k, lo, d, big, n in zip(
            r.strides, r.window, r.lo, r.dilation, r.source, r.result, strict=True
        )
    )


class _Position(Fold):
    """A fold whose result is the number of the tap that saw the largest."""

    def start(self) -> list[ir.Value]:
        return [self.lanes.constant(0), count_lanes(self.lanes, self.lanes.e.index(-1))]

    def step(
        self, state: list[ir.Value], offset: ir.Value, tap: ir.Value, first: ir.Value
    ) -> list[ir.Value]:
        x, b = self.at(self.x, offset), self.lanes.e.builder
        wins = or_first(self.lanes, self.lanes.better(x, state[0]), first)
        best = b.select(wins, x, state[0])
        return [best, b.select(wins, count_lanes(self.lanes, tap), state[1])]


def count_lanes(lanes: Lanes, value: ir.Value) -> ir.Value:
    """A count (i64) in all lanes, as wide as the elements."""
    b = lanes.e.builder
    if lanes.width == 1:
        return value
    bits = width_bits(lanes.dtype)
    one = b.trunc(value, ir.IntType(bits)) if bits < 64 else value
    kind, i32 = ir.VectorType(one.type, lanes.width), ir.IntType(32)
    first = b.insert_element(ir.Constant(kind, ir.Undefined), one, ir.Constant(i32, 0))
    zeros = ir.Constant(ir.VectorType(i32, lanes.width), [0] * lanes.width)
    return b.shuffle_vector(first, ir.Constant(kind, ir.Undefined), zeros)


def _widths(dtype: str) -> tuple[int, ...]:
    """As `widths_of`, but lanes must be wide enough for the number of a tap."""
    return widths_of(dtype) if width_bits(dtype) >= 32 else (1,)


def _emit(e: Emitter, dtype: str, exact: bool) -> None:
    with listing_function(e, "place", dtype, 2) as (f, places, (channels, each, lo, hi), taps):
        place = _Place(f, dtype, exact, places, channels, taps)
        with f.for_range(lo, hi) as unit:
            if exact:
                place.row(unit)
            else:
                place.item(unit, each)


@dataclass(frozen=True, slots=True)
class _Place:
    """The writer of `window_place`. places: the result, x, g, and room for the entries."""

    e: Emitter
    dtype: str
    exact: bool
    places: list[ir.Value]
    channels: ir.Value
    taps: Taps

    def _images(self, item: ir.Value) -> list[ir.Value]:
        """The result, x and g of one item of the batch."""
        b, e = self.e.builder, self.e
        large, small = self.taps.source, self.taps.result
        sizes = [
            b.mul(b.mul(s[0], s[1]), b.mul(s[2], self.channels)) for s in (large, large, small)
        ]
        return [e.at(p, b.mul(item, size)) for p, size in zip(self.places[:3], sizes, strict=True)]

    def row(self, unit: ir.Value) -> None:
        """All windows of one row, all channels."""
        b, small = self.e.builder, self.taps.result
        rows = b.mul(small[0], small[1])
        row = b.srem(unit, rows)
        images = self._images(b.sdiv(unit, rows))
        self._windows(images, (b.sdiv(row, small[1]), b.srem(row, small[1])), self.channels)

    def item(self, unit: ir.Value, each: ir.Value) -> None:
        """All windows of one item, `each` channels of it."""
        e, b, zero = self.e, self.e.builder, self.e.index(0)
        blocks = b.sdiv(b.add(self.channels, b.sub(each, e.index(1))), each)
        first = b.mul(b.srem(unit, blocks), each)
        left = b.sub(self.channels, first)
        left = b.select(b.icmp_signed("<", left, each), left, each)
        images = [e.at(p, first) for p in self._images(b.sdiv(unit, blocks))]
        large, small = self.taps.source, self.taps.result
        positions = b.mul(b.mul(large[0], large[1]), large[2])
        with e.for_range(zero, positions) as p:
            row = e.at(images[0], b.mul(p, self.channels))
            with e.for_range(zero, left) as j:
                store_element(e, constant(self.dtype, 0), e.at(row, j), self.dtype)
        with e.for_range(zero, small[0]) as i, e.for_range(zero, small[1]) as k:
            self._windows(images, (i, k), left)

    def _windows(
        self, images: list[ir.Value], at: tuple[ir.Value, ir.Value], channels: ir.Value
    ) -> None:
        e, b, small, entries = self.e, self.e.builder, self.taps.result, self.places[3]
        out, x, g = images
        row = b.mul(b.add(b.mul(at[0], small[1]), at[1]), small[2])
        with e.for_range(e.index(0), small[2]) as c:
            count = self.taps.list_at((*at, c), entries, self.channels)
            given = e.at(g, b.mul(b.add(row, c), self.channels))
            start: ir.Value = e.index(0)
            for width in _widths(self.dtype):
                lanes = Lanes(e, self.dtype, width)
                stop = b.sub(channels, b.srem(b.sub(channels, start), e.index(width)))
                with e.for_range(start, stop, e.index(width)) as j:
                    fold = _Position(lanes, self.channels, e.at(x, j), x)
                    (best,) = walk_entries(lanes, entries, count, [fold])
                    self._give(lanes, count, best, lanes.load(e.at(given, j)), e.at(out, j))
                start = stop

    def _give(
        self, lanes: Lanes, count: ir.Value, best: ir.Value, given: ir.Value, out: ir.Value
    ) -> None:
        """Write or add `given` where the tap is `best`."""
        e, b = self.e, self.e.builder
        with e.for_range(e.index(0), count) as i:
            entry = e.at(self.places[3], b.mul(i, e.index(2)))
            offset, tap = b.load(entry), b.load(e.at(entry, e.index(1)))
            place = e.at(out, offset)
            hit = b.icmp_signed("==", best, count_lanes(lanes, tap))
            held = lanes.constant(0) if self.exact else e.freeze(lanes.load(place))
            more = given if self.exact else lanes.add(held, given)
            lanes.store(b.select(hit, more, held), place)
