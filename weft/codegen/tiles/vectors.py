"""Vector instructions of a register tile: whole and masked loads and stores, multiply-adds."""

from __future__ import annotations

from llvmlite import ir

from weft.codegen.llvm.emitter import I64, Emitter
from weft.codegen.tiles.tile import Tile, add_products

I32 = ir.IntType(32)


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

    def splat(self, value: ir.Value, kind: ir.VectorType | None = None) -> ir.Value:
        """All lanes the same scalar; kind: of a vector of another type than the tile's."""
        b, kind = self.e.builder, kind or self.kind
        first = b.insert_element(ir.Constant(kind, ir.Undefined), value, ir.Constant(I32, 0))
        lanes = ir.Constant(ir.VectorType(I32, self.lanes), None)
        return b.shuffle_vector(first, ir.Constant(kind, ir.Undefined), lanes)

    def zero(self) -> ir.Constant:
        """All lanes 0."""
        return ir.Constant(self.kind, None)

    def mask(self, count: ir.Value) -> ir.Value:
        """Lane l is on if l < count (i64)."""
        b = self.e.builder
        kind = ir.VectorType(I64, self.lanes)
        counts = self.splat(count, kind)
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

    def store_first(self, value: ir.Value, place: ir.Value, count: ir.Value) -> None:
        """Write the first `count` lanes, fewer than all: halves, quarters, ... as `count` has bits.
        A masked store of AVX2 takes AMD's processors 20 steps and more; SSE has none."""
        b, size = self.e.builder, self.lanes // 2
        while size:
            fits = b.icmp_unsigned("!=", b.and_(count, self.e.index(size)), self.e.index(0))
            low, high = (
                b.shuffle_vector(
                    value,
                    ir.Constant(value.type, ir.Undefined),
                    ir.Constant(ir.VectorType(I32, size), list(range(start, start + size))),
                )
                for start in (0, size)
            )
            with b.if_then(fits):
                b.store(low, b.bitcast(place, low.type.as_pointer()), align=self.bytes)
            value = b.select(fits, high, low)
            place = b.select(fits, self.e.at(place, self.e.index(size)), place)
            size //= 2

    def prefetch(self) -> ir.Function:
        """llvm.prefetch(address, 1 to write, locality, 1 for data)"""
        module, byte = self.e.module, ir.IntType(8).as_pointer()
        held = module.globals.get("llvm.prefetch.p0")
        if held is not None:
            return held
        kind = ir.FunctionType(ir.VoidType(), [byte, I32, I32, I32])
        return ir.Function(module, kind, "llvm.prefetch.p0")

    def _intrinsic(self, what: str, kind: ir.FunctionType, suffix: str = "") -> ir.Function:
        name = f"llvm.{what}.v{self.lanes}{self.tile.dtype}{suffix}"
        held = self.e.module.globals.get(name)
        return held if held is not None else ir.Function(self.e.module, kind, name)

    def multiply_add(self, a: ir.Value, b: ir.Value, c: ir.Value) -> ir.Value:
        """a * b + c, in one rounding where the machine has it; integers wrap. Of packed integers
        all products of a lane + c."""
        if self.tile.depth > 1:
            return add_products(self.e, a, b, c, self.tile.depth)
        if isinstance(self.tile.element, ir.IntType):
            return self.e.builder.add(self.e.builder.mul(a, b), c)
        kind = ir.FunctionType(self.kind, [self.kind] * 3)
        return self.e.builder.call(self._intrinsic("fmuladd", kind), [a, b, c])

    def add(self, a: ir.Value, b: ir.Value) -> ir.Value:
        """a + b"""
        whole = isinstance(self.tile.element, ir.IntType)
        return (self.e.builder.add if whole else self.e.builder.fadd)(a, b)
