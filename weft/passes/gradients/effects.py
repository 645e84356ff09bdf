"""Branches and loops that act on objects of the host or on state: what a gradient repeats of them.

A gradient runs the forward part of a body again, so it must not do what that does. Ops whose
results nobody in the body needs (an enqueue, a print) are left out. What the body gets from outside
(a dequeue, a read of a live variable) it would get anew, so the value that it had is taken instead,
if the op has it: among the results of a cond, stacked among those of a scan. Else there is no
gradient.
"""

from __future__ import annotations

from collections.abc import Mapping

from weft.ir.attributes import AttrValue
from weft.ir.builder import Builder
from weft.ir.dataclass import dataclass
from weft.ir.errors import GradientError
from weft.ir.graph import Block, Operation, Value
from weft.ir.ops.control import CONTROL
from weft.ir.rules import int_attr
from weft.passes.rewrite import has_effect


@dataclass(frozen=True, slots=True, eq=False)
class Twin:
    """An op without effects that computes what another one did. Its operands are those of the other
    and, from number `at` on, `given`: results of the other."""

    op: Operation
    given: tuple[Value, ...] = ()
    at: int = 0


def without_effects(op: Operation) -> Twin:
    """`op` itself, or if it has effects its twin. GradientError if they are needed."""
    if op.name not in CONTROL or not has_effect(op):
        return Twin(op)
    plans = [_Plan(op, region) for region in op.regions]
    first = int_attr(op.attrs, "carries") if op.name == "scan" else 0
    numbers = dict.fromkeys(
        _place(op, region, value, first)
        for plan, region in zip(plans, op.regions, strict=True)
        for value in plan.taken
    )
    given = tuple(op.results[k] for k in numbers)
    at = len(op.operands)
    attrs: Mapping[str, AttrValue] = op.attrs
    if op.name == "scan":
        rows = int_attr(op.attrs, "sequences")
        at = first + rows
        attrs = {**op.attrs, "sequences": rows + len(given)}
    inside = at - 1 if op.name == "cond" else at  # the number of the first of them in a region
    regions = [plan.block(list(numbers), inside) for plan in plans]
    operands = (*op.operands[:at], *given, *op.operands[at:])
    types = [r.type for r in op.results]
    twin = Operation(op.name, operands, attrs, types, regions, (), op.locations)
    twin.device, twin.group = op.device, op.group
    return Twin(twin, given, at)


def _place(op: Operation, region: Block, value: Value, first: int) -> int:
    """The number of the result that has the value."""
    if op.name != "while":
        for k in range(first, len(region.results)):
            if region.results[k] is value:
                return k
    assert value.op is not None
    what = "let the body return it, too" if op.name != "while" else "use wf.scan"
    raise GradientError(
        f"the gradient of op '{op.name}' needs what op '{value.op.name}' in it gives, and cannot "
        "get it a second time",
        hint=f"do that before the loop or branch; or {what}: the gradient uses the value again",
        location=value.op.locations or op.locations,
    )


class _Plan:
    """What of a region its results need: ops, and values that ops with effects gave (`taken`)."""

    def __init__(self, op: Operation, region: Block) -> None:
        self.region = region
        self.kept: list[tuple[Operation, Twin]] = []
        self.taken: dict[Value, None] = {}
        needed = set(region.results)
        for inner in reversed(region.ops):
            found = [r for r in inner.results if r in needed]
            if not found:
                continue
            if inner.name not in CONTROL and has_effect(inner):
                self.taken.update(dict.fromkeys(found))
                continue
            twin = without_effects(inner)
            self.taken.update(dict.fromkeys(twin.given))
            self.kept.append((inner, twin))
            needed.update(v for v in twin.op.operands if v not in twin.given)

    def block(self, numbers: list[int], at: int) -> Block:
        """The region without effects; it takes the results with these numbers from `at` on."""
        types = [a.type for a in self.region.args]
        values = [self.region.results[k] for k in numbers]
        builder = Builder([*types[:at], *(v.type for v in values), *types[at:]])
        more = builder.args[at : at + len(values)]
        own = [*builder.args[:at], *builder.args[at + len(values) :]]
        mapping = dict(zip(self.region.args, own, strict=True))
        again = {v: a for v, a in zip(values, more, strict=True) if v in self.taken}
        mapping.update(again)
        for inner, twin in reversed(self.kept):
            types = [r.type for r in inner.results]
            operands = [mapping[v] for v in twin.op.operands]
            made = Operation(
                inner.name, operands, twin.op.attrs, types, twin.op.regions, (), inner.locations
            )
            made.device, made.group = inner.device, inner.group
            builder.ops.append(made)
            pairs = zip(inner.results, made.results, strict=True)
            mapping.update((old, new) for old, new in pairs if old not in again)
        return builder.block([mapping[v] for v in self.region.results])
