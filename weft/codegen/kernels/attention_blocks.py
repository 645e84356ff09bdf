"""What the attention kernels are made of: products of blocks, and loops over rows of scores."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from llvmlite import ir

from weft.codegen.emitter import I64, Emitter
from weft.codegen.gemm.micro import (
    I1,
    call_narrowest,
    emit_micro,
    for_each_form,
    internal_function,
    row_tiles,
)
from weft.codegen.gemm.pack import emit_pack_b
from weft.codegen.gemm.tile import Tile
from weft.codegen.gemm.vectors import I32, Vectors
from weft.codegen.scalar.float_builder import FloatBuilder, splat_constant
from weft.codegen.vector import exp as vector_exp
from weft.codegen.vector import log as vector_log

I8 = ir.IntType(8)


class Words:
    """A kernel's arguments by name, at its entry."""

    def __init__(self, e: Emitter, names: Sequence[str], tile: Tile) -> None:
        self.e, self.tile = e, tile
        self._held = {name: e.argument(k) for k, name in enumerate(names)}
        self._kind = tile.element.as_pointer()

    def __getitem__(self, name: str) -> ir.Value:
        return self._held[name]

    def base(self, name: str) -> ir.Value:
        """An operand or a result, as pointer to its elements."""
        return self.e.builder.inttoptr(self[name], self._kind)

    def pointer(self, name: str, head: ir.Value, table: str) -> ir.Value:
        """Where the part of this head begins."""
        return self.e.at(self.base(name), self.place(head, table))

    def place(self, head: ir.Value, table: str) -> ir.Value:
        """The entry of a table of offsets."""
        b = self.e.builder
        return b.load(self.e.at(b.inttoptr(self[table], I64.as_pointer()), head))

    def scratch(self, *sizes: str) -> list[ir.Value]:
        """The worker's scratch, cut into parts of so many bytes and what is left."""
        b = self.e.builder
        start = b.add(self["scratch"], b.mul(self.e.worker, self["scratch_bytes"]))
        parts = []
        for name in sizes:
            parts.append(b.inttoptr(start, self._kind))
            start = b.add(start, self[name])
        return [*parts, b.inttoptr(start, self._kind)]

    def least(self, x: ir.Value, y: ir.Value) -> ir.Value:
        """The smaller one."""
        b = self.e.builder
        return b.select(b.icmp_signed("<", x, y), x, y)

    def up(self, x: ir.Value, step: int) -> ir.Value:
        """The next multiple of `step`, a power of two."""
        b = self.e.builder
        return b.and_(b.add(x, self.e.index(step - 1)), self.e.index(-step))

    def seen(self, stop: ir.Value) -> ir.Value:
        """How many columns the rows before `stop` see."""
        b = self.e.builder
        causal = b.icmp_signed("!=", self["causal"], self.e.index(0))
        return b.select(causal, self.least(stop, self["columns"]), self["columns"])

    def number(self, name: str) -> ir.Value:
        """A word that holds the bits of an f64, as an element."""
        b = self.e.builder
        value = b.bitcast(self[name], ir.DoubleType())
        return value if self.tile.dtype == "f64" else b.fptrunc(value, ir.FloatType())


class Blocks:
    """Products of blocks whose right operand is packed."""

    def __init__(self, e: Emitter, tile: Tile) -> None:
        self.e = e
        self._pack = emit_pack_b(e, tile, tile.dtype)
        forms = for_each_form(tile, lambda rows, v: emit_micro(e, tile, rows, v))
        pointer = tile.element.as_pointer()
        kinds = [pointer, I64, I64, pointer, I64, I64, I64, I64, pointer, I64, I1]
        with internal_function(e, "multiply", kinds, (8,)) as (self._multiply, f):
            a, a_row, a_k, panels, depth, rows, columns, k, c, c_row, add = self._multiply.args
            b, wide = f.builder, f.index(tile.columns)
            with f.for_range(f.index(0), columns, wide) as j, row_tiles(f, tile, rows) as at:
                i, few, height = at
                rest = b.sub(columns, j)
                width = b.select(b.icmp_signed("<", rest, wide), rest, wide)
                args = [
                    f.at(a, b.mul(i, a_row)), a_row, a_k, f.at(panels, b.mul(j, depth)), wide, k,
                    f.index(0), height, width, f.at(c, b.add(b.mul(i, c_row), j)), c_row, add,
                    f.index(0),
                ]  # fmt: skip
                call_narrowest(f, tile, forms, (few, width), args)

    def pack(
        self,
        source: ir.Value,
        column: ir.Value,
        row: ir.Value,
        columns: ir.Value,
        rows: ir.Value,
        target: ir.Value,
    ) -> None:
        """Copy a matrix, whose elements are steps `column` and `row` apart, as panels."""
        self.e.builder.call(self._pack, [source, column, row, columns, rows, target])

    def multiply(
        self,
        a: tuple[ir.Value, ir.Value, ir.Value],
        panels: tuple[ir.Value, ir.Value],
        sizes: tuple[ir.Value, ir.Value, ir.Value],
        c: tuple[ir.Value, ir.Value],
        add: ir.Value | None = None,
    ) -> None:
        """C = A B, or C += A B. a: its place, steps over rows and k. panels: of B, and the rows
        that each has. sizes: rows, columns, k. c: its place, step over rows."""
        flag = ir.Constant(I1, 0) if add is None else add
        self.e.builder.call(self._multiply, [*a, *panels, *sizes, *c, flag])


class Rows:
    """Loops over rows, two vectors at a time; what is past the end of a row of scores is 0."""

    def __init__(self, w: Words, mask: str) -> None:
        self.w, self.e, self.mask = w, w.e, mask
        self.lanes = 2 * w.tile.lanes
        self.v = Vectors(w.e, w.tile, self.lanes)
        self.scale_by, self.fill = w.number("scale"), w.number("fill")

    # ------------------------------------------------------------------------------ scores
    def weights(
        self, row: ir.Value, head: ir.Value, number: ir.Value, columns: ir.Value
    ) -> tuple[ir.Value, ir.Value]:
        """Scores become exponentials of what they are above the largest: (largest, their sum)."""
        e, b, v = self.e, self.e.builder, self.v
        most, total = e.alloca(v.kind), e.alloca(v.kind)
        lowest = splat_constant(v.kind, float("-inf"))
        b.store(lowest, most)
        b.store(v.zero(), total)
        valid = self._valid(number, e.index(0), columns)
        for j, inside in self._vectors(valid, columns):
            value = self._score(v.load(e.at(row, j)), head, number, j, inside)
            value = value if inside is None else b.select(inside, value, lowest)
            v.store(value, e.at(row, j))
            held = b.load(most)
            b.store(b.select(b.fcmp_ordered(">", value, held), value, held), most)
        largest = self._reduced(b.load(most), self._larger)
        m = FloatBuilder(b, self.w.tile.dtype)
        largest = m.select(m.compare("<", m.abs(largest), float("inf")), largest, 0.0)
        less = v.splat(largest)
        for j, inside in self._vectors(valid, columns):
            value = self._exp(b.fsub(v.load(e.at(row, j)), less))
            value = value if inside is None else b.select(inside, value, v.zero())
            v.store(value, e.at(row, j))
            b.store(v.add(b.load(total), value), total)
        return largest, self._reduced(b.load(total), b.fadd)

    def gradient(
        self,
        rows: Sequence[ir.Value],
        place: tuple[ir.Value, ir.Value, ir.Value],
        columns: ir.Value,
        sums: ir.Value,
        delta: ir.Value,
    ) -> None:
        """Of scores and g value^T: the weights, and the cotangent of query key^T. place: head, row,
        first column."""
        e, b, v = self.e, self.e.builder, self.v
        head, number, first = place
        less, mean, factor = v.splat(sums), v.splat(delta), v.splat(self.scale_by)
        for j, inside in self._vectors(self._valid(number, first, columns), columns):
            at = [e.at(row, j) for row in rows]
            on: list[ir.Value] = []
            score = self._score(v.load(at[0]), head, number, b.add(first, j), inside, on)
            weight = self._exp(b.fsub(score, less))
            found = b.fmul(b.fmul(weight, b.fsub(v.load(at[1]), mean)), factor)
            for mask in on:
                found = b.select(mask, found, v.zero())
            if inside is not None:
                weight, found = (b.select(inside, x, v.zero()) for x in (weight, found))
            v.store(weight, at[0])
            v.store(found, at[1])

    def _valid(self, number: ir.Value, first: ir.Value, columns: ir.Value) -> ir.Value:
        """How many of `columns` from `first` on the row sees."""
        e, b, w = self.e, self.e.builder, self.w
        seen = b.sub(b.add(number, e.index(1)), first)
        seen = b.select(b.icmp_signed(">", seen, e.index(0)), seen, e.index(0))
        causal = b.icmp_signed("!=", w["causal"], e.index(0))
        return b.select(causal, w.least(seen, columns), columns)

    def _vectors(
        self, valid: ir.Value, columns: ir.Value
    ) -> Iterator[tuple[ir.Value, ir.Value | None]]:
        """Two loops: over whole vectors of valid columns, and over the others, with the lanes that
        are valid."""
        e, b = self.e, self.e.builder
        whole = b.and_(valid, e.index(-self.lanes))
        step = e.index(self.lanes)
        with e.for_range(e.index(0), whole, step) as j:
            yield j, None
        with e.for_range(whole, self.w.up(columns, self.lanes), step) as j:
            yield j, self.v.mask(b.sub(valid, j))

    def _score(
        self,
        value: ir.Value,
        head: ir.Value,
        number: ir.Value,
        column: ir.Value,
        inside: ir.Value | None,
        on: list[ir.Value] | None = None,
    ) -> ir.Value:
        """A product of query and key, scaled and masked; `on` gets where a bool mask is on."""
        e, b, v, w = self.e, self.e.builder, self.v, self.w
        value = b.fmul(value, v.splat(self.scale_by))
        if self.mask == "none":
            return value
        place = b.add(b.add(w.place(head, "mask_at"), b.mul(number, w["mask_row"])), column)
        if self.mask == "add":
            at = e.at(w.base("mask"), place)
            return b.fadd(value, v.load(at) if inside is None else v.masked_load(at, inside))
        at = e.at(b.inttoptr(w["mask"], I8.as_pointer()), place)
        flags = b.icmp_unsigned("!=", self._bytes(at, inside), ir.Constant(self._byte_kind, None))
        if on is not None:
            on.append(flags)
        return b.select(flags, value, v.splat(self.fill))

    @property
    def _byte_kind(self) -> ir.VectorType:
        return ir.VectorType(I8, self.lanes)

    def _bytes(self, at: ir.Value, inside: ir.Value | None) -> ir.Value:
        b, kind = self.e.builder, self._byte_kind
        pointer = b.bitcast(at, kind.as_pointer())
        if inside is None:
            return b.load(pointer, align=1)
        name = f"llvm.masked.load.v{self.lanes}i8.p0"
        load = self.e.module.globals.get(name) or ir.Function(
            self.e.module, ir.FunctionType(kind, [pointer.type, I32, inside.type, kind]), name
        )
        return b.call(load, [pointer, ir.Constant(I32, 1), inside, ir.Constant(kind, None)])

    def _exp(self, value: ir.Value) -> ir.Value:
        return vector_exp.exp(FloatBuilder(self.e.builder, self.w.tile.dtype, value), value)

    def logarithm(self, total: ir.Value, largest: ir.Value) -> ir.Value:
        """log(total) + largest"""
        b = self.e.builder
        return b.fadd(vector_log.log(FloatBuilder(b, self.w.tile.dtype), total), largest)

    # ------------------------------------------------------------------------------ other rows
    def scale(self, row: ir.Value, count: ir.Value, factor: ir.Value) -> None:
        """row *= factor"""
        b, v = self.e.builder, self.v
        wide = v.splat(factor)
        self._each(
            count,
            lambda j: v.store(b.fmul(v.load(self.e.at(row, j)), wide), self.e.at(row, j)),
            lambda j: b.store(b.fmul(b.load(self.e.at(row, j)), factor), self.e.at(row, j)),
        )

    def clear(self, row: ir.Value, count: ir.Value) -> None:
        """row = 0"""
        b, v, zero = self.e.builder, self.v, ir.Constant(self.w.tile.element, 0.0)
        self._each(
            count,
            lambda j: v.store(v.zero(), self.e.at(row, j)),
            lambda j: b.store(zero, self.e.at(row, j)),
        )

    def dot(self, x: ir.Value, y: ir.Value, count: ir.Value) -> ir.Value:
        """sum(x * y)"""
        e, b, v = self.e, self.e.builder, self.v
        wide, rest = e.alloca(v.kind), e.alloca(self.w.tile.element)
        b.store(v.zero(), wide)
        b.store(ir.Constant(self.w.tile.element, 0.0), rest)

        def vectors(j: ir.Value) -> None:
            product = v.multiply_add(v.load(e.at(x, j)), v.load(e.at(y, j)), b.load(wide))
            b.store(product, wide)

        def elements(j: ir.Value) -> None:
            product = b.fmul(b.load(e.at(x, j)), b.load(e.at(y, j)))
            b.store(b.fadd(b.load(rest), product), rest)

        self._each(count, vectors, elements)
        return b.fadd(self._reduced(b.load(wide), b.fadd), b.load(rest))

    def _each(
        self,
        count: ir.Value,
        vectors: Callable[[ir.Value], None],
        elements: Callable[[ir.Value], None],
    ) -> None:
        e, b = self.e, self.e.builder
        whole = b.and_(count, e.index(-self.lanes))
        with e.for_range(e.index(0), whole, e.index(self.lanes)) as j:
            vectors(j)
        with e.for_range(whole, count) as j:
            elements(j)

    def _larger(self, x: ir.Value, y: ir.Value) -> ir.Value:
        b = self.e.builder
        return b.select(b.fcmp_ordered(">", x, y), x, y)

    def _reduced(
        self, value: ir.Value, combine: Callable[[ir.Value, ir.Value], ir.Value]
    ) -> ir.Value:
        """All lanes in one, by halves."""
        b, lanes = self.e.builder, self.lanes
        while lanes > 1:
            lanes //= 2
            halves = [
                ir.Constant(ir.VectorType(I32, lanes), list(range(k, k + lanes)))
                for k in (0, lanes)
            ]
            value = combine(*(b.shuffle_vector(value, value, half) for half in halves))
        return b.extract_element(value, ir.Constant(I32, 0))
