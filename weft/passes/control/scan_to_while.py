"""A `scan` as a `while` that counts, reads rows and writes stacks: what `lower_control_flow` takes.

Before::

    %0, %1 = scan(%c, %xs) {carries=1, sequences=1, length=3} : f32[], f32[3] {
      ^(%a0: f32[], %a1: f32[]) ...
      yield %2, %3
    }

After: a while on (i, carry, stack) and %xs, whose body takes `gather_nd(%xs, i)` for the row, and
gives `scatter_nd_update(stack, i, %3)`. With reverse, i counts down from the last row. Bits are the
same: rows are moved, nothing is computed otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from weft.ir.attributes import AttrValue, ConstArray
from weft.ir.builder import Builder
from weft.ir.dtypes import string
from weft.ir.graph import Block, Operation, Value
from weft.ir.rules import int_attr
from weft.ir.types import TensorType, Type
from weft.passes.control.loops import Loop
from weft.passes.tie_sizes import telling


def scan_to_while(op: Operation) -> Block:
    """What makes the starts, and at last a `while`, the results of which after the first are those
    of the scan; on the operands of `op`."""
    loop, where = Loop.of(op), op.locations
    builder = Builder([v.type for v in op.operands])
    operands = builder.args
    length = int_attr(op.attrs, "length")
    reverse = bool(op.attrs["reverse"])
    stacks = [op.results[i].type for i in loop.ys]
    first = length - 1 if reverse else 0
    starts = [_number(builder, op, first), *operands[: loop.carries]]
    starts += [_empty(builder, op, t, operands) for t in stacks]
    types = [*(v.type for v in starts), *(v.type for v in operands[loop.carries :])]
    test = _test(op, types, -1 if reverse else length, reverse)
    body = _body(op, loop, types, len(stacks), reverse)
    attrs: dict[str, AttrValue] = {
        "carries": len(starts), "limit": -1, "parallel_iterations": 10,
    }  # fmt: skip
    given = [*starts, *operands[loop.carries :]]
    made = builder.emit("while", given, attrs, regions=(test, body), locations=where)
    return builder.block(made[1:])


def _number(builder: Builder, op: Operation, number: int) -> Value:
    value = ConstArray(np.array(number, np.int64))
    return builder.emit1("constant", value=value, locations=op.locations)


def _empty(builder: Builder, op: Operation, kind: Type, given: Sequence[Value]) -> Value:
    """Where the rows of a result will be: zeros, as long as nothing is written. given: which may
    tell its sizes."""
    assert isinstance(kind, TensorType)
    zero = np.array(b"", object) if kind.dtype is string else np.zeros((), kind.dtype.numpy)
    scalar = builder.emit1("constant", value=ConstArray(zero), locations=op.locations)
    (made,) = builder.emit(
        "broadcast_to", [scalar], {"shape": kind.shape}, control=telling(kind, given),
        locations=op.locations,
    )  # fmt: skip
    return made


def _test(op: Operation, types: Sequence[Type], end: int, reverse: bool) -> Block:
    builder = Builder(types)
    bound = _number(builder, op, end)
    name = "greater" if reverse else "less"
    return builder.block(builder.emit(name, [builder.args[0], bound], locations=op.locations))


def _body(op: Operation, loop: Loop, types: Sequence[Type], stacks: int, reverse: bool) -> Block:
    builder, where = Builder(types), op.locations
    count, *rest = builder.args
    carries, written = rest[: loop.carries], rest[loop.carries : loop.carries + stacks]
    given = rest[loop.carries + stacks :]
    place = count
    if loop.rows or stacks:
        place = builder.emit1("reshape", count, shape=(1,), locations=where)
    rows = [builder.emit1("gather_nd", x, place, locations=where) for x in given[: loop.rows]]
    mapping = dict(zip(loop.body.args, [*carries, *rows, *given[loop.rows :]], strict=True))
    for inner in loop.body.ops:
        mapping.update(zip(inner.results, builder.clone(inner, mapping), strict=True))
    found = [mapping[v] for v in loop.body.results]
    pairs = zip(written, found[loop.carries :], strict=True)
    ys = [
        builder.emit1("scatter_nd_update", stack, place, y, locations=where) for stack, y in pairs
    ]
    step = _number(builder, op, -1 if reverse else 1)
    following = builder.emit1("add", count, step, locations=where)
    return builder.block([following, *found[: loop.carries], *ys])
