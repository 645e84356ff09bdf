"""The code of a plain nest: units, loops, accumulators, statements (arguments: `nests/emit.py`).

Reductions over the innermost loops accumulate in registers; f32 sums are cut into blocks of
`SUM_BLOCK` elements, summed in f32 by vector lanes, whose totals add up in f64. The shape of that
tree depends on nothing but the extent, so the bits do not change from run to run. Reductions over
outer loops accumulate in the output or its partial results.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir

from weft.codegen.element_access import load_element, store_element
from weft.codegen.elements import memory_type
from weft.codegen.emitter import I64, Emitter
from weft.codegen.nests.cut import crosses, cut_kind, fold_dtype, is_tiled
from weft.codegen.nests.fold_lanes import lanes_of_folds
from weft.codegen.nests.folds import (
    SUM_BLOCK,
    convert,
    fold,
    identity,
    is_wide_sum,
)
from weft.codegen.nests.held import Held
from weft.codegen.nests.nest import Access, Nest, Statement, Store
from weft.codegen.nests.picks import AHEAD, PickWalk, ask_ahead, pick_walks
from weft.codegen.nests.tiles import tile_buffer, write_tiles
from weft.codegen.scalar.scalar import emit_scalar


def output_of(nest: Nest, load: Access) -> int | None:
    """The position in `nest.stores` of the output whose buffer and place the load shares."""
    if not isinstance(load.leaf, int):
        return None
    output = dict(nest.in_place).get(load.leaf)
    return next((k for k, s in enumerate(nest.stores) if s.output == output), None)


def store_dtype(nest: Nest, store: Store) -> str:
    """The dtype of the memory that a store writes: for folds that of partial results."""
    if store.reduction is None:
        return store.dtype
    return fold_dtype(nest, store.reduction, store.dtype)


class Walk:
    """A pointer (for "index" a number) that moves through the loops: strides as LLVM values."""

    def __init__(
        self, base: ir.Value, strides: list[ir.Value | None], picks: Sequence[PickWalk] = ()
    ) -> None:
        self.base = base
        self.strides = strides  # per loop; None: does not move
        self.picks = picks


class NestWriter:
    """Emits one nest at `e`; `numbers` are its scalar arguments in the order of `nests/emit.py`."""

    def __init__(
        self, e: Emitter, nest: Nest, buffers: list[ir.Value], numbers: list[ir.Value]
    ) -> None:
        self.e = e
        self.nest = nest
        self.rank = len(nest.extents)
        self.extents = numbers[: self.rank]
        self.outer, self.inner, self.inner_blocks, self.count = numbers[self.rank : self.rank + 4]
        rest = iter(numbers[self.rank + 4 :])
        #: first and last + 1 of the iterations of the loops that are cut
        self.bounds: dict[int, tuple[ir.Value, ir.Value]] = {}
        stores = buffers[: len(nest.stores)]
        others = iter(buffers[len(nest.stores) :])
        self.loads: list[Walk | int] = []  # a number: moves with that store, from the same pointer
        for load in nest.loads:
            output = output_of(nest, load)
            if output is not None:
                # LLVM must see one address for both, or it cannot tell that the loop vectorises
                assert load.strides == nest.stores[output].strides
                self.loads.append(output)
            elif load.leaf == "index":
                base = next(rest)
                self.loads.append(Walk(base, [next(rest) for _ in load.strides]))
            else:
                strides = self._strides(load.strides, rest)
                self.loads.append(Walk(next(others), strides, self._picks(load, rest)))
        self.stores = [
            Walk(p, self._strides(s.strides, rest))
            for p, s in zip(stores, nest.stores, strict=True)
        ]
        #: first of the innermost reduced loops: accumulators live in registers from there on
        self.tail = self.rank
        while self.tail > 0 and nest.reduced[self.tail - 1]:
            self.tail -= 1
        self.outer_reduced = any(nest.reduced[: self.tail])
        self.accumulators: dict[int, Held] = {}
        self.running = [store_dtype(nest, s) for s in nest.stores]
        #: buffers for what is read across a tile
        crossing = [k for k, load in enumerate(nest.loads) if is_tiled(nest) and crosses(load)]
        self.tiles = {k: tile_buffer(e, nest.loads[k].dtype) for k in crossing}

    def _strides(self, strides: tuple[int, ...], rest: Any) -> list[ir.Value | None]:
        return [None if s == 0 else self.e.index(1) if s == 1 else next(rest) for s in strides]

    def _picks(self, load: Access, rest: Any) -> list[PickWalk]:
        held = [self.nest.loads[k] for k, _, _ in load.picks]
        return pick_walks(load.picks, [(at.dtype, at.strides) for at in held], rest.__next__)

    def _picked(self, loop: int, loads: list[ir.Value]) -> list[ir.Value]:
        """The loads' places, where index loads have got to theirs in this loop."""
        out = list(loads)
        for k, walk in enumerate(self.loads):
            for pick in walk.picks if isinstance(walk, Walk) else ():
                if pick.loop == loop:
                    out[k] = pick.applied(self.e, out[k], loads[pick.index])
        return out

    @property
    def folds(self) -> list[tuple[int, Store]]:
        return [(k, s) for k, s in enumerate(self.nest.stores) if s.reduction is not None]

    # -- units ------------------------------------------------------------------------------------

    def write(self, lo: ir.Value, hi: ir.Value) -> None:
        """All units in [lo, hi)."""
        kind = cut_kind(self.nest)
        if kind in ("partial", "partial_pair"):
            with self.e.for_range(lo, hi) as unit:
                self._partial(unit, kind == "partial_pair")
        elif kind == "pair":
            self._pair(lo, hi)
        else:
            if kind == "single":
                b = self.e.builder
                first, end = b.mul(lo, self.outer), b.mul(hi, self.outer)
                self.bounds[0] = first, self.least(end, self.extents[0])
            self._unit(self.e.index(0))

    def _pair(self, lo: ir.Value, hi: ir.Value) -> None:
        """Blocks of the second loop: neighbouring ones of one row are done in one go."""
        e, b, blocks = self.e, self.e.builder, self.inner_blocks
        last = b.sub(hi, e.index(1))
        top, bottom = b.sdiv(lo, blocks), b.sdiv(last, blocks)
        begin = b.mul(b.srem(lo, blocks), self.inner)
        end = b.mul(b.add(b.srem(last, blocks), e.index(1)), self.inner)
        stores = [w.base for w in self.stores]
        with e.for_range(top, b.add(bottom, e.index(1))) as i:
            first = b.select(b.icmp_signed("==", i, top), begin, e.index(0))
            stop = b.select(b.icmp_signed("==", i, bottom), end, self.extents[1])
            self.bounds[1] = first, self.least(stop, self.extents[1])
            loads, row = self.moved(0, i, self._loads_at(stores), stores)
            self._fill(1, row)
            self.loop(1, loads, row)

    def _partial(self, unit: ir.Value, pair: bool) -> None:
        b = self.e.builder
        row = b.sdiv(unit, self.inner_blocks) if pair else unit
        first = b.mul(row, self.outer)
        self.bounds[0] = first, self.least(b.add(first, self.outer), self.extents[0])
        if pair:
            begin = b.mul(b.srem(unit, self.inner_blocks), self.inner)
            self.bounds[1] = begin, self.least(b.add(begin, self.inner), self.extents[1])
        self._unit(b.mul(row, self.count))

    def _unit(self, partial: ir.Value) -> None:
        """The loops within `bounds`; folds go to their output (partial results) at `partial`."""
        stores = [w.base for w in self.stores]
        if cut_kind(self.nest) in ("partial", "partial_pair"):
            for k, _ in self.folds:
                stores[k] = self.e.at(stores[k], partial)
        self._fill(0, stores)
        self.loop(0, self._loads_at(stores), stores)

    def _loads_at(self, stores: list[ir.Value]) -> list[ir.Value]:
        places = [
            self._in_place(k, w, stores) if isinstance(w, int) else w.base
            for k, w in enumerate(self.loads)
        ]
        return self._picked(-1, places)

    def least(self, a: ir.Value, b: ir.Value) -> ir.Value:
        return self.e.builder.select(self.e.builder.icmp_signed("<", a, b), a, b)

    def range_of(self, loop: int) -> tuple[ir.Value, ir.Value]:
        return self.bounds.get(loop, (self.e.index(0), self.extents[loop]))

    def _in_place(self, load: int, store: int, stores: list[ir.Value]) -> ir.Value:
        """The store's pointer, in the load's dtype (of the same width)."""
        kind = memory_type(self.nest.loads[load].dtype).as_pointer()
        return self.e.builder.bitcast(stores[store], kind)

    # -- loops ------------------------------------------------------------------------------------

    def _fill(self, first: int, stores: list[ir.Value]) -> None:
        """Before outer reductions: results start as the identity of the fold, from loop `first`."""

        def level(k: int, loop: int, pointer: ir.Value) -> None:
            if loop == self.rank:
                start = identity(self.nest.stores[k].reduction, self.running[k])
                store_element(self.e, start, pointer, self.running[k])
            elif self.nest.reduced[loop]:
                level(k, loop + 1, pointer)
            else:
                with self.e.for_range(*self.range_of(loop)) as i:
                    level(k, loop + 1, self.step(pointer, i, self.stores[k].strides[loop]))

        if self.outer_reduced:
            for k, _ in self.folds:
                level(k, first, stores[k])

    def strides_of(self, load: int) -> list[ir.Value | None]:
        """The strides of a load, per loop; None: it does not move."""
        walk = self.loads[load]
        return (self.stores[walk] if isinstance(walk, int) else walk).strides

    def loop(self, loop: int, loads: list[ir.Value], stores: list[ir.Value]) -> None:
        if loop == self.tail:
            self._open_accumulators()
        if loop == self.rank:
            self._body(loads, stores)
        elif loop == self.rank - 1 and self.tail < self.rank and self._blocked():
            self._blocked_loop(loop, loads, stores)
        elif loop == self.rank - 2 and is_tiled(self.nest):
            write_tiles(self, loop, loads, stores)
        else:
            count, width = self._lanes() if loop == self.rank - 1 else (0, 0)
            with self.e.for_range(*self.range_of(loop), interleave=count, width=width) as i:
                self.loop(loop + 1, *self.moved(loop, i, loads, stores))
        if loop == self.tail:
            self._close_accumulators(stores)

    def moved(
        self, loop: int, i: ir.Value, loads: list[ir.Value], stores: list[ir.Value]
    ) -> tuple[list[ir.Value], list[ir.Value]]:
        moved = [self.step(p, i, w.strides[loop]) for p, w in zip(stores, self.stores, strict=True)]
        moved_loads = [
            self._in_place(k, w, moved) if isinstance(w, int) else self.step(p, i, w.strides[loop])
            for k, (p, w) in enumerate(zip(loads, self.loads, strict=True))
        ]
        if loop == self.rank - 2:
            self._ask_ahead(loop, i, loads)
        return self._picked(loop, moved_loads), moved

    def _ask_ahead(self, loop: int, i: ir.Value, loads: list[ir.Value]) -> None:
        """Prefetch the rows that indices pick in a later iteration of this loop."""
        e, b = self.e, self.e.builder
        later, last = b.add(i, e.index(AHEAD)), b.sub(self.range_of(loop)[1], e.index(1))
        later = self.least(later, last)
        for k, walk in enumerate(self.loads):
            picks = [p for p in walk.picks if p.loop == loop] if isinstance(walk, Walk) else []
            if not picks or self.nest.loads[k].strides[-1] != 1:
                continue
            assert isinstance(walk, Walk)
            at = []
            for pick in picks:
                index = self.loads[pick.index]
                assert isinstance(index, Walk)
                at.append((pick, self.step(loads[pick.index], later, index.strides[loop])))
            place = self.step(loads[k], later, walk.strides[loop])
            ask_ahead(e, place, at, self.extents[-1], self.nest.loads[k].dtype)

    def step(self, place: ir.Value, i: ir.Value, stride: ir.Value | None) -> ir.Value:
        if stride is None:
            return place
        b = self.e.builder
        unit = isinstance(stride, ir.Constant) and stride.constant == 1
        distance = i if unit else b.mul(i, stride, flags=["nsw"])
        return b.add(place, distance) if place.type == I64 else self.e.at(place, distance)

    def _blocked(self) -> bool:
        return any(is_wide_sum(s.reduction, s.dtype) for _, s in self.folds)

    def _blocked_loop(self, loop: int, loads: list[ir.Value], stores: list[ir.Value]) -> None:
        e, (first, last) = self.e, self.range_of(loop)
        with e.for_range(first, last, e.index(SUM_BLOCK)) as start:
            stop = self.least(e.builder.add(start, e.index(SUM_BLOCK)), last)
            for k, store in self.folds:
                if self._wide(store):
                    self.accumulators[k].begin()
            count, width = self._lanes()
            with e.for_range(start, stop, interleave=count, width=width) as i:
                self.loop(loop + 1, *self.moved(loop, i, loads, stores))
            for k, store in self.folds:
                if self._wide(store):
                    part = e.builder.fpext(self.accumulators[k].value(), ir.DoubleType())
                    total = e.builder.load(self.totals[k])
                    e.builder.store(e.builder.fadd(total, part), self.totals[k])

    # -- accumulators -----------------------------------------------------------------------------

    def _lanes(self) -> tuple[int, int]:
        """Of the innermost loop: vectors at once, and lanes of each; 0: as LLVM likes."""
        reduced = self.tail < self.rank
        folds = [(s.reduction or "", s.dtype) for _, s in self.folds] if reduced else []
        nest = self.nest
        return lanes_of_folds(folds, len(nest.statements), nest.extents, nest.interleave)

    def _wide(self, store: Store) -> bool:
        return is_wide_sum(store.reduction, store.dtype)

    def _open_accumulators(self) -> None:
        """Registers for the folds, if the innermost loops are reduced (or all were dropped)."""
        self.totals: dict[int, ir.Value] = {}
        for k, store in self.folds:
            if not self._in_register():
                continue
            assert store.reduction is not None
            self.accumulators[k] = Held(self.e, store.reduction, store.dtype)
            self.accumulators[k].begin()
            if self._wide(store) and self.tail < self.rank:
                self.totals[k] = self.e.alloca(ir.DoubleType())
                self.e.builder.store(ir.Constant(ir.DoubleType(), 0.0), self.totals[k])

    def _in_register(self) -> bool:
        return self.tail < self.rank or not self.outer_reduced

    def _close_accumulators(self, stores: list[ir.Value]) -> None:
        for k, store in self.folds:
            if k not in self.accumulators:
                continue
            running = self.running[k]
            if k in self.totals:
                value = convert(self.e, self.e.builder.load(self.totals[k]), "f64", running)
            else:
                value = convert(self.e, self.accumulators[k].value(), store.dtype, running)
            if self.outer_reduced:
                held = load_element(self.e, stores[k], running)
                value = self._fold(store, held, value)
            store_element(self.e, value, stores[k], running)

    def _fold(self, store: Store, a: ir.Value, b: ir.Value) -> ir.Value:
        assert store.reduction is not None
        return fold(self.e, store.reduction, store.dtype, a, b)

    # -- the innermost body -----------------------------------------------------------------------

    def _body(self, loads: list[ir.Value], stores: list[ir.Value]) -> None:
        loaded = [self._load(a, p) for a, p in zip(self.nest.loads, loads, strict=True)]
        values: list[ir.Value] = []

        def get(reference: tuple[str, int]) -> ir.Value:
            kind, i = reference
            return loaded[i] if kind == "load" else values[i]

        for statement in self.nest.statements:
            values.append(self._statement(statement, get))
        for k, store in enumerate(self.nest.stores):
            value = get(store.source)
            if store.reduction is None:
                store_element(self.e, value, stores[k], store.dtype)
            elif k in self.accumulators:
                self.accumulators[k].add(value)
            else:
                running = self.running[k]
                held = load_element(self.e, stores[k], running)
                value = convert(self.e, value, store.dtype, running)
                store_element(self.e, self._fold(store, held, value), stores[k], running)

    def _load(self, access: Access, place: ir.Value) -> ir.Value:
        if access.leaf == "index":
            return emit_scalar(self.e, "astype", "i64", [place], {"dtype": access.dtype})
        return load_element(self.e, place, access.dtype)

    def _statement(
        self, statement: Statement, get: Callable[[tuple[str, int]], ir.Value]
    ) -> ir.Value:
        args = [get(r) for r in statement.args]
        attrs = {"dtype": statement.result_dtype}
        return emit_scalar(self.e, statement.op, statement.dtype, args, attrs)
