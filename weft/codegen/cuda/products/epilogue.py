"""What follows a product, in its kernel: sums are finished elements that a nest reads.

A tile's sums go through shared memory, some rows at a time: then neighbouring threads have
neighbouring elements, 128 bits each where the nest allows, and the nest is in the kernel once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace

from weft.codegen.cuda.nests.body import Body, Buffers, index_of, lanes_of
from weft.codegen.cuda.products.column_sums import ColumnSums
from weft.codegen.cuda.products.fused import Follow
from weft.codegen.cuda.products.tiles import (
    Rows,
    Tile,
    TileLoop,
    narrowed,
    read_vector,
    write_vector,
)
from weft.codegen.cuda.writer import IndexDtype, Source
from weft.codegen.nests.nest import Access, Nest

#: Of a row and column of C: those of the nest, and what has to hold for them to exist ("" if they
#: always do). It may write lines.
Place = Callable[[str, str], tuple[str, str, str]]


class Epilogue:
    """Writes the nest that follows a product in the kernel `s` that computes it."""

    def __init__(self, s: Source, follow: Follow) -> None:
        self.s = s
        self._made = [k for k, a in enumerate(follow.nest.loads) if a.leaf == follow.made]
        nest = without_buffer(follow)
        self.lanes = lanes_of(nest)
        #: Writes lines that add up anew the element of a row and column; its name. For sums that
        #: are NaN only since something beyond an edge was multiplied by 0.
        self.mend: Callable[[str, str], str] | None = None
        self.column_sums: ColumnSums | None = None
        self._element = narrowed(follow.made_dtype, "{}")
        self._body = Body(s, nest, Buffers(follow.outputs, follow.operands))
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
        return self.lanes if tile.columns % self.lanes == 0 else 1

    def mended(self, name: str, row: str, column: str) -> None:
        """Sets a sum that is NaN to what it is without what is beyond the edges."""
        if self.mend is not None:
            with self.s.block(f"if {name} != {name}"):
                self.s.line(f"{name} = {self.mend(row, column)}")

    def write_tile(
        self,
        loop: TileLoop,
        sums: dict[tuple[int, int], str],
        first: tuple[str, str],
        limits: tuple[str, str],
        place: Place,
    ) -> None:
        """The nest at all elements of a tile that exist.

        first: its row and column in C; limits: the rows and columns of C.
        """
        s, tile, shared = loop.s, loop.tile, loop.shared
        lanes, rows = self.lanes_in(tile), Rows(loop.tile, loop.sums)
        wide, every = s.const(tile.size // lanes), range(0, tile.columns, loop.vector)
        line = s.let(s.add(loop.free, rows.at(s, loop.y, loop.column)), "line")
        with s.loop(s.const(0), s.const(tile.rows), s.const(1), "run") as run:
            for i in range(tile.rows):
                with s.block(f"if {run} == {s.const(i)}"):
                    for j in every:
                        spot = s.add(line, s.const(rows.apart(loop.place(j))))
                        values = [sums[i, n] for n in range(j, j + loop.vector)]
                        write_vector(s, shared, spot, loop.sums, values)
            s.line("cuda.syncthreads()")
            of_run = s.let(s.add(first[0], self._first_row(loop, run)), "of_run")
            last = s.const(tile.down * tile.size // lanes)
            with s.loop(loop.thread, last, s.const(tile.threads), "vector") as vector:
                y = s.let(s.div(vector, wide), "y")
                x = s.let(s.mul(s.sub(vector, s.mul(y, wide)), s.const(lanes)), "x")
                row = s.let(s.add(of_run, s.mul(y, s.const(loop.vector))), "row")
                column = s.let(s.add(first[1], x), "column")
                with s.block(f"if {row} < {limits[0]} and {column} < {limits[1]}"):
                    spot = s.let(s.add(loop.free, rows.at(s, y, x)), "spot")
                    held = _read(s, loop, spot, lanes)
                    row, column, live = place(row, column)
                    with s.block(f"if {live}") if live else nullcontext():
                        self._mend_shared(loop, spot, held, (row, column))
                        self.write(row, column, held)
            s.line("cuda.syncthreads()")

    def _mend_shared(self, loop: TileLoop, spot: str, held: list[str], at: tuple[str, str]) -> None:
        """`mended` of neighbouring sums, which are in shared memory from `spot` on."""
        if self.mend is None:
            return
        s, shared = self.s, loop.shared
        with s.block(f"if {' or '.join(f'{name} != {name}' for name in held)}"):
            with s.loop(s.const(0), s.const(len(held)), s.const(1), "lane") as lane:
                where = s.let(s.add(spot, lane), "where")
                one = s.let(f"{shared}[{where}]", "one")
                self.mended(one, at[0], s.let(s.add(at[1], lane), "column"))
                s.line(f"{shared}[{where}] = {one}")
            for name, value in zip(held, _read(s, loop, spot, len(held)), strict=True):
                s.line(f"{name} = {value}")

    def _first_row(self, loop: TileLoop, run: str) -> str:
        """The first row of the tile that is row `run` of threads."""
        s, vector = loop.s, loop.vector
        far = s.mul(s.div(run, s.const(vector)), s.const(loop.line(vector)))
        return s.add(far, s.mod(run, s.const(vector)))


def _read(s: Source, loop: TileLoop, spot: str, lanes: int) -> list[str]:
    """Neighbouring sums."""
    if lanes % loop.vector:
        return [s.let(f"{loop.shared}[{s.add(spot, s.const(n))}]", "sum") for n in range(lanes)]
    names: list[str] = []
    for n in range(0, lanes, loop.vector):
        names += read_vector(s, loop.shared, s.add(spot, s.const(n)), loop.sums)
    return names


def without_buffer(follow: Follow) -> Nest:
    """The nest, with the product as an operand that is in no buffer."""
    nest = follow.nest
    here = Access("index", follow.made_dtype, 0, (0,) * len(nest.extents))
    loads = tuple(here if a.leaf == follow.made else a for a in nest.loads)
    return replace(nest, loads=loads)


def index_of_epilogue(follow: Follow) -> IndexDtype:
    """The dtype of index arithmetic that the nest needs."""
    return index_of(without_buffer(follow))
