"""Loop merging: two loops of which one repeats the other become one.

A gradient runs the forward loop again to keep what it needs of every iteration; here the two are
merged, by one sweep over the loops of a block, in order. A loop is compared with those before it
that have a carry which starts and goes on like one of its own, or, where there are no carries, that
take the same rows; so loops that have nothing to do with each other cost nothing. What was merged
is found under the values of its first loop, so that loops which take the results of two loops that
became one are seen to be alike in the same sweep.

All carries of the one loop must start as carries of the other do, and when both bodies are put into
one and equal ops are merged, they must go on alike, too (`merged`)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import nsmallest

from weft.ir.graph import Block, Operation, Value
from weft.ir.locations import merge_locations
from weft.ir.ops import lookup
from weft.ir.ops.builder import Builder
from weft.ir.ops.control_flow import length_attr
from weft.ir.types import Type
from weft.passes.control.loops import LOOPS, Loop
from weft.passes.rewriting.rewrite import has_effect, rebuilt, with_operands
from weft.passes.simplify.cse_dce import cse_block


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
