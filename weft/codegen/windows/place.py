"""window_place: each element goes to the largest of its window.

Where windows tile the source exactly (the usual pooling) a unit is a row of windows and every
element of the result is written once. Otherwise a unit is an item of the batch (and a block of
channels), which is set to zero and then added to, window by window in row-major order.
"""

from __future__ import annotations

from llvmlite import ir

from weft.codegen.call import Address, Arg, KernelCall, WorkerScratch, cut_call, worker_stride
from weft.codegen.cost import narrower
from weft.codegen.element_access import constant, store_element
from weft.codegen.elements import width_bits
from weft.codegen.emitter import Emitter
from weft.codegen.jit import Kernel
from weft.codegen.llvm.target import target_vector_bits
from weft.codegen.windows.folds import Fold, Lanes, or_first, walk_entries, widths_of
from weft.codegen.windows.geometry import triple
from weft.codegen.windows.reduce import reach_of
from weft.codegen.windows.taps import Reach, Taps, listing_function
from weft.ir.dataclass import dataclass
from weft.ir.graph import Operation
from weft.ir.types import TensorType

#: Channels of a unit where windows overlap.
CHANNELS = 64
#: A byte of a window that is compared, and read and written again.
NS_PER_BYTE = 0.03


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
    one = each * width_bits(dtype) / 8 * NS_PER_BYTE * narrower()
    cost = windows * (4 + reach.taps * one)
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
    """The number of the tap that saw the largest."""

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
    """places: the result, x, g, and room for the entries."""

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
