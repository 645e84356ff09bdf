"""Matrix products as launches: tiled kernel and split-k, or thin kernel, which goes through the
large matrix once, chosen by the sizes alone.

A tiled kernel has a block of threads for each tile of C. Where C has few tiles and k is long, k is
cut into parts, whose sums are added up in order by a second kernel; what follows the product is
there then.

Thin products (of few rows or columns): the large matrix is gone through once, in memory order. Of
C's two sides the one with up to `FEW` lines is `few`, the other `many`. A thread has sums for all
lines of `few` and some of `many`, so each element of the large operand is loaded once, and threads
side by side load neighbours in memory:

* along k, if those are neighbours in k: a warp has lines of `many`, its lanes share k;
* across, if they are neighbours in `many`: a lane has lines of `many`, the warps of a block share
  k.

What lanes or warps share is added up in a fixed order in shared memory. Where k is short too a
thread does an element of C by itself."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product as pairs

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
from weft.codegen.cuda.products.tiles import (
    Operands,
    Rows,
    Tile,
    bits_of,
    choose,
    loop_in,
    multiply_add,
    sums_dtype,
    tiles_in,
    words_of,
)
from weft.codegen.cuda.source.dtypes import DTYPES, literal, nbytes
from weft.codegen.cuda.source.elementwise import expression
from weft.codegen.cuda.source.kernel import THREADS, WARP, Launch
from weft.codegen.cuda.source.writer import IndexDtype, Source, index_dtype, product
from weft.codegen.nests.nest import Nest
from weft.codegen.products.gemm import Product
from weft.ir.dataclass import dataclass
from weft.ir.errors import UnsupportedError
from weft.ir.graph import Operation
from weft.ir.sizes import next_power
from weft.ir.types import TensorType

#: Lines of the short side, at most: more are done in tiles.
FEW = 16
#: Up to so many products of an element: by itself.
SHORT = 32
#: Lines of the long side from which on a thread has more of them than one: blocks are enough.
LONG = 8192
#: Sums of a thread, at most.
SUMS = 16
WARPS = THREADS // WARP
#: Elements of the large operand that a thread loads before it uses them.
AHEAD = 4
#: Blocks that a multiprocessor is to hold at once: what hides the time of loads.
RESIDENT = 2
#: A part of k has whole numbers of so many.
THIN_UNIT = WARP * AHEAD


@dataclass(frozen=True, slots=True)
class Thin:
    """Cut of a thin product. few: sums of a thread for each line of the long side, a power of 2;
    own: lines of that side that it has. turned: the long side are rows. along_k: see the module."""

    few: int
    own: int
    turned: bool
    along_k: bool

    @property
    def lines(self) -> int:
        """Of the long side, those of a block."""
        return self.own * (WARPS if self.along_k else WARP)


def is_thin(p: Product) -> bool:
    """Whether C has so few rows or columns."""
    return min(p.m, p.n) <= FEW


def thin_of(p: Product) -> Thin:
    """How a product that `is_thin` is done, by its sizes and strides."""
    turned = p.n < p.m
    few, many = sorted((p.m, p.n))
    step, k_step = (p.a_steps[0], p.a_steps[1]) if turned else (p.b_steps[1], p.b_steps[0])
    along = k_step == 1 or step != 1
    few, own = next_power(few), 1
    if many >= LONG and nbytes(p.dtype) < 8:
        own = max(1, min(4 if along else 2, SUMS // few))
    return Thin(few, own, turned, along)


def thin_blocks(p: Product, thin: Thin) -> int:
    """Blocks of one part."""
    return -(-max(p.m, p.n) // thin.lines) * len(p.c_at)


def thin_launch(fused: FusedProduct, thin: Thin, parts: Parts, index: IndexDtype) -> Launch:
    """The launch of the product, or of the parts of its sums, with what follows."""
    p, sums = fused.product, sums_dtype(fused.product.dtype)
    name = f"{fused.nest.name}_{p.dtype}_thin{thin.few}x{thin.own}_{'mn'[not thin.turned]}"
    name += ("k" if thin.along_k else "") + "_batch" * (len(p.c_at) > 1)
    s = Source(f"{name}_{index}", index, THREADS, RESIDENT)
    operands, epilogue = Operands(s, p, fused.a, fused.b), Epilogue(s, fused, p.dtype)
    few, many = (operands.n, operands.m) if thin.turned else (operands.m, operands.n)
    thread = s.let(s.thread, "thread")
    warp = s.let(s.div(thread, s.const(WARP)), "warp")
    lane = s.let(s.mod(thread, s.const(WARP)), "lane")
    blocks = s.let(s.div(s.add(many, s.const(thin.lines - 1)), s.const(thin.lines)), "blocks")
    number = s.let(s.div(s.block_index, blocks), "matrix")
    block = s.let(s.sub(s.block_index, s.mul(number, blocks)), "block")
    first = s.let(s.mul(block, s.const(thin.lines)), "first")
    matrix, k_first, k_end = part_of(s, p, number, parts, operands.k)
    operands.begin(matrix)
    totals = _sums(s, thin, operands, (few, many), (warp, lane), first, (k_first, k_end), sums)
    shared = _share(s, thin, totals, warp, lane, sums)
    s.line("cuda.syncthreads()")
    size = s.const(thin.lines)
    with s.loop(thread, s.const(thin.few * thin.lines), s.const(THREADS), "at") as at:
        line = s.let(s.div(at, size), "line")
        long = s.let(s.add(first, s.sub(at, s.mul(line, size))), "long")
        with s.block(f"if {line} < {few} and {long} < {many}"):
            total = s.let(f"{shared}[{at}]", "total")
            for other in range(1, 1 if thin.along_k else WARPS):
                place = s.add(at, s.const(other * thin.few * thin.lines))
                s.line(f"{total} = {expression('add', sums, sums, [total, f'{shared}[{place}]'])}")
            row, column = (long, line) if thin.turned else (line, long)
            row = s.let(s.add(s.mul(number, operands.m), row), "row")
            epilogue.write(row, column, [total])
    return s.launch(thin_blocks(p, thin) * parts.count)


def _sums(
    s: Source,
    thin: Thin,
    operands: Operands,
    sides: tuple[str, str],
    place: tuple[str, str],
    first: str,
    k: tuple[str, str],
    sums: str,
) -> dict[tuple[int, int], str]:
    """A thread's sums over its numbers of k: of line i of `few` and its line j of `many`. Lines
    beyond the edge repeat the last one, which is not stored twice."""
    (warp, lane), (short, long) = place, sides
    small, large = (1, 0) if thin.turned else (0, 1)
    each, own = range(thin.few), range(thin.own)
    totals = {(i, j): s.let(literal(sums, 0), f"c{i}_{j}") for i, j in pairs(each, own)}
    lines = [_up_to(s, s.const(i), short) if i else s.const(0) for i in each]
    if thin.along_k:
        start = s.add(first, s.mul(warp, s.const(thin.own)))
        places = [s.add(start, s.const(j)) for j in own]
    else:
        places = [s.total([first, lane, s.const(j * WARP)]) for j in own]
    others = [_up_to(s, place, long) for place in places]
    mine, side_by_side = (lane, WARP) if thin.along_k else (warp, WARPS)
    step = side_by_side * AHEAD

    def add(at: str, many: list[str]) -> None:
        for i in each:
            one = s.let(operands.element(small, lines[i], at), "a")
            for j in own:
                s.line(f"{totals[i, j]} = {multiply_add(sums, one, many[j], totals[i, j])}")

    start, whole = s.let(s.add(k[0], mine), "k"), s.const(step - side_by_side)
    with s.block(f"while {s.add(start, whole)} < {k[1]}"):
        spots = [
            start,
            *(s.let(s.add(start, s.const(n * side_by_side)), "k") for n in range(1, AHEAD)),
        ]
        loaded = [
            [s.let(operands.element(large, line, spot), "b") for line in others] for spot in spots
        ]
        for spot, many in zip(spots, loaded, strict=True):
            add(spot, many)
        s.line(f"{start} = {s.add(start, s.const(step))}")
    with s.block(f"while {start} < {k[1]}"):
        add(start, [s.let(operands.element(large, line, start), "b") for line in others])
        s.line(f"{start} = {s.add(start, s.const(side_by_side))}")
    return totals


def _up_to(s: Source, line: str, limit: str) -> str:
    """A line, or the last one that there is."""
    line, last = s.let(line, "line"), s.let(s.sub(limit, s.const(1)), "last")
    return s.let(f"{line} if {line} < {limit} else {last}", "line")


def _share(
    s: Source, thin: Thin, totals: dict[tuple[int, int], str], warp: str, lane: str, sums: str
) -> str:
    """The sums in shared memory: [few, lines of the block]; if warps share k, one such for each."""
    size = thin.few * thin.lines * (1 if thin.along_k else WARPS)
    shared = s.let(f"cuda.shared.array({size}, {sums})", "shared")
    if not thin.along_k:
        base = s.let(s.add(s.mul(warp, s.const(thin.few * thin.lines)), lane), "base")
        for (i, j), total in totals.items():
            s.line(f"{shared}[{s.add(base, s.const(i * thin.lines + j * WARP))}] = {total}")
        return shared
    for total in totals.values():
        for apart in (16, 8, 4, 2, 1):
            other = f"cuda.shfl_xor_sync(u32(0xFFFFFFFF), {total}, u32({apart}))"
            other = s.let(other, "other")
            s.line(f"{total} = {expression('add', sums, sums, [total, other])}")
    base = s.let(s.mul(warp, s.const(thin.own)), "base")
    with s.block(f"if {lane} == {s.const(0)}"):
        for (i, j), total in totals.items():
            s.line(f"{shared}[{s.add(base, s.const(i * thin.lines + j))}] = {total}")
    return shared


def short_launch(fused: FusedProduct, index: IndexDtype) -> Launch:
    """The launch of a product of few lines and few products an element: a thread for each."""
    p, sums = fused.product, sums_dtype(fused.product.dtype)
    name = f"{fused.nest.name}_{p.dtype}_short" + "_batch" * (len(p.c_at) > 1)
    s = Source(f"{name}_{index}", index)
    operands, epilogue = Operands(s, p, fused.a, fused.b), Epilogue(s, fused, p.dtype)
    count = s.number("count", results(p))
    i = s.let(s.add(s.mul(s.block_index, s.const(THREADS)), s.thread), "i")
    with s.block(f"if {i} < {count}"):
        matrix, row, column = s.split(i, ["", operands.m, operands.n], "at")
        operands.begin(matrix)
        total = s.let(literal(sums, 0), "total")
        with s.loop(s.const(0), operands.k, s.const(1), "k") as k:
            a, b = (s.let(operands.element(n, x, k), "ab"[n]) for n, x in ((0, row), (1, column)))
            s.line(f"{total} = {multiply_add(sums, a, b, total)}")
        row = s.let(s.add(s.mul(matrix, operands.m), row), "row")
        epilogue.write(row, column, [total])
    return s.launch(-(-results(p) // THREADS))


def tile_launches(fused: FusedProduct, tile: Tile, parts: Parts, index: IndexDtype) -> list[Launch]:
    """The launches of the product, or of the parts of its sums, with what follows."""
    p = fused.product
    # which way lies k in memory: loads of neighbours by neighbouring threads
    along_k = (p.a_steps[1] == 1 or p.a_steps[0] != 1, p.b_steps[0] == 1)
    ways = "".join("k" if along else "m" for along in along_k)
    name = f"{fused.nest.name}_{p.dtype}_{tile.size}x{tile.size}x{tile.depth}_{ways}"
    words = words_of(p, fused.a, fused.b) if tile.quad else (False, False)
    how = "_tensor" * tile.tensor + "_quad" * tile.quad
    how += "".join("_words_of_" + side for side, whole in zip("ab", words, strict=True) if whole)
    name += how + "_batch" * (len(p.c_at) > 1) + f"_{index}"
    # indices of 64 bits take registers, beside what tensor cores are given and words are made of
    spare = index == "i64" and (tile.tensor or tile.quad)
    s = Source(name, index, tile.threads, 1 if spare else tile.resident)
    operands = Operands(s, p, fused.a, fused.b, words)
    loop = loop_in(s, tile, p.dtype, along_k, words=words)
    epilogue = Epilogue(s, fused, p.dtype)
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
