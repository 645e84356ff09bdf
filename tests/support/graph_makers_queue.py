"""Makers of ops of the host (see `graph_makers`)."""

from __future__ import annotations

from graphs import GraphMaker, Unfit

from weft.ir.graph import Value
from weft.ir.ops.resources import QUEUE_KINDS
from weft.ir.types import TensorType


def queue(m: GraphMaker, op: str) -> None:
    """A queue of what the pool has, and one op on it."""
    values = [m.some() for _ in range(m.int(1, 2))]
    kinds = [v.type for v in values]
    parts = tuple(str(t) for t in kinds)
    number = sum(o.name == "queue" for o in m.builder.ops)
    handle = m.emit1(
        "queue", name=f"q{number}", kind=m.pick(list(QUEUE_KINDS)), capacity=m.int(-1, 5),
        parts=parts, min_after_dequeue=m.int(0, 3), seed=m.int(-1, 9),
    )  # fmt: skip
    _on(m, op, handle, values)
    m.pool = [v for v in m.pool if isinstance(v.type, TensorType)]


def _on(m: GraphMaker, op: str, handle: Value, values: list[Value]) -> None:
    match op:
        case "enqueue":
            m.emit(op, [handle, *values])
        case "enqueue_many":
            stacked = []
            for v in values:
                if not isinstance(v.type, TensorType) or not v.type.is_static:
                    raise Unfit
                stacked.append(m.like(v.type.dtype, (2, *v.type.static_shape)))
            m.emit(op, [handle, *stacked])
        case "dequeue_many" | "dequeue_up_to":
            m.emit(op, [handle], n=m.int(0, 3))
        case "queue_close":
            m.emit(op, [handle], cancel_pending=m.flag())
        case "dequeue" | "queue_size" | "queue_is_closed":
            m.emit(op, [handle])


def py_function(m: GraphMaker, op: str) -> None:
    """A function that is a name only, as in a graph that was read from text."""
    values = [m.some() for _ in range(m.int(0, 2))]
    if op == "debug_callback":
        m.emit(op, values, function="note", ordered=m.pick([True, False]))
        return
    parts = tuple(m.pick(["f32[2]", "i64[]", "bool[3,0]"]) for _ in range(m.int(0, 2)))
    m.emit(op, values, function=m.pick(["load", "a.<locals>.b"]), parts=parts)
