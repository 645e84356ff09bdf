"""Regions whose sizes are known only when they run: planned then.

The first set of sizes is planned for by itself, as a region whose sizes are known is: many regions
never see another one. With the second set a plan is made that other sizes fill in
(`runtime/size_plan.py`); another such plan where planning would have decided otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from weft.ir.graph import Graph
from weft.ir.process import ForkLock
from weft.ir.types import TensorType
from weft.passes.manager import Pass
from weft.passes.pipelines import STANDARD
from weft.passes.sizes.specialize import specialize_inputs
from weft.runtime.executable import Executable, compile_graph
from weft.runtime.size_plan import SizedGraph
from weft.runtime.size_plans import Filled, SizePlans
from weft.runtime.variables import VariableState

Array = np.ndarray[Any, Any]
Shapes = tuple[tuple[int, ...], ...]
#: For so many sets of sizes a region keeps what it found out; those used last stay.
MOST_SIZES = 64


class _Entry:
    __slots__ = ("made", "used")

    def __init__(self, made: Executable | Filled) -> None:
        self.made = made
        self.used = True


class LazyRegion:
    """Called as an `Executable` is, by any number of threads; its results have the sizes that
    follow from those of the inputs. Other sizes compile no kernel that is not there."""

    def __init__(
        self,
        graph: Graph,
        variables: Mapping[str, VariableState],
        threads: int | None = None,
        passes: Sequence[Pass] = STANDARD,
    ) -> None:
        self.graph = graph
        self._variables, self._threads, self._passes = variables, threads, passes
        types = tuple([a.type for a in graph.args])
        self._open = [
            i for i, t in enumerate(types) if isinstance(t, TensorType) and not t.is_static
        ]
        sized = SizedGraph(graph.name, types, partial(specialize_inputs, graph))
        self._plans = SizePlans(sized, variables, threads, passes)
        self._made: dict[Shapes, _Entry] = {}
        self._own = 0  # how many sets of sizes were planned for by themselves
        self._lock = ForkLock()

    def __call__(self, arrays: list[Array]) -> list[Any]:
        """The results. ShapeError where sizes differ that must be equal."""
        return self._plan(arrays)(arrays)

    def run_kept(self, arrays: list[Array], keep: Callable[[Any], object]) -> list[Any]:
        """As `Executable.run_kept`."""
        return self._plan(arrays).run_kept(arrays, keep)

    def __len__(self) -> int:
        """For how many sets of sizes it knows what to do."""
        return len(self._made)

    @property
    def planned(self) -> int:
        """How often passes and planning ran."""
        return self._own + self._plans.made

    def _plan(self, arrays: list[Array]) -> Executable | Filled:
        key = tuple([arrays[i].shape for i in self._open])
        entry = self._made.get(key)
        if entry is None:
            entry = self._keep(key, _Entry(self._new(tuple([a.shape for a in arrays]))))
        entry.used = True
        return entry.made

    def _new(self, shapes: Shapes) -> Executable | Filled:
        if not self._own:
            return self.alone(shapes)
        return self._plans.find(shapes) or self._plans.make(shapes) or self.alone(shapes)

    def alone(self, shapes: Sequence[tuple[int, ...]]) -> Executable:
        """A plan for inputs of these shapes only."""
        graph = specialize_inputs(self.graph, shapes)
        kept = not self._own  # on disk; writing others takes longer than making most of them
        self._own += 1
        return compile_graph(
            graph, self._variables, name=graph.name, passes=self._passes,
            threads=self._threads, kept=kept,
        )  # fmt: skip

    def _keep(self, key: Shapes, entry: _Entry) -> _Entry:
        with self._lock:
            while len(self._made) >= MOST_SIZES:
                oldest = next(iter(self._made))
                held = self._made.pop(oldest)
                if held.used:  # since it was last looked at: it gets another turn
                    held.used = False
                    self._made[oldest] = held
            return self._made.setdefault(key, entry)
