"""Convolutions (`weft/ir/ops/windows.py`): implicit GEMM in tiles, or one thread for each result.

Tiles where there is enough to multiply; else, as where each channel is its own group, each result
is added up by one thread: over the taps that see something, in order, then channels, or positions.
`conv_kernel`, whose sums are long and few, then gives each thread some items of the batch; a second
launch adds those up. 16-bit floats add up in f32. All orders are fixed by the sizes.

Tiles: products of matrices that are not made, with patches in shared memory. C = A B, where A is
gathered from an array by positions and taps (implicit GEMM), tap by tap:

| op          | rows of C          | columns | k                     | A      | B |
|-------------|--------------------|---------|-----------------------|--------|---|
| conv        | batch, positions   | outside | taps, inside          | x      | w |
| conv_input  | batch, positions   | inside  | taps, outside         | y      | w |
| conv_kernel | taps, inside       | outside | batch, positions of y | x      | y |

A position and a tap meet at position + shift of the tap, if that is inside the array; the shifts
are in a table. Strided, conv_input has a product for each phase (the position modulo the strides),
with only those taps that reach it. Groups are products of their own. k is gone through in order,
taps first; where C has few tiles k is cut into parts, by the sizes alone, whose sums are added up
by a second launch.

What follows is done as after products of matrices (`products/epilogue.py`): the result of a
convolution is a matrix for the nest that follows, whose rows are all axes but the last, and whose
columns are the channels of all groups.

What a tap sees beyond the edges takes no part; in tiles it is a 0, which makes NaN of an infinity.
So sums that are NaN then are added up anew by one thread each, before anything follows; of a
`conv_kernel` by a launch of their own."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from itertools import product as pairs

from weft.codegen.call import Address, Numbers, Pool, Scratch, table_of
from weft.codegen.cuda.kernels.axes import computed_dtype, count_of, dtype_of, shape_of
from weft.codegen.cuda.kernels.pooling import Sliding, flat
from weft.codegen.cuda.nests.accumulators import Partial, combine_launches
from weft.codegen.cuda.products.epilogue import AddParts, Epilogue, cut, index_of_epilogue
from weft.codegen.cuda.products.fused import (
    Follow,
    check_operands,
    over_rows,
    store_nest,
    stored_alone,
)
from weft.codegen.cuda.products.tiles import (
    TILES,
    WRITTEN_OUT,
    Rows,
    Tile,
    bits_of,
    choose,
    loop_in,
    sums_dtype,
    tiles_in,
)
from weft.codegen.cuda.source.dtypes import FLOATS, literal, load, nbytes, register_dtype, stored
from weft.codegen.cuda.source.elementwise import expression
from weft.codegen.cuda.source.kernel import Launch
from weft.codegen.cuda.source.writer import IndexDtype, Source, index_dtype
from weft.codegen.nests.nest import Nest, plain_nest
from weft.codegen.products.calls import operands_of, product_in, without_product
from weft.codegen.windows.geometry import Sizes, sizes_of
from weft.ir.dataclass import dataclass
from weft.ir.graph import Operation
from weft.ir.spec import int_attr

#: Rows, columns and k of a product, at least.
LEAST = (16, 8, 8)


@dataclass(frozen=True, slots=True)
class _Axis:
    """One spatial axis: `count` positions at p * step + start, `limit` elements of the array."""

    count: int
    step: int
    start: int
    limit: int

    def always_inside(self, shift: int) -> bool:
        """Whether every position meets the shift inside the array."""
        first = self.start + shift
        return first >= 0 and first + (self.count - 1) * self.step < self.limit


@dataclass(frozen=True, slots=True)
class _Tap:
    """A tap of the window. shifts: one number for each axis; number: row-major among all taps."""

    shifts: tuple[int, ...]
    number: int


class Geometry:
    """The operands of a convolution as matrices A, B and C: the table in the module's docstring."""

    def __init__(self, op: Operation) -> None:
        z = self.sizes = sizes_of(op)
        self.op = op
        ones = zip(z.large, z.window, z.small, z.strides, z.lo, strict=True)
        kept = [a for a, ones_ in enumerate(ones) if ones_ != (1, 1, 1, 1, 0)] or [0]
        self.kept = kept
        self.adjoint = op.name == "conv_input"
        self.phases = (
            list(pairs(*(range(z.strides[a]) for a in kept)))
            if self.adjoint
            else [(0,) * len(kept)]
        )
        self.axes = [self._axis(z, a) for a in kept]
        self.taps = [self._taps(z, phase) for phase in self.phases]
        self.channels, self.columns = (
            (z.outside, z.inside) if self.adjoint else (z.inside, z.outside)
        )
        positions = z.batch * math.prod(axis.count for axis in self.axes)
        most = max(map(len, self.taps)) * self.channels
        kernel = op.name == "conv_kernel"
        self.rows, self.k = (most, positions) if kernel else (positions, most)

    def _axis(self, z: Sizes, a: int) -> _Axis:
        if self.adjoint:
            return _Axis(-(-z.large[a] // z.strides[a]), 1, 0, z.small[a])
        return _Axis(z.small[a], z.strides[a], -z.lo[a], z.large[a])

    def _taps(self, z: Sizes, phase: tuple[int, ...]) -> list[_Tap]:
        """Those that reach a phase, in their order."""
        along: list[list[tuple[int, int]]] = []  # of each axis (tap, shift)
        for a, at in zip(self.kept, phase, strict=True):
            all_taps = range(z.window[a])
            if not self.adjoint:
                along.append([(t, t * z.dilation[a]) for t in all_taps])
                continue
            back = [(t, at + z.lo[a] - t * z.dilation[a]) for t in all_taps]
            along.append([(t, e // z.strides[a]) for t, e in back if e % z.strides[a] == 0])
        out = []
        for tap in pairs(*along):
            number = 0
            for a, (t, _) in zip(self.kept, tap, strict=True):
                number = number * z.window[a] + t
            out.append(_Tap(tuple(shift for _, shift in tap), number))
        return out

    @property
    def fits(self) -> bool:
        """Whether the product is large enough for tiles."""
        given = self.rows, self.columns, self.k
        return all(n >= least for n, least in zip(given, LEAST, strict=True))

    @property
    def sees_nothing(self) -> bool:
        """Whether a tap is beyond the edges anywhere."""
        shifts = [tap.shifts for taps in self.taps for tap in taps]
        return not all(
            axis.always_inside(shift)
            for each in shifts
            for axis, shift in zip(self.axes, each, strict=True)
        )


@dataclass(frozen=True, slots=True)
class Convolution:
    """A convolution to launch. op: `conv`, `conv_input` or `conv_kernel`; operands: where its own
    are."""

    op: Operation
    operands: tuple[Address, ...]
    follow: Follow

    @property
    def name(self) -> str:
        """Of kernels."""
        return self.follow.nest.name

    @property
    def size(self) -> tuple[int, int]:
        """Rows and columns of the result."""
        columns = shape_of(self.op.result)[-1]
        return count_of(self.op.result) // max(columns, 1), columns

    def index(self, *counts: int) -> IndexDtype:
        """The dtype of indices of kernels that count up to these, too."""
        own = index_dtype(*map(count_of, (*self.op.operands, self.op.result)), *counts)
        return "i64" if index_of_epilogue(self.follow) == "i64" else own


def convolution(op: Operation) -> Convolution:
    """One by itself."""
    return Convolution(op, tuple(map(Address, op.operands)), stored_alone(op))


def fused_convolution(op: Operation, in_place: tuple[tuple[int, int], ...]) -> Convolution:
    """That of a `fused` op. in_place: operand number -> number of the result whose buffer it
    shares. UnsupportedError for an operand that is computed."""
    conv = product_in(op)
    check_operands(conv)
    rest, made = without_product(op)
    outputs, operands = (tuple(map(Address, vs)) for vs in (op.results, op.operands))
    follow = Follow(over_rows(plain_nest(rest, in_place)), made, outputs, operands)
    return Convolution(conv, tuple(operands_of(op)), follow)


#: What the operands and the result of each op are: x: (batch, large..., inside * groups), w:
#: (window..., inside, outside * groups), y: (batch, small..., outside * groups).
ROLES = {"conv": "xwy", "conv_input": "ywx", "conv_kernel": "xyw"}


class ConvSums:
    """Writes the sums of `op` in the kernel `s`. given: pointers to the operands, by their roles;
    they may be set later, before the first sum."""

    def __init__(self, s: Source, op: Operation, given: Mapping[str, str]) -> None:
        self.s, self.op, self.given = s, op, given
        self.dtype = dtype_of(op.result)
        self.kept = register_dtype(self.dtype)
        values = dict(zip(ROLES[op.name], (*op.operands, op.result), strict=True))
        x, w, y = (shape_of(values[r]) for r in "xwy")
        groups = int_attr(op.attrs, "groups")
        self.batch = x[0]
        self.inside, self.outside = s.number("inside", w[-2]), s.number("outside", w[-1] // groups)
        self.x_channels, self.y_channels = s.number("x_all", x[-1]), s.number("y_all", y[-1])
        self.sliding = Sliding(s, op, x[1:-1], w[:-2], y[1:-1])

    def total(self, i: str, parts: int = 1) -> str:
        """A name for the sum of result `i`; of a `conv_kernel` in parts for that of [part, result]
        `i`."""
        total = self.s.let(literal(self.kept, 0), "total")
        if self.op.name == "conv":
            self._forward(total, i)
        elif self.op.name == "conv_input":
            self._input(total, i)
        else:
            self._kernel(total, i, parts)
        return total

    def _multiply_add(self, total: str, a: str, b: str) -> None:
        s, dtype = self.s, self.kept
        if dtype in ("f32", "f64"):
            s.line(f"{total} = fma_{dtype}({a}, {b}, {total})")
            return
        product = s.let(expression("multiply", dtype, dtype, [a, b]), "product")
        s.line(f"{total} = {expression('add', dtype, dtype, [total, product])}")

    def _read(self, role: str, place: str) -> str:
        return self.s.let(load(self.dtype, self.given[role], place), role)

    def _x_at(self, n: str, at: list[str], channel: str) -> str:
        return flat(self.s, [n, *at, channel], ["", *self.sliding.large, self.x_channels])

    def _y_at(self, n: str, at: list[str], channel: str) -> str:
        return flat(self.s, [n, *at, channel], ["", *self.sliding.small, self.y_channels])

    def _w_at(self, taps: list[str], i: str, j: str) -> str:
        extents = [*self.sliding.window, self.inside, self.y_channels]
        return flat(self.s, [*taps, i, j], extents)

    def _forward(self, total: str, i: str) -> None:
        """y[n, o, j]: over taps, then the channels of j's group."""
        s = self.s
        n, *at, j = s.split(i, ["", *self.sliding.small, self.y_channels])
        first = s.let(s.mul(s.div(j, self.outside), self.inside), "first")
        with self.sliding.taps_of_small(at) as (taps, seen):
            x = s.let(self._x_at(n, seen, first), "at")
            w = s.let(self._w_at(taps, s.const(0), j), "at")
            with s.loop(s.const(0), self.inside, s.const(1), "c") as c:
                one = self._read("x", s.add(x, c))
                two = self._read("w", s.add(w, s.mul(c, self.y_channels)))
                self._multiply_add(total, one, two)

    def _input(self, total: str, i: str) -> None:
        """x[n, p, i]: over the taps that see p, then the channels of i's group."""
        s = self.s
        n, *at, channel = s.split(i, ["", *self.sliding.large, self.x_channels])
        group = s.let(s.div(channel, self.inside), "group")
        own = s.let(s.sub(channel, s.mul(group, self.inside)), "own")
        first = s.let(s.mul(group, self.outside), "first")
        with self.sliding.taps_of_large(at) as (taps, found):
            y = s.let(self._y_at(n, found, first), "at")
            w = s.let(self._w_at(taps, own, first), "at")
            with s.loop(s.const(0), self.outside, s.const(1), "c") as c:
                self._multiply_add(
                    total, self._read("y", s.add(y, c)), self._read("w", s.add(w, c))
                )

    def _kernel(self, total: str, i: str, parts: int) -> None:
        """w[k, i, j]: over the items of a part of the batch, then all positions of the result."""
        s, sliding = self.s, self.sliding
        part, *taps, own, j = s.split(i, ["", *sliding.window, self.inside, self.y_channels])
        group = s.div(j, self.outside)
        channel = s.let(s.add(s.mul(group, self.inside), own), "channel")
        run = -(-self.batch // parts)
        items = s.number("batch", self.batch)
        first, last = s.const(0), items
        if parts > 1:
            each = s.number("run", run)
            first = s.let(s.mul(part, each), "first")
            end = s.let(s.add(first, each), "end")
            last = s.let(f"{end} if {end} < {items} else {items}", "last")
        with s.loop(first, last, s.const(1), "n") as n, ExitStack() as stack:
            places, seen = [], []
            for a, small in enumerate(sliding.small):
                o = stack.enter_context(s.loop(s.const(0), small, s.const(1), "o"))
                seen.append(stack.enter_context(sliding.meeting(a, o, taps[a])))
                places.append(o)
            one = self._read("x", self._x_at(n, seen, channel))
            two = self._read("y", self._y_at(n, places, j))
            self._multiply_add(total, one, two)


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
    bits = 32 if bits == 8 else bits  # elements in four places of k take four times the registers
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
        self.epilogue = Epilogue(s, conv.follow, dtype)
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


#: Sums of a conv_kernel are cut into parts until there are so many threads.
WANTED = 1 << 17


def conv_launches(op: Operation) -> list[Launch]:
    """conv, conv_input, conv_kernel. UnsupportedError for complex numbers."""
    return _launches(convolution(op))


def fused_conv_launches(
    op: Operation, in_place: tuple[tuple[int, int], ...]
) -> tuple[list[Launch], Nest]:
    """The launches of a `fused` op that holds a convolution, and the nest that follows it."""
    conv = fused_convolution(op, in_place)
    return _launches(conv), conv.follow.nest


def nan_launches(op: Operation) -> list[Launch]:
    """What adds up results that are NaN anew, where zeros beyond the edges were multiplied."""
    dtype, out = computed_dtype(op, op.result), Address(op.result)
    if not (Geometry(op).sees_nothing and dtype in FLOATS and count_of(op.result)):
        return []
    kernel = _Kernel(convolution(op), "_nan", 1)
    s, pointer = kernel.s, kernel.s.pointer("out", dtype, out)
    with s.block(f"if {kernel.i} < {kernel.count}"):
        made = s.let(load(dtype, pointer, kernel.i), "made")
        with s.block(f"if {made} != {made}"):
            s.line(f"{pointer}[{kernel.i}] = {stored(dtype, kernel.sums.total(kernel.i))}")
    return [kernel.launch()]


def _launches(conv: Convolution) -> list[Launch]:
    op, geometry = conv.op, Geometry(conv.op)
    computed_dtype(op, op.result)
    if not count_of(op.result):
        return []
    if geometry.fits:
        more = nan_launches(op) if op.name == "conv_kernel" else []
        return [*tiled_launches(conv, geometry), *more]
    batch, count = shape_of(op.operands[0])[0], count_of(op.result)
    parts = max(1, min(batch, WANTED // count)) if op.name == "conv_kernel" else 1
    return [_each_result(conv)] if parts == 1 else _in_parts(conv, parts)


class _Kernel:
    """A kernel under construction: a thread for each of `count` results `i`, of each part."""

    def __init__(self, conv: Convolution, way: str, parts: int) -> None:
        op, size = conv.op, count_of(conv.op.result) * parts
        dtype, index = computed_dtype(op, op.result), conv.index(size)
        axes = len(shape_of(op.result)) - 2
        s = self.s = Source(f"{conv.name}_{dtype}_{axes}d{way}_{index}", index)
        given = zip(ROLES[op.name], conv.operands, strict=False)
        self.sums = ConvSums(s, op, {role: s.pointer(role, dtype, at) for role, at in given})
        self.size, self.count = size, s.number("count", size)
        self.i = s.let(s.add(s.mul(s.block_index, s.const(s.threads)), s.thread), "i")

    def launch(self) -> Launch:
        """Its launch."""
        return self.s.launch(-(-self.size // self.s.threads))


def _each_result(conv: Convolution) -> Launch:
    kernel = _Kernel(conv, "", 1)
    s, epilogue = kernel.s, Epilogue(kernel.s, conv.follow, kernel.sums.dtype)
    columns = s.number("columns", conv.size[1])
    with s.block(f"if {kernel.i} < {kernel.count}"):
        total = kernel.sums.total(kernel.i)
        row, column = s.split(kernel.i, ["", columns], "at")
        epilogue.write(row, column, [total])
    return kernel.launch()


def _in_parts(conv: Convolution, parts: int) -> list[Launch]:
    """Each part of the batch by threads of its own; only of a `conv_kernel`, by itself."""
    op, kernel = conv.op, _Kernel(conv, "_parts", parts)
    dtype, count = computed_dtype(op, op.result), count_of(op.result)
    s, kept = kernel.s, register_dtype(dtype)
    scratch = Scratch(kernel.size * nbytes(kept))
    out = s.pointer("out", kept, scratch)
    with s.block(f"if {kernel.i} < {kernel.count}"):
        s.line(f"{out}[{kernel.i}] = {stored(kept, kernel.sums.total(kernel.i, parts))}")
    partial = Partial("sum", dtype, kept, count, 0, Address(op.result))
    return [kernel.launch(), *combine_launches([partial], scratch, parts)]
