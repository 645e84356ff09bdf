"""Hooks: calls around each step of a monitored session (TensorFlow 1's `SessionRunHook`), and those
that training programs use: save, stop, log, count, refuse NaN, write for TensorBoard, trace into
files for Perfetto."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

import numpy as np

from weft.frontend.core.tensor import Tensor
from weft.frontend.ops.promotion import check_int
from weft.frontend.session.graph import get_default_graph
from weft.frontend.session.run import RunMetadata, RunOptions, chrome_trace
from weft.frontend.session.session import Session
from weft.frontend.state.variable import Variable
from weft.frontend.summary.writer import FileWriter, release_writer, shared_writer
from weft.frontend.train.saver import PathLike, as_path
from weft.frontend.train.scaffold import Checkpoints, Scaffold, global_step, needed_global_step
from weft.ir.dataclass import dataclass
from weft.ir.errors import FailedPreconditionError, InvalidArgumentError, WeftError
from weft.ir.locations import caller_location
from weft.runtime.files.paths import resolved
from weft.runtime.resources.coordinator import Coordinator


@dataclass(frozen=True)
class SessionRunArgs:
    """The fetches and feeds that a hook adds to a step.

    >>> class Feeding(wf.train.SessionRunHook):
    ...     def before_run(self, run_context):
    ...         return wf.train.SessionRunArgs(feed_dict={"rate": 0.5})
    >>> with wf.Graph().as_default():
    ...     halved = wf.placeholder(wf.float32, [], name="rate") * 10
    ...     with wf.train.MonitoredTrainingSession(hooks=[Feeding()]) as session:
    ...         print(session.run(halved))
    5.0
    """

    fetches: Any = None
    feed_dict: Mapping[Any, Any] = field(default_factory=dict)
    options: RunOptions | None = None


@dataclass(frozen=True)
class SessionRunValues:
    """The values of a step. results: of the hook's own fetches, nested alike.

    >>> class Watching(wf.train.SessionRunHook):
    ...     def before_run(self, run_context):
    ...         return wf.train.SessionRunArgs({"x": "x"})
    ...     def after_run(self, run_context, run_values):
    ...         print(run_values)
    >>> with wf.Graph().as_default():
    ...     x = wf.placeholder(wf.int64, [], name="x")
    ...     with wf.train.MonitoredTrainingSession(hooks=[Watching()]) as session:
    ...         _ = session.run(x, {x: 3})
    SessionRunValues(results={'x': np.int64(3)}, options=None, run_metadata=None)
    """

    results: Any
    options: RunOptions | None
    run_metadata: RunMetadata | None


class SessionRunContext:
    """One step: what was asked for, and whether it is to be the last.

    >>> class OneStep(wf.train.SessionRunHook):
    ...     def after_run(self, run_context, run_values):
    ...         run_context.request_stop()
    >>> with wf.Graph().as_default():
    ...     count = wf.Variable(0).assign_add(1)
    ...     with wf.train.MonitoredTrainingSession(hooks=[OneStep()]) as session:
    ...         while not session.should_stop():
    ...             print(session.run(count))
    1
    """

    def __init__(self, original_args: SessionRunArgs, session: Session) -> None:
        self._original_args = original_args
        self._session = session
        self._stop_requested = False

    @property
    def original_args(self) -> SessionRunArgs:
        """The caller's fetches and feeds."""
        return self._original_args

    @property
    def session(self) -> Session:
        """The session, for further steps."""
        return self._session

    @property
    def stop_requested(self) -> bool:
        """Whether `request_stop` was called."""
        return self._stop_requested

    def request_stop(self) -> None:
        """Let this be the last step: `should_stop()` is True after it."""
        self._stop_requested = True


class SessionRunHook:
    """A base class; each method may be overridden.

    After a recovery `after_create_session` is called again, for the new session; a step that was
    lost has had its `before_run`, but no `after_run`.

    >>> class Watching(wf.train.SessionRunHook):
    ...     def before_run(self, run_context):
    ...         return wf.train.SessionRunArgs("watched")  # fetched besides
    ...     def after_run(self, run_context, run_values):
    ...         print("watched:", run_values.results)
    >>> with wf.Graph().as_default():
    ...     x = wf.placeholder(wf.float32, [])
    ...     doubled, y = wf.name_tensor(x * 2, "watched"), x + 1
    ...     with wf.train.MonitoredTrainingSession(hooks=[Watching()]) as session:
    ...         print("y:", session.run(y, {x: 5.0}))
    watched: 10.0
    y: 6.0
    """

    def begin(self) -> None:
        """Called once, while ops may still be added to the graph."""

    def after_create_session(self, session: Session, coord: Coordinator) -> None:
        """Called when a session is ready: variables have values."""

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs | None:
        """Called before each step; what it is to fetch and feed besides."""

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        """Called after each step that was done."""

    def end(self, session: Session) -> None:
        """Called at the end, if it is no exception."""


log = logging.getLogger("weft.train")


class NanLossDuringTrainingError(WeftError, RuntimeError):
    """The loss is NaN.

    >>> with wf.Graph().as_default():
    ...     x = wf.placeholder(wf.float32, [])
    ...     loss = wf.sqrt(x)
    ...     hook = wf.train.NanTensorHook(loss)
    ...     with wf.train.MonitoredTrainingSession(hooks=[hook]) as session:
    ...         try:
    ...             session.run(loss, {x: -1.0})
    ...         except wf.train.NanLossDuringTrainingError:
    ...             print("a smaller learning rate?")
    a smaller learning rate?
    """


class SecondOrStepTimer:
    """Due every so many seconds or steps; exactly one of the two is given.

    >>> timer, due = wf.train.SecondOrStepTimer(every_steps=3), []
    >>> for step in range(8):
    ...     if timer.should_trigger_for_step(step):
    ...         due.append(step)
    ...         _ = timer.update_last_triggered_step(step)  # seconds and steps since the last time
    >>> due
    [0, 3, 6]
    """

    def __init__(
        self, every_secs: float | None = None, every_steps: int | None = None, what: str = "timer"
    ) -> None:
        if (every_secs is None) == (every_steps is None) or not (
            every_secs or every_steps or 0
        ) > 0:
            raise InvalidArgumentError(
                f"{what}: give every_secs or every_steps, greater than 0, and not both: "
                f"{every_secs!r}, {every_steps!r}",
                location=caller_location(),
            )
        self._seconds, self._steps = every_secs, every_steps
        self._last: tuple[int, float] | None = None

    def reset(self) -> None:
        """Be due at the next step."""
        self._last = None

    def should_trigger_for_step(self, step: int) -> bool:
        """Whether it is due. Never twice for one step."""
        if self._last is None:
            return True
        last, at = self._last
        if self._steps is not None:
            # < last: the program has gone back to a checkpoint
            return step >= last + self._steps or step < last
        return step != last and time.monotonic() >= at + (self._seconds or 0.0)

    def update_last_triggered_step(self, step: int) -> tuple[float, int] | tuple[None, None]:
        """Note that it was done; seconds and steps since the last time, None both if there is
        none."""
        now, before = time.monotonic(), self._last
        self._last = (step, now)
        return (None, None) if before is None else (now - before[1], step - before[0])


class CheckpointSaverHook(SessionRunHook):
    """Saves to `<checkpoint_dir>/<name>-<global step>` at the start, every so many steps or
    seconds, and at the end.

    scaffold: whose saver it uses; by default that of the session that it is a hook of.

    >>> with wf.Graph().as_default():
    ...     count = wf.train.create_global_step().assign_add(1)
    ...     hook = wf.train.CheckpointSaverHook("run", save_steps=2)
    ...     with wf.train.MonitoredTrainingSession(hooks=[hook]) as session:
    ...         for _ in range(5):
    ...             _ = session.run(count)
    >>> print(*wf.train.get_checkpoint_state("run").all_model_checkpoint_paths)
    run/model-0.safetensors run/model-2.safetensors run/model-4.safetensors run/model-5.safetensors
    """

    def __init__(
        self,
        checkpoint_dir: PathLike,
        save_secs: float | None = None,
        save_steps: int | None = None,
        scaffold: Scaffold | None = None,
        checkpoint_basename: str = "model",
    ) -> None:
        self._timer = SecondOrStepTimer(save_secs, save_steps, "CheckpointSaverHook")
        self._where = (checkpoint_dir, checkpoint_basename)
        self._checkpoints: Checkpoints
        self._own = scaffold is not None
        if scaffold is not None:
            self._checkpoints = Checkpoints(checkpoint_dir, scaffold, checkpoint_basename)
        self._step: Variable
        self._saved: int | None = None

    def adopt(self, scaffold: Scaffold) -> None:
        """Save what the session's scaffold saves, if no scaffold was given."""
        if not self._own:
            folder, name = self._where
            self._checkpoints = Checkpoints(folder, scaffold, name)

    def begin(self) -> None:
        """Finds the global step."""
        self._step = needed_global_step("CheckpointSaverHook", get_default_graph())

    def after_create_session(self, session: Session, coord: Coordinator) -> None:
        """Saves, so that there is something to begin anew from."""
        if self._saved != global_step(session, self._step):
            self._save(session)

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs:
        """Fetches the global step."""
        return SessionRunArgs(self._step)

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        """Saves, if it is due."""
        # what the step fetched is from before its update, or after it
        if self._timer.should_trigger_for_step(int(run_values.results) + 1):
            now = global_step(run_context.session, self._step)
            if self._timer.should_trigger_for_step(now):
                self._save(run_context.session)

    def end(self, session: Session) -> None:
        """Saves what was done since the last time."""
        if global_step(session, self._step) != self._saved:
            self._save(session)

    def _save(self, session: Session) -> None:
        self._saved = self._checkpoints.save(session, self._step)
        self._timer.update_last_triggered_step(self._saved)


class StopAtStepHook(SessionRunHook):
    """Stops when the global step is `last_step`, or `num_steps` after where it was at the start.

    >>> with wf.Graph().as_default():
    ...     count = wf.train.create_global_step().assign_add(1)
    ...     hook = wf.train.StopAtStepHook(num_steps=2)
    ...     with wf.train.MonitoredTrainingSession(hooks=[hook]) as session:
    ...         while not session.should_stop():
    ...             print(session.run(count))
    1
    2
    """

    def __init__(self, num_steps: int | None = None, last_step: int | None = None) -> None:
        if (num_steps is None) == (last_step is None):
            raise InvalidArgumentError(
                "StopAtStepHook: give num_steps or last_step, and not both",
                location=caller_location(),
            )
        self._more, self._last = num_steps, last_step
        self._step: Variable

    def begin(self) -> None:
        """Finds the global step."""
        self._step = needed_global_step("StopAtStepHook", get_default_graph())

    def after_create_session(self, session: Session, coord: Coordinator) -> None:
        """The first time: where `num_steps` end. Asks for a stop if they are done already."""
        now = global_step(session, self._step)
        if self._last is None and self._more is not None:
            self._last = now + self._more
        if self._last is not None and now >= self._last:
            coord.request_stop()

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs:
        """Fetches the global step."""
        return SessionRunArgs(self._step)

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        """Asks for a stop at the last step."""
        last = self._last
        if last is not None and int(run_values.results) + 1 >= last:
            if global_step(run_context.session, self._step) >= last:
                run_context.request_stop()


class WritingHook(SessionRunHook):
    """A hook that writes to TensorBoard: to a writer of the caller's, or to one of its own in a
    folder, which hooks of one folder share."""

    def __init__(self, output_dir: PathLike | None, summary_writer: FileWriter | None) -> None:
        self._folder = None if output_dir is None else resolved(as_path(output_dir))
        self._given = summary_writer
        self._writer: FileWriter | None = None

    def open_writer(self) -> None:
        """Open the writer."""
        if self._given is not None:
            self._writer = self._given
        elif self._folder is not None and self._writer is None:
            self._writer = shared_writer(self._folder)

    def close_writer(self) -> None:
        """Close it, if it is no other hook's and none of the caller's; however the session ends."""
        writer, self._writer = self._writer, None
        if writer is not None and writer is not self._given:
            release_writer(writer)


class SummarySaverHook(WritingHook):
    """Writes summaries for TensorBoard every so many steps or seconds, the first step's among them,
    under the global step; and the graph.

    output_dir: the folder of the event file, which is written by one writer for all hooks; or
    summary_writer: one that the caller closes. summary_op: a serialized summary, or a list of them;
    by default all that the graph has when the session is made.

    >>> with wf.Graph().as_default():
    ...     step = wf.train.create_global_step()
    ...     _ = wf.summary.scalar("square", wf.astype(step, wf.float32) ** 2)
    ...     train = step.assign_add(1)
    ...     hook = wf.train.SummarySaverHook(save_steps=10, output_dir="run")
    ...     with wf.train.MonitoredTrainingSession(hooks=[hook]) as session:
    ...         for _ in range(30):
    ...             _ = session.run(train)
    """

    def __init__(
        self,
        save_steps: int | None = None,
        save_secs: float | None = None,
        output_dir: PathLike | None = None,
        summary_writer: FileWriter | None = None,
        scaffold: Scaffold | None = None,
        summary_op: Any = None,
    ) -> None:
        self._timer = SecondOrStepTimer(save_secs, save_steps, "SummarySaverHook")
        if (output_dir is None) == (summary_writer is None):
            raise InvalidArgumentError(
                "SummarySaverHook: give output_dir or summary_writer, and not both",
                location=caller_location(),
            )
        super().__init__(output_dir, summary_writer)
        self._op = summary_op if scaffold is None or summary_op is not None else scaffold.summary_op
        self._step: Variable
        self._next: int | None = None
        self._due = False

    def begin(self) -> None:
        """Finds the global step and the summaries. FailedPreconditionError without them."""
        self._step = needed_global_step("SummarySaverHook", get_default_graph())
        if self._op is None:  # no op that merges them: the graph may be finalized
            self._op = list(get_default_graph().summaries.values())
        if isinstance(self._op, (list, tuple)) and not self._op:
            raise FailedPreconditionError(
                "SummarySaverHook: the graph has no summaries",
                hint="wf.summary.scalar('loss', loss) makes one; or give summary_op=",
                location=caller_location(),
            )
        self.open_writer()

    def after_create_session(self, session: Session, coord: Coordinator) -> None:
        """Says where the run goes on, as after a recovery; writes the graph."""
        assert self._writer is not None
        self._next = global_step(session, self._step)
        self._writer.add_restart(self._next)
        if not self._writer.has_graph:
            self._writer.add_graph(session.graph)

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs:
        """Fetches the global step, and the summaries if they are due."""
        step = self._next
        self._due = step is not None and self._timer.should_trigger_for_step(step)
        return SessionRunArgs([self._step, self._op] if self._due else [self._step])

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        """Writes what was fetched."""
        step = int(run_values.results[0])
        if self._due and self._writer is not None:
            self._timer.update_last_triggered_step(step)
            made = run_values.results[1]
            merged = b"".join(made) if isinstance(made, (list, tuple)) else made
            self._writer.add_summary(merged, step)
        self._next = step + 1

    def end(self, session: Session) -> None:
        """Has all that was written be with the system."""
        if self._writer is not None:
            self._writer.flush()


class StepCounterHook(WritingHook):
    """Logs global steps per second to `weft.train`; with output_dir or summary_writer writes them
    for TensorBoard, too, as the scalar "global_step/sec".

    >>> import logging, sys
    >>> log, shown = logging.getLogger("weft.train"), logging.StreamHandler(sys.stdout)
    >>> log.addHandler(shown)
    >>> log.setLevel("INFO")  # or, for stderr, WEFT_LOG=train in the environment
    >>> with wf.Graph().as_default():
    ...     count = wf.train.create_global_step().assign_add(1)
    ...     with wf.train.MonitoredTrainingSession(hooks=[wf.train.StepCounterHook(2)]) as session:
    ...         for _ in range(3):
    ...             _ = session.run(count)
    step 3: ... steps/s
    >>> log.removeHandler(shown)
    >>> log.setLevel("NOTSET")
    """

    def __init__(
        self,
        every_n_steps: int | None = 100,
        every_n_secs: float | None = None,
        output_dir: PathLike | None = None,
        summary_writer: FileWriter | None = None,
    ) -> None:
        self._timer = SecondOrStepTimer(every_n_secs, every_n_steps, "StepCounterHook")
        super().__init__(output_dir, summary_writer)
        self._step: Variable

    def begin(self) -> None:
        """Finds the global step."""
        self._step = needed_global_step("StepCounterHook", get_default_graph())
        self.open_writer()

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs:
        """Fetches the global step."""
        return SessionRunArgs(self._step)

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        """Logs, if it is due."""
        now = int(run_values.results) + 1
        if self._timer.should_trigger_for_step(now):
            since = self._timer.update_last_triggered_step(now)
            if since[0] and since[1]:
                log.info("step %d: %.4g steps/s", now, since[1] / since[0])
                if self._writer is not None:
                    self._writer.scalar("global_step/sec", since[1] / since[0], now)


class LoggingTensorHook(SessionRunHook):
    """Logs tensors to `weft.train`, every so many steps of this session or seconds, and at the end
    if asked.

    tensors: a list, or a dict with the names to log them under.

    >>> import logging, sys
    >>> log, shown = logging.getLogger("weft.train"), logging.StreamHandler(sys.stdout)
    >>> log.addHandler(shown)
    >>> log.setLevel("INFO")  # or, for stderr, WEFT_LOG=train in the environment
    >>> with wf.Graph().as_default():
    ...     x = wf.placeholder(wf.float32, [])
    ...     hook = wf.train.LoggingTensorHook({"loss": x**2}, every_n_iter=2)
    ...     with wf.train.MonitoredTrainingSession(hooks=[hook]) as session:
    ...         _ = [session.run(x, {x: value}) for value in (3.0, 2.0, 1.0)]
    loss = 9.0
    loss = 1.0
    >>> log.removeHandler(shown)
    >>> log.setLevel("NOTSET")
    """

    def __init__(
        self,
        tensors: Sequence[Any] | Mapping[str, Any],
        every_n_iter: int | None = None,
        every_n_secs: float | None = None,
        at_end: bool = False,
    ) -> None:
        if isinstance(tensors, Mapping):
            self._tensors = dict(tensors)
        else:
            self._tensors = {getattr(t, "name", None) or str(t): t for t in tensors}
        only_end = at_end and every_n_iter is None and every_n_secs is None
        what = "LoggingTensorHook"
        self._timer = None if only_end else SecondOrStepTimer(every_n_secs, every_n_iter, what)
        self._at_end = at_end
        self._count = 0
        self._due = False

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs | None:
        """Fetches the tensors, if they are to be logged."""
        self._due = self._timer is not None and self._timer.should_trigger_for_step(self._count)
        return SessionRunArgs(list(self._tensors.values())) if self._due else None

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        """Logs them."""
        if self._due and self._timer is not None:
            self._timer.update_last_triggered_step(self._count)
            self._log(run_values.results)
        self._count += 1

    def end(self, session: Session) -> None:
        """Logs the values at the end, if asked."""
        if self._at_end:
            self._log(session.run(list(self._tensors.values())))

    def _log(self, values: Sequence[Any]) -> None:
        pairs = zip(self._tensors, values, strict=True)
        log.info("%s", ", ".join(f"{name} = {value}" for name, value in pairs))


class NanTensorHook(SessionRunHook):
    """Stops, or raises NanLossDuringTrainingError, when the loss is NaN.

    >>> with wf.Graph().as_default():
    ...     x = wf.placeholder(wf.float32, [])
    ...     loss = wf.log(x)
    ...     with wf.train.MonitoredTrainingSession(hooks=[wf.train.NanTensorHook(loss)]) as session:
    ...         session.run(loss, {x: -1.0})
    Traceback (most recent call last):
    weft.frontend.train.hooks.NanLossDuringTrainingError: the loss is NaN...
    """

    def __init__(self, loss_tensor: Tensor | str, fail_on_nan_loss: bool = True) -> None:
        self._loss = loss_tensor
        self._fail = fail_on_nan_loss

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs:
        """Fetches the loss."""
        return SessionRunArgs(self._loss)

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        """Looks at it."""
        if np.isnan(run_values.results).any():
            if self._fail:
                raise NanLossDuringTrainingError("the loss is NaN", location=caller_location())
            log.warning("the loss is NaN; the training stops")
            run_context.request_stop()


class ProfilerHook(SessionRunHook):
    """Every so many steps or seconds traces `steps` steps, which follow each other, and writes them
    to `<output_dir>/timeline-<global step>.json` (`wf.chrome_trace`).

    The first are those after the session's first step, in which things are compiled.

    >>> import os
    >>> with wf.Graph().as_default():
    ...     count = wf.train.create_global_step().assign_add(1)
    ...     hook = wf.train.ProfilerHook(save_steps=100, output_dir="traces")
    ...     with wf.train.MonitoredTrainingSession(hooks=[hook]) as session:
    ...         for _ in range(3):
    ...             _ = session.run(count)
    >>> os.listdir("traces")
    ['timeline-1.json']
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
        self._folder = as_path(output_dir)
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
        path.write_bytes(chrome_trace(self._runs).encode())
        log.info("%d steps traced: %s", len(self._runs), path)
        self._runs = []
