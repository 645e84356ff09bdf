"""Code of a row kernel: units, rows, passes, accumulators (arguments: `nests/calls.py`).

A fold over one row is in registers; sums of f32 go in blocks, whose totals add up in f64."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from llvmlite import ir

from weft.codegen.faults import emit_fault
from weft.codegen.llvm.emitter import Emitter, memory_type, register_type
from weft.codegen.nests.folds import (
    SUM_BLOCK,
    Held,
    convert,
    fold,
    identity,
    is_wide_sum,
    running_dtype,
)
from weft.codegen.nests.nest import lanes_of_folds
from weft.codegen.nests.rows import Node, Output, Pass, RowNest, Schedule
from weft.codegen.nests.writer import AHEAD, PickWalk, ask_ahead, stepped
from weft.codegen.scalar.element_access import load_element, store_element
from weft.codegen.scalar.elementwise import emit_scalar
from weft.codegen.scalar.user_functions import loops_inside
from weft.ir.dataclass import dataclass

F64 = ir.DoubleType()


class Adds(Protocol):
    """A fold that takes one element after another."""

    def add(self, value: ir.Value) -> None:
        """One more element."""


class Accumulator:
    """The accumulator of the fold `node`: its value so far; for blocked sums that of one block, and
    the total."""

    def __init__(self, e: Emitter, node: Node) -> None:
        self.e = e
        self.held = Held(e, node.name, node.dtype)
        self.held.begin()
        self.total: ir.Value | None = None
        if is_wide_sum(node.name, node.dtype):
            self.total = e.alloca(F64)
            e.builder.store(ir.Constant(F64, 0.0), self.total)

    def add(self, value: ir.Value) -> None:
        """One more element."""
        self.held.add(value)

    def begin_block(self) -> None:
        """Before a block of elements; nothing for folds without blocks."""
        if self.total is not None:
            self.held.begin()

    def end_block(self) -> None:
        """After a block of elements."""
        b = self.e.builder
        if self.total is not None:
            part = b.fpext(self.held.value(), F64)
            b.store(b.fadd(b.load(self.total), part), self.total)

    def close(self) -> tuple[ir.Value, ir.Value | None]:
        """The result, and the f64 total of a blocked sum."""
        b = self.e.builder
        if self.total is None:
            return self.held.value(), None
        wide = b.load(self.total)
        return b.fptrunc(wide, ir.FloatType()), wide


@dataclass(slots=True)
class Walk:
    """A pointer (for "index" a number) and its strides per loop; None: does not move."""

    base: ir.Value
    strides: list[ir.Value | None]
    picks: Sequence[PickWalk] = ()


#: Where a loop is: pointers of loads, of outputs, to kept values; the element's index in the row.
At = tuple[dict[int, ir.Value], dict[Output, ir.Value], dict[int, ir.Value], ir.Value]


class RowWriter:
    def __init__(
        self,
        e: Emitter,
        nest: RowNest,
        plan: Schedule,
        extents: list[ir.Value],
        loads: dict[int, Walk | Output],
        stores: dict[Output, Walk],
        scratch: dict[int, ir.Value],
        status: ir.Value | None,
    ) -> None:
        self.e = e
        self.nest = nest
        self.plan = plan
        self.extents = extents
        self.loads = loads
        self.stores = stores
        self.scratch = scratch
        self.status = status
        self.values: dict[int, ir.Value] = {}  # one for each row
        self.wide: dict[int, ir.Value] = {}  # f64 totals of folds
        self.slots = {o: self._slot(o) for o in plan.row_totals}

    def _slot(self, o: Output) -> ir.Value:
        return self.e.alloca(register_type(self._running(o)))

    def _running(self, o: Output) -> str:
        assert o.total is not None
        return running_dtype(o.total, o.dtype, not self.nest.moves_in_row(o.strides))

    # -- units and rows ---------------------------------------------------------------------------

    def write(self, rows: ir.Value, block: ir.Value, lo: ir.Value, hi: ir.Value) -> None:
        """All units in [lo, hi)."""
        e, b = self.e, self.e.builder
        if not self.nest.totals:
            self._rows(lo, hi)  # a unit is a row
            return
        with e.for_range(lo, hi) as unit:
            first = b.mul(unit, block, flags=["nsw"])
            end = b.add(first, block, flags=["nsw"])
            self._open_unit(unit)
            self._rows(first, b.select(b.icmp_signed("<", end, rows), end, rows))
            for o, slot in self.slots.items():
                store_element(e, b.load(slot), e.at(self.stores[o].base, unit), self._running(o))

    def _open_unit(self, unit: ir.Value) -> None:
        """Partial results start as the identity of their fold."""
        e = self.e
        self.columns: dict[Output, ir.Value] = {}
        for o in self.nest.totals:
            start = identity(o.total, self._running(o))
            if o in self.slots:
                e.builder.store(start, self.slots[o])
                continue
            count = self._row_elements()
            base = e.at(self.stores[o].base, e.builder.mul(unit, count))
            self.columns[o] = base
            self._fill(base, count, start, self._running(o))

    def _fill(self, base: ir.Value, count: ir.Value, start: ir.Value, dtype: str) -> None:
        """`count` elements from `base` on all become `start`."""
        with self.e.for_range(self.e.index(0), count) as j:
            store_element(self.e, start, self.e.at(base, j), dtype)

    def _row_elements(self) -> ir.Value:
        total = self.e.index(1)
        for extent in self.extents[self.nest.outer :]:
            total = self.e.builder.mul(total, extent)
        return total

    def _rows(self, first: ir.Value, end: ir.Value) -> None:
        ahead = self._asked_ahead()
        with self.e.for_range(first, end) as row:
            self.row = row
            if ahead:
                self._ask_ahead(ahead, end)
            self._row(self._outer_indices(row))

    def _asked_ahead(self) -> list[int]:
        """The loads whose rows an index picks, where one loop numbers the rows."""
        walks = {n: w for n, w in self.loads.items() if isinstance(w, Walk) and w.picks}
        one = self.nest.outer == 1 and len(self.extents) == 2
        return [
            n
            for n, w in walks.items()
            if one and self.nest.nodes[n].strides[1] == 1 and all(p.loop == 0 for p in w.picks)
        ]

    def _ask_ahead(self, loads: list[int], end: ir.Value) -> None:
        """Prefetch what those loads read of a later row."""
        b, e = self.e.builder, self.e
        later, last = b.add(self.row, e.index(AHEAD)), b.sub(end, e.index(1))
        later = b.select(b.icmp_signed("<", later, last), later, last)
        for n in loads:
            walk = self.loads[n]
            assert isinstance(walk, Walk)
            held = {k: self.loads[k] for k in (p.index for p in walk.picks)}
            at = {k: self._moved(w, [later]) for k, w in held.items() if isinstance(w, Walk)}
            picks = [(p, at[p.index]) for p in walk.picks]
            place = self._moved(walk, [later])
            ask_ahead(e, place, picks, self.extents[1], self.nest.nodes[n].dtype)

    def _outer_indices(self, row: ir.Value) -> list[ir.Value]:
        b, out = self.e.builder, []
        for extent in reversed(self.extents[1 : self.nest.outer]):
            out.append(b.srem(row, extent))
            row = b.sdiv(row, extent)
        return [row, *reversed(out)]

    def _row(self, indices: list[ir.Value]) -> None:
        self.values, self.wide = {}, {}
        stores = {
            o: self.columns[o]
            if o in self.nest.totals and o not in self.slots
            else self._moved(w, indices)
            for o, w in self.stores.items()
        }
        loads = {
            n: self._alias(n, stores[w]) if isinstance(w, Output) else self._moved(w, indices)
            for n, w in self.loads.items()
        }
        loads = self._picked(range(-1, self.nest.outer), loads)
        self._row_values(0, loads)
        for p, step in enumerate(self.plan.passes):
            self._pass(step, loads, stores)
            self._row_values(p + 1, loads)
        for o in self.plan.row_stores:
            store_element(self.e, self.values[o.source], stores[o], o.dtype)
        for o in self.plan.row_totals:
            self._add_row(o)

    def _moved(self, walk: Walk, indices: list[ir.Value]) -> ir.Value:
        place = walk.base
        for i, stride in zip(indices, walk.strides[: self.nest.outer], strict=True):
            place = stepped(self.e, place, i, stride)
        return place

    def _picked(self, loops: range, places: dict[int, ir.Value]) -> dict[int, ir.Value]:
        """The loads' places, where index loads have got to theirs in one of these loops."""
        out = dict(places)
        for n in places:
            walk = self.loads[n]
            for pick in walk.picks if isinstance(walk, Walk) else ():
                if pick.loop in loops:
                    out[n] = pick.applied(self.e, out[n], places[pick.index])
        return out

    def _alias(self, load: int, pointer: ir.Value) -> ir.Value:
        """The store's pointer, in the load's dtype (of the same width)."""
        kind = memory_type(self.nest.nodes[load].dtype).as_pointer()
        return self.e.builder.bitcast(pointer, kind)

    def _row_values(self, p: int, loads: dict[int, ir.Value]) -> None:
        """What is computed once for each row, before pass p."""
        for n in self.plan.row_nodes[p]:
            self.values[n] = self._node(n, loads, self.values.__getitem__)

    def _node(
        self, n: int, places: dict[int, ir.Value], get: Callable[[int], ir.Value]
    ) -> ir.Value:
        node = self.nest.nodes[n]
        if node.kind == "check":
            return self._check(node, get(node.args[0]))
        if node.kind == "pick":
            return self._pick(node.args[0], get(node.args[1]), places)
        if node.kind == "apply":
            return self._apply(n, [get(a) for a in node.args])
        if node.leaf == "index":
            return emit_scalar(self.e, "astype", "i64", [places[n]], {"dtype": node.dtype})
        return load_element(self.e, places[n], node.dtype)

    def _apply(self, n: int, args: list[ir.Value]) -> ir.Value:
        node = self.nest.nodes[n]
        return emit_scalar(self.e, node.name, node.dtype, args, {"dtype": node.result_dtype})

    def _check(self, node: Node, raw: ir.Value) -> ir.Value:
        """An index of the row as i64; -1 if it is out of bounds, and a fault in the status word."""
        e, b = self.e, self.e.builder
        size, zero = self.extents[self.nest.outer], e.index(0)
        index = given = emit_scalar(e, "astype", node.dtype, [raw], {"dtype": "i64"})
        if node.dtype.startswith("i"):
            index = b.select(b.icmp_signed("<", index, zero), b.add(index, size), index)
        good = b.icmp_unsigned("<", index, size)  # a negative one is a huge unsigned one
        assert self.status is not None
        with b.if_then(b.not_(good), likely=False):
            emit_fault(e, self.status, self.row, given, int(node.name))
        return b.select(good, index, e.index(-1))

    def _pick(self, n: int, index: ir.Value, places: dict[int, ir.Value]) -> ir.Value:
        """One element of a value of the row, computed by itself."""
        b, loop = self.e.builder, self.nest.outer
        index = b.select(b.icmp_signed("<", index, self.e.index(0)), self.e.index(0), index)
        env = dict(self.values)
        inner: dict[int, ir.Value] = {}

        def get(k: int) -> ir.Value:
            if k not in env:
                if k in places:
                    held = [k, *(p for p, _, _ in self.nest.nodes[k].picks)]
                    moved = {
                        n: stepped(self.e, places[n], index, self._stride(n, loop)) for n in held
                    }
                    inner[k] = self._picked(range(loop, loop + 1), moved)[k]
                for a in self.nest.nodes[k].args:
                    get(a)
                env[k] = self._node(k, inner, env.__getitem__)
            return env[k]

        return get(n)

    def _stride(self, load: int, loop: int) -> ir.Value | None:
        walk = self.loads[load]
        return (self.stores[walk] if isinstance(walk, Output) else walk).strides[loop]

    def _add_row(self, o: Output) -> None:
        """One row's number into the unit's total."""
        assert o.total is not None
        running, slot = self._running(o), self.slots[o]
        value = self.wide.get(o.source) if running == "f64" else None
        if value is None:
            value = convert(self.e, self.values[o.source], o.dtype, running)
        held = self.e.builder.load(slot)
        self.e.builder.store(fold(self.e, o.total, running, held, value), slot)

    # -- one pass over a row ----------------------------------------------------------------------

    def _pass(self, step: Pass, loads: dict[int, ir.Value], stores: dict[Output, ir.Value]) -> None:
        accumulators = {n: Accumulator(self.e, self.nest.nodes[n]) for n in step.folds}
        places = {n: loads[n] for n in step.compute if n in loads and n not in step.reload}
        for n in list(places):  # indices move with what they are indices of
            places.update({k: loads[k] for k, _, _ in self.nest.nodes[n].picks})
        kept = {n: self.scratch[n] for n in self.scratch}
        index = self.e.index(0)
        self._loop(self.nest.outer, step, (places, stores, kept, index), accumulators)
        for n, accumulator in accumulators.items():
            self.values[n], wide = accumulator.close()
            if wide is not None:
                self.wide[n] = wide

    def _loop(
        self,
        loop: int,
        step: Pass,
        at: At,
        accumulators: dict[int, Accumulator],
    ) -> None:
        e = self.e
        if loop == len(self.extents):
            self._body(step, at, accumulators)
            return
        n = self.extents[loop]
        innermost = loop == len(self.extents) - 1
        if innermost and any(a.total is not None for a in accumulators.values()):
            with e.for_range(e.index(0), n, e.index(SUM_BLOCK)) as start:
                end = e.builder.add(start, e.index(SUM_BLOCK))
                stop = e.builder.select(e.builder.icmp_signed("<", end, n), end, n)
                for a in accumulators.values():
                    a.begin_block()
                count, width = self._lanes_of(step, accumulators)
                with e.for_range(start, stop, interleave=count, width=width) as i:
                    self._loop(loop + 1, step, self._inside(loop, i, at), accumulators)
                for a in accumulators.values():
                    a.end_block()
        else:
            count, width = self._lanes_of(step, accumulators) if innermost else (0, 0)
            with e.for_range(e.index(0), n, interleave=count, width=width) as i:
                self._loop(loop + 1, step, self._inside(loop, i, at), accumulators)

    def _lanes_of(self, step: Pass, accumulators: dict[int, Accumulator]) -> tuple[int, int]:
        nodes = self.nest.nodes
        if loops_inside(nodes[n].name for n in step.compute):
            return 0, 0
        ops = sum(nodes[n].kind == "apply" for n in step.compute)
        folds = [(nodes[n].name, nodes[n].dtype) for n in accumulators]
        return lanes_of_folds(folds, ops, self.nest.extents, self._interleave(step))

    def _interleave(self, step: Pass) -> int:
        nodes = [self.nest.nodes[n] for n in step.compute if n not in step.reload]
        return self.nest.interleave((n.name, n.dtype) for n in nodes if n.kind == "apply")

    def _inside(
        self,
        loop: int,
        i: ir.Value,
        at: At,
    ) -> At:
        """Everything moved to iteration i of a loop within the row."""
        places, stores, kept, index = at
        moved = {o: stepped(self.e, p, i, self.stores[o].strides[loop]) for o, p in stores.items()}
        inner = {}
        for n, place in places.items():
            walk = self.loads[n]
            inner[n] = (
                self._alias(n, moved[walk])
                if isinstance(walk, Output)
                else stepped(self.e, place, i, walk.strides[loop])
            )
        b = self.e.builder
        index = b.add(b.mul(index, self.extents[loop], flags=["nsw"]), i, flags=["nsw"])
        return self._picked(range(loop, loop + 1), inner), moved, kept, index

    def _body(
        self,
        step: Pass,
        at: At,
        accumulators: Mapping[int, Adds],
    ) -> None:
        places, stores, kept, index = at
        e, env = self.e, dict(self.values)
        for n in step.compute:
            if n in step.reload:
                env[n] = load_element(e, *self._kept_at(n, stores, kept, index))
            else:
                env[n] = self._node(n, places, env.__getitem__)
        for n in step.keep:
            held = self.plan.kept[n]
            if held is None or held.source != n:
                place, dtype = self._kept_at(n, stores, kept, index)
                store_element(e, env[n], place, dtype)
        for n, accumulator in accumulators.items():
            accumulator.add(env[self.nest.nodes[n].args[0]])
        for o in step.stores:
            store_element(e, env[o.source], stores[o], o.dtype)
        for o in step.totals:
            running = self._running(o)
            assert o.total is not None
            held = load_element(e, stores[o], running)
            value = convert(e, env[o.source], o.dtype, running)
            store_element(e, fold(e, o.total, running, held, value), stores[o], running)

    def _kept_at(
        self,
        n: int,
        stores: dict[Output, ir.Value],
        kept: dict[int, ir.Value],
        index: ir.Value,
    ) -> tuple[ir.Value, str]:
        held = self.plan.kept[n]
        if held is not None:
            return stores[held], held.dtype
        dtype = running_dtype("", self.nest.nodes[n].result_dtype, False)
        return self.e.at(kept[n], index), dtype
