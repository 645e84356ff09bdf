"""Convolutions as products of matrices that are not made: tiles of patches in shared memory.

C = A B, where A is gathered from an array by positions and taps (implicit GEMM), tap by tap:

| op          | rows of C          | columns | k                     | A      | B |
|-------------|--------------------|---------|-----------------------|--------|---|
| conv        | batch, positions   | outside | taps, inside          | x      | w |
| conv_input  | batch, positions   | inside  | taps, outside         | y      | w |
| conv_kernel | taps, inside       | outside | batch, positions of y | x      | y |

A position and a tap meet at position + shift of the tap, if that is inside the array; the shifts
are in a table. Strided, conv_input has a product for each phase (the position modulo the strides),
with only those taps that reach it. Groups are products of their own. k is gone through in order,
taps first; where C has few tiles k is cut into parts, by the sizes alone, whose sums are added up
by a second launch. What follows is done as after products of matrices (`products/epilogue.py`).

Where a tap sees nothing A is 0, and 0 times an infinity is NaN: those sums are added up anew.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from weft.codegen.call import Address, Numbers, Pool, Scratch, table_of
from weft.codegen.cuda.kernel import Launch
from weft.codegen.cuda.others.conv_follow import Convolution
from weft.codegen.cuda.others.conv_geometry import Geometry
from weft.codegen.cuda.others.conv_sums import ROLES, ConvSums
from weft.codegen.cuda.others.sizes import computed_dtype, count_of, shape_of
from weft.codegen.cuda.products.choice import bits_of, choose, tiles_in
from weft.codegen.cuda.products.epilogue import Epilogue
from weft.codegen.cuda.products.fused import store_nest
from weft.codegen.cuda.products.parts import AddParts, cut
from weft.codegen.cuda.products.tensor_tiles import loop_in
from weft.codegen.cuda.products.tiles import TILES, WRITTEN_OUT, Rows, Tile, sums_dtype
from weft.codegen.cuda.rows.combine import Partial, combine_launches
from weft.codegen.cuda.scalars.memory import FLOATS, nbytes
from weft.codegen.cuda.scalars.scalar import register_dtype
from weft.codegen.cuda.writer import Source, index_dtype
from weft.ir.graph import Operation

#: A tile of more spills registers.
LARGEST_ON_TENSOR_CORES = 64


def tiled_launches(conv: Convolution, geometry: Geometry) -> list[Launch]:
    """The launches of a convolution that `fits`, with what follows it. Results of a `conv_kernel`
    next to an edge may be NaN."""
    g, dtype = geometry, computed_dtype(conv.op, conv.op.result)
    tile, parts = _cut(g, dtype)
    if parts == 1:
        return [_Writer(conv, g, dtype, tile, 1).launch()]
    whole = conv.op.name == "conv_kernel"  # long sums, which are folded in a tree
    kept, (rows, columns) = register_dtype(dtype) if whole else sums_dtype(dtype), conv.size
    scratch = Scratch(parts * rows * columns * nbytes(kept))
    nest = store_nest(f"{conv.op.name}_parts", kept, parts * rows, columns, conv.follow.made)
    split = replace(conv, follow=replace(conv.follow, nest=nest, outputs=(scratch,)))
    launch = _Writer(split, g, dtype, tile, parts).launch()
    if whole:
        partial = Partial("sum", dtype, kept, rows * columns, 0, Address(conv.op.result))
        return [launch, *combine_launches([partial], scratch, parts)]
    index = conv.index(parts * rows * columns)
    added = AddParts(conv.follow, dtype, conv.size, parts, scratch, index)
    if _may_be_nan(g, dtype):
        pointers = {
            role: added.s.pointer(role, dtype, at)
            for role, at in zip(ROLES[conv.op.name], conv.operands, strict=False)
        }
        added.epilogue.mend = _mend(added.s, conv.op, pointers)
    return [launch, added.launch()]


def _may_be_nan(g: Geometry, dtype: str) -> bool:
    """Whether a 0 that stands for what is beyond an edge may be multiplied by an infinity."""
    return g.sees_nothing and dtype in FLOATS and g.op.name != "conv_kernel"


def _mend(s: Source, op: Operation, pointers: dict[str, str]) -> Callable[[str, str], str]:
    """Adds up the element of a row and column of the result by itself."""
    sums, columns = ConvSums(s, op, pointers), s.number("columns", shape_of(op.result)[-1])

    def again(row: str, column: str) -> str:
        return sums.total(s.let(s.add(s.mul(row, columns), column), "i"))

    return again


def _cut(g: Geometry, dtype: str) -> tuple[Tile, int]:
    """The tile, and into how many parts k is cut. Indices of 64 bits take registers, and so do
    places beside what tensor cores are given."""
    bits = 64 if index_dtype(*_counts(g)) == "i64" else bits_of(dtype)
    largest = LARGEST_ON_TENSOR_CORES if bits == 16 else TILES[0].size
    count = g.sizes.groups * len(g.phases)
    tile, parts = choose((g.rows, g.columns, g.k), count, bits=bits, largest=largest)
    return tile, cut(g.k, parts, tile.depth).count


def _counts(g: Geometry) -> list[int]:
    """Of elements, and what indices of rows and k go up to."""
    values = (*g.op.operands, g.op.result)
    return [*map(count_of, values), 2 * g.rows, 2 * g.columns, 2 * g.k]


class _Writer:
    """Writes the kernel. parts: of k; the rows of each lie after each other."""

    def __init__(self, conv: Convolution, g: Geometry, dtype: str, tile: Tile, parts: int) -> None:
        self.conv, self.g, self.dtype, self.tile, self.parts = conv, g, dtype, tile, parts
        z, op, d = g.sizes, g.op, len(g.axes)
        kind = conv.index(*_counts(g), count_of(op.result) * parts)
        how = "_groups" * (z.groups > 1) + "_phases" * (len(g.phases) > 1)
        how = "_tensor" * tile.tensor + how
        name = f"{conv.name}_{dtype}_{d}d_{tile.size}x{tile.size}{how}_{kind}"
        s = self.s = Source(name, kind, tile.threads, tile.resident)
        self.a, self.b = (
            s.pointer(hint, dtype, at) for hint, at in zip("ab", conv.operands, strict=True)
        )
        self.rows, self.columns = s.number("rows", g.rows), s.number("columns", g.columns)
        self.channels = s.number("channels", g.channels)
        self.y_all = s.number("y_all", z.groups * z.outside)
        self.a_all = self.y_all if g.adjoint else s.number("x_all", z.groups * z.inside)
        self.counts = [s.number(f"count{a}", axis.count) for a, axis in enumerate(g.axes)]
        self.limits = [s.number(f"limit{a}", axis.limit) for a, axis in enumerate(g.axes)]
        self.taps = s.pointer("taps", "i64", _table(g))
        self.epilogue = Epilogue(s, conv.follow)
        if g.columns % self.epilogue.lanes:  # the channels of a group are no whole vectors
            self.epilogue.lanes = 1
        if parts == 1 and _may_be_nan(g, dtype):
            pointers = dict(zip(ROLES[op.name], (self.a, self.b), strict=False))
            self.epilogue.mend = _mend(s, op, pointers)
        self._numbers: dict[str, str] = {}
        self._columns: dict[str, str] = {}
        self._begin()
        along_k = not self.is_kernel, g.adjoint
        written_out = WRITTEN_OUT // (2 if d > 2 else 1)  # places in three axes take registers, too
        self.loop = loop_in(s, tile, dtype, along_k, written_out)
        self._sides: dict[tuple[str, str], tuple[list[str], str, str]] = {}

    @property
    def is_kernel(self) -> bool:
        """Whether taps are rows, and positions are added up."""
        return self.g.op.name == "conv_kernel"

    def _begin(self) -> None:
        """Which part, group, phase and tile the block has."""
        s, g, size = self.s, self.g, self.tile.size
        z, several = g.sizes, len(g.phases) > 1
        extents = [
            s.number("groups", z.groups) if z.groups > 1 else s.const(1),
            s.number("phases", len(g.phases)) if several else s.const(1),
            s.number("tiles_m", -(-g.rows // size)),
            s.number("tiles_n", -(-g.columns // size)),
        ]
        block = s.let(s.block_index, "block")
        part, self.group, self.phase, m, n = s.split(block, ["", *extents], "t")
        self.part = part
        self.group_first = s.const(0)  # channel of y
        if z.groups > 1:
            self.group_first = s.let(s.mul(self.group, s.number("outside", z.outside)), "first")
        self.first = (
            s.let(s.mul(m, s.const(size)), "first"),
            s.let(s.mul(n, s.const(size)), "first"),
        )
        self.tap_first, k = s.const(0), s.number("k", g.k)
        if several:
            self.at_phase = s.pointer("at_phase", "i64", _phases(g))
            self.tap_first, taps = self._of_phase(0), self._of_phase(1)
            k = s.let(s.mul(taps, self.channels), "k")
        self.k_first, self.k_end = s.const(0), k
        if self.parts > 1:
            each = s.number("run", cut(g.k, self.parts, self.tile.depth).run)
            self.k_first = s.let(s.mul(part, each), "k_first")
            end = s.let(s.add(self.k_first, each), "end")
            self.k_end = s.let(f"{end} if {end} < {k} else {k}", "k_end")

    def _of_phase(self, k: int) -> str:
        """Number k of what the table says of the block's phase."""
        s, width = self.s, 2 + len(self.g.axes)
        place = s.add(s.mul(self.phase, s.const(width)), s.const(k))
        return s.let(s.cast(f"{self.at_phase}[{place}]"), "of_phase")

    def launch(self) -> Launch:
        """The launch of the whole kernel."""
        room = Rows(self.tile, self.loop.sums).room
        sums = self.loop.run(self.k_first, self.k_end, self._read, room)
        limits = self.rows, self.columns
        self.epilogue.write_tile(self.loop, sums, self.first, limits, self._place)
        g = self.g
        tiles = tiles_in(g.rows, g.columns, self.tile) * g.sizes.groups * len(g.phases)
        return self.s.launch(tiles * self.parts)

    # -- reading ----------------------------------------------------------------------------------

    def _read(self, which: int, place: str, k: str, name: str) -> None:
        s = self.s
        inside = [f"{k} < {self.k_end}"]
        if which == 0:
            row, end = ("tap", "position") if self.is_kernel else ("position", "tap")
            one, two = self._side(row, place), self._side(end, k)
            meet = [s.let(s.add(p, q), "p") for p, q in zip(one[0], two[0], strict=True)]
            for p, limit in zip(meet, self.limits, strict=True):
                inside += [f"{p} >= i64(0)"] * (s.index == "i64") + [f"{p} < {limit}"]
            address = s.add(one[1], two[1])
        else:
            address = self._of_b(place, k)
        with s.block(f"if {' and '.join(inside)}"):
            value = self.loop.element(self.dtype, (self.a, self.b)[which], address)
            s.line(f"{name} = {value}")

    def _side(self, what: str, key: str) -> tuple[list[str], str, str]:
        """Of a row of the tile or a number of k, written once: (a number for each axis - those of
        both sides add up to where they meet; an address, of which the same holds; the address in w
        of a tap). What is beyond the end is taken for another one that is not."""
        s = self.s
        if (what, key) not in self._sides:
            if (what == "tap") == self.is_kernel:
                number = s.let(s.add(self.first[0], key), "row")
                text = f"{number} if {number} < {self.rows} else {s.sub(self.rows, s.const(1))}"
            else:
                text = f"{key} if {key} < {self.k_end} else {s.const(0)}"
            number = s.let(text, what)
            made = self._position(number) if what == "position" else self._tap(number)
            self._sides[what, key] = made
        return self._sides[what, key]

    def _position(self, number: str) -> tuple[list[str], str, str]:
        s, g = self.s, self.g
        n, *at = s.split(number, ["", *self.counts], "o")
        address, places = n, []
        for a, (o, axis) in enumerate(zip(at, g.axes, strict=True)):
            place = o if axis.step == 1 else s.mul(o, self._number(f"step{a}", axis.step))
            place = s.add(place, self._number(f"start{a}", axis.start)) if axis.start else place
            places.append(s.let(place, "place"))
            address = s.add(s.mul(address, self.limits[a]), places[-1])
        first = s.mul(self.group, self.channels) if g.sizes.groups > 1 else s.const(0)
        return places, s.let(s.add(s.mul(address, self.a_all), first), "base"), ""

    def _number(self, name: str, value: int) -> str:
        """A parameter, once."""
        if name not in self._numbers:
            self._numbers[name] = self.s.number(name, value)
        return self._numbers[name]

    def _tap(self, number: str) -> tuple[list[str], str, str]:
        s, d = self.s, len(self.g.axes)
        t = s.let(s.div(number, self.channels), "t")
        c = s.let(s.sub(number, s.mul(t, self.channels)), "c")
        line = s.let(s.mul(s.add(self.tap_first, t), s.const(d + 2)), "line")

        def entry(k: int) -> str:
            return s.let(s.cast(f"{self.taps}[{s.add(line, s.const(k))}]"), "entry")

        shifts = [entry(a) for a in range(d)]
        in_w = s.let(s.add(entry(d + 1), c), "in_w") if self.g.adjoint else ""
        return shifts, s.let(s.add(entry(d), c), "away"), in_w

    def _of_b(self, place: str, k: str) -> str:
        """The address in B of a column of the tile."""
        s = self.s
        if place not in self._columns:
            column = s.let(s.add(self.first[1], place), "column")
            end = s.sub(self.columns, s.const(1))
            column = s.let(f"{column} if {column} < {self.columns} else {end}", "column")
            line = s.mul(column, self.y_all) if self.g.adjoint else column
            self._columns[place] = s.let(s.add(line, self.group_first), "base")
        if self.g.adjoint:
            return s.add(self._columns[place], self._side("tap", k)[2])
        return s.add(self._columns[place], s.mul(k, self.y_all))

    # -- storing ----------------------------------------------------------------------------------

    def _place(self, row: str, column: str) -> tuple[str, str, str]:
        """Of a row and column of C: those of the result, and what has to hold for the row to be in
        it."""
        s, g = self.s, self.g
        live: list[str] = []
        first = s.const(0) if g.adjoint else self.group_first
        if g.adjoint:
            n, *at = s.split(row, ["", *self.counts], "q")
            row = n
            for a, (q, axis) in enumerate(zip(at, g.kept, strict=True)):
                p = q
                if len(g.phases) > 1:
                    p = s.mul(q, self._number(f"stride{a}", g.sizes.strides[axis]))
                    p = s.let(s.add(p, self._of_phase(2 + a)), "p")
                    end = self._number(f"large{a}", g.sizes.large[axis])
                    live.append(f"{p} < {end}")
                row = s.add(s.mul(row, self._number(f"large{a}", g.sizes.large[axis])), p)
            if g.sizes.groups > 1:
                first = s.mul(self.group, self.columns)
        if self.parts > 1:
            rows = self._number("all_rows", self.conv.size[0])
            row = s.add(row, s.mul(self.part, rows))
        return s.let(row, "row"), s.let(s.add(column, first), "column"), " and ".join(live)


def _table(g: Geometry) -> Pool | Numbers:
    """Of each tap: a shift for each axis, their sum as an address in A, the address in w. One more
    is there to be read where there is no tap."""
    z = g.sizes
    numbers: list[int] = []
    for tap in (tap for taps in g.taps for tap in taps):
        away = 0
        for shift, axis in zip(tap.shifts, g.axes, strict=True):
            away = away * axis.limit + shift
        in_w = tap.number * z.inside * z.groups * z.outside
        numbers += [*tap.shifts, away * z.groups * g.channels, in_w]
    return table_of([*numbers, *[0] * (len(g.axes) + 2)])


def _phases(g: Geometry) -> Pool | Numbers:
    """Of each phase: its first tap in the table, how many there are, where it is in each axis."""
    numbers: list[int] = []
    first = 0
    for taps, phase in zip(g.taps, g.phases, strict=True):
        numbers += [first, len(taps), *phase]
        first += len(taps)
    return table_of(numbers)
