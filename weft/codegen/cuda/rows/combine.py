"""Partial results in scratch memory -> results: `units` rows of `count` numbers, folded in a fixed
tree.

Columns lie side by side: a block has 32 of them, each folded by several threads. A single number is
folded by one block. Sums of f32 carry along what they round off, as those of loop nests.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.codegen.call import Address, Scratch
from weft.codegen.cuda.kernel import Launch
from weft.codegen.cuda.nests.accumulate import Accumulator
from weft.codegen.cuda.rows.groups import Group, GroupFold
from weft.codegen.cuda.rows.layout import COLUMNS
from weft.codegen.cuda.scalars.memory import nbytes
from weft.codegen.cuda.scalars.scalar import (
    load,
    running_dtype,
    stored,
)
from weft.codegen.cuda.writer import Source, index_dtype
from weft.ir.dataclass import dataclass
from weft.ir.sizes import next_power

#: More units than these are folded in so many runs first, by blocks of their own.
FEW_UNITS, RUNS = 1024, 64
#: Threads that fold a column; and a single number, if it has many partial results.
DEEP, MANY = 16, 512


@dataclass(frozen=True, slots=True)
class Partial:
    """Of one fold: `count` results, each in `running`; those of a unit lie side by side, those of
    unit 0 from element `first` of the scratch memory on."""

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
