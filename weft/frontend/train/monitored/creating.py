"""Making a session whose variables have values: the chief restores or initialises, the others wait
for it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import field
from typing import Any, Protocol

from weft.frontend.session.graph import Graph
from weft.frontend.session.session import Session
from weft.frontend.train.monitored.checkpoints import Checkpoints
from weft.frontend.train.monitored.scaffold import Scaffold
from weft.ir.dataclass import dataclass
from weft.ir.errors import (
    AbortedError,
    DeadlineExceededError,
    FailedPreconditionError,
    UnavailableError,
    WeftError,
)

log = logging.getLogger("weft.train")

#: What a task that is lost ends steps with.
LOST = (AbortedError, UnavailableError)
_FIRST_WAIT, _LONGEST_WAIT, _REPORT_EVERY = 0.05, 1.0, 10.0


class Engine(Protocol):
    """What starts tasks and starts them again, as `wf.train.RayCluster`: where they are now."""

    @property
    def target(self) -> str:
        """The task that a session is made on."""

    @property
    def session_options(self) -> Mapping[str, Any]:
        """Further arguments of `wf.Session`."""


@dataclass
class SessionCreator:
    """Makes sessions for a graph, one after the other.

    master: the target of `wf.Session`, or an engine; options: further arguments. checkpoints:
    restored from where there is one. max_wait_secs: how long one that is not the chief waits for
    variables to have values; recovery_wait_secs: how long tasks that do not answer are asked again.
    """

    graph: Graph
    scaffold: Scaffold
    is_chief: bool = True
    master: str | Engine = ""
    checkpoints: Checkpoints | None = None
    max_wait_secs: float = 7200.0
    recovery_wait_secs: float = 120.0
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def remote(self) -> bool:
        """Whether variables are on other tasks."""
        return self.master != ""

    def create(self) -> Session:
        """A session that is ready. UnavailableError or AbortedError if tasks do not answer within
        `recovery_wait_secs`, DeadlineExceededError if no chief initialises within `max_wait_secs`;
        any other error at once."""
        begun = reported = time.monotonic()
        waiting = _Waiting()
        while True:
            try:
                return self._create()
            except LOST as error:
                now = time.monotonic()
                if now - begun >= self.recovery_wait_secs:
                    raise
                if now - reported >= _REPORT_EVERY:
                    reported = now
                    log.warning("no session for %.0f s: %s", now - begun, error)
                waiting.wait()

    def is_lost(self, error: BaseException, session: Session) -> bool:
        """Whether the error of a step means that a task is gone, or has come back without its
        values."""
        if isinstance(error, LOST):
            return True
        if not (self.remote and isinstance(error, FailedPreconditionError)):
            return False
        try:
            return bool(self.scaffold.missing(session))
        except LOST:
            return True

    def _create(self) -> Session:
        master = self.master
        if isinstance(master, str):
            session = Session(master, self.graph, **self.options)
        else:  # where its tasks are now
            options = {**master.session_options, **self.options}
            session = Session(master.target, self.graph, **options)
        try:
            if self.is_chief:
                self._prepare(session)
            else:
                self._wait_until_ready(session)
        except BaseException:
            close_quietly(session)
            raise
        return session

    def _prepare(self, session: Session) -> None:
        scaffold = self.scaffold
        if self.checkpoints is None or not self.checkpoints.restore(session):
            if scaffold.init_op is not None:
                session.run(scaffold.init_op, scaffold.init_feed_dict)
            if scaffold.init_fn is not None:
                scaffold.init_fn(scaffold, session)
        self._initialize_local(session)
        missing = scaffold.missing(session)
        if missing:
            raise FailedPreconditionError(
                f"variables without a value after restoring or initialising: {', '.join(missing)}",
                hint="Scaffold(init_op=...) must initialise, and its saver restore, all of them",
            )

    def _wait_until_ready(self, session: Session) -> None:
        until = time.monotonic() + self.max_wait_secs
        waiting = _Waiting()
        while missing := self._not_ready(session):
            if time.monotonic() >= until:
                raise DeadlineExceededError(
                    f"the chief has not initialised {', '.join(missing)} within "
                    f"{self.max_wait_secs:g} s"
                )
            waiting.wait()

    def _not_ready(self, session: Session) -> list[str]:
        # local values may be computed from the chief's, which are not there yet
        with suppress(FailedPreconditionError):
            self._initialize_local(session)
        return self.scaffold.missing(session)

    def _initialize_local(self, session: Session) -> None:
        if self.scaffold.local_init_op is not None:
            session.run(self.scaffold.local_init_op)


class _Waiting:
    """Waits, longer each time."""

    def __init__(self, sleep: Callable[[float], None] = time.sleep) -> None:
        self._seconds, self._sleep = _FIRST_WAIT, sleep

    def wait(self) -> None:
        self._sleep(self._seconds)
        self._seconds = min(2 * self._seconds, _LONGEST_WAIT)


def close_quietly(session: Session) -> None:
    """Close a session of which tasks may be gone: the error that said so matters more."""
    try:
        session.close()
    except WeftError as error:
        log.info("closing a lost session: %s", error)
