"""Sums over all rows of what follows a product, such as the gradient of a bias.

A tile leaves the sums of its rows in scratch memory; a second launch adds those up in order.
"""

from __future__ import annotations

from collections.abc import Callable

from weft.codegen.call import Address, Scratch
from weft.codegen.cuda.kernel import Launch
from weft.codegen.cuda.nests.accumulate import Accumulator, ordered_fold
from weft.codegen.cuda.products.fused import FusedProduct
from weft.codegen.cuda.products.tiles import VECTOR, TileLoop, write_vector
from weft.codegen.cuda.rows.combine import combine_launches, lay_out
from weft.codegen.cuda.scalars.memory import nbytes
from weft.codegen.cuda.writer import Source
from weft.ir.errors import UnsupportedError


class ColumnSums:
    """The folds of the nest that follows a product, in the kernel `s`. units: tiles above each
    other, of all matrices; lanes: neighbouring columns that a thread has."""

    def __init__(self, s: Source, fused: FusedProduct, units: int, lanes: int) -> None:
        self.s, self.lanes, self.units = s, lanes, units
        self._folds = [w for w in fused.nest.stores if w.reduction is not None]
        given = []
        for w in self._folds:
            output = fused.outputs[w.output]
            if w.reduction != "sum" or not isinstance(output, Address):
                raise UnsupportedError(
                    f"a product with '{w.reduction}' of its rows in one kernel has no GPU code",
                    hint="the pipeline 'gpu' does not make such kernels",
                )
            given.append(("sum", w.dtype, fused.product.n, output))
        self._partials, nbytes = lay_out(given, units)
        self._scratch = Scratch(nbytes)
        self._pointers = [s.pointer("partial", p.running, self._scratch) for p in self._partials]
        self._firsts = [s.number("first", p.first) for p in self._partials]
        self._totals: list[list[Accumulator]] = []

    def begin(self) -> None:
        """Before the elements of a tile."""
        self._totals = [
            [Accumulator(self.s, "sum", w.dtype) for _ in range(self.lanes)] for w in self._folds
        ]

    def add(self, value: Callable[[tuple[str, int], int], str]) -> None:
        """An element of each of the thread's columns. value: of a source of the nest, by lane."""
        for w, totals in zip(self._folds, self._totals, strict=True):
            for lane, total in enumerate(totals):
                total.add([value(w.source, lane)])

    def end(self, loop: TileLoop, first: str, columns: str, unit: str) -> None:
        """Threads with the same columns add up in order. first: the tile's column in C."""
        s, tile = self.s, loop.tile
        wide = tile.size // self.lanes
        group = s.let(s.div(loop.thread, s.const(wide)), "group")
        own = s.mul(s.sub(loop.thread, s.mul(group, s.const(wide))), s.const(self.lanes))
        place = s.let(s.add(s.mul(group, s.const(tile.size)), own), "place")
        shared = []
        for p, totals in zip(self._partials, self._totals, strict=True):
            size = tile.threads * self.lanes
            array = s.let(f"cuda.shared.array({size}, {p.running})", "of_columns")
            values = [total.close() for total in totals]
            vector = VECTOR // nbytes(p.running)
            if self.lanes % vector == 0:
                for lane in range(0, self.lanes, vector):
                    at = s.add(place, s.const(lane))
                    write_vector(s, array, at, p.running, values[lane : lane + vector])
            else:
                for lane, value in enumerate(values):
                    s.line(f"{array}[{s.add(place, s.const(lane))}] = {value}")
            shared.append(array)
        s.line("cuda.syncthreads()")
        column = s.let(s.add(first, loop.thread), "column")
        with s.block(f"if {loop.thread} < {s.const(tile.size)} and {column} < {columns}"):
            at = s.let(s.add(s.mul(unit, columns), column), "at")
            for p, array, pointer, start in zip(
                self._partials, shared, self._pointers, self._firsts, strict=True
            ):
                places = (array, loop.thread, s.const(tile.size))
                of_tile = ordered_fold(s, places, tile.threads // wide, "sum", p.running)
                s.line(f"{pointer}[{s.add(start, at)}] = {of_tile}")

    def launches(self) -> list[Launch]:
        """What adds the tiles' sums up, right after the product."""
        return combine_launches(self._partials, self._scratch, self.units)
