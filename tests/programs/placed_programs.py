"""Random devices for the ops of a program: what must be on one device is, the rest is anywhere."""

from __future__ import annotations

import random
from collections.abc import Sequence

from weft.ir.graph import Block, Graph, Operation, Value
from weft.ir.types import HandleType, RefType, StackType, Type

DEVICES = ("/job:ps/task:0/cpu:0", "/job:worker/task:0/cpu:0", "/job:worker/task:1/cpu:0")
_BOUND = (RefType, HandleType, StackType)


class _Groups:
    """Union-find over values and names of state."""

    def __init__(self) -> None:
        self.parent: dict[object, object] = {}

    def find(self, x: object) -> object:
        while (up := self.parent.setdefault(x, x)) is not x:
            x = up
        return x

    def join(self, a: object, b: object) -> None:
        self.parent[self.find(a)] = self.find(b)


def place_at_random(
    graph: Graph, seed: int, count: int, stay: float = 0.0, devices: Sequence[str] = DEVICES
) -> Graph:
    """`graph` with each op on one of the first `count` devices. stay: how likely an op is where the
    one before it is, so that some branches and loops are on one device."""
    chance = random.Random(seed)
    groups = _Groups()
    _bind(groups, graph.block)
    chosen: dict[object, str] = {}
    last = [devices[chance.randrange(count)]]

    def device(op: Operation) -> str:
        held = [v for v in (*op.operands, *op.results) if _bound(v.type)]
        if chance.random() >= stay:
            last[0] = devices[chance.randrange(count)]
        if not held or op.regions:
            return last[0]
        return chosen.setdefault(groups.find(held[0]), last[0])

    def copy(block: Block) -> Block:
        mapping: dict[Value, Value] = {}
        ops = []
        for op in block.ops:
            made = Operation(
                op.name, [mapping.get(v, v) for v in op.operands], op.attrs,
                [r.type for r in op.results], [copy(r) for r in op.regions],
                [mapping.get(v, v) for v in op.control], op.locations, device=device(op),
            )  # fmt: skip
            ops.append(made)
            mapping.update(zip(op.results, made.results, strict=True))
        return Block(block.args, tuple(ops), tuple(mapping.get(v, v) for v in block.results))

    return Graph(graph.name, copy(graph.block), graph.arg_names, graph.stage)


def _bound(t: Type) -> bool:
    return isinstance(t, _BOUND)


def _bind(groups: _Groups, block: Block) -> None:
    """Join all values of one stack, one variable, one queue."""
    for op in block.ops:
        held = [v for v in (*op.operands, *op.results) if _bound(v.type)]
        if not op.operands and op.results and isinstance(op.result.type, (RefType, HandleType)):
            groups.join(op.result, str(op.attrs["name"]))
        elif not op.regions:
            for v in held[1:]:
                groups.join(held[0], v)
        for region in op.regions:
            _bind(groups, region)
            given = op.operands[1:] if op.name == "cond" else op.operands
            _join(groups, region.args, given)
            back = region.results
            if op.name in ("cond", "scan") or region is op.regions[-1]:
                _join(groups, back, op.results)
                if op.name != "cond":
                    _join(groups, back, given)
        if op.name == "custom_gradient":
            raise NotImplementedError("programs here have no marks for gradients")


def _join(groups: _Groups, a: Sequence[Value], b: Sequence[Value]) -> None:
    for x, y in zip(a, b, strict=False):
        if _bound(x.type) and _bound(y.type):
            groups.join(x, y)
