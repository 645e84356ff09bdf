"""`ProfilerHook`: traces some of the steps of a training program into files for Perfetto."""

from __future__ import annotations

from pathlib import Path

from weft.frontend.ops.arguments import check_int
from weft.frontend.session.graph import get_default_graph
from weft.frontend.session.metadata import RunMetadata, chrome_trace
from weft.frontend.session.options import RunOptions
from weft.frontend.session.session import Session
from weft.frontend.train.monitored.basic_hooks import SecondOrStepTimer, log
from weft.frontend.train.monitored.hooks import (
    SessionRunArgs,
    SessionRunContext,
    SessionRunHook,
    SessionRunValues,
)
from weft.frontend.train.saver_files import PathLike, as_path
from weft.frontend.train.step_counter import needed_global_step
from weft.frontend.variable import Variable
from weft.ir.errors import InvalidArgumentError
from weft.ir.locations import caller_location
from weft.runtime.resources.coordinator import Coordinator


class ProfilerHook(SessionRunHook):
    """Every so many steps or seconds traces `steps` steps, which follow each other, and writes them
    to `<output_dir>/timeline-<global step>.json` (`wf.chrome_trace`).

    The first are those after the session's first step, in which things are compiled.
    """

    def __init__(
        self,
        save_steps: int | None = None,
        save_secs: float | None = None,
        output_dir: PathLike = "",
        *,
        steps: int = 1,
    ) -> None:
        self._timer = SecondOrStepTimer(save_secs, save_steps, "ProfilerHook")
        self._folder = Path(as_path(output_dir))
        self._count = check_int("ProfilerHook", steps, "steps")
        if self._count < 1:
            raise InvalidArgumentError(
                f"ProfilerHook: steps={steps}, at least 1 is needed", location=caller_location()
            )
        self._step: Variable
        self._next: int | None = None  # the global step that comes, once one is known
        self._runs: list[RunMetadata] = []

    def begin(self) -> None:
        """Finds the global step."""
        self._step = needed_global_step("ProfilerHook", get_default_graph())

    def after_create_session(self, session: Session, coord: Coordinator) -> None:
        """A new session: what was traced of the old one is left out."""
        self._next, self._runs = None, []

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs:
        """Fetches the global step, and asks for a trace if it is due."""
        due = bool(self._runs)
        if not due and self._next is not None and self._timer.should_trigger_for_step(self._next):
            self._timer.update_last_triggered_step(self._next)
            due = True
        options = RunOptions(trace_level=RunOptions.FULL_TRACE) if due else None
        return SessionRunArgs(self._step, options=options)

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        """Writes, when there are enough."""
        self._next = int(run_values.results) + 1
        metadata, options = run_values.run_metadata, run_values.options
        if metadata is None or options is None or not options.traces:
            return
        self._runs.append(metadata)
        if len(self._runs) == self._count:
            self._write(int(run_values.results))

    def end(self, session: Session) -> None:
        """Writes what there is."""
        if self._runs and self._next is not None:
            self._write(self._next - 1)

    def _write(self, step: int) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"timeline-{step}.json"
        path.write_text(chrome_trace(self._runs), encoding="utf-8")
        log.info("%d steps traced: %s", len(self._runs), path)
        self._runs = []
