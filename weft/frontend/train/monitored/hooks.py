"""Hooks: what a monitored session calls around each step (TensorFlow 1's `SessionRunHook`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any

from weft.frontend.session.metadata import RunMetadata
from weft.frontend.session.options import RunOptions
from weft.frontend.session.session import Session
from weft.ir.dataclass import dataclass
from weft.runtime.resources.coordinator import Coordinator


@dataclass(frozen=True)
class SessionRunArgs:
    """What a hook has a step fetch and feed beside what the caller asks for."""

    fetches: Any = None
    feed_dict: Mapping[Any, Any] = field(default_factory=dict)
    options: RunOptions | None = None


@dataclass(frozen=True)
class SessionRunValues:
    """What a step gave. results: for the hook's own fetches, nested alike."""

    results: Any
    options: RunOptions | None
    run_metadata: RunMetadata | None


class SessionRunContext:
    """One step: what was asked for, and whether it is to be the last."""

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
