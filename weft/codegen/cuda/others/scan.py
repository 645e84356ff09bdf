"""Cumulative ops, and argmax and argmin: the data seen as (outer, n, inner) around the axis.

Where the axis is the last one (inner 1) a block has a row: scans go through it in runs of as many
elements as there are threads, each run scanned by shuffles and then by its warps' ends; positions
are found by each thread and then compared. Else a thread has a column. All in one fixed order.
"""

from __future__ import annotations

from weft.codegen.call import Address
from weft.codegen.cuda.kernel import Launch
from weft.codegen.cuda.others.sizes import axis_sizes, computed_dtype, count_of
from weft.codegen.cuda.rows.groups import MASK, carried, carrier, given
from weft.codegen.cuda.scalars.memory import FLOATS
from weft.codegen.cuda.scalars.scalar import expression, literal, load, register_dtype, stored
from weft.codegen.cuda.writer import Source, index_dtype
from weft.ir.graph import Operation

_COMBINE = {
    "cumulative_sum": "add",
    "cumulative_prod": "multiply",
    "cumulative_max": "maximum",
    "cumulative_min": "minimum",
    "cumulative_logsumexp": "logaddexp",
}
#: Threads of a block that has a row: few for short ones.
_SHORT, _LONG, _LONG_ROW = 32, 256, 256


def _threads(n: int) -> int:
    return _LONG if n > _LONG_ROW else _SHORT


def cumulative_launches(op: Operation) -> list[Launch]:
    """Every element combined with all before it (after it, if `reverse`)."""
    if not count_of(op.result):
        return []
    outer, n, inner = axis_sizes(op)
    writer = _Scan(op, n, inner)
    return [writer.rows(outer) if inner == 1 else writer.columns(outer * inner)]


class _Scan:
    def __init__(self, op: Operation, n: int, inner: int) -> None:
        self.dtype = computed_dtype(op, op.result)
        self.kept, self.combine = register_dtype(self.dtype), _COMBINE[op.name]
        self.reverse = bool(op.attrs["reverse"])
        threads = _threads(n) if inner == 1 else _LONG
        kind = index_dtype(count_of(op.result))
        way = ("rows" if inner == 1 else "columns") + "_reverse" * self.reverse
        s = self.s = Source(f"{op.name}_{self.dtype}_{way}_{threads}_{kind}", kind, threads)
        self.out = s.pointer("out", self.dtype, Address(op.result))
        self.given = s.pointer("given", self.dtype, Address(op.operands[0]))
        self.n = s.number("n", n)
        self.inner = s.number("inner", inner) if inner != 1 else s.const(1)

    def _met(self, a: str, b: str) -> str:
        return expression(self.combine, self.dtype, self.dtype, [a, b])

    def _place(self, base: str, j: str) -> str:
        """Of element j in the order of the scan."""
        s = self.s
        if self.reverse:
            j = s.sub(s.sub(self.n, s.const(1)), j)
        return s.let(s.add(base, s.mul(j, self.inner)), "place")

    def columns(self, count: int) -> Launch:
        """A thread for each column."""
        s = self.s
        columns = s.number("columns", count)
        i = s.let(s.add(s.mul(s.block_index, s.const(s.threads)), s.thread), "i")
        with s.block(f"if {i} < {columns}"):
            outer, column = s.split(i, ["", self.inner])
            base = s.let(s.add(s.mul(s.mul(outer, self.n), self.inner), column), "base")
            total = s.let(load(self.dtype, self.given, self._place(base, s.const(0))), "total")
            s.line(f"{self.out}[{self._place(base, s.const(0))}] = {stored(self.dtype, total)}")
            with s.loop(s.const(1), self.n, s.const(1), "j") as j:
                place = self._place(base, j)
                value = s.let(load(self.dtype, self.given, place), "value")
                s.line(f"{total} = {self._met(total, value)}")
                s.line(f"{self.out}[{place}] = {stored(self.dtype, total)}")
        return s.launch(-(-count // s.threads))

    def rows(self, count: int) -> Launch:
        """A block for each row."""
        s, warps = self.s, self.s.threads // 32
        thread = s.let(s.thread, "thread")
        lane, warp = s.let(s.mod(thread, s.const(32)), "lane"), s.const(0)
        if warps > 1:
            warp = s.let(s.div(thread, s.const(32)), "warp")
            self.shared = s.let(f"cuda.shared.array({warps}, {carrier(self.kept)})", "shared")
        base = s.let(s.mul(s.block_index, self.n), "base")
        zero = literal(self.kept, 0)
        before = s.let(zero, "before")  # the fold of all runs before
        with s.loop(s.const(0), self.n, s.const(s.threads), "first") as first:
            j = s.let(s.add(first, thread), "j")
            value = s.let(zero, "value")
            with s.block(f"if {j} < {self.n}"):
                s.line(f"{value} = {load(self.dtype, self.given, self._place(base, j))}")
            value = self._warp_scan(value, lane)
            if warps > 1:
                self._across_warps(value, warp, lane, warps)
            with s.block(f"if {first} > {s.const(0)}"):
                s.line(f"{value} = {self._met(before, value)}")
            with s.block(f"if {j} < {self.n}"):
                s.line(f"{self.out}[{self._place(base, j)}] = {stored(self.dtype, value)}")
            self._carry(before, value, thread, warps)
        return s.launch(count)

    def _warp_scan(self, value: str, lane: str) -> str:
        s = self.s
        for distance in (1, 2, 4, 8, 16):
            held = s.let(carried(self.kept, value), "w")
            got = s.let(f"cuda.shfl_up_sync({MASK}, {held}, {distance})", "w")
            other = s.let(given(self.kept, got), "w")
            next_value = s.let(value, "value")
            with s.block(f"if {lane} >= {s.const(distance)}"):
                s.line(f"{next_value} = {self._met(other, value)}")
            value = next_value
        return value

    def _across_warps(self, value: str, warp: str, lane: str, warps: int) -> None:
        """What the warps before have in all goes before this one's."""
        s = self.s
        with s.block(f"if {lane} == {s.const(31)}"):
            s.line(f"{self.shared}[{warp}] = {carried(self.kept, value)}")
        s.line("cuda.syncthreads()")
        total = s.let(given(self.kept, f"{self.shared}[0]"), "total")
        with s.loop(s.const(1), s.const(warps), s.const(1), "q") as q, s.block(f"if {q} < {warp}"):
            part = s.let(given(self.kept, f"{self.shared}[{q}]"), "part")
            s.line(f"{total} = {self._met(total, part)}")
        with s.block(f"if {warp} > {s.const(0)}"):
            s.line(f"{value} = {self._met(total, value)}")
        s.line("cuda.syncthreads()")

    def _carry(self, before: str, value: str, thread: str, warps: int) -> None:
        """The last thread's value goes before the next run."""
        s = self.s
        if warps == 1:
            held = s.let(carried(self.kept, value), "w")
            got = s.let(f"cuda.shfl_sync({MASK}, {held}, 31)", "w")
            s.line(f"{before} = {given(self.kept, got)}")
            return
        with s.block(f"if {thread} == {s.const(s.threads - 1)}"):
            s.line(f"{self.shared}[0] = {carried(self.kept, value)}")
        s.line("cuda.syncthreads()")
        s.line(f"{before} = {given(self.kept, f'{self.shared}[0]')}")
        s.line("cuda.syncthreads()")


def position_launches(op: Operation) -> list[Launch]:
    """argmax, argmin: where the largest (least) element is first; where NaN is, if there is one."""
    if not count_of(op.result):
        return []
    outer, n, inner = axis_sizes(op)
    x = op.operands[0]
    dtype, rows = computed_dtype(op, x), inner == 1
    threads = _threads(n) if rows else _LONG
    kind = index_dtype(count_of(x))
    way = "rows" if rows else "columns"
    s = Source(f"{op.name}_{dtype}_{way}_{threads}_{kind}", kind, threads)
    out, data = s.pointer("out", "i64", Address(op.result)), s.pointer("given", dtype, Address(x))
    size = s.number("n", n)
    if rows:
        _row_position(s, op.name, dtype, out, data, size)
        return [s.launch(outer)]
    width, count = s.number("inner", inner), s.number("count", outer * inner)
    i = s.let(s.add(s.mul(s.block_index, s.const(threads)), s.thread), "i")
    with s.block(f"if {i} < {count}"):
        line, column = s.split(i, ["", width])
        base = s.let(s.add(s.mul(s.mul(line, size), width), column), "base")
        walk = s.const(0), size, s.const(1)
        _, where = _search(s, op.name, dtype, data, (base, width), walk)
        s.line(f"{out}[{i}] = i64({where})")
    return [s.launch(-(-outer * inner // threads))]


def _row_position(s: Source, op: str, dtype: str, out: str, data: str, size: str) -> None:
    """A block's row: every thread's best, then the best of them in shared memory."""
    kept, threads = register_dtype(dtype), s.threads
    thread = s.let(s.thread, "thread")
    values = s.let(f"cuda.shared.array({threads}, {carrier(kept)})", "values")
    places = s.let(f"cuda.shared.array({threads}, {s.index})", "places")
    base = s.let(s.mul(s.block_index, size), "base")
    start = s.let(f"{thread} if {thread} < {size} else {s.const(0)}", "start")
    best, where = _search(s, op, dtype, data, (base, s.const(1)), (start, size, s.const(threads)))
    s.line(f"{values}[{thread}] = {carried(kept, best)}")
    s.line(f"{places}[{thread}] = {where}")
    s.line("cuda.syncthreads()")
    with s.block(f"if {thread} == {s.const(0)}"):
        last = s.let(f"{s.const(threads)} if {s.const(threads)} < {size} else {size}", "last")
        with s.loop(s.const(1), last, s.const(1), "q") as q:
            value = s.let(given(kept, f"{values}[{q}]"), "value")
            place = s.let(f"{places}[{q}]", "place")
            better = s.let(_wins(op, dtype, value, best), "better")
            tie = s.let(f"(not ({_wins(op, dtype, best, value)})) and {place} < {where}", "tie")
            with s.block(f"if {better} or {tie}"):
                s.line(f"{best} = {value}")
                s.line(f"{where} = {place}")
        s.line(f"{out}[{s.block_index}] = i64({where})")


def _search(
    s: Source,
    op: str,
    dtype: str,
    data: str,
    at: tuple[str, str],
    walk: tuple[str, str, str],
) -> tuple[str, str]:
    """The first best of the elements `walk` (start, stop, step) from base and step `at` on."""
    base, step = at
    start, stop, stride = walk
    where = s.let(start, "where")
    first = s.add(base, s.mul(start, step))
    best = s.let(load(dtype, data, first), "best")
    with s.loop(s.add(start, stride), stop, stride, "j") as j:
        value = s.let(load(dtype, data, s.add(base, s.mul(j, step))), "value")
        with s.block(f"if {_wins(op, dtype, value, best)}"):
            s.line(f"{best} = {value}")
            s.line(f"{where} = {j}")
    return best, where


def _wins(op: str, dtype: str, value: str, best: str) -> str:
    """Whether an element comes before the best so far, though that was earlier."""
    if dtype == "bool":
        return f"{value} and not {best}" if op == "argmax" else f"{best} and not {value}"
    better = f"{value} {'>' if op == 'argmax' else '<'} {best}"
    if dtype in FLOATS:
        return f"{better} or ({value} != {value} and {best} == {best})"
    return better
