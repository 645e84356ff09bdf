"""Partial results in scratch memory -> results: `units` rows of `count` numbers, folded in a fixed
tree.

Columns lie side by side: a block has 32 of them, each folded by several threads. A single number is
folded by one block.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from weft.codegen.call import Address, Scratch
from weft.codegen.cuda.kernel import Launch
from weft.codegen.cuda.rows.groups import Group, GroupFold
from weft.codegen.cuda.rows.layout import COLUMNS
from weft.codegen.cuda.scalars.memory import nbytes
from weft.codegen.cuda.scalars.scalar import (
    fold_expression,
    identity,
    load,
    running_dtype,
    stored,
)
from weft.codegen.cuda.writer import Source, index_dtype

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
    """A launch for each fold, right after the one that made its `units` partial results."""
    return [_combine(p, scratch, units) for p in partials]


def _combine(p: Partial, scratch: Scratch, units: int) -> Launch:
    index = index_dtype(p.first + units * p.count)
    one = p.count == 1
    group = min(_power(units), MANY) if one else min(_power(-(-units // 2)), DEEP)
    name = f"combine_{p.reduction}_{p.dtype}_{'one' if one else 'columns'}_by{group}_{index}"
    s = Source(name, index, group if one else group * COLUMNS)
    parts = s.pointer("parts", p.running, scratch)
    out = s.pointer("out", p.dtype, p.output)
    first, height = s.number("first", p.first), s.number("units", units)
    zero = s.const(0)
    thread = s.let(s.thread, "thread")
    if one:
        lane, column, live, start, step = thread, None, f"{thread} == {zero}", thread, s.const(1)
        place = zero
    else:
        width = s.const(COLUMNS)
        lane, column = s.let(s.div(thread, width), "lane"), s.let(s.mod(thread, width), "column")
        step = s.number("count", p.count)
        place = s.let(s.add(s.mul(s.block_index, width), column), "place")
        inside = s.let(f"{place} < {step}", "inside")
        start = s.let(f"{lane} if {inside} else {height}", "start")
        live = f"{inside} and {lane} == {zero}"
    threads = Group(s, group, lane, [p.running], column)
    total = s.let(identity(p.reduction, p.running), "total")
    with s.loop(start, height, s.const(group), "unit") as unit:
        at = s.let(s.add(first, s.add(s.mul(unit, step), place)), "at")
        part = s.let(load(p.running, parts, at), "part")
        s.line(f"{total} = {fold_expression(p.reduction, p.running, total, part)}")
    (total,) = threads.fold([GroupFold(total, p.reduction, p.running)])
    with s.block(f"if {live}"):
        s.line(f"{out}[{place}] = {stored(p.dtype, total)}")
    return s.launch(1 if one else -(-p.count // COLUMNS))


def _power(count: int) -> int:
    """The least power of two that is not less."""
    return 1 << max(count - 1, 0).bit_length()
