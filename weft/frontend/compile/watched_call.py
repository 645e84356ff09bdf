"""Calls of a compiled function that run through watchers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from weft.codegen.engines import engine
from weft.codegen.llvm.target import isa
from weft.passes.manager import Pass
from weft.passes.pipelines import PASSES, PIPELINES
from weft.runtime.record.traced_step import TracedStep, Watcher, Way, run_watched

if TYPE_CHECKING:
    from weft.frontend.compile.compiled import Compiled


def pipeline_name(passes: Sequence[Pass]) -> str:
    """The name of a pipeline, or those of its passes with commas; "" if one has none."""
    given = tuple(passes)
    named = next((name for name, known in PIPELINES.items() if known == given), "")
    names = {found: name for name, found in PASSES.items()}
    return named or (",".join(names[p] for p in given) if all(p in names for p in given) else "")


def watched_call(made: Compiled, watchers: Sequence[Watcher]) -> Callable[[list[Any]], list[Any]]:
    """What runs a specialisation on arrays through watchers."""
    traced = made.traced
    kind = "gpu" if made.on_gpu else "native"
    with made.target():
        way = Way(
            kind, engine(), isa(), pipeline_name(made.pipeline), "native", made.gpu,
            made.math_mode, made.threads,
        )  # fmt: skip
    step = TracedStep.of(traced.graph, way, traced.variables, made.donated)
    return lambda arrays: run_watched(watchers, step, made.run_logged, arrays)
