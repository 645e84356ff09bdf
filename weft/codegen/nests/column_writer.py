"""Code of a row kernel whose rows are strided and lie side by side: a block of columns at once.

As `weft.codegen.nests.row_writer`, but the last loop over rows - the columns - is the innermost one
of every pass, `COLUMNS` at a time. What is one number for a row is an array of a block's columns
here, on the stack; sums of f32 are cut into blocks of `FOLD_BLOCK` elements, whose totals add up in
f64. Nothing is folded across columns but totals of everything."""

from __future__ import annotations

from collections.abc import Callable

from llvmlite import ir

from weft.codegen.llvm.elements import memory_type
from weft.codegen.llvm.emitter import Emitter
from weft.codegen.nests.folds import convert, fold, identity, is_wide_sum, running_dtype
from weft.codegen.nests.nest import interleave
from weft.codegen.nests.row_writer import RowWriter
from weft.codegen.nests.rows import COLUMNS, Node, Output, Pass
from weft.codegen.scalar.element_access import load_element, store_element

#: Elements of a column that are added up in f32 before their sum goes into the f64 total.
FOLD_BLOCK = 64


class _Array:
    """One number for each column of a block."""

    def __init__(self, e: Emitter, dtype: str) -> None:
        self.e, self.dtype = e, running_dtype("", dtype, False)
        kind = ir.ArrayType(memory_type(self.dtype), COLUMNS)
        self.base = e.builder.gep(e.alloca(kind), [e.index(0), e.index(0)], inbounds=True)

    def load(self, j: ir.Value) -> ir.Value:
        return load_element(self.e, self.e.at(self.base, j), self.dtype)

    def store(self, j: ir.Value, value: ir.Value) -> None:
        store_element(self.e, value, self.e.at(self.base, j), self.dtype)


class _Accumulator:
    """A fold over the elements of each column; `column` is the one that `add` adds to."""

    def __init__(self, e: Emitter, node: Node, running: _Array) -> None:
        self.e, self.node, self.running = e, node, running
        self.total = _Array(e, "f64") if is_wide_sum(node.name, node.dtype) else None
        self.column: ir.Value | None = None

    def begin(self, j: ir.Value) -> None:
        self.running.store(j, identity(self.node.name, self.node.dtype))
        if self.total is not None:
            self.total.store(j, ir.Constant(ir.DoubleType(), 0.0))

    def add(self, value: ir.Value) -> None:
        held = self.running.load(self.column)
        self.running.store(self.column, fold(self.e, self.node.name, self.node.dtype, held, value))

    def end_block(self, j: ir.Value) -> None:
        b = self.e.builder
        assert self.total is not None
        part = b.fpext(self.running.load(j), ir.DoubleType())
        self.total.store(j, b.fadd(self.total.load(j), part))
        self.running.store(j, identity(self.node.name, self.node.dtype))

    def close(self, j: ir.Value) -> None:
        if self.total is not None:
            self.running.store(j, self.e.builder.fptrunc(self.total.load(j), ir.FloatType()))


class ColumnWriter(RowWriter):
    """Emits a nest with `by_columns`; a unit is a block of columns, or a block of those blocks."""

    def _rows(self, first: ir.Value, end: ir.Value) -> None:
        e, b = self.e, self.e.builder
        lane, size = self.nest.outer - 1, e.index(COLUMNS)
        columns = self.extents[lane]
        blocks = b.sdiv(b.add(columns, e.index(COLUMNS - 1)), size)
        self.arrays: dict[int, _Array] = {}
        self.totals: dict[int, _Array] = {}
        for n, node in enumerate(self.nest.nodes):
            if node.kind != "load" and not self.plan.in_row[n]:
                self.arrays[n] = _Array(e, node.result_dtype)
        with e.for_range(first, end) as unit:
            rest, begin = b.sdiv(unit, blocks), b.mul(b.srem(unit, blocks), size)
            left = b.sub(columns, begin)
            self.first_row = b.add(b.mul(rest, columns), begin)
            indices = []
            for k in reversed(range(1, lane)):
                indices.append(b.srem(rest, self.extents[k]))
                rest = b.sdiv(rest, self.extents[k])
            indices = [rest, *reversed(indices)] if lane else []
            # the common case has a constant number of columns: loops without a remainder
            with b.if_else(b.icmp_signed(">=", left, size)) as (whole, part):
                for branch, width in ((whole, size), (part, left)):
                    with branch:
                        self.width = width
                        self._block([*indices, begin])

    def _block(self, indices: list[ir.Value]) -> None:
        """All passes over one block of columns."""
        self.done: list[int] = []  # row values that are in their arrays
        stores = {o: self._moved(w, indices) for o, w in self.stores.items()}
        loads = {
            n: self._alias(n, stores[w]) if isinstance(w, Output) else self._moved(w, indices)
            for n, w in self.loads.items()
        }
        self._row_values(0, loads)
        for p, step in enumerate(self.plan.passes):
            self._pass(step, loads, stores)
            self._row_values(p + 1, loads)
        if not self.plan.row_stores and not self.plan.row_totals:
            return
        with self.e.for_range(self.e.index(0), self.width) as j:
            self._enter(j, loads)
            for o in self.plan.row_totals:
                self._add_column(o, j)
            for o in self.plan.row_stores:
                place = self._step(stores[o], j, self.stores[o].strides[self.nest.outer - 1])
                store_element(self.e, self.values[o.source], place, o.dtype)

    def _picked(self, loops: range, places: dict[int, ir.Value]) -> dict[int, ir.Value]:
        """All picks at once: no place is final before the column is known."""
        return super()._picked(range(-1, len(self.extents)), places)

    def _enter(self, j: ir.Value, loads: dict[int, ir.Value]) -> dict[int, ir.Value]:
        """Column j: its row values so far in `values`; the loads' places there, before picks."""
        places = self._in_column(j, loads)
        self.row = self.e.builder.add(self.first_row, j)
        self.values = {n: self.arrays[n].load(j) for n in self.done}
        still = [n for n in self.plan.row_nodes[0] if self.nest.nodes[n].kind == "load"]
        picked = self._picked(range(0), places)
        for n in still:
            self.values[n] = self._node(n, picked, self.values.__getitem__)
        return places

    def _in_column(self, j: ir.Value, loads: dict[int, ir.Value]) -> dict[int, ir.Value]:
        lane = self.nest.outer - 1
        return {n: self._step(p, j, self._stride(n, lane)) for n, p in loads.items()}

    def _row_values(self, p: int, loads: dict[int, ir.Value]) -> None:
        nodes = [n for n in self.plan.row_nodes[p] if self.nest.nodes[n].kind != "load"]
        if not nodes:
            return
        with self.e.for_range(self.e.index(0), self.width) as j:
            places = self._enter(j, loads)
            for n in nodes:
                self.values[n] = self._node(n, places, self.values.__getitem__)
                self.arrays[n].store(j, self.values[n])
        self.done += nodes

    def _add_column(self, o: Output, j: ir.Value) -> None:
        """One column's number into the unit's total."""
        assert o.total is not None
        b, running, slot = self.e.builder, self._running(o), self.slots[o]
        wide = self.totals.get(o.source) if running == "f64" else None
        value = wide.load(j) if wide else convert(self.e, self.values[o.source], o.dtype, running)
        b.store(fold(self.e, o.total, running, b.load(slot), value), slot)

    # -- one pass over a block --------------------------------------------------------------------

    def _pass(self, step: Pass, loads: dict[int, ir.Value], stores: dict[Output, ir.Value]) -> None:
        folds = {n: _Accumulator(self.e, self.nest.nodes[n], self.arrays[n]) for n in step.folds}
        self._each_column(list(folds.values()), _Accumulator.begin)
        self._fold_loop(self.nest.outer, step, (loads, stores, self.e.index(0)), folds)
        self._each_column(list(folds.values()), _Accumulator.close)
        self.totals.update({n: a.total for n, a in folds.items() if a.total is not None})
        self.done += step.folds

    def _each_column(
        self, folds: list[_Accumulator], do: Callable[[_Accumulator, ir.Value], None]
    ) -> None:
        if folds:
            with self.e.for_range(self.e.index(0), self.width) as j:
                for accumulator in folds:
                    do(accumulator, j)

    def _fold_loop(
        self,
        loop: int,
        step: Pass,
        at: tuple[dict[int, ir.Value], dict[Output, ir.Value], ir.Value],
        folds: dict[int, _Accumulator],
    ) -> None:
        e, b = self.e, self.e.builder
        if loop == len(self.extents):
            self._columns(step, at, folds)
            return
        n = self.extents[loop]
        wide = [a for a in folds.values() if a.total is not None]
        if loop < len(self.extents) - 1 or not wide:
            with e.for_range(e.index(0), n) as i:
                self._fold_loop(loop + 1, step, self._deeper(loop, i, at), folds)
            return
        with e.for_range(e.index(0), n, e.index(FOLD_BLOCK)) as start:
            end = b.add(start, e.index(FOLD_BLOCK))
            with e.for_range(start, b.select(b.icmp_signed("<", end, n), end, n)) as i:
                self._fold_loop(loop + 1, step, self._deeper(loop, i, at), folds)
            self._each_column(wide, _Accumulator.end_block)

    def _deeper(
        self,
        loop: int,
        i: ir.Value,
        at: tuple[dict[int, ir.Value], dict[Output, ir.Value], ir.Value],
    ) -> tuple[dict[int, ir.Value], dict[Output, ir.Value], ir.Value]:
        loads, stores, index = at
        b = self.e.builder
        moved = {o: self._step(p, i, self.stores[o].strides[loop]) for o, p in stores.items()}
        inner = {n: self._step(p, i, self._stride(n, loop)) for n, p in loads.items()}
        index = b.add(b.mul(index, self.extents[loop], flags=["nsw"]), i, flags=["nsw"])
        return inner, moved, index

    def _columns(
        self,
        step: Pass,
        at: tuple[dict[int, ir.Value], dict[Output, ir.Value], ir.Value],
        folds: dict[int, _Accumulator],
    ) -> None:
        """The pass's work on one element of each column."""
        e, b, lane = self.e, self.e.builder, self.nest.outer - 1
        loads, stores, index = at
        nodes = [self.nest.nodes[n] for n in step.compute if n not in step.reload]
        count = interleave(((n.name, n.dtype) for n in nodes if n.kind == "apply"), (COLUMNS,))
        first = b.mul(index, e.index(COLUMNS), flags=["nsw"])
        with e.for_range(e.index(0), self.width, interleave=count) as j:
            places = self._picked(range(0), self._enter(j, loads))
            here = {o: self._step(p, j, self.stores[o].strides[lane]) for o, p in stores.items()}
            for n, walk in self.loads.items():
                if isinstance(walk, Output):
                    places[n] = self._alias(n, here[walk])
            for accumulator in folds.values():
                accumulator.column = j
            kept = b.add(first, j, flags=["nsw"])
            self._body(step, (places, here, self.scratch, kept), folds)
