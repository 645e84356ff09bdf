"""`Master`: the client's side of a session on a cluster.

It knows the tasks, makes step definitions of graphs, has the tasks run them and waits for one
answer from each part of a step, or of a definition (`Pending`); it asks tasks for their counters.
"""

from __future__ import annotations

import itertools
import logging
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from weft.comm.errors import AuthenticationError, CommError
from weft.comm.rendezvous import MASTER_SHIFT
from weft.ir.dataclass import dataclass
from weft.ir.device import DeviceSpec
from weft.ir.errors import (
    CancelledError,
    FailedPreconditionError,
    NotFoundError,
    UnavailableError,
    WeftError,
)
from weft.runtime.cluster import messages as m
from weft.runtime.cluster.messages import (
    Deliver,
    Derived,
    Direct,
    Received,
    Wire,
    announce,
    find,
    from_wire,
    withdraw,
)
from weft.runtime.cluster.spec import CONNECT_TIMEOUT, ClusterSpec
from weft.runtime.progress import reminded
from weft.runtime.resources.store import Key
from weft.runtime.run_log import RunLog
from weft.runtime.trace.task_trace import StepTrace

if TYPE_CHECKING:
    from weft.runtime.step_kernels import StepKernels

#: A task, and the handle of the part that it was given.
Who = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Failure:
    """An error, and how far it is from what went wrong first (`messages.Derived`). lost: the
    task that is gone, and why."""

    error: BaseException
    derived: int
    lost: tuple[str, str] | None = None


class Once:
    """As `threading.Event`, which takes five times as long to make and to set: for what is set by
    one thread at a time, and never cleared."""

    __slots__ = ("_gate", "_is_set")

    def __init__(self) -> None:
        self._is_set = False
        self._gate = threading.Lock()  # held until it is set
        self._gate.acquire()

    def is_set(self) -> bool:
        """Whether `set` was called."""
        return self._is_set

    def set(self) -> None:
        """Let all pass who wait, and who will."""
        if not self._is_set:
            self._is_set = True
            self._gate.release()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is set, so many seconds at most: whether it is."""
        if not self._is_set and self._gate.acquire(timeout=-1 if timeout is None else timeout):
            self._gate.release()  # for the next one
        return self._is_set


class Pending:
    """Answers that are to come. `stop` is set by the last answer and by the first failure, `over`
    by the last answer, or the loss of who owed it."""

    __slots__ = ("_failures", "_left", "_lock", "answers", "cut_traces", "over", "stop", "trace")

    def __init__(self, expected: Iterable[Who]) -> None:
        self._lock = threading.Lock()
        self._left = dict.fromkeys(expected, 1)
        self._failures: list[Failure] = []
        self.answers: dict[Who, Any] = {}
        self.trace: StepTrace | None = None  # is told when answers come
        self.cut_traces: dict[Who, Any] = {}  # of parts that have failed
        self.stop, self.over = Once(), Once()
        if not self._left:  # a step that has nothing to do
            self.stop.set()
            self.over.set()

    def answer(self, who: Who, given: Any, further: int = 0) -> bool:
        """An answer came, after which as many `further` parts of it are to come. False if nobody
        waits for it."""
        with self._lock:
            if who not in self._left or who in self.answers:
                return False
            self.answers[who] = given
            if self.trace is not None:
                self.trace.answered(*who)
            self._take(who, further - 1)
        return True

    def part(self, who: Who) -> None:
        """A further part of an answer came."""
        with self._lock:
            self._take(who, -1)

    def failed(self, who: Who, failure: Failure, given: Sequence[Any] = ()) -> None:
        """An answer came, and it is an error; of a traced step with what was done until then."""
        with self._lock:
            if self.trace is not None and given:
                self.trace.answered(*who)
                self.cut_traces[who] = given[-1]
            self._failures.append(failure)
            self.stop.set()
            self._take(who, -self._left.get(who, 0))

    def fail(self, failure: Failure) -> None:
        """Something else went wrong; the answers are still to come."""
        with self._lock:
            self._failures.append(failure)
            self.stop.set()

    def lost(self, task: str, failure: Failure) -> bool:
        """A task is gone: it owes nothing any more. Whether it did."""
        with self._lock:
            owed = [who for who in self._left if who[0] == task]
            if owed:
                self._failures.append(failure)
                self.stop.set()
            for who in owed:
                self._take(who, -self._left[who])
        return bool(owed)

    def give_up(self) -> None:
        """Nothing comes any more."""
        with self._lock:
            self._left.clear()
            self.stop.set()
            self.over.set()

    def owing(self) -> list[Who]:
        """Who has not answered."""
        with self._lock:
            return list(self._left)

    @property
    def error(self) -> BaseException | None:
        """What went wrong first: of the errors that are the least derived, the first one."""
        if not self._failures:
            return None
        with self._lock:
            return min(self._failures, key=lambda f: f.derived).error

    @property
    def link_lost(self) -> bool:
        """Whether a task, or the link between two, is gone."""
        with self._lock:
            return any(f.derived in (Derived.LOST_LINK, Derived.LOST) for f in self._failures)

    @property
    def lost_task(self) -> tuple[str, str] | None:
        """A task that is gone, and why."""
        with self._lock:
            return next((f.lost for f in self._failures if f.lost), None)

    def _take(self, who: Who, change: int) -> None:
        left = self._left.get(who, 0) + change
        if left > 0:
            self._left[who] = left
            return
        self._left.pop(who, None)
        if not self._left:
            self.stop.set()
            self.over.set()


def take_part(waits: Pending, who: Who, arrays: dict[int, Any], place: int, made: Any) -> None:
    """A large result came."""
    if isinstance(made, BaseException):
        error = made if isinstance(made, WeftError) else UnavailableError(str(made))
        waits.failed(who, Failure(error, Derived.LOST))
    else:
        arrays[place] = made
        waits.part(who)


_LOG = logging.getLogger("weft.cluster")
#: (name, on_message, on_link_lost) -> the endpoint of that name.
MakeWire = Callable[[str, Callable[[Any], None], Callable[[str, str], None]], Wire]
#: How long a session waits for a task that was lost before a step.
RECONNECT_SECONDS = 2.0
#: After so many seconds, and then again, the log says which task a session waits for.
WAITING_SECONDS = 10.0
#: An answer without results: meta data, small ones, and by their places those that are large.
NOTHING: tuple[Any, Any, dict[int, Any]] = ({}, (), {})
#: What a session waits for by the number of a step or request.
_ANSWERS = (
    m.DONE, m.REGISTERED, m.STATUS_OF, m.RESET_DONE, m.STATS_OF, m.LOG_OF, m.KERNELS_OF,
)  # fmt: skip
_AGAIN = 0.2  # seconds after which a task that does not answer is asked again


@dataclass
class Task:
    """A task as the master knows it. incarnation 0: not reached, or lost. deliver: takes messages,
    if it is in this process. machine: where it runs, as it said last (`automatic.Machine`)."""

    name: str
    address: str
    incarnation: int = 0
    devices: tuple[str, ...] = ()
    cause: str = "it has not answered yet"
    deliver: Deliver | None = None
    machine: tuple[str, int, int] | None = None


class Master:
    """Connects to `target`, which knows the cluster, and to all its tasks.

    cluster: in place of what the target says; a callable is asked again when a task is lost.
    UnavailableError where a task does not answer within `connect_timeout` seconds; whole=False:
    only where the target does not.
    """

    def __init__(
        self,
        target: str,
        make_wire: MakeWire,
        *,
        cluster: ClusterSpec | Callable[[], ClusterSpec] | None = None,
        connect_timeout: float = CONNECT_TIMEOUT,
        whole: bool = True,
    ) -> None:
        self.target = target
        self._cluster = cluster
        self._lock = threading.Lock()
        self._tasks: dict[str, Task] = {}
        self._looking = threading.Lock()
        self._missed = 0.0, frozenset[str](), WeftError("")  # when whom it did not find, and why
        self._hellos: dict[str, Pending] = {}  # by task
        self._waits: dict[int, Pending] = {}  # by step, in order
        self._handles = itertools.count(1)
        self._dropped: deque[Who] = deque()
        self.closed = False
        self.home = ""  # the target's name, once it has said it
        self.changes = 0  # how often a task was found, or lost
        #: Where steps so far have put variables and resources, by kind and key.
        self.state: dict[tuple[str, Key], str] = {}
        self.name = f"{m.CLIENT}{secrets.token_hex(8)}"
        announce(self.name, self._on_message)
        self.wire = make_wire(self.name, self._on_message, self.lost)
        number = self.wire.incarnation & ((1 << (64 - MASTER_SHIFT)) - 1)
        self._first = number << MASTER_SHIFT
        self._numbers = itertools.count(self._first + 1)
        self._last = self._first  # the last number that was given
        self._forgotten = self._first  # the step after which those that are over were forgotten
        try:
            self.home = self._open(time.monotonic() + connect_timeout, whole)
        except BaseException:
            self.close()
            raise

    # -------------------------------------------------------------------------------- the cluster
    @property
    def devices(self) -> list[str]:
        """The devices of all tasks, those of the target first."""
        tasks = sorted(self._tasks.values(), key=lambda t: t.name != self.home)
        return [device for task in tasks for device in task.devices]

    def tasks(self) -> list[Task]:
        """All tasks, as they are known now."""
        with self._lock:
            return [replace(task) for task in self._tasks.values()]

    def _open(self, until: float, whole: bool) -> str:
        """Ask the target for the cluster, then all tasks for themselves. The target's name."""
        target = Task("", self.target)
        welcome = self._greet(target, until)
        spec = self._spec() or ClusterSpec(welcome["cluster"])
        made = {
            name: Task(name, spec.address(job, number))
            for job, number in spec.tasks()
            for name in (f"/job:{job}/task:{number}",)
        }
        if target.name not in made:
            raise NotFoundError(
                f"the task at {self.target} is {target.name}, which is not in the cluster",
                hint=f"the cluster has {', '.join(made)}",
            )
        target.address = self.target
        with self._lock:
            self._tasks = made | {target.name: target}
        with nullcontext() if whole else suppress(UnavailableError):
            self._reach([t for t in self._tasks.values() if t is not target], until)
        return target.name

    def _spec(self) -> ClusterSpec | None:
        return self._cluster() if callable(self._cluster) else self._cluster

    def _reach(self, tasks: Sequence[Task], until: float) -> None:
        """Have these tasks answer, all at once. UnavailableError naming those that do not."""
        failed: dict[str, WeftError] = {}

        def greet(task: Task) -> None:
            try:
                self._greet(task, until)
            except WeftError as error:
                failed[task.name] = error

        threads = [threading.Thread(target=greet, args=(t,), daemon=True) for t in tasks]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for name, error in failed.items():
            others = [other for other in failed if other != name]
            nor = f"; nor can {', '.join(others)}" if others else ""
            raise type(error)(
                error.what + nor,
                hint=error.hint or "start the task (weft worker), or see why it does not answer",
            )

    def _greet(self, task: Task, until: float) -> Mapping[str, Any]:
        """Make a link and ask the task who it is, until it answers: its answer. UnavailableError if
        it does not; meanwhile the log says what is waited for."""
        name = task.name or "the task"
        left = until - time.monotonic()

        def say(seconds: float) -> None:
            _LOG.warning("waiting for %s at %s since %.0f s, for at most %.0f: is it started?",
                         name, task.address, seconds, left)  # fmt: skip

        with reminded(WAITING_SECONDS, say):
            return self._greeted(task, until)

    def _greeted(self, task: Task, until: float) -> Mapping[str, Any]:
        while True:
            left = max(until - time.monotonic(), _AGAIN)
            try:
                peer = self.wire.connect(task.name, task.address, timeout=left)
                waits = Pending([(peer.name, 0)])
                with self._lock:
                    self._hellos[peer.name] = waits
                home = task.name in ("", self.home)
                self.wire.send(peer.name, m.HELLO, 0, {"protocol": m.PROTOCOL, "home": home})
                if waits.stop.wait(left) and waits.answers:
                    return self._known(task, peer, waits.answers[peer.name, 0][0])
                cause = str(waits.error or "it does not answer")
            except AuthenticationError as error:
                raise FailedPreconditionError(
                    f"{task.name or 'the task'} at {task.address} refuses the connection: {error}",
                    hint="all tasks and sessions of a cluster need the same key file (weft keygen)",
                ) from None
            except CommError as error:
                cause = str(error)
            if time.monotonic() > until:
                name = task.name or "a task"
                raise UnavailableError(f"{name} at {task.address} cannot be reached: {cause}")
            time.sleep(_AGAIN)

    def _known(self, task: Task, peer: Any, welcome: Mapping[str, Any]) -> Mapping[str, Any]:
        if welcome.get("protocol") != m.PROTOCOL:
            raise FailedPreconditionError(
                f"{peer.name} at {task.address} speaks protocol {welcome.get('protocol')}, this "
                f"process {m.PROTOCOL}",
                hint="install one version of weft on all tasks",
            )
        with self._lock:
            self._hellos.pop(peer.name, None)
            task.name, task.incarnation = peer.name, peer.incarnation
            task.devices, task.cause = tuple(welcome["devices"]), ""
            name, processors, threads = welcome["machine"]
            task.machine = str(name), int(processors), int(threads)
            task.deliver = find(peer.incarnation)
            self.changes += 1
        return welcome

    def require(self, names: Iterable[str]) -> dict[str, tuple[str, int]]:
        """Address and incarnation of these tasks; those that were lost are looked for again.
        UnavailableError where one is not there, NotFoundError for one that the cluster does not
        have."""
        with self._lock:
            tasks = [self._task(name) for name in names]
            missing = not all(task.incarnation for task in tasks)
        if missing:
            self._look_for(tasks)
        return {task.name: (task.address, task.incarnation) for task in tasks}

    def _look_for(self, tasks: Sequence[Task]) -> None:
        """Connect to those of them that are lost; one thread at a time."""
        begun = time.monotonic()
        with self._looking:
            lost = [task for task in tasks if not task.incarnation]
            when, missed, error = self._missed
            if begun < when and any(task.name in missed for task in lost):
                raise type(error)(error.what, hint=error.hint)  # another thread has just looked
            spec = self._spec() if lost else None
            for task in lost:
                if spec is not None:
                    where = DeviceSpec.parse(task.name)
                    task.address = spec.address(str(where.job), int(where.task or 0))
            try:
                self._reach(lost, time.monotonic() + RECONNECT_SECONDS)
            except WeftError as failed:
                gone = frozenset(task.name for task in lost if not task.incarnation)
                self._missed = time.monotonic(), gone, failed
                raise

    def _task(self, name: str) -> Task:
        found = self._tasks.get(name)
        if found is None:
            raise NotFoundError(f"the cluster has no task {name}: {', '.join(self._tasks)}")
        return found

    # ------------------------------------------------------------------------------- what comes
    def _on_message(self, message: Received) -> None:
        peer, kind, meta = message.peer, message.kind, message.meta
        if meta is None and kind == m.DONE:  # as most are
            waits = self._waits.get(message.step)
            if waits is not None:
                waits.answer((peer, message.key), NOTHING)
            return
        who = (peer, int(meta.get("h", 0)))
        if kind == m.WELCOME:
            waits = self._hellos.get(peer)
        elif kind in (
            m.DONE,
            m.REGISTERED,
            m.STATUS_OF,
            m.RESET_DONE,
            m.STATS_OF,
            m.LOG_OF,
            m.KERNELS_OF,
        ):
            waits = self._waits.get(meta.get("n", message.step))
        else:
            _LOG.warning("%s sent a message of kind %s", peer, kind)
            return
        if waits is None:
            return  # for what has ended
        if "e" in meta:
            waits.failed(who, Failure(*from_wire(meta["e"])), message.buffers)
            return
        large = [int(place) for place in meta.get("g", ())]
        if not waits.answer(who, (meta, message.buffers, {}), len(large)):
            return
        arrays = waits.answers[who][2]
        for place in large:
            key = (m.keys_of(m.FETCH, who[1]) + place, ())
            came = partial(take_part, waits, who, arrays, place)
            self.wire.rendezvous.get(message.step, key, came, peer)

    def lost(self, peer: str, cause: object) -> None:
        """A task cannot be reached any more: what waits for it fails, and the next step that needs
        it looks for it."""
        with self._lock:
            task = self._tasks.get(peer)
            hello = self._hellos.get(peer)
            if self.closed or (task is None and hello is None):
                return
            if task is not None:  # else the target, which has not said yet who it is
                task.incarnation, task.cause, task.deliver = 0, str(cause), None
            self.changes += 1
            waits = list(self._waits.values())
        failure = Failure(
            UnavailableError(
                f"{peer} was lost: {cause}",
                hint="the step was ended on all tasks; once the task is back, restore what it held",
            ),
            Derived.LOST,
            (peer, str(cause)),
        )
        for one in (*waits, *([hello] if hello else ())):
            one.lost(peer, failure)

    # -------------------------------------------------------------------------------- the answers
    def begin(self, expected: Iterable[Who]) -> tuple[int, Pending]:
        """A number, of a step or a request, and the answers to it that are to come."""
        waits = Pending(expected)
        with self._lock:
            if self.closed:
                raise FailedPreconditionError("the session is closed")
            number = self._last = next(self._numbers)
            self._waits[number] = waits
        return number, waits

    def end(self, number: int) -> None:
        """Nobody waits for the answers any more."""
        with self._lock:
            self._waits.pop(number, None)
            over = number - self._forgotten >= m.FORGET_EVERY
            if over:
                self._forgotten = number
        if over:
            self.wire.forget(self.low_water())

    def signal(
        self, task: str, kind: int, step: int, key: int, offset: int, arrays: Sequence[Any] = ()
    ) -> None:
        """Send a message that is two numbers, and arrays as `send` does. Raises CommError."""
        deliver = self._tasks[task].deliver
        if deliver is None:
            self.wire.signal(task, kind, step, key, offset, arrays)
        else:
            me, incarnation = self.name, self.wire.incarnation
            deliver(Direct(me, incarnation, kind, step, None, tuple(arrays), key, offset))

    def low_water(self) -> int:
        """All steps up to this one are over."""
        with self._lock:
            return next(iter(self._waits), self._last + 1) - 1

    def send(
        self, task: str, kind: int, step: int, meta: dict[str, Any], arrays: Sequence[Any] = ()
    ) -> None:
        """Send a message with small arrays; to a task in this process with any. Raises
        CommError."""
        deliver = self._tasks[task].deliver
        if deliver is None:
            self.wire.send(task, kind, step, meta, arrays)
        else:
            incarnation = self.wire.incarnation
            deliver(Direct(self.name, incarnation, kind, step, meta, tuple(arrays)))

    def is_here(self, task: str) -> bool:
        """Whether a task is in this process."""
        return self._tasks[task].deliver is not None

    def drop(self, parts: Sequence[Who]) -> None:
        """Nobody runs these parts any more; their tasks are told with the next definition. May be
        called while an object is finalised, so it takes no lock."""
        self._dropped.extend(parts)

    def tell_dropped(self) -> None:
        """Have the tasks forget the parts that were dropped."""
        gone: dict[str, list[int]] = {}
        while self._dropped:
            task, handle = self._dropped.popleft()
            gone.setdefault(task, []).append(handle)
        for task, handles in gone.items():
            with suppress(CommError, KeyError):
                self.send(task, m.DROP, 0, {"handles": handles})

    def next_handle(self) -> int:
        """A number for a part of a definition."""
        return next(self._handles)

    def close(self) -> None:
        """Say goodbye to all tasks and end the endpoint. A second call does nothing."""
        with self._lock:
            if self.closed:
                return
            self.closed = True
            tasks = [t for t in self._tasks.values() if t.incarnation]
            waits = list(self._waits.values())
        for one in waits:
            one.fail(Failure(CancelledError("the session was closed"), Derived.ROOT))
        for task in tasks:
            with suppress(CommError):
                self.wire.send(task.name, m.GOODBYE, 0, {})
        withdraw(self.name)
        self.wire.close()
        for one in waits:
            one.give_up()

    def reset(self, containers: Sequence[str]) -> None:
        """Have all tasks clear these containers. UnavailableError if one does not answer."""
        names = list(self._tasks)
        self.require(names)
        number, waits = self.begin([(name, 0) for name in names])
        try:
            for name in names:
                try:
                    self.send(name, m.RESET, number, {"containers": list(containers)})
                except CommError as error:
                    raise UnavailableError(f"{name} cannot be reached: {error}") from None
            if not waits.stop.wait(CONNECT_TIMEOUT) or waits.error:
                owing = ", ".join(name for name, _ in waits.owing())
                raise waits.error or UnavailableError(f"{owing} did not clear its containers")
        finally:
            self.end(number)


#: What `counters.task_stats` gives.
Stats = Mapping[str, Any]


def ask_stats(
    master: Master, seconds: float = 2.0, ops_for: float = 0.0, *, look: bool = True
) -> dict[str, Stats | str]:
    """Task -> what it counts, or why it does not say. look: whether for tasks that were lost.
    ops_for: for so many seconds from now on tasks time the ops of some parts.
    FailedPreconditionError where the session is closed."""
    lost = [task.name for task in master.tasks() if not task.incarnation]
    if lost and look:
        with suppress(WeftError):
            master.require(lost)
    tasks = master.tasks()
    found: dict[str, Stats | str] = {t.name: t.cause for t in tasks if not t.incarnation}
    there = [t.name for t in tasks if t.incarnation]
    number, waits = master.begin([(name, 0) for name in there])
    asked = {"o": ops_for} if ops_for else {}
    try:
        for name in there:
            try:
                master.wire.send(name, m.STATS, number, {"n": number, **asked})
            except CommError as error:
                found[name] = str(error)
                waits.part((name, 0))
        if there:
            waits.over.wait(seconds)
        for name in there:
            answer = waits.answers.get((name, 0))
            if answer is not None and answer[1]:
                found[name] = m.from_array(answer[1][0])
            found.setdefault(name, f"it has not answered for {seconds:g} s")
    finally:
        master.end(number)
    return {task.name: found[task.name] for task in tasks}


#: How long a session waits for the logs of a step that is over, and for the kernels of parts, whose
#: code is printed for it.
LOG_SECONDS, KERNEL_SECONDS = 30.0, 120.0


def ask_logs(master: Master, step: int, parts: Sequence[Who]) -> dict[Who, RunLog | None]:
    """What the parts of a step that is over took from outside; None, and a warning, for those whose
    tasks do not say it."""
    if master.closed:
        return dict.fromkeys(parts)
    found: dict[Who, RunLog | None] = dict.fromkeys(parts)
    for who, arrays in _asked(master, m.LOG, parts, {"of": step}, LOG_SECONDS):
        if isinstance(arrays, list) and arrays:
            found[who] = RunLog.unpacked(arrays)
        else:
            _LOG.warning("%s does not say what its part of the step took from outside", who[0])
    return found


def ask_kernels(master: Master, parts: Sequence[Who]) -> list[StepKernels]:
    """The kernels of parts, as their tasks say them, or why there are none."""
    # who looks at no kernels does not wait for this module
    from weft.runtime.step_kernels import StepKernels, unpack_kernels

    found = []
    for (task, _), answer in _asked(master, m.KERNELS, parts, {}, KERNEL_SECONDS):
        try:
            if isinstance(answer, str):
                raise UnavailableError(answer)
            found.append(unpack_kernels(*answer))
        except (WeftError, TypeError) as error:
            why = error.what if isinstance(error, WeftError) else str(error)
            found.append(StepKernels(missing=[f"{task} does not say its kernels: {why}"]))
    return found


def _asked(
    master: Master, kind: int, parts: Sequence[Who], about: Mapping[str, Any], seconds: float
) -> Iterator[tuple[Who, list[Any] | str]]:
    """What the tasks of parts answer to a question about these, or why there is no answer."""
    number, waits = master.begin(parts)
    unsent: dict[Who, str] = {}
    try:
        for task, handle in parts:
            try:
                master.send(task, kind, number, {**about, "h": handle})
            except CommError as error:
                unsent[task, handle] = str(error)
                waits.part((task, handle))
        waits.over.wait(seconds)
        for who in parts:
            answer = waits.answers.get(who)
            if answer is not None and who not in waits.owing():
                yield who, arrays_in(*answer[1:])
            elif who in waits.owing():
                yield who, f"it has not answered for {seconds:g} s"
            else:
                yield who, unsent.get(who) or str(waits.error)
    finally:
        master.end(number)


def arrays_in(small: Sequence[Any], large: Mapping[int, Any]) -> list[Any]:
    """The arrays of an answer, in order."""
    left = iter(small)
    return [large[i] if i in large else next(left) for i in range(len(small) + len(large))]
