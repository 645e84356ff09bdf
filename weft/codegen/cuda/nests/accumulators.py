"""Accumulators, and folds over the threads of a warp, block or group, and of partial results in
scratch memory by a second launch: fixed trees, which depend on sizes alone.

Sums of f32 (and of 16-bit floats, kept in f32) carry what each addition rounds off along (TwoSum:
D. Knuth, "The Art of Computer Programming", volume 2, 4.2.2), so that the only roundings that add
up are those of the tree over threads and of the few lanes of a vector.

Within a group: shuffles within a warp, shared memory beyond; every thread of the group gets the
result, and all threads of the block must come here together. Partial results are `units` rows of
`count` numbers. Columns lie side by side: a block has 32 of them, each folded by several threads; a
single number is folded by one block."""

from __future__ import annotations

from collections.abc import Sequence

from weft.codegen.call import Address, Scratch
from weft.codegen.cuda.nests.row_nodes import COLUMNS
from weft.codegen.cuda.source.dtypes import load, nbytes, stored
from weft.codegen.cuda.source.elementwise import fold_expression, identity, running_dtype
from weft.codegen.cuda.source.kernel import WARP, Launch
from weft.codegen.cuda.source.writer import Source, index_dtype
from weft.ir.dataclass import dataclass
from weft.ir.sizes import next_power

FULL = "0xFFFFFFFF"
#: What shuffles carry of dtypes that they do not take.
_CARRIED = {"bool": "i32", "i8": "i32", "i16": "i32", "u8": "u32", "u16": "u32"}


class Accumulator:
    """A fold over elements of `dtype`, one thread's part of it."""

    def __init__(self, s: Source, reduction: str, dtype: str) -> None:
        self.s, self.reduction = s, reduction
        self.dtype = running_dtype(reduction, dtype)
        self.total = s.let(identity(reduction, self.dtype), "total")
        self.rest = ""
        if reduction == "sum" and self.dtype == "f32":
            self.rest = s.let("f32(0)", "rest")

    def add(self, values: Sequence[str]) -> None:
        """Some more elements, as register values of the dtype in which the fold is kept."""
        s = self.s
        while len(values) > 1 and self.rest:  # in pairs
            pairs = zip(values[::2], values[1::2], strict=True)
            values = [s.let(f"f32({a} + {b})", "part") for a, b in pairs]
        for value in values:
            if self.rest:
                self._add_exactly(value)
            else:
                folded = fold_expression(self.reduction, self.dtype, self.total, value)
                s.line(f"{self.total} = {folded}")

    def _add_exactly(self, value: str) -> None:
        s = self.s
        total = s.let(f"f32({self.total} + {value})", "after")
        taken = s.let(f"f32({total} - {self.total})", "taken")
        off = f"f32(f32({self.total} - f32({total} - {taken})) + f32({value} - {taken}))"
        s.line(f"{self.rest} = f32({self.rest} + {off})")
        s.line(f"{self.total} = {total}")

    def close(self) -> str:
        """The value: an infinite or NaN total is that without what was rounded off."""
        s = self.s
        if self.rest:
            finite = f"f32({self.total} - {self.total}) == f32(0)"
            s.line(f"{self.total} = f32({self.total} + {self.rest}) if {finite} else {self.total}")
        return self.total


def warp_fold(s: Source, value: str, reduction: str, dtype: str) -> str:
    """A name for the fold over the values of the 32 threads of a warp, the same in each. All of
    them must come here; dtype: that in which the fold is kept."""
    carried = _CARRIED.get(dtype, dtype)
    value, distance = s.let(value, "part"), s.let("i32(16)", "distance")
    with s.block(f"while {distance} > i32(0)"):  # compilers unroll it
        sent = value
        if carried != dtype:
            sent = s.let(f"{carried}({_number(dtype, value)})", "sent")
        other = s.let(f"cuda.shfl_xor_sync({FULL}, {sent}, {distance})", "other")
        if carried != dtype:
            back = f"{other} != i32(0)" if dtype == "bool" else f"{dtype}({other})"
            other = s.let(back, "other")
        s.line(f"{value} = {fold_expression(reduction, dtype, value, other)}")
        s.line(f"{distance} = i32({distance} >> i32(1))")
    return value


def _number(dtype: str, value: str) -> str:
    return stored(dtype, value) if dtype == "bool" else value


def block_folds(
    s: Source, values: Sequence[str], folds: Sequence[tuple[str, str]], threads: int
) -> list[str]:
    """Names for the folds (reduction, dtype in which it is kept) over the values of all `threads`
    of a block, the same in each. All threads must come here."""
    warps, shared, parts = threads // WARP, [], []
    for _, dtype in folds:
        memory = "u8" if dtype == "bool" else dtype
        shared.append(s.let(f"cuda.shared.array({warps}, {memory})", "shared"))
    for value, (reduction, dtype) in zip(values, folds, strict=True):
        parts.append(warp_fold(s, value, reduction, dtype))
    with s.block(f"if {s.mod(s.thread, s.const(WARP))} == {s.const(0)}"):
        warp = s.let(s.div(s.thread, s.const(WARP)), "warp")
        for part, array, (_, dtype) in zip(parts, shared, folds, strict=True):
            s.line(f"{array}[{warp}] = {stored(dtype, part)}")
    s.line("cuda.syncthreads()")
    return [
        ordered_fold(s, (array, s.const(0), s.const(1)), warps, reduction, dtype)
        for array, (reduction, dtype) in zip(shared, folds, strict=True)
    ]


def ordered_fold(
    s: Source, places: tuple[str, str, str], count: int, reduction: str, dtype: str
) -> str:
    """A name for the fold over `count` elements of a shared array in their order; places: the
    array, the first index, and the step from one to the next."""
    array, first, step = places
    total = s.let(load(dtype, array, first), "total")
    stop = s.add(first, s.mul(s.const(count), step))
    with s.loop(s.add(first, step), stop, step, "k") as k:
        other = s.let(load(dtype, array, k), "other")
        s.line(f"{total} = {fold_expression(reduction, dtype, total, other)}")
    return total


#: All threads of a warp.
MASK = "0xFFFFFFFF"
#: Dtypes that shuffles and shared memory hold narrower ones in.
_CARRIER = {"bool": "u32", "i8": "i32", "i16": "i32", "u8": "u32", "u16": "u32"}


@dataclass(frozen=True, slots=True)
class GroupFold:
    """A fold over one value of each thread; `dtype` is the one that it is kept in."""

    value: str
    reduction: str
    dtype: str


class Group:
    """The threads that share a row: `size` of them, thread `lane`. by_columns: those of one
    `column` of a block, else neighbours.
    """

    def __init__(
        self, s: Source, size: int, lane: str, folds: Sequence[str], column: str | None = None
    ) -> None:
        """folds: the dtypes of all folds that are to come, in order."""
        self.s, self.size, self.lane, self.column = s, size, lane, column
        count = size * COLUMNS if column is not None else max(size // WARP, 1)
        self.shared: list[str] = []
        if size > (1 if column is not None else WARP):
            for dtype in folds:
                text = f"cuda.shared.array({count}, {carrier(dtype)})"
                self.shared.append(s.let(text, "shared"))
            if column is None:
                self.warp = s.let(s.div(lane, s.const(WARP)), "warp")
                self.warp_lane = s.let(s.mod(lane, s.const(WARP)), "warp_lane")
        self.used = 0

    @property
    def meets(self) -> bool:
        """Whether its folds have barriers of the whole block."""
        return bool(self.shared)

    def barrier(self) -> None:
        """All of the group have got here, and see what the others have written."""
        if self.size > WARP or (self.column is not None and self.size > 1):
            self.s.line("cuda.syncthreads()")
        elif self.size > 1:
            self.s.line(f"cuda.syncwarp({MASK})")

    def fold(self, folds: Sequence[GroupFold]) -> list[str]:
        """The results of several folds at once."""
        if self.size == 1:
            return [f.value for f in folds]
        if self.column is not None:
            return self._columns(folds)
        values = [self._shuffled(f, f.value, min(self.size, WARP)) for f in folds]
        return self._across_warps(folds, values) if self.size > WARP else values

    def _shuffled(self, f: GroupFold, value: str, lanes: int) -> str:
        """The fold over `lanes` neighbouring threads."""
        s = self.s
        while lanes > 1:
            lanes //= 2
            held = s.let(carried(f.dtype, value), "w") if f.dtype in _CARRIER else value
            got = s.let(f"cuda.shfl_xor_sync({MASK}, {held}, {lanes})", "w")
            other = s.let(given(f.dtype, got), "w") if f.dtype in _CARRIER else got
            value = s.let(fold_expression(f.reduction, f.dtype, value, other), "w")
        return value

    def _arrays(self, count: int) -> list[str]:
        first = self.used % len(self.shared)
        self.used += count
        return self.shared[first : first + count]

    def _across_warps(self, folds: Sequence[GroupFold], values: Sequence[str]) -> list[str]:
        s, warps = self.s, self.size // WARP
        arrays = self._arrays(len(folds))
        with s.block(f"if {self.warp_lane} == {s.const(0)}"):
            for f, array, value in zip(folds, arrays, values, strict=True):
                s.line(f"{array}[{self.warp}] = {carried(f.dtype, value)}")
        s.line("cuda.syncthreads()")
        place = s.let(s.mod(self.warp_lane, s.const(warps)), "place")
        out = []
        for f, array in zip(folds, arrays, strict=True):
            part = s.let(given(f.dtype, f"{array}[{place}]"), "w")
            out.append(self._shuffled(f, part, warps))
        return out

    def _columns(self, folds: Sequence[GroupFold]) -> list[str]:
        s, column = self.s, self.column
        assert column is not None
        arrays = self._arrays(len(folds))
        here = s.let(s.add(s.mul(self.lane, s.const(COLUMNS)), column), "place")
        for f, array in zip(folds, arrays, strict=True):
            s.line(f"{array}[{here}] = {carried(f.dtype, f.value)}")
        s.line("cuda.syncthreads()")
        out = [s.let(identity(f.reduction, f.dtype), "w") for f in folds]
        with s.loop(column, s.const(self.size * COLUMNS), s.const(COLUMNS), "q") as q:
            for f, array, total in zip(folds, arrays, out, strict=True):
                part = s.let(given(f.dtype, f"{array}[{q}]"), "part")
                s.line(f"{total} = {fold_expression(f.reduction, f.dtype, total, part)}")
        return out


def carrier(dtype: str) -> str:
    """What shuffles and shared memory hold a register value of `dtype` in."""
    return _CARRIER.get(dtype, dtype)


def carried(dtype: str, value: str) -> str:
    """A register value in its carrier."""
    if dtype == "bool":
        return f"u32(1) if {value} else u32(0)"
    return f"{_CARRIER[dtype]}({value})" if dtype in _CARRIER else value


def given(dtype: str, value: str) -> str:
    """The register value in a carrier."""
    if dtype == "bool":
        return f"{value} != u32(0)"
    return f"{dtype}({value})" if dtype in _CARRIER else value


#: More units than these are folded in so many runs first, by blocks of their own.
FEW_UNITS, RUNS = 1024, 64
#: Threads that fold a column; and a single number, if it has many partial results.
DEEP, MANY = 16, 512


@dataclass(frozen=True, slots=True)
class Partial:
    """The partial results of one fold: `count` results, each in `running`; those of a unit lie side
    by side, those of unit 0 from element `first` of the scratch memory on."""

    reduction: str
    dtype: str
    running: str
    count: int
    first: int
    output: Address


def lay_out(
    folds: Sequence[tuple[str, str, int, Address]], units: int
) -> tuple[list[Partial], int]:
    """Partial results of (reduction, dtype, results, output) each; and their bytes in all."""
    made, offset = [], 0
    for reduction, dtype, count, output in folds:
        running = running_dtype(reduction, dtype)
        size = nbytes(running)
        made.append(Partial(reduction, dtype, running, count, offset // size, output))
        offset += (units * count * size + 63) // 64 * 64
    return made, offset


def combine_launches(partials: Sequence[Partial], scratch: Scratch, units: int) -> list[Launch]:
    """Launches for each fold, right after the one that made its `units` partial results: one, or
    two if they are many and lie in columns. Then some runs of units are folded first, each into the
    place of its first unit."""
    out = []
    for p in partials:
        run = 1
        if p.count > 1 and units > FEW_UNITS:
            run = -(-units // RUNS)
            out.append(_combine(p, scratch, units, run, within=True))
        out.append(_combine(p, scratch, units, run, within=False))
    return out


def _combine(p: Partial, scratch: Scratch, units: int, run: int, within: bool) -> Launch:
    """Folds the units of each run of `run`, `within`; else the first one of all runs."""
    runs = -(-units // run)
    height = run if within else runs
    index = index_dtype(p.first + (runs + 1) * run * p.count)
    one = p.count == 1
    group = min(next_power(height), MANY) if one else min(next_power(-(-height // 2)), DEEP)
    name = f"combine_{p.reduction}_{p.dtype}_{'one' if one else 'columns'}_by{group}_{index}"
    s = Source(name + "_runs" * within, index, group if one else group * COLUMNS)
    parts = s.pointer("parts", p.running, scratch)
    out = parts if within else s.pointer("out", p.dtype, p.output)
    first, end = s.number("first", p.first), s.number("units", units if within else runs)
    zero = s.const(0)
    thread = s.let(s.thread, "thread")
    begin, target = zero, first
    if one:
        lane, column, live, start, step = thread, None, f"{thread} == {zero}", thread, s.const(1)
        place = zero
    else:
        width = s.const(COLUMNS)
        lane, column = s.let(s.div(thread, width), "lane"), s.let(s.mod(thread, width), "column")
        count = s.number("count", p.count)
        step = s.number("step", p.count if within else p.count * run)
        block = s.let(s.block_index, "block")
        if within:
            chunk, block = s.split(block, ["", s.number("tiles", -(-p.count // COLUMNS))], "t")
            each = s.number("run", run)
            begin = s.let(s.mul(chunk, each), "begin")
            after = s.let(s.add(begin, each), "after")
            end = s.let(f"{after} if {after} < {end} else {end}", "end")
            target = s.add(first, s.mul(begin, count))
        place = s.let(s.add(s.mul(block, width), column), "place")
        inside = s.let(f"{place} < {count}", "inside")
        start = s.let(f"{s.add(begin, lane)} if {inside} else {end}", "start")
        live = f"{inside} and {lane} == {zero}"
    threads = Group(s, group, lane, [p.running], column)
    folded = Accumulator(s, p.reduction, p.running)
    with s.loop(start, end, s.const(group), "unit") as unit:
        at = s.let(s.add(first, s.add(s.mul(unit, step), place)), "at")
        folded.add([s.let(load(p.running, parts, at), "part")])
    (total,) = threads.fold([GroupFold(folded.close(), p.reduction, p.running)])
    with s.block(f"if {live}"):
        if within:
            s.line(f"{parts}[{s.add(target, place)}] = {stored(p.running, total)}")
        else:
            s.line(f"{out}[{place}] = {stored(p.dtype, total)}")
    return s.launch((1 if one else -(-p.count // COLUMNS)) * (runs if within else 1))
