"""The static parts of a graph with Switch and Merge: what can be one compiled step.

Ops run together if they lie in one frame, are alive or dead together (`ir.deadness` says when), and
no op outside of the region lies between them; what a loop gives lies after all that enters it. Each
region is a graph of its own; the dataflow executor runs it as one node.

In the part of a partitioned graph an op outside may be one on another device. So ops run together
only if the same number of messages, one after the other, comes before them (a recv says how many),
and the same loops over several devices, of whose messages nothing says how many there are: or a
region that waits for one message and makes another could wait for itself.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence

from weft.ir.builder import Builder
from weft.ir.dataclass import dataclass
from weft.ir.deadness import Deadness
from weft.ir.errors import InternalError
from weft.ir.frames import Frame, find_frames
from weft.ir.graph import Graph, Operation, Value
from weft.ir.host import is_string, runs_on_host
from weft.ir.legality import KERNELS
from weft.ir.ops import OPS
from weft.ir.ops.communication import COMMUNICATION
from weft.ir.ops.dataflow import DATAFLOW
from weft.ir.ops.state import UPDATES
from weft.ir.order import stable_order
from weft.ir.rules import int_attr
from weft.ir.types import HandleType, RefType, TensorType, TokenType, Type

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
    """ops: in order. inputs: tensors from outside; after: control values from outside. results:
    tensors that are used outside. A region with `results` of no tensors still has effects.
    constants: those from outside, which it has itself."""

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
            control = [v for v in op.control if v in inside]
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
    """regions: each static op is in exactly one. frames: around each value. partial: whether an
    iteration may end with ops that never got all their inputs. label: names a value in messages."""

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
            hint="weft.ir.verify shows the graph with the fault",
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
    after is done by then.

    A read then gives the value at that time, not that of before what the region waits for; no copy
    of a variable passes from region to region; and what an optimizer reads of its slots and writes
    to them happens under one lock."""
    free: dict[Operation, None] = {}
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
            free[op] = None
    for op in reversed(free):
        *kind, past, level = keys[op.results[0]]
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
        past = min(fits, key=lambda p: (p[0], len(p[1])), default=past)
        late = max(level, late)
        for r in op.results:
            levels[r], keys[r] = late, (*keys[r][:3], past, late)


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
    """Who reads each value as an operand; None: it is a result of the graph."""
    found: Users = {}
    for op in graph.ops:
        for v in op.operands:
            found.setdefault(v, []).append(op)
    for v in graph.results:
        found.setdefault(v, []).append(None)
    return found


def _path(frame: Frame) -> Frames:
    return tuple(f.name for f in frame.around())[-2::-1]
