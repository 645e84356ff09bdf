"""Gradients of `cond`, `while` and `scan`: further ops of the same kinds, so any order exists.

A loop's gradient is a second forward loop, which also stacks the residuals (`merge_loops` makes one
of the two), and a loop in the other direction that carries the cotangents of the carries and the
sums of the cotangents of the loop invariants.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from weft.ir.attributes import AttrValue
from weft.ir.builder import Builder
from weft.ir.dtypes import int64
from weft.ir.errors import GradientError
from weft.ir.graph import Block, Value
from weft.ir.ops.control import length_attr
from weft.ir.rules import int_attr
from weft.ir.types import TensorType, Type
from weft.passes.control.hoist import hoist
from weft.passes.control.trip_count import trip_count
from weft.passes.cse import cse_block
from weft.passes.expression import Expr
from weft.passes.fold import uniform
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
        _or_zero(s, builder, mapping[a], None if g is None else mapping[g])
        for a, g, f in zip(j.args, j.grads, found, strict=True)
        if f
    ]
    return builder.block(results)


def _or_zero(s: Site, builder: Builder, like: Value, grad: Value | None) -> Value:
    return Expr(builder, like, s.op.locations).full(0).value if grad is None else grad


# ------------------------------------------------------------------------------------------- scan


def _scan(s: Site) -> Sequence[Expr | None]:
    carries, rows = int_attr(s.attrs, "carries"), int_attr(s.attrs, "sequences")
    body = s.op.regions[0]
    moving = moving_carries(s, body, carries, s.needed)
    wanted = [*moving, *s.needed[carries:]]
    moved = [*moving, *(g is not None for g in s.cotangents[carries:])]
    j = joint(s, body, moved, wanted)
    stacks = dict(zip(j.results[carries:], s.results[carries:], strict=True))
    kept = residuals(j, carries, rows, stacks)
    for value, stack in zip(kept.stored, _stored_by_scan(s, body, kept, j), strict=True):
        stacks[value] = stack
    return _reverse_scan(s, j, kept, stacks)


def _stored_by_scan(s: Site, body: Block, kept: Residuals, j: Joint) -> Sequence[Expr]:
    """The stacks of a scan that does what the forward one does and keeps the residuals."""
    if not kept.stored:
        return ()
    carries = int_attr(s.attrs, "carries")
    builder, mapping = _copy_args(j.args)
    results = [*j.results[:carries], *kept.stored]
    copy_ops(builder, ops_for(j.ops, results), mapping)
    region = builder.block([mapping[v] for v in results])
    operands = [x.value for x in s.operands]
    values = s.x.builder.emit(
        "scan", operands, s.attrs, regions=(region,), locations=s.op.locations
    )
    return [s.x.wrap(v) for v in values[carries:]]


def _reverse_scan(
    s: Site, j: Joint, kept: Residuals, stacks: Mapping[Value, Expr]
) -> Sequence[Expr | None]:
    """The loop in the other direction. stacks: of what the forward loop has stacked."""
    carries, rows = int_attr(s.attrs, "carries"), int_attr(s.attrs, "sequences")
    back = _Backward(s, j, carries)
    for result, g in zip(j.seeds[carries:], s.cotangents[carries:], strict=True):
        if result is not None and g is not None:
            back.row(result, g)
    given = {**dict(zip(j.args[carries:], s.operands[carries:], strict=True)), **stacks}
    invariant = set(j.args[carries + rows :])
    for value in dict.fromkeys([*kept.stored, *j.args, *stacks]):
        if value in kept.needs and value in given and value not in invariant:
            back.row(value, given[value])
    for value in j.args[carries + rows :]:
        if value in kept.needs:
            back.rest(value, given[value])
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


class _Backward:
    """The body of the backward loop: carries (cotangents, sums), rows, other operands."""

    def __init__(self, s: Site, j: Joint, carries: int) -> None:
        self.s, self.j, self.carries = s, j, carries
        self.builder = Builder()
        self.mapping: dict[Value, Value] = {}
        self.rows: list[Expr] = []
        self.others: list[Expr] = []
        self.moving = [i for i in range(carries) if j.seeds[i] is not None]
        first = len(j.args) - self._invariants()
        self.summed = [i for i in range(first, len(j.args)) if j.grads[i] is not None]
        for i in self.moving:
            seed = j.seeds[i]
            assert seed is not None
            self.mapping[seed] = self.builder.add_arg(seed.type)
        self.sums = {i: self.builder.add_arg(j.args[i].type) for i in self.summed}

    def _invariants(self) -> int:
        rows = int_attr(self.s.attrs, "sequences") if self.s.op.name == "scan" else 0
        return len(self.j.args) - self.carries - rows

    def row(self, value: Value, operand: Expr) -> None:
        """`value` comes as a row of `operand`."""
        self.rows.append(operand)
        self.mapping[value] = self.builder.add_arg(value.type)

    def rest(self, value: Value, operand: Expr) -> None:
        """`value` is a loop invariant."""
        self.others.append(operand)
        self.mapping[value] = self.builder.add_arg(operand.value.type)

    def starts(self) -> list[Value]:
        """The first values of the carries: the given cotangents, and zeros for the sums."""
        out = []
        for i in self.moving:
            g = self.s.cotangents[i]
            out.append((self.s.results[i].full(0) if g is None else g).value)
        return out + [self.s.operands[i].full(0).value for i in self.summed]

    def carried(self, kept: Residuals) -> list[Value]:
        """Append the ops; the carries after the iteration."""
        copy_ops(self.builder, kept.ops, self.mapping)
        out = []
        for i in self.moving:
            g, seed = self.j.grads[i], self.j.seeds[i]
            assert seed is not None
            like = self.mapping[seed]
            out.append(_or_zero(self.s, self.builder, like, None if g is None else self.mapping[g]))
        for i, total in self.sums.items():
            g = self.j.grads[i]
            assert g is not None
            out.append(self._added(total, self.mapping[g]))
        return out

    def _added(self, total: Value, g: Value) -> Value:
        """The sum; an update of zeros becomes one of the total itself."""
        where = self.s.op.locations
        op = g.op
        if op is not None and op.name in ("index_add", "scatter_nd_add", "scatter_along_axis_add"):
            zero = uniform(op.operands[0])
            if zero is not None and zero.item() == 0:
                operands = [total, *op.operands[1:]]
                return self.builder.emit(op.name, operands, op.attrs, locations=where)[0]
        return self.builder.emit1("add", total, g, locations=where)

    def block(self, kept: Residuals, ys: Sequence[Value]) -> tuple[Block, list[Value]]:
        """The region, which also yields `ys`, and the first carries."""
        results = self.carried(kept)
        return self.builder.block([*results, *(self.mapping[y] for y in ys)]), self.starts()

    def split(self, values: Sequence[Value]) -> tuple[list[Expr | None], list[Expr | None]]:
        """The cotangents of the carries and of the invariants, from the loop's final carries."""
        final = iter(map(self.s.x.wrap, values))
        firsts = [next(final) if i in self.moving else None for i in range(self.carries)]
        start = len(self.j.args) - self._invariants()
        sums = [next(final) if i in self.sums else None for i in range(start, len(self.j.args))]
        return firsts, sums


# ------------------------------------------------------------------------------------------ while


def _while(s: Site) -> Sequence[Expr | None]:
    limit, carries = int_attr(s.attrs, "limit"), int_attr(s.attrs, "carries")
    count = trip_count(s.op)
    if count is not None:
        return _counted(s, count)
    if limit < 0:
        raise GradientError(
            "the gradient of a while loop needs a bound on the number of iterations, as every "
            "iteration stores what the way back needs",
            hint="give wf.while_loop maximum_iterations=, or use wf.fori_loop or wf.scan",
            location=s.op.locations,
        )
    body = s.op.regions[1]
    moving = moving_carries(s, body, carries, s.needed)
    wanted = [*moving, *s.needed[carries:]]
    j = joint(s, body, moving, wanted)
    kept = residuals(j, carries, 0, ())
    count_of, stacks = _stored_by_while(s, kept, j, limit)
    return _reverse_while(s, j, kept, count_of, stacks, limit)


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


def _stored_by_while(s: Site, kept: Residuals, j: Joint, limit: int) -> tuple[Expr, list[Expr]]:
    """The number of iterations and the stacks, from a loop that does the same and counts."""
    carries = int_attr(s.attrs, "carries")
    zero = s.x.scalar(0, int64)
    kinds = [_stack_type(v, limit) for v in kept.stored]
    stacks = [s.x.scalar(0, t.dtype).broadcast_to(t.shape) for t in kinds]
    extra = [zero.value.type, *kinds]

    builder, mapping = _copy_args(j.args, carries, extra)
    count, *before = builder.args[carries : carries + len(extra)]
    copy_ops(builder, ops_for(j.ops, [*j.results, *kept.stored]), mapping)
    k = Expr(builder, count, s.op.locations)
    place = k.reshape((1,))
    rows = [
        k.wrap(stack).op("scatter_nd_update", place, k.wrap(mapping[v])).value
        for stack, v in zip(before, kept.stored, strict=True)
    ]
    body = builder.block([*(mapping[v] for v in j.results), (k + 1).value, *rows])

    test = s.op.regions[0]
    builder, mapping = _copy_args(test.args, carries, extra)
    copy_ops(builder, test.ops, mapping)
    decide = builder.block([mapping[v] for v in test.results])

    given = [x.value for x in s.operands]
    operands = [*given[:carries], zero.value, *(x.value for x in stacks), *given[carries:]]
    attrs: dict[str, AttrValue] = {"carries": carries + len(extra), "limit": limit}
    values = s.x.builder.emit(
        "while", operands, attrs, regions=(decide, body), locations=s.op.locations
    )
    final = [s.x.wrap(v) for v in values[carries:]]
    return final[0], final[1:]


def _stack_type(value: Value, limit: int) -> TensorType:
    assert isinstance(value.type, TensorType)
    return TensorType(value.type.dtype, (limit, *value.type.shape))


def _reverse_while(
    s: Site, j: Joint, kept: Residuals, count: Expr, stacks: Sequence[Expr], limit: int
) -> Sequence[Expr | None]:
    """The loop back: it counts down to 0 and reads the stacks."""
    carries = int_attr(s.attrs, "carries")
    back = _Backward(s, j, carries)
    builder = back.builder
    k = Expr(builder, builder.add_arg(count.value.type), s.op.locations) - 1
    place = k.reshape((1,))
    for value, stack in zip(kept.stored, stacks, strict=True):
        back.others.append(stack)
        held = k.wrap(builder.add_arg(stack.value.type))
        back.mapping[value] = held.op("gather_nd", place).value
    for value, operand in zip(j.args[carries:], s.operands[carries:], strict=True):
        if value in kept.needs:
            back.rest(value, operand)
    results = [*back.carried(kept), k.value]
    starts = [*back.starts(), count.value]
    operands = [*starts, *(x.value for x in back.others)]

    test = Builder([v.type for v in operands])
    left = Expr(test, test.args[len(starts) - 1], s.op.locations)
    decide = test.block([(left > 0).value])
    attrs: dict[str, AttrValue] = {"carries": len(starts), "limit": limit}
    regions = (decide, builder.block(results))
    values = s.x.builder.emit("while", operands, attrs, regions=regions, locations=s.op.locations)
    firsts, sums = back.split(values)
    return [*firsts, *sums]


def _copy_args(
    args: Sequence[Value], at: int = 0, extra: Iterable[Type] = ()
) -> tuple[Builder, dict[Value, Value]]:
    """A builder with arguments of the same types and `extra` ones from place `at` on."""
    more = list(extra)
    builder = Builder([*(a.type for a in args[:at]), *more, *(a.type for a in args[at:])])
    own = [*builder.args[:at], *builder.args[at + len(more) :]]
    return builder, dict(zip(args, own, strict=True))


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
