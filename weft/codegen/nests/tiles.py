"""The last two loops of a nest in tiles, where an operand is contiguous across the inner one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llvmlite import ir

from weft.codegen.elements import memory_type, width_bits
from weft.codegen.emitter import I64, Emitter
from weft.codegen.nests.cut import TILE, is_transposing_copy
from weft.codegen.nests.transpose import lanes_of, transpose

if TYPE_CHECKING:
    from weft.codegen.nests.writer import NestWriter


def tile_buffer(e: Emitter, dtype: str) -> ir.Value:
    """Memory for one tile of an operand."""
    kind = ir.ArrayType(memory_type(dtype), TILE * TILE)
    return e.builder.gep(e.alloca(kind), [e.index(0), e.index(0)], inbounds=True)


def write_tiles(w: NestWriter, loop: int, loads: list[ir.Value], stores: list[ir.Value]) -> None:
    """Loops `loop` and `loop` + 1. What is contiguous across a tile is first copied into a small
    buffer: its cache lines, often all of one set, are read once, and the body vectorises. A nest
    that only moves elements needs no buffer.
    """
    e, (first, stop) = w.e, w.range_of(loop)
    if is_transposing_copy(w.nest):
        _copy(w, loop, loads[0], stores[0])
        return
    size, width = e.index(TILE), w.extents[loop + 1]
    with (
        e.for_range(first, stop, size) as i0,
        e.for_range(e.index(0), width, size) as j0,
    ):
        i1 = w.least(e.builder.add(i0, size), stop)
        j1 = w.least(e.builder.add(j0, size), width)
        corner = i0, i1, j0, j1
        for k, buffer in w.tiles.items():
            _turn(w, k, loads[k], (buffer, size), corner)
        with e.for_range(i0, i1) as i:
            row_loads, outputs = w.moved(loop, i, loads, stores)
            lines = {
                k: e.at(buffer, e.builder.mul(e.builder.sub(i, i0), size))
                for k, buffer in w.tiles.items()
            }
            with e.for_range(j0, j1) as j:
                inside, to = w.moved(loop + 1, j, row_loads, outputs)
                for k, line in lines.items():
                    inside[k] = e.at(line, e.builder.sub(j, j0))
                w.loop(loop + 2, inside, to)


def _copy(w: NestWriter, loop: int, source: ir.Value, store: ir.Value) -> None:
    """Tiles that begin where cache lines of the source do, in rows that lie alike; tiles at an edge
    overlap others.
    """
    e, b, (first, stop) = w.e, w.e.builder, w.range_of(loop)
    dtype, size, width = w.nest.loads[0].dtype, w.e.index(TILE), w.extents[loop + 1]
    line = e.index(max(512 // width_bits(dtype), 1))
    number = b.udiv(b.ptrtoint(e.at(source, first), I64), e.index(width_bits(dtype) // 8))
    begin = b.sub(first, b.urem(number, line))
    row = w.stores[0].strides[-2]
    with e.for_range(begin, stop, size) as start, e.for_range(e.index(0), width, size) as j0:
        end = w.least(b.add(start, size), stop)
        i0, j0 = _start(w, start, first, end), _start(w, j0, e.index(0), width)
        target = e.at(w.step(store, i0, row), j0)
        corner = i0, end, j0, w.least(b.add(j0, size), width)
        _turn(w, 0, source, (target, e.index(0) if row is None else row), corner)


def _start(w: NestWriter, start: ir.Value, first: ir.Value, end: ir.Value) -> ir.Value:
    """Where a tile begins that is no smaller than a block if there are so many iterations."""
    b, block = w.e.builder, w.e.index(lanes_of(w.nest.loads[0].dtype))
    start = w.least(start, b.sub(end, block))
    return b.select(b.icmp_signed("<", start, first), first, start)


def _turn(
    w: NestWriter,
    k: int,
    source: ir.Value,
    target: tuple[ir.Value, ir.Value],
    corner: tuple[ir.Value, ...],
) -> None:
    """Transpose a tile of load k to the target (pointer, elements from row to row)."""
    e, b, (i0, i1, j0, j1) = w.e, w.e.builder, corner
    stride = w.strides_of(k)[-1]
    place = e.at(w.step(source, j0, stride), i0)
    sizes = b.sub(i1, i0), b.sub(j1, j0)
    transpose(e, w.nest.loads[k].dtype, (place, stride), target, sizes)
