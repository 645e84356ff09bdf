"""What follows a product, in its kernel: sums are finished elements that a nest reads.

A tile's sums go through shared memory, some rows at a time: then neighbouring threads have
neighbouring elements, 128 bits each where the nest allows, and the nest is in the kernel once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from weft.codegen.cuda.nests.body import Body, Buffers, index_of, lanes_of
from weft.codegen.cuda.products.column_sums import ColumnSums
from weft.codegen.cuda.products.fused import FusedProduct
from weft.codegen.cuda.products.tiles import Tile, TileLoop, narrowed
from weft.codegen.cuda.writer import IndexDtype, Source
from weft.codegen.nests.nest import Access, Nest


class Epilogue:
    """Writes the nest that follows a product in the kernel `s` that computes it."""

    def __init__(self, s: Source, fused: FusedProduct) -> None:
        self.s = s
        self._made = [k for k, a in enumerate(fused.nest.loads) if a.leaf == fused.made]
        nest = without_buffer(fused)
        self.lanes = lanes_of(nest)
        self.column_sums: ColumnSums | None = None
        self._element = narrowed(fused.made_dtype, "{}")
        self._body = Body(s, nest, Buffers(fused.outputs, fused.operands))
        extents = nest.extents[1:-1]
        self._rows = ["", *(s.number(f"n{k}", n) for k, n in enumerate(extents, 1))]

    def write(self, row: str, column: str, values: Sequence[str]) -> None:
        """The nest at the columns from `column` on; values: the sums there."""
        self._body.begin()
        values = [self.s.let(self._element.format(value), "made") for value in values]
        at = [*self.s.split(row, self._rows, "row"), column]
        read = dict.fromkeys(self._made, values)
        made = self._body.values(at, len(values), read)
        self._body.write(at, made)
        if self.column_sums is not None:
            self.column_sums.add(made.source)

    def lanes_in(self, tile: Tile) -> int:
        """Neighbouring columns of a tile that a thread has at a time."""
        return self.lanes if tile.own % self.lanes == 0 else 1

    def write_tile(
        self,
        loop: TileLoop,
        sums: dict[tuple[int, int], str],
        first: tuple[str, str],
        limits: tuple[str, str],
        before: str,
    ) -> None:
        """The nest at all elements of a tile that exist.

        first: its row and column in C; limits: the rows and columns of C; before: the rows of the
        matrices before it.
        """
        s, tile, (shared, _) = loop.s, loop.tile, loop.shared
        lanes = self.lanes_in(tile)
        each, size = range(tile.own), s.const(tile.size)
        vectors = tile.across * tile.size // lanes
        with s.loop(s.const(0), s.const(tile.own), s.const(1), "run") as run:
            for i in each:
                with s.block(f"if {run} == {s.const(i)}"):
                    line = s.add(s.mul(loop.y, size), loop.x)
                    for j in each:
                        place = s.add(line, s.const(j * tile.across))
                        s.line(f"{shared}[{place}] = {sums[i, j]}")
            s.line("cuda.syncthreads()")
            last = s.const(vectors)
            with s.loop(loop.thread, last, s.const(tile.threads), "vector") as vector:
                wide = s.const(tile.size // lanes)
                y = s.let(s.div(vector, wide), "y")
                x = s.let(s.mul(s.sub(vector, s.mul(y, wide)), s.const(lanes)), "x")
                row = s.total([first[0], s.mul(run, s.const(tile.across)), y])
                row, column = s.let(row, "row"), s.let(s.add(first[1], x), "column")
                with s.block(f"if {row} < {limits[0]} and {column} < {limits[1]}"):
                    spot = s.let(s.add(s.mul(y, size), x), "spot")
                    places = [s.add(spot, s.const(lane)) for lane in range(lanes)]
                    held = [s.let(f"{shared}[{place}]", "sum") for place in places]
                    self.write(s.let(s.add(before, row), "row"), column, held)
            s.line("cuda.syncthreads()")


def without_buffer(fused: FusedProduct) -> Nest:
    """The nest, with the product as an operand that is in no buffer."""
    nest = fused.nest
    here = Access("index", fused.made_dtype, 0, (0,) * len(nest.extents))
    loads = tuple(here if a.leaf == fused.made else a for a in nest.loads)
    return replace(nest, loads=loads)


def index_of_epilogue(fused: FusedProduct) -> IndexDtype:
    """The dtype of index arithmetic that the nest needs."""
    return index_of(without_buffer(fused))
