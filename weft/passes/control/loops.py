"""Loops as passes see them: the parts of a `while` or `scan` by number, and how to rebuild it.

Both run a body on carries, rows of sequences (none in a while) and invariants; arguments and
operands are numbered alike, and so are carries among arguments, operands and results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field

from weft.ir.analysis.known_values import uniform
from weft.ir.dataclass import dataclass
from weft.ir.graph import Block, Graph, Operation, Value
from weft.ir.ops.builder import Builder
from weft.ir.ops.control_flow import CONTROL
from weft.ir.spec import ConstArray
from weft.ir.type_rules import int_attr
from weft.passes.rewriting.rewrite import tensor

LOOPS = frozenset({"while", "scan"})


def holds_control(graph: Graph) -> bool:
    """Whether there is any structured control flow in the graph."""
    return any(op.name in CONTROL for op in graph.ops)


@dataclass(frozen=True, slots=True, eq=False)
class Loop:
    """A view of a `while` or `scan`: how many carries and rows there are, and its body."""

    op: Operation
    carries: int
    rows: int
    body: Block

    @staticmethod
    def of(op: Operation) -> Loop:
        """The view of an op."""
        rows = int_attr(op.attrs, "sequences") if op.name == "scan" else 0
        return Loop(op, int_attr(op.attrs, "carries"), rows, op.regions[-1])

    @property
    def rest(self) -> range:
        """The numbers of the invariants."""
        return range(self.carries + self.rows, len(self.op.operands))

    @property
    def row_numbers(self) -> range:
        """The numbers of the rows."""
        return range(self.carries, self.carries + self.rows)

    @property
    def ys(self) -> range:
        """The numbers of the stacked results."""
        return range(self.carries, len(self.op.results))


@dataclass(slots=True)
class Layout:
    """Which parts of a loop stay, by number. An argument that goes is replaced: by the argument of
    another number, or by the constant that an outer value is uniformly; or nothing uses it.

    rest may also hold numbers of carries, which become invariants.
    """

    carries: list[int]
    rows: list[int]
    rest: list[int]
    ys: list[int]
    aliases: dict[int, int] = field(default_factory=dict)
    constants: dict[int, Value] = field(default_factory=dict)

    @property
    def arguments(self) -> list[int]:
        """The numbers of the arguments that stay."""
        return [*self.carries, *self.rows, *self.rest]


def relayout(builder: Builder, loop: Loop, layout: Layout) -> dict[int, Value]:
    """Append the loop in another layout; its results by their old numbers."""
    op = loop.op
    regions = []
    for region in op.regions:
        results = list(region.results)
        if region is loop.body:
            results = [region.results[i] for i in (*layout.carries, *layout.ys)]
        regions.append(
            rebuilt_region(region, layout.arguments, results, layout.aliases, layout.constants)
        )
    attrs = {**op.attrs, "carries": len(layout.carries)}
    if op.name == "scan":
        attrs["sequences"] = len(layout.rows)
    values = builder.emit(
        op.name,
        [op.operands[i] for i in layout.arguments],
        attrs,
        regions=regions,
        locations=op.locations,
    )
    return dict(zip((*layout.carries, *layout.ys), values, strict=True))


def rebuilt_region(
    region: Block,
    arguments: Sequence[int],
    results: Sequence[Value],
    aliases: Mapping[int, int],
    constants: Mapping[int, Value],
) -> Block:
    """The region with these arguments and results, without dead ops."""
    builder = Builder([region.args[i].type for i in arguments])
    mapping = {region.args[i]: a for i, a in zip(arguments, builder.args, strict=True)}
    for number, other in aliases.items():
        mapping[region.args[number]] = mapping[region.args[other]]
    for number, value in constants.items():
        mapping[region.args[number]] = _constant_like(builder, region.args[number], value)
    live = live_in(region, results)
    for op in region.ops:
        if any(r in live for r in op.results):
            mapping.update(zip(op.results, builder.clone(op, mapping), strict=True))
    return builder.block([mapping[v] for v in results])


def _constant_like(builder: Builder, arg: Value, value: Value) -> Value:
    """The element that all of `value` are, in the shape of `arg`."""
    element = uniform(value)
    assert element is not None
    assert value.op is not None
    where = value.op.locations
    scalar = builder.emit1("constant", value=ConstArray(element), locations=where)
    shape = tensor(arg).shape
    return builder.emit1("broadcast_to", scalar, shape=shape, locations=where) if shape else scalar


def live_in(region: Block, results: Sequence[Value]) -> set[Value]:
    """The values of the region that `results` need."""
    live = set(results)
    for op in reversed(region.ops):
        if any(r in live for r in op.results):
            live.update(op.operands)
    return live
