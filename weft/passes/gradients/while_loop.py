"""Gradients of `while`: a loop that keeps residuals of each iteration, and one that counts back.

Residuals go to stacks, one push for each in an iteration, so a loop may run for as long as it does.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.ir.attributes import AttrValue
from weft.ir.builder import Builder
from weft.ir.dtypes import int64
from weft.ir.graph import Block
from weft.ir.rules import int_attr
from weft.ir.types import Type
from weft.passes.expression import Expr
from weft.passes.gradients.backward import Backward, copy_args
from weft.passes.gradients.residuals import (
    Joint,
    Residuals,
    copy_ops,
    joint,
    moving_carries,
    ops_for,
    residuals,
)
from weft.passes.gradients.rule import Site
from weft.passes.gradients.stack import new_stack, pushed


def gradient_of_while(s: Site) -> Sequence[Expr | None]:
    """The cotangents of the operands of a `while` whose number of iterations is not known."""
    carries = int_attr(s.attrs, "carries")
    body = s.op.regions[1]
    moving = moving_carries(s, body, carries, s.needed)
    wanted = [*moving, *s.needed[carries:]]
    j = joint(s, body, moving, wanted)
    kept = residuals(j, carries, 0, (), recompute=bool(s.attrs["recompute"]))
    return _Loops(s, j, kept).run()


class _Loops:
    """The forward loop that puts residuals on stacks, and the loop back."""

    def __init__(self, s: Site, j: Joint, kept: Residuals) -> None:
        self.s, self.j, self.kept = s, j, kept
        self.carries = int_attr(s.attrs, "carries")

    def _attrs(self, carries: int) -> dict[str, AttrValue]:
        return {**self.s.attrs, "carries": carries}

    def run(self) -> Sequence[Expr | None]:
        """The cotangents of the operands."""
        count, stacks = self._forward()
        return self._back(count, stacks)

    def _forward(self) -> tuple[Expr, Sequence[Expr]]:
        """The number of iterations, and a stack for each residual, from a loop that does what the
        given one does."""
        s, carries = self.s, self.carries
        starts = [s.x.scalar(0, int64), *(new_stack(s.x, v.type) for v in self.kept.stored)]
        extra: list[Type] = [x.value.type for x in starts]
        test = s.op.regions[0]
        builder, mapping = copy_args(test.args, carries, extra)
        copy_ops(builder, test.ops, mapping)
        regions = (builder.block([mapping[v] for v in test.results]), self._body(extra))
        given = [x.value for x in s.operands]
        operands = [*given[:carries], *(x.value for x in starts), *given[carries:]]
        attrs = self._attrs(carries + len(extra))
        values = s.x.builder.emit(
            "while", operands, attrs, regions=regions, locations=s.op.locations
        )
        count, *stacks = map(s.x.wrap, values[carries:])
        return count, stacks

    def _body(self, extra: Sequence[Type]) -> Block:
        j, where = self.j, self.s.op.locations
        builder, mapping = copy_args(j.args, self.carries, extra)
        before = (Expr(builder, v, where) for v in builder.args[self.carries :][: len(extra)])
        count = next(before)
        copy_ops(builder, ops_for(j.ops, [*j.results, *self.kept.stored]), mapping)
        limit = int_attr(self.s.attrs, "gradient_memory")
        after = [
            pushed(stack, stack.wrap(mapping[value]), limit).value
            for stack, value in zip(before, self.kept.stored, strict=True)
        ]
        return builder.block([*(mapping[v] for v in j.results), (count + 1).value, *after])

    def _back(self, count: Expr, stacks: Sequence[Expr]) -> Sequence[Expr | None]:
        """The loop back: it counts down to 0 and pops the stacks."""
        s, j, where = self.s, self.j, self.s.op.locations
        back = Backward(s, j, self.carries)
        builder = back.builder
        for value, stack in zip(self.kept.stored, stacks, strict=True):
            back.pop(value, stack)
        k = Expr(builder, builder.add_arg(count.value.type), where) - 1
        for value, operand in zip(j.args[self.carries :], s.operands[self.carries :], strict=True):
            if value in self.kept.needs:
                back.rest(value, operand)
        results = [*back.carried(self.kept), k.value]
        starts = [*back.starts(), count.value]
        operands = [*starts, *(x.value for x in back.others)]
        test = Builder([v.type for v in operands])
        left = Expr(test, test.args[len(starts) - 1], where)
        regions = (test.block([(left > 0).value]), builder.block(results))
        attrs = self._attrs(len(starts))
        values = s.x.builder.emit("while", operands, attrs, regions=regions, locations=where)
        firsts, sums = back.split(values)
        return [*firsts, *sums]
