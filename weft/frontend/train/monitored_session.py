"""`MonitoredSession`: initialises or restores, runs steps with hooks, saves, stops its threads, and
begins anew from the last checkpoint when a task of its cluster is lost (TensorFlow 1's class).

User-level code over sessions, `wf.train.Saver` and hooks; docs/guide/engines.md."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from weft.frontend.queues.runners import start_queue_runners
from weft.frontend.session.graph import Graph, get_default_graph
from weft.frontend.session.run import RunMetadata, RunOptions
from weft.frontend.session.session import Session
from weft.frontend.train.hooks import (
    CheckpointSaverHook,
    SessionRunArgs,
    SessionRunContext,
    SessionRunHook,
    SessionRunValues,
    StepCounterHook,
    SummarySaverHook,
    WritingHook,
)
from weft.frontend.train.saver import PathLike
from weft.frontend.train.scaffold import (
    LOST,
    Checkpoints,
    Engine,
    Scaffold,
    SessionCreator,
    close_quietly,
    global_step,
    needed_global_step,
)
from weft.ir.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    OutOfRangeError,
    TypeRuleError,
    WeftError,
)
from weft.ir.locations import caller_location
from weft.ir.process import ForkLock
from weft.runtime.resources.coordinator import Coordinator, ExcInfo

if TYPE_CHECKING:
    from weft.runtime.cluster.spec import Cluster

log = logging.getLogger("weft.train")

Feeds = Mapping[Any, Any] | Callable[[int], Mapping[Any, Any]] | None
_LOST_GRACE = 5.0  # seconds for threads whose steps are cancelled
_MOST_RECOVERIES = 10  # in one call of `run`: a program that fails each time ends


class _Threads(Coordinator):
    """The coordinator of a session's threads. If one of them finds a task lost, the session's steps
    end, and its queues stay open: the next session goes on with them."""

    def __init__(self, session: Session) -> None:
        super().__init__()
        self._session = session
        self._leaving = ForkLock()
        #: What the first of them has met.
        self.lost: Exception | None = None

    def request_stop(self, ex: BaseException | ExcInfo | None = None) -> None:
        """As `Coordinator.request_stop`."""
        if isinstance(ex, LOST):
            self.lost = self.lost or ex  # before the session's other steps end with less to say
            self.leave()
        super().request_stop(ex)

    def leave(self) -> None:
        """Close the session, and leave the queues open. Whichever thread is first does it."""
        with self._leaving:
            if self.closes_queues:
                self.closes_queues = False
                close_quietly(self._session)


class _Live:
    """A session in use, and the threads that fill its queues."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.coordinator = _Threads(session)
        self.ready = False

    def start(self, hooks: Iterable[SessionRunHook]) -> None:
        """Start the threads and tell the hooks, once."""
        if self.ready:
            return
        threads = start_queue_runners(self.session, self.coordinator)
        if not threads and self.session.graph.queue_runners:
            raise FailedPreconditionError(
                "the threads of the graph's queue runners belong to an earlier session, and "
                "have not ended"
            )
        for hook in hooks:
            hook.after_create_session(self.session, self.coordinator)
        self.ready = True

    def end(self, grace: float, failed: bool) -> None:
        """Stop the threads and close the session; raises what a thread has failed with, unless the
        program has failed itself."""
        self.coordinator.request_stop()
        try:
            self.coordinator.join(stop_grace_period_secs=grace, ignore_live_threads=True)
        except Exception as error:
            if not failed:
                raise
            log.info("a thread of a session that has ended: %s", error)
        finally:
            if self.coordinator.closes_queues:
                close_quietly(self.session)

    def leave(self) -> None:
        """Close the session, of which tasks are lost; its threads end with that."""
        self.coordinator.leave()
        self.end(_LOST_GRACE, failed=True)


class MonitoredSession:
    """A session that is ready when it is made, calls hooks around each step and, when a task is
    lost, makes a new one and does the step again.

    Make it with `wf.train.MonitoredTrainingSession`. The graph is finalized. As a context manager
    it closes at the end; the end of the input (OutOfRangeError, StopIteration) leaves the block
    without an error. One thread calls `run`.

    >>> with wf.Graph().as_default() as graph:
    ...     v = wf.Variable([1.0, 2.0])  # no initializer is to be run
    ...     with wf.train.MonitoredTrainingSession() as session:
    ...         print(type(session).__name__, session.run(v), graph.finalized)
    MonitoredSession [1. 2.] True
    """

    def __init__(
        self,
        creator: SessionCreator,
        hooks: Iterable[SessionRunHook] = (),
        stop_grace_period_secs: float = 120.0,
    ) -> None:
        self._creator = creator
        self._hooks = list(hooks)
        self._grace = stop_grace_period_secs
        self._stopped = False
        self._closed = False
        #: How often a lost session was replaced.
        self.recoveries = 0
        for hook in self._hooks:
            if not isinstance(hook, SessionRunHook):
                raise TypeRuleError(
                    f"a hook is a wf.train.SessionRunHook, got a {type(hook).__name__}",
                    location=caller_location(),
                )
        self._live: _Live | None = None
        try:
            self._begin()
            self._recovering(lambda live: None)
        except BaseException:
            self._close_writers(failed=True)
            raise

    def _begin(self) -> None:
        """Call the hooks' `begin`, and finish the graph."""
        creator = self._creator
        with creator.graph.as_default():
            for hook in self._hooks:
                if isinstance(hook, CheckpointSaverHook):
                    hook.adopt(creator.scaffold)
                hook.begin()
        creator.scaffold.finalize(creator.graph, creator.remote, _saves(creator, self._hooks))
        creator.graph.finalize()

    @property
    def graph(self) -> Graph:
        """The graph that it runs."""
        return self._creator.graph

    @property
    def session(self) -> Session:
        """The session in use; after a recovery another one."""
        found: Session = self._recovering(lambda live: live.session)
        return found

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        clean = kind is not None and issubclass(kind, (OutOfRangeError, StopIteration))
        self._close(None if clean else error)
        return clean

    def run(
        self,
        fetches: Any,
        feed_dict: Feeds = None,
        options: RunOptions | None = None,
        run_metadata: RunMetadata | None = None,
    ) -> Any:
        """As `wf.Session.run`, with the hooks. feed_dict: values, or a function from the global
        step to them, which a step that is done again after a recovery asks again. Raises what the
        step raises; an error of a lost task after `recovery_wait_secs` without a new session."""
        return self._recovering(
            lambda live: self._step(live, fetches, feed_dict, options, run_metadata)
        )

    def should_stop(self) -> bool:
        """Whether a hook or a thread has asked for a stop; True after `close`."""
        if self._closed or self._stopped:
            return True
        live = self._live
        if live is None or not live.coordinator.should_stop():
            return False
        lost = live.coordinator.lost
        if lost is not None:  # a thread's step has met it first
            self._drop(lost)
        return lost is None  # `close` raises what else a thread has failed with

    def close(self) -> None:
        """Call the hooks' `end`, stop the threads, close the session; raises what a thread has
        failed with."""
        self._close(None)

    # ---------------------------------------------------------------------------------- one step
    def _step(
        self,
        live: _Live,
        fetches: Any,
        feed_dict: Feeds,
        options: RunOptions | None,
        metadata: RunMetadata | None,
    ) -> Any:
        session = live.session
        if callable(feed_dict):
            step = needed_global_step("feed_dict is a function", self.graph)
            feed_dict = feed_dict(global_step(session, step))
        asked = SessionRunArgs(fetches, {} if feed_dict is None else feed_dict, options)
        context = SessionRunContext(asked, session)
        given = [hook.before_run(context) for hook in self._hooks]
        extra = [args for args in given if args is not None]
        feeds, options = _merged([asked, *extra])
        wanted = [args.fetches for args in extra if args.fetches is not None]
        if metadata is None and options is not None and options.traces:
            metadata = RunMetadata()  # for the hook that has asked for it
        values = session.run([fetches, *wanted], feeds, options, metadata)
        results = iter(values[1:])
        for hook, args in zip(self._hooks, given, strict=True):
            own = next(results) if args is not None and args.fetches is not None else None
            hook.after_run(context, SessionRunValues(own, options, metadata))
        self._stopped = self._stopped or context.stop_requested
        return values[0]

    def _recovering(self, act: Callable[[_Live], Any]) -> Any:
        """`act` on the session in use; on a new one as long as that one is lost."""
        if self._closed:
            raise FailedPreconditionError("this session is closed", location=caller_location())
        recoveries = 0
        while True:
            # what `create` raises is final: it has tried again for long enough
            live = self._live = self._live or _Live(self._creator.create())
            try:
                live.start(self._hooks)
                return act(live)
            except Exception as error:
                cause = self._cause(error)
                lost = self._creator.is_lost(cause, live.session)
                if recoveries == _MOST_RECOVERIES or not lost:
                    raise
                recoveries += 1
                self._drop(cause)
            finally:
                if self._live is live and not live.ready:  # it is not to be used
                    self._live = None
                    live.leave()

    def _cause(self, error: Exception) -> Exception:
        """What a thread of the session has met first says more than what the step then met."""
        lost = None if self._live is None else self._live.coordinator.lost
        return lost or error

    def _drop(self, error: BaseException) -> None:
        live, self._live = self._live, None
        log.warning("the session is lost, the last checkpoint is taken: %s", error)
        self.recoveries += 1
        if live is not None:
            live.leave()

    def _close_writers(self, failed: bool) -> None:
        """Close those of all hooks; raises what writing has failed with, unless the program has
        failed itself."""
        try:
            with ExitStack() as closing:
                for hook in self._hooks:
                    if isinstance(hook, WritingHook):
                        closing.callback(hook.close_writer)
        except WeftError as error:
            if not failed:
                raise
            log.warning("a writer of a session that has ended: %s", error)

    def _close(self, error: BaseException | None) -> None:
        if self._closed:
            return
        live = self._live
        try:
            if live is not None and error is None:
                for hook in self._hooks:
                    hook.end(live.session)
        except BaseException as raised:
            error = raised
            raise
        finally:
            self._closed, self._live = True, None
            try:
                self._close_writers(failed=error is not None)
            finally:
                if live is not None and isinstance(error, LOST):
                    live.leave()
                elif live is not None:
                    live.end(self._grace, failed=error is not None)


def MonitoredTrainingSession(  # a function with TensorFlow 1's name
    master: str | Cluster | Engine = "",
    is_chief: bool = True,
    checkpoint_dir: PathLike | None = None,
    scaffold: Scaffold | None = None,
    hooks: Iterable[SessionRunHook] = (),
    chief_only_hooks: Iterable[SessionRunHook] = (),
    save_checkpoint_secs: float | None = None,
    *,
    save_checkpoint_steps: int | None = None,
    stop_grace_period_secs: float = 120.0,
    save_summaries_steps: int | None = 100,
    save_summaries_secs: float | None = None,
    summary_dir: PathLike | None = None,
    log_step_count_steps: int | None = 100,
    max_wait_secs: float = 7200.0,
    recovery_wait_secs: float = 120.0,
    session_options: Mapping[str, Any] | None = None,
) -> MonitoredSession:
    """A session for training the graph that is being built, which it finalizes.

    master: the target of `wf.Session`, a `wf.train.Cluster` or `RayCluster`. The chief restores the
    latest checkpoint of `checkpoint_dir`, or runs the initializer, and saves every
    `save_checkpoint_steps` or `save_checkpoint_secs` (600 without either; 0: never), at the start
    and at the end. If the graph has summaries (`wf.summary`), the chief writes them, and steps per
    second, for TensorBoard to `summary_dir` (by default that of checkpoints), every
    `save_summaries_steps` or `save_summaries_secs` (0 or None: never). The others wait up to
    `max_wait_secs` until variables have values. When a task is lost (UnavailableError,
    AbortedError; on other tasks also variables that have lost their values), a new session is made
    from the last checkpoint and the step done again; UnavailableError if that is not possible
    within `recovery_wait_secs`. hooks: `wf.train.SessionRunHook`s. session_options: further
    arguments of `wf.Session`.

    >>> with wf.Graph().as_default():
    ...     w, step = wf.Variable(1.0, name="w"), wf.train.get_or_create_global_step()
    ...     train = wf.train.SGD(0.25).minimize(w**2, global_step=step)
    ...     stop = wf.train.StopAtStepHook(last_step=3)
    ...     with wf.train.MonitoredTrainingSession(checkpoint_dir="run", hooks=[stop]) as session:
    ...         while not session.should_stop():
    ...             session.run(train)
    >>> wf.train.latest_checkpoint("run"), float(wf.train.load_variable("run", "w"))
    ('run/model-3.safetensors', 0.125)
    """
    graph, scaffold = get_default_graph(), scaffold or Scaffold()
    all_hooks, checkpoints = list(hooks), None
    if is_chief:
        if checkpoint_dir is not None:
            checkpoints = Checkpoints(checkpoint_dir, scaffold)
            all_hooks += _saver_hook(
                checkpoint_dir, scaffold, save_checkpoint_secs, save_checkpoint_steps
            )
        folder = checkpoint_dir if summary_dir is None else summary_dir
        every = save_summaries_secs, save_summaries_steps, log_step_count_steps
        all_hooks += [*_showing_hooks(graph, folder, scaffold, *every), *chief_only_hooks]
    creator = SessionCreator(
        graph, scaffold, is_chief, master, checkpoints, max_wait_secs, recovery_wait_secs,
        session_options or {},
    )  # fmt: skip
    return MonitoredSession(creator, all_hooks, stop_grace_period_secs)


def _saver_hook(
    folder: PathLike, scaffold: Scaffold, seconds: float | None, steps: int | None
) -> list[SessionRunHook]:
    if seconds is None and steps is None:
        seconds = 600.0
    if not seconds and not steps:
        return []
    return [CheckpointSaverHook(folder, seconds or None, steps or None, scaffold)]


def _showing_hooks(
    graph: Graph, folder: PathLike | None, scaffold: Scaffold, seconds: float | None,
    steps: int | None, rate_steps: int | None,
) -> list[SessionRunHook]:  # fmt: skip
    """What writes the summaries, if there are any, and what counts steps; none without a folder."""
    if folder is None:
        return []
    made: list[SessionRunHook] = []
    has_summaries = bool(graph.summaries) or scaffold.summary_op is not None
    if has_summaries and (steps or seconds):
        steps = None if seconds else steps
        made.append(SummarySaverHook(steps, seconds or None, folder, scaffold=scaffold))
    if rate_steps:
        made.append(StepCounterHook(rate_steps, output_dir=folder if made else None))
    return made


def _saves(creator: SessionCreator, hooks: Iterable[SessionRunHook]) -> bool:
    return creator.checkpoints is not None or any(
        isinstance(hook, CheckpointSaverHook) for hook in hooks
    )


def _merged(parts: list[SessionRunArgs]) -> tuple[dict[Any, Any], RunOptions | None]:
    """The feeds and options of a caller and of hooks: a trace if one wants it, the longest of the
    time limits that they give. InvalidArgumentError for two feeds of one."""
    feeds: dict[Any, Any] = {}
    for args in parts:
        for key, value in args.feed_dict.items():
            if key in feeds:
                raise InvalidArgumentError(
                    f"a hook feeds what is fed already: {key!r:.100}", location=caller_location()
                )
            feeds[key] = value
    options = [args.options for args in parts if args.options is not None]
    if not options:
        return feeds, None
    limits = [one.timeout for one in options if one.timeout is not None]
    level = max(one.trace_level for one in options)
    return feeds, RunOptions(timeout=max(limits, default=None), trace_level=level)
