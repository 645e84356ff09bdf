"""Thin products (of few rows or columns): the large matrix is gone through once, in memory order.

Of C's two sides the one with up to `FEW` lines is `few`, the other `many`. A thread has sums for
all lines of `few` and some of `many`, so each element of the large operand is loaded once, and
threads side by side load neighbours in memory:

* along k, if those are neighbours in k: a warp has lines of `many`, its lanes share k;
* across, if they are neighbours in `many`: a lane has lines of `many`, the warps of a block share
  k.

What lanes or warps share is added up in a fixed order in shared memory. Where k is short too a
thread does an element of C by itself."""

from __future__ import annotations

from itertools import product as pairs

from weft.codegen.cuda.products.epilogue import Epilogue, Parts, part_of, results
from weft.codegen.cuda.products.fused import FusedProduct
from weft.codegen.cuda.products.tiles import Operands, multiply_add, sums_dtype
from weft.codegen.cuda.source.dtypes import literal, nbytes
from weft.codegen.cuda.source.elementwise import expression
from weft.codegen.cuda.source.kernel import THREADS, Launch
from weft.codegen.cuda.source.language import WARP
from weft.codegen.cuda.source.writer import IndexDtype, Source
from weft.codegen.products.gemm import Product
from weft.ir.dataclass import dataclass
from weft.ir.sizes import next_power

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
    operands, epilogue = Operands(s, p, fused.a, fused.b), Epilogue(s, fused)
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
    operands, epilogue = Operands(s, p, fused.a, fused.b), Epilogue(s, fused)
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
