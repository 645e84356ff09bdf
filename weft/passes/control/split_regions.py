"""Dear regions in parts that can run at once, on different threads or in different iterations.

A region is as large as it can be, which is best for one thread. Where it holds several parts that
do not need each other, each worth a thread of its own (`passes/estimate.py`), they are cut apart,
and so is what joins them. In a loop, what does not need a value that comes round late is cut from
what does: the next iteration may begin it before the last one is over. Constants that several parts
use are in each of them; what these wait for is a part of its own, before the others. A region is
left whole if the parts would hand too much to each other, or use the same variable. Only whole
kernels' results go from part to part, or what no kernel takes in: elsewhere the cut would decide
what is fused, and with it the order in which sums add up. Such ops go to the part that reads them,
or the region stays whole.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from weft.ir.dtypes import float32, float64
from weft.ir.graph import Operation, Value
from weft.ir.legality import KERNELS
from weft.ir.prices import streamed
from weft.ir.types import TensorType, TokenType
from weft.passes.control.plan_regions import (
    HANDLES,
    Region,
    RegionPlan,
    Users,
    make_region,
    origin,
)
from weft.passes.estimate import DEAR_NS, nanoseconds
from weft.passes.work import work

#: Values between parts may cost so much of the region's time.
MOST_TRAFFIC = 0.1
#: Cheap parts of one region of a loop that stay apart, at most.
MOST_CHEAP = 8
#: Sums of products: no kernel joins these, if not of 16 bits, with what reads them.
ROUNDED = ("matmul", "conv")
_Ops = list[Operation]


def split_regions(plan: RegionPlan, used: Users) -> RegionPlan:
    """`plan` with its dear regions in parts. used: who reads each value of the graph."""
    parts = [part for region in plan.regions for part in _split(region, used)]
    return replace(plan, regions=parts)


def _split(region: Region, used: Users) -> list[Region]:
    in_loop = bool(region.frames)
    least = 1 if in_loop else 2
    total = nanoseconds(region.ops)
    if len(region.ops) < 2 or total < least * DEAR_NS or not _is_static(region):
        return [region]
    shared = {op for op in region.ops if _may_copy(op, region, used)}
    first = _first(region.ops, shared)
    rest = [op for op in region.ops if op not in shared and op not in first]
    parts = _parts(rest, in_loop)
    dear = sum(nanoseconds(part) >= DEAR_NS for part in parts)
    apart = len(parts) > 1 and dear >= least
    if first:
        before = [op for op in region.ops if op in first]
        tied = any(map(_ties, _crossing([before, rest])))
        apart = apart and nanoseconds(before) < DEAR_NS and not tied
        parts = [before, *parts]
    apart = apart and _variables_apart(parts)
    crossing = _crossing(parts) if apart else []
    if not apart or _traffic(crossing) > MOST_TRAFFIC * total or not _all_rounded(crossing):
        return [region]
    inside = {op for part in parts for op in part}
    seen: Users = {v: [u for u in users if u not in shared] for v, users in used.items()}
    seen |= {r: [] for op in shared for r in op.results}
    made = []
    for part in parts:
        members = set(part)
        read = {v.op for op in part for v in (*op.operands, *op.control)}
        ops = [op for op in region.ops if op in members or (op in shared and op in read)]
        made.append(make_region(region.frames, ops, seen, region.constants))
    assert inside | shared == set(region.ops)
    return made


def _is_static(region: Region) -> bool:
    values = [*region.inputs, *(r for op in region.ops for r in op.results)]
    return all(v.type.is_static for v in values if isinstance(v.type, TensorType))


def _may_copy(op: Operation, region: Region, used: Users) -> bool:
    """A constant that only this region's ops read as an operand."""
    if op.name != "constant" or op.result in region.results:
        return False
    members = set(region.ops)
    return all(user in members for user in used.get(op.result, ())) and not any(
        op.result in other.control for other in region.ops
    )


def _first(ops: Sequence[Operation], shared: set[Operation]) -> set[Operation]:
    """What constants wait for that may be in several parts, and all that this needs."""
    members = set(ops) - shared
    found = set[Operation]()
    waiting = [v.op for op in shared for v in op.control]
    while waiting:
        op = waiting.pop()
        if op in members and op not in found:
            found.add(op)
            waiting += [v.op for v in (*op.operands, *op.control)]
    return found


def _parts(ops: _Ops, in_loop: bool) -> list[_Ops]:
    """In an order in which each comes after those that it reads."""
    groups, late = _components(ops)
    dear = [g for g in groups if nanoseconds(g) >= DEAR_NS]
    cheap = [g for g in groups if nanoseconds(g) < DEAR_NS]
    if in_loop:
        dear = [part for g in dear for part in _early(g)]
    if not in_loop or len(cheap) > MOST_CHEAP:
        order = {op: i for i, op in enumerate(ops)}
        together = sorted((op for g in cheap for op in g), key=order.__getitem__)
        cheap = [together] if together else []
    return [*cheap, *dear, *(_parts(late, in_loop) if late else [])]


def _components(ops: _Ops) -> tuple[list[_Ops], _Ops]:
    """Ops that hang together, and what needs several dear groups of them."""
    found = _Groups(ops)
    late: dict[Operation, None] = {}
    first_of: dict[Operation, Operation] = {}  # the first op on each variable
    for op in ops:
        made = [v.op for v in (*op.operands, *op.control) if v.op is not None]
        before = [b for b in made if b in found.price]
        apart = found.dear(before) > 1 and not any(_ties(v) for v in op.operands)
        if apart or any(b in late for b in before):
            late[op] = None
            continue
        handles = [origin(v) for v in op.operands if isinstance(v.type, HANDLES)]
        for other in (*before, *(first_of[h] for h in handles if h in first_of)):
            found.join(op, other)
        first_of.update((h, op) for h in handles)
    _add_unrounded(late, ops)
    if len(late) == len(ops):
        return [ops], []
    groups: dict[Operation, _Ops] = {}
    for op in ops:
        if op not in late:
            groups.setdefault(found.root(op), []).append(op)
    return list(groups.values()), [op for op in ops if op in late]


def _add_unrounded(late: dict[Operation, None], ops: _Ops) -> None:
    """Add to `late` what only ops of it read, and is not rounded before they do."""
    users: dict[Operation, set[Operation]] = {op: set() for op in ops}
    for op in ops:
        for v in (*op.operands, *op.control):
            if v.op in users:
                users[v.op].add(op)
    for op in reversed(ops):
        tied = any(map(_ties, (*op.operands, *op.results)))
        if users[op] and users[op] <= late.keys() and not (tied or _all_rounded(op.results)):
            late[op] = None


class _Groups:
    """Groups of ops that are joined one by one, and their prices."""

    def __init__(self, ops: _Ops) -> None:
        self.price = {op: nanoseconds([op]) for op in ops}
        self._up = {op: op for op in ops}

    def root(self, op: Operation) -> Operation:
        while self._up[op] is not op:
            self._up[op] = op = self._up[self._up[op]]
        return op

    def join(self, op: Operation, other: Operation) -> None:
        a, b = self.root(op), self.root(other)
        if a is not b:
            self._up[a] = b
            self.price[b] += self.price[a]

    def dear(self, ops: _Ops) -> int:
        """How many different dear groups the ops are of."""
        return sum(self.price[g] >= DEAR_NS for g in {self.root(op) for op in ops})


def _ties(v: Value) -> bool:
    """Whether a value cannot go from one region to another."""
    return not isinstance(v.type, (TensorType, TokenType)) and not isinstance(v.type, HANDLES)


def _early(ops: _Ops) -> list[_Ops]:
    """A group of a loop's body: apart what does not need one of the values that come round, if that
    is dear."""
    members = set(ops)
    around = dict.fromkeys(
        v
        for op in ops
        for v in (*op.operands, *op.control)
        if v.op is not None and v.op not in members and v.op.name in ("switch", "merge")
    )
    for value in around:
        needs: dict[Operation, None] = {}
        for op in ops:
            read = (*op.operands, *op.control)
            if value in read or any(v.op in needs for v in read):
                needs[op] = None
        early = [op for op in ops if op not in needs]
        tied = any(_ties(v) and v.op not in needs for op in needs for v in op.operands)
        if nanoseconds(early) >= DEAR_NS and not tied:
            return [*_early(early), *_early(list(needs))]
    return [ops]


def _variables_apart(parts: Sequence[_Ops]) -> bool:
    """Whether no two parts use one variable: what a region reads of it and writes to it happens
    under one lock."""
    used = [
        {origin(v) for op in part for v in op.operands if isinstance(v.type, HANDLES)}
        for part in parts
    ]
    return sum(map(len, used)) == len(set().union(*used))


def _crossing(parts: Sequence[_Ops]) -> list[Value]:
    """The values that parts hand to each other."""
    part_of = {op: i for i, part in enumerate(parts) for op in part}
    return list(
        dict.fromkeys(
            v
            for op, i in part_of.items()
            for v in op.operands
            if v.op in part_of and part_of[v.op] != i
        )
    )


def _traffic(crossing: Sequence[Value]) -> float:
    """Nanoseconds for handing these values on."""
    types = [v.type for v in crossing]
    return 2 * streamed(sum(t.nbytes for t in types if isinstance(t, TensorType)))


def _all_rounded(values: Sequence[Value]) -> bool:
    """Whether the bits of these are the same, and of what reads them, in one kernel with that or
    not."""
    return all(map(_is_rounded, values))


def _is_rounded(v: Value) -> bool:
    if not isinstance(v.type, TensorType) or v.type.dtype.kind not in ("float", "complex"):
        return True
    if v.op is not None and v.op.name in KERNELS:
        return True
    if v.op is None or not v.op.name.startswith(ROUNDED) or v.type.dtype not in (float32, float64):
        return False
    flops = work(v.op).flops
    # a sum of one term is a product
    return flops is not None and flops > 2 * math.prod(v.type.static_shape)
