"""Resources that operations wait for, the attempts that wait, and `CancelToken`, one signal that
ends any number of them.

An operation is an `Attempt`. Attempts stand in lines; under the resource's lock the first of each
line is served until none moves (the scheme of TensorFlow's queues), so waiting attempts are served
in order, and a thread that changes the resource does the work for those that wait. Their `done`
callbacks are called afterwards, when the lock is free. Nobody polls.

A signal handler or finaliser may run while its thread holds the lock: what it asks for is then put
off until the holder is done. A fork waits for the lock; the child keeps what the resource holds
and forgets the attempts of its parent."""

from __future__ import annotations

import itertools
import logging
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from numbers import Real
from typing import Any, TypeVar

from weft.ir.errors import (
    CancelledError,
    DeadlineExceededError,
    FailedPreconditionError,
    InvalidArgumentError,
    UnsupportedError,
    WeftError,
)
from weft.ir.graph import Operation
from weft.ir.locations import caller_location
from weft.ir.process import around_fork, in_child
from weft.ir.spec import AttrValue

T = TypeVar("T")


class CancelToken:
    """Given to operations that may wait; `cancel()` makes each of them fail with CancelledError.

    It stays cancelled: operations that are given it afterwards fail at once, without any effect.
    exchange: what a step that is a part of a larger one exchanges messages by with the other parts
    (`dataflow.host_ops.communication.Exchange`); None for all others. until: the time by
    `time.monotonic` at which whoever looks at the token is to end with DeadlineExceededError; the
    token itself does nothing then.

    >>> import threading
    >>> token, queue = wf.CancelToken(), wf.tf1.FIFOQueue(1, wf.int64)
    >>> threading.Timer(0.01, token.cancel, ["the user pressed stop"]).start()
    >>> queue.dequeue(cancel=token)
    Traceback (most recent call last):
    weft.ir.errors.CancelledError: FIFOQueue ...: dequeue was cancelled: the user pressed stop
    ...
    """

    # Without a lock, so that a signal handler may cancel at any moment: each line is one operation
    # on a dict, and whoever takes a callback out of the dict calls it.
    __slots__ = ("_callbacks", "_cancelled", "_kept", "_numbers", "exchange", "reason", "until")

    def __init__(self, exchange: Any = None) -> None:
        self._callbacks: dict[int, Callable[[], object]] = {}
        self._numbers = itertools.count()
        self._cancelled = False
        self._kept: list[object] = []
        self.reason = ""
        self.exchange = exchange
        self.until: float | None = None

    def __repr__(self) -> str:
        return f"<CancelToken{': cancelled' if self._cancelled else ''}>"

    @property
    def is_cancelled(self) -> bool:
        """Whether `cancel()` was called."""
        return self._cancelled

    @property
    def is_over(self) -> bool:
        """Whether who looks at the token is to end: it is cancelled, or the time is up."""
        return self._cancelled or (self.until is not None and time.monotonic() > self.until)

    def end_if_over(self) -> None:
        """For a loop that goes on: DeadlineExceededError if the step's time is up, CancelledError
        if it was cancelled."""
        if self.until is not None and time.monotonic() > self.until:
            raise too_late()
        if self._cancelled:
            raise CancelledError(f"the step was cancelled: {self.reason or 'no reason given'}")

    def error(self, doing: str) -> WeftError:
        """What they raise then; doing: what they were at."""
        if self._cancelled:
            why = self.reason or "no reason given"
            return CancelledError(f"the step was cancelled: {why}; {doing}")
        return DeadlineExceededError(
            f"the step did not end in time; {doing}", hint="give a longer timeout"
        )

    @contextmanager
    def within(self, seconds: float | None) -> Iterator[CancelToken]:
        """A token that ends as this one does, and after so many seconds; None: this one."""
        if seconds is None:
            yield self
            return
        own = CancelToken(self.exchange)
        own.until = time.monotonic() + seconds
        forget = self.register(lambda: own.cancel(self.reason))
        try:
            yield own
        finally:
            forget()

    def cancel(self, reason: str = "") -> None:
        """End what waits with this token; further calls do nothing. `reason` goes into the
        errors."""
        if not self._cancelled:
            self.reason = reason
            self._cancelled = True  # before the look: what is registered later sees it
        for number in list(self._callbacks):
            self._call(number)

    def register(self, callback: Callable[[], object]) -> Callable[[], None]:
        """Have `callback` called by `cancel()`, at once if that was before. Returns what takes the
        registration back (it may be called twice)."""
        number = next(self._numbers)
        self._callbacks[number] = callback
        if self._cancelled:
            self._call(number)
        return lambda: self._unregister(number)

    def keep(self, held: object) -> None:
        """Keep `held` as long as this token, or until `let_go()`; cancelling does not end it."""
        self._kept.append(held)

    def kept(self, kind: type[T]) -> T | None:
        """The first thing of that class that the token keeps."""
        return next((held for held in self._kept if isinstance(held, kind)), None)

    def let_go(self) -> None:
        """Drop what the token keeps."""
        self._kept.clear()

    def _call(self, number: int) -> None:
        callback = self._callbacks.pop(number, None)
        if callback is not None:
            callback()

    def _unregister(self, number: int) -> None:
        self._callbacks.pop(number, None)


def too_late(waits: Sequence[Operation] = ()) -> DeadlineExceededError:
    """The error of a step whose time is up while it waits for these ops."""
    names = sorted({op.name for op in waits})
    return DeadlineExceededError(
        f"the step did not end in time; it waits for {', '.join(names) or 'computation'}",
        hint="give a longer timeout, or see why nothing arrives there",
        location=waits[0].locations if waits else (),
    )


#: Called once with the result or, if that failed, with a WeftError.
Done = Callable[[Any], None]

_log = logging.getLogger("weft.resources")


class Attempt:
    """One operation, done or waiting. `step(attempt)` serves it as far as it goes and says whether
    that may help others; `items` is what it has taken or has to give, `left` what is missing."""

    __slots__ = (
        "done", "items", "left", "line", "operation", "outcome", "pending", "small", "step",
        "unregister",
    )  # fmt: skip

    def __init__(
        self, operation: str, step: Callable[[Attempt], bool], done: Done, left: int = 1
    ) -> None:
        self.operation = operation
        self.step = step
        self.done = done
        self.left = left
        self.small = False  # fewer than asked for will do at the end
        self.items: list[Any] = []
        self.pending = True
        self.outcome: Any = None
        self.line: deque[Attempt] = deque()
        self.unregister: Callable[[], None] | None = None

    def is_over(self) -> bool:
        """Whether it has succeeded or failed."""
        return not self.pending


class Resource:
    """The base class of resources that attempts wait for. Subclasses set `_lines` and serve under
    `_change`."""

    kind = "Resource"
    declared = ""  # what it was made as, where others find it by name
    scopes: Sequence[Any] = ()  # the frontend's `wf.device` scopes where it was made in a graph

    def __init__(self, name: str) -> None:
        self.name = name
        self._lock = threading.RLock()
        self._holder: int | None = None
        self._late: deque[Callable[[], object]] = deque()
        self._finished: list[Attempt] = []
        self._lines: tuple[deque[Attempt], ...] = ()
        with _forking:
            _resources.add(self)

    def describe(self) -> str:
        """Kind and name, for messages."""
        return f"{self.kind} '{self.name}'"

    def __reduce__(self) -> tuple[Any, ...]:
        """UnsupportedError: threads wait for this one, so a copy, and a pickle, is none of it."""
        raise UnsupportedError(
            f"{self.describe()} cannot be copied or pickled: it is what threads of this process "
            "share",
            hint="share the object itself (copy.copy does); state_dict() is what it holds, for "
            "load_state_dict of another one",
            location=caller_location(),
        )

    #: How many axes what a graph put in last had.
    last_ranks: Sequence[int | None] = ()

    @property
    def shapes(self) -> Sequence[tuple[int | None, ...] | None]:
        """Of what holds elements: the shapes of their components, None for any."""
        return ()

    def ranks(self) -> Sequence[int | None]:
        """How many axes the components of an element have, as far as what it holds, or held last,
        says it; () where nothing does."""
        return self.last_ranks

    def maker(self, ranks: Sequence[int | None] = ()) -> tuple[str, dict[str, AttrValue]]:
        """The op that stands for it in graphs, and that op's attributes but for the name.

        ranks: how many axes the components have in the graph, where elements may have any shape.
        UnsupportedError if it is none for graphs.
        """
        raise UnsupportedError(
            f"{self.describe()} is not for graphs",
            hint="call it outside of the graph, and feed what it gives",
        )

    def _state(self) -> str:
        """What it holds, for messages about waiting."""
        return ""

    # --------------------------------------------------------------------------------- changing it
    def _change(self, step: Callable[[], object]) -> None:
        """Do `step` under the lock, serve who waits, then call back, without the lock."""
        me = threading.get_ident()
        if self._holder == me:  # a signal handler, in the middle of the same thread's change
            self._late.append(step)
            return
        finished: list[Attempt] = []
        try:
            with self._lock:
                self._holder = me
                try:
                    step()
                    self._serve()
                    while self._late:
                        self._late.popleft()()
                        self._serve()
                finally:
                    self._holder = None
                    finished, self._finished = self._finished, []
        finally:
            for attempt in finished:
                _call_back(attempt)
        if self._late:  # asked for between the last look and the release
            self._change(_nothing)

    def _serve(self) -> None:
        moved = True
        while moved:
            moved = False
            for line in self._lines:
                moved |= self._advance(line)

    def _advance(self, line: deque[Attempt]) -> bool:
        """Serve a line from its front; whether anything moved."""
        moved = False
        while line:
            first = line[0]
            moved |= first.step(first)
            if first.pending:
                break
        return moved

    def _finish(self, attempt: Attempt, outcome: Any) -> None:
        """Under the lock: the attempt is over, with a result or a WeftError."""
        attempt.pending = False
        attempt.outcome = outcome
        line = attempt.line
        if line and line[0] is attempt:
            line.popleft()
        elif attempt in line:
            line.remove(attempt)
        self._finished.append(attempt)

    def _fail(self, attempt: Attempt, error: WeftError) -> None:
        """Under the lock: the attempt is over, and what it has taken goes back."""
        self._give_back(attempt)
        self._finish(attempt, error)

    def _give_back(self, attempt: Attempt) -> None:
        """Under the lock: undo what the attempt has taken. Here: nothing is ever taken."""

    # ---------------------------------------------------------------------------------- attempting
    def _start(
        self,
        attempt: Attempt,
        line: deque[Attempt],
        cancel: CancelToken | None = None,
        refusal: Callable[[], WeftError | None] | None = None,
    ) -> Attempt:
        """Put an attempt into a line, unless it is cancelled or `refusal` (under the lock) says why
        it cannot be."""

        def enter() -> None:
            error = refusal() if refusal is not None else None
            if cancel is not None and cancel.is_cancelled:
                error = self._cancelled(attempt, cancel)
            if error is not None:
                self._finish(attempt, error)
            else:
                attempt.line = line
                line.append(attempt)

        self._change(enter)
        if cancel is not None and attempt.pending:
            token = cancel
            attempt.unregister = token.register(
                lambda: self.abandon(attempt, lambda: self._cancelled(attempt, token))
            )
            if attempt.is_over():  # meanwhile, by a thread that saw no registration
                attempt.unregister()
        return attempt

    def abandon(self, attempt: Attempt, error: Callable[[], WeftError]) -> None:
        """End a waiting attempt with `error()`; nothing if it is over."""
        self._change(lambda: self._fail(attempt, error()) if attempt.pending else None)

    def _cancelled(self, attempt: Attempt, cancel: CancelToken) -> WeftError:
        why = f": {cancel.reason}" if cancel.reason else ""
        return CancelledError(
            f"{self.describe()}: {attempt.operation} was cancelled{why}{self._progress(attempt)}"
        )

    def _progress(self, attempt: Attempt) -> str:
        """What a failing attempt has done that stays, for messages."""
        return ""

    def wait(self, start: Callable[[Done], Attempt], timeout: float | None = None) -> Any:
        """The result of the attempt that `start(done)` makes, waited for. Raises its error;
        DeadlineExceededError after `timeout` seconds (None: no limit; 0: do not wait)."""
        seconds = check_timeout(timeout)
        if self._holder == threading.get_ident():
            raise FailedPreconditionError(
                f"{self.describe()}: a signal handler waits for what it has interrupted",
                hint="in a handler only close(), cancel() and request_stop() are sure to work",
            )
        ready = threading.Lock()
        ready.acquire()
        attempt = start(lambda _: ready.release())
        try:
            if not ready.acquire(timeout=seconds):
                self.abandon(attempt, lambda: self._too_late(attempt, seconds))
                ready.acquire()
        except BaseException:  # KeyboardInterrupt: what was or will be taken goes back
            self._change(lambda: self._drop(attempt))
            raise
        if isinstance(attempt.outcome, WeftError):
            raise attempt.outcome
        return attempt.outcome

    def _drop(self, attempt: Attempt) -> None:
        if attempt.pending:
            self._fail(attempt, CancelledError(f"{self.describe()}: interrupted"))
        elif not isinstance(attempt.outcome, WeftError):
            self._give_back(attempt)

    def _too_late(self, attempt: Attempt, timeout: float) -> WeftError:
        waiting = [a.operation for line in self._lines for a in line if a is not attempt]
        others = f"; {len(waiting)} other operations wait, first {waiting[0]}" if waiting else ""
        state = self._state()
        return DeadlineExceededError(
            f"{self.describe()}: {attempt.operation} was not done within {timeout:g} s"
            f"{self._progress(attempt)}{f'; {state}' if state else ''}{others}"
        )


def check_timeout(timeout: object) -> float:
    """Seconds for `Lock.acquire` (-1: no limit). InvalidArgumentError for what is no time."""
    if timeout is None:
        return -1
    if isinstance(timeout, bool) or not isinstance(timeout, Real) or not float(timeout) >= 0:
        raise InvalidArgumentError(
            f"timeout={timeout!r} is no time", hint="give seconds >= 0, or None for no limit"
        )
    return min(float(timeout), threading.TIMEOUT_MAX)


def _call_back(attempt: Attempt) -> None:
    if attempt.unregister is not None:
        attempt.unregister()
    try:
        attempt.done(attempt.outcome)
    except Exception:  # it is not the fault of the operation that happened to make this one ready
        _log.exception("the callback of %s failed", attempt.operation)


def _nothing() -> None:
    """A change that changes nothing: who was put off is served."""


# ------------------------------------------------------------------------------------------- fork
_resources: weakref.WeakSet[Resource] = weakref.WeakSet()
_forking = threading.RLock()  # held while `_resources` changes, and by a thread that forks
_held: list[list[Resource]] = []


def _before_fork() -> None:
    _forking.acquire()
    _held.append(sorted(_resources, key=id))
    for resource in _held[-1]:
        resource._lock.acquire()


def _after_fork() -> None:
    for resource in _held.pop():
        resource._lock.release()
    _forking.release()


def _forget_attempts() -> None:
    """In a child: those who wait are threads of the parent. What they have taken is there again."""
    for resource in _held[-1] if _held else list(_resources):
        for line in resource._lines:
            for attempt in line:
                attempt.pending = False
                resource._give_back(attempt)
            line.clear()
        resource._finished.clear()


in_child(_forget_attempts)  # before the locks are released, so before the next line
around_fork(_before_fork, _after_fork)
