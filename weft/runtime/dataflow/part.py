"""What runs one part of a partitioned step: a native plan if it can be one, else the executor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft.ir.analysis.frames import is_dataflow
from weft.ir.graph import Graph
from weft.passes.manager import Pass
from weft.passes.pipelines import STANDARD
from weft.passes.sizes.specialize import is_symbolic
from weft.runtime.dataflow.build import Array
from weft.runtime.dataflow.elsewhere import Elsewhere
from weft.runtime.dataflow.executor import DataflowStep
from weft.runtime.dataflow.hosts import Resources
from weft.runtime.dataflow.lazy import LazyRegion
from weft.runtime.dataflow.lowered import dataflow_step, executor_op, holds_strings
from weft.runtime.dataflow.trace import TraceRecorder
from weft.runtime.executable import Executable, compile_graph
from weft.runtime.resources.cancel import CancelToken
from weft.runtime.traced_run import run_traced
from weft.runtime.variables import VariableState

PartStep = Executable | LazyRegion | DataflowStep


def part_step(
    graph: Graph,
    variables: Mapping[str, VariableState],
    resources: Resources,
    control_flow: str = "auto",
    *,
    deterministic: bool = False,
    passes: Sequence[Pass] = STANDARD,
    elsewhere: Elsewhere | None = None,
) -> PartStep:
    """A part, compiled. elsewhere: the device that it runs on, if it is not this processor: always
    on the executor, which may find that all of it is one region. Errors as `compile_graph` and
    `dataflow_step`."""
    whole = elsewhere is None and executor_op(graph) is None and not holds_strings(graph)
    if whole:
        graph = graph.at_stage("dataflow" if is_dataflow(graph.block) else "traced")
    if whole and control_flow != "dataflow":
        if is_symbolic(graph.block):
            return LazyRegion(graph, variables, passes=passes)
        return compile_graph(graph, variables, name=graph.name, passes=passes)
    return dataflow_step(
        graph, variables, resources, control_flow,
        deterministic=deterministic, passes=passes, elsewhere=elsewhere,
    )  # fmt: skip


def run_part(
    step: PartStep,
    inputs: list[Array],
    timeout: float | None,
    cancel: CancelToken,
    trace: TraceRecorder | None = None,
) -> list[Array | None]:
    """The results of one run, None for a token. trace: gets what was done when."""
    if isinstance(step, DataflowStep):
        return step(inputs, timeout=timeout, cancel=cancel, trace=trace)
    if trace is None:
        return step(inputs)
    own = step.alone([a.shape for a in inputs]) if isinstance(step, LazyRegion) else step
    return run_traced(own, inputs, trace)
