"""Calls of a compiled function that run through watchers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from weft.codegen.engines import engine
from weft.codegen.llvm.target import isa
from weft.ir.errors import WeftError
from weft.passes.control.program_order import program_order
from weft.passes.manager import Pass
from weft.passes.pipelines import PASSES, PIPELINES
from weft.runtime.local_devices import gpu_use
from weft.runtime.record.traced_step import TracedStep, Watcher, Way, run_watched
from weft.runtime.sized_step import Shapes
from weft.runtime.step import PLAIN, RunContext

if TYPE_CHECKING:
    from weft.frontend.compile.compiled import Compiled


def pipeline_name(passes: Sequence[Pass]) -> str:
    """The name of a pipeline, or those of its passes with commas; "" if one has none."""
    given = tuple(passes)
    named = next((name for name, known in PIPELINES.items() if known == given), "")
    names = {found: name for name, found in PASSES.items()}
    return named or (",".join(names[p] for p in given) if all(p in names for p in given) else "")


def watched_call(made: Compiled, watchers: Sequence[Watcher]) -> Callable[..., list[Any]]:
    """What runs a specialisation on arrays through watchers."""
    known: dict[Shapes, TracedStep] = {}  # the last one, from the first call on
    by_sizes = made.on_host and made.is_open

    def call(arrays: list[Any], context: RunContext = PLAIN) -> list[Any]:
        shapes = tuple([tuple(a.shape) for a in arrays]) if by_sizes else ()
        step = known.get(shapes)
        if step is None:
            step = traced_step(made, shapes)
            known.clear()
            known[shapes] = step
        run = partial(made.run_logged, donation=context.donation)
        return run_watched(watchers, step, run, arrays)

    return call


def traced_step(made: Compiled, shapes: Shapes) -> TracedStep:
    """A specialisation as its watchers see it. shapes: those that it is called with, where each set
    of sizes has a step of its own; else ()."""
    traced, pipeline = made.traced, pipeline_name(made.pipeline)
    graph, gpu, flow = traced.graph, made.gpu, "native"
    kind = "gpu" if made.on_gpu else "native"
    if made.on_host:
        step: Any = made.executable()
        if shapes:
            with suppress(WeftError):  # the call meets the error, too
                step, graph = step.at(shapes), step.maker.graph.at(shapes)
        kind, flow = step.kind, "auto"
        use = gpu_use(graph, flow, follow=False)
        gpu = use.number if gpu is None and use is not None else gpu
        gpu = None if kind == "dataflow" else gpu  # nothing in it was for the GPU
        placement = getattr(step, "placement", None)
        graph = program_order(graph) if placement is None else placement.graph
    with made.target():
        way = Way(kind, engine(), isa(), pipeline, flow, gpu, made.math_mode, made.threads)
    if made.connection is not None:
        # whoever has no cluster does not wait for this module
        from weft.frontend.compile.on_cluster import BEGIN, cluster_keys

        keys = cluster_keys(made.traced, made.connection)
        placed = made.connection.client.placed(graph, keys, pipeline, BEGIN)
        return TracedStep.of(placed, way, {}, remote=True)
    return TracedStep.of(graph, way, traced.variables, made.donated)
