"""Tiles of products of 16-bit floats, on tensor cores.

The warp-wide product of 16 x 8 x 16 (`mma_sync_...` of `language.py`) asks each lane for rows and
columns of its own. Which of the tile those are is free: here a thread gets whole vectors, at the
places where `TileLoop` has them, so that what follows is the same. Lane 4 g + t of a warp, which
has 8 threads above each other and 4 side by side, brings to the instructions 4 rows of A, those of
thread g, and 4 columns of B: the first vector (g even) or the second one (g odd) of thread g / 2 of
the row. It gets the sums of its rows and of both vectors of thread t.

Two neighbours in k are one word of shared memory, [k / 2][row or column], so a lane's 4 rows at the
numbers of k that it brings are one access of 128 bits. Padding keeps the banks apart (a test counts
conflicts). Words lie there as f32, as sums do later; nothing looks at them as numbers.

Sums over k go in runs of 16 from the first one on, each of which the instruction adds up in an
order of its own, whatever the tile is.
"""

from __future__ import annotations

from weft.codegen.cuda.products.tiles import (
    WRITTEN_OUT,
    Tile,
    TileLoop,
    read_vector,
    sums_dtype,
)
from weft.codegen.cuda.scalars.memory import HALVES
from weft.codegen.cuda.writer import Source

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
) -> TileLoop:
    """The loop over k for elements of `dtype`; see `TileLoop`."""
    if tile.tensor:
        return TensorLoop(s, tile, dtype, along_k)
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
        self.dtype, self.missing = dtype, "u16(0)"

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
