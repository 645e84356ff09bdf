"""What steers the run of a lowered graph: the values that decide where others go.

These are the predicates of switches and the iteration numbers of messages. Where the ops of a graph
run on a device, the executor itself still reads these on the host; scalars that nothing else is
needed for are computed there as well, or each iteration of a loop would wait for the device.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from weft.ir.graph import Graph, Operation, Value
from weft.ir.ops import OPS
from weft.ir.ops.dataflow import DATAFLOW
from weft.ir.types import TensorType, Type


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
