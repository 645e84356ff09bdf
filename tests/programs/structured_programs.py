"""Random structured programs (hypothesis): nested cond, while and scan with data-dependent trip
counts, captured values, loops that never run, and variables and queues used anywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from graphs import Case, integers
from hypothesis import strategies as st

from weft.ir.dtypes import bool_, float32, int64
from weft.ir.graph import Block, Value
from weft.ir.locations import Location
from weft.ir.ops.builder import Builder
from weft.ir.spec import AttrValue, ConstArray
from weft.ir.types import Type, tensor_type

Draw = Callable[[st.SearchStrategy[Any]], Any]
INT, BOOL, PAIR = tensor_type(int64), tensor_type(bool_), tensor_type(float32, 2)
KINDS = (INT, BOOL, PAIR)
VARIABLES = ("v", "w")


class _Region:
    """The ops of one region under construction; all that it does to variables is in one chain, and
    so are the ops on each of the queues, of which an outer region hands on the handles."""

    def __init__(
        self,
        draw: Draw,
        types: Sequence[Type],
        depth: int,
        effects: bool,
        queues: Sequence[Value] | int = 0,
    ) -> None:
        self.draw = draw
        self.builder = Builder(types)
        self.depth = depth
        self.effects = effects
        count = queues if isinstance(queues, int) else len(queues)
        self.queues = self.builder.args[len(types) - count :] if count else []
        self.pool: list[Value] = self.builder.args[: len(types) - count]
        self.last: tuple[Value, ...] = ()
        self.after: list[tuple[Value, ...]] = [()] * count  # on each queue, what came last

    def int(self, low: int, high: int) -> int:
        return int(self.draw(integers(low, high)))

    def emit(self, name: str, operands: Sequence[Value] = (), /, **attrs: AttrValue) -> Value:
        where = (Location("model.py", len(self.builder.ops) + 1, self.depth),)
        return self.builder.emit(name, operands, attrs, locations=where)[0]

    def constant(self, value: Any) -> Value:
        return self.emit("constant", value=ConstArray(np.asarray(value)))

    def some(self, kind: Type) -> Value:
        known = [v for v in self.pool if v.type == kind]
        if known and self.int(0, 4):
            return known[-1 - self.int(0, min(len(known) - 1, 4))]
        if kind == INT:
            return self.constant(self.int(-3, 5))
        if kind == BOOL:
            return self.constant(bool(self.int(0, 1)))
        return self.constant(np.array([self.int(-2, 2), 1.5], np.float32))

    def ops(self, most: int) -> None:
        """Some ops; what they give joins the pool."""
        kinds = [self.plain, self.plain, self.compare]
        if self.effects:
            kinds.append(self.bump)
        if self.queues:
            kinds += [self.put, self.take, self.count]
        if self.depth < 3:
            kinds += [self.cond, self.loop, self.loop]
            kinds += [self.scan] if self.queues or not self.effects else []
        for _ in range(self.int(1, most)):
            kinds[self.int(0, len(kinds) - 1)]()

    def plain(self) -> None:
        kind = INT if self.int(0, 1) else PAIR
        name = ("add", "subtract", "multiply", "maximum")[self.int(0, 3)]
        made = self.emit(name, [self.some(kind), self.some(kind)])
        if kind == INT:  # no overflow, and small enough to count to
            made = self.emit("remainder", [made, self.constant(7)])
        self.pool.append(made)

    def compare(self) -> None:
        self.pool.append(self.emit("less", [self.some(INT), self.some(INT)]))

    def bump(self) -> None:
        """Read a variable, and assign it what depends on what was read."""
        name = VARIABLES[self.int(0, 1)]
        ref = self.emit("variable", name=name, dtype=int64, shape=())
        (was,) = self.builder.emit("read", [ref], control=self.last, locations=_HERE)
        mixed = self.emit("add", [self.emit("multiply", [was, self.constant(3)]), self.some(INT)])
        mixed = self.emit("remainder", [mixed, self.constant(101)])
        self.last = self.builder.emit("assign", [ref, mixed], control=(was,), locations=_HERE)
        self.pool.append(self.emit("remainder", [was, self.constant(7)]))

    def on_queue(self, name: str, number: int, *operands: Value) -> Value:
        """One op on a queue, after the last one."""
        given = [self.queues[number], *operands]
        made = self.builder.emit(name, given, control=self.after[number], locations=_HERE)
        self.after[number] = made[:1]
        return made[0]

    def put(self) -> None:
        self.on_queue("enqueue", self.int(0, len(self.queues) - 1), self.some(INT))

    def take(self) -> None:
        """Take one element; there is one, as another was put in just before."""
        number = self.int(0, len(self.queues) - 1)
        self.on_queue("enqueue", number, self.some(INT))
        self.pool.append(self.on_queue("dequeue", number))

    def count(self) -> None:
        number = self.int(0, len(self.queues) - 1)
        made = self.emit("astype", [self.on_queue("queue_size", number)], dtype=int64)
        self.pool.append(self.emit("remainder", [made, self.constant(7)]))

    def structured(
        self, name: str, operands: Sequence[Value], regions: Sequence[Block], **attrs: AttrValue
    ) -> None:
        where = (Location("model.py", len(self.builder.ops) + 1, self.depth),)
        control = dict.fromkeys((*self.last, *(v for after in self.after for v in after)))
        operands = [*operands, *self.queues]
        made = self.builder.emit(
            name, operands, attrs, regions=regions, control=tuple(control), locations=where
        )
        self.pool += [v for v in made if v.type in KINDS]
        if made and self.effects:
            self.last = made[:1]
        if made:
            self.after = [made[:1]] * len(self.after)

    def region(self, types: Sequence[Type], give: Callable[[_Region], Sequence[Value]]) -> Block:
        held = [*types, *(q.type for q in self.queues)]
        inner = _Region(self.draw, held, self.depth + 1, self.effects, len(self.queues))
        return inner.builder.block(give(inner))

    def cond(self) -> None:
        operands = [self.some(KINDS[self.int(0, 2)]) for _ in range(self.int(0, 3))]
        kinds = [KINDS[self.int(0, 2)] for _ in range(self.int(1, 2))]

        def give(inner: _Region) -> list[Value]:
            inner.ops(3)
            return [inner.some(k) for k in kinds]

        types = [v.type for v in operands]
        regions = [self.region(types, give) for _ in range(2)]
        self.structured("cond", [self.some(BOOL), *operands], regions)

    def loop(self) -> None:
        """Counts to a number that the data decide, or changes a bool until it is false."""
        carried = [self.some(KINDS[self.int(0, 2)]) for _ in range(self.int(0, 2))]
        captured = [self.some(KINDS[self.int(0, 2)]) for _ in range(self.int(0, 2))]
        start, end = self.some(INT), self.some(INT)
        operands = [start, *carried, end, *captured]
        count = 1 + len(carried)

        def test(inner: _Region) -> list[Value]:
            args = inner.builder.args
            if inner.int(0, 2) == 0:
                inner.ops(2)
            going = inner.emit("less", [args[0], args[count]])
            if inner.int(0, 2) == 0:
                going = inner.emit("logical_and", [going, inner.some(BOOL)])
            return [going]

        def body(inner: _Region) -> list[Value]:
            inner.ops(3)
            step = inner.emit("add", [inner.builder.args[0], inner.constant(inner.int(1, 2))])
            return [step, *(inner.some(v.type) for v in carried)]

        types = [v.type for v in operands]
        regions = [self.region(types, test), self.region(types, body)]
        limit = (-1, -1, 0, 2, 9)[self.int(0, 4)]
        self.structured("while", operands, regions, carries=count, limit=limit)

    def scan(self) -> None:
        length = self.int(0, 3)
        carry, rest = self.some(PAIR), self.some(INT)

        def give(inner: _Region) -> list[Value]:
            inner.ops(2)
            return [inner.some(PAIR), inner.some(INT)]

        regions = [self.region([PAIR, INT], give)]
        attrs: dict[str, Any] = {"carries": 1, "sequences": 0, "length": length}
        self.structured("scan", [carry, rest], regions, **attrs, reverse=False)


_HERE = (Location("state.py", 1, 1),)


QUEUES = ("q", "r")


@st.composite
def programs(draw: Draw, effects: bool = False, hosts: bool = False) -> Case:
    """A program that verifies; with `effects` its regions read and assign variables, with `hosts`
    they use queues of int64[], which must have no bound and hold `int64[]`."""
    top = _Region(draw, [BOOL, INT, PAIR], 0, effects)
    if hosts:
        parts = {"kind": "fifo", "capacity": -1, "parts": ("i64[]",)}
        top.queues = [top.emit("queue", **{"name": name, **parts}) for name in QUEUES]
        top.after = [(), ()]
    top.ops(6)
    results = [v for v in top.pool if v not in top.builder.args][-6:]
    graph = top.builder.graph("program", ["p", "n", "x"], results)
    inputs = [
        np.array(bool(top.int(0, 1))),
        np.array(top.int(-2, 4)),
        np.array([top.int(-3, 3), 0.25], np.float32),
    ]
    state = {name: np.array(top.int(0, 9)) for name in VARIABLES}
    return Case(graph, inputs, state, QUEUES if hosts else ())
