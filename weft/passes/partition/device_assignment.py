"""Device assignment after lowering: for switches, merges, frames, counters, which nobody placed.

Branches and loops that span devices are lowered first (`lower_spanning`); one whose ops are all on
one device stays as it is, and native code there.

A loop variable lives where its next value is computed, a switch where its data are, a merge where
its first operand is. Some ops run on every device that needs their result, and have no place of
their own (None): small constants and what repeats them, what enters a loop for all iterations,
switches and identities of such values. A predicate is sent once and switched there, not switched
and sent twice."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from weft.ir.analysis.frames import Frames
from weft.ir.analysis.known_values import constant_of
from weft.ir.cost.thresholds import COPIED_BYTES
from weft.ir.errors import UnsupportedError
from weft.ir.graph import Block, Graph, Operation, Value
from weft.ir.ops.builder import Builder
from weft.ir.ops.control_flow import CONTROL
from weft.ir.types import HandleType, RefType, TensorType
from weft.passes.control.lower_control_flow import decide, lower_control_flow, used_args
from weft.passes.rewriting.rewrite import (
    bind,
    rebuilt,
    rewrite,
    with_block,
    with_operands,
)
from weft.passes.simplify.effects import strip_mark


def lower_spanning(graph: Graph) -> Graph:
    """`graph` without branches and loops that span devices, and without marks for gradients.

    UnsupportedError for a scan that spans devices and whose length only a step knows.
    """
    graph = rewrite(graph, strip_mark, anywhere=True)
    graph = with_block(graph, _without_idle_handles(graph.block))
    for op in graph.walk():
        if op.name in CONTROL and spans(op):
            lowered, why = decide(op, "dataflow")
            if not lowered:
                raise UnsupportedError(
                    f"op '{op.name}' runs on several devices, "
                    f"{', '.join(sorted(devices_in(op)))}, but cannot be cut: {why}",
                    hint="put all of it on one device",
                    location=op.locations,
                )
    return lower_control_flow(graph, which=spans)


def _without_idle_handles(block: Block) -> Block:
    """`block` in which branches and loops take no state and no queues that they do not use."""
    mapping: dict[Value, Value] = {}
    ops: list[Operation] = []
    for op in block.ops:
        new = with_operands(op, mapping)
        if op.name in CONTROL:
            new = _shed(new, tuple(_without_idle_handles(r) for r in op.regions))
        bind(mapping, op, new.results)
        ops.append(new)
    return rebuilt(block, ops, [mapping.get(v, v) for v in block.results])


def _shed(op: Operation, regions: tuple[Block, ...]) -> Operation:
    """A branch or loop with other regions, and without the handles that these do not use."""
    first = op.name == "cond"
    used = set[int]().union(*map(used_args, regions))
    handles = (RefType, HandleType)
    idle = {
        i
        for i, v in enumerate(op.operands[first:])
        if i not in used and isinstance(v.type, handles)
    }
    if not idle and all(a is b for a, b in zip(regions, op.regions, strict=True)):
        return op
    shed = []
    for region in regions:
        builder = Builder([a.type for i, a in enumerate(region.args) if i not in idle])
        kept = [a for i, a in enumerate(region.args) if i not in idle]
        mapping = dict(zip(kept, builder.args, strict=True))
        for inner in region.ops:
            mapping.update(zip(inner.results, builder.clone(inner, mapping), strict=True))
        shed.append(builder.block([mapping[v] for v in region.results]))
    operands = [v for i, v in enumerate(op.operands) if i - first not in idle]
    return Operation(
        op.name, operands, op.attrs, [r.type for r in op.results], shed, op.control, op.locations,
        device=op.device, group=op.group,
    )  # fmt: skip


def spans(op: Operation) -> bool:
    """Whether the ops in the regions of `op` are on several devices."""
    return len(devices_in(op)) > 1


def home_of(op: Operation) -> str:
    """Where an op that spans no devices runs: with the ops in its regions, if there are any; ""
    if nothing says where."""
    return next(iter(devices_in(op)), op.device)


def devices_in(op: Operation) -> set[str]:
    """The devices of the ops in the regions of `op`; constants are copied, so theirs do not
    count, nor do those of branches and loops that hold others."""
    return {inner.device for region in op.regions for inner in _leaves(region) if inner.device}


def _leaves(block: Block) -> Iterator[Operation]:
    for op in block.ops:
        if op.name == "constant":
            continue
        inside = [inner for region in op.regions for inner in _leaves(region)]
        if op.name in CONTROL and inside:
            yield from inside
        else:
            yield op


#: The device of each op; None for one that runs wherever it is needed.
Homes = dict[Operation, str | None]


def assign(block: Block, frames: Frames, default: str) -> Homes:
    """The device of each op of the top block. default: where nothing says more."""
    return _Assignment(block, frames, default).homes


def device_names(block: Block) -> Iterator[str]:
    """The devices that the ops of a block name, in order."""
    for op in block.ops:
        device = home_of(op)
        if device:
            yield device


class _Assignment:
    def __init__(self, block: Block, frames: Frames, default: str) -> None:
        self.block, self.default = block, default
        self.homes: Homes = {}
        self.users: dict[Value, list[Operation]] = {}
        self.turns = {merge: (n, merge) for f in frames.inner for merge, n in f.nexts.items()}
        self.merge_of = dict(self.turns.values())
        for op in block.ops:
            for value in (*op.operands, *op.control):
                self.users.setdefault(value, []).append(op)
        for op in block.ops:
            if self._is_free(op):
                self.homes[op] = None
            elif home_of(op) and op.name != "exit":  # that is where what it brings out is
                self.homes[op] = home_of(op)
        self._bind_loops()
        left = [op for op in block.ops if op not in self.homes]
        while left:
            left = self._spread(left)
            if left:
                self._place(left[0], self._guess(left[0]))

    def _is_free(self, op: Operation) -> bool:
        match op.name:
            case "constant":
                return is_small(op)
            case "broadcast_to":
                held = op.operands[0].op
                known = isinstance(t := op.result.type, TensorType) and t.is_static
                return known and held is not None and self.homes.get(held, "") is None
            case "enter" if op.attrs["constant"]:
                return True
            case "switch" if not op.device:
                data, pred = op.operands
                return data is pred or self._free_value(data)
            case "identity" if not op.device:
                return self._free_value(op.operands[0])
        return False

    def _free_value(self, value: Value) -> bool:
        return value.op is None or self.homes.get(value.op, "") is None

    def _bind_loops(self) -> None:
        """Enter, merge and next_iteration of one loop variable are on one device."""
        for merge in self.turns:
            if merge in self.homes:
                self._place(merge, self.homes[merge])

    def _place(self, op: Operation, device: str | None) -> None:
        merge = self._merge_with(op)
        if merge is None:
            self.homes[op] = device
            return
        start = merge.operands[0].op
        assert start is not None
        for one in (start, merge, self.turns[merge][0]):
            self.homes[one] = device

    def _merge_with(self, op: Operation) -> Operation | None:
        """The merge of the loop variable that `op` brings in, merges or brings round."""
        if op in self.turns:
            return op
        if op in self.merge_of:
            return self.merge_of[op]
        if op.name == "enter":
            readers = self.users.get(op.result, ())
            return next((r for r in readers if r in self.turns), None)
        return None

    def _spread(self, left: Sequence[Operation]) -> list[Operation]:
        """Place what follows from what is placed; the ops that are left."""
        while True:
            for op in left:
                if op in self.homes:
                    continue
                found = self._follows(op)
                if found is not None:
                    self._place(op, found)
            rest = [op for op in left if op not in self.homes]
            if len(rest) == len(left):
                return rest
            left = rest

    def _follows(self, op: Operation) -> str | None:
        merge = self._merge_with(op)
        given = op.operands if merge is None else self.turns[merge][0].operands[:1]
        return next(filter(None, map(self._home, given)), None)

    def _home(self, value: Value) -> str | None:
        return None if value.op is None else self.homes.get(value.op)

    def _guess(self, op: Operation) -> str:
        """Of an op the operands of which say nothing: where the first op is that needs it, or what
        a loop variable starts with."""
        merge = self._merge_with(op)
        seen = {merge or op}
        queue = [merge or op]
        for now in queue:  # breadth first
            for result in now.results:
                for user in self.users.get(result, ()):
                    device = self.homes.get(user)
                    if device:
                        return device
                    if user not in seen:
                        seen.add(user)
                        queue.append(user)
        start = merge.operands[0].op if merge is not None else None
        return (start is not None and self._home(start.operands[0])) or self.default


def is_small(constant: Operation) -> bool:
    """Whether a constant is copied to where it is needed."""
    held = constant_of(constant.result)
    kind = constant.result.type
    assert isinstance(kind, TensorType)
    return held is not None and held.array.nbytes <= COPIED_BYTES
