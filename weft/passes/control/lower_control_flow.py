"""`cond` and `while` become switch, merge and frames, which the dataflow executor runs.

Before::

    %0 = cond(%p, %x) : f32[2] {
      ^(%a0: f32[2])
      %0 = sin(%a0) : f32[2]
      yield %0
    } {
      ^(%a0: f32[2])
      yield %a0
    }

After::

    %0, %1 = switch(%x, %p) : f32[2], f32[2]
    %2 = sin(%1) : f32[2]
    %3, %4 = merge(%0, %2) {loop=false} : f32[2], i32[]

A loop gets a frame of its own; its carries enter it once, what it only reads and its constants by
constant enters. An op that depends on nothing of its branch or body gets the *pivot* as a control
operand: the predicate behind its own switch, dead where the branch or body is not to run (Yu et al.
2018, Dynamic control flow in large-scale machine learning, section 4.2). Effects stay in order:
what comes after a branch waits for its effects, an iteration for those of the one before.

A `scan` stays what it is: one op, and so one native loop; the IR has no stacks yet.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from weft.ir.attributes import Attrs, AttrValue, ConstArray
from weft.ir.builder import Builder, make_op
from weft.ir.frames import is_dataflow
from weft.ir.graph import Block, Graph, Operation, Value
from weft.ir.ops import lookup
from weft.ir.rules import int_attr
from weft.ir.source import Locations
from weft.passes.rewrite import has_effect, rewrite
from weft.passes.strip import strip_mark

_LOWERED = ("cond", "while")
_GRADIENT_ONLY = ("stop_gradient", "custom_gradient")


def lower_control_flow(graph: Graph, *, parallel_iterations: int = 10) -> Graph:
    """Lower every `cond` and `while` that is not inside a `scan`; the stage becomes `dataflow`.

    The graph may hold switch and merge already. parallel_iterations: how many iterations of a loop
    may be under way at once. Marks for gradients are stripped. The graph itself if it has nothing
    to lower.
    """
    dataflow = is_dataflow(graph.block)
    done = graph.stage == "dataflow" or not dataflow
    if done and not any(op.name in _LOWERED for op in graph.ops):
        return graph
    if any(op.name in _GRADIENT_ONLY for op in graph.walk()):
        graph = rewrite(graph, strip_mark)
    builder = Builder([a.type for a in graph.args])
    taken = {str(op.attrs["frame"]) for op in graph.ops if op.name == "enter"}
    lowering = _Lowering(builder, parallel_iterations, taken, dataflow)
    results, _ = lowering.block(_Place(builder), graph.block, builder.args)
    return builder.graph(graph.name, graph.arg_names, results, "dataflow")


class _Place:
    """Where ops are emitted: the top, a branch, or a loop's test or body.

    outer: the place around the branch or loop. pivot: makes the value that is live if and only if
    this place runs (None: it always does). enter: in a loop, brings a value of `outer` in.
    """

    def __init__(
        self,
        builder: Builder,
        outer: _Place | None = None,
        pivot: Callable[[], Value] | None = None,
        enter: Callable[[Value], Value] | None = None,
        anchored: Sequence[Value] = (),
    ) -> None:
        self.builder = builder
        self.outer = outer
        self.enter = enter
        self._make_pivot = pivot
        self._pivot: Value | None = None
        self.anchored: set[Value] = set()  # live only if this place runs
        self._anchor(anchored)

    def emit(
        self,
        name: str,
        operands: Sequence[Value],
        locations: Locations,
        attrs: Attrs | None = None,
        control: Sequence[Value] = (),
    ) -> tuple[Value, ...]:
        """Append a new op."""
        control = self._pinned(operands, control)
        made = self.builder.emit(name, operands, attrs, control=control, locations=locations)
        self._anchor(made)
        return made

    def clone(
        self, op: Operation, operands: Sequence[Value], control: Sequence[Value]
    ) -> tuple[Value, ...]:
        """Append a copy of `op`; in a loop, what depends on nothing is made once, outside."""
        if self.enter is not None and self.outer is not None and _hoistable(op):
            made = self.outer.clone(op, (), ())
            return tuple(self.enter(v) for v in made)
        control = self._pinned(operands, control)
        types = [r.type for r in op.results]
        new = Operation(op.name, operands, op.attrs, types, op.regions, control, op.locations)
        self.builder.ops.append(new)
        self._anchor(new.results)
        return new.results

    def pinned(self, value: Value, locations: Locations) -> Value:
        """`value`, made to depend on this place."""
        if self._make_pivot is None or value in self.anchored:
            return value
        return self.emit("identity", [value], locations)[0]

    def _pinned(self, operands: Sequence[Value], control: Sequence[Value]) -> tuple[Value, ...]:
        """The control operands with which an op on `operands` depends on this place."""
        control = tuple(dict.fromkeys(v for v in control if v not in operands))
        if self._make_pivot is None or any(v in self.anchored for v in (*operands, *control)):
            return control
        if self._pivot is None:
            self._pivot = self._make_pivot()
        return (*control, self._pivot)

    def _anchor(self, values: Sequence[Value]) -> None:
        place: _Place | None = self
        while place is not None:  # what runs only in a branch runs only where that stands
            if place._make_pivot is not None:
                place.anchored.update(values)
            place = place.outer


def _hoistable(op: Operation) -> bool:
    """Whether an op gives the same in every iteration, and only costs its result."""
    if op.operands or op.control or op.regions or has_effect(op):
        return False
    return "no_cse" not in lookup(op.name).traits


class _Lowering:
    def __init__(
        self, builder: Builder, parallel_iterations: int, taken: set[str], dataflow: bool
    ) -> None:
        self.builder = builder
        self.parallel_iterations = parallel_iterations
        self.taken = taken  # names of frames
        self.dataflow = dataflow  # operands may be dead

    def block(
        self, place: _Place, block: Block, args: Sequence[Value]
    ) -> tuple[list[Value], list[Value]]:
        """Emit the ops of `block` at `place`: its results, and what comes after its effects."""
        mapping: dict[Value, Value] = dict(zip(block.args, args, strict=True))
        effects: list[Value] = []
        for op in block.ops:
            operands = [mapping[v] for v in op.operands]
            control = [mapping[v] for v in op.control]
            acts = has_effect(op)
            if op.name in _LOWERED:
                if not (op.results or acts):
                    continue
                if acts or self.dataflow:  # all of the op comes after all of its operands
                    control += [v for v in operands if v.op is not None]
                lower = self.cond if op.name == "cond" else self.loop
                made: Sequence[Value] = lower(place, op, operands, control)
            elif op.name in _GRADIENT_ONLY:  # what orders effects by control operands
                passed = operands[: len(op.results)]
                made = [
                    place.emit("identity", [v], op.locations, control=control)[0] for v in passed
                ]
            else:
                made = place.clone(op, operands, control)
            mapping.update(zip(op.results, made, strict=False))
            effects += made[:1] if acts else ()
        return [mapping[v] for v in block.results], effects

    # -- branches ---------------------------------------------------------------------------------

    def cond(
        self, here: _Place, op: Operation, operands: Sequence[Value], control: Sequence[Value]
    ) -> list[Value]:
        """The results of a cond, or one value that comes after its effects."""
        pred, *rest = operands
        switches = _Switches(here, pred, control, op.locations)
        then, orelse = op.regions
        used = _used_args(then) | _used_args(orelse)
        sides: list[list[Value]] = []
        waits: list[Value] = []
        for side, region in ((False, orelse), (True, then)):
            args = [switches.get(v, side) if i in used else v for i, v in enumerate(rest)]
            anchored = [args[i] for i in used]
            place = _Place(self.builder, here, switches.pivot(side), None, anchored)
            results, effects = self.block(place, region, args)
            sides.append(results)
            waits += effects
        if not op.results:
            sides = [[switches.get(pred, side)] for side in (False, True)]
        return [
            here.emit("merge", pair, op.locations, control=waits)[0]
            for pair in zip(*sides, strict=True)
        ]

    # -- loops ------------------------------------------------------------------------------------

    def loop(
        self, here: _Place, op: Operation, operands: Sequence[Value], control: Sequence[Value]
    ) -> list[Value]:
        """The results of a while, or one value that comes after its effects."""
        return _Loop(self, here, op, control).lower(operands)

    def frame_name(self) -> str:
        """A name that no frame has yet."""
        number = len(self.taken) + 1
        while f"while_{number}" in self.taken:
            number += 1
        self.taken.add(f"while_{number}")
        return f"while_{number}"


class _Switches:
    """The switches of one branch or body, each made when it is first asked for."""

    def __init__(
        self, place: _Place, pred: Value, control: Sequence[Value], locations: Locations
    ) -> None:
        self.place = place
        self.pred = pred
        self.control = control
        self.locations = locations
        self._made: dict[Value, tuple[Value, ...]] = {}

    def get(self, value: Value, side: bool) -> Value:
        """`value` where the predicate is `side`."""
        if value not in self._made:
            self._made[value] = self.place.emit(
                "switch", [value, self.pred], self.locations, control=self.control
            )
        return self._made[value][side]

    def pivot(self, side: bool) -> Callable[[], Value]:
        """Makes the pivot of one side."""

        def make() -> Value:
            switched = self.get(self.pred, side)
            return self.place.emit("identity", [switched], self.locations)[0]

        return make


class _Loop:
    """One `while` being lowered; with a limit, or without carries, it has a counter as well."""

    def __init__(
        self, lowering: _Lowering, here: _Place, op: Operation, control: Sequence[Value]
    ) -> None:
        self.lowering = lowering
        self.here = here
        self.op = op
        self.control = control
        self.limit = int_attr(op.attrs, "limit")
        self.frame = lowering.frame_name()

    def enter(self, value: Value, constant: bool = True) -> Value:
        """`value` in the frame."""
        attrs: dict[str, AttrValue] = {
            "frame": self.frame,
            "constant": constant,
            "parallel_iterations": self.lowering.parallel_iterations,
        }
        return self.here.emit("enter", [value], self.op.locations, attrs, self.control)[0]

    def constant(self, number: int) -> Value:
        """A number outside of the frame."""
        attrs = {"value": ConstArray(np.array(number, np.int64))}
        made = make_op("constant", (), attrs, locations=self.op.locations)
        return self.here.clone(made, (), ())[0]

    def lower(self, operands: Sequence[Value]) -> list[Value]:
        """Emit the loop; its results."""
        op, at, builder = self.op, self.op.locations, self.lowering.builder
        count = int_attr(op.attrs, "carries")
        starts = list(operands[:count])
        if self.limit >= 0 or not count:
            starts.append(self.constant(0))
        used = _used_args(op.regions[0]) | _used_args(op.regions[1])
        entered = [self.enter(v, constant=False) for v in starts]
        merged = [builder.emit("merge", [v], {"loop": True}, locations=at)[0] for v in entered]
        rest = [self.enter(v) if i in used else v for i, v in enumerate(operands[count:], count)]
        framed = [*merged, *(rest[i - count] for i in used if i >= count)]
        testing = _Place(builder, self.here, lambda: merged[0], self.enter, framed)
        decision = self.test(testing, [*merged[:count], *rest], merged)
        switches = _Switches(testing, decision, (), at)
        inside = [switches.get(v, True) for v in merged]
        body = _Place(builder, self.here, switches.pivot(True), self.enter, inside)
        results, effects = self.lowering.block(body, op.regions[1], [*inside[:count], *rest])
        if len(merged) > count:
            one = self.enter(self.constant(1))
            results.append(body.emit("add", [inside[count], one], at)[0])
        for value, merge in zip(results, merged, strict=True):
            operands = [body.pinned(value, at), merge]
            body.emit("next_iteration", operands, at, control=effects)
        left = merged[:count] or merged
        return [self.here.emit("exit", [switches.get(v, False)], at)[0] for v in left]

    def test(self, place: _Place, args: Sequence[Value], merged: Sequence[Value]) -> Value:
        """The predicate by which the loop goes on.

        At the limit the test itself must not run if that can be told, as by an index out of bounds.
        """
        test, at = self.op.regions[0], self.op.locations
        if self.limit < 0:
            (going,), effects = self.lowering.block(place, test, args)
            return place.emit("loop_cond", [going], at, control=effects)[0]
        limit = self.enter(self.constant(self.limit))
        (within,) = place.emit("less", [merged[-1], limit], at)
        if all(_harmless(o) for o in test.ops):
            (going,), _ = self.lowering.block(place, test, args)
            (going,) = place.emit("logical_and", [within, going], at)
            return place.emit("loop_cond", [going], at)[0]
        switches = _Switches(place, within, (), at)
        used = _used_args(test)
        given = [switches.get(v, True) if i in used else v for i, v in enumerate(args)]
        inner = _Place(
            self.lowering.builder, place, switches.pivot(True), None, [given[i] for i in used]
        )
        (going,), effects = self.lowering.block(inner, test, given)
        sides = [switches.get(within, False), going]  # the first is false there
        (going, _) = place.emit("merge", sides, at, control=effects)
        return place.emit("loop_cond", [going], at)[0]


def _used_args(region: Block) -> set[int]:
    """The numbers of the arguments that a region uses."""
    used = {v for op in region.ops for v in (*op.operands, *op.control)} | set(region.results)
    return {i for i, arg in enumerate(region.args) if arg in used}


def _harmless(op: Operation) -> bool:
    """Whether nobody can tell if the op ran: it has no effect and cannot fail."""
    traits = lookup(op.name).traits
    return op.name == "constant" or bool(traits & {"elementwise", "reduction"})
