"""Drop what a branch or loop takes, carries or returns for nothing. Rules of `simplify_control`.

* a result that nobody uses, and what only it needs: a carry, a sequence, an operand;
* a carry that the body returns as it got it becomes an invariant, or the constant that it starts
  as; two carries that start and go on alike become one;
* an operand that stands twice comes in once; a uniform constant is made inside.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.ir.builder import Builder
from weft.ir.graph import Operation, Value
from weft.passes.control.loops import LOOPS, Layout, Loop, live_in, rebuilt_region, relayout
from weft.passes.fold import uniform

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
