"""Steps of a session whose feeds come in many sizes.

Where a step is one plan, of this processor or of a GPU, the second set of sizes makes a plan that
others fill in (`runtime/sized_step.py`). On a cluster, after a few sets of sizes, each with parts
of its own, a step is made whose parts take feeds of any; each task plans for the sizes that come.
There the plan for many sizes is that step, and its guards say which sizes are known to fit
together, so that errors are those of any other step."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Mapping, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any

from weft.frontend.compile.specializations import Specializations
from weft.frontend.core.tensor import Array
from weft.frontend.session.compiling import StepDefinition, tensors_and_effects
from weft.frontend.session.fetches import Fetches
from weft.frontend.session.graph import Graph
from weft.frontend.session.states import SessionStates
from weft.frontend.session.step import step_graph
from weft.ir.dims import SymbolicDim
from weft.ir.dtypes import MathMode
from weft.ir.errors import UnavailableError, WeftError
from weft.ir.graph import Graph as IRGraph
from weft.ir.graph import Value
from weft.ir.types import TensorType
from weft.passes.pipelines import PIPELINES
from weft.runtime.compile_step import maker_for_gpu
from weft.runtime.device.backends.local import on_local_device
from weft.runtime.native.planning import gpu_passes
from weft.runtime.native.size_plan import NativeMaker
from weft.runtime.sized_step import (
    FilledStep,
    Numbers,
    Shapes,
    SizedGraph,
    SizedStep,
    SizePlan,
    StepMaker,
)
from weft.runtime.step import Step

if TYPE_CHECKING:
    from weft.frontend.session.remote import Remote

_log = logging.getLogger("weft.cluster")
#: So many sets of sizes have parts of their own, which need not look at sizes: a small one runs on
#: the thread that reads messages, and large tensors are computed where other tasks read them.
MOST_OWN = 4
#: For so many pairs of fetches and feeds a session keeps plans; then it begins anew.
MOST = 256

Compile = Callable[[Fetches, Mapping[Value, Array]], StepDefinition]


class OpenPlan(SizePlan[Step]):
    """A step on a cluster for feeds of any sizes, and which sizes are known to fit together."""

    def __init__(self, graph: SizedGraph, shapes: Shapes, step: Step, *, wide: bool) -> None:
        self._step = step
        super().__init__(graph, shapes, wide=wide)

    def _plan(self, graph: IRGraph) -> None:
        """Nothing: the tasks do."""

    def fill(self, numbers: Numbers, shapes: Shapes) -> Step:
        return self._step


class ClusterMaker:
    """Steps of a graph on a cluster, as a `StepMaker`. own: makes one for some sizes. of_any_size:
    one for any, which all tasks have taken; asked for until it is there, or a task refuses it."""

    def __init__(
        self, graph: SizedGraph, own: Callable[[IRGraph], Step], of_any_size: Callable[[], Step]
    ) -> None:
        self.graph, self._own, self._of_any_size = graph, own, of_any_size
        self._open: Step | None = None
        self._refused = False

    def alone(self, shapes: Shapes, *, kept: bool) -> Step:
        """A step whose parts take inputs of these shapes only."""
        return self._own(self.graph.at(shapes))

    def many(self, shapes: Shapes, *, wide: bool) -> SizePlan[Step] | None:
        """The one for any sizes, of which these are known to fit."""
        if self._refused:
            return None
        self.graph.at(shapes)  # says what is wrong with them before tasks are asked
        if self._open is None:
            try:
                self._open = self._of_any_size()
            except UnavailableError:
                raise
            except WeftError as error:
                _log.info("no step of '%s' for many sizes: %s", self.graph.name, error)
                self._refused = True
                return None
        return OpenPlan(self.graph, shapes, self._open, wide=wide)

    def opened(self, shapes: Shapes) -> Step | None:
        """The step for any sizes if it is there, after a check of these."""
        if self._open is not None:
            self.graph.at(shapes)
        return self._open


def may_be_open(feeds: Mapping[Value, Array]) -> bool:
    """Whether a definition may leave the sizes of these feeds open: there are such sizes, and all
    have names."""
    dims = [d for v in feeds if isinstance(v.type, TensorType) for d in v.type.shape]
    return any(not isinstance(d, int) for d in dims) and all(
        isinstance(d, (int, SymbolicDim)) for d in dims
    )


class SizedSteps:
    """The steps for any sizes of a session, by what is fetched and fed. remote: of a session on a
    cluster. states: of the variables."""

    def __init__(
        self,
        graph: Graph,
        pipeline: str,
        control_flow: str,
        remote: Remote | None,
        math_mode: MathMode = "ieee",
        *,
        states: SessionStates,
    ) -> None:
        self._graph, self._pipeline, self._states = graph, pipeline, states
        self._control_flow, self._remote, self._math_mode = control_flow, remote, math_mode
        self._known: dict[object, tuple[SizedStep[Any], int]] = {}

    def step(
        self, values: Fetches, feeds: Mapping[Value, Array], compiled: Compile
    ) -> StepDefinition:
        """The step for feeds of these sizes; `compiled` makes one for them alone, and its errors
        are those of this."""
        key = (values, tuple(feeds))
        known = self._known.get(key)
        if known is None:
            step = compiled(values, feeds)
            if any(map(_is_open, feeds)):
                self._know(key, self._maker(values, feeds, step), step)
            return step
        begun, (sized, ops) = perf_counter(), known
        shapes = tuple([a.shape for a in feeds.values()])
        made = sized.shared(shapes)
        if made is None and isinstance(sized.maker, ClusterMaker):
            made = sized.maker.opened(shapes)
        if made is None:
            step = compiled(values, feeds)
            sized.count_own()
            return step
        filled = FilledStep(sized.name, made)
        step = StepDefinition(filled, ops, perf_counter() - begun, self._graph, values, feeds)
        step.compiled = False
        return step

    def clear(self) -> None:
        """Free all plans."""
        self._known.clear()

    def _know(self, key: object, maker: StepMaker[Any] | None, first: StepDefinition) -> None:
        """Have a step for any sizes, from the second set of them on. first: that for the first."""
        if maker is None:
            return
        if len(self._known) >= MOST:
            self._known.clear()
        own = MOST_OWN - 1 if isinstance(maker, ClusterMaker) else 0
        self._known[key] = SizedStep(maker, own), first.ops

    def _maker(
        self, values: Fetches, feeds: Mapping[Value, Array], first: StepDefinition
    ) -> StepMaker[Any] | None:
        """None where one plan is not all that a step is. first: that for the first sizes."""
        remote = self._remote
        if remote is not None:
            return self._on_cluster(remote, values, feeds) if may_be_open(feeds) else None
        states = self._states.all()
        passes = PIPELINES[self._pipeline]
        if first.executable.kind == "native":
            return NativeMaker(self._sized(values, list(feeds)), states, passes=passes)
        use = first.gpu
        if use is None or first.executable.kind != "gpu":
            return None
        sized = self._sized(values, list(feeds), use.number)
        return maker_for_gpu(sized, states, use.number, gpu_passes(passes), self._math_mode)

    def _on_cluster(
        self, remote: Remote, values: Fetches, feeds: Mapping[Value, Array]
    ) -> ClusterMaker:
        graph, flow, pipeline = self._graph, self._control_flow, self._pipeline
        fed = list(feeds)

        def own(step: IRGraph) -> Step:
            return remote.step_of(graph, step, flow, pipeline)

        def of_any_size() -> Step:
            return remote.open(graph, values, fed, flow, pipeline)

        return ClusterMaker(self._sized(values, fed), own, of_any_size)

    def _sized(self, values: Fetches, feeds: list[Value], gpu: int | None = None) -> SizedGraph:
        fetched, trace = tensors_and_effects(values), self._graph._trace

        def at(shapes: Sequence[tuple[int, ...]]) -> IRGraph:
            given = list(zip(feeds, shapes, strict=True))
            step = step_graph(trace, *fetched, given)
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
    if step.executable.kind == "sized":
        step = steps.entries[key] = make()
    return step


def _is_open(fed: Value) -> bool:
    return isinstance(fed.type, TensorType) and not fed.type.is_static
