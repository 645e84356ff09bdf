"""Row kernel: a row nest as source, with its parameters, rows and passes, and as launches.

`row_launches` is the entry: the kernel, and those that add up the partial results of its totals.

Names of the source: v12 is node 12 where it is one number for each row; f12_0 the fold of node 12
over what a thread has at vector lane 0; h12_1_0 node 12 as kept in registers, of vector 1, lane 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext

from weft.codegen.call import Address, Arg, Scratch
from weft.codegen.cuda.nests.accumulators import (
    Group,
    GroupFold,
    Partial,
    combine_launches,
    lay_out,
)
from weft.codegen.cuda.nests.row_nodes import (
    COLUMNS,
    Layout,
    Nodes,
    Place,
    held_nodes,
    layout_of,
    place_of,
    write_vector,
)
from weft.codegen.cuda.source.dtypes import load, nbytes, stored
from weft.codegen.cuda.source.elementwise import fold_expression, identity, running_dtype
from weft.codegen.cuda.source.kernel import Launch
from weft.codegen.cuda.source.writer import Source, index_dtype
from weft.codegen.nests.rows import Node, Output, Pass, RowNest, Schedule, schedule
from weft.ir.types import TensorType


class RowWriter:
    """Writes one kernel. targets: of each output its buffer, or that of its partial results and
    where in it they begin (in elements)."""

    def __init__(
        self,
        s: Source,
        nest: RowNest,
        plan: Schedule,
        layout: Layout,
        targets: Sequence[tuple[Arg, int]],
        operands: Sequence[Address],
    ) -> None:
        self.s, self.nest, self.plan, self.layout = s, nest, plan, layout
        self.outer, self.vector = nest.outer, layout.vector
        self.outputs: dict[Output, Place] = {}
        for k, (o, (arg, first)) in enumerate(zip(nest.outputs, targets, strict=True)):
            hint = f"out{k}"
            if o.total is None:
                assert isinstance(arg, Address)
                self.outputs[o] = place_of(s, hint, o.dtype, arg, 0, o.strides)
            else:
                pointer = s.pointer(hint, running_dtype(o.total, o.dtype), arg)
                start = s.number(f"{hint}_first", first) if first else s.const(0)
                self.outputs[o] = Place(pointer, o.dtype, start, [])
        self.extents = [s.number(f"n{k}", n) for k, n in enumerate(nest.extents)]
        self.nodes = Nodes(s, nest, plan, layout, operands, self.extents)
        inner = nest.extents[nest.outer :]
        self.size = s.number("size", nest.row_elements) if len(inner) != 1 else self.extents[-1]
        self.totals: dict[Output, list[str]] = {}  # registers of totals, over a unit's rows
        zero = s.const(0)
        self.lane, self.unit, self.row, self.turn = zero, zero, zero, zero
        self.live: str | None = None  # a bool; None: all threads have a row
        self.column: str | None = None

    # -- units and rows ---------------------------------------------------------------------------

    def write(self) -> None:
        """The whole kernel."""
        s, layout = self.s, self.layout
        self._begin()
        folds = [n for step in self.plan.passes for n in step.folds]
        dtypes = [self._running(self.nest.nodes[n]) for n in folds]
        self.group = Group(s, layout.group, self.lane, dtypes, self.column)
        self._open_totals()
        self.vectors = self._vectors() if layout.rounds else []
        self.shift = s.const(0)
        if layout.rows == 1:
            self._row()
        else:
            with s.loop(s.const(0), s.number("unit_rows", layout.rows), s.const(1), "turn") as turn:
                row = s.add(s.mul(self.unit, s.number("rows_each", layout.rows)), turn)
                self.row = s.let(row, "row")
                self._alive(self.row, s.number("rows", self.nest.rows))
                self.turn = turn
                self._row()
                if self.group.meets and sum(bool(p.folds) for p in self.plan.passes) == 1:
                    s.line("cuda.syncthreads()")
        self._close_totals()

    def _begin(self) -> None:
        """Which row and unit are this thread's, and which part of it."""
        s, layout = self.s, self.layout
        if layout.by_columns:
            self._begin_columns()
            return
        if layout.groups == 1:
            self.lane = s.let(s.thread, "lane")
            self.unit = s.let(s.block_index, "unit")
        else:
            thread, group = s.let(s.thread, "thread"), s.const(layout.group)
            if layout.group > 1:
                self.lane = s.let(s.mod(thread, group), "lane")
            first = s.mul(s.block_index, s.const(layout.groups))
            self.unit = s.let(s.add(first, s.div(thread, group)), "unit")
        self.row = self.unit
        if layout.rows == 1 and layout.groups > 1 and not layout.whole:
            self._alive(self.unit, s.number("rows", self.nest.rows))

    def _begin_columns(self) -> None:
        s, n = self.s, self.extents[self.outer - 1]
        thread, width = s.let(s.thread, "thread"), s.const(COLUMNS)
        self.lane = s.let(s.div(thread, width), "lane")
        self.column = s.let(s.mod(thread, width), "column")
        blocks = s.let(s.div(s.add(n, s.const(COLUMNS - 1)), width), "blocks")
        block = s.let(s.block_index, "block")
        line = s.let(s.div(block, blocks), "line")
        first = s.mul(s.sub(block, s.mul(line, blocks)), width)
        here = s.let(s.add(first, self.column), "here")
        self.live = s.let(f"{here} < {n}", "live")
        here = s.let(f"{here} if {self.live} else {s.sub(n, s.const(1))}", "here")
        self.row = self.unit = s.let(s.add(s.mul(line, n), here), "row")

    def _alive(self, row: str, rows: str) -> None:
        """Threads whose row is beyond the last do as if they had it, but with no elements."""
        s = self.s
        if self.layout.whole:
            return
        self.live = s.let(f"{row} < {rows}", "live")
        last = s.sub(rows, s.const(1))
        self.row = s.let(f"{row} if {self.live} else {last}", "row")

    def _row(self) -> None:
        s, zero = self.s, self.s.const(0)
        self.indices = s.split(self.row, self.extents[: self.outer])
        self.bases = {
            o: s.let(s.add(p.offset, p.at(s, 0, self.indices)), "at")
            for o, p in self.outputs.items()
            if o.total is None
        }
        # a group's first thread tells of what is wrong, of rows that there are
        tells = [f"{self.lane} == {zero}"] * (self.layout.group > 1)
        tells += [self.live] if self.live else []
        # a row that is not there picks nothing from the last one, which others may write in place
        guard = self.live if self.live and self.nest.in_place else ""
        self.nodes.open_row(self.row, self.indices, " and ".join(tells), guard)
        self.count = self._count()
        self.nodes.row_values(0)
        for p, step in enumerate(self.plan.passes):
            self._pass(p, step)
            self.nodes.row_values(p + 1)
        self._row_results()

    def _count(self) -> str:
        """The number after the row's last element, from where its vectors are counted: in an odd
        row that is `shift` elements before the first."""
        s, layout = self.s, self.layout
        count = self.size
        if layout.odd:
            walks = [self.bases[o] for o in self.bases if o in layout.wide]
            nodes = self.nest.nodes
            walks += [at for n, at in self.nodes.bases.items() if nodes[n] in layout.wide]
            self.shift = s.let(s.mod(walks[0], s.const(self.vector)), "shift")
            count = s.let(s.add(self.size, self.shift), "count")
        if self.live:
            count = s.let(f"{count} if {self.live} else {s.const(0)}", "count")
        return count

    def _vectors(self) -> list[tuple[str, list[str]]]:
        """Of each vector that a thread has in registers: its first element, its inner indices."""
        s, out = self.s, []
        for r in range(self.layout.rounds):
            step = s.const(self.layout.group * self.vector * r)
            j = s.let(s.add(s.mul(self.lane, s.const(self.vector)), step), f"j{r}")
            out.append((j, s.split(j, self.extents[self.outer :])))
        return out

    def _row_results(self) -> None:
        """What is one number for each row: outputs, and what is added up over rows."""
        s, one = self.s, self.plan.row_stores
        if one:
            if self.nest.in_place:
                self.group.barrier()
            with self._first(self.live):
                for o in one:
                    place = self.outputs[o]
                    value = stored(o.dtype, self.nodes.row[o.source])
                    s.line(f"{place.pointer}[{self.bases[o]}] = {value}")
        for o in self.plan.row_totals:
            (total,) = self.totals[o]
            value = self.nodes.row[o.source]
            folded = fold_expression(o.total or "", self._running(o), total, value)
            with s.block(f"if {self.live}") if self.live else nullcontext():
                s.line(f"{total} = {folded}")

    @contextmanager
    def _first(self, live: str | None) -> Iterator[None]:
        """Only in the first thread of each group that has a row."""
        tests = [f"{self.lane} == {self.s.const(0)}"] * (self.layout.group > 1)
        tests += [live] if live else []
        with self.s.block(f"if {' and '.join(tests)}") if tests else nullcontext():
            yield

    # -- one pass over a row ----------------------------------------------------------------------

    def _pass(self, p: int, step: Pass) -> None:
        s, nodes = self.s, self.nest.nodes
        accumulators = {
            n: [
                s.let(identity(nodes[n].name, self._running(nodes[n])), f"f{n}_{k}")
                for k in range(self.vector)
            ]
            for n in step.folds
        }
        shared = {output for _, output in self.nest.in_place}
        picks = any(n.kind == "pick" for n in nodes)
        if picks and any(o.output in shared for o in step.stores):
            self.group.barrier()  # others read elements of this thread's
        guarded = [not self._all_have(r) for r in range(self.layout.rounds)]
        self.nodes.open_pass(p, guarded)
        if self.layout.rounds:
            for r, (j, inner) in enumerate(self.vectors):
                with nullcontext() if self._all_have(r) else s.block(f"if {j} < {self.count}"):
                    self._body(step, r, j, inner, accumulators)
        else:
            start = s.mul(self.lane, s.const(self.vector))
            stride = s.const(self.layout.group * self.vector)
            with s.loop(start, self.count, stride, "j") as j:
                inner = s.split(j, self.extents[self.outer :])
                self._body(step, 0, j, inner, accumulators)
        if not accumulators:
            return
        folds = [self._lanes(n, accumulators[n]) for n in step.folds]
        for n, total in zip(step.folds, self.group.fold(folds), strict=True):
            self.nodes.row[n] = total

    def _all_have(self, r: int) -> bool:
        """Whether every thread has elements in its vector r."""
        per_round = self.layout.group * self.vector
        return self.live is None and (r + 1) * per_round <= self.nest.row_elements

    def _lanes(self, n: int, values: Sequence[str]) -> GroupFold:
        """The accumulators of a thread as one, in a fixed tree."""
        node, values = self.nest.nodes[n], list(values)
        dtype = self._running(node)
        while len(values) > 1:
            half = len(values) // 2
            pairs = zip(values[:half], values[half:], strict=True)
            values = [self.s.let(fold_expression(node.name, dtype, a, b), "w") for a, b in pairs]
        return GroupFold(values[0], node.name, dtype)

    def _body(
        self, step: Pass, r: int, j: str, inner: list[str], accumulators: dict[int, list[str]]
    ) -> None:
        """What a pass does with one vector of a row."""
        if not self.layout.odd:
            self.nodes.open_vector(r, inner)
            self._elements(step, r, j, inner, accumulators)
            return
        s, lanes = self.s, self.vector
        first = s.let(s.sub(j, self.shift), "first")
        after = s.let(s.add(j, s.const(lanes)), "after")
        whole = f"{j} >= {self.shift} and {after} <= {self.count}"
        with s.block(f"if {whole}"):
            self.nodes.open_vector(r, [first])
            self._elements(step, r, j, [first], accumulators)
        with s.block("else"):
            # What is not of the row is what its first or last element is, which is this thread's.
            last = s.sub(self.size, s.const(1))
            end = s.let(f"{s.const(0)} if {j} < {self.shift} else {last}", "end")
            there, inside = [], []
            for k in range(lanes):
                at = s.let(s.add(j, s.const(k)), "at")
                held = s.let(f"{at} >= {self.shift} and {at} < {self.count}", "inside")
                there.append(s.let(f"{s.sub(at, self.shift)} if {held} else {end}", "there"))
                inside.append(held)
            self.nodes.open_vector(r, [first], there)
            self._elements(step, r, j, there, accumulators, inside)

    def _elements(
        self,
        step: Pass,
        r: int,
        j: str,
        inner: list[str],
        accumulators: dict[int, list[str]],
        inside: Sequence[str] = (),
    ) -> None:
        """inside: of a vector that is not whole, whether each element is of the row; `inner` are
        then their indices."""
        s, nodes = self.s, self.nest.nodes
        for n, totals in accumulators.items():
            values = self.nodes.vector(nodes[n].args[0])
            dtype = self._running(nodes[n])
            for k, (total, value) in enumerate(zip(totals, values, strict=True)):
                folded = fold_expression(nodes[n].name, dtype, total, value)
                with s.block(f"if {inside[k]}") if inside else nullcontext():
                    s.line(f"{total} = {folded}")
        for o in step.stores:
            place, values = self.outputs[o], self.nodes.vector(o.source)
            if inside:
                for one, held, value in zip(inner, inside, values, strict=True):
                    with s.block(f"if {held}"):
                        at = s.add(self.bases[o], place.at(s, self.outer, [one]))
                        s.line(f"{place.pointer}[{at}] = {stored(o.dtype, value)}")
                continue
            at = s.add(self.bases[o], place.at(s, self.outer, inner))
            last = place.strides[-1]
            write_vector(s, place, at, values, o in self.layout.wide, last)
        for o in step.totals:
            self._add_elements(o, r, j)

    def _add_elements(self, o: Output, r: int, j: str) -> None:
        """A row's elements into a unit's total: in registers, or in its partial results, which only
        this thread touches."""
        s, dtype = self.s, self._running(o)
        assert o.total is not None
        values = self.nodes.vector(o.source)
        if self.layout.rounds:
            totals = self.totals[o][r * self.vector : (r + 1) * self.vector]
            for total, value in zip(totals, values, strict=True):
                s.line(f"{total} = {fold_expression(o.total, dtype, total, value)}")
            return
        pointer = self.outputs[o].pointer
        assert pointer is not None
        for k, value in enumerate(values):
            at = s.let(s.add(s.add(self.partial[o], j), s.const(k)), "at")
            if self.layout.rows > 1:
                start = identity(o.total, dtype)
                before = load(dtype, pointer, at)
                held = s.let(f"{start} if {self.turn} == {s.const(0)} else {before}", "held")
                value = s.let(fold_expression(o.total, dtype, held, value))
            s.line(f"{pointer}[{at}] = {stored(dtype, value)}")

    # -- totals over the rows of a unit -----------------------------------------------------------

    def _running(self, of: Node | Output) -> str:
        name = of.name if isinstance(of, Node) else of.total
        return running_dtype(name or "", of.dtype)

    def _open_totals(self) -> None:
        """Registers for totals; where a unit's partial results begin."""
        s, count = self.s, self.layout.rounds * self.vector
        self.partial: dict[Output, str] = {}
        for o in self.nest.totals:
            assert o.total is not None
            whole = self.nest.moves_in_row(o.strides)
            start = identity(o.total, self._running(o))
            self.totals[o] = [s.let(start, "total") for _ in range(count if whole else 1)]
            first = s.mul(self.unit, self.size) if whole else self.unit
            self.partial[o] = s.let(s.add(self.outputs[o].offset, first), "partial")

    def _close_totals(self) -> None:
        """Registers into the partial results of the unit, if there is one."""
        s, layout = self.s, self.layout
        if not self.nest.totals:
            return
        live: str | None = None
        if layout.by_columns:
            live = self.live
        elif layout.groups > 1 and not layout.whole:
            live = s.let(f"{self.unit} < {s.number('units', layout.units)}", "live")
        with self._first(live):
            for o in self.plan.row_totals:
                (total,) = self.totals[o]
                text = stored(self._running(o), total)
                s.line(f"{self.outputs[o].pointer}[{self.partial[o]}] = {text}")
        moving = any(self.nest.moves_in_row(o.strides) for o in self.nest.totals)
        for r, (j, _) in enumerate(self.vectors if moving else []):
            tests = [] if live is None else [live]
            if (r + 1) * layout.group * self.vector > self.nest.row_elements:
                tests.append(f"{j} < {self.size}")
            with s.block(f"if {' and '.join(tests)}") if tests else nullcontext():
                self._store_totals(r, j)

    def _store_totals(self, r: int, j: str) -> None:
        s = self.s
        for o in self.nest.totals:
            if not self.nest.moves_in_row(o.strides):
                continue
            pointer, first = self.outputs[o].pointer, s.add(self.partial[o], j)
            for k, total in enumerate(self.totals[o][r * self.vector : (r + 1) * self.vector]):
                at = s.add(first, s.const(k))
                s.line(f"{pointer}[{at}] = {stored(self._running(o), total)}")


def row_launches(
    nest: RowNest, outputs: Sequence[Address], operands: Sequence[Address]
) -> list[Launch]:
    """The launches of a row nest on these buffers. UnsupportedError for an op without GPU code."""
    plan = schedule(nest)
    layout = layout_of(nest, len(held_nodes(nest, plan)[1]), _offsets(nest, operands))
    partials, size = _partials(nest, layout, outputs)
    if not nest.rows:
        return combine_launches(partials, Scratch(size), 0)
    scratch = Scratch(size)
    starts = {p.output: p.first for p in partials}
    targets: list[tuple[Arg, int]] = []
    for o in nest.outputs:
        address = outputs[o.output]
        targets.append((scratch, starts[address]) if o.total else (address, 0))
    counts = [_elements(a) for a in (*outputs, *operands)] + [size, nest.rows * nest.row_elements]
    index = index_dtype(*counts)
    name = f"rows_{nest.name}_{layout.name}_{index}"
    s = Source(name, index, layout.threads)
    RowWriter(s, nest, plan, layout, targets, operands).write()
    launch = s.launch(layout.blocks(nest))
    return [launch, *combine_launches(partials, scratch, layout.units)]


def _offsets(nest: RowNest, operands: Sequence[Address]) -> dict[int, int]:
    return {
        n: operands[node.leaf].offset + node.offset * nbytes(node.dtype)
        for n, node in enumerate(nest.nodes)
        if node.kind == "load" and isinstance(node.leaf, int)
    }


def _elements(address: Address) -> int:
    held = address.value.type
    assert isinstance(held, TensorType)
    return held.nbytes // held.dtype.itemsize


def _partials(
    nest: RowNest, layout: Layout, outputs: Sequence[Address]
) -> tuple[list[Partial], int]:
    folds = [
        (
            o.total or "",
            o.dtype,
            nest.row_elements if nest.moves_in_row(o.strides) else 1,
            outputs[o.output],
        )
        for o in nest.totals
    ]
    return lay_out(folds, layout.units)
