"""The micro-kernel of matrix multiplication: one register tile of C over a run of k.

    micro(a, a_row, a_k, b, b_k, k, rows, columns, c, c_row, add)

    c[i, j] = sum over p of a[i, p] * b[p, j]  (+ c[i, j] if add)   for i < rows, j < columns

`a_row`, `a_k`, `b_k`, `c_row` are strides in elements; the elements of a row of B and of C are
neighbours. Nothing in it depends on how A and B got there: packed panels and operands where they
are go through the same code. Rows past `rows` compute the last row again and are not stored;
columns past `columns` are lanes of their own, so nothing that they hold can reach a result.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from llvmlite import ir

from weft.codegen.emitter import I64, Emitter
from weft.codegen.gemm.tile import Tile

I1, I32 = ir.IntType(1), ir.IntType(32)


@contextmanager
def internal_function(
    e: Emitter, name: str, kinds: Sequence[ir.Type], noalias: Sequence[int] = ()
) -> Iterator[tuple[ir.Function, Emitter]]:
    """An internal function of the kernel that the caller calls as often as it likes."""
    unique = e.module.get_unique_name(f"{e.symbol}.{name}")
    function, inner = e.define_function(unique, ir.FunctionType(ir.VoidType(), kinds))
    for k in noalias:
        function.args[k].add_attribute("noalias")
    yield function, inner
    inner.builder.ret_void()


class Vectors:
    """Vector instructions of one tile's type at an emitter's position."""

    def __init__(self, e: Emitter, tile: Tile, lanes: int | None = None) -> None:
        self.e = e
        self.tile = tile
        self.lanes = lanes or tile.lanes
        self.kind = ir.VectorType(tile.element, self.lanes)
        self.bytes = tile.itemsize

    def pointer(self, place: ir.Value) -> ir.Value:
        """`place`, a pointer to elements, as pointer to vectors."""
        return self.e.builder.bitcast(place, self.kind.as_pointer())

    def load(self, place: ir.Value) -> ir.Value:
        """The vector at an element pointer, which need not be aligned."""
        return self.e.builder.load(self.pointer(place), align=self.bytes)

    def store(self, value: ir.Value, place: ir.Value) -> None:
        """Write a vector to an element pointer, which need not be aligned."""
        self.e.builder.store(value, self.pointer(place), align=self.bytes)

    def splat(self, value: ir.Value) -> ir.Value:
        """All lanes the same scalar."""
        b = self.e.builder
        first = b.insert_element(ir.Constant(self.kind, ir.Undefined), value, ir.Constant(I32, 0))
        return b.shuffle_vector(
            first,
            ir.Constant(self.kind, ir.Undefined),
            ir.Constant(ir.VectorType(I32, self.lanes), None),
        )

    def zero(self) -> ir.Constant:
        """All lanes 0."""
        return ir.Constant(self.kind, None)

    def mask(self, count: ir.Value) -> ir.Value:
        """Lane l is on if l < count (i64)."""
        b = self.e.builder
        kind = ir.VectorType(I64, self.lanes)
        first = b.insert_element(ir.Constant(kind, ir.Undefined), count, ir.Constant(I32, 0))
        zeros = ir.Constant(ir.VectorType(I32, self.lanes), None)
        counts = b.shuffle_vector(first, ir.Constant(kind, ir.Undefined), zeros)
        return b.icmp_signed("<", ir.Constant(kind, list(range(self.lanes))), counts)

    def masked_load(self, place: ir.Value, mask: ir.Value) -> ir.Value:
        """The lanes of `mask`, 0 elsewhere; lanes that are off touch no memory."""
        pointer = self.pointer(place)
        kind = ir.FunctionType(self.kind, [pointer.type, I32, mask.type, self.kind])
        load = self._intrinsic("masked.load", kind, ".p0")
        return self.e.builder.call(load, [pointer, ir.Constant(I32, self.bytes), mask, self.zero()])

    def masked_store(self, value: ir.Value, place: ir.Value, mask: ir.Value) -> None:
        """Write the lanes of `mask`."""
        pointer = self.pointer(place)
        kind = ir.FunctionType(ir.VoidType(), [self.kind, pointer.type, I32, mask.type])
        store = self._intrinsic("masked.store", kind, ".p0")
        self.e.builder.call(store, [value, pointer, ir.Constant(I32, self.bytes), mask])

    def _intrinsic(self, what: str, kind: ir.FunctionType, suffix: str = "") -> ir.Function:
        name = f"llvm.{what}.v{self.lanes}{self.tile.dtype}{suffix}"
        held = self.e.module.globals.get(name)
        return held if held is not None else ir.Function(self.e.module, kind, name)

    def multiply_add(self, a: ir.Value, b: ir.Value, c: ir.Value) -> ir.Value:
        """a * b + c, in one rounding where the machine has it; integers wrap."""
        if isinstance(self.tile.element, ir.IntType):
            return self.e.builder.add(self.e.builder.mul(a, b), c)
        kind = ir.FunctionType(self.kind, [self.kind] * 3)
        return self.e.builder.call(self._intrinsic("fmuladd", kind), [a, b, c])

    def add(self, a: ir.Value, b: ir.Value) -> ir.Value:
        """a + b"""
        whole = isinstance(self.tile.element, ir.IntType)
        return (self.e.builder.add if whole else self.e.builder.fadd)(a, b)


def emit_micro(e: Emitter, tile: Tile, vectors: int) -> ir.Function:
    """Define the micro-kernel for tiles of up to `vectors` vectors a row."""
    pointer = tile.element.as_pointer()
    kinds = [pointer, I64, I64, pointer, I64, I64, I64, I64, pointer, I64, I1]
    with internal_function(e, f"micro{vectors}", kinds, (8,)) as (function, f):
        _Micro(f, tile, vectors, list(function.args)).write()
    return function


class _Micro:
    def __init__(self, e: Emitter, tile: Tile, vectors: int, args: list[ir.Value]) -> None:
        self.e, self.tile, self.vectors, self.args = e, tile, vectors, args
        self.v = Vectors(e, tile)
        columns = args[7]
        rest = e.builder.sub(columns, e.index((vectors - 1) * tile.lanes))
        self.mask = self.v.mask(rest)  # of the last vector of a row

    def write(self) -> None:
        a, a_row, a_k, b_at, b_k, count, rows = self.args[:7]
        e, b, tile = self.e, self.e.builder, self.tile
        last = b.sub(rows, e.index(1))
        a_rows = []
        for i in range(tile.rows):
            number = e.index(i)
            inside = b.select(b.icmp_signed("<", number, last), number, last)
            a_rows.append(e.at(a, b.mul(inside, a_row)))
        tiles = self._loop(a_rows, a_k, b_at, b_k, count)
        self._store(tiles)

    def _loop(
        self, a_rows: list[ir.Value], a_k: ir.Value, b_at: ir.Value, b_k: ir.Value, count: ir.Value
    ) -> list[ir.Value]:
        e, b, v = self.e, self.e.builder, self.v
        size = self.tile.rows * self.vectors
        before = b.block
        head, body, after = (b.append_basic_block(n) for n in ("k.head", "k.body", "k.after"))
        b.branch(head)
        b.position_at_end(head)
        p, at_a, at_b = (b.phi(I64) for _ in range(3))
        sums = [b.phi(v.kind) for _ in range(size)]
        b.cbranch(b.icmp_signed("<", p, count), body, after)
        b.position_at_end(body)
        row_b = e.at(b_at, at_b)
        b_row = [self._load(row_b, k) for k in range(self.vectors)]
        following: list[ir.Value] = []
        for i, row in enumerate(a_rows):
            factor = v.splat(b.load(e.at(row, at_a)))
            following += [
                v.multiply_add(factor, b_row[k], sums[i * self.vectors + k])
                for k in range(self.vectors)
            ]
        steps = [b.add(p, e.index(1)), b.add(at_a, a_k), b.add(at_b, b_k)]
        for phi, step in zip((p, at_a, at_b), steps, strict=True):
            phi.add_incoming(e.index(0), before)
            phi.add_incoming(step, b.block)
        for phi, value in zip(sums, following, strict=True):
            phi.add_incoming(v.zero(), before)
            phi.add_incoming(value, b.block)
        jump = b.branch(head)
        jump.set_metadata("llvm.loop", _no_unroll(e))
        b.position_at_end(after)
        return sums

    def _load(self, row: ir.Value, k: int) -> ir.Value:
        place = self.e.at(row, self.e.index(k * self.tile.lanes))
        if self.tile.masks and k == self.vectors - 1:
            return self.v.masked_load(place, self.mask)
        return self.v.load(place)

    def _store(self, sums: list[ir.Value]) -> None:
        """Rows below `rows`, lanes of the mask; with `add`, on top of what is there."""
        e, b, v = self.e, self.e.builder, self.v
        rows, c, c_row, add = self.args[6], *self.args[8:11]
        done = b.append_basic_block("done")
        on = ir.VectorType(I1, v.lanes)
        flags = b.insert_element(ir.Constant(on, ir.Undefined), add, ir.Constant(I32, 0))
        zeros = ir.Constant(ir.VectorType(I32, v.lanes), None)
        held = b.shuffle_vector(flags, ir.Constant(on, ir.Undefined), zeros)
        for i in range(self.tile.rows):
            if i:
                row = b.append_basic_block(f"row{i}")
                b.cbranch(b.icmp_signed("<", e.index(i), rows), row, done)
                b.position_at_end(row)
            start = e.at(c, b.mul(e.index(i), c_row))
            for k in range(self.vectors):
                place = e.at(start, e.index(k * self.tile.lanes))
                total = sums[i * self.vectors + k]
                if k < self.vectors - 1:
                    v.store(v.add(total, v.masked_load(place, held)), place)
                    continue
                old = v.masked_load(place, b.and_(self.mask, held))
                v.masked_store(v.add(total, old), place, self.mask)
        b.branch(done)
        b.position_at_end(done)


def _no_unroll(e: Emitter) -> ir.MDValue:
    """A loop id that says: the body is long enough. Unrolled, its pointers would not fit."""
    module = e.module
    off = module.add_metadata([ir.MetaDataString(module, "llvm.loop.unroll.disable")])
    loop = module.add_metadata([ir.MetaDataString(module, f"{e.symbol}.k"), off])
    loop.operands = (loop, off)  # a loop id names itself first
    return loop
