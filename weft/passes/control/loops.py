"""Loops as passes see them: the parts of a `while` or `scan` by number, how to rebuild it, and
loop-invariant code motion, which moves out of a loop what an iteration computes from invariants
only.

Both kinds of loop run a body on carries, rows of sequences (none in a while) and invariants;
arguments and operands are numbered alike, and so are carries among arguments, operands and results.

The code motion is a rule of `simplify_control`. Views, broadcasts and constants are made inside,
where they cost nothing, and so are the wide operands of products of narrow integers
(`weft.ir.ops.products`); what they are made of is moved. A loop that may run not at all must not
fail because of what was moved: ops that check their operands stay in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field

from weft.ir.analysis.known_values import uniform
from weft.ir.dataclass import dataclass
from weft.ir.graph import Block, Graph, Operation, Value
from weft.ir.ops.builder import Builder
from weft.ir.ops.control_flow import CONTROL, length_attr
from weft.ir.ops.products import is_narrow_product
from weft.ir.spec import ConstArray, int_attr
from weft.passes.in_place import may_fail
from weft.passes.rewriting.rewrite import copy_needed, has_effect, tensor

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
    """The arguments, operands and results of a loop that stay, by number. An argument that goes is
    replaced: by the argument of another number, or by the constant that an outer value is
    uniformly; or nothing uses it.

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


#: Ops that cost nothing where they are fused into what uses them.
_STAY = frozenset(("constant", "iota", "broadcast_to", "reshape", "permute_dims"))


def hoist(builder: Builder, op: Operation) -> Sequence[Value] | None:
    """Append the invariant ops and the loop without them; None if there are none."""
    if op.name not in LOOPS:
        return None
    loop = Loop.of(op)
    plans = [_moved(loop, region) for region in op.regions]
    if not any(plans):
        return None
    outer: list[Value] = []
    regions: list[Block] = []
    shifted = [list[Value]() for _ in op.regions]
    for plan, region, own in zip(plans, op.regions, shifted, strict=True):
        mapping = dict(zip(region.args, op.operands, strict=True))
        inside = {v for other in region.ops if other not in plan for v in other.operands}
        inside.update(region.results)
        for moved in region.ops:
            if moved in plan:
                copies = _outside(builder, moved, mapping)
                for old, new in zip(moved.results, copies, strict=True):
                    if old in inside:
                        own.append(old)
                        outer.append(new)
    place = 0
    for region, own in zip(op.regions, shifted, strict=True):
        regions.append(_inside(region, own, [v.type for v in outer], place))
        place += len(own)
    operands = [*op.operands, *outer]
    return builder.emit(op.name, operands, op.attrs, regions=regions, locations=op.locations)


def _moved(loop: Loop, region: Block) -> dict[Operation, None]:
    """The ops of the region to move: all that lead to an invariant that is not a mere view."""
    invariant: set[Value] = {region.args[i] for i in loop.rest}
    made: list[Operation] = []
    sure = loop.op.name == "scan" and length_attr(loop.op.attrs) not in (0, None)
    for op in region.ops:
        if all(v in invariant for v in op.operands) and _may_move(op, sure):
            invariant.update(op.results)
            made.append(op)
    widened = {v.op for op in region.ops if is_narrow_product(op) for v in op.operands}

    def stays(op: Operation) -> bool:
        return op.name in _STAY or op in widened

    used = set(region.results)
    for op in region.ops:
        if op.operands and not all(r in invariant for r in op.results):
            used.update(op.operands)
    wanted: set[Value] = set()
    for op in reversed(made):
        for r in op.results:
            if r in used and stays(op) and r not in wanted:
                used.update(op.operands)  # made inside, from what it is made of
    chosen: dict[Operation, None] = {}
    for op in reversed(made):
        leads = any(r in wanted for r in op.results)
        ends = not stays(op) and any(r in used for r in op.results)
        if leads or ends:
            chosen[op] = None
            wanted.update(op.operands)
    return chosen


def _may_move(op: Operation, sure: bool) -> bool:
    """Whether the op may run once, even if the loop does not: it does nothing else than compute,
    and cannot fail, nor run forever."""
    if op.control or has_effect(op):
        return False
    inner = (o for region in op.regions for o in region.walk())
    return sure or not (may_fail(op) or any(o.name == "while" for o in (op, *inner)))


def _outside(builder: Builder, op: Operation, mapping: dict[Value, Value]) -> Sequence[Value]:
    """A copy of the op outside; results are noted in `mapping`."""
    copies = builder.clone(op, mapping)
    mapping.update(zip(op.results, copies, strict=True))
    return copies


def _inside(region: Block, own: Sequence[Value], types: Sequence[object], place: int) -> Block:
    """The region with an argument for each value moved out of any region; `own` are this one's."""
    builder = Builder([*(a.type for a in region.args), *types])  # type: ignore[list-item]
    count = len(region.args)
    mapping = dict(zip(region.args, builder.args[:count], strict=True))
    mapping.update(zip(own, builder.args[count + place : count + place + len(own)], strict=True))
    copy_needed(builder, region, region.results, mapping)
    return builder.block([mapping[v] for v in region.results])
