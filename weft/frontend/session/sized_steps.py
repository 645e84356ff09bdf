"""Steps of a session whose feeds come in many sizes.

The second set of sizes makes a plan that others fill in (`runtime/native/size_plan.py`,
`runtime/device/execution/size_plan.py`), where a step is one plan. On a cluster, after a few sets
of sizes, each with parts of its own, a definition is made whose parts take feeds of any; each task
plans for the sizes that come (`SizedStep`). The client checks that sizes fit together, so that
errors are those of any other step: once with sizes that note what is decided by
them, then in microseconds."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

from weft.frontend.compile.gpu import size_plans_for_gpu
from weft.frontend.compile.specializations import Specializations
from weft.frontend.core.arrays import Array
from weft.frontend.session.compiling import StepDefinition
from weft.frontend.session.fetches import Fetches, is_tensor
from weft.frontend.session.graph import Graph
from weft.frontend.session.step import step_graph
from weft.ir.dims import SymbolicDim
from weft.ir.dtypes import MathMode
from weft.ir.errors import UnavailableError, WeftError
from weft.ir.graph import Graph as IRGraph
from weft.ir.graph import Value
from weft.ir.types import TensorType
from weft.passes.pipelines import PIPELINES
from weft.runtime.device.backends.local import on_local_device
from weft.runtime.native.size_plan import SizeCheck, SizedGraph, SizePlans
from weft.runtime.plan.planning import gpu_passes

if TYPE_CHECKING:
    from weft.frontend.session.remote import Remote
    from weft.runtime.device.execution.size_plan import DeviceSizePlans


_log = logging.getLogger("weft.cluster")
#: So many sets of sizes have parts of their own, which need not look at sizes: a small one runs on
#: the thread that reads messages, and large tensors are computed where other tasks read them.
MOST_OWN = 4
#: So many sets of conditions are kept.
MOST_CHECKS = 16

#: Makes a definition for feeds of any sizes, which all tasks have taken.
Open = Callable[[Fetches, Mapping[Value, Array]], StepDefinition]


class OpenStep(StepDefinition):
    """A definition for feeds of any sizes, as one for some."""

    __slots__ = ()

    is_shared = True

    def __init__(self, of: StepDefinition, seconds: float) -> None:
        super().__init__(of.executable, of.ops, seconds)
        self.compiled = False


class OpenSteps:
    """The definitions of one pair of fetches and feeds. make: called at most once. Thread-safe as
    far as it must be: two threads may make the same twice."""

    def __init__(self, sized: SizedGraph, make: Open) -> None:
        self._sized, self._make = sized, make
        self._own = 0  # sets of sizes that have parts of their own
        self._open: StepDefinition | None = None
        self._checks: list[SizeCheck] = []

    def step(
        self,
        values: Fetches,
        feeds: Mapping[Value, Array],
        compiled: Callable[[Fetches, Mapping[Value, Array]], StepDefinition],
    ) -> StepDefinition:
        """The step for feeds of these sizes; `compiled` makes one for them alone, and its errors
        are those of this."""
        if self._own < MOST_OWN:
            step = compiled(values, feeds)
            self._own += 1
            return step
        begun = time.perf_counter()
        self._check(tuple([a.shape for a in feeds.values()]))
        if self._open is None:
            try:
                self._open = self._make(values, feeds)
            except UnavailableError:
                raise
            except WeftError as error:
                _log.info("no step of '%s' for many sizes: %s", self._sized.name, error)
                self._own = -(1 << 62)
                return compiled(values, feeds)
        return OpenStep(self._open, time.perf_counter() - begun)

    def _check(self, shapes: tuple[tuple[int, ...], ...]) -> None:
        """Raise what is wrong with these sizes."""
        if any(check.holds(shapes) for check in self._checks):
            return
        self._sized.at(shapes)
        if len(self._checks) < MOST_CHECKS:
            try:
                self._checks.append(SizeCheck(self._sized, shapes))
            except (TypeError, AttributeError, OverflowError) as error:
                _log.info("no check of '%s' for many sizes: %s", self._sized.name, error)


def may_be_open(feeds: Mapping[Value, Array]) -> bool:
    """Whether a definition may leave the sizes of these feeds open: there are such sizes, and all
    have names."""
    dims = [d for v in feeds if isinstance(v.type, TensorType) for d in v.type.shape]
    return any(not isinstance(d, int) for d in dims) and all(
        isinstance(d, (int, SymbolicDim)) for d in dims
    )


Plans: TypeAlias = "SizePlans | DeviceSizePlans"
Compile = Callable[[Fetches, Mapping[Value, Array]], StepDefinition]
#: For so many pairs of fetches and feeds; then it begins anew.
MOST = 256


class SizedSteps:
    """The plans for many sizes of a session, by what is fetched and fed. remote: of a session on a
    cluster."""

    def __init__(
        self,
        graph: Graph,
        pipeline: str,
        control_flow: str,
        remote: Remote | None,
        math_mode: MathMode = "ieee",
    ) -> None:
        self._graph, self._pipeline = graph, pipeline
        self._control_flow, self._remote, self._math_mode = control_flow, remote, math_mode
        self._known: dict[object, tuple[Plans, int]] = {}
        self._open: dict[object, OpenSteps] = {}

    def step(
        self, values: Fetches, feeds: Mapping[Value, Array], compiled: Compile
    ) -> StepDefinition:
        """The step for feeds of these sizes; `compiled` makes one for them alone, and its errors
        are those of this."""
        key = (values, tuple(feeds))
        if self._remote is not None:
            return self._on_cluster(key, values, feeds, compiled)
        known = self._known.get(key)
        if known is None:
            step = compiled(values, feeds)
            if any(map(_is_open, feeds)):
                self._know(key, self._plans(values, feeds, step), step)
            return step
        begun, (plans, ops) = time.perf_counter(), known
        shapes = tuple([a.shape for a in feeds.values()])
        found = plans.find(shapes) or plans.make(shapes)
        if found is None:
            return compiled(values, feeds)
        step = StepDefinition(found, ops, time.perf_counter() - begun, self._graph, values, feeds)
        step.compiled = False
        return step

    def _on_cluster(
        self, key: object, values: Fetches, feeds: Mapping[Value, Array], compiled: Compile
    ) -> StepDefinition:
        found = self._open.get(key)
        if found is None:
            remote = self._remote
            if remote is None or not may_be_open(feeds):
                return compiled(values, feeds)

            def make(values: Fetches, feeds: Mapping[Value, Array]) -> StepDefinition:
                return remote.open(self._graph, values, feeds, self._control_flow, self._pipeline)

            if len(self._open) >= MOST:
                self._open.clear()
            found = self._open[key] = OpenSteps(self._sized(values, list(feeds)), make)
        return found.step(values, feeds, compiled)

    def _know(self, key: object, plans: Plans | None, step: StepDefinition) -> None:
        if plans is not None:
            if len(self._known) >= MOST:
                self._known.clear()
            self._known[key] = plans, step.ops

    def _plans(
        self, values: Fetches, feeds: Mapping[Value, Array], step: StepDefinition
    ) -> Plans | None:
        """Where one plan is all that a step is."""
        states = {name: v.state for name, v in self._graph._trace.variables.copy().items()}
        passes = PIPELINES[self._pipeline]
        if step.executable.kind == "native":
            return SizePlans(self._sized(values, list(feeds)), states, passes=passes)
        if step.executable.kind != "gpu":
            return None
        use = step.gpu
        assert use is not None
        sized = self._sized(values, list(feeds), use.number)
        return size_plans_for_gpu(sized, states, use.number, gpu_passes(passes), self._math_mode)

    def _sized(self, values: Fetches, feeds: list[Value], gpu: int | None = None) -> SizedGraph:
        results = [v for v in values if v is not None and is_tensor(v)]
        effects = [v for v in values if v is not None and not is_tensor(v)]
        trace = self._graph._trace

        def at(shapes: Sequence[tuple[int, ...]]) -> IRGraph:
            given = list(zip(feeds, shapes, strict=True))
            step = step_graph(trace, results, effects, given)
            return step if self._remote is not None else on_local_device(step, gpu)

        return SizedGraph(self._graph.name, tuple([v.type for v in feeds]), at)


def steps_of(graph: Graph) -> Specializations[StepDefinition]:
    """What a session keeps of the steps of a graph."""
    look = "session.explain(fetches, feed_dict)"
    return Specializations(f"Session of {graph.name}", look=look)


def own_step(
    steps: Specializations[StepDefinition], key: Hashable, make: Callable[[], StepDefinition]
) -> StepDefinition:
    """The step for a key, with a plan of its own, which can be looked at."""
    step = steps.get_or_make(key, make)
    if step.is_shared:
        step = steps.entries[key] = make()
    return step


def _is_open(fed: Value) -> bool:
    return isinstance(fed.type, TensorType) and not fed.type.is_static
