"""Windowed reductions, and convolutions of one channel at a time (depthwise), tap by tap.

Channels are the lanes of vectors (16-bit floats and complex numbers go one by one). A unit is a row
of positions; what a position sees is listed once (`weft.codegen.windows.taps`) and walked for each
vector of channels with the results in registers.
"""

from __future__ import annotations

from llvmlite import ir

from weft.codegen.call import Address, Arg, KernelCall, WorkerScratch, cut_call, worker_stride
from weft.codegen.cost import narrower
from weft.codegen.elements import width_bits
from weft.codegen.emitter import Emitter
from weft.codegen.jit import Kernel
from weft.codegen.llvm.target import target_vector_bits
from weft.codegen.windows.folds import (
    FOLDS,
    Lanes,
    SharedTaps,
    walk_entries,
    walk_shared,
    widths_of,
)
from weft.codegen.windows.geometry import Sizes, Triple, triple
from weft.codegen.windows.taps import Reach, Taps, listing_function
from weft.ir.cost import NS_PER_BYTE_CACHED
from weft.ir.dataclass import dataclass
from weft.ir.graph import Operation, Value
from weft.ir.type_rules import ints_attr
from weft.ir.types import TensorType


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
    cost = reach.result[2] * (4 + (reach.taps + 1) * bytes_each) * narrower()
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
