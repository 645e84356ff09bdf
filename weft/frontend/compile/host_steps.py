"""Compiled functions that one native plan does not hold: with ops of the host (queues, files,
tables), strings, sizes that depend on values, Switch and Merge, or ops on several devices.

`compile_host_step` makes the step of a function for which `effects.needs_host` holds: on the
dataflow executor, whose regions are native plans, or in a part for each device. A function for a
GPU leaves to the processor what only the host does, and what `wf.device` puts there. Sessions run
the same steps; the effects of a function are in the order of the program, though
(`passes/control/program_order`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.frontend.compile.gpu import PartsCall
from weft.frontend.compile.watched_call import pipeline_name
from weft.frontend.core.device_array import check_copies, guarded, host_array
from weft.frontend.core.function_trace import Traced
from weft.ir.analysis.effects import host_op_of
from weft.ir.errors import ShapeError, UnsupportedError
from weft.ir.graph import Graph
from weft.ir.locations import caller_location
from weft.passes.manager import STANDARD
from weft.passes.pipelines import PIPELINES, REPRODUCIBLE
from weft.runtime.compile_step import CompileOptions, choose, compile_step
from weft.runtime.device.backends.local import on_local_device
from weft.runtime.device.backends.registry import gpu
from weft.runtime.local_devices import GpuUse, compile_gpu_step, gpu_use
from weft.runtime.sized_step import Shapes, SizedGraph, SizedStep, SizePlan
from weft.runtime.step import PLAIN, RunContext, Step

if TYPE_CHECKING:
    from weft.frontend.compile.compiled import Compiled
    from weft.frontend.compile.on_cluster import ClusterCall


def compile_host_step(made: Compiled, how: CompileOptions) -> Step:
    """The step of a function on a cluster, or for which `needs_host` holds; a native one if it
    only names the CPU. Where sizes of its inputs are open, one is made for each set that comes.

    Errors as `compile_gpu_step` and `compile_step` have.
    """
    traced = made.traced
    graph = traced.graph
    one: Callable[[Graph], Step] = partial(_local_step, traced, how)
    if made.gpu is not None:
        one = partial(_step_with_gpu, made, how)
    if made.cluster is not None:
        # who has no cluster does not wait for this module
        from weft.frontend.compile.on_cluster import cluster_keys, cluster_step, connection_to

        connection = made.connection = connection_to(made.cluster)
        keys = cluster_keys(traced, connection)
        one = partial(cluster_step, keys=keys, connection=connection, pipeline=pipeline_of(made))
    return SizedStep(_StepsBySizes(SizedGraph.of(graph), one)) if made.is_open else one(graph)


def host_call(made: Compiled, step: Step) -> HostCall | PartsCall | ClusterCall:
    """What runs a step that `compile_host_step` made on the arrays of a call."""
    if made.gpu is not None:
        return PartsCall(step, made.traced.graph, partial(gpu, made.gpu))
    if made.connection is None:
        return HostCall(step)
    from weft.frontend.compile.on_cluster import ClusterCall

    return ClusterCall(step, made.connection, made.traced, pipeline_of(made))


def pipeline_of(made: Compiled) -> str:
    """The name of its pipeline, which tasks know. UnsupportedError for passes of the user's."""
    name = pipeline_name(made.pipeline)
    if name not in PIPELINES:
        raise UnsupportedError(
            f"'{made.traced.graph.name}': wf.compile(cluster=, passes=): tasks know pipelines by "
            "name",
            hint=f"the pipelines are: {', '.join(PIPELINES)}",
            location=caller_location(),
        )
    return name


def _local_step(traced: Traced, how: CompileOptions, graph: Graph) -> Step:
    """A step of this process for some sizes."""
    use = gpu_use(graph, "auto", follow=False)
    auto = replace(how, control_flow="auto", in_order=True)
    states, resources = traced.variables, traced.resources
    if use is not None:
        return compile_gpu_step(graph, use, states, resources, auto, follow=False)
    graph = on_local_device(graph)
    if not choose(graph, "native").executor:
        return compile_step(graph, states, options=how)
    return compile_step(graph, states, resources, auto)


def _step_with_gpu(made: Compiled, how: CompileOptions, graph: Graph) -> Step:
    """A step for some sizes of a function that is compiled for a GPU."""
    assert made.gpu is not None
    passes = _OF_PROCESSOR.get(pipeline_name(how.passes))
    if passes is None:
        raise UnsupportedError(
            f"'{graph.name}': wf.compile(device=, passes=): it needs passes for the processor, "
            f"too, since {why_executor(graph, made.gpu)}",
            hint=f"take one of the pipelines {', '.join(_OF_PROCESSOR)}",
            location=caller_location(),
        )
    gpu(made.gpu)  # says if there is none
    auto = replace(how, passes=passes, control_flow="auto", in_order=True, results_stay=True)
    states, resources = made.traced.variables, made.traced.resources
    if not graph.ops:  # arguments that are passed on, strings among them: nothing is for the GPU
        return compile_step(graph, states, resources, auto)
    first = host_op_of(graph, made.gpu) or graph.ops[0]
    use = GpuUse(made.gpu, first, why_executor(graph, made.gpu))
    return compile_gpu_step(graph, use, states, resources, auto)


#: By the name of a pipeline, what does the same for the processor.
_OF_PROCESSOR = {
    "gpu": STANDARD,
    "standard": STANDARD,
    "gpu_reproducible": REPRODUCIBLE,
    "reproducible": REPRODUCIBLE,
}


def why_executor(graph: Graph, gpu: int | None = None) -> str:
    """Why a graph runs on the dataflow executor, in words. gpu: the number of the GPU that its
    function is for."""
    op = host_op_of(graph, gpu)
    if op is None:
        return "strings go in or out, which no native plan takes"
    where = f" at {op.locations[0]}" if op.locations else ""
    place = "the dataflow executor" if gpu is None else "the host"
    runs = f"is to run on {op.device}" if op.device else f"runs on {place}"
    return f"op '{op.name}'{where} {runs}"


class _StepsBySizes:
    """A `StepMaker` that makes one step for each set of sizes."""

    def __init__(self, graph: SizedGraph, make: Callable[[Graph], Step]) -> None:
        self.graph, self._make = graph, make

    def alone(self, shapes: Shapes, *, kept: bool) -> Step:
        """The step for inputs of these shapes."""
        return self._make(self.graph.at(shapes))

    def many(self, shapes: Shapes, *, wide: bool) -> SizePlan[Step] | None:
        """None: the executor has no plan for many sizes."""
        return None


class HostCall:
    """Calls of a step that is not one native plan: inputs are made contiguous, and results never
    share memory with them, but for those that are donated."""

    def __init__(self, step: Step) -> None:
        self._step = step

    def __call__(self, arrays: list[Any], context: RunContext = PLAIN) -> list[Any]:
        given = [host_array(a) for a in arrays]
        step: Any = self._step
        try:
            if step.kind == "sized":
                step = step.at(tuple([a.shape for a in given]))
            if guarded():
                check_copies(step)
            results = step.run(given, context)
            kept = step.taken
            others = [a for i, a in enumerate(given) if i not in kept] if kept else given
            return [_own(result, others) for result in results]
        except ShapeError as error:  # sizes that differ and must be equal
            raise error.at(caller_location()) from None
        finally:
            given.clear()  # whoever holds an error holds this list, and donated arrays with it


def _own(result: Any, inputs: Sequence[Any]) -> Any:
    """A result that the caller's arrays cannot change."""
    shares = any(np.may_share_memory(result, a) for a in inputs)
    return result.copy() if shares else result


def explain_way(made: Compiled, step: Step) -> Iterator[str]:
    """Why a call is not one native plan, and what it costs, as lines of a report."""
    graph, summary = made.traced.graph, step.summary()
    if made.connection is not None:
        from weft.frontend.compile.on_cluster import BEGIN, cluster_keys

        client, keys = made.connection.client, cluster_keys(made.traced, made.connection)
        yield f"runs on the cluster of {client.master.target}"
        lines = client.explain(graph.name, graph, keys, pipeline_of(made), BEGIN).splitlines()
        yield from (f"  {line}" if line else line for line in lines)
    elif step.kind == "devices":
        why = "`wf.device` says so" if made.gpu is None else why_executor(graph, made.gpu)
        yield f"runs in parts on {' and '.join(summary.devices)}: {why}"
    elif step.kind == "dataflow":
        yield f"runs on the dataflow executor: {why_executor(graph)}"
        yield (
            f"  a call walks {summary.nodes} nodes: {summary.host_ops} ops of the host, which hold "
            f"the GIL, and {summary.regions} native regions"
        )
        yield "  without such ops it would be one native call"
    for i in made.donated:
        held = "holds a result" if i in step.taken else "goes back"
        yield f"  the memory of the donated argument '{graph.arg_names[i]}' {held} when it ends"


def not_native(what: str, graph: Graph, gpu: int | None) -> UnsupportedError:
    """The error for a question that only one native plan answers. gpu: as of `why_executor`."""
    return UnsupportedError(
        f".{what}() tells of a function that is one native plan; of this one "
        f"{why_executor(graph, gpu)}",
        hint=".explain() shows its nodes and regions",
        location=caller_location(),
    )
