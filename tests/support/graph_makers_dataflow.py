"""Makers of diamonds and loops of dataflow ops, whole ones, as only these verify (see
`graph_makers`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from graphs import GraphMaker, Unfit

from weft.ir.dtypes import bool_
from weft.ir.graph import Value


def diamond(m: GraphMaker) -> None:
    """switch, something on each side, merge; the pool gets what is live only."""
    x, pred = m.some(), m.like(bool_, ())
    before, start = list(m.pool), len(m.builder.ops)
    sides = list(m.emit("switch", [x, pred]))
    kind = sides[0].type
    for i, side in enumerate(sides):
        if m.flag():
            (pivot,) = m.emit("identity", [side])
            (sides[i],) = m.emit("identity", [m.pick([v for v in before if v.type == kind])],
                                 control=[pivot])  # fmt: skip
    results = m.emit("merge", m.pick([sides, sides[::-1]]), loop=False)
    _hide(m, start, before, results)


def loop(m: GraphMaker) -> None:
    """A loop that counts to a constant and carries something through a random cheap op."""
    count, end, one = (m.constant(np.array(n)) for n in (0, m.int(0, 3), 1))
    x = m.some()
    before, start = list(m.pool), len(m.builder.ops)
    frame = f"frame {sum(op.name == 'exit' for op in m.builder.ops)}"
    most = m.int(1, 3)

    def enter(value: Value, constant: bool) -> Value:
        return m.emit1("enter", value, frame=frame, constant=constant, parallel_iterations=most)

    last, step = enter(end, True), enter(one, True)
    i, _ = m.emit("merge", [enter(count, False)], loop=True)
    v, _ = m.emit("merge", [enter(x, False)], loop=True)
    going = m.emit1("loop_cond", m.emit1("less", i, last))
    i_out, i_in = m.emit("switch", [i, going])
    v_out, v_in = m.emit("switch", [v, going])
    m.emit("next_iteration", [m.emit1("add", i_in, step), i])
    m.emit("next_iteration", [m.emit1("identity", v_in), v])
    results = [m.emit1("exit", i_out), m.emit1("exit", v_out)]
    _hide(m, start, before, results)


def _hide(m: GraphMaker, start: int, before: Sequence[Value], results: Sequence[Value]) -> None:
    """Leave only `results` of the ops from `start` on to others."""
    m.pool = [*before, *results]
    m.hidden.update(v for op in m.builder.ops[start:] for v in op.results if v not in results)


def maker(op: str) -> Callable[[GraphMaker, str], Any]:
    """The maker of the whole that `op` is part of."""
    make = diamond if op in ("switch", "merge") else loop

    def run(m: GraphMaker, _: str) -> None:
        if m.region:
            raise Unfit
        make(m)

    return run
