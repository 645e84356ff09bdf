"""Transposing in registers: a tile of a nest whose operand is contiguous across the inner loop."""

from __future__ import annotations

from llvmlite import ir

from weft.codegen.elements import width_bits
from weft.codegen.emitter import Emitter
from weft.codegen.gemm.pack import interleave
from weft.codegen.llvm.target import target_vector_bits

#: Vectors that are transposed together, at most: more than that many do not fit the registers.
MOST_VECTORS = 16


def lanes_of(dtype: str) -> int:
    """Rows and columns of a block: a vector of elements, or a cache line of large ones."""
    bits = width_bits(dtype)
    return min(target_vector_bits() // bits, MOST_VECTORS) if bits <= 64 else 512 // bits


def transpose(
    e: Emitter,
    dtype: str,
    source: tuple[ir.Value, ir.Value],
    target: tuple[ir.Value, ir.Value],
    sizes: tuple[ir.Value, ir.Value],
) -> None:
    """target[i, j] = source[j, i] for (rows, columns) `sizes` of the target; source and target are
    (pointer, elements from one row to the next). By blocks of `lanes_of` rows and columns, of which
    the last overlap; what is smaller than a block one by one.
    """
    b, lanes = e.builder, e.index(lanes_of(dtype))
    rows, columns = sizes
    large = b.and_(b.icmp_signed(">=", rows, lanes), b.icmp_signed(">=", columns, lanes))
    with b.if_else(large, likely=True) as (then, otherwise):
        with then:
            last_i, last_j = b.sub(rows, lanes), b.sub(columns, lanes)
            with (
                e.for_range(e.index(0), rows, lanes) as i,
                e.for_range(e.index(0), columns, lanes) as j,
            ):
                i = b.select(b.icmp_signed("<", i, last_i), i, last_i)
                j = b.select(b.icmp_signed("<", j, last_j), j, last_j)
                _block(e, dtype, source, target, (i, j))
        with otherwise:
            _one_by_one(e, source, target, sizes)


def _block(
    e: Emitter,
    dtype: str,
    source: tuple[ir.Value, ir.Value],
    target: tuple[ir.Value, ir.Value],
    corner: tuple[ir.Value, ir.Value],
) -> None:
    b, lanes, bits, (i, j) = e.builder, lanes_of(dtype), width_bits(dtype), corner
    wide = bits > 64
    vector = ir.VectorType(ir.IntType(64 if wide else bits), 2 if wide else lanes).as_pointer()

    def place(matrix: tuple[ir.Value, ir.Value], row: ir.Value, k: int, column: ir.Value) -> object:
        at = b.add(b.mul(b.add(row, e.index(k)), matrix[1], flags=["nsw"]), column)
        return b.bitcast(e.at(matrix[0], at), vector)

    if wide:  # an element is a vector
        for k in range(lanes):
            for n in range(lanes):
                value = b.load(place(source, j, k, b.add(i, e.index(n))), align=8)
                b.store(value, place(target, i, n, b.add(j, e.index(k))), align=8)
        return
    read = [b.load(place(source, j, k, i), align=bits // 8) for k in range(lanes)]
    for k, value in enumerate(interleave(b, read)):
        b.store(value, place(target, i, k, j), align=bits // 8)


def _one_by_one(
    e: Emitter,
    source: tuple[ir.Value, ir.Value],
    target: tuple[ir.Value, ir.Value],
    sizes: tuple[ir.Value, ir.Value],
) -> None:
    b = e.builder
    with e.for_range(e.index(0), sizes[1]) as j, e.for_range(e.index(0), sizes[0]) as i:
        value = b.load(e.at(source[0], b.add(b.mul(j, source[1], flags=["nsw"]), i)))
        b.store(value, e.at(target[0], b.add(b.mul(i, target[1], flags=["nsw"]), j)))
