"""Packing for matrix multiplication: an operand's block as panels that the micro-kernel streams.

    pack(source, item_stride, k_stride, items, k, target)

copies items x k elements into groups of `items` items with room for `width`, a power of two: the
group g, element (i, p) lies at

    target + (g / panel) * panel * width * k + p * panel * width + (g % panel) * width + i

Of A the items are rows, as many as a tile has, `panel` 1; of B they are columns, `width` the lanes
of a vector and `panel` the vectors of a tile: a panel is as wide as a tile. A group's end that no
item fills may hold anything: the micro-kernel does not let it reach a result. 16-bit floats become
f32 here, narrow integers i32.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from llvmlite import ir

from weft.codegen.element_access import load_element
from weft.codegen.elements import is_signed, memory_type, width_bits
from weft.codegen.emitter import I64, Emitter
from weft.codegen.gemm.micro import I32, Vectors, internal_function
from weft.codegen.gemm.tile import Tile, converts
from weft.codegen.scalar.half import has_f16_instructions


def emit_pack_a(e: Emitter, tile: Tile, dtype: str) -> ir.Function:
    """Define the packing function of a product's A."""
    return _emit_pack(e, tile, dtype, (tile.rows, tile.packed_rows, 1), "pack_a")


def emit_pack_b(e: Emitter, tile: Tile, dtype: str) -> ir.Function:
    """Define the packing function of a product's B."""
    return _emit_pack(e, tile, dtype, (tile.lanes, tile.lanes, tile.vectors), "pack_b")


def _emit_pack(
    e: Emitter, tile: Tile, dtype: str, group: tuple[int, int, int], name: str
) -> ir.Function:
    kinds = [memory_type(dtype).as_pointer(), I64, I64, I64, I64, tile.element.as_pointer()]
    with internal_function(e, name, kinds, (0, 5)) as (function, f):
        _Pack(f, tile, dtype, *group, *function.args).write()
    return function


@dataclass(slots=True)
class _Pack:
    e: Emitter
    tile: Tile
    dtype: str
    own: int  # items of a group
    width: int
    panel: int
    source: ir.Value
    item_stride: ir.Value
    k_stride: ir.Value
    items: ir.Value
    k: ir.Value
    target: ir.Value

    def write(self) -> None:
        e, b = self.e, self.e.builder
        own, width, step = (e.index(x) for x in (self.own, self.width, self.width * self.panel))
        plain = self.dtype == "f16" and not has_f16_instructions()
        neighbours = b.icmp_signed("==", self.item_stride, e.index(1))
        streams = b.and_(
            b.icmp_signed("==", self.k_stride, e.index(1)),
            b.icmp_signed(">=", self.k, e.index(self.tile.lanes)),
        )
        with e.for_range(e.index(0), self.items, own) as first:
            group = b.sdiv(first, own)
            whole, part = b.sdiv(group, e.index(self.panel)), b.srem(group, e.index(self.panel))
            place = b.add(b.mul(b.mul(whole, self.k), step), b.mul(part, width))
            target = e.at(self.target, place)
            source = e.at(self.source, b.mul(first, self.item_stride))
            rest = b.sub(self.items, first)
            left = b.select(b.icmp_signed("<", rest, own), rest, own)
            whole_group = b.icmp_signed("==", left, own)
            if plain:
                self._elements(source, target, left)
            else:
                self._fastest(neighbours, whole_group, streams, (source, target, left))

    def _fastest(
        self,
        neighbours: ir.Value,
        whole: ir.Value,
        streams: ir.Value,
        group: tuple[ir.Value, ir.Value, ir.Value],
    ) -> None:
        """The first way to move a group that its strides allow."""
        b = self.e.builder
        with b.if_else(b.and_(neighbours, whole)) as (then, otherwise):
            with then:
                self._copy(*group[:2])
            with otherwise, b.if_else(streams) as (then_streams, others):
                with then_streams:
                    self._transpose(*group)
                with others:
                    self._rest(neighbours, *group)

    def _moved(self, target: ir.Value, p: ir.Value) -> ir.Value:
        return self.e.at(target, self.e.builder.mul(p, self.e.index(self.width * self.panel)))

    def _copy(self, source: ir.Value, target: ir.Value) -> None:
        """The items are neighbours: one vector for each p."""
        v = Vectors(self.e, self.tile, self.own)
        with self.e.for_range(self.e.index(0), self.k) as p:
            place = self.e.at(source, self.e.builder.mul(p, self.k_stride))
            v.store(self._load(place, v), self._moved(target, p))

    def _rest(
        self, neighbours: ir.Value, source: ir.Value, target: ir.Value, left: ir.Value
    ) -> None:
        """The last group, or items that are no neighbours."""
        e, b = self.e, self.e.builder
        if not self.tile.masks or self.own != self.width or converts(self.dtype):
            self._elements(source, target, left)
            return
        v = Vectors(e, self.tile, self.own)
        with b.if_else(neighbours) as (then, otherwise):
            with then, e.for_range(e.index(0), self.k) as p:
                place = e.at(source, b.mul(p, self.k_stride))
                v.store(v.masked_load(place, v.mask(left)), self._moved(target, p))
            with otherwise:
                self._elements(source, target, left)

    def _transpose(self, source: ir.Value, target: ir.Value, left: ir.Value) -> None:
        """The elements of an item are neighbours: blocks of `lanes` p; the last one overlaps."""
        e, b, lanes = self.e, self.e.builder, self.tile.lanes
        assert self.panel == 1 or self.width == lanes
        v = Vectors(e, self.tile)
        last = b.sub(left, e.index(1))
        starts = []
        for i in range(self.width):
            number = e.index(i)
            inside = b.select(b.icmp_signed("<", number, last), number, last)
            starts.append(e.at(source, b.mul(inside, self.item_stride)))
        final = b.sub(self.k, e.index(lanes))
        with e.for_range(e.index(0), self.k, e.index(lanes)) as block:
            p = b.select(b.icmp_signed("<", block, final), block, final)
            mixed = interleave(b, [self._load(e.at(start, p), v) for start in starts])
            for number, value in enumerate(mixed):
                place = e.at(self._moved(target, p), e.index(number * lanes * self.panel))
                v.store(value, place)

    def _elements(self, source: ir.Value, target: ir.Value, left: ir.Value) -> None:
        e, b = self.e, self.e.builder
        with e.for_range(e.index(0), self.k) as p:
            start, moved = e.at(source, b.mul(p, self.k_stride)), self._moved(target, p)
            with e.for_range(e.index(0), left) as i:
                value = load_element(e, e.at(start, b.mul(i, self.item_stride)), self.dtype)
                if value.type != self.tile.element:
                    value = self._extend(value, self.tile.element)
                b.store(value, e.at(moved, i))

    def _load(self, place: ir.Value, v: Vectors) -> ir.Value:
        """A vector of elements that are neighbours, as accumulators."""
        b = self.e.builder
        if not converts(self.dtype):
            return v.load(place)
        kind = ir.VectorType(memory_type(self.dtype), v.lanes)
        held = b.load(b.bitcast(place, kind.as_pointer()), align=width_bits(self.dtype) // 8)
        if self.dtype == "f16":
            return b.fpext(b.bitcast(held, ir.VectorType(ir.HalfType(), v.lanes)), v.kind)
        if self.dtype == "bf16":
            words = ir.VectorType(I32, v.lanes)
            high = b.shl(b.zext(held, words), ir.Constant(words, [16] * v.lanes))
            return b.bitcast(high, v.kind)
        return self._extend(held, v.kind)

    def _extend(self, value: ir.Value, kind: ir.Type) -> ir.Value:
        b = self.e.builder
        return b.sext(value, kind) if is_signed(self.dtype) else b.zext(value, kind)


def interleave(b: ir.IRBuilder, rows: list[ir.Value]) -> list[ir.Value]:
    """Transpose: element (i, p) of the rows moves to place p * len(rows) + i of the result.

    len(rows) is a power of two: log2 of it stages, each of which shuffles pairs of vectors like
    two halves of a pack of cards.
    """
    count, lanes = len(rows), rows[0].type.count
    low = ir.Constant(ir.VectorType(I32, lanes), _cards(lanes, 0))
    high = ir.Constant(ir.VectorType(I32, lanes), _cards(lanes, lanes // 2))
    shuffle: Callable[[ir.Value, ir.Value, ir.Value], ir.Value] = b.shuffle_vector
    # Each item is the run of vectors that a set of rows, shuffled together, has become.
    runs = [[row] for row in rows]
    while len(runs) > 1:
        half = len(runs) // 2
        runs = [
            [shuffle(x, y, m) for x, y in zip(one, two, strict=True) for m in (low, high)]
            for one, two in zip(runs[:half], runs[half:], strict=True)
        ]
    assert len(runs[0]) == count
    return runs[0]


def _cards(lanes: int, start: int) -> list[int]:
    return [k // 2 + start + (lanes if k % 2 else 0) for k in range(lanes)]
