"""Steps of sessions as their watchers see them (`frontend/compile/watchers.py`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from weft.codegen.engines import engine
from weft.codegen.llvm.target import isa
from weft.frontend.core.tensor import Array
from weft.frontend.session.compiling import StepDefinition, pruned
from weft.runtime.compile_step import CompileOptions
from weft.runtime.record.traced_step import TracedStep, Watcher, Way, run_watched
from weft.runtime.run_log import RunLog
from weft.runtime.step import RunContext

if TYPE_CHECKING:
    from weft.frontend.session.remote import Remote
    from weft.frontend.session.states import SessionStates


def traced_step(
    step: StepDefinition, arrays: Sequence[Array], how: CompileOptions, pipeline: str,
    remote: Remote | None, states: SessionStates,
) -> TracedStep:  # fmt: skip
    """A step of a session as it was traced; on a cluster as it was placed: each op says its task.
    arrays: what it is fed."""
    assert step.graph is not None
    feeds = dict(zip(step.feeds, arrays, strict=True))
    # on a cluster a step for any sizes has parts of its own, which do not know these
    is_open = remote is not None and step.executable.kind == "sized"
    traced = pruned(step.graph, step.values, feeds, step.done, sized=not is_open)
    gpu = None if step.gpu is None else step.gpu.number
    way = Way(
        step.executable.kind if remote is None else "cluster", engine(), isa(), pipeline,
        how.control_flow, gpu, how.math_mode, how.threads,
        how.deterministic, remote is not None and remote.bfloat16,
    )  # fmt: skip
    if remote is not None:
        # who has no cluster does not wait for this module
        from weft.frontend.session.remote import state_keys

        return TracedStep.of(
            remote.placed(traced, state_keys(step.graph), pipeline), way, {}, remote=True
        )
    placement = getattr(step.executable, "placement", None)
    if placement is not None:
        traced = placement.graph  # with a device for each op
    used = {str(op.attrs["name"]) for op in traced.walk() if op.name == "variable"}
    held = states.all().items()
    return TracedStep.of(traced, way, {n: state for n, state in held if n in used})


def run_step_watched(
    watchers: Sequence[Watcher], step: TracedStep, execute: Any, arrays: list[Array],
    context: RunContext,
) -> list[Any]:  # fmt: skip
    """One run through watchers. execute: takes arrays and a context."""

    def call(given: list[Any], log: RunLog | None) -> Any:
        if log is None:
            return execute(given, context)
        asked = RunContext(context.timeout, context.cancel, context.recorder, context.keep, log)
        return execute(given, asked)

    return run_watched(watchers, step, call, arrays)
