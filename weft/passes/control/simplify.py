"""Simplification of control flow: known branches, known loops, and what they carry in vain.

Before::

    %3 = while(%0, %1, %x) {carries=2, limit=-1} : i64[], f32[] {
      ^(%a0: i64[], %a1: f32[], %a2: f32[])
      ... %2 = less(%a0, 10)
    } {
      ^(%a0: i64[], %a1: f32[], %a2: f32[])
      ... %4 = exp(%a2), %5 = add(%a1, %4)
    }

After: ``%3 = exp(%x)`` and a scan of length 10 that carries `%a1` alone and takes `%3`.

* a cond whose predicate is known, or whose branches are the same, becomes the branch;
* a while that never runs becomes its operands, one whose number of iterations is known a scan;
* a scan of length 0 becomes its operands, one of length 1 its body;
* what is taken, carried or returned for nothing goes (`trim`, below); what an iteration computes
  from invariants moves out (`hoist`), and so do products that need no carry (`loop_products`); a
  loop that repeats another one is merged with it (`merge_loops`).

Branches and loops that have effects stay as they are, but for what is pure in them.

`trim` drops what a branch or loop takes, carries or returns for nothing:

* a result that nobody uses, and what only it needs: a carry, a sequence, an operand;
* a carry that the body returns as it got it becomes an invariant, or the constant that it starts
  as; two carries that start and go on alike become one;
* an operand that stands twice comes in once; a uniform constant is made inside."""

from __future__ import annotations

from collections.abc import Sequence

from weft.ir.analysis.known_values import trip_count, uniform
from weft.ir.graph import Block, Graph, Operation, Value, canonical_block
from weft.ir.ops.builder import Builder
from weft.ir.ops.control_flow import CONTROL, length_attr
from weft.ir.spec import AttrValue
from weft.passes.control.hoist import hoist
from weft.passes.control.loop_products import batch
from weft.passes.control.loops import (
    LOOPS,
    Layout,
    Loop,
    holds_control,
    live_in,
    rebuilt_region,
    relayout,
)
from weft.passes.control.merge_loops import merge_loops
from weft.passes.rewriting.expression import Expr
from weft.passes.rewriting.rewrite import (
    fixed_point,
    has_effect,
    rebuilt,
    tensor,
    with_block,
    with_operands,
)
from weft.passes.simplify.cse_dce import cse, dce

#: What an op becomes: a value for each result; None for those that nobody uses.
Results = Sequence[Value | None]


def trim(builder: Builder, op: Operation, used: set[Value]) -> Results | None:
    """The op without its needless parts, or None if it has none."""
    if op.name == "cond":
        return _trim_cond(builder, op, used)
    return _trim_loop(builder, op, used) if op.name in LOOPS else None


# ------------------------------------------------------------------------------------------- cond


def _trim_cond(builder: Builder, op: Operation, used: set[Value]) -> Results | None:
    passed: dict[int, Value] = {}
    kept: list[int] = []
    for i, result in enumerate(op.results):
        same = _same_argument(op, i)
        if same is not None:
            passed[i] = op.operands[1 + same]
        elif result in used:
            kept.append(i)
    inputs = op.operands[1:]
    aliases, constants = _replaced(inputs, range(len(inputs)))
    live = [live_in(r, [r.results[i] for i in kept]) for r in op.regions]
    arguments = [
        i
        for i in range(len(inputs))
        if i not in aliases
        and i not in constants
        and any(
            region.args[n] in alive
            for region, alive in zip(op.regions, live, strict=True)
            for n in (i, *(a for a, b in aliases.items() if b == i))
        )
    ]
    if len(kept) == len(op.results) and len(arguments) == len(inputs):
        return None
    regions = [
        rebuilt_region(
            r,
            arguments,
            [r.results[i] for i in kept],
            {a: b for a, b in aliases.items() if b in arguments},
            constants,
        )
        for r in op.regions
    ]
    operands = [op.operands[0], *(inputs[i] for i in arguments)]
    values = builder.emit("cond", operands, regions=regions, locations=op.locations)
    found = {**passed, **dict(zip(kept, values, strict=True))}
    return [found.get(i) for i in range(len(op.results))]


def _same_argument(op: Operation, number: int) -> int | None:
    """The argument that both branches return as this result."""
    then, orelse = op.regions
    value = then.results[number]
    if value not in then.args:
        return None
    place = then.args.index(value)
    return place if orelse.results[number] is orelse.args[place] else None


def _replaced(
    operands: Sequence[Value], numbers: Sequence[int]
) -> tuple[dict[int, int], dict[int, Value]]:
    """Of these operands, those that stand twice, and the uniform constants."""
    first: dict[Value, int] = {}
    aliases: dict[int, int] = {}
    constants: dict[int, Value] = {}
    for i in numbers:
        if uniform(operands[i]) is not None:
            constants[i] = operands[i]
        elif operands[i] in first:
            aliases[i] = first[operands[i]]
        else:
            first[operands[i]] = i
    return aliases, constants


# ------------------------------------------------------------------------------------------ loops


def _trim_loop(builder: Builder, op: Operation, used: set[Value]) -> Results | None:
    loop = Loop.of(op)
    still, passed = _unchanging(loop)
    carries = [i for i in range(loop.carries) if i not in still and i not in passed]
    twins = _twins(loop, carries)
    row_aliases, row_constants = _replaced(op.operands, loop.row_numbers)
    rest_aliases, constants = _replaced(op.operands, [*loop.rest, *still])
    constants.update({**row_constants, **passed})
    aliases = {**twins, **row_aliases, **rest_aliases}
    gone = {*aliases, *constants}
    ys = [i for i in loop.ys if op.results[i] in used]
    wanted = {i for i in carries if op.results[i] in used}
    wanted |= {b for a, b in twins.items() if op.results[a] in used}
    wanted = _needed_carries(loop, wanted, ys, aliases)
    alive = _alive(loop, wanted, ys)
    layout = Layout(
        [i for i in carries if i in wanted and i not in twins],
        [i for i in loop.row_numbers if i not in gone and _is_alive(i, alive, aliases)],
        [i for i in (*loop.rest, *still) if i not in gone and _is_alive(i, alive, aliases)],
        ys,
    )
    kept = set(layout.arguments)
    layout.aliases = {a: b for a, b in aliases.items() if b in kept}
    layout.constants = constants
    same_counts = len(layout.carries) == loop.carries and len(kept) == len(op.operands)
    if same_counts and len(ys) == len(loop.ys):
        return None
    found = relayout(builder, loop, layout) if layout.carries or ys else {}
    for i in (*still, *passed):
        found[i] = op.operands[i]
    found.update((a, found[b]) for a, b in twins.items() if b in found)
    return [found.get(i) for i in range(len(op.results))]


def _unchanging(loop: Loop) -> tuple[list[int], dict[int, Value]]:
    """The carries that the body returns as they are, and those that stay the constant they are."""
    still: list[int] = []
    constant: dict[int, Value] = {}
    for i in range(loop.carries):
        after, start = loop.body.results[i], loop.op.operands[i]
        if after is loop.body.args[i]:
            still.append(i)
            continue
        first, next_ = uniform(start), uniform(after)
        if first is not None and next_ is not None and first.tobytes() == next_.tobytes():
            constant[i] = start
    return still, constant


def _twins(loop: Loop, carries: Sequence[int]) -> dict[int, int]:
    """Carries that start and go on as an earlier one, and that one."""
    first: dict[tuple[Value, Value], int] = {}
    twins: dict[int, int] = {}
    for i in carries:
        key = (loop.op.operands[i], loop.body.results[i])
        if key in first:
            twins[i] = first[key]
        else:
            first[key] = i
    return twins


def _needed_carries(
    loop: Loop, wanted: set[int], ys: Sequence[int], aliases: dict[int, int]
) -> set[int]:
    """The carries that these, the ys and the test of a while need."""
    place = {arg: i for region in loop.op.regions for i, arg in enumerate(region.args)}
    while True:
        alive = _alive(loop, wanted, ys)
        numbers = {aliases.get(place[v], place[v]) for v in alive if v in place}
        grown = wanted | {i for i in numbers if i < loop.carries}  # an alias may be an invariant
        if grown == wanted:
            return wanted
        wanted = grown


def _alive(loop: Loop, carries: set[int], ys: Sequence[int]) -> set[Value]:
    """The values of the regions that are needed."""
    body = loop.body
    alive = live_in(body, [body.results[i] for i in (*sorted(carries), *ys)])
    for region in loop.op.regions:
        if region is not body:
            alive |= live_in(region, region.results)
    return {*alive, *(body.args[v.index] for v in alive if v.op is None)}


def _is_alive(number: int, alive: set[Value], aliases: dict[int, int]) -> bool:
    """Whether the argument, or one that it stands for, is needed."""
    args = {v.index for v in alive if v.op is None}
    return number in args or any(a in args for a, b in aliases.items() if b == number)


def simplify_control(graph: Graph) -> Graph:
    """Apply the rules to a fixed point, in regions first."""
    return _simplified(graph, batches=True)


def simplify_control_exactly(graph: Graph) -> Graph:
    """`simplify_control` without the rule `batch`, after which sums add up otherwise."""
    return _simplified(graph, batches=False)


def _simplified(graph: Graph, batches: bool) -> Graph:
    if not holds_control(graph):
        return graph
    return fixed_point(graph, lambda g: _step(g, batches), limit=1000)


def _step(graph: Graph, batches: bool) -> Graph:
    """Every rule once; equal ops that moved out of different loops become one."""
    new = with_block(graph, _block(graph.block, batches))
    return graph if new is graph else dce(cse(new))


def _block(block: Block, batches: bool) -> Block:
    if not any(op.name in CONTROL for op in block.ops):
        return block
    block = merge_loops(block)
    ordering = {v for op in block.ops for v in op.control}
    used = {*block.results, *ordering}
    for op in block.ops:
        used.update(op.operands)
    builder = Builder()
    builder.args = list(block.args)
    mapping: dict[Value, Value] = {}
    for op in block.ops:
        inner = op.regions if op.name in CONTROL else ()
        regions = tuple(_block(r, batches) for r in inner) or op.regions
        new = with_operands(op, mapping, regions)
        start = len(builder.ops)
        wanted = {n for o, n in zip(op.results, new.results, strict=True) if o in used}
        ordered = op.control or not ordering.isdisjoint(op.results) or has_effect(new)
        ruled = op.name in CONTROL and not ordered
        found: Results | None = _rule(builder, new, wanted, batches) if ruled else None
        if found is None:
            del builder.ops[start:]
            builder.ops.append(new)
            found = new.results
        for old, value in zip(op.results, found, strict=True):
            if value is not None and value is not old:
                mapping[old] = value
    return rebuilt(block, builder.ops, [mapping.get(v, v) for v in block.results])


def _rule(builder: Builder, op: Operation, used: set[Value], batches: bool) -> Results | None:
    for rule in (_known_branch, _known_loop, _few_rows):
        known = rule(builder, op)
        if known is not None:
            return known
    trimmed = trim(builder, op, used)
    if trimmed is not None:
        return trimmed
    hoisted = hoist(builder, op)
    return batch(builder, op) if hoisted is None and batches else hoisted


def _known_branch(builder: Builder, op: Operation) -> Sequence[Value] | None:
    """The branch of a cond that is known to run, or that is the same as the other."""
    if op.name != "cond":
        return None
    then, orelse = op.regions
    known = uniform(op.operands[0])
    if known is not None:
        return builder.inline(then if known.item() else orelse, op.operands[1:])
    if _same(then, orelse):
        return builder.inline(then, op.operands[1:])
    return None


def _same(a: Block, b: Block) -> bool:
    """Whether two branches are the same but for their source locations."""
    if len(a.ops) != len(b.ops) or [o.name for o in a.ops] != [o.name for o in b.ops]:
        return False
    return canonical_block(_bare(a)) == canonical_block(_bare(b))


def _bare(block: Block) -> Block:
    """The block without source locations."""
    builder = Builder([a.type for a in block.args])
    mapping = dict(zip(block.args, builder.args, strict=True))
    for op in block.ops:
        regions = [_bare(r) for r in op.regions]
        operands = [mapping[v] for v in op.operands]
        values = builder.emit(op.name, operands, op.attrs, regions=regions, locations=())
        mapping.update(zip(op.results, values, strict=True))
    return builder.block([mapping[v] for v in block.results])


def _known_loop(builder: Builder, op: Operation) -> Sequence[Value] | None:
    """A while whose number of iterations is known."""
    if op.name != "while":
        return None
    count = trip_count(op)
    loop = Loop.of(op)
    if count is None:
        return None
    if count == 0:
        return op.operands[: loop.carries]
    attrs: dict[str, AttrValue] = {
        "carries": loop.carries, "sequences": 0, "length": count, "reverse": False,
    }  # fmt: skip
    regions = (loop.body,)
    return builder.emit("scan", op.operands, attrs, regions=regions, locations=op.locations)


def _few_rows(builder: Builder, op: Operation) -> Sequence[Value] | None:
    """A scan of no or one iteration."""
    if op.name != "scan":
        return None
    loop, length = Loop.of(op), length_attr(op.attrs)
    operands = [Expr(builder, v, op.locations) for v in op.operands]
    if length == 0:
        any_value = Expr(builder, op.results[0], op.locations) if op.results else None
        empty = [
            any_value.full(0, t.shape, t.dtype).value
            for t in (tensor(op.results[i]) for i in loop.ys)
            if any_value is not None
        ]
        return [*(x.value for x in operands[: loop.carries]), *empty]
    if length != 1:
        return None
    rows = [operands[i].reshape(operands[i].shape[1:]) for i in loop.row_numbers]
    given = [*operands[: loop.carries], *rows, *(operands[i] for i in loop.rest)]
    found = builder.inline(loop.body, [x.value for x in given])
    ys = [operands[0].wrap(v) if operands else Expr(builder, v, op.locations) for v in found]
    stacked = [y.reshape((1, *y.shape)).value for y in ys[loop.carries :]]
    return [*found[: loop.carries], *stacked]
