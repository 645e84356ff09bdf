"""Sorted indices: equal ones told apart by sorting; first_occurrence, and updates in order.

Each index becomes a key of 64 bits, the number of the part that it names above its position; an
index out of bounds is after all parts. The sorted keys have the indices of a part side by side, in
the order of their positions. An update then has the threads of its columns: those of the first one
of a part do the part's first `PIECE` updates in order; the others end at once. So the sums are
those of one thread after the other.

What a part has beyond that is cut into pieces of `PIECE` updates, counted from its first one. Each
is put together in order by threads of its own, beginning with its first update, and a second launch
does the pieces to the element, in their order: sums of floats then differ from those of one thread
by their rounding, and depend on the part's own updates alone.

first_occurrence looks through few indices by a thread for each; many are sorted."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from weft.codegen.call import Address, Scratch
from weft.codegen.cuda.kernels.axes import count_of, dtype_of
from weft.codegen.cuda.kernels.data_movement import Indices
from weft.codegen.cuda.kernels.sort import RUN, keys_in_order, passes_of
from weft.codegen.cuda.source.dtypes import literal, load, loaded, nbytes, register_dtype, stored
from weft.codegen.cuda.source.kernel import Launch
from weft.codegen.cuda.source.language import LANES, LOADS, STORES, memory_dtype
from weft.codegen.cuda.source.writer import MANY, Source, index_dtype
from weft.ir.dataclass import dataclass
from weft.ir.graph import Operation, Value
from weft.ir.type_rules import int_attr

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
