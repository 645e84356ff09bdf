"""Matrix products: a block of threads does a tile of C, with tiles of A and B in shared memory.

k is gone through in order, in runs of `Tile.depth`; the next run is read from memory while the
current one is multiplied. 16-bit floats are multiplied and added up in f32, narrow integers in 32
bits. Where C has few tiles and k is long, k is cut into parts (by the sizes alone), whose products
are added up in order by a second kernel.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import product as pairs

import numpy as np

from weft.codegen.call import Address, Arg, Pool, Scratch
from weft.codegen.cuda.kernel import Launch
from weft.codegen.cuda.scalars.memory import DTYPES, nbytes
from weft.codegen.cuda.scalars.scalar import expression, literal, load, stored
from weft.codegen.cuda.writer import IndexDtype, Source, index_dtype
from weft.codegen.gemm.blocking import Product
from weft.codegen.kernels.linalg import product_of
from weft.ir.attributes import ConstArray
from weft.ir.errors import UnsupportedError
from weft.ir.graph import Operation
from weft.ir.types import TensorType


@dataclass(frozen=True, slots=True)
class Tile:
    """rows x columns of C; each thread has every `across`-th row and column of them, `own` of each.
    depth: the run of k that is in shared memory.
    """

    size: int
    own: int
    depth: int

    @property
    def across(self) -> int:
        """Threads along a side."""
        return self.size // self.own

    @property
    def threads(self) -> int:
        """Of a block."""
        return self.across**2


#: Large first; a tile is taken if C has at least `ENOUGH` of them, the last one anyway.
TILES = (Tile(128, 8, 16), Tile(64, 4, 16), Tile(32, 2, 32))
ENOUGH = 96
#: Elements of f64 and i64 take twice the registers and shared memory.
TILES_OF_64 = (Tile(64, 4, 16), Tile(32, 2, 16))
#: Parts of k: so many tiles are wanted in all, of at least so many products each.
WANTED, LEAST_RUN = 128, 128

#: The dtype in which products of narrow elements add up: integers wrap, so more bits do no harm.
_SUMS = {"f16": "f32", "bf16": "f32", "i8": "i32", "i16": "i32", "u8": "u32", "u16": "u32"}


def matmul_launches(op: Operation) -> list[Launch]:
    """The launches of a `matmul`. UnsupportedError for complex numbers and bool."""
    held = _type(op)
    dtype = held.dtype.short
    if dtype not in DTYPES or not held.dtype.is_numeric:
        raise UnsupportedError(f"op 'matmul' on {held.dtype.name} has no GPU kernel")
    c, a, b = Address(op.result), Address(op.operands[0]), Address(op.operands[1])
    return product_launches(product_of(op), c, a, b)


def product_launches(p: Product, c: Address, a: Address, b: Address) -> list[Launch]:
    """The launches of the products `p` on these buffers."""
    if not p.m * p.n * len(p.c_at):
        return []
    counts = [_elements(x) for x in (c, a, b)]
    tile = _tile(p)
    parts = _parts(p, tile)
    sums = _SUMS.get(p.dtype, p.dtype)
    size = p.m * p.n * len(p.c_at)
    index = index_dtype(*counts, size * parts)
    if parts == 1:
        return [_Writer(p, tile, index, sums, c, a, b).launch()]
    scratch = Scratch(size * parts * nbytes(sums))
    split = _Writer(p, tile, index, sums, scratch, a, b, parts)
    return [split.launch(), _add_parts(p, sums, parts, scratch, c, index)]


def _type(op: Operation) -> TensorType:
    assert isinstance(op.result.type, TensorType)
    return op.result.type


def _elements(address: Address) -> int:
    held = address.value.type
    assert isinstance(held, TensorType)
    return held.nbytes // held.dtype.itemsize


def _tiles(p: Product, tile: Tile) -> int:
    return -(-p.m // tile.size) * -(-p.n // tile.size) * len(p.c_at)


def _tile(p: Product) -> Tile:
    tiles = TILES_OF_64 if nbytes(p.dtype) == 8 else TILES
    return next((t for t in tiles if _tiles(p, t) >= ENOUGH), tiles[-1])


def _parts(p: Product, tile: Tile) -> int:
    """How many parts k is cut into."""
    return max(1, min(WANTED // max(_tiles(p, tile), 1), p.k // LEAST_RUN))


class _Writer:
    """Writes the kernel. parts: of k; C is then contiguous, each part after the other."""

    def __init__(
        self,
        p: Product,
        tile: Tile,
        index: IndexDtype,
        sums: str,
        c: Arg,
        a: Address,
        b: Address,
        parts: int = 1,
    ) -> None:
        # which way lies k in memory: loads of neighbours by neighbouring threads
        self.along_k = (p.a_steps[1] == 1 or p.a_steps[0] != 1, p.b_steps[0] == 1)
        ways = "".join("k" if along else "m" for along in self.along_k)
        name = f"matmul_{p.dtype}_{tile.size}x{tile.size}x{tile.depth}_{ways}"
        name += "_batch" * (len(p.c_at) > 1) + "_parts" * (parts > 1) + f"_{index}"
        self.p, self.tile, self.sums, self.parts = p, tile, sums, parts
        s = self.s = Source(name, index, tile.threads)
        self.c = s.pointer("c", sums if parts > 1 else p.dtype, c)
        self.a, self.b = s.pointer("a", p.dtype, a), s.pointer("b", p.dtype, b)
        self.m, self.n, self.k = (s.number(x, getattr(p, x)) for x in "mnk")
        self.steps = (
            (s.number("a_row", p.a_steps[0]), s.number("a_k", p.a_steps[1])),
            (s.number("b_column", p.b_steps[1]), s.number("b_k", p.b_steps[0])),
        )
        self.c_row = s.number("c_row", p.n if parts > 1 else p.c_row)

    def launch(self) -> Launch:
        """The launch of the whole kernel."""
        s, tile = self.s, self.tile
        self._begin()
        self.brought = self._spread(0), self._spread(1)
        each = range(tile.own)
        sums = {(i, j): s.let(literal(self.sums, 0), f"c{i}_{j}") for i, j in pairs(each, each)}
        shared = [
            s.let(f"cuda.shared.array({tile.depth * (tile.size + 1)}, {self.sums})", hint)
            for hint in ("shared_a", "shared_b")
        ]
        ahead = [self._read(which, self.k_first) for which in (0, 1)]
        with s.loop(self.k_first, self.k_end, s.const(tile.depth), "k0") as k0:
            for which in (0, 1):
                self._put(which, shared[which], ahead[which])
            s.line("cuda.syncthreads()")
            later = s.let(s.add(k0, s.const(tile.depth)), "later")
            for which in (0, 1):
                for old, new in zip(ahead[which], self._read(which, later), strict=True):
                    s.line(f"{old} = {new}")
            self._multiply(shared, sums)
            s.line("cuda.syncthreads()")
        self._store(sums)
        return s.launch(_tiles(self.p, tile) * self.parts)

    def _begin(self) -> None:
        """Which tile, matrix and part of k the block has; where its threads are in it."""
        s, tile, p = self.s, self.tile, self.p
        size, across = s.const(tile.size), s.const(tile.across)
        thread = s.let(s.thread, "thread")
        self.thread = thread
        self.y, self.x = s.let(s.div(thread, across), "y"), s.let(s.mod(thread, across), "x")
        rows, columns = (
            s.let(s.div(s.add(n, s.const(tile.size - 1)), size), f"tiles_{hint}")
            for n, hint in ((self.m, "m"), (self.n, "n"))
        )
        rest, block = s.let(s.div(s.block_index, columns), "rest"), s.block_index
        column = s.let(s.mul(s.sub(block, s.mul(rest, columns)), size), "column")
        which = s.let(s.div(rest, rows), "matrix")
        row = s.let(s.mul(s.sub(rest, s.mul(which, rows)), size), "row")
        self.first = (row, column)
        self.k_first, self.k_end = s.const(0), self.k
        offsets = [s.const(0)] * 3
        part, count = s.const(0), s.const(1)
        if self.parts > 1:
            count, run = s.number("matrices", len(p.c_at)), s.number("run", self._run())
            part = s.let(s.div(which, count), "part")
            which = s.let(s.sub(which, s.mul(part, count)), "matrix")
            self.k_first = s.let(s.mul(part, run), "k_first")
            end = s.let(s.add(self.k_first, run), "k_end")
            self.k_end = s.let(f"{end} if {end} < {self.k} else {self.k}", "k_end")
        if len(p.c_at) > 1:
            for k, (hint, at) in enumerate((("c_at", p.c_at), ("a_at", p.a_at), ("b_at", p.b_at))):
                table = s.pointer(hint, "i64", Pool(ConstArray(np.array(at, np.int64))))
                offsets[k] = s.let(s.cast(f"{table}[{which}]"), hint)
        else:
            given = ((p.c_at, "c_at"), (p.a_at, "a_at"), (p.b_at, "b_at"))
            offsets = [s.number(h, at[0]) if at[0] else s.const(0) for at, h in given]
        if self.parts > 1:  # C is the scratch memory, [part, matrix, m, n]
            number = s.add(s.mul(part, count), which)
            offsets[0] = s.let(s.mul(s.mul(number, self.m), self.n), "c_at")
        self.offsets = offsets

    def _run(self) -> int:
        """Products of one part of k: whole runs of a tile."""
        run = -(-self.p.k // self.parts)
        return -(-run // self.tile.depth) * self.tile.depth

    def _spread(self, which: int) -> list[tuple[str, str]]:
        """Of each element of A (0) or B (1) that a thread brings: its row (or column) in the tile
        and its place in the run of k. Neighbouring threads bring neighbours in memory."""
        s, tile = self.s, self.tile
        along, across = (tile.depth, tile.size) if self.along_k[which] else (tile.size, tile.depth)
        each = tile.threads // along
        fast = s.let(s.mod(self.thread, s.const(along)), "fast")
        slow = s.let(s.div(self.thread, s.const(along)), "slow")
        out = []
        for k in range(across // each):
            place = s.add(slow, s.const(k * each))
            out.append((place, fast) if self.along_k[which] else (fast, place))
        return out

    def _read(self, which: int, k0: str) -> list[str]:
        """The elements of a run of k from `k0` on that a thread brings, 0 beyond the edges."""
        s, pointer = self.s, (self.a, self.b)[which]
        limit, (step, k_step) = (self.m, self.n)[which], self.steps[which]
        names = []
        for r, k in self.brought[which]:
            name = s.let(literal(self.sums, 0), "ahead")
            row, place = s.let(s.add(self.first[which], r), "r"), s.let(s.add(k0, k), "k")
            with s.block(f"if {row} < {limit} and {place} < {self.k_end}"):
                terms = [self.offsets[1 + which], s.mul(row, step), s.mul(place, k_step)]
                value = load(self.p.dtype, pointer, s.total(terms))
                s.line(f"{name} = {self._widened(value)}")
            names.append(name)
        return names

    def _widened(self, value: str) -> str:
        narrow = self.p.dtype in _SUMS and self.sums != "f32"
        return f"{self.sums}({value})" if narrow else value

    def _put(self, which: int, shared: str, values: list[str]) -> None:
        """Into shared memory: runs of k after each other, one element of padding."""
        s, pitch = self.s, self.s.const(self.tile.size + 1)
        for (r, k), value in zip(self.brought[which], values, strict=True):
            s.line(f"{shared}[{s.add(s.mul(k, pitch), r)}] = {value}")

    def _multiply(self, shared: list[str], sums: dict[tuple[int, int], str]) -> None:
        s, tile = self.s, self.tile
        each, pitch = range(tile.own), s.const(tile.size + 1)
        with s.loop(s.const(0), s.const(tile.depth), s.const(1), "step") as step:
            base = s.let(s.mul(step, pitch), "base")
            rows, columns = (
                [
                    s.let(f"{array}[{s.total([base, place, s.const(i * tile.across)])}]", hint)
                    for i in each
                ]
                for array, place, hint in ((shared[0], self.y, "p"), (shared[1], self.x, "q"))
            )
            for i, j in pairs(each, each):
                s.line(f"{sums[i, j]} = {self._step(rows[i], columns[j], sums[i, j])}")

    def _step(self, a: str, b: str, c: str) -> str:
        if self.sums in ("f32", "f64"):
            return f"fma_{self.sums}({a}, {b}, {c})"
        return f"{self.sums}({self.sums}({a} * {b}) + {c})"

    def _store(self, sums: dict[tuple[int, int], str]) -> None:
        s, tile = self.s, self.tile
        for i in range(tile.own):
            row = s.let(s.total([self.first[0], self.y, s.const(i * tile.across)]), "row")
            with s.block(f"if {row} < {self.m}"):
                line = s.let(s.add(self.offsets[0], s.mul(row, self.c_row)), "line")
                for j in range(tile.own):
                    column = s.total([self.first[1], self.x, s.const(j * tile.across)])
                    column = s.let(column, "column")
                    with s.block(f"if {column} < {self.n}"):
                        value = (
                            sums[i, j]
                            if self.parts > 1
                            else _narrowed(self.p.dtype, self.sums, sums[i, j])
                        )
                        s.line(f"{self.c}[{s.add(line, column)}] = {value}")


def _narrowed(dtype: str, sums: str, value: str) -> str:
    """A sum as an element of C lies in memory."""
    if dtype in _SUMS and sums != "f32":
        return expression("astype", sums, dtype, [value])
    return stored(dtype, value)


def _add_parts(
    p: Product, sums: str, parts: int, scratch: Scratch, c: Address, index: IndexDtype
) -> Launch:
    """C from the parts of k: a thread for each element, the parts in order."""
    size = p.m * p.n * len(p.c_at)
    s = Source(f"matmul_add_parts_{p.dtype}_{index}", index)
    out, given = s.pointer("c", p.dtype, c), s.pointer("given", sums, scratch)
    count, end = s.number("count", size), s.number("end", size * parts)
    m, n, row_step = s.number("m", p.m), s.number("n", p.n), s.number("c_row", p.c_row)
    table = s.pointer("c_at", "i64", Pool(ConstArray(np.array(p.c_at, np.int64))))
    i = s.let(s.add(s.mul(s.block_index, s.const(s.threads)), s.thread), "i")
    with s.block(f"if {i} < {count}"):
        total = s.let(f"{given}[{i}]", "total")
        with s.loop(s.add(i, count), end, count, "at") as at:
            s.line(f"{total} = {expression('add', sums, sums, [total, f'{given}[{at}]'])}")
        which, row, column = s.split(i, ["", m, n])
        terms = [s.cast(f"{table}[{which}]"), s.mul(row, row_step), column]
        s.line(f"{out}[{s.total(terms)}] = {_narrowed(p.dtype, sums, total)}")
    return s.launch(math.ceil(size / s.threads))
