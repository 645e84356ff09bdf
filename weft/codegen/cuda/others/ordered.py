"""Many indices in order: where equal ones are told apart by sorting, not by looking through all.

Each index becomes a key of 64 bits, the number of the part that it names above its position; an
index out of bounds is after all parts. The sorted keys have the indices of a part side by side, in
the order of their positions. An update then has the threads of its columns: those of the first one
of a part go through all of that part and do its updates in order, the others end at once. So the
sums are those of one thread after the other, however many indices there are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from weft.codegen.call import Address, Scratch
from weft.codegen.cuda.kernel import Launch
from weft.codegen.cuda.language import LANES, LOADS, STORES, memory_dtype
from weft.codegen.cuda.others.index import Indices
from weft.codegen.cuda.others.sizes import count_of, dtype_of
from weft.codegen.cuda.others.sort import RUN, keys_in_order, passes_of
from weft.codegen.cuda.scalars.memory import load, loaded, stored
from weft.codegen.cuda.scalars.scalar import literal, register_dtype
from weft.codegen.cuda.writer import MANY, Source, index_dtype
from weft.ir.graph import Value

#: How many updates of a part are read ahead of the sums, so that these wait for memory once.
AHEAD = 4
#: A vector of columns has no more elements than this: registers.
MOST_LANES = 8
#: Sorting has to save so many times its own loads: it takes several launches.
WORTH = 4

#: Text of the register value that an update makes of (held, value).
Meeting = Callable[[str, str], str]


def loads_in_order(n: int) -> int:
    """Loads of each of `n` keys while they are sorted, at most."""
    return 2 + RUN + sum(1 + (RUN << k).bit_length() for k in range(passes_of(n)))


def worth_ordering(n: int, parts: int, looks: int) -> bool:
    """Whether sorting `n` indices into `parts` parts is less work than looking at each `looks`
    times. By the sizes alone."""
    return max(n, parts) < MANY and looks > WORTH * loads_in_order(n)


@dataclass(frozen=True, slots=True)
class Keys:
    """Sorted keys: `n` u64 from element `first` of the scratch memory on."""

    memory: Scratch
    first: int
    n: int

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
) -> tuple[list[Launch], Keys]:
    """The keys of the indices in order. tells: of indices out of bounds, which then count as 0.
    along: (n, inner) of indices (outer, n, inner) into parts (outer, size, inner), each of them
    along its own column."""
    depth = len(sizes)
    n = count_of(index) // depth
    memory = Scratch(16 * n)
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
    return [s.launch(-(-n // s.threads)), *launches], Keys(memory, first, n)


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
        raw = [s.fresh("raw") for _ in names]
        s.line(f"{', '.join(raw)} = {LOADS[memory_dtype(self.dtype)]}({pointer}, {place})")
        for name, one in zip(names, raw, strict=True):
            s.line(f"{name} = {loaded(self.dtype, one)}")

    def store(self, names: Sequence[str], pointer: str, place: str) -> None:
        """Stores them."""
        texts = [stored(self.dtype, name) for name in names]
        if self.lanes == 1:
            self.s.line(f"{pointer}[{place}] = {texts[0]}")
        else:
            store = STORES[memory_dtype(self.dtype)]
            self.s.line(f"{store}({pointer}, {place}, {', '.join(texts)})")

    def names(self, hint: str) -> list[str]:
        """New ones, of zeros."""
        zero = literal(register_dtype(self.dtype), 0)
        return [self.s.let(zero, hint) for _ in range(self.lanes)]


def _lanes(dtype: str, inner: int) -> int:
    lanes = LANES[memory_dtype(dtype)]
    return lanes if inner % lanes == 0 and lanes <= MOST_LANES else 1


def ordered_launch(
    name: str,
    dtype: str,
    values: tuple[Value, Value],
    sizes: tuple[int, int, int],
    keys: Keys,
    meet: Meeting,
) -> Launch:
    """Does the updates. values: the result (outer, parts, inner), in which the operand lies, and
    the updates (outer, keys.n, inner); sizes: outer, parts and inner."""
    return _Updates(name, dtype, values, sizes, keys).launch(meet)


class _Updates:
    """The kernel: a thread for some columns of each key, of which those of the first key of a part
    do something."""

    def __init__(
        self,
        name: str,
        dtype: str,
        values: tuple[Value, Value],
        sizes: tuple[int, int, int],
        keys: Keys,
    ) -> None:
        outer, parts, inner = sizes
        lanes = _lanes(dtype, inner)
        kind = index_dtype(*map(count_of, values), 2 * keys.n + AHEAD, parts + 1)
        s = self.s = Source(f"{name}_{dtype}_ordered_{lanes}_{kind}", kind)
        self.out = s.pointer("out", dtype, Address(values[0]))
        self.updates = s.pointer("updates", dtype, Address(values[1]))
        self.keys, self.first = keys.parameter(s)
        self.parts, self.n = s.number("parts", parts), s.number("n", keys.n)
        self.inner, self.groups = s.number("inner", inner), s.number("groups", inner // lanes)
        self.size = outer * keys.n * (inner // lanes)
        self.count, self.columns = s.number("count", self.size), _Columns(s, dtype, lanes)

    def launch(self, meet: Meeting) -> Launch:
        """The launch of the whole kernel."""
        s = self.s
        i = s.let(s.add(s.mul(s.block_index, s.const(s.threads)), s.thread), "i")
        with s.block(f"if {i} < {self.count}"):
            outer, u, group = s.split(i, ["", self.n, self.groups])
            part, _ = self._key(u)
            before = f"{s.sub(u, s.const(1))} if {u} > {s.const(0)} else {u}"
            last, _ = self._key(s.let(before, "before"))
            begins = f"{part} < {self.parts} and ({u} == {s.const(0)} or {last} != {part})"
            with s.block(f"if {begins}"):
                column = s.let(s.mul(group, s.const(self.columns.lanes)), "column")
                self._part(outer, u, part, column, meet)
        return s.launch(-(-self.size // s.threads))

    def _key(self, u: str) -> tuple[str, str]:
        """(the part, the position) of key u."""
        s = self.s
        key = s.let(f"{self.keys}[{s.add(self.first, u)}]", "key")
        part = s.let(s.cast(f"u64({key} >> u64(32))"), "part")
        return part, s.let(s.cast(f"u64({key} & u64(0xFFFFFFFF))"), "position")

    def _ahead(self, u: str, k: str, step: int) -> tuple[str, tuple[str, str]]:
        """(the number of the key `step` after key k, what `_key` says of it); beyond the last key
        it says that of key u."""
        s = self.s
        at = s.let(s.add(k, s.const(step)), "at")
        return at, self._key(s.let(f"{at} if {at} < {self.n} else {u}", "there"))

    def _place(self, outer: str, rows: str, row: str, column: str) -> str:
        s = self.s
        line = s.add(s.mul(outer, rows), row)
        return s.let(s.add(s.mul(line, self.inner), column), "place")

    def _part(self, outer: str, u: str, part: str, column: str, meet: Meeting) -> None:
        """All updates of a part, whose first key is number u."""
        s, columns = self.s, self.columns
        place = self._place(outer, self.parts, part, column)
        totals = columns.names("total")
        columns.load(totals, self.out, place)
        k, more = s.let(u, "k"), s.let("boolean(True)", "more")
        with s.block(f"while {more}"):
            keys = [self._ahead(u, k, step) for step in range(AHEAD)]
            ahead = []
            for at, (other, position) in keys:
                s.line(f"{more} = {more} and {at} < {self.n} and {other} == {part}")
                mine, values = s.let(more, "mine"), columns.names("value")
                with s.block(f"if {mine}"):
                    row = self._place(outer, self.n, position, column)
                    columns.load(values, self.updates, row)
                ahead.append((mine, values))
            for mine, values in ahead:
                with s.block(f"if {mine}"):
                    for total, value in zip(totals, values, strict=True):
                        s.line(f"{total} = {meet(total, value)}")
            s.line(f"{k} = {s.add(k, s.const(AHEAD))}")
        columns.store(totals, self.out, place)
