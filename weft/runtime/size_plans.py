"""The plans for many sizes that a graph has: found by the shapes that come, or made for them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar

from weft.ir.dataclass import dataclass
from weft.ir.process import ForkLock
from weft.passes.manager import Pass, PassOptions
from weft.passes.pipelines import STANDARD
from weft.runtime.size_plan import Array, Numbers, Shapes, SizedGraph, SizePlan
from weft.runtime.variables import VariableState

F = TypeVar("F", covariant=True)
_log = logging.getLogger("weft.compile")
#: So many plans for many sizes a graph has; those used last stay.
MOST_PLANS = 16
#: So many are made for sizes much like those that came; then one for as many as there may be.
MOST_NARROW = 3
#: After so many that no other sizes could use, each set of sizes has a plan of its own.
MOST_IN_VAIN = 4


@dataclass(frozen=True, slots=True)
class Filled:
    """A set of sizes, and a plan for many that has numbers for it: called as an `Executable` is."""

    plan: SizePlan
    numbers: Numbers

    def __call__(self, arrays: list[Array]) -> list[Any]:
        return self.plan.run(self.numbers, arrays)

    def run_watched(self, arrays: list[Array], hook: Callable[[], object]) -> list[Any]:
        """As `Executable.run_watched`."""
        return self.plan.run_watched(self.numbers, arrays, hook)

    def run_kept(self, arrays: list[Array], keep: Callable[[Any], object]) -> list[Any]:
        """As `Executable.run_kept`."""
        return self.plan.run_kept(self.numbers, arrays, keep)


class Plan(Protocol[F]):
    """A plan for many sizes."""

    @property
    def conditions(self) -> int: ...
    def numbers(self, shapes: Shapes) -> Numbers | None: ...
    def filled(self, numbers: Numbers, shapes: Shapes) -> F: ...


class PlansBySize(Generic[F]):
    """The plans that a graph has for many sizes. make: one for some sizes, by keyword wide."""

    def __init__(self, graph: SizedGraph, make: Callable[..., Plan[F]]) -> None:
        self._make = make
        self._name, self._has_open = graph.name, graph.has_open
        self._plans: list[Plan[F]] = []  # that used last first
        self._in_vain = 0  # that were made since one of them served other sizes
        self._lock = ForkLock()
        self.made = 0  # how many

    def find(self, shapes: Shapes) -> F | None:
        """What a plan that is there makes of inputs of these shapes."""
        for k, plan in enumerate(self._plans):
            numbers = plan.numbers(shapes)
            if numbers is not None:
                self._in_vain = 0
                if k:
                    with self._lock:
                        self._plans = [plan, *(p for p in self._plans if p is not plan)]
                return plan.filled(numbers, shapes)
        return None

    def make(self, shapes: Shapes) -> F | None:
        """A plan for these shapes with others in mind. None where that is of no use: these shapes
        are to have a plan of their own."""
        if self._in_vain >= MOST_IN_VAIN or not self._has_open(shapes) or _watched():
            return None
        begun = time.perf_counter()
        try:
            plan = self._make(shapes, wide=self.made >= MOST_NARROW)
        except (TypeError, AttributeError, OverflowError) as error:
            # code that takes no number but Python's own, or none so large
            _log.warning("no plan of %s for many sizes: %s", self._name, error)
            self._in_vain = MOST_IN_VAIN
            return None
        self.made += 1  # those that raise for sizes that do not fit are not counted
        _log.info("planned %s for many sizes: %d conditions, %.1f ms", self._name, plan.conditions,
                  (time.perf_counter() - begun) * 1e3)  # fmt: skip
        numbers = plan.numbers(shapes)
        with self._lock:
            self._in_vain += 1
            if numbers is None:  # a size that such plans are not made for
                return None
            self._plans = [plan, *self._plans[: MOST_PLANS - 1]]
        return plan.filled(numbers, shapes)


class SizePlans(PlansBySize[Filled]):
    """Native plans for many sizes."""

    def __init__(
        self,
        graph: SizedGraph,
        variables: Mapping[str, VariableState],
        threads: int | None = None,
        passes: Sequence[Pass] = STANDARD,
    ) -> None:
        def make(shapes: Shapes, *, wide: bool) -> Plan[Filled]:
            return _Native(graph, shapes, variables, threads, passes, wide=wide)

        super().__init__(graph, make)


class _Native(SizePlan):
    def filled(self, numbers: Numbers, shapes: Shapes) -> Filled:
        """As of `Plan`."""
        return Filled(self, numbers)


def _watched() -> bool:
    """Whether someone wants to see the passes at work, on sizes as they are."""
    options = PassOptions.from_environment()
    return bool(options.verify) or options.dump is not None or "passes" in options.log
