"""Tiles of a product: their sizes, the choice among them, and the loop over k that fills them.

A block of threads does a tile of C, with tiles of A and B in shared memory. k is gone through in
order, in runs of `Tile.depth`: each sum is one chain of multiply-adds over k (on tensor cores: of
instructions that each add 16, from the first one on, in an order of their own), whatever the tile
is. The next run is read from memory while the current one is multiplied, and stored into the other
one of two buffers, so there is one barrier for each run. Narrow integers are multiplied and added
up in 32 bits, bytes four neighbours in k at once (`QuadLoop`); 16-bit floats on tensor cores
(`TensorLoop`), or in f32.

Shared memory is read and written 128 bits at a time, but for what is brought to it, with the fewest
cycles that the 32 banks of 4 bytes allow (a test counts them): lines of a tile have 16 bytes of
padding, and the lanes of a warp are 4 x 8 of the tile, pairs of lanes below each other, as CUTLASS
has them (its `MmaSimtPolicy` with `RowMajorInterleaved<2>`).

Tensor cores. The warp-wide product of 16 x 8 x 16 (`mma_sync_...` of `source/kernel.py`) asks
each lane for rows and columns of its own. Which of the tile those are is free: here a thread gets
whole vectors, at the places where `TileLoop` has them, so that the epilogue is the same. Lane 4 g +
t of a warp, which has 8 threads above each other and 4 side by side, brings to the instructions 4
rows of A, those of thread g, and 4 columns of B: the first vector (g even) or the second one (g
odd) of thread g / 2 of the row. It gets the sums of its rows and of both vectors of thread t. Two
neighbours in k are one word of shared memory, [k / 2][row or column], so a lane's 4 rows at the
numbers of k that it brings are one access of 128 bits. Padding keeps the banks apart (a test counts
conflicts). Words lie there as f32, as sums do later; nothing looks at them as numbers.

Choice of the tile, and of how many parts k is cut into (split-k): by the sizes alone. An estimate
of what a GPU of 132 multiprocessors takes (an H100), in cycles, is compared for each tile and some
numbers of parts. No device is asked, so the order of sums is the same on all of them, but within
what one instruction of tensor cores adds. A multiprocessor has 4 schedulers, each of which starts
an instruction of a warp a cycle. What a step of k takes of them was counted in machine code for
sm_90 (docs/decisions/0042-gpu-product-tiles.md). A warp for itself is taken to start one every
second cycle: small blocks, of few warps, are slow alone. Tensor cores are taken to do 1024
multiply-adds of 16-bit floats a cycle and multiprocessor: all that an A100 does, half of what an
H100 does by instructions of another sort (wgmma); by those that are used here it is said to do some
60 % of that. Nothing of this has been measured."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import product as pairs

from weft.codegen.call import Address, table_of
from weft.codegen.cuda.source.dtypes import BYTES, HALVES, literal, load, nbytes
from weft.codegen.cuda.source.elementwise import expression
from weft.codegen.cuda.source.kernel import LOADS, STORES
from weft.codegen.cuda.source.writer import Source
from weft.codegen.products.gemm import Product
from weft.ir.cost.rates import (
    GPU_APART_CYCLES,
    GPU_BLOCK_CYCLES,
    GPU_BYTES_PER_CYCLE,
    GPU_LAUNCH_CYCLES,
    GPU_MULTIPROCESSORS,
    GPU_SCHEDULERS,
    GPU_TENSOR_RATE,
)
from weft.ir.dataclass import dataclass
from weft.ir.sizes import fixed, of_sizes

#: Lanes of a warp below each other and side by side.
_WARP = (4, 8)
#: Neighbours in k that neighbouring threads bring: 32 bytes of f32, what memory gives at once.
_ALONG = 8
#: Registers of a thread are to be so few that a multiprocessor holds so many threads.
RESIDENT = 512
#: Multiply-adds of a thread that are written out one after the other: more take more registers.
WRITTEN_OUT = 128
#: Bytes of a vector, and of all banks of shared memory.
VECTOR, BANKS = 16, 128
#: Bytes of a word that dp4a takes.
QUAD = 4


@dataclass(frozen=True, slots=True)
class Tile:
    """A tile of C: size x size elements, of which a thread has rows x columns; depth: the run of k
    that is in shared memory. All are powers of two; rows and columns of a thread whole vectors.
    tensor: it is for 16-bit floats, on tensor cores. quad: for 8-bit integers, by dp4a."""

    size: int
    rows: int
    columns: int
    depth: int
    tensor: bool = False
    quad: bool = False

    @property
    def down(self) -> int:
        """Threads above each other."""
        return self.size // self.rows

    @property
    def across(self) -> int:
        """Threads side by side."""
        return self.size // self.columns

    @property
    def threads(self) -> int:
        """Of a block."""
        return self.down * self.across

    @property
    def resident(self) -> int:
        """Blocks that a multiprocessor is to hold."""
        return RESIDENT // self.threads


#: Large first. A step of k takes a warp 2 cycles of shared memory for each vector of a thread,
#: and a quarter of a cycle for each multiply-add: 8 of 16, 6 of 8, 4 of 4.
TILES = (Tile(128, 8, 8, 8), Tile(64, 8, 4, 16), Tile(32, 4, 4, 16))
#: Elements of f64 and i64 take twice the registers and shared memory.
TILES_OF_64 = (Tile(64, 4, 4, 8), Tile(32, 4, 4, 8))
#: Of 16-bit floats. One of 32 would be a warp, which takes a block the registers of four.
TENSOR_TILES = (Tile(128, 8, 8, 16, True), Tile(64, 4, 8, 16, True))

#: Of 8-bit integers: a run is 32 bytes of k, what memory gives at once. Of 64, that of 32 spills.
QUAD_TILES = (
    Tile(128, 8, 8, 32, quad=True), Tile(64, 8, 4, 32, quad=True), Tile(32, 4, 4, 32, quad=True),
)  # fmt: skip

#: The dtype in which products of narrow elements add up: integers wrap, so more bits do no harm.
_SUMS = {"f16": "f32", "bf16": "f32", "i8": "i32", "i16": "i32", "u8": "u32", "u16": "u32"}

#: `read(which, place, k, name)` writes lines that set `name`, which is 0 before, to the element of
#: A (0) or B (1) at a row (column) of the tile and a number of k, where there is one.
Read = Callable[[int, str, str, str], None]


def sums_dtype(dtype: str) -> str:
    """The dtype in which products of elements of `dtype` add up."""
    return _SUMS.get(dtype, dtype)


def widened(dtype: str, value: str) -> str:
    """An element that has been loaded (16-bit floats are f32 then) as it is multiplied."""
    sums = sums_dtype(dtype)
    return f"{sums}({value})" if sums in ("i32", "u32") and sums != dtype else value


def narrowed(dtype: str, made: str, value: str) -> str:
    """A sum of products of elements of `dtype` as the register value of a result `made`."""
    sums = sums_dtype(dtype)
    return expression("astype", sums, made, [value]) if sums in ("i32", "u32") else value


def multiply_add(sums: str, a: str, b: str, c: str) -> str:
    """a * b + c; of floats rounded once."""
    if sums in ("f32", "f64"):
        return f"fma_{sums}({a}, {b}, {c})"
    return f"{sums}({sums}({a} * {b}) + {c})"


class TileLoop:
    """The threads of a block in a tile; `run` writes the loop over k.

    along_k: of A and B, whether neighbours in memory are neighbours in k: neighbouring threads
    bring neighbours in memory. A thread has whole vectors of rows and of columns: sum (i, j) is row
    `row + line(i)` and column `column + place(j)` of the tile. `shared`: an array of sums of which
    `run` leaves the elements from `free` on to others. written_out: as `WRITTEN_OUT`.
    """

    #: Neighbours in k that are one element of shared memory.
    packed = 1

    def __init__(
        self,
        s: Source,
        tile: Tile,
        sums: str,
        along_k: tuple[bool, bool],
        written_out: int = WRITTEN_OUT,
    ) -> None:
        self.s, self.tile, self.sums, self.along_k = s, tile, sums, along_k
        self.missing = [literal(sums, 0)] * 2
        self.deep = tile.depth // self.packed
        self.steps = min(self.deep, max(written_out // (tile.rows * tile.columns), 1))
        self.vector = VECTOR // nbytes(sums)
        self.pitch = tile.size + self.vector
        self.thread = s.let(s.thread, "thread")
        self.y, self.x = self._lanes()
        self.row = s.let(s.mul(self.y, s.const(self.vector)), "row")
        self.column = s.let(s.mul(self.x, s.const(self.vector)), "column")

    def _lanes(self) -> tuple[str, str]:
        """Where a thread is among those above each other, and side by side."""
        s, tile = self.s, self.tile
        down, across = _WARP
        warp = s.let(s.div(self.thread, s.const(32)), "warp")
        lane = s.let(s.mod(self.thread, s.const(32)), "lane")
        wide = s.const(tile.across // across)
        far, near = s.div(lane, s.const(2 * across)), s.mod(lane, s.const(2))
        below = s.add(s.mul(far, s.const(2)), near)
        beside = s.mod(s.let(s.div(lane, s.const(2)), "pair"), s.const(across))
        return (
            s.let(s.add(s.mul(s.div(warp, wide), s.const(down)), below), "y"),
            s.let(s.add(s.mul(s.mod(warp, wide), s.const(across)), beside), "x"),
        )

    def element(self, dtype: str, pointer: str, at: str) -> str:
        """An element of A or B in memory, as `read` is to set it."""
        return widened(dtype, load(dtype, pointer, at))

    def line(self, i: int) -> int:
        """Row i of a thread, from its first one."""
        return self._apart(i, self.tile.down)

    def place(self, j: int) -> int:
        """Column j of a thread, from its first one."""
        return self._apart(j, self.tile.across)

    def _apart(self, i: int, threads: int) -> int:
        return i // self.vector * self.vector * threads + i % self.vector

    def run(
        self, k_first: str, k_end: str, read: Read, room: int = 0
    ) -> dict[tuple[int, int], str]:
        """The names of a thread's sums over k from `k_first` up to `k_end`; room: elements that
        are to be free afterwards."""
        s, tile = self.s, self.tile
        brought = self._spread(0), self._spread(1)
        each = pairs(range(tile.rows), range(tile.columns))
        sums = {(i, j): s.let(literal(self.sums, 0), f"c{i}_{j}") for i, j in each}
        half = self._half
        sizes = max(2 * half, room), 2 * half
        shared = [
            s.let(f"cuda.shared.array({size}, {self.sums})", hint)
            for size, hint in zip(sizes, ("shared_a", "shared_b"), strict=True)
        ]
        spots = [
            [s.let(self._spot(which, line, k), "spot") for line, k in places]
            for which, places in enumerate(brought)
        ]
        ahead = [self._read(which, brought[which], k_first, read) for which in (0, 1)]
        turn = s.let(s.const(0), "turn")
        with s.loop(k_first, k_end, s.const(tile.depth), "k0") as k0:
            for which in (0, 1):
                for spot, value in zip(spots[which], self._stored(ahead[which]), strict=True):
                    s.line(f"{shared[which]}[{s.add(turn, spot)}] = {value}")
            if not tile.tensor:  # the loop over steps keeps the loads from being put off
                s.line("cuda.syncthreads()")
            later = s.let(s.add(k0, s.const(tile.depth)), "later")
            for which in (0, 1):
                new = self._read(which, brought[which], later, read)
                for name, value in zip(ahead[which], new, strict=True):
                    s.line(f"{name} = {value}")
            if tile.tensor:  # there the barrier does
                s.line("cuda.syncthreads()")
            self._multiply(shared, turn, sums)
            s.line(f"{turn} = {s.sub(s.const(half), turn)}")
        self.shared, self.free = shared[0], turn
        if room > half:  # the buffer that was multiplied last is read by others still
            s.line("cuda.syncthreads()")
            self.free = s.const(0)
        return sums

    def _spread(self, which: int) -> list[tuple[str, str]]:
        """Of each element of shared memory that a thread brings of A (0) or B (1): its row (or
        column) in the tile and its place in the run of k."""
        s, tile = self.s, self.tile
        fast_size, slow_size = (self.deep, tile.size)[:: 1 if self.along_k[which] else -1]
        width = _ALONG if self.along_k[which] else tile.size
        fast = s.let(s.mod(self.thread, s.const(width)), "fast")
        slow = s.let(s.div(self.thread, s.const(width)), "slow")
        places = [
            (s.add(fast, s.const(f)), s.add(slow, s.const(n)))
            for f in range(0, fast_size, width)
            for n in range(0, slow_size, tile.threads // width)
        ]
        return [(n, f) if self.along_k[which] else (f, n) for f, n in places]

    def _read(self, which: int, brought: list[tuple[str, str]], k0: str, read: Read) -> list[str]:
        """The elements of a run of k from `k0` on that a thread brings, 0 beyond the edges."""
        s, names, each = self.s, [], range(self._each(which))
        places = {
            (k, n): s.let(s.add(k0, s.add(s.mul(k, s.const(self.packed)), s.const(n))), "k")
            for k in dict.fromkeys(k for _, k in brought)
            for n in each
        }
        for line, k in brought:
            for n in each:
                name = s.let(self.missing[which], "ahead")
                read(which, line, places[k, n], name)
                names.append(name)
        return names

    def _each(self, which: int) -> int:
        """Elements of A (0) or B (1) that are read for one of shared memory."""
        return self.packed

    @property
    def _half(self) -> int:
        """Elements of a buffer."""
        return self.deep * self.pitch

    def _spot(self, which: int, line: str, k: str) -> str:
        """Where an element is in a buffer of A (0) or B (1)."""
        return self.s.add(self.s.mul(k, self.s.const(self.pitch)), line)

    def _stored(self, brought: list[str]) -> list[str]:
        """Elements of shared memory, of those of memory."""
        return brought

    def _multiply(self, shared: list[str], turn: str, sums: dict[tuple[int, int], str]) -> None:
        """The run of k in shared memory; some steps of it are written out, so that the vectors of
        one can be read while those before are multiplied."""
        s, tile, steps = self.s, self.tile, self.steps
        spots = s.let(s.add(turn, self.row), "at_a"), s.let(s.add(turn, self.column), "at_b")
        with s.loop(s.const(0), s.const(self.deep), s.const(steps), "step") as step:
            begin = s.mul(step, s.const(self.pitch))
            rows_at, columns_at = (s.let(s.add(spot, begin), "at") for spot in spots)
            for n in range(steps):
                rows = self._vectors(shared[0], rows_at, n, map(self.line, range(tile.rows)))
                columns = self._vectors(
                    shared[1], columns_at, n, map(self.place, range(tile.columns))
                )
                for (i, j), total in sums.items():
                    s.line(f"{total} = {self._multiplied(rows[i], columns[j], total)}")

    def _multiplied(self, a: str, b: str, total: str) -> str:
        """A sum with one more step of k."""
        return multiply_add(self.sums, a, b, total)

    def _vectors(self, array: str, first: str, step: int, apart: Iterable[int]) -> list[str]:
        """The elements so far apart from the first one of a step, in vectors."""
        names: list[str] = []
        for start in [*apart][:: self.vector]:
            spot = self.s.add(first, self.s.const(step * self.pitch + start))
            names += read_vector(self.s, array, spot, self.sums)
        return names


def read_vector(s: Source, array: str, place: str, dtype: str) -> list[str]:
    """Names for the elements of 128 bits."""
    names = [s.fresh("v") for _ in range(VECTOR // nbytes(dtype))]
    s.line(f"{', '.join(names)} = {LOADS[dtype]}({array}, {place})")
    return names


def write_vector(s: Source, array: str, place: str, dtype: str, values: list[str]) -> None:
    """Stores 128 bits."""
    s.line(f"{STORES[dtype]}({array}, {place}, {', '.join(values)})")


class Rows:
    """Rows of sums in shared memory on their way out: neighbouring threads write vectors of several
    rows and read neighbours of one row, both without conflicts: after what all banks hold there is
    one vector of padding, and the second row begins at the middle of the banks."""

    def __init__(self, tile: Tile, sums: str) -> None:
        self.vector, self.banks = VECTOR // nbytes(sums), BANKS // nbytes(sums)
        least = tile.size + self.vector * (tile.size // self.banks)
        self.pitch = -(-(least - self.banks // 2) // self.banks) * self.banks + self.banks // 2
        self.room = tile.down * self.pitch

    def at(self, s: Source, row: str, column: str) -> str:
        """Where column `column` of row `row` is, from the first one on."""
        padding = s.mul(s.div(column, s.const(self.banks)), s.const(self.vector))
        return s.total([s.mul(row, s.const(self.pitch)), column, padding])

    def apart(self, columns: int) -> int:
        """How far a column is from another one, if they are whole banks apart, or one vector."""
        return columns + columns // self.banks * self.vector


#: Threads of a warp above each other and side by side; numbers of k of an instruction, in words.
_DOWN, _ACROSS, _WORDS = 8, 4, 8
#: Padding, in words: of a line of a tile, behind four lines, and before B's second vectors.
_LINE, _FOUR, _SECOND = 8, 4, 4


def loop_in(
    s: Source,
    tile: Tile,
    dtype: str,
    along_k: tuple[bool, bool],
    written_out: int = WRITTEN_OUT,
    words: tuple[bool, bool] = (False, False),
) -> TileLoop:
    """The loop over k for elements of `dtype`; see `TileLoop` and `QuadLoop`."""
    if tile.tensor:
        return TensorLoop(s, tile, dtype, along_k)
    if tile.quad:
        return QuadLoop(s, tile, dtype, along_k, words)
    return TileLoop(s, tile, sums_dtype(dtype), along_k, written_out)


class TensorLoop(TileLoop):
    """The threads of a block in a tile of 16-bit floats; sums are f32. A thread has two vectors of
    columns, and the tile one run of k of an instruction."""

    packed = 2

    def __init__(self, s: Source, tile: Tile, dtype: str, along_k: tuple[bool, bool]) -> None:
        assert dtype in HALVES
        assert (tile.columns, tile.depth) == (2 * 4, 2 * _WORDS)
        assert tile.size >= 64
        super().__init__(s, tile, sums_dtype(dtype), along_k)
        self.dtype, self.missing = dtype, ["u16(0)"] * 2

    def _lanes(self) -> tuple[str, str]:
        s = self.s
        warp = s.let(s.div(self.thread, s.const(32)), "warp")
        lane = s.let(s.mod(self.thread, s.const(32)), "lane")
        wide = s.const(self.tile.across // _ACROSS)
        self._group = s.let(s.div(lane, s.const(_ACROSS)), "group")
        self._t = s.let(s.mod(lane, s.const(_ACROSS)), "t")
        self._beside = s.let(s.mul(s.mod(warp, wide), s.const(_ACROSS)), "beside")
        below = s.mul(s.div(warp, wide), s.const(_DOWN))
        return s.let(s.add(below, self._group), "y"), s.let(s.add(self._beside, self._t), "x")

    def element(self, dtype: str, pointer: str, at: str) -> str:
        """Its bits."""
        return f"{pointer}[{at}]"

    def _stored(self, brought: list[str]) -> list[str]:
        """Words of two neighbours in k each, the first one below."""
        pairs = zip(brought[::2], brought[1::2], strict=True)
        return [f"f32_bits(u32(u32({a}) | u32(u32({b}) << u32(16))))" for a, b in pairs]

    @property
    def _half(self) -> int:
        return self._apart_in_k(_WORDS)

    def _apart_in_k(self, words: int) -> int:
        """How far words of k, less than four or whole fours of them, are from each other."""
        return words * (self.tile.size + _LINE) + words // 4 * _FOUR

    def _spot(self, which: int, line: str, k: str) -> str:
        s = self.s
        terms = [s.mul(k, s.const(self.tile.size + _LINE)), line]
        terms.append(s.mul(s.div(k, s.const(4)), s.const(_FOUR)))
        if which == 1:
            half = s.const(self.vector * self.tile.across)
            terms.append(s.mul(s.div(line, half), s.const(_SECOND)))
        return s.total(terms)

    def _multiply(self, shared: list[str], turn: str, sums: dict[tuple[int, int], str]) -> None:
        s, tile = self.s, self.tile
        halves = range(2)  # of the instruction's k
        second = self.vector * tile.across + _SECOND
        odd = s.mul(s.mod(self._group, s.const(2)), s.const(second))
        beside = s.add(self._beside, s.div(self._group, s.const(2)))
        column = s.add(s.mul(beside, s.const(self.vector)), odd)
        at_a, at_b = (
            s.let(s.total([turn, s.mul(self._t, s.const(self._apart_in_k(1))), line]), "at")
            for line in (self.row, column)
        )
        b = [self._words(shared[1], at_b, self._apart_in_k(4 * h)) for h in halves]
        for i in range(0, tile.rows, self.vector):
            rows = [
                self._words(shared[0], at_a, self.line(i) + self._apart_in_k(4 * h)) for h in halves
            ]
            for n in range(0, self.vector, 2):
                a = [rows[h][n + m] for h in halves for m in range(2)]
                for j in range(self.vector):
                    c = [sums[i + n + m, j + v] for m in range(2) for v in (0, self.vector)]
                    given = ", ".join([*a, *(words[j] for words in b), *c])
                    s.line(f"{', '.join(c)} = cuda.mma_sync_{self.dtype}({given})")

    def _words(self, array: str, first: str, apart: int) -> list[str]:
        """Four words."""
        spot = self.s.add(first, self.s.const(apart))
        held = read_vector(self.s, array, spot, self.sums)
        return [self.s.let(f"bits_f32({name})", "word") for name in held]


class QuadLoop(TileLoop):
    """The threads of a block in a tile of 8-bit integers; sums are i32 or u32. Four neighbours in k
    are one element of shared memory, of the sums' dtype, and are multiplied by one dp4a.

    words: of A and B, whether memory has such words, as `words_of` says: they are read whole.
    Others are put together as soon as they are read, before this run is multiplied: bytes one by
    one would take registers that a tile of 128 has not."""

    packed = QUAD

    def __init__(
        self,
        s: Source,
        tile: Tile,
        dtype: str,
        along_k: tuple[bool, bool],
        words: tuple[bool, bool] = (False, False),
    ) -> None:
        assert dtype in BYTES
        assert tile.depth % (QUAD * _ALONG) == 0
        # two steps of a tile of 128 would take more registers than there are, too
        super().__init__(s, tile, sums_dtype(dtype), along_k, WRITTEN_OUT // 2)
        self.words = words
        self.missing = [literal(self.sums if whole else dtype, 0) for whole in words]

    def element(self, dtype: str, pointer: str, at: str) -> str:
        """It, unwidened."""
        return load(dtype, pointer, at)

    def _each(self, which: int) -> int:
        return 1 if self.words[which] else QUAD

    def _read(self, which: int, brought: list[tuple[str, str]], k0: str, read: Read) -> list[str]:
        """Words of four neighbours in k each, the first one lowest."""
        names = super()._read(which, brought, k0, read)
        if self.words[which]:
            return names
        words = []
        for first in range(0, len(names), QUAD):
            a, b, c, d = (f"u32(u8({name}))" for name in names[first : first + QUAD])
            low = f"u32({a} | u32({b} << u32(8)))"
            high = f"u32(u32({c} << u32(16)) | u32({d} << u32(24)))"
            words.append(self.s.let(f"{self.sums}({low} | {high})", "word"))
        return words

    def _multiplied(self, a: str, b: str, total: str) -> str:
        return f"dp4a_{self.sums}({a}, {b}, {total})"


def words_of(p: Product, a: Address, b: Address) -> tuple[bool, bool]:
    """Of A and B of 8-bit integers, whether each four neighbours in k are a word of memory."""
    sides = (a, p.a_at, p.a_steps), (b, p.b_at, p.b_steps[::-1])
    return (_in_words(p.k, *sides[0]), _in_words(p.k, *sides[1]))


def _in_words(k: int, held: Address, at: tuple[int, ...], steps: tuple[int, int]) -> bool:
    line, along = steps
    if along != 1 or k % QUAD or line % QUAD or held.offset % QUAD:
        return False
    return all(first % QUAD == 0 for first in at)


class Operands:
    """The matrices of `p` as parameters of the kernel `s`. words: as `QuadLoop` has them."""

    def __init__(
        self,
        s: Source,
        p: Product,
        a: Address,
        b: Address,
        words: tuple[bool, bool] = (False, False),
    ) -> None:
        self.s, self.p, self.words = s, p, words
        kinds = [sums_dtype(p.dtype) if whole else p.dtype for whole in words]
        self.pointers = s.pointer("a", kinds[0], a), s.pointer("b", kinds[1], b)
        self.m, self.n, self.k = (s.number(x, getattr(p, x)) for x in "mnk")
        self.steps = (
            (s.number("a_row", p.a_steps[0]), s.number("a_k", p.a_steps[1])),
            (s.number("b_column", p.b_steps[1]), s.number("b_k", p.b_steps[0])),
        )

        self._lines: dict[tuple[int, str], str] = {}

    def begin(self, matrix: str, first: tuple[str, str] | None = None) -> None:
        """Which matrix it is, and the row and column of C at which a tile begins."""
        s, p = self.s, self.p
        given = (("a_at", p.a_at), ("b_at", p.b_at))
        self.first = first or (s.const(0), s.const(0))
        if len(p.c_at) == 1:
            self.starts = [s.number(h, at[0]) if at[0] else s.const(0) for h, at in given]
            return
        tables = [s.pointer(h, "i64", table_of(at)) for h, at in given]
        self.starts = [s.let(s.cast(f"{table}[{matrix}]"), "start") for table in tables]

    def place(self, which: int, line: str, k: str) -> str:
        """Where the element of row (of B: column) `line` at `k` is."""
        step, k_step = self.steps[which]
        terms = [self.starts[which], self.s.mul(line, step), self.s.mul(k, k_step)]
        return self.s.total(terms)

    def element(self, which: int, line: str, k: str) -> str:
        """It, as it is multiplied."""
        return widened(
            self.p.dtype, load(self.p.dtype, self.pointers[which], self.place(which, line, k))
        )

    def read(self, loop: TileLoop, which: int, place: str, k: str, name: str, k_end: str) -> None:
        """Set `name` to the element at a row (column) of the tile and `k`, if `k` is before
        `k_end`. Beyond the edge it is that of the last line, of which nothing is stored."""
        s, limit = self.s, (self.m, self.n)[which]
        step, k_step = self.steps[which]
        if (which, place) not in self._lines:  # once, before the loop over k
            last = s.sub(limit, s.const(1))
            line = s.let(s.add(self.first[which], place), "r")
            line = s.let(f"{line} if {line} < {limit} else {last}", "r")
            start = s.let(s.add(self.starts[which], s.mul(line, step)), "base")
            self._lines[which, place] = start
        at, pointer = s.add(self._lines[which, place], s.mul(k, k_step)), self.pointers[which]
        with s.block(f"if {k} < {k_end}"):
            if self.words[which]:
                s.line(f"{name} = {pointer}[{s.div(at, s.const(QUAD))}]")
            else:
                s.line(f"{name} = {loop.element(self.p.dtype, pointer, at)}")


#: A part of k has at least so many numbers.
LEAST_RUN = 128
#: Numbers of parts that are compared.
PARTS = tuple(sorted(n << k for n in (1, 3) for k in range(9)))
#: Instructions of a warp for a step of k, by the size of the tile; of elements of 64 bits: those
#: of f64 are started every second cycle.
INSTRUCTIONS = {128: 83, 64: 47, 32: 29}
INSTRUCTIONS_OF_64 = {64: 46, 32: 50}
#: For 16 steps of k, on tensor cores.
INSTRUCTIONS_OF_16 = {128: 228, 64: 187}
TENSOR_STEPS = 16
#: For 4 steps of k, by dp4a, where all words are put together of bytes. The tile of 128 has 115,
#: but its 64 dp4a are taken to be started every second cycle, others in between.
INSTRUCTIONS_OF_8 = {128: 128, 64: 73, 32: 57}
_TILES = {8: QUAD_TILES, 16: TENSOR_TILES, 32: TILES, 64: TILES_OF_64}
_INSTRUCTIONS = {
    8: INSTRUCTIONS_OF_8,
    16: INSTRUCTIONS_OF_16,
    32: INSTRUCTIONS,
    64: INSTRUCTIONS_OF_64,
}


def choose(
    sizes: tuple[int, int, int],
    count: int,
    *,
    bits: int,
    whole: bool = False,
    largest: int = TILES[0].size,
) -> tuple[Tile, int]:
    """For `count` products of m rows, n columns and k: the tile, and how many parts of k are best.

    sizes: (m, n, k). bits: see `bits_of`. whole: k is not cut. largest: size of a tile."""
    m, n, k = sizes
    number, parts = _chosen(m, n, k, count, bits, whole, largest)
    return _TILES[bits][fixed(number)], parts


def bits_of(dtype: str) -> int:
    """Which tiles elements of `dtype` have: 8 (by dp4a), 16 (floats, on tensor cores), 32 or 64."""
    if dtype in BYTES:
        return 8
    return 16 if dtype in HALVES else 64 if nbytes(dtype) == 8 else 32


def tiles_in(m: int, n: int, tile: Tile) -> int:
    """Tiles of a matrix."""
    return -(-m // tile.size) * -(-n // tile.size)


@of_sizes
def _chosen(
    m: int, n: int, k: int, count: int, bits: int, whole: bool, largest: int
) -> tuple[int, ...]:
    most = 1 if whole else max(k // LEAST_RUN, 1)
    best = min(
        (cycles((m, n, k), count, tile, parts, bits), parts, number)
        for number, tile in enumerate(_TILES[bits])
        if tile.size <= largest
        for parts in PARTS
        if parts <= most
    )
    return best[2], best[1]


def cycles(sizes: tuple[int, int, int], count: int, tile: Tile, parts: int, bits: int) -> int:
    """The estimate for `count` products of `sizes` (m, n, k)."""
    m, n, k = sizes
    blocks = tiles_in(m, n, tile) * count * parts
    each = -(-blocks // GPU_MULTIPROCESSORS)
    rounds = -(-each // tile.resident)
    instructions = _INSTRUCTIONS[bits][tile.size]
    busy = each * tile.threads // 32 * instructions // GPU_SCHEDULERS
    alone = rounds * GPU_APART_CYCLES * instructions
    steps, multiplied = QUAD if tile.quad else 1, 0
    if tile.tensor:
        steps = TENSOR_STEPS
        multiplied = each * steps * tile.size * tile.size // GPU_TENSOR_RATE
    run = -(-k // parts)
    taken = -(-run // steps) * max(busy, alone, multiplied) + rounds * GPU_BLOCK_CYCLES
    if parts > 1:
        moved = 2 * parts * m * n * count * (8 if bits == 64 else 4)
        taken += GPU_LAUNCH_CYCLES + moved // GPU_BYTES_PER_CYCLE
    return taken
