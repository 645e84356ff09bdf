"""The loop that does what two loops do, where one of them repeats the other.

All carries of the one loop must start as carries of the other do, and when both bodies are put into
one and equal ops are merged, they must go on alike, too. `merge.py` finds the pairs.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.ir.builder import Builder
from weft.ir.graph import Block, Operation, Value
from weft.ir.source import merge_locations
from weft.ir.types import Type
from weft.passes.control.loops import Loop
from weft.passes.cse import cse_block


class _Union:
    """The arguments of the merged loop: those of `b`, and of `a` what `b` does not have."""

    def __init__(self, a: Loop, b: Loop) -> None:
        self.a, self.b = a, b
        self.place: dict[int, int] = {}  # argument of a -> argument of the merged loop
        self.own: dict[int, int] = {}  # argument of b -> argument of the merged loop
        self.operands: list[Value] = []
        self.counts: list[int] = []
        for mine, other in (
            (range(a.carries), range(b.carries)),
            (a.row_numbers, b.row_numbers),
            (a.rest, b.rest),
        ):
            self._group(mine, other)

    def _group(self, mine: range, other: range) -> None:
        start = len(self.operands)
        for i in other:
            self.own[i] = len(self.operands)
            self.operands.append(self.b.op.operands[i])
        at = other.start
        for i in mine:  # carries may start alike: those of the two loops are in the same order
            value = self.a.op.operands[i]
            same = next((k for k in range(at, other.stop) if self.b.op.operands[k] is value), None)
            if same is None:
                self.place[i] = len(self.operands)
                self.operands.append(value)
            else:
                self.place[i] = self.own[same]
                at = same + 1 if i < self.a.carries else at
        self.counts.append(len(self.operands) - start)

    def subsumed(self) -> bool:
        """Whether all carries (or, without any, all rows) of one loop are among the other's."""
        for mine, other, count in zip(
            (self.a.carries, self.a.rows), (self.b.carries, self.b.rows), self.counts, strict=False
        ):
            if count != max(mine, other):
                return False
            if mine or other:
                return bool(mine and other)
        return False


def merged(
    first: Operation, second: Operation
) -> tuple[Operation, list[Value], list[Value]] | None:
    """The loop for two that look alike (the same op, length, direction), and what it gives for the
    results of each; None if neither repeats the other."""
    a, b = Loop.of(first), Loop.of(second)
    union = _Union(a, b)
    if not union.subsumed():
        return None
    types = [v.type for v in union.operands]
    types = [v.type for v in _arguments(union, types)]
    blocks = [_both(union, types, x, y) for x, y in zip(first.regions, second.regions, strict=True)]
    for block, (x, _) in zip(
        blocks[:-1], zip(first.regions, second.regions, strict=True), strict=False
    ):
        if block.results[: len(x.results)] != block.results[len(x.results) :]:
            return None
    return _assembled(union, first, second, blocks)


def _arguments(union: _Union, operands: Sequence[Type]) -> list[Value]:
    """One argument of a body for each place."""
    found: dict[int, Value] = {}
    for i, k in union.own.items():
        found[k] = union.b.body.args[i]
    for i, k in union.place.items():
        found.setdefault(k, union.a.body.args[i])
    return [found[k] for k in range(len(operands))]


def _both(union: _Union, types: Sequence[Type], x: Block, y: Block) -> Block:
    """Both regions in one, equal ops merged; the results of x, then those of y."""
    builder = Builder(types)
    found = builder.inline(y, [builder.args[union.own[i]] for i in range(len(y.args))])
    mine = builder.inline(x, [builder.args[union.place[i]] for i in range(len(x.args))])
    return cse_block(builder.block([*mine, *found]))


def _assembled(
    union: _Union, first: Operation, second: Operation, blocks: Sequence[Block]
) -> tuple[Operation, list[Value], list[Value]] | None:
    a, b, body = union.a, union.b, blocks[-1]
    mine = body.results[: len(first.results)]
    found = body.results[len(first.results) :]
    carries: list[Value | None] = [None] * union.counts[0]
    for i in range(b.carries):
        carries[union.own[i]] = found[i]
    for i in range(a.carries):
        known = carries[union.place[i]]
        if known is not None and known is not mine[i]:
            return None
        carries[union.place[i]] = mine[i]
    results = [v for v in carries if v is not None]
    results += [*found[b.carries :], *mine[a.carries :]]
    regions = [Block(r.args, r.ops, r.results[: len(r.results) // 2]) for r in blocks[:-1]]
    regions.append(Block(body.args, body.ops, tuple(results)))
    attrs = {**first.attrs, "carries": union.counts[0]}
    if first.name == "scan":
        attrs["sequences"] = union.counts[1]
    builder = Builder()
    where = merge_locations(first.locations, second.locations)
    values = builder.emit(first.name, union.operands, attrs, regions=regions, locations=where)
    ys = values[union.counts[0] :]
    split = len(second.results) - b.carries
    of_second = [*(values[union.own[i]] for i in range(b.carries)), *ys[:split]]
    of_first = [*(values[union.place[i]] for i in range(a.carries)), *ys[split:]]
    return builder.ops[0], of_first, of_second
