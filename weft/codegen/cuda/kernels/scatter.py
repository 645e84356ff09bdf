"""Scatters: several updates of one element are done in their order, always the same one.

The operand is in the result already (the plan puts it there). A block has one part of the result
(what one index names) and some of its columns; it looks through all indices for its own, so many at
a time as it has threads, and does their updates in order. Where there are fewer updates than parts
a block has an update: if no earlier one is for the same part, it does all of that part's. Where
that would be more looking than sorting is, the indices are sorted (`sorted_indices.py`)."""

from __future__ import annotations

import math
from functools import partial

from weft.codegen.call import Address
from weft.codegen.cuda.kernels.axes import axis_sizes, computed_dtype, count_of, shape_of
from weft.codegen.cuda.kernels.data_movement import Indices, check_launches
from weft.codegen.cuda.kernels.sorted_indices import Updates, ordered_launches, worth_ordering
from weft.codegen.cuda.source.dtypes import HALVES, literal, load, loaded, register_dtype, stored
from weft.codegen.cuda.source.elementwise import expression
from weft.codegen.cuda.source.kernel import Launch
from weft.codegen.cuda.source.writer import Source, index_dtype
from weft.ir.analysis.index_maps import index_sizes
from weft.ir.dataclass import dataclass
from weft.ir.graph import Operation
from weft.ir.ops.index import COMBINES
from weft.ir.sizes import next_power
from weft.ir.type_rules import int_attr

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
