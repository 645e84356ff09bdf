"""From a step's graph to one that the executor runs."""

from __future__ import annotations

from collections.abc import Mapping

from weft.ir.deadness import check_dataflow
from weft.ir.graph import Graph, Operation
from weft.ir.ops import OPS
from weft.ir.ops.dataflow import DATAFLOW
from weft.passes.control.lower_control_flow import lower_control_flow
from weft.runtime.dataflow.executor import DataflowStep
from weft.runtime.dataflow.hosts import Resources
from weft.runtime.variables import VariableState


def executor_op(graph: Graph) -> Operation | None:
    """The first op that no native plan holds: one of the host, Switch or Merge; None if there is
    none."""
    return next(
        (op for op in graph.walk() if op.name in DATAFLOW or "host" in OPS[op.name].traits), None
    )


def dataflow_step(
    graph: Graph, variables: Mapping[str, VariableState], resources: Resources
) -> DataflowStep:
    """`graph`, of static shapes, for the dataflow executor: branches and loops as Switch and
    Merge. InvalidArgumentError if a result may be dead, or frames do not match."""
    check_dataflow(graph)
    return DataflowStep(lower_control_flow(graph), variables, resources)
