"""Matrix products as launches: tiled or thin kernel and split-k, chosen by the sizes alone.

A tiled kernel has a block of threads for each tile of C. Where C has few tiles and k is long, k is
cut into parts, whose sums are added up in order by a second kernel; what follows the product is
there then."""

from __future__ import annotations

from collections.abc import Callable

from weft.codegen.call import Address
from weft.codegen.cuda.products.epilogue import (
    AddParts,
    ColumnSums,
    Epilogue,
    Parts,
    cut,
    index_of_epilogue,
    into_scratch,
    part_of,
    results,
)
from weft.codegen.cuda.products.fused import FusedProduct, fused_product, matmul_product
from weft.codegen.cuda.products.thin import (
    SHORT,
    THIN_UNIT,
    is_thin,
    short_launch,
    thin_blocks,
    thin_launch,
    thin_of,
)
from weft.codegen.cuda.products.tiles import (
    Operands,
    Rows,
    Tile,
    bits_of,
    choose,
    loop_in,
    tiles_in,
)
from weft.codegen.cuda.source.dtypes import DTYPES
from weft.codegen.cuda.source.kernel import Launch
from weft.codegen.cuda.source.writer import IndexDtype, Source, index_dtype, product
from weft.codegen.nests.nest import Nest
from weft.ir.errors import UnsupportedError
from weft.ir.graph import Operation
from weft.ir.types import TensorType


def tile_launches(fused: FusedProduct, tile: Tile, parts: Parts, index: IndexDtype) -> list[Launch]:
    """The launches of the product, or of the parts of its sums, with what follows."""
    p = fused.product
    # which way lies k in memory: loads of neighbours by neighbouring threads
    along_k = (p.a_steps[1] == 1 or p.a_steps[0] != 1, p.b_steps[0] == 1)
    ways = "".join("k" if along else "m" for along in along_k)
    name = f"{fused.nest.name}_{p.dtype}_{tile.size}x{tile.size}x{tile.depth}_{ways}"
    name += "_tensor" * tile.tensor + "_batch" * (len(p.c_at) > 1) + f"_{index}"
    # indices of 64 bits take registers, beside what tensor cores are given
    s = Source(name, index, tile.threads, 1 if tile.tensor and index == "i64" else tile.resident)
    operands = Operands(s, p, fused.a, fused.b)
    loop = loop_in(s, tile, p.dtype, along_k)
    epilogue = Epilogue(s, fused)
    units = -(-p.m // tile.size) * len(p.c_at)
    sums_of = ColumnSums(s, fused, units, epilogue.lanes_in(tile)) if folds(fused) else None
    epilogue.column_sums = sums_of
    first, number, unit = _place(s, tile, operands)
    matrix, k_first, k_end = part_of(s, p, number, parts, operands.k)
    operands.begin(matrix, first)

    def read(which: int, place: str, k: str, name: str) -> None:
        operands.read(loop, which, place, k, name, k_end)

    sums = loop.run(k_first, k_end, read, Rows(tile, loop.sums).room)
    before = s.let(s.mul(number, operands.m), "before")
    if sums_of is not None:
        sums_of.begin()

    def place(row: str, column: str) -> tuple[str, str, str]:
        return s.let(s.add(before, row), "row"), column, ""

    epilogue.write_tile(loop, sums, first, (operands.m, operands.n), place)
    if sums_of is not None:
        sums_of.end(loop, first[1], operands.n, unit)
    launch = s.launch(tiles_in(p.m, p.n, tile) * len(p.c_at) * parts.count)
    return [launch] if sums_of is None else [launch, *sums_of.launches()]


def folds(fused: FusedProduct) -> bool:
    """Whether something is summed over all rows."""
    return any(fused.nest.reduced)


def _place(s: Source, tile: Tile, operands: Operands) -> tuple[tuple[str, str], str, str]:
    """Of a block: the row and column at which its tile begins; the number of its matrix among those
    of all parts, and of its row of tiles."""
    size = s.const(tile.size)
    rows, columns = (
        s.let(s.div(s.add(n, s.const(tile.size - 1)), size), f"tiles_{hint}")
        for n, hint in ((operands.m, "m"), (operands.n, "n"))
    )
    block = s.block_index
    rest = s.let(s.div(block, columns), "rest")
    column = s.let(s.mul(s.sub(block, s.mul(rest, columns)), size), "column")
    number = s.let(s.div(rest, rows), "matrix")
    row = s.let(s.mul(s.sub(rest, s.mul(number, rows)), size), "row")
    return (row, column), number, rest


#: Of products with few rows or columns: so many blocks are wanted in all, parts of k included, for
#: at least so many products of an element each.
WANTED_THIN, LEAST_THIN = 256, 512


def matmul_launches(op: Operation) -> list[Launch]:
    """The launches of a `matmul`. UnsupportedError for complex numbers and bool."""
    held = op.result.type
    assert isinstance(held, TensorType)
    if held.dtype.short not in DTYPES or not held.dtype.is_numeric:
        raise UnsupportedError(f"op 'matmul' on {held.dtype.name} has no GPU kernel")
    return product_launches(matmul_product(op))


def fused_matmul_launches(
    op: Operation, in_place: tuple[tuple[int, int], ...]
) -> tuple[list[Launch], Nest]:
    """The launches of a `fused` op that holds a matmul, and the nest that follows it."""
    fused = fused_product(op, in_place)
    return product_launches(fused), fused.nest


def product_launches(fused: FusedProduct) -> list[Launch]:
    """The launches of products and what follows them; none if there are no elements."""
    p = fused.product
    if not results(p):
        return []
    sizes, bits = (p.m, p.n, p.k), bits_of(p.dtype)
    if folds(fused):
        tile, _ = choose(sizes, len(p.c_at), bits=bits, whole=True)
        return tile_launches(fused, tile, Parts(1, p.k), _index(fused, 1))
    if is_thin(p):
        if p.k <= SHORT:
            return [short_launch(fused, _index(fused, 1))]
        thin = thin_of(p)
        wanted = min(WANTED_THIN // max(thin_blocks(p, thin), 1), p.k // LEAST_THIN)
        parts = cut(p.k, max(1, wanted), THIN_UNIT)
        return _launches(fused, parts, lambda f, index: [thin_launch(f, thin, parts, index)])
    tile, count = choose(sizes, len(p.c_at), bits=bits)
    parts = cut(p.k, count, tile.depth)
    return _launches(fused, parts, lambda f, index: tile_launches(f, tile, parts, index))


def _launches(
    fused: FusedProduct, parts: Parts, launch: Callable[[FusedProduct, IndexDtype], list[Launch]]
) -> list[Launch]:
    index = _index(fused, parts.count)
    if parts.count == 1:
        return launch(fused, index)
    split, scratch = into_scratch(fused, parts)
    p = fused.product
    size = p.m * len(p.c_at), p.n
    added = AddParts(fused, p.dtype, size, parts.count, scratch, index)
    return [*launch(split, index), added.launch()]


def _index(fused: FusedProduct, parts: int) -> IndexDtype:
    counts = [_elements(x) for x in (fused.a, fused.b)]
    index = index_dtype(*counts, results(fused.product) * parts)
    return "i64" if index_of_epilogue(fused) == "i64" else index


def _elements(address: Address) -> int:
    held = address.value.type
    assert isinstance(held, TensorType)
    return product(held.static_shape)
