"""Steps of a session whose feeds come in many sizes: the second set of sizes makes a plan that
others fill in (`runtime/size_plan.py`), where a step is a native plan."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Mapping, Sequence

from weft.frontend.arrays import Array
from weft.frontend.calls.specializations import Specializations
from weft.frontend.session.compiling import Step
from weft.frontend.session.fetching import Fetches, is_tensor
from weft.frontend.session.graph import Graph
from weft.frontend.session.step import step_graph
from weft.ir.graph import Graph as IRGraph
from weft.ir.graph import Value
from weft.ir.types import TensorType
from weft.passes.manager import Pass
from weft.runtime.executable import Executable
from weft.runtime.local_graph import on_local_device
from weft.runtime.size_plan import SizedGraph
from weft.runtime.size_plans import Filled, SizePlans

Compile = Callable[[Fetches, Mapping[Value, Array]], Step]
#: For so many pairs of fetches and feeds; then it begins anew.
MOST = 256


class SizedSteps:
    """The plans for many sizes of a session, by what is fetched and fed."""

    def __init__(self, graph: Graph, passes: Sequence[Pass]) -> None:
        self._graph, self._passes = graph, passes
        self._known: dict[object, tuple[SizePlans, int]] = {}

    def step(self, values: Fetches, feeds: Mapping[Value, Array], compiled: Compile) -> Step:
        """The step for feeds of these sizes; `compiled` makes one for them alone, and its errors
        are those of this."""
        key = (values, tuple(feeds))
        known = self._known.get(key)
        if known is None:
            step = compiled(values, feeds)
            if isinstance(step.executable, Executable) and any(map(_is_open, feeds)):
                if len(self._known) >= MOST:
                    self._known.clear()
                self._known[key] = self._plans(values, list(feeds)), step.ops
            return step
        begun, (plans, ops) = time.perf_counter(), known
        shapes = tuple([a.shape for a in feeds.values()])
        found = plans.find(shapes) or plans.make(shapes)
        return Step(found, ops, time.perf_counter() - begun) if found else compiled(values, feeds)

    def _plans(self, values: Fetches, feeds: list[Value]) -> SizePlans:
        results = [v for v in values if v is not None and is_tensor(v)]
        effects = [v for v in values if v is not None and not is_tensor(v)]
        trace = self._graph._trace

        def at(shapes: Sequence[tuple[int, ...]]) -> IRGraph:
            given = list(zip(feeds, shapes, strict=True))
            return on_local_device(step_graph(trace, results, effects, given))

        sized = SizedGraph(self._graph.name, tuple([v.type for v in feeds]), at)
        states = {name: v.state for name, v in trace.variables.copy().items()}
        return SizePlans(sized, states, passes=self._passes)


def own_step(steps: Specializations[Step], key: Hashable, make: Callable[[], Step]) -> Step:
    """The step for a key, with a plan of its own, which can be looked at."""
    step = steps.get_or_make(key, make)
    if isinstance(step.executable, Filled):
        step = steps.entries[key] = make()
    return step


def _is_open(fed: Value) -> bool:
    return isinstance(fed.type, TensorType) and not fed.type.is_static
