"""The kernel of a product in tiles of C, each of which a block of threads does."""

from __future__ import annotations

from weft.codegen.cuda.kernel import Launch
from weft.codegen.cuda.products.choice import tiles_in
from weft.codegen.cuda.products.column_sums import ColumnSums
from weft.codegen.cuda.products.epilogue import Epilogue
from weft.codegen.cuda.products.fused import FusedProduct
from weft.codegen.cuda.products.operands import Operands
from weft.codegen.cuda.products.parts import Parts, part_of
from weft.codegen.cuda.products.tensor_tiles import loop_in
from weft.codegen.cuda.products.tiles import Rows, Tile
from weft.codegen.cuda.writer import IndexDtype, Source


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
