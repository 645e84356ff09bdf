"""GPU plans for many sets of sizes: made once, their numbers filled in for each set.

As `native/size_plan.py` does for plans of the CPU: while passes and planning run, open sizes are
numbers that remember how they came about, so blocks, arguments, offsets and shapes in the plan that
comes out are, too. Kernels take sizes as arguments: sizes compile nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeAlias

from weft.codegen.cuda.source.kernel import CudaKernel
from weft.codegen.nests.nest import Nest
from weft.codegen.nests.rows import RowNest
from weft.ir.dataclass import dataclass
from weft.ir.dtypes import MathMode
from weft.ir.graph import Graph
from weft.ir.sizes import is_traced
from weft.passes.manager import Pass, PassOptions
from weft.runtime.device.execution.activation import Shelf
from weft.runtime.device.execution.executable import DeviceExecutable, compile_for_device
from weft.runtime.device.planning.stored_plan import Wanted
from weft.runtime.device.protocol import Device
from weft.runtime.resources.variables import VariableState, check_variables
from weft.runtime.sized_step import Numbers, Shapes, SizedGraph, SizedStep, SizePlan, may_share

_Fill = Callable[[Sequence[int]], Any]


@dataclass(frozen=True, slots=True)
class DeviceMaker:
    """Plans of a graph for a GPU, as a `StepMaker`. find, passes, math_mode: as of
    `compile_for_device`. step: options of the passes of the step that it is a region of. donated:
    inputs whose memory results may take, as far as the sizes that come allow."""

    graph: SizedGraph
    variables: Mapping[str, VariableState]
    find: Callable[[], Device]
    passes: Sequence[Pass]
    math_mode: MathMode = "ieee"
    step: PassOptions | None = None
    donated: Sequence[int] = ()

    def alone(self, shapes: Shapes, *, kept: bool) -> DeviceExecutable:
        """A plan for inputs of these shapes only."""
        return self.compiled(self.graph.at(shapes), kept=kept)

    def compiled(self, graph: Graph, *, kept: bool = True) -> DeviceExecutable:
        """A plan of a graph of static shapes."""
        return compile_for_device(
            graph, self.variables, find=self.find, name=self.graph.name, passes=self.passes,
            math_mode=self.math_mode, donated=self.donated, kept=kept,
            options=self.step and self.step.for_part("region"),
        )  # fmt: skip

    def many(self, shapes: Shapes, *, wide: bool) -> DeviceSizePlan | None:
        """A plan for these shapes with others in mind."""
        return DeviceSizePlan(self, shapes, wide=wide) if may_share(self.graph, shapes) else None


#: A step of plans for a GPU.
DeviceSizedStep: TypeAlias = SizedStep[DeviceExecutable]


class DeviceSizePlan(SizePlan[DeviceExecutable]):
    """A plan for a GPU for many sizes. maker: what it is made of."""

    def __init__(self, maker: DeviceMaker, shapes: Shapes, *, wide: bool = False) -> None:
        self._maker = maker
        self._shelf = Shelf()  # the constants are the same for all sizes
        super().__init__(maker.graph, shapes, wide=wide)

    def _plan(self, graph: Graph) -> None:
        check_variables(graph, self._maker.variables)
        plan = self._wanted(graph).details(PassOptions()).plan
        fill = self._filler(plan)
        self._fill: _Fill = (lambda _: plan) if fill is None else fill

    def fill(self, numbers: Numbers, shapes: Shapes) -> DeviceExecutable:
        """As of `SizePlan`. What people and errors are told of it is the plan for these sizes
        alone: the same launches, as all that decides is a condition."""
        maker = self._maker
        return DeviceExecutable(
            self.graph.name, self._fill(numbers.tolist()), maker.variables, maker.find,
            lambda: self._wanted(self.graph.at(shapes)).details(PassOptions()), self._shelf,
        )  # fmt: skip

    def _wanted(self, graph: Graph) -> Wanted:
        maker = self._maker
        return Wanted(graph, maker.passes, maker.math_mode, maker.donated)

    # -- numbers ----------------------------------------------------------------------------------

    def _filler(self, held: Any) -> _Fill | None:
        """What makes `held` anew from numbers; None if no traced number is in it."""
        if is_traced(held):
            place = self._place(held)
            return lambda numbers: numbers[place]
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


def _sequence(kind: type, held: Sequence[Any], fills: Sequence[_Fill | None]) -> _Fill | None:
    if all(fill is None for fill in fills):
        return None
    pairs = list(zip(held, fills, strict=True))
    return lambda numbers: kind([x if f is None else f(numbers) for x, f in pairs])
