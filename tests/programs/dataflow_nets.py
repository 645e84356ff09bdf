"""Random dataflow graphs that no structured program lowers to: switches that share predicates,
merges of merges, loops whose merges live differently, exits in the middle, controls from anywhere.

What a value is, and whether it is live, shows in a variable that nothing else writes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from graphs import integers
from hypothesis import strategies as st

from weft.ir.analysis.deadness import Deadness
from weft.ir.analysis.frames import find_frames
from weft.ir.analysis.verify import find_faults
from weft.ir.dtypes import bool_, float32, int64
from weft.ir.graph import Graph, Value
from weft.ir.locations import Location
from weft.ir.ops.builder import Builder
from weft.ir.spec import AttrValue, ConstArray
from weft.ir.types import TensorType, TokenType, tensor_type

#: A number from low to high, both included.
Number = Callable[[int, int], int]
INT, BOOL, PAIR = tensor_type(int64), tensor_type(bool_), tensor_type(float32, 2)
KINDS = (INT, INT, PAIR, BOOL)
UNSET = -999


@dataclass(frozen=True)
class Net:
    """A graph that verifies, inputs, and its variables before (all are UNSET)."""

    graph: Graph
    inputs: list[Any]
    variables: dict[str, TensorType]


@dataclass
class _Scope:
    """The values of one frame. controls: tokens and what else comes late."""

    depth: int
    pool: list[Value] = field(default_factory=list)
    controls: list[Value] = field(default_factory=list)
    refs: list[Value] = field(default_factory=list)
    sides: list[tuple[Value, Value]] = field(default_factory=list)
    parallel: int = 1


class _Maker:
    def __init__(self, number: Number, size: int) -> None:
        self.number, self.size = number, size
        self.builder = Builder([BOOL, BOOL, BOOL, INT, INT, PAIR])
        self.variables: dict[str, TensorType] = {}
        self.frames = 0
        self.ops_left = 14 * size

    def net(self) -> Net | None:
        """A net; None if what came out is not legal."""
        scope = _Scope(0, list(self.builder.args))
        self.fill(scope, 3 + self.size)
        self.keep(scope)
        graph = self.builder.graph("net", list("pqrnmx"), [], stage="dataflow")
        results = self.results(graph, scope)
        graph = self.builder.graph("net", list("pqrnmx"), results, stage="dataflow")
        if find_faults(graph):
            return None
        flags = [np.array(bool(self.number(0, 1))) for _ in range(3)]
        numbers = [np.array(self.number(-1, 4)) for _ in range(2)]
        pair = np.array([self.number(-3, 3), 0.25], np.float32)
        return Net(graph, [*flags, *numbers, pair], self.variables)

    def results(self, graph: Graph, scope: _Scope) -> list[Value]:
        """Tokens, and values that are live in every run: inputs and repeated ones among them."""
        tokens = [v for v in scope.controls if isinstance(v.type, TokenType)][-3:]
        found = find_frames(graph.block)
        if found.faults:
            return tokens
        deadness = Deadness(found)
        live = [v for v in scope.pool if deadness.always_live(v)]
        return [*tokens, *(self.pick(live) for _ in range(self.number(0, 5)))]

    # ---------------------------------------------------------------------------------- emitting
    def emit(
        self, name: str, operands: Sequence[Value] = (), control: Sequence[Value] = (),
        /, **attrs: AttrValue,
    ) -> tuple[Value, ...]:  # fmt: skip
        self.ops_left -= 1
        where = (Location("net.py", len(self.builder.ops) + 1, 1),)
        made = dict.fromkeys(v for v in control if v.op is not None)
        return self.builder.emit(name, operands, attrs, control=tuple(made), locations=where)

    def pick(self, values: Sequence[Value]) -> Value:
        return values[self.number(0, len(values) - 1)]

    def some(self, scope: _Scope, kind: TensorType) -> Value:
        known = [v for v in scope.pool if v.type == kind]
        if known and self.number(0, 5):
            return self.pick(known)
        given = {INT: self.number(-2, 4), BOOL: bool(self.number(0, 1))}.get(kind)
        array = np.array([self.number(-2, 2), 1.5], np.float32) if given is None else given
        after = [self.pick(scope.pool)] if scope.depth or not self.number(0, 3) else []
        return self.emit("constant", (), after, value=ConstArray(np.asarray(array)))[0]

    def controls(self, scope: _Scope) -> list[Value]:
        """Now and then control operands: from the values, or the tokens, of this frame."""
        if self.number(0, 4):
            return []
        pools = [p for p in (scope.pool, scope.controls) if p]
        return [self.pick(pools[self.number(0, len(pools) - 1)]) for _ in range(self.number(1, 2))]

    # --------------------------------------------------------------------------------------- parts
    def fill(self, scope: _Scope, most: int) -> None:
        """Some ops in a frame; what they give joins its pool."""
        makers = [self.plain, self.switch, self.switch, self.merge, self.merge, self.compare]
        makers += [self.gate, self.effect, self.late]
        if scope.depth < 3:
            makers += [self.loop, self.loop, self.frame]
        for _ in range(self.number(1, most)):
            if self.ops_left <= 0:
                return
            makers[self.number(0, len(makers) - 1)](scope)

    def plain(self, scope: _Scope) -> None:
        kind = INT if self.number(0, 2) else PAIR
        name = ("add", "subtract", "multiply", "maximum")[self.number(0, 3)]
        a, b = self.some(scope, kind), self.some(scope, kind)
        (made,) = self.emit(name, [a, b], self.controls(scope))
        if kind == INT:
            seven = self.emit("constant", (), [made], value=ConstArray(np.asarray(7)))[0]
            (made,) = self.emit("remainder", [made, seven])
        scope.pool.append(made)

    def compare(self, scope: _Scope) -> None:
        scope.pool += self.emit("less", [self.some(scope, INT), self.some(scope, INT)])

    def late(self, scope: _Scope) -> None:
        """A value that waits for others."""
        after = [self.pick(scope.pool), *self.controls(scope)]
        scope.pool += self.emit("identity", [self.some(scope, INT)], after)

    def switch(self, scope: _Scope) -> None:
        data = self.some(scope, KINDS[self.number(0, 3)])
        made = self.emit("switch", [data, self.some(scope, BOOL)], self.controls(scope))
        scope.sides.append((made[0], made[1]))
        scope.pool += made

    def merge(self, scope: _Scope) -> None:
        """Both sides of a switch, one of them through other ops, or anything."""
        if scope.sides and self.number(0, 8):
            found = list(scope.sides[self.number(0, len(scope.sides) - 1)])
            if self.number(0, 2) == 0:  # through one more switch and merge
                inner = self.emit("switch", [found[0], self.some(scope, BOOL)])
                found[0:1] = inner
                scope.sides.append((inner[0], inner[1]))
            for i, value in enumerate(found):
                if self.number(0, 2) == 0:
                    found[i] = self.emit("identity", [value], self.controls(scope))[0]
        else:
            kind = KINDS[self.number(0, 3)]
            known = [self.some(scope, kind) for _ in range(self.number(1, 3))]
            found = list(dict.fromkeys(known))
        if self.number(0, 1):
            found.reverse()
        scope.pool += self.emit("merge", found, self.controls(scope), loop=False)

    def gate(self, scope: _Scope) -> None:
        """A switch one side of which is all that is used, and a merge that may stay dead."""
        data, pred = self.some(scope, INT), self.some(scope, BOOL)
        side = self.emit("switch", [data, pred])[self.number(0, 1)]
        scope.pool += [side, *self.emit("merge", [side], self.controls(scope), loop=False)]

    def effect(self, scope: _Scope) -> None:
        """Write a value to a variable of its own, where it is live."""
        if scope.depth and not scope.refs:
            return
        value = self.some(scope, INT)
        ref = self.pick(scope.refs) if scope.refs else self.variable(INT)
        after = [*scope.controls[-1:], *self.controls(scope)]
        if not scope.refs and self.number(0, 1):
            (token,) = self.emit("assign", [ref, value], self.controls(scope))
        else:
            (was,) = self.emit("read", [ref], [value, *after])
            (new,) = self.emit("add", [was, value])
            (token,) = self.emit("assign", [ref, new], [was])
        scope.controls.append(token)
        if self.number(0, 1):  # a live value that comes after it
            made = self.emit("merge", [self.some(scope, INT)], [token], loop=False)
            scope.pool += made
            scope.controls.append(made[0])

    def variable(self, kind: TensorType) -> Value:
        name = f"v{len(self.variables)}"
        self.variables[name] = kind
        shape = tuple(int(str(d)) for d in kind.shape)
        return self.emit("variable", name=name, dtype=kind.dtype, shape=shape)[0]

    def keep(self, scope: _Scope) -> None:
        """Write what is in the pool to variables."""
        for value in scope.pool[6:]:
            if self.number(0, 2) and isinstance(value.type, TensorType):
                ref = self.variable(value.type)
                scope.controls += self.emit("assign", [ref, value], self.controls(scope))

    # -------------------------------------------------------------------------------------- frames
    def enter(self, scope: _Scope, value: Value, parallel: int, constant: bool) -> Value:
        control = self.controls(scope) if not self.number(0, 3) else []
        return self.emit("enter", [value], control, frame=f"f{self.frames}", constant=constant,
                         parallel_iterations=parallel)[0]  # fmt: skip

    def frame(self, scope: _Scope) -> None:
        """A frame that is no loop."""
        self.frames += 1
        mine = self.frames
        inner = _Scope(scope.depth + 1)
        given = [self.some(scope, KINDS[self.number(0, 3)]) for _ in range(self.number(1, 3))]
        inner.pool += [self.enter(scope, v, 2, bool(self.number(0, 1))) for v in given]
        self.fill(inner, 3)
        assert mine <= self.frames
        for _ in range(self.number(1, 2)):
            scope.pool += self.emit("exit", [self.pick(inner.pool)])

    def loop(self, scope: _Scope) -> None:
        """Counts to a number; what it carries may die before, or come out before."""
        self.frames += 1
        most = self.number(1, 4)
        start = self.emit("constant", (), [self.pick(scope.pool)], value=ConstArray(np.asarray(0)))
        given = [self.some(scope, KINDS[self.number(0, 3)]) for _ in range(self.number(0, 3))]
        known = [self.some(scope, KINDS[self.number(0, 3)]) for _ in range(self.number(0, 2))]
        end = self.enter(scope, self.some(scope, INT), most, True)
        inner = _Scope(scope.depth + 1, parallel=most)
        merges = []
        for value in [start[0], *given]:
            entered = self.enter(scope, value, most, False)
            merge, number = self.emit("merge", [entered], loop=True)
            merges.append(merge)
            inner.pool.append(merge)
            if not self.number(0, 3):
                wide = self.emit("astype", [number], dtype=int64)
                inner.pool += wide
        inner.pool += [end, *(self.enter(scope, v, most, True) for v in known)]
        if self.number(0, 2) == 0:
            inner.refs = [self.enter(scope, self.variable(INT), most, True)]
        frame, self.frames = self.frames, self.frames
        going = self.condition(inner, merges[0], end)
        sides = [self.emit("switch", [m, going]) for m in merges]
        after = _Scope(inner.depth, refs=inner.refs, controls=inner.controls, sides=inner.sides)
        after.pool = [s[1] for s in sides] + ([] if self.number(0, 1) else inner.pool)
        self.fill(after, 3)
        assert frame <= self.frames
        self.go_on(after, merges, sides, going)
        self.leave(scope, after, sides, going)

    def condition(self, inner: _Scope, count: Value, end: Value) -> Value:
        """The predicate by which a loop goes on."""
        if not self.number(0, 3):
            self.fill(inner, 2)
        (going,) = self.emit("less", [count, end])
        if not self.number(0, 4):
            (going,) = self.emit("logical_and", [going, self.some(inner, BOOL)])
        if self.number(0, 4):
            (going,) = self.emit("loop_cond", [going])
        return going

    def go_on(
        self, scope: _Scope, merges: list[Value], sides: list[tuple[Value, ...]], going: Value
    ) -> None:
        """The next_iterations: all are live only where the loop goes on."""
        for i, merge in enumerate(merges):
            value = sides[i][1]
            if i == 0:
                (one,) = self.emit("constant", (), [value], value=ConstArray(np.asarray(1)))
                (value,) = self.emit("add", [value, one])
            elif self.number(0, 2):
                assert isinstance(merge.type, TensorType)
                other = self.some(scope, merge.type)
                (_, value) = self.emit("switch", [other, going])
            if not self.number(0, 5):  # dies with some predicate
                value = self.emit("switch", [value, self.some(scope, BOOL)])[self.number(0, 1)]
            scope.controls += self.emit("next_iteration", [value, merge], self.controls(scope))

    def leave(
        self, outer: _Scope, scope: _Scope, sides: list[tuple[Value, ...]], going: Value
    ) -> None:
        """The exits."""
        for _ in range(self.number(1, 4)):
            value = sides[self.number(0, len(sides) - 1)][0]
            if not self.number(0, 3):
                (value, _) = self.emit("switch", [self.pick(scope.pool), going])
            if not self.number(0, 5):
                value = self.emit("switch", [value, self.some(scope, BOOL)])[self.number(0, 1)]
            if not self.number(0, 6):  # in the middle, or never
                here = self.emit("equal", [sides[0][1], self.some(scope, INT)])
                value = self.emit("switch", [sides[-1][1], here[0]])[1]
            made = self.emit("exit", [value])
            outer.pool += made
            outer.controls += made[: self.number(0, 1)]


def make_net(number: Number, size: int = 4) -> Net | None:
    """A net from numbers; None if they give no legal one."""
    return _Maker(number, size).net()


@st.composite
def nets(draw: Any, size: int = 4) -> Net | None:
    """Nets; now and then None."""
    return make_net(lambda low, high: int(draw(integers(low, high))), size)
