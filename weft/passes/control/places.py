"""Where `lower_control_flow` emits ops: the top, a branch, a loop's test or body; and switches."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from weft.ir.attributes import Attrs
from weft.ir.builder import Builder
from weft.ir.graph import Block, Operation, Value
from weft.ir.ops import lookup
from weft.ir.source import Locations
from weft.passes.rewrite import has_effect


class Place:
    """Where ops are emitted: the top, a branch, or a loop's test or body.

    outer: the place around the branch or loop. pivot: makes the value that is live if and only if
    this place runs (None: it always does). enter: in a loop, brings a value of `outer` in. after:
    at the top, what ops come after that nothing else puts into the frame of the op being lowered.
    """

    def __init__(
        self,
        builder: Builder,
        outer: Place | None = None,
        pivot: Callable[[], Value] | None = None,
        enter: Callable[[Value], Value] | None = None,
        anchored: Sequence[Value] = (),
    ) -> None:
        self.builder = builder
        self.outer = outer
        self.enter = enter
        self._make_pivot = pivot
        self._pivot: Value | None = None
        self.after: tuple[Value, ...] = ()
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
        if not (operands or control):
            control = self.after
        types = [r.type for r in op.results]
        new = Operation(op.name, operands, op.attrs, types, op.regions, control, op.locations)
        new.device, new.group = op.device, op.group
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
        place: Place | None = self
        while place is not None:  # what runs only in a branch runs only where that stands
            if place._make_pivot is not None:
                place.anchored.update(values)
            place = place.outer


def _hoistable(op: Operation) -> bool:
    """Whether an op gives the same in every iteration, and only costs its result."""
    if op.operands or op.control or op.regions or has_effect(op):
        return False
    return "no_cse" not in lookup(op.name).traits


class Switches:
    """The switches of one branch or body, each made when it is first asked for."""

    def __init__(
        self, place: Place, pred: Value, control: Sequence[Value], locations: Locations
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


def used_args(region: Block) -> set[int]:
    """The numbers of the arguments that a region uses."""
    used = {v for op in region.ops for v in (*op.operands, *op.control)} | set(region.results)
    return {i for i, arg in enumerate(region.args) if arg in used}
