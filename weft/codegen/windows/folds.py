"""What a position sees through a window as one value: sums, products, maxima, and their places.

`walk_entries` folds the listed entries of some positions in registers, vectors of channels at a
time; `walk_shared` does products of neighbouring positions, whose taps meet the same source.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from llvmlite import ir

from weft.codegen.element_access import constant, load_element, store_element
from weft.codegen.elements import COMPLEXES, HALVES, UNSIGNED, register_type, width_bits
from weft.codegen.emitter import Emitter
from weft.codegen.llvm.target import target_vector_bits
from weft.codegen.scalar.scalar import emit_scalar
from weft.ir.dataclass import dataclass


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
