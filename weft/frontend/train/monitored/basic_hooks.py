"""The hooks that training programs use: save, stop, log, count, refuse NaN."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from weft.frontend.session.graph import get_default_graph
from weft.frontend.session.session import Session
from weft.frontend.tensor import Tensor
from weft.frontend.train.monitored.checkpoints import Checkpoints
from weft.frontend.train.monitored.hooks import (
    SessionRunArgs,
    SessionRunContext,
    SessionRunHook,
    SessionRunValues,
)
from weft.frontend.train.monitored.scaffold import Scaffold
from weft.frontend.train.saver_files import PathLike
from weft.frontend.train.step_counter import global_step, needed_global_step
from weft.frontend.variable import Variable
from weft.ir.errors import InvalidArgumentError, WeftError
from weft.ir.locations import caller_location
from weft.runtime.resources.coordinator import Coordinator

log = logging.getLogger("weft.train")


class NanLossDuringTrainingError(WeftError, RuntimeError):
    """The loss is NaN."""


class SecondOrStepTimer:
    """Due every so many seconds or steps; exactly one of the two is given."""

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

    def update_last_triggered_step(self, step: int) -> tuple[float, int] | None:
        """Note that it was done; seconds and steps since the last time, None if there is none."""
        now, before = time.monotonic(), self._last
        self._last = (step, now)
        return None if before is None else (now - before[1], step - before[0])


class CheckpointSaverHook(SessionRunHook):
    """Saves to `<checkpoint_dir>/<name>-<global step>` at the start, every so many steps or
    seconds, and at the end.

    scaffold: whose saver it uses; by default that of the session that it is a hook of.
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
    """Stops when the global step is `last_step`, or `num_steps` after where it was at the start."""

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


class StepCounterHook(SessionRunHook):
    """Logs global steps per second to `weft.train`."""

    def __init__(self, every_n_steps: int | None = 100, every_n_secs: float | None = None) -> None:
        self._timer = SecondOrStepTimer(every_n_secs, every_n_steps, "StepCounterHook")
        self._step: Variable

    def begin(self) -> None:
        """Finds the global step."""
        self._step = needed_global_step("StepCounterHook", get_default_graph())

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs:
        """Fetches the global step."""
        return SessionRunArgs(self._step)

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        """Logs, if it is due."""
        now = int(run_values.results) + 1
        if self._timer.should_trigger_for_step(now):
            since = self._timer.update_last_triggered_step(now)
            if since is not None and since[0] > 0 and since[1] > 0:
                log.info("step %d: %.4g steps/s", now, since[1] / since[0])


class LoggingTensorHook(SessionRunHook):
    """Logs tensors to `weft.train`, every so many steps of this session or seconds, and at the end
    if asked.

    tensors: a list, or a dict with the names to log them under.
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
    """Stops, or raises NanLossDuringTrainingError, when the loss is NaN."""

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
