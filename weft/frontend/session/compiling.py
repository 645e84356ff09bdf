"""Compiling of steps: from fetches and feeds to a `Step`, by one of the ways to run it.

A step that names a GPU of this process gets one plan for it, or a part for each device.
`fetched_step` is the step of a saved `wf.Graph` that a session runs for some fetches (`weft compile
--fetch`)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.frontend.compile.specializations import Specialization
from weft.frontend.core.slow import note_unfused
from weft.frontend.core.tensor import Array
from weft.frontend.session.cpu_devices import compile_on_cpus, other_cpu
from weft.frontend.session.fetches import fetch_values, is_tensor
from weft.frontend.session.graph import Graph
from weft.frontend.session.graph_import import add_graph, near
from weft.frontend.session.step import step_program
from weft.ir.dims import SymbolicDim, substitute_dim
from weft.ir.errors import (
    NotFoundError,
    UnsupportedError,
)
from weft.ir.graph import Graph as IRGraph
from weft.ir.graph import Value
from weft.ir.locations import caller_location
from weft.ir.program import Program
from weft.ir.types import TensorType
from weft.passes.manager import QUIET, PassOptions, PassReport
from weft.passes.sizes import needed_ops
from weft.runtime.compile_step import CompileOptions, choose, compile_step
from weft.runtime.device.backends.local import on_local_device
from weft.runtime.local_devices import GpuUse, compile_gpu_step, gpu_use
from weft.runtime.resources.variables import VariableState
from weft.runtime.step import Step

if TYPE_CHECKING:
    from weft.frontend.compile.inner_values import InnerValue
    from weft.runtime.record.traced_step import TracedStep


class StepDefinition(Specialization):
    """One step definition: what is fetched and fed, in which shapes, compiled. ops: how many of the
    graph's it holds; seconds: how long compiling took. values, feeds: what is fetched and fed, of
    `graph`; gpu: its use of a GPU (of steps in this process); done: what an earlier part of the
    step has done."""

    __slots__ = (
        "done", "executable", "feeds", "gpu", "graph", "ops", "seconds", "traced", "values",
    )  # fmt: skip

    def __init__(
        self,
        executable: Step,
        ops: int,
        seconds: float,
        graph: Graph | None = None,
        values: Sequence[Value | None] = (),
        feeds: Iterable[Value] = (),
        gpu: GpuUse | None = None,
        done: frozenset[Value] = frozenset(),
    ) -> None:
        super().__init__()
        self.executable, self.ops, self.seconds = executable, ops, seconds
        self.graph, self.values, self.feeds = graph, tuple(values), tuple(feeds)
        self.gpu, self.done = gpu, done
        self.traced: TracedStep | None = None  # as its watchers see it, if there are any


def pruned(
    graph: Graph,
    values: Sequence[Value | None],
    feeds: Mapping[Value, Array],
    done: frozenset[Value] = frozenset(),
    *,
    sized: bool = True,
    options: PassOptions = QUIET,
) -> IRGraph:
    """The part of the graph that `values` need, with the sizes of the feeds, or for any. options:
    of the passes; nothing is dumped unless they say so. Errors as `step_program`."""
    fetched, shapes = tensors_and_effects(values), [(v, a.shape) for v, a in feeds.items()]
    return step_program(graph._trace, *fetched, shapes, done, sized=sized, options=options)[0]


def tensors_and_effects(values: Sequence[Value | None]) -> tuple[list[Value], list[Value]]:
    """What is fetched, apart."""
    given = [v for v in values if v is not None]
    return [v for v in given if is_tensor(v)], [v for v in given if not is_tensor(v)]


def step_reports(
    graph: Graph, values: Sequence[Value | None], feeds: Mapping[Value, Array], made: Step
) -> list[PassReport]:
    """What each pass does from the whole graph to the plan of `made`, or to its parts."""
    fetched, shapes = tensors_and_effects(values), [(v, a.shape) for v, a in feeds.items()]
    reports = step_program(graph._trace, *fetched, shapes, options=QUIET)[1]
    return [*reports, *(r for r in made.passes() if r.name != "traced")]


def step_values(
    graph: Graph, values: Sequence[Value | None], feeds: Mapping[Value, Array], made: Step | None,
    after: str, where: Any, states: Mapping[str, VariableState],
) -> list[InnerValue]:  # fmt: skip
    """The inner values of a step, of its program after a pass. made: the step, unless that is
    "traced". states: of the graph's variables."""
    # who only runs steps does not wait for these modules
    from weft.frontend.compile.explain import program_after
    from weft.frontend.compile.inner_values import inner_values

    program = Program.of(pruned(graph, values, feeds))
    if made is not None:
        program = program_after(step_reports(graph, values, feeds, made), after)
    return inner_values("session.values", program, [*feeds.values()], states, where)


def no_values_there() -> UnsupportedError:
    """The error for inner values of a session on a cluster."""
    return UnsupportedError(
        "session.values: the variables of this session are on other tasks",
        hint="fetch the values, or run the graph in a session of one process",
        location=caller_location(),
    )


def compile_definition(
    graph: Graph,
    values: Sequence[Value | None],
    feeds: Mapping[Value, Array],
    done: frozenset[Value],
    how: CompileOptions,
    states: Mapping[str, VariableState],
    *,
    soft: bool = False,
    cpus: int = 1,
) -> StepDefinition:
    """The compiled step. states: of the graph's variables. soft: whether placing may be soft. cpus:
    how many CPU devices the session has. UnsupportedError where control_flow="native" cannot hold
    it."""
    begun = time.perf_counter()
    options = PassOptions.from_environment().for_step(graph.name)
    how = replace(how, passing=options)
    step = pruned(graph, values, feeds, done, options=options)
    note_unfused(step)
    gpu = gpu_use(step, how.control_flow)
    other = other_cpu(step) if cpus > 1 else None
    made: Step
    if other is not None:
        made = compile_on_cpus(step, other, cpus, gpu, states, graph.resources, how, soft)
    elif gpu is not None:
        made = compile_gpu_step(step, gpu, states, graph.resources, how, soft)
    else:
        step = on_local_device(step)
        if how.control_flow == "native":
            _check_native(step)
        made = compile_step(step, states, graph.resources, how)
    seconds = time.perf_counter() - begun
    return StepDefinition(made, len(step.ops), seconds, graph, values, feeds, gpu, done)


def _check_native(step: IRGraph) -> None:
    """UnsupportedError for a step that needs the dataflow executor."""
    choice = choose(step, "native")
    if choice.executor:
        raise UnsupportedError(
            choice.why,
            hint="make the session with control_flow='auto'",
            location=choice.forced.locations if choice.forced is not None else (),
        )


NAMES = (
    "placeholders and effects (of minimize, of initializers) have names; wf.name_tensor(x, name) "
    "names another tensor"
)


def fetched_step(
    graph: IRGraph, names: Sequence[str], sizes: Callable[[Sequence[str]], Mapping[str, int]]
) -> IRGraph:
    """The step that `Session.run(names)` makes of a graph that `wf.Graph.save` wrote, with all
    placeholders fed whose sizes are known; it names no device any more.

    sizes: the sizes of the symbols, of which those that it is called with are needed. NotFoundError
    for a name that is none, UnsupportedError for a step that has parts on several devices, and as a
    session has them.
    """
    made = Graph(graph.name)
    add_graph(made, graph)
    known = [*made._named, *made._effects]
    for name in names:
        if name.removesuffix(":0") not in made._named and name not in made._effects:
            raise NotFoundError(
                f"--fetch {name}: nothing in the graph '{graph.name}' has this name"
                f"{near(name, known)}",
                hint=f"named are: {', '.join(known)}" if known else NAMES,
            )
    values, _ = fetch_values(made, list(names))
    step = pruned(made, values, _feeds(made, values, sizes))
    use = gpu_use(step, "auto")
    if use is not None and use.why:
        raise UnsupportedError(
            f"--fetch: the step has a part for each device: {use.why}",
            hint="WEFT_DUMP writes what each part runs: compile the graphs of those on GPUs",
            location=use.op.locations,
        )
    return on_local_device(step, None if use is None else use.number)


def _feeds(
    graph: Graph,
    values: Sequence[Value | None],
    sizes: Callable[[Sequence[str]], Mapping[str, int]],
) -> dict[Value, Array]:
    """Arrays of the sizes that are given, without memory, for the placeholders."""
    args = [a for a in graph._trace.builder.args if is_tensor(a)]
    wanted = [v for v in values if v is not None]
    _, met = needed_ops(graph._trace.builder.ops, wanted, args)
    needed = [s for a in args if a in met for s in _symbols(a)]
    known = sizes(list(dict.fromkeys(needed)))
    made: dict[Value, Array] = {}
    for arg in args:
        assert isinstance(arg.type, TensorType)
        shape = [n for d in arg.type.shape if isinstance(n := substitute_dim(d, known), int)]
        if len(shape) == arg.type.rank:
            made[arg] = np.broadcast_to(np.empty((), arg.type.dtype.numpy), shape)
    return made


def _symbols(arg: Value) -> list[str]:
    assert isinstance(arg.type, TensorType)
    dims = [d for d in arg.type.shape if isinstance(d, SymbolicDim)]
    return [s for d in dims for s in sorted(d.symbols)]
