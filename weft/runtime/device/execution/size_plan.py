"""GPU plans for many sets of sizes: made once, their numbers filled in for each set.

As `native/size_plan.py` does for plans of the CPU: while passes and planning run, open sizes are
numbers that remember how they came about, so blocks, arguments, offsets and shapes in the plan that
comes out are, too. Kernels take sizes as arguments: sizes compile nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any

from weft.codegen.cuda.source.kernel import CudaKernel
from weft.codegen.nests.nest import Nest
from weft.codegen.nests.rows import RowNest
from weft.ir.dtypes import MathMode
from weft.ir.size_tape import Sizes, Tape, Terms
from weft.ir.sizes import is_traced, terms_of
from weft.passes.manager import Pass, PassOptions
from weft.runtime.device.execution.activation import Shelf
from weft.runtime.device.execution.executable import DeviceExecutable
from weft.runtime.device.plan import DevicePlan
from weft.runtime.device.planning.stored_plan import DeviceDetails, Wanted
from weft.runtime.device.protocol import Device
from weft.runtime.native.size_plan import Given, Numbers, PlansBySize, Shapes, SizedGraph
from weft.runtime.resources.variables import VariableState, check_variables

_Fill = Callable[[Sequence[int]], Any]


class DeviceSizePlan:
    """A plan for many sizes, and for which it is right. shapes: of all inputs, those that it is
    made for. wide: as of `Tape`. Errors as `compile_for_device`; TypeError if planning gives a
    size to what takes no such number.
    """

    def __init__(
        self,
        graph: SizedGraph,
        shapes: Shapes,
        variables: Mapping[str, VariableState],
        find: Callable[[], Device],
        passes: Sequence[Pass],
        math_mode: MathMode = "ieee",
        *,
        wide: bool = False,
    ) -> None:
        self.name, self._graph, self._variables = graph.name, graph, variables
        self._find, self._passes, self._math_mode = find, passes, math_mode
        tape = Tape(wide=wide)
        self._given = Given(graph.types, shapes, tape)
        traced = graph.at(self._given.shapes)
        check_variables(traced, variables)
        self.details = Wanted(traced, passes, math_mode).details(PassOptions())
        plan = self.details.plan
        self._numbers: list[Terms] = []
        self._known: dict[frozenset[Any], int] = {}
        fill = self._filler(plan)
        self._fill: _Fill = (lambda _: plan) if fill is None else fill
        self._sizes: Sizes = tape.sizes(self._numbers)
        self.shelf = Shelf()  # the constants are the same for all sizes

    @property
    def conditions(self) -> int:
        """As `Sizes.conditions`."""
        return self._sizes.conditions

    def numbers(self, shapes: Shapes) -> Numbers | None:
        """What the plan has to know of inputs of these shapes; None: it is not right for them."""
        given = self._given.read(shapes)
        return None if given is None else self._sizes.evaluate(given)

    def filled(self, numbers: Numbers, shapes: Shapes) -> FilledExecutable:
        """The plan for inputs of these shapes, whose numbers these are, ready to be called."""
        return FilledExecutable(self, self._fill(numbers.tolist()), shapes)

    def exact(self, shapes: Shapes) -> DeviceDetails:
        """How the plan for these sizes alone is made, which errors and people are told of."""
        own = Wanted(self._graph.at(shapes), self._passes, self._math_mode)
        return own.details(PassOptions())

    # -- numbers ----------------------------------------------------------------------------------

    def _filler(self, held: Any) -> _Fill | None:
        """What makes `held` anew from numbers; None if no traced number is in it."""
        if is_traced(held):
            return self._output(held)
        if isinstance(held, (tuple, list)):
            return _sequence(type(held), held, [self._filler(x) for x in held])
        if not is_dataclass(held) or isinstance(held, (CudaKernel, Nest, RowNest, type)):
            return None  # nests are for people, who are shown a plan of their sizes alone
        names = [f.name for f in fields(held) if f.init]
        fills = {name: self._filler(getattr(held, name)) for name in names}
        changed = {name: fill for name, fill in fills.items() if fill is not None}
        if not changed:
            return None
        given: Any = held
        return lambda numbers: replace(given, **{n: f(numbers) for n, f in changed.items()})

    def _output(self, number: Any) -> _Fill:
        terms = terms_of(number)
        key = frozenset(terms.items())
        place = self._known.setdefault(key, len(self._numbers))
        if place == len(self._numbers):
            self._numbers.append(terms)
        return lambda numbers: numbers[place]


def _sequence(kind: type, held: Sequence[Any], fills: Sequence[_Fill | None]) -> _Fill | None:
    if all(fill is None for fill in fills):
        return None
    pairs = list(zip(held, fills, strict=True))
    return lambda numbers: kind([x if f is None else f(numbers) for x, f in pairs])


class FilledExecutable(DeviceExecutable):
    """A plan for many sizes, filled in for one set of them."""

    def __init__(self, whole: DeviceSizePlan, plan: DevicePlan, shapes: Shapes) -> None:
        super().__init__(
            whole.name, plan, whole._variables, whole._find, lambda: whole.details, whole.shelf
        )
        self._whole, self._shapes = whole, shapes

    @property
    def is_filled(self) -> bool:
        return True

    def exact(self) -> DeviceDetails:
        """The plan for these sizes alone: the same launches, as all that decides is a condition."""
        return self._whole.exact(self._shapes)

    def _runs_as(self) -> DevicePlan:
        return self.plan


class DeviceSizePlans(PlansBySize[FilledExecutable]):
    """The plans for a GPU that a graph has for many sizes. find: as of `DeviceExecutable`."""

    def __init__(
        self,
        graph: SizedGraph,
        variables: Mapping[str, VariableState],
        find: Callable[[], Device],
        passes: Sequence[Pass],
        math_mode: MathMode = "ieee",
    ) -> None:
        def make(shapes: Shapes, *, wide: bool) -> DeviceSizePlan:
            return DeviceSizePlan(graph, shapes, variables, find, passes, math_mode, wide=wide)

        super().__init__(graph, make)
