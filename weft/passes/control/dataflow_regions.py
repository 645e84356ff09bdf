"""Regions of a lowered graph: its static parts, each of which can be one compiled step.

Ops run together if they lie in one frame, are alive or dead together (`ir.analysis.deadness` says
when), and no op outside of the region lies between them; what a loop gives lies after all that
enters it. Each region is a graph of its own; the dataflow executor runs it as one node.

In the part of a partitioned graph an op outside may be one on another device. So ops run together
only if the same number of messages, one after the other, comes before them (a recv says how many),
and the same loops over several devices, of whose messages nothing says how many there are: or a
region that waits for one message and makes another could wait for itself.

`split_regions` cuts expensive regions into parts that can run at once, on different threads or in
different iterations. A region is as large as it can be, which is best for one thread. Where it
holds several parts that do not need each other, each worth a thread of its own
(`work.nanoseconds`), they are cut apart, and so is what joins them. In a loop, what does not need a
value that comes round late is cut from what does: the next iteration may begin it before the last
one is over. Constants that several parts use are in each of them; what these wait for is a part of
its own, before the others. A region is left whole if the parts would hand too much to each other,
or use the same variable. Only whole kernels' results go from part to part, or what no kernel takes
in: elsewhere the cut would decide what is fused, and with it the order in which sums add up. Such
ops go to the part that reads them, or the region stays whole.

`steering`: the values that decide where others go, predicates of switches and iteration numbers of
messages. Where the ops of a graph run on a device, the executor itself still reads these on the
host; scalars that nothing else is needed for are computed there as well, or each iteration of a
loop would wait for the device."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from dataclasses import replace

from weft.ir.analysis.deadness import Deadness
from weft.ir.analysis.effects import is_string, runs_on_host
from weft.ir.analysis.frames import Frame, find_frames
from weft.ir.analysis.verify import KERNELS
from weft.ir.cost.rates import streamed
from weft.ir.cost.thresholds import EXPENSIVE_NS, MOST_CHEAP, MOST_TRAFFIC
from weft.ir.cost.work import nanoseconds, work
from weft.ir.dataclass import dataclass
from weft.ir.dtypes import float32, float64
from weft.ir.errors import InternalError
from weft.ir.graph import Graph, Operation, Value, stable_order
from weft.ir.ops import OPS
from weft.ir.ops.builder import Builder
from weft.ir.ops.control_flow import COMMUNICATION, DATAFLOW
from weft.ir.ops.state import UPDATES
from weft.ir.spec import int_attr
from weft.ir.types import HandleType, RefType, TensorType, TokenType, Type
from weft.passes import in_place

#: Ops with one of these traits run as early as they can.
STAYS = frozenset({"writes_state", "no_dce"})
#: Types of values that no edge carries: the ops that use them know what they stand for.
HANDLES = (RefType, HandleType)
#: The frames around a value, outermost first; () is the root.
Frames = tuple[str, ...]
#: Who reads each value as an operand; None: it is a result of the graph.
Users = dict[Value, list[Operation | None]]
#: What of other devices comes before an op: so many messages, and these loops.
_Past = tuple[int, frozenset[Frame]]
#: When ops are alive, and whether they are kept apart.
_Sort = tuple[int, bool]
#: What the ops of a region have in common: the frames, the condition under which they are alive,
#: by what they come into an iteration (where that matters), what of other devices comes before
#: them, how deep they lie.
_Key = tuple[Frames, _Sort, frozenset[Operation], _Past, int]


@dataclass(frozen=True, slots=True, eq=False)
class Region:
    """A region of a lowered graph. ops: in order. inputs: tensors from outside; after: control
    values from outside. results: tensors that are used outside. A region with `results` of no
    tensors still has effects. constants: those from outside, which it has itself."""

    ops: tuple[Operation, ...]
    frames: Frames
    inputs: tuple[Value, ...]
    after: tuple[Value, ...]
    results: tuple[Value, ...]
    constants: tuple[Value, ...] = ()

    def graph(self, name: str) -> Graph:
        """The region as a graph; handles of variables come with their ops."""
        builder = Builder([v.type for v in self.inputs])
        mapping = dict(zip(self.inputs, builder.args, strict=True))
        for value in self.constants:
            held = origin(value)
            (mapping[value],) = builder.emit("constant", (), held.attrs, locations=held.locations)
        inside = {r for op in self.ops for r in op.results}
        handles: dict[Operation, Value] = {}
        for op in self.ops:
            control = [v for v in op.control if v in inside and not _is_given(mapping.get(v))]
            if op.name == "identity" and op.operands[0] in mapping and not control:
                mapping[op.result] = mapping[op.operands[0]]  # a pivot: nothing in here needs it
                continue
            types = [r.type for r in op.results]
            kept = Operation(
                op.name, op.operands, op.attrs, types, op.regions, control, op.locations
            )
            for value in (v for v in op.operands if isinstance(v.type, HANDLES)):
                handle = origin(value)
                if handle not in handles:
                    made = builder.emit("variable", (), handle.attrs, locations=handle.locations)
                    (handles[handle],) = made
                mapping[value] = handles[handle]
            mapping.update(zip(op.results, builder.clone(kept, mapping), strict=True))
        names = [f"a{i}" for i in range(len(self.inputs))]
        graph = builder.graph(name, names, [mapping[v] for v in self.results])
        return graph.at_stage("fused") if any(op.name in KERNELS for op in self.ops) else graph


def _is_given(value: Value | None) -> bool:
    """Whether to wait for the value says nothing: an argument of the region, of a known size."""
    if value is None or value.op is not None:
        return False
    return isinstance(value.type, TensorType) and value.type.is_static


def is_static(op: Operation) -> bool:
    """Whether a compiled step can hold the op."""
    return op.name not in DATAFLOW and not runs_on_host(op)


def is_handle(op: Operation) -> bool:
    """Whether the op names state or an object of the host."""
    return not op.operands and bool(op.results) and isinstance(op.results[0].type, HANDLES)


def data_operands(op: Operation) -> list[Value]:
    """The operands that edges carry: handles only through switches and frames."""
    if op.name in DATAFLOW:
        return list(op.operands)
    return [v for v in op.operands if not isinstance(v.type, HANDLES)]


def control_operands(op: Operation) -> list[Value]:
    """What must be done, or alive, before the op: its control operands, and handles that came
    through a switch or frame or wait for something; one that only names something is always there.
    """
    handles = (v for v in op.operands if isinstance(v.type, HANDLES))
    given = [*op.control, *(() if op.name in DATAFLOW else handles)]
    return [
        v
        for v in given
        if not isinstance(v.type, HANDLES) or (v.op is not None and _is_placed(v.op))
    ]


def _is_placed(handle: Operation) -> bool:
    return not is_handle(handle) or bool(handle.control)


def origin(handle: Value) -> Operation:
    """The op that names what a handle stands for, or makes a constant that enters frames."""
    while handle.op is not None and handle.op.operands:
        handle = handle.op.operands[0]
    assert handle.op is not None
    return handle.op


def _known(graph: Graph, deadness: Deadness) -> set[Value]:
    """Constants that are brought into loops for all iterations, alive in each of them: a region
    that uses one has it itself."""
    found = set[Value]()
    for op in graph.ops:
        if op.name == "enter" and op.attrs["constant"]:
            made = op.operands[0].op
            source = made is not None and made.name == "constant"
            if (source or op.operands[0] in found) and deadness.always_live(op.result):
                found.add(op.result)
    return found


def handles_as_nodes(graph: Graph) -> set[Operation]:
    """The ops that name handles and have a place in the flow: a switch or frame reads them, or they
    wait for something."""
    read = {v.op for op in graph.ops if op.name in DATAFLOW for v in op.operands}
    return {op for op in graph.ops if is_handle(op) and (op in read or op.control)}


@dataclass(frozen=True, slots=True)
class RegionPlan:
    """The regions of a graph. regions: each static op is in exactly one. frames: around each value.
    partial: whether an iteration may end with ops that never got all their inputs. label: names a
    value in messages."""

    regions: list[Region]
    frames: dict[Value, Frames]
    partial: bool
    label: Callable[[Value], str]


def plan_regions(graph: Graph, apart: Container[Operation] = ()) -> RegionPlan:
    """The regions of a lowered graph. apart: static ops that share no region with others.
    InternalError if its frames do not match."""
    found = find_frames(graph.block, graph.arg_names)
    if found.faults:
        op, what = found.faults[0]
        raise InternalError(
            f"op '{op.name}': {what}",
            hint="weft.ir.analysis.verify shows the graph with the fault",
            location=op.locations,
        )
    deadness = Deadness(found)
    partial = any(_differ(frame, deadness) for frame in found.inner)
    roots = _roots(graph) if partial else {}
    before = {op: frame for frame in found.inner for op in frame.exits}
    frames = {v: _path(frame) for v, frame in found.of_value.items()}
    levels: dict[Value, int] = {}
    keys: dict[Value, _Key] = {}
    order = _ordered(graph, before)
    pasts = _pasts(order, found.of_op, before)
    for op in order:
        read = [*data_operands(op), *control_operands(op)]
        late = [v for first in _before(op, before) for v in first.results]
        if is_handle(op) or not is_static(op):
            level = max((levels.get(v, 0) + 1 for v in (*read, *late)), default=0)
            levels.update((r, level) for r in op.results)
            continue
        sort = deadness.of_op[op], op in apart
        kind = (_path(found.of_op[op]), sort, _joined(roots, read), pasts[op])
        level = 0
        for v in read:
            same = keys.get(v)
            together = same is not None and same[:4] == kind
            level = max(level, levels.get(v, 0) + (not together))
        for r in op.results:
            levels[r], keys[r] = level, (*kind, level)
    known = set() if partial else _known(graph, deadness)
    _sink(order, levels, pasts, keys, known)
    groups: dict[_Key, list[Operation]] = {}
    for op in order:
        if op.results and op.results[0] in keys:
            groups.setdefault(keys[op.results[0]], []).append(op)
    used = users(graph)
    regions = [make_region(k[0], ops, used, known) for k, ops in groups.items()]
    return RegionPlan(regions, frames, partial, found.label)


def _pasts(
    order: Sequence[Operation], of_op: Mapping[Operation, Frame], exits: Mapping[Operation, Frame]
) -> dict[Operation, _Past]:
    """What of other devices comes before each op."""
    meets = {f for op in order if op.name in COMMUNICATION for f in of_op[op].around()}
    if not meets:
        return dict.fromkeys(order, (0, frozenset()))
    pasts: dict[Operation, _Past] = {}
    for op in order:
        made = [v.op for v in (*op.operands, *op.control) if v.op is not None]
        before = [pasts[first] for first in (*made, *_before(op, exits))]
        depth = max((messages for messages, _ in before), default=0)
        loops = frozenset[Frame]().union(*(passed for _, passed in before))
        if op.name == "recv":
            depth = max(depth, int_attr(op.attrs, "depth"))
        elif op in exits and exits[op] in meets:
            loops |= {exits[op]}
        pasts[op] = depth, loops
    return pasts


def _sink(
    order: list[Operation],
    levels: dict[Value, int],
    pasts: Mapping[Operation, _Past],
    keys: dict[Value, _Key],
    constants: Container[Value],
) -> None:
    """Put what needs nothing from outside of its region (constants, values of variables, what is
    computed from them, updates by such values) into the first region that uses it; what it comes
    after is done by then. So goes what takes less time than to copy the value of a variable that it
    reads (a lookup of rows), if a later region reads that value, too.

    A read then gives the value at that time, not that of before what the region waits for; no copy
    of a variable passes from region to region; and what an optimizer reads of its slots and writes
    to them happens under one lock."""
    free = set[Operation]()
    moving: list[Operation] = []
    users: dict[Operation, list[Operation]] = {}
    for op in order:
        made = [v.op for v in (*data_operands(op), *control_operands(op))]
        for before in made:
            if before is not None:
                users.setdefault(before, []).append(op)
        known = bool(op.results) and op.results[0] in keys
        moves = op.name in UPDATES or not OPS[op.name].traits & STAYS
        given = [v for v in data_operands(op) if v not in constants]
        if known and moves and all(v.op in free for v in given):
            free.add(op)
            moving.append(op)
        elif known and moves and any(v.op in free and _is_dearer(v, op) for v in given):
            moving.append(op)
    for op in reversed(moving):
        *kind, past, level = keys[op.results[0]]
        if op not in free and not _shares_later(op, levels, users, free):
            continue
        bounds, joins, pasts_of_users = [], [], []
        for user in users.get(op, ()):
            key = keys.get(user.results[0])
            together = key is not None and list(key[:3]) == kind
            bounds.append(levels[user.results[0]] - (not together))
            joins += [key[3:]] if key is not None and together else []
            pasts_of_users.append(pasts[user] if key is None else key[3])
        late = min(bounds, default=level)
        # of regions side by side the one that least comes before, so no other leads to it; and no
        # more than before another op that needs what moves there
        fits = [p for p, at in joins if at == late and all(_within(p, q) for q in pasts_of_users)]
        if op not in free and not fits:
            continue
        past = min(fits, key=lambda p: (p[0], len(p[1])), default=past)
        late = max(level, late)
        for r in op.results:
            levels[r], keys[r] = late, (*keys[r][:3], past, late)


def _is_dearer(value: Value, op: Operation) -> bool:
    """Whether to copy the value of a variable takes more time than the op."""
    if value.op is None or value.op.name != "read" or not isinstance(value.type, TensorType):
        return False
    types = [v.type for v in (*op.operands, *op.results) if isinstance(v.type, TensorType)]
    static = all(t.is_static for t in types)
    return static and nanoseconds([op]) < streamed(2 * value.type.nbytes)


def _shares_later(
    op: Operation,
    levels: Mapping[Value, int],
    users: Mapping[Operation, Sequence[Operation]],
    free: Container[Operation],
) -> bool:
    """Whether a later region reads the value of a variable that the op reads."""
    level = levels[op.results[0]]
    reads = [v for v in op.operands if v.op in free and _is_dearer(v, op)]
    return any(
        v in user.operands and levels[user.results[0]] > level
        for v in reads
        if v.op is not None
        for user in users.get(v.op, ())
    )


def _within(a: _Past, b: _Past) -> bool:
    """Whether all that comes before one thing comes before another, too."""
    return a[0] <= b[0] and a[1] <= b[1]


def _before(op: Operation, exits: Mapping[Operation, Frame]) -> list[Operation]:
    """What an exit waits for besides its operand: earlier iterations, and the end of its frame."""
    return [*exits[op].enters, *exits[op].nexts.values()] if op in exits else []


def _ordered(graph: Graph, exits: dict[Operation, Frame]) -> list[Operation]:
    """The ops in their order, but each exit after all that enters its frame and goes round in
    it."""

    def before(op: Operation) -> list[Operation]:
        made = [v.op for v in (*op.operands, *op.control) if v.op is not None]
        return [*made, *_before(op, exits)]

    return stable_order(graph.ops, before)


def _differ(frame: Frame, deadness: Deadness) -> bool:
    """Whether only some merges of a loop may get a value in an iteration."""
    starts = [m.operands[0].op for m in frame.merges]
    entered = {deadness.of_op[op] for op in starts if op is not None}
    return len(entered) > 1 or len({deadness.of_op[n] for n in frame.nexts.values()}) > 1


def _roots(graph: Graph) -> dict[Value, frozenset[Operation]]:
    """The merges, enters and exits by which a value comes into an iteration: what has the same ones
    is there, live or dead, in the same iterations."""
    roots: dict[Value, frozenset[Operation]] = {}
    for op in graph.ops:
        own = op.name in ("enter", "exit") or (op.name == "merge" and op.attrs["loop"])
        read = [*data_operands(op), *control_operands(op)]
        found = frozenset({op}) if own else _joined(roots, read)
        roots.update((r, found) for r in op.results)
    return roots


def _joined(
    roots: dict[Value, frozenset[Operation]], read: Iterable[Value]
) -> frozenset[Operation]:
    return frozenset().union(*(roots.get(v, frozenset()) for v in read))


def make_region(
    place: Frames, ops: Sequence[Operation], used: Users, known: Container[Value] = ()
) -> Region:
    """The region of some ops of one frame; used: by `users`; known: constants from outside."""
    members = set(ops)
    inside = {r for op in ops for r in op.results}
    inputs = dict.fromkeys(
        v for op in ops for v in op.operands if v not in inside and isinstance(v.type, TensorType)
    )
    after = dict.fromkeys(v for op in ops for v in control_operands(op) if v not in inside)
    constants = [v for v in inputs if v in known]
    if after or len(constants) < len(inputs):  # else nothing says when it runs
        inputs = {v: None for v in inputs if v not in constants}
    else:
        constants = []
    # what tells a size that depends on values (`tie_sizes`)
    inputs |= {v: None for v in after if _tells_sizes(v.type)}
    results = tuple(
        r
        for op in ops
        for r in op.results
        if not isinstance(r.type, TokenType)
        and any(user is None or user not in members for user in used.get(r, ()))
    )
    return Region(tuple(ops), place, tuple(inputs), tuple(after), results, tuple(constants))


def _tells_sizes(t: Type) -> bool:
    return isinstance(t, TensorType) and not t.is_static and not is_string(t)


def users(graph: Graph) -> Users:
    """Who reads each value, as an operand or for its size; None: it is a result of the graph."""
    found: Users = {}
    for op in graph.ops:
        for v in (*op.operands, *(v for v in op.control if _tells_sizes(v.type))):
            found.setdefault(v, []).append(op)
    for v in graph.results:
        found.setdefault(v, []).append(None)
    return found


def _path(frame: Frame) -> Frames:
    return tuple(f.name for f in frame.around())[-2::-1]


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
    if len(region.ops) < 2 or total < least * EXPENSIVE_NS or not _is_static(region):
        return [region]
    shared = {op for op in region.ops if _may_copy(op, region, used)}
    first = _first(region.ops, shared)
    rest = [op for op in region.ops if op not in shared and op not in first]
    parts = _parts(rest, in_loop)
    dear = sum(nanoseconds(part) >= EXPENSIVE_NS for part in parts)
    apart = len(parts) > 1 and dear >= least
    if first:
        before = [op for op in region.ops if op in first]
        tied = any(map(_ties, _crossing([before, rest])))
        apart = apart and nanoseconds(before) < EXPENSIVE_NS and not tied
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
    dear = [g for g in groups if nanoseconds(g) >= EXPENSIVE_NS]
    cheap = [g for g in groups if nanoseconds(g) < EXPENSIVE_NS]
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
        return sum(self.price[g] >= EXPENSIVE_NS for g in {self.root(op) for op in ops})


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
        if nanoseconds(early) >= EXPENSIVE_NS and not tied:
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


def steering(graph: Graph) -> tuple[set[Value], set[Operation]]:
    """The values of a lowered graph that are read on the host, and the ops on integers and bools
    that compute them from others which are there: same bits wherever they run."""
    turns = _turns(graph)
    own = {op for op in graph.ops if _is_scalar(op)}
    while True:
        read = _read(graph, own, turns)
        own = {op for op in own if op.results[0] in read}
        far = _elsewhere(graph, own, turns)
        there = {op for op in own if not any(v in far for v in op.operands)}
        if there == own:
            return read, own
        own = there


def passed_on(graph: Graph, values: Iterable[Value]) -> set[Value]:
    """These values, and all that switches, merges and frames hand on to become them."""
    turns = _turns(graph)
    found = dict.fromkeys(values)
    queue = list(found)
    for value in queue:
        for source in _sources(value, turns):
            if source not in found:
                found[source] = None
                queue.append(source)
    return set(found)


def _turns(graph: Graph) -> dict[Value, Value]:
    """What comes round to each merge of a loop."""
    return {op.operands[1]: op.operands[0] for op in graph.ops if op.name == "next_iteration"}


def _sources(value: Value, turns: dict[Value, Value]) -> list[Value]:
    """What the value is without any computing."""
    op = value.op
    if op is None or op.name not in DATAFLOW:
        return []
    if op.name == "merge":
        if value.index:  # which one it was
            return []
        return [*op.operands, *([turns[value]] if value in turns else [])]
    return [op.operands[0]]


def _read(graph: Graph, own: Collection[Operation], turns: dict[Value, Value]) -> set[Value]:
    """What is read on the host if `own` is computed there, as far as anything is steered by it."""
    queue: list[Value] = []
    for op in graph.ops:
        if op.name == "switch":
            queue.append(op.operands[1])
        elif op.name in ("send", "recv"):
            queue += op.operands[op.name == "send" :]
    found = set(queue)
    for value in queue:
        given = _sources(value, turns)
        if value.op in own and value.op is not None:
            given = list(value.op.operands)
        for source in given:
            if source not in found:
                found.add(source)
                queue.append(source)
    return found


def _elsewhere(graph: Graph, own: Collection[Operation], turns: dict[Value, Value]) -> set[Value]:
    """The values that the device makes, and what they are handed on as."""
    far = {
        r
        for op in graph.ops
        if op.name not in DATAFLOW and "host" not in OPS[op.name].traits
        for r in op.results
        if op not in own and op.name != "constant"
    }
    while True:
        more = {
            r
            for op in graph.ops
            if op.name in DATAFLOW
            for r in op.results
            if r not in far and any(v in far for v in _sources(r, turns))
        }
        if not more:
            return far
        far |= more


def _is_scalar(op: Operation) -> bool:
    """Whether the op computes one integer or bool from such."""
    if op.regions or "elementwise" not in OPS[op.name].traits:
        return False
    return all(_is_exact(v.type) for v in (*op.operands, *op.results))


def _is_exact(kind: Type) -> bool:
    exact = ("int", "uint", "bool")
    return isinstance(kind, TensorType) and kind.shape == () and kind.dtype.kind in exact


def given_inputs(region: Region) -> list[int]:
    """The inputs of a region that it may overwrite if nobody else reads them: those that it
    updates, where the alternative is a copy."""
    if any(isinstance(v.type, RefType) for op in region.ops for v in op.operands):
        return []  # run by Python, on arrays that are not its own
    bases = {op.operands[0] for op in region.ops if op.name in in_place.UPDATES}
    return [i for i, v in enumerate(region.inputs) if v in bases]
