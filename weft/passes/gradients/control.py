"""Gradients of `cond` and `scan`, and of `while` loops (`while_loop.py`): further ops of the same
kinds, so any order exists.

A loop's gradient is a second forward loop, which also keeps the residuals (`merge_loops` makes one
of the two), and a loop in the other direction that carries the cotangents of the carries and the
sums of the cotangents of the loop invariants.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from weft.ir.attributes import AttrValue
from weft.ir.builder import Builder
from weft.ir.graph import Block, Value
from weft.ir.ops.control import length_attr
from weft.ir.rules import int_attr
from weft.ir.types import StackType, TensorType
from weft.passes.control.hoist import hoist
from weft.passes.control.trip_count import trip_count
from weft.passes.cse import cse_block
from weft.passes.expression import Expr
from weft.passes.gradients.backward import Backward, copy_args, or_zero
from weft.passes.gradients.residuals import (
    Joint,
    Residuals,
    copy_ops,
    joint,
    moving_carries,
    ops_for,
    residuals,
)
from weft.passes.gradients.rule import Rule, Site, accumulate
from weft.passes.gradients.stack import new_stack, pushed
from weft.passes.gradients.while_loop import gradient_of_while
from weft.passes.rewrite import with_operands

# ------------------------------------------------------------------------------------------- cond


def _cond(s: Site) -> Sequence[Expr | None]:
    """A cond of the branches' pullbacks; the branch computes its forward part once more."""
    moved = [g is not None for g in s.cotangents]
    wanted = s.needed[1:]
    joints = [joint(s, region, moved, wanted) for region in s.op.regions]
    found = [any(j.grads[i] is not None for j in joints) for i in range(len(wanted))]
    regions = [_pullback_branch(s, j, found) for j in joints]
    operands = [x.value for x in s.operands] + [g.value for g in s.cotangents if g is not None]
    values = iter(s.x.builder.emit("cond", operands, regions=regions, locations=s.op.locations))
    return [None, *(s.x.wrap(next(values)) if f else None for f in found)]


def _pullback_branch(s: Site, j: Joint, found: Sequence[bool]) -> Block:
    """(operands, cotangents) -> the cotangents that any of the branches has."""
    seeds = [v for v in j.seeds if v is not None]
    builder = Builder([v.type for v in (*j.args, *seeds)])
    mapping = dict(zip((*j.args, *seeds), builder.args, strict=True))
    copy_ops(builder, ops_for(j.ops, [g for g in j.grads if g is not None]), mapping)
    results = [
        or_zero(s, builder, mapping[a], None if g is None else mapping[g])
        for a, g, f in zip(j.args, j.grads, found, strict=True)
        if f
    ]
    return builder.block(results)


# ------------------------------------------------------------------------------------------- scan


def _scan(s: Site) -> Sequence[Expr | None]:
    carries, rows = int_attr(s.attrs, "carries"), int_attr(s.attrs, "sequences")
    body = s.op.regions[0]
    moving = moving_carries(s, body, carries, s.needed)
    wanted = [*moving, *s.needed[carries:]]
    moved = [*moving, *(g is not None for g in s.cotangents[carries:])]
    j = joint(s, body, moved, wanted)
    stacked = dict(zip(j.results[carries:], s.results[carries:], strict=True))
    kept = residuals(j, carries, rows, stacked)
    stored = _stored_by_scan(s, kept, j)
    piles = {v: x for v, x in stored.items() if isinstance(v.type, StackType)}
    stacked.update((v, x) for v, x in stored.items() if v not in piles)
    return _reverse_scan(s, j, kept, stacked, piles)


def _stored_by_scan(s: Site, kept: Residuals, j: Joint) -> dict[Value, Expr]:
    """What a scan keeps of the residuals that does what the forward one does: the rows of tensors,
    and stacks of stacks."""
    if not kept.stored:
        return {}
    carries = int_attr(s.attrs, "carries")
    rows = [v for v in kept.stored if isinstance(v.type, TensorType)]
    piles = [v for v in kept.stored if isinstance(v.type, StackType)]
    empty = [new_stack(s.x, v.type) for v in piles]
    builder, mapping = copy_args(j.args, carries, [x.value.type for x in empty])
    before = builder.args[carries : carries + len(piles)]
    copy_ops(builder, ops_for(j.ops, [*j.results[:carries], *kept.stored]), mapping)
    after = [
        pushed(Expr(builder, pile, s.op.locations), s.x.wrap(mapping[v])).value
        for pile, v in zip(before, piles, strict=True)
    ]
    ends = [mapping[v] for v in j.results[:carries]]
    region = builder.block([*ends, *after, *(mapping[v] for v in rows)])
    given = [x.value for x in s.operands]
    operands = [*given[:carries], *(x.value for x in empty), *given[carries:]]
    attrs = {**s.attrs, "carries": carries + len(piles)}
    values = s.x.builder.emit("scan", operands, attrs, regions=(region,), locations=s.op.locations)
    return dict(zip((*piles, *rows), map(s.x.wrap, values[carries:]), strict=True))


def _reverse_scan(
    s: Site, j: Joint, kept: Residuals, stacked: Mapping[Value, Expr], piles: Mapping[Value, Expr]
) -> Sequence[Expr | None]:
    """The loop in the other direction. stacked: of what the forward loop has rows; piles: the
    stacks on which it has put the other residuals."""
    carries, rows = int_attr(s.attrs, "carries"), int_attr(s.attrs, "sequences")
    back = Backward(s, j, carries)
    for value, pile in piles.items():
        back.pop(value, pile)
    for result, g in zip(j.seeds[carries:], s.cotangents[carries:], strict=True):
        if result is not None and g is not None:
            back.row(result, g)
    whole = dict(zip(j.args[carries:], s.operands[carries:], strict=True))
    given = {**whole, **stacked}
    invariant = {*j.args[carries + rows :], *piles}
    for value in dict.fromkeys([*kept.stored, *j.args, *stacked]):
        if value in kept.needs and value in given and value not in invariant:
            back.row(value, given[value])
    for value in j.args[carries + rows :]:
        if value in kept.needs:
            back.rest(value, whole[value])  # though the body may give it as a row, too
    by_row = [(a, g) for a, g in zip(j.args, j.grads, strict=True)][carries : carries + rows]
    region, starts = back.block(kept, [g for _, g in by_row if g is not None])
    attrs: dict[str, AttrValue] = {
        "carries": len(starts),
        "sequences": len(back.rows),
        "length": length_attr(s.attrs),
        "reverse": not s.attrs["reverse"],
    }
    operands = [*starts, *(x.value for x in (*back.rows, *back.others))]
    values = s.x.builder.emit("scan", operands, attrs, regions=(region,), locations=s.op.locations)
    ys = iter(values[len(starts) :])
    per_row = [None if g is None else s.x.wrap(next(ys)) for _, g in by_row]
    firsts, sums = back.split(values)
    return [*firsts, *per_row, *sums]


def _while(s: Site) -> Sequence[Expr | None]:
    count = trip_count(s.op)
    return gradient_of_while(s) if count is None else _counted(s, count)


def _counted(s: Site, count: int) -> Sequence[Expr | None]:
    """A loop whose number of iterations is known is a scan."""
    attrs: dict[str, AttrValue] = {
        "carries": int_attr(s.attrs, "carries"), "sequences": 0, "length": count, "reverse": False,
    }  # fmt: skip
    operands = [x.value for x in s.operands]
    regions = (s.op.regions[1],)
    results = s.x.builder.emit("scan", operands, attrs, regions=regions, locations=s.op.locations)
    op = results[0].op
    assert op is not None
    return _scan(replace(s, op=op, results=tuple(map(s.x.wrap, results))))


def _hoisted(rule: Rule) -> Rule:
    """The rule on a loop without its invariant ops, whose own gradients are taken outside, once."""

    def hoisted(s: Site) -> Sequence[Expr | None]:
        builder, count = s.x.builder, len(s.operands)
        start = len(builder.ops)
        regions = tuple(map(cse_block, s.op.regions))  # what is equal is stored and summed once
        s = replace(s, op=with_operands(s.op, {}, regions))
        if hoist(builder, s.op) is None:
            return rule(s)
        op = builder.ops.pop()  # only its body matters: the forward loop is there
        moved = tuple(builder.ops[start:])
        values = [x.value for x in s.operands]
        xs = list(dict.fromkeys(v for v, n in zip(values, s.needed, strict=True) if n))
        active = s.active(xs, moved)
        more = op.operands[count:]
        grads = list(
            rule(
                replace(
                    s,
                    op=op,
                    operands=(*s.operands, *map(s.x.wrap, more)),
                    needed=(*s.needed, *(v in active for v in more)),
                )
            )
        )
        arrived = [None if g is None else g.value for g in grads[count:]]
        pulled = s.pull_back(builder, moved, more, arrived, xs)
        for x, g in zip(xs, pulled, strict=True):
            if g is not None:  # an operand may stand twice: the first place gets it
                i = next(i for i, v in enumerate(values) if v is x and s.needed[i])
                known = grads[i]
                grads[i] = s.x.wrap(g) if known is None else accumulate(known, s.x.wrap(g))
        return grads[:count]

    return hoisted


GRADIENTS: dict[str, Rule] = {
    "cond": _cond,
    "scan": _hoisted(_scan),
    "while": _hoisted(_while),
}
