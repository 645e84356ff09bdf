"""Packing for matrix multiplication: an operand's block as panels that the micro-kernel streams.

    pack(source, item_stride, k_stride, items, k, target)

copies items x k elements into groups of `items` items with room for `width`, a power of two: the
group g, element (i, p) lies at

    target + (g / panel) * panel * width * k + p * panel * width + (g % panel) * width + i

Of A the items are rows, as many as a tile has, `panel` 1; of B they are columns, `width` the lanes
of a vector and `panel` the vectors of a tile: a panel is as wide as a tile. A group's end that no
item fills may hold anything: the micro-kernel does not let it reach a result. 16-bit floats become
f32 here, narrow integers i32.

Where the target multiplies several narrow integers at once (`Tile.depth`, `add_products`), so many
neighbours of k, the last of them 0 where k ends, are one element of 32 bits, and p above counts
those. Of four in one those of B are plus 128, and -128 times the sum of each row of A follows the
group's last p: k in the place of A's groups is one more."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import reduce

from llvmlite import ir

from weft.codegen.llvm.emitter import I64, Emitter, is_signed, memory_type, width_bits
from weft.codegen.scalar.element_access import has_f16_instructions, load_element
from weft.codegen.tiles.micro_kernel import (
    BIASES,
    I32,
    Tile,
    Vectors,
    add_products,
    converts,
    internal_function,
)
from weft.ir.dataclass import dataclass

#: Groups of A packed side by side: more would share sets of the cache where they are written.
STRIP = 4


def emit_pack_a(e: Emitter, tile: Tile, dtype: str) -> ir.Function:
    """Define the packing function of a product's A."""
    return _emit_pack(e, tile, dtype, (tile.rows, tile.packed_rows, 1), "pack_a")


def emit_pack_b(e: Emitter, tile: Tile, dtype: str) -> ir.Function:
    """Define the packing function of a product's B."""
    return _emit_pack(e, tile, dtype, (tile.lanes, tile.lanes, tile.vectors), "pack_b")


def packed_steps(e: Emitter, tile: Tile, k: ir.Value) -> ir.Value:
    """`Tile.steps` of a value."""
    b, depth = e.builder, e.index(tile.depth)
    if tile.depth == 1:
        return k
    return b.sdiv(b.add(k, b.sub(depth, e.index(1))), depth)


def _emit_pack(
    e: Emitter, tile: Tile, dtype: str, group: tuple[int, int, int], name: str
) -> ir.Function:
    kinds = [memory_type(dtype).as_pointer(), I64, I64, I64, I64, tile.element.as_pointer()]
    with internal_function(e, name, kinds, (0, 5)) as (function, f):
        _Pack(f, tile, dtype, name == "pack_a", *group, *function.args).write()
    return function


@dataclass(slots=True)
class _Pack:
    e: Emitter
    tile: Tile
    dtype: str
    of_a: bool
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
        e, b, depth = self.e, self.e.builder, self.tile.depth
        own, width, step = (e.index(x) for x in (self.own, self.width, self.width * self.panel))
        steps = packed_steps(e, self.tile, self.k)
        if self.starts:
            steps = b.add(steps, e.index(1))
        plain = self.dtype == "f16" and not has_f16_instructions()
        neighbours = b.icmp_signed("==", self.item_stride, e.index(1))
        streams = b.and_(
            b.icmp_signed("==", self.k_stride, e.index(1)),
            b.icmp_signed(">=", self.k, e.index(self.tile.lanes * depth)),
        )
        start = e.index(0)
        if depth > 1 and self.panel > 1:
            start = self._panels(neighbours)
        elif depth == 1 and self.of_a and not plain:
            start = self._strips(neighbours)
        with e.for_range(start, self.items, own) as first:
            group = b.sdiv(first, own)
            whole, part = b.sdiv(group, e.index(self.panel)), b.srem(group, e.index(self.panel))
            place = b.add(b.mul(b.mul(whole, steps), step), b.mul(part, width))
            target = e.at(self.target, place)
            source = e.at(self.source, b.mul(first, self.item_stride))
            rest = b.sub(self.items, first)
            left = b.select(b.icmp_signed("<", rest, own), rest, own)
            whole_group = b.icmp_signed("==", left, own)
            if plain:
                self._elements(source, target, left)
            else:
                self._fastest(neighbours, whole_group, streams, (source, target, left))
            if depth > 1:
                self._last(source, target, left)
            if self.starts:
                self._starts(target)

    def _panels(self, neighbours: ir.Value) -> ir.Value:
        """Whole panels of items that are neighbours, and the first item after them. A group of i8
        is a quarter of a cache line: group by group each line would be fetched four times."""
        e, b = self.e, self.e.builder
        size, steps = self.own * self.panel, packed_steps(e, self.tile, self.k)
        stop = b.sub(self.items, b.srem(self.items, e.index(size)))
        stop = b.select(neighbours, stop, e.index(0))
        v = Vectors(e, self.tile, self.own)
        with e.for_range(e.index(0), stop, e.index(size)) as first:
            target = e.at(self.target, b.mul(first, steps))
            with e.for_range(e.index(0), self.whole_steps) as p:
                rows = [e.at(self.source, b.add(first, at)) for at in self._along_k(p)]
                for start in range(0, size, self.own):
                    parts = [self._load(e.at(row, e.index(start)), v) for row in rows]
                    v.store(self._joined(parts), e.at(self._moved(target, p), e.index(start)))
            source = e.at(self.source, first)
            self._last(source, target, e.index(size))
        return stop

    def _strips(self, neighbours: ir.Value) -> ir.Value:
        """`STRIP` groups at a time of items that are neighbours, and the first item after them. In
        steps of k that are pages apart, group by group each page would be looked up for each."""
        e, b = self.e, self.e.builder
        size, panel = self.own * STRIP, b.mul(self.k, e.index(self.width))
        # whole registers are moved: the last group's may hold items after it
        some = b.sub(self.items, e.index(self.width - self.own))
        stop = b.sub(some, b.srem(some, e.index(size)))
        there = b.and_(neighbours, b.icmp_signed(">", some, e.index(0)))
        stop = b.select(there, stop, e.index(0))
        v = Vectors(e, self.tile, self.width)
        with e.for_range(e.index(0), stop, e.index(size)) as first:
            target = e.at(self.target, b.mul(b.sdiv(first, e.index(self.own)), panel))
            with e.for_range(e.index(0), self.k) as p:
                row = e.at(self.source, b.add(first, b.mul(p, self.k_stride)))
                for number in range(STRIP):
                    to = e.at(self._moved(target, p), b.mul(e.index(number), panel))
                    v.store(self._load(e.at(row, e.index(number * self.own)), v), to)
        return stop

    @property
    def starts(self) -> bool:
        """Whether what sums begin with follows each group."""
        return self.of_a and self.tile.has_starts

    @property
    def whole_steps(self) -> ir.Value:
        """The elements of a packed item that are full of k's."""
        depth = self.tile.depth
        return self.k if depth == 1 else self.e.builder.sdiv(self.k, self.e.index(depth))

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
        with self.e.for_range(self.e.index(0), self.whole_steps) as p:
            places = [self.e.at(source, start) for start in self._along_k(p)]
            parts = [self._load(place, v) for place in places]
            v.store(self._joined(parts), self._moved(target, p))

    def _along_k(self, p: ir.Value) -> list[ir.Value]:
        """The offsets of the neighbours of k that are element p of an item."""
        e, b = self.e, self.e.builder
        first = b.mul(p, e.index(self.tile.depth)) if self.tile.depth > 1 else p
        return [b.mul(b.add(first, e.index(d)), self.k_stride) for d in range(self.tile.depth)]

    def _joined(self, parts: list[ir.Value]) -> ir.Value:
        """Neighbours of k, each widened to an accumulator, as the one element that they are."""
        if len(parts) == 1:
            return parts[0]
        b, kind, bits = self.e.builder, parts[0].type, 32 // len(parts)
        out = None
        for d, part in enumerate(parts):
            held = part
            if d < len(parts) - 1:
                held = b.and_(held, _of(kind, (1 << bits) - 1))
            held = b.shl(held, _of(kind, bits * d))
            out = held if out is None else b.or_(out, held)
        return self._biased(out)

    def _biased(self, element: ir.Value) -> ir.Value:
        """A packed element of B whose numbers are to be unsigned; others as they are."""
        if self.of_a or not self.tile.has_starts:
            return element
        # plus 128 in 8 bits is another sign
        return self.e.builder.xor(element, _of(element.type, BIASES))

    def _rest(
        self, neighbours: ir.Value, source: ir.Value, target: ir.Value, left: ir.Value
    ) -> None:
        """The last group, or items that are no neighbours."""
        e, b = self.e, self.e.builder
        packed = self.tile.depth > 1 and self.tile.mask_registers  # masks of bytes are AVX-512's
        masks = self.tile.masks and (packed or not converts(self.dtype))
        if not masks or self.own != self.width:
            self._elements(source, target, left)
            return
        v = Vectors(e, self.tile, self.own)
        with b.if_else(neighbours) as (then, otherwise):
            with then:
                mask = v.mask(left)
                with e.for_range(e.index(0), self.whole_steps) as p:
                    places = [e.at(source, start) for start in self._along_k(p)]
                    parts = [self._load(place, v, mask) for place in places]
                    v.store(self._joined(parts), self._moved(target, p))
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
        steps, depth = self.whole_steps, e.index(self.tile.depth)
        final = b.sub(steps, e.index(lanes))
        with e.for_range(e.index(0), steps, e.index(lanes)) as block:
            p = b.select(b.icmp_signed("<", block, final), block, final)
            at = b.mul(p, depth)
            rows = [self._biased(self._load_along(e.at(start, at), v)) for start in starts]
            for number, value in enumerate(interleave(b, rows)):
                place = e.at(self._moved(target, p), e.index(number * lanes * self.panel))
                v.store(value, place)

    def _elements(self, source: ir.Value, target: ir.Value, left: ir.Value) -> None:
        e, b = self.e, self.e.builder
        with e.for_range(e.index(0), self.whole_steps) as p:
            starts, moved = [e.at(source, s) for s in self._along_k(p)], self._moved(target, p)
            with e.for_range(e.index(0), left) as i:
                inside = b.mul(i, self.item_stride)
                parts = [self._element(e.at(start, inside)) for start in starts]
                b.store(self._joined(parts), e.at(moved, i))

    def _element(self, place: ir.Value) -> ir.Value:
        """One element of the operand, as an accumulator."""
        value = load_element(self.e, place, self.dtype)
        return value if value.type == self.tile.element else self._extend(value, self.tile.element)

    def _last(self, source: ir.Value, target: ir.Value, left: ir.Value) -> None:
        """The element of each item that k ends in, if it does: zeros follow."""
        e, b, depth = self.e, self.e.builder, self.tile.depth
        p, zero = self.whole_steps, ir.Constant(self.tile.element, 0)
        first, final = b.mul(p, e.index(depth)), b.sub(self.k, e.index(1))
        with (
            b.if_then(b.icmp_signed("<", first, self.k)),
            e.for_range(e.index(0), left) as i,
        ):
            start, parts = e.at(source, b.mul(i, self.item_stride)), []
            for d in range(depth):
                at = b.add(first, e.index(d))
                there = b.icmp_signed("<", at, self.k)
                read = b.mul(b.select(there, at, final), self.k_stride)
                parts.append(b.select(there, self._element(e.at(start, read)), zero))
            b.store(self._joined(parts), e.at(self._moved(target, p), i))

    def _starts(self, target: ir.Value) -> None:
        """After the last element of each row of A -128 times the sum of all."""
        e, b, many = self.e, self.e.builder, 4  # sums side by side: none waits for another
        v, one = Vectors(e, self.tile), Vectors(e, self.tile, self.width)
        steps, each = packed_steps(e, self.tile, self.k), many * v.lanes // self.width
        rest = b.srem(steps, e.index(each))
        sums, last = [e.alloca(v.kind) for _ in range(many)], e.alloca(one.kind)
        for slot in (*sums, last):
            b.store(ir.Constant(slot.type.pointee, None), slot)

        def add(slot: ir.Value, kind: Vectors, place: ir.Value) -> None:
            bias, held = _of(kind.kind, BIASES), b.load(slot)
            total = add_products(e, kind.load(place), bias, held, self.tile.depth)
            b.store(total, slot)

        with e.for_range(e.index(0), b.sub(steps, rest), e.index(each)) as p:
            for number, slot in enumerate(sums):
                add(slot, v, e.at(self._moved(target, p), e.index(number * v.lanes)))
        with e.for_range(b.sub(steps, rest), steps) as p:
            add(last, one, self._moved(target, p))
        total = reduce(b.add, [b.load(slot) for slot in sums])
        parts = [_part(b, total, start, self.width) for start in range(0, v.lanes, self.width)]
        total = reduce(b.add, parts, b.load(last))
        one.store(b.sub(one.zero(), total), self._moved(target, steps))

    def _load(self, place: ir.Value, v: Vectors, mask: ir.Value | None = None) -> ir.Value:
        """A vector of elements that are neighbours, as accumulators; mask: 0 where that is off, of
        integers and of what is no wider as an accumulator."""
        b = self.e.builder
        if mask is not None:
            as_stored = Vectors(self.e, replace(self.tile, dtype=self.dtype), v.lanes)
            held = as_stored.masked_load(place, mask)
            return self._extend(held, v.kind) if converts(self.dtype) else held
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

    def _load_along(self, place: ir.Value, v: Vectors) -> ir.Value:
        """A vector of elements of an item whose numbers are neighbours."""
        depth = self.tile.depth
        if depth == 1:
            return self._load(place, v)
        b, many = self.e.builder, v.lanes * depth
        kind = ir.VectorType(memory_type(self.dtype), many)
        held = b.load(b.bitcast(place, kind.as_pointer()), align=width_bits(self.dtype) // 8)
        if width_bits(self.dtype) * depth < 32:
            held = self._extend(held, ir.VectorType(ir.IntType(32 // depth), many))
        return b.bitcast(held, v.kind)

    def _extend(self, value: ir.Value, kind: ir.Type) -> ir.Value:
        b = self.e.builder
        return b.sext(value, kind) if is_signed(self.dtype) else b.zext(value, kind)


def _part(b: ir.IRBuilder, vector: ir.Value, start: int, lanes: int) -> ir.Value:
    """Some lanes of a vector."""
    kind = ir.VectorType(I32, lanes)
    mask = ir.Constant(kind, list(range(start, start + lanes)))
    return b.shuffle_vector(vector, ir.Constant(vector.type, ir.Undefined), mask)


def _of(kind: ir.Type, number: int) -> ir.Constant:
    """The number, or a vector of it."""
    if isinstance(kind, ir.VectorType):
        return ir.Constant(kind, [number] * kind.count)
    return ir.Constant(kind, number)


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
