"""Simplification of control flow: known branches, known loops, what they carry in vain, and loops
of which one repeats the other.

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

What `trim` drops:

* a result that nobody uses, and what only it needs: a carry, a sequence, an operand;
* a carry that the body returns as it got it becomes an invariant, or the constant that it starts
  as; two carries that start and go on alike become one;
* an operand that stands twice comes in once; a uniform constant is made inside.

`merge_loops` is for gradients, which run the forward loop again to keep what they need of every
iteration. The two are merged by one sweep over the loops of a block, in order. A loop is compared
with those before it that have a carry which starts and goes on like one of its own, or, where there
are no carries, that take the same rows; so loops that have nothing to do with each other cost
nothing. What was merged is found under the values of its first loop, so that loops which take the
results of two loops that became one are seen to be alike in the same sweep.

All carries of the one loop must start as carries of the other do, and when both bodies are put into
one and equal ops are merged, they must go on alike, too (`merged`)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import nsmallest

from weft.ir.analysis.known_values import trip_count, uniform
from weft.ir.graph import Block, Graph, Operation, Value, canonical_block
from weft.ir.locations import merge_locations
from weft.ir.ops import lookup
from weft.ir.ops.builder import Builder
from weft.ir.ops.control_flow import CONTROL, length_attr
from weft.ir.spec import AttrValue
from weft.ir.types import Type
from weft.passes.control.loop_products import batch
from weft.passes.control.loops import (
    LOOPS,
    Layout,
    Loop,
    hoist,
    holds_control,
    live_in,
    rebuilt_region,
    relayout,
)
from weft.passes.rewriting.expression import Expr
from weft.passes.rewriting.rewrite import (
    fixed_point,
    has_effect,
    rebuilt,
    tensor,
    with_block,
    with_operands,
)
from weft.passes.simplify.cse_dce import cse, cse_block, dce


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


#: How many loops before it a loop is tried with, how many join the first one in a sweep (the next
#: sweep merges what these became), and how many ops may move with a loop. Each bounds what one
#: loop costs, so that a sweep takes time linear in the number of loops.
MOST_TRIED = 8
MOST_JOINED = 8
MOST_MOVED = 1000


def merge_loops(block: Block) -> Block:
    """The block with the loops merged that repeat others; the same block if there are none."""
    loops = [op for op in block.ops if op.name in LOOPS and not (op.control or has_effect(op))]
    if len(loops) < 2:
        return block
    sweep = _Sweep(block)
    for op in loops:
        sweep.add(op)
    return sweep.result() if sweep.root else block


class _Sweep:
    """What has been merged so far. A merged loop goes by the first of its loops (its root); a
    value that several loops make by the first of these values (its name)."""

    def __init__(self, block: Block) -> None:
        self.block = block
        self.slot = {op: i for i, op in enumerate(block.ops)}  # when an op runs at the latest
        self.same: dict[Value, Value] = {}  # value of a loop that joined another -> its name
        self.root: dict[Operation, Operation] = {}  # loop that joined another -> the root
        self.became: dict[Operation, Operation] = {}  # root -> the merged loop, on names
        self.names: dict[Operation, list[Value]] = {}  # root -> names of the merged loop's results
        self.joined: dict[Operation, list[Operation]] = {}  # root -> the loops that joined it
        self.like: dict[object, list[Operation]] = {}  # what loops have in common -> their roots

    def add(self, op: Operation) -> None:
        """Merge `op` with a loop before it, if there is one that fits."""
        second = with_operands(op, self.same)
        keys = _keys(Loop.of(second))
        for first in self._candidates(second, keys):
            moved = self._moved(second, first)
            if moved is None:
                continue
            made = merged(self.became.get(first, first), second)
            if made is not None:
                self._join(first, op, made)
                for other in moved:
                    self.slot[other] = self.slot[first]
                self._register(first, keys)
                return
        self.names[op] = list(op.results)
        self._register(op, keys)

    def _register(self, root: Operation, keys: Iterable[object]) -> None:
        for key in keys:
            known = self.like.setdefault(key, [])
            if root not in known[-MOST_JOINED:]:
                known.append(root)

    def _candidates(self, second: Operation, keys: Iterable[object]) -> list[Operation]:
        """The loops to try: first those that share most with `second`, then the earliest."""
        found = dict.fromkeys(root for key in keys for root in self.like.get(key, ()))
        free = [root for root in found if len(self.joined.get(root, ())) < MOST_JOINED]
        if len(free) < 2:
            return free
        taken = set(second.operands)

        def rank(root: Operation) -> tuple[int, int]:
            shared = taken.intersection(self.became.get(root, root).operands)
            return -len(shared), self.slot[root]

        return nsmallest(MOST_TRIED, free, rank)

    def _moved(self, second: Operation, first: Operation) -> set[Operation] | None:
        """What must run before `first` if `second` joins it and does not yet; None if `second`
        needs `first`, or what may not move.

        What runs before the slot of `first` cannot need it, so the search ends there."""
        limit = self.slot[first]
        found: set[Operation] = set()
        rest = [second]
        while rest:
            for value in rest.pop().operands:
                made = self.same.get(value, value).op
                made = None if made is None else self.root.get(made, made)
                if made is None or made in found or self.slot[made] < limit:
                    continue
                if made is first or made.control or len(found) == MOST_MOVED:
                    return None
                found.add(made)
                rest.append(self.became.get(made, made))
        return found

    def _join(
        self,
        first: Operation,
        second: Operation,
        made: tuple[Operation, list[Value], list[Value]],
    ) -> None:
        op, of_first, of_second = made
        name = dict(zip(of_first, self.names[first], strict=True))
        for value, old in zip(of_second, second.results, strict=True):
            self.same[old] = name.setdefault(value, old)
            if self.same[old] is old:
                del self.same[old]
        self.root[second] = first
        self.became[first] = op
        self.names[first] = [name[v] for v in op.results]
        self.joined.setdefault(first, []).append(second)

    def result(self) -> Block:
        """The block with the merged loops, each where its root was, after what it needs."""
        mapping: dict[Value, Value] = {}
        done: set[Operation] = set()
        ops: list[Operation] = []
        for root in self.block.ops:
            rest = [self.root.get(root, root)]
            while rest:
                old = rest[-1]
                op = self.became.get(old, old)
                needed = [] if old in done else self._not_yet(op, done)
                rest.extend(reversed(needed))
                if needed:
                    continue
                rest.pop()
                if old not in done:
                    done.add(old)
                    new = with_operands(op, mapping)
                    ops.append(new)
                    self._bind(mapping, old, new)
        results = [mapping.get(v, v) for v in self.block.results]
        return rebuilt(self.block, ops, results)

    def _not_yet(self, op: Operation, done: set[Operation]) -> list[Operation]:
        """What `op` needs and what has not run yet, in the order of the block."""
        makers = (self.same.get(v, v).op for v in (*op.operands, *op.control))
        roots = {self.root.get(made, made) for made in makers if made is not None}
        return sorted(roots - done, key=self.slot.__getitem__)

    def _bind(self, mapping: dict[Value, Value], old: Operation, new: Operation) -> None:
        """Note what stands for the results of `old`, and of the loops that joined it."""
        names = self.names[old] if old in self.became else old.results
        mapping.update((v, n) for v, n in zip(names, new.results, strict=True) if v is not n)
        for other in self.joined.get(old, ()):
            for value in other.results:
                if value in self.same:
                    mapping[value] = mapping[self.same[value]]


def _keys(loop: Loop) -> list[object]:
    """What a loop and one that it repeats have in common one of: how a carry starts and goes on,
    or without carries a sequence."""
    op = loop.op
    starts = [(_group(loop, i), v) for i, v in enumerate(op.operands)]
    kind: tuple[object, ...] = (op.name, loop.carries == 0)
    if op.name == "scan":
        kind = (*kind, length_attr(op.attrs), op.attrs["reverse"])
    else:
        kind = (*kind, op.attrs["limit"])
    for region in op.regions[:-1]:
        kind = (*kind, *_digests(region, starts))
    if not loop.carries:
        return list(dict.fromkeys((kind, op.operands[i]) for i in loop.row_numbers))
    ends = _digests(loop.body, starts)[: loop.carries]
    carries = zip(op.operands[: loop.carries], ends, strict=True)
    return list(dict.fromkeys((kind, start, end) for start, end in carries))


def _group(loop: Loop, number: int) -> str:
    if number < loop.carries:
        return "carry"
    return "row" if number < loop.carries + loop.rows else "rest"


def _digests(region: Block, starts: Iterable[object]) -> list[int]:
    """For each result of a region, given what each argument is outside, a number that is the same
    for results that `cse_block` would merge if they were of one block: so without what that
    levels out, keepdims with its reshapes and the order of commutative operands."""
    known = {a: hash(start) for a, start in zip(region.args, starts, strict=True)}
    for op in region.ops:
        if op.name == "reshape":
            known[op.result] = known[op.operands[0]]
            continue
        operands = [known[v] for v in op.operands]
        if "commutative" in lookup(op.name).traits:
            operands.sort()
        attrs = tuple((k, v) for k, v in op.attrs.items() if k != "keepdims")
        inner = tuple(o.name for r in op.regions for o in r.ops)
        made = hash((op.name, tuple(operands), attrs, inner))
        known.update((r, hash((made, r.index))) for r in op.results)
    return [known[v] for v in region.results]


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
