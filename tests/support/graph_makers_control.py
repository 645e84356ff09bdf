"""Makers of `cond`, `while` and `scan` with random bodies (see `graph_makers`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from graphs import GraphMaker, Unfit

from weft.ir.dims import SymbolicDim
from weft.ir.dtypes import bool_
from weft.ir.errors import WeftError
from weft.ir.graph import Block, Value
from weft.ir.ops.builder import Builder
from weft.ir.types import TensorType, Type

Makers = Mapping[str, Callable[[GraphMaker, str], Any]]

#: Ops that are defined for all values, so also for those that a loop comes to.
BODY_OPS = (
    *("negative", "abs", "add", "subtract", "multiply", "maximum", "minimum", "logical_not"),
    *("sum", "max", "broadcast_to", "reshape", "permute_dims"),
)


def cond(m: GraphMaker, makers: Makers) -> None:
    pred = m.like(bool_, ())
    operands = [m.some() for _ in range(m.int(1, 3))]
    types = [v.type for v in operands]
    wanted = [m.pick(types) for _ in range(m.int(1, 2))]
    regions = [_body(m, makers, types, wanted) for _ in range(2)]
    m.emit("cond", [pred, *operands], regions=regions)


def loop(m: GraphMaker, makers: Makers) -> None:
    """A while that counts to a constant, possibly with a limit below it."""
    start, end = m.int(0, 2), m.int(0, 4)
    count = m.constant(np.array(start))
    carries = [m.some() for _ in range(m.int(0, 2))]
    operands = [count, *carries, *(m.some() for _ in range(m.int(0, 1)))]
    types = [v.type for v in operands]
    test = _inner(m, types)
    bound = test.constant(np.array(end))
    (going,) = test.emit(m.pick(["less", "not_equal"]), [test.builder.args[0], bound])
    body = _inner(m, types)
    results = _results(body, makers, types[1 : 1 + len(carries)])
    (following,) = body.emit("add", [body.builder.args[0], body.constant(np.array(1))])
    regions = [test.builder.block([going]), body.builder.block([following, *results])]
    limit = 3 if going.op is not None and going.op.name == "not_equal" else m.pick([-1, 1, 9])
    m.emit("while", operands, regions=regions, carries=1 + len(carries), limit=limit)


def scan(m: GraphMaker, makers: Makers) -> None:
    carries = [m.some() for _ in range(m.int(0, 2))]
    rows: list[Value] = []
    for _ in range(m.int(0, 2)):
        sizes = [v.type.shape[0] for v in rows[:1]]

        def fits(t: TensorType, n: list[Any] = sizes) -> bool:
            return t.rank > 0 and (not n or t.shape[0] == n[0])

        rows.append(m.some(fits, low=1))
    length = rows[0].type.shape[0] if rows else m.int(0, 3)
    if not isinstance(length, int | SymbolicDim):
        raise Unfit
    rest = [m.some() for _ in range(m.int(0, 1))]
    types: list[Type] = [v.type for v in carries]
    types += [TensorType(v.type.dtype, v.type.shape[1:]) for v in rows]
    types += [v.type for v in rest]
    if not types:
        raise Unfit
    wanted = [v.type for v in carries] + [m.pick(types) for _ in range(m.int(0, 2))]
    m.emit(
        "scan",
        [*carries, *rows, *rest],
        regions=[_body(m, makers, types, wanted)],
        carries=len(carries),
        sequences=len(rows),
        length=length,
        reverse=m.flag(),
    )


def _inner(m: GraphMaker, types: Sequence[Type]) -> GraphMaker:
    inner = GraphMaker(m.draw, m.dtypes, m.sizes, region=True, located=m.located)
    inner.builder = Builder(types)
    inner.pool = list(inner.builder.args)
    return inner


def _body(m: GraphMaker, makers: Makers, types: Sequence[Type], wanted: Sequence[Type]) -> Block:
    inner = _inner(m, types)
    return inner.builder.block(_results(inner, makers, wanted))


def _results(inner: GraphMaker, makers: Makers, wanted: Sequence[Type]) -> list[Value]:
    """Values of these types, each of which an argument has, too, after some random ops."""
    for _ in range(inner.int(0, 5)):
        name = inner.pick([*BODY_OPS, "cond", "scan"])
        try:
            makers[name](inner, name)
        except Unfit:
            continue
        except WeftError:
            if all(isinstance(n, int) for n in inner.sizes):
                raise
    return [[v for v in inner.pool if v.type == t][-1] for t in wanted]
