"""Metrics of a graph, read off its ops: bytes moved, kernels, peak memory. Static shapes only."""

from __future__ import annotations

from weft.ir.graph import Graph, Operation, Value
from weft.ir.types import TensorType
from weft.passes.rewriting.rewrite import is_view

#: Ops that never become a kernel: they hold data, name state, or only order effects.
NOT_KERNELS = frozenset({"constant", "variable", "read", "group", "custom_gradient", "dim_size"})


def is_kernel(op: Operation) -> bool:
    """Whether the op will run as a kernel of its own (fusion makes one `fused` op of many)."""
    return op.name not in NOT_KERNELS and not is_view(op)


def kernel_count(graph: Graph) -> int:
    """The number of ops of the top block that will be kernels."""
    return sum(is_kernel(op) for op in graph.ops)


def bytes_moved(graph: Graph) -> int | None:
    """Bytes of the kernels' operands and results; None if a shape is not static."""
    total = 0
    for op in graph.ops:
        if is_kernel(op):
            for value in (*op.operands, *op.results):
                size = _nbytes(value)
                if size is None:
                    return None
                total += size
    return total


def peak_bytes(graph: Graph) -> int | None:
    """The most bytes of results alive at once, running the ops in order; None if not all static.

    Inputs, constants and variables are not counted; a view keeps its operand alive; nothing is
    computed in place (the memory plan of the compiled step does better).
    """
    root: dict[Value, Value] = {}
    last: dict[Value, int] = {}
    for position, op in enumerate(graph.ops):
        for value in op.operands:
            last[root.get(value, value)] = position
        if is_view(op):
            root[op.result] = root.get(op.operands[0], op.operands[0])
    for value in graph.results:
        last[root.get(value, value)] = len(graph.ops)
    alive = peak = 0
    ends: dict[int, int] = {}
    for position, op in enumerate(graph.ops):
        if is_kernel(op):
            for value in op.results:
                size = _nbytes(value)
                if size is None:
                    return None
                alive += size
                end = last.get(value, position)
                ends[end] = ends.get(end, 0) + size
        peak = max(peak, alive)
        alive -= ends.pop(position, 0)
    return peak


def _nbytes(value: Value) -> int | None:
    if not isinstance(value.type, TensorType):
        return 0
    return value.type.nbytes if value.type.is_static else None
