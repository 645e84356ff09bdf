"""The inside of a product: a block of threads does a tile of C, with tiles of A and B in shared
memory.

k is gone through in order, in runs of `Tile.depth`; the next run is read from memory while the
current one is multiplied. 16-bit floats are multiplied and added up in f32, narrow integers in 32
bits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product as pairs

from weft.codegen.cuda.scalars.scalar import expression, literal
from weft.codegen.cuda.writer import Source


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


def narrowed(dtype: str, value: str) -> str:
    """A sum as the register value of a result of `dtype`."""
    sums = sums_dtype(dtype)
    return expression("astype", sums, dtype, [value]) if sums in ("i32", "u32") else value


def multiply_add(sums: str, a: str, b: str, c: str) -> str:
    """a * b + c; of floats rounded once."""
    if sums in ("f32", "f64"):
        return f"fma_{sums}({a}, {b}, {c})"
    return f"{sums}({sums}({a} * {b}) + {c})"


class TileLoop:
    """The threads of a block in a tile; `run` writes the loop over k.

    along_k: of A and B, whether neighbours in memory are neighbours in k: neighbouring threads
    bring neighbours in memory. Sum (i, j) of a thread is row `y + i * across` and column `x + j *
    across` of the tile. `shared`: two arrays of `depth * (size + 1)` sums, free after `run`.
    """

    def __init__(self, s: Source, tile: Tile, sums: str, along_k: tuple[bool, bool]) -> None:
        self.s, self.tile, self.sums, self.along_k = s, tile, sums, along_k
        across = s.const(tile.across)
        self.thread = s.let(s.thread, "thread")
        self.y = s.let(s.div(self.thread, across), "y")
        self.x = s.let(s.mod(self.thread, across), "x")

    def run(self, k_first: str, k_end: str, read: Read) -> dict[tuple[int, int], str]:
        """The names of a thread's sums over k from `k_first` up to `k_end`."""
        s, tile = self.s, self.tile
        brought = self._spread(0), self._spread(1)
        each = range(tile.own)
        sums = {(i, j): s.let(literal(self.sums, 0), f"c{i}_{j}") for i, j in pairs(each, each)}
        self.shared = [
            s.let(f"cuda.shared.array({tile.depth * (tile.size + 1)}, {self.sums})", hint)
            for hint in ("shared_a", "shared_b")
        ]
        ahead = [self._read(which, brought[which], k_first, read) for which in (0, 1)]
        with s.loop(k_first, k_end, s.const(tile.depth), "k0") as k0:
            for which in (0, 1):
                self._put(self.shared[which], brought[which], ahead[which])
            s.line("cuda.syncthreads()")
            later = s.let(s.add(k0, s.const(tile.depth)), "later")
            for which in (0, 1):
                new = self._read(which, brought[which], later, read)
                for name, value in zip(ahead[which], new, strict=True):
                    s.line(f"{name} = {value}")
            self._multiply(sums)
            s.line("cuda.syncthreads()")
        return sums

    def _spread(self, which: int) -> list[tuple[str, str]]:
        """Of each element of A (0) or B (1) that a thread brings: its row (or column) in the tile
        and its place in the run of k."""
        s, tile = self.s, self.tile
        along, across = (tile.depth, tile.size) if self.along_k[which] else (tile.size, tile.depth)
        each = tile.threads // along
        fast = s.let(s.mod(self.thread, s.const(along)), "fast")
        slow = s.let(s.div(self.thread, s.const(along)), "slow")
        places = [s.add(slow, s.const(k * each)) for k in range(across // each)]
        return [(place, fast) if self.along_k[which] else (fast, place) for place in places]

    def _read(self, which: int, brought: list[tuple[str, str]], k0: str, read: Read) -> list[str]:
        """The elements of a run of k from `k0` on that a thread brings, 0 beyond the edges."""
        s, names = self.s, []
        places = {k: s.let(s.add(k0, k), "k") for k in dict.fromkeys(k for _, k in brought)}
        for line, k in brought:
            name = s.let(literal(self.sums, 0), "ahead")
            read(which, line, places[k], name)
            names.append(name)
        return names

    def _put(self, shared: str, brought: list[tuple[str, str]], values: list[str]) -> None:
        """Into shared memory: runs of k after each other, one element of padding."""
        s, pitch = self.s, self.s.const(self.tile.size + 1)
        for (place, k), value in zip(brought, values, strict=True):
            s.line(f"{shared}[{s.add(s.mul(k, pitch), place)}] = {value}")

    def _multiply(self, sums: dict[tuple[int, int], str]) -> None:
        s, tile = self.s, self.tile
        each, pitch = range(tile.own), s.const(tile.size + 1)
        with s.loop(s.const(0), s.const(tile.depth), s.const(1), "step") as step:
            base = s.let(s.mul(step, pitch), "base")
            rows, columns = (
                [
                    s.let(f"{array}[{s.total([base, place, s.const(i * tile.across)])}]", hint)
                    for i in each
                ]
                for array, place, hint in zip(
                    self.shared, (self.y, self.x), ("p", "q"), strict=True
                )
            )
            for i, j in pairs(each, each):
                text = multiply_add(self.sums, rows[i], columns[j], sums[i, j])
                s.line(f"{sums[i, j]} = {text}")
