"""Scatters, which do several updates of one element in their order, always the same one; and
first_occurrence.

The operand is in the result already (the plan puts it there). A block has one part of the result
(what one index names) and some of its columns; it looks through all indices for its own, so many at
a time as it has threads, and does their updates in order. Where there are fewer updates than parts
a block has an update: if no earlier one is for the same part, it does all of that part's. Where
that would be more looking than sorting is, the indices are sorted.

Sorting tells equal indices apart. Each index becomes a key of 64 bits, the number of the part that
it names above its position; an index out of bounds is after all parts. The sorted keys have the
indices of a part side by side, in the order of their positions. An update then has the threads of
its columns: those of the first one of a part do the part's first `PIECE` updates in order; the
others end at once. So the sums are those of one thread after the other.

What a part has beyond that is cut into pieces of `PIECE` updates, counted from its first one. Each
is put together in order by threads of its own, beginning with its first update, and a second launch
does the pieces to the element, in their order: sums of floats then differ from those of one thread
by their rounding, and depend on the part's own updates alone.

first_occurrence looks through few indices by a thread for each; many are sorted."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

from weft.codegen.call import Address, Scratch
from weft.codegen.cuda.kernels.axes import axis_sizes, computed_dtype, count_of, dtype_of, shape_of
from weft.codegen.cuda.kernels.data_movement import Indices, check_launches
from weft.codegen.cuda.kernels.sort import RUN, keys_in_order, passes_of
from weft.codegen.cuda.source.dtypes import (
    HALVES,
    literal,
    load,
    loaded,
    nbytes,
    register_dtype,
    stored,
)
from weft.codegen.cuda.source.elementwise import expression
from weft.codegen.cuda.source.kernel import LANES, LOADS, STORES, Launch, memory_dtype
from weft.codegen.cuda.source.writer import MANY, Source, index_dtype
from weft.ir.analysis.index_maps import index_sizes
from weft.ir.dataclass import dataclass
from weft.ir.graph import Operation, Value
from weft.ir.ops.data_movement import COMBINES
from weft.ir.sizes import next_power
from weft.ir.spec import int_attr

#: How many updates of a part are read ahead of the sums, so that these wait for memory once.
AHEAD = 4
#: A vector of columns has no more elements than this: registers.
MOST_LANES = 8
#: Sorting has to save so many times its own loads: it takes several launches.
WORTH = 4
#: So many updates of one part are done one after the other.
PIECE = 256
#: So many indices are put in order in any case, as they may all name one part.
LONG = 2048

#: Text of the register value that an update makes of (held, value).
Meeting = Callable[[str, str], str]


def loads_in_order(n: int) -> int:
    """Loads of each of `n` keys while they are sorted, at most."""
    return 2 + RUN + sum(1 + (RUN << k).bit_length() for k in range(passes_of(n)))


def worth_ordering(n: int, parts: int, looks: int) -> bool:
    """Whether sorting `n` indices into `parts` parts is less work than looking at each `looks`
    times, or could be. By the sizes alone."""
    return max(n, parts) < MANY and (n > LONG or looks > WORTH * loads_in_order(n))


@dataclass(frozen=True, slots=True)
class Keys:
    """Sorted keys: `n` u64 from element `first` of the scratch memory on; from byte `room` on that
    is free."""

    memory: Scratch
    first: int
    n: int
    room: int

    def parameter(self, s: Source) -> tuple[str, str]:
        """(the pointer, its first element)."""
        pointer = s.pointer("keys", "u64", self.memory)
        return pointer, s.number("first", self.first) if self.first else s.const(0)


def key_launches(
    index: Value,
    sizes: Sequence[int],
    parts: int,
    tells: bool = False,
    along: tuple[int, int] = (0, 0),
    room: int = 0,
) -> tuple[list[Launch], Keys]:
    """The keys of the indices in order, and `room` bytes after them. tells: of indices out of
    bounds, which then count as 0.
    along: (n, inner) of indices (outer, n, inner) into parts (outer, size, inner), each of them
    along its own column."""
    depth = len(sizes)
    n = count_of(index) // depth
    keys_end = -(-16 * n // 64) * 64
    memory = Scratch(keys_end + -(-room // 64) * 64)
    kind = index_dtype(2 * n * depth, parts + 1)
    how = "_tells" * tells + "_columns" * any(along)
    s = Source(f"keys_{dtype_of(index)}_{depth}{how}_{kind}", kind)
    keys = s.pointer("keys", "u64", memory)
    indices = Indices(s, index, sizes, tells)
    count = s.number("rows", n)
    row = s.let(s.add(s.mul(s.block_index, s.const(s.threads)), s.thread), "row")
    with s.block(f"if {row} < {count}"):
        number, good = indices.read(row)
        if any(along):
            width = s.number("inner", along[1])
            outer, _, column = s.split(row, ["", s.number("n", along[0]), width])
            number = s.add(s.mul(outer, indices.sizes[0]), number)
            number = s.let(s.add(s.mul(number, width), column), "place")
        if not tells:
            number = f"({number} if {good} else {s.number('parts', parts)})"
        s.line(f"{keys}[{row}] = u64(u64(u64({number}) << u64(32)) | u64({row}))")
    launches, first = keys_in_order(n, memory)
    return [s.launch(-(-n // s.threads)), *launches], Keys(memory, first, n, keys_end)


class _Columns:
    """Some columns, in registers: elements of `dtype` that lie side by side, `lanes` of them."""

    def __init__(self, s: Source, dtype: str, lanes: int) -> None:
        self.s, self.dtype, self.lanes = s, dtype, lanes

    def load(self, names: Sequence[str], pointer: str, place: str) -> None:
        """Sets the names to the elements from `place` on."""
        s = self.s
        if self.lanes == 1:
            s.line(f"{names[0]} = {load(self.dtype, pointer, place)}")
            return
        for first, group in self._groups(names):
            raw = [s.fresh("raw") for _ in group]
            at = s.add(place, s.const(first))
            s.line(f"{', '.join(raw)} = {LOADS[memory_dtype(self.dtype)]}({pointer}, {at})")
            for name, one in zip(group, raw, strict=True):
                s.line(f"{name} = {loaded(self.dtype, one)}")

    def store(self, names: Sequence[str], pointer: str, place: str) -> None:
        """Stores them."""
        texts = [stored(self.dtype, name) for name in names]
        if self.lanes == 1:
            self.s.line(f"{pointer}[{place}] = {texts[0]}")
            return
        for first, group in self._groups(texts):
            store = STORES[memory_dtype(self.dtype)]
            at = self.s.add(place, self.s.const(first))
            self.s.line(f"{store}({pointer}, {at}, {', '.join(group)})")

    def _groups(self, names: Sequence[str]) -> list[tuple[int, Sequence[str]]]:
        """Those of 128 bits, each with the number of its first one."""
        wide = LANES[memory_dtype(self.dtype)]
        return [(k, names[k : k + wide]) for k in range(0, len(names), wide)]

    def names(self, hint: str) -> list[str]:
        """New ones, of zeros."""
        zero = literal(register_dtype(self.dtype), 0)
        return [self.s.let(zero, hint) for _ in range(self.lanes)]


def _lanes(dtype: str, inner: int) -> int:
    lanes = LANES[memory_dtype(dtype)]
    return lanes if inner % lanes == 0 and lanes <= MOST_LANES else 1


@dataclass(frozen=True, slots=True)
class Updates:
    """Updates of parts, `meet` saying what each does: `result` (outer, parts, inner), in which the
    operand lies, and `updates` (outer, n, inner), both of `dtype`."""

    name: str
    dtype: str
    result: Value
    updates: Value
    sizes: tuple[int, int, int]
    meet: Meeting


def ordered_launches(
    given: Updates,
    index: Value,
    bounds: Sequence[int],
    along: tuple[int, int] = (0, 0),
) -> list[Launch]:
    """Put the indices in order, and do the updates. bounds, along: as `key_launches` has them."""
    outer, parts, inner = given.sizes
    n = count_of(index) // len(bounds)
    in_pieces = (along[0] if any(along) else n) > PIECE  # the most that a part can have
    size = outer * -(-n // PIECE) * inner * nbytes(register_dtype(given.dtype))
    room = size if in_pieces else 0
    launches, keys = key_launches(index, bounds, parts, along=along, room=room)
    launches.append(_Updates(given, keys, in_pieces).launch())
    if in_pieces:
        launches.append(_Pieces(given, keys).launch())
    return launches


class _Parts:
    """What both kernels have: a thread for some columns of each of `rows` (keys, or pieces)."""

    def __init__(self, way: str, given: Updates, keys: Keys, rows: int, in_pieces: bool) -> None:
        outer, parts, inner = given.sizes
        lanes = _lanes(given.dtype, inner)
        counts = count_of(given.result), count_of(given.updates), parts + 1
        kind = index_dtype(
            *counts, 2 * keys.n + PIECE * (AHEAD + 1), keys.room + keys.memory.nbytes
        )
        s = self.s = Source(f"{given.name}_{given.dtype}_{way}_{lanes}_{kind}", kind)
        self.given, self.meet = given, given.meet
        self.out = s.pointer("out", given.dtype, Address(given.result))
        self.keys, self.first = keys.parameter(s)
        self.parts, self.n = s.number("parts", parts), s.number("n", keys.n)
        self.inner, self.groups = s.number("inner", inner), s.number("groups", inner // lanes)
        self.size = outer * rows * (inner // lanes)
        self.count, self.columns = s.number("count", self.size), _Columns(s, given.dtype, lanes)
        self.held = _Columns(s, register_dtype(given.dtype), lanes)
        # Combined pieces: that which begins with key u in row u // PIECE. Two pieces that are not
        # the first of their parts are at least PIECE keys from each other.
        self.rows = ""
        if in_pieces:
            dtype = self.held.dtype
            self.pieces = s.pointer("pieces", dtype, keys.memory)
            self.pieces_first = s.number("pieces_first", keys.room // nbytes(dtype))
            self.rows = s.number("rows", -(-keys.n // PIECE))

    def _key(self, u: str) -> tuple[str, str]:
        """(the part, the position) of key u."""
        s = self.s
        key = s.let(f"{self.keys}[{s.add(self.first, u)}]", "key")
        part = s.let(s.cast(f"u64({key} >> u64(32))"), "part")
        return part, s.let(s.cast(f"u64({key} & u64(0xFFFFFFFF))"), "position")

    def _place(self, outer: str, rows: str, row: str, column: str) -> str:
        s = self.s
        line = s.add(s.mul(outer, rows), row)
        return s.let(s.add(s.mul(line, self.inner), column), "place")

    def _begin(self, part: str, u: str) -> str:
        """The number of the first key of key u's part: a binary search."""
        s = self.s
        low, high = s.let(s.const(0), "low"), s.let(u, "high")
        with s.block(f"while {low} < {high}"):
            half = s.let(s.add(low, s.div(s.sub(high, low), s.const(2))), "half")
            other, _ = self._key(half)
            with s.block(f"if {other} < {part}"):
                s.line(f"{low} = {s.add(half, s.const(1))}")
            with s.block("else"):
                s.line(f"{high} = {half}")
        return low

    def _slot(self, outer: str, u: str, column: str) -> str:
        s = self.s
        place = self._place(outer, self.rows, s.div(u, s.const(PIECE)), column)
        return s.add(self.pieces_first, place)


class _Updates(_Parts):
    """The kernel that reads the updates: the threads of the first key of a piece do something."""

    def __init__(self, given: Updates, keys: Keys, in_pieces: bool) -> None:
        way = "ordered_pieces" if in_pieces else "ordered"
        super().__init__(way, given, keys, keys.n, in_pieces)
        self.updates = self.s.pointer("updates", given.dtype, Address(given.updates))

    def launch(self) -> Launch:
        """The launch of the whole kernel."""
        s = self.s
        i = s.let(s.add(s.mul(s.block_index, s.const(s.threads)), s.thread), "i")
        with s.block(f"if {i} < {self.count}"):
            outer, u, group = s.split(i, ["", self.n, self.groups])
            column = s.let(s.mul(group, s.const(self.columns.lanes)), "column")
            part, _ = self._key(u)
            before = f"{s.sub(u, s.const(1))} if {u} > {s.const(0)} else {u}"
            last, _ = self._key(s.let(before, "before"))
            good = s.let(f"{part} < {self.parts}", "good")
            begins = s.let(f"{u} == {s.const(0)} or {last} != {part}", "begins")
            with s.block(f"if {good} and {begins}"):
                self._first_piece(outer, u, part, column)
            if self.rows:
                with s.block(f"if {good} and (not {begins}) and {u} >= {s.const(PIECE)}"):
                    other, _ = self._key(s.let(s.sub(u, s.const(PIECE)), "other"))
                    with s.block(f"if {other} == {part}"):
                        self._later_piece(outer, u, part, column)
        return s.launch(-(-self.size // s.threads))

    def _first_piece(self, outer: str, u: str, part: str, column: str) -> None:
        place = self._place(outer, self.parts, part, column)
        totals = self.columns.names("total")
        self.columns.load(totals, self.out, place)
        self._piece(outer, (u, u), part, column, totals)
        self.columns.store(totals, self.out, place)

    def _later_piece(self, outer: str, u: str, part: str, column: str) -> None:
        s = self.s
        off = s.sub(u, self._begin(part, u))
        with s.block(f"if {s.mod(s.let(off, 'off'), s.const(PIECE))} == {s.const(0)}"):
            totals = self.columns.names("total")
            _, position = self._key(u)
            self.columns.load(totals, self.updates, self._place(outer, self.n, position, column))
            self._piece(outer, (u, s.add(u, s.const(1))), part, column, totals)
            self.held.store(totals, self.pieces, self._slot(outer, u, column))

    def _ahead(self, u: str, k: str, step: int) -> tuple[str, tuple[str, str]]:
        """(the number of the key `step` after key k, what `_key` says of it); beyond the last key
        it says that of key u."""
        s = self.s
        at = s.let(s.add(k, s.const(step)), "at")
        return at, self._key(s.let(f"{at} if {at} < {self.n} else {u}", "there"))

    def _piece(
        self,
        outer: str,
        keys: tuple[str, str],
        part: str,
        column: str,
        totals: list[str],
    ) -> None:
        """The updates of a piece. keys: the first one, and the first that `totals` lack."""
        s, columns, u = self.s, self.columns, keys[0]
        k, more = s.let(keys[1], "k"), s.let("boolean(True)", "more")
        end = s.let(s.add(u, s.const(PIECE)), "end")
        end = s.let(f"{end} if {end} < {self.n} else {self.n}", "end")
        with s.block(f"while {more}"):
            ahead = []
            for at, (other, position) in [self._ahead(u, k, step) for step in range(AHEAD)]:
                s.line(f"{more} = {more} and {at} < {end} and {other} == {part}")
                mine, values = s.let(more, "mine"), columns.names("value")
                with s.block(f"if {mine}"):
                    row = self._place(outer, self.n, position, column)
                    columns.load(values, self.updates, row)
                ahead.append((mine, values))
            for mine, values in ahead:
                with s.block(f"if {mine}"):
                    for total, value in zip(totals, values, strict=True):
                        s.line(f"{total} = {self.meet(total, value)}")
            s.line(f"{k} = {s.add(k, s.const(AHEAD))}")


class _Pieces(_Parts):
    """The kernel that does combined pieces to their elements: the threads of the first such piece
    of a part do them all."""

    def __init__(self, given: Updates, keys: Keys) -> None:
        super().__init__("of_pieces", given, keys, -(-keys.n // PIECE), in_pieces=True)

    def launch(self) -> Launch:
        """The launch of the whole kernel."""
        s = self.s
        piece = s.const(PIECE)
        i = s.let(s.add(s.mul(s.block_index, s.const(s.threads)), s.thread), "i")
        with s.block(f"if {i} < {self.count}"):
            outer, row, group = s.split(i, ["", self.rows, self.groups])
            column = s.let(s.mul(group, s.const(self.columns.lanes)), "column")
            # a part whose first such piece begins in this row has the row's first key, or that
            # piece begins with it
            here = s.let(s.mul(row, piece), "here")
            part, _ = self._key(here)
            begin = self._begin(part, here)
            u = s.let(s.add(begin, piece), "u")
            mine = f"{part} < {self.parts} and {u} >= {here} and {u} < {s.add(here, piece)}"
            with s.block(f"if {mine} and {u} < {self.n}"):
                self._part(outer, u, part, column)
        return s.launch(-(-self.size // s.threads))

    def _part(self, outer: str, u: str, part: str, column: str) -> None:
        s, columns = self.s, self.columns
        place = self._place(outer, self.parts, part, column)
        totals = columns.names("total")
        columns.load(totals, self.out, place)
        more = s.let("boolean(True)", "more")
        with s.block(f"while {more}"):
            ahead = []
            for step in range(AHEAD):
                at = s.let(s.add(u, s.const(step * PIECE)), "at")
                there = s.let(f"{at} if {at} < {self.n} else {s.const(0)}", "there")
                other, _ = self._key(there)
                s.line(f"{more} = {more} and {at} < {self.n} and {other} == {part}")
                mine, values = s.let(more, "mine"), self.held.names("value")
                with s.block(f"if {mine}"):
                    self.held.load(values, self.pieces, self._slot(outer, at, column))
                ahead.append((mine, values))
            for mine, values in ahead:
                with s.block(f"if {mine}"):
                    for total, value in zip(totals, values, strict=True):
                        s.line(f"{total} = {self.meet(total, value)}")
            s.line(f"{u} = {s.add(u, s.const(AHEAD * PIECE))}")
        columns.store(totals, self.out, place)


def first_occurrence_launches(op: Operation) -> list[Launch]:
    """For each index the position of the first that is equal."""
    (index,) = op.operands
    count = count_of(index)
    if not count:
        return []
    size = int_attr(op.attrs, "size")
    if worth_ordering(count, size, count // 2):
        launches, keys = key_launches(index, (size,), size, tells=True)
        return [*launches, _first_launch(op.result, keys)]
    kind = index_dtype(count)
    s = Source(f"first_occurrence_{dtype_of(index)}_{kind}", kind)
    out = s.pointer("out", "i64", Address(op.result))
    indices = Indices(s, index, (size,))
    # the same ones again, for which no faults are told of: whose position it is does that
    others = indices.quiet()
    n = s.number("n", count)
    i = s.let(s.add(s.mul(s.block_index, s.const(s.threads)), s.thread), "i")
    with s.block(f"if {i} < {n}"):
        mine, _ = indices.read(i)
        place = s.let(s.const(0), "place")
        looking = s.let("boolean(True)", "looking")
        with s.block(f"while {looking}"):
            number, _ = others.read(place)
            with s.block(f"if {number} == {mine} or {place} >= {i}"):
                s.line(f"{looking} = boolean(False)")
            with s.block("else"):
                s.line(f"{place} = {s.add(place, s.const(1))}")
        s.line(f"{out}[{i}] = i64({place})")
    return [s.launch(-(-count // s.threads))]


def _first_launch(result: Value, keys: Keys) -> Launch:
    """For each position (i64) the first one of the same part: a binary search among the keys."""
    kind = index_dtype(2 * keys.n)
    s = Source(f"first_of_part_{kind}", kind)
    out = s.pointer("out", "i64", Address(result))
    pointer, first = keys.parameter(s)
    n = s.number("n", keys.n)
    i = s.let(s.add(s.mul(s.block_index, s.const(s.threads)), s.thread), "i")
    with s.block(f"if {i} < {n}"):
        key = s.let(f"{pointer}[{s.add(first, i)}]", "key")
        wanted = s.let(f"u64(u64({key} >> u64(32)) << u64(32))", "wanted")
        low, high = s.let(s.const(0), "low"), s.let(i, "high")
        with s.block(f"while {low} < {high}"):
            half = s.let(s.add(low, s.div(s.sub(high, low), s.const(2))), "half")
            with s.block(f"if {pointer}[{s.add(first, half)}] < {wanted}"):
                s.line(f"{low} = {s.add(half, s.const(1))}")
            with s.block("else"):
                s.line(f"{high} = {half}")
        found = s.let(f"{pointer}[{s.add(first, low)}]", "found")
        position = s.let(s.cast(f"u64({key} & u64(0xFFFFFFFF))"), "position")
        s.line(f"{out}[{position}] = i64(u64({found} & u64(0xFFFFFFFF)))")
    return s.launch(-(-keys.n // s.threads))


_LEAST, _MOST = 32, 256
#: So many threads with a column each are few.
_FEW = 256


@dataclass(frozen=True, slots=True)
class _Sizes:
    """The result is (outer, parts, inner), the updates (outer, n, inner)."""

    outer: int
    parts: int
    inner: int
    n: int


def scatter_launches(op: Operation) -> list[Launch]:
    """index_add and scatter_nd_*. Indices are checked before anything is written."""
    x, index, updates = op.operands
    sizes = index_sizes(op)
    if op.name == "index_add":
        outer, parts, inner = axis_sizes(op)
        held = _Sizes(outer, parts, inner, count_of(index))
    else:
        depth = len(sizes)
        rows = math.prod(shape_of(index)[:-1])
        held = _Sizes(1, math.prod(sizes), math.prod(shape_of(x)[depth:]), rows)
    checks = check_launches(op, index)
    if not count_of(x) or not count_of(updates):
        return checks
    by_updates = held.n < held.parts
    threads = min(max(next_power(max(held.inner, held.n)), _LEAST), _MOST)
    tiles = -(-held.inner // threads)
    dtype = computed_dtype(op, x)
    looks = min(held.n, held.parts) * tiles * held.outer
    if worth_ordering(held.n, held.parts, looks):
        shape = held.outer, held.parts, held.inner
        meet = partial(updated_element, op.name, dtype)
        given = Updates(op.name, dtype, op.result, updates, shape, meet)
        return [*checks, *ordered_launches(given, index, sizes)]
    counts = [count_of(v) for v in op.operands] + [held.parts + 1]
    kind = index_dtype(*counts)
    way = "updates" if by_updates else "parts"
    s = Source(f"{op.name}_{dtype}_{len(sizes)}_by_{way}_{threads}_{kind}", kind, threads)
    _Writer(s, op, held, dtype, tiles).write(by_updates)
    return [*checks, s.launch(held.outer * (held.n if by_updates else held.parts) * tiles)]


class _Writer:
    def __init__(self, s: Source, op: Operation, sizes: _Sizes, dtype: str, tiles: int) -> None:
        _, index, updates = op.operands
        self.s, self.op, self.dtype = s, op, dtype
        self.out = s.pointer("out", dtype, Address(op.result))
        self.updates = s.pointer("updates", dtype, Address(updates))
        self.indices = Indices(s, index, index_sizes(op), tells=False)
        self.parts, self.inner = s.number("parts", sizes.parts), s.number("inner", sizes.inner)
        self.n, self.tiles = s.number("n", sizes.n), s.number("tiles", tiles)

    def write(self, by_updates: bool) -> None:
        """The whole kernel."""
        s = self.s
        each = self.n if by_updates else self.parts
        self.thread = s.let(s.thread, "thread")
        self.shared = s.let(f"cuda.shared.array({s.threads}, u32)", "shared")
        outer, mine, tile = s.split(s.let(s.block_index, "block"), ["", each, self.tiles])
        self.outer = outer
        self.column = s.let(s.add(s.mul(tile, s.const(s.threads)), self.thread), "column")
        if not by_updates:
            self._sum(mine, s.const(0))
            return
        part, good = self.indices.read(mine)
        first = s.let(good, "first")
        start = s.let(s.const(0), "start")
        with s.block(f"while {first} and {start} < {mine}"):
            here = self._matches(start, mine, part)
            earlier = s.let(f"cuda.syncthreads_or({here})", "earlier")
            with s.block(f"if {earlier}"):
                s.line(f"{first} = boolean(False)")
            s.line(f"{start} = {s.add(start, s.const(s.threads))}")
        with s.block(f"if {first}"):
            self._sum(part, mine)

    def _matches(self, start: str, stop: str, part: str) -> str:
        """Whether this thread's one of the next indices names the part."""
        s = self.s
        j = s.let(s.add(start, self.thread), "j")
        match = s.let("boolean(False)", "match")
        with s.block(f"if {j} < {stop}"):
            number, good = self.indices.read(j)
            s.line(f"{match} = {good} and {number} == {part}")
        return match

    def _sum(self, part: str, start: str) -> None:
        """All updates of a part, from number `start` on."""
        s = self.s
        place = s.mul(s.add(s.mul(self.outer, self.parts), part), self.inner)
        place = s.let(s.add(place, self.column), "place")
        live = s.let(f"{self.column} < {self.inner}", "live")
        total = s.let(literal(register_dtype(self.dtype), 0), "total")
        with s.block(f"if {live}"):
            s.line(f"{total} = {load(self.dtype, self.out, place)}")
        with s.loop(start, self.n, s.const(s.threads), "k") as k:
            match = self._matches(k, self.n, part)
            found = s.let(f"cuda.syncthreads_or({match})", "found")
            with s.block(f"if {found}"):
                s.line(f"{self.shared}[{self.thread}] = u32(1) if {match} else u32(0)")
                s.line("cuda.syncthreads()")
                # The next syncthreads_or is the barrier before `shared` is written again.
                self._each(k, total, live)
        with s.block(f"if {live}"):
            s.line(f"{self.out}[{place}] = {stored(self.dtype, total)}")

    def _each(self, k: str, total: str, live: str) -> None:
        s = self.s
        with (
            s.loop(s.const(0), s.const(s.threads), s.const(1), "q") as q,
            s.block(f"if {live} and {self.shared}[{q}] != u32(0)"),
        ):
            row = s.add(s.mul(self.outer, self.n), s.add(k, q))
            at = s.let(s.add(s.mul(row, self.inner), self.column), "at")
            value = s.let(load(self.dtype, self.updates, at), "value")
            s.line(f"{total} = {updated_element(self.op.name, self.dtype, total, value)}")


def updated_element(op: str, dtype: str, held: str, value: str) -> str:
    """What an update makes of the element that is there, rounded as in memory."""
    combine = COMBINES[op]
    if combine is None:
        return value
    text = expression(combine, dtype, dtype, [held, value])
    return loaded(dtype, stored(dtype, text)) if dtype in HALVES else text


def scatter_along_axis_launches(op: Operation) -> list[Launch]:
    """scatter_along_axis_add: a thread for each (outer, inner), its updates in order; where such
    threads would be few and long, the indices are put in order."""
    x, index, updates = op.operands
    outer, size, inner = axis_sizes(op)
    n = shape_of(index)[int_attr(op.attrs, "axis")]
    checks = check_launches(op, index)
    if not count_of(x) or not count_of(updates):
        return checks
    dtype = computed_dtype(op, x)
    parts = outer * size * inner
    if outer * inner <= _FEW and worth_ordering(outer * n * inner, parts, n):
        meet = partial(updated_element, op.name, dtype)
        every = Updates(op.name, dtype, op.result, updates, (1, parts, 1), meet)
        return [*checks, *ordered_launches(every, index, (size,), along=(n, inner))]
    kind = index_dtype(*map(count_of, op.operands))
    s = Source(f"{op.name}_{dtype}_{kind}", kind)
    out = s.pointer("out", dtype, Address(op.result))
    given = s.pointer("updates", dtype, Address(updates))
    indices = Indices(s, index, (size,), tells=False)
    width, runs, count = (
        s.number("inner", inner),
        s.number("n", n),
        s.number("count", outer * inner),
    )
    i = s.let(s.add(s.mul(s.block_index, s.const(s.threads)), s.thread), "i")
    with s.block(f"if {i} < {count}"):
        at_outer, at_inner = s.split(i, ["", width])
        with s.loop(s.const(0), runs, s.const(1), "j") as j:
            row = s.add(s.mul(at_outer, runs), j)
            position = s.let(s.add(s.mul(row, width), at_inner), "at")
            number, good = indices.read(position)
            with s.block(f"if {good}"):
                line = s.add(s.mul(at_outer, indices.sizes[0]), number)
                place = s.let(s.add(s.mul(line, width), at_inner), "place")
                held = s.let(load(dtype, out, place), "held")
                value = s.let(load(dtype, given, position), "value")
                made = s.let(expression("add", dtype, dtype, [held, value]), "made")
                s.line(f"{out}[{place}] = {stored(dtype, made)}")
    return [*checks, s.launch(-(-outer * inner // s.threads))]
