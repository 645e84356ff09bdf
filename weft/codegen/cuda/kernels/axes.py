"""Lines along an axis of data seen as (outer, n, inner), and how they are dealt out to threads.

A line is the elements along the axis at one outer and inner index; how lines are shared follows
from sizes alone. A block has a tile of `width` columns side by side and `deep` threads along the
axis for each of them; long lines are cut into parts, each of which is a block's. Short lines are a
thread's (deep 1): blocks then have neighbouring lines, whatever their outer index."""

from __future__ import annotations

import math

from weft.codegen.cuda.nests.plain_nests import Split, split
from weft.codegen.cuda.source.dtypes import DTYPES
from weft.codegen.cuda.source.kernel import THREADS, WARP
from weft.codegen.cuda.source.writer import Source
from weft.ir.dataclass import dataclass
from weft.ir.errors import UnsupportedError
from weft.ir.graph import Operation, Value
from weft.ir.sizes import fixed, next_power
from weft.ir.spec import int_attr
from weft.ir.types import TensorType


def tensor(value: Value) -> TensorType:
    """The type of a value that is known to be a tensor."""
    assert isinstance(value.type, TensorType)
    return value.type


def shape_of(value: Value) -> tuple[int, ...]:
    """Its sizes."""
    return tensor(value).static_shape


def dtype_of(value: Value) -> str:
    """Its dtype, by its short name."""
    return tensor(value).dtype.short


def count_of(value: Value) -> int:
    """How many elements it has."""
    return math.prod(shape_of(value))


def axis_sizes(op: Operation) -> tuple[int, int, int]:
    """(outer, n, inner): the sizes of the first operand before, along and after the op's axis."""
    shape, axis = shape_of(op.operands[0]), int_attr(op.attrs, "axis")
    return math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])


def computed_dtype(op: Operation, value: Value) -> str:
    """The dtype of a value that a kernel computes with. UnsupportedError for complex numbers."""
    dtype = dtype_of(value)
    if dtype not in DTYPES:
        raise UnsupportedError(
            f"op '{op.name}' on {tensor(value).dtype.name} has no GPU kernel",
            location=op.locations,
        )
    return dtype


#: Lines of at most so many elements are a thread's; rows of at most so many are a warp's.
SHORT, WARP_ROW = 16, 256
#: A line is cut if it is longer than so many turns of its block.
TURNS = 8


@dataclass(frozen=True, slots=True)
class Lines:
    """The share of a block in lines: width * deep threads; a thread has `each` elements a turn;
    `cut`: the parts."""

    outer: int
    n: int
    inner: int
    width: int
    deep: int
    each: int
    cut: Split

    @property
    def threads(self) -> int:
        """Of a block."""
        return self.width * self.deep

    @property
    def warps(self) -> int:
        """Of a block."""
        return self.threads // WARP

    @property
    def name(self) -> str:
        """What differs between kernels, for people."""
        return f"{self.width}x{self.deep}"

    @property
    def tiles(self) -> int:
        """Blocks of all lines, if each part of them has one."""
        lines = self.outer * self.inner
        return -(-lines // self.width) if self.deep == 1 else self.outer * _tiles(self)

    @property
    def partials(self) -> int:
        """Partial results, of all parts but the last."""
        return self.outer * (self.cut.parts - 1) * self.inner


def lines_of(sizes: tuple[int, int, int], each: int) -> Lines:
    """How the lines of data of sizes (outer, n, inner) are dealt out."""
    outer, n, inner = sizes
    if n <= SHORT:
        return Lines(outer, n, inner, THREADS, 1, each, Split(1, n))
    width = fixed(next_power(inner)) if inner < WARP else WARP
    deep = WARP if width == 1 and n <= WARP_ROW else THREADS // width
    whole = Lines(outer, n, inner, width, deep, each, Split(1, n))
    turn = deep * each
    if n <= TURNS * turn:
        return whole
    cut = split(n, whole.tiles, turn, turn)
    return Lines(outer, n, inner, width, deep, each, cut)


def _tiles(lines: Lines) -> int:
    return -(-lines.inner // lines.width)


class Line:
    """The share of a thread in lines, as names in the kernel: `column`, which one of its tile;
    `lane`, its number along the axis; `base`, the place of its line's first element; `live` ("" for
    always), whether that line is its own and not another thread's; of the line's parts the `part`,
    whose elements are those from `start` until before `stop`.

    parts: how many parts of each line have a block; they are the first ones.
    """

    def __init__(self, s: Source, lines: Lines, parts: int) -> None:
        self.s, self.lines = s, lines
        self.n = s.number("n", lines.n)
        self.inner = s.const(1) if lines.width == 1 else s.number("inner", lines.inner)
        self.thread = s.let(s.thread, "thread")
        zero = s.const(0)
        self.part, self.start, self.stop, self.live, self.lane = zero, zero, self.n, "", zero
        self.column = zero
        if lines.deep == 1:
            self._alone()
            return
        block = s.let(s.block_index, "block")
        tile = zero
        if lines.cut.parts > 1:
            block, self.part = s.split(block, ["", s.number("parts", parts)], "part")
            size = s.number("size", lines.cut.size)
            self.start = s.let(s.mul(self.part, size), "start")
            end = s.let(s.add(self.start, size), "end")
            self.stop = s.let(f"{end} if {end} < {self.n} else {self.n}", "stop")
        self.outer, self.at = block, zero
        self.lane = self.thread
        if lines.width > 1:
            self.outer, tile = s.split(block, ["", s.number("tiles", _tiles(lines))], "tile")
            width = s.const(lines.width)
            self.column = s.let(s.mod(self.thread, width), "column")
            self.lane = s.let(s.div(self.thread, width), "lane")
            at = s.let(s.add(s.mul(tile, width), self.column), "at")
            self.live = s.let(f"{at} < {self.inner}", "live")
            last = s.sub(self.inner, s.const(1))
            self.at = s.let(f"{at} if {self.live} else {last}", "at")
        self.base = s.let(self.place_in(self.n, zero), "base")

    def _alone(self) -> None:
        s, lines = self.s, self.lines
        count = s.number("lines", lines.outer * lines.inner)
        i = s.let(s.add(s.mul(s.block_index, s.const(lines.threads)), self.thread), "i")
        self.live = s.let(f"{i} < {count}", "live")
        i = s.let(f"{i} if {self.live} else {s.sub(count, s.const(1))}", "i")
        self.outer, self.at = s.split(i, ["", self.inner])
        self.base = s.let(self.place_in(self.n, s.const(0)), "base")

    def place_in(self, n: str, j: str) -> str:
        """Of element j of the line, among lines of `n`."""
        s = self.s
        row = s.add(s.mul(self.outer, n), j)
        return s.add(s.mul(row, self.inner), self.at)

    def place(self, j: str) -> str:
        """Of element j of the line."""
        return self.s.add(self.base, self.s.mul(j, self.inner))

    def when(self, *tests: str) -> str:
        """The header of a block for live threads for which the tests hold."""
        held = [*([self.live] if self.live else []), *tests]
        return f"if {' and '.join(held)}"
