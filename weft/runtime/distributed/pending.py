"""What the master waits for: one answer from each part of a step, or of a definition."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from typing import Any

from weft.ir.dataclass import dataclass
from weft.ir.errors import UnavailableError, WeftError
from weft.runtime.distributed.recorded import StepTrace
from weft.runtime.distributed.wire_errors import Derived

#: A task, and the handle of the part that it was given.
Who = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Failure:
    """An error, and how far it is from what went wrong first (`wire_errors.Derived`). lost: the
    task that is gone, and why."""

    error: WeftError
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
    def error(self) -> WeftError | None:
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
