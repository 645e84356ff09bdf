"""Epilogue of a product: the nest that follows it, sums over its rows, and the parts of split-k.

Sums are finished elements that a nest reads. A tile's sums go through shared memory, some rows at a
time: then neighbouring threads have neighbouring elements, 128 bits each where the nest allows, and
the nest is in the kernel once.

* Sums over all rows of what follows (such as the gradient of a bias): a tile leaves the sums of its
  rows in scratch memory; a second launch adds those up in order.
* Split-k: a block does one part of k, and `AddParts` is the kernel that adds the parts up in order
  and then does what follows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace

from weft.codegen.call import Address, Scratch
from weft.codegen.cuda.nests.accumulators import (
    Accumulator,
    combine_launches,
    lay_out,
    ordered_fold,
)
from weft.codegen.cuda.nests.body import Body, Buffers, index_of, lanes_of
from weft.codegen.cuda.products.fused import Follow, FusedProduct, store_nest
from weft.codegen.cuda.products.tiles import (
    VECTOR,
    Rows,
    Tile,
    TileLoop,
    narrowed,
    read_vector,
    sums_dtype,
    write_vector,
)
from weft.codegen.cuda.source.dtypes import nbytes
from weft.codegen.cuda.source.elementwise import expression
from weft.codegen.cuda.source.kernel import Launch
from weft.codegen.cuda.source.writer import IndexDtype, Source
from weft.codegen.nests.nest import Access, Nest
from weft.codegen.products.gemm import Product
from weft.ir.dataclass import dataclass
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


#: Of a row and column of C: those of the nest, and what has to hold for them to exist ("" if they
#: always do). It may write lines.
Place = Callable[[str, str], tuple[str, str, str]]


class Epilogue:
    """Writes the nest that follows a product in the kernel `s` that computes it. dtype: of the
    elements that are multiplied."""

    def __init__(self, s: Source, follow: Follow, dtype: str) -> None:
        self.s = s
        self._made = [k for k, a in enumerate(follow.nest.loads) if a.leaf == follow.made]
        nest = without_buffer(follow)
        self.lanes = lanes_of(nest)
        #: Writes lines that add up anew the element of a row and column; its name. For sums that
        #: are NaN only since something beyond an edge was multiplied by 0.
        self.mend: Callable[[str, str], str] | None = None
        self.column_sums: ColumnSums | None = None
        self._element = narrowed(dtype, follow.made_dtype, "{}")
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


@dataclass(frozen=True, slots=True)
class Parts:
    """`count` parts of `run` numbers of k each; the last may have fewer."""

    count: int
    run: int


def cut(k: int, count: int, unit: int) -> Parts:
    """k in parts of whole units, as many as there are up to `count`."""
    run = -(-k // max(count, 1))
    run = max(-(-run // unit) * unit, unit)
    return Parts(max(-(-k // run), 1), run)


def results(p: Product) -> int:
    """Elements of C."""
    return p.m * p.n * len(p.c_at)


def part_of(s: Source, p: Product, number: str, parts: Parts, k: str) -> tuple[str, str, str]:
    """Of a block that has matrix `number` in [part, matrix]: its matrix, where its part of k begins
    and where it ends."""
    if parts.count == 1:
        return number, s.const(0), k
    count, run = s.number("matrices", len(p.c_at)), s.number("run", parts.run)
    part = s.let(s.div(number, count), "part")
    matrix = s.let(s.sub(number, s.mul(part, count)), "matrix")
    first = s.let(s.mul(part, run), "k_first")
    end = s.let(s.add(first, run), "k_end")
    return matrix, first, s.let(f"{end} if {end} < {k} else {k}", "k_end")


def into_scratch(fused: FusedProduct, parts: Parts) -> tuple[FusedProduct, Scratch]:
    """The sums of the parts alone, stored as [part, matrix, m, n]."""
    p, sums = fused.product, sums_dtype(fused.product.dtype)
    scratch = Scratch(results(p) * parts.count * nbytes(sums))
    rows = parts.count * len(p.c_at) * p.m
    nest = store_nest("matmul_parts", sums, rows, p.n, fused.made)
    return replace(fused, nest=nest, outputs=(scratch,)), scratch


class AddParts:
    """The kernel that makes C of the parts of k, in the sums' dtype in `scratch`: a thread for each
    element, the parts in order, then what follows. size: rows of all matrices, columns. `mend` of
    `epilogue` may be set before `launch`."""

    def __init__(
        self,
        follow: Follow,
        dtype: str,
        size: tuple[int, int],
        parts: int,
        scratch: Scratch,
        index: IndexDtype,
    ) -> None:
        self.dtype, self.count = sums_dtype(dtype), size[0] * size[1]
        s = self.s = Source(f"{follow.nest.name}_add_parts_{dtype}_{index}", index)
        self.given = s.pointer("given", self.dtype, scratch)
        sizes = ("count", self.count), ("end", self.count * parts), ("n", size[1])
        self.sizes = [s.number(*x) for x in sizes]
        self.epilogue = Epilogue(s, follow, dtype)

    def launch(self) -> Launch:
        """Its launch, after that of the parts."""
        s, (count, end, n), given = self.s, self.sizes, self.given
        i = s.let(s.add(s.mul(s.block_index, s.const(s.threads)), s.thread), "i")
        with s.block(f"if {i} < {count}"):
            total = s.let(f"{given}[{i}]", "total")
            with s.loop(s.add(i, count), end, count, "at") as at:
                added = expression("add", self.dtype, self.dtype, [total, f"{given}[{at}]"])
                s.line(f"{total} = {added}")
            row, column = s.split(i, ["", n], "at")
            self.epilogue.mended(total, row, column)
            self.epilogue.write(row, column, [total])
        return s.launch(-(-self.count // s.threads))
