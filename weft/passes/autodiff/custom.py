"""Gradients that a user's function gives: of `custom_gradient`, its region; of a `custom_rule`,
which stands in such a region for a rule that is traced when it is asked for, those of what is
traced."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft.ir.errors import GradientError
from weft.ir.graph import Block, Operation, Value
from weft.ir.ops.builder import Builder
from weft.ir.ops.core import CustomRule
from weft.ir.spec import int_attr
from weft.passes.autodiff.rule import Rule, Site
from weft.passes.rewriting.expression import Expr


def _custom_gradient(s: Site) -> Sequence[Expr | None]:
    """The region computes the cotangents of the inputs from those of the outputs."""
    outputs, inputs = int_attr(s.attrs, "outputs"), int_attr(s.attrs, "inputs")
    pairs = zip(s.results, s.cotangents, strict=True)
    given = [(y.full(0) if g is None else g).value for y, g in pairs]
    captures = [x.value for x in s.operands[outputs + inputs :]]
    grads = _inlined(s.x.builder, s.op.regions[0], [*given, *captures])
    return [*[None] * outputs, *map(s.x.wrap, grads), *[None] * len(captures)]


def _inlined(builder: Builder, region: Block, operands: Sequence[Value]) -> list[Value]:
    """Append the ops of a gradient's region, with those of the rules in it."""
    mapping = dict(zip(region.args, operands, strict=True))
    for op in region.ops:
        if op.name == "custom_rule":
            given = [mapping[v] for v in op.operands]
            found: Sequence[Value] = builder.inline(_traced(op, given), given)
        else:
            found = builder.clone(op, mapping)
        mapping.update(zip(op.results, found, strict=True))
    return [mapping[v] for v in region.results]


def _traced(op: Operation, operands: Sequence[Value]) -> Block:
    """The rule that a `custom_rule` stands for. GradientError if the op was read from text."""
    rule = op.attrs["rule"]
    if not isinstance(rule, CustomRule):
        raise GradientError(
            f"the rule '{rule}' is a Python function, which the text of a graph does not hold",
            hint="take derivatives before the graph is written",
            location=op.locations,
        )
    return rule.block([v.type for v in operands])


def _custom_rule(s: Site) -> Sequence[Expr | None]:
    """Trace the rule, and differentiate that."""
    builder, xs = s.x.builder, [x.value for x in s.operands]
    start = len(builder.ops)
    ys = builder.inline(_traced(s.op, xs), xs)
    given = [None if g is None else g.value for g in s.cotangents]
    grads = s.pull_back(builder, builder.ops[start:], ys, given, xs)
    return [None if g is None else s.x.wrap(g) for g in grads]


CUSTOM_GRADIENTS: Mapping[str, Rule] = {
    "custom_gradient": _custom_gradient,
    "custom_rule": _custom_rule,
}
