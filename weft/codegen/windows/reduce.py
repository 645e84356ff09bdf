"""Windowed reductions, and convolutions of one channel at a time (depthwise), tap by tap.

Channels are the lanes of vectors (16-bit floats and complex numbers go one by one). A unit is a row
of positions; what a position sees is listed once (`weft.codegen.windows.taps`) and walked for each
vector of channels with the results in registers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from llvmlite import ir

from weft.codegen.call import Address, Arg, KernelCall, WorkerScratch, cut_call, worker_stride
from weft.codegen.cost import narrower
from weft.codegen.element_access import constant, load_element, store_element
from weft.codegen.elements import COMPLEXES, HALVES, UNSIGNED, register_type, width_bits
from weft.codegen.emitter import Emitter
from weft.codegen.jit import Kernel
from weft.codegen.llvm.target import target_vector_bits
from weft.codegen.scalar.scalar import emit_scalar
from weft.codegen.windows.geometry import Sizes, Triple, triple
from weft.codegen.windows.taps import Reach, Taps, listing_function
from weft.ir.graph import Operation, Value
from weft.ir.prices import NS_PER_BYTE_CACHED
from weft.ir.rules import ints_attr
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
    kernel = Kernel(
        f"window-3-{what}-{dtype}-{target_vector_bits()}",
        f"window_{what}_{dtype}",
        lambda e: _emit_gather(e, what, dtype),
    )
    bytes_each = channels * width_bits(dtype) / 8 * NS_PER_BYTE_CACHED
    cost = reach.result[2] * (4 + (reach.taps + 1) * bytes_each) * narrower()
    return [cut_call(kernel, args, units, cost)]


def _emit_gather(e: Emitter, what: str, dtype: str) -> None:
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
            _Row(f, what, dtype, taps, channels, entries, at, x, t, to).write()


@dataclass(frozen=True, slots=True)
class _Row:
    """One row of results. Those inside, which see through every tap, go four at a time by one list
    of entries; each at the ends has its own.
    """

    e: Emitter
    what: str
    dtype: str
    taps: Taps
    channels: ir.Value
    entries: ir.Value
    at: tuple[ir.Value, ir.Value]
    x: ir.Value
    other: ir.Value
    out: ir.Value

    def write(self) -> None:
        e, b, taps = self.e, self.e.builder, self.taps
        zero, four = e.index(0), e.index(4)
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
                    self._pixels(4, c, count, b.mul(b.sub(c, first), step))

    def _pixels(self, count: int, c: ir.Value, entries: ir.Value, moved: ir.Value) -> None:
        """`count` results from position c on, `moved` source positions after those of the list."""
        e, b, channels = self.e, self.e.builder, self.channels
        to = e.at(self.out, b.mul(c, channels))
        steps = [b.add(moved, b.mul(e.index(k), self.taps.inside[2])) for k in range(count)]
        offsets = [b.mul(step, channels) for step in steps]
        start: ir.Value = e.index(0)
        for width in widths_of(self.dtype):
            lanes = Lanes(e, self.dtype, width // 2 if count > 1 and width > 32 else width)
            size = e.index(lanes.width)
            stop = b.sub(channels, b.srem(b.sub(channels, start), size))
            with e.for_range(start, stop, size) as j:
                folds = []
                for offset in offsets:
                    x, other = e.at(e.at(self.x, offset), j), e.at(self.other, j)
                    other = e.at(other, offset) if self.what == "pick" else other
                    folds.append(_FOLDS[self.what](lanes, channels, x, other))
                found = walk_entries(lanes, self.entries, entries, folds)
                for k, value in enumerate(found):
                    place = e.at(to, b.add(j, b.mul(e.index(k), channels)))
                    lanes.store(value, place)
            start = stop


@dataclass(frozen=True, slots=True)
class Fold:
    """How entries become one value. state: the values to begin with; the last one is the result."""

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


_FOLDS = {"sum": Fold, "product": _Product, "max": _Max, "pick": _Pick}


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
