"""From fetches and feeds to a compiled step, and which of the two ways it runs."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from weft.frontend.arrays import Array
from weft.frontend.calls.specializations import Specialization
from weft.frontend.session.fetching import is_tensor
from weft.frontend.session.graph import Graph
from weft.frontend.session.on_gpu import compile_gpu_step, gpu_use
from weft.frontend.session.step import step_graph
from weft.ir.dataclass import dataclass
from weft.ir.errors import UnsupportedError
from weft.ir.graph import Graph as IRGraph
from weft.ir.graph import Operation, Value
from weft.passes.manager import Pass
from weft.passes.pipelines import STANDARD
from weft.runtime.dataflow.executor import DataflowStep, dataflow_step, executor_op, holds_strings
from weft.runtime.device.backends.local import on_local_device
from weft.runtime.device.execution.step import DeviceStep, StepOnDevices
from weft.runtime.native.executable import Executable, compile_graph
from weft.runtime.native.size_plan import Filled

if TYPE_CHECKING:
    from weft.runtime.cluster.definition import ClusterStep


class Step(Specialization):
    """One step definition: what is fetched and fed, in which shapes, compiled. ops: how many of the
    graph's it holds; seconds: how long compiling took. values, feeds: what is fetched and fed, of
    `graph` (of steps in this process)."""

    __slots__ = ("executable", "feeds", "graph", "ops", "seconds", "values")

    def __init__(
        self,
        executable: Executable | Filled | DataflowStep | ClusterStep | DeviceStep | StepOnDevices,
        ops: int,
        seconds: float,
        graph: Graph | None = None,
        values: Sequence[Value | None] = (),
        feeds: Iterable[Value] = (),
    ) -> None:
        super().__init__()
        self.executable, self.ops, self.seconds = executable, ops, seconds
        self.graph, self.values, self.feeds = graph, tuple(values), tuple(feeds)


@dataclass(frozen=True, slots=True)
class Choice:
    """Which way a step runs. forced: the op that only the executor runs, if there is one."""

    executor: bool
    why: str
    forced: Operation | None = None


def pruned(
    graph: Graph,
    values: Sequence[Value | None],
    feeds: Mapping[Value, Array],
    done: frozenset[Value] = frozenset(),
    *,
    sized: bool = True,
) -> IRGraph:
    """The part of the graph that `values` need, with the sizes of the feeds, or for any. Errors as
    `step_graph`."""
    results = [v for v in values if v is not None and is_tensor(v)]
    effects = [v for v in values if v is not None and not is_tensor(v)]
    shapes = [(v, a.shape) for v, a in feeds.items()]
    return step_graph(graph._trace, results, effects, shapes, done, sized=sized)


def choose(step: IRGraph, control_flow: str) -> Choice:
    """The native plan or the dataflow executor."""
    found = executor_op(step)
    if found is not None:
        return Choice(True, f"op '{found.name}' runs on the dataflow executor only", found)
    if holds_strings(step):
        return Choice(True, "strings go in or out, which native plans do not take")
    if control_flow == "dataflow":
        return Choice(True, "the session was made with control_flow='dataflow'")
    return Choice(False, "no op needs the dataflow executor")


def compile_step(
    graph: Graph,
    values: Sequence[Value | None],
    feeds: Mapping[Value, Array],
    done: frozenset[Value],
    control_flow: str,
    options: Mapping[str, Any],
    passes: Sequence[Pass] = STANDARD,
) -> Step:
    """The compiled step. UnsupportedError where control_flow="native" cannot hold it. options:
    "deterministic", for the dataflow executor; "soft", whether placing may be soft; "math_mode"."""
    begun = time.perf_counter()
    step = pruned(graph, values, feeds, done)
    states = {name: v.state for name, v in graph._trace.variables.copy().items()}
    gpu = gpu_use(step, control_flow)
    if gpu is not None:
        planned = compile_gpu_step(
            step, gpu, states, graph.resources, control_flow, passes, **options
        )
        seconds = time.perf_counter() - begun
        return Step(planned, len(step.ops), seconds, graph, values, feeds)
    step = on_local_device(step)
    choice = choose(step, control_flow)
    if choice.executor and control_flow == "native":
        raise UnsupportedError(
            choice.why,
            hint="make the session with control_flow='auto'",
            location=choice.forced.locations if choice.forced is not None else (),
        )
    executable: Executable | DataflowStep
    if choice.executor:
        executable = dataflow_step(
            step, states, graph.resources, control_flow,
            deterministic=bool(options.get("deterministic")), passes=passes,
        )  # fmt: skip
    else:
        executable = compile_graph(step, states, name=graph.name, passes=passes)
    return Step(executable, len(step.ops), time.perf_counter() - begun, graph, values, feeds)
