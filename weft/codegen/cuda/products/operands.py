"""A and B of a product in memory, as its kernels read them."""

from __future__ import annotations

from weft.codegen.call import Address, table_of
from weft.codegen.cuda.products.tiles import TileLoop, widened
from weft.codegen.cuda.scalars.scalar import load
from weft.codegen.cuda.writer import Source
from weft.codegen.gemm.blocking import Product


class Operands:
    """The matrices of `p` as parameters of the kernel `s`."""

    def __init__(self, s: Source, p: Product, a: Address, b: Address) -> None:
        self.s, self.p = s, p
        self.pointers = s.pointer("a", p.dtype, a), s.pointer("b", p.dtype, b)
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
        at = s.add(self._lines[which, place], s.mul(k, k_step))
        with s.block(f"if {k} < {k_end}"):
            s.line(f"{name} = {loop.element(self.p.dtype, self.pointers[which], at)}")
