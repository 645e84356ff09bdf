"""From a step's graph to one that the executor runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft.codegen.loops.in_registers import in_registers
from weft.ir.analysis.deadness import check_dataflow
from weft.ir.analysis.effects import is_string
from weft.ir.graph import Graph, Operation
from weft.ir.ops.control_flow import DATAFLOW
from weft.passes.control.lower_control_flow import executor_only, lower_control_flow, unroll
from weft.passes.manager import Pass, run_passes
from weft.passes.pipelines import STANDARD
from weft.passes.sizes.specialize import is_symbolic
from weft.passes.sizes.tie_sizes import tie_sizes
from weft.runtime.dataflow.elsewhere import Elsewhere
from weft.runtime.dataflow.executor import DataflowStep
from weft.runtime.dataflow.hosts import Resources
from weft.runtime.step_passes import REGION, for_machine
from weft.runtime.variables import VariableState


def executor_op(graph: Graph) -> Operation | None:
    """The first op that no native plan holds: one of the host or on strings, Switch or Merge, state
    in a branch or loop; None if there is none."""
    switches = (op for op in graph.ops if op.name in DATAFLOW)
    return next(switches, None) or executor_only(graph.ops)


def holds_strings(graph: Graph) -> bool:
    """Whether strings go through the graph, which native plans do not take."""
    return any(is_string(v.type) for v in (*graph.args, *graph.results))


def dataflow_step(
    graph: Graph,
    variables: Mapping[str, VariableState],
    resources: Resources,
    control_flow: str = "dataflow",
    *,
    deterministic: bool = False,
    passes: Sequence[Pass] = STANDARD,
    elsewhere: Elsewhere | None = None,
) -> DataflowStep:
    """`graph`, with inputs of static shapes, for the dataflow executor: branches and loops as
    Switch and Merge, all or (control_flow="auto") those that native code cannot hold. passes: of
    what is compiled; STANDARD and REPRODUCIBLE give the bits of a native plan. elsewhere: the
    device that regions are compiled for, if it is not this processor.
    InvalidArgumentError if a result may be dead, or frames do not match."""
    graph = tie_sizes(graph)
    check_dataflow(graph)
    whole = executor_op(graph) is None and not holds_strings(graph) and elsewhere is None
    if passes is STANDARD and whole and not is_symbolic(graph.block):
        # as in a native plan, and what sums add up in which order depends on what is fused
        graph, _ = run_passes(graph, for_machine(STANDARD))
        graph = unroll(graph, lambda op: in_registers(op) > 1)
        passes = REGION
    lowered = lower_control_flow(graph, mode=control_flow, whole_updates=True)
    return DataflowStep(
        lowered, variables, resources,
        deterministic=deterministic, passes=passes, elsewhere=elsewhere,
    )  # fmt: skip
