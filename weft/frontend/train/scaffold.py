"""Session start of a monitored session: `Scaffold`, the ops, the Saver and the counter of steps
("global_step") with which a graph's session begins, and `SessionCreator`, which makes one whose
variables have values.

The chief restores or initialises, the others wait for it. Saved and restored is by the Saver where
variables are in this process, by a ShardedSaver or the Saver's ops where they are on other
tasks."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from dataclasses import field
from typing import TYPE_CHECKING, Any, Protocol
from weakref import WeakKeyDictionary

import numpy as np

from weft.frontend.core.tensor import Tensor
from weft.frontend.core.trace import Effect, current_trace
from weft.frontend.queues.inputs import local_variables_initializer
from weft.frontend.session.graph import Graph, get_default_graph
from weft.frontend.session.session import Session
from weft.frontend.session.variables import global_variables_initializer
from weft.frontend.state.variable import FullName, Variable
from weft.frontend.train.saver import PathLike, SaveOps, Saver, as_path, latest_checkpoint
from weft.frontend.train.sharded_saver import ShardedSaver
from weft.ir.dataclass import dataclass
from weft.ir.errors import (
    AbortedError,
    AlreadyExistsError,
    DeadlineExceededError,
    FailedPreconditionError,
    TypeRuleError,
    UnavailableError,
    WeftError,
)
from weft.ir.locations import caller_location
from weft.runtime.checkpoint.format import SUFFIX

if TYPE_CHECKING:
    from weft.runtime.cluster.spec import Cluster


NAME = "global_step"


def get_global_step(graph: Graph | None = None) -> Variable | None:
    """The graph's variable "global_step" (the graph being built if None); None if there is none.

    TypeRuleError if that variable is no integer without axes.

    >>> with wf.Graph().as_default():
    ...     print(wf.train.get_global_step())
    ...     step = wf.train.create_global_step()
    ...     print(wf.train.get_global_step() is step)
    None
    True
    """
    found = next((v for v in _graph(graph).variables if v.name == NAME), None)
    if found is not None and not (found.dtype.is_integer and found.ndim == 0):
        raise TypeRuleError(
            f"the variable 'global_step' is {found.dtype.name}{list(found.shape)}, it must be an "
            "integer without axes",
            location=caller_location(),
        )
    return found


def create_global_step(graph: Graph | None = None) -> Variable:
    """Make it: int64, 0, not trainable. AlreadyExistsError if there is one.

    >>> with wf.Graph().as_default():
    ...     wf.train.create_global_step()
    <Variable 'global_step' i64[]: not initialised>
    """
    held = _graph(graph)
    if get_global_step(held) is not None:
        raise AlreadyExistsError(
            "the graph has a global step already",
            hint="wf.train.get_or_create_global_step",
            location=caller_location(),
        )
    building = current_trace() is held._trace
    with nullcontext() if building else held.as_default():
        return Variable(np.int64(0), trainable=False, name=FullName(NAME))


def get_or_create_global_step(graph: Graph | None = None) -> Variable:
    """The graph's global step, made if there is none. Pass it to `minimize(global_step=)`.

    >>> with wf.Graph().as_default(), wf.Session() as session:
    ...     w, step = wf.Variable(1.0), wf.train.get_or_create_global_step()
    ...     train = wf.train.SGD(0.1).minimize(w**2, global_step=step)
    ...     session.run(wf.global_variables_initializer())
    ...     for _ in range(3):
    ...         session.run(train)
    ...     print(session.run(step))
    3
    """
    held = _graph(graph)
    found = get_global_step(held)
    return create_global_step(held) if found is None else found


def global_step(sess: Session, global_step_tensor: Variable) -> int:
    """Its value now, an int.

    >>> with wf.Graph().as_default(), wf.Session() as session:
    ...     step = wf.train.create_global_step()
    ...     session.run(wf.global_variables_initializer())
    ...     _ = session.run(step.assign_add(7))
    ...     print(wf.train.global_step(session, step))
    7
    """
    value: Any = sess.run(global_step_tensor)
    return int(value)


def needed_global_step(what: str, graph: Graph) -> Variable:
    """The graph's global step. FailedPreconditionError if there is none."""
    found = get_global_step(graph)
    if found is None:
        raise FailedPreconditionError(
            f"{what}: the graph has no global step",
            hint="step = wf.train.get_or_create_global_step(); optimizer.minimize(loss, "
            "global_step=step)",
            location=caller_location(),
        )
    return found


def _graph(graph: Graph | None) -> Graph:
    return get_default_graph() if graph is None else graph


_earlier: WeakKeyDictionary[Graph, Scaffold] = WeakKeyDictionary()


class Scaffold:
    """The ops and the Saver with which a session begins. What is not given is made when the session
    is: an initializer of all variables, one of the local ones (counts of epochs), a Saver of all
    variables.

    init_op: run, with `init_feed_dict`, where there is no checkpoint; then `init_fn(scaffold,
    session)`. local_init_op: run in every new session. saver: what checkpoints hold; made if they
    are written, a `Saver`, or for a session on other tasks a `ShardedSaver`. A `Saver` given for
    such a session saves variables only, all by one task (`Saver.build`). summary_op: what
    `wf.train.SummarySaverHook` writes; by default all summaries of the graph.

    >>> with wf.Graph().as_default():
    ...     v, start = wf.Variable(0.0), wf.placeholder(wf.float32, [])
    ...     init = wf.group(v.assign(start))
    ...     scaffold = wf.train.Scaffold(init_op=init, init_feed_dict={start: 7})
    ...     with wf.train.MonitoredTrainingSession(scaffold=scaffold) as session:
    ...         print(session.run(v))
    7.0
    """

    def __init__(
        self,
        init_op: Effect | None = None,
        init_feed_dict: Mapping[Any, Any] | None = None,
        init_fn: Callable[[Scaffold, Session], object] | None = None,
        local_init_op: Effect | None = None,
        saver: Saver | ShardedSaver | None = None,
        summary_op: Any = None,
    ) -> None:
        self.init_op = init_op
        self.init_feed_dict = init_feed_dict
        self.init_fn = init_fn
        self.local_init_op = local_init_op
        self.saver = saver
        self.summary_op = summary_op
        self.save_ops: SaveOps | None = None
        #: Per variable a bool: whether it has a value.
        self.ready: dict[str, Tensor] = {}

    def finalize(self, graph: Graph, remote: bool, saves: bool) -> None:
        """Add to the graph what is missing; to one that is finalized, what a session before it has
        added. saves: whether checkpoints are read or written; remote: by ops."""
        earlier = _earlier.get(graph) if graph.finalized else None
        if earlier is not None:
            self._take(earlier)
        with graph.as_default():
            waited: list[Variable] = [*graph.variables, *graph.local_variables]
            if self.init_op is None:
                self.init_op = global_variables_initializer()
            if self.local_init_op is None and graph.local_variables:
                self.local_init_op = local_variables_initializer()
            if self.saver is None and graph.variables and saves:
                self.saver = ShardedSaver() if remote else Saver()
            if isinstance(self.saver, Saver) and saves and remote and self.save_ops is None:
                self.save_ops = self.saver.build()
            if not self.ready:
                self.ready = {v.name: v.is_initialized() for v in waited}
        _earlier[graph] = self

    def _take(self, earlier: Scaffold) -> None:
        self.init_op = self.init_op or earlier.init_op
        self.local_init_op = self.local_init_op or earlier.local_init_op
        if self.saver is None:
            self.saver, self.save_ops = earlier.saver, earlier.save_ops
        self.ready = self.ready or earlier.ready

    def missing(self, session: Session) -> list[str]:
        """The names of the variables that have no value."""
        found = session.run(list(self.ready.values())) if self.ready else []
        return [name for name, there in zip(self.ready, found, strict=True) if not there]


class Checkpoints:
    """The checkpoints `<folder>/<name>-<step>` of a scaffold's variables. The folder is one that
    all tasks see."""

    def __init__(self, folder: PathLike, scaffold: Scaffold, name: str = "model") -> None:
        self.folder = str(as_path(folder))
        self._scaffold = scaffold
        self._base = str(as_path(folder) / name)

    def save(self, session: Session, step: Variable) -> int:
        """Write one; the step that it has."""
        ops, saver = self._scaffold.save_ops, self._scaffold.saver
        number = global_step(session, step)
        if ops is not None:
            session.run(ops.save, {ops.filename: f"{self._base}-{number}"})
        elif saver is not None:
            path = saver.save(session, self._base, step)
            number = int(path.removesuffix(SUFFIX).rpartition("-")[2])
        else:
            raise FailedPreconditionError("there are no variables to save")
        return number

    def restore(self, session: Session) -> bool:
        """Restore the latest one; whether there is one. DataLossError if it is damaged."""
        ops, saver = self._scaffold.save_ops, self._scaffold.saver
        if saver is None:
            return False
        if ops is None:
            return saver.restore_or_initialize(session, self.folder) is not None
        latest = latest_checkpoint(self.folder)
        if latest is not None:
            session.run(ops.restore, {ops.filename: latest})
        return latest is not None


log = logging.getLogger("weft.train")

#: What a task that is lost ends steps with.
LOST = (AbortedError, UnavailableError)
_FIRST_WAIT, _LONGEST_WAIT, _REPORT_EVERY = 0.05, 1.0, 10.0


class Engine(Protocol):
    """An engine, which starts tasks and starts them again, as `wf.train.RayCluster`: where they are
    now."""

    @property
    def cluster(self) -> Cluster:
        """The cluster of sessions that are made now."""


@dataclass
class SessionCreator:
    """Makes sessions for a graph, one after the other.

    master: the target or the cluster of `wf.Session`, or an engine; options: further arguments.
    checkpoints: restored from where there is one. max_wait_secs: how long one that is not the chief
    waits for variables to have values; recovery_wait_secs: how long tasks that do not answer are
    asked again.
    """

    graph: Graph
    scaffold: Scaffold
    is_chief: bool = True
    master: str | Cluster | Engine = ""
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
        else:  # an engine's tasks may be elsewhere now
            from weft.runtime.cluster.spec import Cluster  # one process does not load it

            cluster = master if isinstance(master, Cluster) else master.cluster
            session = Session(graph=self.graph, cluster=cluster, **self.options)
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
