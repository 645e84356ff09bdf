"""Code of row kernels in vectors: passes that are written out, which leaves LLVM nothing to
vectorise, and blocks of columns at once where rows lie side by side.

A pass is two loops: one over as many vectors at a time as shall be interleaved, and one over what
is left, vector by vector, with a mask. LLVM's loop vectoriser would make three of each
(interleaved, narrower, element by element) and needs most of the compiler's time to do so; these
take the few passes of control code (docs/decisions/0031-row-kernels-in-vectors.md). The arithmetic
of an element is the same, `emit_scalar` on vectors. What is folded is added up lane by lane, then
over the lanes.

Where rows are strided and lie side by side, the code is as in `weft.codegen.nests.row_writer`, but
the last loop over rows - the columns - is the innermost one of every pass, `COLUMNS` at a time.
What is one number for a row is an array of a block's columns here, on the stack; sums of f32 are
cut into blocks of `FOLD_BLOCK` elements, whose totals add up in f64. Nothing is folded across
columns but totals of everything."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from llvmlite import ir

from weft.codegen.llvm.emitter import I64, Emitter, memory_type
from weft.codegen.nests.folds import (
    SUM_BLOCK,
    Held,
    convert,
    counting,
    fold,
    identity,
    is_in_bits,
    is_wide_sum,
    running_dtype,
)
from weft.codegen.nests.nest import INTERLEAVE, interleave
from weft.codegen.nests.row_writer import At, RowWriter, Walk
from weft.codegen.nests.rows import COLUMNS, Node, Output, Pass, RowNest, Schedule
from weft.codegen.nests.writer import stepped
from weft.codegen.scalar.element_access import constant, load_element, store_element
from weft.codegen.scalar.integers import COMPARISONS
from weft.codegen.tiles.micro_kernel import Vectors, tile_of
from weft.codegen.vector.float_builder import splat_constant
from weft.ir.dataclass import dataclass

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
                place = stepped(self.e, stores[o], j, self.stores[o].strides[self.nest.outer - 1])
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
        return {n: stepped(self.e, p, j, self._stride(n, lane)) for n, p in loads.items()}

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
        moved = {o: stepped(self.e, p, i, self.stores[o].strides[loop]) for o, p in stores.items()}
        inner = {n: stepped(self.e, p, i, self._stride(n, loop)) for n, p in loads.items()}
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
            here = {
                o: stepped(self.e, p, j, self.stores[o].strides[lane]) for o, p in stores.items()
            }
            for n, walk in self.loads.items():
                if isinstance(walk, Output):
                    places[n] = self._alias(n, here[walk])
            for accumulator in folds.values():
                accumulator.column = j
            kept = b.add(first, j, flags=["nsw"])
            self._body(step, (places, here, self.scratch, kept), folds)


#: Elementwise ops whose code is that of vectors, too: no calls, no branches (`emit_scalar`).
OPS = frozenset(
    (
        *("add", "subtract", "multiply", "divide", "negative", "square", "abs", "reciprocal"),
        "fma",
        *("maximum", "minimum", "exp", "exp2", "sqrt", "rsqrt", "where", *COMPARISONS),
    )
)
_FOLDS = frozenset(("sum", "prod", "max", "min"))


def is_in_vectors(nest: RowNest, plan: Schedule) -> bool:
    """Whether `VectorRowWriter` writes this kernel: one loop over neighbouring floats of one dtype,
    on a machine with masked vector loads."""
    dtype = _dtype(nest, plan)
    if dtype is None or not tile_of(dtype).masks:
        return False
    if nest.by_columns or len(nest.extents) != nest.outer + 1:
        return False
    nodes = [nest.nodes[n] for n, moves in enumerate(plan.in_row) if moves]
    folds = [node for node in nest.nodes if node.kind == "fold"]
    whole = [o for o in nest.outputs if nest.moves_in_row(o.strides)]
    return (
        all(_fits(node, dtype) for node in nodes)
        and all(node.name in _FOLDS and node.dtype == dtype for node in folds)
        and all(o.strides[-1] == 1 and o.dtype == dtype for o in whole)
        and all(o.total is None or o.total in _FOLDS for o in whole)
        and all(nest.nodes[n].result_dtype == dtype for n in plan.kept)
    )


def _dtype(nest: RowNest, plan: Schedule) -> str | None:
    """The one dtype of floats that elements of a row have."""
    held = {nest.nodes[n].result_dtype for n, moves in enumerate(plan.in_row) if moves}
    held -= {"bool", "i64"}
    return held.pop() if len(held) == 1 and held <= {"f32", "f64"} else None


def _fits(node: Node, dtype: str) -> bool:
    if node.kind == "load":
        if node.leaf == "index":
            return node.dtype == "i64" and not node.picks
        return node.dtype == dtype and node.strides[-1] == 1 and not node.picks
    if node.kind != "apply" or node.name not in OPS:
        return False
    return node.dtype == dtype or (node.dtype == "i64" and node.name in COMPARISONS)


@dataclass(frozen=True, slots=True)
class _Step:
    """One iteration of a loop over a row: so many lanes; `mask`: which of them are of the row."""

    vectors: Vectors
    splats: dict[int, ir.Value]
    mask: ir.Value | None = None

    @property
    def lanes(self) -> int:
        return self.vectors.lanes

    def load(self, place: ir.Value) -> ir.Value:
        """The elements from `place` on; 0 where there are none."""
        v = self.vectors
        return v.load(place) if self.mask is None else v.masked_load(place, self.mask)

    def store(self, value: ir.Value, place: ir.Value) -> None:
        v = self.vectors
        if self.mask is None:
            v.store(value, place)
        else:
            v.masked_store(value, place, self.mask)


class _Fold:
    """A fold over a row: first in the lanes of many vectors, then in those of one."""

    def __init__(self, e: Emitter, node: Node, many: int, one: int) -> None:
        self.e = e
        if is_in_bits(node.name, node.dtype):  # three registers a vector, which wait for a cycle
            many //= 2
        self.many, self.one = (Held(e, node.name, node.dtype, lanes) for lanes in (many, one))
        self.start = identity(node.name, node.dtype)
        self.total: ir.Value | None = None
        if is_wide_sum(node.name, node.dtype):
            self.total = e.alloca(ir.DoubleType())
            e.builder.store(constant("f64", 0.0), self.total)
        else:
            self.one.begin()

    def begin(self) -> None:
        """Before the loop over many vectors, of a block or of the row."""
        self.many.begin()

    def narrow(self) -> None:
        """After it: what the lanes of many vectors hold goes to those of one."""
        if self.total is None:  # of all blocks so far
            self.one.join(self.many)
        else:
            self.one.take(self.many)

    def add(self, value: ir.Value, step: _Step) -> None:
        """The elements of one step."""
        if step.mask is None:
            self.many.add(value)
            return
        nothing = splat_constant(value.type, self.start.constant)
        self.one.add(self.e.builder.select(step.mask, value, nothing))

    def end_block(self) -> None:
        """A block's sum to the total."""
        b = self.e.builder
        if self.total is not None:
            part = b.fpext(self.one.value(), ir.DoubleType())
            b.store(b.fadd(b.load(self.total), part), self.total)

    def close(self) -> tuple[ir.Value, ir.Value | None]:
        """The result, and the f64 total of a blocked sum."""
        if self.total is None:
            return self.one.value(), None
        wide = self.e.builder.load(self.total)
        return self.e.builder.fptrunc(wide, ir.FloatType()), wide


class VectorRowWriter(RowWriter):
    """Emits a nest for which `is_in_vectors`."""

    def _vectors(self, interleaved: int = 1) -> Vectors:
        dtype = _dtype(self.nest, self.plan)
        assert dtype is not None
        tile = tile_of(dtype)
        return Vectors(self.e, tile, tile.lanes * interleaved)

    def _fill(self, base: ir.Value, count: ir.Value, start: ir.Value, dtype: str) -> None:
        v, e = self._vectors(), self.e
        with e.for_range(e.index(0), count, e.index(v.lanes)) as j:
            mask = v.mask(e.builder.sub(count, j))
            v.masked_store(splat_constant(v.kind, start.constant), e.at(base, j), mask)

    def _pass(self, step: Pass, loads: dict[int, ir.Value], stores: dict[Output, ir.Value]) -> None:
        e, b, n = self.e, self.e.builder, self.extents[-1]
        one, many = self._vectors(), self._vectors(self._interleave(step) or INTERLEAVE)
        nodes = self.nest.nodes
        folds = {k: _Fold(e, nodes[k], many.lanes, one.lanes) for k in step.folds}
        places = {k: loads[k] for k in step.compute if k in loads and k not in step.reload}
        at: At = (places, stores, dict(self.scratch), e.index(0))
        if any(f.total is not None for f in folds.values()):
            with e.for_range(e.index(0), n, e.index(SUM_BLOCK)) as start:
                end = b.add(start, e.index(SUM_BLOCK))
                stop = b.select(b.icmp_signed("<", end, n), end, n)
                self._loops(step, (start, stop), at, (many, one), folds)
                for f in folds.values():
                    f.end_block()
        else:
            self._loops(step, (e.index(0), n), at, (many, one), folds)
        for k, f in folds.items():
            self.values[k], wide = f.close()
            if wide is not None:
                self.wide[k] = wide

    def _loops(
        self,
        step: Pass,
        over: tuple[ir.Value, ir.Value],
        at: At,
        vectors: tuple[Vectors, Vectors],
        folds: dict[int, _Fold],
    ) -> None:
        """The pass over elements [start, stop): many vectors at a time, then one with a mask."""
        (start, stop), (many, one) = over, vectors
        e, b = self.e, self.e.builder
        splats = [self._splats(step, v) for v in vectors]
        whole = b.and_(b.sub(stop, start), e.index(-many.lanes))
        whole = b.add(start, whole, flags=["nsw"])
        for f in folds.values():
            f.begin()
        with _range(b, start, whole, many.lanes) as i:
            self._elements(step, i, at, _Step(many, splats[0]), folds)
        for f in folds.values():
            f.narrow()
        with _range(b, whole, stop, one.lanes) as i:
            mask = one.mask(b.sub(stop, i))
            self._elements(step, i, at, _Step(one, splats[1], mask), folds)

    def _splats(self, step: Pass, v: Vectors) -> dict[int, ir.Value]:
        """In all lanes, the row's values that the pass reads."""
        nodes, in_row = self.nest.nodes, self.plan.in_row
        used = [a for n in step.compute if n not in step.reload for a in nodes[n].args]
        used += [nodes[n].args[0] for n in step.folds]
        used += [o.source for o in (*step.stores, *step.totals)]
        return {a: _splat(v, self.values[a]) for a in dict.fromkeys(used) if not in_row[a]}

    def _elements(
        self, step: Pass, i: ir.Value, at: At, now: _Step, folds: dict[int, _Fold]
    ) -> None:
        places, stores, kept, index = self._inside(self.nest.outer, i, at)
        env = dict(now.splats)
        for n in step.compute:
            if n in step.reload:
                env[n] = now.load(self._kept_at(n, stores, kept, index)[0])
            else:
                env[n] = self._lanes(n, places, now, env.__getitem__)
        for n in step.keep:
            held = self.plan.kept[n]
            if held is None or held.source != n:
                now.store(env[n], self._kept_at(n, stores, kept, index)[0])
        for n, f in folds.items():
            f.add(env[self.nest.nodes[n].args[0]], now)
        for o in step.stores:
            now.store(env[o.source], stores[o])
        for o in step.totals:
            assert o.total is not None
            held_so_far = now.load(stores[o])
            now.store(fold(self.e, o.total, o.dtype, held_so_far, env[o.source]), stores[o])

    def _lanes(
        self, n: int, places: dict[int, ir.Value], now: _Step, get: Callable[[int], ir.Value]
    ) -> ir.Value:
        node, walk = self.nest.nodes[n], self.loads.get(n)
        if node.kind == "apply":
            return self._apply(n, [get(a) for a in node.args])
        if node.leaf != "index":
            return now.load(places[n])
        assert isinstance(walk, Walk)
        stride = walk.strides[-1]
        assert stride is not None
        b, v = self.e.builder, now.vectors
        moved = b.mul(counting(64, 0, v.lanes), _splat(v, stride))
        return b.add(_splat(v, places[n]), moved)


@contextmanager
def _range(b: ir.IRBuilder, start: ir.Value, stop: ir.Value, step: int) -> Iterator[ir.Value]:
    """As `Emitter.for_range`, with the test at the end: LLVM's passes for that do not run."""
    before, body = b.block, b.append_basic_block("each")
    after = b.append_basic_block("done")
    b.cbranch(b.icmp_signed("<", start, stop), body, after)
    b.position_at_end(body)
    index = b.phi(I64, "i")
    index.add_incoming(start, before)
    yield index
    following = b.add(index, ir.Constant(I64, step), flags=["nsw"])
    index.add_incoming(following, b.block)
    b.cbranch(b.icmp_signed("<", following, stop), body, after)
    b.position_at_end(after)


def _splat(v: Vectors, value: ir.Value) -> ir.Value:
    """In all lanes of `v`, whatever the value's type."""
    b, kind = v.e.builder, ir.VectorType(value.type, v.lanes)
    nothing = ir.Constant(kind, ir.Undefined)
    first = b.insert_element(nothing, value, ir.Constant(ir.IntType(32), 0))
    zeros = ir.Constant(ir.VectorType(ir.IntType(32), v.lanes), None)
    return b.shuffle_vector(first, nothing, zeros)
