"""Makers of stacks, and of the handles that they become (see `graph_makers`)."""

from __future__ import annotations

import numpy as np
from graphs import GraphMaker, Unfit

from weft.ir.graph import Value
from weft.ir.types import StackType, TensorType


def stack(m: GraphMaker, op: str) -> None:
    """A stack of what the pool has, perhaps of stacks of it, and one op on it."""
    value = m.some(lambda t: None not in t.shape and (op != "stack_add" or t.dtype.is_numeric))
    held = value.type
    depth = m.int(1, 2)
    start = m.emit("stack_new", dtype=held.dtype, shape=held.shape)[0]
    made = [_pushed(m, "stack_push", start, value) for _ in range(2)]
    inner = m.pick(made)
    if depth == 2:
        start = m.emit("stack_new", dtype=held.dtype, shape=held.shape, depth=2)[0]
        made = [_pushed(m, "stack_push", start, inner) for _ in range(2)]
    last = _last(m, op, made)
    if depth == 2:
        last = m.emit("stack_pop", [last])[1]
    m.emit("stack_pop", [last])
    made = [v for o in m.builder.ops for v in o.results]
    m.hidden.update(v for v in made if isinstance(v.type, StackType))


def _pushed(m: GraphMaker, op: str, start: Value, value: Value) -> Value:
    for _ in range(m.int(0, 2)):
        start = m.emit(op, [start, value])[0]
    return start


def _last(m: GraphMaker, op: str, made: list[Value]) -> Value:
    match op:
        case "stack_add":
            return m.emit(op, made)[0]
        case "stack_pop":
            return m.emit(op, made[:1])[0]
    return made[0]


def arena(m: GraphMaker, op: str) -> None:
    """The same with handles, which are numbers that nothing else may use."""
    value = m.some(lambda t: t.is_static and (op != "arena_add" or t.dtype.is_numeric))
    held = value.type
    if not isinstance(held, TensorType):
        raise Unfit
    kind = {"dtype": held.dtype, "shape": held.shape}
    zero = m.constant(np.zeros((), np.int64))
    made = [_pushed(m, "arena_push", zero, value) for _ in range(2)]
    last = made[0]
    if op == "arena_add":
        last = m.emit1(op, *made, depth=1, **kind)
    rest, _ = m.emit("arena_pop", [last], **kind)
    names = ("arena_push", "arena_pop", "arena_add")
    numbers = {o.results[0] for o in m.builder.ops if o.name in names}
    m.hidden |= numbers
    m.pool = [v for v in m.pool if v not in numbers]
    assert rest not in m.pool
